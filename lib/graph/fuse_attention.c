/* fuse_attention.c - softmax(steps(q k)) v as one node, which never holds the matrix of scores: see
 * op/attention/attention.c for what the node computes.
 *
 *   q  [Mul, Div by a number]  Transpose  \
 *                                           MatMul  steps  Softmax  [Dropout]  MatMul  [Transpose]
 *   k  [Mul, Div by a number]  Transpose  /                             v  Transpose /
 *
 * Where q, k and v are thirds of one product's columns (fuse_thirds.c), they are read where that has left
 * them, and their gradients are its gradient without being put together.
 *
 * Steps are, in any order and number: Mul or Div by a number; Add of a mask; Where of a mask
 * between the scores and a number. Transposes are whatever they are, or not there. Nothing else may
 * read what lies between, and a mask to which a gradient flows (a trained bias of the scores)
 * cannot be had without the matrix: such a graph stays as it is, and so does one with few scores.
 * Dropout drops the same elements as it would by itself. */
#include <math.h>
#include <string.h>

#include "base/check.h"
#include "graph/plan_fuse.h"

enum {
    MAX_STEPS = 8,
    MAX_MASKS = FUSE_MAX_IN - 3,
    MIN_SCORES = 64 * 64, /* of a matrix: measured, below them the separate ops are faster */
};

struct chain { /* of scores; steps in the order they are found: the last first */
    uint32_t product; /* node of the first MatMul */
    uint32_t n_steps, n_masks;
    const char *step[MAX_STEPS];
    float number[MAX_STEPS];
    uint32_t mask[MAX_STEPS]; /* GRAPH_NONE: none */
};

struct operand {
    uint32_t value;
    uint32_t perm[TENSOR_MAX_RANK]; /* axis i of the operand is axis perm[i] of the value */
    float scale;
};

static const struct tensor *tensor_of(const struct fuser *f, uint32_t value)
{
    return &f->p->values.at[value].tensor;
}

/* ---- gradients ---- */

static bool learns(const struct plan *p, const struct plan_value *v)
{
    return p->feed_grads ? v->kind == PLAN_FEED && v->tensor.dtype == TENSOR_F32
                         : v->kind == PLAN_PARAM && p->g->params[v->index].kind == GRAPH_TRAINED;
}

/* Does a gradient flow into the value? In a plan that does not train: would it? */
static int wants_gradient(const struct fuser *f, uint32_t value, bool *out, struct err *err)
{
    const struct plan *p = f->p;
    struct arena mem = { 0 };
    bool *on_the_way = arena_array(&mem, p->values.n, sizeof(*on_the_way));
    uint32_t i, k;

    if (on_the_way == NULL)
        return plan_no_memory(err);
    *out = learns(p, &p->values.at[value]);
    on_the_way[value] = true;
    i = f->maker[value] == GRAPH_NONE ? 0 : f->maker[value] + 1;
    while (i-- > 0 && !*out) {
        const struct plan_node *n = &p->nodes.at[i];
        bool passes = false;

        for (k = 0; k < n->n_out; k++)
            passes = passes || (n->out[k] != GRAPH_NONE && on_the_way[n->out[k]]);
        for (k = 0; passes && n->def->cpu.bwd != NULL && k < n->n_in; k++) {
            if (n->in[k] == GRAPH_NONE || (n->def->diff & graph_input_bit(k)) == 0)
                continue;
            on_the_way[n->in[k]] = true;
            *out = *out || learns(p, &p->values.at[n->in[k]]);
        }
    }
    arena_fini(&mem);
    return 0;
}

/* ---- the chain of scores ---- */

/* x * number or x / number: x is *value. */
static bool scaled(const struct fuser *f, const struct plan_node *n, uint32_t *value, float *by)
{
    bool divides = fuse_is(n, NULL, "Div");
    uint32_t which = 0;

    if (!divides && !fuse_is(n, NULL, "Mul"))
        return false;
    if (!fuse_number(f, n->in[1], by)) {
        which = 1;
        if (divides || !fuse_number(f, n->in[0], by))
            return false;
    }
    *value = n->in[which];
    *by = divides ? 1.0f / *by : *by;
    return isfinite(*by) && tensor_of(f, *value)->dtype == TENSOR_F32 &&
           shape_equal(&tensor_of(f, *value)->shape, &tensor_of(f, n->out[0])->shape);
}

/* Broadcasts to the scores, and has all their columns? */
static bool is_mask(const struct fuser *f, uint32_t value, enum tensor_dtype dtype,
                    const struct shape *scores)
{
    const struct tensor *t = tensor_of(f, value);
    struct shape both;

    return t->dtype == dtype && t->shape.rank > 0 &&
           t->shape.dim[t->shape.rank - 1] == scores->dim[scores->rank - 1] &&
           shape_broadcast(&t->shape, scores, &both) && shape_equal(&both, scores);
}

/* A constant that has one number everywhere. */
static bool uniform(const struct fuser *f, uint32_t value, float *number)
{
    const struct plan_value *v = &f->p->values.at[value];
    const float *x = v->tensor.data;
    int64_t n = tensor_elements(&v->tensor), i;

    if (v->kind != PLAN_CONST || v->tensor.dtype != TENSOR_F32 || n == 0)
        return false;
    for (i = 1; i < n; i++)
        if (x[i] != x[0])
            return false;
    *number = x[0];
    return true;
}

static bool push(struct chain *c, const char *step, float number, uint32_t mask)
{
    if (c->n_steps == MAX_STEPS || (mask != GRAPH_NONE && c->n_masks == MAX_MASKS))
        return false;
    c->step[c->n_steps] = step;
    c->number[c->n_steps] = number;
    c->mask[c->n_steps++] = mask;
    c->n_masks += mask != GRAPH_NONE;
    return true;
}

static bool find_scores(const struct fuser *f, uint32_t value, struct chain *c);

/* The step `n`, of scores that are its input i, if they come from a product. */
static bool take_step(const struct fuser *f, const struct plan_node *n, uint32_t i, struct chain *c,
                      const char *step, float number, uint32_t mask)
{
    struct chain longer = *c;
    const struct shape *scores = &tensor_of(f, n->out[0])->shape;

    if ((mask != GRAPH_NONE &&
         !is_mask(f, mask, strcmp(step, "add") == 0 ? TENSOR_F32 : TENSOR_BOOL, scores)) ||
        !shape_equal(&tensor_of(f, n->in[i])->shape, scores) ||
        !push(&longer, step, number, mask) || !find_scores(f, n->in[i], &longer))
        return false;
    *c = longer;
    return true;
}

static bool is_product(const struct plan_node *n)
{
    return n->n_in == 2 && (fuse_is(n, NULL, "MatMul") || fuse_is(n, "trainerd", "MatMul"));
}

/* From a value that only the chain reads back to the product; false: there is none. */
static bool find_scores(const struct fuser *f, uint32_t value, struct chain *c)
{
    const struct plan_node *n = fuse_maker(f, value);
    uint32_t from;
    float number;

    if (n == NULL || !fuse_is_ours(f, value))
        return false;
    if (is_product(n)) {
        c->product = f->maker[value];
        return true;
    }
    if (scaled(f, n, &from, &number))
        return take_step(f, n, from == n->in[0] ? 0 : 1, c, "scale", number, GRAPH_NONE);
    if (fuse_is(n, NULL, "Add"))
        return take_step(f, n, 0, c, "add", 0, n->in[1]) ||
               take_step(f, n, 1, c, "add", 0, n->in[0]);
    if (!fuse_is(n, NULL, "Where"))
        return false;
    if (uniform(f, n->in[2], &number))
        return take_step(f, n, 1, c, "keep", number, n->in[0]);
    return uniform(f, n->in[1], &number) &&
           take_step(f, n, 2, c, "fill", number, n->in[0]);
}

/* ---- operands ---- */

static bool flag(const struct plan_node *n, const char *name)
{
    const struct op_attr *a = fuse_attr(n, name);

    return a != NULL && a->i != 0;
}

/* Where an operand of a product comes from, before Transposes and factors. */
static void trace(const struct fuser *f, uint32_t value, bool turned, bool may_scale,
                  struct operand *o)
{
    uint32_t rank = tensor_of(f, value)->shape.rank, i;

    *o = (struct operand){ .value = value, .scale = 1 };
    for (i = 0; i < rank; i++)
        o->perm[i] = turned && i + 2 >= rank ? 2 * rank - 3 - i : i;
    for (;;) {
        const struct plan_node *n = fuse_maker(f, o->value);
        uint32_t from, perm[TENSOR_MAX_RANK];
        float by;

        if (n == NULL)
            return;
        if (fuse_is(n, NULL, "Transpose")) {
            fuse_perm(n, rank, perm);
            for (i = 0; i < rank; i++)
                o->perm[i] = perm[o->perm[i]];
            o->value = n->in[0];
        } else if (may_scale && fuse_is_ours(f, o->value) && scaled(f, n, &from, &by)) {
            o->scale *= by;
            o->value = from;
        } else {
            return;
        }
    }
}

static int64_t dim_of(const struct fuser *f, const struct operand *o, uint32_t axis)
{
    return tensor_of(f, o->value)->shape.dim[o->perm[axis]];
}

/* q [.., t, d], k [.., d, s], v [.., s, dv] with the same batch, and enough scores? */
static bool fit(const struct fuser *f, const struct operand *q, const struct operand *k,
                const struct operand *v)
{
    uint32_t rank = tensor_of(f, q->value)->shape.rank, i;

    if (rank < 2 || tensor_of(f, k->value)->shape.rank != rank ||
        tensor_of(f, v->value)->shape.rank != rank)
        return false;
    for (i = 0; i + 2 < rank; i++)
        if (dim_of(f, k, i) != dim_of(f, q, i) || dim_of(f, v, i) != dim_of(f, q, i))
            return false;
    return dim_of(f, q, rank - 1) > 0 && dim_of(f, v, rank - 1) > 0 &&
           dim_of(f, q, rank - 2) * dim_of(f, k, rank - 1) >= MIN_SCORES;
}

/* ---- operands that are thirds of one value ---- */

/* The node reads `whole` instead of q, k and v, if they are its thirds and nobody else reads those. */
static bool add_parts(const struct fuser *f, struct fuse_row *row, struct operand *const all[3])
{
    struct fuse_third third[3];
    uint32_t rank;
    int64_t *parts;

    for (uint32_t i = 0; i < 3; i++)
        if (f->readers[all[i]->value] != 1 || !fuse_third(f, all[i]->value, i, &third[i]) ||
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

/* The ratio at which this plan drops; 0: all passes. false: not a number known here. */
static bool dropout_ratio(const struct fuser *f, const struct plan_node *n, float *ratio)
{
    const struct op_attr *a = fuse_attr(n, "ratio");
    const struct plan_value *mode;

    *ratio = 0;
    if (n->def->until != 0) { /* before opset 12: see plan_node.c for what it does in a run */
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

/* Axes as an attribute, if they are not in order. */
static bool add_perm(struct plan *p, struct fuse_row *row, const char *name, const uint32_t *perm,
                     uint32_t rank)
{
    int64_t *ints = arena_array(&p->mem, rank, sizeof(*ints));
    bool turns = false;
    uint32_t i;

    if (ints == NULL)
        return false;
    for (i = 0; i < rank; i++) {
        ints[i] = perm[i];
        turns = turns || perm[i] != i;
    }
    if (turns)
        row->attrs[row->n_attrs++] =
            (struct op_attr){ .name = name, .type = OP_ATTR_INTS, .n = rank, .ints = ints };
    return true;
}

/* Steps as the graph has them, those of q and k first. */
static bool add_steps(struct plan *p, struct fuse_row *row, const struct chain *c, float scale)
{
    const char **names = arena_array(&p->mem, MAX_STEPS + 1, sizeof(*names));
    float *numbers = arena_array(&p->mem, MAX_STEPS + 1, sizeof(*numbers));
    uint32_t n = 0, i;

    if (names == NULL || numbers == NULL)
        return false;
    if (scale != 1) {
        names[n] = "scale";
        numbers[n++] = scale;
    }
    for (i = c->n_steps; i-- > 0;) {
        if (c->mask[i] == GRAPH_NONE && n > 0 && strcmp(names[n - 1], "scale") == 0) {
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

/* A bias of the scores that learns needs the gradient of each. */
static int any_mask_learns(const struct fuser *f, const struct chain *c, bool *out, struct err *err)
{
    uint32_t i;
    int rc = 0;

    *out = false;
    for (i = 0; i < c->n_steps && rc == 0 && !*out; i++)
        if (c->mask[i] != GRAPH_NONE && tensor_of(f, c->mask[i])->dtype == TENSOR_F32)
            rc = wants_gradient(f, c->mask[i], out, err);
    return rc;
}

int fuse_attention(struct fuser *f, uint32_t node, struct err *err)
{
    const struct plan_node *last = &f->p->nodes.at[node], *n = fuse_maker(f, last->in[0]), *product;
    struct fuse_row row = { .def = op_find("trainerd", "Attention", 1), .n_in = 3 };
    struct operand q, k, v;
    struct chain c = { .n_steps = 0 };
    float ratio = 0;
    bool learns_mask;
    uint32_t rank;
    int rc;

    if (n == NULL || !fuse_is_ours(f, last->in[0]))
        return 0;
    if (fuse_is(n, NULL, "Dropout")) {
        if (!dropout_ratio(f, n, &ratio) || !fuse_is_ours(f, n->in[0]))
            return 0;
        row.stream = n->stream;
        n = fuse_maker(f, n->in[0]);
    }
    if (!is_softmax_of_rows(f, n) || !find_scores(f, n->in[0], &c))
        return 0;
    row.name = n->name;
    product = &f->p->nodes.at[c.product];
    trace(f, product->in[0], flag(product, "transA"), true, &q);
    trace(f, product->in[1], flag(product, "transB"), true, &k);
    trace(f, last->in[1], false, false, &v);
    if (!fit(f, &q, &k, &v) || c.n_steps + 1 > MAX_STEPS)
        return 0;
    rc = any_mask_learns(f, &c, &learns_mask, err);
    if (rc < 0 || learns_mask)
        return rc;
    rank = tensor_of(f, q.value)->shape.rank;
    row.in[0] = q.value;
    row.in[1] = k.value;
    row.in[2] = v.value;
    if (!add_parts(f, &row, (struct operand *const[]){ &q, &k, &v }) || !add_perm(f->p, &row, "perm_q", q.perm, rank) ||
        !add_perm(f->p, &row, "perm_k", k.perm, rank) ||
        !add_perm(f->p, &row, "perm_v", v.perm, rank) ||
        !add_steps(f->p, &row, &c, q.scale * k.scale))
        return plan_no_memory(err);
    if (ratio > 0)
        row.attrs[row.n_attrs++] =
            (struct op_attr){ .name = "dropout", .type = OP_ATTR_FLOAT, .f = ratio };
    return fuse_into(f, node, &row, err);
}

int fuse_attention_turn(struct fuser *f, uint32_t node, struct err *err)
{
    const struct plan_node *turn = &f->p->nodes.at[node], *n = fuse_maker(f, turn->in[0]);
    uint32_t rank = tensor_of(f, turn->out[0])->shape.rank, perm[TENSOR_MAX_RANK], i;
    struct fuse_row row = { .n_in = 0 };

    if (n == NULL || !fuse_is_ours(f, turn->in[0]) || !fuse_is(n, "trainerd", "Attention") ||
        fuse_attr(n, "perm_y") != NULL)
        return 0;
    row.def = n->def;
    row.name = n->name;
    row.stream = n->stream;
    row.n_in = n->n_in;
    for (i = 0; i < n->n_in; i++)
        row.in[i] = n->in[i];
    for (i = 0; i < n->n_attrs; i++)
        row.attrs[row.n_attrs++] = n->attrs[i];
    fuse_perm(turn, rank, perm);
    if (!add_perm(f->p, &row, "perm_y", perm, rank))
        return plan_no_memory(err);
    return fuse_into(f, node, &row, err);
}
