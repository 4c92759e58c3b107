/* conn_limit.h - selects the connection to close if too many connections are not authenticated.
 * Pure. */
#ifndef COMM_CONN_LIMIT_H
#define COMM_CONN_LIMIT_H

#include <stddef.h>
#include <stdint.h>

/* Returns the source "host:port" of connection i, and sets *since to a number that grows with its
 * time of arrival. NULL: the connection must stay, because it is authenticated or was made by this
 * task. */
typedef const char *conn_limit_source(const void *arg, size_t i, uint64_t *since);

/* Returns the connection to close among n; SIZE_MAX: all must stay. If one host has more than half
 * of the connections, its oldest is closed, so a flood from one host displaces no connection of
 * another host; otherwise the oldest of all. */
size_t conn_limit_victim(size_t n, conn_limit_source *source, const void *arg);

#endif
