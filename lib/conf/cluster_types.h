/* cluster_types.h - a resolved cluster, the options of cluster_resolve(), and the task names. */
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
    /* chief first, then workers by index; CLUSTER_NO_RANK for an evaluator, and for ps before
     * cluster_use_ps() */
    uint32_t rank;
    const char *address; /* "host:port" or "[v6]:port", as written; NULL: not listed */
    const char *host;    /* without brackets and trailing dot */
    uint16_t port;
};

struct cluster_opts {
    enum cluster_profile profile;
    /* --cluster FILE, used in place of TF_CONFIG. "slurm": the SLURM_STEP_* variables (all tasks are
     * workers). "none": no cluster, also below a launcher of several tasks. NULL: TF_CONFIG. */
    const char *cluster_file;
    const char *hosts;   /* --hosts, used in place of TF_CONFIG: HOST or HOST:PORT,... by rank */
    const char *hosts_from;    /* the source of `hosts`, for messages; NULL: --hosts */
    const char *rank_variable; /* the only variable that has the index; NULL: any of a launcher */
    uint32_t first_port; /* --port: of the hosts of a launcher or of `hosts`; 0: 8888 */
    const char *task;        /* --task TYPE:INDEX, takes precedence over the text; NULL: not given */
    const char *ignore_jobs; /* --ignore-jobs a,b; NULL: none */
    const char *required_by; /* an absent cluster is an error that begins with this text; NULL: local mode */
    bool allow_same_address; /* several tasks may have the same address */
    const char *(*env)(void *arg, const char *name); /* as getenv(); never NULL */
    void *env_arg;
    const char *hostname; /* of this machine, for the trailing -<n>; NULL: not used */
};

struct cluster {
    struct arena mem; /* owns all memory below */
    bool is_local;    /* there is no cluster: one task, which opens no port */
    struct cluster_task *tasks; /* [n_tasks] by job name and index, as in the canonical form */
    uint32_t n_tasks;
    uint32_t world; /* number of training tasks: chiefs + workers; local: 1, dynamic ps: 0 */
    uint32_t n_ps;  /* number of ps tasks */
    uint32_t group; /* number of tasks with a rank: world, with cluster_use_ps() world + n_ps */
    struct cluster_task **ranks; /* [group] the training tasks by rank, then the ps tasks by index */
    struct cluster_task *self;   /* this task, never NULL; local: worker 0 without an address */
    /* This task is chief 0, or worker 0 of a cluster without a chief. tf profile: false on every task
     * if the job "chief" is named but empty. The coordinator is always ranks[0]. */
    bool is_chief;
    /* The source lists only this task and the ps tasks (Kubeflow's dynamic workers); the table and
     * the hash describe only those. */
    bool is_dynamic;
    const char *canonical; /* canonical JSON text, without evaluators */
    char hash[65];         /* SHA-256 of canonical, hex */
    const char *source;    /* "TF_CONFIG", the path of a file, "slurm", "--hosts", "Open MPI", "none" */
    /* "task.index", "--task", "SLURM_PROCID", "the host name", "the only entry", "none" (local) */
    const char *index_source;
    const char **notes; /* [n_notes] warnings and decisions for the log, in order */
    uint32_t n_notes;
    const char *ps_note; /* that of `notes` which says that ps tasks are not used; NULL: none */
};

/* Returns whether a launcher has set an index in the environment. Then a number in the name of this host is not an index. */
bool cluster_is_launched(const struct cluster_opts *opts);
/* Returns "chief", "worker", "ps" or "evaluator". */
const char *cluster_type_name(enum cluster_type t);
/* Sets *out to the type with that name. Returns false if there is none. */
bool cluster_type_find(const char *name, enum cluster_type *out);
/* Returns the type name most similar to `name`, for a hint in a message; NULL: none is similar. */
const char *cluster_type_nearest(const char *name);
/* Writes type and index, such as "worker 1", to the n bytes at `out`. Returns `out`. */
const char *cluster_task_name(const struct cluster_task *t, char *out, size_t n);

#endif
