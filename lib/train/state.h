/* state.h - identifies the state that a task holds; its numbers are in the engine's memory.
 *
 * Threads: the first replica's, between the gates of the other replicas; state_held() any. */
#ifndef TRAIN_STATE_H
#define TRAIN_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "optim/optim.h"
#include "train/loss_scale.h"

/* Whether gradients are compressed (coding.h). */
enum coding { CODING_UNDECIDED /* also in jobs without compression */, CODING_OFF, CODING_ON, CODINGS };

struct facts { /* the part of the state after a step that is not in the engine's memory */
    uint64_t step;
    /* the last evaluation that was reported, and counted by a plateau schedule */
    uint64_t evaluated_step;
    double loss, grad_norm;  /* of the step, for its report */
    /* Of the update of the step, which a parameter server may still have to make. */
    double learning_rate;
    float grad_scale; /* clipping and loss scale: factor of the gradient */
    bool is_skipped;  /* the step was skipped: there is no update */
    uint32_t skips_in_row;   /* steps up to this step that were skipped */
    enum coding coding;      /* of all steps so far */
    struct loss_scale scale; /* of the next step */
    struct optim_plateau plateau;
};

struct state {
    _Atomic uint64_t held_step; /* the step whose state is complete here; 0: fresh, or none */
    struct facts facts; /* of that step, except `plateau`, which is the schedule's */
    struct optim_schedule schedule;
};

/* Sets the state to the initial parameters. */
void state_begin(struct state *s, const struct loss_scale_rule *rule);
uint64_t state_held(const struct state *s);
/* Marks the state after `step` as complete. */
void state_hold(struct state *s, uint64_t step);
/* The same, and sets all facts. */
void state_replace(struct state *s, const struct facts *facts);

#endif
