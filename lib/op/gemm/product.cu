/* product.cu - see product.cuh. */
#include "op/gemm/product.cuh"

#include <stdlib.h>
#include <string.h>

extern "C" {
#include "base/check.h"
#include "op/op_priv.h"
}

struct product {
    struct product_problem p; /* the axes that remain are looped over */
    struct lt *lt;            /* NULL: nothing to multiply */
    int64_t loops;
    bool is_empty;            /* y has no elements */
    bool accumulates;         /* several calls add to the same y */
    enum tensor_dtype type;   /* type of the factors */
    int64_t span[LT_OPERANDS]; /* extent of each operand in elements */
    size_t at[LT_OPERANDS];   /* offset in scratch of an operand that is converted */
    bool is_staged[LT_OPERANDS];
    struct product_rows pad[LT_OPERANDS]; /* copies of rows, or of columns if those are
                                             contiguous */
    size_t bias_at, rest;
};

void product_close(struct product *p)
{
    if (p == NULL)
        return;
    lt_close(p->lt);
    free(p);
}

size_t product_scratch_bytes(const struct product *p)
{
    return p == NULL ? 0 : p->rest + lt_scratch_bytes(p->lt);
}

/* ---- axes ---- */

static void drop(struct product_problem *p, uint32_t i)
{
    p->axis[i] = p->axis[--p->n_axes];
}

/* Returns true if axis `outer` continues where `inner` ends, in all operands. */
static bool continues(const struct product_axis *outer, const struct product_axis *inner)
{
    for (int k = 0; k < LT_OPERANDS; k++)
        if (outer->step[k] != inner->size * inner->step[k])
            return false;
    return true;
}

/* Returns m, n or k as an axis. */
static struct product_axis side(const struct product_problem *p, int which)
{
    if (which == 0)
        return { p->m, { p->at[LT_A].row, 0, p->at[LT_Y].row } };
    if (which == 1)
        return { p->n, { 0, p->at[LT_B].col, p->at[LT_Y].col } };
    return { p->k, { p->at[LT_A].col, p->at[LT_B].row, 0 } };
}

static void set_side(struct product_problem *p, int which, const struct product_axis *a)
{
    if (which == 0) {
        p->m = a->size;
        p->at[LT_A].row = a->step[LT_A];
        p->at[LT_Y].row = a->step[LT_Y];
    } else if (which == 1) {
        p->n = a->size;
        p->at[LT_B].col = a->step[LT_B];
        p->at[LT_Y].col = a->step[LT_Y];
    } else {
        p->k = a->size;
        p->at[LT_A].col = a->step[LT_A];
        p->at[LT_B].row = a->step[LT_B];
    }
}

static bool fits(const struct product_problem *p)
{
    const int64_t rows[] = { p->m, p->k, p->m }, cols[] = { p->k, p->n, p->n };
    bool all = true;

    for (int k = 0; k < LT_OPERANDS; k++) {
        const struct lt_operand o = { p->at[k].type, p->at[k].row, p->at[k].col, 0 };

        all = all && lt_fits(&o, rows[k], cols[k]);
    }
    return all;
}

/* Returns true if axis `a` may be merged into side `s`; `without` lists the operand that does not
 * have the side. */
static bool joins(const struct product_axis *a, const struct product_axis *s, int which)
{
    static const int without[] = { LT_B, LT_A, LT_Y };

    if (s->size > 1)
        return continues(a, s) && a->size * s->size <= INT32_MAX;
    for (int k = 0; k < LT_OPERANDS; k++) /* a side of size 1 takes the strides of the axis */
        if ((a->step[k] == 0) != (k == without[which]))
            return false;
    return true;
}

/* Merges axis i into m, n, k or another axis. */
static bool fold(struct product_problem *p, uint32_t i)
{
    const struct product_axis a = p->axis[i];

    for (int which = 0; which < 3; which++) {
        struct product_axis s = side(p, which);
        struct product_problem wider = *p;

        if ((which == 1 && (p->bias || p->tail != LT_PLAIN)) || !joins(&a, &s, which))
            continue;
        if (s.size == 1)
            s = a;
        else
            s.size *= a.size;
        set_side(&wider, which, &s);
        if (!fits(&wider))
            continue;
        *p = wider;
        drop(p, i);
        return true;
    }
    for (uint32_t k = 0; k < p->n_axes; k++)
        if (k != i && continues(&a, &p->axis[k])) {
            p->axis[k].size *= a.size;
            drop(p, i);
            return true;
        }
    return false;
}

static void simplify(struct product_problem *p)
{
    for (uint32_t i = 0; i < p->n_axes;)
        if (p->axis[i].size == 1)
            drop(p, i);
        else
            i++;
    for (uint32_t i = 0; i < p->n_axes;)
        i = fold(p, i) ? 0 : i + 1;
}

/* Removes the axis for the library's batch from the list: the longest axis of y. */
static struct product_axis take_batch(struct product_problem *p)
{
    struct product_axis best = { 1, { 0 } };
    uint32_t at = p->n_axes;

    for (uint32_t i = 0; i < p->n_axes; i++)
        if (p->axis[i].step[LT_Y] != 0 && p->axis[i].size > best.size) {
            best = p->axis[i];
            at = i;
        }
    if (at < p->n_axes)
        drop(p, at);
    return best;
}

/* ---- plan ---- */

static int64_t reach(int64_t size, int64_t step)
{
    return size > 0 ? (size - 1) * step : 0;
}

static void measure(struct product *s, const struct product_problem *p)
{
    const int64_t rows[] = { p->m, p->k, p->m }, cols[] = { p->k, p->n, p->n };

    for (int k = 0; k < LT_OPERANDS; k++) {
        s->span[k] = 1 + reach(rows[k], p->at[k].row) + reach(cols[k], p->at[k].col);
        for (uint32_t i = 0; i < p->n_axes; i++)
            s->span[k] += reach(p->axis[i].size, p->axis[i].step[k]);
    }
}

/* Records which operands are empty. Returns true if a multiplication is needed. */
static bool find_empty(struct product *s, const struct product_problem *p)
{
    bool is_zero = p->k == 0;

    s->is_empty = p->m == 0 || p->n == 0;
    for (uint32_t i = 0; i < p->n_axes; i++) {
        s->is_empty = s->is_empty || (p->axis[i].size == 0 && p->axis[i].step[LT_Y] != 0);
        is_zero = is_zero || p->axis[i].size == 0;
    }
    return !s->is_empty && !is_zero;
}

static void choose_types(struct product *s)
{
    const struct product_problem *p = &s->p;

    s->type = TENSOR_F32;
    for (int k = LT_OPERANDS; k-- > 0;) /* the type of a factor has precedence over that of y */
        if (p->at[k].type != TENSOR_F32)
            s->type = p->at[k].type;
    for (int k = 0; k < LT_Y; k++)
        s->is_staged[k] = p->at[k].type != s->type;
    s->is_staged[LT_Y] = p->at[LT_Y].type != TENSOR_F32 && s->accumulates;
}

/* ---- rows aligned to 16 bytes ---- */

static constexpr int64_t PAD_WORTH = 256; /* products per number below which the copy costs more
                                             than it saves */

struct product_rows product_rows_of(enum tensor_dtype type, int64_t n, int64_t inner, int64_t step,
                                    int64_t each)
{
    const bool pads = tensor_dtype_bytes(type) == 2 && step % 8 != 0 && each >= PAD_WORTH;

    return { n, inner, step, pads ? (inner + 7) / 8 * 8 : 0 };
}

size_t product_rows_bytes(const struct product_rows *r)
{
    return op_round((size_t)(r->n * r->wide) * 2);
}

static void pad_operand(struct product *s, int k)
{
    const struct product_problem *p = &s->p;
    const int64_t rows[] = { p->m, p->k, p->m }, cols[] = { p->k, p->n, p->n }, each[] = { p->n, p->m, p->k };
    const bool by_rows = p->at[k].col == 1 || cols[k] == 1;
    int64_t *step = by_rows ? &s->p.at[k].row : &s->p.at[k].col;

    s->pad[k] = product_rows_of(k < LT_Y ? s->type : p->at[k].type, by_rows ? rows[k] : cols[k],
                                by_rows ? cols[k] : rows[k], *step, each[k]);
    if (s->pad[k].wide == 0)
        return;
    s->is_staged[k] = true;
    *step = s->pad[k].wide;
}

/* Reserves scratch for n elements. */
static size_t reserve(struct product *s, size_t n, size_t size)
{
    size_t at = s->rest;

    s->rest += op_round(n * size);
    return at;
}

static int open_lt(struct product *s, const struct product_axis *batch, struct err *err)
{
    const struct product_problem *p = &s->p;
    struct lt_problem l = { .batch = batch->size, .m = p->m, .n = p->n, .k = p->k, .bias = p->bias,
                            .tf32 = p->tf32 && s->type == TENSOR_F32, .tail = p->tail };

    for (int k = 0; k < LT_OPERANDS; k++)
        l.at[k] = { k < LT_Y        ? s->type
                    : s->accumulates && p->at[k].type != TENSOR_F32 ? TENSOR_F32
                                    : p->at[k].type,
                    p->at[k].row, p->at[k].col, batch->step[k] };
    return lt_open(&l, &s->lt, err);
}

int product_open(const struct product_problem *p, struct product **out, struct err *err)
{
    struct product *s = (struct product *)calloc(1, sizeof(*s));
    struct product_axis batch;
    int rc = 0;

    if (s == NULL)
        return err_set(err, ERR_NOMEM, "matrix product: out of memory");
    s->p = *p;
    s->loops = 1;
    measure(s, p);
    if (!find_empty(s, p)) {
        if (p->tail != LT_PLAIN) {
            product_close(s);
            return err_set(err, ERR_UNSUPPORTED, "matrix product of nothing");
        }
        *out = s;
        return 0;
    }
    simplify(&s->p);
    batch = take_batch(&s->p);
    for (uint32_t i = 0; i < s->p.n_axes; i++) {
        s->loops *= s->p.axis[i].size;
        s->accumulates = s->accumulates || s->p.axis[i].step[LT_Y] == 0;
    }
    choose_types(s);
    if (p->tail != LT_PLAIN && (s->loops > 1 || batch.size > 1 ||
                                (p->tail == LT_SUMS && p->at[LT_Y].type != TENSOR_F32))) {
        product_close(s);
        return err_set(err, ERR_UNSUPPORTED, "several matrix products, or of another type");
    }
    for (int k = 0; k < LT_OPERANDS; k++) {
        if (s->loops == 1 && batch.size == 1)
            pad_operand(s, k);
        if (s->pad[k].wide > 0)
            s->at[k] = reserve(s, product_rows_bytes(&s->pad[k]), 1);
        else if (s->is_staged[k])
            s->at[k] =
                reserve(s, (size_t)s->span[k], tensor_dtype_bytes(k < LT_Y ? s->type : TENSOR_F32));
    }
    if (p->bias || p->tail == LT_SUMS)
        s->bias_at = reserve(s, (size_t)p->n, sizeof(float));
    CHECK(!p->bias || !s->accumulates);
    rc = open_lt(s, &batch, err);
    if (rc < 0) {
        product_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

int product_open_sums(const struct product_problem *p, struct product **out, bool *sums,
                      struct err *err)
{
    struct product_problem q = *p;
    int rc;

    q.tail = LT_SUMS;
    rc = product_open(&q, out, err);
    *sums = rc == 0;
    return rc == ERR_UNSUPPORTED ? product_open(p, out, err) : rc;
}

/* ---- run ---- */

/* Converts n numbers to another type, stored or accumulated. */
template <typename To>
static int convert_to(const void *from, enum tensor_dtype type, To *to, size_t n, bool add,
                      cudaStream_t stream, struct err *err)
{
    OP_FLOATS(type, return op_each(stream, to, n, add, op_same(), err, (const T *)from));
    return 0;
}

static int convert(const void *from, enum tensor_dtype from_type, void *to,
                   enum tensor_dtype to_type, size_t n, bool add, cudaStream_t stream,
                   struct err *err)
{
    OP_FLOATS(to_type, return convert_to(from, from_type, (T *)to, n, add, stream, err));
    return 0;
}

/* to [n][to_step] = from [n][from_step], the first `inner` numbers of each row. A thread copies 8
 * numbers of a row at a time, which are 16 aligned bytes on the aligned side. */
template <typename From, typename To>
__global__ void copy_rows(const From *from, size_t from_step, To *to, size_t to_step, size_t inner,
                          struct op_divisor packs, size_t total)
{
    size_t step = (size_t)gridDim.x * blockDim.x;

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < total; i += step) {
        uint64_t row = i, first = op_digit(&row, packs) * 8;
        const From *x = from + row * from_step + first;
        To *y = to + row * to_step + first;
        op_pack<To, 8> v = {};

#pragma unroll
        for (unsigned j = 0; j < 8; j++)
            if (first + j < inner)
                v.v[j] = op_narrow<To>(op_wide(x[j]));
        if (to_step % 8 == 0 && first + 8 <= to_step) {
            *(op_pack<To, 8> *)y = v;
        } else {
#pragma unroll
            for (unsigned j = 0; j < 8; j++)
                if (first + j < inner)
                    y[j] = v.v[j];
        }
    }
}

template <typename To>
static int launch_copy_rows(const struct product_rows *r, const void *from, enum tensor_dtype type,
                            bool back, To *to, cudaStream_t stream, struct err *err)
{
    const struct op_divisor packs = op_divisor_of((uint64_t)(r->inner + 7) / 8);
    const size_t total = packs.by * (size_t)r->n;

    OP_FLOATS(type,
              CUDA_LAUNCH((copy_rows<T, To>), op_blocks(total, OP_THREADS), OP_THREADS, 0, stream,
                          (const T *)from, (size_t)(back ? r->wide : r->step), to,
                          (size_t)(back ? r->step : r->wide), (size_t)r->inner, packs, total));
    return cuda_launched(err);
}

int product_rows_run(const struct product_rows *r, const void *from, enum tensor_dtype from_type,
                     void *to, enum tensor_dtype type, bool back, cudaStream_t stream,
                     struct err *err)
{
    if (r->n == 0 || r->inner == 0)
        return 0;
    return type == TENSOR_BF16
               ? launch_copy_rows(r, from, from_type, back, (__nv_bfloat16 *)to, stream, err)
               : launch_copy_rows(r, from, from_type, back, (__half *)to, stream, err);
}

/* Copies operand k to the form that the library needs. */
static int convert_operand(const struct product *s, int k, const void *from, void *to,
                           cudaStream_t stream, struct err *err)
{
    const enum tensor_dtype has = s->p.at[k].type, type = k < LT_Y ? s->type : has;

    return s->pad[k].wide == 0
               ? convert(from, has, to, type, (size_t)s->span[k], false, stream, err)
               : product_rows_run(&s->pad[k], from, has, to, type, false, stream, err);
}

/* y [rows, n] = bias */
template <typename T>
__global__ void fill_rows(T *y, size_t elements, size_t n, const float *bias, bool add)
{
    size_t step = (size_t)gridDim.x * blockDim.x;

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < elements; i += step)
        y[i] = op_narrow<T>((add ? op_wide(y[i]) : 0.0f) + bias[i % n]);
}

/* Handles an empty sum: y = bias or zero, or nothing if it accumulates. */
static int run_empty(const struct product *s, void *y, const float *bias, bool add,
                     cudaStream_t stream, struct err *err)
{
    enum tensor_dtype type = s->p.at[LT_Y].type;
    size_t n = (size_t)s->span[LT_Y];

    if (s->is_empty || (add && !s->p.bias))
        return 0;
    if (!s->p.bias)
        return cuda_check(cudaMemsetAsync(y, 0, n * tensor_dtype_bytes(type), stream), err,
                          "clear a product");
    OP_FLOATS(type, CUDA_LAUNCH(fill_rows<T>, op_blocks(n, OP_THREADS), OP_THREADS, 0, stream,
                                (T *)y, n, (size_t)s->p.n, bias, add));
    return cuda_launched(err);
}

/* Converts the bias to the form that the library needs: of y's type, and aligned. */
static int convert_bias(const struct product *s, const float *bias, char *scratch, const void **out,
                        cudaStream_t stream, struct err *err)
{
    enum tensor_dtype type = s->p.at[LT_Y].type;

    *out = bias;
    if (!s->p.bias || (type == TENSOR_F32 && op_aligned(bias)))
        return 0;
    *out = scratch + s->bias_at;
    return convert(bias, TENSOR_F32, scratch + s->bias_at, type, (size_t)s->p.n, false, stream,
                   err);
}

/* Returns true if y is computed in scratch as float32 first. */
static bool sums_in_scratch(const struct product *s)
{
    return s->is_staged[LT_Y] && s->pad[LT_Y].wide == 0;
}

static int run_loops(struct product *s, const char *a, const char *b, char *y, const void *bias,
                     void *aux, float alpha, bool add, char *rest, cudaStream_t stream,
                     struct err *err)
{
    const int64_t size = (int64_t)tensor_dtype_bytes(s->type);
    const int64_t y_size =
        (int64_t)tensor_dtype_bytes(sums_in_scratch(s) ? TENSOR_F32 : s->p.at[LT_Y].type);
    int rc = 0;

    for (int64_t i = 0; i < s->loops && rc == 0; i++) {
        int64_t at[LT_OPERANDS] = { 0 }, left = i;
        bool first = true; /* first call for this y */

        for (uint32_t x = s->p.n_axes; x-- > 0;) {
            const struct product_axis *axis = &s->p.axis[x];
            int64_t index = left % axis->size;

            left /= axis->size;
            for (int k = 0; k < LT_OPERANDS; k++)
                at[k] += index * axis->step[k];
            first = first && (axis->step[LT_Y] != 0 || index == 0);
        }
        rc = lt_run(s->lt, a + at[LT_A] * size, b + at[LT_B] * size, y + at[LT_Y] * y_size, bias,
                    aux, alpha, add || !first, rest, stream, err);
    }
    return rc;
}

int product_run_tail(struct product *s, const void *a, const void *b, void *y, const float *bias,
                     void *aux, float *sums, bool adds_sums, float alpha, bool add, void *scratch,
                     cudaStream_t stream, struct err *err)
{
    const void *factor[] = { a, b }, *vector = NULL;
    char *area = (char *)scratch;
    void *to = s->is_staged[LT_Y] ? area + s->at[LT_Y] : y;
    bool here = sums != NULL && !adds_sums && op_aligned(sums);
    int rc = 0;

    if (s->lt == NULL)
        return run_empty(s, y, bias, add, stream, err);
    for (int k = 0; k < LT_Y && rc == 0; k++)
        if (s->is_staged[k]) {
            rc = convert_operand(s, k, factor[k], area + s->at[k], stream, err);
            factor[k] = area + s->at[k];
        }
    if (sums != NULL)
        vector = here ? (const void *)sums : area + s->bias_at;
    else if (rc == 0)
        rc = convert_bias(s, bias, area, &vector, stream, err);
    /* y is rounded once, so its current value is the start of the sum */
    if (rc == 0 && add && s->pad[LT_Y].wide > 0)
        rc = convert_operand(s, LT_Y, y, to, stream, err);
    if (rc == 0)
        rc = run_loops(s, (const char *)factor[0], (const char *)factor[1], (char *)to, vector, aux,
                       alpha, add && !sums_in_scratch(s), area + s->rest, stream, err);
    if (rc == 0 && sums != NULL && !here)
        rc = convert(vector, TENSOR_F32, sums, TENSOR_F32, (size_t)s->p.n, adds_sums, stream, err);
    if (rc == 0 && s->pad[LT_Y].wide > 0)
        return product_rows_run(&s->pad[LT_Y], to, s->p.at[LT_Y].type, y, s->p.at[LT_Y].type, true,
                                stream, err);
    if (rc == 0 && s->is_staged[LT_Y])
        rc =
            convert(to, TENSOR_F32, y, s->p.at[LT_Y].type, (size_t)s->span[LT_Y], add, stream, err);
    return rc;
}

int product_run(struct product *s, const void *a, const void *b, void *y, const float *bias,
                float alpha, bool add, void *scratch, cudaStream_t stream, struct err *err)
{
    return product_run_tail(s, a, b, y, bias, NULL, NULL, false, alpha, add, scratch, stream, err);
}
