/* optim_formula.h - the update of one element by each optimizer, for CPUs and GPUs.
 *
 * optim.h has the formulas in words, the papers and PyTorch's names. Arguments: k the coefficients
 * of the step, c those of the parameter, w the weight, g its gradient, and the slots of the row in
 * their order. Every operation rounds by itself on a CPU (-ffp-contract=off) and on a GPU
 * (-fmad=false; see the Makefile), so CPUs and GPUs agree. */
#ifndef OPTIM_OPTIM_FORMULA_H
#define OPTIM_OPTIM_FORMULA_H

#include <math.h>
#include <stdbool.h>

#include "base/formula.h"
#include "base/power.h"
#include "optim/optim.h"

/* ---- coefficients ---- */

struct optim_step { /* of a step */
    float scale, momentum, epsilon;
    float beta1, rest1, beta2, rest2; /* rest: 1 - beta */
    float mean;                       /* 1 / (1 - beta1^t) */
    float root;                       /* 1 / sqrt(1 - beta2^t) */
};

struct optim_param_step { /* of a parameter in a step */
    float rate;
    float decay; /* added to the gradient; by lamb and lion, to the update */
    float keep;  /* the factor of the weight before the update; not 1 for adamw */
};

/* mean and root stay 0: see optim_correct(). */
static inline struct optim_step optim_step_of(const struct optim_hyper *h)
{
    struct optim_step k;

    k.scale = h->grad_scale;
    k.momentum = (float)h->momentum;
    k.epsilon = (float)h->epsilon;
    k.beta1 = (float)h->beta1;
    k.rest1 = (float)(1 - h->beta1);
    k.beta2 = (float)h->beta2;
    k.rest2 = (float)(1 - h->beta2);
    k.mean = k.root = 0;
    return k;
}

/* The corrections of the two moments, which start at 0. Returns 1 - beta1^t, which divides the
 * rate. */
static inline double optim_correct(const struct optim_hyper *h, struct optim_step *k)
{
    double rest = 1 - power_int(h->beta1, h->step);

    k->mean = (float)(1 / rest);
    k->root = (float)(1 / sqrt(1 - power_int(h->beta2, h->step)));
    return rest;
}

/* ---- sgd, momentum, lars ---- */

FORMULA float optim_decayed(const struct optim_step *k, const struct optim_param_step *c, float w,
                            float g)
{
    return g * k->scale + c->decay * w;
}

FORMULA void optim_update_sgd(const struct optim_step *k, const struct optim_param_step *c,
                              float *w, float g)
{
    *w -= c->rate * optim_decayed(k, c, *w, g);
}

FORMULA void optim_update_momentum(const struct optim_step *k, const struct optim_param_step *c,
                                   bool nesterov, float *w, float g, float *v)
{
    float d = optim_decayed(k, c, *w, g);

    *v = k->momentum * *v + d;
    *w -= c->rate * (nesterov ? d + k->momentum * *v : *v);
}

FORMULA void optim_update_lars(const struct optim_step *k, const struct optim_param_step *c,
                               float *w, float g, float *v)
{
    *v = k->momentum * *v + c->rate * optim_decayed(k, c, *w, g);
    *w -= *v;
}

/* ---- adagrad, rmsprop ---- */

FORMULA void optim_update_adagrad(const struct optim_step *k, const struct optim_param_step *c,
                                  float *w, float g, float *s)
{
    float d = optim_decayed(k, c, *w, g);

    *s += d * d;
    *w -= c->rate * (d / (sqrtf(*s) + k->epsilon));
}

/* s the average of squares, v the momentum (without `moves` NULL), a the average (without `centers`
 * NULL). s - a^2 is a variance; rounding may make it a little negative where it is about zero. */
FORMULA void optim_update_rmsprop(const struct optim_step *k, const struct optim_param_step *c,
                                  bool moves, bool centers, float *w, float g, float *s, float *v,
                                  float *a)
{
    float d = optim_decayed(k, c, *w, g), x, u;

    x = *s = k->beta2 * *s + k->rest2 * (d * d);
    if (centers) {
        *a = k->beta2 * *a + k->rest2 * d;
        x -= *a * *a;
        x = x < 0 ? 0 : x;
    }
    u = d / (sqrtf(x) + k->epsilon);
    if (moves)
        u = *v = k->momentum * *v + u;
    *w -= c->rate * u;
}

/* ---- adam, adamw, adamax, lion, lamb: m and v are the first and the second moment ---- */

FORMULA void optim_update_moments(const struct optim_step *k, float d, float *m, float *v)
{
    *m = k->beta1 * *m + k->rest1 * d;
    *v = k->beta2 * *v + k->rest2 * (d * d);
}

FORMULA void optim_update_adam(const struct optim_step *k, const struct optim_param_step *c,
                               float *w, float g, float *m, float *v)
{
    optim_update_moments(k, optim_decayed(k, c, *w, g), m, v);
    *w = *w * c->keep - c->rate * (*m / (sqrtf(*v) * k->root + k->epsilon));
}

FORMULA void optim_update_adamax(const struct optim_step *k, const struct optim_param_step *c,
                                 float *w, float g, float *m, float *v)
{
    float d = optim_decayed(k, c, *w, g);
    float old_max = k->beta2 * *v, new_max = fabsf(d) + k->epsilon;

    *m = k->beta1 * *m + k->rest1 * d;
    *v = old_max > new_max ? old_max : new_max; /* a NaN in g stays one */
    *w -= c->rate * (*m / *v);
}

FORMULA void optim_update_lion(const struct optim_step *k, const struct optim_param_step *c,
                               float *w, float g, float *m)
{
    float d = g * k->scale, u = k->beta1 * *m + k->rest1 * d;
    float sign = (u > 0 ? 1.0f : 0.0f) - (u < 0 ? 1.0f : 0.0f);

    *m = k->beta2 * *m + k->rest2 * d;
    *w -= c->rate * (sign + (u - u) + c->decay * *w); /* u - u: a NaN stays one */
}

/* lamb: optim_update_moments() and the norm of the update come first, then the update itself. */
FORMULA float optim_lamb_update(const struct optim_step *k, const struct optim_param_step *c,
                                float w, float m, float v)
{
    return m * k->mean / (sqrtf(v) * k->root + k->epsilon) + c->decay * w;
}

FORMULA void optim_update_lamb(const struct optim_step *k, const struct optim_param_step *c,
                               float *w, float m, float v)
{
    *w -= c->rate * optim_lamb_update(k, c, *w, m, v);
}

/* ---- after the update ---- */

FORMULA float optim_moved_average(float average, float w, float keep, float rest)
{
    return keep * average + rest * w;
}

#endif
