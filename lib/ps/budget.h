/* budget.h - the memory that the tables of a ps need in a generation, summed over its servers, and the growth
 * of dynamic tables.
 *
 * Each server learns its shards by its own BEGIN and reports their bytes before it allocates them,
 * so that a ps that cannot hold its tables states both numbers instead of being killed by the
 * kernel. Threads: any, between ps_budget_begin() and the end of the generation. */
#ifndef PS_BUDGET_H
#define PS_BUDGET_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct err;

struct ps_memory { /* in bytes */
    uint64_t held; /* memory that the tables can occupy at the start of the generation */
    /* Rows, slots of the optimizer and averages of the servers that have reported, with the shards that
     * they keep until these are copied. */
    uint64_t planned;
    uint64_t planned_memory; /* that they can occupy; at least `planned` (ps_store_memory()) */
    uint32_t n_reported, n_servers;
    /* Dynamic tables have grown since the reports. `planned` contains it, and the growth that is requested */
    uint64_t grown;
    const char *growing; /* the table whose rows are about to get memory; NULL: a server reports */
};

/* Decides whether the ps may allocate the memory. Called by one thread at a time. An error ends the
 * generation with its text. Returns 1 if the memory may be allocated, and a checkpoint should be saved because
 * little is left; else 0. */
typedef int ps_memory_fn(void *arg, const struct ps_memory *m, struct err *err);

struct ps_budget {
    pthread_mutex_t lock; /* guards `memory`, `wants_save` and calls of `decide` */
    struct ps_memory memory;
    bool wants_save; /* ps_budget_takes_save() */
    ps_memory_fn *decide; /* NULL: no limit */
    void *arg;
};

void ps_budget_init(struct ps_budget *b, ps_memory_fn *decide, void *arg);
void ps_budget_fini(struct ps_budget *b);
void ps_budget_begin(struct ps_budget *b, uint64_t held, uint32_t n_servers);
uint64_t ps_budget_held(struct ps_budget *b); /* as ps_budget_begin() */
/* A server reports the bytes of its shards; `bytes` and `memory` as for ps_server_opts.reserve. Errors: those of `decide`. */
int ps_budget_report(struct ps_budget *b, uint64_t bytes, uint64_t memory, struct err *err);
/* The rows of a dynamic table are about to get `bytes` more. Errors: those of `decide`; the bytes are then not
 * counted. */
int ps_budget_grow(struct ps_budget *b, const char *table, uint64_t bytes, struct err *err);
/* Returns true once after `decide` has asked for a checkpoint. */
bool ps_budget_takes_save(struct ps_budget *b);

#endif
