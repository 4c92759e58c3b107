/* fuse_mask.c - masks of scores that are known while planning.
 *
 * Exporters compute a mask for every sample and often for every layer, although it depends only on
 * shapes. Folded, that is a constant with one matrix per sample of the batch, all of them equal.
 * Such a mask is reduced to one matrix that all layers share, so that the kernel recognizes the
 * hidden keys (op/attention/attention_visible.c). A mask that hides nothing is removed, and one in
 * which each row sees a band of keys around its own becomes two numbers. */
#include <string.h>

#include "graph/fuse_scores.h"

/* A number that hides a key when it is added to the score or replaces it: scores that are not
 * hidden are much larger. */
static const float hidden_score = -1e38f;

/* Returns whether all slices along `axis` are equal. */
static bool repeats_along(const struct tensor *t, uint32_t axis)
{
    size_t inner = tensor_dtype_bytes(t->dtype), outer = 1, m, k;
    const char *x = t->data;

    for (uint32_t i = 0; i < t->shape.rank; i++)
        *(i < axis ? &outer : &inner) *= i == axis ? 1 : (size_t)t->shape.dim[i];
    for (m = 0; m < outer; m++)
        for (k = 1; k < (size_t)t->shape.dim[axis]; k++)
            if (memcmp(x + m * inner * (size_t)t->shape.dim[axis],
                       x + (m * (size_t)t->shape.dim[axis] + k) * inner, inner) != 0)
                return false;
    return true;
}

/* Reduces leading axes to size 1 as long as their slices are equal: the remaining elements stay
 * contiguous. */
static void shrink(struct tensor *t)
{
    for (uint32_t i = 0; i + 1 < t->shape.rank; i++) {
        if (t->shape.dim[i] > 1 && !repeats_along(t, i))
            return;
        t->shape.dim[i] = 1;
    }
}

/* Returns whether the mask changes no score. */
static bool has_no_effect(const char *step, const struct tensor *t)
{
    int64_t n = tensor_elements(t), i;

    if (strcmp(step, "add") == 0) {
        for (i = 0; i < n; i++)
            if (((const float *)t->data)[i] != 0)
                return false;
        return true;
    }
    for (i = 0; i < n; i++)
        if ((((const uint8_t *)t->data)[i] != 0) != (strcmp(step, "keep") == 0))
            return false;
    return true;
}

static bool is_same(const struct tensor *a, const struct tensor *b)
{
    return a->dtype == b->dtype && shape_equal(&a->shape, &b->shape) &&
           memcmp(a->data, b->data, tensor_bytes(a)) == 0;
}

int fuse_prepare_mask(struct fuser *f, const char *step, uint32_t *mask, bool *no_effect,
                      struct err *err)
{
    const struct plan_value *v = &f->p->values.at[*mask];
    struct tensor t = v->tensor;
    uint32_t id;

    *no_effect = false;
    if (v->kind != PLAN_CONST || tensor_elements(&t) == 0)
        return 0;
    *no_effect = has_no_effect(step, &t);
    if (*no_effect)
        return 0;
    shrink(&t);
    for (size_t i = 0; i < f->masks.n; i++)
        if (is_same(&t, &f->p->values.at[f->masks.at[i]].tensor)) {
            *mask = f->masks.at[i];
            return 0;
        }
    id = *mask;
    if (!shape_equal(&t.shape, &v->tensor.shape))
        id = fuse_add_constant(f, v->name, &t);
    if (id == GRAPH_NONE || !VEC_PUSH(f->masks, id))
        return plan_no_memory(err);
    *mask = id;
    return 0;
}

/* ---- bands ---- */

struct band { /* row i sees the keys i + lower to i + upper */
    int64_t lower, upper;
};

/* The effect of the mask on one element: none, hidden, or another change. */
enum mask_effect { VISIBLE, HIDDEN, CHANGED };

static enum mask_effect mask_effect(const struct tensor *t, const char *step, size_t at)
{
    if (strcmp(step, "add") == 0) {
        float x = ((const float *)t->data)[at];

        return x == 0 ? VISIBLE : x <= hidden_score ? HIDDEN : CHANGED;
    }
    return (((const uint8_t *)t->data)[at] != 0) == (strcmp(step, "keep") == 0) ? VISIBLE : HIDDEN;
}

/* Finds the keys that row i sees, *first to *last. Returns false if they have gaps or there are
 * none. */
static bool visible_keys(const struct tensor *t, const char *step, int64_t i, int64_t keys,
                         int64_t *first, int64_t *last)
{
    *first = *last = -1;
    for (int64_t j = 0; j < keys; j++) {
        enum mask_effect s = mask_effect(t, step, (size_t)(i * keys + j));

        if (s == CHANGED || (s == VISIBLE && *last >= 0 && *last != j - 1))
            return false;
        if (s == VISIBLE) {
            *first = *first < 0 ? j : *first;
            *last = j;
        }
    }
    return *last >= 0;
}

/* Returns whether the mask is a band in which every row sees a key. t: [1, .., rows, keys]. */
static bool is_band(const struct tensor *t, const char *step, int64_t rows, struct band *b)
{
    int64_t keys = t->shape.dim[t->shape.rank - 1], first, last, i;

    *b = (struct band){ INT64_MIN, INT64_MAX };
    for (i = 0; i < rows; i++) {
        if (!visible_keys(t, step, i, keys, &first, &last))
            return false;
        if (first > 0 && b->lower == INT64_MIN)
            b->lower = first - i;
        if (last + 1 < keys)
            b->upper = last - i;
    }
    for (i = 0; i < rows; i++) {
        int64_t from = b->lower == INT64_MIN || i + b->lower < 0 ? 0 : i + b->lower;
        int64_t to = b->upper == INT64_MAX || i + b->upper >= keys ? keys - 1 : i + b->upper;

        (void)visible_keys(t, step, i, keys, &first, &last);
        if (first != from || last != to)
            return false;
    }
    return true;
}

/* Returns whether the steps after step `at` leave a hidden key hidden. Steps of lower index are
 * executed later. */
static bool stays_hidden(const struct fuse_scores *c, uint32_t at)
{
    for (uint32_t i = 0; i < at; i++)
        if ((strcmp(c->step[i], "scale") == 0 && !(c->number[i] > 1e-6f)) ||
            strcmp(c->step[i], "cap") == 0 ||
            ((strcmp(c->step[i], "keep") == 0 || strcmp(c->step[i], "fill") == 0) &&
             !(c->number[i] <= hidden_score)))
            return false;
    return true;
}

static bool step_is_band(const struct fuser *f, const struct fuse_scores *c, uint32_t i,
                         int64_t rows, struct band *b)
{
    const struct plan_value *v = c->mask[i] != GRAPH_NONE ? &f->p->values.at[c->mask[i]] : NULL;
    int64_t keys;

    if (v == NULL || v->kind != PLAN_CONST || !stays_hidden(c, i) ||
        (strcmp(c->step[i], "add") != 0 && !(c->number[i] <= hidden_score)))
        return false;
    keys = v->tensor.shape.dim[v->tensor.shape.rank - 1];
    return v->tensor.shape.rank >= 2 && v->tensor.shape.dim[v->tensor.shape.rank - 2] == rows &&
           tensor_elements(&v->tensor) == rows * keys && is_band(&v->tensor, c->step[i], rows, b);
}

bool fuse_add_band(struct fuser *f, struct fuse_row *row, struct fuse_scores *c, int64_t rows)
{
    struct band b = { INT64_MIN, INT64_MAX };
    int64_t *limits;
    uint32_t i = 0;

    while (i < c->n_steps && !step_is_band(f, c, i, rows, &b))
        i++;
    if (i == c->n_steps)
        return true;
    limits = arena_array(&f->p->mem, 2, sizeof(*limits));
    if (limits == NULL)
        return false;
    limits[0] = b.lower;
    limits[1] = b.upper;
    row->attrs[row->n_attrs++] =
        (struct op_attr){ .name = "band", .type = OP_ATTR_INTS, .n = 2, .ints = limits };
    for (c->n_steps--, c->n_masks--; i < c->n_steps; i++) {
        c->step[i] = c->step[i + 1];
        c->number[i] = c->number[i + 1];
        c->mask[i] = c->mask[i + 1];
    }
    return true;
}
