/* cluster_launcher.h - the index that a launcher defines. */
#ifndef CONF_CLUSTER_LAUNCHER_H
#define CONF_CLUSTER_LAUNCHER_H

#include <stdbool.h>
#include <stdint.h>

struct cluster_draft;
struct err;

/* Sets *found, and if a launcher or the host name defines an index below `limit`, sets *index to it
 * and *where to the name of its source. `what` describes the numbered tasks in messages. `limit` 0
 * finds nothing. Errors: ERR_INPUT (invalid, out of range, contradiction). */
int cluster_launcher_index(struct cluster_draft *d, uint32_t limit, const char *what, bool *found,
                           uint32_t *index, const char **where, struct err *err);

#endif
