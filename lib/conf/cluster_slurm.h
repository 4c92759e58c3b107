/* cluster_slurm.h - reads the cluster of a Slurm job step. */
#ifndef CONF_CLUSTER_SLURM_H
#define CONF_CLUSTER_SLURM_H

#include <stdint.h>

struct arena;
struct cluster_draft;
struct err;

/* Fills the draft from SLURM_STEP_*. Errors: ERR_INPUT, ERR_NOMEM. */
int cluster_read_slurm(struct cluster_draft *d, struct err *err);

/* n1 n2 m5 from `n[1-2],m5` (zero padding kept); the counts from `3(x2),2`. The arrays live in
 * `mem`. Bounded: more than 65536 names is ERR_INPUT. */
int cluster_slurm_nodes(const char *list, struct arena *mem, const char ***names, uint32_t *n,
                        struct err *err);
int cluster_slurm_counts(const char *list, struct arena *mem, uint32_t **counts, uint32_t *n,
                         struct err *err);

#endif
