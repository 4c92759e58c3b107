/* cluster_draft.h - a cluster while it is resolved, and the helpers of every step.
 *
 *   cluster.c          calls the steps in order and creates the finished table
 *   cluster_read.c     JSON text -> draft: jobs, addresses as written, description of this task
 *   cluster_int.c      converts an index: a plain decimal, or whatever Python's int() accepts
 *   cluster_self.c     draft -> type and index of this task
 *   cluster_launcher.c the index that mpirun, srun or a pod's host name defines
 *   cluster_jobs.c     checks jobs and indices, and recognises the dynamic form
 *   cluster_address.c  host and port of every entry
 *   cluster_slurm.c    SLURM_STEP_* -> draft
 *   cluster_slurm_order.c  the node of each task of a Slurm step
 *   cluster_hosts.c    a list of hosts -> draft
 *   cluster_size.c     several tasks of a launcher without a cluster -> draft, or a refusal
 *   cluster_master.c   the variables of torchrun -> where rank 0 collects the addresses
 *   cluster_print.c    canonical text, hash, --check
 *
 * cluster.c includes the headers of the steps; a step includes this header and never cluster.h. */
#ifndef CONF_CLUSTER_DRAFT_H
#define CONF_CLUSTER_DRAFT_H

#include "base/json.h"
#include "base/vec.h"
#include "conf/cluster_types.h"

struct err;

enum {
    CLUSTER_MAX_INDEX = INT32_MAX, /* as TensorFlow's ClusterDef */
    CLUSTER_MAX_SLURM = 65536,     /* nodes, counts or tasks of one Slurm step */
};

struct cluster_entry {
    struct cluster_task task; /* host, port and rank are set by the last steps */
    const cJSON *at;          /* JSON value of the address; NULL: not from JSON */
};

/* The description of this task in the text. */
struct cluster_text_task {
    const cJSON *at;       /* the value of "task"; NULL: absent */
    const cJSON *type_at;  /* NULL: absent */
    const cJSON *index_at; /* NULL: absent */
    const char *type;      /* NULL: absent, or not a string */
    int64_t index;         /* its range is not checked yet */
};

struct cluster_draft {
    const struct cluster_opts *opts;
    struct cluster *c; /* the result; its arena owns all strings */
    struct json *doc;  /* NULL: not from JSON */
    const char *label; /* the source, for messages */
    bool has_cluster;  /* the source names at least one job */
    VEC(struct cluster_entry) entries;
    bool has_job[CLUSTER_TYPES];     /* the source names the job, possibly without entries */
    const cJSON *job[CLUSTER_TYPES]; /* JSON value of the job; NULL: absent, or not from JSON */
    uint32_t count[CLUSTER_TYPES];   /* entries of the job */
    struct cluster_text_task text_task;
    enum cluster_type type; /* type and index of this task; valid after cluster_find_self() */
    uint32_t index;
    /* JSON value that an error about this task refers to; NULL: not from JSON */
    const cJSON *self_at;
    /* the variable that alone has the index of this task, of the launcher whose tasks the cluster lists; NULL: any */
    const char *rank_variable;
    uint32_t first_port; /* of the tasks of a launcher without --port; 0: CLUSTER_FIRST_PORT */
    VEC(const char *) notes;
    bool has_master_note; /* the note about the job name "master" was added */
    bool failed;          /* out of memory: a note is missing */
};

/* Adds a note for the log. If memory runs out, sets d->failed. */
void cluster_note(struct cluster_draft *d, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Returns ERR_INPUT with the source and the line, column and pointer of `at`; `at` NULL: with the
 * source only. */
int cluster_reject(const struct cluster_draft *d, const cJSON *at, struct err *err, const char *fmt,
                   ...) __attribute__((format(printf, 4, 5)));
/* Returns ERR_NOMEM. */
int cluster_nomem(struct err *err);
/* Returns the value of an environment variable; NULL if unset. */
const char *cluster_env(const struct cluster_draft *d, const char *name);
static inline bool cluster_is_strict(const struct cluster_draft *d)
{
    return d->opts->profile == CLUSTER_STRICT;
}

/* Converts the name of a type. "master" means chief and adds a note once. Returns false if `name`
 * is not a type. */
bool cluster_type_parse(struct cluster_draft *d, const char *name, enum cluster_type *out);
/* Returns ERR_INPUT for a name that is not a type, with the most similar type as a hint. */
int cluster_reject_type(const struct cluster_draft *d, const cJSON *at, const char *name,
                        struct err *err);
/* Adds an entry. The n bytes at `address` are copied; NULL: no address. Errors: ERR_NOMEM. */
int cluster_add(struct cluster_draft *d, enum cluster_type type, uint32_t index,
                const char *address, size_t n, const cJSON *at, struct err *err);
/* Sorts the entries by job name and index. */
void cluster_sort(struct cluster_draft *d);
/* Return the first entry of a job, and the entry of a task; NULL: there is none. */
const struct cluster_entry *cluster_first(const struct cluster_draft *d, enum cluster_type type);
const struct cluster_entry *cluster_find(const struct cluster_draft *d, enum cluster_type type,
                                         uint32_t index);

#endif
