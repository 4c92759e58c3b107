/* nccl_env.h - the environment of NCCL. It is set once per process, before the first call of NCCL,
 * and before other threads read the environment.
 *
 *   NCCL_SOCKET_IFNAME, _FAMILY  the interface with `address`, by which other tasks reach this
 *                                process
 *   NCCL_SOCKET_RETRY_CNT        seconds, instead of a minute, for an absent peer: it may have ended
 *   NCCL_RAS_ADDR                a port of this process on 127.0.0.1 (comm/ras.h)
 * Variables that the user has set are kept. NCCL_COMM_ID, which would connect different jobs, and
 * NCCL_COMM_BLOCKING, which would make calls block, are removed. */
#ifndef COMM_NCCL_ENV_H
#define COMM_NCCL_ENV_H

#include <stdbool.h>
#include <stddef.h>

/* `address`: "host:port" or "[v6]:port" by which other tasks reach this process; NULL: there are no
 * other tasks, and 127.0.0.1 is used. Resolves names. Writes to `text` what was set, found and
 * removed. Calls setenv(). */
void comm_nccl_environment(const char *address, char *text, size_t n);

/* Writes the interface of this host with the address, and whether it is IPv6; "": no interface has
 * it. */
void comm_interface(const char *address, char *name, size_t n, bool *is_v6);

#endif
