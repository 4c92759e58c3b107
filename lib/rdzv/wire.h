/* wire.h - bytes from the network to messages that can be trusted, and back.
 *
 * A message unpacks into its own arena with a budget, because a small input can unpack to forty
 * times its size. wire_check_*() then look at every field that is used: strings are UTF-8, bounded
 * and (but for reasons, where they become blanks) without control characters; ids have their
 * length; a task is one of the cluster. What comes out borrows from the message. Threads: one at a
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
    WIRE_PHASE_BYTES = 32, /* of the name of a phase, with the NUL */
    WIRE_MISSING_MAX = 16, /* tasks named in a Waiting event */
};

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
/* UINT32_MAX: no training task of this cluster. */
uint32_t wire_rank(const struct wire_cluster *c, const Trainerd__V1__Task *t);

/* Each returns 0, or ERR_INPUT naming the field. */

/* out->rank is UINT32_MAX for a task that is not in the cluster. */
int wire_check_join(const struct wire_cluster *c, Trainerd__V1__JoinRequest *m,
                    struct member_join *out, struct err *err);
int wire_check_beat(const struct wire_cluster *c, Trainerd__V1__HeartbeatRequest *m,
                    struct member_beat *out, struct err *err);

struct wire_leave {
    uint32_t rank;
    const uint8_t *incarnation;
    uint64_t generation;
    enum member_leave kind;
    uint64_t step;
    const char *reason;
};
int wire_check_leave(const struct wire_cluster *c, Trainerd__V1__LeaveRequest *m,
                     struct wire_leave *out, struct err *err);
/* For the member `self` with this incarnation. */
int wire_check_event(const struct wire_cluster *c, uint32_t self,
                     const uint8_t incarnation[MEMBER_INCARNATION_BYTES],
                     Trainerd__V1__JoinEvent *m, struct err *err);

/* Text of any origin, for a person: `n` bytes made UTF-8 without control characters, cut to fit. */
void wire_text(char *out, size_t n_out, const void *text, size_t n);

#endif
