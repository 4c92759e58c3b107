/* cluster.h - who is in the cluster and who am I: TF_CONFIG and its relatives.
 *
 * One call turns the environment, a file and flags into a resolved cluster. Two profiles: strict
 * (default: anything doubtful is refused, with JSON pointer, line:column and remedy) and tf
 * (accepts what TensorFlow 2's MultiWorkerMirroredStrategy accepts). Nothing here looks at the real
 * environment: it is handed over, so that a test states it. Decisions worth a log line come back
 * as notes; the caller logs them. Threads: one at a time.
 *
 * Which task am I: --task, else the text's task. Where neither has an index it comes from a
 * launcher: OMPI_COMM_WORLD_RANK, PMI_RANK, PMIX_RANK, SLURM_PROCID, or the n of a host name
 * ending in -<n> (not with "slurm", where node numbers mean nothing). It counts over the training
 * tasks by rank (chief first when there is one, then workers); if the text has a type and only
 * lacks the index, over the tasks of that type. Two that disagree are refused; a host name whose
 * number is no index is ignored with a note. A cluster of one entry needs none of this. */
#ifndef CONF_CLUSTER_H
#define CONF_CLUSTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"

struct err;
struct buf;

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

/* On success the caller owns *out (cluster_free). Errors: ERR_INPUT (also a --cluster file that is
 * not there), ERR_NOMEM, ERR_IO. */
int cluster_resolve(const struct cluster_opts *opts, struct cluster **out, struct err *err);
void cluster_free(struct cluster *c);

const char *cluster_type_name(enum cluster_type t); /* "chief", "worker", "ps", "evaluator" */
/* "worker 1" (returns out). */
const char *cluster_task_name(const struct cluster_task *t, char *out, size_t n);
/* The resolved cluster as a JSON object, for --check. */
void cluster_print(const struct cluster *c, struct buf *out);

/* n1 n2 m5 from `n[1-2],m5` (zero padding kept); the counts from `3(x2),2`. The arrays live in
 * `mem`. Bounded: more than 65536 names is ERR_INPUT. */
int cluster_slurm_nodes(const char *list, struct arena *mem, const char ***names, uint32_t *n,
                        struct err *err);
int cluster_slurm_counts(const char *list, struct arena *mem, uint32_t **counts, uint32_t *n,
                         struct err *err);

#endif
