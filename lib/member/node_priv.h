/* node_priv.h - what the files of the node share.
 *
 *   node.c         life, actions, ticks, the own training
 *   node_follow.c  seeking and following a leader
 *   node_lead.c    leading: who joined, who is lost, pause and over, watching
 *   node_gather.c  leading without a view: leavers, and when the next view is published
 *   node_quorum.c  whether it may be: majority, lease
 *   node_reach.c   tasks that the data path does not reach: eviction, quarantine, tests of paths
 *   node_admit.c   which process may join as a task
 *   node_storage.c a leader that cannot write: another task leads
 *   node_text.c    sentences */
#ifndef MEMBER_NODE_PRIV_H
#define MEMBER_NODE_PRIV_H

#include "base/arena.h"
#include "member/member_priv.h"
#include "member/node.h"

enum { NODE_TEXT = 1024, NODE_HOPS = 8, NODE_PHASE_BYTES = 32, NODE_EDGES = 64 };

/* The own training. */
enum node_rest {
    NODE_OPENING,  /* model and data are not open yet */
    NODE_AT_REST,  /* state whole, nothing runs */
    NODE_RUNNING,  /* since TRAIN */
    NODE_PAUSING,  /* PAUSE was asked */
    NODE_ABORTING, /* ABORT was asked */
};

/* What a leader does. */
enum node_phase {
    NODE_GATHERING, /* no view is alive */
    NODE_LIVE,      /* a view is */
    NODE_PAUSE,     /* it is, and will stop at the next boundary */
};

/* Tests of data paths that the leader ordered and that are not all answered. */
struct node_round {
    uint64_t id;       /* as in REACH; 0: none is open */
    uint32_t n_open;   /* tasks that have not answered */
    uint64_t until_ms; /* then an answer that is missing counts as a dead path */
    bool has_failed;   /* a path is dead */
};

/* Ranks, without duplicates. */
struct node_ranks {
    uint32_t n, at[MEMBER_REACH_MAX];
};

/* Another task, or this one, as the leader sees it. */
struct peer {
    bool is_joined;   /* its link in is up, its JOIN accepted */
    bool is_seated;   /* in the last view */
    bool is_ready;    /* at rest since the last view */
    bool is_complete; /* all steps of the present view done */
    bool is_leaving;  /* asked to be released */
    bool has_left;    /* said goodbye: nobody waits for it */
    bool is_dead;     /* its address refused, and nothing was heard since */
    bool is_silent;   /* it led us, fell silent, and nothing was heard since */
    bool is_probed;   /* a question is out: not two, since what is found is as old as its question */
    bool is_attaching;
    bool is_mismatched; /* its last JOIN had another identity */
    bool has_missed_us; /* it left because this leader was silent */
    uint32_t storage_failures; /* as its last READY, or the view, said */
    uint64_t asked;   /* event of our last call or probe: its outcome is newer than what was known then */
    uint64_t incarnation; /* last seen; 0: never */
    uint64_t attach_generation;
    uint64_t held;
    uint64_t joined_ms, heard_ms;
    /* reachability, of a leader */
    uint32_t suspect;         /* the task that it reported lost, without a dead path of its own; NOBODY: none */
    bool is_tested;           /* tests of its paths were ordered since this generation broke */
    struct node_ranks dead;   /* in quarantine: its dead data paths */
    struct node_round round;  /* in quarantine: the tests of its paths */
    uint32_t n_failed_rounds; /* since its quarantine began */
    uint32_t strikes;         /* quarantines in a row, of this process */
    uint32_t accused;         /* evictions of others for a dead path to this task, since it was evicted itself */
    uint32_t losses;          /* in a row, of this process */
    uint64_t strike_ms, loss_ms; /* of the last one */
    uint64_t quarantine_until; /* its paths are tested next at this time; 0: in no quarantine */
    struct member_progress progress; /* as it said at progress_ms; phase points to phase[] */
    uint64_t progress_ms;
    char phase[NODE_PHASE_BYTES];
    char last_error[256];
};

struct member_node {
    /* settled at new */
    struct arena memory;
    uint32_t world, self, n_devices, min_world;
    uint64_t incarnation, rejoin_ms, deadline_ms, grace_ms, silent_ms;
    bool has_lease;
    const char **names, **addresses;
    struct member_ident ident;

    /* actions of this event */
    struct arena event;
    struct member_action *actions;
    uint32_t n_actions, next_action, room;

    enum member_node_state state;
    uint64_t known; /* highest generation heard of */
    uint64_t events; /* so far */
    uint64_t ticked_ms, beat_ms, said_ms;
    uint64_t gap_ms, gap_until; /* this process did not run for so long; what it misses until then is of that time */
    uint64_t outside_ms; /* spent outside a connected view since the last step, or who held one up was sent away */
    bool has_blamed;     /* that was done; not again before the next step */
    char cause[NODE_TEXT];

    /* the own training and its view */
    enum node_rest rest;
    struct member_view view; /* the last one; seats owned */
    struct member_seat *seats;
    bool is_alive;     /* not over yet */
    bool is_connected; /* here */
    uint64_t adopted_ms;
    uint64_t abort_ms; /* the last ABORT */
    uint64_t held, stepped; /* newest whole state; newest seen when outside_ms was last set back */
    struct member_progress progress;

    /* link out */
    uint32_t out;        /* rank called; NOBODY: no link */
    bool is_taken_in;    /* it answered */
    uint64_t out_ms, out_heard_ms;
    uint64_t retry_ms;   /* SEEKING without a link: when to call again; 0: now */
    uint32_t candidate;  /* the next one to call */
    uint32_t hops, tries;
    uint32_t rejections; /* REFUSEs without an end since a leader took this task in */
    uint64_t rejected_until;   /* no leader is joined before then */
    uint64_t rejected_said_ms; /* when the rejection of another process was last logged */
    uint32_t heir;       /* the leader to call next, after this task has handed leadership over; NOBODY: none */

    /* leaving */
    bool is_stopping, stops_all;
    uint64_t stop_ms;

    /* leading */
    struct peer *peers; /* [world]; the own one too */
    enum node_phase phase;
    uint64_t gather_ms;  /* since when there is no view; of LIVE and PAUSE: since when that is so */
    uint64_t settle_until, rejoin_until;
    uint64_t trouble_ms; /* a data link is broken since; 0: none */
    uint32_t trouble_rank; /* as the first report, or the first that found the path dead, says */
    char trouble[NODE_TEXT];
    struct { uint32_t a, b; } edges[NODE_EDGES]; /* dead data paths of the view that broke */
    uint32_t n_edges;
    struct node_round trouble_round; /* the tests that tell which end of them is cut off */
    uint64_t rounds;                 /* ordered so far */
    struct node_ranks own_dead;      /* this task was evicted for these dead paths; it is in no view since */
    uint32_t behind;     /* who holds the others up, at which place, seen so since when */
    uint64_t behind_place, behind_ms;
    uint64_t probe_ms;
    uint32_t probe_at;
    bool is_saving, is_saved;
    uint64_t saved_ms, save_began_ms, save_again_ms; /* the latter two 0: not yet, at once */
    uint32_t save_failures; /* in a row */
    char save_error[NODE_TEXT]; /* ""; why what is held could not be saved, until now or for good */

    /* lease */
    struct member_lease lease; /* members owned; text: "" */
    uint32_t *lease_members;
    uint64_t wish;       /* last LEASE action */
    uint32_t *prior;     /* group of the holder that we did not wait for, since a majority of it was here */
    uint32_t n_prior, prior_holder;
    bool is_forcing;     /* the number that is being taken is taken from such a holder */
    uint64_t prior_until; /* it may believe that it holds the lease until then */
    uint64_t looked_ms;  /* when it was last looked at for want of anything better */
    uint64_t lease_since; /* event in which the present number was first told */
    bool is_holder_gone; /* shown by a question that was put after that */
    bool is_wishing;     /* it is not answered */
    uint32_t lease_failures; /* answers in a row that reported trouble with the storage */
    uint64_t lease_again_ms; /* no operation before that */

    /* the own storage */
    bool storage_failed;       /* another task is to lead */
    uint64_t storage_ms, storage_said_ms; /* the present trouble was first and last reported then */
    uint64_t unsaved_ms;       /* the last checkpoint could not be written first then; 0: not yet */
    char storage_error[256];   /* the reason */
    char lease_error[256];
    const char *blocked; /* why no view may be published though enough are here; static or NULL */
};

/* ---- events ---- */

/* Handles one kind of event; node_begin() has returned true. */
typedef void node_event_fn(struct member_node *n, const struct member_event *e, uint64_t now_ms);
node_event_fn node_out_closed, node_heard_out;      /* node_follow.c */
node_event_fn node_here, node_not_here, node_saved; /* node_gather.c */
node_event_fn node_heard_in, node_in_closed;        /* node_lead.c */
node_event_fn node_lease;                           /* node_quorum.c */
node_event_fn node_storage;                         /* node_storage.c */

/* ---- node.c ---- */

/* Every event starts with it: what the one before asked for was done. false: ended. */
bool node_begin(struct member_node *n);
struct member_action *node_do(struct member_node *n, enum member_action_kind what); /* appends */
void node_say(struct member_node *n, bool is_trouble, const char *text);
void node_tell(struct member_node *n, const struct member_msg *m);                /* link out */
void node_send(struct member_node *n, uint32_t rank, const struct member_msg *m); /* link in */
/* A copy that is valid until the next event; NULL if there are none. */
const uint32_t *node_keep_ranks(struct member_node *n, const uint32_t *ranks, uint32_t n_ranks);
void node_set_cause(struct member_node *n, const char *text);
/* This task takes part in the view: it is copied, training begins. */
void node_adopt(struct member_node *n, const struct member_view *v, const char *text, uint64_t now_ms);
void node_abort(struct member_node *n, const char *text); /* the view is over for our training */
void node_pause(struct member_node *n);
void node_keep_progress(struct member_node *n, uint32_t rank, const struct member_progress *p, uint64_t now_ms);
void node_finish(struct member_node *n, int code, const char *text);
void node_rest(struct member_node *n, uint64_t now_ms); /* the own training came to rest */
uint64_t node_pause_ms(uint32_t failures); /* before the next try, after so many failures in a row */
bool node_time_is_up(struct member_node *n); /* too long without a step: then it has ended, a leader's job with it */
const struct member_seat *node_seat(const struct member_view *v, uint32_t rank); /* NULL: not in it */

/* ---- node_follow.c ---- */

void node_seek(struct member_node *n, uint64_t now_ms); /* from the first candidate; no link is up */
/* This task leads no longer: all members, and this task itself, go to `heir`, which leads. */
void node_hand_over(struct member_node *n, uint32_t heir, uint64_t now_ms);
void node_call(struct member_node *n, uint32_t rank, bool is_attaching, uint64_t now_ms);
void node_seek_tick(struct member_node *n, uint64_t now_ms);
void node_follow_tick(struct member_node *n, uint64_t now_ms);
void node_tell_ready(struct member_node *n);
void node_tell_leave(struct member_node *n, int code, const char *text);

/* ---- node_lead.c ---- */

void node_lead(struct member_node *n, uint64_t now_ms);   /* nobody else: gather */
void node_coordinate(struct member_node *n, uint64_t now_ms); /* the view just adopted is ours to watch */
void node_lead_tick(struct member_node *n, uint64_t now_ms);
void node_over(struct member_node *n, uint32_t culprit, const char *text, uint64_t now_ms);
void node_lose(struct member_node *n, uint32_t rank, const char *why, uint64_t now_ms);
void node_start_pause(struct member_node *n, const char *text, uint64_t now_ms);
void node_end_all(struct member_node *n, int code, const char *text);
void node_own_rest(struct member_node *n, uint64_t now_ms); /* our training came to rest */
void node_own_complete(struct member_node *n);
void node_turn_away(struct member_node *n, uint32_t leader); /* all links in, to another leader */
void node_drop_attaching(struct member_node *n, uint64_t for_ms, uint64_t now_ms);
/* All links in: `heir` leads, and this leader leaves or stays a member. */
void node_bequeath(struct member_node *n, uint32_t heir, bool is_staying);
void node_drop(struct member_node *n, uint32_t rank, int code, const char *text); /* REFUSE and close */

/* ---- node_admit.c ---- */

/* Compares the identity in a JOIN of `rank`, whose link is open. false: the link was closed, or this task ended. */
bool node_agrees(struct member_node *n, uint32_t rank, const struct member_msg *m, uint64_t now_ms);
/* A leader refused this task for now: after a few times in a row this task pauses, longer each time. */
void node_rejected(struct member_node *n, uint32_t by, const char *why, uint64_t now_ms);

/* ---- node_gather.c ---- */

void node_gather(struct member_node *n, uint64_t now_ms); /* does what is due, if GATHERING */
void node_gather_tick(struct member_node *n, uint64_t now_ms);
/* Where another task stands, found by our probe or by its own. */
void node_judge(struct member_node *n, uint32_t rank, const struct member_where *w, uint64_t now_ms);

/* ---- node_quorum.c ---- */

/* May the group of all that are present and ready be published? If not yet, asks for what is
 * missing; n->blocked says why. */
bool node_may_publish(struct member_node *n, uint64_t now_ms);
bool node_is_present(const struct member_node *n, uint32_t rank);
uint32_t node_n_present(const struct member_node *n);
/* All of them, as a view without a generation; for this event. */
const struct member_view *node_present(struct member_node *n);
/* It was in the last view, and its training is still coming to rest. */
bool node_is_stopping(const struct member_node *n, uint32_t rank);
bool node_somebody_leaves(const struct member_node *n);
void node_keep_lease(struct member_node *n, uint64_t now_ms); /* of a view that is alive */
void node_lease_look(struct member_node *n);
void node_want_lease(struct member_node *n, uint64_t now_ms); /* to save what is held, by the same rules */
/* What a call or probe of ours found at the address of `rank`; incarnation 0: nobody listens. */
void node_found(struct member_node *n, uint32_t rank, uint64_t incarnation);
bool node_is_whole(const struct member_view *v, uint32_t world);

/* ---- node_reach.c ---- */

void node_forget_trouble(struct member_node *n); /* a new view, or none */
/* The communicator of task `from` lost loss->peer. */
void node_trouble(struct member_node *n, uint32_t from, const struct member_loss *loss, const char *text, uint64_t now_ms);
void node_watch_trouble(struct member_node *n, uint64_t now_ms);
void node_watch_quarantine(struct member_node *n, uint64_t now_ms);
/* Task `from` has tested its data paths for `round`: those to `dead` failed. */
void node_reached(struct member_node *n, uint32_t from, uint64_t round, const uint32_t *dead, uint32_t n_dead,
                  uint64_t now_ms);
/* This task tests its data paths to `ranks`. */
void node_test_paths(struct member_node *n, uint64_t round, const uint32_t *ranks, uint32_t n_ranks);
/* The task joined and names the dead paths for which another leader evicted it. */
void node_join_quarantine(struct member_node *n, uint32_t rank, const uint32_t *dead, uint32_t n_dead, uint64_t now_ms);
/* The task was lost; a process that is lost several times in a row goes into quarantine. */
void node_count_loss(struct member_node *n, uint32_t rank, uint64_t now_ms);
void node_reset_reach(struct member_node *n, uint32_t rank); /* another process of the task */
/* This task starts to lead: the quarantines of tasks that named dead paths when they joined continue, others end. */
void node_reset_quarantine(struct member_node *n, uint32_t rank, uint64_t now_ms);

/* ---- node_storage.c ---- */

/* If the storage of this leader failed: the task that shall lead instead leads. false: there is none. */
bool node_storage_hand_over(struct member_node *n, uint64_t now_ms);
/* The last checkpoint could not be written here. false: no other task can try, or all have tried in vain. */
bool node_another_writes(struct member_node *n, const char *text, uint64_t now_ms);

/* ---- node_text.c ---- */

const char *node_name(struct member_node *n, uint32_t rank); /* "worker 1 (10.0.0.2:2222)" */
/* What there is no connected view for: "2 of 4 tasks are missing: worker 1 (10.0.0.2:2222): connect: Connection
 * refused; ...", or who leads, or is called. */
const char *node_missing(struct member_node *n);
/* "worker 1 (...), step 12, in forward for 0.3 s,": of the present view, or the last one */
const char *node_doing(struct member_node *n, uint32_t rank, uint64_t now_ms);
const char *node_print(struct member_node *n, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
