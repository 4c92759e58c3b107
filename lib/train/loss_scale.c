/* loss_scale.c - see loss_scale.h. */
#include "train/loss_scale.h"

#include <math.h>

struct loss_scale loss_scale_begin(const struct loss_scale_rule *rule)
{
    return (struct loss_scale){ .scale = loss_scale_is_on(rule) ? rule->initial : 1 };
}

static bool is_power_of_two(double x)
{
    int exponent;

    return isfinite(x) && frexp(x, &exponent) == 0.5;
}

struct loss_scale loss_scale_resume(const struct loss_scale_rule *rule, struct loss_scale kept)
{
    if (!loss_scale_is_on(rule) || !is_power_of_two(kept.scale))
        return loss_scale_begin(rule);
    kept.scale = fmin(fmax(kept.scale, rule->min), rule->max);
    return kept;
}

bool loss_scale_can_shrink(const struct loss_scale_rule *rule, struct loss_scale s)
{
    return loss_scale_is_on(rule) && s.scale > rule->min;
}

struct loss_scale loss_scale_after_good(const struct loss_scale_rule *rule, struct loss_scale s)
{
    if (!loss_scale_is_on(rule) || rule->growth_interval == 0 || s.scale >= rule->max)
        return s;
    if (s.good < rule->growth_interval - 1)
        return (struct loss_scale){ s.scale, s.good + 1 };
    return (struct loss_scale){ s.scale * 2, 0 };
}

struct loss_scale loss_scale_after_overflow(const struct loss_scale_rule *rule, struct loss_scale s)
{
    return loss_scale_can_shrink(rule, s) ? (struct loss_scale){ s.scale / 2, 0 } : s;
}
