/* sim.h - a whole cluster in one process: the member_node of every task, joined by a modelled
 * network, training and storage, under a clock that jumps from event to event. The same seed gives
 * the same story.
 *
 * What is modelled is what the skin guarantees (lib/member/node.h) and what it cannot: processes
 * that die, are stopped and go on, hosts that fall silent, links that break or lose what is under
 * way, probes that are late or come twice, clocks of different speed, training that needs all
 * members of a view for each step and leaves survivors one step apart, storage that is slow, out of
 * reach, or answers late.
 *
 * After every event the judge looks (sim_judge.c). Its first finding ends the run: with `tell`
 * the story and the finding are printed and the program aborts; without, it is in
 * sim_finding() and nothing moves any more, so that the same seed can be told from the start. */
#ifndef SIM_SIM_H
#define SIM_SIM_H

#include <stdbool.h>
#include <stdint.h>

#include "member/node.h"

enum {
    SIM_RUNNING = -1, /* exit code of a process that has not ended */
    SIM_KILLED = -9,
    SIM_ALL = UINT32_MAX,
};

struct sim_opts {
    uint32_t world;
    uint64_t seed;
    uint32_t min_world;                        /* 0: 1 */
    uint64_t rejoin_ms, deadline_ms, grace_ms; /* of the job; 0: 500, 30000, 5000 */
    bool no_lease;                             /* there is no shared storage */
    uint64_t steps;                            /* of the job; 0: no end */
    uint64_t step_ms;                          /* a step takes; 0: 20 */
    uint64_t delay_ms;                         /* a message takes 1 to this long; 0: 1 */
    uint64_t store_ms;      /* an operation on the storage takes up to twice this; 0: 2 */
    uint64_t transfer_ms;   /* of the state to one who is behind, up to; 0: 10 */
    uint64_t tick_ms;       /* 0: MEMBER_TICK_MS */
    uint64_t start_ms;      /* tasks start at random within this time */
    uint64_t open_ms;       /* opening model and data takes up to */
    uint64_t restart_ms;    /* who died or ended with 138 is started again then; 0: never */
    uint64_t save_every;    /* steps between checkpoints; 0: when asked, and at the end */
    uint32_t n_absent;      /* the last so many do not start by themselves */
    uint32_t drift;         /* clocks run up to so many per cent slower or faster */
    uint32_t probe_trouble; /* one question in so many is lost, late, or comes twice; 0: none */
    bool tell;
};

struct sim;

struct sim *sim_new(const struct sim_opts *opts);
void sim_free(struct sim *s);

void sim_advance(struct sim *s, uint64_t ms);
uint64_t sim_now(const struct sim *s);
uint64_t sim_random(struct sim *s, uint64_t n); /* below n; 0 if n is */
const char *sim_finding(const struct sim *s);   /* of the judge; NULL: none */
const char *sim_story(const struct sim *s);     /* since the last sim_forget() */
void sim_forget(struct sim *s);

/* ---- faults ---- */

void sim_start(struct sim *s, uint32_t rank); /* a new process, if there is none */
void sim_kill(struct sim *s, uint32_t rank);  /* its links close behind it */
/* Nothing closes, calls run into nothing until it starts again. */
void sim_power_off(struct sim *s, uint32_t rank);
void sim_pause(struct sim *s, uint32_t rank);                 /* SIGSTOP: its clock goes on */
void sim_continue(struct sim *s, uint32_t rank);              /* everything arrives at once */
void sim_stop(struct sim *s, uint32_t rank, bool everywhere); /* SIGTERM; Control.Stop */
void sim_fail(struct sim *s, uint32_t rank, enum member_failure kind, const char *text);
/* Its training does not move any more, the process lives. */
void sim_stuck(struct sim *s, uint32_t rank);
/* The link between breaks; what is under way is lost. */
void sim_reset(struct sim *s, uint32_t from, uint32_t to);
/* LARGE: of the data plane, packets of full size alone, as where the MTU of a path is wrong. */
enum sim_plane { SIM_CONTROL = 1, SIM_DATA = 2, SIM_BOTH = 3, SIM_LARGE = 4, SIM_EVERY = 7 };
/* Nothing goes from `from` to `to` any more (one direction). SIM_ALL: every task. */
void sim_cut(struct sim *s, uint32_t from, uint32_t to, enum sim_plane plane);
void sim_mend(struct sim *s, uint32_t from, uint32_t to);
void sim_partition(struct sim *s, uint64_t side); /* the ranks of the mask from the others */
void sim_heal(struct sim *s);                     /* all cuts */
enum sim_storage { SIM_STORAGE_FINE, SIM_STORAGE_HANGS, SIM_STORAGE_FAILS };
/* SIM_ALL: for every task. */
void sim_storage(struct sim *s, uint32_t rank, enum sim_storage how);
void sim_storage_ms(struct sim *s, uint64_t ms);
/* Forward, as after a suspended host. */
void sim_clock_jumps(struct sim *s, uint32_t rank, uint64_t ms);
/* From its next start on it has another job file. */
void sim_other_job(struct sim *s, uint32_t rank);
void sim_steps(struct sim *s, uint64_t steps); /* the end of the job, moved */
void sim_supervise(struct sim *s, uint64_t restart_ms);

/* ---- what is ---- */

const struct member_node *sim_node(const struct sim *s, uint32_t rank); /* NULL: no process */
int sim_exit_code(const struct sim *s, uint32_t rank);
const char *sim_exit_text(const struct sim *s, uint32_t rank);
const char *sim_said(const struct sim *s, uint32_t rank); /* last sentence; "" */
uint64_t sim_said_ms(const struct sim *s, uint32_t rank);
uint64_t sim_held(const struct sim *s, uint32_t rank);
uint64_t sim_newest(const struct sim *s);                    /* held by any process that lives */
uint64_t sim_generation(const struct sim *s, uint32_t rank); /* it trains in; 0: none */
uint32_t sim_alive(const struct sim *s);
bool sim_is_complete(const struct sim *s);     /* the job, with its last checkpoint */
uint32_t sim_checkpoints(const struct sim *s); /* published so far */
uint64_t sim_checkpoint(const struct sim *s);  /* newest step; 0: none */
/* All that live train in one view, connected; n: how many these are to be. */
bool sim_is_together(const struct sim *s, uint32_t n);
/* Run until that, or for at most so long; false: not within. */
bool sim_until_together(struct sim *s, uint32_t n, uint64_t limit_ms);
bool sim_until_step(struct sim *s, uint64_t step, uint64_t limit_ms); /* somebody holds it */
bool sim_until_ended(struct sim *s, uint64_t limit_ms); /* no process left, none to come */

/* ---- the random story of a seed (sim_story.c) ---- */

/* Runs it to its end; NULL: nothing found, else the finding, valid until the next one. tell: prints
 * the story, aborts on a finding. */
const char *sim_random_story(uint64_t seed, bool tell);
/* Likewise, of storage that fails (sim_storage.c). */
const char *sim_storage_story(uint64_t seed, bool tell);

#endif
