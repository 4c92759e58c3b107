/* state.c - see state.h. */
#include "train/state.h"

#include <math.h>

uint64_t state_held(const struct state *s)
{
    return __atomic_load_n(&s->held_step, __ATOMIC_ACQUIRE);
}

void state_hold(struct state *s, uint64_t step)
{
    __atomic_store_n(&s->held_step, step, __ATOMIC_RELEASE);
}

void state_begin(struct state *s, const struct loss_scale_rule *rule)
{
    s->facts = (struct facts){ .loss = NAN, .grad_norm = NAN, .scale = loss_scale_begin(rule) };
    s->schedule.plateau = (struct optim_plateau){ 0 };
}

void state_take(struct state *s, const struct facts *facts)
{
    s->facts = *facts;
    s->schedule.plateau = facts->plateau;
    state_hold(s, facts->step);
}
