/* node_sim_priv.h - what the files of the simulator share.
 *
 *   node_sim.c    processes, their actions, the outside
 *   node_time.c   chance, the queue of events, the tale
 *   node_link.c   links, probes, cuts
 *   node_train.c  training: groups that step together
 *   node_store.c  the shared storage: lease and checkpoints
 *   node_judge.c  what must be true
 *   node_story.c  random stories */
#ifndef SIM_NODE_SIM_PRIV_H
#define SIM_NODE_SIM_PRIV_H

#include "base/buf.h"
#include "base/vec.h"
#include "sim/node_sim.h"

enum { TEXT = 1024, STORY_BYTES = 1 << 22, WORDS = 16 /* of 64 ranks */ };

/* ---- messages: copies, since the node's live until its next event ---- */

struct simn_view {
    uint32_t refs;
    struct member_view view;
    struct member_seat seats[];
};
struct simn_msg {
    struct member_msg m;
    struct simn_view *view; /* NULL: none */
    char phase[32], text[];
};

/* ---- events ---- */

enum simn_kind {
    EV_START, EV_OPENED, EV_TICK,
    EV_CALL,                            /* a call reaches the host */
    EV_CALL_FAILED,                     /* and what came of it, at the caller */
    EV_IN, EV_OUT,                      /* a message at the called, at the caller */
    EV_IN_END, EV_OUT_END,              /* the other side ended the link */
    EV_PROBE, EV_ANSWER, EV_NO_ANSWER,
    EV_GROUP,                           /* a group tries to connect */
    EV_TRAIN,                           /* the next thing in the training of a task */
    EV_NEWS,                            /* of training, for the node */
    EV_LEASE_EFFECT, EV_LEASE_DONE, EV_LEASE_DUE, EV_SAVE,
};
struct simn_event {
    uint64_t at_ms, number; /* ties by number, which is also the order of sending */
    enum simn_kind kind;
    uint32_t from, to;      /* ranks; `to` is whom it is for */
    uint32_t serial;        /* of the process that it is for; 0: of any */
    uint32_t link;          /* or group */
    uint64_t a, b;
    struct simn_msg *msg;   /* owned; NULL: none */
    struct member_where where;
};

/* ---- the network ---- */

struct simn_link {
    uint32_t from, to, from_serial, to_serial;
    uint64_t last_ms[2];  /* arrival of the last thing sent: [0] to the called, [1] to the caller */
    uint64_t lost_before; /* events of a smaller number are lost */
    uint64_t give_up_ms;  /* CALLING */
    uint8_t state;
    bool open[2];         /* who still listens: [0] the called, [1] the caller */
};
enum { LINK_CALLING, LINK_UP, LINK_FAILED };

/* ---- training ---- */

struct simn_group { /* one published view */
    struct member_view view;
    struct member_seat *seats;
    uint64_t members[WORDS];
    uint32_t author, author_serial;
    uint32_t joined, given;          /* members: connecting; contributed to the step after `step` */
    uint64_t step;                   /* reduced by all */
    uint64_t stuck_ms;               /* since when it waits for the network; 0: it does not */
    bool is_connected, is_broken, will_pause;
    uint64_t first_go, last_go;      /* numbers of permits to step; 0: none */
};
enum simn_phase { REST, CONNECTING, RECEIVING, COMPUTING, GIVEN, SAVING_LAST };
struct simn_train {
    uint32_t group;  /* 0: none yet */
    uint32_t run;    /* counts the starts: old events are known by it */
    enum simn_phase phase;
    uint64_t since_ms, place;
    uint64_t steps;  /* made in this process: the watchdog learns */
    bool asked_pause, asked_abort, is_over; /* over: the news is on its way */
    bool will_apply; /* its part of the reduction is through */
    bool is_stuck, waits_for_lease;
    enum member_failure failure;
    const char *text;
};

/* ---- storage ---- */

struct simn_record {
    uint32_t holder;
    uint64_t incarnation, beats;
    bool is_released;
    uint32_t n;
    uint32_t *members;
};
struct simn_saved {
    uint64_t step, token;
    uint32_t rank;
};
enum simn_op { OP_NONE, OP_LOOK, OP_RENEW, OP_TAKE, OP_RELEASE };
struct simn_lease { /* the lease thread of a process */
    bool is_on, wants_release, is_known, is_over, has_failed, has_taken;
    enum simn_op op;             /* that is under way */
    uint64_t op_clock, op_token, op_wish; /* began; of what it is about; answers this */
    uint64_t wants_take, wants_look, answered; /* wishes; 0: none */
    uint64_t take_after, mine, lost, hold_until; /* tokens; own clock, 0: not held */
    uint32_t *members, n_members;                /* to be recorded */
    uint32_t *op_members, n_op_members;          /* of the record that is being made */
    uint64_t due;                                /* number of the event */
    uint64_t token, beats, seen_clock, unchanged_ms; /* as last seen, when, and for how long so */
    bool is_released;
    const char *text;
    uint64_t told; /* digest of what the node knows */
};


/* ---- processes ---- */

struct simn_task {
    struct member_node *node; /* NULL: no process */
    uint32_t serial;          /* of the process, unique; 0: never started */
    bool is_stopped, is_off, was_told_to_stop, was_stuck, has_other_job, is_absent;
    bool may_end_2;           /* an error for all was put in */
    uint64_t incarnation, held, calm_held;
    uint32_t calm_serial;
    int exit_code;
    char exit_text[TEXT], said[TEXT];
    uint64_t said_ms, started_ms, ended_ms;
    uint64_t clock_ms, clock_at_ms, clock_speed; /* reading, when, thousandths */
    uint32_t out, *in; /* links */
    uint32_t *probes;  /* number of the probe that is under way, by rank */
    uint32_t next_probe;
    enum simn_storage storage;
    struct simn_train train;
    struct simn_lease lease;
    struct {
        uint64_t step, number, began_ms; /* number of the event; 0: nothing is being saved */
        uint32_t run;
        bool is_asked, is_last;
    } save;
    struct member_ident ident;
};

struct simn {
    struct simn_opts opts;
    uint64_t now_ms, number, random;
    uint32_t next_serial;
    struct simn_task *tasks;
    const char **names, **addresses;
    VEC(struct simn_event) heap;
    VEC(struct simn_event) held; /* what cannot arrive now */
    VEC(struct simn_link) links; /* [0] is none */
    VEC(struct simn_group *) groups; /* [0] is none */
    uint8_t *cuts;                 /* [from * world + to]: planes; NULL: none ever */
    uint32_t n_cuts;
    VEC(struct simn_record) records; /* token t is at t - 1 */
    VEC(struct simn_saved) saved;
    uint64_t complete_step;          /* the job is complete; 0: not */
    bool everybody_stops;
    struct simn_view *sharing;       /* the last view that was sent */
    struct buf story;
    struct buf finding;
    bool is_broken;
};

/* node_time.c */
void simn_say(struct simn *s, uint32_t rank, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void simn_broken(struct simn *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
uint64_t simn_delay(struct simn *s); /* of a message */
uint64_t simn_push(struct simn *s, struct simn_event e); /* its number */
void simn_push_again(struct simn *s, struct simn_event e); /* keeps its number */
struct simn_event simn_pop(struct simn *s);
uint64_t simn_clock(const struct simn *s, uint32_t rank);
uint64_t simn_real_ms(const struct simn *s, uint32_t rank, uint64_t own_ms);
void *simn_alloc(size_t n);
void simn_msg_free(struct simn_msg *m);

/* node_sim.c */
void simn_drain(struct simn *s, uint32_t rank); /* performs the actions of its node */
void simn_exit(struct simn *s, uint32_t rank, int code, const char *text);
struct simn_msg *simn_msg_copy(struct simn *s, uint32_t rank, const struct member_msg *m);
void simn_release_held(struct simn *s); /* something changed: what can arrive, does */

/* node_link.c */
void link_call(struct simn *s, uint32_t from, uint32_t to);
void link_send(struct simn *s, uint32_t link, bool to_caller, struct simn_msg *m);
void link_end(struct simn *s, uint32_t link, bool by_caller);
void link_process_gone(struct simn *s, uint32_t rank, bool was_killed, bool is_silent);
void link_probe(struct simn *s, uint32_t from, uint32_t to);
enum simn_arrival { ARRIVES, WAITS, VANISHES, BOUNCES };
enum simn_arrival link_arrival(const struct simn *s, const struct simn_event *e);
void link_event(struct simn *s, struct simn_event *e);
void link_bounce(struct simn *s, const struct simn_event *e);
bool link_passes(const struct simn *s, uint32_t from, uint32_t to, enum simn_plane plane);

/* node_train.c */
void train_begin(struct simn *s, uint32_t rank, const struct member_view *v);
void train_pause(struct simn *s, uint32_t rank);
void train_abort_now(struct simn *s, uint32_t rank);
void sim_train_fail(struct simn *s, uint32_t rank, enum member_failure kind, const char *text);
void train_process_gone(struct simn *s, uint32_t rank, bool is_silent);
void train_event(struct simn *s, struct simn_event *e);
void sim_train_progress(struct simn *s, uint32_t rank, struct member_progress *out);
void train_last_saved(struct simn *s, uint32_t rank);
bool simn_same_view(const struct member_view *a, const struct member_view *b);
/* The group of this view, new if `rank` is the first to speak of it. */
uint32_t group_of(struct simn *s, uint32_t rank, const struct member_view *v);

/* node_store.c */
void store_wish(struct simn *s, uint32_t rank, const struct member_do_this *d);
void store_release(struct simn *s, uint32_t rank);
void store_save(struct simn *s, uint32_t rank, uint64_t step, bool is_asked, bool is_last);
void store_event(struct simn *s, struct simn_event *e);
void store_process_gone(struct simn *s, uint32_t rank);
bool store_is_held(const struct simn *s, uint32_t rank);
uint64_t store_newest(const struct simn *s, uint32_t rank); /* checkpoint that this task can read */
void store_fini(struct simn *s);

/* node_judge.c */
void judge_event(struct simn *s, uint32_t rank);
void judge_do(struct simn *s, uint32_t rank, const struct member_do_this *d);
void judge_view(struct simn *s, uint32_t rank, const struct member_view *v);
void judge_go(struct simn *s, uint32_t rank, struct simn_group *g);
void judge_apply(struct simn *s, uint32_t rank, uint64_t step);
void judge_save(struct simn *s, uint32_t rank, uint64_t step, uint64_t token);
void judge_end(struct simn *s, uint32_t rank, int code, const char *text);

#endif
