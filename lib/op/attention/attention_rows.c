/* attention_rows.c - what happens to a block of scores between its products, row by row: a row stays
 * in the nearest cache from one loop to the next. */
#include <math.h>

#include "op/attention/attention.h"
#include "op/lanes.h"
#include "op/op_priv.h"
#include "op/vmath.h"

/* A row's piece of the mask of each step. */
struct masks {
    const void *at[ATTENTION_STEPS];
};

static struct masks masks_of(const struct attention_rows *r, int64_t matrix, int64_t row)
{
    const struct attention *a = r->a;
    struct masks m = { { NULL } };
    uint32_t i;

    for (i = 0; i < a->n_steps; i++) {
        const struct attention_step *s = &a->step[i];
        ptrdiff_t at;

        if (s->kind == ATTENTION_SCALE)
            continue;
        at = attention_matrix(a, &s->at, matrix) + (ptrdiff_t)row * s->at.row +
             (ptrdiff_t)r->keys.first;
        m.at[i] = (const char *)r->c->in[s->input]->data +
                  at * (ptrdiff_t)(s->kind == ATTENTION_ADD ? sizeof(float) : 1);
    }
    return m;
}

OP_INLINE void steps(const struct attention *a, const struct masks *m, size_t n, float *x)
{
    uint32_t k;
    size_t i;

    for (k = 0; k < a->n_steps; k++) {
        const float number = a->step[k].number, *add = m->at[k];
        const uint8_t *mask = m->at[k];

        switch (a->step[k].kind) {
        case ATTENTION_SCALE:
            OP_EACH
            for (i = 0; i < n; i++)
                x[i] *= number;
            break;
        case ATTENTION_ADD:
            OP_EACH
            for (i = 0; i < n; i++)
                x[i] += add[i];
            break;
        case ATTENTION_KEEP:
            OP_EACH
            for (i = 0; i < n; i++)
                x[i] = mask[i] != 0 ? x[i] : number;
            break;
        case ATTENTION_FILL:
            OP_EACH
            for (i = 0; i < n; i++)
                x[i] = mask[i] != 0 ? number : x[i];
            break;
        }
    }
}

/* The gradient of a row of scores, back through the steps. */
OP_INLINE void steps_bwd(const struct attention *a, const struct masks *m, size_t n, float *d)
{
    uint32_t k;
    size_t i;

    for (k = a->n_steps; k-- > 0;) {
        const float number = a->step[k].number;
        const uint8_t *mask = m->at[k];

        switch (a->step[k].kind) {
        case ATTENTION_SCALE:
            OP_EACH
            for (i = 0; i < n; i++)
                d[i] *= number;
            break;
        case ATTENTION_ADD:
            break;
        case ATTENTION_KEEP:
            OP_EACH
            for (i = 0; i < n; i++)
                d[i] = mask[i] != 0 ? d[i] : 0.0f;
            break;
        case ATTENTION_FILL:
            OP_EACH
            for (i = 0; i < n; i++)
                d[i] = mask[i] != 0 ? 0.0f : d[i];
            break;
        }
    }
}

OP_INLINE void exponentials(size_t n, float *x, float max)
{
    size_t i;

    OP_EACH
    for (i = 0; i < n; i++)
        x[i] = vm_exp(x[i] - max);
}

OP_INLINE void drop(size_t n, const uint8_t *keep, float scale, float *x)
{
    size_t i;

    OP_EACH
    for (i = 0; i < n; i++)
        x[i] = keep[i] != 0 ? x[i] * scale : 0.0f;
}

CLONES static void row_fwd(const struct attention *a, const struct masks *m, size_t n, float *x,
                           float *max, float *scale)
{
    steps(a, m, n, x);
    *max = op_row_max(x, n);
    exponentials(n, x, *max);
    *scale = (float)(1.0 / op_row_sum(x, n));
}

CLONES static void row_drop(size_t n, const uint8_t *keep, float scale, float *x)
{
    drop(n, keep, scale, x);
}

/* The weights w again; with dropout what was kept of them goes to v, and only that brings a
 * gradient. */
CLONES static void row_bwd(const struct attention *a, const struct masks *m, size_t n, float max,
                           float scale, float dot, const uint8_t *keep, float *x, float *d)
{
    const float kept = a->dropout.scale;
    size_t i;

    steps(a, m, n, x);
    if (keep == NULL) {
        OP_EACH
        for (i = 0; i < n; i++) {
            float w = vm_exp(x[i] - max) * scale;

            x[i] = w;
            d[i] = w * (d[i] - dot);
        }
    } else {
        OP_EACH
        for (i = 0; i < n; i++) {
            float w = vm_exp(x[i] - max) * scale, on = keep[i] != 0 ? kept : 0.0f;

            x[i] = w * on;
            d[i] = w * (d[i] * on - dot);
        }
    }
    steps_bwd(a, m, n, d);
}

/* ---- blocks ---- */

struct place { /* of a row of the block */
    int64_t matrix, row;
    size_t at; /* in max and scale, of the whole call */
};

static struct place place_of(const struct attention_rows *r, int64_t i)
{
    struct place p = { .matrix = r->matrix + i / r->rows, .row = r->row + i % r->rows };

    p.at = (size_t)(p.matrix * r->a->t + p.row);
    return p;
}

/* NULL: nothing is dropped. */
static const uint8_t *keep_of(const struct attention_rows *r, const struct place *p)
{
    if (!r->a->dropout.drops)
        return NULL;
    dropout_draw(&r->a->dropout, r->c,
                 (uint64_t)p->at * (uint64_t)r->a->s + (uint64_t)r->keys.first,
                 (size_t)(r->keys.end - r->keys.first), r->keep);
    return r->keep;
}

void attention_rows_fwd(const struct attention_rows *r, float *scores)
{
    size_t n = (size_t)(r->keys.end - r->keys.first);
    int64_t i;

    for (i = 0; i < r->matrices * r->rows; i++, scores += n) {
        struct place p = place_of(r, i);
        struct masks m = masks_of(r, p.matrix, p.row);
        const uint8_t *keep;

        row_fwd(r->a, &m, n, scores, &r->max[p.at], &r->scale[p.at]);
        keep = keep_of(r, &p);
        if (keep != NULL)
            row_drop(n, keep, r->a->dropout.scale, scores);
    }
}

bool attention_rows_outweigh(const struct attention_rows *r, float hidden)
{
    const float nothing = 104; /* e^-104 is less than half of the smallest float */
    int64_t i;

    for (i = 0; i < r->matrices * r->rows; i++)
        if (!(r->max[place_of(r, i).at] - hidden >= nothing)) /* NaN: no */
            return false;
    return true;
}

void attention_rows_bwd(const struct attention_rows *r, const float *dot, float *scores, float *dp)
{
    size_t n = (size_t)(r->keys.end - r->keys.first);
    int64_t i;

    for (i = 0; i < r->matrices * r->rows; i++, scores += n, dp += n) {
        struct place p = place_of(r, i);
        struct masks m = masks_of(r, p.matrix, p.row);

        row_bwd(r->a, &m, n, r->max[p.at], r->scale[p.at], dot[i], keep_of(r, &p), scores, dp);
    }
}
