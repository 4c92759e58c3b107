/* pieces.c - see pieces.h.
 *
 * A number of lanes that a rank can have is a power of two, or the sum of two unequal ones: an *amount*.
 * Amounts that add up to all lanes can always be placed: in the order of their size, each begins at a
 * multiple of its size, because all before it are multiples of that too. So only the amounts must be
 * found. The limit of seconds is searched by bisection among the products of amounts and seconds; the
 * sums that the first r ranks can have within a limit are a set of bits. */
#include "comm/pieces.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/group_view.h"
#include "comm/comm.h"

enum { AMOUNTS_MAX = 91 /* of PIECES_MAX_LANES = 2^12: 13 powers, and 13 * 12 / 2 sums */ };

_Static_assert(PIECES_PER_RANK *PIECES_MAX_RANKS == GROUP_MAX_PIECES, "a plan fits into a view");

struct plan {
    const double *seconds; /* [world] */
    uint32_t world, lanes;
    uint32_t amounts[AMOUNTS_MAX]; /* [n_amounts] those with one piece first, then the largest first */
    uint32_t n_amounts;
    size_t words;   /* of a set of the sums 0..lanes */
    uint64_t *sets; /* owned [world + 1][words] sums of the first r ranks */
};

/* ---- divisions ---- */

static bool is_power(uint32_t n)
{
    return n != 0 && (n & (n - 1)) == 0;
}

static int check_ranks(const struct group_piece *pieces, uint32_t n, uint32_t world,
                       struct err *err)
{
    uint32_t *first = calloc(world, sizeof(*first)); /* lanes of the first piece */
    uint32_t *count = calloc(world, sizeof(*count));
    int rc = first == NULL || count == NULL ? err_set(err, ERR_NOMEM, "pieces: out of memory") : 0;

    for (uint32_t i = 0; i < n && rc == 0; i++) {
        uint32_t rank = pieces[i].rank;

        count[rank]++;
        if (count[rank] > PIECES_PER_RANK || (count[rank] > 1 && pieces[i].n >= first[rank]))
            rc = err_set(err, ERR_INPUT,
                         "rank %u has a piece of %u lanes as number %u; expected at most %d, a "
                         "second one smaller than the first",
                         rank, pieces[i].n, count[rank], PIECES_PER_RANK);
        else
            first[rank] = pieces[i].n;
    }
    for (uint32_t r = 0; r < world && rc == 0; r++)
        if (count[r] == 0)
            rc = err_set(err, ERR_INPUT, "rank %u has no lanes; expected at least one", r);
    free(first);
    free(count);
    return rc;
}

int pieces_check(const struct group_piece *pieces, uint32_t n, uint32_t lanes, uint32_t world,
                 uint32_t most, struct err *err)
{
    uint32_t at = 0;

    for (uint32_t i = 0; i < n; i++) {
        const struct group_piece *p = &pieces[i];

        if (p->rank >= world || !is_power(p->n) || p->n > most || p->first != at ||
            p->first % p->n != 0 || p->n > lanes - at)
            return err_set(err, ERR_INPUT,
                           "piece %u is %u lanes from lane %u on rank %u; expected an aligned power of two "
                           "of at most %u from lane %u of %u, on one of %u ranks",
                           i, p->n, p->first, p->rank, most, at, lanes, world);
        at += p->n;
    }
    if (at != lanes)
        return err_set(err, ERR_INPUT, "the pieces have %u lanes; expected %u", at, lanes);
    return check_ranks(pieces, n, world, err);
}

double pieces_seconds(const struct group_piece *pieces, uint32_t n, const uint32_t *shares,
                      const double *seconds, uint32_t world, uint32_t lanes)
{
    uint32_t *own = calloc(world, sizeof(*own));
    double most = 0;

    CHECK(own != NULL);
    if (n == 0 && shares != NULL)
        memcpy(own, shares, world * sizeof(*own));
    else if (n == 0)
        comm_share(NULL, lanes, world, own);
    for (uint32_t i = 0; i < n; i++)
        own[pieces[i].rank] += pieces[i].n;
    for (uint32_t r = 0; r < world; r++)
        most = own[r] * seconds[r] > most ? own[r] * seconds[r] : most;
    free(own);
    return most;
}

/* ---- the amounts of the ranks ---- */

static void list_amounts(struct plan *p, uint32_t most)
{
    uint32_t top = 1;

    while (top * 2 <= p->lanes && top * 2 <= most)
        top *= 2;
    for (uint32_t a = top; a > 0; a /= 2)
        p->amounts[p->n_amounts++] = a;
    for (uint32_t a = top; a > 0; a /= 2)
        for (uint32_t b = a / 2; b > 0; b /= 2)
            if (a + b <= p->lanes)
                p->amounts[p->n_amounts++] = a + b;
}

static uint64_t *set_of(const struct plan *p, uint32_t ranks)
{
    return p->sets + ranks * p->words;
}

static bool has(const uint64_t *set, uint32_t sum)
{
    return (set[sum / 64] >> sum % 64 & 1) != 0;
}

/* Adds every sum of `from`, increased by `by`, to `to`. Sums above the last word are dropped. */
static void add_sums(uint64_t *to, const uint64_t *from, uint32_t by, size_t words)
{
    size_t skip = by / 64, bits = by % 64;

    for (size_t i = skip; i < words; i++) {
        uint64_t low = bits > 0 && i > skip ? from[i - skip - 1] >> (64 - bits) : 0;

        to[i] |= from[i - skip] << bits | low;
    }
}

/* Returns true if the ranks can compute all lanes within the limit. */
static bool is_possible(struct plan *p, double limit)
{
    memset(p->sets, 0, (p->world + 1) * p->words * sizeof(*p->sets));
    set_of(p, 0)[0] = 1;
    for (uint32_t r = 0; r < p->world; r++)
        for (uint32_t i = 0; i < p->n_amounts; i++)
            if (p->amounts[i] * p->seconds[r] <= limit)
                add_sums(set_of(p, r + 1), set_of(p, r), p->amounts[i], p->words);
    return has(set_of(p, p->world), p->lanes);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Sets *limit to the lowest limit that is possible. */
static bool find_limit(struct plan *p, double *limit)
{
    size_t n = (size_t)p->world * p->n_amounts, low = 0, high = n - 1;
    double *limits = malloc(n * sizeof(*limits));
    bool found;

    CHECK(limits != NULL);
    for (size_t i = 0; i < n; i++)
        limits[i] = p->amounts[i % p->n_amounts] * p->seconds[i / p->n_amounts];
    qsort(limits, n, sizeof(*limits), by_value);
    found = is_possible(p, limits[high]);
    while (found && low < high) {
        size_t middle = low + (high - low) / 2;

        if (is_possible(p, limits[middle]))
            high = middle;
        else
            low = middle + 1;
    }
    *limit = limits[high];
    free(limits);
    return found && is_possible(p, *limit); /* leaves the sets of this limit */
}

/* Chooses the amount of each rank, from the last one. */
static void choose(const struct plan *p, double limit, uint32_t *own)
{
    uint32_t left = p->lanes;

    for (uint32_t r = p->world; r-- > 0; left -= own[r])
        for (uint32_t i = 0; i < p->n_amounts; i++) {
            own[r] = p->amounts[i];
            if (own[r] * p->seconds[r] <= limit && own[r] <= left &&
                has(set_of(p, r), left - own[r]))
                break;
        }
    CHECK(left == 0);
}

/* ---- the places of the pieces ---- */

static int by_size(const void *a, const void *b)
{
    const struct group_piece *x = a, *y = b;

    return x->n != y->n ? (x->n < y->n) - (x->n > y->n) : (x->rank > y->rank) - (x->rank < y->rank);
}

static uint32_t place(const uint32_t *own, uint32_t world, struct group_piece *out)
{
    uint32_t n = 0, at = 0;

    for (uint32_t r = 0; r < world; r++)
        for (uint32_t left = own[r]; left > 0; left -= out[n++].n)
            out[n] =
                (struct group_piece){ .rank = r, .n = 1u << (31 - (uint32_t)__builtin_clz(left)) };
    qsort(out, n, sizeof(*out), by_size);
    for (uint32_t i = 0; i < n; at += out[i++].n)
        out[i].first = at;
    return n;
}

uint32_t pieces_plan(const double *seconds, uint32_t world, uint32_t lanes, uint32_t most,
                     struct group_piece *out)
{
    struct plan p = {
        .seconds = seconds, .world = world, .lanes = lanes, .words = (size_t)lanes / 64 + 1
    };
    double limit;
    uint32_t *own, n = 0;

    CHECK(world >= 1 && world <= lanes && is_power(most));
    if (world > PIECES_MAX_RANKS || lanes > PIECES_MAX_LANES)
        return 0;
    own = calloc(world, sizeof(*own));
    p.sets = malloc((world + 1) * p.words * sizeof(*p.sets));
    CHECK(own != NULL && p.sets != NULL);
    list_amounts(&p, most);
    if (find_limit(&p, &limit) && limit < pieces_seconds(NULL, 0, NULL, seconds, world, lanes)) {
        choose(&p, limit, own);
        n = place(own, world, out);
    }
    free(own);
    free(p.sets);
    return n;
}
