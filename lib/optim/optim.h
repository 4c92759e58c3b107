/* optim.h - optimizers as rows of a table, and schedules as pure functions of the step.
 *
 *   struct optim_def   a row: its slots, and how it moves a range of floats
 *   struct optim       a row at work on a list of parameters, shared out among the threads of a
 *                      process; weights, gradients and slots have one layout, so the threads
 *                      update disjoint parts of one state
 *
 * With w weight, g gradient (of the mean loss, after clipping), a learning rate, d weight decay, t step from 1:
 *   sgd       g += d w;  w -= a g                                            (torch.optim.SGD)
 *   momentum  g += d w;  v = m v + g;  w -= a v;  nesterov: w -= a (g + m v)  (torch.optim.SGD, dampening=0)
 *   adagrad   g += d w;  s += g^2;  w -= a g / (sqrt(s) + eps)               (torch.optim.Adagrad)
 *   rmsprop   g += d w;  s = b2 s + (1-b2) g^2;  c = b2 c + (1-b2) g (centered, else 0);
 *             u = g / (sqrt(s - c^2) + eps);  v = m v + u;  w -= a v         (torch.optim.RMSprop, alpha=b2)
 *   adam      g += d w;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2;
 *             w -= a / (1-b1^t) m / (sqrt(v) / sqrt(1-b2^t) + eps)           (torch.optim.Adam; Kingma and Ba 2015)
 *   adamw     w -= a d w;  then as adam without d                            (torch.optim.AdamW; Loshchilov and Hutter 2019)
 *   adamax    g += d w;  m as adam;  v = max(b2 v, |g| + eps);
 *             w -= a / (1-b1^t) m / v                                        (torch.optim.Adamax; Kingma and Ba 2015)
 *   lion      u = sign(b1 m + (1-b1) g);  m = b2 m + (1-b2) g;
 *             w -= a (u + d w)                                               (Chen et al. 2023)
 *   lars      r = c |w| / (|g| + d |w|);  v = m v + a r (g + d w);  w -= v   (You, Gitman, Ginsburg 2017)
 *   lamb      m, v as adam;  u = m / (1-b1^t) / (sqrt(v / (1-b2^t)) + eps) + d w;
 *             w -= a |w| / |u| u                                             (You et al. 2020)
 * |x| is the L2 norm over one parameter; where it is 0, and for parameters that do not adapt,
 * the ratio of lars and lamb is 1 (and that of lars is without c).
 *
 * The gradient of a table may be packed (tensor/packed.h): rows without a mark have a gradient of zero. On a
 * GPU it is whole, and beside it lies which rows have a mark.
 * The numbers are those of the whole gradient, for every optimizer. Where a zero changes nothing
 * (sgd and adagrad without weight decay), rows without a mark are not even looked at; and where the
 * parameter is lazy, which gives other numbers (for adam about those of torch.optim.SparseAdam).
 * Threads: a range and a part have one thread at a time; the caller puts the barriers. */
#ifndef OPTIM_OPTIM_H
#define OPTIM_OPTIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "opts/optim.h"

struct err;
struct optim;
struct packed;
struct packed_table;

enum { OPTIM_MAX_SLOTS = 4 };

enum optim_slot_use { OPTIM_ALWAYS, OPTIM_WITH_MOMENTUM, OPTIM_CENTERED };

struct optim_def {
    enum optim_type type;
    const char *name; /* as in a job file */
    uint32_t n_slots;
    struct optim_slot {
        const char *name; /* in a checkpoint: "momentum", "exp_avg", "exp_avg_sq" */
        enum optim_slot_use use; /* whether these hyper-parameters need it; else it is NULL */
    } slots[OPTIM_MAX_SLOTS];
    /* Element-wise: the bits do not depend on how a range is cut. */
    void (*sweep)(const struct optim_hyper *h, size_t n, float *w, const float *g,
                  float *const slots[OPTIM_MAX_SLOTS]);
    /* Does a gradient of zero leave weight and slots as they are, to the bit? NULL: never. */
    bool (*rests)(const struct optim_hyper *h);
    /* The first half of a row that needs norms (else NULL): sums of squares of at most OPTIM_BLOCK
     * floats of one parameter; what sweep() shall find in the slots is put there. */
    void (*measure)(const struct optim_hyper *h, size_t n, const float *w, const float *g,
                    float *const slots[OPTIM_MAX_SLOTS], double sums[2]);
    /* The ratio from the norms of the whole parameter, both above 0. */
    double (*trust)(const struct optim_hyper *h, const double norms[2]);
};

const struct optim_def *optim_get(enum optim_type type);
bool optim_uses(const struct optim_def *def, const struct optim_hyper *h, uint32_t slot);

/* ---- a row at work ---- */

/* A parameter, or a stretch of one: floats [first, first + n). What no stretch covers does not train: its
 * gradient is not read, and weight, slots and average stay as they are. */
struct optim_param {
    size_t first, n;
    double rate_factor;  /* times the learning rate */
    double weight_decay; /* its own; that of the hyper-parameters is not looked at */
    bool adapts;         /* lars, lamb: has a ratio */
    const struct packed_table *table; /* it is one, whose gradient may be packed; NULL: it is none */
    bool lazy;           /* a table: rows without a mark are left as they are */
    size_t skipped;      /* floats of the parameter before `first`. Stretches of one parameter follow each
                            other and share the ratio of lars and lamb, whose norms are over them */
};

struct optim_opts {
    const struct optim_def *def;
    const struct optim_param *params; /* copied; ascending, without overlap, n > 0 */
    uint32_t n_params;
    uint32_t n_parts; /* threads that share the work */
    double average;   /* > 0: an exponential moving average of the weights is kept, with this decay */
};

/* All of the trained floats; a part touches its own only. */
struct optim_state {
    float *w;
    float *g;
    float *slots[OPTIM_MAX_SLOTS];
    const struct packed *packed; /* whose tables the parameters name; NULL: gradients are whole */
    float *values;               /* the gradients of its marked rows */
    const float *read; /* on a GPU: of row r of a table, at 64 first_word + r; above 0: it has a mark. NULL: all */
    float *average; /* average = decay average + (1 - decay) w after each update; NULL: none is kept */
};

/* Errors: ERR_NOMEM. */
int optim_new(const struct optim_opts *opts, struct optim **out, struct err *err);
void optim_free(struct optim *o); /* NULL is fine */
const struct optim_opts *optim_options(const struct optim *o); /* as given; its own copy of the parameters */
/* How many tables an update with these numbers does not look at but for marked rows, where they have marks. */
uint32_t optim_resting_tables(const struct optim *o, const struct optim_hyper *h);

/* A step, in each of the n_parts threads; each line needs what all threads did in the one before,
 * so there is a barrier between them. The second and third only where they are wanted. Blocks
 * belong to parameters and sums are added in their order, so that no bit depends on n_parts.
 *
 *     optim_clip_values(), optim_measure_gradient()
 *     optim_gradient_norm(), optim_clip() -> h->grad_scale;  optim_measure() if optim_needs_norms()
 *     optim_update() */
void optim_clip_values(const struct optim *o, uint32_t part, const struct optim_state *state,
                       float limit); /* to [-limit, limit] */
void optim_measure_gradient(struct optim *o, uint32_t part, const struct optim_state *state);
/* What a part will read of the gradient, in stretches g [n] that belong at float `at` of the arena: every
 * float of its parameters, of packed tables those of marked rows. */
typedef void optim_each_fn(void *arg, size_t at, const float *g, size_t n);
void optim_each(const struct optim *o, uint32_t part, const struct optim_state *state,
                optim_each_fn *each, void *arg);
double optim_gradient_norm(const struct optim *o); /* L2, over all parameters */
bool optim_needs_norms(const struct optim *o);
void optim_measure(struct optim *o, uint32_t part, const struct optim_hyper *h,
                   const struct optim_state *state);
void optim_update(const struct optim *o, uint32_t part, const struct optim_hyper *h,
                  const struct optim_state *state);

/* ---- learning rate ---- */
/* Rate of step t (from 1). */
double optim_rate(const struct optim_schedule *s, uint64_t t);
/* What `cycles` names, from the optimizer's own value to that of step t: along half a cosine down to
 * base_momentum where the rate has its peak, and up again    (torch OneCycleLR with cycle_momentum). */
void optim_cycle(const struct optim_schedule *s, uint64_t t, struct optim_hyper *h);
/* The loss of an evaluation after step t: counted once, by a plateau schedule; others ignore it. */
void optim_evaluated(struct optim_schedule *s, uint64_t t, double loss);
/* Linear scaling rule (Goyal et al. 2017): rate * batch / reference. */
double optim_scale_linear(double rate, uint64_t batch, uint64_t reference);
/* Square-root scaling rule (Krizhevsky 2014; You et al. 2020): rate * sqrt(batch / reference). */
double optim_scale_sqrt(double rate, uint64_t batch, uint64_t reference);

/* ---- norm ---- */
/* Sum of squares of n floats in OPTIM_BLOCK blocks: partial[i] is the double sum of block i of this
 * range, added in a fixed order. */
enum { OPTIM_BLOCK = 4096 };
void optim_square_sums(const float *g, size_t n, double *partial);
double optim_norm(const double *partial, size_t n_blocks); /* square root of the ordered sum */
/* min(1, clip / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_; clip 0: 1. */
float optim_clip(double norm, double clip);

#endif
