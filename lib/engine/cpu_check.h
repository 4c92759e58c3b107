/* cpu_check.h - checksums and the search for non-finite numbers, on a CPU. Contracts: engine_ops.
 *
 * Replicas share the state, and each updates a part of it. Each replica therefore computes the
 * checksum of the part of the gradient that its own update reads, in its own arena. Without peers,
 * each also computes the checksum of the previous replica's part, and both are compared before the
 * gradient is used.
 * Threads: the replica's. */
#ifndef ENGINE_CPU_CHECK_H
#define ENGINE_CPU_CHECK_H

#include "engine/engine.h"

void cpu_inspect(struct engine_replica *r);
int cpu_verify_gradient(struct engine_replica *r, uint64_t step, uint32_t *sum, bool *finite,
                        struct err *err);
int cpu_checksum(struct engine_replica *r, struct err *err);
int cpu_verify_state(struct engine_replica *r, uint64_t step, uint32_t *sum, struct err *err);

#endif
