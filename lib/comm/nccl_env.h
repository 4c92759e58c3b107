/* nccl_env.h - what NCCL reads of the environment, once per process: set before its first call, and before
 * other threads look at the environment.
 *
 *   NCCL_SOCKET_IFNAME, _FAMILY  the interface that has `address`: what others reached us by, they reach NCCL by
 *   NCCL_SOCKET_RETRY_CNT        seconds, not a minute, for a peer that is not there: it may be gone
 *   NCCL_RAS_ADDR                a port of this process's own on 127.0.0.1 (comm/ras.h)
 * What the user has set stays. NCCL_COMM_ID, by which jobs would meet, and NCCL_COMM_BLOCKING, which
 * would make calls wait, are removed. */
#ifndef COMM_NCCL_ENV_H
#define COMM_NCCL_ENV_H

#include <stdbool.h>
#include <stddef.h>

/* `address`: "host:port" or "[v6]:port" by which others reach this process; NULL: there are no others,
 * and it is 127.0.0.1. Looks names up. `text`: what was set, what was found, what was removed. Calls setenv(). */
void comm_nccl_environment(const char *address, char *text, size_t n);

/* The interface of this host that has the address, and whether that is of IPv6; "": none has it. */
void comm_interface(const char *address, char *name, size_t n, bool *is_v6);

#endif
