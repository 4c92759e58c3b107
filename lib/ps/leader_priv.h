/* leader_priv.h - shared by the files of the coordinator.
 *
 *   leader.c          opening, votes
 *   leader_settle.c   settlement
 *   leader_held.c     which servers hold the state of a settlement
 *   leader_room.c     how many holders of each shard fit the memory
 *   leader_message.c  messages
 *   leader_read.c     reads rows of tables */
#ifndef PS_LEADER_PRIV_H
#define PS_LEADER_PRIV_H

#include <stdbool.h>
#include <stdint.h>

#include "optim/optim.h"
#include "ps/leader.h"
#include "ps/message.h"
#include "ps/units.h"

enum { LEADER_NO_SERVER = UINT32_MAX };

struct ps_leader {
    uint32_t n_tables, n_parts, *widths; /* owned [n_tables] */
    struct ps_setup_table *tables;       /* owned [n_tables] */
    const char **names;                  /* owned [n_tables]; the names are borrowed */
    uint32_t optimizer;
    struct optim_hyper hyper;
    double average;
    uint32_t staleness;
    struct ps_units units, spare; /* owned; of the settlement */
    struct ps_section *sections; /* owned [PS_TABLES_MAX] */
    struct ps_writer out;        /* owned */
    uint32_t *checksums;         /* owned [PS_SHARDS]; of a step */
    double *squares;             /* owned [PS_SHARDS] */
    uint64_t *shard_bytes;       /* owned [PS_SHARDS]; memory of each, as servers reported it in the settlement */
    uint32_t *voter;             /* owned [PS_SHARDS]; server that voted first */
    uint64_t check_every;
    uint64_t states[PS_CHECK_SHARDS];  /* of a step, as in VOTE */
    uint32_t stated_by[PS_CHECK_SHARDS];
    uint64_t suspects[PS_SET_WORDS];   /* shards whose holders have different rows: none of these is valid */
    uint32_t *sources;           /* owned [PS_SHARDS]; server that others copy the shard from */
    uint32_t *readers;           /* owned [PS_SHARDS]; server that has all rows of the shard */
    bool is_copying;             /* the first holder of a shard may lack rows */

    /* of the call that runs */
    const struct ps_port *port;
    const struct ps_route *route;
};

struct held { /* what a server reported */
    uint64_t version, complete, history[2];
    bool is_pending, is_skipped;
    struct optim_hyper hyper; /* of the newest update */
    bool is_valid; /* for the state of the settlement */
    uint64_t shards[PS_SET_WORDS];
    uint64_t room;               /* most bytes of its shards */
    uint64_t wanted[PS_SET_WORDS], copied[PS_SET_WORDS], followed[PS_SET_WORDS]; /* of BEGIN */
    uint32_t n_followers;                                                        /* of BEGIN */
};

struct target { /* the state that all servers hold after the settlement */
    uint64_t version, history;
    const struct optim_hyper *hyper; /* of its newest update; NULL: it was skipped */
};

/* ---- leader_held.c ---- */

/* Rows without a valid holder can be filled. */
static inline bool leader_has_source(const struct ps_settlement *s)
{
    return s->source != NULL || s->folder != NULL;
}
/* Asks all servers, and decides the target, whose ledger is then in l->units, and which servers are valid.
 * held [n_servers]: zeroed. */
int leader_query(struct ps_leader *l, const struct ps_settlement *s, struct held *held,
                 struct target *out, struct err *err);

/* ---- leader_room.c ---- */

/* Returns the most holders of each shard, at least 1, with which the shards of every server fit its memory. If these are
 * fewer than those of the route, *server: one whose memory is too small for one more; *needed: what it would need. */
uint32_t leader_fit_holders(const struct ps_leader *l, const struct held *held, uint32_t *server,
                            uint64_t *needed);

/* ---- leader_message.c ---- */

int leader_no_memory(struct err *err);
/* The messages of a call use this port and route. */
void leader_begin_call(struct ps_leader *l, const struct ps_port *port,
                       const struct ps_route *route);
int leader_send(struct ps_leader *l, uint32_t server, struct err *err); /* sends l->out */
/* Receives a message of this kind from any server. */
int leader_receive(struct ps_leader *l, enum ps_kind kind, uint32_t *server, struct ps_message *m,
                   struct err *err);

/* The same in two parts: a message of any kind; is it one of this kind from a server? */
int leader_receive_any(struct ps_leader *l, uint32_t *server, struct ps_message *m,
                       struct err *err);
int leader_check_kind(const struct ps_leader *l, enum ps_kind kind, uint32_t server,
                      const struct ps_message *m, struct err *err);

#endif
