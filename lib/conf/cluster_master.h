/* cluster_master.h - a cluster of which the environment has the address of rank 0 alone, as that of
 * torchrun has. Threads: any. */
#ifndef CONF_CLUSTER_MASTER_H
#define CONF_CLUSTER_MASTER_H

#include <stdbool.h>
#include <stdint.h>

struct cluster_opts;
struct err;

enum { CLUSTER_MASTER_TASKS = 4096 };

struct cluster_master {
    const char *host; /* of rank 0; borrowed from the environment */
    uint16_t port;    /* where rank 0 collects the addresses */
    uint32_t rank, size;
    uint16_t control_port; /* of this task */
};

/* Sets *found if no source of `opts` names a cluster, and MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE
 * describe tasks on several hosts, and then *out. Errors: ERR_INPUT. */
int cluster_master_find(const struct cluster_opts *opts, struct cluster_master *out, bool *found,
                        struct err *err);
/* Sets *out to the port at which rank 0 may collect addresses, after which control ports follow. Returns
 * false if MASTER_PORT is not a port. */
bool cluster_master_port(const struct cluster_opts *opts, uint16_t *out);

#endif
