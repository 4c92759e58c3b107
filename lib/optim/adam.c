/* adam.c - adam, adamw, adamax, lamb, lion. */
#include "base/check.h"
#include "optim/optim_priv.h"

/* The corrections of the moments; that of the mean is part of the rate. */
static void adam_coefficients(const struct optim_hyper *h, struct optim_step *k,
                              struct optim_param_step *c)
{
    CHECK(h->step > 0);
    c->rate = (float)(h->learning_rate / optim_correct(h, k));
}

/* The decay applies to the weight, not to the gradient. */
static void adamw_coefficients(const struct optim_hyper *h, struct optim_step *k,
                               struct optim_param_step *c)
{
    adam_coefficients(h, k, c);
    c->decay = 0;
    c->keep = (float)(1 - h->learning_rate * h->weight_decay);
}

OPTIM_SWEEP(adam, adam_coefficients, optim_update_adam(k, c, &w[i], g[i], &s0[i], &s1[i]))
OPTIM_SWEEP(adamw, adamw_coefficients, optim_update_adam(k, c, &w[i], g[i], &s0[i], &s1[i]))
OPTIM_SWEEP(adamax, adam_coefficients, optim_update_adamax(k, c, &w[i], g[i], &s0[i], &s1[i]))
OPTIM_SWEEP(lion, optim_plain, optim_update_lion(k, c, &w[i], g[i], &s0[i]))

#define MOMENTS                                                                                    \
    .n_slots = 2, .slots = { { "exp_avg", OPTIM_ALWAYS }, { "exp_avg_sq", OPTIM_ALWAYS } }

const struct optim_def optim_adam = { OPTIM_ROW(ADAM, adam), MOMENTS, .sweep = adam_sweep };
const struct optim_def optim_adamw = { OPTIM_ROW(ADAMW, adamw), MOMENTS, .sweep = adamw_sweep };
const struct optim_def optim_adamax = {
    OPTIM_ROW(ADAMAX, adamax), .n_slots = 2,
    .slots = { { "exp_avg", OPTIM_ALWAYS }, { "exp_inf", OPTIM_ALWAYS } }, .sweep = adamax_sweep
};
const struct optim_def optim_lion = {
    OPTIM_ROW(LION, lion), .n_slots = 1, .slots = { { "exp_avg", OPTIM_ALWAYS } }, .sweep = lion_sweep
};

/* ---- lamb ---- */

static void lamb_coefficients(const struct optim_hyper *h, struct optim_step *k,
                              struct optim_param_step *c)
{
    CHECK(h->step > 0);
    (void)optim_correct(h, k);
    optim_trusted(h, k, c);
}

/* The gradient is in the moments. */
OPTIM_SWEEP(lamb, lamb_coefficients, optim_update_lamb(k, c, &w[i], s0[i], s1[i]))

/* Moves the moments, and computes the update u. */
CLONES static void lamb_moments(size_t n, const float *restrict w, const float *restrict g,
                                float *restrict m, float *restrict v, float *restrict u,
                                const struct optim_step *restrict step,
                                const struct optim_param_step *restrict own)
{
    const struct optim_step k = *step;
    const struct optim_param_step c = *own;

    for (size_t i = 0; i < n; i++) {
        optim_update_moments(&k, g[i] * k.scale, &m[i], &v[i]);
        u[i] = optim_lamb_update(&k, &c, w[i], m[i], v[i]);
    }
}

static void lamb_measure(const struct optim_hyper *h, size_t n, const float *w, const float *g,
                         float *const slots[OPTIM_MAX_SLOTS], double sums[2])
{
    struct optim_step k = optim_step_of(h);
    struct optim_param_step c = { 0, (float)h->weight_decay, 1 };
    float u[OPTIM_BLOCK];

    CHECK(n <= OPTIM_BLOCK);
    lamb_coefficients(h, &k, &c);
    lamb_moments(n, w, g, slots[0], slots[1], u, &k, &c);
    optim_square_sums(w, n, &sums[0]);
    optim_square_sums(u, n, &sums[1]);
}

static double lamb_trust(const struct optim_hyper *h, const double norms[2])
{
    (void)h;
    return norms[0] / norms[1];
}

const struct optim_def optim_lamb = {
    OPTIM_ROW(LAMB, lamb), MOMENTS, .sweep = lamb_sweep, .measure = lamb_measure, .trust = lamb_trust
};
