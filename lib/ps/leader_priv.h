/* leader_priv.h - shared by the files of the coordinator.
 *
 *   leader.c       opening, settlement, votes
 *   leader_read.c  reads rows of tables */
#ifndef PS_LEADER_PRIV_H
#define PS_LEADER_PRIV_H

#include <stdbool.h>
#include <stdint.h>

#include "optim/optim.h"
#include "ps/leader.h"
#include "ps/message.h"

struct ps_leader {
    uint32_t n_tables, n_parts, *widths; /* owned [n_tables] */
    struct ps_setup_table *tables;       /* owned [n_tables] */
    const char **names;                  /* owned [n_tables]; the names are borrowed */
    uint32_t optimizer;
    struct optim_hyper hyper;
    double average;
    uint32_t staleness;
    struct ps_section *sections; /* owned [PS_TABLES_MAX] */
    struct ps_writer out;        /* owned */
    uint32_t *checksums;         /* owned [PS_SHARDS]; of a step */
    double *squares;             /* owned [PS_SHARDS] */
    uint32_t *voter;             /* owned [PS_SHARDS]; server that voted first */
    uint32_t *sources;           /* owned [PS_SHARDS]; server that others copy the shard from */
    uint32_t *readers;           /* owned [PS_SHARDS]; server that has all rows of the shard */
    bool is_copying;             /* the first holder of a shard may lack rows */

    /* of the call that runs */
    const struct ps_port *port;
    const struct ps_route *route;
};

/* ---- leader.c ---- */

int leader_no_memory(struct err *err);
/* The messages of a call use this port and route. */
void leader_begin_call(struct ps_leader *l, const struct ps_port *port,
                       const struct ps_route *route);
int leader_send(struct ps_leader *l, uint32_t server, struct err *err); /* sends l->out */
/* Receives a message of this kind from any server. */
int leader_receive(struct ps_leader *l, enum ps_kind kind, uint32_t *server, struct ps_message *m,
                   struct err *err);

#endif
