/* sgd.c - sgd, momentum, lars. */
#include "optim/optim_priv.h"

OPTIM_SWEEP(sgd, optim_plain, optim_update_sgd(k, c, &w[i], g[i]))

static bool sgd_skips_zero(const struct optim_hyper *h)
{
    return h->weight_decay == 0 && optim_scale_is_finite(h);
}

const struct optim_def optim_sgd = { OPTIM_ROW(SGD, sgd), .sweep = sgd_sweep, .skips_zero = sgd_skips_zero };

/* ---- momentum ---- */

OPTIM_SWEEP(classic, optim_plain, optim_update_momentum(k, c, false, &w[i], g[i], &s0[i]))
OPTIM_SWEEP(nesterov, optim_plain, optim_update_momentum(k, c, true, &w[i], g[i], &s0[i]))

static void momentum_sweep(const struct optim_hyper *h, const struct optim_run *runs, size_t n,
                           float *w, const float *g, float *const slots[OPTIM_MAX_SLOTS])
{
    (h->nesterov ? nesterov_sweep : classic_sweep)(h, runs, n, w, g, slots);
}

const struct optim_def optim_momentum = {
    OPTIM_ROW(MOMENTUM, momentum), .n_slots = 1, .slots = { { "momentum", OPTIM_ALWAYS } },
    .sweep = momentum_sweep
};

/* ---- lars ---- */

static void lars_measure(const struct optim_hyper *h, size_t n, const float *w, const float *g,
                         float *const slots[OPTIM_MAX_SLOTS], double sums[2])
{
    (void)slots;
    optim_square_sums(w, n, &sums[0]);
    optim_square_sums(g, n, &sums[1]);
    sums[1] *= (double)h->grad_scale * (double)h->grad_scale;
}

static double lars_trust(const struct optim_hyper *h, const double norms[2])
{
    return h->trust_coefficient * norms[0] / (norms[1] + h->weight_decay * norms[0]);
}

OPTIM_SWEEP(lars, optim_trusted, optim_update_lars(k, c, &w[i], g[i], &s0[i]))

const struct optim_def optim_lars = {
    OPTIM_ROW(LARS, lars), .n_slots = 1, .slots = { { "momentum", OPTIM_ALWAYS } },
    .sweep = lars_sweep, .measure = lars_measure, .trust = lars_trust
};
