#include "preflight/resolve.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/err.h"
#include "preflight/limited.h"

struct forward {
    char host[256];
    bool is_any;
    uint16_t port;
    struct resolved found;
};

static void look_up(void *arg)
{
    struct forward *f = arg;
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | (f->is_any ? AI_PASSIVE : 0) };
    struct addrinfo *list = NULL;
    char service[8];
    int rc;

    snprintf(service, sizeof(service), "%u", f->port);
    rc = getaddrinfo(f->is_any ? NULL : f->host, service, &hints, &list);
    if (rc != 0) {
        snprintf(f->found.why, sizeof(f->found.why), "%s", gai_strerror(rc));
        return;
    }
    for (struct addrinfo *a = list; a != NULL && f->found.n < RESOLVE_MAX; a = a->ai_next) {
        if (a->ai_addrlen > sizeof(f->found.at[0]))
            continue;
        memcpy(&f->found.at[f->found.n], a->ai_addr, a->ai_addrlen);
        f->found.bytes[f->found.n++] = a->ai_addrlen;
    }
    freeaddrinfo(list);
}

void resolve_host(const char *host, uint16_t port, uint32_t ms, struct resolved *out)
{
    struct forward *f = calloc(1, sizeof(*f));
    struct err err;
    int rc = 0;

    *out = (struct resolved){ .n = 0 };
    snprintf(out->why, sizeof(out->why), "no answer within %u ms", ms);
    if (f == NULL)
        return;
    f->is_any = host == NULL;
    f->port = port;
    snprintf(f->host, sizeof(f->host), "%s", host != NULL ? host : "");
    if (f->is_any || resolve_is_literal(host)) /* asks no name service */
        look_up(f);
    else
        rc = limited_call(look_up, f, ms, &err);
    if (rc < 0 && rc != ERR_TIMEOUT)
        snprintf(out->why, sizeof(out->why), "%.100s", err.text);
    if (rc < 0)
        return;
    *out = f->found;
    free(f);
}

bool resolve_is_literal(const char *host)
{
    uint8_t address[16];

    return inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1;
}

struct backward {
    struct sockaddr_storage at;
    socklen_t bytes;
    char name[NI_MAXHOST];
};

static void look_back(void *arg)
{
    struct backward *b = arg;

    if (getnameinfo((struct sockaddr *)&b->at, b->bytes, b->name, sizeof(b->name), NULL, 0,
                    NI_NAMEREQD) != 0)
        b->name[0] = '\0';
}

bool resolve_is_name_of(const struct sockaddr_storage *a, socklen_t bytes, const char *host,
                        uint32_t ms)
{
    struct backward *b = calloc(1, sizeof(*b));
    size_t n = strlen(host);
    bool same;

    if (b == NULL)
        return false;
    b->at = *a;
    b->bytes = bytes;
    if (!limited_run(look_back, b, ms))
        return false;
    same =
        strcasecmp(b->name, host) == 0 || (strncasecmp(b->name, host, n) == 0 && b->name[n] == '.');
    free(b);
    return same;
}
