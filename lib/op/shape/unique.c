/* unique.c - Unique (opset 11): the distinct elements of x, or distinct slices along an axis,
 * sorted or (sorted=0) in the order of their first occurrence; also the index of the first
 * occurrence of each, the number of the distinct element for each input element, and the count of
 * each. The number of distinct elements determines shapes, so x is a constant of the model (or,
 * when a graph is evaluated, an input): a plan for a GPU computes the result while planning. No
 * gradient. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/err.h"
#include "op/op_priv.h"

struct unique {
    size_t n, outer, inner; /* n slices of outer * inner elements, `inner` contiguous */
    size_t found;
    int64_t sorted;
};

struct slices {
    const struct unique *p;
    const char *data;
    enum tensor_dtype dtype;
};

static int order_of(double a, double b)
{
    if (a != a || b != b)
        return (a != a) - (b != b); /* NaN is last */
    return (a > b) - (a < b);
}

static int compare_element(const struct slices *s, size_t a, size_t b)
{
    switch ((int)s->dtype) {
    case TENSOR_F32:
        return order_of((double)((const float *)s->data)[a], (double)((const float *)s->data)[b]);
    case TENSOR_F64:
        return order_of(((const double *)s->data)[a], ((const double *)s->data)[b]);
    case TENSOR_I32: {
        const int32_t *x = (const int32_t *)s->data;

        return (x[a] > x[b]) - (x[a] < x[b]);
    }
    default: {
        const int64_t *x = (const int64_t *)s->data;

        return (x[a] > x[b]) - (x[a] < x[b]);
    }
    }
}

static int compare_slice(const struct slices *s, int64_t a, int64_t b)
{
    const struct unique *p = s->p;
    size_t o, i;
    int c = 0;

    for (o = 0; o < p->outer && c == 0; o++)
        for (i = 0; i < p->inner && c == 0; i++)
            c = compare_element(s, (o * p->n + (size_t)a) * p->inner + i,
                                (o * p->n + (size_t)b) * p->inner + i);
    return c;
}

static int compare_places(const void *a, const void *b, void *slices)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    int c = compare_slice(slices, x, y);

    return c != 0 ? c : (x > y) - (x < y);
}

static int compare_ints(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

/* order [n]: slices, sorted. first [n]: index of the first occurrence of each distinct slice, in
 * the order of the output. Returns the number of distinct slices. */
static size_t find(const struct slices *s, int64_t *order, int64_t *first)
{
    size_t n = s->p->n, found = 0, i;

    for (i = 0; i < n; i++)
        order[i] = (int64_t)i;
    qsort_r(order, n, sizeof(*order), compare_places, (void *)(uintptr_t)s);
    for (i = 0; i < n; i++)
        if (i == 0 || compare_slice(s, order[i - 1], order[i]) != 0)
            first[found++] = order[i];
    if (s->p->sorted == 0)
        qsort(first, found, sizeof(*first), compare_ints);
    return found;
}

static int set_slices(struct op_infer *f, struct err *err)
{
    const struct tensor *x = f->in[0];
    struct unique *p = f->param;
    bool has_axis = false;
    int64_t axis = 0;
    uint32_t k;
    int rc = op_attr_i(f, "sorted", 1, &p->sorted, err);

    for (k = 0; k < f->n_attrs; k++)
        has_axis = has_axis || strcmp(f->attrs[k].name, "axis") == 0;
    if (rc == 0)
        rc = op_attr_i(f, "axis", 0, &axis, err);
    if (rc == 0 && has_axis)
        rc = op_axis(f, &axis, x->shape.rank, err);
    if (rc < 0)
        return rc;
    p->n = has_axis ? (size_t)x->shape.dim[axis] : (size_t)tensor_elements(x);
    p->outer = p->inner = 1;
    for (k = 0; k < x->shape.rank && has_axis; k++)
        if (k != axis)
            *(k < axis ? &p->outer : &p->inner) *= (size_t)x->shape.dim[k];
    f->out[0].dtype = x->dtype;
    f->out[0].shape = has_axis ? x->shape : shape_of(1, (int64_t)p->n);
    return (int)axis;
}

static int infer(struct op_infer *f, struct err *err)
{
    const struct tensor *x = f->in[0];
    struct unique *p = f->param;
    struct slices s = { .p = p };
    int64_t *room;
    uint32_t i;
    int axis;

    if (x == NULL)
        return op_error(f, ERR_INPUT, err, "input 0 is missing");
    if (x->dtype != TENSOR_F32 && x->dtype != TENSOR_F64 && x->dtype != TENSOR_I32 &&
        x->dtype != TENSOR_I64)
        return op_error(f, ERR_UNSUPPORTED, err, "input 0 is %s; supported are float32, float64, "
                        "int32, int64", tensor_dtype_name(x->dtype));
    if (x->data == NULL)
        return op_error(f, ERR_UNSUPPORTED, err, "the input is computed by the graph; it must be a "
                        "constant of the model, as it determines the shape");
    axis = set_slices(f, err);
    if (axis < 0)
        return axis;
    room = arena_array(f->mem, 2 * p->n + 1, sizeof(*room));
    if (room == NULL)
        return op_error(f, ERR_NOMEM, err, "out of memory");
    s.data = x->data;
    s.dtype = x->dtype;
    p->found = p->n > 0 ? find(&s, room, room + p->n) : 0;
    f->out[0].shape.dim[axis] = (int64_t)p->found;
    for (i = 1; i < f->n_out; i++) {
        f->out[i].dtype = TENSOR_I64;
        f->out[i].shape = shape_of(1, (int64_t)(i == 2 ? p->n : p->found));
    }
    return 0;
}

static int plan(struct op_plan *p, struct err *err)
{
    const struct unique *u = p->param;

    (void)err;
    p->scratch_bytes = 2 * u->n * sizeof(int64_t);
    return 0;
}

/* Computes the number of the distinct slice of each slice, and the count of each; either list may
 * be NULL. `order` and `first` are the results of find(). */
static void count_each(const struct slices *s, const int64_t *order, const int64_t *first,
                       int64_t *inverse, int64_t *count)
{
    const struct unique *p = s->p;
    size_t group = 0, k = 0, i;

    for (k = 0; k < p->found && count != NULL; k++)
        count[k] = 0;
    for (i = 0; i < p->n; i++) {
        if (i == 0 || compare_slice(s, order[i - 1], order[i]) != 0) {
            const int64_t *at =
                p->sorted != 0 ? &first[group++]
                               : bsearch(&order[i], first, p->found, sizeof(*first), compare_ints);

            k = (size_t)(at - first);
        }
        if (inverse != NULL)
            inverse[order[i]] = (int64_t)k;
        if (count != NULL)
            count[k]++;
    }
}

static int64_t *list_of(const struct op_call *c, uint32_t i)
{
    return i < c->n_out && c->out[i] != NULL ? c->out[i]->data : NULL;
}

static int fwd(const struct op_call *c, struct err *err)
{
    const struct unique *p = c->param;
    const struct slices s = { p, c->in[0]->data, c->in[0]->dtype };
    int64_t *order = c->scratch, *first = order + p->n, *inverse = list_of(c, 2),
            *count = list_of(c, 3);
    size_t width = p->inner * tensor_dtype_bytes(s.dtype), o, k;
    char *y = c->out[0] != NULL ? c->out[0]->data : NULL;

    if (p->n == 0)
        return 0;
    if (find(&s, order, first) != p->found)
        return err_set(err, ERR_INPUT, "Unique: the input differs from the one at planning");
    for (o = 0; o < p->outer && y != NULL; o++)
        for (k = 0; k < p->found; k++)
            memcpy(y + (o * p->found + k) * width, s.data + (o * p->n + (size_t)first[k]) * width,
                   width);
    if (list_of(c, 1) != NULL)
        memcpy(list_of(c, 1), first, p->found * sizeof(*first));
    count_each(&s, order, first, inverse, count);
    return 0;
}

static const char *const attrs[] = { "axis", "sorted", NULL };

const struct op_def op_unique = {
    .name = "Unique",
    .since = 11,
    .n_in = { 1, 1 },
    .n_out = { 1, 4 },
    .attrs = attrs,
    .param_bytes = sizeof(struct unique),
    .infer = infer,
    .layout = OP_LAYOUT_PLAIN,
    .cpu = { plan, fwd, NULL, NULL },
};
