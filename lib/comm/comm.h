/* comm.h - collectives between the replicas of one generation.
 *
 * Words: a *member* is a process (one task), a *rank* is one of its replica threads; ranks are
 * numbered over the members in order. Members of one host reduce in place in each other's arenas
 * (memfds passed over a Unix socket); members of different hosts exchange over TCP. Which links a
 * collective uses, and in which order it adds, is pure (comm/topology.h, comm/schedule.h):
 *   one host                    each rank sums its slice of all ranks along the binary tree
 *   equal aligned hosts         the same inside each host, then halving/doubling between hosts
 *   world a power of two        recursive halving/doubling, nearest rank first
 *   otherwise                   everybody exchanges with everybody
 * All add along the one binary tree over ranks, ((0+1)+(2+3))+..., in which a missing right half is
 * skipped: the bits follow from the world alone. Where fewer ranks than a full group do its work,
 * each stands for the leaves of that tree that it has a share of: then the bits are the full
 * group's.
 *
 * A comm lives for one generation. Every call blocks its rank's thread until it is done, a peer is
 * lost (ERR_PEER, named), the deadline passes (ERR_TIMEOUT, naming the rank that is behind) or
 * comm_abort() was called (ERR_CANCELED); after any failure all further calls fail the same way,
 * and buffers may hold anything. All ranks must make the same calls in the same order; counts and
 * kinds are compared where that costs nothing. */
#ifndef COMM_COMM_H
#define COMM_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tensor/tensor.h"

struct comm;
struct comm_listener;
struct device_mem;
struct err;

enum {
    COMM_KEY_BYTES = 32,
    COMM_MAX_RANKS = 4096,
    COMM_MAX_LEAVES = 65536,
    COMM_DEAD_PATHS_MAX = 8,
    COMM_TEST_BYTES = 32 << 10, /* of a test of a data path: several packets of any size */
};

/* What a generation lost. */
struct comm_loss {
    uint32_t member;                          /* the one to blame; this member: it is not known */
    uint32_t dead_paths[COMM_DEAD_PATHS_MAX]; /* members whose kernel acknowledges nothing that we send, as far as the
                                                 connections of this generation show */
    uint32_t n_dead_paths;
};

struct comm_member {
    const char *name;    /* "worker 1", for messages */
    const char *host;    /* equal strings: they can share memory (comm_host_key()) */
    const char *address; /* "ip:port" of its listener, for members of other hosts */
    uint32_t n_ranks;    /* >= 1 */
};

struct comm_opts {
    uint64_t generation;
    const struct comm_member *members;
    uint32_t n_members;
    uint32_t self;
    const uint32_t *shares; /* [ranks] leaves that each stands for (comm_share()); NULL: one each */
    uint8_t key[COMM_KEY_BYTES]; /* shared by the members, known to nobody else */
    struct comm_listener *listener; /* borrowed for the life of the comm; NULL with one member */
    /* Shared region that holds every buffer passed to a call; it stays for the life of the comm. */
    const struct device_mem *arena;
    bool shared_memory;   /* false: TCP also inside a host */
    uint64_t deadline_ms; /* of connecting and of each call */
    /* Called at most once, from a thread of comm, when the connected generation fails other than by
     * our own comm_abort(), as soon as this process learns it and whether or not a call is being
     * made: what was lost and why. NULL is fine. */
    void (*on_broken)(void *arg, const struct comm_loss *loss, const char *why);
    void *arg;
    /* On the thread that connects or makes a call, which waits for others from here on, or does so no longer.
     * While it waits, again at least every tenth of a second: who said that it waits, and does not say
     * so any more, hangs. Not for waits so short that nobody sleeps. NULL is fine. */
    void (*on_wait)(bool waits);
};

/* Divides a tree of `leaves` leaves among `world` ranks in order: each rank gets one subtree, as even
 * as subtrees can be. The sum over the ranks is then the sum along the tree, for every world. The
 * shares are equal if leaves / world is a power of two. world <= COMM_MAX_RANKS, world <= leaves <=
 * COMM_MAX_LEAVES. */
void comm_share(uint32_t leaves, uint32_t world, uint32_t *shares);

/* What tells processes apart that can share memory: boot id and network namespace. */
const char *comm_host_key(void);

/* The data-plane port of this process, and what is kept between generations: the mapped arenas of
 * the host (those of peers that do not come again until the next one is connected, or some could not
 * be), connections of peers that are ahead. It outlives generations; one communicator at a time. `host` as in TF_CONFIG: the
 * address to bind (name or literal). The first free port of first_port..last_port is bound; both 0: the system
 * picks. Errors: ERR_IO, ERR_INPUT. */
int comm_listener_open(const char *host, uint16_t first_port, uint16_t last_port, struct comm_listener **out,
                       struct err *err);
const char *comm_listener_address(const struct comm_listener *l); /* "ip:port" as bound */
void comm_listener_close(struct comm_listener *l); /* NULL is fine; no comm may use it any more */
/* Removes the tests of data paths that arrived from the queue of connections, and keeps the others for the next
 * generation. To be called about once a second from one thread, also while a communicator is in use. */
void comm_listener_sweep(struct comm_listener *l);

/* Tests the data paths to n listeners ("ip:port") at the same time (path.c). is_dead[i]: nothing came back from there
 * within limit_ms, or not all that was sent was acknowledged. Blocks for at most limit_ms; any thread. Errors: ERR_NOMEM. */
int comm_test_paths(const char *const *addresses, uint32_t n, uint32_t limit_ms, bool *is_dead, struct err *err);

/* Decides who works with whom; contacts nobody. What `opts` points to is borrowed until
 * comm_connect() has returned. Errors: ERR_INPUT (no group can be made of these members), ERR_IO,
 * ERR_NOMEM. */
int comm_open(const struct comm_opts *opts, struct comm **out, struct err *err);

/* Connects to the peers that the schedules need, proves on both sides that the other knows the key
 * (challenge and HMAC-SHA-256; a stranger is dropped and cannot delay anyone by more than its own
 * connection), compares generation and ranks, exchanges the arenas of the host. Once; blocks, but
 * comm_abort() ends it at once, as does the death or the failure of a peer that was connected
 * already. Whoever is ahead of us waits until we open its generation; whoever is behind is told so.
 * After a failure comm_close() is all that is left to do.
 * Errors: ERR_PEER, ERR_PATH (the kernel of a peer does not answer), ERR_TIMEOUT (naming who is missing and the last error), ERR_AUTH, ERR_CANCELED,
 * ERR_INPUT (a member's address), ERR_IO, ERR_NOMEM. */
int comm_connect(struct comm *c, struct err *err);
/* After comm_connect() has failed: what was lost. false: no dead path was found. */
bool comm_connect_loss(struct comm *c, struct comm_loss *out);

/* No thread may be inside a call. NULL is fine. */
void comm_close(struct comm *c);
/* The same, and says whether the arena is ours alone again. A peer of this host that was stopped in
 * the middle of a call may be continued at any time and then writes into the arenas of a generation
 * that is long over. true: no other process can write into the arena any more; waits up to wait_ms
 * for peers that are just coming out of their calls. false: give the arena up (copy out of it what
 * the failed call did not concern, unmap it) and make a new one. NULL: true. */
bool comm_close_quiet(struct comm *c, uint32_t wait_ms);

uint32_t comm_world(const struct comm *c);      /* ranks */
uint32_t comm_first_rank(const struct comm *c); /* of this member */
const char *comm_describe(
    const struct comm *c); /* "8 ranks: 2 hosts x 4, shared memory + tcp, halving/doubling" */

bool comm_uses_network(const struct comm *c); /* not all ranks reduce in one memory */

enum comm_op { COMM_SUM, COMM_MAX, COMM_OR /* of bits: TENSOR_I64 alone */ };

/* The elements [begin, end) of a vector of `count` that a rank owns: multiples of 16 apart (but the
 * last end), even within 16 elements, possibly empty. In a world that is a power of two the slices
 * lie in bit-reversed order of the ranks, which keeps every part that two ranks exchange in one
 * piece; otherwise in the order of the ranks. rank < world <= COMM_MAX_RANKS. */
struct comm_range {
    size_t begin, end;
};
struct comm_range comm_slice(uint32_t world, uint32_t rank, size_t count);

/* The calls of a local rank are made one after the other, by whatever thread; `local` < n_ranks of
 * this member. Data lies in the arena. dtype: TENSOR_F32, TENSOR_F64, TENSOR_I64. */

/* In place: afterwards `data` of every rank holds the reduction over all ranks. */
int comm_all_reduce(struct comm *c, uint32_t local, void *data, size_t count,
                    enum tensor_dtype dtype, enum comm_op op, struct err *err);
/* In place: afterwards the slice comm_slice(world, rank, count) of `data` holds the reduction, the
 * rest is undefined. */
int comm_reduce_scatter(struct comm *c, uint32_t local, void *data, size_t count,
                        enum tensor_dtype dtype, enum comm_op op, struct err *err);
/* The slice comm_slice(world, rank, count) of every rank goes to every other rank. */
int comm_all_gather(struct comm *c, uint32_t local, void *data, size_t count,
                    enum tensor_dtype dtype, struct err *err);
/* From rank `root` to all. `bytes` of any kind. */
int comm_broadcast(struct comm *c, uint32_t local, void *data, size_t bytes, uint32_t root,
                   struct err *err);
int comm_barrier(struct comm *c, uint32_t local, struct err *err);

/* May a call of this rank spin for a moment before it sleeps, where there is a core for every rank (as
 * it may from the start)? Not if the core has something else to do meanwhile. Between two calls. */
void comm_may_spin(struct comm *c, uint32_t local, bool may);

/* Ends the generation: every call, here and on the peers that share memory or a link with us, and
 * comm_connect(), return as soon as their threads get a core. Any thread, also several times; `why`
 * is copied. */
void comm_abort(struct comm *c, const char *why);

#endif
