/* cluster_slurm_order.h - on which node of a Slurm step each task runs. */
#ifndef CONF_CLUSTER_SLURM_ORDER_H
#define CONF_CLUSTER_SLURM_ORDER_H

#include <stdint.h>

struct cluster_draft;
struct err;

/* Sets node_of [sum of counts] to the index of the node of each task, by the distribution of the
 * step (SLURM_DISTRIBUTION), and checks it against the place of this task (SLURM_PROCID,
 * SLURM_NODEID, SLURM_LOCALID). counts [n_nodes] are the tasks of each node. Errors: ERR_INPUT
 * (unknown distribution, or this task is in another place). */
int cluster_slurm_order(const struct cluster_draft *d, const uint32_t *counts, uint32_t n_nodes,
                        uint32_t *node_of, struct err *err);

#endif
