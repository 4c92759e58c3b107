/* fuse_scores.c - traces the scores of an attention from the softmax back to the product of q and
 * k.
 *
 * Supported steps, in any order and number: Mul or Div by a number; Add of a mask; Where of a mask
 * between the scores and a number; one Tanh between two factors. Values in between must not have
 * other readers. */
#include <math.h>
#include <string.h>

#include "base/check.h"
#include "graph/fuse_scores.h"

enum { MAX_DEPTH = 24 /* nodes that fuse_derives_from_product() follows */ };

static const struct tensor *tensor_of(const struct fuser *f, uint32_t value)
{
    return &f->p->values.at[value].tensor;
}

static const char *name_of(const struct fuser *f, uint32_t value)
{
    return f->p->values.at[value].name;
}

bool fuse_is_scaled(const struct fuser *f, const struct plan_node *n, uint32_t *value, float *by)
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

/* ---- detection of attentions ---- */

static bool is_product(const struct plan_node *n)
{
    return n->n_in == 2 && (fuse_is(n, NULL, "MatMul") || fuse_is(n, "trainerd", "MatMul"));
}

/* Returns whether a node computes the value; views of a parameter or a constant do not count. */
static bool is_computed(const struct fuser *f, uint32_t value)
{
    const struct plan_node *n = fuse_producer(f, value);

    while (n != NULL && (fuse_is(n, NULL, "Transpose") || fuse_is(n, NULL, "Reshape")))
        n = fuse_producer(f, n->in[0]);
    return n != NULL;
}

static bool derives_from_product(const struct fuser *f, uint32_t value, int64_t scores,
                                 uint32_t *budget)
{
    static const char *const passing[] = { "Add",  "Sub", "Mul",  "Div", "Where", "Tanh",    "Max",     "Min",
                                           "Clip", "Cast", "Neg", "Erf", "Relu",  "Reshape", "Squeeze", "Unsqueeze" };
    const struct plan_node *n = fuse_producer(f, value);
    bool passes = false;

    if (n == NULL || *budget == 0 || tensor_elements(tensor_of(f, value)) != scores)
        return false;
    (*budget)--;
    if (is_product(n) || fuse_is(n, NULL, "Einsum"))
        return n->n_in == 2 && is_computed(f, n->in[0]) && is_computed(f, n->in[1]);
    for (size_t i = 0; i < COUNT_OF(passing); i++)
        passes = passes || fuse_is(n, NULL, passing[i]);
    for (uint32_t i = 0; passes && i < n->n_in; i++)
        if (n->in[i] != GRAPH_NONE && derives_from_product(f, n->in[i], scores, budget))
            return true;
    return false;
}

bool fuse_derives_from_product(const struct fuser *f, uint32_t value)
{
    uint32_t budget = MAX_DEPTH;

    return derives_from_product(f, value, tensor_elements(tensor_of(f, value)), &budget);
}

/* ---- steps ---- */

/* Returns whether the value broadcasts to the scores and has all their columns. */
static bool is_mask(struct fuser *f, uint32_t value, const char *step, const struct shape *scores)
{
    const struct tensor *t = tensor_of(f, value);
    enum tensor_dtype dtype = strcmp(step, "add") == 0 ? TENSOR_F32 : TENSOR_BOOL;
    struct shape both;
    char text[2][192];

    if (t->dtype == dtype && t->shape.rank > 0 &&
        t->shape.dim[t->shape.rank - 1] == scores->dim[scores->rank - 1] &&
        shape_broadcast(&t->shape, scores, &both) && shape_equal(&both, scores))
        return true;
    return fuse_blocked(f,
                        "mask '%s' is %s %s; expected %s with a number for each key, for scores %s",
                        name_of(f, value), tensor_dtype_name(t->dtype),
                        shape_print(&t->shape, text[0], sizeof(text[0])), tensor_dtype_name(dtype),
                        shape_print(scores, text[1], sizeof(text[1])));
}

/* Matches a constant whose elements are all equal; *number receives the value. */
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

static bool trace(struct fuser *f, uint32_t value, struct fuse_scores *c);

/* Adds the step `n`, whose input i is the scores, and continues with that input. */
static bool add_step(struct fuser *f, const struct plan_node *n, uint32_t i, struct fuse_scores *c,
                     const char *step, float number, uint32_t mask)
{
    const struct shape *scores = &tensor_of(f, n->out[0])->shape;

    if (mask != GRAPH_NONE && !is_mask(f, mask, step, scores))
        return false;
    if (!shape_equal(&tensor_of(f, n->in[i])->shape, scores))
        return fuse_blocked(f, "%s '%s' changes the shape of the scores", n->def->name, n->name);
    if (c->n_steps == FUSE_STEPS || (mask != GRAPH_NONE && c->n_masks == FUSE_MASKS))
        return fuse_blocked(f, "%s '%s' exceeds the limit of %d steps with %d masks", n->def->name,
                            n->name, FUSE_STEPS, FUSE_MASKS);
    c->step[c->n_steps] = step;
    c->number[c->n_steps] = number;
    c->mask[c->n_steps++] = mask;
    c->n_masks += mask != GRAPH_NONE;
    return trace(f, n->in[i], c);
}

/* Returns which of two inputs is the scores. */
static uint32_t scores_of(const struct fuser *f, const struct plan_node *n, uint32_t a, uint32_t b)
{
    return fuse_derives_from_product(f, n->in[b]) && !fuse_derives_from_product(f, n->in[a]) ? b
                                                                                             : a;
}

static bool add_where(struct fuser *f, const struct plan_node *n, struct fuse_scores *c)
{
    float number;

    if (uniform(f, n->in[2], &number))
        return add_step(f, n, 1, c, "keep", number, n->in[0]);
    if (uniform(f, n->in[1], &number))
        return add_step(f, n, 2, c, "fill", number, n->in[0]);
    return fuse_blocked(
        f, "Where '%s' selects between the scores and '%s', which is not a single known number",
        n->name, name_of(f, n->in[scores_of(f, n, 1, 2) == 1 ? 2 : 1]));
}

/* Adds a step for a tanh(x). "cap" computes a tanh(x / a), so that x is multiplied by a. */
static bool add_cap(struct fuser *f, const struct plan_node *n, struct fuse_scores *c)
{
    bool has_factor = c->n_steps > 0 && strcmp(c->step[c->n_steps - 1], "scale") == 0 &&
                      c->number[c->n_steps - 1] > 0;

    for (uint32_t i = 0; i < c->n_steps; i++)
        if (strcmp(c->step[i], "cap") == 0)
            return fuse_blocked(f, "Tanh '%s' is the second one; expected at most one", n->name);
    if (!has_factor) {
        if (c->n_steps == FUSE_STEPS)
            return fuse_blocked(f, "Tanh '%s' exceeds the limit of %d steps", n->name, FUSE_STEPS);
        c->number[c->n_steps] = 1;
        c->mask[c->n_steps++] = GRAPH_NONE;
    }
    c->step[c->n_steps - 1] = "cap";
    return add_step(f, n, 0, c, "scale", c->number[c->n_steps - 1], GRAPH_NONE);
}

/* Matches a known mask written with numbers, in the form in which tf2onnx writes Where: x m + a,
 * where m is 1 and a is 0, or m is 0 and a is one constant number. (With an infinite x the
 * arithmetic computes NaN.) Returns the mask as booleans, or GRAPH_NONE if the value is not such a
 * mask. */
static uint32_t numeric_mask(struct fuser *f, uint32_t m, uint32_t a, float *number)
{
    const struct plan_value *one = &f->p->values.at[m], *other = &f->p->values.at[a];
    struct tensor t = one->tensor;
    const float *x = t.data, *y = other->tensor.data;
    int64_t n = tensor_elements(&t), i;
    bool any = false;
    uint8_t *keep;

    if (one->kind != PLAN_CONST || other->kind != PLAN_CONST || t.dtype != TENSOR_F32 ||
        other->tensor.dtype != TENSOR_F32 || !shape_equal(&t.shape, &other->tensor.shape))
        return GRAPH_NONE;
    for (i = 0; i < n; i++) {
        if ((x[i] != 1 || y[i] != 0) && (x[i] != 0 || (any && y[i] != *number)))
            return GRAPH_NONE;
        if (x[i] == 0)
            *number = y[i];
        any = any || x[i] == 0;
    }
    keep = any ? arena_alloc(&f->p->mem, (size_t)n) : NULL;
    if (keep == NULL)
        return GRAPH_NONE;
    for (i = 0; i < n; i++)
        keep[i] = x[i] != 0;
    t.dtype = TENSOR_BOOL;
    t.data = keep;
    return fuse_add_constant(f, one->name, &t);
}

/* Adds the step of such a mask. *found is false, and no obstacle is recorded, if it is not one. */
static bool add_numeric_mask(struct fuser *f, const struct plan_node *n, struct fuse_scores *c,
                             bool *found)
{
    *found = false;
    for (uint32_t i = 0; i < 2; i++) {
        const struct plan_node *product = fuse_made_by(f, n->in[i], "Mul");

        for (uint32_t k = 0; product != NULL && fuse_is_exclusive(f, n->in[i]) && k < 2; k++) {
            float number = 0;
            uint32_t mask = numeric_mask(f, product->in[k], n->in[!i], &number);

            if (mask == GRAPH_NONE)
                continue;
            *found = true;
            return add_step(f, product, !k, c, "keep", number, mask);
        }
    }
    return false;
}

/* Traces a value that only the chain reads back to the product. Returns false at an unsupported
 * node. */
static bool trace(struct fuser *f, uint32_t value, struct fuse_scores *c)
{
    const struct plan_node *n = fuse_producer(f, value);
    uint32_t from, i;
    float number;

    if (n == NULL)
        return fuse_blocked(f, "'%s' is not computed by a product of q and k", name_of(f, value));
    if (!fuse_is_exclusive(f, value))
        return fuse_blocked(f, "'%s', computed by %s '%s', has other readers", name_of(f, value),
                            n->def->name, n->name);
    if (is_product(n)) {
        c->product = f->producer[value];
        return true;
    }
    if (fuse_is_scaled(f, n, &from, &number))
        return add_step(f, n, from == n->in[0] ? 0 : 1, c, "scale", number, GRAPH_NONE);
    if (fuse_is(n, NULL, "Add")) {
        bool found, is_added = add_numeric_mask(f, n, c, &found);

        if (found)
            return is_added;
        i = scores_of(f, n, 0, 1);
        return add_step(f, n, i, c, "add", 0, n->in[1 - i]);
    }
    if (fuse_is(n, NULL, "Where"))
        return add_where(f, n, c);
    if (fuse_is(n, NULL, "Tanh"))
        return add_cap(f, n, c);
    return fuse_blocked(f, "%s '%s', which computes '%s', is not a supported step", n->def->name,
                        n->name, name_of(f, value));
}

bool fuse_find_scores(struct fuser *f, uint32_t value, struct fuse_scores *out)
{
    *out = (struct fuse_scores){ .n_steps = 0 };
    return trace(f, value, out);
}
