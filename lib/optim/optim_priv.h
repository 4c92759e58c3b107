/* optim_priv.h - what the files of optim/ share.
 *
 *   optim.c     the table; a row at work on its parameters, in parts
 *   packed.c    the same where a gradient is packed
 *   sgd.c       sgd, momentum, lars
 *   adam.c      adam, adamw, adamax, lamb, lion
 *   adagrad.c   adagrad, rmsprop
 *   norm.c      sums of squares
 *   schedule.c  the learning rate
 *
 * The loops: an element needs nothing but its own weight, gradient and slots, and every operation
 * is rounded by itself (-ffp-contract=off; division and square root are exact to the last bit by
 * IEEE 754), so vectors of any width give the same bits. */
#ifndef OPTIM_OPTIM_PRIV_H
#define OPTIM_OPTIM_PRIV_H

#include "base/clones.h"
#include "optim/optim.h"

/* What is left of a gradient of zero behind the scale is zero; not so if the scale is NaN. */
static inline bool optim_scale_is_finite(const struct optim_hyper *h)
{
    return h->grad_scale - h->grad_scale == 0;
}

/* Stretches of one parameter? */
static inline bool optim_is_same(const struct optim_param *a, const struct optim_param *b)
{
    return a->first - a->skipped == b->first - b->skipped;
}

/* ---- a piece of a parameter whose gradient is packed ---- */
struct optim_piece {
    const struct optim_param *param;
    size_t first, n; /* floats; whole blocks but for the parameter's last */
    size_t block;    /* its first one, of all blocks */
};

void optim_packed_clip(const struct optim_state *s, const struct optim_piece *p, float limit);
void optim_packed_each(const struct optim_state *s, const struct optim_piece *p,
                       optim_each_fn *each, void *arg);
void optim_packed_squares(const struct optim_state *s, const struct optim_piece *p, double *partial);
/* Floats [at, at + n) of the gradient, n <= OPTIM_BLOCK, as they would lie if it were whole. */
void optim_packed_unfold(const struct optim_state *s, const struct optim_piece *p, size_t at,
                         size_t n, float *g);
/* Moves the rows that have marks; `own`: of this parameter. */
void optim_packed_sweep(const struct optim_def *def, const struct optim_hyper *own,
                        const struct optim_state *s, const struct optim_piece *p);

void optim_clamp(float *g, size_t n, float limit);

/* ---- the sum of squares of a block: element i belongs to sum i mod OPTIM_SUMS ---- */
enum { OPTIM_SUMS = 16 };
/* Adds n elements of the block from element `at` on. */
void optim_square_add(double sums[OPTIM_SUMS], size_t at, const float *g, size_t n);
double optim_square_total(double sums[OPTIM_SUMS]);

extern const struct optim_def optim_sgd, optim_momentum, optim_lars;
extern const struct optim_def optim_adam, optim_adamw, optim_adamax, optim_lamb, optim_lion;
extern const struct optim_def optim_adagrad, optim_rmsprop;

#endif
