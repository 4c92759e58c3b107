/* server_priv.h - shared by the files of a server.
 *
 *   server.c          opens, begins and ends a generation, dispatches messages
 *   server_settle.c   SETUP, QUERY, BEGIN, COPY, SEND: which shards the server has, and of which step
 *   server_step.c     PULL, PUSH, COMMIT: the steps
 *   server_rows.c     reads rows, for PULL and for readers
 *   server_message.c  keeps and sends messages */
#ifndef PS_SERVER_PRIV_H
#define PS_SERVER_PRIV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ps/message.h"
#include "ps/server.h"
#include "ps/store.h"

struct table_fill;

struct bytes { /* a message that is kept */
    uint8_t *data;
    size_t n, room;
};

struct rank {
    bool has_pushed, has_committed, has_ended;
    bool waits; /* `later` arrived before the COMMIT of other ranks */
    struct bytes push, later;
};

struct cursor { /* the place of the next COPY message of a shard */
    uint32_t table, part;
    uint64_t first;
    bool has_begun, is_initial; /* is_initial: the messages have part 0 alone */
};

struct ps_server {
    struct ps_server_opts opts;
    struct ps_store *store; /* owned; NULL before the first SETUP */
    struct bytes setup;     /* the message that describes the store */
    uint32_t n_tables, *widths; /* owned [n_tables] */
    uint64_t *rows;             /* owned [n_tables] */
    struct table_fill *fills;   /* owned [n_tables] */
    bool generates;             /* a table has generated rows */
    uint64_t version;
    /* of the pending gradient, which is in the store */
    struct ps_verdict *verdict; /* owned */

    /* the generation */
    uint32_t n_ranks, n_servers, self, leader;
    struct rank *ranks; /* owned [n_ranks] */
    uint32_t n_pushed, n_committed, n_ended;
    bool is_skipped, is_complete;
    struct optim_hyper hyper; /* of the COMMITs */
    bool is_holding;          /* READY was sent */
    uint64_t own[PS_SET_WORDS];    /* shards of this server; others are kept for SEND until the first sum */
    uint64_t copied[PS_SET_WORDS]; /* shards that are not filled yet */
    uint32_t n_copied;
    struct cursor *cursors; /* owned [PS_SHARDS] */

    struct ps_section *sections; /* owned [PS_TABLES_MAX] */
    struct ps_part *parts;       /* owned; see sum() */
    size_t room_parts;
    struct ps_message *pushes; /* owned [n_ranks] */
    struct ps_section *push_sections;
    struct ps_writer out;      /* owned */
    uint64_t rows_read, rows_updated;
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
int server_copy(struct ps_server *s, uint32_t from, const struct ps_message *m, struct err *err);
int server_send_shards(struct ps_server *s, uint32_t from, const struct ps_message *m,
                       struct err *err);
int server_pull(struct ps_server *s, uint32_t from, const struct ps_message *m, const uint8_t *data,
                size_t n, struct err *err);
int server_push(struct ps_server *s, uint32_t from, const struct ps_message *m, const uint8_t *data,
                size_t n, struct err *err);
int server_commit(struct ps_server *s, uint32_t from, const struct ps_message *m, struct err *err);

/* ---- server_rows.c ---- */

/* Copies the rows of a section to `to`. Errors: as ps_store_read(). */
int server_read_rows(struct ps_server *s, const struct ps_section *x, float *to, struct err *err);

#endif
