/* server.h - one service thread of a parameter server (ps): messages in, messages out. Pure: no
 * sockets, no clock, so a test can run a whole group in one thread.
 *
 *   state        message                        next        action
 *   IDLE         SETUP                          IDLE        describes the tables; other tables: drops the state
 *   IDLE         QUERY                          IDLE        sends HELD
 *   IDLE         BEGIN(step, commit|skip|drop)  LOADING     ends the pending step; holds the listed shards, and
 *                                                           keeps valid ones that move away; generates initial
 *                                                           rows, and sends WAIT meanwhile
 *   LOADING      COPY(shard)                    LOADING     fills the shard
 *   LOADING      all shards are filled, apart   HOLDING     sends READY to the coordinator
 *                from those to copy later
 *   LOADING,     FOLLOW(server, shards)         same        sends FETCH to that server, which answers with COPY;
 *   HOLDING,                                                see server_copy.c
 *   PENDING
 *   HOLDING      PUSH of a rank                 HOLDING     keeps it
 *   HOLDING      PUSH of the last rank          PENDING     drops shards that moved away; sums along the tree;
 *                                                           sends VOTE
 *   PENDING      COMMIT of a rank               PENDING     counts it
 *   PENDING      COMMIT of the last rank        HOLDING     updates, or skips; answers the PULLs that wait
 *   HOLDING,     PULL                           same        sends ROWS, of an older version with staleness; waits
 *   PENDING                                                 if its version is the next one
 *   LOADING,     FETCH(place, shards)           same        sends COPY to another server
 *   HOLDING,
 *   PENDING
 *   HOLDING,     COUNT(shards), LIST(shards)    same        sends the sizes or the rows of dynamic tables; waits if its
 *   PENDING                                                 version is the next one
 *   HOLDING,     SAVE(shards)                   same        writes their rows to files, on another thread; no COMMIT
 *   PENDING                                                 of the coordinator arrives before it is done or stopped;
 *                                                           waits if its version is the next one
 *   LOADING      LOAD(shards)                   LOADING     reads their rows from a checkpoint, on another thread
 *   any, with    POLL                           same        sends DONE, or stops the work; sends WAIT. LOAD is done:
 *   such work                                               these shards are filled
 *   HOLDING,     QUERY                          same        sends HELD: the shards with all their rows
 *   PENDING
 *   HOLDING      END of the last rank           IDLE        the generation has ended
 *   any          the generation fails           IDLE        drops the PUSHes that are not summed; keeps a
 *                                                           pending gradient
 *
 * The version is the number of updates; without asynchronous phases it is the step after which the rows are. It grows
 * when *every* rank has sent COMMIT, so no server is ever ahead of a training task; and every server has the summed
 * gradient of a step before a task can complete that step, because the coordinator waits for all votes.
 *
 * In an asynchronous phase (units.h) each rank applies its own units, and the first server, the sequencer, orders them:
 *
 *   HOLDING      PUSH of a unit                 HOLDING     keeps it. The sequencer sends TICKET to the rank when it is
 *                                                           its turn
 *   HOLDING      ORDER of the rank              PENDING     computes the gradient of its unit; sends VOTE to it
 *   PENDING      ORDER of another rank          PENDING     waits for the next version
 *   PENDING      COMMIT of the rank             HOLDING     updates, or skips; marks the lanes
 *   HOLDING,     NEXT, LIMIT                    same        the sequencer answers NEXT with GO (server_turns.c)
 *   PENDING
 *
 * So all servers apply the same units in the same order, and a unit is applied on all of them or on none. A task may be
 * behind the servers, which report how far they are when a generation begins.
 *
 * Fault points (base/fault.h), in the order in which a generation passes them. `fail` ends the
 * generation:
 *   ps.begin       BEGIN has arrived, the pending step is not settled yet
 *   ps.fill        before the rows of each shard are generated
 *   ps.copy        before each COPY is used; ps.send: before a server sends
 *                  one
 *   ps.rows        before ROWS are sent
 *   ps.push        before each PUSH is kept
 *   ps.vote        the gradient is pending, the VOTE is not sent yet
 *   ps.commit      COMMIT of every rank has arrived, nothing is changed yet; ps.committed: the rows are
 *                  those of the next version
 *   ps.flip        after a commit: a bit of a row of this server is wrong
 *   ps.go          before GO is sent
 *   ps.count       before the sizes of dynamic tables are sent; ps.list: before their rows are
 *   ps.poll        before each DONE is sent; saver.h and loader.h have those of the other thread
 *   ps.end         before each END is counted
 * Threads: one at a time per server. */
#ifndef PS_SERVER_H
#define PS_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "opts/ps.h"

struct err;
struct ps_server;
struct ps_table_facts;

struct ps_server_opts {
    uint32_t thread, n_threads; /* of the ps: the server holds shards s with s mod n_threads = thread */
    /* Size of an answer to FETCH; 0: 2^19. Busy servers answer about once in a step: larger answers complete a copy
     * earlier, but delay the first steps of a generation. */
    uint64_t batch_floats;
    /* Sends one message to a point. */
    int (*send)(void *arg, uint32_t to, const struct iovec *parts, uint32_t n, struct err *err);
    /* Exchanges *data [*room] for the memory of the message that is handled; as comm_exchange().
     * NULL: the server copies messages that it keeps. */
    void (*exchange)(void *arg, uint8_t **data, size_t *room);
    /* Called by BEGIN before the server allocates shards: `bytes` of rows, slots and averages of
     * all shards that it then has, also of those that it keeps for SEND; `memory`: that they can
     * occupy (ps_store_memory()). An error is that of BEGIN. NULL: no limit. */
    int (*reserve)(void *arg, uint64_t bytes, uint64_t memory, struct err *err);
    /* Returns the most bytes that the shards of this server may occupy; UINT64_MAX: no limit is known. NULL: none. */
    uint64_t (*room)(void *arg);
    /* Called before the rows of a dynamic table get `bytes` more. An error is that of the message, so the
     * generation ends. NULL: no limit. */
    int (*grow)(void *arg, const char *table, uint64_t bytes, struct err *err);
    /* Whether the next VOTE asks for a checkpoint. NULL: none does. */
    bool (*wants_save)(void *arg);
    void *arg;
    const char *directory; /* of checkpoints, on this host; borrowed. NULL: none, so no save succeeds */
};

int ps_server_open(const struct ps_server_opts *opts, struct ps_server **out, struct err *err);
void ps_server_close(struct ps_server *s); /* NULL is allowed */

/* Begins a generation with n_ranks training ranks (points 0 to n_ranks - 1) and n_servers servers;
 * this one is the point `self`. `leader`: the point of the coordinator's first rank. Errors:
 * ERR_NOMEM. */
int ps_server_begin(struct ps_server *s, uint32_t n_ranks, uint32_t n_servers, uint32_t self,
                    uint32_t leader, struct err *err);
void ps_server_end(struct ps_server *s); /* the generation ended, in whatever way */

/* Handles a message from a point. The message is not used after the call. Errors: those of send();
 * ERR_PEER: the message is invalid, or not expected in this state; the generation then fails. */
int ps_server_handle(struct ps_server *s, uint32_t from, const uint8_t *data, size_t bytes,
                     struct err *err);

enum ps_server_end { PS_RUNNING, PS_PAUSED /* every rank has sent END */, PS_COMPLETE /* the same, and the job is complete */ };
enum ps_server_end ps_server_ended(const struct ps_server *s);

uint64_t ps_server_version(const struct ps_server *s);
uint32_t ps_server_copying(const struct ps_server *s); /* shards whose rows are being copied to it */

struct ps_server_stats {
    uint64_t version; /* number of updates; in a job without asynchronous phases equal to `step` */
    uint64_t step;    /* after which the rows are */
    uint32_t n_shards;
    uint32_t n_copied;   /* shards whose rows are being copied to the server */
    uint64_t bytes;      /* of rows, slots and averages */
    uint64_t memory;     /* that they can occupy (ps_store_memory()) */
    uint64_t rows_read, rows_updated; /* since ps_server_open() */
    uint64_t rows_stale[PS_AGES]; /* rows that lanes read, by the steps that they are older */
};
void ps_server_stats(const struct ps_server *s, struct ps_server_stats *out);
/* As ps_store_facts(). */
uint32_t ps_server_tables(const struct ps_server *s, struct ps_table_facts *out, uint32_t most);

/* ---- rows, for a reader between two messages ---- */

struct ps_place { /* a part of a table */
    uint32_t table, part, width;
    uint64_t rows, step; /* rows 0: the table is dynamic; step: after which the values are */
};
/* Finds a part of a table by their names; part "": the weights. Errors: ERR_NOENT; ERR_PEER: no
 * generation is trained. */
int ps_server_find(const struct ps_server *s, const char *table, const char *part,
                   struct ps_place *out, struct err *err);
bool ps_server_has_row(const struct ps_server *s, const struct ps_place *at, uint64_t row);
/* Copies a row that the server has to out [width]. *is_initial: no step has trained this row of a dynamic table, so it
 * has its initial values. Errors: as ps_store_read_part(). */
int ps_server_read_row(struct ps_server *s, const struct ps_place *at, uint64_t row, float *out,
                       bool *is_initial, struct err *err);

#endif
