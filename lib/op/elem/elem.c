/* elem.c - types, shapes and the walk over the tiles; the ops provide the kernels. */
#include "op/elem/elem.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "op/half.h"

/* ---- infer ---- */

elem_fwd_fn *elem_fwd_of(const struct elem_kernels *k, enum tensor_dtype t)
{
    return t == TENSOR_F32    ? k->f32
           : t == TENSOR_I32  ? k->i32
           : t == TENSOR_I64  ? k->i64
           : t == TENSOR_U64  ? k->u64
           : t == TENSOR_BOOL ? k->boolean
                              : NULL;
}

int elem_infer_shape(struct op_infer *f, uint32_t first, uint32_t last, struct err *err)
{
    struct shape *y = &f->out[0].shape;
    char text_a[192], text_b[192];
    uint32_t i;

    for (i = first; i <= last; i++)
        if (i >= f->n_in || f->in[i] == NULL)
            return op_error(f, ERR_INPUT, err, "input %" PRIu32 " is missing; expected %s", i,
                            last == 1   ? "two"
                            : last == 2 ? "three"
                                        : "one or more");
    *y = f->in[first]->shape;
    for (i = first + 1; i <= last; i++) {
        struct shape so_far = *y;

        if (!shape_broadcast(&so_far, &f->in[i]->shape, y))
            return op_error(f, ERR_INPUT, err,
                            "shapes %s and %s do not broadcast; aligned at the right, dimensions "
                            "must be equal or one of them 1",
                            shape_print(&so_far, text_a, sizeof(text_a)),
                            shape_print(&f->in[i]->shape, text_b, sizeof(text_b)));
    }
    if (shape_elements(y) < 0)
        return op_error(f, ERR_INPUT, err, "the inputs broadcast to %s, which has too many "
                        "elements", shape_print(y, text_a, sizeof(text_a)));
    return 0;
}

int elem_infer(struct op_infer *f, const struct elem_kernels *k, struct err *err)
{
    const struct tensor *a = f->in[0], *b = f->in[1];

    if (a == NULL || b == NULL)
        return op_error(f, ERR_INPUT, err, "input %d is missing; expected two", a == NULL ? 0 : 1);
    if (a->dtype != b->dtype)
        return op_error(f, ERR_INPUT, err, "inputs are %s and %s; expected the same type twice",
                        tensor_dtype_name(a->dtype), tensor_dtype_name(b->dtype));
    if (elem_fwd_of(k, a->dtype) == NULL)
        return op_error(f, ERR_UNSUPPORTED, err, "inputs are %s; supported are%s%s%s%s",
                        tensor_dtype_name(a->dtype), k->f32 != NULL ? " float32" : "",
                        k->i32 != NULL ? ", int32" : "", k->i64 != NULL ? ", int64" : "",
                        k->boolean == NULL ? ""
                        : k->f32 != NULL   ? ", bool"
                                           : " bool");
    f->out[0].dtype = k->out != TENSOR_NONE ? k->out : a->dtype;
    return elem_infer_shape(f, 0, 1, err);
}

/* ---- plan ---- */

int elem_plan(struct op_plan *p, struct err *err)
{
    struct elem_operand operands[ELEM_OPERANDS];
    struct elem_loops *s = calloc(1, sizeof(*s));
    uint32_t k;

    CHECK(p->n_in <= ELEM_OPERANDS);
    if (s == NULL)
        return err_set(err, ERR_NOMEM, "%s '%s': out of memory", p->def->name, p->node);
    for (k = 0; k < p->n_in; k++)
        operands[k] = (struct elem_operand){ p->in[k], NULL };
    elem_loops_make(s, &p->out[0], operands, p->n_in);
    for (k = 0; k < p->n_in; k++)
        if (op_wants(p, k) && !s->dense[k])
            p->scratch_bytes = op_max(p->scratch_bytes, s->elements[k] * sizeof(double));
    p->state = s;
    return 0;
}

/* ---- the walk over the tiles ---- */

/* Kernels also advance the pointers of absent operands, which they do not read. */
static void operands_at(const struct elem_walk *w, const struct tensor *const *in, uint32_t n,
                        const void **at)
{
    static const uint64_t nothing;
    uint32_t i;

    for (i = 0; i < ELEM_OPERANDS; i++)
        at[i] =
            i < n && in[i]->data != NULL
                ? (const char *)in[i]->data + w->at[i] * (ptrdiff_t)tensor_dtype_bytes(in[i]->dtype)
                : (const void *)&nothing;
}

void elem_run(const struct elem_loops *s, elem_fwd_fn *fwd, const struct tensor *const *in,
              uint32_t n, const struct tensor *y)
{
    size_t size = tensor_dtype_bytes(y->dtype);
    struct elem_walk w = { .s = s };
    const void *at[ELEM_OPERANDS];

    if (s->total == 0)
        return;
    do {
        operands_at(&w, in, n, at);
        fwd(&s->tile, at, (char *)y->data + w.y * size);
    } while (elem_walk_next(&w));
}

/* ---- the same if a tensor is bfloat16: in chunks of a row ---- */

static bool has_half(const struct tensor *const *t, uint32_t n)
{
    uint32_t i;

    for (i = 0; i < n; i++)
        if (op_is_half(t[i]))
            return true;
    return false;
}

struct chunk {
    struct elem_tile tile; /* one row */
    const void *at[ELEM_OPERANDS];
    ptrdiff_t operand[ELEM_OPERANDS]; /* first element */
    size_t y;
    float room[ELEM_OPERANDS][OP_CHUNK];
};

/* Returns the maximum number of elements of a chunk. Converted operands have step 1 or 0; an
 * operand with any other step, which no usual layout produces, is converted one element at a
 * time. */
static size_t chunk_size(const struct elem_loops *s, const struct tensor *const *in, uint32_t n)
{
    uint32_t i;

    for (i = 0; i < n; i++)
        if (op_is_half(in[i]) && s->tile.at[i].step != 0 && s->tile.at[i].step != 1)
            return 1;
    return OP_CHUNK;
}

/* Elements from .. from + m of row r of the walk's tile. `reads`: the kernel reads the operands. */
static void chunk_set(struct chunk *t, const struct elem_walk *w, size_t r, size_t from, size_t m,
                      const struct tensor *const *in, uint32_t n, bool reads)
{
    static const uint64_t nothing;
    uint32_t i;

    t->tile = (struct elem_tile){ .rows = 1, .n = m };
    t->y = w->y + r * w->s->tile.n + from;
    for (i = 0; i < ELEM_OPERANDS; i++) {
        ptrdiff_t step = w->s->tile.at[i].step;

        t->operand[i] = w->at[i] + (ptrdiff_t)r * w->s->tile.at[i].row + (ptrdiff_t)from * step;
        t->tile.at[i].step = step;
        t->at[i] = i < n && reads
                       ? op_floats(in[i], (size_t)t->operand[i], step == 1 ? m : 1, t->room[i])
                       : (const void *)&nothing;
    }
}

static void run_half(const struct elem_loops *s, elem_fwd_fn *fwd, const struct tensor *const *in,
                     uint32_t n, const struct tensor *y)
{
    size_t size = chunk_size(s, in, n), r, from, m;
    struct elem_walk w = { .s = s };
    struct chunk t;
    float room[OP_CHUNK];

    if (s->total == 0)
        return;
    do {
        for (r = 0; r < s->tile.rows; r++)
            for (from = 0; from < s->tile.n; from += m) {
                float *to;

                m = s->tile.n - from < size ? s->tile.n - from : size;
                chunk_set(&t, &w, r, from, m, in, n, true);
                to = op_floats_to(y, t.y, room);
                fwd(&t.tile, t.at, to);
                op_floats_done(y, t.y, m, to);
            }
    } while (elem_walk_next(&w));
}

int elem_fwd(const struct op_call *c, const struct elem_kernels *k)
{
    const struct elem_loops *s = c->state;

    /* An operand that shares memory with y must be read in step with it; else elements would be
     * overwritten before they are read. */
    CHECK(c->out[0]->data != c->in[0]->data || s->dense[0] || s->total == 0);
    if (has_half(c->in, c->n_in) || op_is_half(c->out[0]))
        run_half(s, k->f32, c->in, c->n_in, c->out[0]);
    else
        elem_run(s, elem_fwd_of(k, c->in[0]->dtype), c->in, c->n_in, c->out[0]);
    return 0;
}

CLONES static void round_sums(const double *sum, size_t n, float *g, bool add)
{
    size_t i;

    if (add)
        for (i = 0; i < n; i++)
            g[i] += (float)sum[i];
    else
        for (i = 0; i < n; i++)
            g[i] = (float)sum[i];
}

void elem_run_bwd(const struct elem_loops *s, elem_bwd_fn *bwd, uint32_t k, const float *d,
                  const struct tensor *const *in, uint32_t n, float *g, double *sum, bool add)
{
    enum elem_into into = !s->dense[k] ? ELEM_SUM : add ? ELEM_ADD : ELEM_SET;
    struct elem_walk w = { .s = s };
    const void *at[ELEM_OPERANDS];

    if (into == ELEM_SUM)
        memset(sum, 0, s->elements[k] * sizeof(*sum));
    if (s->total > 0) {
        do {
            operands_at(&w, in, n, at);
            bwd(&s->tile, into, d + w.y, at, into == ELEM_SUM ? NULL : g + w.y,
                into == ELEM_SUM ? sum + w.at[k] : NULL);
        } while (elem_walk_next(&w));
    }
    if (into == ELEM_SUM)
        round_sums(sum, s->elements[k], g, add);
}

static void round_sums_to(const double *sum, const struct tensor *g, size_t n, bool add)
{
    float room[OP_CHUNK];
    size_t at, m;

    for (at = 0; at < n; at += m) {
        float *to;

        m = op_chunk(n - at, op_is_half(g));
        to = op_floats_on(g, at, add ? m : 0, room);
        round_sums(sum + at, m, to, add);
        op_floats_done(g, at, m, to);
    }
}

static void run_bwd_half(const struct elem_loops *s, const struct elem_kernels *kernels, uint32_t k,
                         const struct op_call *c)
{
    const struct tensor *g = c->din[k], *d = c->dout[0];
    bool add = op_adds(c, k);
    enum elem_into into = !s->dense[k] ? ELEM_SUM : add ? ELEM_ADD : ELEM_SET;
    size_t size = chunk_size(s, c->in, c->n_in), r, from, m;
    struct elem_walk w = { .s = s };
    double *sum = c->scratch;
    struct chunk t;
    float room[2][OP_CHUNK];

    if (into == ELEM_SUM)
        memset(sum, 0, s->elements[k] * sizeof(*sum));
    for (bool more = s->total > 0; more; more = elem_walk_next(&w))
        for (r = 0; r < s->tile.rows; r++)
            for (from = 0; from < s->tile.n; from += m) {
                const float *dy;
                float *to;

                m = s->tile.n - from < size ? s->tile.n - from : size;
                chunk_set(&t, &w, r, from, m, c->in, c->n_in, kernels->bwd_reads);
                dy = op_floats(d, t.y, m, room[0]);
                if (into == ELEM_SUM) {
                    kernels->bwd[k](&t.tile, into, dy, t.at, NULL, sum + t.operand[k]);
                    continue;
                }
                to = op_floats_on(g, t.y, into == ELEM_ADD ? m : 0, room[1]);
                kernels->bwd[k](&t.tile, into, dy, t.at, to, NULL);
                op_floats_done(g, t.y, m, to);
            }
    if (into == ELEM_SUM)
        round_sums_to(sum, g, s->elements[k], add);
}

int elem_bwd(const struct op_call *c, const struct elem_kernels *k)
{
    bool is_half = has_half(c->dout, 1) || has_half(c->in, c->n_in);
    uint32_t i;

    if (c->dout[0] == NULL) {
        op_bwd_zero(c);
        return 0;
    }
    for (i = 0; i < c->n_in; i++) {
        if (c->din[i] != NULL && is_half)
            run_bwd_half(c->state, k, i, c);
        else if (c->din[i] != NULL)
            elem_run_bwd(c->state, k->bwd[i], i, c->dout[0]->data, c->in, c->n_in, c->din[i]->data,
                         c->scratch, op_adds(c, i));
    }
    return 0;
}
