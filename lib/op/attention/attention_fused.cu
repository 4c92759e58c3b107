/* attention_fused.cu - see attention_fused.cuh.
 *
 * A key counts as hidden from ATTENTION_BURIED down, as what hides it and what is left of its score are
 * rounded away beside any other. An added mask of float32 goes to the library as it is. One of bool becomes
 * a bias in scratch, in every call: 0, and where it hides BURY, which swallows the score as a "keep" or
 * "fill" does (-inf stays -inf). Gradients that are to be added to what is there, or that nobody wants, are
 * written to scratch. */
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
    struct sdpa *forward, *backward;     /* owned; backward NULL: plans that do not train */
    const struct attention_step *mask;   /* that is the bias; NULL: none. The plan's */
    size_t mask_elements;                /* of bool, to be made a bias */
    size_t bias_at, stats_at, work_at;   /* in scratch; stats: of a call that saves nothing */
    size_t d_at[ATTENTION_QKV];          /* gradients of inputs */
};

/* ---- plan ---- */

/* Fills scale, mask and is_causal. false: another row of steps. */
static bool take_steps(const struct attention *a, struct sdpa_spec *spec, const struct attention_step **mask)
{
    spec->scale = 1;
    *mask = NULL;
    for (uint32_t i = 0; i < a->n_steps; i++) {
        const struct attention_step *s = &a->step[i];

        if (s->kind == ATTENTION_SCALE) {
            if (*mask != NULL || spec->is_causal)
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
    return true;
}

/* Batches of up to two axes: the last are heads. */
static void lay(const struct attention *a, const struct attention_at *at, struct sdpa_spec *spec, int which)
{
    const uint32_t rank = a->batch.rank;

    spec->at[which].row = at->row;
    spec->at[which].head = rank > 0 ? at->batch[rank - 1] : 0;
    spec->at[which].batch = rank > 1 ? at->batch[0] : 0;
    if (which == SDPA_BIAS)
        return;
    if (rank < 1) /* a step to nowhere, which must be one nevertheless */
        spec->at[which].head = (which == SDPA_K || which == SDPA_V ? a->s : a->t) * at->row;
    if (rank < 2)
        spec->at[which].batch = spec->heads * spec->at[which].head;
}

static bool describe(const struct op_plan *op, struct sdpa_spec *spec, const struct attention_step **mask)
{
    const struct attention *a = (const struct attention *)op->param;
    const struct attention_at *const at[] = { &a->q, &a->k, &a->v, &a->y };
    const uint32_t rank = a->batch.rank;

    *spec = { .type = op->out[0].dtype, .t = a->t, .s = a->s, .d = a->d, .dv = a->dv };
    if (rank > 2 || a->n == 0 || (a->dropout.drops && op->training) || !take_steps(a, spec, mask))
        return false;
    spec->heads = rank > 0 ? a->batch.dim[rank - 1] : 1;
    spec->batch = rank > 1 ? a->batch.dim[0] : 1;
    for (int k = 0; k < SDPA_BIAS; k++) {
        if (at[k]->col != 1 || at[k]->start % 8 != 0 ||
            (k < ATTENTION_QKV && op->in[a->of[k]]->dtype != spec->type))
            return false;
        lay(a, at[k], spec, k);
    }
    if (*mask != NULL)
        lay(a, &(*mask)->at, spec, SDPA_BIAS);
    return sdpa_fits(spec);
}

static size_t take(size_t *bytes, size_t n)
{
    const size_t at = *bytes;

    *bytes += (n + 255) / 256 * 256;
    return at;
}

static int open_both(const struct op_plan *op, struct attention_fused *f, struct sdpa_spec *spec, struct err *err)
{
    int rc = sdpa_open(spec, &f->forward, err);

    spec->backward = true;
    return rc == 0 && op->training ? sdpa_open(spec, &f->backward, err) : rc;
}

static void place(struct op_plan *op, struct attention_fused *f, const struct attention *a)
{
    const size_t stats = (size_t)(a->n * a->t) * sizeof(float);
    size_t at = 0;

    if (f->mask != NULL && f->mask->kind != ATTENTION_ADD) {
        f->mask_elements = (size_t)tensor_elements(op->in[f->mask->input]);
        f->bias_at = take(&at, f->mask_elements * sizeof(float));
    }
    f->stats_at = op->training ? 0 : take(&at, stats);
    for (uint32_t i = 0; op->training && i < ATTENTION_QKV; i++)
        if (a->of[i] == i)
            f->d_at[i] = take(&at, tensor_bytes(op->in[i]));
    f->work_at = at;
    op->save_bytes = op->training ? stats : 0;
    op->scratch_bytes = at + op_max(sdpa_scratch_bytes(f->forward), sdpa_scratch_bytes(f->backward));
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
    place(op, f, (const struct attention *)op->param);
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

/* A thread makes every so many numbers. */
__global__ static void bias_of(float *to, const uint8_t *mask, bool hides, float buried, size_t n)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        to[i] = (mask[i] != 0) == hides ? buried : 0.0f;
}

static void *half_at(void *data, const struct attention_at *at)
{
    return (uint16_t *)data + at->start;
}

static int bring_bias(const struct attention_fused *f, const struct op_call *c, void **at, struct err *err)
{
    const void *mask = f->mask == NULL ? NULL : c->in[f->mask->input]->data;

    *at = (void *)mask;
    if (f->mask_elements == 0)
        return 0;
    *at = (char *)c->scratch + f->bias_at;
    CUDA_LAUNCH(bias_of, op_blocks(f->mask_elements, OP_THREADS), OP_THREADS, 0, op_stream(c), (float *)*at,
                (const uint8_t *)mask, f->mask->kind == ATTENTION_FILL, isinf(f->mask->number) ? -INFINITY : BURY,
                f->mask_elements);
    return cuda_launched(err);
}

/* Addresses of what both directions read. */
static int bring_operands(const struct attention_fused *f, const struct op_call *c, void *at[SDPA_OPERANDS],
                          struct err *err)
{
    const struct attention *a = (const struct attention *)c->param;
    const struct attention_at *const lies[] = { &a->q, &a->k, &a->v };

    for (int k = SDPA_Q; k < SDPA_OPERANDS; k++)
        at[k] = NULL;
    for (int k = SDPA_Q; k < ATTENTION_QKV; k++)
        at[k] = half_at(c->in[a->of[k]]->data, lies[k]);
    at[SDPA_Y] = c->out[0]->data;
    return bring_bias(f, c, &at[SDPA_BIAS], err);
}

int attention_fused_forward(struct attention_fused *f, const struct op_call *c, struct err *err)
{
    char *scratch = (char *)c->scratch;
    void *at[SDPA_OPERANDS];
    int rc = bring_operands(f, c, at, err);

    at[SDPA_STATS] = c->save != NULL ? c->save : scratch + f->stats_at;
    return rc < 0 ? rc : sdpa_run(f->forward, at, scratch + f->work_at, op_stream(c), err);
}

int attention_fused_backward(struct attention_fused *f, const struct op_call *c, struct err *err)
{
    char *scratch = (char *)c->scratch;
    const struct attention *a = (const struct attention *)c->param;
    const struct attention_at *const lies[] = { &a->q, &a->k, &a->v };
    void *at[SDPA_OPERANDS];
    int rc = bring_operands(f, c, at, err);

    at[SDPA_STATS] = c->save;
    at[SDPA_DY] = c->dout[0]->data;
    for (uint32_t k = 0; k < ATTENTION_QKV; k++) {
        const uint32_t i = a->of[k];

        at[SDPA_DQ + k] = half_at(c->din[i] == NULL || op_cuda_adds(c, i) ? scratch + f->d_at[i] : c->din[i]->data,
                                  lies[k]);
    }
    if (rc == 0)
        rc = sdpa_run(f->backward, at, scratch + f->work_at, op_stream(c), err);
    for (uint32_t i = 0; rc == 0 && i < ATTENTION_QKV; i++)
        if (c->din[i] != NULL && op_cuda_adds(c, i))
            OP_FLOATS(c->din[i]->dtype,
                      rc = op_each(op_stream(c), (T *)c->din[i]->data, (size_t)tensor_elements(c->din[i]), true,
                                   op_same(), err, (const T *)(scratch + f->d_at[i])));
    return rc;
}
