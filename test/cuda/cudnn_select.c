/* cudnn_select.c - finalizes descriptors: derives values from the attributes, validates them, and
 * lists the engines. */
#include <stdlib.h>
#include <string.h>

#include "cuda/cudnn_priv.h"

enum { ENGINES = 6 };

/* Returns whether EMULATED_CUDNN contains this word. */
static bool has_setting(const char *word)
{
    const char *words = getenv("EMULATED_CUDNN"), *at;
    size_t n = strlen(word);

    for (at = words; at != NULL && (at = strstr(at, word)) != NULL; at += n)
        if ((at == words || at[-1] == ',') && (at[n] == '\0' || at[n] == ','))
            return true;
    return false;
}

/* ---- tensors, windows, operations ---- */

static cudnnStatus_t finalize_tensor(struct descriptor *d)
{
    const struct attribute *size = dnn_find(d, CUDNN_ATTR_TENSOR_DIMENSIONS);
    const struct attribute *step = dnn_find(d, CUDNN_ATTR_TENSOR_STRIDES);
    struct emulated_tensor *t = &d->tensor;
    int64_t i, k;

    t->type = (cudnnDataType_t)dnn_find(d, CUDNN_ATTR_TENSOR_DATA_TYPE)->is.enums[0];
    t->uid = dnn_find(d, CUDNN_ATTR_TENSOR_UNIQUE_ID)->is.ints[0];
    t->align = dnn_find(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT)->is.ints[0];
    t->axes = size->count;
    t->is_virtual = dnn_find(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL) != NULL;
    t->is_number = dnn_find(d, CUDNN_ATTR_TENSOR_IS_BY_VALUE) != NULL;
    if (emulated_type_bytes(t->type) == 0)
        return dnn_fail(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "tensor of type %d", (int)t->type);
    if (t->align < (int64_t)emulated_type_bytes(t->type) || (t->align & (t->align - 1)) != 0)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM, "alignment %lld", (long long)t->align);
    if (step->count != size->count)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM, "%lld sizes, %lld strides", (long long)size->count,
                        (long long)step->count);
    for (i = 0; i < t->axes; i++) {
        t->size[i] = size->is.ints[i];
        t->step[i] = step->is.ints[i];
        if (t->size[i] < 1 || t->step[i] < 1)
            return dnn_fail(CUDNN_STATUS_BAD_PARAM, "axis %lld: size %lld, stride %lld",
                            (long long)i, (long long)t->size[i], (long long)t->step[i]);
    }
    /* no element twice: the longer stride of two axes spans the other axis */
    for (i = 0; i < t->axes; i++)
        for (k = 0; k < t->axes; k++)
            if (i != k && t->size[i] > 1 && t->size[k] > 1 && t->step[i] >= t->step[k] &&
                t->step[i] < t->step[k] * t->size[k])
                return dnn_fail(CUDNN_STATUS_BAD_PARAM, "strides of axes %lld and %lld overlap",
                                (long long)i, (long long)k);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t finalize_window(struct descriptor *d)
{
    static const int lists[] = { CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS,
                                 CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_ATTR_CONVOLUTION_DILATIONS };
    struct emulated_conv *c = &d->conv;
    int64_t *to[] = { c->pad, c->pad, c->stride, c->dilation }, i, k;

    c->space = dnn_find(d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS)->is.ints[0];
    if (dnn_find(d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE)->is.enums[0] != CUDNN_DATA_FLOAT)
        return dnn_fail(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "sums are not float32");
    if (dnn_find(d, CUDNN_ATTR_CONVOLUTION_CONV_MODE)->is.enums[0] != CUDNN_CROSS_CORRELATION)
        return dnn_fail(CUDNN_STATUS_NOT_SUPPORTED, "weights in reverse order");
    for (i = 0; i < 4; i++) {
        const struct attribute *a = dnn_find(d, lists[i]);

        if (a->count != c->space)
            return dnn_fail(CUDNN_STATUS_BAD_PARAM, "attribute %d: %lld values for %lld axes",
                            lists[i], (long long)a->count, (long long)c->space);
        for (k = 0; k < c->space; k++) {
            if (a->is.ints[k] < (i < 2 ? 0 : 1))
                return dnn_fail(CUDNN_STATUS_BAD_PARAM, "attribute %d: %lld", lists[i],
                                (long long)a->is.ints[k]);
            if (i == 1 && a->is.ints[k] != c->pad[k])
                return dnn_fail(CUDNN_STATUS_NOT_SUPPORTED, "pads differ in front and behind");
            to[i][k] = a->is.ints[k];
        }
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_shapes(const struct emulated_conv *c)
{
    const int64_t *x = c->x.size, *w = c->w.size, *y = c->y.size;
    int64_t k;

    if (c->x.axes != c->space + 2 || c->w.axes != c->space + 2 || c->y.axes != c->space + 2)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "not all of %lld axes",
                        (long long)c->space + 2);
    if (x[0] != y[0] || w[0] != y[1] || x[1] % w[1] != 0 || w[0] % (x[1] / w[1]) != 0)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH,
                        "x [%lld, %lld, ..], w [%lld, %lld, ..], y [%lld, %lld, ..]",
                        (long long)x[0], (long long)x[1], (long long)w[0], (long long)w[1],
                        (long long)y[0], (long long)y[1]);
    for (k = 0; k < c->space; k++) {
        int64_t reach = (w[2 + k] - 1) * c->dilation[k] + 1;
        int64_t room = x[2 + k] + 2 * c->pad[k] - reach;

        if (room < 0 || y[2 + k] != room / c->stride[k] + 1)
            return dnn_fail(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH,
                            "axis %lld: x %lld, w %lld, y %lld", (long long)k + 2,
                            (long long)x[2 + k], (long long)w[2 + k], (long long)y[2 + k]);
    }
    if (c->x.uid == c->w.uid || c->x.uid == c->y.uid || c->w.uid == c->y.uid)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES,
                        "two tensors with one unique id");
    return CUDNN_STATUS_SUCCESS;
}

/* x, w, y, window, alpha and beta are the attributes of each operation, in the order of its
 * schema. */
static cudnnStatus_t finalize_operation(struct descriptor *d, int computed)
{
    static const int types[] = { TENSOR, TENSOR, TENSOR, WINDOW };
    const struct attribute *a[6];
    int i;

    for (i = 0; i < 6; i++)
        a[i] = dnn_required(d, i);
    for (i = 0; i < 4; i++)
        if (a[i]->is.descriptors[0]->type != types[i])
            return dnn_fail(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE,
                            "attribute %d: a descriptor of type %d", a[i]->name,
                            a[i]->is.descriptors[0]->type);
    d->conv = a[3]->is.descriptors[0]->conv;
    d->conv.computed = computed;
    d->conv.x = a[0]->is.descriptors[0]->tensor;
    d->conv.w = a[1]->is.descriptors[0]->tensor;
    d->conv.y = a[2]->is.descriptors[0]->tensor;
    d->conv.alpha = (double)a[4]->is.floats[0];
    d->conv.beta = (double)a[5]->is.floats[0];
    for (i = 0; i < 3; i++)
        if (a[i]->is.descriptors[0]->tensor.type == CUDNN_DATA_INT32 ||
            a[i]->is.descriptors[0]->tensor.type == CUDNN_DATA_BOOLEAN)
            return dnn_fail(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "attribute %d: not floats",
                            a[i]->name);
    return check_shapes(&d->conv);
}

/* ---- engines ---- */

static const struct {
    int flaws;
    size_t workspace;
    bool has_no_plan;
    int n_notes, notes[2];
} engines[ENGINES] = {
    { EMULATED_ANYHOW, 0, false, 1, { CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC } },
    { EMULATED_TRUNCATED, 512, false, 2,
      { CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS } },
    { EMULATED_INEXACT, 64, false, 1, { CUDNN_NUMERICAL_NOTE_WINOGRAD } },
    { 0, 0, true, 0, { 0 } },
    { 0, (size_t)4 << 30, false, 0, { 0 } },
    { 0, 1000, false, 1, { CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP } },
};

/* Returns the number of engines that a mode proposes; *first: the first of them. The heuristics do
 * not support three spatial axes; the fallback does. */
int dnn_engines(const struct descriptor *heur, int *first)
{
    bool is_fallback =
        dnn_find(heur, CUDNN_ATTR_ENGINEHEUR_MODE)->is.enums[0] == CUDNN_HEUR_MODE_FALLBACK;

    *first = is_fallback ? ENGINES - 1 : 0;
    return is_fallback ? 1 : heur->conv.space == 3 ? ENGINES - 1 : ENGINES;
}

const int *dnn_notes(int engine, int *n)
{
    *n = engines[engine].n_notes;
    return engines[engine].notes;
}

/* 0: both, if there is one channel; 1: channels-last; 2: plain */
static int layout_of(const struct emulated_tensor *t)
{
    return t->size[1] == 1 ? 0 : t->step[1] == 1 && t->step[t->axes - 1] != 1 ? 1 : 2;
}

/* A graph of one convolution, or one of attention. */
static cudnnStatus_t finalize_graph(struct descriptor *d)
{
    const struct attribute *ops = dnn_find(d, CUDNN_ATTR_OPERATIONGRAPH_OPS);

    if (ops->count == 1 && ops->is.descriptors[0]->conv.x.axes > 0)
        return CUDNN_STATUS_SUCCESS;
    d->fused = calloc(1, sizeof(*d->fused));
    if (d->fused == NULL)
        return dnn_fail(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "out of memory");
    return dnn_fuse(d, d->fused);
}

static cudnnStatus_t finalize_heuristics(struct descriptor *d)
{
    const struct emulated_conv *c = &d->conv;
    int layouts = (1 << layout_of(&c->x) | 1 << layout_of(&c->w) | 1 << layout_of(&c->y)) & ~1;

    if (has_setting("refuse"))
        return dnn_fail(CUDNN_STATUS_NOT_SUPPORTED, "EMULATED_CUDNN says refuse");
    if (d->graph != NULL)
        return CUDNN_STATUS_SUCCESS;
    if (has_setting("no_add") && c->beta != 0)
        return dnn_fail(CUDNN_STATUS_NOT_SUPPORTED, "EMULATED_CUDNN says no_add");
    if (has_setting("plain") && (layouts & 2) != 0)
        return dnn_fail(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT, "EMULATED_CUDNN says plain");
    if (has_setting("same_types") && c->w.type != c->x.type)
        return dnn_fail(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "EMULATED_CUDNN says same_types");
    if (layouts == 6)
        return dnn_fail(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT,
                        "plain and channels-last tensors together");
    if (c->x.type != c->y.type || (c->w.type != c->x.type && c->computed != EMULATED_BWD_FILTER))
        return dnn_fail(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "types %d, %d and %d", (int)c->x.type,
                        (int)c->w.type, (int)c->y.type);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t finalize_plan(struct descriptor *d)
{
    const struct descriptor *config =
        dnn_find(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)->is.descriptors[0];

    d->engine = config->engine;
    if (engines[d->engine].has_no_plan)
        return dnn_fail(CUDNN_STATUS_NOT_SUPPORTED, "this engine cannot");
    d->conv.flaws = engines[d->engine].flaws;
    d->conv.workspace_bytes = engines[d->engine].workspace;
    if (d->graph != NULL)
        d->conv.workspace_bytes += d->graph->fused->workspace_bytes;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t finalize_pack(const struct descriptor *d)
{
    const struct attribute *uids = dnn_find(d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    int64_t i, k;

    if (dnn_find(d, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS)->count != uids->count)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM, "as many pointers as unique ids were expected");
    for (i = 0; i < uids->count; i++)
        for (k = 0; k < i; k++)
            if (uids->is.ints[i] == uids->is.ints[k])
                return dnn_fail(CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES, "a unique id twice");
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t dnn_settle(struct descriptor *d)
{
    switch (d->type) {
    case TENSOR: return finalize_tensor(d);
    case WINDOW: return finalize_window(d);
    case CONV(BACKWARD_DATA): return finalize_operation(d, EMULATED_BWD_DATA);
    case CONV(BACKWARD_FILTER): return finalize_operation(d, EMULATED_BWD_FILTER);
    case CONV(FORWARD): return finalize_operation(d, EMULATED_FORWARD);
    case GRAPH: return finalize_graph(d);
    case HEUR: return finalize_heuristics(d);
    case PLAN: return finalize_plan(d);
    case PACK: return finalize_pack(d);
    default: return CUDNN_STATUS_SUCCESS; /* no derived values */
    }
}
