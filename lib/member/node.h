/* node.h - membership of one task as a pure state machine: event in, actions out, no clock, no
 * socket. The group regroups in place: whoever dies, hangs, is cut off, leaves or comes leads to a
 * new generation, and no process ends but the one that did.
 *
 * Every task has one node: always a member, and the coordinator of the others when it leads.
 *
 *   SEEKING    calls the lowest ranks, one after the other, until one takes it in; none: it leads
 *   FOLLOWING  a leader took it in; in a view, or waiting for one
 *   LEADING    gathers joiners, publishes views, watches the members
 *   ENDED
 *
 * The coordinator of a view is its the task whose storage failed least often, in doubt the lowest rank, whoever published it: so a chief that
 * returns joins the acting one like any newcomer, and the next view hands the group over to it. The coordinator
 * writes the checkpoints and holds the lease. A coordinator whose storage fails (event STORAGE)
 * ends the view, and the next view has another coordinator; no process ends for that. Who has no view
 * and leads (gathers) asks the missing ones where the group is, and goes there.
 *
 * One generation in messages (M member, L leader); the same lines whatever happened:
 *   L > M  OVER g            a loss: abort, keep the state      } whichever comes first
 *   L > M  PAUSE g           a newcomer, a leaver: stop at the next step boundary
 *   M > L  READY held        training is at rest; newest step whose state is whole
 *   L > M  VIEW g+1          who is in, who holds the newest state: connect and train
 * So a loss that a closed link shows costs one round trip and no timer.
 *
 * Safety. Every step of a view needs all of its members, and a task is in one view at a time. So two
 * groups that share a task never both train; what must not be is two groups without a common task:
 * - Whoever publishes a view that is not the whole cluster needs a strict majority of the last
 *   recorded group in it. Two majorities share a task.
 * - Recorded is what the lease on the shared storage says: a file with a number, made exclusively, so
 *   that there is one order of holders for all. A view is published by the holder, with a majority of
 *   what it recorded itself: without touching the storage (the loss of a worker). Anybody else takes the
 *   next number first, with its own group as record: at once when it has a majority of the group
 *   recorded before, or when the holder is known dead or has released; else after the holder
 *   did not renew it for so long that it has stopped by itself. A holder without a majority takes the
 *   next number itself: at once when all others are known dead, else after MEMBER_MINORITY_MS, so that a
 *   majority elsewhere comes first.
 * - Without shared storage the recorded group is the whole cluster for ever.
 * - The holder trains only while member_node_may_step(): the lease was renewed lately, or the view is the whole
 *   cluster, beside which there is nobody: then a slow storage costs nothing.
 * Nothing of this needs a memory of promises: a task that restarts was in no view that still lives.
 *
 * Reachability. A task belongs to a view if both planes reach it. When a generation breaks, each member reports the
 * peers whose data path is dead (TROUBLE). The leader then orders tests of the data path (REACH) from both ends of each
 * dead path and to them, and evicts the task with the most dead paths (if several have as many, the highest rank, but
 * not the leader). The evicted task keeps its link to the leader and is in quarantine; the other members continue at
 * once. After the delay of the quarantine the leader orders tests of the paths between the task and the members. The
 * task joins the next view when every test has succeeded; until then the tests are repeated, and the members train. A
 * leader with the most dead paths hands leadership over. An evicted task names its dead paths in its next JOIN, so that
 * another leader continues the quarantine. A process that is lost several times in a row is quarantined, too.
 *
 * Settlement: READY says what a task holds; VIEW names the newest step and who holds it; those
 * behind receive it. State after step k is the same bits whoever holds it.
 *
 * Threads: one at a time. Memory: bounded by the world.
 *
 * What the skin must guarantee:
 *   - One link out (CALL opens it; the first message on it is our JOIN) and one link in per rank (its first
 *     message is their JOIN). A new link in of a rank replaces the older if member_node_admits() is true: report
 *     IN_CLOSED for that first.
 *     Messages of a link arrive in order, none after its end; a link that we CLOSEd is not reported any more.
 *     A link that we called is reported closed with MEMBER_REFUSED only when the address refused the connection: nobody
 *     listens there. It is taken as proof of death; a reset or end of stream (MEMBER_CLOSED) is only a loss.
 *   - Every action of an event is performed, in order, before the next event goes in. No action is performed by calling
 *     back into the node.
 *   - After TRAIN comes exactly one of paused, aborted, complete, failed; then training is at rest.
 *   - PAUSE reaches the same boundary on all members (each member asks; one is enough).
 *   - A checkpoint is published only by the holder of the lease whose number is still the highest.
 *   - VIEW on the wire also carries what the node does not know: the key of the generation, each
 *     member's data address and host key (of its JOIN). */
#ifndef MEMBER_NODE_H
#define MEMBER_NODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "member/member.h"

enum {
    MEMBER_NOBODY = UINT32_MAX,
    MEMBER_GO_ON = -1, /* an OVER that leads to another generation, not to an exit code */

    MEMBER_TICK_MS = 20,       /* between two TICK events */
    MEMBER_BEAT_MS = 200,      /* a beat both ways on every link */
    MEMBER_SILENT_MS = 1200,   /* default: six beats; an overloaded machine delays a thread by tenths of a second */
    MEMBER_TRY_MS = 300,       /* for the answer of a candidate, and its successor is called */
    MEMBER_RETRY_MS = 20,      /* before the next call of one that said: come again */
    MEMBER_PROBE_MS = 25,      /* between rounds of asking the missing where the group is: a tenth of the time spent
                                  so far, at least this ... */
    MEMBER_PROBE_MS_MAX = 500, /* ... and at most this */
    MEMBER_PROBES = 8,         /* at a time */
    MEMBER_SETTLE_MS = 500,    /* a new leader waits so long for those of the last view not known to be dead */
    MEMBER_ATTACH_MS = 1500,   /* a new coordinator by hand-over waits so long for its members' links */
    MEMBER_CAUSE_MS = 300,     /* a broken data link is a symptom: so long we wait for the cause */
    MEMBER_QUARANTINE_MS = 4000, /* of a task that cannot be reached over the data path: before its paths are tested
                                    first; longer than MEMBER_MINORITY_MS; doubles with each quarantine ... */
    MEMBER_QUARANTINE_MS_MAX = 60000, /* ... to this; the count starts anew after as long without a quarantine */
    MEMBER_REACH_MS = 500,      /* limit of one test of a data path */
    MEMBER_REACH_MAX = 8,       /* paths in one REACH, and in one report */
    MEMBER_RETEST_MS = 1000,    /* before the paths of a task in quarantine are tested again; doubles ... */
    MEMBER_RETEST_MS_MAX = 8000, /* ... to this */
    MEMBER_LOSSES = 4,         /* of one process, each within the time below of the one before: then quarantine, too */
    MEMBER_LOSS_MS = 10000,
    MEMBER_BEHIND_MS = 500,    /* a member that holds the others up is seen to for so long before it is blamed:
                                  its beats are late by one, and later on a machine that slept */
    MEMBER_STOPPING_MS = 10000, /* for a member's training to come to rest; then it is told to end (138) */
    MEMBER_LEAVE_REST_MS = 1000, /* who was asked to leave waits only so long for that: what the others hold is saved */
    MEMBER_LINGER_MS = 1000,   /* goodbyes wait so long for the other side */
    MEMBER_GATHER_LEAVE_MS = 250, /* a chief that leaves waits so long, saved, for others who were asked too */
    MEMBER_SAY_MS = 2000,      /* between two sentences on who is missing */
    MEMBER_MINORITY_MS = 2000, /* longer than detection and redirection of the others take */
    MEMBER_HOLD_MS = 3000,     /* a lease that was not renewed for so long is not held any more ... */
    MEMBER_LOOK_MS = 100,  /* between two looks at the lease of somebody else; between two tries of a lease operation
                              or a save that failed: doubling from this ... */
    MEMBER_LOOK_MS_MAX = 1000, /* ... to this */
    MEMBER_STORAGE_MS = 2000, /* a coordinator whose storage failed before hands over after so long; doubling with each
                                 failure up to 32 times that */
    MEMBER_EXPIRY_MS = 4000,   /* ... and others may take it: clocks may differ in speed by a quarter */
};

/* ---- what is said ---- */

struct member_seat {
    uint32_t rank;
    uint64_t incarnation;
    uint64_t held; /* newest step whose state it has whole; 0: none */
    uint32_t storage_failures; /* how often it could not write since it last wrote a checkpoint */
};
struct member_view {
    uint64_t generation; /* 0: none */
    uint32_t n;
    const struct member_seat *seats; /* by rank */
    uint64_t newest_step; /* 0: nobody holds state */
    uint32_t newest;      /* rank that holds it; MEMBER_NOBODY: nobody */
};

enum member_kind {
    /* member to leader */
    MEMBER_MSG_JOIN,  /* does not disturb the group before READY. generation: highest ever known, or of the view when
                         attaching to its coordinator; is_attaching, ident, n_devices; ranks: dead data paths of a task
                         that was evicted for them */
    MEMBER_MSG_READY, /* generation: of its last view, 0: none; held: training is at rest; storage_failures */
    MEMBER_MSG_BEAT,  /* both ways. generation (0: in no view), progress */
    MEMBER_MSG_TROUBLE, /* generation, rank: the task that the communicator lost, or NOBODY; ranks: those whose data path
                           the sender found dead; text. is_leader_silent: the sender hears the leader no more, and leaves */
    MEMBER_MSG_REACHED, /* round; ranks: those of the REACH whose data path is dead */
    MEMBER_MSG_COMPLETE, /* generation, held: all steps are done here */
    MEMBER_MSG_LEAVE, /* code: 143 asked to stop, 138 or 2 failed; is_all: the job ends everywhere; text */
    /* leader to member */
    MEMBER_MSG_WAIT,  /* text: taken in; who is missing */
    MEMBER_MSG_VIEW,  /* view; text: what led to it */
    MEMBER_MSG_PAUSE, /* generation */
    MEMBER_MSG_OVER,  /* generation that ends (0: any), rank: culprit or NOBODY, code: GO_ON or the job's end everywhere;
                         text: first cause; ranks: to the culprit, its dead data paths if it is evicted for them */
    MEMBER_MSG_REACH, /* round, ranks: test the data path to each, then REACHED */
    MEMBER_MSG_REDIRECT, /* rank: join that one; that of the member itself: it leads, and the leader leaves, or
                            joins it (is_staying) */
    MEMBER_MSG_REFUSE,   /* code: end with it (143: released); GO_ON: come again; text */
    MEMBER_MSGS
};
struct member_progress {
    uint64_t held;     /* newest step applied */
    uint64_t place;    /* grows with every phase of every step: who has the least holds the others up */
    const char *phase; /* "": none */
    uint64_t phase_ms; /* how long in it */
    uint64_t limit_ms; /* the step watchdog, learned from the job's own steps; 0: what it does has none */
};
struct member_msg { /* fields beside the kind's are 0 and not sent; pointers until the call returns */
    enum member_kind kind;
    uint64_t incarnation; /* JOIN: of the sender, not 0; known of the link afterwards */
    uint64_t generation, held;
    uint32_t rank;
    int code;
    bool is_all, is_attaching;
    const uint32_t *ranks; /* [n_ranks] n_ranks <= MEMBER_REACH_MAX */
    uint32_t n_ranks;
    uint64_t round; /* of REACH and REACHED: numbers the tests */
    uint32_t storage_failures; /* of the sender, as in its seat */
    bool is_staying; /* REDIRECT: the leader stays a member */
    bool is_leader_silent; /* TROUBLE */
    uint32_t n_devices;
    const struct member_ident *ident;
    struct member_progress progress;
    const struct member_view *view;
    const char *text; /* never NULL */
};

/* Question and answer of a probe, both ways: where one stands. */
struct member_where {
    uint64_t incarnation;
    uint64_t generation; /* highest known */
    uint32_t leader;     /* whom it follows; itself: it leads; NOBODY: it seeks, or is not opened yet */
    bool has_view;       /* a view is alive there */
};

/* ---- the lease, as the storage has it ---- */

struct member_lease { /* valid during the call */
    uint64_t token;    /* newest number; 0: there is none */
    uint64_t answered; /* the last LEASE action that was dealt with (member_do_this.wish) */
    bool is_mine;
    bool is_over;      /* released, or not renewed for MEMBER_EXPIRY_MS */
    bool is_known;     /* the storage has been read at least once */
    bool is_same_place; /* the holder has the name of this task and its host: it no longer listens there, since we do */
    uint32_t holder;   /* rank, NOBODY: none */
    uint64_t incarnation;
    const uint32_t *members; /* ranks of the recorded group */
    uint32_t n_members;
    const char *text;  /* trouble with the storage; "" */
};

/* ---- actions ---- */

enum member_action_kind {
    MEMBER_CALL,   /* open the link out to rank; there is none */
    MEMBER_HANG_UP, /* end the link out after what was sent */
    MEMBER_TELL,   /* msg on the link out */
    MEMBER_SEND,   /* msg on the link in of rank */
    MEMBER_CLOSE,  /* end the link in of rank after what was sent */
    MEMBER_PROBE,  /* ask rank where it stands: one of the events HERE and NOT_HERE, once */
    MEMBER_REACH,  /* test the data path to each of `ranks` with a message of full-size packets, within MEMBER_REACH_MS;
                      then the event REACHED, once */
    MEMBER_TRAIN,  /* view: connect, receive or give state, train; text: what led to it */
    MEMBER_PAUSE,  /* stop at the next step boundary */
    MEMBER_ABORT,  /* stop at once; text: the first cause */
    MEMBER_SAVE,   /* at rest: write what is held, verify; then the event SAVED, within grace_ms */
    MEMBER_LEASE,  /* take number token + 1 with the record `view` if token is still the newest; `wish` numbers the
                      actions; token UINT64_MAX: only look. Its outcome: the event LEASE */
    MEMBER_RELEASE, /* mark the lease as released; not answered */
    MEMBER_SAY,    /* text: a sentence for the log and the status; is_trouble */
    MEMBER_END,    /* the membership is over: code 0, 2, 138, 143, text. Links end after what was sent */
};
struct member_action { /* pointers: until the next event */
    enum member_action_kind what;
    uint32_t rank;
    int code;
    bool is_trouble;
    uint64_t token, wish, round;
    const uint32_t *ranks; /* [n_ranks] */
    uint32_t n_ranks;
    const struct member_msg *msg;
    const struct member_view *view;
    const char *text;
};

/* ---- life ---- */

struct member_node_opts { /* copied */
    uint32_t world, self;
    uint64_t incarnation; /* random, not 0 */
    const char *const *names, *const *addresses; /* [world] */
    const struct member_ident *ident;
    uint32_t n_devices;
    uint32_t min_world;   /* 1..world; world: never goes on with fewer */
    uint64_t rejoin_ms;   /* wait for a lost task; also for the first to come */
    uint64_t deadline_ms; /* without progress and outside a connected view: then 138 */
    uint64_t grace_ms;    /* a stop waits so long for the step boundary, then aborts the step */
    uint64_t silent_ms;   /* 0: MEMBER_SILENT_MS */
    bool has_lease;       /* there is shared storage */
};
struct member_node;

struct member_node *member_node_new(const struct member_node_opts *opts, uint64_t now_ms);
void member_node_free(struct member_node *n); /* NULL is fine */

/* ---- events ---- */

enum member_closed {
    MEMBER_CLOSED,
    MEMBER_REFUSED,
    MEMBER_STRANGER, /* of a probe: it does not know this task: it is of another cluster. Who joins it hears more */
};
enum member_failure {
    MEMBER_FAIL_PEER,  /* the communicator broke: the group regroups */
    MEMBER_FAIL_LOCAL, /* this task's device or disk: it alone leaves, with 138 */
    MEMBER_FAIL_FILES, /* before there was a view: a file of the job is absent or damaged here: it alone ends, with 2 */
    MEMBER_FAIL_STORAGE, /* all steps are done, and this task cannot write the last checkpoint or the model: another
                            task does it; if no other task can, all end with 138 */
    MEMBER_FAIL_INPUT, /* every task would fail like this: the job ends with 2 */
};
/* Of MEMBER_FAIL_PEER: what the communicator lost. */
struct member_loss {
    uint32_t peer;                         /* rank; NOBODY: not known */
    uint32_t dead_paths[MEMBER_REACH_MAX]; /* ranks whose kernel acknowledges nothing that this task sends */
    uint32_t n_dead_paths;
};

/* An event of training with a generation that is not the present one is ignored; generation 0: before there was a
 * view. */
enum member_event_kind {
    MEMBER_EV_START,   /* the task seeks and joins at once; before OPENED it is not at rest, and no task waits for it */
    MEMBER_EV_OPENED,  /* model and data are open: training can begin */
    MEMBER_EV_TICK,    /* progress (NULL: as before) */
    MEMBER_EV_STOP,    /* everywhere: Control.Stop; else SIGTERM or drain */
    /* links */
    MEMBER_EV_HEARD_IN,   /* rank, msg: on its link to this task */
    MEMBER_EV_IN_CLOSED,  /* rank, text */
    MEMBER_EV_HEARD_OUT,  /* msg: on the link that this task called */
    MEMBER_EV_OUT_CLOSED, /* closed, text */
    MEMBER_EV_HERE,       /* rank, where: the answer to a PROBE */
    MEMBER_EV_NOT_HERE,   /* rank, closed, text: no answer */
    MEMBER_EV_REACHED,    /* round, loss->dead_paths: the tests of a REACH are done, these failed */
    /* training */
    MEMBER_EV_CONNECTED, /* generation */
    MEMBER_EV_PAUSED,    /* generation, held */
    MEMBER_EV_ABORTED,   /* generation, held */
    MEMBER_EV_COMPLETE,  /* generation, held: all steps are done; on the coordinator also: the last checkpoint is verified
                            and the model exported */
    MEMBER_EV_FAILED,    /* generation, held, failure, loss (NULL: not known), text */
    MEMBER_EV_SAVED,     /* ok, text */
    MEMBER_EV_LEASE,     /* lease */
    MEMBER_EV_STORAGE,   /* text: the reason why this task cannot write a checkpoint, or the lease without which it cannot
                            continue; to be repeated at least every MEMBER_STORAGE_MS while that lasts, and a leader hands
                            the group over. NULL: a checkpoint was written */
};
struct member_event { /* the pointers are valid during the call */
    enum member_event_kind kind;
    uint32_t rank; /* the other task of a link or a probe */
    uint64_t generation, held, round;
    bool ok, everywhere;
    enum member_closed closed;
    enum member_failure failure;
    const struct member_msg *msg;
    const struct member_where *where;
    const struct member_progress *progress;
    const struct member_loss *loss;
    const struct member_lease *lease;
    const char *text;
};
void member_node_handle(struct member_node *n, const struct member_event *e, uint64_t now_ms);
/* false: nothing (more) to do. */
bool member_node_next(struct member_node *n, struct member_action *out);

/* ---- events with an answer ---- */

/* Called for a JOIN on a new link while an older link in of `rank` is open. true: the new link replaces the older one.
 * false: the older link stays, and the caller sends `refusal` on the new link and closes it. That is so for a process
 * with another identity, and as long as the process of the older link is heard. */
bool member_node_admits(struct member_node *n, uint32_t rank, const struct member_msg *join,
                        struct member_msg *refusal, uint64_t now_ms);
/* A probe came in; the answer. */
void member_node_asked(struct member_node *n, uint32_t rank, const struct member_where *theirs,
                       struct member_where *ours, uint64_t now_ms);
void member_node_where(const struct member_node *n, struct member_where *out); /* for our own probes */

/* ---- questions; any time ---- */

enum member_node_state { MEMBER_SEEKING, MEMBER_FOLLOWING, MEMBER_LEADING, MEMBER_ENDED, MEMBER_NODE_STATES };
enum member_node_state member_node_state(const struct member_node *n);
const char *member_node_state_name(enum member_node_state s);
uint32_t member_node_leader(const struct member_node *n); /* NOBODY: not known */
const struct member_view *member_node_view(const struct member_node *n); /* generation 0: in none */
/* Index of the seat that coordinates: of the lowest rank among those with the fewest storage failures. */
uint32_t member_view_coordinator(const struct member_view *v);
bool member_node_needs_lease(const struct member_node *n); /* coordinates a view that is not: steps only while it is held */
const char *member_node_cause(const struct member_node *n); /* first cause of the last change; "" */
/* As the leader sees them; elsewhere only what the view says, and that the leader is there. */
struct member_peer {
    bool is_present, is_in_view;
    uint64_t incarnation, held, heard_ms;
    uint64_t quarantine_until_ms;    /* its data paths are tested next at this time; 0: in no quarantine */
    struct member_progress progress; /* phase: static for 31 bytes inside the node */
    const char *last_error;          /* why it is missing; "" */
};
void member_node_peer(const struct member_node *n, uint32_t rank, struct member_peer *out);

#endif
