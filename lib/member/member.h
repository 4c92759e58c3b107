/* member.h - membership as pure state machines: event in, actions out, no clock, no socket.
 *
 *   member_worker   the life of one task in the group (every task has one, the chief too)
 *   member_coord    the group as the coordinator sees it
 *
 * Both are tables (worker.c, coord.c). They get the time with every event, so that a thousand
 * tasks run in one test under a virtual clock. Threads: one at a time, each object on its own.
 *
 * In this version a lost task ends the generation and with it the job on every task (exit 138);
 * generation and view are there so that regrouping changes only the rows that say so. */
#ifndef MEMBER_MEMBER_H
#define MEMBER_MEMBER_H

#include <stdbool.h>
#include <stdint.h>

enum { MEMBER_INCARNATION_BYTES = 16, MEMBER_TEXT_BYTES = 1024 };

/* ---- a worker ---- */

enum member_state {
    MEMBER_JOINING,  /* calling the coordinator */
    MEMBER_WAITING,  /* admitted; others are missing */
    MEMBER_ACTIVE,   /* in the view: connecting or training */
    MEMBER_DRAINING, /* stopping at an agreed step, saving */
    MEMBER_LEAVING,  /* Leave was sent */
    MEMBER_GONE,
    MEMBER_STATES
};
enum member_event {
    MEMBER_EV_START,
    MEMBER_EV_ADMITTED,     /* first Waiting */
    MEMBER_EV_GROUP_READY,  /* View */
    MEMBER_EV_GROUP_OVER,   /* Over: somebody was lost, or an error ended the job */
    MEMBER_EV_COORD_LOST,   /* the Join stream broke, or it is silent */
    MEMBER_EV_REFUSED,      /* turned away at the door, for good */
    MEMBER_EV_DEADLINE,     /* joining and waiting took too long */
    MEMBER_EV_STOP,         /* SIGTERM, drain, stop */
    MEMBER_EV_STOPPED,      /* the agreed step is done and saved */
    MEMBER_EV_COMPLETE,     /* the job's last step is done and saved */
    MEMBER_EV_FAILED,       /* an error on this task */
    MEMBER_EV_LEFT,         /* Leave was answered, or gave up on it */
    MEMBER_EVENTS
};
enum member_action {
    MEMBER_DO_NOTHING,
    MEMBER_DO_JOIN,       /* call the coordinator, again after a short pause if it fails */
    MEMBER_DO_TRAIN,      /* connect to the peers of the view and train */
    MEMBER_DO_DRAIN,      /* ask for an agreed stop */
    MEMBER_DO_LEAVE,      /* send Leave */
    MEMBER_DO_ABORT,      /* abort the communicator, stop at once, then end */
    MEMBER_DO_END,        /* end the process with what is known */
};
struct member_move {
    enum member_state from;
    enum member_event on;
    enum member_state to;
    enum member_action act;
};

struct member_worker {
    enum member_state state;
    uint64_t since_ms;
};
void member_worker_init(struct member_worker *w, uint64_t now_ms);
/* Looks the move up; *out is the row (for the log), or NULL when the event is late news that changes nothing in
 * this state. A pair that is in neither table is our own mistake: CHECK. */
enum member_action member_worker_step(struct member_worker *w, enum member_event ev, uint64_t now_ms,
                                      const struct member_move **out);
const char *member_state_name(enum member_state s);
const char *member_event_name(enum member_event e);
const char *member_action_name(enum member_action a);
/* For tests and the drawing: all rows; whether a pair is ignored. */
const struct member_move *member_moves(uint32_t *n);
bool member_ignored(enum member_state s, enum member_event e);

/* ---- the coordinator ---- */

struct member_ident { /* what must agree; borrowed during the call, copied */
    const char *version, *job_digest, *cluster_hash, *cluster, *devices, *kernels, *nccl;
};
struct member_join {
    uint32_t rank; /* of the task in the cluster specification; the skin has looked it up */
    uint8_t incarnation[MEMBER_INCARNATION_BYTES];
    struct member_ident ident;
    uint32_t n_devices;
    uint64_t step_held;
};
struct member_beat {
    uint32_t rank;
    uint8_t incarnation[MEMBER_INCARNATION_BYTES];
    uint64_t generation, step;
    const char *phase;
    uint64_t phase_ms;
};

enum member_task_state { MEMBER_TASK_MISSING, MEMBER_TASK_JOINED, MEMBER_TASK_ACTIVE, MEMBER_TASK_LEFT };
enum member_leave { MEMBER_LEAVE_COMPLETE, MEMBER_LEAVE_STOPPED, MEMBER_LEAVE_FAILED };

struct member_task {
    const char *name, *address; /* copied at member_coord_new */
    enum member_task_state state;
    uint8_t incarnation[MEMBER_INCARNATION_BYTES];
    uint32_t n_devices;
    uint64_t step_held;
    uint64_t heard_ms; /* last sign of life; while missing: since when it is */
    uint64_t step;
    char phase[32];
    uint64_t phase_since_ms;
    char last_error[256]; /* of the last attempt to reach it, while missing */
};

/* What the skin must do, in order. */
struct member_order {
    enum {
        MEMBER_ORDER_ADMIT,  /* tell `rank` that it waits */
        MEMBER_ORDER_REFUSE, /* end `rank`'s Join with text (FAILED_PRECONDITION); this connection only */
        MEMBER_ORDER_RETRY,  /* end it with UNAVAILABLE: come again */
        MEMBER_ORDER_VIEW,   /* publish the view of `generation` to all that are ACTIVE */
        MEMBER_ORDER_OVER,   /* announce the end of `generation`, `culprit` and text, to all that are ACTIVE, and
                                 to the culprit if it still listens */
        MEMBER_ORDER_DROP,   /* end `rank`'s present stream with UNAVAILABLE: it may come again */
        MEMBER_ORDER_REPLACE, /* likewise with ALREADY_EXISTS: a newer process took its place, for good */
        MEMBER_ORDER_RELEASE, /* answer `rank`'s Leave; `complete`: it may go, what it said holds;
                                 else the group's last state is not safe, text says why */
    } kind;
    uint32_t rank;
    uint64_t generation;
    uint32_t culprit;  /* UINT32_MAX: nobody */
    bool complete;
    const char *text;  /* never NULL; valid until the next event of this coordinator */
};

struct member_coord_opts {
    uint32_t world;
    const char *const *names;     /* [world] "worker 1" */
    const char *const *addresses; /* [world] */
    uint32_t self;                /* the coordinator's own rank */
    uint64_t silent_ms;           /* a member unheard for so long is lost */
    const struct member_ident *ident; /* the coordinator's own: what others must agree with */
    uint32_t n_devices;
};
struct member_coord;

struct member_coord *member_coord_new(const struct member_coord_opts *opts, uint64_t now_ms);
void member_coord_free(struct member_coord *c);

/* Each event appends to the order list, which the skin drains with member_coord_next() (false: empty). */
void member_coord_join(struct member_coord *c, const struct member_join *j, uint64_t now_ms);
/* false: this incarnation is not in the group. */
bool member_coord_beat(struct member_coord *c, const struct member_beat *b, uint64_t now_ms);
/* The Join stream of `rank` ended; only of its present one, not of one that an order dropped. `why` may be "". */
void member_coord_closed(struct member_coord *c, uint32_t rank,
                         const uint8_t incarnation[MEMBER_INCARNATION_BYTES], const char *why,
                         uint64_t now_ms);
/* COMPLETE and STOPPED of others are answered (RELEASE) when the coordinator's own leave arrives, because
 * only then is the last checkpoint verified; FAILED at once, and it ends the generation with this task as culprit.
 * So does any leave of a task that has not seen the view: `generation` is the one it knows, 0 for none. */
void member_coord_leave(struct member_coord *c, uint32_t rank,
                        const uint8_t incarnation[MEMBER_INCARNATION_BYTES], uint64_t generation,
                        enum member_leave kind, uint64_t step, const char *reason, uint64_t now_ms);
/* What somebody saw when trying to reach a missing task; the reason it gave when it left goes first. */
void member_coord_unreachable(struct member_coord *c, uint32_t rank, const char *error);
/* The passage of time; to be called several times per silent_ms. A tick that comes late shows that the
 * coordinator itself slept: then nobody is blamed for silence. */
void member_coord_tick(struct member_coord *c, uint64_t now_ms);
bool member_coord_next(struct member_coord *c, struct member_order *out);

uint64_t member_coord_generation(const struct member_coord *c); /* 0: none yet */
bool member_coord_running(const struct member_coord *c);        /* a view is out and not over */
uint32_t member_coord_present(const struct member_coord *c);    /* tasks joined or active */
const struct member_task *member_coord_task(const struct member_coord *c, uint32_t rank);

#endif
