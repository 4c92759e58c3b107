/* sim_priv.h - what the files of sim share. */
#ifndef SIM_SIM_PRIV_H
#define SIM_SIM_PRIV_H

#include "base/buf.h"
#include "base/vec.h"
#include "sim/sim.h"

enum { TEXT = 320, COORD_TICK_MS = 150, STORY_BYTES = 1 << 16 };

/* A connection of one incarnation to one coordinator. */
struct link {
    uint32_t rank, incarnation, coordinator; /* which process, on both ends */
    uint64_t up_ms, down_ms;                 /* the last arrival in each direction: order is kept */
    bool is_broken;
};

enum kind {
    /* at a worker; link 0: from itself */
    AT_START, AT_TICK, AT_RETRY, AT_DEADLINE, AT_JOB_DONE, AT_STOPPED,
    DOWN_WAITING, DOWN_VIEW, DOWN_OVER, DOWN_ENDED, DOWN_ANSWER, DOWN_BEAT, DOWN_CLOSED,
    /* at the coordinator */
    AT_COORD_TICK, UP_JOIN, UP_BEAT, UP_LEAVE, UP_CLOSED,
};

struct event {
    uint64_t at_ms, number; /* ties by number */
    enum kind kind;
    uint32_t rank, incarnation; /* of the process that it is for, 0: whichever */
    uint32_t link;
    uint64_t generation;
    int value;  /* answer, kind of Leave */
    char *text; /* owned; may be NULL */
};

struct process {
    struct member_worker worker;
    uint32_t incarnation; /* 0: never started */
    bool is_alive, is_cut;
    int exit_code;
    char exit_text[TEXT];
    uint32_t link; /* 0: none */
    uint64_t heard_ms, generation;
    enum member_leave leave;
    int code; /* what it will end with */
    char text[TEXT];
};

struct sim {
    struct sim_opts opts;
    uint64_t now_ms, number, random;
    uint32_t next_incarnation;
    struct process *tasks;
    VEC(struct event) heap;
    VEC(struct link) links; /* [0] is none */

    /* the coordinator, in the process of rank 0 */
    struct member_coord *coord;
    uint32_t *seats;           /* link of the present Join, by rank */
    uint32_t *parked;          /* link of the Leave, by rank */
    uint32_t *in_view;         /* incarnations of the last view, by rank */
    uint32_t joining;          /* link of the Join that is being decided */
    bool *guilty;              /* something did happen to this task */
    bool is_trained;           /* the last step of this generation was made, by all at once */
    bool is_complete;          /* and the coordinator said so: the checkpoint is verified */

    char (*names)[16], (*addresses)[24];
    struct buf story;
};

void sim_say(struct sim *s, const char *who, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
#define HOLDS(s_, cond_) ((cond_) ? (void)0 : sim_broken(s_, #cond_, __FILE__, __LINE__))
void sim_broken(struct sim *s, const char *what, const char *file, int line);

/* sim_time.c: chance, the queue of events, links */
uint64_t sim_below(struct sim *s, uint64_t n); /* at random, 0 if n is */
struct event sim_pop(struct sim *s);           /* the next; there must be one */
void sim_later(struct sim *s, uint32_t rank, enum kind kind, uint64_t ms); /* for this process */
void sim_send(struct sim *s, uint32_t link, enum kind kind, int value, const char *text);
/* Both ends hear of it, behind what is under way. */
void sim_break_link(struct sim *s, uint32_t link);

/* sim_coord.c */
void sim_coordinator_up(struct sim *s);
void sim_coordinator_down(struct sim *s);
void sim_at_coordinator(struct sim *s, const struct event *e);

/* sim_worker.c */
void sim_at_worker(struct sim *s, const struct event *e);
void sim_step(struct sim *s, uint32_t rank, enum member_event ev, int code, const char *text);
void sim_exit_process(struct sim *s, uint32_t rank, int code, const char *text);

#endif
