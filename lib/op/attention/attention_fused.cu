/* attention_fused.cu - see attention_fused.cuh.
 *
 * A key counts as hidden if its mask adds ATTENTION_BURIED or less, because its weight is rounded
 * away beside any other. A float32 mask is passed to the library unchanged. A bool mask is
 * converted in every call to a bias in scratch: 0, and BURY for hidden keys, which absorbs the
 * score as "keep" and "fill" do (-inf stays -inf). Gradients that are accumulated or not requested
 * are written to scratch.
 *
 * Grouped heads: the library is called once for each of the `shared` query heads of a head of k and
 * v, in order, with strides that skip the others. The gradients of k and v from these calls are
 * summed in scratch in float32. */
#include "op/attention/attention_fused.cuh"

#include <math.h>
#include <stdlib.h>

#include "op/attention/sdpa.cuh"

extern "C" {
#include "op/attention/attention.h"
#include "op/op_priv.h"
}

static constexpr float BURY = -1e30f;

struct attention_fused {
    struct sdpa *forward, *backward;     /* owned; backward NULL: the plan does not train */
    const struct attention_step *mask;   /* the step whose mask is the bias, in the op's parameters;
                                            NULL: none */
    size_t mask_elements;                /* elements of a bool mask that is converted to a bias;
                                            else 0 */
    size_t bias_at, stats_at, work_at;   /* offsets in scratch; stats: of a call that saves
                                            nothing */
    size_t d_at[ATTENTION_QKV];          /* offsets in scratch: gradients of inputs */
    size_t stats_bytes;                  /* size of the stats of the heads of one call */
    size_t sum_at[ATTENTION_QKV];        /* offsets in scratch: float32 sums of the gradients of k
                                            and v with grouped heads */
};

/* ---- plan ---- */

/* Sets scale, mask and is_causal. Returns false for other sequences of steps. A mask that is an
 * input may leave rows without keys, for which the library does not return zeros. */
static bool match_steps(const struct attention *a, struct sdpa_spec *spec,
                        const struct attention_step **mask)
{
    spec->scale = 1;
    *mask = NULL;
    if (a->has_band && (a->lower > -a->t || a->upper != 0))
        return false;
    spec->is_causal = a->has_band;
    for (uint32_t i = 0; i < a->n_steps; i++) {
        const struct attention_step *s = &a->step[i];

        if (s->kind == ATTENTION_CAP)
            return false;
        if (s->kind == ATTENTION_SCALE) {
            if (*mask != NULL || (spec->is_causal && !a->has_band))
                return false;
            spec->scale *= s->number;
        } else if (s->is_causal) {
            spec->is_causal = true;
        } else if (*mask == NULL && (s->kind == ATTENTION_ADD || s->number <= ATTENTION_BURIED)) {
            *mask = s;
        } else {
            return false;
        }
    }
    spec->has_bias = *mask != NULL;
    return *mask == NULL || !a->zero_empty;
}

/* Number of batch axes of one call. */
static uint32_t rank_of(const struct attention *a)
{
    return a->shared > 1 ? a->batch.rank - 1 : a->batch.rank;
}

/* Sets the strides of an operand. At most two batch axes; the last is the heads. */
static void set_strides(const struct attention *a, const struct attention_at *at,
                        struct sdpa_spec *spec, int which)
{
    const uint32_t rank = rank_of(a);

    spec->at[which].row = at->row;
    spec->at[which].head = rank > 0 ? at->batch[rank - 1] : 0;
    spec->at[which].batch = rank > 1 ? at->batch[0] : 0;
    if (which == SDPA_BIAS)
        return;
    if (rank < 1) /* the size of the axis is 1, but the stride must be valid */
        spec->at[which].head = (which == SDPA_K || which == SDPA_V ? a->s : a->t) * at->row;
    if (rank < 2)
        spec->at[which].batch = spec->heads * spec->at[which].head;
}

static bool describe(const struct op_plan *op, struct sdpa_spec *spec,
                     const struct attention_step **mask)
{
    const struct attention *a = (const struct attention *)op->param;
    const struct attention_at *const at[] = { &a->q, &a->k, &a->v, &a->y };
    const uint32_t rank = rank_of(a);

    *spec = { .type = op->out[0].dtype, .t = a->t, .s = a->s, .d = a->d, .dv = a->dv };
    if (rank > 2 || a->n == 0 || (a->dropout.drops && op->training) || !match_steps(a, spec, mask))
        return false;
    spec->heads = rank > 0 ? a->batch.dim[rank - 1] : 1;
    spec->batch = rank > 1 ? a->batch.dim[0] : 1;
    for (int k = 0; k < SDPA_BIAS; k++) {
        if (at[k]->col != 1 || at[k]->start % 8 != 0 ||
            (k < ATTENTION_QKV && op->in[a->of[k]]->dtype != spec->type) ||
            (a->shared > 1 && at[k]->batch[rank] % 8 != 0))
            return false;
        set_strides(a, at[k], spec, k);
    }
    if (*mask != NULL)
        set_strides(a, &(*mask)->at, spec, SDPA_BIAS);
    return sdpa_fits(spec);
}

static size_t reserve(size_t *bytes, size_t n)
{
    const size_t at = *bytes;

    *bytes += (n + 255) / 256 * 256;
    return at;
}

static int open_both(const struct op_plan *op, struct attention_fused *f, struct sdpa_spec *spec,
                     struct err *err)
{
    int rc = sdpa_open(spec, &f->forward, err);

    spec->backward = true;
    return rc == 0 && op->training ? sdpa_open(spec, &f->backward, err) : rc;
}

static void plan_scratch(struct op_plan *op, struct attention_fused *f, const struct attention *a)
{
    const size_t stats = (size_t)(a->n * a->t) * sizeof(float);
    size_t at = 0;

    if (f->mask != NULL && f->mask->kind != ATTENTION_ADD) {
        f->mask_elements = (size_t)tensor_elements(op->in[f->mask->input]);
        f->bias_at = reserve(&at, f->mask_elements * sizeof(float));
    }
    f->stats_bytes = stats / (size_t)a->shared;
    f->stats_at = op->training ? 0 : reserve(&at, stats);
    for (uint32_t i = 0; op->training && i < ATTENTION_QKV; i++)
        if (a->of[i] == i)
            f->d_at[i] = reserve(&at, tensor_bytes(op->in[i]));
    for (uint32_t i = 1; op->training && a->shared > 1 && i < ATTENTION_QKV; i++)
        f->sum_at[i] = reserve(&at, (size_t)tensor_elements(op->in[i]) * sizeof(float));
    f->work_at = at;
    op->save_bytes = op->training ? stats : 0;
    op->scratch_bytes =
        at + op_max(sdpa_scratch_bytes(f->forward), sdpa_scratch_bytes(f->backward));
}

int attention_fused_open(struct op_plan *op, struct attention_fused **out, struct err *err)
{
    struct attention_fused *f;
    struct sdpa_spec spec;
    const struct attention_step *mask;
    int rc;

    *out = NULL;
    if (!describe(op, &spec, &mask))
        return 0;
    f = (struct attention_fused *)calloc(1, sizeof(*f));
    if (f == NULL)
        return err_set(err, ERR_NOMEM, "attention: out of memory");
    f->mask = mask;
    rc = open_both(op, f, &spec, err);
    if (rc < 0) {
        attention_fused_close(f);
        return rc == ERR_UNSUPPORTED ? 0 : rc;
    }
    plan_scratch(op, f, (const struct attention *)op->param);
    *out = f;
    return 0;
}

void attention_fused_close(struct attention_fused *f)
{
    if (f == NULL)
        return;
    sdpa_close(f->forward);
    sdpa_close(f->backward);
    free(f);
}

/* ---- a call ---- */

/* Converts a bool mask to a bias, in a grid-stride loop. */
__global__ static void bias_of(float *to, const uint8_t *mask, bool hides, float buried, size_t n)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        to[i] = (mask[i] != 0) == hides ? buried : 0.0f;
}

static void *half_at(void *data, const struct attention_at *at)
{
    return (uint16_t *)data + at->start;
}

static int make_bias(const struct attention_fused *f, const struct op_call *c, void **at,
                     struct err *err)
{
    const void *mask = f->mask == NULL ? NULL : c->in[f->mask->input]->data;

    *at = (void *)mask;
    if (f->mask_elements == 0)
        return 0;
    *at = (char *)c->scratch + f->bias_at;
    CUDA_LAUNCH(bias_of, op_blocks(f->mask_elements, OP_THREADS), OP_THREADS, 0, op_stream(c),
                (float *)*at, (const uint8_t *)mask, f->mask->kind == ATTENTION_FILL,
                isinf(f->mask->number) ? -INFINITY : BURY, f->mask_elements);
    return cuda_launched(err);
}

/* Sets the addresses of the operands that both directions read. */
static int set_operands(const struct attention_fused *f, const struct op_call *c,
                        void *at[SDPA_OPERANDS], struct err *err)
{
    const struct attention *a = (const struct attention *)c->param;
    const struct attention_at *const lies[] = { &a->q, &a->k, &a->v };

    for (int k = SDPA_Q; k < SDPA_OPERANDS; k++)
        at[k] = NULL;
    for (int k = SDPA_Q; k < ATTENTION_QKV; k++)
        at[k] = half_at(c->in[a->of[k]]->data, lies[k]);
    at[SDPA_Y] = c->out[0]->data;
    return make_bias(f, c, &at[SDPA_BIAS], err);
}

/* Adds an offset in elements of 16 bits. */
static void *advance(void *at, ptrdiff_t elements)
{
    return at == NULL ? NULL : (uint16_t *)at + elements;
}

/* Advances the operands to the next query head of each head of k and v. */
static void next_shared(const struct attention_fused *f, const struct attention *a,
                        void *at[SDPA_OPERANDS])
{
    const uint32_t axis = a->batch.rank - 1;

    at[SDPA_Q] = advance(at[SDPA_Q], a->q.batch[axis]);
    at[SDPA_Y] = advance(at[SDPA_Y], a->y.batch[axis]);
    at[SDPA_DY] = advance(at[SDPA_DY], a->y.batch[axis]);
    at[SDPA_DQ] = advance(at[SDPA_DQ], a->q.batch[axis]);
    at[SDPA_STATS] = (char *)at[SDPA_STATS] + f->stats_bytes;
    if (at[SDPA_BIAS] != NULL)
        at[SDPA_BIAS] = (float *)at[SDPA_BIAS] + f->mask->at.batch[axis];
}

int attention_fused_forward(struct attention_fused *f, const struct op_call *c, struct err *err)
{
    const struct attention *a = (const struct attention *)c->param;
    char *scratch = (char *)c->scratch;
    void *at[SDPA_OPERANDS];
    int rc = set_operands(f, c, at, err);

    at[SDPA_STATS] = c->save != NULL ? c->save : scratch + f->stats_at;
    for (int64_t i = 0; rc == 0 && i < a->shared; i++) {
        rc = sdpa_run(f->forward, at, scratch + f->work_at, op_stream(c), err);
        if (i + 1 < a->shared)
            next_shared(f, a, at);
    }
    return rc;
}

/* to += from; both have the elements of t. */
static int add_to(const struct op_call *c, const struct tensor *t, const void *from,
                  struct err *err)
{
    int rc = 0;

    OP_FLOATS(t->dtype, rc = op_each(op_stream(c), (T *)t->data, (size_t)tensor_elements(t), true,
                                     op_same(), err, (const T *)from));
    return rc;
}

/* sum = from, or sum += from, in a grid-stride loop. */
template <typename T> __global__ static void sum_up(float *sum, const T *from, bool add, size_t n)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        sum[i] = add ? sum[i] + op_wide(from[i]) : op_wide(from[i]);
}

template <typename T> __global__ static void store_sum(T *to, const float *sum, bool add, size_t n)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        const float x = op_wide(op_narrow<T>(sum[i]));

        to[i] = op_narrow<T>(add ? op_wide(to[i]) + x : x);
    }
}

/* Sums the gradients of k and v that call `call` of grouped heads wrote to scratch; the last call
 * stores the sums. Each input is a separate tensor, because thirds of one input have equal numbers
 * of heads. */
static int sum_shared(const struct attention_fused *f, const struct op_call *c, int64_t call,
                      struct err *err)
{
    const bool is_last = call + 1 == ((const struct attention *)c->param)->shared;
    int rc = 0;

    for (uint32_t k = 1; rc == 0 && k < ATTENTION_QKV; k++) {
        const struct tensor *d = c->din[k];
        const void *from = (char *)c->scratch + f->d_at[k];
        float *sum = (float *)((char *)c->scratch + f->sum_at[k]);
        size_t n;

        if (d == NULL)
            continue;
        n = (size_t)tensor_elements(d);
        OP_FLOATS(d->dtype, CUDA_LAUNCH(sum_up<T>, op_blocks(n, OP_THREADS), OP_THREADS, 0,
                                        op_stream(c), sum, (const T *)from, call > 0, n));
        if (is_last)
            OP_FLOATS(d->dtype, CUDA_LAUNCH(store_sum<T>, op_blocks(n, OP_THREADS), OP_THREADS, 0,
                                            op_stream(c), (T *)d->data, (const float *)sum,
                                            op_cuda_adds(c, k), n));
        rc = cuda_launched(err);
    }
    return rc;
}

int attention_fused_backward(struct attention_fused *f, const struct op_call *c, struct err *err)
{
    char *scratch = (char *)c->scratch;
    const struct attention *a = (const struct attention *)c->param;
    const struct attention_at *const lies[] = { &a->q, &a->k, &a->v };
    void *at[SDPA_OPERANDS];
    int rc = set_operands(f, c, at, err);

    at[SDPA_STATS] = c->save;
    at[SDPA_DY] = c->dout[0]->data;
    for (uint32_t k = 0; k < ATTENTION_QKV; k++) {
        const uint32_t i = a->of[k];
        const bool is_summed = a->shared > 1 && k > 0;

        at[SDPA_DQ + k] =
            half_at(c->din[i] == NULL || op_cuda_adds(c, i) || is_summed ? scratch + f->d_at[i]
                                                                         : c->din[i]->data,
                    lies[k]);
    }
    for (int64_t i = 0; rc == 0 && i < a->shared; i++) {
        rc = sdpa_run(f->backward, at, scratch + f->work_at, op_stream(c), err);
        if (rc == 0 && a->shared > 1)
            rc = sum_shared(f, c, i, err);
        if (i + 1 < a->shared)
            next_shared(f, a, at);
    }
    for (uint32_t i = 0; rc == 0 && i < ATTENTION_QKV; i++)
        if (c->din[i] != NULL && op_cuda_adds(c, i) && (a->shared == 1 || i == 0))
            rc = add_to(c, c->din[i], scratch + f->d_at[i], err);
    return rc;
}
