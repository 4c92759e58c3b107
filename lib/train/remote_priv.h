/* remote_priv.h - remote parameters, for the files that implement them (remote.h):
 *
 *   remote.c         the engine's access, checkpoints of tables, votes
 *   remote_settle.c  a generation begins and ends
 *   remote_dense.c   dense parameters
 *   remote_rows.c    rows that the task reads, also for an export
 *   remote_unit.c    units of an asynchronous phase */
#ifndef TRAIN_REMOTE_PRIV_H
#define TRAIN_REMOTE_PRIV_H

#include "ps/leader.h"
#include "ps/route.h"
#include "ps/units.h"
#include "train/remote.h"
#include "train/task.h"

struct listed { /* the trained rows of a dynamic table, for an export */
    uint64_t *rows; /* owned; ascending */
    int64_t *ids;   /* owned; the same */
};

struct remote {
    struct train *train;
    struct engine_remote engine;
    uint32_t n, n_tables;         /* embedding tables; with the dense parameters, which follow */
    struct packed_table *compact; /* [n] owned */
    struct listed *listed;        /* [n] owned; NULL: not listed */
    struct ps_table *tables;      /* [n_tables] owned; the names are the graph's */
    const struct graph_param **dense; /* [n_tables - n] owned; the graph's */
    struct ps_client **clients;   /* [n_devices] owned */
    float ***places;              /* [n_devices][n_tables - n] owned; of dense parameters */
    struct ps_leader *leader;     /* owned */
    struct ps_route route;        /* of the generation */
    uint64_t ahead;      /* version of the servers minus the held step; 0 without asynchronous phases */
    uint64_t reported;   /* the task has reported the steps up to this one; those after it are only settled */
    bool has_more;       /* the servers have applied lanes of steps after the held one: it is no state of the job */
    struct ps_unit unit; /* that this task computes; n 0: the lanes of a synchronous step */
    char *loaded; /* owned; path of the checkpoint that was read; NULL: none */
    uint64_t loaded_step;
    uint64_t shared_ns; /* when the other replicas were last informed of the settlement that runs */
    uint32_t n_shared;  /* how many times */
    struct graph *initial; /* owned; has the initial rows during a settlement; NULL: not opened */
};

/* The version of the servers that is the held state. */
static inline uint64_t remote_version(const struct remote *m)
{
    return state_held(&m->train->state) + m->ahead;
}

/* ---- remote_settle.c ---- */

/* Returns the name of the task of a server; arg: the struct train. */
const char *remote_name_server(void *arg, uint32_t server);

/* ---- remote_rows.c ---- */

/* The rows that the client of a replica reads next are for this use. */
void remote_begin(struct remote *m, uint32_t local, enum engine_rows use);
/* Reads rows [first, first + n) of a part of a table, at a step boundary; of a dynamic table in the order of an
 * export. Errors: those of ps_leader_read(). */
int remote_read_rows(struct train *t, uint32_t table, uint32_t part, uint64_t first, uint64_t n,
                     float *out, struct err *err);

void remote_free_listed(struct remote *m);

/* ---- remote_dense.c ---- */

uint32_t remote_count_dense(const struct train *t);
/* Points to each dense parameter in an arena. */
void remote_locate_dense(const struct remote *m, float *arena, float **out);
/* Writes initial values: at step 0 every training task has them. Zeros follow the last one. */
void remote_initial_dense(const struct remote *m, uint32_t table, uint64_t first, uint64_t n,
                          float *out);

#endif
