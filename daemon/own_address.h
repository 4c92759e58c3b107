/* own_address.h - the numeric address at which other hosts reach this one. With --bind any, a task
 * listens on every interface, and the cluster names it by a host name that may not resolve yet, as
 * in a pod that has just started. Peers connect to the data plane by this address, so that they need
 * no name service. */
#ifndef DAEMON_OWN_ADDRESS_H
#define DAEMON_OWN_ADDRESS_H

#include <stddef.h>

struct err;

enum { OWN_ADDRESS_BYTES = 256 };

/* Writes to `out` the address of this host, which the cluster calls `host`, and to `why` the reason
 * for the choice:
 *   - `host` itself if it is numeric; 127.0.0.1 for localhost;
 *   - the only address of the interfaces that are up, other than loopback;
 *   - of several: the one to which `host` resolves, else the source address of the default route, else
 *     the only one of its family. IPv4 comes before IPv6.
 * May wait for the name service, only if there are several addresses. Any thread.
 * Errors: ERR_INPUT (several addresses and no rule applies, or none), ERR_IO. */
int own_address(const char *host, char out[OWN_ADDRESS_BYTES], char *why, size_t n_why,
                struct err *err);

#endif
