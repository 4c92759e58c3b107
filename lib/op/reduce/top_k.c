/* top_k.c - TopK (opset 1, 10; 11: largest, sorted): the k largest (or smallest) elements along an
 * axis, best first, and their int64 indices. Equal elements are ordered by index; NaN counts as the
 * largest. k: input 1, a constant; before opset 10 an attribute. dx is dy at the selected elements,
 * else 0. float32, int32, int64; GPUs support only float32.
 *
 * The k best elements so far form a heap with the worst of them at its root; at the end the heap is
 * sorted. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "op/op_priv.h"
#include "op/reduce/params.h"
#include "op/reduce/whole.h"

struct item {
    int64_t key; /* ordered like the values */
    int64_t at;
};

/* Reads k: input 1, or the attribute of opset 1. */
static int read_k(const struct op_infer *f, int64_t *out, struct err *err)
{
    const int64_t *k;
    size_t n;
    int rc;

    if (f->def->n_in.max == 1)
        return op_attr_i(f, "k", -1, out, err);
    rc = op_const_ints(f, 1, &k, &n, err);
    if (rc == 0 && n != 1)
        rc = op_error(f, ERR_INPUT, err, "k is %zu numbers; expected one", n);
    if (rc == 0)
        *out = k[0];
    return rc;
}

static int top_k_infer(struct op_infer *f, struct err *err)
{
    struct top_k *p = f->param;
    int64_t axis, sorted, k;
    uint32_t i;
    int rc = reduce_check_number(f, err);

    if (rc == 0)
        rc = op_attr_i(f, "axis", -1, &axis, err);
    if (rc == 0)
        rc = op_attr_i(f, "largest", 1, &p->largest, err);
    if (rc == 0)
        rc = op_attr_i(f, "sorted", 1, &sorted, err); /* ignored: the results are always sorted */
    if (rc == 0)
        rc = read_k(f, &k, err);
    if (rc == 0)
        rc = along_infer(f, axis, &p->a, err);
    if (rc < 0)
        return rc;
    if (k < 0 || (uint64_t)k > p->a.k)
        return op_error(f, ERR_INPUT, err, "k is %" PRId64 "; axis %" PRIu32 " has %zu elements", k,
                        p->a.axis, p->a.k);
    p->n = (size_t)k;
    for (i = 0; i < f->n_out; i++) {
        f->out[i].dtype = i == 0 ? f->in[0]->dtype : TENSOR_I64;
        f->out[i].shape = f->in[0]->shape;
        f->out[i].shape.dim[p->a.axis] = k;
    }
    return 0;
}

/* save: index of each selected element. scratch: the heap. */
static int top_k_plan(struct op_plan *p, struct err *err)
{
    const struct top_k *t = p->param;

    (void)err;
    p->save_bytes = t->a.outer * t->n * t->a.inner * sizeof(int64_t);
    p->scratch_bytes = t->n * sizeof(struct item);
    return 0;
}

/* NaN is largest; -0 equals 0. The bits of negative floats decrease with increasing value. */
static int64_t key_of(const struct tensor *x, size_t i)
{
    int32_t bits;
    float v;

    if (x->dtype == TENSOR_I64)
        return ((const int64_t *)x->data)[i];
    if (x->dtype == TENSOR_I32)
        return ((const int32_t *)x->data)[i];
    v = ((const float *)x->data)[i];
    if (isnan(v))
        return INT64_MAX;
    memcpy(&bits, &v, sizeof(bits));
    return bits >= 0 ? bits : -(int64_t)(bits & INT32_MAX);
}

static bool is_better(struct item a, struct item b, bool largest)
{
    return a.key == b.key ? a.at < b.at : largest ? a.key > b.key : a.key < b.key;
}

/* Stores x at the root of a heap of n elements and restores the heap order. */
static void sink(struct item *heap, size_t n, struct item x, bool largest)
{
    size_t at = 0, child;

    for (; 2 * at + 1 < n; at = child) {
        child = 2 * at + 1;
        if (child + 1 < n && is_better(heap[child], heap[child + 1], largest))
            child++; /* the worse child */
        if (!is_better(x, heap[child], largest))
            break;
        heap[at] = heap[child];
    }
    heap[at] = x;
}

static void rise(struct item *heap, size_t at, bool largest)
{
    struct item x = heap[at];

    for (; at > 0 && is_better(heap[(at - 1) / 2], x, largest); at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = x;
}

/* Selects the best n of the k elements of x from `first` on, inner apart, in order, into heap. */
static void choose(const struct top_k *p, const struct tensor *x, size_t first, struct item *heap)
{
    bool largest = p->largest != 0;
    size_t i;

    for (i = 0; i < p->a.k && p->n > 0; i++) {
        struct item item = { key_of(x, first + i * p->a.inner), (int64_t)i };

        if (i < p->n) {
            heap[i] = item;
            rise(heap, i, largest);
        } else if (is_better(item, heap[0], largest)) {
            sink(heap, p->n, item, largest);
        }
    }
    for (i = p->n; i > 1; i--) { /* move the worst remaining element to the end */
        struct item worst = heap[0];

        sink(heap, i - 1, heap[i - 1], largest);
        heap[i - 1] = worst;
    }
}

static int top_k_fwd(const struct op_call *c, struct err *err)
{
    const struct top_k *p = c->param;
    char *y = c->out[0] != NULL ? c->out[0]->data : NULL;
    int64_t *where = c->n_out > 1 && c->out[1] != NULL ? c->out[1]->data : NULL, *kept = c->save;
    const struct tensor *x = c->in[0];
    size_t width = tensor_dtype_bytes(x->dtype), o, j, i;
    struct item *heap = c->scratch;

    (void)err;
    for (o = 0; o < p->a.outer; o++)
        for (j = 0; j < p->a.inner; j++) {
            size_t first = o * p->a.k * p->a.inner + j;

            choose(p, x, first, heap);
            for (i = 0; i < p->n; i++) {
                size_t at = (o * p->n + i) * p->a.inner + j;

                kept[at] = heap[i].at;
                if (y != NULL)
                    memcpy(y + at * width,
                           (const char *)x->data +
                               (first + (size_t)heap[i].at * p->a.inner) * width,
                           width);
                if (where != NULL)
                    where[at] = heap[i].at;
            }
        }
    return 0;
}

static int top_k_bwd(const struct op_call *c, struct err *err)
{
    const struct top_k *p = c->param;
    const int64_t *kept = c->save;
    const float *dy;
    float *dx;
    size_t o, i, j;

    (void)err;
    op_bwd_zero(c);
    if (c->dout[0] == NULL || c->din[0] == NULL)
        return 0;
    dy = c->dout[0]->data;
    dx = c->din[0]->data;
    for (o = 0; o < p->a.outer; o++)
        for (i = 0; i < p->n; i++)
            for (j = 0; j < p->a.inner; j++, dy++, kept++)
                dx[(o * p->a.k + (size_t)*kept) * p->a.inner + j] += *dy;
    return 0;
}

static const char *const attrs_1[] = { "axis", "k", NULL };
static const char *const attrs_10[] = { "axis", NULL };
static const char *const attrs_11[] = { "axis", "largest", "sorted", NULL };

#define FIELDS                                                                                     \
    .name = "TopK", .n_out = { 1, 2 }, .param_bytes = sizeof(struct top_k),                        \
    .infer = top_k_infer, .diff = OP_IN(0), .layout = OP_LAYOUT_PLAIN,                             \
    .cpu = { top_k_plan, top_k_fwd, top_k_bwd, NULL }

const struct op_def op_top_k_11 = { FIELDS, .since = 11, .n_in = { 2, 2 }, .attrs = attrs_11 };
const struct op_def op_top_k_10 = { FIELDS, .since = 10, .until = 10, .n_in = { 2, 2 },
                                    .attrs = attrs_10 };
const struct op_def op_top_k_1 = { FIELDS, .since = 1, .until = 9, .n_in = { 1, 1 },
                                   .attrs = attrs_1 };
