/* cpu_step.h - the lanes (micro-batches) of a replica on a CPU. Contracts: engine_ops, struct pass.
 * Threads: the replica's. */
#ifndef ENGINE_CPU_STEP_H
#define ENGINE_CPU_STEP_H

#include "engine/engine.h"

struct op_run;
struct plan;

int cpu_skip_lanes(struct engine_replica *r, uint32_t n, struct err *err);
int cpu_run_lanes(struct engine_replica *r, uint64_t step, struct err *err);
int cpu_reduce(struct engine_replica *r, uint64_t step, struct err *err);
int cpu_scale(struct engine_replica *r, float by, struct err *err);

int cpu_run(struct engine_replica *r, struct plan *plan, const struct op_run *run, bool backward,
            struct err *err);
int cpu_fetch_gradients(struct engine_replica *r, struct err *err);

#endif
