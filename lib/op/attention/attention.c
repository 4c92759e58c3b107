/* attention.c - Attention: y = softmax(steps(q k)) v, without storing the matrix of scores.
 *
 * One node replaces a MatMul, the operations on the scores, Softmax along the keys, Dropout, a
 * MatMul and the surrounding Transposes (graph/fuse_attention.c finds them):
 *   q, k, v    float32 of equal rank >= 2. Transpose(q, perm_q) is [batch.., t, d],
 *              Transpose(k, perm_k) [batch.., d, s], Transpose(v, perm_v) [batch.., s, dv]; without
 *              the attribute, the operand already has this order
 *   parts      the shape of each operand. If given, all three are in input 0, [.., 3 columns], side
 *              by side as one product computes them: q is the first third of the columns, viewed in
 *              this shape, whose last axes are the columns; then k, then v. Inputs 1 and 2 are
 *              absent
 *   grouped heads (GQA, MQA): along the last axis of the batch, q may have `shared` times as many
 *   heads
 *              as k and v; head h of q reads head h / shared of k and v. k and v are not copied,
 *              and their gradients are summed over the query heads that read them. The batch in the
 *              lines below is that of q
 *   steps      strings, the operations on a score x, in this order: "scale" x * number,
 *              "add" x + mask, "keep" mask ? x : number, "fill" mask ? number : x,
 *              "cap" number * tanh(x / number) (at most one, number > 0); numbers has a float for
 *              each
 *   band       two integers, lower and upper: after the steps, row i sees only the keys i + lower
 *              to i + upper, and the weight of every other key is 0. {INT64_MIN, 0}: causal from
 *              the top left
 *   empty      1: a row without a visible key (all scores -inf, by masks or the band) has zero
 *              weights, so its output and gradients are 0. Default 0: such a row is NaN, as in
 *              Softmax
 *   inputs 3.. the masks of the steps that have one, in their order; each broadcasts to
 *              [batch.., t, s] but has all s columns; "add": float32, else bool
 *   dropout    the ratio, for training plans. The random numbers are those that a Dropout of the
 *              weights [batch.., t, s] with this node's stream would draw
 *   y          Transpose(the product [batch.., t, dv], perm_y)
 * Masks have no gradient.
 *
 * Backward recomputes the weights of a block from q, k and two numbers per row, the largest score
 * and the sum of exponentials (T. Dao et al., "FlashAttention: Fast and Memory-Efficient Exact
 * Attention with IO-Awareness", 2022, section 3.1 and appendix B.4), with p = softmax(x):
 *   dv = p^T dy   dp = dy v^T   dx = p (dp - sum_j y_j dy_j)   dq = dx k^T   dk = dx^T q
 * where dx is then propagated back through the steps.
 *
 * The CPU kernels skip keys that constant masks hide from all rows of a block (with a causal mask,
 * all later keys) and do not even read them. This does not change the result if each row has a
 * visible score so much larger that the hidden keys have weight e^-104 = 0. Every call checks that.
 * If it is not true (a row whose keys are all masked: uniform weights, or NaN with -inf), the block
 * is computed again with all keys. An "add" counts as masking from -1e38 down, because only scores
 * near the float limit could exceed it. GPU kernels multiply all keys: a hidden key has weight 0
 * there, too, but a NaN in a hidden key propagates. */
#include "op/attention/attention.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "op/attention/attention_cpu.h"
#include "op/simd.h"
#include "op/op_priv.h"

enum {
    BLOCK_ROWS = 64,         /* rows of scores; fewer if there are many keys */
    BLOCK_SCORES = 131072,   /* scores of a block, which should fit the cache */
    GROUP_SCORES = 32768,    /* small matrices are grouped, up to this number of scores */
};

/* ---- operands ---- */

static void plain_steps(const struct shape *s, ptrdiff_t *step)
{
    ptrdiff_t size = 1;
    uint32_t i;

    for (i = s->rank; i-- > 0;) {
        step[i] = size;
        size *= (ptrdiff_t)s->dim[i];
    }
}

/* Reads a permutation: perm[k] is the axis of the operand that becomes axis k. */
static int read_perm(const struct op_infer *f, const char *name, uint32_t rank, uint32_t *perm,
                     struct err *err)
{
    const int64_t *list;
    uint32_t seen = 0, k;
    size_t n;
    int rc = op_attr_ints(f, name, &list, &n, err);

    if (rc < 0)
        return rc;
    if (list != NULL && n != rank)
        return op_error(f, ERR_INPUT, err, "%s has %zu axes; expected %" PRIu32, name, n, rank);
    for (k = 0; k < rank; k++) {
        int64_t axis = list != NULL ? list[k] : (int64_t)k;

        if (axis < 0 || axis >= rank || (seen & (1u << axis)) != 0)
            return op_error(f, ERR_INPUT, err, "%s: expected each of 0 to %" PRIu32 " once", name,
                            rank - 1);
        seen |= 1u << axis;
        perm[k] = (uint32_t)axis;
    }
    return 0;
}

static void set_steps(struct attention_at *at, const ptrdiff_t *step, uint32_t rank)
{
    memcpy(at->batch, step, (rank - 2) * sizeof(*step));
    at->row = step[rank - 2];
    at->col = step[rank - 1];
}

/* The memory layout of an operand before its transposition. */
struct layout {
    struct shape shape;
    ptrdiff_t start, step[TENSOR_MAX_RANK];
};

/* Returns the layout of an operand that is a separate tensor. */
static int layout_of_tensor(const struct op_infer *f, uint32_t i, struct layout *l, struct err *err)
{
    int rc = op_check_input(f, i, TENSOR_F32, i == 0 ? -1 : (int)f->in[0]->shape.rank, err);

    if (rc < 0)
        return rc;
    l->start = 0;
    l->shape = f->in[i]->shape;
    plain_steps(&l->shape, l->step);
    return 0;
}

/* Returns the layout of an operand that is a third of the columns of input 0. */
static int layout_of_part(const struct op_infer *f, uint32_t i, const int64_t *parts, size_t n,
                          struct layout *l, struct err *err)
{
    const struct shape *s;
    int64_t columns, here = 1;
    uint32_t lead;
    char text[192];
    int rc = op_check_input(f, 0, TENSOR_F32, -1, err);

    if (rc < 0)
        return rc;
    s = &f->in[0]->shape;
    columns = s->rank > 0 && s->dim[s->rank - 1] % 3 == 0 ? s->dim[s->rank - 1] / 3 : 0;
    l->shape.rank = n <= TENSOR_MAX_RANK ? (uint32_t)n : 0;
    for (uint32_t k = 0; k < l->shape.rank; k++)
        l->shape.dim[k] = parts[k] < 0 ? 0 : parts[k];
    for (lead = l->shape.rank; lead > 0 && here > 0 && here < columns; lead--)
        here = l->shape.dim[lead - 1] <= columns ? here * l->shape.dim[lead - 1] : 0;
    if (columns == 0 || here != columns || f->in[1] != NULL || f->in[2] != NULL ||
        shape_elements(&l->shape) != shape_elements(s) / 3)
        return op_error(f, ERR_INPUT, err, "parts: expected the shape of a third of the columns of input 0, which "
                        "is %s, and no inputs 1 and 2", shape_print(s, text, sizeof(text)));
    plain_steps(&l->shape, l->step);
    for (uint32_t k = 0; k < lead; k++)
        l->step[k] *= 3;
    l->start = (ptrdiff_t)(i * columns);
    return 0;
}

/* Returns the shape and the position of operand i, transposed by attribute `name`. */
static int operand(const struct op_infer *f, struct attention *a, uint32_t i, const char *name,
                   struct shape *shape, struct attention_at *at, struct err *err)
{
    ptrdiff_t turned[TENSOR_MAX_RANK];
    uint32_t perm[TENSOR_MAX_RANK], k;
    const int64_t *parts;
    struct layout l;
    size_t n;
    int rc = op_attr_ints(f, "parts", &parts, &n, err);

    if (rc == 0)
        rc = parts != NULL ? layout_of_part(f, i, parts, n, &l, err)
                           : layout_of_tensor(f, i, &l, err);
    if (rc < 0)
        return rc;
    a->of[i] = parts != NULL ? 0 : i;
    if (l.shape.rank < 2)
        return op_error(f, ERR_INPUT, err, "input %" PRIu32 " has %" PRIu32
                        " dimensions; expected at least 2", i, l.shape.rank);
    rc = read_perm(f, name, l.shape.rank, perm, err);
    if (rc < 0)
        return rc;
    shape->rank = l.shape.rank;
    for (k = 0; k < l.shape.rank; k++) {
        shape->dim[k] = l.shape.dim[perm[k]];
        turned[k] = l.step[perm[k]];
    }
    set_steps(at, turned, l.shape.rank);
    at->start = l.start;
    return 0;
}

static int operands(struct op_infer *f, struct attention *a, struct err *err)
{
    struct shape q, k, v;
    char text[3][192];
    ptrdiff_t swap;
    uint32_t i;
    bool fits;
    int rc = operand(f, a, 0, "perm_q", &q, &a->q, err);

    if (rc == 0)
        rc = operand(f, a, 1, "perm_k", &k, &a->k, err);
    if (rc == 0)
        rc = operand(f, a, 2, "perm_v", &v, &a->v, err);
    if (rc < 0)
        return rc;
    a->batch.rank = q.rank - 2;
    a->n = a->shared = 1;
    a->t = q.dim[q.rank - 2];
    a->d = q.dim[q.rank - 1];
    a->s = k.dim[q.rank - 1];
    a->dv = v.dim[q.rank - 1];
    fits = k.dim[q.rank - 2] == a->d && v.dim[q.rank - 2] == a->s;
    for (i = 0; i < a->batch.rank; i++) {
        bool is_last = i + 1 == a->batch.rank;

        fits = fits && k.dim[i] == v.dim[i] &&
               (k.dim[i] == q.dim[i] ||
                (is_last && k.dim[i] > 0 && q.dim[i] > 0 && q.dim[i] % k.dim[i] == 0));
        a->batch.dim[i] = q.dim[i];
        a->n *= q.dim[i];
        if (fits && is_last && k.dim[i] != q.dim[i])
            a->shared = q.dim[i] / k.dim[i];
    }
    if (!fits || a->t == 0 || a->s == 0 || a->d == 0 || a->dv == 0)
        return op_error(f, ERR_INPUT, err,
                        "q %s, k %s and v %s are not [.., t, d], [.., d, s] and "
                        "[.., s, dv], or the heads of q, the last axis before t, are not a "
                        "multiple of those of k and "
                        "v",
                        shape_print(&q, text[0], sizeof(text[0])),
                        shape_print(&k, text[1], sizeof(text[1])),
                        shape_print(&v, text[2], sizeof(text[2])));
    swap = a->k.row; /* from here on a row of k is a key */
    a->k.row = a->k.col;
    a->k.col = swap;
    return 0;
}

static int output(struct op_infer *f, struct attention *a, struct err *err)
{
    ptrdiff_t step[TENSOR_MAX_RANK], turned[TENSOR_MAX_RANK];
    uint32_t rank = a->batch.rank + 2, perm[TENSOR_MAX_RANK], k;
    struct shape product = a->batch;
    int rc = read_perm(f, "perm_y", rank, perm, err);

    if (rc < 0)
        return rc;
    product.dim[product.rank++] = a->t;
    product.dim[product.rank++] = a->dv;
    f->out[0].dtype = TENSOR_F32;
    f->out[0].shape.rank = rank;
    for (k = 0; k < rank; k++)
        f->out[0].shape.dim[k] = product.dim[perm[k]];
    rc = op_check_size(f, err);
    if (rc < 0)
        return rc;
    plain_steps(&f->out[0].shape, step);
    for (k = 0; k < rank; k++)
        turned[perm[k]] = step[k];
    set_steps(&a->y, turned, rank);
    return 0;
}

/* ---- steps ---- */

static int mask(const struct op_infer *f, const struct attention *a, struct attention_step *s,
                struct err *err)
{
    ptrdiff_t own[TENSOR_MAX_RANK], step[TENSOR_MAX_RANK] = { 0 };
    enum tensor_dtype dtype = s->kind == ATTENTION_ADD ? TENSOR_F32 : TENSOR_BOOL;
    struct shape scores = a->batch;
    const struct tensor *t;
    uint32_t skip, k;
    char text[2][192];
    int rc = op_check_input(f, s->input, dtype, -1, err);
    bool fits;

    if (rc < 0)
        return rc;
    t = f->in[s->input];
    scores.dim[scores.rank++] = a->t;
    scores.dim[scores.rank++] = a->s;
    fits = t->shape.rank > 0 && t->shape.rank <= scores.rank &&
           t->shape.dim[t->shape.rank - 1] == a->s;
    skip = fits ? scores.rank - t->shape.rank : 0;
    plain_steps(&t->shape, own);
    for (k = skip; fits && k < scores.rank; k++) {
        int64_t dim = t->shape.dim[k - skip];

        fits = dim == 1 || dim == scores.dim[k];
        step[k] = dim == 1 ? 0 : own[k - skip];
    }
    if (!fits)
        return op_error(f, ERR_INPUT, err, "mask %s does not broadcast to %s, or lacks columns",
                        shape_print(&t->shape, text[0], sizeof(text[0])),
                        shape_print(&scores, text[1], sizeof(text[1])));
    set_steps(&s->at, step, scores.rank);
    s->is_known = t->data != NULL;
    if (s->is_known && s->kind == ATTENTION_ADD)
        s->most = op_row_max(t->data, (size_t)tensor_elements(t));
    return 0;
}

static int steps(const struct op_infer *f, struct attention *a, struct err *err)
{
    static const char *const names[] = { [ATTENTION_SCALE] = "scale", [ATTENTION_ADD] = "add",
                                         [ATTENTION_KEEP] = "keep", [ATTENTION_FILL] = "fill",
                                         [ATTENTION_CAP] = "cap" };
    const char *const *kinds;
    const float *numbers;
    size_t n, n_numbers, i, k;
    uint32_t input = ATTENTION_QKV;
    int rc = op_attr_strings(f, "steps", &kinds, &n, err);

    if (rc == 0)
        rc = op_attr_floats(f, "numbers", &numbers, &n_numbers, err);
    if (rc < 0)
        return rc;
    if (n > ATTENTION_STEPS || n_numbers != n)
        return op_error(f, ERR_INPUT, err, "%zu steps with %zu numbers; expected at most %d, and a "
                        "number for each", n, n_numbers, ATTENTION_STEPS);
    a->n_steps = (uint32_t)n;
    for (i = 0; i < n; i++) {
        struct attention_step *s = &a->step[i];

        for (k = 0; k < COUNT_OF(names) && strcmp(names[k], kinds[i]) != 0;)
            k++;
        if (k == COUNT_OF(names))
            return op_error(f, ERR_INPUT, err, "step '%s'; expected scale, add, keep, fill or cap",
                            kinds[i]);
        s->kind = (enum attention_kind)k;
        s->number = numbers[i];
        if (s->kind == ATTENTION_CAP && (a->has_cap || !(s->number > 0) || isinf(s->number)))
            return op_error(f, ERR_INPUT, err, "step cap with number %g; expected one such step, and a positive "
                            "finite number", (double)s->number);
        a->has_cap = a->has_cap || s->kind == ATTENTION_CAP;
        if (!attention_has_mask(s))
            continue;
        s->input = input++;
        rc = mask(f, a, s, err);
        if (rc < 0)
            return rc;
    }
    if (input != f->n_in)
        return op_error(f, ERR_INPUT, err, "%" PRIu32 " inputs; the steps need %" PRIu32, f->n_in,
                        input);
    return 0;
}

/* ---- grouped heads ---- */

/* Splits the last axis of the batch for an operand with the heads of q. */
static void split_heads(const struct attention *a, struct attention_at *at)
{
    const uint32_t last = a->batch.rank - 1;

    at->batch[last + 1] = at->batch[last];
    at->batch[last] *= (ptrdiff_t)a->shared;
}

/* Called when all operands and masks have been read. The batch has at most TENSOR_MAX_RANK - 2
 * axes, so one more fits. */
static void share_heads(struct attention *a)
{
    const uint32_t last = a->batch.rank - 1;
    uint32_t i;

    if (a->shared == 1)
        return;
    split_heads(a, &a->q);
    split_heads(a, &a->y);
    for (i = 0; i < a->n_steps; i++)
        split_heads(a, &a->step[i].at);
    a->k.batch[last + 1] = a->v.batch[last + 1] = 0;
    a->batch.dim[last] /= a->shared;
    a->batch.dim[a->batch.rank++] = a->shared;
}

static int band(const struct op_infer *f, struct attention *a, struct err *err)
{
    const int64_t *limits;
    int64_t empty = 0;
    size_t n;
    int rc = op_attr_ints(f, "band", &limits, &n, err);

    if (rc == 0)
        rc = op_attr_i(f, "empty", 0, &empty, err);
    if (rc < 0)
        return rc;
    a->zero_empty = empty != 0;
    if (limits == NULL)
        return 0;
    if (n != 2 || limits[0] > limits[1])
        return op_error(f, ERR_INPUT, err, "band: expected two integers, the lower first");
    a->has_band = true;
    a->lower = limits[0] < -ATTENTION_FAR ? -ATTENTION_FAR : limits[0];
    a->lower = a->lower > ATTENTION_FAR ? ATTENTION_FAR : a->lower;
    a->upper = limits[1] > ATTENTION_FAR ? ATTENTION_FAR : limits[1];
    a->upper = a->upper < -ATTENTION_FAR ? -ATTENTION_FAR : a->upper;
    return 0;
}

/* ---- the op ---- */

static void divide_blocks(struct attention *a)
{
    int64_t rows = BLOCK_SCORES / a->s / a->shared / 16 * 16;

    rows = rows < 16 ? 16 : rows > BLOCK_ROWS ? BLOCK_ROWS : rows;
    a->n_blocks = (a->t + rows - 1) / rows;
    a->rows = (a->t + a->n_blocks - 1) / a->n_blocks; /* blocks of about equal size */
    a->n_blocks = (a->t + a->rows - 1) / a->rows;
    a->group = 1;
    if (a->n_blocks > 1)
        return;
    for (a->group = a->n < a->shared ? 1 : a->n / a->shared; a->group > 1; a->group--)
        if (a->n / a->shared % a->group == 0 && a->group <= GROUP_SCORES / a->t / a->s / a->shared)
            return;
}

static int infer(struct op_infer *f, struct err *err)
{
    struct attention *a = f->param;
    float ratio = 0;
    int rc = operands(f, a, err);

    if (rc == 0)
        rc = output(f, a, err);
    if (rc == 0)
        rc = steps(f, a, err);
    if (rc == 0)
        rc = band(f, a, err);
    if (rc == 0)
        rc = op_attr_f(f, "dropout", 0, &ratio, err);
    if (rc < 0)
        return rc;
    share_heads(a);
    if (a->t > INT64_MAX / a->s || (a->n > 0 && a->t * a->s > INT64_MAX / a->n))
        return op_error(f, ERR_INPUT, err, "the number of scores overflows");
    divide_blocks(a);
    rc = dropout_finish(f, (double)ratio, ratio > 0, ratio > 0 ? a->n * a->t * a->s : 0,
                        &a->dropout, err);
    return rc == 0 ? attention_visible(f, a, err) : rc;
}

static double flops(const struct op_infer *f)
{
    const struct attention *a = f->param;
    double scores = 0;
    int64_t b;

    for (b = 0; b < a->n_blocks; b++) {
        int64_t rows = b + 1 < a->n_blocks ? a->rows : a->t - b * a->rows;

        scores += (double)rows * (double)(a->seen[b].end - a->seen[b].first);
    }
    return 2.0 * (double)a->n * scores * (double)(a->d + a->dv);
}

static const char *const attrs[] = { "parts", "perm_q", "perm_k", "perm_v", "perm_y",
                                     "steps", "numbers", "band", "empty", "dropout", NULL };

const struct op_def op_attention = {
    .domain = "trainerd",
    .name = "Attention",
    .since = 1,
    .n_in = { ATTENTION_QKV, ATTENTION_QKV + ATTENTION_STEPS },
    .n_out = { 1, 1 },
    .attrs = attrs,
    .param_bytes = sizeof(struct attention),
    .infer = infer,
    .diff = OP_IN(0) | OP_IN(1) | OP_IN(2),
    .bwd_reads = 0x7ff | OP_OUT(0), /* every possible input */
    .random = true,
    .layout = OP_LAYOUT_PLAIN,
    .half = OP_HALF_WANT,
    .half_of = OP_IN(0) | OP_IN(1) | OP_IN(2) | OP_OUT(0),
    .cpu = { attention_cpu_plan, attention_cpu_fwd, attention_cpu_bwd, attention_cpu_free },
    .flops = flops,
};
