/* attention_cpu.c - the CPU kernels: iterate over the heads of k and v (or groups of small ones)
 * and over blocks of rows. Operands are copied to scratch, head by head, in the layout that the
 * products need:
 *
 *   k [s, d] v [s, dv]                of the head; in backward also dk and dv, of the same shapes
 *   q [shared, rows, d] y [shared, rows, dv]  of the block: the same rows of all query heads that
 *                                             read
 *                                     this head of k and v; in backward dy in place of y, and dq
 *   scores [shared, rows, s]          of the block; in backward also their gradient
 *
 * The products treat the shared * rows rows of a block as rows of one matrix, so the product itself
 * sums dk and dv over the query heads.
 *
 * In bfloat16, the factors are bfloat16: q, k, v and dy are stored as such, and scores and their
 * gradient, computed in float32, are rounded before their products. All products return float32.
 *
 * A block works on the keys first .. end - 1 that it sees: it reads k and v, and accumulates dk and
 * dv, from row `first` on. Blocks are processed in the order of rows, and so are the sums in dk and
 * dv. */
#include "op/attention/attention_cpu.h"

#include <string.h>

#include "base/err.h"
#include "op/attention/attention.h"
#include "op/dnn.h"
#include "op/half.h"
#include "op/simd.h"
#include "op/op_priv.h"

enum { AHEAD = 8 /* rows to prefetch ahead */ };

/* ---- copying matrices to and from scratch ---- */

/* Prefetches a row that is read or written soon: rows are far apart, a few cache lines each, which
 * the hardware prefetcher does not detect. */
INLINED void prefetch_row(const void *row, const struct attention_at *at, size_t bytes, bool writes)
{
    size_t c;

    if (at->col != 1)
        return;
    for (c = 0; c < bytes; c += OP_ALIGN) {
        if (writes)
            __builtin_prefetch((const char *)row + c, 1);
        else
            __builtin_prefetch((const char *)row + c, 0);
    }
}

/* Defines a copy of a matrix to contiguous rows, with conversion of the type. */
#define COPY_IN(name_, from_type_, to_type_, value_)                                               \
    CLONES static void name_(void *vto, const void *vfrom, const struct attention_at *at,          \
                             size_t rows, size_t cols)                                             \
    {                                                                                              \
        const from_type_ *from = vfrom;                                                            \
        to_type_ *to = vto;                                                                        \
        size_t r, c;                                                                               \
                                                                                                   \
        for (r = 0; r < rows; r++, to += cols, from += at->row) {                                  \
            if (r + AHEAD < rows)                                                                  \
                prefetch_row(from + AHEAD * at->row, at, cols * sizeof(*from), false);             \
            if (at->col == 1)                                                                      \
                for (c = 0; c < cols; c++)                                                         \
                    to[c] = value_(from[c]);                                                       \
            else                                                                                   \
                for (c = 0; c < cols; c++)                                                         \
                    to[c] = value_(from[(ptrdiff_t)c * at->col]);                                  \
        }                                                                                          \
    }
COPY_IN(bring_floats, float, float, )
COPY_IN(bring_halves, uint16_t, uint16_t, )
COPY_IN(bring_rounded, float, uint16_t, float_to_bfloat16)

/* Defines a copy of contiguous float32 rows to a matrix, stored or added. scale [rows]: factor of
 * each row; NULL: 1. */
#define COPY_OUT(name_, type_, load_, store_)                                                      \
    CLONES static void name_(void *vto, const struct attention_at *at, const float *from,          \
                             const float *scale, size_t rows, size_t cols, bool add)               \
    {                                                                                              \
        type_ *to = vto;                                                                           \
        size_t r, c;                                                                               \
                                                                                                   \
        for (r = 0; r < rows; r++, from += cols, to += at->row) {                                  \
            const float by = scale != NULL ? scale[r] : 1.0f;                                      \
            const ptrdiff_t step = at->col;                                                        \
                                                                                                   \
            if (r + AHEAD < rows)                                                                  \
                prefetch_row(to + AHEAD * at->row, at, cols * sizeof(*to), true);                  \
            if (add)                                                                               \
                for (c = 0; c < cols; c++)                                                         \
                    to[(ptrdiff_t)c * step] =                                                      \
                        store_(load_(to[(ptrdiff_t)c * step]) + from[c] * by);                     \
            else if (step == 1)                                                                    \
                for (c = 0; c < cols; c++)                                                         \
                    to[c] = store_(from[c] * by);                                                  \
            else                                                                                   \
                for (c = 0; c < cols; c++)                                                         \
                    to[(ptrdiff_t)c * step] = store_(from[c] * by);                                \
        }                                                                                          \
    }
COPY_OUT(put_floats, float, , )
COPY_OUT(put_halves, uint16_t, float_of_bfloat16, float_to_bfloat16)

#define DOT_ROW(name_, type_, load_)                                                               \
    CLONES static float name_(const void *va, ptrdiff_t a_step, const void *vb, size_t n)          \
    {                                                                                              \
        const type_ *a = va, *b = vb;                                                              \
        op_simd lanes = { 0 };                                                                    \
        double tail = 0;                                                                           \
        size_t i, j;                                                                               \
                                                                                                   \
        for (i = 0; i + OP_SIMD_LANES <= n; i += OP_SIMD_LANES) {                                            \
            op_simd d;                                                                            \
                                                                                                   \
            for (j = 0; j < OP_SIMD_LANES; j++)                                                         \
                d[j] = (double)(load_(a[(ptrdiff_t)(i + j) * a_step]) * load_(b[i + j]));          \
            lanes += d;                                                                            \
        }                                                                                          \
        for (; i < n; i++)                                                                         \
            tail += (double)(load_(a[(ptrdiff_t)i * a_step]) * load_(b[i]));                       \
        return (float)(op_simd_total(&lanes) + tail);                                             \
    }
DOT_ROW(dot_floats, float, )
DOT_ROW(dot_halves, uint16_t, float_of_bfloat16)

/* ---- iteration over heads and blocks ---- */

struct walk {
    const struct op_call *c;
    const struct attention *a;
    struct attention_state *s;
    float *max, *scale;                 /* [n, t] */
    void *k, *v;                        /* [group, s, ..]: factors, of either type */
    float *dk, *d_v;                    /* gradients of k and v, the same shapes */
    void *q, *y;                        /* [group, rows, ..]; in forward, y receives the product in
                                           float32 */
    float *dq;
    float *scores, *dp, *dot;
    void *weights, *slopes;             /* scores and dp as factors: the same memory, or rounded */
    uint8_t *keep;
    float *capped;                      /* [s] */
    void *pad;
    float hidden;                       /* the largest score of a key outside `seen` */
};

static void walk_init(struct walk *w, const struct op_call *c)
{
    struct attention_state *s = c->state;
    const struct attention *a = c->param;

    *w = (struct walk){ .c = c, .a = a, .s = s, .hidden = attention_masked(c, a) };
    w->max = s->has_save ? c->save : op_at(c->scratch, s->at.max);
    w->scale = w->max + a->n * a->t;
    w->k = op_at(c->scratch, s->at.k);
    w->v = op_at(c->scratch, s->at.v);
    w->dk = op_at(c->scratch, s->at.dk);
    w->d_v = op_at(c->scratch, s->at.dv);
    w->q = op_at(c->scratch, s->at.q);
    w->y = op_at(c->scratch, s->at.y);
    w->dq = op_at(c->scratch, s->at.dq);
    w->scores = op_at(c->scratch, s->at.scores);
    w->dp = op_at(c->scratch, s->at.dp);
    w->dot = op_at(c->scratch, s->at.dot);
    w->keep = op_at(c->scratch, s->at.keep);
    w->capped = op_at(c->scratch, s->at.capped);
    w->pad = op_at(c->scratch, s->at.pad);
    w->weights = s->is_half ? op_at(c->scratch, s->at.weights) : w->scores;
    w->slopes = s->is_half ? op_at(c->scratch, s->at.slopes) : w->dp;
}

static int product(const struct walk *w, struct dnn *d, void *a, void *b, float *y, struct err *err)
{
    void *args[DNN_ARGS] = { a, b, y };

    return dnn_run(d, args, w->pad, err);
}

/* Returns the address of element `at` of a factor. */
static void *factor_at(const struct walk *w, void *factor, int64_t at)
{
    return (char *)factor + at * (int64_t)(w->s->is_half ? sizeof(uint16_t) : sizeof(float));
}

/* Rounds the scores (or dp) of a block if factors are bfloat16. */
static void round_scores(const struct walk *w, const struct attention_rows *r, const float *from,
                         void *to)
{
    if (w->s->is_half)
        op_narrow(from, (size_t)(r->matrices * r->rows * (r->keys.end - r->keys.first)), to);
}

/* Number of matrices of a group in an operand: all for q and y, every `shared`-th for k and v. */
static int64_t matrices_of(const struct walk *w, int64_t step)
{
    return w->a->group * w->a->shared / step;
}

/* Copies `rows` rows from `row` on of every `step`-th matrix of the group to scratch. */
static void copy_all_in(const struct walk *w, const struct tensor *t, const struct attention_at *at,
                        int64_t matrix, int64_t step, int64_t row, int64_t rows, int64_t cols,
                        void *to)
{
    int64_t i;

    for (i = 0; i < matrices_of(w, step); i++)
        (op_is_half(t)   ? bring_halves
         : w->s->is_half ? bring_rounded
                         : bring_floats)(
            factor_at(w, to, i * rows * cols),
            op_element(t, (size_t)(attention_matrix(w->a, at, matrix + i * step) + row * at->row)),
            at, (size_t)rows, (size_t)cols);
}

static void copy_all_out(const struct walk *w, const struct tensor *t,
                         const struct attention_at *at, int64_t matrix, int64_t step, int64_t row,
                         int64_t rows, int64_t cols, const float *from, const float *scale,
                         bool add)
{
    int64_t i;

    for (i = 0; i < matrices_of(w, step); i++)
        (op_is_half(t) ? put_halves : put_floats)(
            op_element(t, (size_t)(attention_matrix(w->a, at, matrix + i * step) + row * at->row)),
            at, from + i * rows * cols, scale != NULL ? scale + i * w->a->t : NULL, (size_t)rows,
            (size_t)cols, add);
}

static struct attention_rows rows_at(const struct walk *w, int64_t matrix, int64_t block)
{
    return (struct attention_rows){ .a = w->a,
                                    .c = w->c,
                                    .matrix = matrix,
                                    .row = block * w->a->rows,
                                    .rows = attention_rows_of(w->a, block),
                                    .matrices = matrices_of(w, 1),
                                    .keys = w->a->seen[block],
                                    .max = w->max,
                                    .scale = w->scale,
                                    .keep = w->keep,
                                    .capped = w->a->has_cap ? w->capped : NULL };
}

static bool sees_all(const struct walk *w, const struct attention_rows *r)
{
    return r->keys.first == 0 && r->keys.end == w->a->s;
}

static void see_all(const struct walk *w, struct attention_rows *r)
{
    r->keys = (struct attention_range){ 0, w->a->s };
}

/* ---- forward ---- */

static int block_weights(const struct walk *w, const struct attention_rows *r,
                         const struct attention_products *p, struct err *err)
{
    int rc =
        product(w, p->scores, w->q, factor_at(w, w->k, r->keys.first * w->a->d), w->scores, err);

    if (rc == 0)
        attention_rows_fwd(r, w->scores);
    return rc;
}

static int block_fwd(const struct walk *w, int64_t matrix, int64_t block, struct err *err)
{
    const struct attention *a = w->a;
    struct attention_rows r = rows_at(w, matrix, block);
    const struct attention_products *p = &w->s->products[w->s->seen[block]];
    int rc;

    copy_all_in(w, w->c->in[a->of[0]], &a->q, matrix, 1, r.row, r.rows, a->d, w->q);
    rc = block_weights(w, &r, p, err);
    if (rc == 0 && a->hiding != 0 && !sees_all(w, &r) && !attention_rows_cost_more(&r, w->hidden)) {
        see_all(w, &r);
        p = &w->s->products[w->s->whole[block]];
        rc = block_weights(w, &r, p, err);
    }
    if (rc < 0)
        return rc;
    round_scores(w, &r, w->scores, w->weights);
    rc = product(w, p->y, w->weights, factor_at(w, w->v, r.keys.first * a->dv), w->y, err);
    if (rc < 0)
        return rc;
    copy_all_out(w, w->c->out[0], &a->y, matrix, 1, r.row, r.rows, a->dv, w->y,
                 w->scale + matrix * a->t + r.row, false);
    return 0;
}

static void copy_keys_in(const struct walk *w, int64_t matrix)
{
    const struct attention *a = w->a;

    copy_all_in(w, w->c->in[a->of[1]], &a->k, matrix, a->shared, 0, a->s, a->d, w->k);
    copy_all_in(w, w->c->in[a->of[2]], &a->v, matrix, a->shared, 0, a->s, a->dv, w->v);
}

int attention_cpu_fwd(const struct op_call *c, struct err *err)
{
    const struct attention *a = c->param;
    int64_t matrix, block;
    struct walk w;
    int rc = 0;

    walk_init(&w, c);
    for (matrix = 0; matrix < a->n && rc == 0; matrix += a->group * a->shared) {
        copy_keys_in(&w, matrix);
        for (block = 0; block < a->n_blocks && rc == 0; block++)
            rc = block_fwd(&w, matrix, block, err);
    }
    return rc;
}

/* ---- backward ---- */

/* Computes the inner product of y and dy for each row; y is in the output of the call, dy in
 * scratch. */
static void dots(const struct walk *w, const struct attention_rows *r)
{
    const struct attention *a = w->a;
    const struct tensor *y = w->c->out[0];
    float *dot = w->dot;
    int64_t m, i, row = 0;

    for (m = 0; m < r->matrices; m++) {
        int64_t at = attention_matrix(a, &a->y, r->matrix + m) + r->row * a->y.row;

        for (i = 0; i < r->rows; i++, row++, at += a->y.row)
            *dot++ = (w->s->is_half ? dot_halves : dot_floats)(op_element(y, (size_t)at), a->y.col,
                                                               factor_at(w, w->y, row * a->dv),
                                                               (size_t)a->dv);
    }
}

static int block_bwd(const struct walk *w, int64_t matrix, int64_t block, struct err *err)
{
    const struct attention *a = w->a;
    struct attention_rows r = rows_at(w, matrix, block);
    const struct attention_products *p = &w->s->products[w->s->seen[block]];
    int64_t first;
    int rc;

    if (a->hiding != 0 && !sees_all(w, &r) && !attention_rows_cost_more(&r, w->hidden)) {
        see_all(w, &r);
        p = &w->s->products[w->s->whole[block]];
    }
    first = r.keys.first;
    copy_all_in(w, w->c->in[a->of[0]], &a->q, matrix, 1, r.row, r.rows, a->d, w->q);
    copy_all_in(w, w->c->dout[0], &a->y, matrix, 1, r.row, r.rows, a->dv, w->y);
    dots(w, &r);
    rc = product(w, p->scores, w->q, factor_at(w, w->k, first * a->d), w->scores, err);
    if (rc == 0)
        rc = product(w, p->dp, w->y, factor_at(w, w->v, first * a->dv), w->dp, err);
    if (rc < 0)
        return rc;
    attention_rows_bwd(&r, w->dot, w->scores, w->dp);
    round_scores(w, &r, w->scores, w->weights);
    round_scores(w, &r, w->dp, w->slopes);
    if (p->dv != NULL)
        rc = product(w, p->dv, w->weights, w->y, w->d_v + first * a->dv, err);
    if (rc == 0 && p->dk != NULL)
        rc = product(w, p->dk, w->slopes, w->q, w->dk + first * a->d, err);
    if (rc == 0 && p->dq != NULL)
        rc = product(w, p->dq, w->slopes, factor_at(w, w->k, first * a->d), w->dq, err);
    if (rc == 0 && p->dq != NULL)
        copy_all_out(w, w->c->din[a->of[0]], &a->q, matrix, 1, r.row, r.rows, a->d, w->dq, NULL,
                     op_adds(w->c, a->of[0]));
    return rc;
}

static int matrix_bwd(const struct walk *w, int64_t matrix, struct err *err)
{
    const struct op_call *c = w->c;
    const struct attention *a = w->a;
    const uint32_t k = a->of[1], v = a->of[2];
    int64_t block;
    int rc = 0;

    copy_keys_in(w, matrix);
    memset(w->dk, 0, (size_t)(a->group * a->s * a->d) * sizeof(float));
    memset(w->d_v, 0, (size_t)(a->group * a->s * a->dv) * sizeof(float));
    for (block = 0; block < a->n_blocks && rc == 0; block++)
        rc = block_bwd(w, matrix, block, err);
    if (rc < 0)
        return rc;
    if (c->din[k] != NULL)
        copy_all_out(w, c->din[k], &a->k, matrix, a->shared, 0, a->s, a->d, w->dk, NULL,
                     op_adds(c, k));
    if (c->din[v] != NULL)
        copy_all_out(w, c->din[v], &a->v, matrix, a->shared, 0, a->s, a->dv, w->d_v, NULL,
                     op_adds(c, v));
    return 0;
}

int attention_cpu_bwd(const struct op_call *c, struct err *err)
{
    const struct attention *a = c->param;
    int64_t matrix;
    struct walk w;
    int rc = 0;

    if (c->dout[0] == NULL) {
        op_bwd_zero(c);
        return 0;
    }
    walk_init(&w, c);
    for (matrix = 0; matrix < a->n && rc == 0; matrix += a->group * a->shared)
        rc = matrix_bwd(&w, matrix, err);
    return rc;
}
