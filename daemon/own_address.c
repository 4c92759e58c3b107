#include "daemon/own_address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/err.h"

enum { FOUND_MAX = 64 };

/* The IPv4 addresses of the interfaces that are up, without loopback and link-local ones. */
struct found {
    struct in_addr address[FOUND_MAX];
    char interface[FOUND_MAX][IF_NAMESIZE];
    size_t n;
};

static int list_addresses(struct found *f, struct err *err)
{
    struct ifaddrs *all;

    f->n = 0;
    if (getifaddrs(&all) < 0)
        return err_sys(err, errno, "list the addresses of this host");
    for (const struct ifaddrs *a = all; a != NULL && f->n < FOUND_MAX; a = a->ifa_next) {
        struct in_addr ip;

        if (a->ifa_addr == NULL || a->ifa_addr->sa_family != AF_INET ||
            (a->ifa_flags & IFF_UP) == 0 || (a->ifa_flags & IFF_LOOPBACK) != 0)
            continue;
        ip = ((const struct sockaddr_in *)a->ifa_addr)->sin_addr;
        if ((ntohl(ip.s_addr) & 0xffff0000) == 0xa9fe0000) /* 169.254.0.0/16 */
            continue;
        f->address[f->n] = ip;
        snprintf(f->interface[f->n], IF_NAMESIZE, "%s", a->ifa_name);
        f->n++;
    }
    freeifaddrs(all);
    return 0;
}

/* Returns the index of the address, or f->n. */
static size_t find(const struct found *f, struct in_addr ip)
{
    size_t i = 0;

    while (i < f->n && f->address[i].s_addr != ip.s_addr)
        i++;
    return i;
}

/* Returns the index of the first address to which `host` resolves, or f->n. */
static size_t find_resolved(const struct found *f, const char *host)
{
    struct addrinfo hints = { .ai_family = AF_INET, .ai_socktype = SOCK_STREAM }, *found = NULL;
    size_t i = f->n;

    if (getaddrinfo(host, NULL, &hints, &found) != 0)
        return f->n;
    for (const struct addrinfo *a = found; a != NULL && i == f->n; a = a->ai_next)
        i = find(f, ((const struct sockaddr_in *)(const void *)a->ai_addr)->sin_addr);
    freeaddrinfo(found);
    return i;
}

/* Returns the index of the source address of the default route, or f->n. A connected UDP socket has
 * that address; no packet is sent. 192.0.2.1 is reserved for documentation. */
static size_t find_routed(const struct found *f)
{
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(9) }, from = { 0 };
    socklen_t n = sizeof(from);
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    size_t i = f->n;

    to.sin_addr.s_addr = htonl(0xc0000201);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&to, sizeof(to)) == 0 &&
        getsockname(fd, (struct sockaddr *)&from, &n) == 0)
        i = find(f, from.sin_addr);
    if (fd >= 0)
        close(fd);
    return i;
}

int own_address(const char *host, char out[OWN_ADDRESS_BYTES], char *why, size_t n_why,
                struct err *err)
{
    struct in6_addr numeric;
    struct found f;
    size_t i = 0;
    int rc;

    if (strcmp(host, "localhost") == 0 || inet_pton(AF_INET, host, &numeric) == 1 ||
        inet_pton(AF_INET6, host, &numeric) == 1) {
        snprintf(out, OWN_ADDRESS_BYTES, "%s", strcmp(host, "localhost") == 0 ? "127.0.0.1" : host);
        snprintf(why, n_why, "the cluster names it");
        return 0;
    }
    rc = list_addresses(&f, err);
    if (rc < 0)
        return rc;
    snprintf(why, n_why, "the only address of this host");
    if (f.n > 1) {
        i = find_resolved(&f, host);
        snprintf(why, n_why, "'%s' resolves to it", host);
    }
    if (f.n > 1 && i == f.n) {
        i = find_routed(&f);
        snprintf(why, n_why,
                 "the default route uses it, and '%s' resolves to no address of this host", host);
    }
    if (i == f.n)
        return err_set(err, ERR_INPUT, "--bind any: cannot choose the address at which peers reach '%s': this host has %zu "
                       "IPv4 addresses besides loopback, '%s' resolves to none of them, and there is no default route; "
                       "write the address into the cluster", host, f.n, host);
    (void)inet_ntop(AF_INET, &f.address[i], out, OWN_ADDRESS_BYTES); /* cannot fail: the buffer is large enough */
    snprintf(why + strlen(why), n_why - strlen(why), ", interface %s", f.interface[i]);
    return 0;
}
