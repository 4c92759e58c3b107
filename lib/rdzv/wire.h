/* wire.h - converts bytes from the network to validated messages, and back.
 *
 * A message is unpacked into an arena of its own with a size limit, because a small input can
 * unpack to forty times its size. wire_read_*() then validate every field that is used: strings are
 * UTF-8, limited in length and without control characters (in a reason, these are replaced by
 * blanks); numbers that are incremented later leave room for it; a task is one of the cluster; the
 * members of a view are in the order of their ranks; a view is complete, without `self`. The result
 * borrows from the message and its arena.
 *
 * Threads: one at a time. */
#ifndef RDZV_WIRE_H
#define RDZV_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "proto/trainerd.pb-c.h"
#include "rdzv/rdzv.h"

struct err;

enum {
    WIRE_VERSION = 2, /* of proto/trainerd.proto: increased if a release cannot read the other's messages */
    WIRE_BYTES_MAX = 1 << 20,  /* limit of a message on the wire */
    WIRE_MEMORY_MAX = 8 << 20, /* limit of a message in memory */
    WIRE_PHASE_BYTES = 32,     /* of the name of a phase, with the NUL */
    WIRE_DEVICES_MAX = 4096,   /* limit of the devices of a task */
    WIRE_ADDRESS_BYTES = 321,  /* of an address, with the NUL */
};
#define WIRE_NUMBER_MAX ((uint64_t)1 << 62) /* limit of a generation, a step, a time */

struct wire {
    struct arena arena;
    size_t used;
};

/* Returns NULL if the data is no message of this type, or too large in memory. wire_fini() frees *w
 * in either case. */
void *wire_unpack(struct wire *w, const ProtobufCMessageDescriptor *type, const void *data,
                  size_t n);
void wire_fini(struct wire *w);

/* The tasks of the cluster, by rank. */
struct wire_cluster {
    const struct rdzv_task *tasks;
    uint32_t world;
};
/* Returns MEMBER_NO_RANK if the task is not in this cluster. */
uint32_t wire_rank(const struct wire_cluster *c, const Trainerd__V1__Task *t);
void wire_fill_task(const struct wire_cluster *c, uint32_t rank, Trainerd__V1__Task *out);

/* ---- in: each returns 0, or ERR_INPUT naming the field ---- */

/* For a Join, wire_rank() of `task` and of `to` may be MEMBER_NO_RANK; the addresses are
 * validated. */
int wire_read_member(struct wire *w, const struct wire_cluster *c,
                     const Trainerd__V1__MemberMessage *m, struct member_msg *out, struct err *err);
int wire_read_leader(struct wire *w, const struct wire_cluster *c,
                     const Trainerd__V1__LeaderMessage *m, struct member_msg *out, struct err *err);
/* Writes the rank of the sender to *rank; MEMBER_NO_RANK for a task that is not in the cluster. */
int wire_read_status(const struct wire_cluster *c, const Trainerd__V1__Where *m, uint32_t *rank,
                     struct member_status *out, struct err *err);
/* Validates a further string: UTF-8, at most `max` bytes, no control characters. */
int wire_check_string(const char *field, const char *s, size_t max, struct err *err);

/* Read parts of a BEAT, after wire_read_*() has accepted it. */
void wire_read_window(const struct wire_cluster *c, const Trainerd__V1__Window *m,
                      struct rdzv_window *out);
void wire_read_advice(const Trainerd__V1__Advice *m, struct rdzv_advice *out);
/* Called by wire_read_*() for a BEAT. Errors: ERR_INPUT naming the field. */
int wire_check_beat_window(const struct wire_cluster *c, const Trainerd__V1__Beat *m,
                           struct err *err);

enum {
    WIRE_TROUBLE_BYTES = 256, /* of the trouble in a BEAT, with the NUL */
    WIRE_PAGE_BYTES = 264,    /* of the page in a BEAT, with the NUL */
};

/* ---- out: memory from w, strings borrowed until it is packed ---- */

/* The fields that the transport adds to a message of the node. */
struct wire_sender {
    uint32_t self, to;
    uint64_t call; /* increases with each call */
    const char *data_address, *host_key, *location;
    double samples_per_second;
    /* of a BEAT */
    const Trainerd__V1__StepTime *step_time; /* NULL: unknown */
    const char *trouble;                     /* NULL: none */
    const struct rdzv_window *window;        /* NULL: none */
};
/* The fields that the transport adds to a message of a leader. */
struct wire_leader {
    const char *const *data_addresses; /* of a REACH: [m->n_ranks] */
    const struct rdzv_advice *advice;  /* of a BEAT: [n_advice] */
    uint32_t n_advice;
    const char *page;                  /* of a BEAT; NULL: none */
};
/* CHECKs that the kind is a message of a member. */
const ProtobufCMessage *wire_write_member(struct wire *w, const struct wire_cluster *c,
                                          const struct member_msg *m, const struct wire_sender *s);
/* A VIEW is complete, with key and connection data. `s` NULL: the message has none of these fields. */
const ProtobufCMessage *wire_write_leader(struct wire *w, const struct wire_cluster *c,
                                          const struct member_msg *m, const struct wire_leader *s);
void wire_write_status(struct wire *w, const struct wire_cluster *c, uint32_t self,
                       const struct member_status *where, Trainerd__V1__Where *out);

/* Parts of a BEAT and of a StatusReply; memory from `a`, texts borrowed. */
Trainerd__V1__Window *wire_write_window(struct arena *a, const struct wire_cluster *c,
                                        const struct rdzv_window *window);
Trainerd__V1__Advice **wire_write_advice(struct arena *a, const struct rdzv_advice *advice,
                                         uint32_t n);

/* Writes text of any origin: `n` bytes, converted to UTF-8 without control characters and truncated
 * to n_out. */
void wire_text(char *out, size_t n_out, const void *text, size_t n);

#endif
