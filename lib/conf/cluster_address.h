/* cluster_address.h - parses and checks the address of every entry. */
#ifndef CONF_CLUSTER_ADDRESS_H
#define CONF_CLUSTER_ADDRESS_H

struct cluster_draft;
struct err;

/* Sets host and port of every entry. Rejects addresses on which no task can listen or that no task
 * can reach; in the strict profile also equal addresses. Errors: ERR_INPUT, ERR_NOMEM. */
int cluster_check_addresses(struct cluster_draft *d, struct err *err);

#endif
