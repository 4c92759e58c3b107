/* cudnn.c - see include/cudnn.h. A descriptor is the list of its attributes, and, once finalized,
 * the values derived from them. A descriptor lives until it and all descriptors that refer to it
 * are destroyed. */
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/cudnn_priv.h"
#include "cuda/emulator.h"

struct cudnnContext {
    int device;
    cudaStream_t stream;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects the reference counts */
static __thread char last_error[256];

/* ---- errors ---- */

cudnnStatus_t dnn_fail(cudnnStatus_t status, const char *format, ...)
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

/* ---- handles ---- */

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    void *probe;
    int device;

    if (handle == NULL)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "handle is NULL");
    if (cudaGetDevice(&device) != cudaSuccess || cudaMalloc(&probe, 256) != cudaSuccess ||
        cudaFree(probe) != cudaSuccess)
        return dnn_fail(CUDNN_STATUS_NOT_INITIALIZED, "no memory of the device for the handle");
    *handle = calloc(1, sizeof(**handle));
    if (*handle == NULL)
        return dnn_fail(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "out of memory");
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
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH, "not a stream of device %d",
                        handle->device);
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t *stream)
{
    *stream = handle->stream;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- attributes of each descriptor type; most are required ---- */

#define REFERS(kind_, name_)                                                                           \
    { CONV(kind_), CUDNN_ATTR_OPERATION_CONVOLUTION_##name_, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1, false }
#define FACTOR(kind_, name_)                                                                           \
    { CONV(kind_), CUDNN_ATTR_OPERATION_CONVOLUTION_##name_, CUDNN_TYPE_FLOAT, 1, 1, false }

#define REFERENCE(kind_, name_) { kind_, CUDNN_ATTR_OPERATION_##name_, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1, false }
#define PERHAPS(kind_, name_) { kind_, CUDNN_ATTR_OPERATION_##name_, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1, true }

static const struct {
    int descriptor, name, type, least, most;
    bool may_lack;
} schema[] = {
    { TENSOR, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, 1, false },
    { TENSOR, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, 5, false },
    { TENSOR, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, 5, false },
    { TENSOR, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, 1, false },
    { TENSOR, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, 1, false },
    { TENSOR, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, 1, true },
    { TENSOR, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, 1, true },
    { WINDOW, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, 1, false },
    { WINDOW, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, 1, false },
    { WINDOW, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, 1, false },
    { WINDOW, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, 3, false },
    { WINDOW, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, 3, false },
    { WINDOW, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, 3, false },
    { WINDOW, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, 3, false },
    REFERS(FORWARD, FORWARD_X), REFERS(FORWARD, FORWARD_W),
    REFERS(FORWARD, FORWARD_Y), REFERS(FORWARD, FORWARD_CONV_DESC),
    FACTOR(FORWARD, FORWARD_ALPHA), FACTOR(FORWARD, FORWARD_BETA),
    REFERS(BACKWARD_DATA, BWD_DATA_DX), REFERS(BACKWARD_DATA, BWD_DATA_W),
    REFERS(BACKWARD_DATA, BWD_DATA_DY), REFERS(BACKWARD_DATA, BWD_DATA_CONV_DESC),
    FACTOR(BACKWARD_DATA, BWD_DATA_ALPHA), FACTOR(BACKWARD_DATA, BWD_DATA_BETA),
    REFERS(BACKWARD_FILTER, BWD_FILTER_X), REFERS(BACKWARD_FILTER, BWD_FILTER_DW),
    REFERS(BACKWARD_FILTER, BWD_FILTER_DY), REFERS(BACKWARD_FILTER, BWD_FILTER_CONV_DESC),
    FACTOR(BACKWARD_FILTER, BWD_FILTER_ALPHA), FACTOR(BACKWARD_FILTER, BWD_FILTER_BETA),
    { CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, 1, false },
    { CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, 1, false },
    { CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, 1, true },
    { CUDNN_BACKEND_MATMUL_DESCRIPTOR, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, 1, false },
    { CUDNN_BACKEND_REDUCTION_DESCRIPTOR, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, 1,
      false },
    { CUDNN_BACKEND_REDUCTION_DESCRIPTOR, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, 1, false },
    REFERENCE(EACH, POINTWISE_PW_DESCRIPTOR), REFERENCE(EACH, POINTWISE_XDESC), PERHAPS(EACH, POINTWISE_BDESC),
    PERHAPS(EACH, POINTWISE_TDESC), REFERENCE(EACH, POINTWISE_YDESC),
    REFERENCE(PRODUCT, MATMUL_DESC), REFERENCE(PRODUCT, MATMUL_ADESC), REFERENCE(PRODUCT, MATMUL_BDESC),
    REFERENCE(PRODUCT, MATMUL_CDESC),
    REFERENCE(REDUCE, REDUCTION_DESC), REFERENCE(REDUCE, REDUCTION_XDESC), REFERENCE(REDUCE, REDUCTION_YDESC),
    REFERENCE(VIEW, RESHAPE_XDESC), REFERENCE(VIEW, RESHAPE_YDESC),
    { GRAPH, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, 1, false },
    { GRAPH, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, COUNT_MAX, false },
    { HEUR, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1, false },
    { HEUR, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, 1, false },
    { PLAN, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, 1, false },
    { PLAN, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1, false },
    { PACK, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 1, COUNT_MAX, false },
    { PACK, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 1, COUNT_MAX, false },
    { PACK, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, 1, false },
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
    case CUDNN_TYPE_BOOLEAN: return sizeof(bool);
    default: return sizeof(int); /* an enum */
    }
}

const struct attribute *dnn_find(const struct descriptor *d, int name)
{
    int i;

    for (i = 0; i < d->n; i++)
        if (d->attributes[i].name == name)
            return &d->attributes[i];
    return NULL;
}

const struct attribute *dnn_required(const struct descriptor *d, int n)
{
    int i;

    for (i = 0; i < SCHEMA; i++)
        if (schema[i].descriptor == d->type && n-- == 0)
            return dnn_find(d, schema[i].name);
    return NULL;
}

/* ---- creation and destruction ---- */

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t *out)
{
    struct descriptor *d = calloc(1, sizeof(*d));

    if (d == NULL)
        return dnn_fail(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "out of memory");
    d->type = (int)type;
    d->references = 1;
    *out = d;
    return CUDNN_STATUS_SUCCESS;
}

static struct descriptor *refer(struct descriptor *d)
{
    pthread_mutex_lock(&lock);
    d->references++;
    pthread_mutex_unlock(&lock);
    return d;
}

static void release(struct descriptor *d)
{
    unsigned int left;
    int64_t k;
    int i;

    pthread_mutex_lock(&lock);
    left = --d->references;
    pthread_mutex_unlock(&lock);
    if (left > 0)
        return;
    for (i = 0; i < d->n; i++)
        for (k = 0;
             k < d->attributes[i].count && d->attributes[i].type == CUDNN_TYPE_BACKEND_DESCRIPTOR;
             k++)
            release(d->attributes[i].is.descriptors[k]);
    if (d->graph != NULL)
        release(d->graph);
    free(d->fused);
    free(d);
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor)
{
    if (descriptor == NULL)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "descriptor is NULL");
    release(descriptor);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void *values)
{
    struct descriptor *d = descriptor, *other;
    struct attribute *a;
    int64_t k;
    int i;

    if (d == NULL || values == NULL)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "attribute %d: NULL", (int)name);
    if (d->is_finalized)
        return dnn_fail(CUDNN_STATUS_NOT_INITIALIZED, "attribute %d: set after finalize",
                        (int)name);
    for (i = 0; i < SCHEMA && (schema[i].descriptor != d->type || schema[i].name != (int)name); i++)
        ;
    if (i == SCHEMA)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM, "descriptor %d has no attribute %d", d->type,
                        (int)name);
    if (schema[i].type != (int)type)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "attribute %d is of type %d, not %d",
                        (int)name, schema[i].type, (int)type);
    if (count < schema[i].least || count > schema[i].most)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND, "attribute %d: %lld values", (int)name,
                        (long long)count);
    if (dnn_find(d, (int)name) != NULL)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES, "attribute %d: set twice",
                        (int)name);
    a = &d->attributes[d->n];
    a->name = (int)name;
    a->type = (int)type;
    a->count = count;
    memcpy(&a->is, values, (size_t)count * bytes_of((int)type));
    for (k = 0; type == CUDNN_TYPE_BACKEND_DESCRIPTOR && k < count; k++) {
        other = a->is.descriptors[k];
        if (other == NULL || !other->is_finalized)
            return dnn_fail(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "attribute %d: not finalized",
                            (int)name);
    }
    for (k = 0; type == CUDNN_TYPE_BACKEND_DESCRIPTOR && k < count; k++)
        refer(a->is.descriptors[k]);
    d->n++;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor)
{
    struct descriptor *d = descriptor;
    cudnnStatus_t status;
    int i;

    if (d == NULL)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "descriptor is NULL");
    for (i = 0; i < SCHEMA; i++) {
        const struct attribute *a = dnn_find(d, schema[i].name);

        if (schema[i].descriptor != d->type || (a == NULL && schema[i].may_lack))
            continue;
        if (a == NULL)
            return dnn_fail(CUDNN_STATUS_BAD_PARAM, "descriptor %d lacks attribute %d", d->type,
                            schema[i].name);
        /* inherit from the operation, down to the plan */
        if (a->type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
            struct descriptor *of = a->is.descriptors[0];

            d->conv = of->conv;
            if (of->fused != NULL || of->graph != NULL)
                d->graph = refer(of->fused != NULL ? of : of->graph);
        }
    }
    status = dnn_settle(d);
    d->is_finalized = status == CUDNN_STATUS_SUCCESS;
    return status;
}

/* ---- queries ---- */

/* Turns descriptors created by the caller into those of engines. */
static void fill(const struct descriptor *from, int type, int engine, struct descriptor *to)
{
    if (to == NULL || to->type != type)
        emulated_die("cuDNN: a descriptor of type %d was expected to be filled", type);
    to->conv = from->conv;
    if (from->graph != NULL)
        to->graph = refer(from->graph);
    to->engine = engine;
    to->is_finalized = true;
}

cudnnStatus_t cudnnBackendGetAttribute(const cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t requested,
                                       int64_t *count, void *values)
{
    const struct descriptor *d = descriptor;
    struct descriptor **to = values;
    const int *notes;
    int first, n, i;

    if (d == NULL || count == NULL || (values == NULL && requested > 0))
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "attribute %d: NULL", (int)name);
    if (!d->is_finalized)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "attribute %d: not finalized",
                        (int)name);
    if (d->type == HEUR && name == CUDNN_ATTR_ENGINEHEUR_RESULTS &&
        type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
        *count = n = dnn_engines(d, &first);
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
        notes = dnn_notes(d->engine, &n);
        *count = n;
        memcpy(values, notes, (size_t)(n < requested ? n : requested) * sizeof(int));
        return CUDNN_STATUS_SUCCESS;
    }
    if (d->type == PLAN && name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE &&
        type == CUDNN_TYPE_INT64 && requested == 1) {
        *count = 1;
        *(int64_t *)values = (int64_t)d->conv.workspace_bytes;
        return CUDNN_STATUS_SUCCESS;
    }
    return dnn_fail(CUDNN_STATUS_BAD_PARAM, "attribute %d of type %d of descriptor %d", (int)name,
                    (int)type, d->type);
}

/* ---- execution ---- */

/* Bytes from the first element to the end of the last one. */
static size_t extent(const struct emulated_tensor *t)
{
    int64_t last = 0, k;

    for (k = 0; k < t->axes; k++)
        last += (t->size[k] - 1) * t->step[k];
    return (size_t)(last + 1) * emulated_type_bytes(t->type);
}

static cudnnStatus_t place(struct emulated_tensor *t, const struct descriptor *pack, int device)
{
    const struct attribute *uids = dnn_find(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const struct attribute *at = dnn_find(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    int64_t i;

    for (i = 0; i < uids->count && uids->is.ints[i] != t->uid; i++)
        ;
    if (i == uids->count || at->is.pointers[i] == NULL)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no memory for tensor %lld",
                        (long long)t->uid);
    t->at = at->is.pointers[i];
    if (t->is_number) {
        float number;

        memcpy(&number, t->at, sizeof(number));
        t->number = (double)number;
        t->at = NULL;
        return CUDNN_STATUS_SUCCESS;
    }
    if ((uintptr_t)t->at % (uintptr_t)t->align != 0)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER, "tensor %lld at %p",
                        (long long)t->uid, t->at);
    if (emulated_owner(t->at, extent(t)) != device)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT, "%zu bytes of tensor %lld at %p are not all "
                    "memory of device %d", extent(t), (long long)t->uid, t->at, device);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t has_workspace(const void *at, size_t bytes, int device)
{
    if (bytes > 0 && emulated_owner(at, bytes) != device)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT, "no workspace of %zu bytes at %p",
                        bytes, at);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t execute_conv(cudnnHandle_t handle, const struct descriptor *plan,
                                  const struct descriptor *pack)
{
    struct emulated_conv conv = plan->conv;
    struct emulated_tensor *tensors[] = { &conv.x, &conv.w, &conv.y };
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    size_t i;

    for (i = 0; status == CUDNN_STATUS_SUCCESS && i < 3; i++)
        status = place(tensors[i], pack, handle->device);
    conv.workspace = dnn_find(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE)->is.pointers[0];
    if (status == CUDNN_STATUS_SUCCESS)
        status = has_workspace(conv.workspace, conv.workspace_bytes, handle->device);
    if (status == CUDNN_STATUS_SUCCESS &&
        emulated_enqueue(handle->stream, "cudnnBackendExecute", emulated_conv_run, &conv,
                         sizeof(conv)) != cudaSuccess)
        status = dnn_fail(CUDNN_STATUS_EXECUTION_FAILED_CUDART, "the stream takes no work");
    return status;
}

static cudnnStatus_t execute_fused(cudnnHandle_t handle, const struct descriptor *plan,
                                   const struct descriptor *pack)
{
    struct emulated_fused fused = *plan->graph->fused;
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    int i;

    for (i = 0; status == CUDNN_STATUS_SUCCESS && i < fused.n_tensors; i++)
        if (!fused.tensors[i].is_virtual)
            status = place(&fused.tensors[i], pack, handle->device);
    fused.anyhow = (plan->conv.flaws & EMULATED_ANYHOW) != 0;
    fused.workspace = dnn_find(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE)->is.pointers[0];
    fused.workspace_bytes = plan->conv.workspace_bytes;
    if (status == CUDNN_STATUS_SUCCESS)
        status = has_workspace(fused.workspace, fused.workspace_bytes, handle->device);
    if (status == CUDNN_STATUS_SUCCESS &&
        emulated_enqueue(handle->stream, "cudnnBackendExecute", emulated_fused_run, &fused,
                         sizeof(fused)) != cudaSuccess)
        status = dnn_fail(CUDNN_STATUS_EXECUTION_FAILED_CUDART, "the stream takes no work");
    return status;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack)
{
    const struct descriptor *p = plan, *v = pack;

    if (handle == NULL || p == NULL || v == NULL)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "execute: NULL");
    if (p->type != PLAN || v->type != PACK || !p->is_finalized || !v->is_finalized)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED,
                        "execute: not a finalized plan and pack");
    return p->graph != NULL ? execute_fused(handle, p, v) : execute_conv(handle, p, v);
}
