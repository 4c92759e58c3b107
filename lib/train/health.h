/* health.h - can the numbers of a step be trusted?
 *
 * Compared. All tasks hold the same gradient behind a reduction, and the same weights behind an
 * update; nobody's arithmetic or memory is asked whether it is in order. So each computes a checksum
 * (checksum.h) of the gradient right where its update reads it, every K steps and for a checkpoint
 * of its weights and optimizer state too, and puts both into words of its own behind the
 * control words of the next reduction, where all others put zeros: it costs no message, and
 * everybody knows everybody's. They are compared before that next step changes anything. What more than
 * half of the tasks have is right; whoever has something else is named by all, and its state is
 * not whole any more. Two tasks that differ have no majority: neither state counts then.
 *
 *     step k      reduce | checksum of g | update | (checksum of w)
 *     step k + 1  reduce, with them | compare | checkpoint of step k if one is due | ...
 *
 * A copy for a checkpoint is taken behind that comparison, where the state still is that of step k: what
 * a generation writes was compared. (Not so train_save() behind one that was broken: what is held then
 * is all there is.) Behind the last step there is a reduction of the
 * words alone. A task sums up what its replicas use, each part of the gradient in the arena of the
 * replica that will move those weights. If it has no peers, each part is summed up in the arena of
 * another replica too, and compared before it is used: nothing is lost then but the step.
 *
 * Finite. The same pass sees NaN and infinity in the gradient. All tasks see it in the same step,
 * before its update, because all have the same bits; what is done is the job's policy, and
 * locate.c finds out where it came from. But a gradient that is not finite while the loss is, in a step
 * whose loss scale can be halved (loss_scale.h), is no trouble yet: the step is skipped, with the scale
 * halved. */
#ifndef TRAIN_HEALTH_H
#define TRAIN_HEALTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/device.h"
#include "train/train.h"

struct err;
struct replica;
struct step_result;

enum { HEALTH_MAX_SKIPS = 10 /* in a row; the next one ends the job */ };

struct health {
    /* One generation. */
    bool compares;                /* there are other tasks */
    uint64_t gradient_step, state_step; /* whose sums wait for being compared; 0: none do */
    uint32_t gradient, state;     /* the sums */
    uint64_t equal_step;          /* the last one whose gradient was equal everywhere */
    uint64_t equal_state_step;    /* likewise state */
    bool rolls_back;              /* it ends for policy `restore` */
    bool differs;                 /* it ends because tasks or replicas differ */
    uint32_t peer;                /* the member that differs; UINT32_MAX: nobody knows which */

    /* A step: by the parts of the optimizer's work. */
    uint32_t own[DEVICE_MAX];     /* in the arena of the replica that uses it */
    uint32_t other[DEVICE_MAX];   /* in that of the next replica */
    bool bad[DEVICE_MAX];         /* replica's: not finite */
    uint32_t state_part[DEVICE_MAX];

    /* Of the process. */
    bool lost;                    /* what lies in the memory of the state is none */
    uint64_t restored_at;         /* the step for which everybody went back to a checkpoint; 0: none */
    uint64_t skips, overflows;
};

/* Floats behind the control words of a gradient arena. */
size_t health_words(const struct train_opts *o);

void health_begin(struct train *t); /* a generation; before its replicas start */
/* Local replica 0, when all have agreed to hold `held`: a state that was given up is made new if nobody
 * has one. */
int health_take_up(struct train *t, uint64_t held, const int64_t *votes, struct err *err);
enum train_end health_end(const struct train *t); /* of a generation that failed */

/* Each replica; with a barrier. The sum of the state after `step`, to be compared in the next reduction. */
int health_weigh(struct replica *r, uint64_t step, struct err *err);
/* Is the state after `step` to be weighed, whatever the tasks ask for? */
bool health_weighs(const struct train *t, uint64_t step);

/* Local replica 0, before it gives its last contribution to a reduction: the words in `control`. */
void health_contribute(const struct train *t, float *control);
/* Each replica, behind the reduction of `step`: the words say whether all tasks were equal after step
 * - 1. Errors: ERR_DEVICE: they were not; health.differs and health.peer say what that means. */
int health_compare(struct replica *r, uint64_t step, struct err *err);
/* May the state after `step` be written to disk? */
bool health_allows(const struct train *t, uint64_t step);

/* Each replica, behind that: a pass over what its update will read. Then the commit gate; then all see
 * the same. *finite: loss and gradient are.
 * Errors: ERR_DEVICE: replicas of this task hold different gradients; nothing is changed yet. */
void health_look(struct replica *r);
int health_judge(struct replica *r, uint64_t step, double loss, bool *finite, struct err *err);
/* Each replica, if not: finds the origin, and does what the job wants. 0: the step is skipped. Errors:
 * ERR_INPUT: the job stops, and the state after step - 1 is saved; ERR_DEVICE with
 * health.rolls_back: nobody holds state any more, the last checkpoint is to be read. */
int health_trouble(struct replica *r, uint64_t step, const struct step_result *result,
                   struct err *err);
/* Each replica: is it only that the scaled gradient was too large? */
bool health_overflowed(const struct replica *r, double loss);
void health_overflow(struct replica *r, uint64_t step); /* then: the step is skipped; nothing fails */
void health_updated(struct replica *r); /* behind an update that was not skipped */

/* Each replica, behind the last step of a generation: compares it too. */
int health_last(struct replica *r, uint64_t step, struct err *err);

/* locate.c: each replica. Computes the lanes of `step` again and writes into `text` [n] where the first
 * number came from that is none; the same on every task. Gradient arena 0 is lost by it. */
int locate_run(struct replica *r, uint64_t step, const struct step_result *result, char *text,
               size_t n, struct err *err);

#endif
