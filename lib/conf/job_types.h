/* job_types.h - a job: the values of the job file, and the defaults of absent keys. Read-only after
 * it is created. The units and the meaning of each key are documented in job_keys_*.c and in
 * lib/opts. */
#ifndef CONF_JOB_TYPES_H
#define CONF_JOB_TYPES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/lane_tree.h"
#include "base/log.h"
#include "opts/advice.h"
#include "opts/code.h"
#include "opts/data.h"
#include "opts/optim.h"
#include "opts/ps.h"
#include "opts/train.h"

enum conf_map_when { CONF_MAP_TRAINING, CONF_MAP_EVALUATION, CONF_MAP_ALWAYS };
enum conf_balance { CONF_BALANCE_AUTO, CONF_BALANCE_OFF };
enum conf_topology { CONF_TOPOLOGY_AUTO, CONF_TOPOLOGY_LABELS, CONF_TOPOLOGY_FLAT };
enum conf_comm { CONF_COMM_AUTO, CONF_COMM_CPU, CONF_COMM_NCCL };

enum conf_best { CONF_BEST_AUTO, CONF_BEST_MIN, CONF_BEST_MAX };

enum { CONF_MAX_LOSSES = 16 }; /* in addition to the first */
/* A range of TCP ports, both ends included. Both 0: the system chooses a port. */
struct conf_ports {
    uint32_t first, last;
};
enum { CONF_MAX_RENAMES = 64 };
enum { CONF_MAX_FEATURES = 64, CONF_MAX_METRICS = 8, CONF_MAX_GROUPS = 64 };
enum { CONF_MAX_TABLES = 64 }; /* entries of model.padding_idx, and of model.frozen_rows */

struct conf_feature {
    struct data_feature data; /* without `derived`, `rows` and the features that these name */
    /* The feature from which this one is derived, or that has its row lengths. At most one of the
     * five is not NULL. */
    const char *length_of, *segment_of, *position_of;
    const char *row_lengths, *row_splits;
};

struct conf_map { /* an operation on images */
    struct data_step step; /* without in_training and in_evaluation, which follow from `when` */
    const char *feature;
    enum conf_map_when when;
    uint32_t n_mean, n_std; /* of step.mean and step.std */
};

struct conf_group { /* parameters with their own settings */
    struct train_params params;
    bool frozen;
};

struct conf_objective { /* a loss */
    enum train_loss_type type;
    const char *tensor; /* graph output (or any tensor of the graph): logits, predictions, ... */
    const char *labels; /* a key of data.features; NULL for TRAIN_LOSS_GRAPH */
    double weight;      /* in the sum of all losses */
    double label_smoothing, pos_weight, delta;
    double ignore_index;      /* an integer; NaN: none */
    enum train_class_axis class_axis;
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

    struct train_model model;
    struct { /* the rest of the key "model" */
        struct conf_objective loss;
        struct conf_objective more_losses[CONF_MAX_LOSSES];
        uint32_t n_more_losses;
        uint32_t top_k; /* of top_k_accuracy */
        enum train_metric_type metrics[CONF_MAX_METRICS];
        uint32_t n_metrics;
    } objective;

    struct train_data data;
    struct { /* the rest of the key "data" */
        struct conf_feature features[CONF_MAX_FEATURES];
        uint32_t n_features;
        struct conf_map *map; /* [n_map] */
        uint32_t n_map;
        const char *csv_delimiter; /* one character */
    } samples;

    struct train_run run;
    struct {                             /* the rest of the key "train" */
        uint32_t global_batch_size;      /* samples; 0: batch_size_per_replica is given */
        uint32_t batch_size_per_replica; /* samples; 0: global_batch_size is given */
        /* lanes (micro-batches) of a global batch; 0: replicas of the full cluster */
        uint32_t lanes;
        uint32_t lane_tree[LANE_TREE_FACTORS], n_lane_tree; /* branching factors; 0: none are given */
        double deadline_seconds; /* every other deadline derives from it */
        double grace_seconds;    /* for the running step and the save after SIGTERM */
    } train;

    /* while tasks are missing, or unequally fast; not part of the digest, because results do not depend on
       it */
    struct {
        uint32_t min_world;    /* tasks; 0: the full cluster */
        double rejoin_seconds; /* wait for a lost task; at most deadline_seconds */
        enum conf_balance balance;
        double balance_gain;    /* least part of a step that a move of lanes is predicted to save */
        double balance_seconds; /* least time between two moves */
        enum train_spare spare;
    } elastic;

    struct { /* detection of failures; not part of the digest */
        /* a task that sends nothing for this time is lost; below the deadline */
        double silent_seconds;
    } detection; /* its stuck_factor is in health */

    double preflight_seconds; /* limit of the measurement before the first generation; 0: none */

    struct train_health health; /* non_finite changes results, so it is part of the digest */
    struct advice_limits advice; /* /health/advice; not part of the digest */

    struct optim_settings optimizer;
    struct conf_group *groups; /* of parameters */
    uint32_t n_groups;

    bool has_ps;           /* the job uses the ps tasks of the cluster */
    struct ps_settings ps; /* zeroed without has_ps */

    struct {
        enum conf_comm implementation;
        enum conf_topology topology;
        bool deterministic;     /* GPUs add along the tree over lanes; CPUs always do */
        bool shared_memory;     /* false: TCP also between tasks of one host */
        const char *token_file; /* NULL: the environment variable TRAINERD_TOKEN, or no token */
        bool encrypt;           /* false: gradients travel in clear text, even with certificates */
        const char *tls;        /* folder with certificates; NULL: TRAINERD_TLS, or none */
        struct conf_ports data_port;
        bool has_compression;
        struct code_settings code; /* zeroed without has_compression, or if the code is "none" */
    } communication;

    struct train_checkpoint checkpoint;

    struct { /* of evaluator tasks; not part of the digest */
        enum train_metric_type metric; /* TRAIN_METRICS: the loss */
        enum conf_best mode;
        bool keep_best;
        const char *directory; /* NULL: "best" beside checkpoint.directory */
    } evaluator;

    struct {
        const char *directory; /* NULL: none */
    } summary;

    struct {
        enum log_level level;
    } log;

    struct train_export export;

    /* SHA-256, hex, of the keys that determine the result, including evaluation. Equal digests mean
     * equal results. Not included: name, folders, log, deadlines, checkpoints and outputs,
     * detection and elastic, and the keys that only change the speed (cache, threads, prefetch,
     * shared memory). Of the paths of model and data only the last part is included. */
    char digest[65];
};

#endif
