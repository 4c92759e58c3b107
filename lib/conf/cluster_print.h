/* cluster_print.h - prints a cluster: as JSON, and in the canonical form. */
#ifndef CONF_CLUSTER_PRINT_H
#define CONF_CLUSTER_PRINT_H

struct buf;
struct cluster;
struct err;

/* Appends the resolved cluster as a JSON object, for --check. */
void cluster_print(const struct cluster *c, struct buf *out);
/* Sets c->canonical and c->hash from c->tasks. Errors: ERR_NOMEM. */
int cluster_make_canonical(struct cluster *c, struct err *err);

#endif
