/* cluster.h - resolves the cluster and this task from TF_CONFIG, a file, hosts, Slurm or flags.
 *
 * There are two profiles. "strict" (the default) rejects doubtful input, with JSON pointer,
 * line:column and remedy. "tf" accepts what TensorFlow 2's MultiWorkerMirroredStrategy accepts. The
 * functions read no environment themselves: the caller passes access to it, so tests can replace
 * it. Decisions and warnings are returned as notes, which the caller logs.
 *
 * This task is --task, else "task" of the text. If neither has an index, a launcher defines it:
 * OMPI_COMM_WORLD_RANK, PMI_RANK, PMIX_RANK, SLURM_PROCID or another variable of
 * cluster_launcher.c, or the n of a host name ending in -<n>
 * (not with "slurm", where the numbers of nodes are arbitrary). The index counts the training tasks
 * by rank (the chief first, if there is one, then the workers). If the text has a type without an
 * index, it counts the tasks of that type. Two launchers that disagree are an error. A host name
 * whose number is not a valid index is ignored with a note. A cluster of one entry needs no index.
 *
 * If no source names a cluster, but a launcher started several tasks, the cluster is formed from the
 * launcher, or the tasks are refused: they would all train the whole job. --cluster none allows it.
 *
 * Threads: one at a time. */
#ifndef CONF_CLUSTER_H
#define CONF_CLUSTER_H

#include "conf/cluster_types.h"

struct err;

/* Resolves the cluster. On success the caller owns *out and frees it with cluster_free(). Errors:
 * ERR_INPUT (also a --cluster file that does not exist), ERR_NOMEM, ERR_IO. */
int cluster_resolve(const struct cluster_opts *opts, struct cluster **out, struct err *err);
/* The job uses the ps tasks: gives them the ranks after the training tasks, in the order of their
 * indices, and removes the note that they are not used. Called once, and before the cluster is
 * shared. Errors: ERR_INPUT (no ps task, or the text does not list the whole cluster). */
int cluster_use_ps(struct cluster *c, struct err *err);
/* Accepts NULL. */
void cluster_free(struct cluster *c);

#endif
