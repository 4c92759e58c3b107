/* settle.h - from what was configured to what will be done: cluster, job and devices become the options of
 * every library. Here `struct conf` ends. */
#ifndef DAEMON_SETTLE_H
#define DAEMON_SETTLE_H

#include <stdbool.h>
#include <stdint.h>

#include "conf/cluster.h"
#include "conf/job.h"
#include "device/device.h"
#include "train/train.h"

struct buf;
struct cuda_gpu;
struct err;

struct settled_args { /* the flags of trainerd; borrowed */
    const char *job, *cluster, *hosts, *port, *task, *devices, *profile, *ignore_jobs, *bind;
    const char *trace, *trace_steps, *sample_log;
    bool require_cluster, allow_same_address;
};

struct settled {
    struct cluster *cluster; /* owned */
    struct conf *conf;       /* owned; NULL without a job */
    struct device devices[DEVICE_MAX];
    uint32_t n_devices;
    struct cuda_gpu *gpus;   /* owned; [n_devices]; NULL: CPUs */
    char kernels[256];       /* libraries, versions and instruction set that decide the bits */
    char nccl[32];           /* version; "": CPUs */
    char devices_from[96];   /* why: "--devices cpu:2", "auto: 2 of 3 cores, ..." */
    bool is_chief;           /* rank 0: logs the steps */
    uint32_t replicas;       /* of the full cluster */
    uint32_t lanes, global_batch;
    const char *lanes_from;  /* why: "job" or "replicas of the full cluster" */
    char uneven[320];        /* which replicas have more lanes than others, and the remedy; "": none */
    double learning_rate;    /* peak, after scaling */
    uint32_t min_world;      /* tasks that may go on by themselves; the whole cluster unless the job says less */
    char token[256];         /* "" : none */
    char task_name[64];      /* "worker 1"; "local" without a cluster */
    char listen[300];        /* host:port of the control plane; "" when local */
    char trace[4096];        /* this task's file; "": none */
    char sample_log[4096];   /* likewise */

    /* what train_opts points to */
    struct data_feature features[CONF_MAX_FEATURES];
    struct data_step *steps; /* owned: those of every feature, one behind the other */
    struct train_target targets[1 + CONF_MAX_LOSSES];
    struct plan_measure losses[1 + CONF_MAX_LOSSES];
    struct train_metric metrics[CONF_MAX_METRICS];
    struct train_params groups[CONF_MAX_GROUPS];
    const char **frozen; /* owned: patterns of model.frozen and of frozen groups */
    struct train_opts train;
};

/* settle_lanes.c: the lanes (micro-batches) of a global batch, and which task computes which. */
/* The samples of a step that the busiest of so many replicas computes; 0: lanes or batch do not divide. */
uint64_t settle_most_samples(const struct conf *c, uint64_t replicas);
int settle_lanes(struct settled *s, struct err *err);         /* Errors: ERR_INPUT, ERR_NOMEM */
void settled_task_lanes(const struct settled *s, uint32_t rank, uint32_t *first, uint32_t *n);
void settled_print_lanes(const struct settled *s, struct buf *out);

/* settle_loss.c: losses, metrics and their labels. */
int settle_losses(struct settled *s, struct err *err);
/* settle_data.c: where samples come from. Errors: ERR_INPUT, ERR_NOMEM. */
int settle_data(struct settled *s, struct err *err);

/* settle_gpu.c: what GPUs the devices are, and of which versions. */
int settle_gpus(struct settled *s, struct err *err);
void settled_print_devices(const struct settled *s, struct buf *out);

/* Errors: ERR_INPUT and relatives: exit 2. On failure nothing is left behind. */
int settle(const struct settled_args *args, struct settled **out, struct err *err);
void settled_free(struct settled *s); /* NULL is fine */

/* The resolved plan as JSON. `facts` may be NULL; `problem` is what is wrong with model or data, or NULL. */
void settled_print(const struct settled *s, const struct train_facts *facts, const char *problem,
                   struct buf *out);

#endif
