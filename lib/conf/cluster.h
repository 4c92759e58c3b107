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

#include "conf/cluster_types.h"

struct err;

/* On success the caller owns *out (cluster_free). Errors: ERR_INPUT (also a --cluster file that is
 * not there), ERR_NOMEM, ERR_IO. */
int cluster_resolve(const struct cluster_opts *opts, struct cluster **out, struct err *err);
void cluster_free(struct cluster *c);

#endif
