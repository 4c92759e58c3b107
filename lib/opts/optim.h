/* optim.h - what a job says about the optimizer: plain values, which lib/conf fills and lib/optim
 * reads. The algorithms: optim/optim.h. */
#ifndef OPTS_OPTIM_H
#define OPTS_OPTIM_H

#include <stdbool.h>
#include <stdint.h>

#include "opts/optim_list.h"

#define OPTIM_ENUMERATOR(NAME, ...) OPTIM_##NAME,
enum optim_type { OPTIM_LIST(OPTIM_ENUMERATOR) OPTIM_TYPES };
enum optim_schedule_type { OPTIM_SCHEDULE_LIST(OPTIM_ENUMERATOR) OPTIM_SCHEDULES };
#undef OPTIM_ENUMERATOR

struct optim_hyper { /* of one step; doubles are reduced to float coefficients once per parameter */
    double learning_rate, momentum, beta1, beta2, epsilon, weight_decay;
    double trust_coefficient; /* c of lars */
    bool nesterov, centered;
    uint64_t step;     /* t, from 1 */
    float grad_scale;  /* g is multiplied by this first: global-norm clipping; 1 for none */
    double trust;      /* lars, lamb: the ratio of this parameter; optim_update() fills it */
};

enum optim_cycled { OPTIM_CYCLES_NOTHING, OPTIM_CYCLES_MOMENTUM, OPTIM_CYCLES_BETA1 };

/* What evaluations have said so far; all zero before the first. Part of a checkpoint. */
struct optim_plateau {
    uint64_t step;       /* of the last evaluation that was counted */
    bool has_best;       /* false: no evaluation gave a number yet */
    double best;         /* lowest loss */
    uint32_t waited;     /* evaluations in a row that were no better */
    uint32_t reductions; /* so far */
};

/* With s the steps behind the warm-up, from 0, and u going from 0 at the last step of the warm-up (or
 * step 1) to 1 at total_steps, where it stays:
 *   step         rate * gamma^floor(s / step_size)
 *   exponential  rate * gamma^(s / step_size)                     (torch ExponentialLR with step_size 1)
 *   cosine       rate * (f + (1-f) (1 + cos(pi u)) / 2)
 *   polynomial   rate * (f + (1-f) (1-u)^power)                   (torch PolynomialLR with f = 0)
 *   inverse_square_root   rate * sqrt(W / t), W = max(warmup_steps, 1)     (Vaswani et al. 2017)
 *   one_cycle    half a cosine from rate * initial_fraction up to the rate, another one down to rate * f;
 *                the peak is at step rise * total_steps             (torch OneCycleLR; Smith and Topin 2018)
 *   plateau      times gamma for each `patience` + 1 evaluations in a row that did not bring the loss below
 *                best * (1 - threshold); never below rate * f       (torch ReduceLROnPlateau) */
struct optim_schedule {
    enum optim_schedule_type type;
    double learning_rate;  /* the peak, after scaling */
    uint64_t warmup_steps; /* linear from rate / warmup_steps at step 1 to the rate at step warmup_steps;
                              one_cycle: 0 */
    uint64_t total_steps;
    uint64_t step_size;
    double gamma;
    double final_fraction; /* f */
    double power;
    double initial_fraction, rise;
    enum optim_cycled cycles; /* the hyper-parameter that follows the rate of one_cycle */
    double base_momentum;  /* its value at the peak of the rate; 0 in a job: none follows the rate */
    double threshold;
    uint32_t patience;
    struct optim_plateau plateau; /* moved by optim_record_evaluation() alone */
};

/* What the learning rate of a job is multiplied by, as a function of the global batch size. */
enum optim_scaling_rule { OPTIM_SCALING_NONE, OPTIM_SCALING_LINEAR, OPTIM_SCALING_SQUARE_ROOT };

/* The optimizer of a job. */
struct optim_settings {
    enum optim_type type;
    struct optim_hyper hyper; /* learning_rate, step, grad_scale and trust are set in each step */
    struct optim_schedule schedule; /* total_steps is set when the data is known */
    struct {
        enum optim_scaling_rule rule;
        uint32_t reference_batch_size;
    } scaling;
    struct { /* exponential moving average of the weights */
        double decay;  /* 0: no average is kept */
        bool evaluate; /* evaluate the average, where there is one */
        bool exported; /* export the average, where there is one */
    } average;
};

#endif
