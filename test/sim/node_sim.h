/* node_sim.h - a whole cluster in one process: the member_node of every task, joined by a modelled
 * network, training and storage, under a clock that jumps from event to event. The same seed gives
 * the same story.
 *
 * What is modelled is what the skin guarantees (lib/member/node.h) and what it cannot: processes
 * that die, are stopped and go on, hosts that fall silent, links that break or lose what is under
 * way, probes that are late or come twice, clocks of different speed, training that needs all
 * members of a view for each step and leaves survivors one step apart, storage that is slow, out of
 * reach, or answers late.
 *
 * After every event the judge looks (node_judge.c). Its first finding ends the run: with `tell`
 * the story and the finding are printed and the program aborts; without, it is in
 * simn_finding() and nothing moves any more, so that the same seed can be told from the start. */
#ifndef SIM_NODE_SIM_H
#define SIM_NODE_SIM_H

#include <stdbool.h>
#include <stdint.h>

#include "member/node.h"

enum {
    SIMN_RUNNING = -1, /* exit code of a process that has not ended */
    SIMN_KILLED = -9,
    SIMN_ALL = UINT32_MAX,
};

struct simn_opts {
    uint32_t world;
    uint64_t seed;
    uint32_t min_world;                        /* 0: 1 */
    uint64_t rejoin_ms, deadline_ms, grace_ms; /* of the job; 0: 500, 30000, 5000 */
    bool no_lease;                             /* there is no shared storage */
    uint64_t steps;                            /* of the job; 0: no end */
    uint64_t step_ms;                          /* a step takes; 0: 20 */
    uint64_t delay_ms;                         /* a message takes 1 to this long; 0: 1 */
    uint64_t store_ms;    /* an operation on the storage takes up to twice this; 0: 2 */
    uint64_t transfer_ms; /* of the state to one who is behind, up to; 0: 10 */
    uint64_t tick_ms;     /* 0: MEMBER_TICK_MS */
    uint64_t start_ms;    /* tasks start at random within this time */
    uint64_t open_ms;     /* opening model and data takes up to */
    uint64_t restart_ms;  /* who died or ended with 138 is started again then; 0: never */
    uint64_t save_every;  /* steps between checkpoints; 0: when asked, and at the end */
    uint32_t n_absent;    /* the last so many do not start by themselves */
    uint32_t drift;       /* clocks run up to so many per cent slower or faster */
    uint32_t probe_trouble; /* one question in so many is lost, late, or comes twice; 0: none */
    bool tell;
};

struct simn;

struct simn *simn_new(const struct simn_opts *opts);
void simn_free(struct simn *s);

void simn_advance(struct simn *s, uint64_t ms);
uint64_t simn_now(const struct simn *s);
uint64_t simn_random(struct simn *s, uint64_t n); /* below n; 0 if n is */
const char *simn_finding(const struct simn *s);   /* of the judge; NULL: none */
const char *simn_story(const struct simn *s);     /* since the last simn_forget() */
void simn_forget(struct simn *s);

/* ---- faults ---- */

void simn_start(struct simn *s, uint32_t rank); /* a new process, if there is none */
void simn_kill(struct simn *s, uint32_t rank);  /* its links close behind it */
/* Nothing closes, calls run into nothing until it starts again. */
void simn_power_off(struct simn *s, uint32_t rank);
void simn_pause(struct simn *s, uint32_t rank);     /* SIGSTOP: its clock goes on */
void simn_continue(struct simn *s, uint32_t rank);  /* everything arrives at once */
void simn_stop(struct simn *s, uint32_t rank, bool everywhere); /* SIGTERM; Control.Stop */
void simn_fail(struct simn *s, uint32_t rank, enum member_failure kind, const char *text);
/* Its training does not move any more, the process lives. */
void simn_stuck(struct simn *s, uint32_t rank);
/* The link between breaks; what is under way is lost. */
void simn_reset(struct simn *s, uint32_t from, uint32_t to);
enum simn_plane { SIMN_CONTROL = 1, SIMN_DATA = 2, SIMN_BOTH = 3 };
/* Nothing goes from `from` to `to` any more (one direction). SIMN_ALL: every task. */
void simn_cut(struct simn *s, uint32_t from, uint32_t to, enum simn_plane plane);
void simn_mend(struct simn *s, uint32_t from, uint32_t to);
void simn_partition(struct simn *s, uint64_t side); /* the ranks of the mask from the others */
void simn_heal(struct simn *s);                     /* all cuts */
enum simn_storage { SIMN_STORAGE_FINE, SIMN_STORAGE_HANGS, SIMN_STORAGE_FAILS };
/* SIMN_ALL: for every task. */
void simn_storage(struct simn *s, uint32_t rank, enum simn_storage how);
void simn_storage_ms(struct simn *s, uint64_t ms);
/* Forward, as after a suspended host. */
void simn_clock_jumps(struct simn *s, uint32_t rank, uint64_t ms);
/* From its next start on it has another job file. */
void simn_other_job(struct simn *s, uint32_t rank);
void simn_steps(struct simn *s, uint64_t steps);    /* the end of the job, moved */
void simn_supervise(struct simn *s, uint64_t restart_ms);

/* ---- what is ---- */

const struct member_node *simn_node(const struct simn *s, uint32_t rank); /* NULL: no process */
int simn_exit_code(const struct simn *s, uint32_t rank);
const char *simn_exit_text(const struct simn *s, uint32_t rank);
const char *simn_said(const struct simn *s, uint32_t rank); /* last sentence; "" */
uint64_t simn_said_ms(const struct simn *s, uint32_t rank);
uint64_t simn_held(const struct simn *s, uint32_t rank);
uint64_t simn_newest(const struct simn *s);       /* held by any process that lives */
uint64_t simn_generation(const struct simn *s, uint32_t rank); /* it trains in; 0: none */
uint32_t simn_alive(const struct simn *s);
bool simn_is_complete(const struct simn *s);      /* the job, with its last checkpoint */
uint32_t simn_checkpoints(const struct simn *s);  /* published so far */
uint64_t simn_checkpoint(const struct simn *s);   /* newest step; 0: none */
/* All that live train in one view, connected; n: how many these are to be. */
bool simn_is_together(const struct simn *s, uint32_t n);
/* Run until that, or for at most so long; false: not within. */
bool simn_until_together(struct simn *s, uint32_t n, uint64_t limit_ms);
bool simn_until_step(struct simn *s, uint64_t step, uint64_t limit_ms); /* somebody holds it */
bool simn_until_ended(struct simn *s, uint64_t limit_ms); /* no process left, none to come */

/* ---- the random story of a seed (node_story.c) ---- */

/* Runs it to its end; NULL: nothing found, else the finding, valid until the next one. tell: prints
 * the story, aborts on a finding. */
const char *simn_random_story(uint64_t seed, bool tell);

#endif
