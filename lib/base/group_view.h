/* group_view.h - the tasks of one generation: the only list of members, from the wire to the
 * communicator.
 *
 * A leader publishes a view. lib/rdzv receives it, or completes the view that its own node
 * publishes; the daemon passes it to lib/train, which passes it to lib/comm and lib/engine. The
 * header is in lib/base because base is the only folder that all of them may include.
 *
 *   member (state machine)   ranks, incarnations, held steps, n_servers; no connection data, no key
 *   rdzv (wire, completion)  all fields
 *   train, engine, comm      all fields, as received from rdzv
 *
 * Ownership: a view borrows its members, their strings, and its pieces. A callee that uses the view after its
 * call returns copies it with group_view_copy(). Every view is constant after it was built, and is
 * then read by any thread. */
#ifndef BASE_GROUP_VIEW_H
#define BASE_GROUP_VIEW_H

#include <stdbool.h>
#include <stdint.h>

struct arena;

enum {
    GROUP_KEY_BYTES = 32,
    GROUP_MAX_PIECES = 1024, /* of a view: two for each of 512 ranks */
};

struct group_member { /* one task of a view */
    uint32_t rank;             /* of the task in the cluster specification */
    uint64_t incarnation;      /* random number of its process, not 0 */
    uint64_t held;             /* newest step whose complete state the task has; 0: no state */
    uint32_t storage_failures; /* failed writes since the last checkpoint that the task wrote */

    /* Connection data. NULL and 0 in the views of lib/member. */
    uint32_t n_devices;       /* replicas of the task, which are its ranks in the communicator */
    uint32_t n_servers;       /* service threads of a parameter server, whose n_devices is 0; 0: a
                                 training task */
    const char *name;         /* "worker 1", for messages */
    const char *data_address; /* "ip:port" of its data port, for members of other hosts */
    const char *host_key;     /* members with equal strings can share memory (comm_host_key()) */
    const char *location;     /* base/location.h, of the task or inferred by the leader; NULL or "": not known */
};

/* Lanes (micro-batches) of a step that a rank of the communicator computes: an aligned block, whose size
 * is a power of two. The rules of a division are in comm/pieces.h. */
struct group_piece {
    uint32_t rank;     /* of the replicas, which are numbered over the members in the order of
                          base/group_order.h */
    uint32_t first, n; /* lanes [first, first + n) */
};

struct group_view {
    uint64_t generation; /* 0: no view */
    uint32_t n_members;
    /* [n_members], by rank: training tasks, then servers. In train, engine, ps and comm in the order of
     * base/group_order.h */
    const struct group_member *members;
    uint32_t self;          /* index of this task; 0 in a view that this task has not adopted */
    uint32_t coordinator;   /* index of the member that leads, writes checkpoints and exports */
    uint64_t newest_step;   /* newest step that a member holds; 0: no member holds state */
    uint32_t newest_member; /* index of a member that holds newest_step; 0 if no member does */
    /* random, published with the view; 0 in the views of lib/member */
    uint8_t key[GROUP_KEY_BYTES];
    /* [n_pieces] by first lane: who computes which lanes. n_pieces 0: the ranks have equal shares
     * (comm_share()), as in all views of lib/member. */
    const struct group_piece *pieces;
    uint32_t n_pieces;
};

/* Returns the member with this rank of the cluster; NULL if the task is not in the view. */
const struct group_member *group_view_find(const struct group_view *v, uint32_t rank);

/* Returns the number of training tasks, which precede the parameter servers in the view. */
uint32_t group_view_n_trainers(const struct group_view *v);

/* Returns the number of ranks: the replicas of all members. */
uint32_t group_view_n_ranks(const struct group_view *v);

/* Returns the index of the member that should coordinate: the lowest rank among the training tasks
 * with the fewest storage failures. A parameter server never coordinates. */
uint32_t group_view_choose_coordinator(const struct group_view *v);

/* Copies the view with its members, strings and pieces into `memory`. NULL strings stay NULL. Returns false
 * if there is no memory; *out is then unchanged. */
bool group_view_copy(const struct group_view *v, struct arena *memory, struct group_view *out);

#endif
