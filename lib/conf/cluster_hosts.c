/* cluster_hosts.c - a cluster of workers from a list of hosts in the order of the ranks. */
#include "conf/cluster_hosts.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "conf/cluster_draft.h"

enum { ADDRESS_BYTES = 288 };

uint32_t cluster_first_port(const struct cluster_draft *d)
{
    if (d->opts->first_port != 0)
        return d->opts->first_port;
    return d->first_port != 0 ? d->first_port : CLUSTER_FIRST_PORT;
}

int cluster_add_task_of_host(struct cluster_draft *d, const char *host, size_t host_bytes,
                             uint32_t nth, uint32_t index, struct err *err)
{
    char address[ADDRESS_BYTES];
    uint32_t port = cluster_first_port(d) + nth;
    int n;

    if (port > UINT16_MAX)
        return cluster_reject(d, NULL, err,
                              "%.*s has more than %" PRIu32 " tasks, and the ports from %" PRIu32
                              " to 65535 do not suffice; use a lower --port or fewer tasks",
                              (int)host_bytes, host, nth, cluster_first_port(d));
    n = snprintf(address, sizeof(address), "%.*s:%" PRIu32, (int)host_bytes, host, port);
    if (n < 0 || (size_t)n >= sizeof(address))
        return cluster_reject(d, NULL, err, "the host name '%.60s...' is too long", host);
    return cluster_add(d, CLUSTER_WORKER, index, address, (size_t)n, NULL, err);
}

/* Returns true if the n bytes at `host` end in a port. A bare IPv6 address, which has several
 * colons, has none; "[::1]:2222" has one. */
static bool has_port(const char *host, size_t n)
{
    const char *colon = memchr(host, ':', n);

    if (colon == NULL)
        return false;
    if (host[0] == '[')
        return host[n - 1] != ']';
    return memchr(colon + 1, ':', n - (size_t)(colon + 1 - host)) == NULL;
}

/* Returns the number of earlier entries that are equal to the n bytes at `host`. */
static uint32_t count_earlier(const char *list, const char *host, size_t n)
{
    uint32_t count = 0;

    for (const char *p = list; p < host; p += strcspn(p, ",") + 1)
        count += strcspn(p, ",") == n && memcmp(p, host, n) == 0;
    return count;
}

static int add_entry(struct cluster_draft *d, const char *host, size_t n, uint32_t index,
                     struct err *err)
{
    const char *list = d->opts->hosts;

    if (n == 0)
        return cluster_reject(d, NULL, err,
                              "entry %" PRIu32 " of '%.200s' is empty; expected a form like "
                              "node1,node2:2222",
                              index, list);
    if (index == CLUSTER_MAX_HOSTS)
        return cluster_reject(d, NULL, err, "the list has more than %d hosts", CLUSTER_MAX_HOSTS);
    if (has_port(host, n))
        return cluster_add(d, CLUSTER_WORKER, index, host, n, NULL, err);
    return cluster_add_task_of_host(d, host, n, count_earlier(list, host, n), index, err);
}

int cluster_read_hosts(struct cluster_draft *d, struct err *err)
{
    uint32_t index = 0;
    int rc;

    d->has_cluster = true;
    d->has_job[CLUSTER_WORKER] = true;
    for (const char *p = d->opts->hosts;; p++) {
        size_t n = strcspn(p, ",");

        rc = add_entry(d, p, n, index++, err);
        p += n;
        if (rc < 0 || *p == '\0')
            return rc;
    }
}
