/* listen.h - the listening sockets of an address. Threads: any. */
#ifndef RDZV_LISTEN_H
#define RDZV_LISTEN_H

#include <stdint.h>

struct err;

enum { LISTENERS_MAX = 8 };

/* Binds `where`, host:port or [host]:port, and listens on every address of the host name; the host
 * 0.0.0.0 means every address of this host, also IPv6. On success the caller owns the *n sockets,
 * which are non-blocking. One listening address is sufficient, unless another process has the port
 * of one. On failure some sockets may be open: the caller closes the first *n. Errors: ERR_INPUT
 * (the address is not one of this host), ERR_IO (the port is in use), ERR_NOMEM. */
int listen_on_all(const char *where, int sockets[LISTENERS_MAX], uint32_t *n, struct err *err);

#endif
