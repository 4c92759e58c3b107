/* optim_priv.h - shared by the files of optim/.
 *
 *   optim_formula.h  the update of one element, for CPUs and GPUs
 *   optim.c     the table; an optimizer over a list of parameters, in parts
 *   packed.c    the same for packed gradients
 *   rows.c      the steps of an update, for optim.c and for callers with rows of a table
 *   sgd.c       sgd, momentum, lars
 *   adam.c      adam, adamw, adamax, lamb, lion
 *   adagrad.c   adagrad, rmsprop
 *   norm.c      sums of squares, clipping
 *   sharded.c   sums of squares of sharded tables
 *   schedule.c  the learning rate
 *
 * An element needs only its own weight, gradient and slots, and every operation rounds by itself,
 * so the bits do not depend on how a range is cut, nor on the width of vectors. */
#ifndef OPTIM_OPTIM_PRIV_H
#define OPTIM_OPTIM_PRIV_H

#include "base/clones.h"
#include "base/prefetch.h"
#include "optim/optim.h"
#include "optim/optim_formula.h"

/* Is a gradient of zero still zero after scaling? Not if the scale is NaN or infinite. */
static inline bool optim_scale_is_finite(const struct optim_hyper *h)
{
    return h->grad_scale - h->grad_scale == 0;
}

/* Do both stretches belong to one parameter? */
static inline bool optim_is_same(const struct optim_param *a, const struct optim_param *b)
{
    return a->first - a->skipped == b->first - b->skipped;
}

/* ---- loops over the formulas ---- */

INLINED void optim_prefetch(const struct optim_run *run, const float *w,
                            float *const slots[OPTIM_MAX_SLOTS])
{
    prefetch_row(w + run->at, run->n * sizeof(*w));
    for (uint32_t k = 0; k < OPTIM_MAX_SLOTS; k++)
        if (slots[k] != NULL)
            prefetch_row(slots[k] + run->at, run->n * sizeof(*w));
}

/* Defines id_##_sweep(), which applies a formula to each element of the runs. The formula sees k, c, w, g, and
 * the slots as s0, s1 and s2. coefficients_(h, &k, &c) completes the coefficients. */
#define OPTIM_SWEEP(id_, coefficients_, formula_)                                                  \
    INLINED void id_##_run(size_t n, float *restrict w, const float *restrict g,                   \
                           float *restrict s0, float *restrict s1, float *restrict s2,             \
                           const struct optim_step *restrict k,                                    \
                           const struct optim_param_step *restrict c)                              \
    {                                                                                              \
        (void)k, (void)g, (void)s0, (void)s1, (void)s2;                                            \
        for (size_t i = 0; i < n; i++)                                                             \
            formula_;                                                                              \
    }                                                                                              \
    CLONES static void id_##_loop(const struct optim_run *runs, size_t n, float *w,                \
                                  const float *g, float *const slots[OPTIM_MAX_SLOTS],             \
                                  const struct optim_step *step,                                   \
                                  const struct optim_param_step *own)                              \
    {                                                                                              \
        const struct optim_step k = *step;                                                         \
        const struct optim_param_step c = *own;                                                    \
                                                                                                   \
        for (size_t r = 0; r < n && r < PREFETCH_AHEAD; r++)                                       \
            optim_prefetch(&runs[r], w, slots);                                                    \
        for (size_t r = 0; r < n; g += runs[r++].n) {                                              \
            if (r + PREFETCH_AHEAD < n)                                                            \
                optim_prefetch(&runs[r + PREFETCH_AHEAD], w, slots);                               \
            id_##_run(runs[r].n, w + runs[r].at, g, optim_slot_at(slots[0], &runs[r]),             \
                      optim_slot_at(slots[1], &runs[r]), optim_slot_at(slots[2], &runs[r]), &k, &c); \
        }                                                                                          \
    }                                                                                              \
    static void id_##_sweep(const struct optim_hyper *h, const struct optim_run *runs,             \
                            size_t n, float *w, const float *g,                                    \
                            float *const slots[OPTIM_MAX_SLOTS])                                   \
    {                                                                                              \
        struct optim_step k = optim_step_of(h);                                                    \
        struct optim_param_step c = { (float)h->learning_rate, (float)h->weight_decay, 1 };        \
                                                                                                   \
        coefficients_(h, &k, &c);                                                                  \
        id_##_loop(runs, n, w, g, slots, &k, &c);                                                  \
    }

INLINED float *optim_slot_at(float *slot, const struct optim_run *run)
{
    return slot != NULL ? slot + run->at : NULL;
}

/* For OPTIM_SWEEP(): nothing to add; a rate times the trust ratio. */
static inline void optim_plain(const struct optim_hyper *h, struct optim_step *k,
                               struct optim_param_step *c)
{
    (void)h, (void)k, (void)c;
}

static inline void optim_trusted(const struct optim_hyper *h, struct optim_step *k,
                                 struct optim_param_step *c)
{
    (void)k;
    c->rate = (float)(h->learning_rate * h->trust);
}

/* ---- a piece of a parameter whose gradient is packed ---- */
struct optim_piece {
    const struct optim_param *param;
    size_t first, n; /* floats; whole blocks, except the last of the parameter */
    size_t block;    /* index of its first block */
};

void optim_packed_clip(const struct optim_state *s, const struct optim_piece *p, float limit);
void optim_packed_each(const struct optim_state *s, const struct optim_piece *p,
                       optim_each_fn *each, void *arg);
void optim_packed_squares(const struct optim_state *s, const struct optim_piece *p,
                          double *partial);
/* Unpacks floats [at, at + n) of the gradient to g [n], n <= OPTIM_BLOCK. */
void optim_packed_unfold(const struct optim_state *s, const struct optim_piece *p, size_t at,
                         size_t n, float *g);
/* Updates the rows that have marks. `own`: the hyper-parameters of this parameter. */
void optim_packed_sweep(const struct optim_def *def, const struct optim_hyper *own,
                        const struct optim_state *s, const struct optim_piece *p);

/* ---- a sharded table ---- */
size_t optim_sharded_blocks(const struct optim_param *p); /* of 64 rows */
/* Computes the sums of squares of its blocks [first, end): sums[first] and so on. */
void optim_sharded_squares(const struct optim_state *s, const struct optim_param *p, size_t first,
                           size_t end, double *sums);
/* Adds the sums shard by shard. Those of params[i] are first_sum[i] to first_sum[i + 1] - 1; a parameter
 * that is not sharded has none. */
double optim_sharded_total(const struct optim_param *params, const size_t *first_sum,
                           uint32_t n_params, const double *sums);

/* Type and name of the row optim_<word>. */
#define OPTIM_ROW(NAME, word) .type = OPTIM_##NAME, .name = #word

#define OPTIM_DECLARE(NAME, word, ...) extern const struct optim_def optim_##word;
OPTIM_LIST(OPTIM_DECLARE)
#undef OPTIM_DECLARE

#endif
