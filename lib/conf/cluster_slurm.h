/* cluster_slurm.h - reads the cluster of a Slurm job step. */
#ifndef CONF_CLUSTER_SLURM_H
#define CONF_CLUSTER_SLURM_H

#include <stdint.h>

struct arena;
struct cluster_draft;
struct err;

/* Adds a worker for each task of SLURM_STEP_*. Errors: ERR_INPUT, ERR_NOMEM. */
int cluster_read_slurm(struct cluster_draft *d, struct err *err);

/* Expand a host list (`n[1-2],m5` to n1 n2 m5; zero padding is kept) and a list of counts
 * (`3(x2),2` to 3 3 2). The arrays are allocated in `mem`. Errors: ERR_INPUT (invalid, or more than
 * 65536 items), ERR_NOMEM. */
int cluster_slurm_nodes(const char *list, struct arena *mem, const char ***names, uint32_t *n,
                        struct err *err);
int cluster_slurm_counts(const char *list, struct arena *mem, uint32_t **counts, uint32_t *n,
                         struct err *err);

#endif
