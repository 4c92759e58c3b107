/* adagrad.c - adagrad, rmsprop. */
#include <math.h>

#include "optim/optim_priv.h"

struct scale {
    float scale, decay, rate, epsilon, momentum;
    float keep, rest; /* of the averages */
};

static struct scale scale_of(const struct optim_hyper *h)
{
    return (struct scale){
        .scale = h->grad_scale,
        .decay = (float)h->weight_decay,
        .rate = (float)h->learning_rate,
        .epsilon = (float)h->epsilon,
        .momentum = (float)h->momentum,
        .keep = (float)h->beta2,
        .rest = (float)(1 - h->beta2),
    };
}

CLONES static void adagrad_loop(size_t n, float *restrict w, const float *restrict g,
                                float *restrict s, const struct scale *restrict c)
{
    const struct scale k = *c;

    for (size_t i = 0; i < n; i++) {
        float d = g[i] * k.scale + k.decay * w[i];

        s[i] += d * d;
        w[i] -= k.rate * (d / (sqrtf(s[i]) + k.epsilon));
    }
}

static void adagrad_sweep(const struct optim_hyper *h, size_t n, float *w, const float *g,
                          float *const slots[OPTIM_MAX_SLOTS])
{
    struct scale k = scale_of(h);

    adagrad_loop(n, w, g, slots[0], &k);
}

/* Without epsilon it is 0 / 0 where no gradient ever was. */
static bool adagrad_rests(const struct optim_hyper *h)
{
    return h->weight_decay == 0 && (float)h->epsilon > 0 && optim_scale_is_finite(h);
}

const struct optim_def optim_adagrad = {
    .name = "adagrad", .n_slots = 1, .slots = { { "sum", OPTIM_ALWAYS } }, .sweep = adagrad_sweep,
    .rests = adagrad_rests
};

/* ---- rmsprop: the average of squares, then perhaps the two others, a loop each way ---- */

enum { SQUARE, MOMENTUM, MEAN };

CLONES static void rmsprop_plain(size_t n, float *restrict w, const float *restrict g,
                                 float *restrict s, const struct scale *restrict c)
{
    const struct scale k = *c;

    for (size_t i = 0; i < n; i++) {
        float d = g[i] * k.scale + k.decay * w[i];

        s[i] = k.keep * s[i] + k.rest * (d * d);
        w[i] -= k.rate * (d / (sqrtf(s[i]) + k.epsilon));
    }
}

CLONES static void rmsprop_momentum(size_t n, float *restrict w, const float *restrict g,
                                    float *restrict s, float *restrict v,
                                    const struct scale *restrict c)
{
    const struct scale k = *c;

    for (size_t i = 0; i < n; i++) {
        float d = g[i] * k.scale + k.decay * w[i];

        s[i] = k.keep * s[i] + k.rest * (d * d);
        v[i] = k.momentum * v[i] + d / (sqrtf(s[i]) + k.epsilon);
        w[i] -= k.rate * v[i];
    }
}

/* s - c^2 is a variance; rounding may make it a little negative where it is about zero. */
CLONES static void rmsprop_centered(size_t n, float *restrict w, const float *restrict g,
                                    float *restrict s, float *restrict a,
                                    const struct scale *restrict c)
{
    const struct scale k = *c;

    for (size_t i = 0; i < n; i++) {
        float d = g[i] * k.scale + k.decay * w[i], x;

        s[i] = k.keep * s[i] + k.rest * (d * d);
        a[i] = k.keep * a[i] + k.rest * d;
        x = s[i] - a[i] * a[i];
        x = x < 0 ? 0 : x;
        w[i] -= k.rate * (d / (sqrtf(x) + k.epsilon));
    }
}

CLONES static void rmsprop_both(size_t n, float *restrict w, const float *restrict g,
                                float *restrict s, float *restrict v, float *restrict a,
                                const struct scale *restrict c)
{
    const struct scale k = *c;

    for (size_t i = 0; i < n; i++) {
        float d = g[i] * k.scale + k.decay * w[i], x;

        s[i] = k.keep * s[i] + k.rest * (d * d);
        a[i] = k.keep * a[i] + k.rest * d;
        x = s[i] - a[i] * a[i];
        x = x < 0 ? 0 : x;
        v[i] = k.momentum * v[i] + d / (sqrtf(x) + k.epsilon);
        w[i] -= k.rate * v[i];
    }
}

static void rmsprop_sweep(const struct optim_hyper *h, size_t n, float *w, const float *g,
                          float *const slots[OPTIM_MAX_SLOTS])
{
    struct scale k = scale_of(h);
    float *s = slots[SQUARE], *v = slots[MOMENTUM], *a = slots[MEAN];

    if (h->momentum > 0 && h->centered)
        rmsprop_both(n, w, g, s, v, a, &k);
    else if (h->momentum > 0)
        rmsprop_momentum(n, w, g, s, v, &k);
    else if (h->centered)
        rmsprop_centered(n, w, g, s, a, &k);
    else
        rmsprop_plain(n, w, g, s, &k);
}

const struct optim_def optim_rmsprop = {
    .name = "rmsprop", .n_slots = 3,
    .slots = { [SQUARE] = { "square_avg", OPTIM_ALWAYS },
               [MOMENTUM] = { "momentum_buffer", OPTIM_WITH_MOMENTUM },
               [MEAN] = { "grad_avg", OPTIM_CENTERED } },
    .sweep = rmsprop_sweep
};
