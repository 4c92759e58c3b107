/* state.c - see state.h. */
#include "train/state.h"

#include <stdatomic.h>
#include <math.h>

uint64_t state_held(const struct state *s)
{
    return atomic_load_explicit(&s->held_step, memory_order_acquire);
}

void state_hold(struct state *s, uint64_t step)
{
    atomic_store_explicit(&s->held_step, step, memory_order_release);
}

void state_begin(struct state *s, const struct loss_scale_rule *rule)
{
    s->facts = (struct facts){ .loss = NAN, .grad_norm = NAN, .scale = loss_scale_begin(rule) };
    s->schedule.plateau = (struct optim_plateau){ 0 };
}

void state_replace(struct state *s, const struct facts *facts)
{
    s->facts = *facts;
    s->schedule.plateau = facts->plateau;
    state_hold(s, facts->step);
}
