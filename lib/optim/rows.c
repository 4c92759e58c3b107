/* rows.c - the steps of an update: hyper-parameters of a parameter, a range, the average. */
#include "optim/optim_priv.h"

struct optim_hyper optim_own_hyper(const struct optim_hyper *h, double rate_factor,
                                   double weight_decay)
{
    struct optim_hyper own = *h;

    own.learning_rate *= rate_factor;
    own.weight_decay = weight_decay;
    own.trust = 1;
    return own;
}

bool optim_skips_rows(const struct optim_def *def, const struct optim_hyper *own, bool lazy)
{
    return lazy || (def->skips_zero != NULL && def->skips_zero(own));
}

void optim_update_range(const struct optim_def *def, const struct optim_hyper *own,
                        const struct optim_state *s, size_t at, size_t n, const float *g)
{
    const struct optim_run run = { at, n };

    def->sweep(own, &run, 1, s->w, g, s->slots);
}

CLONES static void average_loop(size_t n, float *restrict average, const float *restrict w,
                                float keep, float rest)
{
    for (size_t i = 0; i < n; i++)
        average[i] = optim_moved_average(average[i], w[i], keep, rest);
}

void optim_move_average(const struct optim_state *s, size_t at, size_t n, double decay)
{
    average_loop(n, s->average + at, s->w + at, (float)decay, (float)(1 - decay));
}
