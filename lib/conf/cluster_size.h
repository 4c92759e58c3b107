/* cluster_size.h - the cluster of a launcher that started several tasks without a cluster text. */
#ifndef CONF_CLUSTER_SIZE_H
#define CONF_CLUSTER_SIZE_H

struct cluster_draft;
struct err;

/* Called if no source names a cluster. If a launcher started more than one task, adds a worker for
 * each of them, or refuses, so that they never train the job several times. Adds nothing if no
 * launcher, or one task, is found. Errors: ERR_INPUT, ERR_NOMEM. */
int cluster_form_from_launcher(struct cluster_draft *d, struct err *err);

#endif
