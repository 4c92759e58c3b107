/* source.c - see source.h. */
#include "rdzv/source.h"

#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

/* Units per second, and the largest saved allowance, of a source. A task sends about 10 small
 * frames per second. */
static const double shared_rate = 1000, shared_max = 2000;

static void address_of(const struct sockaddr_storage *a, uint8_t out[16])
{
    memset(out, 0, 16);
    if (a->ss_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)a;

        out[10] = out[11] = 0xff;
        memcpy(out + 12, &v4->sin_addr, 4);
    } else if (a->ss_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)a;

        memcpy(out, &v6->sin6_addr, IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr) ? 16 : 8);
    }
}

struct source *source_find(struct sources *s, const struct sockaddr_storage *from, uint64_t now_ms)
{
    uint8_t address[16];
    struct source *oldest = NULL;

    address_of(from, address);
    for (uint32_t i = 0; i < s->n; i++) {
        struct source *at = &s->at[i];

        if (memcmp(at->address, address, sizeof(address)) == 0)
            return at;
        if (at->n_connections == 0 && (oldest == NULL || at->shared.at_ms < oldest->shared.at_ms))
            oldest = at;
    }
    if (s->n < SOURCES_MAX)
        oldest = &s->at[s->n++];
    if (oldest != NULL) {
        *oldest = (struct source){ .shared = { .saved = shared_max, .at_ms = now_ms } };
        memcpy(oldest->address, address, sizeof(address));
    }
    return oldest;
}

void source_print(const struct source *s, char *out, size_t size)
{
    static const uint8_t v4[12] = { [10] = 0xff, [11] = 0xff };
    const uint8_t *b = s->address;

    if (memcmp(b, v4, sizeof(v4)) == 0)
        snprintf(out, size, "%u.%u.%u.%u", b[12], b[13], b[14], b[15]);
    else
        snprintf(out, size, "%x:%x:%x:%x::/64", b[0] << 8 | b[1], b[2] << 8 | b[3],
                 b[4] << 8 | b[5], b[6] << 8 | b[7]);
}

void allowance_refill(struct allowance *a, uint64_t now_ms, double per_second, double max)
{
    a->saved += (double)(now_ms - a->at_ms) * 1e-3 * per_second;
    a->at_ms = now_ms;
    if (a->saved > max)
        a->saved = max;
}

void source_refund(struct source *s, double units)
{
    s->shared.saved = s->shared.saved + units < shared_max ? s->shared.saved + units : shared_max;
}

void source_pay(struct source *s, struct allowance *own, uint64_t now_ms)
{
    allowance_refill(&s->shared, now_ms, shared_rate, shared_max);
    if (own->saved < 0 && s->shared.saved > 0) {
        double paid = -own->saved < s->shared.saved ? -own->saved : s->shared.saved;

        own->saved += paid;
        s->shared.saved -= paid;
    }
}
