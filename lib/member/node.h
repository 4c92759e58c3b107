/* node.h - membership protocol of one task, as a pure state machine: an event goes in, actions come
 * out. The node has no clock, no socket and no thread; the caller (lib/rdzv, or the simulator in
 * test/sim) reports events together with the time and performs the actions.
 *
 * The protocol keeps a group of tasks that train together. When a task dies, hangs, is cut off,
 * leaves or joins, the remaining processes form a new group and continue with the state that they
 * have in memory. Only the failed or leaving process ends.
 *
 * Terms
 *   task         a place in the cluster specification; its rank is its index there
 *   incarnation  random number of a process; a new process of the same task has another one
 *   leader       the task to which the other tasks (its members) have their links
 *   view         the list of the tasks that train together, published by a leader
 *   generation   number of a view; a later view has a higher number
 *   coordinator  the leader of a published view; it writes the checkpoints and holds the lease
 *   lease        a numbered record on the shared storage that names its holder and the holder's
 *                group
 *   held         the newest optimizer step whose complete state a task has in memory
 *
 * States. Every task has one node and can lead.
 *   SEEKING    calls the tasks with lower ranks, one after the other, until a task accepts its
 *              JOIN; if no task does, the node starts to lead
 *   FOLLOWING  a leader accepted the JOIN; the task is in a view or waits for a view
 *   LEADING    accepts joining tasks, publishes views, watches the members
 *   ENDED      the process ends
 *
 * Parameter servers. The last n_ps ranks of the cluster are parameter servers. They are members of
 * the views, and the loss of one ends a view like the loss of a training task, but
 * - a parameter server never leads and never coordinates: it seeks until a training task leads;
 * - it holds no step (held is 0), so it never owns the newest state, and it has no position, so the
 *   step watchdog never blames it;
 * - min_world, majorities and the record of the lease count training tasks alone: a view has at
 *   least min_world training tasks and at least min_ps parameter servers;
 * - the job is complete when all training tasks of the view have done all steps.
 *
 * The coordinator of a view is the training task with the fewest storage failures; among equals, the
 * task with the lowest rank. It need not be the task that published the view. Therefore a chief that
 * returns joins the acting leader like any joining task, and the next view makes the chief the
 * coordinator. A coordinator that cannot write to its storage (event STORAGE) ends the view, and
 * the next view has another coordinator; no process ends. A leader without a view (it gathers)
 * probes the missing tasks for the location of the group, and joins the leader that a probe finds.
 *
 * Messages of one generation g (M member, L leader). Every change uses the same sequence:
 *   L > M  OVER g       after a loss: abort the step, keep the state    } one of the two,
 *   L > M  PAUSE g      before a join or a leave: stop after the step   } whichever is first
 *   M > L  READY held   training has stopped; newest step whose state is complete
 *   L > M  VIEW g+1     the tasks of the view and the owner of the newest state: connect and train
 * A loss that a closed link reports therefore costs one round trip and no timeout.
 *
 * Safety. Every step of a view needs all tasks of the view, and a task is in one view at a time.
 * Two groups with a common task therefore never both train. The rules below exclude two groups
 * without a common task:
 * - The record is the group in the newest lease. The lease is a file with a number that is created
 *   exclusively, so all tasks see the same order of holders. Without shared storage the record is
 *   the whole cluster, permanently.
 * - A view of the whole cluster needs no permission. Any other view needs a strict majority of
 *   the recorded group and, with shared storage, the lease; two majorities have a common task. The
 *   holder of the lease publishes with a majority of its own record, without an access to the
 *   storage (this is the case after the loss of a member).
 * - A task that is not the holder first takes the next number, with its present group as the
 *   record. It may do so at once if a majority of the recorded group is present, or if the holder
 *   is known to be dead or has released the lease; else after the holder has not renewed the lease
 *   for MEMBER_EXPIRY_MS, when the holder has stopped by itself.
 * - A holder that joins another leader gives its number up before its JOIN: it publishes no smaller
 *   view with that number again, although its storage may confirm the number for a while. The other
 *   leader may therefore take the next number while the former holder is present or in its view.
 * - A holder without a majority of its record takes the next number itself: at once if all missing
 *   tasks are known to be dead, else after MEMBER_MINORITY_MS, so that a majority elsewhere is
 *   first.
 * - A coordinator steps only while its lease was renewed within MEMBER_HOLD_MS, or if the view is
 *   the whole cluster (member_node_needs_lease()). No other group can exist beside the whole
 *   cluster, so slow storage does not delay it.
 * - A leader whose parameter servers lack rows leaves the lease to absent tasks that may have all of them.
 *   Each row is on `replicas` parameter servers of the last group that was connected. If fewer of these are
 *   absent, all rows are present. Otherwise, if absent tasks may have all rows, and if these tasks may be a
 *   group, because none of them is known to be dead and at least one is a training task, the leader
 *   publishes no view for MEMBER_ROWS_MS, or until three quarters of the deadline have passed, and
 *   releases the lease, so that those tasks can take it without a majority. If none takes it in that
 *   time, the leader goes on, and training begins again at the newest checkpoint. A leader with too few
 *   tasks for a view releases the lease, too, if the absent ones may be enough.
 * No rule needs a persistent vote: a process that starts again was in no view that still trains.
 *
 * A firewall that REJECTs. A refused connection is evidence of a death, because the kernel of a host whose
 * process has ended refuses at once; a firewall can answer in the same way (a reset), so no observer can
 * tell them apart. If a firewall rejects the packets between two sides, each side takes the other one for
 * dead, and a side without a majority takes the next number at once. Two groups may then train until the
 * former holder reads the lease, which it does every MEMBER_HOLD_MS / 6 (measured: 0.15 to 0.5 s), or for
 * MEMBER_HOLD_MS if it cannot read it. To exclude that, every survivor of a killed leader without a
 * majority, as in each group of two tasks, would have to wait for MEMBER_EXPIRY_MS, as after a silent
 * host. The rule is not changed, because no wrong bytes can result:
 * - A step needs all tasks of its view, so no step has contributions of both groups.
 * - The state after step k is a function of the job and of k. Both groups compute the same steps; the
 *   tasks of one receive the whole state of the other when they join it again, or the other way round.
 * - A checkpoint is published only after its writer has read that its number is the highest. The group with
 *   the lower number publishes nothing, and its step counter is not on the storage.
 * - A parameter server is in one view. A group without min_ps of them takes no step.
 * What both groups do is done twice: the time of these steps, and their lines in log and curves.
 *
 * Reachability. A task belongs to a view if both the control links and the data paths reach it.
 * When a generation breaks, each member reports the peers to which its data path is dead (TROUBLE).
 * The leader then orders tests of data paths (REACH) from and to both ends of each dead path, and
 * evicts the task with the most dead paths (among equals the highest rank, but not the leader). The
 * evicted task keeps its link to the leader and is in quarantine; the other members continue at
 * once. After the delay of the quarantine the leader orders tests of the paths between the task and
 * the members. The task joins the next view after every test has succeeded; until then the tests
 * are repeated while the members train. A leader with the most dead paths hands leadership over. An
 * evicted task names its dead paths in its next JOIN, so another leader continues the quarantine. A
 * task that is lost several times in a row is quarantined, too. A new process of a task in quarantine
 * continues it: only successful tests end a quarantine.
 *
 * State transfer. READY names the step that a task holds; VIEW names the newest step and one owner
 * of it. Tasks with an older step receive the state from that owner. The state after step k has the
 * same bits on every task.
 *
 * Threads: all calls from one thread, or serialized. Memory: O(number of tasks).
 *
 * The caller guarantees:
 *   - There is one link out (CALL opens it; its first message is the JOIN of this task) and one
 *     link in per rank (its first message is the JOIN of that rank). A new link in of a rank
 *     replaces the older link if member_node_admits() returns true; the caller reports IN_CLOSED
 *     for the older link first.
 *   - Messages of a link arrive in order, and none arrives after its end. A link that the node
 *     closed is not reported any more.
 *   - The end of a link out is reported as MEMBER_REFUSED only if the address refused the
 *     connection, i.e. no process listens there. The node treats that as proof of death; a reset or
 *     an end of the stream (MEMBER_CLOSED) is only a loss.
 *   - All actions of an event are performed, in order, before the next event is reported. No action
 *     is performed by a call back into the node.
 *   - After TRAIN, exactly one of PAUSED, ABORTED, COMPLETE and FAILED is reported; training has
 *     then stopped. A parameter server never reports COMPLETE: it reports PAUSED after all training
 *     tasks of the view have ended the generation, also if they are complete.
 *   - PAUSE stops all members at the same step boundary (every member asks for it; one is
 *     sufficient).
 *   - A checkpoint is published only by the holder of the lease whose number is still the highest.
 *   - VIEW on the wire also carries data that the node does not use: the key of the generation, and
 *     the data address and the host key of each member, which its JOIN contained. */
#ifndef MEMBER_NODE_H
#define MEMBER_NODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/group_view.h"
#include "member/member.h"

enum { MEMBER_NO_RANK = UINT32_MAX }; /* no rank: no task, or an unknown task */

enum {
    MEMBER_CONTINUE = -1,          /* code of OVER and REFUSE: no exit; a new generation or another
                                   try */

    /* Times in ms. */
    MEMBER_TICK_MS = 20,     /* interval of TICK events */
    MEMBER_HEARTBEAT_MS = 200,    /* interval of heartbeats, in both directions of every link */
    MEMBER_SILENCE_MS = 1200, /* default for the loss of a silent link: six heartbeats, because an
                                overloaded machine delays a thread by tenths of a second */
    MEMBER_CALL_MS = 300,     /* a call that makes no progress for this time is given up, and the next
                                 candidate is called. Doubles with each call that was given up after
                                 progress, because its host lives and is slow ... */
    MEMBER_CALL_MS_MAX = 2400, /* ... and with each complete round of calls, up to this */
    MEMBER_RETRY_MS = 20,    /* delay before a leader that answered "try again" is called again */
    MEMBER_PROBE_MS = 25,    /* interval of the probes of missing tasks: a tenth of the time spent
                                without a view, at least this ... */
    MEMBER_PROBE_MS_MAX = 500, /* ... and at most this */
    MEMBER_PROBES = 8,         /* probes in one round */
    MEMBER_SETTLE_MS = 500,    /* a new leader waits at most this long for the tasks of the last
                                  view that are not known to be dead */
    MEMBER_ATTACH_MS = 1500,   /* a coordinator that did not publish its view waits at most this
                                  long for the links of its members */
    MEMBER_CAUSE_MS = 300,     /* a broken data link is a symptom: the leader waits this long for a
                                  report of the cause */
    MEMBER_QUARANTINE_MS = 4000, /* first quarantine of a task that the data path does not reach,
                                    until its paths are tested; longer than MEMBER_MINORITY_MS.
                                    Doubles with each quarantine ... */
    MEMBER_QUARANTINE_MS_MAX = 60000, /* ... up to this; the count is reset after this time without
                                         a quarantine */
    MEMBER_REACH_MS = 500,       /* limit of one test of a data path */
    MEMBER_REACH_MAX = 8,        /* paths in one REACH, and in one report */
    MEMBER_RETEST_MS = 1000,     /* interval of the tests of a task in quarantine; doubles ... */
    MEMBER_RETEST_MS_MAX = 8000, /* ... up to this */
    MEMBER_LOSSES = 4,           /* a process is quarantined after this number of losses, each
                                    within MEMBER_LOSS_MS of the previous one; a task that every view needs
                                    is not */
    MEMBER_LOSS_MS = 10000,
    MEMBER_STRAGGLER_MS = 500,      /* a member must delay the others for this long before the
                                       leader
                                    evicts it: its progress is one heartbeat old, and older on a
                                    machine that was suspended */
    MEMBER_STOPPING_MS = 10000,  /* the training of a member must stop within this time; then its
                                    process must end (138) */
    MEMBER_LEAVE_REST_MS = 1000, /* the limit for a task that was asked to leave: the other
                                    tasks hold the state that is saved */
    MEMBER_GATHER_LEAVE_MS = 250, /* a leaving leader, after its save, waits this long for other
                                     tasks that were asked to leave, too */
    MEMBER_SERVERS_MAX = 64,     /* service threads of a parameter server */
    MEMBER_GENERATIONS_AHEAD = 1 << 30, /* a task may know of a generation this much higher than
                                           another task does: 30 a second for a year */
    MEMBER_LOG_MS = 2000,        /* interval of the log lines about missing tasks */
    MEMBER_PS_PATIENCE_MS = 5000, /* a parameter server joins another leader that probes it, if its
                                     own leader has published no view for this long */
    MEMBER_ROWS_MS = 6000,       /* a leader whose parameter servers lack rows that absent ones may have
                                    leaves the lease to a group of these for this time: longer than
                                    MEMBER_EXPIRY_MS and the search for a leader take */
    MEMBER_MINORITY_MS = 2000,   /* longer than the detection of a loss and a redirection take */
    MEMBER_HOLD_MS = 3000,       /* a lease that was not renewed for this long is not held any
                                    more */
    MEMBER_LEASE_POLL_MS = 100,        /* interval of reads of another task's lease, and delay
                                          before a
                                    lease operation or a save that failed is repeated; doubles
                                    ... */
    MEMBER_LEASE_POLL_MS_MAX = 1000,   /* ... up to this */
    MEMBER_STORAGE_REFUSED = 1 << 20, /* storage_failures of a task that cannot write at all */
    MEMBER_STORAGE_MS = 2000,    /* a coordinator whose storage failed before hands leadership over
                                    after this time; doubles with each failure, up to 32 times
                                    this */
    MEMBER_EXPIRY_MS = 4000,     /* a lease that was not renewed for this long may be taken; longer
                                    than MEMBER_HOLD_MS, because clocks may differ in speed by a
                                    quarter */
};

/* ---- messages ---- */

enum member_kind {
    /* member to leader */
    MEMBER_MSG_JOIN,  /* The group continues until READY arrives. generation: highest known, or that
                         of the view if is_attaching; ident, n_devices, n_servers; ranks: dead data paths for
                         which the task was evicted */
    MEMBER_MSG_READY, /* Training has stopped. generation: of the last view, 0: none; held;
                         storage_failures */
    MEMBER_MSG_BEAT,  /* Heartbeat, in both directions. generation (0: in no view), progress */
    MEMBER_MSG_TROUBLE, /* The communicator failed. generation; rank: the peer that it lost, or
                           NO_RANK; ranks: peers whose data path the sender found dead; text.
                           is_leader_silent: the sender receives nothing from the leader, and leaves
                           it */
    MEMBER_MSG_REACHED, /* Answer to REACH. round; ranks: peers of the REACH whose data path is
                           dead */
    MEMBER_MSG_COMPLETE, /* generation, held: the task has done all steps */
    MEMBER_MSG_LEAVE, /* code: 143 asked to stop, 138 or 2 failed; is_all: the job ends on all
                         tasks; text */
    /* leader to member */
    MEMBER_MSG_WAIT,  /* The JOIN is accepted and there is no view yet. text: the missing tasks */
    MEMBER_MSG_VIEW,  /* view; text: the cause of the view */
    MEMBER_MSG_PAUSE, /* generation: stop at the next step boundary */
    MEMBER_MSG_OVER,  /* End of `generation` (0: any). rank: culprit or NO_RANK; code: CONTINUE, or
                         the exit code of the job on all tasks; text: first cause; ranks: only to
                         the culprit, the dead data paths for which it is evicted */
    MEMBER_MSG_REACH, /* round, ranks: test the data path to each, then send REACHED */
    MEMBER_MSG_REDIRECT, /* rank: join that leader. If rank is the member itself, the member leads;
                            the sender leaves, or joins it (is_staying) */
    MEMBER_MSG_REFUSE,   /* code: exit with it (143: released), or CONTINUE: try again; text */
    MEMBER_MSGS
};
struct member_progress {
    uint64_t held;     /* newest step applied */
    uint64_t place;    /* position: grows with every phase of every step. The task with the lowest
                          value delays the others */
    const char *phase; /* "": no phase */
    uint64_t phase_ms; /* time since the phase began */
    uint64_t limit_ms; /* limit of the step watchdog, learned from the job's own steps; 0: the phase
                          has no limit */
};
struct member_msg { /* a field that the kind does not use is 0 and not sent; the pointers are valid
                       during the call */
    enum member_kind kind;
    uint64_t incarnation; /* JOIN: of the sender, not 0; afterwards a property of the link */
    uint64_t generation, held;
    uint32_t rank;
    int code;
    bool is_all, is_attaching;
    const uint32_t *ranks;     /* [n_ranks] */
    uint32_t n_ranks;          /* <= MEMBER_REACH_MAX */
    uint64_t round;            /* REACH and REACHED: number of the tests */
    uint32_t storage_failures; /* of the sender, as in struct group_member */
    bool is_staying;           /* REDIRECT: the sender stays a member */
    uint32_t expired_ms;       /* REDIRECT: 1 + time since the deadline without a step expired at the
                                  sender; a receiver that leads now saves its state and ends the job. 0:
                                  it has not expired */
    bool is_leader_silent;     /* TROUBLE */
    uint32_t n_devices, n_servers;
    const struct member_ident *ident;
    struct member_progress progress;
    const struct group_view *view;
    const char *text; /* never NULL */
};

/* Question and answer of a probe: the status of the sender. */
struct member_status {
    uint64_t incarnation;
    uint64_t generation; /* highest known */
    uint32_t leader;     /* the leader that the sender follows; the sender itself: it leads;
                            NO_RANK: it seeks a leader, or it has not opened model and data yet */
    bool has_view;       /* the sender is in a view that has not ended */
};

/* ---- lease ---- */

struct member_lease { /* the newest record on the storage; pointers valid during the call */
    uint64_t token;    /* number; 0: there is no record */
    uint64_t
        answered; /* number of the last LEASE action that was performed (member_action.request) */
    bool is_mine;
    bool is_over;       /* released, or not renewed for MEMBER_EXPIRY_MS */
    bool is_known;      /* the storage has been read at least once */
    bool is_same_place; /* the holder was a process of this task on this host. It is gone: its
                           address is in use by this process */
    uint32_t holder;    /* rank; NO_RANK: none */
    uint64_t incarnation;
    const uint32_t *members; /* [n_members] ranks of the recorded group */
    uint32_t n_members;
    const char *text; /* error of the last access to the storage; "": no error */
};

/* ---- actions ---- */

enum member_action_kind {
    MEMBER_OPEN_OUT,    /* open the link out, to `rank`; no link out is open */
    MEMBER_CLOSE_OUT,   /* close the link out after the messages that were sent */
    MEMBER_SEND_LEADER, /* send msg on the link out */
    MEMBER_SEND_MEMBER, /* send msg on the link in of `rank` */
    MEMBER_CLOSE_IN,    /* close the link in of `rank` after the messages that were sent */
    MEMBER_PROBE,       /* ask `rank` for its status; then report HERE or NOT_HERE once */
    MEMBER_REACH,   /* test the data path to each of `ranks` with a message of full-size packets,
                       within MEMBER_REACH_MS; then report REACHED once */
    MEMBER_TRAIN,   /* view: connect, transfer the state, train; text: the cause of the view */
    MEMBER_PAUSE,   /* stop training at the next step boundary */
    MEMBER_ABORT,   /* stop training at once; text: the first cause */
    MEMBER_SAVE,    /* training has stopped: write and verify a checkpoint of the held state; then
                       report SAVED, within grace_ms */
    MEMBER_LEASE,   /* take number token + 1 with the record `view`, if `token` is still the newest;
                       token UINT64_MAX: only read. `request` numbers the actions. Then report LEASE
                     */
    MEMBER_RELEASE, /* mark the lease as released; no event reports the outcome */
    MEMBER_LOG,     /* text: a line for the log and the status; is_trouble: a warning */
    MEMBER_END,     /* the membership has ended: code 0, 2, 138 or 143; text. Links close after the
                       messages that were sent */
};
struct member_action { /* the pointers are valid until the next event */
    enum member_action_kind kind;
    uint32_t rank;
    int code;
    bool is_trouble;
    uint64_t token, request, round;
    const uint32_t *ranks; /* [n_ranks] */
    uint32_t n_ranks;
    const struct member_msg *msg;
    const struct group_view *view;
    const char *text;
};

/* ---- open and close ---- */

struct member_node_opts { /* copied */
    uint32_t world, self; /* number of tasks of the cluster; rank of this task */
    uint64_t incarnation; /* random, not 0 */
    const char *const *names, *const *addresses; /* [world] */
    const struct member_ident *ident;
    uint32_t n_devices;   /* replicas of this task; 0: a parameter server */
    uint32_t n_ps;        /* the last ranks of the cluster, this many, are parameter servers */
    uint32_t n_servers;   /* service threads of this task; 0: a training task */
    uint32_t min_world;   /* fewest training tasks of a view, 1..world - n_ps */
    uint32_t min_ps;      /* fewest parameter servers of a view, 1..n_ps; 0 if n_ps is 0 */
    uint32_t replicas;    /* parameter servers that hold the same row, if the view has so many; 0: they
                             hold no rows */
    uint64_t rejoin_ms;   /* wait for a lost task, and at the start for the first view */
    uint64_t deadline_ms; /* exit code 138 after this time without progress outside a connected
                             view. A leader that holds a state saves it before: at most
                             2 * grace_ms + MEMBER_STOPPING_MS later the task ends */
    uint64_t grace_ms;    /* a stop waits this long for the step boundary, then aborts the step; and
                             the limit of a save */
    uint64_t silent_ms;   /* 0: MEMBER_SILENCE_MS */
    bool has_lease;       /* there is shared storage */
    bool saves;           /* the job keeps checkpoints, so the deadline saves the held state */
};
struct member_node;

/* Returns a node in state SEEKING; it does nothing before START. NULL: no memory. The caller frees
 * the node with member_node_free(). */
struct member_node *member_node_new(const struct member_node_opts *opts, uint64_t now_ms);
void member_node_free(struct member_node *n); /* NULL is allowed */

/* ---- events ---- */

enum member_closed {
    MEMBER_CLOSED,   /* the link ended, or the probe had no answer */
    MEMBER_REFUSED,  /* the address refused the connection: no process listens there */
    MEMBER_UNPROVEN, /* the process at the address did not prove that it is the task: one side does not
                        accept the token, certificate or message of the other. The task is absent, and
                        the text is the reason */
    MEMBER_OTHER_CLUSTER, /* the process at the address has another cluster specification. After a probe,
                             this task joins that process, which either knows this task and compares
                             all values (REFUSE), or ends the link in the same way */
};
enum member_failure {
    MEMBER_FAIL_PEER,  /* the communicator broke: the tasks form a new group */
    MEMBER_FAIL_LOCAL, /* device or disk of this task failed: only this task leaves, with 138 */
    MEMBER_FAIL_FILES, /* before the first view: a file of the job is absent or damaged on this
                          host: only this task ends, with 2 */
    MEMBER_FAIL_STORAGE, /* all steps are done, and this task cannot write the last checkpoint or
                            the model: another task writes it; if no task can, all tasks end with
                            138 */
    MEMBER_FAIL_INPUT, /* every task would fail in the same way: the job ends with 2 */
};
struct member_loss { /* what the communicator lost (MEMBER_FAIL_PEER), or which tests failed
                        (REACHED) */
    uint32_t peer;                         /* rank; NO_RANK: unknown */
    uint32_t dead_paths[MEMBER_REACH_MAX]; /* ranks whose kernel acknowledges nothing that this task
                                              sends */
    uint32_t n_dead_paths;
};

/* A training event whose generation is not the present one is ignored. Generation 0: before the
 * first view. */
enum member_event_kind {
    MEMBER_EV_START,  /* first event: the task seeks a leader at once. Until OPENED, its training
                         does not count as stopped, and no task waits for it */
    MEMBER_EV_OPENED, /* model and data are open: training can begin. text: NULL, or why this task cannot
                         write the results of the job, which no retry changes. Such a task coordinates only
                         if no other one can, and if no task can, none begins the first step */
    MEMBER_EV_TICK,   /* every MEMBER_TICK_MS. progress: NULL if unchanged */
    MEMBER_EV_STOP,   /* everywhere: end the job (Control.Stop); else only this task leaves
                         (SIGTERM, drain) */
    /* links */
    MEMBER_EV_RECEIVED_IN,    /* rank, msg: message on the link in of `rank` */
    MEMBER_EV_IN_CLOSED,      /* rank, text */
    MEMBER_EV_RECEIVED_OUT,   /* msg: message on the link out */
    MEMBER_EV_OUT_PROGRESS,   /* the link out makes progress: it is connected, or the other side
                                 continued the handshake */
    MEMBER_EV_OUT_CLOSED,     /* closed, text */
    MEMBER_EV_PROBE_ANSWERED, /* rank, status: answer to a PROBE */
    MEMBER_EV_PROBE_FAILED,   /* rank, closed, text: a PROBE failed */
    MEMBER_EV_REACHED,        /* round, loss->dead_paths: the tests of a REACH are done; these paths
                                 failed */
    /* training */
    MEMBER_EV_CONNECTED, /* generation: the communicator of the view is connected */
    MEMBER_EV_PAUSED,    /* generation, held */
    MEMBER_EV_ABORTED,   /* generation, held */
    MEMBER_EV_COMPLETE,  /* generation, held: all steps are done; on the coordinator also: the last
                            checkpoint is verified and the model exported */
    MEMBER_EV_FAILED,    /* generation, held, failure, loss (NULL: unknown), text */
    MEMBER_EV_SAVED,     /* ok, text */
    MEMBER_EV_LEASE,     /* lease */
    MEMBER_EV_REGROUP,   /* text: why. A leader whose view trains ends it at the next step boundary and
                            publishes another one, as for a task that joins; else ignored */
    MEMBER_EV_STORAGE,   /* text: reason why this task cannot write a checkpoint, or the lease
                            without which it cannot continue. Reported at least every
                            MEMBER_STORAGE_MS while the failure lasts; a leader then hands
                            leadership over. NULL: a checkpoint was written */
};
struct member_event { /* the pointers are valid during the call */
    enum member_event_kind kind;
    uint32_t rank; /* the other task of a link or a probe */
    uint64_t generation, held, round;
    bool ok, everywhere;
    enum member_closed closed;
    enum member_failure failure;
    const struct member_msg *msg;
    const struct member_status *status;
    const struct member_progress *progress;
    const struct member_loss *loss;
    const struct member_lease *lease;
    const char *text;
};
/* Handles one event. The caller then performs all actions that member_node_next() returns. */
void member_node_handle(struct member_node *n, const struct member_event *e, uint64_t now_ms);
/* Writes the next action to *out. Returns false if there is no further action. */
bool member_node_next(struct member_node *n, struct member_action *out);

/* ---- events with an answer ---- */

/* Called for a JOIN on a new link while an older link in of `rank` is open. Returns true if the new
 * link replaces the older one. Returns false if the older link stays: the new process has another
 * identity, or the process of the older link still sends. The caller then sends *refusal on the new
 * link and closes it. */
bool member_node_admits(struct member_node *n, uint32_t rank, const struct member_msg *join,
                        struct member_msg *refusal, uint64_t now_ms);
/* Handles a probe of `rank`, whose status is *theirs. Writes the answer to *ours. */
void member_node_probed(struct member_node *n, uint32_t rank, const struct member_status *theirs,
                        struct member_status *ours, uint64_t now_ms);
/* Writes the status of this task, which is sent with its own probes. */
void member_node_status(const struct member_node *n, struct member_status *out);

/* ---- queries; allowed at any time ---- */

enum member_node_state { MEMBER_SEEKING, MEMBER_FOLLOWING, MEMBER_LEADING, MEMBER_ENDED, MEMBER_NODE_STATES };
enum member_node_state member_node_state(const struct member_node *n);
const char *member_node_state_name(enum member_node_state s); /* static */
uint32_t member_node_leader(const struct member_node *n);     /* NO_RANK: unknown */
/* The present view; generation 0: the task is in no view. Valid until the next event. */
const struct group_view *member_node_view(const struct member_node *n);
/* True if this task coordinates a view that is not the whole cluster: it may step only while it
 * holds the lease. */
bool member_node_needs_lease(const struct member_node *n);
/* First cause of the last change of the group; "": none. Valid until the next event. */
const char *member_node_cause(const struct member_node *n);
/* What this task knows of another task. A leader knows all fields; other tasks know only the
 * content of the view and that the leader is present. heard_ms is the time of the last message. */
struct member_peer {
    bool is_present, is_in_view;
    uint64_t incarnation, held, heard_ms;
    uint64_t quarantine_until_ms;    /* time of the next tests of its data paths; 0: not in
                                        quarantine */
    struct member_progress progress; /* phase: at most 31 bytes, stored in the node */
    const char *last_error;          /* the reason why the task is missing; "": none */
};
void member_node_peer(const struct member_node *n, uint32_t rank, struct member_peer *out);

#endif
