/* wire.h - bytes from the network to messages that can be trusted, and back.
 *
 * A message unpacks into its own arena with a budget, because a small input can unpack to forty
 * times its size. wire_read_*() then look at every field that is used: strings are UTF-8, bounded
 * and (but for reasons, where they become blanks) without control characters; numbers that are
 * counted on from leave room for it; a task is one of the cluster; a view has its members in the
 * order of their ranks. What comes out borrows from the message and its arena. Threads: one at a
 * time. */
#ifndef RDZV_WIRE_H
#define RDZV_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "proto/trainerd.pb-c.h"
#include "rdzv/rdzv.h"

struct err;

enum {
    WIRE_BYTES_MAX = 1 << 20,  /* of a message on the wire */
    WIRE_MEMORY_MAX = 8 << 20, /* of a message in memory */
    WIRE_KEY_BYTES = 32,
    WIRE_PHASE_BYTES = 32,   /* of the name of a phase, with the NUL */
    WIRE_DEVICES_MAX = 4096, /* of a task */
    WIRE_ADDRESS_BYTES = 321, /* of an address, with the NUL */
};
#define WIRE_NUMBER_MAX ((uint64_t)1 << 62) /* of a generation, a step, a time */

struct wire {
    struct arena arena;
    size_t used;
};

/* NULL: not a message of this type, or too large in memory. wire_fini() frees it, in any case. */
void *wire_unpack(struct wire *w, const ProtobufCMessageDescriptor *type, const void *data,
                  size_t n);
void wire_fini(struct wire *w);

/* The tasks of the cluster, by rank. */
struct wire_cluster {
    const struct rdzv_task *tasks;
    uint32_t world;
};
/* MEMBER_NO_RANK: no training task of this cluster. */
uint32_t wire_rank(const struct wire_cluster *c, const Trainerd__V1__Task *t);
void wire_fill_task(const struct wire_cluster *c, uint32_t rank, Trainerd__V1__Task *out);

/* ---- in: each returns 0, or ERR_INPUT naming the field ---- */

/* Of a Join, wire_rank() of task and of to may be MEMBER_NO_RANK, and the addresses are checked. */
int wire_read_member(struct wire *w, const struct wire_cluster *c,
                     const Trainerd__V1__MemberMessage *m, struct member_msg *out, struct err *err);
int wire_read_leader(struct wire *w, const struct wire_cluster *c,
                     const Trainerd__V1__LeaderMessage *m, struct member_msg *out, struct err *err);
/* *rank: whose it is; MEMBER_NO_RANK for a task that is not in the cluster. */
int wire_read_where(const struct wire_cluster *c, const Trainerd__V1__Where *m, uint32_t *rank,
                    struct member_status *out, struct err *err);
/* A fact beside these: UTF-8, at most `max` bytes, no control characters. */
int wire_check_fact(const char *field, const char *s, size_t max, struct err *err);

/* ---- out: memory from w, strings borrowed until it is packed ---- */

/* What the sender adds to what the node says. */
struct wire_sender {
    uint32_t self, to;
    uint64_t call; /* counts up */
    const char *data_address, *host_key;
    double samples_per_second;
};
/* CHECKs that the kind is one of a member's. */
const ProtobufCMessage *wire_write_member(struct wire *w, const struct wire_cluster *c,
                                          const struct member_msg *m, const struct wire_sender *s);
/* `view`: of a VIEW, with all that its members said when they joined. `data_addresses`: of a REACH, [m->n_ranks]. */
const ProtobufCMessage *wire_write_leader(struct wire *w, const struct wire_cluster *c,
                                          const struct member_msg *m, const struct rdzv_view *view,
                                          const char *const *data_addresses);
void wire_write_where(struct wire *w, const struct wire_cluster *c, uint32_t self,
                      const struct member_status *where, Trainerd__V1__Where *out);

/* Text of any origin, for a person: `n` bytes made UTF-8 without control characters, cut to fit. */
void wire_text(char *out, size_t n_out, const void *text, size_t n);

#endif
