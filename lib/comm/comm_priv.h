/* comm_priv.h - what the files of this folder share.
 *
 *   handshake.c   connects: one loop until all links and lives are there and the arenas shared
 *   greet.c       one new connection: who is there, and does it know the key
 *   hello.c       the messages of that
 *   message.c     the messages after the handshake: exchange heads and life messages
 *   page.c        the layout of the page that the members of a host share
 *   maps.c        the mapped arenas, kept over generations
 *   share.c       a host's members exchange their arenas, the page they meet in, their tethers
 *   link_shm.c    a host's ranks: barrier, the record of calls
 *   link_tcp.c    two ranks of different nodes: one step of a schedule
 *   path.c        which data paths work
 *   life.c        who is alive: the watcher thread, and how a failure spreads
 *   collective.c  the collectives, put together from these
 *   comm.c        opening, closing, the door of every call
 *
 * A failure has one way: whoever notices calls comm_fail(); the first one wins and becomes the text
 * of every later error. It breaks the host's barrier, tells the peers why over the life lines,
 * then shuts the links down, so that every blocked thread comes out. While we connect, that is
 * left to the thread that connects. */
#ifndef COMM_COMM_PRIV_H
#define COMM_COMM_PRIV_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/comm.h"
#include "comm/hello.h"
#include "comm/message.h"
#include "comm/page.h"
#include "comm/topology.h"

struct sockaddr_storage;

/* Messages have defined bytes on every machine (message.h). The elements of a vector are sent as
 * they lie in memory. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "elements are sent little-endian");

enum {
    COMM_PIECE_BYTES = 256 << 10, /* received and added at a time; fits the second-level cache */
    COMM_SMALL_BYTES = PAGE_SMALL_BYTES, /* up to here latency counts more than bandwidth */
    COMM_ASIDE_BYTES = 64 << 10,  /* of every node's part that are put aside to be added together */
    COMM_PATH_MS = 2000,          /* a path on which nothing is acknowledged for so long is dead */
    COMM_SLICE_MS = 50,           /* the longest anybody sleeps without looking up */
    COMM_PARKED_MAX = 1024,
};

struct comm_link {
    int fd;        /* owned; -1 until connected */
    uint32_t peer; /* rank */
};

/* A connection that tells whether a member lives; see life.c. */
enum life_kind {
    LIFE_LINE,   /* TCP, with a member of another host that we have links with */
    LIFE_STAR,   /* Unix, between a host's leader and another member, while they share memory */
    LIFE_TETHER, /* the other end of a host member's tether, see share.c */
};

struct comm_life {
    int fd; /* owned; -1 until connected, and when no longer needed */
    uint32_t member; /* the peer */
    enum life_kind kind;
    bool is_over;      /* nothing more will be read */
    _Atomic bool left; /* it said goodbye */
    uint8_t in[MESSAGE_LIFE_BYTES]; /* the message being received */
    size_t n_in;
    int passed[2]; /* owned; descriptors that came with it; -1 */
};

/* One replica thread of this member. */
struct comm_rank {
    _Alignas(64) uint32_t rank;
    uint32_t node, index; /* index in the node */
    uint32_t slot;        /* in the host's page */
    uint32_t n_links;
    struct comm_link *links; /* owned [n_links] */
    uint8_t *scratch;      /* owned [COMM_PIECE_BYTES]; NULL without links */
    uint8_t *aside;        /* owned [n_nodes][COMM_ASIDE_BYTES]; NULL but in a direct topology */
    const void **sources;  /* owned [ranks of the node, or nodes if those are more] */
    void **targets;        /* owned, likewise */
    struct comm_call call; /* the one being made */
    uint32_t arrivals;     /* at the host's barrier */
    uint64_t deadline_ns;
    bool yields;           /* never spins */
    bool torn;             /* a call failed half-way: peers may still be in it */
    _Atomic bool inside;   /* of a call */
};

/* The memory of this host's members, as this process sees it. */
struct comm_host {
    struct host_page *page; /* shared by the host's members; NULL until made */
    size_t page_bytes;
    bool page_is_taken; /* the leader's; to be given back */
    int page_fd; /* owned; -1: private memory */
    uint32_t n_slots;
    uint32_t *slot_of; /* owned [world]; by rank, of this host's ranks */
    struct comm_memory {
        uint8_t *base; /* what offsets count from */
        size_t bytes;
        bool is_mapped; /* ours to give back (maps.h) */
    } *memory;          /* owned [n_members] */
    int *memory_fds;    /* owned [n_members]; the leader's, while connecting; else NULL */
    int tether_fd;      /* owned; our end; -1 alone on the host */
    int given_fd;       /* owned; the other end, until it is given away */
    uint32_t n_others;  /* members of this host but us */
    uint32_t n_taken;   /* whose memory we have */
    bool has_joined;    /* a follower: the leader was told */
    bool is_shared;     /* all is there */
    uint8_t cores[COMM_CORES_BYTES]; /* of all members so far */
};

struct comm {
    struct topology topo;
    uint64_t generation, deadline_ns; /* of a call */
    uint32_t self, host, first_rank, n_ranks;
    char **names;            /* owned [n_members] */
    char text[192];          /* comm_describe() */
    struct comm_rank *ranks; /* owned [n_ranks] */
    struct comm_host shm;
    struct comm_life *lives; /* owned [2 * n_members]: there is room for tethers */
    struct pollfd *polls;    /* owned [2 * n_members + 1]; the watcher's */
    uint32_t n_lives;
    struct comm_opts opts; /* what it points to is the caller's, until we are connected */

    void (*on_broken)(void *arg, const struct comm_loss *loss, const char *why);
    void *arg;
    void (*on_wait)(bool waits);
    pthread_t watcher;
    bool has_watcher;
    int wake_fd; /* owned; eventfd: the watcher, or whoever connects, looks up */
    _Atomic bool stop;

    _Atomic uint32_t failed; /* 1: over; also the futex word of those who wait for news */
    pthread_mutex_t lock;    /* guards the rest */
    bool is_connecting;      /* a failure is spread by the thread that connects, at the end */
    bool is_connected;
    int code;                /* of every call from now on */
    uint32_t culprit;        /* member, or COMM_NO_MEMBER */
    struct comm_loss loss;   /* dead paths: found while connecting, and when the generation failed */
    bool tell;               /* on_broken is due */
    char why[COMM_WHY_BYTES];
};

static inline bool comm_has_failed(struct comm *c)
{
    return atomic_load_explicit(&c->failed, memory_order_acquire) != 0;
}

static inline void comm_waits(const struct comm *c, bool waits)
{
    if (c->on_wait != NULL)
        c->on_wait(waits);
}

/* "rank 3 (worker 1)" */
struct comm_who {
    char text[96];
};
struct comm_who comm_who(const struct comm *c, uint32_t rank);
/* "all-reduce 17 of 1000 float32 (sum)" */
struct comm_who comm_call_text(const struct comm_call *call);
static inline size_t comm_call_element(const struct comm_call *call)
{
    return tensor_dtype_bytes((enum tensor_dtype)call->dtype);
}
/* Equal but for the offset. */
bool comm_call_same(const struct comm_call *a, const struct comm_call *b);

/* ---- life.c ---- */
/* Ends the generation, here and at the peers; only the first call counts. Always returns -1. Any
 * thread. */
int comm_fail(struct comm *c, int code, uint32_t culprit, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Does this errno of a socket mean that the other kernel does not answer? */
bool comm_is_path_dead(int errnum);
/* comm_fail() with ERR_PATH: the kernel of the member acknowledged nothing for COMM_PATH_MS. */
int comm_path_lost(struct comm *c, uint32_t member);
/* The link to a member's rank broke. Its life line knows better why; waits a moment for that. */
int comm_link_lost(struct comm *c, uint32_t rank, const char *why);
/* The text of the failure. Returns its code. */
int comm_failure(struct comm *c, struct err *err);
/* What to poll for: the wake-up and then each life; returns how many. And what to do with it. */
uint32_t life_polls(const struct comm *c, struct pollfd *out);
void life_advance(struct comm *c, const struct pollfd *polls, uint32_t n);
void life_read(struct comm *c, struct comm_life *l); /* what there is, without waiting */
/* Another life, of a member that has none yet. */
void life_add(struct comm *c, int fd, uint32_t member, enum life_kind kind);
void life_close(struct comm_life *l); /* with what was passed and nobody took */
/* From now on a failure spreads at once. false: one that came before does so now. */
bool comm_begin(struct comm *c);
/* Lets go of the tethers of the others: nobody of ours will write into their arenas any more. */
void comm_release(struct comm *c);
void comm_wake(struct comm *c);
int comm_watch(struct comm *c, struct err *err); /* starts the watcher if there is a life line */
void comm_unwatch(struct comm *c, bool goodbye); /* stops it; tells the peers that we go in peace */

/* ---- path.c ---- */
/* Has the other kernel acknowledged nothing for longer than a keepalive interval, although there was something to
 * acknowledge? false for a socket that is not TCP. */
bool path_is_silent(int fd);
void path_add(struct comm_loss *loss, uint32_t member); /* once */
/* Adds the members to which a connection of the generation is silent. */
void path_survey(const struct comm *c, struct comm_loss *loss);

/* ---- share.c ---- */
/* Makes what this member gives: the page of a leader or of a host with one member, a tether. */
int host_open(struct comm *c, struct err *err);
/* A JOIN or PART came, with l->passed. */
int host_take(struct comm *c, struct comm_life *l, const struct life_message *m, struct err *err);
/* Says what is due; done when c->shm.is_shared. */
int host_advance(struct comm *c, uint64_t deadline_ns, struct err *err);
void host_close(struct comm *c); /* idempotent; leaves our end of the tether */

/* ---- link_shm.c ---- */
/* Tells the ranks that wait on our slots that nobody comes any more. */
void host_leave(struct comm *c);
/* Wakes everybody on the host. The first one's reason stays. */
void host_break(struct comm *c, uint32_t culprit, const char *why);
/* Did another process break it? Then fails likewise: -1. */
int host_check(struct comm *c);
/* Meets the ranks [first, first + n) of this host, which include r. -1: failed. */
int host_barrier(struct comm *c, struct comm_rank *r, uint32_t first, uint32_t n);
/* Publishes r's call, meets the ranks, compares. */
int host_enter(struct comm *c, struct comm_rank *r, uint32_t first, uint32_t n);
/* Where a rank's buffer of the present call is; NULL after comm_fail(): not in its arena. */
void *host_data(struct comm *c, struct comm_rank *r, uint32_t rank, size_t bytes);
/* A rank's place for a small vector [COMM_SMALL_BYTES], one for odd and one for even calls. */
void *host_small(struct comm *c, uint32_t rank, uint32_t number);

/* ---- link_tcp.c ---- */
struct exchange {
    uint32_t to, from;           /* ranks; SCHEDULE_NOBODY */
    uint64_t send_tag, recv_tag; /* what the receiver expects, what we expect */
    const uint8_t *send;
    size_t send_bytes;
    uint8_t *recv;
    size_t recv_bytes;
    bool add, left; /* received is added, and stands on the left */
};
/* Sends and receives at the same time. `send` and `recv` overlap only by being the same, at most
 * COMM_SMALL_BYTES that are added. -1: failed. */
int tcp_exchange(struct comm *c, struct comm_rank *r, const struct exchange *x);
void tcp_shutdown(struct comm *c);
/* No delay, keepalive and the rest, for links and life lines. */
void tcp_tune(int fd, bool is_settled); /* false: while its handshake runs */

/* ---- collective.c ---- */
/* Does r->call on `data`. -1: failed. */
int collective(struct comm *c, struct comm_rank *r, void *data);

/* ---- handshake.c ---- */
/* Fills in the fds of c->lives and of the links of c->ranks, and shares the host's memory. -1 with
 * comm_has_failed(): a peer or comm_abort() ended it. *culprit: set if another member is to blame. */
int handshake(struct comm *c, uint64_t deadline_ns, uint32_t *culprit, struct err *err);

/* ---- listener.c ---- */
int listener_fd(const struct comm_listener *l); /* non-blocking */
struct maps *listener_maps(const struct comm_listener *l); /* of the arenas of this host */
/* A handshake begins or ends: while it lasts, it alone accepts connections. */
void listener_claim(struct comm_listener *l, bool is_claimed);
/* A connection waits here for the generation that its dialler wants, or for the rest of its HELLO. It has proved nothing:
 * when there is no room, crowd_victim() selects one to close, whose dialler calls again. */
struct parked {
    int fd;
    size_t done;       /* bytes of hello received */
    uint64_t since_ms; /* accepted by a sweep; 0: by a handshake */
    uint8_t hello[HELLO_BYTES];
    char from[72];
};
void listener_park(struct comm_listener *l, const struct parked *p);
/* Takes the one that has waited longest. false: none. */
bool listener_unpark(struct comm_listener *l, struct parked *out);
/* Accepts a connection and prints its source. -1: none waits, or errno. */
int listener_accept(int fd, char *from, size_t n_from);
/* "ip:port" or "[ip]:port", literals only. */
int listener_parse(const char *address, struct sockaddr_storage *out, uint32_t *n_out,
                   struct err *err);

#endif
