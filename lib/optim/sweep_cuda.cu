/* sweep_cuda.cu - the rows of optim/optim.h as kernels: one sweep over the weights of all parameters, and of
 * statistics. The formulas are those of optim_formula.h. */
#include <math.h>
#include <string.h>

#include "optim/optim_cuda_priv.cuh"

extern "C" {
#include "optim/optim_formula.h"
}

namespace {

/* What a kernel needs of a step; doubles become floats for each owner. */
struct step {
    struct optim_step k;
    float keep_average, rest_average; /* of the average of the weights */
    float share;
    double learning_rate;
    double rate;    /* the learning rate; for some rows divided by 1 - beta1^t */
    bool decouples; /* the decay applies to the weights, not to the gradients */
};

__device__ static inline optim_param_step own_of(const step &k, const optim_owner &o, double ratio)
{
    double decay = o.weight_decay;

    return { (float)(k.rate * o.rate_factor * ratio), k.decouples ? 0.0f : (float)decay,
             k.decouples ? (float)(1 - k.learning_rate * o.rate_factor * decay) : 1.0f };
}

/* ---- rows: move() applies a formula to weight w, gradient g and slots s ---- */

enum { SLOT0 = 1, SLOT1 = 2, SLOT2 = 4, GRADIENT = 1 << OPTIM_MAX_SLOTS, WEIGHT = GRADIENT << 1 };

#define ROW(id_, slots_, formula_)                                                                     \
    struct id_ {                                                                                       \
        static constexpr unsigned READS = GRADIENT | (slots_), WRITES = WEIGHT | (slots_);             \
                                                                                                       \
        __device__ static void move(const optim_step *k, const optim_param_step *c, float &w, float g,        \
                                    [[maybe_unused]] float *s)                                         \
        {                                                                                              \
            formula_;                                                                                  \
        }                                                                                              \
    };

ROW(sgd, 0, optim_update_sgd(k, c, &w, g))
ROW(classic, SLOT0, optim_update_momentum(k, c, false, &w, g, &s[0]))
ROW(nesterov, SLOT0, optim_update_momentum(k, c, true, &w, g, &s[0]))
ROW(lars, SLOT0, optim_update_lars(k, c, &w, g, &s[0]))
ROW(adagrad, SLOT0, optim_update_adagrad(k, c, &w, g, &s[0]))
ROW(rmsprop, SLOT0, optim_update_rmsprop(k, c, false, false, &w, g, &s[0], &s[1], &s[2]))
ROW(rmsprop_momentum, SLOT0 | SLOT1,
    optim_update_rmsprop(k, c, true, false, &w, g, &s[0], &s[1], &s[2]))
ROW(rmsprop_centered, SLOT0 | SLOT2,
    optim_update_rmsprop(k, c, false, true, &w, g, &s[0], &s[1], &s[2]))
ROW(rmsprop_both, SLOT0 | SLOT1 | SLOT2,
    optim_update_rmsprop(k, c, true, true, &w, g, &s[0], &s[1], &s[2]))
ROW(adam, SLOT0 | SLOT1, optim_update_adam(k, c, &w, g, &s[0], &s[1]))
ROW(adamax, SLOT0 | SLOT1, optim_update_adamax(k, c, &w, g, &s[0], &s[1]))
ROW(lion, SLOT0, optim_update_lion(k, c, &w, g, &s[0]))

struct lamb {
    static constexpr unsigned READS = SLOT0 | SLOT1, WRITES = WEIGHT; /* the gradient is in the moments */

    __device__ static void move(const optim_step *k, const optim_param_step *c, float &w, float,
                                float *s)
    {
        optim_update_lamb(k, c, &w, s[0], s[1]);
    }
};

/* Measures: the second norm of lars and lamb is that of the numbers that move() returns. */
struct lars_measure {
    static constexpr unsigned READS = GRADIENT, WRITES = 0;

    __device__ static float move(const optim_step *, const optim_param_step *, float, float g, float *) { return g; }
};

struct lamb_measure {
    static constexpr unsigned READS = GRADIENT | SLOT0 | SLOT1, WRITES = SLOT0 | SLOT1;

    __device__ static float move(const optim_step *k, const optim_param_step *c, float w, float g,
                                 float *s)
    {
        optim_update_moments(k, g * k->scale, &s[0], &s[1]);
        return optim_lamb_update(k, c, w, s[0], s[1]);
    }
};

/* How the ratio follows from the norms of the weights and of the measured numbers, both above 0. */
enum ratio { RATIO_NONE, RATIO_LARS, RATIO_LAMB };

/* ---- kernels ---- */

/* Calls f(j, w, g, s) for four elements; j: which of them. */
template <bool WHOLE, unsigned READS, unsigned WRITES, typename F>
__device__ static inline optim_four visit(const optim_arrays &a, const optim_range &r, unsigned e,
                                          F f)
{
    optim_four w = optim_load<WHOLE>(a.w, r, e), g = {}, s[OPTIM_MAX_SLOTS] = {};

    if (READS & GRADIENT)
        g = optim_load<WHOLE>(a.g, r, e);
#pragma unroll
    for (unsigned i = 0; i < OPTIM_MAX_SLOTS; i++)
        if (READS & 1u << i)
            s[i] = optim_load<WHOLE>(a.slots[i], r, e);
#pragma unroll
    for (unsigned j = 0; j < 4; j++) {
        float own_slots[OPTIM_MAX_SLOTS];

#pragma unroll
        for (unsigned i = 0; i < OPTIM_MAX_SLOTS; i++)
            own_slots[i] = s[i].v[j];
        f(j, w.v[j], g.v[j], own_slots);
#pragma unroll
        for (unsigned i = 0; i < OPTIM_MAX_SLOTS; i++)
            s[i].v[j] = own_slots[i];
    }
    if (WRITES & WEIGHT)
        optim_store<WHOLE>(a.w, r, e, w);
#pragma unroll
    for (unsigned i = 0; i < OPTIM_MAX_SLOTS; i++)
        if (WRITES & 1u << i)
            optim_store<WHOLE>(a.slots[i], r, e, s[i]);
    return w;
}

/* average = keep average + rest w, or w if keep is 0. */
template <bool WHOLE>
__device__ static inline void move_average(float *average, const optim_range &r, unsigned e,
                                           const optim_four &w, float keep, float rest)
{
    optim_four m = w;

    if (keep > 0) {
        m = optim_load<WHOLE>(average, r, e);
#pragma unroll
        for (unsigned j = 0; j < 4; j++)
            m.v[j] = optim_moved_average(m.v[j], w.v[j], keep, rest);
    }
    optim_store<WHOLE>(average, r, e, m);
}

template <bool WHOLE, typename ROW>
__device__ static inline void sweep_four(const optim_arrays &a, const optim_range &r, unsigned e,
                                         const step &k, const optim_param_step &c)
{
    optim_four w = visit<WHOLE, ROW::READS, ROW::WRITES>(
        a, r, e, [&](unsigned, float &x, float g, float *s) { ROW::move(&k.k, &c, x, g, s); });

    if (a.average != NULL)
        move_average<WHOLE>(a.average, r, e, w, k.keep_average, k.rest_average);
}

/* w = keep w + (1 - keep) (g share); the average of a statistic is the statistic itself. */
template <bool WHOLE>
__device__ static inline void statistic_four(const optim_arrays &a, const optim_range &r,
                                             unsigned e, float keep, float share)
{
    optim_four w = visit<WHOLE, GRADIENT, WEIGHT>(a, r, e, [&](unsigned, float &x, float g, float *) {
        x = keep * x + (1.0f - keep) * (g * share);
    });

    if (a.average != NULL)
        move_average<WHOLE>(a.average, r, e, w, 0, 1);
}

/* Elements e .. e + 3 of a chunk of a table: of rows without a mark, only the average changes.
 * shift: floats from the beginning of a row to element 0 of the range. */
template <typename ROW>
__device__ static inline void sweep_marked(const optim_arrays &a, const optim_range &r, unsigned e,
                                           const step &k, const optim_param_step &c,
                                           const float *read, size_t shift, size_t width)
{
    unsigned at = e > r.lo ? e : r.lo, end = e + 4 < r.hi ? e + 4 : r.hi;

    while (at < end) { /* once, or more often if a row ends in between */
        size_t row = (at + shift) / width, behind = (row + 1) * width - shift;
        optim_range same = r;

        same.lo = at;
        same.hi = behind < end ? (unsigned)behind : end;
        if (read[row] > 0 && same.has_four(e))
            sweep_four<true, ROW>(a, same, e, k, c);
        else if (read[row] > 0)
            sweep_four<false, ROW>(a, same, e, k, c);
        else if (a.average != NULL)
            move_average<false>(a.average, same, e, optim_load<false>(a.w, same, e), k.keep_average,
                                k.rest_average);
        at = same.hi;
    }
}

/* Block i processes chunk i. MARKS: tables may have rows that are not updated. */
template <typename ROW, bool MARKS>
__global__ void __launch_bounds__(OPTIM_THREADS)
    sweep(struct optim_table t, struct optim_arrays a, struct step k)
{
    const optim_chunk chunk = t.chunks[blockIdx.x];
    const optim_owner o = t.owners[chunk.owner];
    const optim_range r(chunk);

    if (chunk.owner >= t.n_params) {
        for (unsigned e = threadIdx.x * 4; e < r.hi; e += OPTIM_THREADS * 4)
            if (r.has_four(e))
                statistic_four<true>(a, r, e, o.keep, k.share);
            else
                statistic_four<false>(a, r, e, o.keep, k.share);
        return;
    }
    const optim_param_step c = own_of(k, o, t.ratios != NULL ? t.ratios[chunk.owner] : 1.0);

    if (MARKS && o.width > 0 && (o.lazy || (a.skips_zero && o.weight_decay == 0))) {
        size_t before = chunk.first - o.first, row = before / o.width;
        /* element 0 may precede the table: the difference is then negative, wraps, and wraps
         * back */
        size_t shift = before - row * o.width - r.lo;

        for (unsigned e = threadIdx.x * 4; e < r.hi; e += OPTIM_THREADS * 4)
            sweep_marked<ROW>(a, r, e, k, c, a.read + o.first_mark + row, shift, o.width);
        return;
    }
    for (unsigned e = threadIdx.x * 4; e < r.hi; e += OPTIM_THREADS * 4)
        if (r.has_four(e))
            sweep_four<true, ROW>(a, r, e, k, c);
        else
            sweep_four<false, ROW>(a, r, e, k, c);
}

template <bool WHOLE, typename ROW>
__device__ static inline void measure_four(const optim_arrays &a, const optim_range &r, unsigned e,
                                           const step &k, const optim_param_step &c, double sums[2])
{
    visit<WHOLE, ROW::READS, ROW::WRITES>(a, r, e, [&](unsigned j, float &w, float g, float *s) {
        float u = ROW::move(&k.k, &c, w, g, s);

        if (WHOLE || r.has(e + j)) {
            sums[0] += (double)w * (double)w;
            sums[1] += (double)u * (double)u;
        }
    });
}

/* Block i processes chunk i of the parameters: sums of squares of its weights, and of the results
 * of the row's move(). */
template <typename ROW>
__global__ void __launch_bounds__(OPTIM_THREADS)
    measure(struct optim_table t, struct optim_arrays a, struct step k)
{
    const optim_chunk chunk = t.chunks[blockIdx.x];
    const optim_param_step c = own_of(k, t.owners[chunk.owner], 1);
    const optim_range r(chunk);
    double sums[2] = { 0, 0 };

    for (unsigned e = threadIdx.x * 4; e < r.hi; e += OPTIM_THREADS * 4)
        if (r.has_four(e))
            measure_four<true, ROW>(a, r, e, k, c, sums);
        else
            measure_four<false, ROW>(a, r, e, k, c, sums);
    for (unsigned i = 0; i < 2; i++) {
        double sum = optim_block_sum(sums[i]);

        if (threadIdx.x == 0)
            t.sums[blockIdx.x][i] = sum;
    }
}

/* Block i processes parameter i: thread k adds the sums of chunks k, k + 256, ... */
__global__ void find_ratios(struct optim_table t, enum ratio kind, double scale,
                            double trust_coefficient)
{
    const optim_owner o = t.owners[blockIdx.x];
    double norms[2];

    for (unsigned i = 0; i < 2; i++) {
        double sum = 0;

        for (uint32_t c = threadIdx.x; c < o.n_chunks; c += OPTIM_THREADS)
            sum += t.sums[o.first_chunk + c][i];
        norms[i] = sqrt(optim_block_sum(sum));
    }
    if (threadIdx.x != 0)
        return;
    norms[1] *= kind == RATIO_LARS ? fabs(scale) : 1; /* its gradients are not scaled yet */
    t.ratios[blockIdx.x] = !o.adapts || norms[0] == 0 || norms[1] == 0 ? 1
                           : kind == RATIO_LAMB                        ? norms[0] / norms[1]
                                                : trust_coefficient * norms[0] /
                                                      (norms[1] + o.weight_decay * norms[0]);
}

} // namespace

/* ---- the table ---- */

typedef void kernel(struct optim_table t, struct optim_arrays a, struct step k);

struct sweeps {
    kernel *all, *marked;
};

struct optim_row {
    enum optim_type type;
    struct sweeps sweep[2][2]; /* [momentum (momentum row: nesterov)][centered] */
    bool corrects;       /* the rate includes 1 / (1 - beta1^t) */
    bool decouples;
    kernel *measure;
    enum ratio ratio;
};

#define BOTH(row_) { sweep<row_, false>, sweep<row_, true> }
#define ONE(row_) { { BOTH(row_), BOTH(row_) }, { BOTH(row_), BOTH(row_) } }

static const struct optim_row rows[] = {
    { .type = OPTIM_SGD, .sweep = ONE(sgd) },
    { .type = OPTIM_MOMENTUM, .sweep = { { BOTH(classic), BOTH(classic) },
                                         { BOTH(nesterov), BOTH(nesterov) } } },
    { .type = OPTIM_ADAGRAD, .sweep = ONE(adagrad) },
    { .type = OPTIM_RMSPROP, .sweep = { { BOTH(rmsprop), BOTH(rmsprop_centered) },
                                        { BOTH(rmsprop_momentum), BOTH(rmsprop_both) } } },
    { .type = OPTIM_ADAM, .sweep = ONE(adam), .corrects = true },
    { .type = OPTIM_ADAMW, .sweep = ONE(adam), .corrects = true, .decouples = true },
    { .type = OPTIM_ADAMAX, .sweep = ONE(adamax), .corrects = true },
    { .type = OPTIM_LION, .sweep = ONE(lion) },
    { .type = OPTIM_LARS, .sweep = ONE(lars), .measure = measure<lars_measure>, .ratio = RATIO_LARS },
    { .type = OPTIM_LAMB, .sweep = ONE(lamb), .measure = measure<lamb_measure>, .ratio = RATIO_LAMB },
};

const struct optim_row *optim_row_find(enum optim_type type)
{
    for (const struct optim_row &row : rows)
        if (row.type == type)
            return &row;
    return NULL;
}

bool optim_row_measures(const struct optim_row *row)
{
    return row->measure != NULL;
}

static struct step step_of(const struct optim_row *row, const struct optim_hyper *h, double average,
                           float share)
{
    struct step k = {};
    double rest;

    k.k = optim_step_of(h);
    rest = optim_correct(h, &k.k);
    k.keep_average = (float)average;
    k.rest_average = (float)(1 - average);
    k.share = share;
    k.learning_rate = h->learning_rate;
    k.rate = row->corrects ? h->learning_rate / rest : h->learning_rate;
    k.decouples = row->decouples;
    return k;
}

int optim_row_update(const struct optim_row *row, const struct optim_table *t,
                     const struct optim_hyper *h, const struct optim_arrays *a, double average,
                     float share, cudaStream_t s, struct err *err)
{
    struct step k = step_of(row, h, average, share);
    bool first = row->type == OPTIM_MOMENTUM ? h->nesterov : h->momentum > 0;
    const struct sweeps *way = &row->sweep[first][h->centered];
    kernel *go = a->read != NULL ? way->marked : way->all;

    if (row->measure != NULL && t->n_param_chunks > 0) {
        kernel *measure_first = row->measure;

        CUDA_LAUNCH(measure_first, t->n_param_chunks, OPTIM_THREADS, 0, s, *t, *a, k);
        CUDA_LAUNCH(find_ratios, t->n_params, OPTIM_THREADS, 0, s, *t, row->ratio,
                    (double)h->grad_scale, h->trust_coefficient);
    }
    if (t->n_chunks > 0)
        CUDA_LAUNCH(go, t->n_chunks, OPTIM_THREADS, 0, s, *t, *a, k);
    return cuda_launched(err);
}
