/* curve.c - see curve.h. */
#include "daemon/curve.h"

#include <math.h>

#include "base/buf.h"
#include "base/check.h"

static void add_to(struct curve_point *p, const struct curve_step *s)
{
    if (p->n == 0)
        p->first = s->step;
    p->last = s->step;
    p->time_us = s->time_us;
    p->loss += s->loss;
    p->learning_rate = s->learning_rate;
    p->samples += s->samples;
    p->ns += s->ns;
    p->n++;
    if (!isnan(s->gradient_norm)) {
        p->norm += s->gradient_norm;
        p->n_norms++;
    }
}

/* Adds the later point b to a. */
static void merge(struct curve_point *a, const struct curve_point *b)
{
    a->last = b->last;
    a->time_us = b->time_us;
    a->loss += b->loss;
    a->norm += b->norm;
    a->learning_rate = b->learning_rate;
    a->samples += b->samples;
    a->ns += b->ns;
    a->n += b->n;
    a->n_norms += b->n_norms;
}

static void halve(struct curve *c)
{
    for (uint32_t i = 0; i < c->n / 2; i++) {
        c->points[i] = c->points[2 * i];
        merge(&c->points[i], &c->points[2 * i + 1]);
    }
    c->n /= 2;
    c->stride *= 2;
}

void curve_add(struct curve *c, const struct curve_step *s)
{
    if (c->stride == 0)
        c->stride = 1;
    while (c->n > 0 && c->points[c->n - 1].last >= s->step)
        c->n--;
    if (c->n == 0 || c->points[c->n - 1].n >= c->stride) {
        if (c->n == CURVE_POINTS)
            halve(c);
        c->points[c->n++] = (struct curve_point){ 0 };
    }
    add_to(&c->points[c->n - 1], s);
}

void curve_add_evaluation(struct curve *c, const struct curve_evaluation *e)
{
    c->evaluations[c->n_evaluations++ % CURVE_EVALUATIONS] = *e;
}

/* ---- JSON ---- */

enum column { STEP, TIME, LOSS, RATE, NORM, SPEED, COLUMNS };

static double value_of(const struct curve_point *p, enum column column)
{
    switch (column) {
    case LOSS:
        return p->loss / p->n;
    case RATE:
        return p->learning_rate;
    case NORM:
        return p->n_norms > 0 ? p->norm / p->n_norms : (double)NAN;
    case SPEED:
        return p->ns > 0 ? (double)p->samples / ((double)p->ns / 1e9) : (double)NAN;
    default:
        return NAN;
    }
}

static void print_column(const struct curve *c, enum column column, struct buf *out)
{
    static const char *const names[COLUMNS] = {
        [STEP] = "step", [TIME] = "time_us", [LOSS] = "loss",
        [RATE] = "learning_rate", [NORM] = "gradient_norm", [SPEED] = "samples_per_second",
    };

    buf_printf(out, "%s\"%s\": [", column > 0 ? ", " : "", names[column]);
    for (uint32_t i = 0; i < c->n; i++) {
        const struct curve_point *p = &c->points[i];

        buf_str(out, i > 0 ? "," : "");
        if (column == STEP || column == TIME)
            buf_printf(out, "%llu", (unsigned long long)(column == STEP ? p->last : p->time_us));
        else
            buf_f32(out, (float)value_of(p, column)); /* null for NaN and infinities */
    }
    buf_str(out, "]");
}

static void print_evaluation(const struct curve_evaluation *e, const char *const *names,
                             uint32_t n_names, struct buf *out)
{
    buf_printf(out, "{\"step\": %llu, \"time_us\": %llu, \"loss\": ", (unsigned long long)e->step,
               (unsigned long long)e->time_us);
    buf_f64(out, e->loss);
    buf_str(out, ", \"metrics\": {");
    for (uint32_t i = 0; i < n_names; i++) {
        buf_str(out, i > 0 ? ", " : "");
        buf_json(out, names[i]);
        buf_str(out, ": ");
        buf_f64(out, e->metrics[i]);
    }
    buf_str(out, "}}");
}

void curve_print(const struct curve *c, const char *const *names, uint32_t n_names, struct buf *out)
{
    uint64_t at = c->n_evaluations > CURVE_EVALUATIONS ? c->n_evaluations - CURVE_EVALUATIONS : 0;

    CHECK(n_names <= sizeof(c->evaluations[0].metrics) / sizeof(c->evaluations[0].metrics[0]));
    buf_printf(out, "{\"stride\": %llu, ", (unsigned long long)c->stride);
    for (int column = 0; column < COLUMNS; column++)
        print_column(c, (enum column)column, out);
    buf_str(out, ", \"evaluations\": [");
    for (uint64_t i = at; i < c->n_evaluations; i++) {
        buf_str(out, i > at ? ", " : "");
        print_evaluation(&c->evaluations[i % CURVE_EVALUATIONS], names, n_names, out);
    }
    buf_str(out, "]}\n");
}
