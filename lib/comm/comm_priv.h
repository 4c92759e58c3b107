/* comm_priv.h - declarations that the files of this folder share.
 *
 *   handshake.c   connects: one loop until all connections exist and the arenas are shared
 *   handshake_peer.c       one new connection: identifies the peer and verifies the key
 *   handshake_message.c       the messages of the handshake
 *   message.c     the messages after the handshake: exchange heads and life messages
 *   page.c        the layout of the page that the members of a host share
 *   maps.c        the mapped arenas, kept over generations
 *   share.c       the members of a host exchange their arenas, the shared page, and their tethers
 *   link_shm.c    the ranks of a host: barrier, the record of calls
 *   link_tcp.c    two ranks of different nodes: one step of a schedule
 *   waits.c       the time that ranks waited for other members
 *   channel.c     messages between ranks and servers
 *   channel_open.c         opens and closes channels
 *   channel_read.c         receives the bytes of the channels
 *   channel_ring.c         the messages of channels that go through shared memory
 *   ring.c        one direction of such a channel
 *   path.c        which data paths work
 *   fail.c        how a failure is recorded and spreads
 *   life.c        liveness of the members: the life lines, and the thread that watches them
 *   collective.c  the collectives, composed of these parts
 *   coded.c       the coded all-reduce, with coded_tree.c
 *   pieced.c      the all-reduce of ranks with pieces of lanes, with piece_tree.c
 *   spared.c      the all-reduce with spare lanes, with spare_lanes.c
 *   comm.c        opening, closing, entry points
 *
 * Failures: the thread that detects one calls comm_fail(). The first call wins; its text is the
 * text of every later error. It breaks the barrier of the host, sends the reason over the life
 * lines, and then shuts the links down, so that every blocked thread returns. While the member
 * connects, the thread that connects does this. */
#ifndef COMM_COMM_PRIV_H
#define COMM_COMM_PRIV_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/comm.h"
#include "comm/handshake_message.h"
#include "comm/message.h"
#include "comm/page.h"
#include "comm/piece_tree.h"
#include "comm/tiers.h"
#include "comm/topology.h"

struct sockaddr_storage;

/* Messages have defined bytes on every machine (message.h). The elements of a vector are sent as
 * they are in memory. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "elements are sent little-endian");

enum {
    COMM_PIECE_BYTES = 256 << 10, /* received and added at once; fits into the second-level cache */
    COMM_SMALL_BYTES = PAGE_SMALL_BYTES, /* up to this size latency matters more than bandwidth */
    COMM_ASIDE_BYTES = 64 << 10,  /* part of every node's segment that is stored to be added
                                     together */
    COMM_CODED_FLOATS = 256 << 10, /* of all nodes together that are exchanged in one piece by a coded
                                      all-reduce, unless that is too little for each: a bucket */
    COMM_PATH_MS = 2000,          /* a path without acknowledgements for this long is dead */
    COMM_SLICE_MS = 50,           /* the longest sleep without a check for a failure */
    /* How long a broken link waits for the life line, which knows the reason: on a busy machine the
       thread that reads it may be that late. Only a link that breaks by itself waits for so long. */
    COMM_LIFE_WAIT_MS = 300,
    COMM_PARKED_MAX = 1024,
};

struct tls_stream;

struct comm_link {
    int fd;        /* owned; -1 until connected */
    struct tls_stream *tls; /* owned; NULL: clear text */
    uint32_t peer; /* point: a rank, or a server of a channel */
    bool is_local; /* of a channel: a Unix socket, because both members can share memory */
};

/* A connection that shows whether a member is alive; see life.c. */
enum life_kind {
    LIFE_LINE,   /* TCP, with a member of another host, or a ps, with which this member has links */
    LIFE_STAR,   /* Unix, between the leader of a host and another member, while they share
                    memory */
    LIFE_TETHER, /* the other end of the tether of a member of this host, see share.c */
};

struct comm_life {
    int fd; /* owned; -1 before it is connected, and after it is closed */
    uint32_t member; /* the peer */
    enum life_kind kind;
    bool is_over;      /* nothing more will be read */
    _Atomic bool left; /* the peer said goodbye (BYE) */
    bool has_code;     /* a code follows each message, on a LIFE_LINE: see message.h */
    uint8_t key[MESSAGE_KEY_BYTES];
    uint8_t in[MESSAGE_LIFE_BYTES + MESSAGE_CODE_BYTES]; /* the message being received */
    size_t n_in;
    int passed[2]; /* owned; descriptors received with the message; -1 */
};

/* Ranks that make calls of their own: the ranks [first, first + n). Either they are in one node, or
 * they are the ranks of the nodes [node, node + n_nodes). */
struct comm_part {
    uint32_t first, n; /* n 0: not divided */
    uint32_t node, n_nodes;
};

/* The waits of a rank for one member; as struct comm_wait. */
struct wait_counters {
    _Atomic uint64_t late_ns, slow_ns, slow_bytes;
};

/* One replica thread of this member. */
struct comm_rank {
    _Alignas(64) uint32_t rank;
    uint32_t node, index; /* index in the node */
    uint32_t slot;        /* in the page of the host */
    uint32_t n_links;
    struct comm_link *links; /* owned [n_links] */
    uint8_t *scratch;      /* owned [COMM_PIECE_BYTES]; NULL without links */
    uint8_t *aside;        /* owned [n_nodes, roots of pieces, tiers.n_buffers or spared_buffers(): the most]
                              [COMM_ASIDE_BYTES]; NULL unless the topology is direct */
    const void **sources;  /* owned [ranks of the node, or nodes if those are more] */
    void **targets;        /* owned, same size */
    struct coded *coded;   /* owned; NULL unless opts.groups > 0; see coded.c */
    struct pieced *pieced; /* owned; NULL unless the view has pieces; see pieced.c */
    struct spared *spared; /* owned; NULL unless comm_spares(); see spared.c */
    _Atomic uint64_t offered; /* the last offer of the helper (spared.c); 0: none yet */
    struct comm_call call; /* the present call */
    uint32_t arrivals;     /* number of arrivals at the barrier of the host */
    struct comm_part part; /* of this rank, after comm_divide() */
    bool in_part;          /* calls run among the ranks of the part */
    /* The counters of the scope that is not in use: of all ranks, or of the part. */
    struct {
        uint32_t number, arrivals;
    } other;
    uint64_t patience;     /* a call may take this many times the deadline; 0: 1 */
    struct wait_counters *waits; /* owned [n_members] */
    uint64_t limit_ns;     /* of the present call */
    uint64_t deadline_ns;  /* likewise */
    bool yields;           /* never spins */
    bool torn;             /* a call failed in the middle: peers may still be in it */
    _Atomic bool inside;   /* the rank is inside a call */
};

struct channel; /* the receiving half of a link of an end; see channel_priv.h */
struct channel_buffer;

/* A local end of channels: a rank of this member, or a server if this member is a ps. */
struct comm_end {
    uint32_t n_links;           /* 0: a rank of a group without servers */
    struct comm_link *links;    /* owned [n_links], in the order of the points */
    struct channel *channels;   /* owned [n_links] */
    int ready_fd;               /* owned; epoll instance of the links and of wake_fd; -1 before channels_open() */
    int wake_fd;                /* owned; eventfd by which peers wake this end for its rings; -1: no link is local */
    uint8_t *collected;         /* owned [CHANNEL_COLLECT_BYTES] bytes of small parts, or for small places; NULL: no link */
    uint32_t n_ready;           /* complete messages that were not delivered */
    uint32_t n_more;            /* channels with bytes that epoll does not report */
    uint32_t n_ended;           /* channels whose peer sends no more messages */
    uint32_t turn;              /* the channel that is asked first for the next message */
    struct channel *source;     /* of `delivered` */
    struct channel_buffer *delivered; /* owned; the message that the caller uses; NULL: none */
};

/* The memory of the members of this host, as mapped in this process. */
struct comm_host {
    struct host_page *page; /* shared by the members of the host; NULL until made */
    size_t page_bytes;
    bool page_is_mapped; /* mapped from the leader; returned to maps.h at the end */
    int page_fd; /* owned; -1: private memory */
    uint32_t n_ranks;  /* of this host */
    uint32_t n_slots;  /* two for each: for calls of all ranks, and n_ranks later for calls of its part */
    uint32_t *slot_of; /* owned [world]; first slot of each rank of this host */
    struct comm_memory {
        uint8_t *base; /* base of the offsets */
        size_t bytes;
        bool is_mapped; /* must be returned to maps.h */
    } *memory;          /* owned [n_members] */
    int *memory_fds;    /* owned [n_members]; only in the leader, while connecting; else NULL */
    int tether_fd;      /* owned; this member's end; -1 if it is alone on the host */
    int passed_fd;       /* owned; the other end, until it is passed on */
    uint32_t n_others;  /* number of other members of this host */
    uint32_t n_mapped;   /* number of members whose memory is mapped */
    bool has_joined;    /* a follower: JOIN was sent to the leader */
    bool is_shared;     /* sharing is complete */
    uint8_t cores[COMM_CORES_BYTES]; /* of all members so far, a bit mask */
};

/* The connections that show which members are alive, and the thread that watches them. Until that
 * thread runs, the thread that connects uses them. */
struct comm_watch {
    struct comm_life *lives; /* owned [2 * n_members], with room for tethers */
    uint32_t n_lives;
    struct pollfd *polls;    /* owned [2 * n_members + 1] */
    /* Handles a JOIN or PART that a life received; set by host_open(). */
    int (*receive_share)(struct comm *c, struct comm_life *l, const struct life_message *m, struct err *err);
    pthread_t thread;
    bool has_thread;
    int wake_fd; /* owned; eventfd that wakes the watcher, or the thread that connects */
    _Atomic bool stop;
};

/* The callbacks of the owner: copies from comm_opts, which states the threads that call them. */
struct comm_owner {
    void (*on_broken)(void *arg, const struct comm_loss *loss, const char *why);
    void *arg; /* of on_broken */
    void (*on_wait)(bool waits); /* NULL: not called */
};

/* How the generation failed. Every thread of the member may record the failure; the first one
 * wins. */
struct comm_failure {
    _Atomic uint32_t failed; /* 1: the generation has failed; also the futex word of threads that
                                wait for a failure */
    pthread_mutex_t lock;    /* guards the fields below */
    bool is_connecting;      /* the thread that connects spreads a failure at its end */
    bool is_connected;
    int code;                /* error code of every further call; 0: none */
    uint32_t culprit;        /* member, or COMM_NO_MEMBER */
    struct comm_loss loss;   /* dead paths, found while connecting and when the generation failed */
    bool report_due;         /* on_broken must be called */
    char why[COMM_WHY_BYTES];
};

/* A member's part of one generation. */
struct comm {
    struct topology topo;
    uint64_t generation, deadline_ns; /* deadline of a call */
    uint32_t self, host, first_rank, n_ranks; /* n_ranks: 0 for a ps */
    uint32_t first_point, n_ends; /* the ranks or servers of this member */
    uint32_t *lanes;         /* owned [world + 1]; rank r is the leaves [lanes[r], lanes[r + 1]); NULL unless
                                opts.groups > 0 */
    uint32_t group_lanes;    /* leaves of a group; 0 unless opts.groups > 0 */
    struct piece_tree pieces; /* of the view; empty: equal shares */
    bool spares;             /* comm_spares() */
    const char *no_spares;   /* comm_why_no_spares() */
    struct tiers tiers;      /* n_groups 0: the nodes exchange in one level */
    char **names;            /* owned [n_members] */
    char text[192];          /* comm_describe() */
    struct comm_rank *ranks; /* owned [n_ranks]; each is used by its replica's thread */
    struct comm_end *ends;   /* owned [n_ends]; each is used by one thread at a time */
    struct comm_host shm;
    struct comm_watch watch;
    struct comm_opts opts; /* its pointers belong to the caller until the member is connected */
    struct comm_owner owner;
    struct comm_failure failure;
};

static inline bool comm_has_failed(struct comm *c)
{
    return atomic_load_explicit(&c->failure.failed, memory_order_acquire) != 0;
}

/* The links of this member are n_ranks + n_ends lists. Returns list i. */
static inline struct comm_link *comm_links(const struct comm *c, uint32_t i, uint32_t *n)
{
    const struct comm_rank *r = i < c->n_ranks && c->ranks != NULL ? &c->ranks[i] : NULL;
    const struct comm_end *e = i >= c->n_ranks && c->ends != NULL ? &c->ends[i - c->n_ranks] : NULL;
    struct comm_link *links = r != NULL ? r->links : e != NULL ? e->links : NULL;

    *n = links == NULL ? 0 : r != NULL ? r->n_links : e->n_links;
    return links;
}

static inline void comm_waits(const struct comm *c, bool waits)
{
    if (c->owner.on_wait != NULL)
        c->owner.on_wait(waits);
}

/* ---- fail.c ---- */
/* "rank 3 (worker 1)" or "server 0 (ps 0)" */
struct comm_text {
    char text[96];
};
struct comm_text comm_rank_text(const struct comm *c, uint32_t point);
/* "all-reduce 17 of 1000 float32 (sum)" */
struct comm_text comm_call_text(const struct comm_call *call);
static inline size_t comm_call_element(const struct comm_call *call)
{
    return tensor_dtype_bytes((enum tensor_dtype)call->dtype);
}
/* Returns true if the calls are equal except for the offset. */
bool comm_call_same(const struct comm_call *a, const struct comm_call *b);
/* Ends the generation, in this process and in the peers; only the first call has an effect. Always
 * returns -1. Any thread. */
int comm_fail(struct comm *c, int code, uint32_t culprit, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Calls comm_fail() with ERR_PATH: the kernel of the member acknowledged nothing for
 * COMM_PATH_MS. */
int comm_path_lost(struct comm *c, uint32_t member);
/* The connection `fd` has brought other bytes of `what` than the point `from` has sent. Calls comm_fail() with both
 * ends, and marks the loss. */
int comm_message_changed(struct comm *c, int fd, uint32_t from, uint32_t to, const char *what);
/* The link to a point broke. Waits briefly for the life line of its member, which may report the
 * cause, and calls comm_fail(). */
int comm_link_lost(struct comm *c, uint32_t point, const char *why);
/* Returns true if the member has closed its communicator in order. */
bool comm_has_left(const struct comm *c, uint32_t member);
/* Writes the text of the failure. Returns its code. */
int comm_failure(struct comm *c, struct err *err);
/* From now on a failure spreads at once. Returns false if there was one before; it spreads now. */
bool comm_begin(struct comm *c);
/* Wakes the watcher, or the thread that connects. */
void comm_wake(struct comm *c);
/* Sends a life message of this kind, BYE or OVER, to all peers. */
void comm_send_lives(struct comm *c, uint32_t what, uint32_t culprit, const char *why);

/* ---- life.c ---- */
/* life_polls() writes the entries to poll, the wake-up and then each life, and returns their
 * number. life_advance() handles the results. */
uint32_t life_polls(const struct comm *c, struct pollfd *out);
void life_advance(struct comm *c, const struct pollfd *polls, uint32_t n);
void life_read(struct comm *c, struct comm_life *l); /* reads what has arrived, without waiting */
/* Adds a life of a member that has none yet. */
void life_add(struct comm *c, int fd, uint32_t member, enum life_kind kind);
void life_close(struct comm_life *l); /* also closes received descriptors that were not used */
/* Closes the tethers of the other members: no thread of this process will write into their arenas
 * any more. */
void comm_close_tethers(struct comm *c);
int comm_watch(struct comm *c, struct err *err); /* starts the watcher if there is a life line */
void comm_unwatch(struct comm *c, bool goodbye); /* stops the watcher; goodbye: first sends BYE to
                                                    the peers */

/* ---- path.c ---- */
/* Returns true if the other kernel has acknowledged nothing for longer than a keepalive interval,
 * although bytes were outstanding. false for a socket that is not TCP. */
bool path_is_silent(int fd);
void path_add(struct comm_loss *loss, uint32_t member); /* adds the member once */
/* Whether an error of connect() came from the path or a firewall, and not from a lack of resources here. */
bool path_is_rejected(int errnum);
/* Adds the members to which a connection of the generation is silent. */
void path_survey(const struct comm *c, struct comm_loss *loss);
/* Returns true if this errno of a socket means that the other kernel does not answer. */
bool comm_is_path_dead(int errnum);

/* ---- share.c ---- */
/* Makes what this member shares: a tether, and the page if it is the leader or alone on its
 * host. */
int host_open(struct comm *c, struct err *err);
/* Sends the messages that are due. Sharing is complete when c->shm.is_shared is set. */
int host_advance(struct comm *c, uint64_t deadline_ns, struct err *err);
void host_close(struct comm *c); /* idempotent; keeps this member's end of the tether */

/* ---- link_shm.c ---- */
/* Wakes the ranks that wait for the slots of this member: it will not arrive any more. */
void host_leave(struct comm *c);
/* If another process broke the page, fails in the same way and returns -1. */
int host_check(struct comm *c);
/* Waits at the barrier for the ranks [first, first + n) of this host, which include r. Returns -1
 * after a failure. */
int host_barrier(struct comm *c, struct comm_rank *r, uint32_t first, uint32_t n);
/* Publishes the call of r, waits at the barrier, and compares the calls. */
int host_enter(struct comm *c, struct comm_rank *r, uint32_t first, uint32_t n);
/* Returns the buffer of a rank in the present call; NULL after comm_fail(), if it is not in the
 * rank's arena. */
void *host_data(struct comm *c, struct comm_rank *r, uint32_t rank, size_t bytes);
/* The same of the first or second piece of a rank. */
void *host_piece(struct comm *c, struct comm_rank *r, uint32_t rank, bool is_second, size_t bytes);
/* Returns the place of a rank for a small vector [COMM_SMALL_BYTES] in the present call of r; there is
 * one for odd and one for even calls. */
void *host_small(struct comm *c, const struct comm_rank *r, uint32_t rank);
/* Sets the number of arrivals of r at barriers of its part to 0. */
void host_reset_part(struct comm *c, const struct comm_rank *r);

/* ---- waits.c: called by the thread that makes the call of r ---- */
enum wait_kind { WAIT_LATE, WAIT_SLOW };
/* r waited for a rank of another member, or of its own one. */
void waits_add(const struct comm *c, struct comm_rank *r, uint32_t rank, enum wait_kind kind,
               uint64_t ns);
/* `bytes` arrived from the rank in and after waits of kind WAIT_SLOW. */
void waits_add_bytes(const struct comm *c, struct comm_rank *r, uint32_t rank, uint64_t bytes);

/* ---- link_tcp.c ---- */
struct exchange {
    uint32_t to, from;           /* ranks, or SCHEDULE_NONE */
    uint64_t send_tag, recv_tag; /* the tag that the receiver expects; the tag that this rank
                                    expects */
    const uint8_t *send;
    size_t send_bytes;
    uint8_t *recv;
    size_t recv_bytes;
    bool add, left; /* add: the received elements are added; left: as the left operand */
    /* NULL, or called at most once, if everything was sent, and nothing was received for idle_ns. Returns -1
       after a failure. */
    int (*idle)(struct comm *c, struct comm_rank *r);
    uint64_t idle_ns;
    /* NULL, or called for the state of the spare block in the head of `from`. Returns -1 after comm_fail(). */
    int (*learn)(struct comm *c, struct comm_rank *r, uint32_t from, uint8_t state);
};
/* Sends and receives at the same time. `send` and `recv` are disjoint, or equal with at most
 * COMM_SMALL_BYTES that are added. Returns -1 after a failure. */
int tcp_exchange(struct comm *c, struct comm_rank *r, const struct exchange *x);
/* Sets TCP_NODELAY, keepalive and so on, for links and life lines. */
void tcp_tune(int fd, bool is_settled); /* false: during the handshake */

/* ---- channel_open.c ---- */
/* Allocates the ends and their links, which the handshake connects. ERR_NOMEM; then
 * channels_free() is called nevertheless. */
int channels_make(struct comm *c);
int channels_open(struct comm *c, struct err *err); /* after the links are connected */
void channels_free(struct comm *c);                 /* closes the links, too */

/* ---- collective.c ---- */
/* Performs r->call on `data`. Returns -1 after a failure. */
int collective(struct comm *c, struct comm_rank *r, void *data);

/* ---- coded.c ---- */
/* Finds the leaves of the groups. Errors: ERR_INPUT (a rank has a part of several groups), ERR_NOMEM. */
int coded_make(struct comm *c, struct err *err);
/* Allocates the buffers of a rank. Errors: ERR_NOMEM; then coded_free_rank() is called nevertheless. */
int coded_make_rank(struct comm *c, struct comm_rank *r);
void coded_free_rank(struct comm_rank *r);
/* Sets the coding of the next call. */
void coded_set(struct comm_rank *r, const struct comm_coding *coding);
uint32_t coded_kept(const struct comm *c, const struct comm_rank *r, enum code_kind kind);
struct comm_coded_bytes coded_bytes(const struct comm_rank *r);
/* Performs r->call, a coded all-reduce, on `data`. Returns -1 after a failure. */
int coded_all_reduce(struct comm *c, struct comm_rank *r, float *data);

/* ---- pieced.c ---- */
/* Finds the roots of the pieces. Errors: ERR_INPUT (pieces with compression or servers), ERR_NOMEM. */
int pieced_make(struct comm *c, struct err *err);
/* Allocates the buffers of a rank. Errors: ERR_NOMEM; then pieced_free_rank() is called nevertheless. */
int pieced_make_rank(const struct comm *c, struct comm_rank *r);
void pieced_free_rank(struct comm_rank *r);
/* Performs r->call, an all-reduce of pieces, on `data`. Returns -1 after a failure. */
int pieced_all_reduce(struct comm *c, struct comm_rank *r, void *data);

/* ---- spared.c ---- */
/* Sets c->spares and c->no_spares. Errors: ERR_INPUT (spare lanes with compression). */
int spared_decide(struct comm *c, struct err *err);
/* Allocates what a rank needs. Errors: ERR_NOMEM; then spared_free_rank() is called nevertheless. */
int spared_make_rank(const struct comm *c, struct comm_rank *r);
void spared_free_rank(struct comm_rank *r);
size_t spared_buffers(const struct comm *c); /* of a rank; 0: no spare lanes */
/* A member offers the block of this member's rank for a call. Returns -1 after comm_fail(). */
int spared_receive_offer(struct comm *c, uint32_t member, uint64_t number);
void spared_set(struct comm_rank *r, struct comm_spare *spare); /* of the next call */
/* Performs r->call, an all-reduce with spare lanes, on `data`. Returns -1 after a failure. */
int spared_all_reduce(struct comm *c, struct comm_rank *r, void *data);

/* ---- tiered.c ---- */
/* Reduces the elements `x` of `data` over this channel of all nodes; the same `x` on all of them. `data` has the
 * reduction of the node. Returns -1 after a failure. */
int tiered_all_reduce(struct comm *c, struct comm_rank *r, uint8_t *data, struct comm_range x);

/* ---- handshake.c ---- */
/* Fills in the fds of c->lives and of the links of c->ranks, and shares the memory of the host.
 * Returns -1 with comm_has_failed() if a peer or comm_abort() ended it. Sets *culprit if another
 * member is the culprit. */
int handshake(struct comm *c, uint64_t deadline_ns, uint32_t *culprit, struct err *err);

/* ---- listener.c ---- */
int listener_fd(const struct comm_listener *l);            /* non-blocking */
struct maps *listener_maps(const struct comm_listener *l); /* of the arenas of this host */
/* Marks the begin or end of a handshake, which alone accepts connections meanwhile. */
void listener_claim(struct comm_listener *l, bool is_claimed);
/* A connection that waits for the generation that its dialler requested, or for the rest of its
 * HELLO. It is not authenticated: if there is no room, conn_limit_victim() selects a connection to
 * close, and its dialler calls again. */
struct parked {
    int fd;
    size_t done;       /* bytes of hello received */
    uint64_t since_ms; /* accepted by a sweep; 0: by a handshake */
    uint8_t hello[HANDSHAKE_HELLO_BYTES];
    char from[72];
};
void listener_park(struct comm_listener *l, const struct parked *p);
/* Removes the connection that has waited longest. Returns false if there is none. */
bool listener_unpark(struct comm_listener *l, struct parked *out);
/* Accepts a connection and writes its source. Returns -1 with errno if there is none. */
int listener_accept(int fd, char *from, size_t n_from);
/* Parses "ip:port" or "[ip]:port"; literals only. */
int listener_parse(const char *address, struct sockaddr_storage *out, uint32_t *n_out,
                   struct err *err);

#endif
