/* cublaslt.c - cuBLASLt with plain loops: see include/cublasLt.h.
 *
 * The opaque structs contain the attributes that were set. An algorithm contains a digest of the
 * product for which it was chosen, so that its use for another product is detected. */
#include <cublasLt.h>

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/emulator.h"

struct layout {
    uint64_t rows, cols;
    int64_t ld, stride;
    uint32_t type;
    int32_t batch;
};

struct desc {
    const void *bias, *aux;
    int64_t aux_ld;
    uint32_t compute, scale, epilogue;
    int32_t trans_a, trans_b, bias_type;
};

struct preference {
    uint64_t workspace;
    uint32_t schemes, align[4]; /* for A, B, C, D */
};

struct algo {
    uint64_t product; /* digest */
    uint64_t workspace;
    uint32_t align[4];
    uint32_t bias_align, aux_align;
};

struct cublasLtContext {
    int device;
};

_Static_assert(sizeof(struct layout) <= sizeof(cublasLtMatrixLayoutOpaque_t), "room for a layout");
_Static_assert(sizeof(struct desc) <= sizeof(cublasLtMatmulDescOpaque_t), "room for a description");
_Static_assert(sizeof(struct preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t),
               "room for it");
_Static_assert(sizeof(struct algo) <= sizeof(cublasLtMatmulAlgo_t), "room for an algorithm");

/* ---- settings, names ---- */

static bool is_nth(const char *what, uint64_t *count)
{
    const char *set = getenv("EMULATED_CUBLASLT");
    size_t n = strlen(what);
    uint64_t at = __atomic_add_fetch(count, 1, __ATOMIC_RELAXED), wanted;

    if (set == NULL || strncmp(set, what, n) != 0 || set[n] != '@')
        return false;
    wanted = strtoull(set + n + 1, NULL, 10);
    return wanted == 0 || wanted == at;
}

size_t cublasLtGetVersion(void)
{
    return CUBLAS_VERSION;
}

const char *cublasLtGetStatusName(cublasStatus_t status)
{
    switch (status) {
#define NAME(s_) case s_: return #s_;
        NAME(CUBLAS_STATUS_SUCCESS)
        NAME(CUBLAS_STATUS_NOT_INITIALIZED)
        NAME(CUBLAS_STATUS_ALLOC_FAILED)
        NAME(CUBLAS_STATUS_INVALID_VALUE)
        NAME(CUBLAS_STATUS_ARCH_MISMATCH)
        NAME(CUBLAS_STATUS_MAPPING_ERROR)
        NAME(CUBLAS_STATUS_EXECUTION_FAILED)
        NAME(CUBLAS_STATUS_INTERNAL_ERROR)
        NAME(CUBLAS_STATUS_NOT_SUPPORTED)
        NAME(CUBLAS_STATUS_LICENSE_ERROR)
#undef NAME
    }
    return "CUBLAS_STATUS_UNKNOWN";
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    return cublasLtGetStatusName(status);
}

/* ---- descriptors ---- */

/* Memory is filled with garbage, as the library leaves unset attributes undefined. */
static cublasStatus_t make(void **out, size_t bytes)
{
    *out = malloc(bytes);
    if (*out == NULL)
        return CUBLAS_STATUS_ALLOC_FAILED;
    memset(*out, 0xA5, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t set(void *field, size_t bytes, const void *from, size_t given)
{
    if (from == NULL || given != bytes)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(field, from, bytes);
    return CUBLAS_STATUS_SUCCESS;
}
#define SET(field_) set(&(field_), sizeof(field_), buf, sizeInBytes)

cublasStatus_t cublasLtCreate(cublasLtHandle_t *lightHandle)
{
    if (emulated_enter() != cudaSuccess)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    *lightHandle = malloc(sizeof(**lightHandle));
    if (*lightHandle == NULL)
        return CUBLAS_STATUS_ALLOC_FAILED;
    return cudaGetDevice(&(*lightHandle)->device) == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                                                 : CUBLAS_STATUS_NOT_INITIALIZED;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t lightHandle)
{
    free(lightHandle);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *matLayout, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld)
{
    const struct layout l = { .rows = rows, .cols = cols, .ld = ld, .type = type, .batch = 1 };
    cublasStatus_t rc = make((void **)matLayout, sizeof(**matLayout));

    if (rc == CUBLAS_STATUS_SUCCESS)
        memcpy(*matLayout, &l, sizeof(l));
    return rc;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t matLayout)
{
    free(matLayout);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t matLayout,
                                                cublasLtMatrixLayoutAttribute_t attr,
                                                const void *buf, size_t sizeInBytes)
{
    struct layout *l = (struct layout *)(void *)matLayout;

    switch (attr) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE: return SET(l->type);
    case CUBLASLT_MATRIX_LAYOUT_ROWS: return SET(l->rows);
    case CUBLASLT_MATRIX_LAYOUT_COLS: return SET(l->cols);
    case CUBLASLT_MATRIX_LAYOUT_LD: return SET(l->ld);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: return SET(l->batch);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: return SET(l->stride);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *matmulDesc,
                                        cublasComputeType_t computeType, cudaDataType_t scaleType)
{
    const struct desc d = { .compute = computeType, .scale = scaleType,
                            .epilogue = CUBLASLT_EPILOGUE_DEFAULT, .bias_type = -1 };
    cublasStatus_t rc = make((void **)matmulDesc, sizeof(**matmulDesc));

    if (rc == CUBLAS_STATUS_SUCCESS)
        memcpy(*matmulDesc, &d, sizeof(d));
    return rc;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t matmulDesc)
{
    free(matmulDesc);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t matmulDesc,
                                              cublasLtMatmulDescAttributes_t attr, const void *buf,
                                              size_t sizeInBytes)
{
    struct desc *d = (struct desc *)(void *)matmulDesc;

    switch (attr) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return SET(d->trans_a);
    case CUBLASLT_MATMUL_DESC_TRANSB: return SET(d->trans_b);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return SET(d->epilogue);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return SET(d->bias);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return SET(d->aux);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return SET(d->aux_ld);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return SET(d->bias_type);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *pref)
{
    const struct preference p = { .schemes = CUBLASLT_REDUCTION_SCHEME_MASK, .align = { 256, 256, 256, 256 } };
    cublasStatus_t rc = make((void **)pref, sizeof(**pref));

    if (rc == CUBLAS_STATUS_SUCCESS)
        memcpy(*pref, &p, sizeof(p));
    return rc;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t pref)
{
    free(pref);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t pref,
                                                    cublasLtMatmulPreferenceAttributes_t attr,
                                                    const void *buf, size_t sizeInBytes)
{
    struct preference *p = (struct preference *)(void *)pref;

    switch (attr) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return SET(p->workspace);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return SET(p->schemes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return SET(p->align[0]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return SET(p->align[1]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return SET(p->align[2]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return SET(p->align[3]);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

/* ---- operands ---- */

struct product {
    struct layout a, b, c, d;
    struct desc desc;
};

static size_t bytes_of(uint32_t type)
{
    return type == CUDA_R_32F ? 4 : 2;
}

/* The type combinations of the library's tables for COMPUTE_32F and COMPUTE_32F_FAST_TF32 with real
 * numbers. */
static bool types_fit(const struct product *p)
{
    uint32_t a = p->a.type, d = p->d.type;
    uint32_t bias = p->desc.bias_type < 0 ? d : (uint32_t)p->desc.bias_type;

    if ((p->desc.compute != CUBLAS_COMPUTE_32F &&
         p->desc.compute != CUBLAS_COMPUTE_32F_FAST_TF32) ||
        p->desc.scale != CUDA_R_32F || p->b.type != a || p->c.type != d || bias != d)
        return false;
    if (a == CUDA_R_32F || p->desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32)
        return a == CUDA_R_32F && d == CUDA_R_32F;
    return (a == CUDA_R_16F || a == CUDA_R_16BF) && (d == a || d == CUDA_R_32F);
}

/* ---- epilogues ---- */

enum { EPILOGUE_AUX = 128 };

static bool has_bias(uint32_t e)
{
    return (e & CUBLASLT_EPILOGUE_BIAS) != 0;
}

static bool has_sums(uint32_t e)
{
    return e == CUBLASLT_EPILOGUE_BGRADA || e == CUBLASLT_EPILOGUE_BGRADB;
}

static bool is_relu(uint32_t e)
{
    return (e & CUBLASLT_EPILOGUE_RELU) != 0 || e == CUBLASLT_EPILOGUE_DRELU;
}

static bool is_gelu(uint32_t e)
{
    return (e & CUBLASLT_EPILOGUE_GELU) != 0 || e == CUBLASLT_EPILOGUE_DGELU;
}

static bool is_derivative(uint32_t e)
{
    return e == CUBLASLT_EPILOGUE_DGELU || e == CUBLASLT_EPILOGUE_DRELU;
}

/* Violated requirements of aux: INVALID_VALUE; combinations without a kernel: NOT_SUPPORTED. */
static cublasStatus_t epilogue_fits(const struct product *p)
{
    uint32_t e = p->desc.epilogue;
    int64_t unit = is_relu(e) ? 128 : 8;

    switch (e) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_RELU_AUX:
    case CUBLASLT_EPILOGUE_RELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DGELU:
    case CUBLASLT_EPILOGUE_DRELU:
    case CUBLASLT_EPILOGUE_BGRADA:
    case CUBLASLT_EPILOGUE_BGRADB: break;
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    if ((e & EPILOGUE_AUX) != 0 &&
        (p->desc.aux == NULL || p->desc.aux_ld % unit != 0 || p->desc.aux_ld < (int64_t)p->d.rows))
        return CUBLAS_STATUS_INVALID_VALUE;
    if ((has_bias(e) || has_sums(e)) && p->desc.bias == NULL)
        return CUBLAS_STATUS_INVALID_VALUE;
    return ((e & EPILOGUE_AUX) != 0 || has_sums(e)) && p->d.batch > 1 ? CUBLAS_STATUS_NOT_SUPPORTED
                                                                      : CUBLAS_STATUS_SUCCESS;
}

static bool layout_fits(const struct layout *l, bool is_result)
{
    int64_t rows = (int64_t)l->rows, cols = (int64_t)l->cols;

    if (rows < 1 || cols < 1 || rows > INT32_MAX || cols > INT32_MAX || l->ld < rows ||
        l->batch < 1)
        return false;
    /* matrices may be interleaved by columns */
    return l->batch == 1 || !is_result || l->stride >= rows;
}

static cublasStatus_t product_of(struct product *p, cublasLtMatmulDesc_t desc,
                                 cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                 cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d)
{
    bool ta, tb;

    memset(p, 0, sizeof(*p));
    if (desc == NULL || a == NULL || b == NULL || c == NULL || d == NULL)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&p->desc, desc, sizeof(p->desc));
    memcpy(&p->a, a, sizeof(p->a));
    memcpy(&p->b, b, sizeof(p->b));
    memcpy(&p->c, c, sizeof(p->c));
    memcpy(&p->d, d, sizeof(p->d));
    ta = p->desc.trans_a == CUBLAS_OP_T;
    tb = p->desc.trans_b == CUBLAS_OP_T;
    if (!layout_fits(&p->a, false) || !layout_fits(&p->b, false) || !layout_fits(&p->c, false) ||
        !layout_fits(&p->d, true))
        return CUBLAS_STATUS_INVALID_VALUE;
    if ((ta ? p->a.cols : p->a.rows) != p->d.rows || (tb ? p->b.rows : p->b.cols) != p->d.cols ||
        (ta ? p->a.rows : p->a.cols) != (tb ? p->b.cols : p->b.rows) || p->c.rows != p->d.rows ||
        p->c.cols != p->d.cols || p->a.batch != p->d.batch || p->b.batch != p->d.batch ||
        p->c.batch != p->d.batch)
        return CUBLAS_STATUS_INVALID_VALUE;
    return types_fit(p) ? epilogue_fits(p) : CUBLAS_STATUS_NOT_SUPPORTED;
}

/* Digest of all attributes except the addresses of bias and aux. */
static uint64_t digest(const struct product *p)
{
    struct product q = *p;
    const unsigned char *at = (const unsigned char *)&q;
    uint64_t h = 0xcbf29ce484222325u;

    q.desc.bias = q.desc.aux = NULL;
    for (size_t i = 0; i < sizeof(q); i++)
        h = (h ^ at[i]) * 0x100000001b3u;
    return h;
}

/* At most 16, the largest requirement of any kernel. */
static uint32_t alignment_of(const void *p)
{
    uint32_t align = 16;

    while (((uintptr_t)p & (align - 1)) != 0)
        align /= 2;
    return align;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t lightHandle, cublasLtMatmulDesc_t operationDesc, cublasLtMatrixLayout_t Adesc,
    cublasLtMatrixLayout_t Bdesc, cublasLtMatrixLayout_t Cdesc, cublasLtMatrixLayout_t Ddesc,
    cublasLtMatmulPreference_t preference, int requestedAlgoCount,
    cublasLtMatmulHeuristicResult_t heuristicResultsArray[], int *returnAlgoCount)
{
    static uint64_t questions, epilogues;
    const struct preference *want = (const struct preference *)(const void *)preference;
    cublasLtMatmulHeuristicResult_t *r = heuristicResultsArray;
    struct product p;
    struct algo algo = { 0 };
    cublasStatus_t rc;
    size_t k;

    if (lightHandle == NULL || preference == NULL || requestedAlgoCount < 1)
        return CUBLAS_STATUS_INVALID_VALUE;
    *returnAlgoCount = 0;
    rc = product_of(&p, operationDesc, Adesc, Bdesc, Cdesc, Ddesc);
    if (rc == CUBLAS_STATUS_SUCCESS && is_nth("unsupported", &questions))
        rc = CUBLAS_STATUS_NOT_SUPPORTED;
    if (rc == CUBLAS_STATUS_SUCCESS && p.desc.epilogue > CUBLASLT_EPILOGUE_BIAS &&
        is_nth("plain", &epilogues))
        rc = CUBLAS_STATUS_NOT_SUPPORTED;
    if (rc != CUBLAS_STATUS_SUCCESS)
        return rc;
    if ((want->schemes &
         (CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE)) != 0)
        emulated_die(
            "cuBLASLt: a sum in parts that is rounded on the way or done in place is allowed");
    k = p.desc.trans_a == CUBLAS_OP_T ? p.a.rows : p.a.cols;
    algo.product = digest(&p);
    algo.workspace = k >= 48 && want->workspace >= 768 ? 768 : 0;
    memcpy(algo.align, want->align, sizeof(algo.align));
    for (int i = 0; i < 4; i++) /* the largest requirement of any kernel */
        algo.align[i] = algo.align[i] > 16 ? 16 : algo.align[i];
    algo.bias_align = alignment_of(p.desc.bias);
    algo.aux_align = alignment_of(p.desc.aux);
    memset(r, 0, sizeof(*r));
    memcpy(&r->algo, &algo, sizeof(algo));
    r->workspaceSize = algo.workspace;
    r->state = CUBLAS_STATUS_SUCCESS;
    r->wavesCount = 1;
    *returnAlgoCount = 1;
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- a product ---- */

struct call {
    struct product p;
    const void *a, *b, *c;
    void *d, *workspace;
    size_t workspace_bytes;
    float alpha, beta;
};

static double from_half(uint16_t h)
{
    int e = h >> 10 & 31, m = h & 1023;
    double v = e == 31  ? (m != 0 ? (double)NAN : (double)INFINITY)
               : e == 0 ? ldexp(m, -24)
                        : ldexp(m + 1024, e - 25);

    return h >> 15 != 0 ? -v : v;
}

/* Rounds to nearest even. */
static uint16_t to_half(float f)
{
    uint32_t sign = signbit(f) ? 0x8000 : 0, bits;
    double v = fabs((double)f);
    int e;

    if (isnan(f))
        return (uint16_t)(sign | 0x7e00);
    if (v >= 65520)
        return (uint16_t)(sign | 0x7c00);
    (void)frexp(v, &e); /* 2^(e - 1) <= v < 2^e */
    bits = v == 0 || e < -13 ? (uint32_t)rint(ldexp(v, 24))
                             : (uint32_t)((e + 13) << 10) + (uint32_t)rint(ldexp(v, 11 - e));
    return (uint16_t)(sign | bits);
}

static double load(const void *at, size_t i, uint32_t type)
{
    uint32_t bits;
    float f;

    if (type == CUDA_R_32F)
        return (double)((const float *)at)[i];
    if (type == CUDA_R_16F)
        return from_half(((const uint16_t *)at)[i]);
    bits = (uint32_t)((const uint16_t *)at)[i] << 16;
    memcpy(&f, &bits, sizeof(f));
    return (double)f;
}

static void store(void *at, size_t i, uint32_t type, float v)
{
    uint32_t bits;

    if (type == CUDA_R_32F) {
        ((float *)at)[i] = v;
    } else if (type == CUDA_R_16F) {
        ((uint16_t *)at)[i] = to_half(v);
    } else {
        memcpy(&bits, &v, sizeof(bits));
        if (v == v)
            bits += 0x7fffu + (bits >> 16 & 1);
        else
            bits |= 0x400000u;
        ((uint16_t *)at)[i] = (uint16_t)(bits >> 16);
    }
}

/* Rounds to 10 bits of fraction, to nearest, ties away from zero. */
static double as_tf32(double v)
{
    float f = (float)v;
    uint32_t bits;

    if (!isfinite(f))
        return v;
    memcpy(&bits, &f, sizeof(bits));
    bits = (bits + 0x1000) & ~UINT32_C(0x1fff);
    memcpy(&f, &bits, sizeof(f));
    return (double)f;
}

/* Returns [outer, inner] doubles, where inner is k: columns of op(B), rows of op(A). */
static double *widen(const void *at, const struct layout *l, size_t batch, bool by_columns,
                     bool tf32)
{
    const char *from = (const char *)at + (int64_t)batch * l->stride * (int64_t)bytes_of(l->type);
    double *to = malloc(l->rows * l->cols * sizeof(*to));

    if (to == NULL)
        emulated_die("cuBLASLt: out of memory");
    for (size_t c = 0; c < l->cols; c++)
        for (size_t r = 0; r < l->rows; r++) {
            double v = load(from, c * (size_t)l->ld + r, l->type);

            to[by_columns ? c * l->rows + r : r * l->cols + c] = tf32 ? as_tf32(v) : v;
        }
    return to;
}

/* ---- epilogues: computation ---- */

static double gelu_argument(double x)
{
    return 0.7978845608028654 * (x + 0.044715 * x * x * x);
}

static double gelu_derivative(double x)
{
    double t = tanh(gelu_argument(x)), du = 0.7978845608028654 * (1 + 3 * 0.044715 * x * x);

    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * du;
}

/* Applies the epilogue to element (row, col). Bit `row` of a column of aux records that Relu passes
 * the element. */
static double finish(const struct product *p, size_t row, size_t col, double x)
{
    uint32_t e = p->desc.epilogue;
    size_t at = col * (size_t)p->desc.aux_ld + row;
    uint8_t *bits = (uint8_t *)(uintptr_t)p->desc.aux + at / 8, bit = (uint8_t)(1u << at % 8);

    if (has_bias(e))
        x += load(p->desc.bias, row, p->d.type);
    if (e == CUBLASLT_EPILOGUE_DGELU)
        return x * gelu_derivative(load(p->desc.aux, at, p->d.type));
    if (e == CUBLASLT_EPILOGUE_DRELU)
        return (*bits & bit) != 0 ? x : 0;
    if (is_gelu(e)) {
        store((void *)(uintptr_t)p->desc.aux, at, p->d.type, (float)x);
        return 0.5 * x * (1 + tanh(gelu_argument(x)));
    }
    if (is_relu(e)) {
        *bits = (uint8_t)(x > 0 ? *bits | bit : *bits & ~bit);
        return x < 0 ? 0 : x;
    }
    return x;
}

/* Stores the sums over k of a factor returned by widen(), [outer, inner]. */
static void store_sums(const struct product *p, const double *factor, size_t outer, size_t inner)
{
    for (size_t i = 0; i < outer; i++) {
        double sum = 0;

        for (size_t j = 0; j < inner; j++)
            sum += factor[i * inner + j];
        store((void *)(uintptr_t)p->desc.bias, i, p->d.type, (float)sum);
    }
}

static int run(void *args)
{
    const struct call *k = args;
    const struct product *p = &k->p;
    bool ta = p->desc.trans_a == CUBLAS_OP_T, tb = p->desc.trans_b == CUBLAS_OP_T;
    bool tf32 = p->desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    size_t inner = ta ? p->a.rows : p->a.cols, size = bytes_of(p->d.type);

    for (size_t i = 0; i < (size_t)p->d.batch; i++) {
        double *a = widen(k->a, &p->a, i, ta, tf32), *b = widen(k->b, &p->b, i, !tb, tf32);
        const char *c = (const char *)k->c + (int64_t)i * p->c.stride * (int64_t)size;
        char *d = (char *)k->d + (int64_t)i * p->d.stride * (int64_t)size;

        for (size_t col = 0; col < p->d.cols; col++)
            for (size_t row = 0; row < p->d.rows; row++) {
                const double *x = a + row * inner, *y = b + col * inner;
                double sum = 0;

                for (size_t j = 0; j < inner; j++)
                    sum += x[j] * y[j];
                sum *= (double)k->alpha;
                if (k->beta != 0)
                    sum += (double)k->beta * load(c, col * (size_t)p->c.ld + row, p->c.type);
                store(d, col * (size_t)p->d.ld + row, p->d.type, (float)finish(p, row, col, sum));
            }
        if (p->desc.epilogue == CUBLASLT_EPILOGUE_BGRADA)
            store_sums(p, a, p->d.rows, inner);
        if (p->desc.epilogue == CUBLASLT_EPILOGUE_BGRADB)
            store_sums(p, b, p->d.cols, inner);
        free(a);
        free(b);
    }
    if (k->workspace_bytes > 0)
        memset(k->workspace, 0xFF, k->workspace_bytes);
    return EMULATED_DONE;
}

/* First and last byte of all matrices of an operand. */
struct extent {
    const char *from, *to;
};

static struct extent extent_of(const void *at, const struct layout *l)
{
    int64_t last = (l->batch - 1) * l->stride;
    size_t bytes = bytes_of(l->type);

    return (struct extent){ (const char *)at + (last < 0 ? last : 0) * (int64_t)bytes,
                            (const char *)at + ((last > 0 ? last : 0) + l->ld * ((int64_t)l->cols - 1) +
                                                (int64_t)l->rows) * (int64_t)bytes };
}

static void check_place(const char *what, const void *at, const struct layout *l, uint32_t align,
                        int device)
{
    struct extent e = extent_of(at, l);

    if (((uintptr_t)at & (align - 1)) != 0)
        emulated_die("cuBLASLt: %s is at %p, the algorithm was chosen for multiples of %u", what,
                     at, align);
    if (emulated_owner(e.from, (size_t)(e.to - e.from)) != device)
        emulated_die("cuBLASLt: %s, %zu bytes at %p, is not of GPU %d", what,
                     (size_t)(e.to - e.from), at, device);
}

/* Only the first matrix is checked, because batches may interleave. */
static bool overlaps(const void *x, const struct layout *lx, const void *y, const struct layout *ly)
{
    struct layout one = *lx, two = *ly;
    struct extent a, b;

    one.batch = two.batch = 1;
    a = extent_of(x, &one);
    b = extent_of(y, &two);
    return a.from < b.to && b.from < a.to && lx->batch == 1;
}

/* Checks bias or sums, and aux. */
static void check_epilogue(const struct product *p, const struct algo *chosen, int device)
{
    uint32_t e = p->desc.epilogue;
    uint64_t n = e == CUBLASLT_EPILOGUE_BGRADB ? p->d.cols : p->d.rows;
    struct layout vector = { .rows = n, .cols = 1, .ld = (int64_t)n, .type = p->d.type, .batch = 1 };
    struct layout aux = { .rows = p->d.rows, .cols = p->d.cols, .ld = p->desc.aux_ld, .type = p->d.type, .batch = 1 };

    if (is_relu(e)) /* bits, counted in units of 16 */
        aux = (struct layout){ .rows = (aux.rows + 15) / 16, .cols = aux.cols, .ld = aux.ld / 16, .type = CUDA_R_16BF,
                               .batch = 1 };
    if (has_bias(e) || has_sums(e))
        check_place("the bias", p->desc.bias, &vector, chosen->bias_align, device);
    if ((e & EPILOGUE_AUX) != 0)
        check_place("aux", p->desc.aux, &aux, chosen->aux_align, device);
}

static uint64_t counted[1024]; /* by epilogue */

uint64_t emulated_products(uint32_t epilogue)
{
    return __atomic_load_n(&counted[epilogue], __ATOMIC_RELAXED);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t lightHandle, cublasLtMatmulDesc_t computeDesc,
                              const void *alpha, const void *A, cublasLtMatrixLayout_t Adesc,
                              const void *B, cublasLtMatrixLayout_t Bdesc, const void *beta,
                              const void *C, cublasLtMatrixLayout_t Cdesc, void *D,
                              cublasLtMatrixLayout_t Ddesc, const cublasLtMatmulAlgo_t *algo,
                              void *workspace, size_t workspaceSizeInBytes, cudaStream_t stream)
{
    static uint64_t products;
    struct call k = { .a = A, .b = B, .c = C, .d = D, .workspace = workspace };
    struct algo chosen;
    int device = -1;
    cublasStatus_t rc;

    if (lightHandle == NULL || algo == NULL || alpha == NULL || beta == NULL || A == NULL ||
        B == NULL || C == NULL || D == NULL)
        return CUBLAS_STATUS_INVALID_VALUE;
    rc = product_of(&k.p, computeDesc, Adesc, Bdesc, Cdesc, Ddesc);
    if (rc == CUBLAS_STATUS_SUCCESS && is_nth("fail", &products))
        rc = CUBLAS_STATUS_EXECUTION_FAILED;
    if (rc != CUBLAS_STATUS_SUCCESS)
        return rc;
    memcpy(&chosen, algo, sizeof(chosen));
    memcpy(&k.alpha, alpha, sizeof(k.alpha));
    memcpy(&k.beta, beta, sizeof(k.beta));
    k.workspace_bytes = chosen.workspace;
    if (workspaceSizeInBytes < chosen.workspace || (chosen.workspace > 0 && workspace == NULL))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (cudaGetDevice(&device) != cudaSuccess || device != lightHandle->device)
        emulated_die("cuBLASLt: the handle is of GPU %d, the current one is %d",
                     lightHandle->device, device);
    if (chosen.product != digest(&k.p))
        emulated_die("cuBLASLt: the algorithm was chosen for another product");
    check_place("A", A, &k.p.a, chosen.align[0], device);
    check_place("B", B, &k.p.b, chosen.align[1], device);
    check_place("C", C, &k.p.c, chosen.align[2], device);
    check_place("D", D, &k.p.d, chosen.align[3], device);
    if (overlaps(A, &k.p.a, D, &k.p.d) || overlaps(B, &k.p.b, D, &k.p.d) ||
        (C == D && memcmp(&k.p.c, &k.p.d, sizeof(k.p.c)) != 0) ||
        (C != D && overlaps(C, &k.p.c, D, &k.p.d)))
        emulated_die("cuBLASLt: D overlaps what is read");
    if (is_derivative(k.p.desc.epilogue) && k.beta != 0)
        emulated_die("cuBLASLt: a slope, and a sum with what is there");
    check_epilogue(&k.p, &chosen, device);
    (void)__atomic_add_fetch(&counted[k.p.desc.epilogue], 1, __ATOMIC_RELAXED);
    if (chosen.workspace > 0 && (((uintptr_t)workspace & 255) != 0 ||
                                 emulated_owner(workspace, chosen.workspace) != device))
        emulated_die("cuBLASLt: the workspace at %p is not aligned, or not of GPU %d", workspace,
                     device);
    return emulated_enqueue(stream, "a product of cuBLASLt", run, &k, sizeof(k)) == cudaSuccess
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_EXECUTION_FAILED;
}
