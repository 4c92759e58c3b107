/* schedule.c - the learning rate and the momentum of a step, with the same bits in every C
 * library. */
#include <math.h>

#include "base/check.h"
#include "base/power.h"
#include "optim/optim_priv.h"

/* cos(pi u) for 0 <= u <= 1, computed by a series: the last bit of cos() differs between C
 * libraries and processors. */
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

/* 1 at u = 0, 0 at u = 1, half a cosine between. */
static double half_cosine(double u)
{
    return (1 + cos_pi(u)) / 2;
}

/* u of the header: 0 up to the last step of the warm-up, 1 from the last step on. */
static double progress(const struct optim_schedule *s, uint64_t t)
{
    uint64_t peak = s->warmup_steps > 0 ? s->warmup_steps : 1; /* the step with the full rate */

    if (t <= peak)
        return 0;
    if (t >= s->total_steps)
        return 1;
    return (double)(t - peak) / (double)(s->total_steps - peak);
}

/* The factor of the rate at step t after the warm-up; one function for each type. */

static double constant(const struct optim_schedule *s, uint64_t t)
{
    (void)s;
    (void)t;
    return 1;
}

static double step(const struct optim_schedule *s, uint64_t t)
{
    CHECK(s->step_size > 0);
    return power_int(s->gamma, (t - s->warmup_steps - 1) / s->step_size);
}

static double exponential(const struct optim_schedule *s, uint64_t t)
{
    uint64_t behind = t - s->warmup_steps - 1;

    CHECK(s->step_size > 0);
    return power_int(s->gamma, behind / s->step_size) *
           power_real(s->gamma, (double)(behind % s->step_size) / (double)s->step_size);
}

static double cosine(const struct optim_schedule *s, uint64_t t)
{
    double f = s->final_fraction;

    return f + (1 - f) * half_cosine(progress(s, t));
}

static double polynomial(const struct optim_schedule *s, uint64_t t)
{
    double f = s->final_fraction;

    return f + (1 - f) * power_real(1 - progress(s, t), s->power);
}

/* Rises from 0 to 1 at the peak, and falls to 0. Steps count from 0 here, as in the code of the
 * paper and of PyTorch. */
static double cycle_height(const struct optim_schedule *s, uint64_t t, bool *rises)
{
    double last = (double)s->total_steps - 1, peak = s->rise * (double)s->total_steps - 1;
    double at = (double)(t - 1);

    *rises = at < peak && at < last;
    if (at >= last)
        return 0;
    return *rises ? 1 - half_cosine(at / peak) : half_cosine((at - peak) / (last - peak));
}

static double one_cycle(const struct optim_schedule *s, uint64_t t)
{
    bool rises;
    double height = cycle_height(s, t, &rises),
           foot = rises ? s->initial_fraction : s->final_fraction;

    return foot + (1 - foot) * height;
}

void optim_cycle(const struct optim_schedule *s, uint64_t t, struct optim_hyper *h)
{
    double *moves = s->cycles == OPTIM_CYCLES_MOMENTUM ? &h->momentum : &h->beta1;
    bool rises;

    CHECK(t > 0);
    if (s->cycles != OPTIM_CYCLES_NOTHING)
        *moves -= (*moves - s->base_momentum) * cycle_height(s, t, &rises);
}

static double plateau(const struct optim_schedule *s, uint64_t t)
{
    double share = power_int(s->gamma, s->plateau.reductions);

    (void)t;
    return share > s->final_fraction ? share : s->final_fraction;
}

static double inverse_square_root(const struct optim_schedule *s, uint64_t t)
{
    return sqrt((double)(s->warmup_steps > 0 ? s->warmup_steps : 1) / (double)t);
}

double optim_rate(const struct optim_schedule *s, uint64_t t)
{
#define ROW(NAME, word, ...) [OPTIM_##NAME] = word,
    static double (*const shares[])(const struct optim_schedule *, uint64_t) = {
        OPTIM_SCHEDULE_LIST(ROW)
    };
#undef ROW
    double rate = s->learning_rate;

    CHECK(t > 0 && (size_t)s->type < COUNT_OF(shares));
    if (t <= s->warmup_steps)
        rate *= (double)t / (double)s->warmup_steps;
    if (t <= s->warmup_steps && s->type != OPTIM_PLATEAU)
        return rate;
    return rate * shares[s->type](s, t);
}

void optim_record_evaluation(struct optim_schedule *s, uint64_t t, double loss)
{
    struct optim_plateau *p = &s->plateau;

    if (s->type != OPTIM_PLATEAU || t <= p->step)
        return;
    if (isfinite(loss) && (!p->has_best || loss < p->best * (1 - s->threshold))) {
        p->has_best = true;
        p->best = loss;
        p->waited = 0;
    } else if (++p->waited > s->patience) {
        p->waited = 0;
        p->reductions++;
    }
    p->step = t;
}

double optim_scale_linear(double rate, uint64_t batch, uint64_t reference)
{
    CHECK(reference > 0);
    return rate * (double)batch / (double)reference;
}

double optim_scale_sqrt(double rate, uint64_t batch, uint64_t reference)
{
    CHECK(reference > 0);
    return rate * sqrt((double)batch / (double)reference);
}
