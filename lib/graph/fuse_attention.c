/* fuse_attention.c - fuses softmax(steps(q k)) v into one node, which never materializes the matrix
 * of scores: see op/attention/attention.c for the computation.
 *
 *   q  [Mul, Div by a number]  Transpose            \
 *                                                    MatMul  steps  Softmax  [guard]  [Dropout]
 *   k  [Mul, Div by a number]  Transpose  [repeat]  /                           |
 *                                                  v  Transpose  [repeat]  -  MatMul  [Transpose]
 *
 * fuse_scores.c traces the steps, fuse_operand.c traces q, k and v. If these are thirds of the
 * columns of one product (fuse_qkv.c), the node reads the product directly, and their gradients
 * are written to its gradient without a concatenation. A guard replaces by 0 the rows that the
 * softmax made NaN because all their keys are masked by -inf. (A score that is NaN or +inf also
 * makes a row NaN; the guard of the graph would hide it, the node does not.)
 *
 * Transposes may have any order or be absent. Values in between must not have other readers. A mask
 * with a gradient (a trained bias of the scores) needs the matrix; such a graph is not changed, nor
 * is one with few scores. Dropout drops the same elements as a separate node would. Every attention
 * is recorded in plan.attentions, with the first reason why it is not one node. */
#include <string.h>

#include "base/check.h"
#include "graph/fuse_scores.h"

enum { MIN_SCORES = 64 * 64 /* of one matrix; with fewer, separate ops are faster (measured) */ };

static const struct tensor *tensor_of(const struct fuser *f, uint32_t value)
{
    return &f->p->values.at[value].tensor;
}

static const char *name_of(const struct fuser *f, const struct fuse_operand *o)
{
    return f->p->values.at[o->value].name;
}

/* ---- operands ---- */

static bool flag(const struct plan_node *n, const char *name)
{
    const struct op_attr *a = fuse_attr(n, name);

    return a != NULL && a->i != 0;
}

/* Returns whether q [.., t, d], k [.., d, s] and v [.., s, dv] have the same batch, and enough
 * scores. */
static bool check_shapes(struct fuser *f, const struct fuse_operand *const all[3])
{
    const struct fuse_operand *q = all[0], *k = all[1], *v = all[2];
    uint32_t rank = tensor_of(f, q->value)->shape.rank, i;
    int64_t rows, keys;

    if (rank < 2 || tensor_of(f, k->value)->shape.rank != rank ||
        tensor_of(f, v->value)->shape.rank != rank)
        return fuse_blocked(f, "'%s', '%s' and '%s' differ in rank", name_of(f, q), name_of(f, k),
                            name_of(f, v));
    for (i = 0; i + 2 < rank; i++)
        if (fuse_operand_dim(f, k, i) != fuse_operand_dim(f, q, i) ||
            fuse_operand_dim(f, v, i) != fuse_operand_dim(f, q, i))
            return fuse_blocked(f, "'%s', '%s' and '%s' differ in axis %u of their batch",
                                name_of(f, q), name_of(f, k), name_of(f, v), i);
    rows = fuse_operand_dim(f, q, rank - 2);
    keys = fuse_operand_dim(f, k, rank - 1);
    if (rows * keys < MIN_SCORES)
        return fuse_blocked(f, "%lld x %lld scores are few: below %d separate nodes are faster",
                            (long long)rows, (long long)keys, MIN_SCORES);
    return fuse_operand_dim(f, q, rank - 1) > 0 && fuse_operand_dim(f, v, rank - 1) > 0;
}

/* Heads of k and v that several heads of q share must be along the last batch axis. */
static bool may_share(const struct fuser *f, const struct fuse_operand *k,
                      const struct fuse_operand *v)
{
    uint32_t rank = tensor_of(f, k->value)->shape.rank;

    return k->repeats == v->repeats && k->axis + 3 == rank && v->axis + 3 == rank;
}

static void find_operands(const struct fuser *f, const struct plan_node *product,
                          const struct plan_node *last, struct fuse_operand *const all[3])
{
    bool may_repeat = true;

    fuse_trace(f, product->in[0], flag(product, "transA"), true, false, all[0]);
    for (;; may_repeat = false) {
        fuse_trace(f, product->in[1], flag(product, "transB"), true, may_repeat, all[1]);
        fuse_trace(f, last->in[1], flag(last, "transB"), false, may_repeat, all[2]);
        if ((all[1]->repeats == 1 && all[2]->repeats == 1) || may_share(f, all[1], all[2]))
            return;
    }
}

/* ---- operands that are thirds of one value ---- */

bool fuse_add_parts(const struct fuser *f, struct fuse_row *row, struct fuse_operand *const all[3])
{
    struct fuse_qkv third[3];
    uint32_t rank;
    int64_t *parts;

    for (uint32_t i = 0; i < 3; i++)
        if (f->readers[all[i]->value] != 1 || !fuse_qkv(f, all[i]->value, i, &third[i]) ||
            third[i].whole != third[0].whole || !shape_equal(&third[i].view, &third[0].view))
            return true;
    rank = third[0].view.rank;
    parts = arena_array(&f->p->mem, rank, sizeof(*parts));
    if (parts == NULL)
        return false;
    memcpy(parts, third[0].view.dim, rank * sizeof(*parts));
    row->in[0] = third[0].whole;
    row->in[1] = row->in[2] = GRAPH_NONE;
    row->attrs[row->n_attrs++] =
        (struct op_attr){ .name = "parts", .type = OP_ATTR_INTS, .n = rank, .ints = parts };
    for (uint32_t i = 0; i < 3; i++)
        for (uint32_t k = 0; k < rank; k++)
            all[i]->perm[k] = third[i].perm[all[i]->perm[k]];
    return true;
}

/* ---- softmax and dropout ---- */

static bool is_softmax_of_rows(const struct fuser *f, const struct plan_node *n)
{
    const struct op_attr *a;
    int64_t axis, rank;

    if (n == NULL || !fuse_is(n, NULL, "Softmax"))
        return false;
    a = fuse_attr(n, "axis");
    rank = tensor_of(f, n->in[0])->shape.rank;
    axis = a != NULL ? a->i : n->def->until != 0 ? 1 : -1;
    return axis == -1 || axis == rank - 1;
}

/* Sets *ratio to the ratio of a Dropout in this plan; 0: no effect. Returns false if it is not
 * known. */
static bool dropout_ratio(const struct fuser *f, const struct plan_node *n, float *ratio)
{
    const struct op_attr *a = fuse_attr(n, "ratio");
    const struct plan_value *mode;

    *ratio = 0;
    if (n->def->until != 0) { /* before opset 12: see plan_node.c about PLAN_RUN */
        if (f->p->training && f->p->purpose != PLAN_RUN)
            *ratio = a != NULL ? a->f : 0.5f;
        return true;
    }
    if (n->n_in < 3 || n->in[2] == GRAPH_NONE || !f->p->training)
        return true;
    mode = &f->p->values.at[n->in[2]];
    if (mode->kind != PLAN_CONST || mode->tensor.dtype != TENSOR_BOOL)
        return false;
    if (*(const uint8_t *)mode->tensor.data == 0)
        return true;
    *ratio = 0.5f;
    return n->in[1] == GRAPH_NONE || fuse_number(f, n->in[1], ratio);
}

/* ---- the row ---- */

bool fuse_add_perm(struct plan *p, struct fuse_row *row, const char *name, const uint32_t *perm,
                   uint32_t rank)
{
    int64_t *ints = arena_array(&p->mem, rank, sizeof(*ints));
    bool is_permuted = false;
    uint32_t i;

    if (ints == NULL)
        return false;
    for (i = 0; i < rank; i++) {
        ints[i] = perm[i];
        is_permuted = is_permuted || perm[i] != i;
    }
    if (is_permuted)
        row->attrs[row->n_attrs++] =
            (struct op_attr){ .name = name, .type = OP_ATTR_INTS, .n = rank, .ints = ints };
    return true;
}

bool fuse_add_steps(struct plan *p, struct fuse_row *row, const struct fuse_scores *c, float scale)
{
    const char **names = arena_array(&p->mem, FUSE_STEPS + 1, sizeof(*names));
    float *numbers = arena_array(&p->mem, FUSE_STEPS + 1, sizeof(*numbers));
    uint32_t n = 0, i;

    if (names == NULL || numbers == NULL)
        return false;
    if (scale != 1) {
        names[n] = "scale";
        numbers[n++] = scale;
    }
    for (i = c->n_steps; i-- > 0;) {
        if (strcmp(c->step[i], "scale") == 0 && n > 0 && strcmp(names[n - 1], "scale") == 0) {
            numbers[n - 1] *= c->number[i];
            continue;
        }
        names[n] = c->step[i];
        numbers[n++] = c->number[i];
        if (c->mask[i] != GRAPH_NONE)
            row->in[row->n_in++] = c->mask[i];
    }
    if (n == 0)
        return true;
    row->attrs[row->n_attrs++] =
        (struct op_attr){ .name = "steps", .type = OP_ATTR_STRINGS, .n = n, .strings = names };
    row->attrs[row->n_attrs++] =
        (struct op_attr){ .name = "numbers", .type = OP_ATTR_FLOATS, .n = n, .floats = numbers };
    return true;
}

/* Sets *out if a mask (a bias of the scores) is trained: it needs the gradient of each score. */
static int any_mask_is_trained(struct fuser *f, const struct fuse_scores *c, bool *out,
                               struct err *err)
{
    uint32_t i;
    int rc = 0;

    *out = false;
    for (i = 0; i < c->n_steps && rc == 0 && !*out; i++) {
        if (c->mask[i] == GRAPH_NONE || tensor_of(f, c->mask[i])->dtype != TENSOR_F32)
            continue;
        rc = plan_is_trained(f->p, c->mask[i], out, err);
        if (*out)
            (void)fuse_blocked(f, "a parameter is trained through '%s', which is added to the scores: "
                               "its gradient needs the matrix of scores",
                               f->p->values.at[c->mask[i]].name);
    }
    return rc;
}

/* ---- the chain from the softmax to the last product ---- */

struct softmax_end {
    const struct plan_node *softmax;
    bool is_guarded; /* rows that are NaN become 0 */
    float ratio;     /* dropout ratio */
    uint32_t stream;
};

/* Matches Where(IsNaN(x), 0, x), which PyTorch writes for rows whose keys are all masked by
 * -inf. */
static bool is_guard(const struct fuser *f, const struct plan_node *n, uint32_t *of)
{
    const struct plan_node *test = fuse_made_by(f, n->in[0], "IsNaN");
    float zero;

    *of = n->in[2];
    return test != NULL && fuse_is_exclusive(f, n->in[0]) && test->in[0] == *of &&
           fuse_number(f, n->in[1], &zero) && zero == 0 && f->readers[*of] == 2;
}

/* Returns whether the node is the softmax of an attention: of rows of scores that derive from a
 * product. */
static bool is_of_scores(const struct fuser *f, const struct plan_node *n, uint32_t value)
{
    return n != NULL && n->out[0] == value && is_softmax_of_rows(f, n) &&
           fuse_derives_from_product(f, n->in[0]);
}

/* Returns a Softmax whose input has the form of attention scores and whose readers trace_weights()
 * does not recognise, or NULL if the graph has no such Softmax. */
static const struct plan_node *find_far_softmax(struct fuser *f, uint32_t value)
{
    static const char *const between[] = { "Where",   "Mul",  "Div",     "Add",      "Sub",
                                           "Dropout", "Cast", "Reshape", "Unsqueeze", "Squeeze" };
    const struct plan_node *n = fuse_producer(f, value), *first = n;

    for (uint32_t depth = 0; n != NULL && depth < 4; depth++) {
        uint32_t next = GRAPH_NONE;

        if (is_of_scores(f, n, value)) {
            (void)fuse_blocked(f, "%s '%s' is between the softmax and the product with v",
                               first->def->name, first->name);
            return n;
        }
        for (size_t i = 0; i < COUNT_OF(between); i++)
            for (uint32_t k = 0; fuse_is(n, NULL, between[i]) && k < n->n_in; k++)
                if (n->in[k] != GRAPH_NONE && fuse_producer(f, n->in[k]) != NULL &&
                    tensor_elements(tensor_of(f, n->in[k])) == tensor_elements(tensor_of(f, value)))
                    next = n->in[k];
        value = next;
        n = fuse_producer(f, value);
    }
    return NULL;
}

/* Traces `value`, the weights, back to their softmax e->softmax; NULL: this is not an attention.
 * Returns false if it cannot be one node; f->obstacle then states the reason. */
static bool trace_weights(struct fuser *f, uint32_t value, struct softmax_end *e)
{
    const struct plan_node *n = fuse_producer(f, value), *dropout = NULL;
    uint32_t weights = value;
    bool is_exclusive = n != NULL && fuse_is_exclusive(f, value);

    *e = (struct softmax_end){ .ratio = 0 };
    if (n != NULL && fuse_is(n, NULL, "Dropout")) {
        dropout = n;
        value = n->in[0];
        n = fuse_producer(f, value);
        is_exclusive = is_exclusive && n != NULL && fuse_is_exclusive(f, value);
    }
    if (n != NULL && fuse_is(n, NULL, "Where") && is_guard(f, n, &value)) {
        e->is_guarded = true;
        n = fuse_producer(f, value);
    }
    if (!is_of_scores(f, n, value)) {
        e->softmax = find_far_softmax(f, weights);
        return false;
    }
    e->softmax = n;
    if (!is_exclusive)
        return fuse_blocked(f, "the weights '%s' have other readers", f->p->values.at[value].name);
    if (dropout != NULL) {
        e->stream = dropout->stream;
        if (!dropout_ratio(f, dropout, &e->ratio))
            return fuse_blocked(f, "the ratio of Dropout '%s' is not known before the run",
                                dropout->name);
    }
    return true;
}

/* ---- the pattern ---- */

static int add_row(struct fuser *f, uint32_t node, const struct softmax_end *e,
                   struct fuse_scores *c, struct fuse_operand *const all[3], struct err *err)
{
    struct fuse_row row = { .def = op_find("trainerd", "Attention", 1),
                            .name = e->softmax->name,
                            .stream = e->stream,
                            .n_in = 3 };
    uint32_t rank = tensor_of(f, all[0]->value)->shape.rank, i;
    static const char *const perms[] = { "perm_q", "perm_k", "perm_v" };
    int64_t rows = fuse_operand_dim(f, all[0], rank - 2);
    float scale = all[0]->scale * all[1]->scale;
    bool fits;

    for (i = 0; i < 3; i++)
        row.in[i] = all[i]->value;
    fits = fuse_add_parts(f, &row, all);
    for (i = 0; i < 3; i++)
        fits = fits && fuse_add_perm(f->p, &row, perms[i], all[i]->perm, rank);
    if (!fits || !fuse_add_band(f, &row, c, rows) || !fuse_add_steps(f->p, &row, c, scale))
        return plan_no_memory(err);
    if (e->is_guarded)
        row.attrs[row.n_attrs++] =
            (struct op_attr){ .name = "empty", .type = OP_ATTR_INT, .i = 1 };
    if (e->ratio > 0)
        row.attrs[row.n_attrs++] =
            (struct op_attr){ .name = "dropout", .type = OP_ATTR_FLOAT, .f = e->ratio };
    return fuse_into(f, node, &row, err);
}

int fuse_prepare_masks(struct fuser *f, struct fuse_scores *c, struct err *err)
{
    uint32_t i, kept = 0;
    int rc = 0;

    for (i = 0; i < c->n_steps && rc == 0; i++) {
        bool no_effect = false;

        if (c->mask[i] != GRAPH_NONE)
            rc = fuse_prepare_mask(f, c->step[i], &c->mask[i], &no_effect, err);
        if (no_effect) {
            c->n_masks--;
            continue;
        }
        c->step[kept] = c->step[i];
        c->number[kept] = c->number[i];
        c->mask[kept++] = c->mask[i];
    }
    c->n_steps = kept;
    return rc;
}

int fuse_note_attention(struct fuser *f, const char *name, bool is_fused, struct err *err)
{
    struct plan_attention a = { .node = name, .is_fused = is_fused, .why = "" };

    if (!is_fused)
        a.why = arena_strdup(&f->p->mem,
                             f->obstacle[0] != '\0' ? f->obstacle : "its operands do not match");
    if (a.why == NULL || !VEC_PUSH(f->p->attentions, a))
        return plan_no_memory(err);
    return 0;
}

int fuse_attention(struct fuser *f, uint32_t node, struct err *err)
{
    const struct plan_node *last = &f->p->nodes.at[node];
    struct fuse_operand q, k, v, *const all[] = { &q, &k, &v };
    struct fuse_scores c;
    struct softmax_end e;
    bool is_mask_trained;
    const char *name;
    int rc;

    f->obstacle[0] = '\0';
    if (last->n_in != 2 || flag(last, "transA"))
        return 0;
    if (!trace_weights(f, last->in[0], &e) || !fuse_find_scores(f, e.softmax->in[0], &c))
        return e.softmax != NULL ? fuse_note_attention(f, e.softmax->name, false, err) : 0;
    name = e.softmax->name;
    find_operands(f, &f->p->nodes.at[c.product], last, all);
    if (!check_shapes(f, (const struct fuse_operand *const *)all))
        return fuse_note_attention(f, name, false, err);
    rc = any_mask_is_trained(f, &c, &is_mask_trained, err);
    if (rc == 0 && is_mask_trained)
        return fuse_note_attention(f, name, false, err);
    if (rc == 0)
        rc = fuse_prepare_masks(f, &c, err);
    if (rc == 0)
        rc = add_row(f, node, &e, &c, all, err);
    return rc == 0 ? fuse_note_attention(f, name, true, err) : rc;
}

int fuse_attention_transpose(struct fuser *f, uint32_t node, struct err *err)
{
    const struct plan_node *transpose = &f->p->nodes.at[node],
                           *n = fuse_producer(f, transpose->in[0]);
    uint32_t rank = tensor_of(f, transpose->out[0])->shape.rank, perm[TENSOR_MAX_RANK], i;
    struct fuse_row row = { .n_in = 0 };

    if (n == NULL || !fuse_is_exclusive(f, transpose->in[0]) ||
        !fuse_is(n, "trainerd", "Attention") || fuse_attr(n, "perm_y") != NULL)
        return 0;
    row.def = n->def;
    row.name = n->name;
    row.stream = n->stream;
    row.n_in = n->n_in;
    for (i = 0; i < n->n_in; i++)
        row.in[i] = n->in[i];
    for (i = 0; i < n->n_attrs; i++)
        row.attrs[row.n_attrs++] = n->attrs[i];
    fuse_perm(transpose, rank, perm);
    if (!fuse_add_perm(f->p, &row, "perm_y", perm, rank))
        return plan_no_memory(err);
    return fuse_into(f, node, &row, err);
}
