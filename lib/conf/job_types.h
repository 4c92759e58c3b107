/* job_types.h - a job: what the job file says, with every default. Read-only once it is made. */
#ifndef CONF_JOB_TYPES_H
#define CONF_JOB_TYPES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"

enum conf_dtype { CONF_FLOAT32, CONF_INT64, CONF_INT32, CONF_UINT8, CONF_UINT16, CONF_UINT32 }; /* stored */
enum conf_format { CONF_FORMAT_TFRECORD, CONF_FORMAT_CSV, CONF_FORMAT_NPY, CONF_FORMAT_TOKENS };
enum conf_loss {
    CONF_LOSS_SOFTMAX_CROSS_ENTROPY,
    CONF_LOSS_NEGATIVE_LOG_LIKELIHOOD,
    CONF_LOSS_BINARY_CROSS_ENTROPY,
    CONF_LOSS_MEAN_SQUARED_ERROR,
    CONF_LOSS_MEAN_ABSOLUTE_ERROR,
    CONF_LOSS_HUBER,
    CONF_LOSS_GRAPH, /* a number that the graph computes */
};
enum conf_metric {
    CONF_METRIC_ACCURACY,
    CONF_METRIC_TOP_K_ACCURACY,
    CONF_METRIC_PERPLEXITY,
    CONF_METRIC_AUC,
    CONF_METRIC_MEAN_ABSOLUTE_ERROR,
    CONF_METRIC_MEAN_SQUARED_ERROR,
};
enum conf_layout { CONF_CHANNELS_FIRST, CONF_CHANNELS_LAST };
enum conf_cache { CONF_CACHE_NONE, CONF_CACHE_MEMORY, CONF_CACHE_DISK };
enum conf_bad_record { CONF_BAD_STOP, CONF_BAD_SKIP };
enum conf_map_op {
    CONF_RANDOM_RESIZED_CROP,
    CONF_RANDOM_CROP,
    CONF_CENTER_CROP,
    CONF_FLIP,
    CONF_COLOR_JITTER,
    CONF_NORMALIZE,
};
enum conf_batch_norm { CONF_BATCH_NORM_ASK, CONF_BATCH_NORM_TRAIN, CONF_BATCH_NORM_FROZEN };
enum conf_map_when { CONF_MAP_TRAINING, CONF_MAP_EVALUATION, CONF_MAP_ALWAYS };
enum conf_remainder { CONF_REMAINDER_DROP, CONF_REMAINDER_PAD };
enum conf_precision {
    CONF_PRECISION_FLOAT32,
    CONF_PRECISION_TF32,
    CONF_PRECISION_BFLOAT16,
    CONF_PRECISION_FLOAT16,
};
enum conf_optimizer {
    CONF_SGD,
    CONF_MOMENTUM,
    CONF_ADAGRAD,
    CONF_RMSPROP,
    CONF_ADAM,
    CONF_ADAMW,
    CONF_ADAMAX,
    CONF_LARS,
    CONF_LAMB,
    CONF_LION,
};
enum conf_schedule {
    CONF_SCHEDULE_CONSTANT,
    CONF_SCHEDULE_STEP,
    CONF_SCHEDULE_COSINE,
    CONF_SCHEDULE_EXPONENTIAL,
    CONF_SCHEDULE_POLYNOMIAL,
    CONF_SCHEDULE_ONE_CYCLE,
    CONF_SCHEDULE_PLATEAU,
    CONF_SCHEDULE_INVERSE_SQUARE_ROOT,
};
enum conf_scaling { CONF_SCALING_NONE, CONF_SCALING_LINEAR, CONF_SCALING_SQUARE_ROOT };
enum conf_comm { CONF_COMM_AUTO, CONF_COMM_CPU, CONF_COMM_NCCL };
enum conf_non_finite { CONF_NON_FINITE_SKIP, CONF_NON_FINITE_STOP, CONF_NON_FINITE_RESTORE };
enum conf_log_level { CONF_LOG_DEBUG, CONF_LOG_INFO, CONF_LOG_WARN, CONF_LOG_ERROR };

enum { CONF_MAX_LOSSES = 16 }; /* beside the first */
/* Both 0: the system picks a port. */
struct conf_ports {
    uint32_t first, last;
};
enum conf_export_dtype { CONF_EXPORT_FLOAT32, CONF_EXPORT_BFLOAT16, CONF_EXPORT_FLOAT16 };
enum { CONF_MAX_RENAMES = 64 };
enum { CONF_MAX_DIMS = 8, CONF_MAX_FEATURES = 64, CONF_MAX_METRICS = 8, CONF_MAX_GROUPS = 64 };
enum { CONF_MAX_TABLES = 64 }; /* entries of model.padding_idx, of model.frozen_rows */

struct conf_feature {
    const char *name;  /* in tf.train.Example */
    enum conf_dtype dtype; /* how it is stored: uint8 raw in a bytes feature (one byte per element),
                              float32 in a float list (or raw little-endian bytes), int64 list,
                              int32 from an int64 list with a range check */
    uint32_t rank;
    uint32_t shape[CONF_MAX_DIMS]; /* of one sample */
    double scale, offset; /* value fed = stored * scale + offset, for float graph inputs */
    bool encoded;          /* a JPEG or PNG file in a bytes list */
    enum conf_layout layout;
    bool pad, truncate;
    double pad_value;
    const char *length_of, *segment_of, *position_of; /* NULL, or the feature that this is about; one of them */
    const char *row_lengths, *row_splits; /* NULL, or the feature that says where rows end; one of them */
    const char *column;    /* of a CSV file; NULL: the feature's name */
};

struct conf_map { /* a step of an image's way to the batch */
    enum conf_map_op op;
    const char *feature;
    enum conf_map_when when;
    double min_area, max_area, min_ratio, max_ratio;
    uint32_t padding;
    double fraction, probability, brightness, contrast, saturation, hue;
    double mean[4], std[4];
    uint32_t n_mean, n_std;
};

struct conf_part { /* of a mixture */
    const char *files; /* glob */
    uint32_t weight;
};

struct conf_input {
    const char *feature; /* left side: a key of data.features */
    const char *input;   /* right side: a graph input */
};

struct conf_rename { /* tensors that have other names in the file of weights */
    const char *graph, *file; /* each may have one '*' */
};

struct conf_group { /* parameters with numbers of their own */
    const char **match; /* fnmatch patterns */
    uint32_t n_match;
    double learning_rate_factor, weight_decay;
    bool layer_adaptation, lazy_rows, frozen;
};

struct conf_padding { /* of an embedding table; the name, a pattern, comes first */
    const char *match;
    uint32_t row;
};

struct conf_rows { /* of a tensor; the name, a pattern, comes first */
    const char *match;
    uint32_t *rows;
    uint32_t n;
};

struct conf_objective { /* a loss */
    enum conf_loss type;
    const char *tensor; /* graph output (or any tensor of the graph): logits, predictions, ... */
    const char *labels; /* a key of data.features; NULL for CONF_LOSS_GRAPH */
    double weight;      /* in the sum of all */
    double label_smoothing, pos_weight, delta;
    double ignore_index; /* a whole number; NaN: none */
    double *class_weights;
    uint32_t n_class_weights; /* 0: all 1 */
};

/* Paths are absolute, maps sorted by name. What the chosen type or rule does not use (momentum for
 * adam) is 0. */
struct conf {
    struct arena mem;      /* everything lives here */
    const char *path;      /* of the job file */
    const char *directory; /* that paths are relative to */
    const char *name;

    struct {
        const char *onnx;
        struct conf_input inputs[CONF_MAX_FEATURES];
        uint32_t n_inputs;
        struct conf_objective loss;
        struct conf_objective more_losses[CONF_MAX_LOSSES];
        uint32_t n_more_losses;
        uint32_t top_k; /* of top_k_accuracy */
        enum conf_metric metrics[CONF_MAX_METRICS];
        uint32_t n_metrics;
        const char *weights; /* a file of initial weights; NULL: the model's own */
        struct conf_rename weights_names[CONF_MAX_RENAMES];
        uint32_t n_weights_names;
        const char **weights_fresh; /* fnmatch patterns: may be absent from that file */
        uint32_t n_weights_fresh;
        const char **trainable; /* tensors that train whatever the file states, fnmatch patterns */
        uint32_t n_trainable;
        const char **frozen; /* tensors that do not train, fnmatch patterns */
        uint32_t n_frozen;
        struct conf_padding padding[CONF_MAX_TABLES];
        uint32_t n_padding;
        struct conf_rows frozen_rows[CONF_MAX_TABLES];
        uint32_t n_frozen_rows;
        enum conf_batch_norm batch_norm; /* what BatchNormalization in inference form means */
    } model;

    struct {
        enum conf_format format;
        const char *train; /* glob, resolved against the job's folder; NULL: a mixture is given */
        struct conf_part *mixture;
        uint32_t n_mixture;
        const char *eval;  /* NULL: none */
        struct conf_feature features[CONF_MAX_FEATURES];
        uint32_t n_features;
        const char *pack;       /* the feature that records are packed by; NULL: a sample is a record */
        struct conf_map *map;
        uint32_t n_map;
        struct {
            bool header;
            const char *delimiter; /* one character */
        } csv;
        bool shuffle;
        enum conf_bad_record on_bad_record;
        enum conf_cache cache;
        const char *cache_directory; /* with CONF_CACHE_DISK */
        enum conf_remainder remainder;
        uint32_t threads;         /* decode threads of a task; 0: chosen */
        uint32_t prefetch;        /* global batches decoded ahead */
        const char *index_directory; /* of record files, kept; NULL: only in memory */
    } data;

    struct {
        uint64_t seed;
        uint64_t epochs; /* 0: steps is given */
        uint64_t steps;  /* 0: epochs is given */
        uint32_t global_batch_size;      /* 0: per replica is given */
        uint32_t batch_size_per_replica; /* 0: global is given */
        uint32_t lanes;                  /* 0: the replicas of the full cluster */
        enum conf_precision precision;
        struct { /* zero unless precision is float16; powers of two */
            double initial_scale, min_scale, max_scale;
            uint32_t growth_interval; /* steps; 0: it does not grow */
        } loss_scale;
        double clip_norm, clip_value; /* 0: none */
        uint32_t eval_every_epochs; /* 0: only at the end */
        uint32_t log_every_steps;
        double deadline_seconds; /* every other deadline derives from it */
        double grace_seconds;    /* for the running step and an agreed save, after SIGTERM */
    } train;

    struct { /* when tasks are missing; not part of the digest: results do not depend on it */
        uint32_t min_world;    /* tasks; 0: the full cluster */
        double rejoin_seconds; /* so long a lost task is waited for; not above the deadline */
    } elastic;

    struct { /* how trouble is noticed; not part of the digest */
        double silent_seconds; /* a task unheard for so long is lost; below the deadline */
        double stuck_factor;   /* times the usual time of a phase; 0: the deadline alone counts, else >= 2 */
    } detection;

    struct {
        bool check_gradients;               /* replicas compare each reduced gradient */
        uint64_t check_weights_every_steps; /* and their weights so often; 0: never */
        enum conf_non_finite non_finite;    /* decides results, so it is part of the digest */
    } health;

    struct {
        enum conf_optimizer type;
        double learning_rate, momentum, beta1, beta2, epsilon, trust_coefficient, weight_decay;
        bool nesterov, centered;
        struct conf_group *groups;
        uint32_t n_groups;
        struct {
            double decay; /* 0: no average is kept */
            bool evaluate, export;
        } average;
        struct {
            enum conf_schedule type;
            uint64_t warmup_steps;
            uint64_t step_size; /* multiply by gamma every so many steps */
            double gamma;
            double final_fraction; /* ends at learning_rate * this */
            double power, initial_fraction, rise_fraction, threshold;
            double base_momentum; /* 0: the momentum stays */
            uint32_t patience;
        } schedule;
        struct {
            enum conf_scaling rule;
            uint32_t reference_batch_size;
        } scaling;
    } optimizer;

    struct {
        enum conf_comm implementation;
        bool shared_memory;     /* false: TCP also inside a host */
        const char *token_file; /* NULL: TRAINERD_TOKEN, or none */
        struct conf_ports data_port;
    } communication;

    struct {
        const char *directory; /* NULL: no checkpoints */
        uint64_t every_steps;  /* 0: not by step */
        double every_seconds;  /* 0: not by time */
        uint32_t max_to_keep;  /* 0: all */
        bool restart_from_scratch; /* where no checkpoint can be used */
    } checkpoint;

    struct {
        const char *directory; /* NULL: none */
    } summary;

    struct {
        enum conf_log_level level;
    } log;

    struct {
        const char *onnx;        /* NULL: none */
        const char *safetensors; /* NULL: none */
        enum conf_export_dtype dtype; /* of the floats in that file */
    } export;

    char digest[65]; /* SHA-256, hex, of what decides the result, evaluation included: all keys but
                        name, folders, log, deadlines, checkpoints and outputs, how trouble is noticed
                        and how many tasks may be missing, and how fast data and gradients move
                        (cache, threads, prefetch, shared memory). Of the paths to
                        model and data only the last part. Same digest = same run. */
};

#endif
