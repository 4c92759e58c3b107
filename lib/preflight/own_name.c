#include "preflight/own_name.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/clock.h"
#include "preflight/resolve.h"

static bool is_loopback(const struct sockaddr_storage *a)
{
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)a;
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)a;

    if (a->ss_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
    return ntohl(v4->sin_addr.s_addr) >> 24 == 127;
}

/* Whether this host has the address: only then a socket can be bound to it. */
static bool is_own(struct sockaddr_storage a, socklen_t bytes)
{
    int fd = socket(a.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool is_foreign;

    if (fd < 0)
        return false;
    if (a.ss_family == AF_INET6)
        ((struct sockaddr_in6 *)&a)->sin6_port = 0;
    else
        ((struct sockaddr_in *)&a)->sin_port = 0;
    is_foreign = bind(fd, (const struct sockaddr *)&a, bytes) < 0 && errno == EADDRNOTAVAIL;
    close(fd);
    return !is_foreign;
}

static void print_first(const struct resolved *r, char *out, size_t n)
{
    if (getnameinfo((const struct sockaddr *)&r->at[0], r->bytes[0], out, (socklen_t)n, NULL, 0,
                    NI_NUMERICHOST) != 0)
        snprintf(out, n, "an address");
}

/* Whether the host has an address that is not one of this host. */
static bool is_elsewhere(const char *host, uint32_t ms)
{
    struct resolved r;

    resolve_host(host, 0, ms, &r);
    for (uint32_t i = 0; i < r.n; i++)
        if (!is_loopback(&r.at[i]) && !is_own(r.at[i], r.bytes[i]))
            return true;
    return false;
}

/* Returns the first of the others that is on another host; NULL: none, or not known. */
static const char *find_elsewhere(const char *host, const char *const *others, uint32_t n,
                                  uint32_t ms)
{
    uint64_t until_ms = clock_ms() + ms;

    for (uint32_t i = 0; i < n && clock_ms() < until_ms; i++) {
        if (strcasecmp(others[i], host) == 0 ||
            (i > 0 && strcasecmp(others[i], others[i - 1]) == 0))
            continue;
        if (is_elsewhere(others[i], ms))
            return others[i];
    }
    return NULL;
}

enum own_name own_name_check(const char *host, const char *const *others, uint32_t n_others,
                             uint32_t ms, char *why, size_t n)
{
    char address[NI_MAXHOST];
    const char *elsewhere;
    bool has_own = false, has_reachable = false;
    struct resolved r;

    resolve_host(host, 0, ms, &r);
    if (r.n == 0) {
        snprintf(why, n, "'%.120s' has no address: %s", host, r.why);
        return OWN_NAME_UNRESOLVED;
    }
    for (uint32_t i = 0; i < r.n; i++) {
        bool own = is_own(r.at[i], r.bytes[i]);

        has_own |= own;
        has_reachable |= own && !is_loopback(&r.at[i]);
    }
    print_first(&r, address, sizeof(address));
    if (!has_own) {
        snprintf(why, n, "'%.120s' resolves to %.80s, which is not an address of this host", host,
                 address);
        return OWN_NAME_FOREIGN;
    }
    elsewhere = has_reachable ? NULL : find_elsewhere(host, others, n_others, ms);
    if (elsewhere == NULL)
        return OWN_NAME_GOOD;
    if (strcmp(host, address) == 0)
        snprintf(why, n,
                 "%.80s is a loopback address, to which '%.120s' and other hosts cannot connect",
                 address, elsewhere);
    else
        snprintf(why, n,
                 "'%.120s' resolves on this host to %.80s, a loopback address, to which '%.120s' and "
                 "other hosts cannot connect",
                 host, address, elsewhere);
    return OWN_NAME_LOOPBACK;
}
