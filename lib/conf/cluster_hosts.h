/* cluster_hosts.h - a cluster of workers from a list of hosts in the order of the ranks. */
#ifndef CONF_CLUSTER_HOSTS_H
#define CONF_CLUSTER_HOSTS_H

#include <stddef.h>
#include <stdint.h>

struct cluster_draft;
struct err;

enum {
    CLUSTER_FIRST_PORT = 8888, /* control port of the first task of a host */
    CLUSTER_MAX_HOSTS = 4096,  /* entries of --hosts */
};

/* Returns the control port of the first task of each host: --port, else that of the
 * launcher, else CLUSTER_FIRST_PORT. */
uint32_t cluster_first_port(const struct cluster_draft *d);
/* Adds worker `index`, the task number `nth` (from 0) of `host`: its port is cluster_first_port() +
 * nth. Errors: ERR_INPUT (no such port), ERR_NOMEM. */
int cluster_add_task_of_host(struct cluster_draft *d, const char *host, size_t host_bytes,
                             uint32_t nth, uint32_t index, struct err *err);
/* Adds a worker for each entry of opts->hosts, "HOST or HOST:PORT,...". The n-th entry without a
 * port of one host gets the n-th port of that host. Errors: ERR_INPUT, ERR_NOMEM. */
int cluster_read_hosts(struct cluster_draft *d, struct err *err);

#endif
