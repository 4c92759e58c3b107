/* optim.c - the table and its loops. An element needs nothing but its own weight, gradient and
 * slots, and every operation is rounded by itself (-ffp-contract=off; division and square root are
 * exact to the last bit by IEEE 754), so vectors of any width give the same bits. */
#include "optim/optim.h"

#include <math.h>
#include <string.h>

#include "base/check.h"
#include "base/clones.h"


/* x^n by squaring: the same bits everywhere, which pow() of different C libraries is not. */
static double power(double x, uint64_t n)
{
    double y = 1;

    for (; n > 0; n >>= 1, x *= x)
        if (n & 1)
            y *= x;
    return y;
}

/* ---- sgd ---- */

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

static void momentum_sweep(const struct optim_hyper *h, size_t n, float *w, const float *g,
                           float *const slots[OPTIM_MAX_SLOTS])
{
    momentum_loop(n, w, g, slots[0], h->grad_scale, (float)h->weight_decay, (float)h->momentum,
                  (float)h->learning_rate);
}

/* ---- adam, adamw ---- */

struct adam {
    float scale;
    float decay; /* added to the gradient */
    float keep;  /* what weights are multiplied by first */
    float beta1, rest1, beta2, rest2;
    float root;  /* 1 / sqrt(1 - beta2^t) */
    float epsilon;
    float rate;  /* a / (1 - beta1^t) */
};

CLONES static void adam_loop(size_t n, float *restrict w, const float *restrict g, float *restrict m,
                           float *restrict v, const struct adam *restrict c)
{
    const struct adam k = *c;

    for (size_t i = 0; i < n; i++) {
        float x = w[i] * k.keep, d = g[i] * k.scale + k.decay * w[i];

        m[i] = k.beta1 * m[i] + k.rest1 * d;
        v[i] = k.beta2 * v[i] + k.rest2 * (d * d);
        w[i] = x - k.rate * (m[i] / (sqrtf(v[i]) * k.root + k.epsilon));
    }
}

static void adam_any(const struct optim_hyper *h, double decay, double keep, size_t n, float *w,
                     const float *g, float *const slots[OPTIM_MAX_SLOTS])
{
    struct adam k = {
        .scale = h->grad_scale,
        .decay = (float)decay,
        .keep = (float)keep,
        .beta1 = (float)h->beta1,
        .rest1 = (float)(1 - h->beta1),
        .beta2 = (float)h->beta2,
        .rest2 = (float)(1 - h->beta2),
        .epsilon = (float)h->epsilon,
    };

    CHECK(h->step > 0);
    k.root = (float)(1 / sqrt(1 - power(h->beta2, h->step)));
    k.rate = (float)(h->learning_rate / (1 - power(h->beta1, h->step)));
    adam_loop(n, w, g, slots[0], slots[1], &k);
}

static void adam_sweep(const struct optim_hyper *h, size_t n, float *w, const float *g,
                       float *const slots[OPTIM_MAX_SLOTS])
{
    adam_any(h, h->weight_decay, 1, n, w, g, slots);
}

static void adamw_sweep(const struct optim_hyper *h, size_t n, float *w, const float *g,
                        float *const slots[OPTIM_MAX_SLOTS])
{
    adam_any(h, 0, 1 - h->learning_rate * h->weight_decay, n, w, g, slots);
}

/* ---- the table ---- */

static const struct optim_def sgd = { .name = "sgd", .sweep = sgd_sweep };
static const struct optim_def momentum = {
    .name = "momentum", .n_slots = 1, .slots = { "momentum" }, .sweep = momentum_sweep
};
static const struct optim_def adam = {
    .name = "adam", .n_slots = 2, .slots = { "exp_avg", "exp_avg_sq" }, .sweep = adam_sweep
};
static const struct optim_def adamw = {
    .name = "adamw", .n_slots = 2, .slots = { "exp_avg", "exp_avg_sq" }, .sweep = adamw_sweep
};

static const struct optim_def *const all[] = { &sgd, &momentum, &adam, &adamw };

const struct optim_def *optim_find(const char *name)
{
    for (size_t i = 0; i < COUNT_OF(all); i++)
        if (strcmp(all[i]->name, name) == 0)
            return all[i];
    return NULL;
}

const struct optim_def *const *optim_all(size_t *n)
{
    *n = COUNT_OF(all);
    return all;
}

/* ---- norm ---- */

/* As many running sums as the widest vector holds doubles, twice. Element i of a block belongs to
 * sum i mod LANES whatever the width, and the sums are joined as a tree. */
enum { LANES = 16 };
_Static_assert(OPTIM_BLOCK % LANES == 0, "a block is whole rounds of sums");

CLONES static double block_sum(const float *g, size_t n)
{
    double sum[LANES] = { 0 };
    size_t whole = n - n % LANES;

    for (size_t i = 0; i < whole; i += LANES)
        for (size_t k = 0; k < LANES; k++)
            sum[k] += (double)g[i + k] * (double)g[i + k]; /* exact: 2 * 24 bits fit */
    for (size_t i = whole; i < n; i++)
        sum[i - whole] += (double)g[i] * (double)g[i];
    for (size_t half = LANES / 2; half > 0; half /= 2)
        for (size_t k = 0; k < half; k++)
            sum[k] += sum[k + half];
    return sum[0];
}

void optim_square_sums(const float *g, size_t n, double *partial)
{
    for (size_t at = 0; at < n; at += OPTIM_BLOCK)
        *partial++ = block_sum(g + at, n - at < OPTIM_BLOCK ? n - at : OPTIM_BLOCK);
}

double optim_norm(const double *partial, size_t n_blocks)
{
    double sum = 0;

    for (size_t i = 0; i < n_blocks; i++)
        sum += partial[i];
    return sqrt(sum);
}

float optim_clip(double norm, double clip)
{
    double scale;

    if (clip == 0)
        return 1;
    scale = clip / (norm + 1e-6);
    return scale > 1 ? 1 : (float)scale; /* a NaN stays one */
}

/* ---- learning rate ---- */

/* cos(pi u) for 0 <= u <= 1, by its own series and not by cos(), whose last bit is another one in
 * other C libraries and on other processors. */
static double cos_pi(double u)
{
    const double pi = 3.14159265358979323846;
    double sign = 1, x, square, term, sum;
    uint32_t n;

    if (u > 0.5) { /* cos(pi - x) = -cos(x) */
        u = 1 - u;
        sign = -1;
    }
    if (u <= 0.25) {
        x = pi * u;
        term = sum = 1; /* 1 - x^2/2! + x^4/4! - ... */
        n = 1;
    } else {
        x = pi * (0.5 - u);
        term = sum = x; /* sin(pi/2 - x): x - x^3/3! + x^5/5! - ... */
        n = 2;
    }
    square = x * x;
    for (; n < 22; n += 2) { /* |x| <= pi/4: the last term is below 1e-23 */
        term *= -square / ((double)n * (double)(n + 1));
        sum += term;
    }
    return sign * sum;
}

static double cosine(const struct optim_schedule *s, uint64_t t)
{
    uint64_t peak = s->warmup_steps > 0 ? s->warmup_steps : 1; /* the step with the full rate */
    double f = s->final_fraction, u = 1;

    if (t <= peak)
        u = 0;
    else if (t < s->total_steps)
        u = (double)(t - peak) / (double)(s->total_steps - peak);
    return s->learning_rate * (f + (1 - f) * (1 + cos_pi(u)) / 2);
}

double optim_rate(const struct optim_schedule *s, uint64_t t)
{
    CHECK(t > 0);
    if (t <= s->warmup_steps)
        return s->learning_rate * ((double)t / (double)s->warmup_steps);
    switch (s->type) {
    case OPTIM_CONSTANT:
        return s->learning_rate;
    case OPTIM_STEP:
        CHECK(s->step_size > 0);
        return s->learning_rate * power(s->gamma, (t - s->warmup_steps - 1) / s->step_size);
    case OPTIM_COSINE:
        return cosine(s, t);
    }
    CHECK(!"a schedule that is in the enum");
    return 0;
}

double optim_scale_linear(double rate, uint64_t batch, uint64_t reference)
{
    CHECK(reference > 0);
    return rate * (double)batch / (double)reference;
}
