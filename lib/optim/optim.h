/* optim.h - optimizers as rows of a table, and schedules as pure functions of the step.
 *
 *   struct optim_def   a row: its slots, and how it updates a range of floats
 *   struct optim       an optimizer over a list of parameters, distributed over the threads of a
 *                      process; weights, gradients and slots have one layout, so the threads
 *                      update disjoint parts of one state
 *
 * With w weight, g gradient (of the mean loss, after clipping), a learning rate, d weight decay,
 * t the step from 1 on:
 *   sgd       g += d w;  w -= a g                                       (torch.optim.SGD)
 *   momentum  g += d w;  v = m v + g;  w -= a v;  nesterov: w -= a (g + m v)
 *                                                         (torch.optim.SGD, dampening=0)
 *   adagrad   g += d w;  s += g^2;  w -= a g / (sqrt(s) + eps)          (torch.optim.Adagrad)
 *   rmsprop   g += d w;  s = b2 s + (1-b2) g^2;  c = b2 c + (1-b2) g (centered, else 0);
 *             u = g / (sqrt(s - c^2) + eps);  v = m v + u;  w -= a v
 *                                                         (torch.optim.RMSprop, alpha=b2)
 *   adam      g += d w;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2;
 *             w -= a / (1-b1^t) m / (sqrt(v) / sqrt(1-b2^t) + eps)
 *                                                 (torch.optim.Adam; Kingma and Ba 2015)
 *   adamw     w -= a d w;  then as adam without d
 *                                     (torch.optim.AdamW; Loshchilov and Hutter 2019)
 *   adamax    g += d w;  m as adam;  v = max(b2 v, |g| + eps);
 *             w -= a / (1-b1^t) m / v           (torch.optim.Adamax; Kingma and Ba 2015)
 *   lion      u = sign(b1 m + (1-b1) g);  m = b2 m + (1-b2) g;
 *             w -= a (u + d w)                                       (Chen et al. 2023)
 *   lars      r = c |w| / (|g| + d |w|);  v = m v + a r (g + d w);  w -= v
 *                                                      (You, Gitman, Ginsburg 2017)
 *   lamb      m, v as adam;  u = m / (1-b1^t) / (sqrt(v / (1-b2^t)) + eps) + d w;
 *             w -= a |w| / |u| u                                       (You et al. 2020)
 * |x| is the L2 norm over one parameter. If it is 0, and for parameters that do not adapt, the
 * ratio of lars and lamb is 1 (that of lars without c).
 *
 * The gradient of a table may be packed (tensor/packed.h): rows without a mark have a gradient
 * of zero. On a GPU it is not packed, and a separate array has the marks of the rows. Every
 * optimizer computes the same numbers as with the whole gradient. Rows without a mark are
 * skipped if a gradient of zero changes nothing (sgd and adagrad without weight decay), and if
 * the parameter is lazy. A lazy parameter gives other numbers (for adam about those of
 * torch.optim.SparseAdam).
 * Threads: one thread at a time for each range and part; the caller provides the barriers. */
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

/* Floats [at, at + n) of the weights and of each slot. */
struct optim_run {
    size_t at, n;
};

enum optim_slot_use { OPTIM_ALWAYS, OPTIM_WITH_MOMENTUM, OPTIM_CENTERED };

struct optim_def {
    enum optim_type type;
    const char *name; /* as in a job file */
    uint32_t n_slots;
    struct optim_slot {
        const char *name; /* in a checkpoint: "momentum", "exp_avg", "exp_avg_sq" */
        enum optim_slot_use use; /* when the slot is needed; else it is NULL */
    } slots[OPTIM_MAX_SLOTS];
    /* Updates n runs, which do not overlap; their gradients follow one another in g. Element-wise: the bits
     * do not depend on how floats are divided into runs. */
    void (*sweep)(const struct optim_hyper *h, const struct optim_run *runs, size_t n, float *w,
                  const float *g, float *const slots[OPTIM_MAX_SLOTS]);
    /* Does a gradient of zero leave the weight and the slots unchanged? NULL: never. */
    bool (*skips_zero)(const struct optim_hyper *h);
    /* The first half of a row that needs norms (else NULL): computes sums of squares of at most
     * OPTIM_BLOCK floats of one parameter, and updates the slots that sweep() reads. */
    void (*measure)(const struct optim_hyper *h, size_t n, const float *w, const float *g,
                    float *const slots[OPTIM_MAX_SLOTS], double sums[2]);
    /* Returns the ratio from the norms of the whole parameter, both above 0. */
    double (*trust)(const struct optim_hyper *h, const double norms[2]);
};

const struct optim_def *optim_get(enum optim_type type);
bool optim_uses(const struct optim_def *def, const struct optim_hyper *h, uint32_t slot);

/* ---- an optimizer over a list of parameters ---- */

/* A parameter, or a stretch of one: floats [first, first + n). Floats outside of all stretches do
 * not train: their gradients are not read, and their weights, slots and averages do not change. */
struct optim_param {
    size_t first, n;
    double rate_factor;  /* times the learning rate */
    double weight_decay; /* replaces that of the hyper-parameters */
    bool adapts;         /* lars, lamb: the parameter has a ratio */
    /* an embedding table, whose gradient may be packed; NULL: not a table */
    const struct packed_table *table;
    bool lazy;           /* a table whose rows without a mark are not updated */
    size_t skipped;      /* floats of the parameter before `first`. The stretches of a parameter
                            are consecutive and share the ratio of lars and lamb, whose norms are
                            over all of them */
    /* a whole parameter whose squares are added shard by shard (tensor/shards.h) to the norm of the
     * gradient, as parameter servers add them */
    bool is_sharded;
    uint32_t first_shard;
    size_t width; /* is_sharded: floats of its rows; the last row may be shorter */
};

struct optim_opts {
    const struct optim_def *def;
    const struct optim_param *params; /* copied; ascending, without overlap, n > 0 */
    uint32_t n_params;
    uint32_t n_parts; /* number of threads */
    double average;   /* decay of the moving average of the weights; 0: no average */
};

/* All trained floats; a part accesses only its own. */
struct optim_state {
    float *w;
    float *g;
    float *slots[OPTIM_MAX_SLOTS];
    /* has the tables of the parameters; NULL: gradients are not packed */
    const struct packed *packed;
    float *values;               /* the gradients of the marked rows */
    /* on a GPU: marks; that of row r of a table is at 64 first_word + r, above 0: marked. NULL:
     * all rows are */
    const float *read;
    /* average = decay average + (1 - decay) w after each update; NULL: no average */
    float *average;
};

/* Errors: ERR_NOMEM. */
int optim_new(const struct optim_opts *opts, struct optim **out, struct err *err);
void optim_free(struct optim *o); /* NULL is fine */
/* as given to optim_new(), with its own copy of the parameters */
const struct optim_opts *optim_options(const struct optim *o);
/* Returns the number of tables of which an update with these hyper-parameters skips rows without a
 * mark. */
uint32_t optim_skipping_tables(const struct optim *o, const struct optim_hyper *h);

/* A step, in each of the n_parts threads. Each line needs the results of all threads from the
 * previous line, so the caller separates the lines by barriers. Clipping of values and by the norm
 * is optional. Sums are added in the order of the blocks of the parameters, and those of sharded
 * tables in the order of the shards, so the bits do not depend on n_parts.
 *
 *     optim_clip_values(), optim_measure_gradient()
 *     optim_gradient_norm(), optim_clip() -> h->grad_scale;  optim_measure() if optim_needs_norms()
 *     optim_update() */
void optim_clip_values(const struct optim *o, uint32_t part, const struct optim_state *state,
                       float limit); /* to [-limit, limit] */
void optim_measure_gradient(struct optim *o, uint32_t part, const struct optim_state *state);
/* Calls each() for all gradients of a part, in stretches g [n] that begin at float `at` of the
 * arena: every float of its parameters, and of packed tables those of marked rows. */
typedef void optim_each_fn(void *arg, size_t at, const float *g, size_t n);
void optim_each(const struct optim *o, uint32_t part, const struct optim_state *state,
                optim_each_fn *each, void *arg);
/* L2, over all parameters: sqrt(D + (S + more)). D: the squares of the blocks of the parameters that are
 * not sharded, in order. S: of the sharded parameters, over the shards in order; a shard: over the parameters in
 * order, over their blocks of 64 rows ascending. `more`: of parameters that are elsewhere. */
double optim_gradient_norm(const struct optim *o, double more);
bool optim_needs_norms(const struct optim *o);
void optim_measure(struct optim *o, uint32_t part, const struct optim_hyper *h,
                   const struct optim_state *state);
void optim_update(const struct optim *o, uint32_t part, const struct optim_hyper *h,
                  const struct optim_state *state);

/* ---- rows of a table ----
 * The steps of optim_update() for a caller that keeps only some rows of a table (lib/ps), with the
 * bits of optim_update(). `own`: the hyper-parameters of the table, from optim_own_hyper(). Of the
 * state, w, slots and average are used; `at` is the index of a float in them. */

/* Returns the hyper-parameters of a step for one parameter; the ratio of lars and lamb is 1. */
struct optim_hyper optim_own_hyper(const struct optim_hyper *h, double rate_factor,
                                   double weight_decay);
/* Does a step leave rows without a gradient unchanged? If false, every row needs a gradient, which
 * may be zero. */
bool optim_skips_rows(const struct optim_def *def, const struct optim_hyper *own, bool lazy);
/* Updates floats [at, at + n) with the gradients g [n]. */
void optim_update_range(const struct optim_def *def, const struct optim_hyper *own,
                        const struct optim_state *s, size_t at, size_t n, const float *g);
/* Updates n rows of `width` floats, of which row i begins at float at[i], with the gradients
 * g [n * width]. No two rows overlap. */
void optim_update_rows(const struct optim_def *def, const struct optim_hyper *own,
                       const struct optim_state *s, const size_t *at, size_t n, size_t width,
                       const float *g);
/* Moves the average of floats [at, at + n) towards the updated weights. */
void optim_move_average(const struct optim_state *s, size_t at, size_t n, double decay);

/* ---- learning rate ---- */
/* Rate of step t (from 1). */
double optim_rate(const struct optim_schedule *s, uint64_t t);
/* Sets the value that `cycles` names for step t: from the optimizer's own value along half a cosine
 * down to base_momentum at the peak of the rate, and up again (torch OneCycleLR with
 * cycle_momentum). */
void optim_cycle(const struct optim_schedule *s, uint64_t t, struct optim_hyper *h);
/* Records the loss of an evaluation after step t, once. Only a plateau schedule uses it. */
void optim_record_evaluation(struct optim_schedule *s, uint64_t t, double loss);
/* Linear scaling rule (Goyal et al. 2017): rate * batch / reference. */
double optim_scale_linear(double rate, uint64_t batch, uint64_t reference);
/* Square-root scaling rule (Krizhevsky 2014; You et al. 2020): rate * sqrt(batch / reference). */
double optim_scale_sqrt(double rate, uint64_t batch, uint64_t reference);

/* ---- norm ---- */
/* Sum of squares of n floats in OPTIM_BLOCK blocks: partial[i] is the double sum of block i of this
 * range, added in a fixed order. */
enum { OPTIM_BLOCK = 4096 };
void optim_square_sums(const float *g, size_t n, double *partial);
/* min(1, clip / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_; clip 0: 1. */
float optim_clip(double norm, double clip);
/* Limits each element to [-limit, limit]; a NaN remains. */
void optim_clamp(float *g, size_t n, float limit);

/* The sum of squares of a block in parts: element i of the block belongs to sum i mod OPTIM_SUMS.
 * Elements of zero may be left out. */
enum { OPTIM_SUMS = 16 };
/* Adds n elements of the block from element `at` on. */
void optim_square_add(double sums[OPTIM_SUMS], size_t at, const float *g, size_t n);
double optim_square_total(double sums[OPTIM_SUMS]);
/* Returns the sum of a block that consists of `period` rows, of which the `n` rows with the numbers rows[i] mod period
 * are not 0. period * width <= OPTIM_BLOCK. */
double optim_square_rows(const uint64_t *rows, size_t n, size_t width, size_t period,
                         const float *g);

#endif
