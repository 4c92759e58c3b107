/* loss_scale.h - how far gradients are lifted above what float16 loses, and what an overflow does
 * to that.
 *
 * The loss is multiplied by a scale before backward, and the reduced gradient is divided by it
 * before it is used. Scales are powers of two, so no digit changes. Whether a step overflowed is
 * seen in that reduced gradient, which is the same on all tasks: so all come to the same scale
 * without a word (PyTorch's GradScaler and TensorFlow's dynamic LossScaleOptimizer, decided once
 * for the group).
 *
 *     gradient        scale                           good steps in a row
 *     finite          doubled, if it is the           one more; 0 if the scale was doubled
 *                     interval-th and below max
 *     not finite      halved, if above min:           0
 *                     the step is skipped
 *     not finite      is min: the step is the         as they are
 *                     policy's business (health.h)
 *
 * Pure: no thread, no memory. */
#ifndef TRAIN_LOSS_SCALE_H
#define TRAIN_LOSS_SCALE_H

#include <stdbool.h>
#include <stdint.h>

/* The job's. All zero: there is no scaling, and the scale is 1 for ever. */
struct loss_scale_rule {
    double initial, min, max; /* powers of two, min <= initial <= max */
    uint32_t growth_interval; /* 0: it never grows */
};

/* Belongs to the state after a step. */
struct loss_scale {
    double scale;
    uint32_t good; /* steps in a row without overflow since the scale changed */
};

static inline bool loss_scale_is_on(const struct loss_scale_rule *rule)
{
    return rule->initial > 0;
}

struct loss_scale loss_scale_begin(const struct loss_scale_rule *rule);
/* What a checkpoint says, under a rule that may be another than it was written by. scale 0:
 * nothing. */
struct loss_scale loss_scale_resume(const struct loss_scale_rule *rule, struct loss_scale kept);
/* Is a smaller one left? */
bool loss_scale_can_shrink(const struct loss_scale_rule *rule, struct loss_scale s);
struct loss_scale loss_scale_after_good(const struct loss_scale_rule *rule, struct loss_scale s);
struct loss_scale loss_scale_after_overflow(const struct loss_scale_rule *rule,
                                            struct loss_scale s);

#endif
