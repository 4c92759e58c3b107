/* live.h - options that may change while a generation runs. They decide when something is saved or
 * measured, never what is computed. Threads: the setters any, the others the first replica's. */
#ifndef TRAIN_LIVE_H
#define TRAIN_LIVE_H

#include <stdbool.h>
#include <stdint.h>

struct live {
    _Atomic uint64_t save_every_steps, save_every_ns, norm_every_steps; /* 0: never */
    _Atomic uint32_t max_to_keep;
    /* norm_every_steps that step k uses, at [k & 1]: local replica 0 writes the entry of the next
     * step before the gate that ends this step, so that all replicas decide alike. */
    uint64_t norm_every[2];
};

void live_set_checkpoint(struct live *l, uint64_t every_steps, double every_seconds,
                         uint32_t max_to_keep);
void live_set_norm(struct live *l, uint64_t every_steps);
/* Must the norm of this step's gradient be computed? Equal for all local replicas; called in their
 * threads. */
bool live_norm_is_due(const struct live *l, uint64_t step);
void live_end_step(struct live *l, uint64_t step); /* before the gate that ends it */
/* by the number of a step in (before, step] */
bool live_save_is_due(const struct live *l, uint64_t before, uint64_t step);
/* by the time since then, ns */
bool live_save_is_overdue(const struct live *l, uint64_t last_save_ns);
uint32_t live_keep(const struct live *l);

#endif
