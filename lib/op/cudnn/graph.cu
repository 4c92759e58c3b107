/* graph.cu - see graph.cuh. There is one cuDNN handle per GPU; a thread holds its lock for the
 * duration of a call. */
#include "op/cudnn/graph.cuh"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include "base/check.h"
}

static constexpr int GPUS_MAX = 64, MADE_MAX = 96, OPERATIONS_MAX = 32;

/* The first failure in a sequence of calls. */
struct outcome {
    cudnnStatus_t status;
    const char *doing;
};

struct cudnn_graph {
    struct outcome making;
    cudnnBackendDescriptor_t made[MADE_MAX]; /* owned, in the order of creation */
    int n_made;
    cudnnBackendDescriptor_t operations[OPERATIONS_MAX]; /* a subset of `made` */
    int n_operations;
    cudnnBackendDescriptor_t plan, pack; /* owned; pack: of the addresses below, or NULL */
    void *at[CUDNN_OPERANDS], *scratch;
    int64_t scratch_bytes;
    int gpu;
    unsigned users;
    bool is_shared;
    struct cudnn_graph *next; /* list of shared graphs */
    char what[640];           /* name, for error messages */
};

/* ---- handles ---- */

static struct {
    pthread_mutex_t lock;
    cudnnHandle_t handle; /* NULL: not created yet; never destroyed */
    struct cudnn_graph *shared;
} gpus[GPUS_MAX];
static pthread_once_t once = PTHREAD_ONCE_INIT;
static cudnnBackendDescriptor_t pretended; /* properties of an absent GPU, for tests; NULL: use the
                                              current GPU */

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

static bool record(struct outcome *o, cudnnStatus_t status, const char *doing)
{
    if (o->status == CUDNN_STATUS_SUCCESS && status != CUDNN_STATUS_SUCCESS)
        *o = { status, doing };
    return o->status == CUDNN_STATUS_SUCCESS;
}

static int code_of(cudnnStatus_t status)
{
    switch ((int)status / 1000 * 1000) {
    case CUDNN_STATUS_NOT_SUPPORTED:
    case CUDNN_STATUS_BAD_PARAM: /* unsupported types or strides */
        return ERR_UNSUPPORTED;
    }
    return status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
                   status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED
               ? ERR_NOMEM
               : ERR_DEVICE;
}

static int fail(const char *what, const struct outcome *o, struct err *err)
{
    int version = (int)cudnnGetVersion();
    char says[128] = "";

    cudnnGetLastErrorString(says, sizeof(says));
    return err_set(err, code_of(o->status), "cuDNN %d.%d.%d, %s: %s: %s%s%s", version / 10000,
                   version / 100 % 100, version % 100, what, o->doing,
                   cudnnGetErrorString(o->status), says[0] != '\0' ? ": " : "", says);
}

/* ---- descriptors ---- */

static cudnnBackendDescriptor_t make(struct outcome *o, cudnnBackendDescriptorType_t type)
{
    cudnnBackendDescriptor_t d = NULL;

    if (o->status == CUDNN_STATUS_SUCCESS)
        record(o, cudnnBackendCreateDescriptor(type, &d), "create a descriptor");
    return d;
}

static void set(struct outcome *o, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t n, const void *values)
{
    if (o->status == CUDNN_STATUS_SUCCESS)
        record(o, cudnnBackendSetAttribute(d, name, type, n, values), "set an attribute");
}

static void finish(struct outcome *o, cudnnBackendDescriptor_t d, const char *doing)
{
    if (o->status == CUDNN_STATUS_SUCCESS)
        record(o, cudnnBackendFinalize(d), doing);
}

static void destroy(cudnnBackendDescriptor_t d)
{
    if (d != NULL)
        (void)cudnnBackendDestroyDescriptor(d); /* cannot fail for a descriptor created here */
}

int cudnn_mock_device(const char *properties, struct err *err)
{
    struct outcome o = {};
    cudnnBackendDescriptor_t d = make(&o, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);

    set(&o, d, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
        (int64_t)strlen(properties), properties);
    finish(&o, d, "finalize the properties");
    if (o.status != CUDNN_STATUS_SUCCESS) {
        destroy(d);
        return fail("properties of a GPU", &o, err);
    }
    pretended = d;
    return 0;
}

/* ---- building a graph ---- */

static int entered_gpu(const char *what, int *out, struct err *err)
{
    int rc = 0;

    *out = 0;
    if (pretended == NULL)
        rc = cuda_check(cudaGetDevice(out), err, what);
    CHECK(*out < GPUS_MAX);
    return rc;
}

int cudnn_graph_open(const char *what, struct cudnn_graph **out, struct err *err)
{
    struct cudnn_graph *g = (struct cudnn_graph *)calloc(1, sizeof(*g));
    int rc;

    if (g == NULL)
        return err_set(err, ERR_NOMEM, "%s: out of memory", what);
    snprintf(g->what, sizeof(g->what), "%s", what);
    g->users = 1;
    rc = entered_gpu(what, &g->gpu, err);
    if (rc < 0) {
        free(g);
        return rc;
    }
    *out = g;
    return 0;
}

int cudnn_graph_find(const char *what, struct cudnn_graph **out, struct err *err)
{
    struct cudnn_graph *g;
    int gpu, rc = entered_gpu(what, &gpu, err);

    if (rc < 0)
        return rc;
    gpu_lock(gpu);
    for (g = gpus[gpu].shared; g != NULL && strcmp(g->what, what) != 0;)
        g = g->next;
    if (g != NULL)
        g->users++;
    gpu_unlock(gpu);
    *out = g;
    return 0;
}

void cudnn_graph_share(struct cudnn_graph *g)
{
    gpu_lock(g->gpu);
    g->is_shared = true;
    g->next = gpus[g->gpu].shared;
    gpus[g->gpu].shared = g;
    gpu_unlock(g->gpu);
}

/* Releases one use of a shared graph. Returns true if it was the last, and removes the graph from
 * the list. */
static bool release_use(struct cudnn_graph *g)
{
    struct cudnn_graph **at = &gpus[g->gpu].shared;
    bool last;

    gpu_lock(g->gpu);
    last = --g->users == 0;
    if (last && g->is_shared) {
        while (*at != g)
            at = &(*at)->next;
        *at = g->next;
    }
    gpu_unlock(g->gpu);
    return last;
}

void cudnn_graph_close(struct cudnn_graph *g)
{
    if (g == NULL || !release_use(g))
        return;
    destroy(g->pack);
    destroy(g->plan);
    while (g->n_made > 0)
        destroy(g->made[--g->n_made]);
    free(g);
}

cudnnDataType_t cudnn_type(enum tensor_dtype t)
{
    return t == TENSOR_BF16  ? CUDNN_DATA_BFLOAT16
           : t == TENSOR_F16 ? CUDNN_DATA_HALF
                             : CUDNN_DATA_FLOAT;
}

cudnnBackendDescriptor_t cudnn_make(struct cudnn_graph *g, cudnnBackendDescriptorType_t type)
{
    cudnnBackendDescriptor_t d = make(&g->making, type);

    CHECK(g->n_made < MADE_MAX - 1); /* one more: the engine configuration */
    if (d != NULL)
        g->made[g->n_made++] = d;
    return d;
}

void cudnn_set(struct cudnn_graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
               cudnnBackendAttributeType_t type, int64_t n, const void *values)
{
    set(&g->making, d, name, type, n, values);
}

void cudnn_set_descriptor(struct cudnn_graph *g, cudnnBackendDescriptor_t d,
                          cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t value)
{
    set(&g->making, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

void cudnn_finish(struct cudnn_graph *g, cudnnBackendDescriptor_t d, const char *doing)
{
    finish(&g->making, d, doing);
}

cudnnBackendDescriptor_t cudnn_tensor(struct cudnn_graph *g, const struct cudnn_tensor *t)
{
    cudnnBackendDescriptor_t d = cudnn_make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    const int64_t align = t->align != 0 ? t->align : 16;

    cudnn_set(g, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &t->type);
    cudnn_set(g, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, t->axes, t->size);
    cudnn_set(g, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, t->axes, t->step);
    cudnn_set(g, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &t->uid);
    cudnn_set(g, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align);
    if (t->is_virtual)
        cudnn_set(g, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &t->is_virtual);
    if (t->is_number)
        cudnn_set(g, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &t->is_number);
    cudnn_finish(g, d, "describe a tensor");
    return d;
}

void cudnn_operation(struct cudnn_graph *g, cudnnBackendDescriptor_t d)
{
    cudnn_finish(g, d, "describe an operation");
    CHECK(g->n_operations < OPERATIONS_MAX);
    g->operations[g->n_operations++] = d;
}

/* ---- the engine ---- */

/* Returns true if the engine of a configuration meets the promises of graph.cuh. */
static bool is_exact(cudnnBackendDescriptor_t config, bool tensor_cores)
{
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    struct outcome o = {};
    cudnnBackendDescriptor_t engine = make(&o, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    bool exact = o.status == CUDNN_STATUS_SUCCESS;
    int64_t n = 0;

    exact = exact && record(&o,
                            cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                                     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n, &engine),
                            "");
    exact = exact && record(&o,
                            cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                                     CUDNN_TYPE_NUMERICAL_NOTE,
                                                     CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &n, notes),
                            "");
    for (int64_t i = 0; exact && i < n; i++)
        switch (notes[i]) {
        case CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC:
        case CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION:
        /* FFT and Winograd sum numbers other than the products and lose precision, more with larger
         * tiles. */
        case CUDNN_NUMERICAL_NOTE_FFT:
        case CUDNN_NUMERICAL_NOTE_WINOGRAD:
        case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4:
        case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6:
        case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13: exact = false; break;
        case CUDNN_NUMERICAL_NOTE_TENSOR_CORE: /* multiplies float32 as TF32 */
        case CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS: exact = tensor_cores; break;
        default: break;
        }
    destroy(engine);
    return exact;
}

/* Returns NULL if the configuration does not work on this GPU, or needs too much scratch. */
static cudnnBackendDescriptor_t plan_of(struct cudnn_graph *g, cudnnBackendDescriptor_t config,
                                        int64_t scratch_max, struct outcome *o)
{
    cudnnBackendDescriptor_t plan = make(o, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    int64_t n, bytes = 0;

    if (pretended != NULL)
        set(o, plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
            &pretended);
    else
        set(o, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &gpus[g->gpu].handle);
    set(o, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
        &config);
    finish(o, plan, "create a plan");
    if (o->status == CUDNN_STATUS_SUCCESS &&
        record(o,
               cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                        CUDNN_TYPE_INT64, 1, &n, &bytes),
               "read the workspace size") &&
        bytes <= scratch_max) {
        g->scratch_bytes = bytes;
        return plan;
    }
    destroy(plan);
    return NULL;
}

/* Sets g->plan to the best plan that one heuristic mode proposes. */
static void choose_plan(struct cudnn_graph *g, cudnnBackendDescriptor_t graph,
                        cudnnBackendHeurMode_t mode, bool tensor_cores, int64_t scratch_max,
                        struct outcome *o)
{
    cudnnBackendDescriptor_t heur = make(o, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR), *configs = NULL;
    int64_t n = 0, made = 0;

    set(o, heur, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &graph);
    set(o, heur, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (pretended != NULL)
        set(o, heur, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
            &pretended);
    finish(o, heur, "create the heuristics");
    if (o->status == CUDNN_STATUS_SUCCESS)
        record(o,
               cudnnBackendGetAttribute(heur, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                        CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &n, NULL),
               "count engines");
    if (o->status == CUDNN_STATUS_SUCCESS && n > 0) {
        configs = (cudnnBackendDescriptor_t *)calloc((size_t)n, sizeof(*configs));
        record(o,
               configs != NULL ? CUDNN_STATUS_SUCCESS
                               : CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED,
               "list engines");
    }
    for (; o->status == CUDNN_STATUS_SUCCESS && made < n; made++)
        configs[made] = make(o, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    /* the usable ones: may be fewer than were counted */
    if (o->status == CUDNN_STATUS_SUCCESS && n > 0)
        record(o,
               cudnnBackendGetAttribute(heur, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                        CUDNN_TYPE_BACKEND_DESCRIPTOR, n, &n, configs),
               "list engines");
    for (int64_t i = 0; o->status == CUDNN_STATUS_SUCCESS && i < n && g->plan == NULL; i++) {
        struct outcome tried = {};

        if (is_exact(configs[i], tensor_cores))
            g->plan = plan_of(g, configs[i], scratch_max, &tried);
        if (g->plan != NULL) { /* the plan refers to the configuration */
            g->made[g->n_made++] = configs[i];
            configs[i] = NULL;
        }
    }
    for (int64_t i = 0; i < made; i++)
        destroy(configs[i]);
    free(configs);
    destroy(heur);
}

/* The caller holds the lock of the GPU. */
static int find_plan(struct cudnn_graph *g, bool tensor_cores, int64_t scratch_max, struct err *err)
{
    static const cudnnBackendHeurMode_t modes[] = { CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK };
    struct outcome o = {};
    cudnnBackendDescriptor_t graph;

    if (pretended == NULL && gpus[g->gpu].handle == NULL)
        record(&g->making, cudnnCreate(&gpus[g->gpu].handle), "create a handle");
    graph = cudnn_make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    if (pretended == NULL)
        cudnn_set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1,
                  &gpus[g->gpu].handle);
    cudnn_set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
              g->n_operations, g->operations);
    cudnn_finish(g, graph, "describe the graph");
    if (g->making.status != CUDNN_STATUS_SUCCESS)
        return fail(g->what, &g->making, err);
    for (size_t i = 0; g->plan == NULL && i < sizeof(modes) / sizeof(modes[0]); i++) {
        o = {};
        choose_plan(g, graph, modes[i], tensor_cores, scratch_max, &o);
        if (o.status != CUDNN_STATUS_SUCCESS && code_of(o.status) != ERR_UNSUPPORTED)
            return fail(g->what, &o, err);
    }
    if (g->plan == NULL) {
        o = { CUDNN_STATUS_NOT_SUPPORTED, "no deterministic engine" };
        return fail(g->what, &o, err);
    }
    return 0;
}

int cudnn_graph_select(struct cudnn_graph *g, bool tensor_cores, int64_t scratch_max,
                       struct err *err)
{
    int rc;

    gpu_lock(g->gpu);
    rc = find_plan(g, tensor_cores, scratch_max, err);
    gpu_unlock(g->gpu);
    return rc;
}

size_t cudnn_graph_scratch_bytes(const struct cudnn_graph *g)
{
    return g == NULL ? 0 : (size_t)g->scratch_bytes;
}

/* ---- a call ---- */

/* Creates the variant pack. Addresses rarely change, so the pack of the last call is kept. */
static void pack_for(struct cudnn_graph *g, int n, const int64_t *uids, void *const *at,
                     void *scratch, struct outcome *o)
{
    CHECK(n <= CUDNN_OPERANDS);
    if (g->pack != NULL && memcmp(g->at, at, (size_t)n * sizeof(*at)) == 0 && g->scratch == scratch)
        return;
    destroy(g->pack);
    g->pack = make(o, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    set(o, g->pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, uids);
    set(o, g->pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, at);
    set(o, g->pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &scratch);
    finish(o, g->pack, "create a variant pack");
    if (o->status != CUDNN_STATUS_SUCCESS) {
        destroy(g->pack);
        g->pack = NULL;
        return;
    }
    memcpy(g->at, at, (size_t)n * sizeof(*at));
    g->scratch = scratch;
}

int cudnn_graph_run(struct cudnn_graph *g, int n, const int64_t *uids, void *const *at,
                    void *scratch, cudaStream_t s, struct err *err)
{
    struct outcome o = {};
    int rc = 0;

    gpu_lock(g->gpu);
    pack_for(g, n, uids, at, scratch, &o);
    if (o.status == CUDNN_STATUS_SUCCESS)
        record(&o, cudnnSetStream(gpus[g->gpu].handle, s), "set the stream");
    if (o.status == CUDNN_STATUS_SUCCESS)
        record(&o, cudnnBackendExecute(gpus[g->gpu].handle, g->plan, g->pack), "execute the plan");
    if (o.status != CUDNN_STATUS_SUCCESS)
        rc = fail(g->what, &o, err);
    gpu_unlock(g->gpu);
    return rc;
}
