/* node_types.h - the state of a node, by topic. node_priv.h declares the functions that share it.
 *
 *   in every state      node_actions, node_clock, node_deadline, node_own, node_rows, node_leave,
 *                       node_storage_state
 *   while not leading   node_out, node_seek
 *   while leading       peer (one for each task), node_lead, node_trouble, node_straggler, node_save,
 *                       node_lease_state
 *
 * "This task" is the task of the node. Times that end in _ms or _until are absolute values of
 * now_ms, unless the comment says otherwise; 0 means not set. */
#ifndef MEMBER_NODE_TYPES_H
#define MEMBER_NODE_TYPES_H

#include "base/arena.h"
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

/* ---- what a leader knows of a task ---- */

/* Why a task has no link to this leader. */
struct peer_absence {
    bool is_dead;         /* its address refused the connection, and no message arrived since */
    bool is_silent;       /* it led this task, fell silent, and no message arrived since */
    bool is_probed;       /* a probe is open. A second is not started: a result is as old as its
                             start */
    bool is_mismatched;   /* its last JOIN had another identity */
    bool is_unproven;     /* the process at its address did not prove that it is the task */
    bool has_lost_leader; /* it left because this leader was silent */
    uint64_t asked_event; /* number of the event in which this task last called or probed it: the
                             result is newer than what was known then */
    char last_error[256]; /* the reason why it is missing; "": none */
};

/* Its reports about the generation that broke. */
struct peer_trouble {
    uint32_t suspect; /* the task that it reported lost without a dead path; NO_RANK: none */
    bool is_tested;   /* its paths were tested since this generation broke */
};

/* Losses and quarantines of the task, in a row, whichever process ran as it. */
struct peer_quarantine {
    uint64_t until;           /* time of the next tests of its paths; 0: not in quarantine. In the past
                                 while the task is absent */
    uint64_t since_ms;        /* begin of the last quarantine */
    char why[200];            /* its reason */
    uint32_t count;           /* quarantines */
    struct node_ranks dead;   /* in quarantine: its dead data paths */
    struct node_round round;  /* in quarantine: the tests of its paths */
    uint32_t n_failed_rounds; /* since its quarantine began */
    uint32_t accusations;     /* evictions of other tasks for a dead path to this one, since its
                                 own */
    uint32_t losses;          /* losses */
    uint64_t loss_ms;         /* time of the last loss, or of the end of the last quarantine */
};

struct peer_progress {
    struct member_progress last; /* as reported at at_ms; its phase is phase[] */
    uint64_t at_ms;
    char phase[NODE_PHASE_BYTES];
};

/* Its process in the last group that was connected. */
struct peer_rows {
    uint64_t incarnation; /* 0: it was not in that group */
    bool is_gone;         /* another process was seen since: the rows of that one are lost */
};

struct peer { /* the entry of this task is used, too */
    /* link in */
    bool is_joined;       /* its link in is open and its JOIN was accepted */
    bool is_attaching;    /* its link belongs to a view that another leader publishes */
    uint64_t incarnation; /* last seen; 0: never seen */
    uint64_t attach_generation;
    uint64_t joined_ms, heard_ms; /* time of its JOIN; of its last message */

    /* view */
    bool is_in_view;           /* in the last view */
    bool is_ready;             /* its training has stopped since the last view */
    bool is_complete;          /* it has done all steps of the present view */
    uint32_t storage_failures; /* of its last READY, or of the view */
    uint64_t held;
    uint32_t n_servers; /* of its last JOIN: as in struct group_member */

    bool is_leaving; /* it asked to be released */
    bool has_left;   /* it was released or has left: no task waits for it */

    struct peer_absence absence;
    struct peer_trouble trouble;
    struct peer_quarantine quarantine;
    struct peer_progress progress;
    struct peer_rows rows; /* known to every task */
};

/* ---- every task ---- */

/* The actions of the present event. */
struct node_actions {
    struct arena memory;        /* valid until the next event */
    struct member_action *list; /* owned [room] */
    uint32_t n, next, room;
};

struct node_clock {
    uint64_t events; /* number of events so far */
    uint64_t ticked_ms, heartbeat_ms; /* last TICK; last heartbeat */
    uint64_t logged_ms;               /* last line about missing tasks */
    uint64_t refusal_logged_ms;       /* last line about the rejection of a process */
    uint64_t gap_ms, gap_until;       /* duration in which this process did not run; a loss that is
                                         noticed before gap_until is attributed to that gap */
};

/* The deadline without a step. */
struct node_deadline {
    uint64_t no_step_ms; /* duration outside a connected view since the last step, or since the
                            eviction of a task that delayed the others */
    uint64_t step;       /* newest step held at the last reset of no_step_ms by a step */
    bool has_blamed;     /* such an eviction reset no_step_ms; the next reset needs a step */
    uint64_t over_ms;    /* duration since the deadline expired, in which the state is saved */
};

/* The training of this task. */
struct node_own {
    enum node_training training;
    bool is_connected; /* the communicator of the view is connected */
    uint64_t held;     /* newest step whose state is complete */
    uint64_t abort_ms; /* time of the last ABORT */
    struct member_progress progress;
};

/* This task was asked to leave. */
struct node_leave {
    bool is_requested;
    bool ends_job; /* all tasks leave */
    uint64_t since_ms;
};

/* The storage, as this task sees it. */
struct node_storage_state {
    bool has_failed;                /* another task shall lead */
    uint64_t since_ms, reported_ms; /* first and last report of the present failure */
    uint64_t unsaved_ms;            /* first failure to write the last checkpoint; 0: none */
    char error[1024];               /* the reason */
    char lease_error[256];
};

/* ---- not leading ---- */

/* The link to a leader. */
struct node_out {
    uint32_t rank;                /* rank of the called task; NO_RANK: no link */
    bool is_accepted;             /* the called task accepted the JOIN */
    uint64_t called_ms, heard_ms; /* time of the call; of the last message */
    uint64_t moved_ms;            /* time of the call, or of its last progress */
    bool has_moved;               /* the call has made progress */
};

/* Which task is called next. */
struct node_seek {
    uint64_t retry_ms;      /* SEEKING without a link: time of the next call; 0: at once */
    uint32_t candidate;     /* index of the next task to call */
    uint32_t hops, tries;   /* REDIRECTs in a row; calls without an answer in a row */
    uint32_t slow;          /* calls that were given up after progress, since an answer */
    uint32_t refusals;      /* REFUSEs without an exit code since a leader accepted this task */
    uint64_t refused_until; /* this task joins no leader before this time */
    uint32_t
        successor; /* after a hand-over of leadership, the leader to call next; NO_RANK: none */
    struct node_ranks dead_paths; /* for which this task was evicted: sent with JOIN; reset by a
                                     view */
};

/* ---- leading ---- */

struct node_lead {
    enum node_phase phase;
    uint64_t began_ms;                   /* begin of the phase */
    uint64_t settle_until, rejoin_until; /* GATHERING waits for known tasks; for lost tasks */
    uint64_t probe_ms;                   /* time of the next round of probes */
    uint32_t probe_at;                   /* rank at which the next round begins */
    uint64_t rows_ms;                    /* begin of the wait for rows (node_rows.c); 0: none */
    const char *blocked; /* why no view may be published although enough tasks are present; static
                            or NULL */
};

/* Broken data links of the view. */
struct node_trouble {
    uint64_t since_ms; /* time of the first report; 0: none */
    uint32_t rank;     /* the lost task, by the first report, or the first with a dead path */
    struct {
        uint32_t a, b;
    } edges[NODE_EDGES]; /* dead data paths of the view that broke */
    uint32_t n_edges;
    struct node_round round; /* the tests that find the end that is cut off */
    char text[NODE_TEXT];
};

/* The task that delays the others. */
struct node_straggler {
    uint32_t rank;            /* NO_RANK: none */
    uint64_t place, since_ms; /* its position, and since when it is there */
};

/* The save before tasks leave, and before the job ends because the deadline expired. */
struct node_save {
    bool is_open, is_done;
    uint64_t began_ms, ended_ms; /* began_ms 0: not begun */
    uint64_t again_ms;           /* next try; 0: at once */
    uint32_t failures;           /* in a row */
    char error[NODE_TEXT];       /* the reason of the last failure; "": none */
};

/* The group of a holder from which the lease was taken before its expiry, because a majority of
 * that group was present. */
struct node_prior {
    uint32_t *ranks; /* owned [world] */
    uint32_t n, holder;
    bool is_taking;    /* the LEASE action that is open takes the lease from such a holder */
    uint64_t until_ms; /* until this time that holder may believe that it holds the lease */
};

struct node_lease_state {
    struct member_lease record; /* last report; text: "" */
    uint32_t *members;          /* owned [world]; the members of `record` */
    uint64_t given_up;          /* no view is published with a number up to this one: this task held
                                   or requested it before it joined another leader. UINT64_MAX: until
                                   the open LEASE action is complete */
    uint64_t request;           /* number of the last LEASE action */
    bool is_pending;            /* a LEASE action is open */
    bool is_holder_gone;        /* a call or probe that began after since_event showed it */
    uint64_t since_event;       /* number of the event that reported the present token first */
    uint64_t polled_ms;         /* time of the last read that had no other purpose than to wait */
    uint64_t again_ms;          /* time before which no lease operation is started */
    uint32_t failures;          /* answers in a row that reported an error of the storage */
    struct node_prior prior;
};

/* ---- every task ---- */

/* The last group that was connected: its parameter servers have the rows of the newest step. */
struct node_rows {
    bool is_known;   /* there was such a group */
    bool has_waited; /* this leader has waited for the rows of that group */
};

/* ---- the node ---- */

struct member_node {
    struct arena memory;          /* of everything that is constant after member_node_new() */
    struct member_node_opts opts; /* constant; its pointers are in `memory` */
    struct node_actions actions;
    struct node_clock clock;

    enum member_node_state state;
    uint64_t highest_generation;       /* highest generation known */
    struct group_view view;            /* the last view */
    struct group_member *view_members; /* owned [world]; the members of `view` */
    bool is_alive;                     /* the view has not ended */
    uint64_t adopted_ms;               /* time at which the view was adopted */
    char cause[NODE_TEXT];             /* first cause of the last change of the group */

    struct node_deadline deadline;
    struct node_own own;
    struct node_rows rows;
    struct node_leave leave;
    struct node_storage_state storage;
    struct node_out out;
    struct node_seek seek;

    struct peer *peers; /* owned [world], with the entry of this task */
    struct node_lead lead;
    struct node_trouble trouble;
    uint64_t n_rounds; /* tests of data paths ordered so far */
    struct node_straggler straggler;
    struct node_save save;
    struct node_lease_state lease;
};

#endif
