/* client.h - the access of one replica to the tables on parameter servers (ps).
 *
 *     lookup   the rows that a lane (micro-batch) reads get slots in compact tables; rows without
 *              values are fetched (PULL -> ROWS)
 *     dense    all values of the dense parameters, whose rows are the last tables (PULL -> ROWS)
 *     push     the sum of the gradients over the lanes of the replica goes to every holder of a
 *              shard (PUSH); each server receives one message per step, even an empty one
 *     commit   the step is applied, or skipped, on all servers (COMMIT), once every rank has sent it
 *
 * With staleness k the lanes of step t read the rows after step max(0, t - 1 - k). The servers have them before
 * all ranks have committed step t - 1, so a PULL does not wait for the slowest rank.
 *
 * Rows are read from the holder with number rank mod holders, so the holders share the work. While rows are
 * still copied to that holder (leader.h), the next one that has the shard sends them. The client asks the
 * servers what they have (QUERY -> HELD) before its first rows, then after 1, 2, 4, ... steps while copies run.
 * Memory: the compact tables have room for the rows of a step; a warm step allocates nothing.
 * Threads: the replica's. */
#ifndef PS_CLIENT_H
#define PS_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ps/units.h"

struct err;
struct optim_hyper;
struct packed;
struct ps_client;
struct ps_port;
struct ps_route;

struct ps_client_opts {
    uint32_t n_tables;
    const uint32_t *widths, *first_shards; /* [n_tables] as in struct ps_table; copied */
    const size_t *rooms;                   /* [n_tables] slots; copied; 0 of dense parameters */
    uint32_t n_dense;        /* dense parameters: the last tables */
    const size_t *elements;  /* [n_dense] floats of each; copied */
    uint32_t staleness;
};

/* On success the caller owns *out. Errors: ERR_NOMEM. */
int ps_client_open(const struct ps_client_opts *opts, struct ps_client **out, struct err *err);
void ps_client_close(struct ps_client *c); /* NULL is allowed */

/* Begins a generation as `rank`; the port is copied, the route is borrowed until the next call. The
 * lanes of the rank are the leaves [first_leaf, first_leaf + n_leaves) (base/lane_tree.h). `version`: the step that the group holds. Errors: ERR_NOMEM;
 * ERR_UNSUPPORTED: the dense parameters need more servers. */
int ps_client_begin_generation(struct ps_client *c, const struct ps_port *port, uint32_t rank,
                               const struct ps_route *route, uint32_t first_leaf, uint32_t n_leaves,
                               uint64_t version, struct err *err);

/* Frees all slots. The rows that follow are those of the version: a part of their state (store.h); 0: the
 * weights. */
void ps_client_begin(struct ps_client *c, uint32_t part);
/* The same for the lanes of a step: the rows that follow are the weights `staleness` steps before the version. */
void ps_client_begin_step(struct ps_client *c);
/* Replaces row numbers of a table, or ids of a dynamic table, by slots; ps_client_fetch() then fetches the values of slots that
 * have none. Errors: those of comm_send() and comm_receive(); ERR_PEER: a server answers wrongly. */
void ps_client_resolve(struct ps_client *c, uint32_t table, int64_t *rows, size_t n);
int ps_client_fetch(struct ps_client *c, struct err *err);
float *const *ps_client_values(struct ps_client *c); /* [n_tables] compact tables [slot][width] */

/* Copies the values of the dense parameters to out [n_dense][elements]. Errors: as above. */
int ps_client_fetch_dense(struct ps_client *c, float *const *out, struct err *err);

/* Sends the gradients of the marked slots, and those of the dense parameters: dense [n_dense][elements]. `version`: that
 * they make; in a job without asynchronous phases the step. `clip`: the servers limit each element of the sum to
 * [-clip, clip]; 0: no limit. Errors: those of comm_send(). */
int ps_client_push(struct ps_client *c, uint64_t version, const struct packed *marks,
                   const float *values, const float *const *dense, float clip, struct err *err);
/* The version is from here on `version`. hyper NULL: the step is skipped. Errors as above. */
int ps_client_commit(struct ps_client *c, uint64_t version, const struct optim_hyper *hyper,
                     struct err *err);
/* The rank leaves the generation in order. is_complete: the job is complete. */
int ps_client_end(struct ps_client *c, bool is_complete, struct err *err);

/* ---- an asynchronous phase (units.h): the coordinator sets the limit, and each rank repeats
 *
 *     next     a unit of the lanes of the rank, as soon as the bound permits
 *     begin    the rows that follow are the newest ones
 *     push     its gradient
 *     order    the servers compute the gradient; the rank collects their votes (leader.h)
 *     commit   they update, or skip
 *
 * until it stops. Errors: those of comm_send() and comm_receive(); ERR_PEER. ---- */

/* All ranks stop after `step`; 0: after the newest step that a rank has begun. */
int ps_client_limit(struct ps_client *c, uint64_t step, struct err *err);

struct ps_next {
    enum { PS_NEXT_UNIT, PS_NEXT_NONE /* all these lanes of the step are applied */, PS_NEXT_STOP } what;
    struct ps_unit unit;
    uint64_t version; /* stop: of the rows, in which all steps up to the limit are complete */
    uint32_t n_facts; /* complete steps after `after`, ascending */
    struct ps_step_facts facts[PS_FACTS_MAX];
};
/* Asks for a unit of the lanes [first, first + n) of a step. `after`: the newest step whose facts the rank has. Waits
 * until the bound permits a unit of the step, or all steps up to the limit are complete. */
int ps_client_next(struct ps_client *c, uint64_t step, uint32_t first, uint32_t n, uint64_t after,
                   struct ps_next *out, struct err *err);
/* Frees all slots. The rows that follow are the newest ones, at least those of the version of ps_client_next(). */
void ps_client_begin_unit(struct ps_client *c, uint64_t step);
int ps_client_push_unit(struct ps_client *c, const struct ps_unit *unit, const struct packed *marks,
                        const float *values, const float *const *dense, float clip,
                        struct err *err);
/* Waits for the turn of the rank. *version: that the unit makes. */
int ps_client_order(struct ps_client *c, uint64_t *version, struct err *err);
/* hyper NULL: the unit is skipped. */
int ps_client_commit_unit(struct ps_client *c, uint64_t version, const struct optim_hyper *hyper,
                          const struct ps_unit_facts *facts, struct err *err);

#endif
