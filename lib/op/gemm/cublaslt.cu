/* cublaslt.cu - see cublaslt.cuh.
 *
 * The library uses column-major matrices: a row-major [r, c] is its own transpose for it. So we
 * request y^T = b^T a^T: our b is its A, our a its B, and n precedes m. Only column_major() does
 * this conversion. */
#include "op/gemm/cublaslt.cuh"

#include <cublasLt.h>
#include <pthread.h>
#include <stdlib.h>

extern "C" {
#include "base/check.h"
}

static constexpr size_t LT_WORKSPACE = 32 << 20; /* limit of an algorithm's workspace, in bytes */
/* alignment of addresses in bytes; no kernel needs more */
static constexpr uint32_t LT_ALIGN = 16;
/* alignment of the workspace in bytes; the library rejects less */
static constexpr size_t LT_WORKSPACE_ALIGN = 256;

static int lt_check(cublasStatus_t s, struct err *err, const char *what)
{
    if (s == CUBLAS_STATUS_SUCCESS)
        return 0;
    return err_set(err,
                   s == CUBLAS_STATUS_ALLOC_FAILED    ? ERR_NOMEM
                   : s == CUBLAS_STATUS_NOT_SUPPORTED ? ERR_UNSUPPORTED
                                                      : ERR_DEVICE,
                   "%s: cuBLASLt: %s", what, cublasLtGetStatusName(s));
}

/* ---- handles: one for each GPU and thread that uses products ---- */

struct lt_handle {
    struct lt_handle *next;
    cublasLtHandle_t handle;
    pthread_t thread;
    int gpu;
    size_t users;
};

static pthread_mutex_t handles_lock = PTHREAD_MUTEX_INITIALIZER;
static struct lt_handle *handles;

/* The caller holds the lock. */
static int handle_new(int gpu, struct lt_handle **out, struct err *err)
{
    struct lt_handle *h = (struct lt_handle *)calloc(1, sizeof(*h));
    int rc;

    if (h == NULL)
        return err_set(err, ERR_NOMEM, "cuBLASLt handle: out of memory");
    rc = lt_check(cublasLtCreate(&h->handle), err, "create a cuBLASLt handle");
    if (rc < 0) {
        free(h);
        return rc;
    }
    h->gpu = gpu;
    h->thread = pthread_self();
    h->next = handles;
    handles = h;
    *out = h;
    return 0;
}

static int handle_acquire(struct lt_handle **out, struct err *err)
{
    struct lt_handle *h;
    int gpu, rc = cuda_check(cudaGetDevice(&gpu), err, "query the current GPU");

    if (rc < 0)
        return rc;
    pthread_mutex_lock(&handles_lock);
    for (h = handles; h != NULL && (h->gpu != gpu || !pthread_equal(h->thread, pthread_self()));)
        h = h->next;
    if (h == NULL)
        rc = handle_new(gpu, &h, err);
    if (rc == 0)
        h->users++;
    pthread_mutex_unlock(&handles_lock);
    if (rc == 0)
        *out = h;
    return rc;
}

static void handle_release(struct lt_handle *h)
{
    struct lt_handle **at = &handles;

    if (h == NULL)
        return;
    pthread_mutex_lock(&handles_lock);
    if (--h->users == 0) {
        while (*at != h)
            at = &(*at)->next;
        *at = h->next;
        (void)cublasLtDestroy(h->handle); /* a failed GPU has nothing to free */
        free(h);
    }
    pthread_mutex_unlock(&handles_lock);
}

/* ---- a product ---- */

struct lt {
    struct lt_handle *handle;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t at[LT_OPERANDS]; /* for our operands */
    cublasLtMatmulAlgo_t algo[2];           /* [1]: for addresses that are all multiples of
                                               LT_ALIGN */
    size_t workspace[2];
    bool is_transposed; /* y^T is computed: a and b are exchanged */
    bool bias;   /* there is a vector: a bias, or sums */
    bool aux;
};

void lt_close(struct lt *l)
{
    if (l == NULL)
        return;
    for (uint32_t i = 0; i < LT_OPERANDS; i++)
        if (l->at[i] != NULL)
            (void)cublasLtMatrixLayoutDestroy(l->at[i]);
    if (l->desc != NULL)
        (void)cublasLtMatmulDescDestroy(l->desc);
    handle_release(l->handle);
    free(l);
}

static cudaDataType type_of(enum tensor_dtype t)
{
    return t == TENSOR_BF16 ? CUDA_R_16BF : t == TENSOR_F16 ? CUDA_R_16F : CUDA_R_32F;
}

/* Returns true if the elements of a row are contiguous; else those of a column are. */
static bool by_rows(const struct lt_operand *o, int64_t rows, int64_t cols)
{
    return (o->col == 1 || cols == 1) && (rows == 1 || o->row >= cols);
}

bool lt_fits(const struct lt_operand *o, int64_t rows, int64_t cols)
{
    const struct lt_operand is_transposed = { o->type, o->col, o->row, o->batch };

    return by_rows(o, rows, cols) || by_rows(&is_transposed, cols, rows);
}

/* Our [rows, cols] in the library's terms: [cols, rows] column-major, or, if our columns are
 * contiguous, [rows, cols] with a transposition. */
struct lt_matrix {
    uint64_t rows, cols;
    int64_t ld;
    cublasOperation_t op;
};

static struct lt_matrix column_major(const struct lt_operand *o, int64_t rows, int64_t cols)
{
    if (by_rows(o, rows, cols))
        return { (uint64_t)cols, (uint64_t)rows, rows == 1 ? cols : o->row, CUBLAS_OP_N };
    return { (uint64_t)rows, (uint64_t)cols, cols == 1 ? rows : o->col, CUBLAS_OP_T };
}

static int layout(const struct lt_problem *p, const struct lt_operand *o, const struct lt_matrix *m,
                  cublasLtMatrixLayout_t *out, struct err *err)
{
    const int32_t batch = (int32_t)p->batch;
    cublasStatus_t s = cublasLtMatrixLayoutCreate(out, type_of(o->type), m->rows, m->cols, m->ld);

    if (s != CUBLAS_STATUS_SUCCESS)
        *out = NULL;
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch,
                                             sizeof(batch));
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                             &o->batch, sizeof(o->batch));
    return lt_check(s, err, "describe a matrix");
}

/* ---- epilogues ---- */

/* Stride of aux between rows of y, in elements: numbers of y's type, or bits. */
static int64_t aux_step(enum lt_tail tail, int64_t n)
{
    int64_t unit = tail == LT_RELU || tail == LT_DRELU ? 128 : 8;

    return (n + unit - 1) / unit * unit;
}

size_t lt_aux_bytes(enum lt_tail tail, int64_t m, int64_t n, enum tensor_dtype y)
{
    size_t elements = (size_t)m * (size_t)aux_step(tail, n);
    bool bits = tail == LT_RELU || tail == LT_DRELU;

    return ((bits ? elements / 8 : elements * tensor_dtype_bytes(y)) + 63) / 64 * 64;
}

static bool has_aux(enum lt_tail tail)
{
    return tail != LT_PLAIN && tail != LT_SUMS;
}

/* The library's A is our b, unless y^T is computed. */
static uint32_t epilogue_of(const struct lt_problem *p, bool is_transposed)
{
    switch (p->tail) {
    case LT_GELU: return p->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case LT_RELU: return p->bias ? CUBLASLT_EPILOGUE_RELU_AUX_BIAS : CUBLASLT_EPILOGUE_RELU_AUX;
    case LT_DGELU: return CUBLASLT_EPILOGUE_DGELU;
    case LT_DRELU: return CUBLASLT_EPILOGUE_DRELU;
    case LT_SUMS: return is_transposed ? CUBLASLT_EPILOGUE_BGRADB : CUBLASLT_EPILOGUE_BGRADA;
    default: return p->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    }
}

/* Describes the epilogue of the product. The algorithm search may assume addresses that are
 * multiples of 256. */
static cublasStatus_t describe_tail(const struct lt_problem *p, struct lt *l)
{
    const uint32_t epilogue = epilogue_of(p, l->is_transposed);
    const void *aligned = (const void *)(uintptr_t)256;
    const int64_t step = aux_step(p->tail, p->n);
    cublasStatus_t s = cublasLtMatmulDescSetAttribute(l->desc, CUBLASLT_MATMUL_DESC_EPILOGUE,
                                                      &epilogue, sizeof(epilogue));

    if (s == CUBLAS_STATUS_SUCCESS && l->bias)
        s = cublasLtMatmulDescSetAttribute(l->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &aligned,
                                           sizeof(aligned));
    if (s == CUBLAS_STATUS_SUCCESS && l->aux)
        s = cublasLtMatmulDescSetAttribute(l->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
                                           &aligned, sizeof(aligned));
    if (s == CUBLAS_STATUS_SUCCESS && l->aux)
        s = cublasLtMatmulDescSetAttribute(l->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &step,
                                           sizeof(step));
    return s;
}

static int describe(const struct lt_problem *p, struct lt *l, struct err *err)
{
    const struct lt_matrix a = column_major(&p->at[LT_A], p->m, p->k),
                           b = column_major(&p->at[LT_B], p->k, p->n),
                           y = column_major(&p->at[LT_Y], p->m, p->n);
    const int32_t trans_a = b.op, trans_b = a.op; /* for the library's A and B */
    cublasStatus_t s;
    int rc = layout(p, &p->at[LT_A], &a, &l->at[LT_A], err);

    if (rc == 0)
        rc = layout(p, &p->at[LT_B], &b, &l->at[LT_B], err);
    if (rc == 0)
        rc = layout(p, &p->at[LT_Y], &y, &l->at[LT_Y], err);
    if (rc < 0)
        return rc;
    s = cublasLtMatmulDescCreate(
        &l->desc, p->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatmulDescSetAttribute(l->desc, CUBLASLT_MATMUL_DESC_TRANSA, &trans_a,
                                           sizeof(trans_a));
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatmulDescSetAttribute(l->desc, CUBLASLT_MATMUL_DESC_TRANSB, &trans_b,
                                           sizeof(trans_b));
    if (s == CUBLAS_STATUS_SUCCESS)
        s = describe_tail(p, l);
    return lt_check(s, err, "describe a product");
}

/* Selects the algorithm that the library considers fastest for addresses that are multiples of
 * `align`. */
static int choose(struct lt *l, uint32_t align, uint32_t which, struct err *err)
{
    static const cublasLtMatmulPreferenceAttributes_t of[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES
    };
    const uint64_t most = LT_WORKSPACE;
    const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    cublasLtMatmulHeuristicResult_t r = {};
    cublasLtMatmulPreference_t want;
    int n = 0,
        rc = lt_check(cublasLtMatmulPreferenceCreate(&want), err, "create a search preference");
    cublasStatus_t s;

    if (rc < 0)
        return rc;
    s = cublasLtMatmulPreferenceSetAttribute(want, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most,
                                             sizeof(most));
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatmulPreferenceSetAttribute(want, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                 &schemes, sizeof(schemes));
    for (size_t i = 0; i < COUNT_OF(of) && s == CUBLAS_STATUS_SUCCESS; i++)
        s = cublasLtMatmulPreferenceSetAttribute(want, of[i], &align, sizeof(align));
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatmulAlgoGetHeuristic(l->handle->handle, l->desc, l->at[LT_B], l->at[LT_A],
                                           l->at[LT_Y], l->at[LT_Y], want, 1, &r, &n);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = n < 1 ? CUBLAS_STATUS_NOT_SUPPORTED : r.state;
    (void)cublasLtMatmulPreferenceDestroy(want);
    l->algo[which] = r.algo;
    l->workspace[which] = r.workspaceSize;
    return lt_check(s, err, "find an algorithm");
}

/* Returns the transposed problem. */
static struct lt_problem transpose(const struct lt_problem *p)
{
    struct lt_problem t = { .batch = p->batch, .m = p->n, .n = p->m, .k = p->k, .bias = p->bias, .tf32 = p->tf32,
                            .tail = p->tail };
    static const int from[] = { LT_B, LT_A, LT_Y };

    for (int i = 0; i < LT_OPERANDS; i++) {
        const struct lt_operand *o = &p->at[from[i]];

        t.at[i] = { o->type, o->col, o->row, o->batch };
    }
    return t;
}

int lt_open(const struct lt_problem *given, struct lt **out, struct err *err)
{
    struct lt *l = (struct lt *)calloc(1, sizeof(*l));
    struct lt_problem p = *given;
    int rc;

    if (l == NULL)
        return err_set(err, ERR_NOMEM, "matrix product: out of memory");
    CHECK(lt_fits(&p.at[LT_A], p.m, p.k) && lt_fits(&p.at[LT_B], p.k, p.n) &&
          lt_fits(&p.at[LT_Y], p.m, p.n));
    l->is_transposed = !by_rows(&p.at[LT_Y], p.m, p.n);
    CHECK(!l->is_transposed || (!p.bias && !has_aux(p.tail)));
    CHECK(p.tail == LT_PLAIN || p.batch == 1);
    if (l->is_transposed)
        p = transpose(&p);
    l->bias = p.bias || p.tail == LT_SUMS;
    l->aux = has_aux(p.tail);
    rc = p.batch <= INT32_MAX ? handle_acquire(&l->handle, err)
                              : err_set(err, ERR_UNSUPPORTED, "more than 2^31 - 1 matrices");
    if (rc == 0)
        rc = describe(&p, l, err);
    if (rc == 0)
        rc = choose(l, LT_ALIGN, 1, err);
    if (rc == 0)
        rc = choose(l, (uint32_t)tensor_dtype_bytes(p.at[LT_A].type), 0, err);
    if (rc < 0) {
        lt_close(l);
        return err_wrap(err, rc, "matrix product of [%lld, %lld] and [%lld, %lld], %lld times",
                        (long long)given->m, (long long)given->k, (long long)given->k,
                        (long long)given->n, (long long)given->batch);
    }
    *out = l;
    return 0;
}

size_t lt_scratch_bytes(const struct lt *l)
{
    size_t most = l == NULL                           ? 0
                  : l->workspace[0] > l->workspace[1] ? l->workspace[0]
                                                      : l->workspace[1];

    /* Scratch is 64-byte aligned: lt_run() rounds the address of the workspace up. */
    return most == 0 ? 0 : (most + 63) / 64 * 64 + LT_WORKSPACE_ALIGN - 64;
}

static void *align_workspace(void *scratch)
{
    return (void *)(((uintptr_t)scratch + LT_WORKSPACE_ALIGN - 1) / LT_WORKSPACE_ALIGN *
                    LT_WORKSPACE_ALIGN);
}

int lt_run(struct lt *l, const void *a, const void *b, void *y, const void *bias, void *aux,
           float alpha, bool add, void *scratch, cudaStream_t stream, struct err *err)
{
    const float beta = add ? 1.0f : 0.0f;
    const void *first = l->is_transposed ? b : a, *second = l->is_transposed ? a : b;
    int aligned = (((uintptr_t)a | (uintptr_t)b | (uintptr_t)y) & (LT_ALIGN - 1)) == 0;
    cublasStatus_t s = CUBLAS_STATUS_SUCCESS;

    if (l->bias)
        s = cublasLtMatmulDescSetAttribute(l->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                           sizeof(bias));
    if (s == CUBLAS_STATUS_SUCCESS && l->aux)
        s = cublasLtMatmulDescSetAttribute(l->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux,
                                           sizeof(aux));
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatmul(l->handle->handle, l->desc, &alpha, second, l->at[LT_B], first,
                           l->at[LT_A], &beta, y, l->at[LT_Y], y, l->at[LT_Y], &l->algo[aligned],
                           align_workspace(scratch), l->workspace[aligned], stream);
    return lt_check(s, err, "matrix product");
}
