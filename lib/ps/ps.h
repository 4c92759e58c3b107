/* ps.h - a parameter server (ps): a task that holds rows of embedding tables for the training tasks.
 *
 *   map, route     which shard a row is in, and which servers hold a shard
 *   store          rows, slots and averages of the shards of one server
 *   message        the bytes of the protocol
 *   server         one service thread: messages in, messages out
 *   client, slots  the access of a replica
 *   leader         what the coordinator does: settlement, votes
 *   port           how the last two exchange messages
 *   units          which lanes are applied, in an asynchronous phase
 *   wants          which tables of a job are on parameter servers
 *   budget         the memory that the servers of a task need together
 *   ps             the task: connects, and runs its servers for a generation
 *
 * A ps needs no model and no data: the coordinator describes the tables, and fills them. Its state stays in
 * memory between generations.
 *
 * Threads: ps_open(), ps_start() and ps_close() one at a time; ps_abort() and ps_facts() any. */
#ifndef PS_PS_H
#define PS_PS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/group_view.h"
#include "opts/ps.h"
#include "ps/budget.h"

struct comm_listener;
struct comm_loss;
struct err;
struct ps;
struct ps_table_facts;

struct ps_opts {
    uint32_t n_servers; /* service threads */
    ps_memory_fn *on_memory; /* from threads of the ps, before they allocate shards; NULL: no limit */
    /* Returns the most bytes that the tables of this ps may have; held: those of the tables at the start of the
     * generation. UINT64_MAX: no limit is known. From threads of the ps; NULL: no limit */
    uint64_t (*room)(void *arg, uint64_t held);
    const char *checkpoints; /* directory; borrowed. NULL: the job has none */
    void *arg;
};

struct ps_group { /* one generation; copied, with the view */
    struct group_view view;
    uint8_t key[GROUP_KEY_BYTES]; /* secret of the communicator */
    struct comm_listener *listener; /* borrowed */
    bool shared_memory, encrypts; /* as on the training tasks */
    uint64_t deadline_ms; /* of calls of the communicator */
    /* as comm_opts.on_broken, with broken_arg */
    void (*on_broken)(void *arg, const struct comm_loss *loss, const char *why);
    void *broken_arg;
    /* From a thread of the ps, once, when all training tasks are connected and served. */
    void (*on_connected)(void *arg, uint64_t step);
    /* From a thread of the ps: a thread has received the rows of n shards that it lacked. */
    void (*on_copied)(void *arg, uint32_t n, uint64_t ms);
    /* From a thread of the ps, once, when all its threads are done with the generation. code 0: the
     * training tasks ended it in order, is_complete: after the last step of the job. */
    void (*on_end)(void *arg, bool is_complete, bool is_aborted, int code, const char *text);
};

/* On success the caller owns *out. Errors: ERR_NOMEM. */
int ps_open(const struct ps_opts *opts, struct ps **out, struct err *err);
void ps_close(struct ps *p); /* joins its threads; NULL is allowed */

/* Starts the threads of a generation and returns; the previous one has ended. Errors (then on_end is not
 * called): ERR_NOMEM, those of thread_start(). */
int ps_start(struct ps *p, const struct ps_group *g, struct err *err);
void ps_abort(struct ps *p, const char *why); /* ends the generation; harmless when none runs */

struct ps_facts { /* over all servers */
    uint64_t step; /* the lowest */
    uint32_t n_shards, n_copied; /* n_copied: of these, those whose rows are still being copied */
    uint64_t bytes, rows_read, rows_updated;
    uint64_t memory;                            /* as in struct ps_server_stats */
    uint64_t rows_stale[PS_AGES];  /* the same */
};
void ps_facts(struct ps *p, struct ps_facts *out);
/* Copies the facts of the first `most` dynamic tables, over all servers. Returns the number of dynamic tables. */
uint32_t ps_tables(struct ps *p, struct ps_table_facts *out, uint32_t most);

struct ps_rows { /* the caller frees the arrays */
    uint64_t step; /* the values are those after this step */
    uint32_t width;
    size_t n;
    uint64_t *rows; /* [n] those of the requested rows that this ps holds */
    float *values;  /* [n * width] */
    bool is_dynamic; /* the table; then `is_initial` is set */
    int *is_initial; /* [n] 1: no step has trained the row, so it has its initial values */
};
/* Reads rows of a table by its name; of a dynamic table `rows` are ids (int64_t as bits), and every id has
 * a row, which is initial if no step has trained it. part: "" or "weights", a slot of the optimizer, "average". Waits for
 * the service threads for at most a second. Any thread. Errors: ERR_NOENT (no such table or part), ERR_INPUT (a
 * row that the table does not have), ERR_PEER (the rows are not complete, or change: try again),
 * ERR_NOMEM. */
int ps_read_rows(struct ps *p, const char *table, const char *part, const uint64_t *rows, size_t n,
                 struct ps_rows *out, struct err *err);

#endif
