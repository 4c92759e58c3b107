/* adam.c - adam, adamw, adamax, lamb, lion. */
#include <math.h>

#include "base/check.h"
#include "base/power.h"
#include "optim/optim_priv.h"

/* Coefficients of a step, as the loops take them. */
struct adam {
    float scale;
    float decay; /* added to the gradient, or by lamb and lion to the update */
    float keep;  /* what weights are multiplied by first */
    float beta1, rest1, beta2, rest2;
    float mean;  /* 1 / (1 - beta1^t) */
    float root;  /* 1 / sqrt(1 - beta2^t) */
    float epsilon;
    float rate;
};

static struct adam adam_of(const struct optim_hyper *h)
{
    CHECK(h->step > 0);
    return (struct adam){
        .scale = h->grad_scale,
        .decay = (float)h->weight_decay,
        .keep = 1,
        .beta1 = (float)h->beta1,
        .rest1 = (float)(1 - h->beta1),
        .beta2 = (float)h->beta2,
        .rest2 = (float)(1 - h->beta2),
        .mean = (float)(1 / (1 - power_int(h->beta1, h->step))),
        .root = (float)(1 / sqrt(1 - power_int(h->beta2, h->step))),
        .epsilon = (float)h->epsilon,
        .rate = (float)(h->learning_rate / (1 - power_int(h->beta1, h->step))),
    };
}

CLONES static void adam_loop(size_t n, float *restrict w, const float *restrict g,
                             float *restrict m, float *restrict v, const struct adam *restrict c)
{
    const struct adam k = *c;

    for (size_t i = 0; i < n; i++) {
        float x = w[i] * k.keep, d = g[i] * k.scale + k.decay * w[i];

        m[i] = k.beta1 * m[i] + k.rest1 * d;
        v[i] = k.beta2 * v[i] + k.rest2 * (d * d);
        w[i] = x - k.rate * (m[i] / (sqrtf(v[i]) * k.root + k.epsilon));
    }
}

static void adam_sweep(const struct optim_hyper *h, size_t n, float *w, const float *g,
                       float *const slots[OPTIM_MAX_SLOTS])
{
    struct adam k = adam_of(h);

    adam_loop(n, w, g, slots[0], slots[1], &k);
}

static void adamw_sweep(const struct optim_hyper *h, size_t n, float *w, const float *g,
                        float *const slots[OPTIM_MAX_SLOTS])
{
    struct adam k = adam_of(h);

    k.decay = 0;
    k.keep = (float)(1 - h->learning_rate * h->weight_decay);
    adam_loop(n, w, g, slots[0], slots[1], &k);
}

#define MOMENTS .n_slots = 2, .slots = { { "exp_avg", OPTIM_ALWAYS }, { "exp_avg_sq", OPTIM_ALWAYS } }

const struct optim_def optim_adam = { .name = "adam", MOMENTS, .sweep = adam_sweep };
const struct optim_def optim_adamw = { .name = "adamw", MOMENTS, .sweep = adamw_sweep };

/* ---- adamax ---- */

CLONES static void adamax_loop(size_t n, float *restrict w, const float *restrict g,
                               float *restrict m, float *restrict v,
                               const struct adam *restrict c)
{
    const struct adam k = *c;

    for (size_t i = 0; i < n; i++) {
        float d = g[i] * k.scale + k.decay * w[i];
        float old = k.beta2 * v[i], new = fabsf(d) + k.epsilon;

        m[i] = k.beta1 * m[i] + k.rest1 * d;
        v[i] = old > new ? old : new; /* a NaN in g stays one */
        w[i] -= k.rate * (m[i] / v[i]);
    }
}

static void adamax_sweep(const struct optim_hyper *h, size_t n, float *w, const float *g,
                         float *const slots[OPTIM_MAX_SLOTS])
{
    struct adam k = adam_of(h);

    adamax_loop(n, w, g, slots[0], slots[1], &k);
}

const struct optim_def optim_adamax = {
    .name = "adamax", .n_slots = 2,
    .slots = { { "exp_avg", OPTIM_ALWAYS }, { "exp_inf", OPTIM_ALWAYS } }, .sweep = adamax_sweep
};

/* ---- lamb: the moments and the norm of the update first, then the update itself ---- */

CLONES static void lamb_moments(size_t n, const float *restrict w, const float *restrict g,
                                float *restrict m, float *restrict v, float *restrict u,
                                const struct adam *restrict c)
{
    const struct adam k = *c;

    for (size_t i = 0; i < n; i++) {
        float d = g[i] * k.scale;

        m[i] = k.beta1 * m[i] + k.rest1 * d;
        v[i] = k.beta2 * v[i] + k.rest2 * (d * d);
        u[i] = m[i] * k.mean / (sqrtf(v[i]) * k.root + k.epsilon) + k.decay * w[i];
    }
}

static void lamb_measure(const struct optim_hyper *h, size_t n, const float *w, const float *g,
                         float *const slots[OPTIM_MAX_SLOTS], double sums[2])
{
    struct adam k = adam_of(h);
    float u[OPTIM_BLOCK];

    CHECK(n <= OPTIM_BLOCK);
    lamb_moments(n, w, g, slots[0], slots[1], u, &k);
    optim_square_sums(w, n, &sums[0]);
    optim_square_sums(u, n, &sums[1]);
}

static double lamb_trust(const struct optim_hyper *h, const double norms[2])
{
    (void)h;
    return norms[0] / norms[1];
}

CLONES static void lamb_loop(size_t n, float *restrict w, const float *restrict m,
                             const float *restrict v, const struct adam *restrict c)
{
    const struct adam k = *c;

    for (size_t i = 0; i < n; i++)
        w[i] -= k.rate * (m[i] * k.mean / (sqrtf(v[i]) * k.root + k.epsilon) + k.decay * w[i]);
}

static void lamb_sweep(const struct optim_hyper *h, size_t n, float *w, const float *g,
                       float *const slots[OPTIM_MAX_SLOTS])
{
    struct adam k = adam_of(h);

    (void)g; /* it is in the moments */
    k.rate = (float)(h->learning_rate * h->trust);
    lamb_loop(n, w, slots[0], slots[1], &k);
}

const struct optim_def optim_lamb = {
    .name = "lamb", MOMENTS, .sweep = lamb_sweep, .measure = lamb_measure, .trust = lamb_trust
};

/* ---- lion ---- */

CLONES static void lion_loop(size_t n, float *restrict w, const float *restrict g,
                             float *restrict m, const struct adam *restrict c)
{
    const struct adam k = *c;

    for (size_t i = 0; i < n; i++) {
        float d = g[i] * k.scale, u = k.beta1 * m[i] + k.rest1 * d;
        float sign = (u > 0 ? 1.0f : 0.0f) - (u < 0 ? 1.0f : 0.0f);

        m[i] = k.beta2 * m[i] + k.rest2 * d;
        w[i] -= k.rate * (sign + (u - u) + k.decay * w[i]); /* u - u: a NaN stays one */
    }
}

static void lion_sweep(const struct optim_hyper *h, size_t n, float *w, const float *g,
                       float *const slots[OPTIM_MAX_SLOTS])
{
    struct adam k = adam_of(h);

    k.rate = (float)h->learning_rate;
    lion_loop(n, w, g, slots[0], &k);
}

const struct optim_def optim_lion = {
    .name = "lion", .n_slots = 1, .slots = { { "exp_avg", OPTIM_ALWAYS } }, .sweep = lion_sweep
};
