/* cluster_types.h - a resolved cluster, and the names of its tasks. */
#ifndef CONF_CLUSTER_TYPES_H
#define CONF_CLUSTER_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"

enum cluster_type { CLUSTER_CHIEF, CLUSTER_WORKER, CLUSTER_PS, CLUSTER_EVALUATOR, CLUSTER_TYPES };
enum cluster_profile { CLUSTER_STRICT, CLUSTER_TF };
enum { CLUSTER_NO_RANK = UINT32_MAX };

struct cluster_task {
    enum cluster_type type;
    uint32_t index;
    uint32_t rank;       /* chief first, then workers by index; CLUSTER_NO_RANK for ps, evaluator */
    const char *address; /* as written: "host:port", "[v6]:port"; NULL: an evaluator not listed */
    const char *host;    /* without brackets and trailing dot */
    uint16_t port;
};

struct cluster_opts {
    enum cluster_profile profile;
    const char *cluster_file;  /* --cluster FILE: replaces TF_CONFIG; "slurm": from the SLURM_STEP_*
                                  variables (all are workers, ports from 8888); NULL: TF_CONFIG */
    const char *task;          /* --task TYPE:INDEX, wins over the text; NULL */
    const char *ignore_jobs;   /* --ignore-jobs a,b; NULL */
    bool require_cluster;      /* unset or empty is an error */
    bool allow_same_address;   /* several tasks may name one address */
    const char *(*env)(void *arg, const char *name); /* getenv, or the test's */
    void *env_arg;
    const char *hostname;      /* of this machine, for the trailing -<n>; NULL: none */
};

struct cluster {
    struct arena mem;            /* everything below lives here */
    bool is_local;               /* no cluster: one task, no port opened */
    struct cluster_task *tasks;  /* sorted by (job name, index), as in the canonical form */
    uint32_t n_tasks;
    uint32_t world;              /* training tasks listed: chiefs + workers; 1 when local, 0 for a
                                    dynamic ps */
    struct cluster_task **ranks; /* [world], by rank */
    struct cluster_task *self;   /* never NULL; when local a made-up worker 0 without address */
    bool is_chief;               /* of the training group: chief 0, or worker 0 without a chief. In
                                    the tf profile nobody, if the job "chief" is named but empty:
                                    who coordinates is ranks[0] in every case */
    bool is_dynamic;             /* "my address and the ps list" (Kubeflow's dynamic workers): the
                                    table and its hash are of this task only */
    const char *canonical;       /* the canonical JSON text that is hashed; without evaluators */
    char hash[65];               /* SHA-256 of canonical, hex */
    const char *source;          /* "TF_CONFIG", a file's path, "slurm", "none" */
    const char *index_source;    /* "task.index", "--task", "SLURM_PROCID", "the host name", "the
                                    only entry", "none" (local) */
    const char **notes;          /* warnings and choices for the log, in order */
    uint32_t n_notes;
};

const char *cluster_type_name(enum cluster_type t); /* "chief", "worker", "ps", "evaluator" */
/* Sets *out to the type of that name; false: no type has it. */
bool cluster_type_find(const char *name, enum cluster_type *out);
/* The name most similar to `name`, for a hint in a message; NULL: none is similar. */
const char *cluster_type_nearest(const char *name);
/* "worker 1" (returns out). */
const char *cluster_task_name(const struct cluster_task *t, char *out, size_t n);

#endif
