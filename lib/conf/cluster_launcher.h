/* cluster_launcher.h - the index that a launcher defines. */
#ifndef CONF_CLUSTER_LAUNCHER_H
#define CONF_CLUSTER_LAUNCHER_H

#include <stdbool.h>
#include <stdint.h>

struct cluster_draft;
struct err;

/* An index below `limit`, if a launcher or the host name knows one. `where` names it; `what`
 * says in a message what is numbered. */
int cluster_launcher_index(struct cluster_draft *d, uint32_t limit, const char *what, bool *found,
                           uint32_t *index, const char **where, struct err *err);

#endif
