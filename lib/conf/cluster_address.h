/* cluster_address.h - host and port of every entry. */
#ifndef CONF_CLUSTER_ADDRESS_H
#define CONF_CLUSTER_ADDRESS_H

struct cluster_draft;
struct err;

/* Splits each address, and refuses what no task can listen on or call. Errors: ERR_INPUT, ERR_NOMEM. */
int cluster_check_addresses(struct cluster_draft *d, struct err *err);

#endif
