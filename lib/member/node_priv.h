/* node_priv.h - declarations that the files of the node share.
 *
 *   node_action.c      begins an event; appends actions and copies what they point to
 *   node_state.c       questions about the tasks and the view
 *   node_text.c        texts for the log, and queries
 *   node_training.c    the training of this task: pause, abort, progress; the end of the node
 *   node_lease.c       starts lease operations; whether this task holds the lease
 *   node_links.c       the links to the leader and to the members
 *   node_hand_over.c   hands leadership over to another task
 *   node_reach.c       dead data paths: reports, tests, quarantine
 *   node_view_end.c    the end of a view, and of the job
 *   node_rows.c        whether a group of absent tasks shall train instead of the present ones
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
 * node_types.h has the state that they share. */
#ifndef MEMBER_NODE_PRIV_H
#define MEMBER_NODE_PRIV_H

#include "member/member_priv.h"
#include "member/node.h"
#include "member/node_types.h"

/* ---- events ---- */

/* Handles one kind of event; node_begin_event() has returned true. */
typedef void node_event_fn(struct member_node *n, const struct member_event *e, uint64_t now_ms);
node_event_fn node_out_progress, node_out_closed, node_received_out; /* node_follow.c */
node_event_fn node_probe_answered, node_probe_failed, node_saved;    /* node_gather.c */
node_event_fn node_received_in, node_in_closed;                      /* node_lead.c */
node_event_fn node_lease, node_storage;                              /* node_storage.c */

/* ---- node_action.c ---- */

/* Called at the begin of every event: frees the actions of the previous event, which must all have
 * been performed. Returns false if the node has ended. */
bool node_begin_event(struct member_node *n);
/* Appends an action. Valid until the next call. */
struct member_action *node_add_action(struct member_node *n, enum member_action_kind kind);
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
/* The training tasks of the cluster, which have the lowest ranks, and those that are present. */
uint32_t node_n_trainers(const struct member_node *n);
uint32_t node_n_present_trainers(const struct member_node *n);
/* Returns true if the task is a parameter server. */
bool node_is_ps(const struct member_node *n, uint32_t rank);
/* Returns true if a group of this many training tasks and parameter servers may train. */
bool node_is_large_enough(const struct member_node *n, uint32_t n_trainers, uint32_t n_ps);
/* Returns the present tasks as a view with generation 0; valid until the next event. */
const struct group_view *node_present_view(struct member_node *n);
/* Returns true if the task was in the last view and its training has not stopped yet. */
bool node_is_stopping(const struct member_node *n, uint32_t rank);
bool node_has_leaving_task(const struct member_node *n);
/* Returns true if the view has every training task: then no other group can train. */
bool node_has_all_trainers(const struct member_node *n, const struct group_view *v);
/* Returns whether another task may know of this generation: it is at most MEMBER_GENERATIONS_AHEAD
 * higher than the highest that this task knows. An invented number would otherwise end the numbers. */
bool node_is_credible(const struct member_node *n, uint64_t generation);

/* ---- node_text.c; the texts are valid until the next event ---- */

const char *node_name(struct member_node *n, uint32_t rank); /* "worker 1 (10.0.0.2:2222)" */
/* Why there is no connected view: "2 of 4 tasks are missing: worker 1 (10.0.0.2:2222): connect:
 * Connection refused; ...", or the task that leads or is called. */
const char *node_missing_text(struct member_node *n);
/* "worker 1 (...), step 12, in forward for 0.3 s,": in the present view, or the last one */
const char *node_progress_text(struct member_node *n, uint32_t rank, uint64_t now_ms);
/* "it names generation 77; expected at most ...": node_is_credible() is false */
const char *node_credible_text(struct member_node *n, uint64_t generation);
const char *node_print(struct member_node *n, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* ---- node_training.c ---- */

/* The view has ended: aborts the training of this task, if it runs. */
void node_abort_training(struct member_node *n, const char *text);
void node_pause_training(struct member_node *n);
void node_set_progress(struct member_node *n, uint32_t rank, const struct member_progress *p,
                       uint64_t now_ms);
/* Ends the node: aborts training, releases the lease, appends END. */
void node_end(struct member_node *n, int code, const char *text);

/* ---- node_links.c ---- */

/* Gives the lease up, opens the link out and sends JOIN, and READY unless is_attaching. */
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
/* The process at the address of the task did not prove that it is the task: stores the reason why the
 * task is absent, and logs a new one. */
void node_note_unproven(struct member_node *n, uint32_t rank, const char *text);
/* Closes the link in. The task is no longer joined. */
void node_close_in(struct member_node *n, uint32_t rank);

/* ---- node_hand_over.c ---- */

/* Hands leadership over: all members, and this task, join `successor`, which leads. */
void node_hand_over_leadership(struct member_node *n, uint32_t successor, uint64_t now_ms);
/* Redirects all members to `successor`, the new leader, and closes their links. is_staying: this
 * task stays a member. */
void node_hand_over_links(struct member_node *n, uint32_t successor, bool is_staying);
/* This task cannot write the results of the job: see MEMBER_EV_OPENED. */
void node_storage_refuse(struct member_node *n, const char *text);
/* Returns true if no training task that is present can write, and none holds a step. */
bool node_storage_is_refused(const struct member_node *n);
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
/* Called before this task joins another leader: a number that this task holds or requested until now
 * does not allow it to publish any more. */
void node_give_up_lease(struct member_node *n);
/* Returns true if this task holds the newest known number, and did not give that number up. */
bool node_holds_lease(const struct member_node *n);

/* ---- node_reach.c ---- */

/* Handles a report of task `from`: its communicator lost loss->peer. */
void node_trouble(struct member_node *n, uint32_t from, const struct member_loss *loss,
                  const char *text, uint64_t now_ms);
/* Tests the data paths of this task to `ranks`. */
void node_test_paths(struct member_node *n, uint64_t round, const uint32_t *ranks,
                     uint32_t n_ranks);
/* The task joined and names the dead paths for which another leader evicted it. is_new: its process
 * is not the one that was last seen. */
void node_join_quarantine(struct member_node *n, uint32_t rank, bool is_new, const uint32_t *dead,
                          uint32_t n_dead, uint64_t now_ms);
/* Counts a loss of the task; a task that is lost several times in a row goes into quarantine. */
void node_count_loss(struct member_node *n, uint32_t rank, uint64_t now_ms);
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

/* Ends the view: sends OVER to its members, aborts, gathers. culprit: NO_RANK if unknown. */
void node_end_view(struct member_node *n, uint32_t culprit, const char *text, uint64_t now_ms);
/* Ends the job on all tasks with exit code `code`. */
void node_end_all(struct member_node *n, int code, const char *text);
/* Starts the phase GATHERING. */
void node_start_gathering(struct member_node *n, uint64_t now_ms);

/* ---- node_quorum.c ---- */

/* Returns true if the group of all present tasks may be published. Else starts the lease operation
 * that is needed, and sets n->lead.blocked to the reason. */
bool node_may_publish(struct member_node *n, uint64_t now_ms);
/* While a view exists: takes the lease with the view as the record, if that is not the record
 * yet. */
void node_keep_lease(struct member_node *n, uint64_t now_ms);
/* Takes the lease, by the same rules, to save a checkpoint. */
void node_request_lease(struct member_node *n, uint64_t now_ms);
/* Notes the incarnation that a call or probe found at the address of `rank`; 0: no process listens
 * there. */
void node_note_incarnation(struct member_node *n, uint32_t rank, uint64_t incarnation);

/* ---- node_rows.c ---- */

/* The present view is connected: its tasks have the rows and the newest state from now on. */
void node_note_group(struct member_node *n);
/* A process that runs as the task was seen. */
void node_note_process(struct member_node *n, uint32_t rank, uint64_t incarnation);
/* The present tasks are too few for a view: releases the lease if the absent ones may be enough. */
void node_leave_lease(struct member_node *n);
/* Returns true while this leader, which may publish a view of the present tasks, leaves the lease to a
 * group of absent tasks that may have rows which the present tasks lack. Releases the lease. */
bool node_waits_for_rows(struct member_node *n, uint64_t now_ms);

/* ---- node_view_begin.c ---- */

/* Copies the view, of which this task is a part, starts training, and opens the link to the
 * coordinator or becomes the coordinator. */
void node_adopt_view(struct member_node *n, const struct group_view *v, const char *text,
                     uint64_t now_ms);
/* Becomes the coordinator of the view that was just adopted. */
void node_coordinate(struct member_node *n, uint64_t now_ms);

/* ---- node_gather.c ---- */

/* Returns true if the deadline without a step has expired. A leader that holds a state saves it, and then
 * ends the job on all tasks with 138; any other task ends at once. Called again until the node has ended. */
bool node_deadline_expired(struct member_node *n, uint64_t now_ms);
/* If the phase is GATHERING: does what is possible now (save, release, publish). */
void node_gather(struct member_node *n, uint64_t now_ms);
void node_gather_tick(struct member_node *n, uint64_t now_ms);
/* Handles the status of another task, received with a probe in either direction; joins its leader
 * if the rules say so. */
void node_consider_status(struct member_node *n, uint32_t rank, const struct member_status *w,
                          uint64_t now_ms);

/* ---- node_pause.c ---- */

/* The training of this task has stopped: reports it to the leader, or handles it as the leader. */
void node_training_stopped(struct member_node *n, uint64_t now_ms);
/* Stops the view at the next step boundary. */
void node_start_pause(struct member_node *n, const char *text, uint64_t now_ms);
/* This leader has done all steps. */
void node_training_complete(struct member_node *n);
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
void node_reached(struct member_node *n, uint32_t from, uint64_t round, const uint32_t *dead,
                  uint32_t n_dead, uint64_t now_ms);

/* ---- node_storage.c ---- */

/* This task could not write the last checkpoint: another task shall try. Returns false if there is
 * no other task, or all have failed. */
bool node_hand_over_save(struct member_node *n, const char *text, uint64_t now_ms);

/* ---- node_admit.c ---- */

/* Compares the identity in a JOIN of `rank` with that of this task. Returns false if they differ:
 * the link was then closed, or this task ended. */
bool node_check_identity(struct member_node *n, uint32_t rank, const struct member_msg *m,
                         uint64_t now_ms);
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
