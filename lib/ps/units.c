/* units.c - see units.h. */
#include "ps/units.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"

struct wire_head {
    uint64_t complete;
    uint32_t n_lanes, bound;
};
struct wire_row { /* of the steps complete + 1, ... in order; its lanes follow */
    double loss, norm;
    uint32_t n_skipped, zero;
};

_Static_assert(sizeof(struct wire_head) == 16 && sizeof(struct wire_row) == 24 &&
                   sizeof(struct ps_step_facts) == 32,
               "no padding");

static uint32_t words_of(const struct ps_units *u)
{
    return (u->n_lanes + 63) / 64;
}

static struct ps_unit_row *row_of(struct ps_units *u, uint64_t step)
{
    return &u->rows[step % (u->bound + 1)];
}

static const struct ps_unit_row *read_row(const struct ps_units *u, uint64_t step)
{
    return &u->rows[step % (u->bound + 1)];
}

static bool is_applied(const struct ps_unit_row *r, uint32_t lane)
{
    return (r->lanes[lane / 64] >> lane % 64 & 1) != 0;
}

int ps_units_open(struct ps_units *u, uint32_t n_lanes, uint32_t bound, struct err *err)
{
    CHECK(n_lanes > 0 && bound > 0 && bound <= PS_BOUND_MAX);
    *u = (struct ps_units){ .n_lanes = n_lanes, .bound = bound };
    u->memory = calloc((size_t)words_of(u) * (bound + 1), sizeof(*u->memory));
    if (u->memory == NULL) {
        *u = (struct ps_units){ 0 };
        return err_set(err, ERR_NOMEM, "parameter server: out of memory");
    }
    for (uint32_t i = 0; i <= bound; i++)
        u->rows[i].lanes = u->memory + (size_t)i * words_of(u);
    return 0;
}

void ps_units_close(struct ps_units *u)
{
    free(u->memory);
    *u = (struct ps_units){ 0 };
}

static void clear_row(const struct ps_units *u, struct ps_unit_row *r)
{
    memset(r->lanes, 0, words_of(u) * sizeof(*r->lanes));
    r->n_applied = r->n_skipped = 0;
    r->loss = r->norm = 0;
}

void ps_units_begin(struct ps_units *u, uint64_t complete)
{
    u->complete = complete;
    for (uint32_t i = 0; u->n_lanes > 0 && i <= u->bound; i++)
        clear_row(u, &u->rows[i]);
    for (uint32_t i = 0; i < PS_FACTS_MAX; i++) /* of steps that will be trained again */
        if (u->facts[i].step > complete)
            u->facts[i] = (struct ps_step_facts){ 0 };
}

uint64_t ps_units_newest(const struct ps_units *u)
{
    uint64_t newest = u->complete;

    for (uint64_t t = u->complete + 1; u->n_lanes > 0 && t <= u->complete + 1 + u->bound; t++)
        if (read_row(u, t)->n_applied > 0)
            newest = t;
    return newest;
}

bool ps_units_may_begin(const struct ps_units *u, uint64_t step)
{
    return step > u->complete && step <= u->complete + 1 + u->bound;
}

/* Returns the lanes of the largest aligned block that begins at a free lane, before `end`. The last block of a tree
 * may be a part of an aligned one. */
static uint32_t block_at(const struct ps_units *u, const struct ps_unit_row *r, uint32_t lane,
                         uint32_t end)
{
    uint32_t n = 1, free_lanes = 1;

    while (lane + free_lanes < end && !is_applied(r, lane + free_lanes))
        free_lanes++;
    while (lane % (2 * n) == 0 &&
           (2 * n <= free_lanes || (lane + free_lanes == u->n_lanes && n < free_lanes)))
        n *= 2;
    return n < free_lanes ? n : free_lanes;
}

struct ps_unit ps_units_next(const struct ps_units *u, uint64_t step, uint32_t first, uint32_t n)
{
    const struct ps_unit_row *r = read_row(u, step);
    struct ps_unit unit = { .step = step, .first = first };

    if (step <= u->complete)
        return unit;
    while (unit.first < first + n && is_applied(r, unit.first))
        unit.first++;
    if (unit.first < first + n)
        unit.n = block_at(u, r, unit.first, first + n);
    return unit;
}

bool ps_units_is_free(const struct ps_units *u, const struct ps_unit *unit)
{
    if (u->n_lanes == 0 || !ps_units_may_begin(u, unit->step) || unit->n == 0 ||
        unit->first >= u->n_lanes || unit->n > u->n_lanes - unit->first)
        return false;
    for (uint32_t i = 0; i < unit->n; i++)
        if (is_applied(read_row(u, unit->step), unit->first + i))
            return false;
    return true;
}

static void complete_steps(struct ps_units *u)
{
    struct ps_unit_row *r = row_of(u, u->complete + 1);

    for (; r->n_applied == u->n_lanes; r = row_of(u, u->complete + 1)) {
        u->complete++;
        u->facts[u->complete % PS_FACTS_MAX] =
            (struct ps_step_facts){ .step = u->complete,
                                    .loss = r->loss / u->n_lanes,
                                    .norm = r->norm / u->n_lanes,
                                    .n_skipped = r->n_skipped };
        clear_row(u, r);
    }
}

void ps_units_apply(struct ps_units *u, const struct ps_unit *unit,
                    const struct ps_unit_facts *facts)
{
    struct ps_unit_row *r = row_of(u, unit->step);

    CHECK(ps_units_is_free(u, unit));
    for (uint32_t l = unit->first; l < unit->first + unit->n; l++)
        r->lanes[l / 64] |= (uint64_t)1 << l % 64;
    r->n_applied += unit->n;
    r->n_skipped += facts->is_skipped ? unit->n : 0;
    r->loss += facts->loss * unit->n;
    r->norm += facts->norm * unit->n;
    complete_steps(u);
}

uint32_t ps_units_facts(const struct ps_units *u, uint64_t after,
                        struct ps_step_facts out[PS_FACTS_MAX])
{
    uint64_t first = u->complete > PS_FACTS_MAX ? u->complete - PS_FACTS_MAX + 1 : 1;
    uint32_t n = 0;

    for (uint64_t t = after >= first ? after + 1 : first; t <= u->complete; t++)
        if (u->facts[t % PS_FACTS_MAX].step == t)
            out[n++] = u->facts[t % PS_FACTS_MAX];
    return n;
}

/* ---- bytes ---- */

static size_t row_bytes(const struct ps_units *u)
{
    return sizeof(struct wire_row) + words_of(u) * sizeof(uint64_t);
}

size_t ps_units_bytes(const struct ps_units *u)
{
    return sizeof(struct wire_head) +
           (u->n_lanes > 0 ? (u->bound + 1) * row_bytes(u) + sizeof(u->facts) : 0);
}

void ps_units_write(const struct ps_units *u, void *out)
{
    struct wire_head head = { u->complete, u->n_lanes, u->bound };
    uint8_t *at = out;

    memcpy(at, &head, sizeof(head));
    at += sizeof(head);
    for (uint64_t t = u->complete + 1; u->n_lanes > 0 && t <= u->complete + 1 + u->bound; t++) {
        const struct ps_unit_row *r = read_row(u, t);
        struct wire_row row = { .loss = r->loss, .norm = r->norm, .n_skipped = r->n_skipped };

        memcpy(at, &row, sizeof(row));
        memcpy(at + sizeof(row), r->lanes, words_of(u) * sizeof(*r->lanes));
        at += row_bytes(u);
    }
    if (u->n_lanes > 0)
        memcpy(at, u->facts, sizeof(u->facts));
}

/* Are the facts those of complete steps, each in its place? */
static bool are_valid_facts(const uint8_t *data, uint64_t complete)
{
    struct ps_step_facts f;

    for (uint32_t i = 0; i < PS_FACTS_MAX; i++) {
        memcpy(&f, data + i * sizeof(f), sizeof(f));
        if (f.step > complete || (f.step > 0 && f.step % PS_FACTS_MAX != i))
            return false;
    }
    return true;
}

/* Do the bits name lanes of a step, and not all of step complete + 1? */
static bool is_valid_row(const struct ps_units *u, const uint8_t *data, bool is_next)
{
    uint32_t n = 0;
    uint64_t word = 0;

    for (uint32_t i = 0; i < words_of(u); i++) {
        memcpy(&word, data + i * sizeof(word), sizeof(word));
        n += (uint32_t)__builtin_popcountll(word);
    }
    return (u->n_lanes % 64 == 0 || word >> u->n_lanes % 64 == 0) && (!is_next || n < u->n_lanes);
}

static void read_one(struct ps_units *u, const uint8_t *data, struct ps_unit_row *r)
{
    struct wire_row row;

    memcpy(&row, data, sizeof(row));
    memcpy(r->lanes, data + sizeof(row), words_of(u) * sizeof(*r->lanes));
    r->loss = row.loss;
    r->norm = row.norm;
    r->n_skipped = row.n_skipped;
    r->n_applied = 0;
    for (uint32_t i = 0; i < words_of(u); i++)
        r->n_applied += (uint32_t)__builtin_popcountll(r->lanes[i]);
}

int ps_units_read(struct ps_units *u, const void *data, size_t n, struct err *err)
{
    const uint8_t *at = data;
    struct wire_head head;

    if (n < sizeof(head))
        return err_set(err, ERR_PEER, "ledger of units: %zu bytes, expected at least %zu", n,
                       sizeof(head));
    memcpy(&head, at, sizeof(head));
    if (head.n_lanes != u->n_lanes || head.bound != u->bound || n != ps_units_bytes(u) ||
        head.complete > UINT64_MAX / 2)
        return err_set(err, ERR_PEER,
                       "ledger of units: %u lanes, bound %u in %zu bytes; expected %u, %u in %zu",
                       head.n_lanes, head.bound, n, u->n_lanes, u->bound, ps_units_bytes(u));
    at += sizeof(head);
    for (uint32_t i = 0; u->n_lanes > 0 && i <= u->bound; i++)
        if (!is_valid_row(u, at + i * row_bytes(u) + sizeof(struct wire_row), i == 0))
            return err_set(err, ERR_PEER,
                           "ledger of units: the lanes of step %" PRIu64 " are invalid",
                           head.complete + 1 + i);
    if (u->n_lanes > 0 && !are_valid_facts(at + (u->bound + 1) * row_bytes(u), head.complete))
        return err_set(err, ERR_PEER, "ledger of units: the facts of steps are invalid");
    ps_units_begin(u, head.complete);
    for (uint32_t i = 0; u->n_lanes > 0 && i <= u->bound; i++, at += row_bytes(u))
        read_one(u, at, row_of(u, head.complete + 1 + i));
    if (u->n_lanes > 0)
        memcpy(u->facts, at, sizeof(u->facts));
    return 0;
}
