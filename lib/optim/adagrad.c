/* adagrad.c - adagrad, rmsprop. */
#include "optim/optim_priv.h"

OPTIM_SWEEP(adagrad, optim_plain, optim_update_adagrad(k, c, &w[i], g[i], &s0[i]))

/* Without epsilon, the update is 0 / 0 where every gradient so far was zero. */
static bool adagrad_skips_zero(const struct optim_hyper *h)
{
    return h->weight_decay == 0 && (float)h->epsilon > 0 && optim_scale_is_finite(h);
}

const struct optim_def optim_adagrad = {
    OPTIM_ROW(ADAGRAD, adagrad), .n_slots = 1, .slots = { { "sum", OPTIM_ALWAYS } }, .sweep = adagrad_sweep,
    .skips_zero = adagrad_skips_zero
};

/* ---- rmsprop: the average of squares; momentum and the average are optional ---- */

#define RMSPROP(id_, moves_, centers_, v_, a_)                                                     \
    OPTIM_SWEEP(id_, optim_plain,                                                                  \
                optim_update_rmsprop(k, c, moves_, centers_, &w[i], g[i], &s0[i], v_, a_))
RMSPROP(plain, false, false, NULL, NULL)
RMSPROP(with_momentum, true, false, &s1[i], NULL)
RMSPROP(centered, false, true, NULL, &s2[i])
RMSPROP(both, true, true, &s1[i], &s2[i])

static void rmsprop_sweep(const struct optim_hyper *h, const struct optim_run *runs, size_t n,
                          float *w, const float *g, float *const slots[OPTIM_MAX_SLOTS])
{
    if (h->momentum > 0)
        (h->centered ? both_sweep : with_momentum_sweep)(h, runs, n, w, g, slots);
    else
        (h->centered ? centered_sweep : plain_sweep)(h, runs, n, w, g, slots);
}

const struct optim_def optim_rmsprop = {
    OPTIM_ROW(RMSPROP, rmsprop), .n_slots = 3,
    .slots = { { "square_avg", OPTIM_ALWAYS }, { "momentum_buffer", OPTIM_WITH_MOMENTUM },
               { "grad_avg", OPTIM_CENTERED } },
    .sweep = rmsprop_sweep
};
