/* leader.h - what the coordinator of a generation does for the parameter servers (ps): it settles
 * which state each server holds, and collects their votes in each step.
 *
 * Settlement. The training tasks have agreed on the state after `step`. Every server reports the
 * version that it holds, and whether the summed gradient of the next step is pending. A server of
 * version `step`, or of version step - 1 with the gradient of `step`, holds valid shards; those of
 * other servers are invalid. Each server receives the list of its shards (route.h). A shard that a
 * server lacks is copied from a valid holder, filled by the coordinator (initial values), or read by the server
 * from a checkpoint (files.h). If another holder has the shard, the copy is made while the next steps run; else
 * the settlement waits for it. If a shard with rows has no valid holder and no other source, the settlement
 * fails with ERR_REFUSED, and the group returns to the newest checkpoint. If the shards of a server would not fit its
 * memory, fewer servers hold each shard, but at least one.
 *
 * Jobs with an asynchronous phase: updates (units.h) may be newer than the agreed step, and their bits do not
 * follow from the job. The server with the newest update of the newest generation decides the version; servers
 * that hold it, or hold the pending gradient that made it, are valid.
 *
 * Threads: that of the first replica of the coordinator. */
#ifndef PS_LEADER_H
#define PS_LEADER_H

#include <stdbool.h>
#include <stdint.h>

#include "optim/optim.h"
#include "ps/store.h"
#include "tensor/fill.h"

struct err;
struct optim_hyper;
struct ps_leader;
struct ps_port;
struct ps_route;

struct ps_leader_opts {
    const struct ps_table *tables; /* borrowed */
    uint32_t n_tables;
    uint32_t optimizer; /* enum optim_type */
    const struct optim_hyper *hyper;
    double average; /* decay; 0: none */
    uint32_t staleness;
    uint32_t n_lanes, bound; /* of asynchronous phases (units.h); 0: the job has none */
    uint64_t check_every;    /* steps between two comparisons of rows by their holders; 0: none */
    /* [n_tables] how initial rows are generated; those of kind TABLE_FROM_FILE come from the source.
     * Borrowed during the call; NULL: all of that kind */
    const struct table_fill *fills;
};

int ps_leader_open(const struct ps_leader_opts *opts, struct ps_leader **out, struct err *err);
void ps_leader_close(struct ps_leader *l); /* NULL is allowed */

/* A source of the state for shards without a valid holder. Writes part `part` (store.h) of rows
 * [first, first + n) of a table to out. */
typedef int ps_source_fn(void *arg, uint32_t table, uint32_t part, uint64_t first, uint64_t n,
                         float *out, struct err *err);

struct ps_settlement {
    uint64_t step; /* agreed */
    uint64_t generation;
    /* identifies the model: servers that hold rows of another one drop them */
    uint32_t model;
    /* of `step`, for servers where its gradient is pending; NULL: it was skipped. Not used with a source: a
     * checkpoint does not contain it */
    const struct optim_hyper *hyper;
    ps_source_fn *source; /* NULL: the coordinator holds no tables of that step */
    /* Path of a checkpoint of that step, from which servers read shards without a valid holder; used in place of a
     * source. NULL: none */
    const char *folder;
    uint64_t stall_ms; /* most time without progress while servers read */
    const char *(*name)(void *arg, uint32_t server); /* of a server, for messages; not NULL with `folder` */
    /* NULL, or called often while servers generate rows or read a checkpoint, and while the coordinator fills shards:
     * other tasks wait for the settlement. Errors end it. */
    int (*on_progress)(void *arg, struct err *err);
    void *arg;
    /* The rows of the source are initial: it is asked for part 0, the weights, alone. The slots are zero,
     * and the average equals the weights. */
    bool is_initial;
};

struct ps_settled {
    uint32_t n_holders; /* of each shard, which all ranks use (ps_route_limit()) */
    uint64_t step, version; /* that the servers hold; step: later than the agreed one in an asynchronous phase */
    bool has_more;          /* lanes of later steps are applied too */
    /* for the log */
    uint32_t n_copied; /* shards that moved between servers */
    uint32_t n_followed; /* shards that move between servers during the next steps */
    uint32_t n_filled; /* shards that the coordinator filled, or servers read from a checkpoint */
    uint32_t n_committed; /* servers that applied a pending step */
    /* n_holders is less than that of the route before: server `tight` has room for `room` bytes, and one more holder
     * of each shard would need `needed` there. Else room is 0. */
    uint32_t tight;
    uint64_t room, needed;
};

/* Limits route->n_holders to the memory of the servers. */
int ps_leader_settle(struct ps_leader *l, const struct ps_port *port, struct ps_route *route,
                     const struct ps_settlement *s, struct ps_settled *out, struct err *err);

struct ps_votes {
    bool is_finite;
    bool wants_save; /* the memory of a ps is about to be full */
    double squares; /* of the gradients of all remote tables */
    bool differ;    /* out, also of an error: two servers have different rows of a shard before the step */
    uint32_t shard, servers[2];
};

/* Waits for the vote of every server on the gradient of `step`. Compares the votes of the holders of each shard, and the
 * rows of PS_CHECK_SHARDS shards every check_every steps, in turn: each row within PS_CHECKS * check_every steps.
 * Errors: those of comm_receive(); ERR_DEVICE: two holders have different sums of gradients; the text names them;
 * ERR_PEER with out->differ: different rows. The next settlement then takes these rows from a source alone. */
int ps_leader_collect(struct ps_leader *l, const struct ps_port *port, const struct ps_route *route,
                      uint64_t step, struct ps_votes *out, struct err *err);

/* Asks the servers for the shards that they have while copies run, at a step boundary. Sets *out [PS_SHARDS]: for each
 * shard a server that has all its rows, the first holder if possible. Valid until the next call or settlement.
 * Errors: those of comm_send() and comm_receive(). */
int ps_leader_find_readers(struct ps_leader *l, const struct ps_port *port,
                           const struct ps_route *route, const uint32_t **out, struct err *err);

/* Reads part `part` of n rows of a table after step `version` from the servers, at a step boundary: of a table of fixed
 * size from row `first` on, rows NULL; of a dynamic table rows [n] (map.h). Errors: those of comm_send() and
 * comm_receive(). */
int ps_leader_read(struct ps_leader *l, const struct ps_port *port, const struct ps_route *route,
                   uint64_t version, uint32_t table, uint32_t part, const uint64_t *rows,
                   uint64_t first, uint64_t n, float *out, struct err *err);
/* Lists the trained rows of a dynamic table after step `version`, ascending, at a step boundary. The caller frees *rows.
 * Errors: those of comm_send() and comm_receive(), ERR_NOMEM. */
int ps_leader_list(struct ps_leader *l, const struct ps_port *port, const struct ps_route *route,
                   uint64_t version, uint32_t table, uint64_t **rows, uint64_t *n, struct err *err);

#endif
