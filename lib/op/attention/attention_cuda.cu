/* attention_cuda.cu - GPU kernels of Attention, see attention.c. If possible they use cuDNN's fused
 * kernels (attention_fused.cuh), which never store the matrix of scores in forward. Otherwise they
 * use batched products with the scores of a group of matrices in scratch, and one kernel
 * (attention_rows_cuda.cu) between them. A group has as many matrices as have scores that fit the
 * L2 cache of the GPU; backward recomputes the scores from q and k.
 *
 * Products read operands in place; an operand that the library does not support (neither its rows
 * nor its columns are contiguous) is copied to scratch as [group, rows, cols] float32. */
#include "op/attention/attention_fused.cuh"
#include "op/attention/attention_rows_cuda.cuh"
#include "op/gemm/product.cuh"

#include <stdlib.h>

extern "C" {
#include "op/op_priv.h"
}

enum { GROUP_SCORES = 8 << 20 }; /* 32 MiB: H200 and A100 have an L2 cache of 40 MiB and more */
enum { Q, K, V, Y, SIDES };      /* operands, and their gradients */

struct side {
    const struct attention_at *at;
    enum tensor_dtype type;
    int64_t rows, cols;
    bool shares;          /* k or v of grouped heads: the axis of the query heads that share a head
                             is broadcast */
    bool direct;
    bool d_direct;        /* its gradient is read or written directly */
    size_t pack, d_pack;  /* offset in scratch if not direct */
};

struct attention_device {
    struct attention_fused *fused; /* computes the whole call; NULL: the products below do */
    int64_t group;    /* matrices per group; a divisor of n */
    uint32_t split;   /* a group covers `part` indices of this batch axis, and all indices of the
                         axes after it */
    int64_t part;
    enum tensor_dtype type; /* type of the factors */
    bool tf32;
    struct side side[SIDES];
    struct product *scores, *y, *dp, *d[3];
    size_t scores_at, dp_at, weights_at, slopes_at, rest;
};

static void free_state(void *state)
{
    struct attention_device *s = (struct attention_device *)state;

    if (s == NULL)
        return;
    attention_fused_close(s->fused);
    product_close(s->scores);
    product_close(s->y);
    product_close(s->dp);
    for (struct product *p : s->d)
        product_close(p);
    free(s);
}

/* ---- plan ---- */

static void choose_group(const struct attention *a, struct attention_device *s)
{
    const int64_t most = GROUP_SCORES / a->t / a->s;

    s->group = 1;
    s->part = 1;
    s->split = a->batch.rank;
    while (s->split > 0 && s->part == (s->split < a->batch.rank ? a->batch.dim[s->split] : 1)) {
        const int64_t dim = a->batch.dim[s->split - 1];

        s->split--;
        for (s->part = dim < 1 ? 1 : dim; s->part > 1; s->part--)
            if (dim % s->part == 0 && s->part <= most / s->group)
                break;
        s->group *= s->part;
    }
}

/* If several heads read an operand, its gradient is a sum over products. Such a sum goes through
 * scratch unless it is float32 (product.cuh). */
static void plan_side(struct side *d, const struct attention_at *at, enum tensor_dtype type,
                      int64_t rows, int64_t cols, bool shares)
{
    const struct lt_operand o = { type, at->row, at->col, 0 };

    *d = { at, type, rows, cols, shares, lt_fits(&o, rows, cols), false, 0, 0 };
    d->d_direct = d->direct && (!shares || type == TENSOR_F32);
}

struct factor { /* a factor of a product: its strides within a group */
    enum tensor_dtype type;
    int64_t row, col, batch[TENSOR_MAX_RANK];
};

/* Returns true for the batch axis along which query heads share a head of k and v. */
static bool is_shared_axis(const struct attention *a, uint32_t axis)
{
    return a->shared > 1 && axis + 1 == a->batch.rank;
}

/* Strides of a contiguous [group, rows, cols] in scratch. */
static struct factor dense(const struct attention *a, const struct attention_device *s,
                           enum tensor_dtype type, int64_t rows, int64_t cols, bool shares)
{
    struct factor f = { type, cols, 1, { 0 } };
    int64_t step = rows * cols;

    for (uint32_t k = a->batch.rank; k-- > s->split;) {
        if (shares && is_shared_axis(a, k))
            continue;
        f.batch[k] = step;
        step *= k > s->split ? a->batch.dim[k] : s->part;
    }
    return f;
}

static struct factor of_side(const struct attention *a, const struct attention_device *s, int which,
                             bool direct)
{
    const struct side *d = &s->side[which];
    struct factor f = { d->type, d->at->row, d->at->col, { 0 } };

    if (!direct)
        return dense(a, s, TENSOR_F32, d->rows, d->cols, d->shares);
    for (uint32_t k = s->split; k < a->batch.rank; k++)
        f.batch[k] = d->at->batch[k];
    return f;
}

static struct factor turned(struct factor f)
{
    int64_t row = f.row;

    f.row = f.col;
    f.col = row;
    return f;
}

static int open_product(const struct attention *a, const struct attention_device *s, int64_t m,
                        int64_t n, int64_t k, const struct factor &x, const struct factor &y,
                        const struct factor &to, struct product **out, struct err *err)
{
    struct product_problem p = { .m = m, .n = n, .k = k, .tf32 = s->tf32 };
    const struct factor *const f[] = { &x, &y, &to };

    for (int i = 0; i < LT_OPERANDS; i++)
        p.at[i] = { f[i]->type, f[i]->row, f[i]->col };
    for (uint32_t i = s->split; i < a->batch.rank; i++)
        p.axis[p.n_axes++] = { i > s->split ? a->batch.dim[i] : s->part,
                               { x.batch[i], y.batch[i], to.batch[i] } };
    return product_open(&p, out, err);
}

static int open_all(const struct op_plan *op, struct attention_device *s, struct err *err)
{
    const struct attention *a = (const struct attention *)op->param;
    const struct side *const side = s->side;
    const struct factor q = of_side(a, s, Q, side[Q].direct), k = of_side(a, s, K, side[K].direct),
                        v = of_side(a, s, V, side[V].direct), y = of_side(a, s, Y, side[Y].direct),
                        dk = of_side(a, s, K, side[K].d_direct),
                        d_v = of_side(a, s, V, side[V].d_direct);
    const struct factor scores = dense(a, s, TENSOR_F32, a->t, a->s, false),
                        weights = dense(a, s, s->type, a->t, a->s, false);
    int rc = open_product(a, s, a->t, a->s, a->d, q, turned(k), scores, &s->scores, err);

    if (rc == 0)
        rc = open_product(a, s, a->t, a->dv, a->s, weights, v, y, &s->y, err);
    if (rc < 0 || !op->training)
        return rc;
    rc = open_product(a, s, a->t, a->s, a->dv, y, turned(v), scores, &s->dp, err);
    if (rc == 0 && op_wants(op, a->of[Q]))
        rc = open_product(a, s, a->t, a->d, a->s, weights, k, q, &s->d[Q], err);
    if (rc == 0 && op_wants(op, a->of[K]))
        rc = open_product(a, s, a->s, a->d, a->t, turned(weights), q, dk, &s->d[K], err);
    if (rc == 0 && op_wants(op, a->of[V]))
        rc = open_product(a, s, a->s, a->dv, a->t, turned(weights), y, d_v, &s->d[V], err);
    return rc;
}

static size_t reserve(size_t *bytes, int64_t n, size_t size)
{
    size_t at = *bytes;

    *bytes += op_round((size_t)n * size);
    return at;
}

static void plan_scratch(const struct op_plan *op, struct attention_device *s)
{
    const struct attention *a = (const struct attention *)op->param;
    const int64_t n = s->group * a->t * a->s;
    const size_t size = tensor_dtype_bytes(s->type);
    const bool wide = s->type == TENSOR_F32;

    s->scores_at = reserve(&s->rest, n, sizeof(float));
    s->weights_at = wide && !op->training ? s->scores_at : reserve(&s->rest, n, size);
    if (op->training) {
        s->dp_at = reserve(&s->rest, n, sizeof(float));
        s->slopes_at = wide ? s->dp_at : reserve(&s->rest, n, size);
    }
    for (struct side &d : s->side) {
        if (!d.direct)
            d.pack = reserve(&s->rest, s->group * d.rows * d.cols, sizeof(float));
        if (!d.d_direct && op->training)
            d.d_pack = reserve(&s->rest, s->group * d.rows * d.cols, sizeof(float));
    }
}

/* Plans the products. */
static int plan_products(struct op_plan *op, struct attention_device *s, struct err *err)
{
    const struct attention *a = (const struct attention *)op->param;
    const struct product *all[6];
    size_t most = 0;
    int rc;

    s->tf32 = op->tf32;
    s->type = TENSOR_F32;
    for (int i = 0; i < 3; i++)
        if (op->in[a->of[i]]->dtype != TENSOR_F32)
            s->type = op->in[a->of[i]]->dtype;
    if (op->out[0].dtype != TENSOR_F32)
        s->type = op->out[0].dtype;
    choose_group(a, s);
    plan_side(&s->side[Q], &a->q, op->in[a->of[Q]]->dtype, a->t, a->d, false);
    plan_side(&s->side[K], &a->k, op->in[a->of[K]]->dtype, a->s, a->d, a->shared > 1);
    plan_side(&s->side[V], &a->v, op->in[a->of[V]]->dtype, a->s, a->dv, a->shared > 1);
    plan_side(&s->side[Y], &a->y, op->out[0].dtype, a->t, a->dv, false);
    rc = open_all(op, s, err);
    if (rc < 0)
        return rc;
    plan_scratch(op, s);
    all[0] = s->scores, all[1] = s->y, all[2] = s->dp, all[3] = s->d[0], all[4] = s->d[1],
    all[5] = s->d[2];
    for (const struct product *p : all)
        most = op_max(most, product_scratch_bytes(p));
    op->save_bytes = op->training ? 2 * (size_t)(a->n * a->t) * sizeof(float) : 0;
    op->scratch_bytes = s->rest + most;
    return 0;
}

static int plan(struct op_plan *op, struct err *err)
{
    struct attention_device *s = (struct attention_device *)calloc(1, sizeof(*s));
    int rc;

    if (s == NULL)
        return err_set(err, ERR_NOMEM, "Attention '%s': out of memory", op->node);
    rc = attention_fused_open(op, &s->fused, err);
    if (rc == 0 && s->fused == NULL)
        rc = plan_products(op, s, err);
    if (rc < 0) {
        free_state(s);
        return err_wrap(err, rc, "Attention '%s'", op->node);
    }
    op->state = s;
    return 0;
}

/* ---- copying operands to and from scratch ---- */

struct gather {
    int64_t matrices, rows, cols, row, col; /* counts, then strides of the operand */
    int64_t dim[TENSOR_MAX_RANK], batch[TENSOR_MAX_RANK];
    uint32_t rank;
};

/* Offset in the operand of element i of [group, rows, cols]. */
__device__ static inline int64_t place_of(const struct gather &m, int64_t i)
{
    int64_t matrix = i / m.cols / m.rows, at = i / m.cols % m.rows * m.row + i % m.cols * m.col;

    for (int d = (int)m.rank; d-- > 0; matrix /= m.dim[d])
        at += matrix % m.dim[d] * m.batch[d];
    return at;
}

/* Grid-stride loop over elements. */
template <typename T> __global__ void pack(float *to, const T *from, struct gather m)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
         i < m.matrices * m.rows * m.cols; i += (int64_t)gridDim.x * blockDim.x)
        to[i] = op_wide(from[place_of(m, i)]);
}

template <typename T> __global__ void unpack(T *to, const float *from, bool add, struct gather m)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
         i < m.matrices * m.rows * m.cols; i += (int64_t)gridDim.x * blockDim.x) {
        T *at = to + place_of(m, i);

        *at = op_narrow<T>(add ? op_wide(*at) + from[i] : from[i]);
    }
}

static struct gather gather_of(const struct attention *a, const struct attention_device *s,
                               const struct side *d)
{
    struct gather m = { .matrices = d->shares ? (s->group + a->shared - 1) / a->shared : s->group,
                        .rows = d->rows,
                        .cols = d->cols,
                        .row = d->at->row,
                        .col = d->at->col,
                        .rank = a->batch.rank - s->split };

    for (uint32_t k = s->split; k < a->batch.rank; k++) {
        const bool skips = d->shares && is_shared_axis(a, k);

        m.dim[k - s->split] = skips ? 1 : k > s->split ? a->batch.dim[k] : s->part;
        m.batch[k - s->split] = d->at->batch[k];
    }
    return m;
}

/* ---- a group of matrices ---- */

struct group {
    const struct op_call *c;
    const struct attention *a;
    const struct attention_device *s;
    cudaStream_t stream;
    int64_t matrix; /* index of the first matrix */
    float *scores, *dp;
    void *weights, *slopes;
    char *scratch, *rest;
};

/* Address of the group's first matrix in an operand or its gradient. */
static char *group_at(const struct group *g, int which, const struct tensor *t)
{
    return (char *)t->data + attention_matrix(g->a, g->s->side[which].at, g->matrix) *
                                 (ptrdiff_t)tensor_dtype_bytes(t->dtype);
}

/* Returns in *out the address that a product reads: of the operand, or of its copy in scratch. */
static int copy_in(const struct group *g, int which, const struct tensor *t, void **out,
                   struct err *err)
{
    const struct side *d = &g->s->side[which];
    const struct gather m = gather_of(g->a, g->s, d);
    const size_t n = (size_t)(m.matrices * m.rows * m.cols);
    char *from = group_at(g, which, t);

    *out = d->direct ? from : g->scratch + d->pack;
    if (d->direct)
        return 0;
    OP_FLOATS(t->dtype, CUDA_LAUNCH(pack<T>, op_blocks(n, OP_THREADS), OP_THREADS, 0, g->stream,
                                    (float *)*out, (const T *)from, m));
    return cuda_launched(err);
}

/* Runs a product whose output is an operand, directly or through scratch. */
static int run_product(const struct group *g, struct product *p, const void *x, const void *y,
                       int which, const struct tensor *t, bool add, struct err *err)
{
    const struct side *d = &g->s->side[which];
    const struct gather m = gather_of(g->a, g->s, d);
    const size_t n = (size_t)(m.matrices * m.rows * m.cols);
    char *home = group_at(g, which, t);
    const bool backward = g->c->din != NULL, direct = backward ? d->d_direct : d->direct;
    float *packed = (float *)(g->scratch + (backward ? d->d_pack : d->pack));
    int rc = product_run(p, x, y, direct ? (void *)home : packed, NULL, 1.0f, direct && add,
                         g->rest, g->stream, err);

    if (rc < 0 || direct)
        return rc;
    OP_FLOATS(t->dtype, CUDA_LAUNCH(unpack<T>, op_blocks(n, OP_THREADS), OP_THREADS, 0, g->stream,
                                    (T *)home, (const float *)packed, add, m));
    return cuda_launched(err);
}

static struct attention_rows_device rows_of(const struct group *g)
{
    const struct attention *a = g->a;
    const struct op_call *c = g->c;
    struct attention_rows_device r = { .n_steps = a->n_steps,
                                       .rank = a->batch.rank,
                                       .matrix = g->matrix,
                                       .matrices = g->s->group,
                                       .t = a->t,
                                       .s = a->s,
                                       .dropout = a->dropout,
                                       .stream = c->stream,
                                       .device = c->run->device };

    r.has_band = a->has_band;
    r.lower = a->lower;
    r.upper = a->upper;
    r.zero_empty = a->zero_empty;
    r.has_cap = a->has_cap;
    for (uint32_t k = 0; k < a->batch.rank; k++)
        r.batch[k] = a->batch.dim[k];
    for (uint32_t i = 0; i < a->n_steps; i++) {
        const struct attention_step *s = &a->step[i];

        r.step[i].kind = s->kind;
        r.step[i].number = s->number;
        if (!attention_has_mask(s))
            continue;
        r.step[i].mask = c->in[s->input]->data;
        r.step[i].row = s->at.row;
        for (uint32_t k = 0; k < a->batch.rank; k++)
            r.step[i].batch[k] = s->at.batch[k];
    }
    if (c->save != NULL) {
        r.max = (float *)c->save;
        r.scale = r.max + a->n * a->t;
    }
    return r;
}

static struct group group_of(const struct op_call *c)
{
    const struct attention_device *s = (const struct attention_device *)c->state;
    char *scratch = (char *)c->scratch;

    return { .c = c, .a = (const struct attention *)c->param, .s = s, .stream = op_stream(c),
             .scores = (float *)(scratch + s->scores_at), .dp = (float *)(scratch + s->dp_at),
             .weights = scratch + s->weights_at, .slopes = scratch + s->slopes_at, .scratch = scratch,
             .rest = scratch + s->rest };
}

/* Does what copy_in() does, for an operand that is an input or a part of one; and for the gradient of that input. */
static int copy_input_in(const struct group *g, int which, void **out, struct err *err)
{
    return copy_in(g, which, g->c->in[g->a->of[which]], out, err);
}

static int run_gradient(const struct group *g, const void *x, const void *y, int which,
                        struct err *err)
{
    const uint32_t i = g->a->of[which];
    /* continues the sum of the previous group */
    const bool goes_on = g->s->side[which].shares && g->matrix % g->a->shared != 0;

    return g->c->din[i] == NULL ? 0
                                : run_product(g, g->s->d[which], x, y, which, g->c->din[i],
                                              goes_on || op_cuda_adds(g->c, i), err);
}

/* Computes q k in scratch. */
static int make_scores(const struct group *g, void **q, void **k, struct err *err)
{
    int rc = copy_input_in(g, Q, q, err);

    if (rc == 0)
        rc = copy_input_in(g, K, k, err);
    if (rc == 0)
        rc = product_run(g->s->scores, *q, *k, g->scores, NULL, 1.0f, false, g->rest, g->stream,
                         err);
    return rc;
}

static int group_forward(const struct group *g, struct err *err)
{
    const struct attention_rows_device r = rows_of(g);
    void *q, *k, *v;
    int rc = make_scores(g, &q, &k, err);

    if (rc == 0)
        rc = attention_rows_device_fwd(&r, g->scores, g->weights, g->s->type, g->stream, err);
    if (rc == 0)
        rc = copy_input_in(g, V, &v, err);
    return rc < 0 ? rc : run_product(g, g->s->y, g->weights, v, Y, g->c->out[0], false, err);
}

static int group_backward(const struct group *g, struct err *err)
{
    const struct attention_rows_device r = rows_of(g);
    const struct op_call *c = g->c;
    void *q, *k, *v, *dy;
    int rc = make_scores(g, &q, &k, err);

    if (rc == 0)
        rc = copy_input_in(g, V, &v, err);
    if (rc == 0)
        rc = copy_in(g, Y, c->dout[0], &dy, err);
    if (rc == 0)
        rc = product_run(g->s->dp, dy, v, g->dp, NULL, 1.0f, false, g->rest, g->stream, err);
    if (rc == 0)
        rc = attention_rows_device_bwd(&r, g->scores, g->dp, g->weights, g->slopes, g->s->type,
                                       g->stream, err);
    if (rc == 0)
        rc = run_gradient(g, g->weights, dy, V, err);
    if (rc == 0)
        rc = run_gradient(g, g->slopes, q, K, err);
    if (rc == 0)
        rc = run_gradient(g, g->slopes, k, Q, err);
    return rc;
}

static int all_groups(const struct op_call *c, int (*one)(const struct group *g, struct err *err),
                      struct err *err)
{
    struct group g = group_of(c);
    int rc = 0;

    for (; g.matrix < g.a->n && rc == 0; g.matrix += g.s->group)
        rc = one(&g, err);
    return rc;
}

static int forward(const struct op_call *c, struct err *err)
{
    const struct attention_device *s = (const struct attention_device *)c->state;

    return s->fused != NULL ? attention_fused_forward(s->fused, c, err)
                            : all_groups(c, group_forward, err);
}

static int backward(const struct op_call *c, struct err *err)
{
    const struct attention_device *s = (const struct attention_device *)c->state;

    if (c->dout[0] == NULL)
        return op_cuda_zero(c, err);
    return s->fused != NULL ? attention_fused_backward(s->fused, c, err)
                            : all_groups(c, group_backward, err);
}

OP_CUDA(op_attention, .plan = plan, .fwd = forward, .bwd = backward, .free_state = free_state);
