/* resolve.h - names to addresses and back, with a deadline. Threads: any. */
#ifndef PREFLIGHT_RESOLVE_H
#define PREFLIGHT_RESOLVE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

enum { RESOLVE_MAX = 4 };

struct resolved {
    struct sockaddr_storage at[RESOLVE_MAX]; /* [n], with the port */
    socklen_t bytes[RESOLVE_MAX];
    uint32_t n;
    char why[128]; /* why there is no address; "" if n > 0 */
};

/* `host` NULL: the addresses of every interface, to listen on. */
void resolve_host(const char *host, uint16_t port, uint32_t ms, struct resolved *out);
bool resolve_is_literal(const char *host); /* an address, not a name */
/* Whether the address resolves to the name, or to a name whose first label is the name. */
bool resolve_is_name_of(const struct sockaddr_storage *a, socklen_t bytes, const char *host,
                        uint32_t ms);

#endif
