/* job_types.h - a job: the values of the job file, and the defaults of absent keys. Read-only after
 * it is created. The units and the meaning of each key are documented in job_keys.c. */
#ifndef CONF_JOB_TYPES_H
#define CONF_JOB_TYPES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "opts/optim.h"

/* stored */
enum conf_dtype { CONF_FLOAT32, CONF_INT64, CONF_INT32, CONF_UINT8, CONF_UINT16, CONF_UINT32 };
enum conf_format { CONF_FORMAT_TFRECORD, CONF_FORMAT_CSV, CONF_FORMAT_NPY, CONF_FORMAT_TOKENS };
enum conf_loss {
    CONF_LOSS_SOFTMAX_CROSS_ENTROPY,
    CONF_LOSS_NEGATIVE_LOG_LIKELIHOOD,
    CONF_LOSS_BINARY_CROSS_ENTROPY,
    CONF_LOSS_MEAN_SQUARED_ERROR,
    CONF_LOSS_MEAN_ABSOLUTE_ERROR,
    CONF_LOSS_HUBER,
    CONF_LOSS_GRAPH, /* computed by the graph */
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
enum conf_comm { CONF_COMM_AUTO, CONF_COMM_CPU, CONF_COMM_NCCL };
enum conf_non_finite { CONF_NON_FINITE_SKIP, CONF_NON_FINITE_STOP, CONF_NON_FINITE_RESTORE };
enum conf_log_level { CONF_LOG_DEBUG, CONF_LOG_INFO, CONF_LOG_WARN, CONF_LOG_ERROR };

enum { CONF_MAX_LOSSES = 16 }; /* in addition to the first */
/* A range of TCP ports, both ends included. Both 0: the system chooses a port. */
struct conf_ports {
    uint32_t first, last;
};
enum conf_export_dtype { CONF_EXPORT_FLOAT32, CONF_EXPORT_BFLOAT16, CONF_EXPORT_FLOAT16 };
enum { CONF_MAX_RENAMES = 64 };
enum { CONF_MAX_DIMS = 8, CONF_MAX_FEATURES = 64, CONF_MAX_METRICS = 8, CONF_MAX_GROUPS = 64 };
enum { CONF_MAX_TABLES = 64 }; /* entries of model.padding_idx, and of model.frozen_rows */

struct conf_feature {
    const char *name; /* in tf.train.Example */
    /* Storage type. uint8: raw bytes in a bytes list, one per element; float32: a float list, or
     * raw little-endian bytes; int64: an int64 list; int32: an int64 list with a range check. */
    enum conf_dtype dtype;
    uint32_t rank;
    uint32_t shape[CONF_MAX_DIMS]; /* [rank] of one sample */
    double scale, offset;          /* a float graph input receives stored * scale + offset */
    bool encoded;                  /* a JPEG or PNG file in a bytes list */
    enum conf_layout layout;
    bool pad, truncate;
    double pad_value;
    /* The feature from which this one is derived, or that has its row lengths. At most one of the
     * five is not NULL. */
    const char *length_of, *segment_of, *position_of;
    const char *row_lengths, *row_splits;
    const char *column; /* of a CSV file; NULL: the feature's name */
};

struct conf_map { /* an operation on images */
    enum conf_map_op op;
    const char *feature;
    enum conf_map_when when;
    double min_area, max_area, min_ratio, max_ratio;
    uint32_t padding;
    double fraction, probability, brightness, contrast, saturation, hue;
    double mean[4], std[4];
    uint32_t n_mean, n_std;
};

struct conf_part { /* a set of files of a mixture */
    const char *files; /* glob */
    uint32_t weight;
};

struct conf_input {
    const char *feature; /* left side: a key of data.features */
    const char *input;   /* right side: a graph input */
};

struct conf_rename { /* tensors with other names in the file of weights */
    const char *graph, *file; /* either both have one '*' or none */
};

struct conf_group { /* parameters with their own settings */
    const char **match; /* fnmatch patterns */
    uint32_t n_match;
    double learning_rate_factor, weight_decay;
    bool layer_adaptation, lazy_rows, frozen;
};

struct conf_padding { /* padding row of an embedding table */
    const char *match; /* fnmatch pattern over names */
    uint32_t row;
};

struct conf_rows { /* rows of a tensor */
    const char *match; /* fnmatch pattern over names */
    uint32_t *rows;    /* [n] */
    uint32_t n;
};

struct conf_objective { /* a loss */
    enum conf_loss type;
    const char *tensor; /* graph output (or any tensor of the graph): logits, predictions, ... */
    const char *labels; /* a key of data.features; NULL for CONF_LOSS_GRAPH */
    double weight;      /* in the sum of all losses */
    double label_smoothing, pos_weight, delta;
    double ignore_index;      /* an integer; NaN: none */
    double *class_weights;    /* [n_class_weights] */
    uint32_t n_class_weights; /* 0: every weight is 1 */
};

/* Paths are absolute; maps are sorted by name. A value that the chosen type or rule does not use
 * (such as the momentum of adam) is 0. */
struct conf {
    struct arena mem;      /* owns all memory below */
    const char *path;      /* of the job file, as given */
    const char *directory; /* of the job file, absolute; relative paths start there */
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
        const char *weights; /* file of initial weights; NULL: those of the model */
        struct conf_rename weights_names[CONF_MAX_RENAMES];
        uint32_t n_weights_names;
        /* tensors that may be absent from that file, fnmatch patterns */
        const char **weights_fresh;
        uint32_t n_weights_fresh;
        const char **trainable; /* tensors trained regardless of the file, fnmatch patterns */
        uint32_t n_trainable;
        const char **frozen; /* tensors that are not trained, fnmatch patterns */
        uint32_t n_frozen;
        struct conf_padding padding[CONF_MAX_TABLES];
        uint32_t n_padding;
        struct conf_rows frozen_rows[CONF_MAX_TABLES];
        uint32_t n_frozen_rows;
        enum conf_batch_norm batch_norm; /* how BatchNormalization in inference form is trained */
    } model;

    struct {
        enum conf_format format;
        const char *train; /* glob; NULL: a mixture is given */
        struct conf_part *mixture;
        uint32_t n_mixture;
        const char *eval; /* glob; NULL: no evaluation */
        struct conf_feature features[CONF_MAX_FEATURES];
        uint32_t n_features;
        /* feature whose length determines the packing; NULL: a sample is a record */
        const char *pack;
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
        uint32_t threads;            /* decode threads of a task; 0: depends on the processors */
        uint32_t prefetch;           /* global batches decoded in advance */
        const char *index_directory; /* for the indexes of record files; NULL: only in memory */
    } data;

    struct {
        uint64_t seed;
        uint64_t epochs;                 /* 0: steps is given */
        uint64_t steps;                  /* 0: epochs is given */
        uint32_t global_batch_size;      /* samples; 0: batch_size_per_replica is given */
        uint32_t batch_size_per_replica; /* samples; 0: global_batch_size is given */
        /* lanes (micro-batches) of a global batch; 0: replicas of the full cluster */
        uint32_t lanes;
        enum conf_precision precision;
        struct { /* powers of two; 0 unless precision is float16 */
            double initial_scale, min_scale, max_scale;
            uint32_t growth_interval; /* steps; 0: the scale does not grow */
        } loss_scale;
        double clip_norm, clip_value; /* 0: no clipping */
        uint32_t eval_every_epochs;   /* 0: only at the end */
        uint32_t log_every_steps;
        double deadline_seconds; /* every other deadline derives from it */
        double grace_seconds;    /* for the running step and the save after SIGTERM */
    } train;

    /* while tasks are missing; not part of the digest, because results do not depend on it */
    struct {
        uint32_t min_world;    /* tasks; 0: the full cluster */
        double rejoin_seconds; /* wait for a lost task; at most deadline_seconds */
    } elastic;

    struct { /* detection of failures; not part of the digest */
        /* a task that sends nothing for this time is lost; below the deadline */
        double silent_seconds;
        /* limit of a phase, in its usual time, >= 2; 0: only the deadline applies */
        double stuck_factor;
    } detection;

    struct {
        bool check_gradients;               /* replicas compare each reduced gradient */
        uint64_t check_weights_every_steps; /* 0: never */
        enum conf_non_finite non_finite;    /* changes results, so it is part of the digest */
    } health;

    struct optim_settings optimizer;
    struct conf_group *groups; /* of parameters */
    uint32_t n_groups;

    struct {
        enum conf_comm implementation;
        bool shared_memory;     /* false: TCP also between tasks of one host */
        const char *token_file; /* NULL: the environment variable TRAINERD_TOKEN, or no token */
        struct conf_ports data_port;
    } communication;

    struct {
        const char *directory;     /* NULL: no checkpoints */
        uint64_t every_steps;      /* 0: not by step */
        double every_seconds;      /* 0: not by time */
        uint32_t max_to_keep;      /* checkpoints; 0: all */
        bool restart_from_scratch; /* if all checkpoints are damaged; false: that is an error */
    } checkpoint;

    struct {
        const char *directory; /* NULL: none */
    } summary;

    struct {
        enum conf_log_level level;
    } log;

    struct {
        const char *onnx;             /* NULL: none */
        const char *safetensors;      /* NULL: none */
        enum conf_export_dtype dtype; /* of the floating-point tensors in that file */
    } export;

    /* SHA-256, hex, of the keys that determine the result, including evaluation. Equal digests mean
     * equal results. Not included: name, folders, log, deadlines, checkpoints and outputs,
     * detection and elastic, and the keys that only change the speed (cache, threads, prefetch,
     * shared memory). Of the paths of model and data only the last part is included. */
    char digest[65];
};

#endif
