/* sim.h - simulates a cluster in one process: the member_node of every task, connected by a
 * simulated network, training and storage. The clock jumps from event to event. The same seed gives
 * the same run.
 *
 * The simulator keeps the guarantees that a caller of the node makes (lib/member/node.h) and
 * simulates what a caller cannot exclude: processes that die, or are suspended and continue; hosts
 * that fall silent; links that break or lose messages in transit; probes that are late or arrive
 * twice; clocks of different speed; training that needs all members of a view for each step and
 * leaves survivors one step apart; storage that is slow, unreachable, or answers late.
 *
 * After every event the judge checks the invariants (sim_judge.c). Its first finding ends the run.
 * With `tell` the simulator prints the log and the finding, and aborts. Without `tell`,
 * sim_finding() returns the finding and the simulation stops, so that a test can repeat the seed
 * with `tell`. */
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
    uint32_t n_ps;      /* the tasks with the highest ranks, this many, are parameter servers */
    uint32_t min_world; /* training tasks; 0: 1 */
    uint32_t min_ps;    /* parameter servers; 0: 1, if there are any */
    uint32_t replicas;  /* parameter servers that hold the same row; 0: they hold no rows */
    uint64_t rejoin_ms, deadline_ms, grace_ms; /* as in member_node_opts; 0: 500, 30000, 5000 */
    bool no_lease;                             /* no shared storage */
    uint64_t steps;                            /* length of the job; 0: no end */
    uint64_t step_ms;                          /* duration of a step; 0: 20 */
    uint64_t delay_ms;                         /* a message takes 1 ms to this long; 0: 1 */
    uint64_t handshake_ms;  /* each of the two parts of a handshake takes up to this; 0: there is none */
    uint64_t store_ms;      /* an operation on the storage takes up to twice this; 0: 2 */
    uint64_t transfer_ms;   /* a transfer of the state takes up to this; 0: 10 */
    uint64_t tick_ms;       /* 0: MEMBER_TICK_MS */
    uint64_t start_ms;      /* tasks start at random times within this */
    uint64_t open_ms;       /* opening model and data takes up to this */
    uint64_t restart_ms;    /* a process that died or ended with 138 starts again after this; 0:
                               never */
    uint64_t save_every;    /* steps between checkpoints; 0: on request, and at the end */
    uint32_t n_absent;      /* the tasks with the highest ranks, this many, do not start by
                               themselves */
    uint32_t n_refused;     /* the tasks with the lowest ranks, this many, find when they open that they cannot
                               write at all, and their storage fails */
    uint32_t drift;         /* clocks are up to this many per cent slower or faster */
    uint32_t probe_trouble; /* one probe of this many is lost, late, or doubled; 0: none */
    bool tell;
};

struct sim;

struct sim *sim_new(const struct sim_opts *opts);
void sim_free(struct sim *s);

void sim_advance(struct sim *s, uint64_t ms);
uint64_t sim_now(const struct sim *s);
uint64_t sim_random(struct sim *s, uint64_t n); /* below n; 0 if n is 0 */
const char *sim_finding(const struct sim *s);   /* of the judge; NULL: none */
const char *sim_log(const struct sim *s);       /* the log since the last sim_reset_log() */
void sim_reset_log(struct sim *s);

/* ---- faults ---- */

void sim_start(struct sim *s, uint32_t rank); /* starts a process, if none runs */
void sim_kill(struct sim *s, uint32_t rank);  /* its links close */
/* The host falls silent: no link closes, and calls time out until the task starts again. */
void sim_power_off(struct sim *s, uint32_t rank);
void sim_pause(struct sim *s, uint32_t rank);                 /* SIGSTOP: its clock continues */
void sim_continue(struct sim *s, uint32_t rank);              /* SIGCONT: the messages that waited
                                                                 arrive at once */
void sim_stop(struct sim *s, uint32_t rank, bool everywhere); /* SIGTERM; Control.Stop */
void sim_regroup(struct sim *s, uint32_t rank); /* if it leads: its view ends, and another one follows */
void sim_fail(struct sim *s, uint32_t rank, enum member_failure kind, const char *text);
/* The training of the task hangs; its process continues. */
void sim_stuck(struct sim *s, uint32_t rank);
/* The link from `from` to `to` breaks; messages in transit are lost. */
void sim_reset(struct sim *s, uint32_t from, uint32_t to);
/* SIM_LARGE: only packets of full size on the data plane, as with a wrong MTU on a path. */
enum sim_plane { SIM_CONTROL = 1, SIM_DATA = 2, SIM_BOTH = 3, SIM_LARGE = 4, SIM_EVERY = 7 };
/* Blocks all traffic from `from` to `to` (one direction). SIM_ALL: every task. */
void sim_cut(struct sim *s, uint32_t from, uint32_t to, enum sim_plane plane);
void sim_mend(struct sim *s, uint32_t from, uint32_t to);
void sim_partition(struct sim *s, uint64_t side); /* blocks traffic between the ranks of the mask
                                                     and the others */
void sim_heal(struct sim *s);                     /* removes all blocks */
enum sim_storage { SIM_STORAGE_FINE, SIM_STORAGE_HANGS, SIM_STORAGE_FAILS };
/* Sets the state of the storage for a task. SIM_ALL: for every task. */
void sim_storage(struct sim *s, uint32_t rank, enum sim_storage how);
void sim_storage_ms(struct sim *s, uint64_t ms);
/* The clock of the task jumps forward, as after a suspended host. */
void sim_clock_jumps(struct sim *s, uint32_t rank, uint64_t ms);
/* From its next start on, the task has another job file. */
void sim_other_job(struct sim *s, uint32_t rank);
void sim_steps(struct sim *s, uint64_t steps); /* changes the length of the job */
void sim_supervise(struct sim *s, uint64_t restart_ms);

/* ---- queries ---- */

const struct member_node *sim_node(const struct sim *s, uint32_t rank); /* NULL: no process */
int sim_exit_code(const struct sim *s, uint32_t rank);
const char *sim_exit_text(const struct sim *s, uint32_t rank);
const char *sim_last_line(const struct sim *s, uint32_t rank); /* last line that the task logged;
                                                                  "":
                                                             none */
uint64_t sim_last_line_ms(const struct sim *s, uint32_t rank);
uint64_t sim_held(const struct sim *s, uint32_t rank);
uint64_t sim_newest(const struct sim *s);                    /* newest step that a running process
                                                                holds */
uint64_t sim_generation(const struct sim *s, uint32_t rank); /* generation in which the task trains;
                                                                0: none */
uint32_t sim_alive(const struct sim *s);
bool sim_is_complete(const struct sim *s);     /* the job is done and its last checkpoint is
                                                  verified */
uint32_t sim_checkpoints(const struct sim *s); /* number of published checkpoints */
uint64_t sim_checkpoint(const struct sim *s);  /* newest published step; 0: none */
/* Returns true if all running tasks train in one connected view of n tasks. */
bool sim_is_together(const struct sim *s, uint32_t n);
/* Runs until that is true. Returns false if it is not true within limit_ms. */
bool sim_until_together(struct sim *s, uint32_t n, uint64_t limit_ms);
bool sim_until_step(struct sim *s, uint64_t step, uint64_t limit_ms); /* a task holds `step` */
bool sim_until_ended(struct sim *s, uint64_t limit_ms); /* no process runs or will start */

/* ---- the random scenario of a seed (sim_scenario.c) ---- */

/* Runs the random scenario of a seed to its end. Returns NULL, or the finding, which is valid until
 * the next call. tell: prints the log, and aborts on a finding. */
const char *sim_random_scenario(uint64_t seed, bool tell);
/* The same with parameter servers, which suffer the same faults. */
const char *sim_ps_scenario(uint64_t seed, bool tell);
/* Runs a random scenario in which the storage fails (sim_storage.c). */
const char *sim_storage_scenario(uint64_t seed, bool tell);
/* Runs a random division of a cluster with parameter servers (sim_division.c). */
const char *sim_division_scenario(uint64_t seed, bool tell);

#endif
