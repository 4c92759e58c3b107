/* attention_rows.c - the softmax of a block of scores, row by row, so that a row stays in the L1
 * cache from one loop to the next. */
#include <math.h>

#include "op/attention/attention.h"
#include "op/simd.h"
#include "op/op_priv.h"
#include "op/vmath.h"

/* The mask row of each step. */
struct masks {
    const char *at[ATTENTION_STEPS];
    ptrdiff_t row[ATTENTION_STEPS]; /* stride between rows, in bytes */
};

/* Returns the masks of the block's first row in a matrix. */
static struct masks masks_of(const struct attention_rows *r, int64_t matrix)
{
    const struct attention *a = r->a;
    struct masks m = { { NULL }, { 0 } };
    uint32_t i;

    for (i = 0; i < a->n_steps; i++) {
        const struct attention_step *s = &a->step[i];
        ptrdiff_t size = s->kind == ATTENTION_ADD ? sizeof(float) : 1;

        if (!attention_has_mask(s))
            continue;
        m.row[i] = s->at.row * size;
        m.at[i] = (const char *)r->c->in[s->input]->data + (ptrdiff_t)r->row * m.row[i] +
                  (attention_matrix(a, &s->at, matrix) + (ptrdiff_t)r->keys.first) * size;
    }
    return m;
}

static void next_row(const struct attention *a, struct masks *m)
{
    uint32_t i;

    for (i = 0; i < a->n_steps; i++)
        m->at[i] += m->row[i];
}

/* The columns of a row that are computed: those inside the band. */
struct part {
    size_t skip, n; /* n columns from column `skip` of the row's keys on */
};

/* Applies the steps to x [n]. capped [n]: receives the scores after ATTENTION_CAP; or NULL. */
INLINED void steps(const struct attention *a, const struct masks *m, struct part part, float *x,
                   float *capped)
{
    const size_t n = part.n;
    uint32_t k;
    size_t i;

    for (k = 0; k < a->n_steps; k++) {
        const float number = a->step[k].number, *add = (const float *)m->at[k] + part.skip;
        const uint8_t *mask = (const uint8_t *)m->at[k] + part.skip;

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
        case ATTENTION_CAP:
            OP_EACH
            for (i = 0; i < n; i++)
                x[i] = number * vm_tanh(x[i] / number);
            if (capped != NULL)
                memcpy(capped, x, n * sizeof(*x));
            break;
        }
    }
}

/* Propagates the gradient of a row of scores back through the steps. */
INLINED void steps_bwd(const struct attention *a, const struct masks *m, struct part part, float *d,
                       const float *capped)
{
    const size_t n = part.n;
    uint32_t k;
    size_t i;

    for (k = a->n_steps; k-- > 0;) {
        const float number = a->step[k].number;
        const uint8_t *mask = (const uint8_t *)m->at[k] + part.skip;

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
        case ATTENTION_CAP:
            OP_EACH
            for (i = 0; i < n; i++)
                d[i] *= 1.0f - (capped[i] / number) * (capped[i] / number);
            break;
        }
    }
}

INLINED void exponentials(size_t n, float *x, float max)
{
    size_t i;

    OP_EACH
    for (i = 0; i < n; i++)
        x[i] = vm_exp(x[i] - max);
}

INLINED void drop(size_t n, const uint8_t *keep, float scale, float *x)
{
    size_t i;

    OP_EACH
    for (i = 0; i < n; i++)
        x[i] = keep[i] != 0 ? x[i] * scale : 0.0f;
}

/* x [n]: the visible scores of the row. The weights of the other columns are 0. */
CLONES static void row_fwd(const struct attention *a, const struct masks *m, struct part part,
                           float *x, float *max, float *scale)
{
    size_t n = part.n, i;

    steps(a, m, part, x, NULL);
    *max = n > 0 ? op_row_max(x, n) : -INFINITY;
    if (a->zero_empty && *max == -INFINITY) {
        for (i = 0; i < n; i++)
            x[i] = 0;
        *max = *scale = 0; /* the weights in backward become e^-inf * 0 */
        return;
    }
    exponentials(n, x, *max);
    *scale = n > 0 ? (float)(1.0 / op_row_sum(x, n)) : NAN;
}

CLONES static void row_drop(size_t n, const uint8_t *keep, float scale, float *x)
{
    drop(n, keep, scale, x);
}

/* Recomputes the weights. With dropout, only the kept weights are multiplied with v and have a
 * gradient. */
CLONES static void row_bwd(const struct attention *a, const struct masks *m, struct part part,
                           float max, float scale, float dot, const uint8_t *keep, float *x,
                           float *d, float *capped)
{
    const float kept = a->dropout.scale;
    const size_t n = part.n;
    size_t i;

    steps(a, m, part, x, capped);
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
    steps_bwd(a, m, part, d, capped);
}

/* ---- blocks ---- */

/* Returns the dropout mask of row `at` of all rows; NULL: nothing is dropped. */
static const uint8_t *keep_of(const struct attention_rows *r, size_t at)
{
    if (!r->a->dropout.drops)
        return NULL;
    dropout_draw(&r->a->dropout, r->c, (uint64_t)at * (uint64_t)r->a->s + (uint64_t)r->keys.first,
                 (size_t)(r->keys.end - r->keys.first), r->keep);
    return r->keep;
}

static size_t first_of(const struct attention_rows *r, int64_t matrix)
{
    return (size_t)((r->matrix + matrix) * r->a->t + r->row);
}

/* Returns the visible keys of row i of a matrix, and zeroes the other columns of x [keys]. */
static struct part part_of(const struct attention_rows *r, int64_t i, float *x)
{
    const struct attention_range seen = attention_band(r->a, r->row + i, r->keys);
    const struct part part = { (size_t)(seen.first - r->keys.first), (size_t)(seen.end - seen.first) };
    const size_t n = (size_t)(r->keys.end - r->keys.first), end = part.skip + part.n;

    memset(x, 0, part.skip * sizeof(*x));
    memset(x + end, 0, (n - end) * sizeof(*x));
    return part;
}

void attention_rows_fwd(const struct attention_rows *r, float *scores)
{
    size_t n = (size_t)(r->keys.end - r->keys.first), at;
    int64_t m, i;

    for (m = 0; m < r->matrices; m++) {
        struct masks masks = masks_of(r, r->matrix + m);

        at = first_of(r, m);
        for (i = 0; i < r->rows; i++, at++, scores += n) {
            const uint8_t *keep = keep_of(r, at);
            const struct part part = part_of(r, i, scores);

            row_fwd(r->a, &masks, part, scores + part.skip, &r->max[at], &r->scale[at]);
            if (keep != NULL)
                row_drop(part.n, keep + part.skip, r->a->dropout.scale, scores + part.skip);
            if (isnan(r->scale[at])) /* includes rows without a visible key */
                scores[0] = NAN;
            next_row(r->a, &masks);
        }
    }
}

bool attention_rows_cost_more(const struct attention_rows *r, float hidden)
{
    const float nothing = 104; /* e^-104 is less than half of the smallest float */
    const float *max, *scale;
    int64_t m, i;

    for (m = 0; m < r->matrices; m++) {
        max = r->max + first_of(r, m);
        scale = r->scale + first_of(r, m);
        for (i = 0; i < r->rows; i++)
            if (scale[i] == 0 ? hidden != -INFINITY            /* zero_empty: no key is visible */
                              : !(max[i] - hidden >= nothing)) /* false if NaN */
                return false;
    }
    return true;
}

void attention_rows_bwd(const struct attention_rows *r, const float *dot, float *scores, float *dp)
{
    size_t n = (size_t)(r->keys.end - r->keys.first), at;
    int64_t m, i;

    for (m = 0; m < r->matrices; m++) {
        struct masks masks = masks_of(r, r->matrix + m);

        at = first_of(r, m);
        for (i = 0; i < r->rows; i++, at++, scores += n, dp += n) {
            const uint8_t *keep = keep_of(r, at);
            const struct part part = part_of(r, i, scores);

            (void)part_of(r, i, dp);
            row_bwd(r->a, &masks, part, r->max[at], r->scale[at], *dot++,
                    keep == NULL ? NULL : keep + part.skip, scores + part.skip, dp + part.skip,
                    r->capped);
            next_row(r->a, &masks);
        }
    }
}
