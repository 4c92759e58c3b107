/* phases.h - the phases of a job, and the periods into which their steps are divided.
 *
 * A period is what a group of tasks applies at once. In a synchronous phase it is one step. In a
 * phase of local SGD it is the steps from one outer step to the next: between them each group of
 * lanes (micro-batches) trains a model of its own, and at the last step of the period, the outer
 * step, all groups exchange. The state of a job exists after the last step of each period, and
 * nowhere between.
 *
 *     step      1 2 3 4 5 | 6 7 8 9 | 10 11 12 13 | 14 15 | 16 17 ...
 *     phase     sync      | local_sgd, sync_every 4       | sync
 *     period    . . . . . | ------- | ----------- | ----- | .  .
 *     state     1 2 3 4 5         9            13      15   16 17
 *
 * Which period contains a step is a function of the job and the step.
 *
 * Threads: one at a time; any, if no phase trains with local SGD. */
#ifndef TRAIN_PHASES_H
#define TRAIN_PHASES_H

#include <stdbool.h>
#include <stdint.h>

#include "opts/phases.h"

struct err;
struct model;
struct optim_schedule;
struct train_opts;
struct train_run;

/* In an asynchronous phase (lib/ps/units.h) every step is a period too, after which the state may exist: tasks can
 * stop after any step, and continue with the next one. */
struct period {
    uint32_t phase;        /* index; 0 in a job without phases */
    bool is_local;         /* ends with an outer step */
    bool is_async;         /* a step of an asynchronous phase: tasks need not begin it at the same time */
    uint64_t before, last; /* contains the steps (before, last] */
    uint64_t outer_step;   /* is_local: number of its outer step in the job, from 1; else the number of
                              outer steps before it */
};

struct phases {
    const struct train_phase *at; /* [n] borrowed; n 0: every step is a period */
    uint32_t n;
    const struct optim_schedule *schedule; /* borrowed; the rates of the rules */
    uint64_t total_steps;
    bool has_local; /* a phase trains with local SGD */
    bool is_async;  /* the job has no phases, and trains asynchronously */
    struct period last; /* the last result: most calls ask for the same period or the next one */
};

/* Errors: ERR_INPUT (a phase has no steps, or the job has combinations that local SGD does not
 * support), ERR_UNSUPPORTED (devices). */
int phases_open(struct phases *p, const struct train_opts *o, const struct optim_schedule *schedule,
                uint64_t total_steps, struct err *err);
bool phases_have_local(const struct train_run *run);

/* Returns the period that contains `step`; 0: an empty period before the first step. */
struct period phases_period(struct phases *p, uint64_t step);
/* Returns the phase of a period; NULL: the job has no phases. */
const struct train_phase *phases_of(const struct phases *p, const struct period *period);
/* Does the period end its phase? */
bool phases_ends_phase(const struct phases *p, const struct period *period);
/* Returns the number of the step since the slots of the optimizer were zero, from 1: the steps that
 * corrections for their initial value count. */
uint64_t phases_slot_steps(struct phases *p, uint64_t step);
/* Is an evaluation due after a step of the period that ends with `step`? It is made after that
 * step. */
bool phases_evaluate(struct phases *p, const struct model *m, uint64_t step);

#endif
