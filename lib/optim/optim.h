/* optim.h - optimizers as rows of a table, and schedules as pure functions of the step.
 *
 * An optimizer sweeps a flat range of floats: weights, gradients and its slots have one layout, so
 * replicas of a process update disjoint parts of one state. Element-wise: the bits do not depend
 * on how the range is cut.
 *
 * With w weight, g gradient (of the mean loss, after clipping), a learning rate, d weight decay, t step from 1:
 *   sgd       g += d w;  w -= a g                                            (torch.optim.SGD)
 *   momentum  g += d w;  v = m v + g;  w -= a v                              (torch.optim.SGD, momentum=m, dampening=0)
 *   adam      g += d w;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2;
 *             w -= a / (1-b1^t) m / (sqrt(v) / sqrt(1-b2^t) + eps)           (torch.optim.Adam; Kingma and Ba 2015)
 *   adamw     w -= a d w;  then as adam without d                            (torch.optim.AdamW; Loshchilov and Hutter 2019)
 * Threads: pure; the caller says who sweeps which range. */
#ifndef OPTIM_OPTIM_H
#define OPTIM_OPTIM_H

#include <stddef.h>
#include <stdint.h>

struct err;

enum { OPTIM_MAX_SLOTS = 4 };

struct optim_hyper { /* of one step; doubles are reduced to float coefficients once per sweep */
    double learning_rate, momentum, beta1, beta2, epsilon, weight_decay;
    uint64_t step;     /* t, from 1 */
    float grad_scale;  /* g is multiplied by this first: global-norm clipping; 1 for none */
};

struct optim_def {
    const char *name;
    uint32_t n_slots;
    const char *slots[OPTIM_MAX_SLOTS]; /* names in a checkpoint: "momentum", "exp_avg", "exp_avg_sq" */
    void (*sweep)(const struct optim_hyper *h, size_t n, float *w, const float *g,
                  float *const slots[OPTIM_MAX_SLOTS]);
};

const struct optim_def *optim_find(const char *name); /* NULL: none of that name */
const struct optim_def *const *optim_all(size_t *n);

/* ---- learning rate ---- */
enum optim_schedule_type { OPTIM_CONSTANT, OPTIM_STEP, OPTIM_COSINE };
struct optim_schedule {
    enum optim_schedule_type type;
    double learning_rate;  /* the peak, after scaling */
    uint64_t warmup_steps; /* linear from rate / warmup_steps at step 1 to the rate at step warmup_steps */
    uint64_t total_steps;  /* cosine ends here */
    uint64_t step_size;    /* step: times gamma every step_size steps, counted behind the warm-up */
    double gamma;
    double final_fraction; /* cosine: rate * (f + (1-f) (1 + cos(pi u)) / 2); u goes from 0 at the last
                              step of the warm-up (or step 1) to 1 at step total_steps, and stays */
};
/* Rate of step t (from 1). */
double optim_rate(const struct optim_schedule *s, uint64_t t);
/* Linear scaling rule (Goyal et al. 2017): rate * batch / reference. */
double optim_scale_linear(double rate, uint64_t batch, uint64_t reference);

/* ---- norm ---- */
/* Sum of squares of n floats in OPTIM_BLOCK blocks: partial[i] is the double sum of block i of this
 * range, added in a fixed order. Cut ranges at multiples of OPTIM_BLOCK and the norm over all
 * partials, added in order, has the same bits whoever computed which. */
enum { OPTIM_BLOCK = 4096 };
void optim_square_sums(const float *g, size_t n, double *partial);
double optim_norm(const double *partial, size_t n_blocks); /* square root of the ordered sum */
/* min(1, clip / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_; clip 0: 1. */
float optim_clip(double norm, double clip);

#endif
