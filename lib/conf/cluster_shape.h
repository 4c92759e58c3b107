/* cluster_shape.h - which jobs and indices make a cluster. */
#ifndef CONF_CLUSTER_SHAPE_H
#define CONF_CLUSTER_SHAPE_H

struct cluster_draft;
struct err;

/* Refuses a list that is no cluster; recognises the dynamic form. Errors: ERR_INPUT, ERR_NOMEM. */
int cluster_check_shape(struct cluster_draft *d, struct err *err);
/* Refuses a task that the list does not have. Errors: ERR_INPUT, ERR_NOMEM. */
int cluster_check_member(struct cluster_draft *d, struct err *err);

#endif
