/* loss_scale.h - the loss scale, which keeps gradients above the smallest float16 numbers, and its
 * change after an overflow.
 *
 * The loss is multiplied by a scale before backward, and the reduced gradient is divided by it
 * before it is used. Scales are powers of two, so the division is exact. An overflow is detected in
 * the reduced gradient, which is equal on all tasks, so all tasks compute the same scale without a
 * message (as PyTorch's GradScaler and TensorFlow's dynamic LossScaleOptimizer, but once for the
 * group).
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

#include "opts/train.h"

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
/* Returns the scale after a resume: that of the checkpoint, limited by a rule that may have changed
 * since. scale 0: the checkpoint has none. */
struct loss_scale loss_scale_resume(const struct loss_scale_rule *rule, struct loss_scale kept);
/* Can the scale be halved? */
bool loss_scale_can_shrink(const struct loss_scale_rule *rule, struct loss_scale s);
struct loss_scale loss_scale_after_good(const struct loss_scale_rule *rule, struct loss_scale s);
struct loss_scale loss_scale_after_overflow(const struct loss_scale_rule *rule,
                                            struct loss_scale s);

#endif
