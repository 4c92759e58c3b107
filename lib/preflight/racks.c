#include "preflight/racks.h"

#include <stdbool.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/vec.h"

struct finder {
    const struct racks_pair *pairs;
    uint32_t n;
    uint32_t *rack;
    uint64_t *scratch; /* owned [n * n + 1] */
    bool failed;       /* out of memory */
    VEC(struct racks_finding) found;
};

static uint64_t rate_of(const struct finder *f, uint32_t a, uint32_t b)
{
    uint64_t p = f->pairs[(size_t)a * f->n + b].rate, q = f->pairs[(size_t)b * f->n + a].rate;

    return p == 0 || (q > 0 && q < p) ? q : p;
}

static uint64_t rtt_of(const struct finder *f, uint32_t a, uint32_t b)
{
    uint32_t p = f->pairs[(size_t)a * f->n + b].rtt_us, q = f->pairs[(size_t)b * f->n + a].rtt_us;

    return p > q ? p : q;
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* Sorts the first `count` numbers of the scratch memory, and returns their lower median; 0 if `count` is 0. */
static uint64_t median(struct finder *f, size_t count)
{
    qsort(f->scratch, count, sizeof(*f->scratch), compare);
    return count > 0 ? f->scratch[(count - 1) / 2] : 0;
}

static void add(struct finder *f, enum racks_kind kind, uint32_t task, uint32_t other,
                uint64_t value, uint64_t middle)
{
    struct racks_finding x = { kind, task, other, value, middle };

    if (!VEC_PUSH(f->found, x))
        f->failed = true;
}

/* ---- all pairs, and hosts ---- */

typedef uint64_t number_fn(const struct finder *f, uint32_t a, uint32_t b);

/* Collects the numbers of the pairs that belong(a, b), without those that were not measured. */
static size_t collect(struct finder *f, number_fn *number,
                      bool (*belongs)(const struct finder *f, uint32_t a, uint32_t b))
{
    size_t count = 0;

    for (uint32_t a = 0; a < f->n; a++)
        for (uint32_t b = a + 1; b < f->n; b++)
            if (number(f, a, b) > 0 && belongs(f, a, b))
                f->scratch[count++] = number(f, a, b);
    return count;
}

static bool always(const struct finder *f, uint32_t a, uint32_t b)
{
    (void)f;
    (void)a;
    (void)b;
    return true;
}

/* Returns the best number of the pairs of a task; 0: none was measured. */
static uint64_t best_of(const struct finder *f, number_fn *number, bool is_time, uint32_t task)
{
    uint64_t best = 0;

    for (uint32_t i = 0; i < f->n; i++) {
        uint64_t v = i != task ? number(f, task, i) : 0;

        if (v > 0 && (best == 0 || (is_time ? v < best : v > best)))
            best = v;
    }
    return best;
}

static bool is_slow(enum racks_kind kind, uint64_t value, uint64_t middle)
{
    if (value == 0 || middle == 0)
        return false;
    return kind == RACKS_RATE ? value < middle / RACKS_FACTOR
                              : value > RACKS_RTT_US && value > RACKS_FACTOR * middle;
}

/* With two tasks there is no other pair to compare with. */
static void find_slow_hosts(struct finder *f, enum racks_kind kind, number_fn *number)
{
    size_t count = 0;
    uint64_t middle;

    for (uint32_t i = 0; i < f->n; i++) {
        uint64_t best = best_of(f, number, kind == RACKS_LATENCY, i);

        if (best > 0)
            f->scratch[count++] = best;
    }
    middle = median(f, count);
    for (uint32_t i = 0; i < f->n; i++) {
        uint64_t best = best_of(f, number, kind == RACKS_LATENCY, i);

        if (!is_slow(kind, best, middle))
            continue;
        add(f, kind, i, RACKS_NONE, best, middle);
        f->rack[i] = RACKS_NONE;
    }
}

/* ---- racks ---- */

static bool are_both_normal(const struct finder *f, uint32_t a, uint32_t b)
{
    return f->rack[a] != RACKS_NONE && f->rack[b] != RACKS_NONE;
}

/* Sets the rack of every task that is reached over pairs with at least this rate. Returns the number of
 * racks, and sets *smallest to the number of tasks in the smallest one. */
static uint32_t join(struct finder *f, uint64_t rate, uint32_t *smallest)
{
    uint32_t n_racks = 0, open = RACKS_NONE - 1;

    *smallest = f->n;
    for (uint32_t i = 0; i < f->n; i++)
        if (f->rack[i] != RACKS_NONE)
            f->rack[i] = open;
    for (uint32_t i = 0; i < f->n; i++) {
        uint32_t size = 1;
        bool grows = f->rack[i] == open;

        if (!grows)
            continue;
        f->rack[i] = n_racks;
        while (grows) {
            grows = false;
            for (uint32_t a = 0; a < f->n; a++)
                for (uint32_t b = 0; f->rack[a] == n_racks && b < f->n; b++)
                    if (f->rack[b] == open && rate_of(f, a, b) >= rate) {
                        f->rack[b] = n_racks;
                        size++;
                        grows = true;
                    }
        }
        *smallest = size < *smallest ? size : *smallest;
        n_racks++;
    }
    return n_racks;
}

/* Divides the tasks at the largest gap of the rates. One rack if there is no gap, or if a rack would have
 * only one task: nothing distinguishes its uplink from its cable. */
static uint32_t find_racks(struct finder *f)
{
    size_t count = collect(f, rate_of, are_both_normal);
    uint64_t gap = 0, above = 0;
    uint32_t n_racks, smallest;

    qsort(f->scratch, count, sizeof(*f->scratch), compare);
    for (size_t i = 0; i + 1 < count; i++) {
        uint64_t ratio = 1024 * f->scratch[i + 1] / f->scratch[i];

        if (ratio > gap) {
            gap = ratio;
            above = f->scratch[i + 1];
        }
    }
    n_racks = gap >= 1024 * RACKS_GAP ? join(f, above, &smallest) : 1;
    if (n_racks > 1 && smallest > 1)
        return n_racks;
    (void)join(f, 0, &smallest);
    return 1;
}

/* ---- links ---- */

static bool are_in_one_rack(const struct finder *f, uint32_t a, uint32_t b)
{
    return are_both_normal(f, a, b) && f->rack[a] == f->rack[b];
}

static bool are_in_two_racks(const struct finder *f, uint32_t a, uint32_t b)
{
    return are_both_normal(f, a, b) && f->rack[a] != f->rack[b];
}

static void find_slow_links(struct finder *f, enum racks_kind kind, number_fn *number,
                            bool (*belongs)(const struct finder *f, uint32_t a, uint32_t b))
{
    uint64_t middle = median(f, collect(f, number, belongs));

    for (uint32_t a = 0; a < f->n; a++)
        for (uint32_t b = a + 1; b < f->n; b++)
            if (belongs(f, a, b) && is_slow(kind, number(f, a, b), middle))
                add(f, kind, a, b, number(f, a, b), middle);
}

int racks_find(const struct racks_pair *pairs, uint32_t n, struct racks *out, struct err *err)
{
    struct finder f = { .pairs = pairs,
                        .n = n,
                        .rack = calloc(n + 1u, sizeof(uint32_t)),
                        .scratch = calloc((size_t)n * n + 1, sizeof(uint64_t)) };

    f.failed = f.rack == NULL || f.scratch == NULL;
    if (!f.failed) {
        out->median_rate = median(&f, collect(&f, rate_of, always));
        out->median_rtt_us = (uint32_t)median(&f, collect(&f, rtt_of, always));
        find_slow_hosts(&f, RACKS_RATE, rate_of);
        find_slow_hosts(&f, RACKS_LATENCY, rtt_of);
        out->n_racks = find_racks(&f);
        find_slow_links(&f, RACKS_RATE, rate_of, are_in_one_rack);
        find_slow_links(&f, RACKS_RATE, rate_of, are_in_two_racks);
        find_slow_links(&f, RACKS_LATENCY, rtt_of, are_in_one_rack);
        find_slow_links(&f, RACKS_LATENCY, rtt_of, are_in_two_racks);
    }
    free(f.scratch);
    if (f.failed) {
        free(f.rack);
        VEC_FINI(f.found);
        return err_set(err, ERR_NOMEM, "out of memory");
    }
    out->rack = f.rack;
    out->findings = f.found.at;
    out->n_findings = (uint32_t)f.found.n;
    return 0;
}

void racks_free(struct racks *r)
{
    free(r->rack);
    free(r->findings);
    *r = (struct racks){ 0 };
}
