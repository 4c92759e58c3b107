/* train.h - what a job says about a run: plain values, which lib/conf fills and lib/train reads. */
#ifndef OPTS_TRAIN_H
#define OPTS_TRAIN_H

#include <stdbool.h>
#include <stdint.h>

#include "opts/data.h"
#include "opts/graph.h"
#include "opts/loss_list.h"
#include "opts/phases.h"
#include "opts/tensor.h"

#define TRAIN_LOSS_ENUMERATOR(NAME, ...) TRAIN_LOSS_##NAME,
enum train_loss_type { TRAIN_LOSS_LIST(TRAIN_LOSS_ENUMERATOR) TRAIN_LOSSES };
#undef TRAIN_LOSS_ENUMERATOR
#define TRAIN_METRIC_ENUMERATOR(NAME, ...) TRAIN_METRIC_##NAME,
enum train_metric_type { TRAIN_METRIC_LIST(TRAIN_METRIC_ENUMERATOR) TRAIN_METRICS };
#undef TRAIN_METRIC_ENUMERATOR
/* The columns "compares" and "tensor" of a loss. */
enum train_labels { TRAIN_CLASSES, TRAIN_SIDES, TRAIN_NUMBERS, TRAIN_NOTHING };
enum train_loss_tensor { TRAIN_LOGITS, TRAIN_LOG_PROBABILITIES, TRAIN_PREDICTIONS, TRAIN_OUTPUT };

enum train_class_axis { /* the axis of the classes in the tensor of a class loss */
    TRAIN_AXIS_AUTO,   /* determined by the shape of the labels; refused if that is ambiguous */
    TRAIN_AXIS_SECOND, /* [batch, classes, positions..] */
    TRAIN_AXIS_LAST,   /* [batch, positions.., classes] */
};

enum train_spare { /* spare lanes (comm/spare_lanes.h) */
    SPARE_OFF,
    SPARE_AUTO,   /* where gradients are not reduced while backward computes */
    SPARE_ALWAYS, /* gradients are reduced after backward, for spare lanes */
};

struct train_input { /* a feature that feeds a graph input */
    const char *feature, *input;
};

/* parameters with numbers of their own, by name; the first group that matches counts */
struct train_params {
    const char *const *match; /* fnmatch patterns; each must match a trained parameter */
    uint32_t n_match;
    double rate_factor; /* times the learning rate */
    double weight_decay;
    bool adapts; /* lars, lamb: with a ratio of norms */
    bool lazy;   /* tables: rows that a step does not read are left as they are; must match
                    tables alone, and the optimizer may need no norms */
};

struct train_rows {       /* rows of parameters, by name, that never change */
    const char *match;    /* an fnmatch pattern */
    const uint32_t *rows; /* [n], in any order */
    uint32_t n;
};

/* The model file, and what differs from it. */
struct train_model {
    const char *onnx;
    const struct train_input *inputs;
    uint32_t n_inputs;
    /* A file of initial weights in place of the model's (ckpt/weights.h); NULL: none. Read at every
     * start: the values of frozen parameters are in no checkpoint. */
    const char *weights;
    const struct graph_rename *weights_names; /* see struct graph_weights */
    uint32_t n_weights_names;
    const char *const *weights_fresh; /* fnmatch patterns, as all patterns here */
    uint32_t n_weights_fresh;
    const char *const *trainable; /* tensors that train whatever the file states */
    uint32_t n_trainable;
    const char *const *frozen; /* tensors that do not train */
    uint32_t n_frozen;
    const struct graph_padding *padding;
    uint32_t n_padding;
    const struct train_rows *frozen_rows;
    uint32_t n_frozen_rows;
    enum graph_norm batch_norm;
    const struct graph_rename *tied; /* `graph`: a second name of the tensor `file` of the module */
    uint32_t n_tied;
    const struct graph_table *tables;
    uint32_t n_tables;
};

/* Where the samples are, and how they are read. */
struct train_data {
    struct data_origin origin;
    const char *train; /* glob; with origin.parts for messages only */
    const char *eval;  /* glob; NULL: no evaluation */
    bool shuffle;
    bool pad;          /* fill the last batch of an epoch up; false: drop it */
    uint32_t threads;  /* decode threads of a task; 0: chosen */
    uint32_t prefetch; /* global batches decoded ahead */
};

/* Options of the job. All zero: no scaling; the scale is always 1. */
struct loss_scale_rule {
    double initial, min, max; /* powers of two, min <= initial <= max */
    uint32_t growth_interval; /* 0: the scale never grows */
};

struct train_run {
    uint64_t seed;
    uint64_t epochs, steps;            /* one of them is 0 */
    enum plan_precision precision;     /* of the plans */
    struct loss_scale_rule loss_scale; /* zero unless precision is PLAN_FLOAT16 */
    double clip_norm, clip_value;      /* the value first; 0: not */
    uint32_t eval_every_epochs;        /* 0: only at the end */
    const struct train_phase *phases; /* [n_phases] in order; none: all steps are synchronous */
    uint32_t n_phases;
    uint32_t log_every_steps; /* the gradient norm is computed at steps that this divides; 0: only for
                                 clipping */
};

struct train_health {
    bool check_gradients;               /* tasks and replicas compare each reduced gradient */
    uint64_t check_weights_every_steps; /* and tasks weights and optimizer state; 0: never */
    /* so many times as long as a phase of a step took lately is suspicious; 0: nothing is, else >= 2 */
    double stuck_factor;
    enum train_non_finite { /* a step whose loss or gradient is not finite */
        TRAIN_SKIP,         /* counts, and changes nothing; more than 10 in a row stop the job */
        TRAIN_STOP,         /* stops the job with the state before it */
        TRAIN_RESTORE,      /* sends everybody back to the newest checkpoint, or the beginning; at a
                               step for which they went back before, it stops the job */
    } non_finite;
};

struct train_checkpoint {
    const char *directory; /* member 0 of a group reads and writes there; NULL: no checkpoints */
    uint64_t every_steps;  /* 0: not by step */
    double every_seconds;  /* 0: not by time */
    uint32_t max_to_keep;  /* 0: all */
    /* at step 0 where checkpoints exist and none can be used; false: ERR_INPUT */
    bool restart_from_scratch;
};

struct train_export {
    const char *onnx;        /* NULL: none */
    const char *safetensors; /* the module's tensors alone; NULL: none */
    enum tensor_dtype dtype; /* of the floats in that file: TENSOR_F32, TENSOR_BF16 or TENSOR_F16 */
};

#endif
