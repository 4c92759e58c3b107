#include "daemon/own_address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/err.h"

enum { FOUND_MAX = 64 };

/* An address of this host. */
struct own {
    int family; /* AF_INET or AF_INET6 */
    union {
        struct in_addr v4;
        struct in6_addr v6;
    } ip;
    char interface[IF_NAMESIZE];
};

/* The addresses of the interfaces that are up, without loopback and link-local ones. */
struct found {
    struct own at[FOUND_MAX];
    size_t n;
};

/* Returns false for an address that other hosts cannot use. */
static bool read_address(const struct sockaddr *a, struct own *out)
{
    *out = (struct own){ .family = a->sa_family };
    if (a->sa_family == AF_INET) {
        out->ip.v4 = ((const struct sockaddr_in *)(const void *)a)->sin_addr;
        return (ntohl(out->ip.v4.s_addr) & 0xffff0000) != 0xa9fe0000; /* 169.254.0.0/16 */
    }
    if (a->sa_family != AF_INET6)
        return false;
    out->ip.v6 = ((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
    return !IN6_IS_ADDR_LINKLOCAL(&out->ip.v6);
}

static int list_addresses(struct found *f, struct err *err)
{
    struct ifaddrs *all;

    f->n = 0;
    if (getifaddrs(&all) < 0)
        return err_sys(err, errno, "list the addresses of this host");
    for (const struct ifaddrs *a = all; a != NULL && f->n < FOUND_MAX; a = a->ifa_next) {
        struct own *own = &f->at[f->n];

        if (a->ifa_addr == NULL || (a->ifa_flags & IFF_UP) == 0 ||
            (a->ifa_flags & IFF_LOOPBACK) != 0 || !read_address(a->ifa_addr, own))
            continue;
        snprintf(own->interface, IF_NAMESIZE, "%s", a->ifa_name);
        f->n++;
    }
    freeifaddrs(all);
    return 0;
}

static size_t count(const struct found *f, int family)
{
    size_t n = 0;

    for (size_t i = 0; i < f->n; i++)
        n += f->at[i].family == family;
    return n;
}

/* Returns the index of the address, or f->n. */
static size_t find(const struct found *f, const struct sockaddr *address)
{
    struct own own;
    size_t i = 0;

    if (!read_address(address, &own))
        return f->n;
    while (i < f->n &&
           (f->at[i].family != own.family || memcmp(&f->at[i].ip, &own.ip, sizeof(own.ip)) != 0))
        i++;
    return i;
}

/* Returns the index of the first address of this family to which `host` resolves, or f->n. */
static size_t find_resolved(const struct found *f, const char *host, int family)
{
    struct addrinfo hints = { .ai_family = family, .ai_socktype = SOCK_STREAM }, *found = NULL;
    size_t i = f->n;

    if (count(f, family) == 0 || getaddrinfo(host, NULL, &hints, &found) != 0)
        return f->n;
    for (const struct addrinfo *a = found; a != NULL && i == f->n; a = a->ai_next)
        i = find(f, a->ai_addr);
    freeaddrinfo(found);
    return i;
}

/* Returns the index of the source address of the default route of this family, or f->n. A connected UDP
 * socket has that address; no packet is sent. 192.0.2.1 and 2001:db8::1 are reserved for documentation. */
static size_t find_routed(const struct found *f, int family)
{
    struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_port = htons(9) };
    struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_port = htons(9) };
    struct sockaddr_storage from = { 0 };
    const struct sockaddr *to = (const struct sockaddr *)&v4;
    socklen_t n_to = sizeof(v4), n = sizeof(from);
    int fd = socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    size_t i = f->n;

    (void)inet_pton(AF_INET, "192.0.2.1", &v4.sin_addr); /* literals */
    (void)inet_pton(AF_INET6, "2001:db8::1", &v6.sin6_addr);
    if (family == AF_INET6) {
        to = (const struct sockaddr *)&v6;
        n_to = sizeof(v6);
    }
    if (fd >= 0 && connect(fd, to, n_to) == 0 && getsockname(fd, (struct sockaddr *)&from, &n) == 0)
        i = find(f, (const struct sockaddr *)&from);
    if (fd >= 0)
        close(fd);
    return i;
}

/* Chooses one of several addresses. Returns f->n if no rule applies. */
static size_t choose(const struct found *f, const char *host, char *why, size_t n_why)
{
    static const int families[] = { AF_INET, AF_INET6 };
    size_t i = f->n;

    snprintf(why, n_why, "'%s' resolves to it", host);
    for (size_t k = 0; k < 2 && i == f->n; k++)
        i = find_resolved(f, host, families[k]);
    for (size_t k = 0; k < 2 && i == f->n; k++) {
        snprintf(why, n_why,
                 "the default route uses it, and '%s' resolves to no address of this host", host);
        i = find_routed(f, families[k]);
        if (i != f->n || count(f, families[k]) != 1)
            continue;
        snprintf(why, n_why, "the only %s address of this host", k == 0 ? "IPv4" : "IPv6");
        for (i = 0; f->at[i].family != families[k];)
            i++;
    }
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
    if (f.n > 1)
        i = choose(&f, host, why, n_why);
    if (i == f.n)
        return err_set(err, ERR_INPUT, "--bind any: cannot choose the address at which peers reach '%s': this host has %zu "
                       "addresses besides loopback and link-local ones, '%s' resolves to none of them, and there is no "
                       "default route; write the address into the cluster", host, f.n, host);
    (void)inet_ntop(f.at[i].family, &f.at[i].ip, out, OWN_ADDRESS_BYTES); /* cannot fail: the buffer is large enough */
    snprintf(why + strlen(why), n_why - strlen(why), ", interface %s", f.at[i].interface);
    return 0;
}
