/* sim_priv.h - declarations that the files of the simulator share.
 *
 *   sim.c        processes, the actions of their nodes, the faults
 *   sim_time.c   random numbers, the queue of events, the log
 *   sim_link.c   links, probes, blocked paths
 *   sim_train.c  training: groups that step together
 *   sim_store.c  the shared storage: lease and checkpoints
 *   sim_judge.c  the invariants
 *   sim_scenario.c  random scenarios
 *   sim_storage.c  random scenarios in which the storage fails
 *   sim_division.c  random divisions of a cluster with parameter servers */
#ifndef SIM_SIM_PRIV_H
#define SIM_SIM_PRIV_H

#include "base/buf.h"
#include "base/vec.h"
#include "sim/sim.h"

enum { TEXT = 1024, LOG_BYTES = 1 << 22, WORDS = 16 /* a mask of 1024 ranks: words of 64 */ };

/* ---- messages: copies, because those of the node are valid until its next event ---- */

struct sim_view {
    uint32_t refs;
    struct group_view view;
    struct group_member members[];
};
struct sim_msg {
    struct member_msg m;
    struct sim_view *view; /* NULL: no view */
    uint32_t ranks[MEMBER_REACH_MAX];
    char phase[32], text[];
};

/* ---- events ---- */

enum sim_kind {
    EV_START,
    EV_OPENED,
    EV_TICK,
    EV_CALL,        /* a call arrives at the host */
    EV_CALL_FAILED, /* the call failed; at the caller */
    EV_CALL_MOVES,  /* the call is connected, or its handshake continued; at the caller */
    EV_IN,
    EV_OUT, /* a message arrives at the called task (IN), at the caller (OUT) */
    EV_IN_END,
    EV_OUT_END, /* the other side closed the link */
    EV_PROBE,
    EV_ANSWER,
    EV_NO_ANSWER,
    EV_GROUP, /* a group tries to connect */
    EV_TRAIN, /* the next event in the training of a task */
    EV_NEWS,  /* a result of training, reported to the node */
    EV_LEASE_EFFECT,
    EV_LEASE_DONE,
    EV_LEASE_DUE,
    EV_SAVE,
    EV_REACHED, /* the tests of data paths by a task are done */
};
struct sim_event {
    uint64_t at_ms, number; /* equal times are ordered by number, which is the order of sending */
    enum sim_kind kind;
    uint32_t from, to; /* ranks; `to` receives the event */
    uint32_t serial;   /* of the receiving process; 0: any */
    uint32_t link;     /* index of a link or group */
    uint64_t a, b;
    struct sim_msg *msg; /* owned; NULL: none */
    struct member_loss tested; /* REACHED: the dead paths */
    struct member_status where;
};

/* ---- the network ---- */

struct sim_link {
    uint32_t from, to, from_serial, to_serial;
    uint64_t last_ms[2];  /* arrival of the last message: [0] to the called task, [1] to the
                             caller */
    uint64_t lost_before; /* events with a smaller number are lost */
    uint64_t give_up_ms;  /* CALLING: end of the timeout */
    uint8_t state, n_parts; /* n_parts: parts of the handshake that are done */
    bool open[2]; /* the side still receives: [0] the called task, [1] the caller */
};
enum { LINK_CALLING, LINK_UP, LINK_FAILED };

/* ---- training ---- */

struct sim_group { /* one published view */
    struct group_view view;
    struct group_member *members; /* owned; the members of `view` */
    uint64_t ranks[WORDS];        /* mask of the ranks of the training tasks */
    uint32_t author, author_serial;
    uint32_t joined, given; /* members that connect; training tasks that contributed to the step
                               after `step` */
    uint64_t step;          /* newest step that all members reduced */
    uint64_t stuck_ms;      /* begin of the wait for the network; 0: it does not wait */
    bool is_connected, is_broken, will_pause;
    uint64_t first_permit, last_permit; /* numbers of the first and last permit to step; 0: none */
};
enum sim_phase { REST, CONNECTING, RECEIVING, COMPUTING, GIVEN, SAVING_LAST };
struct sim_train {
    uint32_t group; /* index; 0: none yet */
    uint32_t run;   /* counts the starts of training; events of an earlier run are ignored */
    enum sim_phase phase;
    uint64_t since_ms, place;
    uint64_t steps;                         /* steps done in this process, from which the watchdog
                                               learns its limit */
    bool asked_pause, asked_abort, is_over; /* is_over: training has ended, and the report is in
                                               transit */
    bool will_apply;                        /* its part of the reduction is complete */
    bool is_stuck, waits_for_lease;
    enum member_failure failure;
    struct member_loss loss;
    const char *text;
};

/* ---- storage ---- */

struct sim_record {
    uint32_t holder;
    uint64_t incarnation, beats;
    bool is_released;
    uint32_t n;
    uint32_t *members;
};
struct sim_saved {
    uint64_t step, token;
    uint32_t rank;
};
enum sim_op { OP_NONE, OP_LOOK, OP_RENEW, OP_TAKE, OP_RELEASE };
struct sim_lease { /* the lease thread of a process */
    bool is_on, wants_release, is_known, is_over, has_failed, has_taken;
    enum sim_op op;                                  /* the operation in progress */
    uint64_t op_clock, op_token, op_wish;            /* its begin; its token; the request that it
                                                        answers */
    uint64_t wants_take, wants_look, answered;       /* open requests; 0: none */
    uint64_t take_after, mine, lost, hold_until;     /* tokens; hold_until: own clock, 0: not
                                                        held */
    uint32_t *members, n_members;                    /* the group to record */
    uint32_t *op_members, n_op_members;              /* the group of the record in progress */
    uint64_t due;                                    /* number of the next event of the thread */
    uint64_t token, beats, seen_clock, unchanged_ms; /* last read: token, heartbeat count, own
                                                        clock, and how long it is unchanged */
    bool is_released;
    const char *text;
    uint64_t told; /* digest of the last report to the node */
};

/* ---- processes ---- */

struct sim_task {
    struct member_node *node; /* NULL: no process */
    uint32_t serial;          /* of the process, unique; 0: never started */
    bool is_stopped, is_off, was_told_to_stop, was_stuck, has_other_job, is_absent;
    bool may_end_2; /* an error that ends the job everywhere was injected */
    uint64_t incarnation, held, calm_held;
    uint32_t calm_serial;
    int exit_code;
    char exit_text[TEXT], said[TEXT];
    uint64_t said_ms, started_ms, ended_ms;
    uint64_t clock_ms, clock_at_ms, clock_speed; /* reading, time of the reading, speed in
                                                    thousandths */
    uint32_t out, *in;                           /* indices of links */
    uint32_t *probes; /* [world] number of the open probe of each rank */
    uint32_t next_probe;
    enum sim_storage storage;
    uint64_t storage_ms, storage_told_ms; /* own clock: begin of the present failure, and its last
                                             report; 0: none */
    struct sim_train train;
    struct sim_lease lease;
    struct {
        uint64_t step, number, began_ms; /* number of the event; 0: no save */
        uint32_t run;
        bool is_asked, is_last;
        bool has_failed; /* the last save failed */
    } save;
    struct member_ident ident;
};

struct sim {
    struct sim_opts opts;
    uint64_t now_ms, number, random;
    uint32_t next_serial;
    struct sim_task *tasks;
    const char **names, **addresses;
    VEC(struct sim_event) heap;
    VEC(struct sim_event) held;     /* events that cannot arrive at present */
    VEC(struct sim_link) links;     /* [0] is unused */
    VEC(struct sim_group *) groups; /* [0] is unused */
    uint8_t *cuts;                  /* [from * world + to]: blocked planes; NULL: none was ever
                                       blocked */
    uint32_t n_cuts;
    VEC(struct sim_record) records; /* token t is at index t - 1 */
    VEC(struct sim_saved) saved;
    uint64_t complete_step; /* last step of the complete job; 0: not complete */
    bool everybody_stops;
    struct sim_view *sharing; /* the view that was sent last */
    struct buf log;
    struct buf finding;
    bool is_broken;
};

static inline bool sim_is_ps(const struct sim *s, uint32_t rank)
{
    return rank >= s->opts.world - s->opts.n_ps;
}

/* sim_time.c */
void sim_print(struct sim *s, uint32_t rank, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void sim_fail_run(struct sim *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
uint64_t sim_delay(struct sim *s);                      /* of a message */
uint64_t sim_push(struct sim *s, struct sim_event e);   /* returns the number of the event */
void sim_push_again(struct sim *s, struct sim_event e); /* keeps the number of the event */
struct sim_event sim_pop(struct sim *s);
uint64_t sim_clock(const struct sim *s, uint32_t rank);
uint64_t sim_real_ms(const struct sim *s, uint32_t rank, uint64_t own_ms);
void *sim_alloc(size_t n);
void sim_msg_free(struct sim_msg *m);

/* sim.c */
void sim_handle(struct sim *s, uint32_t rank, struct member_event e); /* at the clock of the task */
void sim_drain(struct sim *s, uint32_t rank); /* performs the actions of its node */
void sim_exit(struct sim *s, uint32_t rank, int code, const char *text);
struct sim_msg *sim_msg_copy(struct sim *s, uint32_t rank, const struct member_msg *m);
void sim_release_held(struct sim *s); /* delivers held events that can arrive now */

/* sim_link.c */
void sim_link_call(struct sim *s, uint32_t from, uint32_t to);
void sim_link_send(struct sim *s, uint32_t link, bool to_caller, struct sim_msg *m);
void sim_link_end(struct sim *s, uint32_t link, bool by_caller);
void sim_link_process_gone(struct sim *s, uint32_t rank, bool was_killed, bool is_silent);
void sim_link_probe(struct sim *s, uint32_t from, uint32_t to);
enum sim_arrival { ARRIVES, WAITS, VANISHES, BOUNCES };
enum sim_arrival sim_link_arrival(const struct sim *s, const struct sim_event *e);
void sim_link_event(struct sim *s, struct sim_event *e);
void sim_link_bounce(struct sim *s, const struct sim_event *e);
bool sim_link_passes(const struct sim *s, uint32_t from, uint32_t to, enum sim_plane plane);

/* sim_train.c */
void sim_train_begin(struct sim *s, uint32_t rank, const struct group_view *v);
void sim_train_pause(struct sim *s, uint32_t rank);
void sim_train_abort_now(struct sim *s, uint32_t rank);
void sim_train_fail(struct sim *s, uint32_t rank, enum member_failure kind, const char *text);
void sim_train_process_gone(struct sim *s, uint32_t rank, bool is_silent);
void sim_train_event(struct sim *s, struct sim_event *e);
void sim_train_progress(struct sim *s, uint32_t rank, struct member_progress *out);
void sim_train_test_paths(struct sim *s, uint32_t rank, const struct member_action *d);
void sim_train_tested(struct sim *s, const struct sim_event *e);
void sim_train_last_saved(struct sim *s, uint32_t rank);
bool sim_same_view(const struct group_view *a, const struct group_view *b);
/* Returns the group of this view; creates it for the first member that reports it. */
uint32_t sim_group_of(struct sim *s, uint32_t rank, const struct group_view *v);

/* sim_store.c */
void sim_store_request(struct sim *s, uint32_t rank, const struct member_action *d);
void sim_store_release(struct sim *s, uint32_t rank);
void sim_store_save(struct sim *s, uint32_t rank, uint64_t step, bool is_asked, bool is_last);
void sim_store_watch(struct sim *s, uint32_t rank);
void sim_store_event(struct sim *s, struct sim_event *e);
void sim_store_process_gone(struct sim *s, uint32_t rank);
bool sim_store_is_held(const struct sim *s, uint32_t rank);
uint64_t sim_store_newest(const struct sim *s,
                          uint32_t rank); /* newest checkpoint that this task can read */
void sim_store_fini(struct sim *s);

/* sim_judge.c */
void sim_judge_event(struct sim *s, uint32_t rank);
void sim_judge_action(struct sim *s, uint32_t rank, const struct member_action *d);
void sim_judge_view(struct sim *s, uint32_t rank, const struct group_view *v);
void sim_judge_permit(struct sim *s, uint32_t rank, struct sim_group *g);
void sim_judge_apply(struct sim *s, uint32_t rank, uint64_t step);
void sim_judge_save(struct sim *s, uint32_t rank, uint64_t step, uint64_t token);
void sim_judge_end(struct sim *s, uint32_t rank, int code, const char *text);

#endif
