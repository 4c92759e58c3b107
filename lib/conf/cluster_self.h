/* cluster_self.h - which of the listed tasks this process is. */
#ifndef CONF_CLUSTER_SELF_H
#define CONF_CLUSTER_SELF_H

struct cluster_draft;
struct err;

/* Sets type, index, self_at and the index source. */
int cluster_find_self(struct cluster_draft *d, struct err *err);
/* No cluster: is what the task says about itself fitting for a process on its own? */
int cluster_check_local(struct cluster_draft *d, struct err *err);

#endif
