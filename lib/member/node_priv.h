/* node_priv.h - declarations that the files of the node share.
 *
 *   node_action.c      begins an event; appends actions and copies what they point to
 *   node_state.c       questions about the tasks and the view
 *   node_text.c        texts for the log, and queries
 *   node_training.c    the training of this task: pause, abort, progress; the end of the node
 *   node_links.c       the links to the leader and to the members
 *   node_hand_over.c   hands leadership over to another task
 *   node_lease.c       starts lease operations
 *   node_reach.c       dead data paths: reports, tests, quarantine
 *   node_view_end.c    the end of a view, and of the job
 *   node_quorum.c      whether a view may be published: majority and lease
 *   node_view_begin.c  the beginning of a view
 *   node_gather.c      leading without a view: leaving tasks, probes, publication of the next view
 *   node_pause.c       pause and completion of a view
 *   node_evict.c       evicts tasks that the data path does not reach, and ends their quarantine
 *   node_storage.c     reports about the shared storage: the lease, and a leader that cannot write
 *   node_admit.c       which process may join as a task
 *   node_lead.c        leading: joins, losses, messages of members, step watchdog
 *   node_follow.c      seeking, following and losing a leader
 *   node.c             open, start, stop, ticks, deadline, and events of the training of this task
 *
 * A file calls only files above it in this list. A transition of the leader therefore ends in
 * node_gather(), which does what has become possible, and never returns to the transition.
 *
 * "This task" is the task of the node. Times that end in _ms or _until are absolute values of
 * now_ms, unless the comment says otherwise; 0 means not set. */
#ifndef MEMBER_NODE_PRIV_H
#define MEMBER_NODE_PRIV_H

#include "base/arena.h"
#include "member/member_priv.h"
#include "member/node.h"

enum { NODE_TEXT = 1024, NODE_HOPS = 8, NODE_PHASE_BYTES = 32, NODE_EDGES = 64 };

/* Training of this task. */
enum node_training {
    NODE_OPENING,  /* model and data are not open yet */
    NODE_STOPPED,  /* stopped; the state is complete */
    NODE_RUNNING,  /* after TRAIN */
    NODE_PAUSING,  /* after PAUSE */
    NODE_ABORTING, /* after ABORT */
};

/* Phase of a leader. */
enum node_phase {
    NODE_GATHERING, /* no view: waits until the next view may be published */
    NODE_LIVE,      /* the view trains */
    NODE_PAUSE,     /* the view trains and stops at the next step boundary */
};

/* Tests of data paths that the leader ordered. */
struct node_round {
    uint64_t id;       /* as in REACH; 0: no tests */
    uint32_t n_open;   /* tasks that have not answered */
    uint64_t until_ms; /* at this time a missing answer counts as a dead path */
    bool has_failed;   /* a path is dead */
};

/* Ranks without duplicates. */
struct node_ranks {
    uint32_t n, at[MEMBER_REACH_MAX];
};

/* What a leader knows of a task; the entry of this task is used, too. */
struct peer {
    bool is_joined;      /* its link in is open and its JOIN was accepted */
    bool is_in_view;      /* in the last view */
    bool is_ready;       /* its training has stopped since the last view */
    bool is_complete;    /* it has done all steps of the present view */
    bool is_leaving;     /* it asked to be released */
    bool has_left;       /* it was released or has left: no task waits for it */
    bool is_dead;        /* its address refused the connection, and no message arrived since */
    bool is_silent;      /* it led this task, fell silent, and no message arrived since */
    bool is_probed;      /* a probe is open. A second is not started: a result is as old as its
                            start */
    bool is_attaching;   /* its link belongs to a view that another leader publishes */
    bool is_mismatched;  /* its last JOIN had another identity */
    bool has_lost_leader;  /* it left because this leader was silent */
    uint32_t storage_failures; /* of its last READY, or of the view */
    uint64_t asked_event;      /* number of the event in which this task last called or probed it:
                                  the
                            result is newer than what was known then */
    uint64_t incarnation; /* last seen; 0: never seen */
    uint64_t attach_generation;
    uint64_t held;
    uint64_t joined_ms, heard_ms; /* time of its JOIN; of its last message */
    /* reachability; used by a leader */
    uint32_t suspect;         /* the task that it reported lost without a dead path; NO_RANK:
                                 none */
    bool is_tested;           /* its paths were tested since this generation broke */
    struct node_ranks dead;   /* in quarantine: its dead data paths */
    struct node_round round;  /* in quarantine: the tests of its paths */
    uint32_t n_failed_rounds; /* since its quarantine began */
    uint32_t quarantines;         /* quarantines of this process in a row */
    uint32_t accusations;         /* evictions of other tasks for a dead path to this one, since its
                                 own */
    uint32_t losses;          /* losses of this process in a row */
    uint64_t quarantined_ms, loss_ms; /* time of the last quarantine and loss */
    uint64_t quarantine_until; /* time of the next tests of its paths; 0: not in quarantine */
    struct member_progress progress; /* as reported at progress_ms; its phase is phase[] */
    uint64_t progress_ms;
    char phase[NODE_PHASE_BYTES];
    char last_error[256]; /* the reason why it is missing; "": none */
};

struct member_node {
    /* constant after member_node_new() */
    struct arena memory;
    uint32_t world, self, n_devices, min_world;
    uint64_t incarnation, rejoin_ms, deadline_ms, grace_ms, silent_ms;
    bool has_lease;
    const char **names, **addresses;
    struct member_ident ident;

    /* actions of this event */
    struct arena event; /* memory that is valid until the next event */
    struct member_action *actions;
    uint32_t n_actions, next_action, room;

    enum member_node_state state;
    uint64_t highest_generation;  /* highest generation known */
    uint64_t events; /* number of events so far */
    uint64_t ticked_ms, heartbeat_ms, logged_ms; /* last TICK, last heartbeat, last line about
                                                    missing
                                             tasks */
    uint64_t gap_ms, gap_until; /* duration in which this process did not run; a loss that is
                                   noticed before gap_until is attributed to that gap */
    uint64_t no_step_ms; /* duration outside a connected view since the last step, or since the
                            eviction of a task that delayed the others */
    bool has_blamed;     /* such an eviction reset no_step_ms; the next reset needs a step */
    char cause[NODE_TEXT]; /* first cause of the last change of the group */

    /* training of this task and its view */
    enum node_training training;
    struct group_view view;            /* the last view */
    struct group_member *view_members; /* owned [world]; the members of `view` */
    bool is_alive;     /* the view has not ended */
    bool is_connected; /* the communicator of this task is connected */
    uint64_t adopted_ms; /* time at which the view was adopted */
    uint64_t abort_ms;   /* time of the last ABORT */
    uint64_t held, stepped; /* newest step whose state is complete; step of the last reset of
                               no_step_ms */
    struct member_progress progress;

    /* link out */
    uint32_t out_rank;        /* rank of the called task; NO_RANK: no link */
    bool is_accepted;    /* the called task accepted the JOIN */
    uint64_t out_ms, out_heard_ms; /* time of the call; of the last message */
    uint64_t retry_ms;   /* SEEKING without a link: time of the next call; 0: at once */
    uint32_t candidate;  /* index of the next task to call */
    uint32_t hops, tries; /* REDIRECTs in a row; calls without an answer in a row */
    uint32_t refusals; /* REFUSEs without an exit code since a leader accepted this task */
    uint64_t refused_until;   /* this task joins no leader before this time */
    uint64_t refusal_logged_ms; /* time of the last line about the rejection of a process */
    uint32_t successor;       /* after a hand-over of leadership, the leader to call next; NO_RANK:
                            none */

    /* leaving */
    bool is_stopping, stops_all; /* this task was asked to leave; to end the job */
    uint64_t stop_ms;

    /* leading */
    struct peer *peers; /* [world], with the entry of this task */
    enum node_phase phase;
    uint64_t gather_ms;  /* begin of GATHERING, or of the phase LIVE or PAUSE */
    uint64_t settle_until, rejoin_until; /* GATHERING waits for known tasks; for lost tasks */
    uint64_t trouble_ms; /* time of the first report of a broken data link; 0: none */
    uint32_t trouble_rank; /* the lost task, by the first report, or the first with a dead path */
    char trouble[NODE_TEXT];
    struct { uint32_t a, b; } edges[NODE_EDGES]; /* dead data paths of the view that broke */
    uint32_t n_edges;
    struct node_round trouble_round; /* the tests that find the end that is cut off */
    uint64_t rounds;                 /* number of rounds ordered so far */
    struct node_ranks own_dead;      /* the dead paths for which this task was evicted; reset by a
                                        view */
    uint32_t straggler;     /* the task that delays the others; NO_RANK: none */
    uint64_t straggler_place, straggler_ms; /* its position, and since when it is there */
    uint64_t probe_ms;   /* time of the next round of probes */
    uint32_t probe_at;   /* rank at which the next round begins */
    bool is_saving, is_saved;
    uint64_t saved_ms, save_began_ms, save_again_ms; /* end; begin (0: not begun); next try (0: at
                                                        once) */
    uint32_t save_failures; /* in a row */
    char save_error[NODE_TEXT]; /* the reason of the last failure; "": none */

    /* lease */
    struct member_lease lease; /* last report; members owned; text: "" */
    uint32_t *lease_members;
    uint64_t wish;       /* number of the last LEASE action */
    uint32_t *prior;     /* group of a holder from which the lease was taken before its expiry,
                            because a majority of that group was present */
    uint32_t n_prior, prior_holder;
    bool is_taking_early;     /* the LEASE action that is open takes the lease from such a holder */
    uint64_t prior_until; /* until this time that holder may believe that it holds the lease */
    uint64_t polled_ms;  /* time of the last read that had no other purpose than to wait */
    uint64_t lease_since; /* number of the event that reported the present token first */
    bool is_holder_gone; /* a call or probe that began after lease_since showed it */
    bool is_lease_pending;     /* a LEASE action is open */
    uint32_t lease_failures; /* answers in a row that reported an error of the storage */
    uint64_t lease_again_ms; /* time before which no lease operation is started */

    /* storage of this task */
    bool storage_failed;       /* another task shall lead */
    uint64_t storage_ms, storage_reported_ms; /* first and last report of the present failure */
    uint64_t unsaved_ms;       /* first failure to write the last checkpoint; 0: none */
    char storage_error[256];   /* the reason */
    char lease_error[256];
    const char *blocked; /* why no view may be published although enough tasks are present; static
                            or NULL */
};

/* ---- events ---- */

/* Handles one kind of event; node_begin_event() has returned true. */
typedef void node_event_fn(struct member_node *n, const struct member_event *e, uint64_t now_ms);
node_event_fn node_out_closed, node_received_out;      /* node_follow.c */
node_event_fn node_probe_answered, node_probe_failed, node_saved; /* node_gather.c */
node_event_fn node_received_in, node_in_closed;        /* node_lead.c */
node_event_fn node_lease, node_storage;            /* node_storage.c */

/* ---- node_action.c ---- */

/* Called at the begin of every event: frees the actions of the previous event, which must all have
 * been performed. Returns false if the node has ended. */
bool node_begin_event(struct member_node *n);
/* Appends an action. Valid until the next call. */
struct member_action *node_add_action(struct member_node *n, enum member_action_kind what);
/* Append an action with a copy of the text or message. */
void node_log(struct member_node *n, bool is_trouble, const char *text);
void node_send_leader(struct member_node *n, const struct member_msg *m);                /* link
                                                                                            out */
void node_send_member(struct member_node *n, uint32_t rank, const struct member_msg *m); /* link
                                                                                            in */
/* Return copies that are valid until the next event. text NULL: "". */
const char *node_copy_text(struct member_node *n, const char *text);
const struct group_view *node_copy_view(struct member_node *n, const struct group_view *v);
/* Returns a copy that is valid until the next event; NULL if n_ranks is 0. */
const uint32_t *node_copy_ranks(struct member_node *n, const uint32_t *ranks, uint32_t n_ranks);
void node_set_cause(struct member_node *n, const char *text);

/* ---- node_state.c ---- */

/* Returns the delay in ms before the next try after `failures` >= 1 failures in a row. */
uint64_t node_retry_ms(uint32_t failures);
/* Present: joined, training stopped, not attaching and not in quarantine. */
bool node_is_present(const struct member_node *n, uint32_t rank);
uint32_t node_n_present(const struct member_node *n);
/* Returns the present tasks as a view with generation 0; valid until the next event. */
const struct group_view *node_present_view(struct member_node *n);
/* Returns true if the task was in the last view and its training has not stopped yet. */
bool node_is_stopping(const struct member_node *n, uint32_t rank);
bool node_any_leaves(const struct member_node *n);
bool node_is_full_view(const struct group_view *v, uint32_t world);

/* ---- node_text.c; the texts are valid until the next event ---- */

const char *node_name(struct member_node *n, uint32_t rank); /* "worker 1 (10.0.0.2:2222)" */
/* Why there is no connected view: "2 of 4 tasks are missing: worker 1 (10.0.0.2:2222): connect:
 * Connection refused; ...", or the task that leads or is called. */
const char *node_missing_text(struct member_node *n);
/* "worker 1 (...), step 12, in forward for 0.3 s,": in the present view, or the last one */
const char *node_progress_text(struct member_node *n, uint32_t rank, uint64_t now_ms);
const char *node_print(struct member_node *n, const char *fmt, ...) __attribute__((format(printf, 2, 3)));


/* ---- node_training.c ---- */

/* The view has ended: aborts the training of this task, if it runs. */
void node_abort_training(struct member_node *n, const char *text);
void node_pause_training(struct member_node *n);
void node_set_progress(struct member_node *n, uint32_t rank, const struct member_progress *p, uint64_t now_ms);
/* Ends the node: aborts training, releases the lease, appends END. */
void node_end(struct member_node *n, int code, const char *text);

/* ---- node_links.c ---- */

/* Opens the link out and sends JOIN, and READY unless is_attaching. */
void node_open_out(struct member_node *n, uint32_t rank, bool is_attaching, uint64_t now_ms);
/* Sends READY, if training has stopped and a link out is open. */
void node_send_ready(struct member_node *n);
void node_send_leave(struct member_node *n, int code, const char *text);
/* Redirects all members to another leader and closes their links. NO_RANK: refuses them ("try
 * again"). */
void node_redirect_links(struct member_node *n, uint32_t leader);
/* Refuses the members that wait for for_ms for a view that this task does not have. */
void node_refuse_attaching(struct member_node *n, uint64_t for_ms, uint64_t now_ms);
/* Sends REFUSE and closes the link in. */
void node_refuse(struct member_node *n, uint32_t rank, int code, const char *text);
/* Closes the link in. The task is no longer joined. */
void node_close_in(struct member_node *n, uint32_t rank);

/* ---- node_hand_over.c ---- */

/* Hands leadership over: all members, and this task, join `successor`, which leads. */
void node_hand_over_leadership(struct member_node *n, uint32_t successor, uint64_t now_ms);
/* Redirects all members to `successor`, the new leader, and closes their links. is_staying: this
 * task stays a member. */
void node_hand_over_links(struct member_node *n, uint32_t successor, bool is_staying);
/* If the storage of this leader failed: hands leadership over. Returns false if there is no task
 * that can lead instead. */
bool node_storage_hand_over(struct member_node *n, uint64_t now_ms);

/* ---- node_lease.c ---- */

/* Each of these starts a lease operation, unless one is open or the delay after a failure has not
 * expired. */
void node_read_lease(struct member_node *n);
/* Reads the lease, if the last read is MEMBER_LEASE_POLL_MS ago: nothing else can be done than wait. */
void node_poll_lease(struct member_node *n, uint64_t now_ms);
/* Takes the lease with the group of the view as its record. */
void node_take_lease(struct member_node *n, const struct group_view *v);

/* ---- node_reach.c ---- */

/* Handles a report of task `from`: its communicator lost loss->peer. */
void node_trouble(struct member_node *n, uint32_t from, const struct member_loss *loss, const char *text, uint64_t now_ms);
/* Tests the data paths of this task to `ranks`. */
void node_test_paths(struct member_node *n, uint64_t round, const uint32_t *ranks, uint32_t n_ranks);
/* The task joined and names the dead paths for which another leader evicted it. */
void node_join_quarantine(struct member_node *n, uint32_t rank, const uint32_t *dead, uint32_t n_dead, uint64_t now_ms);
/* Counts a loss of the task; a process that is lost several times in a row goes into quarantine. */
void node_count_loss(struct member_node *n, uint32_t rank, uint64_t now_ms);
/* Resets all counts: another process runs as the task. */
void node_reset_reach(struct member_node *n, uint32_t rank);
/* Called when this task starts to lead: the quarantines of tasks that named dead paths in their
 * JOIN continue, others end. */
void node_reset_quarantine(struct member_node *n, uint32_t rank, uint64_t now_ms);
/* Deletes all reports; called when a view begins or ends. */
void node_reset_trouble(struct member_node *n);
/* Returns whether the data path between two tasks of the view is known to be dead. */
bool node_is_dead_edge(const struct member_node *n, uint32_t a, uint32_t b);
/* Notes that the data paths from a task to `dead` are dead. */
void node_add_edges(struct member_node *n, uint32_t from, const uint32_t *dead, uint32_t n_dead);
struct node_ranks node_dead_paths_of(const struct member_node *n, uint32_t rank);
void node_quarantine(struct member_node *n, uint32_t rank, const char *why, uint64_t now_ms);
/* Orders the tests that decide whether the quarantine of a task can end. */
void node_test_quarantined(struct member_node *n, uint32_t rank, uint64_t now_ms);

/* ---- node_view_end.c ---- */

/* Returns true if the deadline without a step has expired. The node has then ended; if it leads,
 * the job has ended on all tasks. */
bool node_deadline_expired(struct member_node *n);
/* Ends the view: sends OVER to its members, aborts, gathers. culprit: NO_RANK if unknown. */
void node_end_view(struct member_node *n, uint32_t culprit, const char *text, uint64_t now_ms);
/* Ends the job on all tasks with exit code `code`. */
void node_end_all(struct member_node *n, int code, const char *text);
/* Starts the phase GATHERING. */
void node_start_gathering(struct member_node *n, uint64_t now_ms);

/* ---- node_quorum.c ---- */

/* Returns true if the group of all present tasks may be published. Else starts the lease operation
 * that is needed, and sets n->blocked to the reason. */
bool node_may_publish(struct member_node *n, uint64_t now_ms);
/* While a view exists: takes the lease with the view as the record, if that is not the record
 * yet. */
void node_keep_lease(struct member_node *n, uint64_t now_ms);
/* Takes the lease, by the same rules, to save a checkpoint. */
void node_request_lease(struct member_node *n, uint64_t now_ms);
/* Notes the incarnation that a call or probe found at the address of `rank`; 0: no process listens
 * there. */
void node_note_incarnation(struct member_node *n, uint32_t rank, uint64_t incarnation);

/* ---- node_view_begin.c ---- */

/* Copies the view, of which this task is a part, starts training, and opens the link to the
 * coordinator or becomes the coordinator. */
void node_adopt_view(struct member_node *n, const struct group_view *v, const char *text,
                     uint64_t now_ms);
/* Becomes the coordinator of the view that was just adopted. */
void node_coordinate(struct member_node *n, uint64_t now_ms);

/* ---- node_gather.c ---- */

/* If the phase is GATHERING: does what is possible now (save, release, publish). */
void node_gather(struct member_node *n, uint64_t now_ms);
void node_gather_tick(struct member_node *n, uint64_t now_ms);
/* Handles the status of another task, received with a probe in either direction; joins its leader
 * if the rules say so. */
void node_consider_status(struct member_node *n, uint32_t rank, const struct member_status *w, uint64_t now_ms);

/* ---- node_pause.c ---- */

/* The training of this task has stopped: reports it to the leader, or handles it as the leader. */
void node_training_stopped(struct member_node *n, uint64_t now_ms);
/* Stops the view at the next step boundary. */
void node_start_pause(struct member_node *n, const char *text, uint64_t now_ms);
/* This leader has done all steps. */
void node_own_complete(struct member_node *n);
/* In a pause: gathers, if the training of all members has stopped. */
void node_gather_if_paused(struct member_node *n, uint64_t now_ms);
/* Ends the job, if all members have done all steps. */
void node_end_if_complete(struct member_node *n);

/* ---- node_evict.c ---- */

/* Ends the view after the reports and tests are complete. */
void node_watch_trouble(struct member_node *n, uint64_t now_ms);
/* Starts and evaluates the tests of the tasks in quarantine. */
void node_watch_quarantine(struct member_node *n, uint64_t now_ms);
/* Handles the answer of task `from` for `round`: the data paths to `dead` failed. */
void node_reached(struct member_node *n, uint32_t from, uint64_t round, const uint32_t *dead, uint32_t n_dead,
                  uint64_t now_ms);

/* ---- node_storage.c ---- */

/* This task could not write the last checkpoint: another task shall try. Returns false if there is
 * no other task, or all have failed. */
bool node_another_writes(struct member_node *n, const char *text, uint64_t now_ms);

/* ---- node_admit.c ---- */

/* Compares the identity in a JOIN of `rank` with that of this task. Returns false if they differ:
 * the link was then closed, or this task ended. */
bool node_check_identity(struct member_node *n, uint32_t rank, const struct member_msg *m, uint64_t now_ms);
/* Leader `by` refused this task for now. After several refusals in a row this task waits before it
 * joins a leader again, longer each time. */
void node_refused(struct member_node *n, uint32_t by, const char *why, uint64_t now_ms);

/* ---- node_lead.c ---- */

/* No other task leads: becomes the leader and gathers. */
void node_lead(struct member_node *n, uint64_t now_ms);
void node_lead_tick(struct member_node *n, uint64_t now_ms);
/* A task of the view was lost: ends the view without the task. */
void node_lose_member(struct member_node *n, uint32_t rank, const char *why, uint64_t now_ms);

/* ---- node_follow.c ---- */

/* Seeks a leader from the first candidate on; no link out is open. */
void node_seek(struct member_node *n, uint64_t now_ms);
void node_seek_tick(struct member_node *n, uint64_t now_ms);
void node_follow_tick(struct member_node *n, uint64_t now_ms);

#endif
