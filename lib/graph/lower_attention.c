/* lower_attention.c - lowers Attention of ONNX 23, 24 and 25 to trainerd.Attention
 * (op/attention/attention.c).
 *
 *   q, k, v     [batch, heads, rows, columns], or [batch, rows, heads * columns], which is reshaped
 *               to [batch, rows, heads, columns] and transposed by the op. Grouped heads stay
 *               grouped
 *   scores      scale, softcap, then the mask: bool "keep" with -inf, float "add"
 *   is_causal, left_window_size, right_window_size (25)
 *               the band of the op: row i is at position i + (keys in past_key)
 *   nonpad_kv_seqlen (24)
 *               number of keys per sample, so its mask is computed: row i is at position
 *               i + nonpad_kv_seqlen - rows
 *   past_key, past_value, present_key, present_value
 *               Concat and its results; only without training
 *   a row without a visible key is 0 (errata of 23 and 24; text of 25)
 *   softmax_precision
 *               float32, even if the file has a lower precision
 *
 * The matrix of scores is computed only if it is required: for qk_matmul_output, and for a trained
 * mask. The op is then expanded to other ops, with heads of k and v repeated. */
#include "graph/plan_lower.h"

#include <inttypes.h>
#include <math.h>

#include "base/err.h"

enum { Q, K, V, MASK, PAST_KEY, PAST_VALUE, NONPAD };
enum { Y, PRESENT_KEY, PRESENT_VALUE, SCORES };

struct attention_node {
    struct lowering *l;
    bool is_flat;       /* q, k, v and y have three axes */
    int64_t batch, heads, key_heads, t, s, d, dv; /* s: including the keys of past_key */
    int64_t past;       /* number of keys in past_key */
    uint32_t q, k, v;   /* values; reshaped to four axes if they are flat */
    bool is_rows_first[3];  /* q, k, v: has the order [batch, rows, heads, columns] */
    uint32_t mask;      /* GRAPH_NONE: absent */
    uint32_t visible;     /* bool mask computed from nonpad_kv_seqlen; GRAPH_NONE: absent */
    float scale, cap;   /* cap 0: absent */
    int64_t mode, left, right; /* left, right: -1: no limit */
    bool is_causal;
    bool has_band;
    int64_t band[2];
};

static const int64_t rows_first[] = { 0, 2, 1, 3 }; /* also its own inverse */

/* ---- attributes and operands ---- */

static void read_attrs(struct attention_node *a)
{
    struct lowering *l = a->l;
    int64_t causal, precision;
    float d = (float)(1 / sqrt((double)a->d));
    int rc = op_attr_f(&l->attrs, "scale", d, &a->scale, l->err);

    if (rc == 0)
        rc = op_attr_f(&l->attrs, "softcap", 0, &a->cap, l->err);
    if (rc == 0)
        rc = op_attr_i(&l->attrs, "is_causal", 0, &causal, l->err);
    if (rc == 0)
        rc = op_attr_i(&l->attrs, "softmax_precision", TENSOR_F32, &precision, l->err);
    if (rc == 0)
        rc = op_attr_i(&l->attrs, "qk_matmul_output_mode", 0, &a->mode, l->err);
    if (rc == 0)
        rc = op_attr_i(&l->attrs, "left_window_size", -1, &a->left, l->err);
    if (rc == 0)
        rc = op_attr_i(&l->attrs, "right_window_size", -1, &a->right, l->err);
    l->rc = rc;
    if (rc < 0)
        return;
    a->is_causal = causal != 0;
    if (!isfinite(a->scale) || !(a->cap >= 0) || isinf(a->cap))
        LOWER_ERROR(l, ERR_INPUT,
                    "scale %g and softcap %g; expected finite numbers, and softcap at least 0",
                    (double)a->scale, (double)a->cap);
    else if (a->mode < 0 || a->mode > 3)
        LOWER_ERROR(l, ERR_INPUT, "qk_matmul_output_mode is %" PRId64 "; expected 0 to 3", a->mode);
    else if (a->left < -1 || a->right < -1 || a->left > INT32_MAX || a->right > INT32_MAX)
        LOWER_ERROR(l, ERR_INPUT,
                    "windows of %" PRId64 " and %" PRId64 "; expected -1 (no limit) to %d", a->left,
                    a->right, INT32_MAX);
    else if (precision != TENSOR_F32 && precision != TENSOR_F16 && precision != TENSOR_BF16)
        LOWER_ERROR(l, ERR_UNSUPPORTED, "softmax_precision is %" PRId64 "; supported are 1 (float32), 10 and 16, "
                    "all computed in float32", precision);
}

/* Input i with four axes; if it has three, the attribute splits the last. */
static uint32_t operand(struct attention_node *a, uint32_t i, const char *heads_attr)
{
    struct lowering *l = a->l;
    uint32_t value = lower_in(l, i);
    const struct shape *s;
    int64_t heads, dim[4];
    char text[192];

    if (l->rc < 0)
        return GRAPH_NONE;
    s = &lower_tensor(l, value)->shape;
    a->is_flat = s->rank == 3;
    if (lower_tensor(l, value)->dtype != TENSOR_F32)
        LOWER_ERROR(l, ERR_UNSUPPORTED, "input %" PRIu32 " is %s; expected float32", i,
                    tensor_dtype_name(lower_tensor(l, value)->dtype));
    else
        l->rc = op_attr_i(&l->attrs, heads_attr, 0, &heads, l->err);
    if (l->rc < 0)
        return GRAPH_NONE;
    if (s->rank == 4 && (heads == 0 || heads == s->dim[1]))
        return value;
    if (s->rank != 3 || heads < 1 || s->dim[2] % heads != 0) {
        LOWER_ERROR(l, ERR_INPUT, "input %" PRIu32 " is %s and %s is %" PRId64 "; expected [batch, heads, rows, "
                    "columns], or [batch, rows, heads * columns] and the number of heads", i,
                    shape_print(s, text, sizeof(text)), heads_attr, heads);
        return GRAPH_NONE;
    }
    dim[0] = s->dim[0];
    dim[1] = s->dim[1];
    dim[2] = heads;
    dim[3] = s->dim[2] / heads;
    return lower_reshape(l, value, dim, 4);
}

/* Size of an axis of an operand, in the order [batch, heads, rows, columns]. */
static int64_t size_of(const struct attention_node *a, uint32_t which, uint32_t value,
                       uint32_t axis)
{
    static const uint32_t swapped[] = { 0, 2, 1, 3 };

    return lower_tensor(a->l, value)->shape.dim[a->is_rows_first[which] ? swapped[axis] : axis];
}

/* present = Concat(past, new), both [batch, heads, rows, columns]. */
static void join_past(struct attention_node *a, uint32_t which, uint32_t past_input,
                      uint32_t *value)
{
    struct lowering *l = a->l;
    const uint32_t past = lower_in(l, past_input);

    if (l->rc < 0 || past == GRAPH_NONE)
        return;
    if (a->is_rows_first[which])
        *value = lower_transpose(l, *value, rows_first, 4);
    a->is_rows_first[which] = false;
    if (l->rc == 0 && lower_tensor(l, past)->shape.rank != 4) {
        LOWER_ERROR(l, ERR_INPUT, "input %" PRIu32 ": expected [batch, heads, rows, columns]",
                    past_input);
        return;
    }
    *value = lower_concat(l, past, *value, 2);
    if (which == K && l->rc == 0)
        a->past = lower_tensor(l, past)->shape.dim[2];
}

/* Caches are used while text is generated; training has none. */
static void check_caches(struct attention_node *a)
{
    struct lowering *l = a->l;
    const bool key = lower_in(l, PAST_KEY) != GRAPH_NONE,
               value = lower_in(l, PAST_VALUE) != GRAPH_NONE,
               nonpad = lower_in(l, NONPAD) != GRAPH_NONE;

    if (key != value || (key && nonpad))
        LOWER_ERROR(l, ERR_INPUT,
                    "expected past_key and past_value together, without nonpad_kv_seqlen");
    else if ((key || nonpad) && l->p->purpose != PLAN_RUN)
        LOWER_ERROR(l, ERR_UNSUPPORTED, "it reads a cache of keys and values, which a training step does not have; "
                    "export the model without one (transformers: config.use_cache = False, and no "
                    "past_key_values among the inputs)");
}

static void read_operands(struct attention_node *a)
{
    struct lowering *l = a->l;
    bool fits;

    a->q = operand(a, Q, "q_num_heads");
    a->is_rows_first[Q] = a->is_flat;
    a->k = operand(a, K, "kv_num_heads");
    a->is_rows_first[K] = a->is_flat;
    a->v = operand(a, V, "kv_num_heads");
    a->is_rows_first[V] = a->is_flat;
    if (l->rc == 0)
        check_caches(a);
    join_past(a, K, PAST_KEY, &a->k);
    join_past(a, V, PAST_VALUE, &a->v);
    if (l->rc < 0)
        return;
    a->batch = size_of(a, Q, a->q, 0);
    a->heads = size_of(a, Q, a->q, 1);
    a->t = size_of(a, Q, a->q, 2);
    a->d = size_of(a, Q, a->q, 3);
    a->key_heads = size_of(a, K, a->k, 1);
    a->s = size_of(a, K, a->k, 2);
    a->dv = size_of(a, V, a->v, 3);
    fits = size_of(a, K, a->k, 0) == a->batch && size_of(a, V, a->v, 0) == a->batch &&
           size_of(a, V, a->v, 1) == a->key_heads && size_of(a, V, a->v, 2) == a->s &&
           size_of(a, K, a->k, 3) == a->d && a->key_heads > 0 && a->heads % a->key_heads == 0 &&
           a->is_flat == (lower_tensor(l, lower_in(l, Q))->shape.rank == 3);
    if (!fits || a->batch * a->heads * a->t * a->s * a->d * a->dv == 0)
        LOWER_ERROR(l, ERR_INPUT, "q has %" PRId64 " samples, %" PRId64 " heads and %" PRId64 " columns; k and v have "
                    "%" PRId64 " and %" PRId64 " samples, %" PRId64 " and %" PRId64 " heads, %" PRId64 " and %" PRId64
                    " rows, k %" PRId64 " columns: expected equal samples, columns of q and k, rows and heads of k and "
                    "v, a multiple of these heads in q, and nothing empty", a->batch, a->heads, a->d,
                    size_of(a, K, a->k, 0), size_of(a, V, a->v, 0), a->key_heads, size_of(a, V, a->v, 1), a->s,
                    size_of(a, V, a->v, 2), size_of(a, K, a->k, 3));
}

/* ---- masks ---- */

static void fill(void *data, enum tensor_dtype dtype, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (dtype == TENSOR_BOOL)
            ((uint8_t *)data)[i] = 0;
        else
            ((float *)data)[i] = -INFINITY;
}

/* Reads attn_mask and extends it to one column per key: keys that it lacks are hidden. */
static void read_mask(struct attention_node *a)
{
    struct lowering *l = a->l;
    struct shape s;
    enum tensor_dtype dtype;
    void *data;
    uint32_t rest;

    a->mask = lower_in(l, MASK);
    if (l->rc < 0 || a->mask == GRAPH_NONE)
        return;
    s = lower_tensor(l, a->mask)->shape;
    dtype = lower_tensor(l, a->mask)->dtype;
    if (s.rank < 1 || s.rank > 4 || s.dim[s.rank - 1] > a->s || s.dim[s.rank - 1] < 1 ||
        (dtype != TENSOR_F32 && dtype != TENSOR_BOOL)) {
        LOWER_ERROR(l, ERR_INPUT, "attn_mask: expected float32 or bool of 1 to 4 axes, with a column for each of %"
                    PRId64 " keys", a->s);
        return;
    }
    if (s.dim[s.rank - 1] == a->s)
        return;
    if (s.dim[s.rank - 1] == 1) {
        LOWER_ERROR(l, ERR_UNSUPPORTED, "attn_mask has one column for %" PRId64 " keys, which could be repeated or "
                    "padded; expand the mask to all keys in the module", a->s);
        return;
    }
    s.dim[s.rank - 1] = a->s - s.dim[s.rank - 1];
    rest = lower_constant(l, dtype, &s, &data);
    if (rest == GRAPH_NONE)
        return;
    fill(data, dtype, shape_elements(&s));
    a->mask = lower_concat(l, a->mask, rest, s.rank - 1);
}

/* The numbers 0 to n - 1 along one of four axes. */
static uint32_t numbers(struct attention_node *a, int64_t n, uint32_t axis)
{
    struct shape s = { .rank = 4, .dim = { 1, 1, 1, 1 } };
    uint32_t value;
    void *data;

    s.dim[axis] = n;
    value = lower_constant(a->l, TENSOR_F32, &s, &data);
    for (int64_t i = 0; value != GRAPH_NONE && i < n; i++)
        ((float *)data)[i] = (float)i;
    return value;
}

/* Computes the mask of the keys that nonpad_kv_seqlen, is_causal and the windows show to each row
 * of each sample. */
static void compute_visible(struct attention_node *a)
{
    struct lowering *l = a->l;
    const int64_t dim[] = { a->batch, 1, 1, 1 };
    uint32_t n, keys, at, near;

    a->visible = GRAPH_NONE;
    if (l->rc < 0 || lower_in(l, NONPAD) == GRAPH_NONE)
        return;
    n = lower_reshape(l, lower_cast(l, lower_in(l, NONPAD), TENSOR_F32), dim, 4);
    keys = numbers(a, a->s, 3);
    a->visible = lower_op(l, "Less", keys, n, GRAPH_NONE);
    at = lower_op(l, "Add", numbers(a, a->t, 2),
                  lower_op(l, "Sub", n, lower_number(l, (float)a->t), GRAPH_NONE), GRAPH_NONE);
    if (a->is_causal || a->right >= 0) {
        near = a->is_causal ? at
                            : lower_op(l, "Add", at, lower_number(l, (float)a->right), GRAPH_NONE);
        a->visible = lower_op(l, "And", a->visible,
                              lower_op(l, "LessOrEqual", keys, near, GRAPH_NONE), GRAPH_NONE);
    }
    if (a->left >= 0) {
        near = lower_op(l, "Sub", at, lower_number(l, (float)a->left), GRAPH_NONE);
        a->visible = lower_op(l, "And", a->visible,
                              lower_op(l, "LessOrEqual", near, keys, GRAPH_NONE), GRAPH_NONE);
    }
}

static void compute_band(struct attention_node *a)
{
    a->band[0] = a->left >= 0 ? a->past - a->left : INT64_MIN;
    a->band[1] = a->is_causal ? a->past : a->right >= 0 ? a->past + a->right : INT64_MAX;
    a->has_band =
        lower_in(a->l, NONPAD) == GRAPH_NONE && (a->is_causal || a->left >= 0 || a->right >= 0);
}

/* ---- as one node ---- */

enum { STEPS = 4 };

static void add_perm(struct lower_node *n, const char *name, const int64_t *perm)
{
    n->attrs[n->n_attrs++] = (struct op_attr){ .name = name, .type = OP_ATTR_INTS, .n = 4, .ints = perm };
}

static void add_mask(struct lower_node *n, const char **names, float *numbers_of, uint32_t *steps,
                     uint32_t mask, bool is_bool)
{
    if (mask == GRAPH_NONE)
        return;
    names[*steps] = is_bool ? "keep" : "add";
    numbers_of[(*steps)++] = is_bool ? -INFINITY : 0;
    n->in[n->n_in++] = mask;
}

static bool is_bool(const struct attention_node *a, uint32_t mask)
{
    return mask != GRAPH_NONE && lower_tensor(a->l, mask)->dtype == TENSOR_BOOL;
}

static uint32_t one_node(struct attention_node *a)
{
    static const int64_t keys_last[] = { 0, 1, 3, 2 }, keys_last_rows_first[] = { 0, 2, 3, 1 };
    struct lowering *l = a->l;
    struct lower_node n = { .domain = "trainerd", .op = "Attention", .n_in = 3, .in = { a->q, a->k, a->v } };
    const char **names = arena_array(&l->p->mem, STEPS, sizeof(*names));
    float *by = arena_array(&l->p->mem, STEPS, sizeof(*by));
    uint32_t steps = 0;

    if (names == NULL || by == NULL) {
        l->rc = plan_no_memory(l->err);
        return GRAPH_NONE;
    }
    names[steps] = "scale";
    by[steps++] = a->scale;
    if (a->cap > 0) {
        names[steps] = "cap";
        by[steps++] = a->cap;
    }
    add_mask(&n, names, by, &steps, a->mask, is_bool(a, a->mask));
    add_mask(&n, names, by, &steps, a->visible, true);
    add_perm(&n, "perm_k", a->is_rows_first[K] ? keys_last_rows_first : keys_last);
    if (a->is_rows_first[Q])
        add_perm(&n, "perm_q", rows_first);
    if (a->is_rows_first[V])
        add_perm(&n, "perm_v", rows_first);
    if (a->is_flat)
        add_perm(&n, "perm_y", rows_first);
    n.attrs[n.n_attrs++] = (struct op_attr){ .name = "steps", .type = OP_ATTR_STRINGS, .n = steps, .strings = names };
    n.attrs[n.n_attrs++] = (struct op_attr){ .name = "numbers", .type = OP_ATTR_FLOATS, .n = steps, .floats = by };
    n.attrs[n.n_attrs++] = (struct op_attr){ .name = "empty", .type = OP_ATTR_INT, .i = 1 };
    if (a->has_band)
        n.attrs[n.n_attrs++] =
            (struct op_attr){ .name = "band", .type = OP_ATTR_INTS, .n = 2, .ints = lower_ints(l, a->band, 2) };
    return lower_add(l, &n);
}

/* ---- as separate ops ---- */

/* [batch, key heads, rows, columns] -> [batch, heads, rows, columns] */
static uint32_t repeated(struct attention_node *a, uint32_t which, uint32_t x, int64_t columns)
{
    const int64_t shared = a->heads / a->key_heads;
    const int64_t open[] = { a->batch, a->key_heads, 1, a->s, columns }, wide[] = { a->batch, a->key_heads, shared,
                                                                                    a->s, columns };
    const int64_t closed[] = { a->batch, a->heads, a->s, columns };
    struct lowering *l = a->l;

    if (a->is_rows_first[which])
        x = lower_transpose(l, x, rows_first, 4);
    if (shared == 1 || l->rc < 0)
        return x;
    x = lower_reshape(l, x, open, 5);
    x = lower_op(l, "Expand", x, plan_add_ints(l->p, "(shape)", wide, 5), GRAPH_NONE);
    return lower_reshape(l, x, closed, 4);
}

static uint32_t band_mask(struct attention_node *a)
{
    const struct shape s = { .rank = 2, .dim = { a->t, a->s } };
    void *data;
    uint32_t value = lower_constant(a->l, TENSOR_BOOL, &s, &data);

    for (int64_t i = 0; value != GRAPH_NONE && i < a->t; i++)
        for (int64_t j = 0; j < a->s; j++)
            ((uint8_t *)data)[i * a->s + j] = (a->band[0] == INT64_MIN || j >= i + a->band[0]) &&
                                              (a->band[1] == INT64_MAX || j <= i + a->band[1]);
    return value;
}

static uint32_t hide(struct attention_node *a, uint32_t mask, uint32_t x)
{
    return mask == GRAPH_NONE ? x : lower_op(a->l, "Where", mask, x, lower_number(a->l, -INFINITY));
}

/* Softmax in which a row whose scores are all -inf becomes zeros; its scores are set to 0 to avoid
 * NaN. */
static uint32_t weights(struct attention_node *a, uint32_t x)
{
    struct lowering *l = a->l;
    const int64_t last = -1;
    const uint32_t most =
        lower_op(l, "ReduceMax", x, plan_add_ints(l->p, "(axes)", &last, 1), GRAPH_NONE);
    const struct lower_node softmax = { .op = "Softmax", .n_in = 1, .n_attrs = 1,
                                        .attrs = { { .name = "axis", .type = OP_ATTR_INT, .i = -1 } } };
    const uint32_t zero = lower_number(l, 0),
                   empty = lower_op(l, "Equal", most, lower_number(l, -INFINITY), GRAPH_NONE);
    struct lower_node n = softmax;

    n.in[0] = lower_op(l, "Where", empty, zero, x);
    return lower_op(l, "Where", empty, zero, lower_add(l, &n));
}

static uint32_t separate_ops(struct attention_node *a)
{
    static const int64_t swapped[] = { 0, 1, 3, 2 };
    struct lowering *l = a->l;
    uint32_t q = a->is_rows_first[Q] ? lower_transpose(l, a->q, rows_first, 4) : a->q;
    uint32_t kt = lower_transpose(l, repeated(a, K, a->k, a->d), swapped, 4),
             v = repeated(a, V, a->v, a->dv);
    uint32_t x = lower_op(l, "MatMul", q, kt, GRAPH_NONE), stage[4];

    stage[0] = x = lower_op(l, "Mul", x, lower_number(l, a->scale), GRAPH_NONE);
    if (a->cap > 0) {
        const uint32_t cap = lower_number(l, a->cap);

        x = lower_op(l, "Tanh", lower_op(l, "Div", x, cap, GRAPH_NONE), GRAPH_NONE, GRAPH_NONE);
        x = lower_op(l, "Mul", x, cap, GRAPH_NONE);
    }
    stage[1] = x;
    x = a->mask == GRAPH_NONE || is_bool(a, a->mask) ? hide(a, a->mask, x)
                                                     : lower_op(l, "Add", x, a->mask, GRAPH_NONE);
    x = hide(a, a->visible, x);
    if (a->has_band)
        x = hide(a, band_mask(a), x);
    stage[2] = x;
    stage[3] = x = weights(a, x);
    if (lower_is_needed(l, SCORES))
        lower_out(l, SCORES, stage[a->mode]);
    x = lower_op(l, "MatMul", x, v, GRAPH_NONE);
    return a->is_flat ? lower_transpose(l, x, rows_first, 4) : x;
}

/* ---- outputs ---- */

/* Output `output`: k or v including the keys of the past, [batch, heads, rows, columns]. */
static void present(struct attention_node *a, uint32_t which, uint32_t value, uint32_t output)
{
    struct lowering *l = a->l;

    if (l->rc < 0 || !lower_is_needed(l, output))
        return;
    lower_out(l, output,
              a->is_rows_first[which] ? lower_transpose(l, value, rows_first, 4)
                                      : lower_op(l, "Identity", value, GRAPH_NONE, GRAPH_NONE));
}

void lower_attention(struct lowering *l)
{
    struct attention_node a = { .l = l };
    const int64_t *flat;
    bool is_trained = false;
    uint32_t y;

    read_operands(&a);
    if (l->rc == 0)
        read_attrs(&a);
    read_mask(&a);
    compute_visible(&a);
    compute_band(&a);
    if (l->rc == 0 && a.mask != GRAPH_NONE)
        l->rc = plan_is_trained(l->p, a.mask, &is_trained, l->err);
    if (l->rc < 0)
        return;
    y = is_trained || lower_is_needed(l, SCORES) ? separate_ops(&a) : one_node(&a);
    flat = (const int64_t[]){ a.batch, a.t, a.heads * a.dv };
    if (a.is_flat)
        y = lower_reshape(l, y, flat, 3);
    lower_out(l, Y, y);
    present(&a, K, a.k, PRESENT_KEY);
    present(&a, V, a.v, PRESENT_VALUE);
}
