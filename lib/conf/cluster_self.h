/* cluster_self.h - determines which of the listed tasks this process is. */
#ifndef CONF_CLUSTER_SELF_H
#define CONF_CLUSTER_SELF_H

struct cluster_draft;
struct err;

/* Sets type, index, self_at and the index source. Needs the sorted entries. Errors: ERR_INPUT,
 * ERR_NOMEM. */
int cluster_find_self(struct cluster_draft *d, struct err *err);
/* Called if the source has no cluster. Checks the description of this task: strict accepts only
 * worker 0 or none; tf ignores it with a note. Errors: ERR_INPUT, ERR_NOMEM. */
int cluster_check_local(struct cluster_draft *d, struct err *err);

#endif
