/* cpu_update.h - the optimizer's work on this replica's part of the shared state. Contracts:
 * engine_ops.
 *
 * Between the gates every replica writes its own part of weights, slots and average. Everything
 * that it reads of the parts of others was written before the gate that precedes it. Threads: the
 * replica's. */
#ifndef ENGINE_CPU_UPDATE_H
#define ENGINE_CPU_UPDATE_H

#include "engine/engine.h"

void cpu_gradient_norm(struct engine_replica *r, bool wanted, double *norm);
int cpu_update(struct engine_replica *r, const struct optim_hyper *h, struct err *err);

#endif
