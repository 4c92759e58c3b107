/* sdpa.cu - see sdpa.cuh. The two graphs, with one operation per assignment; intermediate tensors
 * are virtual:
 *
 *   forward    scores = q k^T, scale, bias, causal     max = max(scores)   e = exp(scores - max)
 *              sum = sum(e)   stats = max + log(sum)   y = (e / sum) v
 *   backward   dot = sum(dy y)
 *              p = exp(scores as above - stats)        dv = p^T dy
 *              dp = dy v^T   ds = (dp - dot) p scale   dk = ds^T q     dq = ds k
 *
 * The second factor of the first product in forward, and of the first two in backward, is described
 * as transposed, [d, s]; p^T, ds^T and k are views (reshape). */
#include "op/attention/sdpa.cuh"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "op/cudnn/graph.cuh"

/* Limit, in bytes, of the gradients of the scores of a part of backward. */
#ifdef CUDA_EMULATED
/* small, so that tests have several parts */
static constexpr int64_t SLOPES_MAX = (int64_t)256 << 10;
#else
static constexpr int64_t SLOPES_MAX = (int64_t)256 << 20;
#endif
static constexpr size_t ALIGN = 256;

/* Unique ids: operands are 1 + sdpa_operand, then these, then virtual tensors. */
enum { UID_DOT = SDPA_OPERANDS + 1, UID_SCALE, UID_HIDDEN, UID_ONE, UID_VIRTUAL };

struct sdpa {
    struct cudnn_graph *graph; /* owned */
    struct sdpa_spec spec;
    int64_t batch, heads; /* samples and heads per part */
    float scale, hidden, one;
    size_t dot_bytes, scratch_bytes;
};

/* ---- the graph ---- */

struct builder {
    struct cudnn_graph *g;
    const struct sdpa *a;
    int64_t uid; /* next unique id */
    cudnnBackendDescriptor_t scale;
};

typedef cudnnBackendDescriptor_t descriptor;

/* Creates a virtual, contiguous [batch, heads, rows, cols]. */
static descriptor dense(struct builder *m, cudnnDataType_t type, int64_t rows, int64_t cols)
{
    const int64_t matrix = rows * cols;
    const struct cudnn_tensor t = { .type = type, .uid = m->uid++, .axes = 4,
                                    .size = { m->a->batch, m->a->heads, rows, cols },
                                    .step = { m->a->heads * matrix, matrix, cols, 1 }, .is_virtual = true };

    return cudnn_tensor(m->g, &t);
}

static descriptor scores(struct builder *m, cudnnDataType_t type)
{
    return dense(m, type, m->a->spec.t, m->a->spec.s);
}

static descriptor row_numbers(struct builder *m)
{
    return dense(m, CUDNN_DATA_FLOAT, m->a->spec.t, 1);
}

/* Creates a stored column: one number per row. */
/* parts may begin at any row, also of a bias */
static descriptor column(struct builder *m, int64_t uid)
{
    const struct sdpa_spec *s = &m->a->spec;
    const struct cudnn_tensor t = { .type = CUDNN_DATA_FLOAT, .uid = uid, .align = sizeof(float), .axes = 4,
                                    .size = { m->a->batch, m->a->heads, s->t, 1 },
                                    .step = { s->heads * s->t, s->t, 1, 1 } };

    return cudnn_tensor(m->g, &t);
}

static descriptor number(struct builder *m, int64_t uid)
{
    const struct cudnn_tensor t = { .type = CUDNN_DATA_FLOAT, .uid = uid, .axes = 4, .size = { 1, 1, 1, 1 },
                                    .step = { 1, 1, 1, 1 }, .is_number = true };

    return cudnn_tensor(m->g, &t);
}

/* Describes an operand with the strides of `as`, optionally transposed. */
static descriptor operand(struct builder *m, enum sdpa_operand which, enum sdpa_operand as,
                          bool transposed)
{
    const struct sdpa_spec *s = &m->a->spec;
    const int64_t rows = as == SDPA_K || as == SDPA_V ? s->s : s->t;
    const int64_t cols = as == SDPA_Q || as == SDPA_K ? s->d : s->dv;
    struct cudnn_tensor t = { .type = cudnn_type(s->type), .uid = which + 1, .axes = 4,
                              .size = { m->a->batch, m->a->heads, rows, cols },
                              .step = { s->at[as].batch, s->at[as].head, s->at[as].row, 1 } };

    if (transposed) {
        t.size[2] = cols, t.step[2] = 1;
        t.size[3] = rows, t.step[3] = s->at[as].row;
    }
    return cudnn_tensor(m->g, &t);
}

static descriptor bias(struct builder *m)
{
    const struct sdpa_spec *s = &m->a->spec;
    const int64_t steps[] = { s->at[SDPA_BIAS].batch, s->at[SDPA_BIAS].head, s->at[SDPA_BIAS].row };
    struct cudnn_tensor t = { .type = CUDNN_DATA_FLOAT, .uid = SDPA_BIAS + 1, .align = sizeof(float), .axes = 4,
                              .size = { m->a->batch, m->a->heads, s->t, s->s }, .step = { s->s, s->s, s->s, 1 } };

    for (int k = 0; k < 3; k++)
        if (steps[k] != 0)
            t.step[k] = steps[k];
        else
            t.size[k] = 1;
    return cudnn_tensor(m->g, &t);
}

static void product(struct builder *m, descriptor a, descriptor b, descriptor to)
{
    descriptor how = cudnn_make(m->g, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    descriptor d = cudnn_make(m->g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    cudnnDataType_t sums = CUDNN_DATA_FLOAT;

    cudnn_set(m->g, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &sums);
    cudnn_finish(m->g, how, "describe a product");
    cudnn_set_descriptor(m->g, d, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    cudnn_set_descriptor(m->g, d, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    cudnn_set_descriptor(m->g, d, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    cudnn_set_descriptor(m->g, d, CUDNN_ATTR_OPERATION_MATMUL_CDESC, to);
    cudnn_operation(m->g, d);
}

/* to = x mode b, element by element. axis: of GEN_INDEX; picks: of BINARY_SELECT, picks ? x : b.
 * Returns to. */
static descriptor each(struct builder *m, cudnnPointwiseMode_t mode, descriptor x, descriptor b,
                       descriptor to, cudnnDataType_t in = CUDNN_DATA_FLOAT, int64_t axis = -1,
                       descriptor picks = NULL)
{
    descriptor how = cudnn_make(m->g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    descriptor d = cudnn_make(m->g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);

    cudnn_set(m->g, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    cudnn_set(m->g, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &in);
    if (axis >= 0)
        cudnn_set(m->g, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    cudnn_finish(m->g, how, "describe an element-wise operation");
    cudnn_set_descriptor(m->g, d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    cudnn_set_descriptor(m->g, d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (b != NULL)
        cudnn_set_descriptor(m->g, d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    if (picks != NULL)
        cudnn_set_descriptor(m->g, d, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, picks);
    cudnn_set_descriptor(m->g, d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, to);
    cudnn_operation(m->g, d);
    return to;
}

/* Reduces each row to one number. */
static descriptor reduce(struct builder *m, cudnnReduceTensorOp_t by, descriptor x)
{
    descriptor how = cudnn_make(m->g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    descriptor d = cudnn_make(m->g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR),
               to = row_numbers(m);
    cudnnDataType_t sums = CUDNN_DATA_FLOAT;

    cudnn_set(m->g, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &by);
    cudnn_set(m->g, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &sums);
    cudnn_finish(m->g, how, "describe a reduction");
    cudnn_set_descriptor(m->g, d, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    cudnn_set_descriptor(m->g, d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    cudnn_set_descriptor(m->g, d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, to);
    cudnn_operation(m->g, d);
    return to;
}

static descriptor view(struct builder *m, descriptor x, descriptor to)
{
    descriptor d = cudnn_make(m->g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);

    cudnn_set_descriptor(m->g, d, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    cudnn_set_descriptor(m->g, d, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, to);
    cudnn_operation(m->g, d);
    return to;
}

/* Views scores [t, s] as [s, t], rounded to the type of the factors. */
static descriptor transposed_scores(struct builder *m, descriptor x)
{
    const struct sdpa_spec *s = &m->a->spec;
    const int64_t matrix = s->t * s->s;
    const struct cudnn_tensor t = { .type = cudnn_type(s->type), .uid = m->uid++, .axes = 4,
                                    .size = { m->a->batch, m->a->heads, s->s, s->t },
                                    .step = { m->a->heads * matrix, matrix, 1, s->s }, .is_virtual = true };

    return view(m, x, cudnn_tensor(m->g, &t));
}

/* Views k^T as k. */
static descriptor transposed_key(struct builder *m, descriptor kt)
{
    const struct sdpa_spec *s = &m->a->spec;
    const struct cudnn_tensor t = { .type = cudnn_type(s->type), .uid = m->uid++, .axes = 4,
                                    .size = { m->a->batch, m->a->heads, s->s, s->d },
                                    .step = { s->at[SDPA_K].batch, s->at[SDPA_K].head, s->at[SDPA_K].row, 1 },
                                    .is_virtual = true };

    return view(m, kt, cudnn_tensor(m->g, &t));
}

static descriptor scaled_scores(struct builder *m, descriptor q, descriptor kt)
{
    descriptor x = scores(m, CUDNN_DATA_FLOAT), y;

    product(m, q, kt, x);
    y = each(m, CUDNN_POINTWISE_MUL, x, m->scale, scores(m, CUDNN_DATA_FLOAT));
    if (m->a->spec.has_bias)
        y = each(m, CUDNN_POINTWISE_ADD, y, bias(m), scores(m, CUDNN_DATA_FLOAT));
    return y;
}

/* row >= column ? x : hidden. The library recognises the causal mask by this pattern. */
static descriptor causal(struct builder *m, descriptor x)
{
    descriptor row, col, sees;

    if (!m->a->spec.is_causal)
        return x;
    row = each(m, CUDNN_POINTWISE_GEN_INDEX, x, NULL, scores(m, CUDNN_DATA_INT32), CUDNN_DATA_FLOAT,
               2);
    col = each(m, CUDNN_POINTWISE_GEN_INDEX, x, NULL, scores(m, CUDNN_DATA_INT32), CUDNN_DATA_FLOAT,
               3);
    sees = each(m, CUDNN_POINTWISE_CMP_GE, row, col, scores(m, CUDNN_DATA_BOOLEAN),
                CUDNN_DATA_BOOLEAN);
    return each(m, CUDNN_POINTWISE_BINARY_SELECT, x, number(m, UID_HIDDEN),
                scores(m, CUDNN_DATA_FLOAT), CUDNN_DATA_FLOAT, -1, sees);
}

static void forward_graph(struct builder *m)
{
    descriptor q = operand(m, SDPA_Q, SDPA_Q, false), kt = operand(m, SDPA_K, SDPA_K, true);
    descriptor x = causal(m, scaled_scores(m, q, kt)), max = reduce(m, CUDNN_REDUCE_TENSOR_MAX, x),
               e, sum, log;

    x = each(m, CUDNN_POINTWISE_SUB, x, max, scores(m, CUDNN_DATA_FLOAT));
    e = each(m, CUDNN_POINTWISE_EXP, x, NULL, scores(m, CUDNN_DATA_FLOAT));
    sum = reduce(m, CUDNN_REDUCE_TENSOR_ADD, e);
    log = each(m, CUDNN_POINTWISE_LOG, sum, NULL, row_numbers(m));
    (void)each(m, CUDNN_POINTWISE_ADD, max, log, column(m, SDPA_STATS + 1));
    x = each(m, CUDNN_POINTWISE_DIV, e, sum, scores(m, cudnn_type(m->a->spec.type)));
    product(m, x, operand(m, SDPA_V, SDPA_V, false), operand(m, SDPA_Y, SDPA_Y, false));
}

static void backward_graph(struct builder *m)
{
    const struct sdpa_spec *s = &m->a->spec;
    descriptor q = operand(m, SDPA_Q, SDPA_Q, false), kt = operand(m, SDPA_K, SDPA_K, true);
    descriptor vt = operand(m, SDPA_V, SDPA_V, true), dy = operand(m, SDPA_DY, SDPA_Y, false), dot,
               x, p;

    x = each(m, CUDNN_POINTWISE_MUL, dy, operand(m, SDPA_Y, SDPA_Y, false),
             dense(m, CUDNN_DATA_FLOAT, s->t, s->dv));
    dot = each(m, CUDNN_POINTWISE_MUL, reduce(m, CUDNN_REDUCE_TENSOR_ADD, x), number(m, UID_ONE),
               column(m, UID_DOT));
    x = each(m, CUDNN_POINTWISE_SUB, scaled_scores(m, q, kt), column(m, SDPA_STATS + 1),
             scores(m, CUDNN_DATA_FLOAT));
    p = each(m, CUDNN_POINTWISE_EXP, causal(m, x), NULL, scores(m, CUDNN_DATA_FLOAT));
    product(m, transposed_scores(m, p), dy, operand(m, SDPA_DV, SDPA_V, false));
    x = scores(m, CUDNN_DATA_FLOAT);
    product(m, dy, vt, x);
    x = each(m, CUDNN_POINTWISE_SUB, x, dot, scores(m, CUDNN_DATA_FLOAT));
    x = each(m, CUDNN_POINTWISE_MUL, x, p, scores(m, CUDNN_DATA_FLOAT));
    x = each(m, CUDNN_POINTWISE_MUL, x, m->scale, scores(m, CUDNN_DATA_FLOAT));
    product(m, transposed_scores(m, x), q, operand(m, SDPA_DK, SDPA_K, false));
    product(m, x, transposed_key(m, kt), operand(m, SDPA_DQ, SDPA_Q, false));
}

/* ---- plan ---- */

static bool fits(int64_t batch, int64_t head, int64_t row, int64_t cols)
{
    return cols % 8 == 0 && row >= cols && row % 8 == 0 && batch > 0 && batch % 8 == 0 &&
           head > 0 && head % 8 == 0;
}

bool sdpa_fits(const struct sdpa_spec *spec)
{
    bool fit = spec->type == TENSOR_BF16 || spec->type == TENSOR_F16;

    for (int k = SDPA_Q; k < SDPA_BIAS; k++)
        fit = fit && fits(spec->at[k].batch, spec->at[k].head, spec->at[k].row,
                          k == SDPA_Q || k == SDPA_K ? spec->d : spec->dv);
    return fit && spec->batch > 0 && spec->heads > 0 && spec->t > 0 && spec->s > 0;
}

/* Returns the largest divisor of n that is at most `most`, at least 1. */
static int64_t divisor(int64_t n, int64_t most)
{
    int64_t d = n < most ? n : most;

    while (d > 1 && n % d != 0)
        d--;
    return d < 1 ? 1 : d;
}

/* Scratch for the gradients of the scores of a matrix, rounded as in the library. */
static int64_t gradient_bytes(const struct sdpa_spec *s)
{
    return (s->t + 63) / 64 * 64 * ((s->s + 127) / 128 * 128) * 2;
}

/* Describes the operation: all that determines the graph. */
static void describe(const struct sdpa *a, char *out, size_t n)
{
    static const char *const names[SDPA_LAID] = { "q", "k", "v", "y", "bias" };
    const struct sdpa_spec *s = &a->spec;
    const int laid = s->has_bias ? (int)SDPA_LAID : (int)SDPA_BIAS;
    int at = snprintf(
        out, n,
        "attention%s, %s, %lld of %lld samples, %lld of %lld heads, %lld queries of %lld, "
        "%lld keys, values of %lld%s, strides of samples, heads and rows:",
        s->backward ? " backward" : "", tensor_dtype_name(s->type), (long long)a->batch,
        (long long)s->batch, (long long)a->heads, (long long)s->heads, (long long)s->t,
        (long long)s->d, (long long)s->s, (long long)s->dv, s->is_causal ? ", causal" : "");

    for (int k = 0; k < laid; k++)
        at +=
            snprintf(out + at, n - (size_t)at, " %s %lld %lld %lld", names[k],
                     (long long)s->at[k].batch, (long long)s->at[k].head, (long long)s->at[k].row);
}

static int build_graph(struct sdpa *a, struct err *err)
{
    struct builder m = { NULL, a, UID_VIRTUAL, NULL };
    char what[640]; /* 17 numbers of 20 digits, and the words */
    int rc;

    describe(a, what, sizeof(what));
    rc = cudnn_graph_find(what, &a->graph, err);
    if (rc < 0 || a->graph != NULL)
        return rc;
    rc = cudnn_graph_open(what, &a->graph, err);
    if (rc < 0)
        return rc;
    m.g = a->graph;
    m.scale = number(&m, UID_SCALE);
    if (a->spec.backward)
        backward_graph(&m);
    else
        forward_graph(&m);
    rc = cudnn_graph_select(a->graph, true, INT64_MAX, err);
    if (rc == 0)
        cudnn_graph_share(a->graph);
    return rc;
}

int sdpa_open(const struct sdpa_spec *spec, struct sdpa **out, struct err *err)
{
    struct sdpa *a = (struct sdpa *)calloc(1, sizeof(*a));
    int rc;

    if (a == NULL)
        return err_set(err, ERR_NOMEM, "attention: out of memory");
    a->spec = *spec;
    a->batch = spec->batch;
    a->heads = spec->heads;
    a->scale = spec->scale;
    a->hidden = -INFINITY;
    a->one = 1;
    if (spec->backward) {
        const int64_t most = SLOPES_MAX / gradient_bytes(spec);

        a->heads = divisor(spec->heads, most);
        a->batch = a->heads < spec->heads ? 1 : divisor(spec->batch, most / spec->heads);
        a->dot_bytes = ((size_t)(spec->batch * spec->heads * spec->t) * sizeof(float) + ALIGN - 1) /
                       ALIGN * ALIGN;
    }
    rc = build_graph(a, err);
    if (rc < 0) {
        sdpa_close(a);
        return rc;
    }
    a->scratch_bytes = a->dot_bytes + cudnn_graph_scratch_bytes(a->graph);
    *out = a;
    return 0;
}

void sdpa_close(struct sdpa *a)
{
    if (a == NULL)
        return;
    cudnn_graph_close(a->graph);
    free(a);
}

size_t sdpa_scratch_bytes(const struct sdpa *a)
{
    return a == NULL ? 0 : a->scratch_bytes;
}

/* ---- a call ---- */

/* Returns the address at which a part of an operand begins. */
static void *part_of(const struct sdpa_spec *s, void *const at[SDPA_OPERANDS], int which,
                     int64_t batch, int64_t head)
{
    static const int as[SDPA_OPERANDS] = { SDPA_Q, SDPA_K, SDPA_V, SDPA_Y, SDPA_BIAS, -1, SDPA_Y, SDPA_Q, SDPA_K,
                                           SDPA_V };
    const int64_t bytes = which == SDPA_BIAS || which == SDPA_STATS ? 4 : 2;
    const int64_t place = as[which] < 0
                              ? (batch * s->heads + head) * s->t
                              : batch * s->at[as[which]].batch + head * s->at[as[which]].head;

    return (char *)at[which] + place * bytes;
}

int sdpa_run(struct sdpa *a, void *const at[SDPA_OPERANDS], void *scratch, cudaStream_t stream,
             struct err *err)
{
    const struct sdpa_spec *s = &a->spec;
    void *work = (char *)scratch + a->dot_bytes;
    int rc = 0;

    for (int64_t b = 0; rc == 0 && b < s->batch; b += a->batch)
        for (int64_t h = 0; rc == 0 && h < s->heads; h += a->heads) {
            int64_t uids[CUDNN_OPERANDS] = { UID_SCALE };
            void *seen[CUDNN_OPERANDS] = { &a->scale };
            int n = 1;

            for (int k = 0; k < SDPA_OPERANDS; k++)
                if (at[k] != NULL) {
                    uids[n] = k + 1;
                    seen[n++] = part_of(s, at, k, b, h);
                }
            if (s->is_causal) {
                uids[n] = UID_HIDDEN;
                seen[n++] = &a->hidden;
            }
            if (s->backward) {
                uids[n] = UID_ONE;
                seen[n++] = &a->one;
                uids[n] = UID_DOT;
                seen[n++] = (char *)scratch + (b * s->heads + h) * s->t * (int64_t)sizeof(float);
            }
            rc = cudnn_graph_run(a->graph, n, uids, seen, work, stream, err);
        }
    return rc;
}
