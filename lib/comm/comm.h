/* comm.h - collective operations between the replicas of one generation.
 *
 * A *member* is a process (one task). A *rank* is one of its replica threads; ranks are numbered
 * over the members in order. Members of one host reduce in place in each other's arenas (memfds
 * passed over a Unix socket); members of different hosts exchange over TCP. The choice of links and
 * the order of the additions are pure functions (comm/topology.h, comm/schedule.h):
 *   one host                    each rank reduces its slice of all ranks along the binary tree
 *   equal aligned hosts         the same inside each host, then halving/doubling between hosts
 *   world a power of two        recursive halving/doubling, nearest rank first
 *   otherwise                   every rank exchanges with every other rank
 * In the last case an all-reduce of more than a few KiB works in levels, inside racks, between the racks of a zone, and
 * between zones, if the members have locations and then send less (comm/tiers.h). The other calls, the calls of a part, and coded
 * all-reduces exchange in one level.
 * All of them add along the one binary tree over ranks, ((0+1)+(2+3))+..., in which a missing right
 * half is skipped: the bits of the result depend on the world only. If fewer ranks than a full
 * group do its work, each rank stands for its share of the leaves of that tree; the bits are then
 * those of the full group. If the view has pieces (comm/pieces.h), each rank stands for one or two
 * blocks of leaves instead; comm_all_reduce_pieces() then sums along the tree. The nodes of the other
 * calls are then the successive ranks of each host, and a comm_all_reduce() of floats rounds in another
 * order.
 *
 * A member without replicas is a parameter server (ps). It takes part in no collective, shares no
 * memory and needs no arena: ranks, links and bits of the other members are those of the group
 * without the ps. Ranks and the service threads of the ps exchange messages (comm/channel.h).
 *
 * A comm lives for one generation. Every call blocks the thread of its rank until it is done, a
 * peer is lost (ERR_PEER, with its name), the deadline expires (ERR_TIMEOUT, with the rank that did
 * not arrive), or comm_abort() is called (ERR_CANCELED). After a failure all further calls fail in
 * the same way, and the content of the buffers is undefined. All ranks must make the same calls in
 * the same order; counts and kinds are compared where that costs nothing.
 *
 * The ranks can be divided into parts (comm_divide()). An all-reduce of a part runs among its ranks
 * alone; the ranks of a part make the same calls of the part in the same order. */
#ifndef COMM_COMM_H
#define COMM_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/group_view.h"
#include "code/code.h"
#include "comm/spare_lanes.h"
#include "tensor/tensor.h"

struct code_map;
struct comm;
struct comm_listener;
struct device_mem;
struct err;
struct lane_tree;
struct port_list;

enum {
    COMM_KEY_BYTES = 32,
    COMM_MAX_RANKS = 4096,
    COMM_MAX_SERVERS = 4096,
    COMM_MAX_LEAVES = 65536,
    COMM_DEAD_PATHS_MAX = 8,
    COMM_TEST_BYTES = 32 << 10, /* size of a test of a data path: several packets of any size */
};

/* What a generation lost. */
struct comm_loss {
    uint32_t member;                          /* the culprit; this member: unknown */
    uint32_t dead_paths[COMM_DEAD_PATHS_MAX]; /* members whose kernel acknowledges nothing that this
                                                 member sends, according to the connections of this
                                                 generation, or whose data port rejected all attempts
                                                 to connect */
    uint32_t n_dead_paths;
    bool has_changed_message; /* this member has received other bytes than a peer has sent */
};

struct comm_opts {
    struct group_view view; /* generation, members, self, pieces; its key is not used */
    const uint32_t *shares; /* [ranks] number of leaves of each rank (base/lane_tree.h), also for a ps;
                               NULL: one each, or the view has pieces */
    /* Groups of comm_all_reduce_coded(): a power of two, each with the same number of leaves, also a power of
       two. All nodes are then connected with all nodes. 0: that call is not made. Not used for a ps. */
    uint32_t groups;
    /* Spare lanes (comm/spare_lanes.h) are wanted; the same on all members. comm_spares() says whether they are
       possible. All nodes are then connected with all nodes. Not with groups, or a ps. */
    bool spares;
    uint8_t key[COMM_KEY_BYTES]; /* secret that only the members know */
    struct comm_listener *listener; /* borrowed for the life of the comm; NULL with one member */
    /* Shared region that contains every buffer of a call; valid for the life of the comm. Not used
       for a ps. */
    const struct device_mem *arena;
    bool shared_memory;   /* false: TCP also inside a host, for collectives and messages */
    bool encrypts;        /* links over TCP are under TLS; the same on all members */
    uint64_t deadline_ms; /* limit of comm_connect() and of each call */
    /* Called at most once, from a thread of comm, as soon as this process learns that the connected
       generation has failed (except by its own comm_abort()), also while no call is made. Reports
       what was lost and why. NULL: not called. */
    void (*on_broken)(void *arg, const struct comm_loss *loss, const char *why);
    void *arg;
    /* Called on the thread that connects or makes a call: true when it begins to wait for other
       members, false when it stops waiting; during the wait again at least every 100 ms. A thread
       that stops these calls hangs. Not called for waits without a sleep. NULL: not called. */
    void (*on_wait)(bool waits);
};

/* Divides the tree over `lanes` lanes (micro-batches) among `world` ranks in order. Each rank gets one subtree; the
 * subtrees are as equal as possible. The reduction over the ranks is then the reduction along the tree, for every
 * world. The shares of a plain tree are equal if lanes / world is a power of two. tree: NULL: plain. shares: lanes of
 * each rank; lane_tree_leaves() makes comm_opts.shares of them. world <= COMM_MAX_RANKS, world <= lanes, and at most
 * COMM_MAX_LEAVES leaves. */
void comm_share(const struct lane_tree *tree, uint32_t lanes, uint32_t world, uint32_t *shares);
/* The same for ranks in groups, which are subtrees where possible: a rack whose ranks are one subtree sends the least to
 * the other racks. borders: [world] the width of the border before each rank; 0 inside a task, the larger the farther
 * the two ranks are from each other. No share is larger or smaller than the shares of comm_share(), so equal shares stay
 * equal. */
void comm_share_groups(const struct lane_tree *tree, uint32_t lanes, uint32_t world,
                       const uint8_t *borders, uint32_t *shares);
/* The same for the replicas of a view, whose members are in the order of base/group_order.h. If all training tasks have
 * a location, the groups are those of the locations: zones, then racks, then hosts; otherwise as comm_share().
 * shares: [replicas]. */
void comm_share_view(const struct lane_tree *tree, uint32_t lanes, const struct group_view *v,
                     uint32_t *shares);

/* Returns a key that is equal for processes that can share memory: boot id and network
 * namespace. */
const char *comm_host_key(void);

/* Opens the data-plane port of this process, and the data that is kept between generations: the
 * mapped arenas of the host (those of absent peers until the next communicator is connected, or
 * some connects have failed), and connections of peers that are already in a later generation. The
 * listener outlives generations; one communicator uses it at a time. `host` as in TF_CONFIG: the
 * address to bind (name or literal); NULL: every address, also IPv6. Binds the first free port of
 * first_port..last_port that is not in the list `others` (NULL: empty); both 0: the system chooses
 * such a port. On success the caller owns *out. Errors: ERR_IO, ERR_INPUT, ERR_NOMEM. */
int comm_listener_open(const char *host, uint16_t first_port, uint16_t last_port,
                       const struct port_list *others, struct comm_listener **out, struct err *err);
const char *comm_listener_address(const struct comm_listener *l); /* "ip:port" as bound */
void comm_listener_close(struct comm_listener *l); /* NULL is allowed; no comm may use it any
                                                      more */
/* Closes the tests of data paths in the queue of connections, and keeps the other connections for
 * the next generation. Called about once a second from one thread, also while a communicator is in
 * use. */
void comm_listener_sweep(struct comm_listener *l);

/* Tests the data paths to n listeners ("ip:port") at the same time (path.c). Sets is_dead[i] if no
 * answer arrived within limit_ms, the connection was refused, or not all bytes were acknowledged. Blocks for at most limit_ms;
 * any thread. Errors: ERR_NOMEM. */
int comm_test_paths(const char *const *addresses, uint32_t n, uint32_t limit_ms, bool *is_dead,
                    struct err *err);

/* Computes the topology; makes no connection. The data that `opts` refers to is borrowed until
 * comm_connect() returns. On success the caller owns *out. Errors: ERR_INPUT (the members cannot
 * form a group), ERR_IO, ERR_NOMEM. */
int comm_open(const struct comm_opts *opts, struct comm **out, struct err *err);

/* Connects to the peers that the schedules need. Each side proves that it knows the key (challenge
 * and HMAC-SHA-256); a connection without a proof is closed, and cannot delay other connections.
 * Compares generation and ranks, and exchanges the arenas of the host. Called once. Blocks;
 * comm_abort() ends it at once, as does the death or failure of a peer that was already connected.
 * A peer in a later generation waits until this member opens that generation; a peer in an earlier
 * generation is told that it has ended. After a failure only comm_close() is allowed. Errors:
 * ERR_PEER, ERR_PATH (the kernel of a peer does not answer, or its data port rejects every attempt
 * for that long: it refuses, or the listener there does not know the key; or the address of a member
 * is invalid), ERR_TIMEOUT (with the missing members and the last error of each), ERR_AUTH,
 * ERR_CANCELED, ERR_IO, ERR_NOMEM. */
int comm_connect(struct comm *c, struct err *err);
/* After comm_connect() has failed: writes what was lost. Returns false if no dead path was
 * found. */
bool comm_connect_loss(struct comm *c, struct comm_loss *out);

/* No thread may be inside a call. NULL is allowed. */
void comm_close(struct comm *c);
/* As comm_close(); returns true if no other process can write into the arena any more. A peer of
 * this host that was suspended in the middle of a call can be resumed at any time, and then writes
 * into the arenas of a generation that ended long ago. Waits up to wait_ms for peers that are
 * leaving their calls. false: the caller must replace the arena: copy the parts that the failed
 * call did not use, unmap it, and make a new one. NULL: true. */
bool comm_close_quiet(struct comm *c, uint32_t wait_ms);

uint32_t comm_world(const struct comm *c);      /* number of ranks */
uint32_t comm_first_rank(const struct comm *c); /* first rank of this member, not a ps */
const char *comm_describe(
    const struct comm *c); /* "8 ranks: 2 hosts x 4, shared memory + tcp, halving/doubling" */

bool comm_uses_network(const struct comm *c); /* false: all ranks reduce in one memory */
uint32_t comm_nodes(const struct comm *c); /* number of groups of ranks that exchange over the network */

enum comm_op { COMM_SUM, COMM_MAX, COMM_OR /* of bits: only TENSOR_I64 */ };

/* The elements [begin, end) of a vector of `count` elements that a rank owns. The borders are
 * multiples of 16 (except the last end); the sizes differ by at most 16 elements, and may be 0. In
 * a world that is a power of two the slices are in bit-reversed order of the ranks, so every part
 * that two ranks exchange is contiguous; otherwise in the order of the ranks. rank < world <=
 * COMM_MAX_RANKS. */
struct comm_range {
    size_t begin, end;
};
struct comm_range comm_slice(uint32_t world, uint32_t rank, size_t count);

/* The calls of a local rank are made one after the other, by any thread; `local` < n_ranks of this
 * member, which is no ps. The data is in the arena. dtype: TENSOR_F32, TENSOR_F64, TENSOR_I64. */

/* In place: afterwards `data` of every rank contains the reduction over all ranks. */
int comm_all_reduce(struct comm *c, uint32_t local, void *data, size_t count,
                    enum tensor_dtype dtype, enum comm_op op, struct err *err);
/* As comm_all_reduce() with COMM_SUM, of sums over lanes: each rank passes the sum of each of its pieces,
 * the first at `data`, the second `stride` bytes after it; afterwards `data` of every rank contains the
 * sum along the tree over lanes, and the second vectors are undefined. stride: a multiple of 64; not used
 * without pieces, where this is comm_all_reduce(). */
int comm_all_reduce_pieces(struct comm *c, uint32_t local, void *data, size_t stride, size_t count,
                           enum tensor_dtype dtype, struct err *err);
/* One call with spare lanes. */
struct comm_spare {
    enum spare_state state; /* of the block of this rank. SPARE_GIVEN, SPARE_APART: comm_is_offered() was true */
    /* NULL, or called at most once, inside the call and by its thread, if the rank that this one helps is late by
     * patience_ns: computes the block of that rank to the third vector. Returns true if it is complete; false:
     * given up, as it must be soon after comm_is_late() has returned false. */
    bool (*help)(void *arg);
    uint64_t patience_ns;
    void *arg;
    /* Set by the call: help() was complete; its copy was contributed, or compared. */
    bool has_offered, is_used, is_compared;
    /* Set by a call that fails: lanes of a block whose two copies this rank found to differ. */
    uint32_t n_wrong;
};
/* opts.spares, two ranks or more, each the only one of its host, and one of them has two lanes or more. The same on
 * all members. */
bool comm_spares(const struct comm *c);
/* Returns why the view has no spare lanes; NULL: it has, or opts.spares is not set. */
const char *comm_why_no_spares(const struct comm *c);
/* Whether the helper of this rank offers its block for the next call. By the thread that makes the calls. */
bool comm_is_offered(const struct comm *c, uint32_t local);
/* In comm_spare.help: whether the rank that this one helps has still not begun the call, and the generation has not
 * failed. Called at least every 100 ms, or this thread counts as hanging. */
bool comm_is_late(struct comm *c, uint32_t local);
/* As comm_all_reduce_pieces(), with spare lanes, if comm_spares(). The vectors begin at multiples of `stride`: the
 * lanes of the rank without its block; its block, unless the halves are joined (spare_lanes.joins) and the state is
 * SPARE_OWN: then the first vector is the sum of both, or the state is SPARE_GIVEN; the copy of the block of the rank
 * that this one helps. Copies that differ end the generation with ERR_PEER, and both members are named. count > 0. */
int comm_all_reduce_spared(struct comm *c, uint32_t local, void *data, size_t stride, size_t count,
                           enum tensor_dtype dtype, struct comm_spare *spare, struct err *err);
/* How a vector is coded on the wire. */
struct comm_coding {
    const struct code_map *map; /* of the whole gradient */
    size_t first;               /* the element of the map that is data[0]; a multiple of CODE_BLOCK */
    struct code_key key;        /* `place` is not used */
    /* [comm_kept_codes()] the codes of the coded blocks of the map, of each group of the rank in order */
    const uint8_t *const *codes;
};
/* Returns the number of groups of the rank whose codes it must pass to comm_all_reduce_coded(), which sends
 * them; 0: none. */
uint32_t comm_kept_codes(const struct comm *c, uint32_t local, enum code_kind kind);
/* In place: afterwards `data` of every rank contains the sum over all ranks, with two roundings through the
 * code: of the sum of each group, and of the sum of the rounded groups. Blocks of the map that are raw are
 * not rounded. The bits depend on the map, the key, the number of leaves and the number of groups alone. A
 * rank with several groups passes the sum along the tree of its groups, each rounded (code_map_round(), place:
 * the number of the group); every other rank passes the sum of its leaves. float32; opts.groups > 0. */
int comm_all_reduce_coded(struct comm *c, uint32_t local, float *data, size_t count,
                          const struct comm_coding *coding, struct err *err);
/* Bytes that coded all-reduces of a local rank have sent to other nodes. */
struct comm_coded_bytes {
    uint64_t sent;
    uint64_t plain; /* what the same exchange would have sent in float32 */
};
struct comm_coded_bytes comm_coded_bytes(const struct comm *c, uint32_t local);
/* Whether nodes exchange contiguous ranges of slices. Not in a world that is a power of two whose ranks have unequal shares
 * or pieces, spare lanes, or opts.groups > 0. */
bool comm_has_slices(const struct comm *c);
/* In place: afterwards the slice comm_slice(world, rank, count) of `data` contains the reduction;
 * the rest is undefined. Only if comm_has_slices(). */
int comm_reduce_scatter(struct comm *c, uint32_t local, void *data, size_t count,
                        enum tensor_dtype dtype, enum comm_op op, struct err *err);
/* Copies the slice comm_slice(world, rank, count) of every rank to every other rank. Only if comm_has_slices(). */
int comm_all_gather(struct comm *c, uint32_t local, void *data, size_t count,
                    enum tensor_dtype dtype, struct err *err);
/* Copies `bytes` bytes of any type from rank `root` to all ranks. */
int comm_broadcast(struct comm *c, uint32_t local, void *data, size_t bytes, uint32_t root,
                   struct err *err);
int comm_barrier(struct comm *c, uint32_t local, struct err *err);

/* Sets whether a call of this rank may spin for a moment before it sleeps, if there is a core for
 * every rank (initially true). It should not if its core has other work meanwhile. Called between
 * two calls. */
void comm_set_spin(struct comm *c, uint32_t local, bool may);

/* A call of this rank may take `factor` times the deadline, as where ranks arrive after different
 * amounts of work; initially 1. Called between two calls. */
void comm_set_patience(struct comm *c, uint32_t local, uint64_t factor);

/* How long a local rank has waited for a member, in calls since comm_connect(), the calls of
 * evaluations and transfers included. Only a wait that sleeps is counted; it costs two readings of
 * the clock.
 *
 *   late   nothing of the expected message had arrived, or the member had not arrived at a barrier:
 *          the member is late. It may itself have waited for another member
 *   slow   a part of the message had arrived: the link is slow, or the processor of the member is
 *          busy. Only links over TCP count this */
struct comm_wait {
    uint64_t late_ns, slow_ns;
    uint64_t slow_bytes; /* that arrived in and after the slow waits of their messages */
    /* segments to the member that the kernel sent again since the connection was opened. A message whose first
     * segment was lost makes its receiver wait as for a late member, and only its sender sees the loss */
    uint64_t retransmissions;
};
/* Copies the counters, one for each member of the view. `local` < n_ranks of this member. Any
 * thread. */
void comm_read_waits(const struct comm *c, uint32_t local, struct comm_wait *out);

/* Divides the ranks into parts; called by every rank. The part of this rank is the ranks [first, first
 * + n), which are a subtree of the tree over ranks (or over the leaves of the shares). A later call
 * replaces the division. Contains barriers. Errors: as comm_barrier(). */
int comm_divide(struct comm *c, uint32_t local, uint32_t first, uint32_t n, struct err *err);
/* Sets whether the calls of this rank run in its part; only comm_all_reduce() is allowed there. Not with pieces.
 * Initially false. Called between two calls, after comm_divide(). */
void comm_set_part(struct comm *c, uint32_t local, bool in_part);

/* Ends the generation: every call, in this process and in the peers that share memory or a link
 * with it, and comm_connect(), return as soon as their threads get a core. Any thread, also
 * repeatedly; `why` is copied. */
void comm_abort(struct comm *c, const char *why);

#endif
