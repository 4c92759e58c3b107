/* cpu_lane.h - what is before and after the computation of a lane on a CPU. Threads: the replica's. */
#ifndef ENGINE_CPU_LANE_H
#define ENGINE_CPU_LANE_H

#include "engine/engine.h"

struct data_batch;
struct plan;

/* A struct pass. */
int cpu_feed(struct engine_replica *r, struct plan *plan, const struct data_batch *b,
             struct err *err);
/* Writes the control words of the lane that the plan has computed, after its gradients. */
void cpu_write_control(const struct engine_replica *r, float *grads);

#endif
