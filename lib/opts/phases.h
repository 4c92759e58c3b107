/* phases.h - what a job says about its phases: plain values, which lib/conf fills and lib/train
 * reads. The steps of a job are divided into phases; a phase trains synchronously, or with local
 * SGD (DiLoCo): groups of lanes (micro-batches) train models of their own and average them at outer
 * steps. */
#ifndef OPTS_PHASES_H
#define OPTS_PHASES_H

#include <stdint.h>

enum train_mode {
    TRAIN_SYNC,      /* every step is reduced over all lanes */
    TRAIN_LOCAL_SGD, /* every step is reduced over the lanes of a group */
    TRAIN_ASYNC,     /* each task applies the gradient of its lanes by itself, within a bound (opts/ps.h) */
};

/* How many steps lie between two outer steps. */
enum train_sync_rule {
    /* max(base, floor((alpha / rate)^2)), with the learning rate of the first of these steps; in a
     * warm-up that of its end */
    TRAIN_SYNC_QUADRATIC,
};

enum train_outer_type { TRAIN_OUTER_NESTEROV };

enum train_inner_slots { /* the slots of the inner optimizer at an outer step */
    TRAIN_SLOTS_AVERAGE, /* the mean over the groups */
    TRAIN_SLOTS_RESET,   /* zero */
};

enum { TRAIN_MAX_PHASES = 64 };

struct train_phase {
    uint64_t until_step; /* the last step of the phase; 0: that of the job */
    enum train_mode mode;

    /* The rest is used by TRAIN_LOCAL_SGD alone. */
    uint32_t groups;     /* a power of two */
    uint32_t sync_every; /* steps of a period; 0: `rule` */
    struct {
        enum train_sync_rule rule;
        uint32_t base;
        double alpha;
    } sync_rule;
    struct {
        enum train_outer_type type;
        double learning_rate, momentum;
    } outer;
    enum train_inner_slots inner_slots;
};

#endif
