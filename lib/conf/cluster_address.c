/* cluster_address.c - splits "host:port", and checks the list of addresses.
 *
 * The port follows the last colon. A host is a name, an IPv4 address, or an IPv6 address in
 * brackets. A trailing dot (of a fully qualified name) is removed from the host; the address stays
 * as written. */
#include "conf/cluster_address.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/map.h"
#include "base/text.h"
#include "conf/cluster_draft.h"

enum { MAX_NAME = 253, MAX_LABEL = 63 }; /* RFC 1035, without the trailing dot */

#define NOT_A_PAIR "address '%.200s' is not host:port: "

static int read_port(const struct cluster_draft *d, struct cluster_entry *e, const char *text,
                     struct err *err)
{
    const char *digits = text;
    uint64_t port;

    while (!cluster_is_strict(d) && digits[0] == '0' && digits[1] != '\0')
        digits++;
    if (!text_u64(digits, UINT64_MAX, &port))
        return cluster_reject(d, e->at, err,
                              NOT_A_PAIR "the port '%.64s' must be a number from 1 "
                                         "to 65535",
                              e->task.address, text);
    if (port > UINT16_MAX)
        return cluster_reject(d, e->at, err, NOT_A_PAIR "the port %s is above 65535",
                              e->task.address, digits);
    if (port == 0 && d->entries.n > 1)
        return cluster_reject(d, e->at, err,
                              NOT_A_PAIR "with port 0 the system chooses the port, which the other "
                                         "tasks cannot know; write the port",
                              e->task.address);
    e->task.port = (uint16_t)port;
    return 0;
}

static bool is_v6(const char *host)
{
    struct in6_addr v6;
    char text[INET6_ADDRSTRLEN];
    size_t n = strcspn(host, "%"); /* a zone follows: "fe80::1%eth0" */

    if (n >= sizeof(text) || (host[n] == '%' && host[n + 1] == '\0'))
        return false;
    memcpy(text, host, n);
    text[n] = '\0';
    return inet_pton(AF_INET6, text, &v6) == 1;
}

/* Returns what is wrong with a name or an IPv4 address; NULL: it is valid. */
static const char *find_host_error(const char *host, bool is_strict)
{
    struct in_addr v4;
    size_t label = 0;

    for (const char *p = host; *p != '\0'; p++) {
        if ((unsigned char)*p <= ' ' || *p == 0x7f || strchr("[]/", *p) != NULL)
            return "the host contains a character that is not allowed in a host name";
        if (is_strict && !isalnum((unsigned char)*p) && strchr("-_.", *p) == NULL)
            return "the host contains a character other than letters, digits, '-', '_' and '.'";
        label = *p == '.' ? 0 : label + 1;
        if (is_strict && ((*p == '.' && (p == host || p[-1] == '.')) || label > MAX_LABEL))
            return "a part of the host name is empty or longer than 63";
    }
    if (is_strict && strlen(host) > MAX_NAME)
        return "the host name is longer than 253";
    if (is_strict && host[0] != '\0' && strspn(host, "0123456789.") == strlen(host) &&
        inet_pton(AF_INET, host, &v4) != 1)
        return "the host looks like an IPv4 address, but is not valid";
    return NULL;
}

/* Sets the entry's host. Removes brackets and the trailing dot from `host`. */
static int read_host(const struct cluster_draft *d, struct cluster_entry *e, char *host,
                     struct err *err)
{
    size_t n = strlen(host);
    const char *host_error;

    if (host[0] == '[') {
        if (n < 2 || host[n - 1] != ']')
            return cluster_reject(d, e->at, err,
                                  NOT_A_PAIR "the bracket is not closed before the "
                                             "port",
                                  e->task.address);
        host[n - 1] = '\0';
        e->task.host = host + 1;
        if (is_v6(host + 1))
            return 0;
        return cluster_reject(d, e->at, err,
                              NOT_A_PAIR "'%.64s' in brackets is not an IPv6 address",
                              e->task.address, host + 1);
    }
    if (strchr(host, ':') != NULL)
        return cluster_reject(d, e->at, err,
                              NOT_A_PAIR "an IPv6 address must be in brackets, such as [::1]:2222",
                              e->task.address);
    if (n > 1 && host[n - 1] == '.')
        host[n - 1] = '\0';
    host_error = n > 1 && strcmp(host + n - 2, ".") == 0
                     ? "the host ends in more than one dot"
                     : find_host_error(host, cluster_is_strict(d));
    if (host_error != NULL)
        return cluster_reject(d, e->at, err, NOT_A_PAIR "%s", e->task.address, host_error);
    e->task.host = host[0] == '\0' ? "localhost" : host;
    return 0;
}

static int read_address(const struct cluster_draft *d, struct cluster_entry *e, struct err *err)
{
    const char *address = e->task.address;
    const char *colon = strrchr(address, ':');
    const char *scheme = strstr(address, "://");
    char *host;
    int rc;

    if (address[0] == '\0')
        return cluster_reject(d, e->at, err, "the address is empty; write \"host:port\"");
    if (scheme != NULL)
        return cluster_reject(d, e->at, err, NOT_A_PAIR "remove '%.*s'", address,
                              (int)(scheme + 3 - address < 32 ? scheme + 3 - address : 32),
                              address);
    if (colon == NULL)
        return cluster_reject(d, e->at, err, NOT_A_PAIR "%s", address,
                              strspn(address, "0123456789") == strlen(address)
                                  ? "it is a port without a host; write \"host:port\""
                                  : "there is no colon with a port; write \"host:port\"");
    host = arena_strndup(&d->c->mem, address, (size_t)(colon - address));
    if (host == NULL)
        return cluster_nomem(err);
    if (strchr(address, '/') != NULL)
        return cluster_reject(
            d, e->at, err,
            NOT_A_PAIR
            "it contains '/', which neither a host nor a port may contain; remove the path",
            address);
    rc = read_port(d, e, colon + 1, err);
    return rc < 0 ? rc : read_host(d, e, host, err);
}

static bool is_this_machine(const char *host)
{
    return strcasecmp(host, "localhost") == 0 || strcmp(host, "::1") == 0 ||
           text_starts(host, "127.");
}

/* Whether the host is [::] or, in the strict profile, 0.0.0.0, which no other task can reach. */
static bool is_any_address(const struct cluster_draft *d, const char *host)
{
    struct in6_addr v6;

    if (strcmp(host, "0.0.0.0") == 0)
        return cluster_is_strict(d);
    return inet_pton(AF_INET6, host, &v6) == 1 && IN6_IS_ADDR_UNSPECIFIED(&v6);
}

/* Checks the addresses that depend on the other entries: ":2222" means this machine, and "[::]" is
 * valid only for this task. */
static int check_reachable(const struct cluster_draft *d, struct err *err)
{
    const char *elsewhere = NULL;

    for (size_t i = 0; i < d->entries.n; i++) {
        const struct cluster_task *t = &d->entries.at[i].task;

        if (t->address != NULL && !is_this_machine(t->host))
            elsewhere = t->address;
    }
    for (size_t i = 0; i < d->entries.n; i++) {
        const struct cluster_entry *e = &d->entries.at[i];
        bool is_self = e->task.type == d->type && e->task.index == d->index;

        if (e->task.address == NULL)
            continue;
        if (e->task.address[0] == ':' && elsewhere != NULL)
            return cluster_reject(
                d, e->at, err,
                NOT_A_PAIR
                "it has no host, but the cluster has other machines ('%.80s'); write the host",
                e->task.address, elsewhere);
        if (!is_self && is_any_address(d, e->task.host))
            return cluster_reject(d, e->at, err,
                                  "address '%.200s' means every interface, so that no other task "
                                  "can connect to it; write the host's name or address",
                                  e->task.address);
    }
    return 0;
}

static int check_distinct(const struct cluster_draft *d, struct err *err)
{
    struct map seen = { 0 };
    int rc = 0;

    for (size_t i = 0; i < d->entries.n && rc == 0; i++) {
        const struct cluster_entry *e = &d->entries.at[i];
        char name[64];
        uint64_t other = 0;
        enum map_put put;
        char *key;

        if (e->task.address == NULL)
            continue;
        key = arena_printf(&d->c->mem, "%s %" PRIu16, e->task.host, e->task.port);
        for (char *p = key; p != NULL && *p != '\0'; p++)
            *p = (char)tolower((unsigned char)*p);
        put = key == NULL ? MAP_NOMEM : map_put(&seen, key, i);
        if (put == MAP_NOMEM)
            rc = cluster_nomem(err);
        if (put != MAP_EXISTED)
            continue;
        (void)map_get(&seen, key, &other); /* succeeds, because the key existed */
        rc = cluster_reject(d, e->at, err,
                            "address '%.200s' is also the address of %s; use a different port for "
                            "each task, or allow it with --allow-same-address",
                            e->task.address,
                            cluster_task_name(&d->entries.at[other].task, name, sizeof(name)));
    }
    map_fini(&seen);
    return rc;
}

int cluster_check_addresses(struct cluster_draft *d, struct err *err)
{
    int rc;

    for (size_t i = 0; i < d->entries.n; i++) {
        if (d->entries.at[i].task.address == NULL)
            continue;
        rc = read_address(d, &d->entries.at[i], err);
        if (rc < 0)
            return rc;
    }
    rc = check_reachable(d, err);
    if (rc < 0 || !cluster_is_strict(d) || d->opts->allow_same_address)
        return rc;
    return check_distinct(d, err);
}
