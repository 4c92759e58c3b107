/* cudnn.c - see include/cudnn.h. A descriptor is the list of its attributes as they were set, and, once
 * finalized, what they come to. One that another refers to lives until both are destroyed. */
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/cudnn_priv.h"
#include "cuda/emulator.h"

enum { COUNT_MAX = 8, ATTRIBUTES_MAX = 8, ENGINES = 6 };

struct cudnnContext {
    int device;
    cudaStream_t stream;
};

struct attribute {
    int name, type;
    int64_t count;
    union {
        int64_t ints[COUNT_MAX];
        void *pointers[COUNT_MAX];
        struct descriptor *descriptors[COUNT_MAX]; /* a reference to each */
        int enums[COUNT_MAX];
        float floats[COUNT_MAX];
    } is;
};

struct descriptor {
    int type;
    bool is_finalized;
    unsigned int references;
    struct attribute attributes[ATTRIBUTES_MAX];
    int n;
    struct emulated_tensor tensor; /* of a tensor */
    struct emulated_conv conv;     /* of what is made of an operation, down to a plan */
    int engine;                    /* of a configuration, an engine, a plan */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of references */
static __thread char last_error[256];

/* ---- errors ---- */

__attribute__((format(printf, 2, 3))) static cudnnStatus_t fail(cudnnStatus_t status, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(last_error, sizeof(last_error), format, args);
    va_end(args);
    return status;
}

void cudnnGetLastErrorString(char *message, size_t max_size)
{
    if (message != NULL && max_size > 0)
        snprintf(message, max_size, "%s", last_error);
    last_error[0] = '\0';
}

const char *cudnnGetErrorString(cudnnStatus_t status)
{
    static const struct {
        cudnnStatus_t status;
        const char *name;
    } names[] = {
#define NAME(x_) { CUDNN_STATUS_##x_, "CUDNN_STATUS_" #x_ }
        NAME(SUCCESS), NAME(NOT_INITIALIZED), NAME(BAD_PARAM), NAME(BAD_PARAM_NULL_POINTER),
        NAME(BAD_PARAM_MISALIGNED_POINTER), NAME(BAD_PARAM_NOT_FINALIZED), NAME(BAD_PARAM_OUT_OF_BOUND),
        NAME(BAD_PARAM_SIZE_INSUFFICIENT), NAME(BAD_PARAM_STREAM_MISMATCH), NAME(BAD_PARAM_SHAPE_MISMATCH),
        NAME(BAD_PARAM_DUPLICATED_ENTRIES), NAME(BAD_PARAM_ATTRIBUTE_TYPE), NAME(BAD_PARAM_DESCRIPTOR_TYPE),
        NAME(NOT_SUPPORTED), NAME(NOT_SUPPORTED_DATA_TYPE), NAME(NOT_SUPPORTED_LAYOUT),
        NAME(INTERNAL_ERROR), NAME(EXECUTION_FAILED), NAME(EXECUTION_FAILED_CUDART),
#undef NAME
    };
    size_t i;

    for (i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (names[i].status == status)
            return names[i].name;
    return "CUDNN_STATUS_UNKNOWN";
}

size_t cudnnGetVersion(void)
{
    return CUDNN_VERSION;
}

/* Does EMULATED_CUDNN have this word? */
static bool is_told(const char *word)
{
    const char *words = getenv("EMULATED_CUDNN"), *at;
    size_t n = strlen(word);

    for (at = words; at != NULL && (at = strstr(at, word)) != NULL; at += n)
        if ((at == words || at[-1] == ',') && (at[n] == '\0' || at[n] == ','))
            return true;
    return false;
}

/* ---- handles ---- */

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    void *probe;
    int device;

    if (handle == NULL)
        return fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "handle is NULL");
    if (cudaGetDevice(&device) != cudaSuccess || cudaMalloc(&probe, 256) != cudaSuccess ||
        cudaFree(probe) != cudaSuccess)
        return fail(CUDNN_STATUS_NOT_INITIALIZED, "no memory of the device for the handle");
    *handle = calloc(1, sizeof(**handle));
    if (*handle == NULL)
        return fail(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "out of memory");
    (*handle)->device = device;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    free(handle);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    int device;

    if (cudaStreamGetDevice(stream, &device) != cudaSuccess || device != handle->device)
        return fail(CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH, "not a stream of device %d", handle->device);
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t *stream)
{
    *stream = handle->stream;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- which descriptor has which attributes, all of which must be set ---- */

#define CONV(kind_) CUDNN_BACKEND_OPERATION_CONVOLUTION_##kind_##_DESCRIPTOR
#define OPERATION(kind_, prefix_, x_, w_, y_)                                                          \
    { CONV(kind_), CUDNN_ATTR_OPERATION_CONVOLUTION_##prefix_##_##x_, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1 },     \
    { CONV(kind_), CUDNN_ATTR_OPERATION_CONVOLUTION_##prefix_##_##w_, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1 },     \
    { CONV(kind_), CUDNN_ATTR_OPERATION_CONVOLUTION_##prefix_##_##y_, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1 },     \
    { CONV(kind_), CUDNN_ATTR_OPERATION_CONVOLUTION_##prefix_##_CONV_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1 }, \
    { CONV(kind_), CUDNN_ATTR_OPERATION_CONVOLUTION_##prefix_##_ALPHA, CUDNN_TYPE_FLOAT, 1, 1 },       \
    { CONV(kind_), CUDNN_ATTR_OPERATION_CONVOLUTION_##prefix_##_BETA, CUDNN_TYPE_FLOAT, 1, 1 }
#define TENSOR CUDNN_BACKEND_TENSOR_DESCRIPTOR
#define WINDOW CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR
#define HEUR CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR
#define PLAN CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR
#define GRAPH CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR
#define PACK CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR

static const struct {
    int descriptor, name, type, least, most;
} schema[] = {
    { TENSOR, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, 1 },
    { TENSOR, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, 5 },
    { TENSOR, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, 5 },
    { TENSOR, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, 1 },
    { TENSOR, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, 1 },
    { WINDOW, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, 1 },
    { WINDOW, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, 1 },
    { WINDOW, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, 1 },
    { WINDOW, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, 3 },
    { WINDOW, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, 3 },
    { WINDOW, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, 3 },
    { WINDOW, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, 3 },
    OPERATION(FORWARD, FORWARD, X, W, Y),
    OPERATION(BACKWARD_DATA, BWD_DATA, DX, W, DY),
    OPERATION(BACKWARD_FILTER, BWD_FILTER, X, DW, DY),
    { GRAPH, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, 1 },
    { GRAPH, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1 },
    { HEUR, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1 },
    { HEUR, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, 1 },
    { PLAN, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, 1 },
    { PLAN, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1 },
    { PACK, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 1, COUNT_MAX },
    { PACK, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 1, COUNT_MAX },
    { PACK, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, 1 },
};
enum { SCHEMA = sizeof(schema) / sizeof(schema[0]) };

static size_t bytes_of(int type)
{
    switch (type) {
    case CUDNN_TYPE_INT64: return sizeof(int64_t);
    case CUDNN_TYPE_FLOAT: return sizeof(float);
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR: return sizeof(void *);
    default: return sizeof(int); /* an enum */
    }
}

static const struct attribute *find(const struct descriptor *d, int name)
{
    int i;

    for (i = 0; i < d->n; i++)
        if (d->attributes[i].name == name)
            return &d->attributes[i];
    return NULL;
}

/* ---- their life ---- */

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *out)
{
    struct descriptor *d = calloc(1, sizeof(*d));

    if (d == NULL)
        return fail(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "out of memory");
    d->type = (int)type;
    d->references = 1;
    *out = d;
    return CUDNN_STATUS_SUCCESS;
}

static void release(struct descriptor *d)
{
    unsigned int left;
    int i;

    pthread_mutex_lock(&lock);
    left = --d->references;
    pthread_mutex_unlock(&lock);
    if (left > 0)
        return;
    for (i = 0; i < d->n; i++)
        if (d->attributes[i].type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
            release(d->attributes[i].is.descriptors[0]);
    free(d);
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor)
{
    if (descriptor == NULL)
        return fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "descriptor is NULL");
    release(descriptor);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    struct descriptor *d = descriptor, *other;
    struct attribute *a;
    int i;

    if (d == NULL || values == NULL)
        return fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "attribute %d: NULL", (int)name);
    if (d->is_finalized)
        return fail(CUDNN_STATUS_NOT_INITIALIZED, "attribute %d: set after finalize", (int)name);
    for (i = 0; i < SCHEMA && (schema[i].descriptor != d->type || schema[i].name != (int)name); i++)
        ;
    if (i == SCHEMA)
        return fail(CUDNN_STATUS_BAD_PARAM, "descriptor %d has no attribute %d", d->type, (int)name);
    if (schema[i].type != (int)type)
        return fail(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "attribute %d is of type %d, not %d", (int)name,
                    schema[i].type, (int)type);
    if (count < schema[i].least || count > schema[i].most)
        return fail(CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND, "attribute %d: %lld values", (int)name,
                    (long long)count);
    if (find(d, (int)name) != NULL)
        return fail(CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES, "attribute %d: set twice", (int)name);
    a = &d->attributes[d->n];
    a->name = (int)name;
    a->type = (int)type;
    a->count = count;
    memcpy(&a->is, values, (size_t)count * bytes_of((int)type));
    if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
        other = a->is.descriptors[0];
        if (other == NULL || !other->is_finalized)
            return fail(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "attribute %d: not finalized", (int)name);
        pthread_mutex_lock(&lock);
        other->references++;
        pthread_mutex_unlock(&lock);
    }
    d->n++;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- what they come to ---- */

static cudnnStatus_t finalize_tensor(struct descriptor *d)
{
    const struct attribute *size = find(d, CUDNN_ATTR_TENSOR_DIMENSIONS);
    const struct attribute *step = find(d, CUDNN_ATTR_TENSOR_STRIDES);
    struct emulated_tensor *t = &d->tensor;
    int64_t i, k;

    t->type = (cudnnDataType_t)find(d, CUDNN_ATTR_TENSOR_DATA_TYPE)->is.enums[0];
    t->uid = find(d, CUDNN_ATTR_TENSOR_UNIQUE_ID)->is.ints[0];
    t->align = find(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT)->is.ints[0];
    t->axes = size->count;
    if (emulated_type_bytes(t->type) == 0)
        return fail(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "tensor of type %d", (int)t->type);
    if (t->align < (int64_t)emulated_type_bytes(t->type) || (t->align & (t->align - 1)) != 0)
        return fail(CUDNN_STATUS_BAD_PARAM, "alignment %lld", (long long)t->align);
    if (step->count != size->count)
        return fail(CUDNN_STATUS_BAD_PARAM, "%lld sizes, %lld strides", (long long)size->count,
                    (long long)step->count);
    for (i = 0; i < t->axes; i++) {
        t->size[i] = size->is.ints[i];
        t->step[i] = step->is.ints[i];
        if (t->size[i] < 1 || t->step[i] < 1)
            return fail(CUDNN_STATUS_BAD_PARAM, "axis %lld: size %lld, stride %lld", (long long)i,
                        (long long)t->size[i], (long long)t->step[i]);
    }
    for (i = 0; i < t->axes; i++) /* no element twice: of two axes the longer stride spans the other */
        for (k = 0; k < t->axes; k++)
            if (i != k && t->size[i] > 1 && t->size[k] > 1 && t->step[i] >= t->step[k] &&
                t->step[i] < t->step[k] * t->size[k])
                return fail(CUDNN_STATUS_BAD_PARAM, "strides of axes %lld and %lld overlap", (long long)i,
                            (long long)k);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t finalize_window(struct descriptor *d)
{
    static const int lists[] = { CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS,
                                 CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_ATTR_CONVOLUTION_DILATIONS };
    struct emulated_conv *c = &d->conv;
    int64_t *to[] = { c->pad, c->pad, c->stride, c->dilation }, i, k;

    c->space = find(d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS)->is.ints[0];
    if (find(d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE)->is.enums[0] != CUDNN_DATA_FLOAT)
        return fail(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "sums are not float32");
    if (find(d, CUDNN_ATTR_CONVOLUTION_CONV_MODE)->is.enums[0] != CUDNN_CROSS_CORRELATION)
        return fail(CUDNN_STATUS_NOT_SUPPORTED, "weights in reverse order");
    for (i = 0; i < 4; i++) {
        const struct attribute *a = find(d, lists[i]);

        if (a->count != c->space)
            return fail(CUDNN_STATUS_BAD_PARAM, "attribute %d: %lld values for %lld axes", lists[i],
                        (long long)a->count, (long long)c->space);
        for (k = 0; k < c->space; k++) {
            if (a->is.ints[k] < (i < 2 ? 0 : 1))
                return fail(CUDNN_STATUS_BAD_PARAM, "attribute %d: %lld", lists[i],
                            (long long)a->is.ints[k]);
            if (i == 1 && a->is.ints[k] != c->pad[k])
                return fail(CUDNN_STATUS_NOT_SUPPORTED, "pads differ in front and behind");
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
        return fail(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "not all of %lld axes", (long long)c->space + 2);
    if (x[0] != y[0] || w[0] != y[1] || x[1] % w[1] != 0 || w[0] % (x[1] / w[1]) != 0)
        return fail(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH,
                    "x [%lld, %lld, ..], w [%lld, %lld, ..], y [%lld, %lld, ..]", (long long)x[0],
                    (long long)x[1], (long long)w[0], (long long)w[1], (long long)y[0], (long long)y[1]);
    for (k = 0; k < c->space; k++) {
        int64_t reach = (w[2 + k] - 1) * c->dilation[k] + 1;
        int64_t room = x[2 + k] + 2 * c->pad[k] - reach;

        if (room < 0 || y[2 + k] != room / c->stride[k] + 1)
            return fail(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "axis %lld: x %lld, w %lld, y %lld",
                        (long long)k + 2, (long long)x[2 + k], (long long)w[2 + k], (long long)y[2 + k]);
    }
    if (c->x.uid == c->w.uid || c->x.uid == c->y.uid || c->w.uid == c->y.uid)
        return fail(CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES, "two tensors with one unique id");
    return CUDNN_STATUS_SUCCESS;
}

/* x, w, y, window, alpha and beta are the attributes of each operation, in schema's order. */
static cudnnStatus_t finalize_operation(struct descriptor *d, int computed)
{
    static const int types[] = { TENSOR, TENSOR, TENSOR, WINDOW };
    const struct attribute *a[6];
    int i, k = 0;

    for (i = 0; i < SCHEMA; i++)
        if (schema[i].descriptor == d->type)
            a[k++] = find(d, schema[i].name);
    for (i = 0; i < 4; i++)
        if (a[i]->is.descriptors[0]->type != types[i])
            return fail(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "attribute %d: a descriptor of type %d",
                        a[i]->name, a[i]->is.descriptors[0]->type);
    d->conv = a[3]->is.descriptors[0]->conv;
    d->conv.computed = computed;
    d->conv.x = a[0]->is.descriptors[0]->tensor;
    d->conv.w = a[1]->is.descriptors[0]->tensor;
    d->conv.y = a[2]->is.descriptors[0]->tensor;
    d->conv.alpha = (double)a[4]->is.floats[0];
    d->conv.beta = (double)a[5]->is.floats[0];
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

/* The first engine that a mode proposes, and how many behind it. The heuristics know nothing of three
 * axes of space; the fallback does. */
static int proposed(const struct descriptor *heur, int *first)
{
    bool is_fallback = find(heur, CUDNN_ATTR_ENGINEHEUR_MODE)->is.enums[0] == CUDNN_HEUR_MODE_FALLBACK;

    *first = is_fallback ? ENGINES - 1 : 0;
    return is_fallback ? 1 : heur->conv.space == 3 ? ENGINES - 1 : ENGINES;
}

/* 0: either, for want of channels; 1: channels-last; 2: plain */
static int layout_of(const struct emulated_tensor *t)
{
    return t->size[1] == 1 ? 0 : t->step[1] == 1 && t->step[t->axes - 1] != 1 ? 1 : 2;
}

static cudnnStatus_t finalize_heuristics(struct descriptor *d)
{
    const struct emulated_conv *c = &d->conv;
    int layouts = (1 << layout_of(&c->x) | 1 << layout_of(&c->w) | 1 << layout_of(&c->y)) & ~1;

    if (is_told("refuse"))
        return fail(CUDNN_STATUS_NOT_SUPPORTED, "EMULATED_CUDNN says refuse");
    if (is_told("no_add") && c->beta != 0)
        return fail(CUDNN_STATUS_NOT_SUPPORTED, "EMULATED_CUDNN says no_add");
    if (is_told("plain") && (layouts & 2) != 0)
        return fail(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT, "EMULATED_CUDNN says plain");
    if (is_told("same_types") && c->w.type != c->x.type)
        return fail(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "EMULATED_CUDNN says same_types");
    if (layouts == 6)
        return fail(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT, "plain and channels-last tensors together");
    if (c->x.type != c->y.type || (c->w.type != c->x.type && c->computed != EMULATED_BWD_FILTER))
        return fail(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "types %d, %d and %d", (int)c->x.type,
                    (int)c->w.type, (int)c->y.type);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t finalize_plan(struct descriptor *d)
{
    const struct descriptor *config = find(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)->is.descriptors[0];

    d->engine = config->engine;
    if (engines[d->engine].has_no_plan)
        return fail(CUDNN_STATUS_NOT_SUPPORTED, "this engine cannot");
    d->conv.flaws = engines[d->engine].flaws;
    d->conv.workspace_bytes = engines[d->engine].workspace;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t finalize_pack(const struct descriptor *d)
{
    const struct attribute *uids = find(d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    int64_t i, k;

    if (find(d, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS)->count != uids->count)
        return fail(CUDNN_STATUS_BAD_PARAM, "as many pointers as unique ids were expected");
    for (i = 0; i < uids->count; i++)
        for (k = 0; k < i; k++)
            if (uids->is.ints[i] == uids->is.ints[k])
                return fail(CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES, "a unique id twice");
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor)
{
    struct descriptor *d = descriptor;
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    int i;

    if (d == NULL)
        return fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "descriptor is NULL");
    for (i = 0; i < SCHEMA; i++) {
        const struct attribute *a = find(d, schema[i].name);

        if (schema[i].descriptor != d->type)
            continue;
        if (a == NULL)
            return fail(CUDNN_STATUS_BAD_PARAM, "descriptor %d lacks attribute %d", d->type, schema[i].name);
        if (a->type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
            d->conv = a->is.descriptors[0]->conv; /* from the operation down to the plan */
    }
    switch (d->type) {
    case TENSOR: status = finalize_tensor(d); break;
    case WINDOW: status = finalize_window(d); break;
    case CONV(BACKWARD_DATA): status = finalize_operation(d, EMULATED_BWD_DATA); break;
    case CONV(BACKWARD_FILTER): status = finalize_operation(d, EMULATED_BWD_FILTER); break;
    case CONV(FORWARD): status = finalize_operation(d, EMULATED_FORWARD); break;
    case HEUR: status = finalize_heuristics(d); break;
    case PLAN: status = finalize_plan(d); break;
    case PACK: status = finalize_pack(d); break;
    default: break;
    }
    d->is_finalized = status == CUDNN_STATUS_SUCCESS;
    return status;
}

/* ---- what is asked of them ---- */

/* Descriptors that the caller made become those of engines. */
static void fill(const struct descriptor *from, int type, int engine, struct descriptor *to)
{
    if (to == NULL || to->type != type)
        emulated_die("cuDNN: a descriptor of type %d was expected to be filled", type);
    to->conv = from->conv;
    to->engine = engine;
    to->is_finalized = true;
}

cudnnStatus_t cudnnBackendGetAttribute(const cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                       int64_t requested, int64_t *count, void *values)
{
    const struct descriptor *d = descriptor;
    struct descriptor **to = values;
    int first, n, i;

    if (d == NULL || count == NULL || (values == NULL && requested > 0))
        return fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "attribute %d: NULL", (int)name);
    if (!d->is_finalized)
        return fail(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "attribute %d: not finalized", (int)name);
    if (d->type == HEUR && name == CUDNN_ATTR_ENGINEHEUR_RESULTS && type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
        *count = n = proposed(d, &first);
        for (i = 0; i < n && i < requested; i++)
            fill(d, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, first + i, to[i]);
        return CUDNN_STATUS_SUCCESS;
    }
    if (d->type == CUDNN_BACKEND_ENGINECFG_DESCRIPTOR && name == CUDNN_ATTR_ENGINECFG_ENGINE &&
        type == CUDNN_TYPE_BACKEND_DESCRIPTOR && requested == 1) {
        *count = 1;
        fill(d, CUDNN_BACKEND_ENGINE_DESCRIPTOR, d->engine, to[0]);
        return CUDNN_STATUS_SUCCESS;
    }
    if (d->type == CUDNN_BACKEND_ENGINE_DESCRIPTOR && name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE &&
        type == CUDNN_TYPE_NUMERICAL_NOTE) {
        *count = n = engines[d->engine].n_notes;
        memcpy(values, engines[d->engine].notes, (size_t)(n < requested ? n : requested) * sizeof(int));
        return CUDNN_STATUS_SUCCESS;
    }
    if (d->type == PLAN && name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE && type == CUDNN_TYPE_INT64 &&
        requested == 1) {
        *count = 1;
        *(int64_t *)values = (int64_t)d->conv.workspace_bytes;
        return CUDNN_STATUS_SUCCESS;
    }
    return fail(CUDNN_STATUS_BAD_PARAM, "attribute %d of type %d of descriptor %d", (int)name, (int)type, d->type);
}

/* ---- a call ---- */

/* Bytes from the first element to the end of the last. */
static size_t extent(const struct emulated_tensor *t)
{
    int64_t last = 0, k;

    for (k = 0; k < t->axes; k++)
        last += (t->size[k] - 1) * t->step[k];
    return (size_t)(last + 1) * emulated_type_bytes(t->type);
}

static cudnnStatus_t place(struct emulated_tensor *t, const struct descriptor *pack, int device)
{
    const struct attribute *uids = find(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const struct attribute *at = find(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    int64_t i;

    for (i = 0; i < uids->count && uids->is.ints[i] != t->uid; i++)
        ;
    if (i == uids->count || at->is.pointers[i] == NULL)
        return fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no memory for tensor %lld", (long long)t->uid);
    t->at = at->is.pointers[i];
    if ((uintptr_t)t->at % (uintptr_t)t->align != 0)
        return fail(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER, "tensor %lld at %p", (long long)t->uid, t->at);
    if (emulated_owner(t->at, extent(t)) != device)
        return fail(CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT, "%zu bytes of tensor %lld at %p are not all "
                    "memory of device %d", extent(t), (long long)t->uid, t->at, device);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack)
{
    const struct descriptor *p = plan, *v = pack;
    struct emulated_conv conv;
    struct emulated_tensor *tensors[] = { &conv.x, &conv.w, &conv.y };
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    size_t i;

    if (handle == NULL || p == NULL || v == NULL)
        return fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "execute: NULL");
    if (p->type != PLAN || v->type != PACK || !p->is_finalized || !v->is_finalized)
        return fail(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "execute: not a finalized plan and pack");
    conv = p->conv;
    for (i = 0; status == CUDNN_STATUS_SUCCESS && i < 3; i++)
        status = place(tensors[i], v, handle->device);
    if (status != CUDNN_STATUS_SUCCESS)
        return status;
    conv.workspace = find(v, CUDNN_ATTR_VARIANT_PACK_WORKSPACE)->is.pointers[0];
    if (conv.workspace_bytes > 0 && emulated_owner(conv.workspace, conv.workspace_bytes) != handle->device)
        return fail(CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT, "no workspace of %zu bytes at %p",
                    conv.workspace_bytes, (void *)conv.workspace);
    if (emulated_enqueue(handle->stream, "cudnnBackendExecute", emulated_conv_run, &conv, sizeof(conv)) !=
        cudaSuccess)
        return fail(CUDNN_STATUS_EXECUTION_FAILED_CUDART, "the stream takes no work");
    return CUDNN_STATUS_SUCCESS;
}
