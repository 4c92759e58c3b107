/* cpu.h - the engine of replicas on CPUs: one thread on one core each, which share one state. */
#ifndef ENGINE_CPU_H
#define ENGINE_CPU_H

struct engine_ops;

extern const struct engine_ops engine_cpu;

#endif
