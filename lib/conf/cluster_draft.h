/* cluster_draft.h - a cluster while it is resolved, and the helpers of every step.
 *
 *   cluster.c          calls the steps in order, and makes the finished table
 *   cluster_read.c     JSON text -> draft: jobs, addresses as written, the task's own description
 *   cluster_int.c      an index: a plain decimal, or whatever Python's int() accepts
 *   cluster_self.c     draft -> type and index of this task
 *   cluster_launcher.c the index that mpirun, srun or a pod's host name defines
 *   cluster_shape.c    which jobs and indices make a cluster, and the dynamic form
 *   cluster_address.c  host and port of every entry
 *   cluster_slurm.c    SLURM_STEP_* -> draft
 *   cluster_print.c    canonical text, hash, --check
 *
 * cluster.c includes the steps; a step includes this header and never cluster.h. */
#ifndef CONF_CLUSTER_DRAFT_H
#define CONF_CLUSTER_DRAFT_H

#include "base/json.h"
#include "base/vec.h"
#include "conf/cluster_types.h"

struct err;

enum {
    CLUSTER_MAX_INDEX = INT32_MAX, /* as TensorFlow's ClusterDef */
    CLUSTER_MAX_SLURM = 65536,     /* names, counts or tasks of one Slurm step */
};

struct cluster_entry {
    struct cluster_task task; /* host, port and rank come last */
    const cJSON *at;          /* where the address stands; NULL: not from JSON */
};

/* The task's own words about itself. */
struct cluster_wish {
    const cJSON *at;       /* the value of "task"; NULL: absent */
    const cJSON *type_at;  /* NULL: absent */
    const cJSON *index_at; /* NULL: absent */
    const char *type;      /* NULL: absent, or not a string */
    int64_t index;         /* not yet checked against any range */
};

struct cluster_draft {
    const struct cluster_opts *opts;
    struct cluster *c; /* being made; owns all strings */
    struct json *doc;  /* NULL: not from JSON */
    const char *label; /* the source, for messages */
    bool has_cluster;  /* at least one job was named */
    VEC(struct cluster_entry) entries;
    bool has_job[CLUSTER_TYPES];     /* named, though perhaps without an entry */
    const cJSON *job[CLUSTER_TYPES]; /* where its list stands */
    uint32_t count[CLUSTER_TYPES];   /* its entries */
    struct cluster_wish wish;
    enum cluster_type type; /* who I am, as soon as it is known ... */
    uint32_t index;
    const cJSON *self_at; /* ... and the place to blame; NULL: not from JSON */
    VEC(const char *) notes;
    bool has_master_note;
    bool failed; /* a note was lost: out of memory */
};

/* A line for the log. */
void cluster_note(struct cluster_draft *d, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* ERR_INPUT with source, place and pointer of `at`; only the source if `at` is NULL. */
int cluster_refuse(const struct cluster_draft *d, const cJSON *at, struct err *err, const char *fmt,
                   ...) __attribute__((format(printf, 4, 5)));
int cluster_nomem(struct err *err);
/* The value of an environment variable; NULL if unset. */
const char *cluster_env(const struct cluster_draft *d, const char *name);
static inline bool cluster_is_strict(const struct cluster_draft *d)
{
    return d->opts->profile == CLUSTER_STRICT;
}

/* `name` is one of the four types, or "master" (chief, with one note). */
bool cluster_type_parse(struct cluster_draft *d, const char *name, enum cluster_type *out);
/* Refuses a type that is none of the four, with the nearest one as a hint. */
int cluster_refuse_type(const struct cluster_draft *d, const cJSON *at, const char *name,
                        struct err *err);
/* `address` is copied. */
int cluster_add(struct cluster_draft *d, enum cluster_type type, uint32_t index,
                const char *address, size_t n, const cJSON *at, struct err *err);
/* Puts the entries in order (job name, index); the first of a job, NULL if it has none. */
void cluster_sort(struct cluster_draft *d);
const struct cluster_entry *cluster_first(const struct cluster_draft *d, enum cluster_type type);
const struct cluster_entry *cluster_find(const struct cluster_draft *d, enum cluster_type type,
                                         uint32_t index);

#endif
