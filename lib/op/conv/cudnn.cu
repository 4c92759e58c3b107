/* cudnn.cu - cuDNN's graph API: everything is a descriptor that is made, given attributes and finalized.
 *
 *   tensors, convolution -> operation -> graph of one operation
 *   graph -> heuristics -> engine configurations, best first -> plan (which knows its scratch)
 *   plan, addresses of tensors and scratch (a variant pack) -> execute
 *
 * A handle belongs to a GPU; whoever uses it holds its lock, for the time of a call. */
#include "op/conv/cudnn.cuh"

#include <cudnn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include "base/check.h"
}

static constexpr int64_t SCRATCH_MAX = (int64_t)1 << 30; /* a faster engine that wants more is not taken */
static constexpr int GPUS_MAX = 64, AXES_MAX = OP_SPATIAL_MAX + 2, MADE_MAX = 12;

struct cudnn_conv {
    cudnnBackendDescriptor_t made[MADE_MAX]; /* owned, in the order of their making */
    int n_made;
    cudnnBackendDescriptor_t plan, pack; /* owned; pack: of the addresses below, or NULL */
    void *at[CONV_OPERANDS], *scratch;
    int64_t scratch_bytes;
    int gpu;
    char what[640]; /* for messages */
};

/* ---- handles ---- */

static struct {
    pthread_mutex_t lock;
    cudnnHandle_t handle; /* NULL: not yet; never given back */
} gpus[GPUS_MAX];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_locks(void)
{
    for (int i = 0; i < GPUS_MAX; i++)
        pthread_mutex_init(&gpus[i].lock, NULL);
}

static void gpu_lock(int gpu)
{
    pthread_once(&once, make_locks);
    pthread_mutex_lock(&gpus[gpu].lock);
}

static void gpu_unlock(int gpu)
{
    pthread_mutex_unlock(&gpus[gpu].lock);
}

/* ---- errors ---- */

/* The first that went wrong of a row of calls; all behind it do nothing. */
struct outcome {
    cudnnStatus_t status;
    const char *doing;
};

static bool note(struct outcome *o, cudnnStatus_t status, const char *doing)
{
    if (o->status == CUDNN_STATUS_SUCCESS && status != CUDNN_STATUS_SUCCESS)
        *o = { status, doing };
    return o->status == CUDNN_STATUS_SUCCESS;
}

static int code_of(cudnnStatus_t status)
{
    switch ((int)status / 1000 * 1000) {
    case CUDNN_STATUS_NOT_SUPPORTED:
    case CUDNN_STATUS_BAD_PARAM: /* types or strides that it does not even consider */
        return ERR_UNSUPPORTED;
    }
    return status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
                   status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED
               ? ERR_NOMEM
               : ERR_DEVICE;
}

static int fail(const struct cudnn_conv *c, const struct outcome *o, struct err *err)
{
    int version = (int)cudnnGetVersion();
    char says[128] = "";

    cudnnGetLastErrorString(says, sizeof(says));
    return err_set(err, code_of(o->status), "cuDNN %d.%d.%d, %s: %s: %s%s%s", version / 10000,
                   version / 100 % 100, version % 100, c->what, o->doing, cudnnGetErrorString(o->status),
                   says[0] != '\0' ? ": " : "", says);
}

/* ---- descriptors ---- */

static cudnnBackendDescriptor_t make(struct outcome *o, cudnnBackendDescriptorType_t type)
{
    cudnnBackendDescriptor_t d = NULL;

    if (o->status == CUDNN_STATUS_SUCCESS)
        note(o, cudnnBackendCreateDescriptor(type, &d), "make a descriptor");
    return d;
}

/* The same, owned by c. */
static cudnnBackendDescriptor_t make_own(struct cudnn_conv *c, struct outcome *o,
                                         cudnnBackendDescriptorType_t type)
{
    cudnnBackendDescriptor_t d = make(o, type);

    CHECK(c->n_made < MADE_MAX);
    if (d != NULL)
        c->made[c->n_made++] = d;
    return d;
}

static void set(struct outcome *o, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t n, const void *values)
{
    if (o->status == CUDNN_STATUS_SUCCESS)
        note(o, cudnnBackendSetAttribute(d, name, type, n, values), "describe it");
}

static void set_descriptor(struct outcome *o, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                           cudnnBackendDescriptor_t value)
{
    set(o, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void finish(struct outcome *o, cudnnBackendDescriptor_t d, const char *doing)
{
    if (o->status == CUDNN_STATUS_SUCCESS)
        note(o, cudnnBackendFinalize(d), doing);
}

static void destroy(cudnnBackendDescriptor_t d)
{
    if (d != NULL)
        (void)cudnnBackendDestroyDescriptor(d); /* of ours: it cannot fail */
}

/* ---- the operation ---- */

static cudnnDataType_t type_of(enum tensor_dtype t)
{
    return t == TENSOR_BF16 ? CUDNN_DATA_BFLOAT16 : t == TENSOR_F16 ? CUDNN_DATA_HALF : CUDNN_DATA_FLOAT;
}

/* An operand: the number of its axes, its sizes in ONNX's order. */
static int sizes_of(const struct cudnn_conv_spec *spec, enum conv_operand which, int64_t *size)
{
    const struct op_window *w = spec->window;
    const int64_t *space = which == CONV_X ? w->in : which == CONV_W ? w->kernel : w->out;

    size[0] = which == CONV_W ? spec->o : spec->n;
    size[1] = which == CONV_X ? spec->c : which == CONV_W ? spec->c / spec->group : spec->o;
    for (uint32_t k = 0; k < w->spatial; k++)
        size[2 + k] = space[k];
    return (int)w->spatial + 2;
}

static cudnnBackendDescriptor_t tensor(struct cudnn_conv *c, struct outcome *o,
                                       const struct cudnn_conv_spec *spec, enum conv_operand which)
{
    cudnnBackendDescriptor_t d = make_own(c, o, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    cudnnDataType_t type = type_of(which == CONV_W ? spec->weights : spec->images);
    int64_t size[AXES_MAX], step[AXES_MAX], uid = which + 1, align = 16, at = 1;
    int axes = sizes_of(spec, which, size);
    bool last = spec->layout == TENSOR_CHANNELS_LAST;

    if (last) {
        step[1] = 1;
        at = size[1];
    }
    for (int k = axes; k-- > 0;) {
        if (last && k == 1)
            continue;
        step[k] = at;
        at *= size[k];
    }
    set(o, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(o, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, axes, size);
    set(o, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, axes, step);
    set(o, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid);
    set(o, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align);
    finish(o, d, "describe a tensor");
    return d;
}

static cudnnBackendDescriptor_t window(struct cudnn_conv *c, struct outcome *o, const struct op_window *w)
{
    cudnnBackendDescriptor_t d = make_own(c, o, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    cudnnDataType_t sums = CUDNN_DATA_FLOAT;
    int64_t axes = w->spatial;

    set(o, d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &axes);
    set(o, d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &sums);
    set(o, d, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    set(o, d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, axes, w->pad_lo);
    set(o, d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, axes, w->pad_lo);
    set(o, d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, axes, w->stride);
    set(o, d, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, axes, w->dilation);
    finish(o, d, "describe the windows");
    return d;
}

/* What differs between the three: names. */
static const struct {
    const char *name;
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t window, x, w, y, alpha, beta;
} operations[CONV_OPERANDS] = {
#define ATTR(x_) CUDNN_ATTR_OPERATION_CONVOLUTION_##x_
    { "gradient of the images", CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
      ATTR(BWD_DATA_CONV_DESC), ATTR(BWD_DATA_DX), ATTR(BWD_DATA_W), ATTR(BWD_DATA_DY),
      ATTR(BWD_DATA_ALPHA), ATTR(BWD_DATA_BETA) },
    { "gradient of the weights", CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
      ATTR(BWD_FILTER_CONV_DESC), ATTR(BWD_FILTER_X), ATTR(BWD_FILTER_DW), ATTR(BWD_FILTER_DY),
      ATTR(BWD_FILTER_ALPHA), ATTR(BWD_FILTER_BETA) },
    { "convolution", CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
      ATTR(FORWARD_CONV_DESC), ATTR(FORWARD_X), ATTR(FORWARD_W), ATTR(FORWARD_Y), ATTR(FORWARD_ALPHA),
      ATTR(FORWARD_BETA) },
#undef ATTR
};

static cudnnBackendDescriptor_t graph(struct cudnn_conv *c, struct outcome *o,
                                      const struct cudnn_conv_spec *spec)
{
    const auto *op = &operations[spec->computed];
    cudnnBackendDescriptor_t x = tensor(c, o, spec, CONV_X), w = tensor(c, o, spec, CONV_W),
                             y = tensor(c, o, spec, CONV_Y), win = window(c, o, spec->window);
    cudnnBackendDescriptor_t d = make_own(c, o, op->type);
    cudnnBackendDescriptor_t g = make_own(c, o, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    float alpha = 1, beta = spec->add ? 1 : 0;

    set_descriptor(o, d, op->window, win);
    set_descriptor(o, d, op->x, x);
    set_descriptor(o, d, op->w, w);
    set_descriptor(o, d, op->y, y);
    set(o, d, op->alpha, CUDNN_TYPE_FLOAT, 1, &alpha);
    set(o, d, op->beta, CUDNN_TYPE_FLOAT, 1, &beta);
    finish(o, d, "describe the operation");
    set(o, g, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &gpus[c->gpu].handle);
    set_descriptor(o, g, CUDNN_ATTR_OPERATIONGRAPH_OPS, d);
    finish(o, g, "describe the graph");
    return g;
}

/* ---- the engine ---- */

/* Does the engine of a configuration compute what we promise? */
static bool is_exact(cudnnBackendDescriptor_t config, const struct cudnn_conv_spec *spec)
{
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    struct outcome o = {};
    cudnnBackendDescriptor_t engine = make(&o, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    bool exact = o.status == CUDNN_STATUS_SUCCESS;
    int64_t n = 0;

    exact = exact && note(&o, cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                                       CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n, &engine), "");
    exact = exact && note(&o, cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                                       CUDNN_TYPE_NUMERICAL_NOTE,
                                                       CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &n, notes), "");
    for (int64_t i = 0; exact && i < n; i++)
        switch (notes[i]) {
        case CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC:
        case CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION:
        case CUDNN_NUMERICAL_NOTE_FFT:      /* sums of other numbers than the products: */
        case CUDNN_NUMERICAL_NOTE_WINOGRAD: /* digits go, the more the larger their tile */
        case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4:
        case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6:
        case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13: exact = false; break;
        case CUDNN_NUMERICAL_NOTE_TENSOR_CORE: /* which multiply float32 as TF32 */
        case CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS:
            exact = spec->tf32 || spec->images != TENSOR_F32;
            break;
        default: break;
        }
    destroy(engine);
    return exact;
}

/* NULL: the configuration does not work here, or wants too much scratch. */
static cudnnBackendDescriptor_t plan_of(struct cudnn_conv *c, cudnnBackendDescriptor_t config,
                                        struct outcome *o)
{
    cudnnBackendDescriptor_t plan = make(o, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    int64_t n, bytes = 0;

    set(o, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &gpus[c->gpu].handle);
    set_descriptor(o, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    finish(o, plan, "make a plan");
    if (o->status == CUDNN_STATUS_SUCCESS &&
        note(o, cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64,
                                         1, &n, &bytes), "read its scratch") &&
        bytes <= SCRATCH_MAX) {
        c->scratch_bytes = bytes;
        return plan;
    }
    destroy(plan);
    return NULL;
}

/* The best that one kind of heuristics knows, in c->plan. */
static void choose(struct cudnn_conv *c, cudnnBackendDescriptor_t graph, cudnnBackendHeurMode_t mode,
                   const struct cudnn_conv_spec *spec, struct outcome *o)
{
    cudnnBackendDescriptor_t heur = make(o, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR), *configs = NULL;
    int64_t n = 0, made = 0;

    set_descriptor(o, heur, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    set(o, heur, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    finish(o, heur, "ask for engines");
    if (o->status == CUDNN_STATUS_SUCCESS)
        note(o, cudnnBackendGetAttribute(heur, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                         0, &n, NULL), "count engines");
    if (o->status == CUDNN_STATUS_SUCCESS && n > 0) {
        configs = (cudnnBackendDescriptor_t *)calloc((size_t)n, sizeof(*configs));
        note(o, configs != NULL ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED,
             "list engines");
    }
    for (; o->status == CUDNN_STATUS_SUCCESS && made < n; made++)
        configs[made] = make(o, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (o->status == CUDNN_STATUS_SUCCESS && n > 0)
        note(o, cudnnBackendGetAttribute(heur, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                         n, &n, configs), "list engines");
    for (int64_t i = 0; o->status == CUDNN_STATUS_SUCCESS && i < n && c->plan == NULL; i++) {
        struct outcome tried = {};

        if (is_exact(configs[i], spec))
            c->plan = plan_of(c, configs[i], &tried);
        if (c->plan != NULL) { /* which refers to it */
            c->made[c->n_made++] = configs[i];
            configs[i] = NULL;
        }
    }
    for (int64_t i = 0; i < made; i++)
        destroy(configs[i]);
    free(configs);
    destroy(heur);
}

static void describe(const struct cudnn_conv_spec *spec, char *out, size_t n)
{
    const struct op_window *w = spec->window;
    char text[CONV_OPERANDS + 3][96];
    const int64_t *lists[] = { w->stride, w->dilation, w->pad_lo };
    struct shape s;

    for (int k = 0; k < CONV_OPERANDS; k++) {
        s.rank = (uint32_t)sizes_of(spec, (enum conv_operand)k, s.dim);
        shape_print(&s, text[k], sizeof(text[k]));
    }
    for (int k = 0; k < 3; k++) {
        s.rank = w->spatial;
        memcpy(s.dim, lists[k], w->spatial * sizeof(s.dim[0]));
        shape_print(&s, text[CONV_OPERANDS + k], sizeof(text[0]));
    }
    snprintf(out, n, "%s%s, %s %s, x %s, w %s %s, y %s, strides %s, dilations %s, pads %s",
             operations[spec->computed].name, spec->add ? " added" : "", tensor_dtype_name(spec->images),
             spec->layout == TENSOR_CHANNELS_LAST ? "channels-last" : "plain", text[CONV_X],
             tensor_dtype_name(spec->weights), text[CONV_W], text[CONV_Y], text[3], text[4], text[5]);
}

/* With the GPU's lock held. */
static int settle(struct cudnn_conv *c, const struct cudnn_conv_spec *spec, struct err *err)
{
    static const cudnnBackendHeurMode_t modes[] = { CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK };
    struct outcome o = {};
    cudnnBackendDescriptor_t g;

    if (gpus[c->gpu].handle == NULL)
        note(&o, cudnnCreate(&gpus[c->gpu].handle), "begin to use it");
    g = graph(c, &o, spec);
    if (o.status != CUDNN_STATUS_SUCCESS)
        return fail(c, &o, err);
    for (size_t i = 0; c->plan == NULL && i < sizeof(modes) / sizeof(modes[0]); i++) {
        o = {};
        choose(c, g, modes[i], spec, &o);
        if (o.status != CUDNN_STATUS_SUCCESS && code_of(o.status) != ERR_UNSUPPORTED)
            return fail(c, &o, err);
    }
    if (c->plan == NULL) {
        o = { CUDNN_STATUS_NOT_SUPPORTED, "no engine that gives the same bits every time" };
        return fail(c, &o, err);
    }
    return 0;
}

int cudnn_conv_open(const struct cudnn_conv_spec *spec, struct cudnn_conv **out, struct err *err)
{
    struct cudnn_conv *c = (struct cudnn_conv *)calloc(1, sizeof(*c));
    int rc;

    if (c == NULL)
        return err_set(err, ERR_NOMEM, "convolution: out of memory");
    describe(spec, c->what, sizeof(c->what));
    rc = cuda_check(cudaGetDevice(&c->gpu), err, c->what);
    if (rc == 0) {
        CHECK(c->gpu < GPUS_MAX);
        gpu_lock(c->gpu);
        rc = settle(c, spec, err);
        gpu_unlock(c->gpu);
    }
    if (rc < 0) {
        cudnn_conv_close(c);
        return rc;
    }
    *out = c;
    return 0;
}

void cudnn_conv_close(struct cudnn_conv *c)
{
    if (c == NULL)
        return;
    destroy(c->pack);
    destroy(c->plan);
    while (c->n_made > 0)
        destroy(c->made[--c->n_made]);
    free(c);
}

size_t cudnn_conv_scratch_bytes(const struct cudnn_conv *c)
{
    return c == NULL ? 0 : (size_t)c->scratch_bytes;
}

/* ---- a call ---- */

/* Addresses rarely change: the pack of the last call is kept. */
static void pack_for(struct cudnn_conv *c, void *const at[CONV_OPERANDS], void *scratch, struct outcome *o)
{
    int64_t uids[CONV_OPERANDS] = { CONV_X + 1, CONV_W + 1, CONV_Y + 1 };

    if (c->pack != NULL && memcmp(c->at, at, sizeof(c->at)) == 0 && c->scratch == scratch)
        return;
    destroy(c->pack);
    c->pack = make(o, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    set(o, c->pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, CONV_OPERANDS, uids);
    set(o, c->pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, CONV_OPERANDS, at);
    set(o, c->pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &scratch);
    finish(o, c->pack, "name its memory");
    if (o->status != CUDNN_STATUS_SUCCESS) {
        destroy(c->pack);
        c->pack = NULL;
        return;
    }
    memcpy(c->at, at, sizeof(c->at));
    c->scratch = scratch;
}

int cudnn_conv_run(struct cudnn_conv *c, void *const at[CONV_OPERANDS], void *scratch, cudaStream_t s,
                   struct err *err)
{
    struct outcome o = {};
    int rc = 0;

    gpu_lock(c->gpu);
    pack_for(c, at, scratch, &o);
    if (o.status == CUDNN_STATUS_SUCCESS)
        note(&o, cudnnSetStream(gpus[c->gpu].handle, s), "name the stream");
    if (o.status == CUDNN_STATUS_SUCCESS)
        note(&o, cudnnBackendExecute(gpus[c->gpu].handle, c->plan, c->pack), "launch it");
    if (o.status != CUDNN_STATUS_SUCCESS)
        rc = fail(c, &o, err);
    gpu_unlock(c->gpu);
    return rc;
}
