#include "comm/nccl_env.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "base/text.h"

extern char **environ;

static const char *const harmful[] = { "NCCL_COMM_ID", "NCCL_COMM_BLOCKING" };

/* Returns the addresses of "host:port" or "[v6]:port", which the caller frees; NULL: none. */
static struct addrinfo *resolve(const char *address)
{
    const char *colon = strrchr(address, ':');
    bool brackets = address[0] == '[' && colon != NULL && colon > address + 1 && colon[-1] == ']';
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *found = NULL;
    char host[300];

    if (colon == NULL || colon == address)
        return NULL;
    snprintf(host, sizeof(host), "%.*s", (int)(colon - address - (brackets ? 2 : 0)),
             address + (brackets ? 1 : 0));
    return getaddrinfo(host, NULL, &hints, &found) == 0 ? found : NULL;
}

/* The loopback interface has all of 127.0.0.0/8, but shows only one address. */
static bool is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24 == 127;
    return a->sa_family == AF_INET6 &&
           IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr);
}

static bool is_same(const struct sockaddr *a, const struct sockaddr *b)
{
    if (a->sa_family != b->sa_family)
        return false;
    if (a->sa_family == AF_INET)
        return ((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr ==
               ((const struct sockaddr_in *)(const void *)b)->sin_addr.s_addr;
    return a->sa_family == AF_INET6 &&
           memcmp(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr,
                  &((const struct sockaddr_in6 *)(const void *)b)->sin6_addr,
                  sizeof(struct in6_addr)) == 0;
}

static const char *interface_of(const struct ifaddrs *all, const struct sockaddr *a)
{
    for (const struct ifaddrs *i = all; i != NULL; i = i->ifa_next)
        if (i->ifa_addr != NULL && (i->ifa_flags & IFF_UP) != 0 &&
            (is_same(i->ifa_addr, a) || ((i->ifa_flags & IFF_LOOPBACK) != 0 && is_loopback(a))))
            return i->ifa_name;
    return NULL;
}

void comm_interface(const char *address, char *name, size_t n, bool *is_v6)
{
    struct addrinfo *to = resolve(address);
    struct ifaddrs *all = NULL;

    name[0] = '\0';
    *is_v6 = false;
    if (to != NULL && getifaddrs(&all) == 0)
        for (const struct addrinfo *a = to; a != NULL && name[0] == '\0'; a = a->ai_next) {
            const char *found = interface_of(all, a->ai_addr);

            if (found != NULL) {
                snprintf(name, n, "%s", found);
                *is_v6 = a->ai_family == AF_INET6;
            }
        }
    if (all != NULL)
        freeifaddrs(all);
    if (to != NULL)
        freeaddrinfo(to);
}

/* Returns a port that no other process gets: bound but not listening, and NCCL may bind it too
 * (SO_REUSEPORT). It stays open until the process ends. 0: none is available. */
static uint16_t own_port(void)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    socklen_t len = sizeof(at);
    int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return 0;
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on)) == 0 &&
        bind(fd, (struct sockaddr *)&at, sizeof(at)) == 0 &&
        getsockname(fd, (struct sockaddr *)&at, &len) == 0)
        return ntohs(at.sin_port);
    close(fd);
    return 0;
}

/* ---- setting and listing variables ---- */

struct text {
    char *at;
    size_t left;
};

static void say(struct text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(struct text *t, const char *format, ...)
{
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(t->at, t->left, format, args);
    va_end(args);
    if (n > 0 && (size_t)n < t->left) {
        t->at += n;
        t->left -= (size_t)n;
    }
}

static void set(struct text *t, const char *name, const char *value)
{
    if (getenv(name) == NULL && setenv(name, value, 1) == 0)
        say(t, "%s%s=%s", t->at[-1] == ' ' ? "" : ", ", name, value);
}

/* Lists the variables that were set before this function sets any. */
static void list_found(struct text *t, const char *what)
{
    bool is_first = true;

    for (char **e = environ; *e != NULL; e++)
        if (text_starts(*e, "NCCL_")) {
            say(t, "%s%s", is_first ? what : ", ", *e);
            is_first = false;
        }
}

void comm_nccl_environment(const char *address, char *text, size_t n)
{
    char name[IF_NAMESIZE] = "", exact[IF_NAMESIZE + 2], found[512] = "", ras[32];
    struct text t = { text, n }, f = { found, sizeof(found) };
    uint16_t port = own_port();
    bool is_v6;

    say(&t, "NCCL: ");
    for (size_t i = 0; i < COUNT_OF(harmful); i++)
        if (getenv(harmful[i]) != NULL && unsetenv(harmful[i]) == 0)
            say(&t, "%s of the environment is not used; ", harmful[i]);
    list_found(&f, "; from the environment ");
    comm_interface(address != NULL ? address : "127.0.0.1:0", name, sizeof(name), &is_v6);
    snprintf(exact, sizeof(exact), "=%s", name);
    snprintf(ras, sizeof(ras), "127.0.0.1:%u", port);
    say(&t, "trainerd sets ");
    if (name[0] != '\0' && getenv("NCCL_SOCKET_IFNAME") == NULL) {
        set(&t, "NCCL_SOCKET_IFNAME", exact);
        set(&t, "NCCL_SOCKET_FAMILY", is_v6 ? "AF_INET6" : "AF_INET");
    }
    set(&t, "NCCL_SOCKET_RETRY_CNT", "10");
    if (port != 0)
        set(&t, "NCCL_RAS_ADDR", ras);
    if (t.at[-1] == ' ')
        say(&t, "nothing");
    if (name[0] == '\0' && getenv("NCCL_SOCKET_IFNAME") == NULL)
        say(&t, " (no interface has the address %s: NCCL chooses one)", address);
    say(&t, "%s", found);
}
