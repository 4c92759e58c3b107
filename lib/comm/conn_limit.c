#include "comm/conn_limit.h"

#include <stdbool.h>
#include <string.h>

static bool is_same_host(const char *a, const char *b)
{
    const char *colon = strrchr(a, ':');
    size_t n = colon != NULL ? (size_t)(colon - a) : strlen(a);

    colon = strrchr(b, ':');
    return n == (colon != NULL ? (size_t)(colon - b) : strlen(b)) && memcmp(a, b, n) == 0;
}

/* Returns the host with more than half of the connections, in linear time: a vote for another host
 * cancels a vote for the candidate, so only a majority remains; the second pass confirms it. NULL:
 * no host has that many. */
static const char *majority(size_t n, conn_limit_source *source, const void *arg)
{
    const char *candidate = NULL, *from;
    size_t votes = 0, n_all = 0;
    uint64_t since;

    for (size_t i = 0; i < n; i++) {
        from = source(arg, i, &since);
        if (from == NULL)
            continue;
        if (votes == 0)
            candidate = from;
        votes = votes == 0 || is_same_host(from, candidate) ? votes + 1 : votes - 1;
    }
    votes = 0;
    for (size_t i = 0; i < n; i++) {
        from = source(arg, i, &since);
        n_all += from != NULL;
        votes += from != NULL && is_same_host(from, candidate);
    }
    return votes > n_all / 2 ? candidate : NULL;
}

size_t conn_limit_victim(size_t n, conn_limit_source *source, const void *arg)
{
    const char *host = majority(n, source, arg);
    uint64_t since, oldest = UINT64_MAX;
    size_t victim = SIZE_MAX;

    for (size_t i = 0; i < n; i++) {
        const char *from = source(arg, i, &since);

        if (from == NULL || (host != NULL && !is_same_host(from, host)) ||
            (victim != SIZE_MAX && since >= oldest))
            continue;
        victim = i;
        oldest = since;
    }
    return victim;
}
