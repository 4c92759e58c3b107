/* settle.h - converts the flags, the cluster text, the job and the devices to the options of every
 * library. No library reads `struct conf`. */
#ifndef DAEMON_SETTLE_H
#define DAEMON_SETTLE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/lane_tree.h"
#include "base/location.h"
#include "base/ports.h"
#include "conf/cluster.h"
#include "conf/job.h"
#include "daemon/security.h"
#include "daemon/versions.h"
#include "device/device.h"
#include "train/train.h"

struct buf;
struct cuda_gpu;
struct err;
struct meeting;

struct settled_args { /* the flags of trainerd; borrowed */
    const char *job, *cluster, *hosts, *port, *task, *devices, *profile, *ignore_jobs, *bind, *pin;
    const char *trace, *trace_steps, *sample_log;
    bool require_cluster, allow_same_address, insecure;
};

/* The division of a global batch into lanes (micro-batches). */
struct settled_lanes {
    uint32_t n, global_batch; /* lanes; samples */
    struct lane_tree tree;    /* along which lanes are added */
    const char *from;         /* reason: "job" or "replicas of the full cluster" */
    char uneven[400]; /* which replicas have more lanes than others, and the remedy; "": none */
};

/* The arrays that `train` points to. */
struct settled_arrays {
    struct data_feature features[CONF_MAX_FEATURES];
    struct data_step *steps; /* owned: those of every feature, one after the other */
    struct train_target targets[1 + CONF_MAX_LOSSES];
    struct plan_measure losses[1 + CONF_MAX_LOSSES];
    struct train_metric metrics[CONF_MAX_METRICS];
    struct train_params groups[CONF_MAX_GROUPS];
    const char **frozen; /* owned: patterns of model.frozen and of frozen groups */
};

enum { SETTLED_LOSS = UINT32_MAX }; /* in place of an index into the metrics */

struct settled_evaluator {   /* an evaluator task; zeroed on other tasks */
    char directory[4096];    /* its state and the best checkpoint */
    char curves[4096];       /* "": none */
    uint32_t metric;         /* index into train.metrics, or SETTLED_LOSS: decides which is the best */
    const char *metric_name; /* "loss", "accuracy", ... */
    bool higher_is_better;
    bool keeps_best;
};

/* Constant after settle(); any thread may read it. */
struct settled {
    struct cluster *cluster; /* owned */
    struct meeting *meeting; /* owned; of rank 0 of tasks that met at MASTER_ADDR; NULL: none */
    struct conf *conf;       /* owned; NULL without a job */
    struct device devices[DEVICE_MAX]; /* of a ps task: [n_servers] cores of its service threads */
    uint32_t n_devices;                /* 0 on a ps task */
    uint32_t n_servers;                /* service threads of a ps task; 0 on other tasks */
    bool is_ps;                        /* this task is a ps task of a job with parameter servers */
    bool ps_unused;                    /* the job has parameter servers, and there is no cluster */
    const struct ps_settings *ps;      /* of the job; NULL: it uses no ps tasks. NULL on an evaluator */
    struct cuda_gpu *gpus;   /* owned; [n_devices]; NULL: CPUs */
    char kernels[256];       /* libraries, versions and instruction set that decide the bits */
    char protocol[VERSIONS_PROTOCOL_BYTES];
    char nccl[32];           /* version; "": CPUs */
    char devices_from[256];  /* reason: "--devices cpu:2", "auto: 2 of 3 cores, ..." */
    char over_quota[512];    /* more replicas than the processor quota keeps busy; "": none */
    bool is_chief;           /* rank 0: logs the steps */
    uint32_t replicas;       /* of the full cluster; 0 on a ps task */
    struct settled_lanes lanes;
    double learning_rate; /* peak, after scaling */
    bool balances;        /* this task moves lanes between tasks, if it leads */
    char balance[192];    /* "auto", or "off: " and why */
    char spare[192];      /* of spare lanes: "auto", "always", and where; or "off: " and why */
    char location[LOCATION_BYTES]; /* of this task; "": not known, or the job is "flat" */
    const char *location_from;     /* the name of a variable of the environment, or the reason for "" */
    uint32_t min_world;   /* training tasks that may continue without the others; default: all */
    struct security security;
    char task_name[64];      /* "worker 1"; "local" without a cluster */
    char listen[300];        /* host:port of the control plane; "" when local */
    bool binds_any;          /* --bind any: the host of `listen` is 0.0.0.0, which means every address, also IPv6 */
    /* owned; control ports of tasks that may be on this host, and that of this one: no data port */
    struct port_list control_ports;
    char trace[4096];        /* this task's file; "": none */
    char sample_log[4096];   /* likewise */
    struct settled_evaluator evaluator;
    struct settled_arrays arrays;
    struct train_opts train;
};

static inline bool settled_is_evaluator(const struct settled *s)
{
    return !s->cluster->is_local && s->cluster->self->type == CLUSTER_EVALUATOR;
}

/* Whether other hosts can reach the ports of this task. A task that does not train opens none. */
bool settled_is_exposed(const struct settled *s);

/* settle_lanes.c: the lanes (micro-batches) of a global batch, and which task computes which. */
/* Returns the largest number of samples that one of `replicas` replicas computes in a step; 0: lanes
 * or batch are not divisible. */
uint64_t settle_most_samples(const struct conf *c, uint64_t replicas);
int settle_lanes(struct settled *s, struct err *err);    /* Errors: ERR_INPUT, ERR_NOMEM */
struct lane_tree settle_lane_tree(const struct conf *c); /* of /train/lane_tree */
/* Returns why the task cannot know in which order the group divides the lanes; NULL: in the order of the cluster, until the
 * leader places tasks by measured links or moves lanes. */
const char *settled_order_unknown(const struct settled *s);
/* Returns the lanes of a task in the order of the cluster. */
void settled_task_lanes(const struct settled *s, uint32_t rank, uint32_t *first, uint32_t *n);
void settled_print_lanes(const struct settled *s, struct buf *out);

/* settle_balance.c: whether lanes move between tasks; after settle_lanes(). */
void settle_balance(struct settled *s);
void settle_spare(struct settled *s); /* whether spare lanes are possible; likewise */
void settled_print_balance(const struct settled *s, struct buf *out);

/* settle_location.c: where this task runs. Errors: ERR_INPUT. */
int settle_location(struct settled *s, struct err *err);
void settled_print_location(const struct settled *s, struct buf *out);

/* settle_ports.c: the control ports that the other ports of this task leave free. Errors: ERR_NOMEM. */
int settle_ports(struct settled *s, struct err *err);
bool settled_is_loopback(const char *host); /* localhost, or a literal address of the loopback interface */

/* settle_cluster.c: the cluster, for which the tasks may meet at MASTER_ADDR first. Errors: ERR_INPUT, ERR_IO, ERR_NOMEM. */
int settle_cluster(const struct settled_args *args, struct settled *s, struct err *err);

/* settle_loss.c: losses, metrics and their labels. */
int settle_losses(struct settled *s, struct err *err);
/* settle_data.c: the files, the features and their preprocessing. Errors: ERR_INPUT, ERR_NOMEM. */
int settle_data(struct settled *s, struct err *err);

/* settle_evaluator.c: the options of an evaluator task; nothing on other tasks. Errors: ERR_INPUT,
 * ERR_NOMEM. */
int settle_evaluator(struct settled *s, struct err *err);
void settled_print_evaluator(const struct settled *s, struct buf *out);

/* settle_outputs.c: refuses an export, a trace or a sample log in the place of something that is no regular file, of a file
 * that the job names as an input (by any path), or of another output. Errors: ERR_INPUT, ERR_NOMEM. */
int settle_outputs(const struct settled_args *args, const struct settled *s, struct err *err);
/* settle_outputs.c: refuses an output in the place of a file of the data. There may be many of these, on storage that hangs, so
 * settle() does not call it: the thread that opens model and data does, and --check. Errors: ERR_INPUT, ERR_NOMEM. */
int settle_outputs_and_data(const struct settled *s, struct err *err);

/* settle_ps.c: whether the job uses ps tasks, which then have ranks, and the role of this task. Errors:
 * ERR_INPUT. */
bool settle_is_ps_task(const struct settled *s); /* needs only the cluster */
int settle_ps(struct settled *s, struct err *err);
void settle_ps_options(struct settled *s); /* in place of lanes, losses and data */
void settled_print_ps(const struct settled *s, struct buf *out);
void settled_print_staleness(const struct settled *s, struct buf *out); /* nothing if it is 0 */

/* settle_phases.c: the phases of the job. `f`: of this task. */
void settled_print_phases(const struct settled *s, const struct train_facts *f, struct buf *out);

/* settle_gpu.c: models, driver and library versions of the GPUs. */
int settle_gpus(struct settled *s, struct err *err);
/* After the job was read. With /communication/deterministic, GPUs of one model are needed: in this task,
 * and, as the model becomes a part of s->kernels, in the group. Errors: ERR_INPUT. */
int settle_gpu_models(struct settled *s, struct err *err);
void settled_print_devices(const struct settled *s, struct buf *out);

/* Resolves everything. On success the caller owns *out. Errors: ERR_INPUT and other errors of the
 * configuration, for which the process exits with code 2. */
int settle(const struct settled_args *args, struct settled **out, struct err *err);
void settled_free(struct settled *s); /* NULL is fine */

/* Appends the resolved plan as JSON. `facts` may be NULL; `problem`: the error of model or data, or NULL. */
void settled_print(const struct settled *s, const struct train_facts *facts, const char *problem,
                   struct buf *out);

#endif
