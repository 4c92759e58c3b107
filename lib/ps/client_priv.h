/* client_priv.h - the client of parameter servers, for the files that implement it (client.h):
 *
 *   client.c          generations, rows of lookups, COMMIT
 *   client_dense.c    values and gradients of dense parameters
 *   client_message.c  messages, and the servers that send rows
 *   client_pull.c     PULL and ROWS
 *   client_push.c     the gradients of a step
 *   client_unit.c     units of an asynchronous phase */
#ifndef PS_CLIENT_PRIV_H
#define PS_CLIENT_PRIV_H

#include "opts/ps.h"
#include "ps/client.h"
#include "ps/message.h"
#include "ps/port.h"
#include "ps/route.h"
#include "ps/slots.h"

struct client_table {
    uint32_t width, first_shard;
    size_t elements; /* of a dense parameter; 0: another table */
    struct ps_slots slots;
    float *values; /* owned [room][width] */
};

/* What is exchanged with one server. */
struct client_peer {
    struct ps_writer out; /* owned */
    uint64_t n;         /* rows of the section that is being written; 0 between sections */
    uint64_t *rows;     /* place of its next row, and of its next values */
    float *values;
    size_t n_pulled;    /* rows of PULL */
    bool has_padding;   /* ROWS has a float after the values of the section that is being written */
    struct ps_writer reply; /* owned; the head and the sections that ROWS must have */
    struct iovec *places;   /* owned; of those, then of the values */
    uint32_t n_places, room_places;
    uint8_t *head;          /* owned [ps_writer_bytes(&reply)]; those that ROWS has */
    bool owes;          /* ROWS, or HELD */
    uint64_t held[PS_SET_WORDS]; /* shards with all their rows */
};

struct client_order { /* a marked slot of a table */
    uint64_t row;
    size_t place; /* among the marked slots */
};

struct ps_client {
    struct client_table *tables; /* owned [n_tables] */
    uint32_t n_tables, *widths; /* owned [n_tables] */
    uint32_t n_sparse;          /* tables before the dense parameters */
    float **values;             /* owned [n_tables] */
    struct client_order *order, *spare; /* owned [of the largest room] */
    struct ps_section *sections; /* owned [PS_TABLES_MAX] */
    float rest[PS_DENSE_WIDTH]; /* receives what follows the last float of a dense parameter, or of a section */

    /* the generation */
    struct ps_port port;
    const struct ps_route *route;
    struct client_peer *peers; /* owned [n_peers] */
    uint32_t n_peers, first_leaf, n_leaves, rank;
    uint32_t *readers; /* owned [PS_SHARDS]; server that sends the rows of a shard */
    bool is_copying;   /* the preferred holder of a shard lacks rows: the holders are found again */
    uint64_t find_at, find_steps; /* at that version, and after so many steps more */
    uint64_t version;
    uint32_t staleness;
    bool in_step;  /* rows are read for the lanes of a step */
    uint64_t unit_step; /* rows are read for a unit of this step; 0: they are not */
    uint32_t part; /* of the state of the rows that are read; see ps_client_begin() */
};

/* ---- client_message.c ---- */

int client_no_memory(struct err *err);
/* Returns the fields of PULL for the rows that are read. */
struct ps_message client_pull(const struct ps_client *c);
/* Begins a message to each server, with a section for each table. */
void client_begin_messages(struct ps_client *c, const struct ps_message *m);
const uint32_t *client_holders_of(const struct ps_client *c, const struct client_table *t,
                                  uint64_t row);
/* Asks the servers which shards they have, and chooses the server that sends the rows of each. */
int client_find_holders(struct ps_client *c, struct err *err);
/* Sends the message that was written for a server. */
int client_send_to(struct ps_client *c, uint32_t server, struct err *err);
int client_send_to_all(struct ps_client *c, const struct ps_message *m, struct err *err);
/* Receives a message of a server that owes one. */
int client_receive(struct ps_client *c, enum ps_kind kind, uint32_t *from, struct ps_message *m,
                   struct err *err);

/* ---- client_pull.c ---- */

/* Begins PULL to all servers, and their replies. */
int client_begin_pulls(struct ps_client *c, struct err *err);
/* Adds the section of a table to the messages: the p->n rows of each server. */
void client_write_pulled(struct ps_client *c, uint32_t table);
/* Adds the place of the next values that a server sends. */
int client_add_place(struct client_peer *p, void *to, size_t bytes, struct err *err);
/* Sends PULL to the servers from which rows are requested, and receives the values. */
int client_receive_rows(struct ps_client *c, struct err *err);

/* ---- client_dense.c ---- */

/* Do the gradients of a step fit into one message for each server of the generation? Errors: ERR_UNSUPPORTED. */
int client_check_dense(struct ps_client *c, struct err *err);

/* Adds the section of a dense parameter to the message of each holder: all rows that it holds. */
int client_push_dense(struct ps_client *c, uint32_t table, const float *values, struct err *err);

#endif
