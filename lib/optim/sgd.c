/* sgd.c - sgd, momentum, lars. */
#include "optim/optim_priv.h"

CLONES static void sgd_loop(size_t n, float *restrict w, const float *restrict g, float scale,
                            float decay, float rate)
{
    for (size_t i = 0; i < n; i++)
        w[i] -= rate * (g[i] * scale + decay * w[i]);
}

static void sgd_sweep(const struct optim_hyper *h, size_t n, float *w, const float *g,
                      float *const slots[OPTIM_MAX_SLOTS])
{
    (void)slots;
    sgd_loop(n, w, g, h->grad_scale, (float)h->weight_decay, (float)h->learning_rate);
}

static bool sgd_rests(const struct optim_hyper *h)
{
    return h->weight_decay == 0 && optim_scale_is_finite(h);
}

const struct optim_def optim_sgd = { .name = "sgd", .sweep = sgd_sweep, .rests = sgd_rests };

/* ---- momentum ---- */

CLONES static void momentum_loop(size_t n, float *restrict w, const float *restrict g,
                                 float *restrict v, float scale, float decay, float momentum,
                                 float rate)
{
    for (size_t i = 0; i < n; i++) {
        v[i] = momentum * v[i] + (g[i] * scale + decay * w[i]);
        w[i] -= rate * v[i];
    }
}

CLONES static void nesterov_loop(size_t n, float *restrict w, const float *restrict g,
                                 float *restrict v, float scale, float decay, float momentum,
                                 float rate)
{
    for (size_t i = 0; i < n; i++) {
        float d = g[i] * scale + decay * w[i];

        v[i] = momentum * v[i] + d;
        w[i] -= rate * (d + momentum * v[i]);
    }
}

static void momentum_sweep(const struct optim_hyper *h, size_t n, float *w, const float *g,
                           float *const slots[OPTIM_MAX_SLOTS])
{
    (h->nesterov ? nesterov_loop : momentum_loop)(n, w, g, slots[0], h->grad_scale,
                                                  (float)h->weight_decay, (float)h->momentum,
                                                  (float)h->learning_rate);
}

const struct optim_def optim_momentum = {
    .name = "momentum", .n_slots = 1, .slots = { { "momentum", OPTIM_ALWAYS } },
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

CLONES static void lars_loop(size_t n, float *restrict w, const float *restrict g,
                             float *restrict v, float scale, float decay, float momentum,
                             float rate)
{
    for (size_t i = 0; i < n; i++) {
        v[i] = momentum * v[i] + rate * (g[i] * scale + decay * w[i]);
        w[i] -= v[i];
    }
}

static void lars_sweep(const struct optim_hyper *h, size_t n, float *w, const float *g,
                       float *const slots[OPTIM_MAX_SLOTS])
{
    lars_loop(n, w, g, slots[0], h->grad_scale, (float)h->weight_decay, (float)h->momentum,
              (float)(h->learning_rate * h->trust));
}

const struct optim_def optim_lars = {
    .name = "lars", .n_slots = 1, .slots = { { "momentum", OPTIM_ALWAYS } },
    .sweep = lars_sweep, .measure = lars_measure, .trust = lars_trust
};
