/* cluster_jobs.h - checks the jobs and indices of a cluster. */
#ifndef CONF_CLUSTER_JOBS_H
#define CONF_CLUSTER_JOBS_H

struct cluster_draft;
struct err;

/* Rejects a list that is not a cluster; recognises the dynamic form. Errors: ERR_INPUT,
 * ERR_NOMEM. */
int cluster_check_jobs(struct cluster_draft *d, struct err *err);
/* Rejects this task if the list does not contain it. An evaluator need not be listed. Errors:
 * ERR_INPUT, ERR_NOMEM. */
int cluster_check_member(struct cluster_draft *d, struct err *err);

#endif
