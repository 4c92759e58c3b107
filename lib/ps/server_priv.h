/* server_priv.h - shared by the files of a server.
 *
 *   server.c          opens, begins and ends a generation, dispatches messages
 *   server_settle.c   SETUP, QUERY, BEGIN: which shards the server has, and of which step
 *   server_shards.c   which rows it has, and READY
 *   server_copy.c     COPY, FOLLOW, FETCH: fills shards, and sends them to other servers
 *   server_memory.c   BEGIN: the memory of the shards, before it is allocated
 *   server_step.c     PULL, PUSH, COMMIT: the steps
 *   server_sum.c      the pending gradient, and the vote on it
 *   server_unit.c     PUSH and ORDER of units
 *   server_turns.c    NEXT, LIMIT: the sequencer of an asynchronous phase
 *   server_rows.c     reads rows, for PULL and for readers
 *   server_files.c    COUNT, LIST, SAVE, LOAD, POLL: rows to and from the files of a checkpoint
 *   server_message.c  keeps and sends messages */
#ifndef PS_SERVER_PRIV_H
#define PS_SERVER_PRIV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ps/message.h"
#include "ps/server.h"
#include "ps/store.h"
#include "ps/units.h"

struct ps_background;
struct table_fill;

struct bytes { /* a message that is kept */
    uint8_t *data;
    size_t n, room;
};

struct rank {
    bool has_pushed, has_committed, has_ended;
    bool waits; /* `later` arrived before the COMMIT of other ranks */
    struct bytes push, later;
    /* asynchronous phase */
    bool orders;              /* ORDER arrived before the COMMIT of another rank */
    bool asks;                /* sequencer: NEXT is not answered yet */
    bool has_stopped;         /* sequencer: since LIMIT */
    struct ps_unit unit;      /* of `push` */
    struct ps_unit wants;     /* sequencer: the lanes of NEXT */
    uint64_t after;           /* sequencer: the rank has the facts up to this step */
};

struct turns { /* sequencer: whose unit is applied next */
    bool has_limit;
    uint64_t limit, begun; /* begun: newest step of which a rank has begun a unit */
    uint32_t *ranks;       /* owned [n_ranks]; a ring */
    uint32_t first, n;
    bool has_ticket; /* the unit of the first one is being applied */
};

struct cursor { /* the place of the next COPY message of a shard */
    uint32_t table, part;
    /* first: local row, or of a dynamic table the lowest row that is missing; its rows have all parts in one
     * message, so `part` stays 0. n: of the rows whose parts are being copied, from part 1 on */
    uint64_t first, n;
    bool has_begun, is_initial; /* is_initial: the messages have part 0 alone */
};

struct follow { /* shards to copy from another server */
    uint32_t source; /* point */
    uint64_t shards[PS_SET_WORDS]; /* that are left */
};

struct ps_server {
    struct ps_server_opts opts;
    struct ps_store *store; /* owned; NULL before the first SETUP */
    struct bytes setup;     /* the message that describes the store */
    uint32_t n_tables, *widths; /* owned [n_tables] */
    uint64_t *rows;             /* owned [n_tables]; 0: a dynamic table */
    struct table_fill *fills;   /* owned [n_tables] */
    bool generates;             /* a table has generated rows */
    /* Number of updates; in a job without asynchronous phases that of steps. units.complete is the step. */
    uint64_t version;
    struct ps_units units; /* owned */
    uint64_t history, pending_history; /* generation of the newest update, and of the pending gradient */
    uint64_t pending_step;             /* of the pending gradient */
    uint64_t generation;
    uint32_t staleness;
    uint64_t check_every;                /* steps between two comparisons of rows; 0: none */
    uint64_t states[PS_CHECK_SHARDS];    /* of the next VOTE */
    /* of the pending gradient, which is in the store */
    struct ps_verdict *verdict; /* owned */

    /* the generation */
    uint32_t n_ranks, n_servers, self, leader;
    struct rank *ranks; /* owned [n_ranks] */
    uint32_t n_pushed, n_committed, n_ended;
    bool is_skipped, is_complete;
    struct optim_hyper hyper; /* of the COMMITs */
    bool has_unit;            /* the pending gradient is one of a unit */
    uint32_t unit_rank;       /* whose */
    struct ps_unit_facts unit_facts;
    struct turns turns;
    bool is_holding;          /* READY was sent */
    uint64_t own[PS_SET_WORDS];    /* shards of this server; others are kept until the first sum, for FETCH */
    /* Shards that are not filled yet: READY waits for those of `copied`, no message for the others. */
    uint64_t copied[PS_SET_WORDS], followed[PS_SET_WORDS];
    uint32_t n_copied, n_followed;
    struct cursor *cursors; /* owned [PS_SHARDS] */
    struct follow *follows; /* owned [n_follows] */
    uint32_t n_follows, at_follow; /* at_follow: the one whose shards are copied now */
    bool is_asked;      /* the answer to a FETCH is not complete */
    bool abandons;      /* the generation ends: no more FETCH */
    bool commit_waits;  /* for that answer */
    struct bytes *kept; /* owned [room_kept]; answers with rows of the next version */
    uint32_t n_kept, room_kept;
    uint32_t kept_from; /* point that sent them. Their follow may be at its end: END abandons it before the last COMMIT */
    struct bytes *fetches; /* owned [n_servers]; FETCHes that wait for the next version; n 0: none */
    uint32_t n_followers, n_followers_done; /* FOLLOWs that name this server */

    struct ps_background *work; /* owned; of SAVE or LOAD; NULL: none. Meanwhile only the work changes rows */
    bool save_waits;            /* SAVE waits for the version of its rows, as `later` of the coordinator */
    bool is_loading;            /* work: LOAD */
    uint64_t loaded[PS_SET_WORDS]; /* shards of LOAD */

    struct ps_section *sections; /* owned [PS_TABLES_MAX] */
    struct ps_part *parts;       /* owned; see sum() */
    size_t room_parts;
    struct ps_message *pushes; /* owned [n_ranks] */
    struct ps_section *push_sections;
    struct ps_writer out;      /* owned */
    uint64_t rows_read, rows_updated;
    uint64_t rows_stale[PS_AGES]; /* rows of steps by their age */
};

/* ---- server_message.c ---- */

int server_no_memory(struct err *err);
/* Keeps a copy of a message in *b. */
int server_copy_message(struct bytes *b, const uint8_t *data, size_t n, struct err *err);
/* Keeps the message that is handled. One that was kept as `later` changes its place. */
int server_keep(struct ps_server *s, struct rank *r, struct bytes *to, const uint8_t *data,
                size_t n, struct err *err);
int server_send(struct ps_server *s, uint32_t to, struct err *err); /* sends s->out */
/* Reports a message that the state does not allow; returns ERR_PEER. */
int server_unexpected(const struct ps_server *s, uint32_t from, const char *what, uint64_t step,
                      struct err *err);
bool server_is_pending(const struct ps_server *s);

/* ---- messages: errors as ps_server_handle() ---- */

int server_setup(struct ps_server *s, uint32_t from, const struct ps_message *m,
                 const uint8_t *data, size_t n, struct err *err);
int server_query(struct ps_server *s, uint32_t from, struct err *err);
int server_begin(struct ps_server *s, uint32_t from, const struct ps_message *m, struct err *err);
int server_copy(struct ps_server *s, uint32_t from, const struct ps_message *m, const uint8_t *data,
                size_t n, struct err *err);
int server_follow(struct ps_server *s, uint32_t from, const struct ps_message *m, struct err *err);
int server_fetch(struct ps_server *s, uint32_t from, const struct ps_message *m,
                 const uint8_t *data, size_t n, struct err *err);
int server_pull(struct ps_server *s, uint32_t from, const struct ps_message *m, const uint8_t *data,
                size_t n, struct err *err);
int server_push(struct ps_server *s, uint32_t from, const struct ps_message *m, const uint8_t *data,
                size_t n, struct err *err);
int server_commit(struct ps_server *s, uint32_t from, const struct ps_message *m, struct err *err);

int server_save(struct ps_server *s, uint32_t from, const struct ps_message *m, const uint8_t *data,
                size_t n, struct err *err);
int server_count(struct ps_server *s, uint32_t from, const struct ps_message *m,
                 const uint8_t *data, size_t n, struct err *err);
int server_list(struct ps_server *s, uint32_t from, const struct ps_message *m, const uint8_t *data,
                size_t n, struct err *err);
int server_load(struct ps_server *s, uint32_t from, const struct ps_message *m, struct err *err);
int server_poll(struct ps_server *s, uint32_t from, const struct ps_message *m, struct err *err);
void server_stop_work(struct ps_server *s); /* the rows may change from here on */

/* ---- server_shards.c ---- */

/* Between ps_server_begin() and BEGIN. */
bool server_is_idle(const struct ps_server *s);
static inline uint32_t server_first_shard(const struct ps_server *s, uint32_t table)
{
    return ps_first_shard_of(table, s->rows[table]);
}
/* Is the shard held, with all its rows? */
bool server_has_shard(const struct ps_server *s, uint32_t shard);
/* Sets *at to the next place with rows that are sent, from *at on: all parts of some rows, then of the next
 * ones. Returns false after the last one. */
bool server_find_place(const struct ps_server *s, uint32_t shard, struct cursor *at);
/* Sets *at to the place after rows of a dynamic table, of which `last` is the last one, or after its end. */
void server_pass_ids(struct cursor *at, uint64_t last, bool is_end);
/* Drops the shards that are not complete. No gradient may be pending. */
void server_drop_incomplete(struct ps_server *s);
/* Answers BEGIN, and reports that the copies that READY waits for have arrived. */
int server_send_ready(struct ps_server *s, struct err *err);

/* ---- server_copy.c ---- */

/* The version has grown: uses and sends the rows that waited for it. */
int server_copies_commit(struct ps_server *s, struct err *err);
/* The commit of a step has removed rows of dynamic tables: the copy of a shard that has begun begins again,
 * because the rows that are removed depend on all rows of the shard. Follows the commit, before
 * server_copies_commit(). */
void server_copies_restart(struct ps_server *s);
/* The first END: ends the copying of shards. */
int server_copies_abandon(struct ps_server *s, struct err *err);
/* Neither sends nor receives copies any more. */
bool server_copies_ended(const struct ps_server *s);
/* Begins a generation with n_servers servers. Errors: ERR_NOMEM. */
int server_copies_begin(struct ps_server *s, uint32_t n_servers, struct err *err);
/* Forgets all that waits. The shards that are not complete remain so: a pending gradient may hold rows of
 * them. */
void server_copies_end(struct ps_server *s);
void server_copies_close(struct ps_server *s);

/* ---- server_step.c ---- */

/* Applies or skips the step that all ranks have committed, or the unit. */
int server_apply(struct ps_server *s, struct err *err);
/* Has the rank the right to expect the next version, because its COMMIT is in transit or waits? */
static inline bool server_expects_version(const struct ps_server *s, const struct rank *r)
{
    return r->has_committed || s->has_unit;
}

/* ---- server_sum.c ---- */

/* Computes the gradient of the pushes of n ranks from `first` on, and sends the vote to a point. */
int server_sum(struct ps_server *s, uint32_t first, uint32_t n, uint32_t voter, struct err *err);

/* ---- server_unit.c ---- */

int server_unit_push(struct ps_server *s, uint32_t from, const struct ps_message *m,
                     const uint8_t *data, size_t n, struct err *err);
int server_order(struct ps_server *s, uint32_t from, const struct ps_message *m, struct err *err);
/* The unit is applied: the version has grown. */
void server_unit_applied(struct ps_server *s);
/* Handles the ORDER that waited for this version. */
int server_unit_continue(struct ps_server *s, struct err *err);

/* ---- server_turns.c ---- */

/* Ranks ask this server which unit they may begin. */
static inline bool server_is_sequencer(const struct ps_server *s)
{
    return s->self == s->n_ranks && s->units.n_lanes > 0;
}
int server_turns_begin(struct ps_server *s, struct err *err); /* a generation; s->n_ranks is set */
void server_turns_close(struct ps_server *s);
int server_limit(struct ps_server *s, uint32_t from, const struct ps_message *m, struct err *err);
int server_next(struct ps_server *s, uint32_t from, const struct ps_message *m, struct err *err);
/* The unit of a rank has arrived. */
int server_turns_add(struct ps_server *s, uint32_t rank, struct err *err);
/* The unit of the first rank is applied. */
int server_turns_applied(struct ps_server *s, struct err *err);

/* ---- server_memory.c ---- */

/* Reports the bytes of the shards that this server holds or will hold, by opts.reserve. Errors: those
 * of opts.reserve. */
int server_reserve(const struct ps_server *s, struct err *err);

/* ---- server_rows.c ---- */

/* Copies the rows of a section after step `version` to `to`. Errors: as ps_store_read(); ERR_PEER: an older
 * version of another part than the weights. */
int server_read_rows(struct ps_server *s, const struct ps_section *x, uint64_t version, float *to,
                     struct err *err);
/* Are these the newest weights of wide rows that all exist? Then server_borrow_rows() adds them to the message that is
 * being written, without a copy. Errors: as above. */
bool server_can_borrow(const struct ps_server *s, const struct ps_section *x, uint64_t version);
int server_borrow_rows(struct ps_server *s, const struct ps_section *x, struct err *err);

#endif
