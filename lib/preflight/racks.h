/* racks.h - finds slow hosts, slow links and racks in measured pairs. Pure.
 *
 * A host is slow if its best pair is far below that of the median host. The other hosts form racks if
 * one gap divides the rates of their pairs: pairs inside racks are above it, pairs between racks
 * below. A link is slow if it is far below the median of its class: of the pairs inside racks, or of
 * those between racks. */
#ifndef PREFLIGHT_RACKS_H
#define PREFLIGHT_RACKS_H

#include <stdint.h>

struct err;

enum {
    RACKS_FACTOR = 3,       /* so many times slower than the median is slow */
    RACKS_GAP = 2,          /* so many times faster are the pairs of a rack, at least */
    RACKS_RTT_US = 1000,    /* a shorter round trip is never slow: the scheduler decides */
    RACKS_NONE = UINT32_MAX,
};

/* A direction from one task to another. */
struct racks_pair {
    uint32_t rtt_us; /* 0: not measured */
    uint64_t rate;   /* bytes/s; 0: not measured */
};

struct racks_finding {
    enum racks_kind { RACKS_RATE, RACKS_LATENCY } kind;
    uint32_t task, other; /* other RACKS_NONE: all links of the host of the task */
    uint64_t value, median; /* bytes/s, or us */
};

struct racks {
    uint32_t *rack; /* owned [n] number of the rack of each task, from 0; RACKS_NONE: its host is slow */
    uint32_t n_racks; /* 1: no structure is visible */
    uint64_t median_rate; /* of all pairs, bytes/s */
    uint32_t median_rtt_us;
    struct racks_finding *findings; /* owned [n_findings] slow hosts, then slow links by their value */
    uint32_t n_findings;
};

/* pairs: [n * n] from * n + to; a pair is as good as the worse of its directions. On success the caller
 * frees *out with racks_free(). Errors: ERR_NOMEM. */
int racks_find(const struct racks_pair *pairs, uint32_t n, struct racks *out, struct err *err);
void racks_free(struct racks *r);

#endif
