/* slots.c - see slots.h. */
#include "ps/slots.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"

int ps_slots_init(struct ps_slots *s, size_t room, struct err *err)
{
    size_t size = 16;

    while (size < 2 * room)
        size *= 2;
    *s = (struct ps_slots){ .room = room, .mask = size - 1 };
    s->rows = malloc((room + 1) * sizeof(*s->rows));
    s->index = calloc(size, sizeof(*s->index));
    if (s->rows == NULL || s->index == NULL)
        return err_set(err, ERR_NOMEM, "slots of a remote table: out of memory");
    return 0;
}

void ps_slots_fini(struct ps_slots *s)
{
    free(s->rows);
    free(s->index);
    *s = (struct ps_slots){ 0 };
}

/* Fibonacci hashing with a fold: consecutive rows spread over the index. */
static size_t place_of(const struct ps_slots *s, uint64_t row)
{
    uint64_t h = row * 0x9e3779b97f4a7c15u;

    return (size_t)(h ^ h >> 32) & s->mask;
}

void ps_slots_clear(struct ps_slots *s)
{
    enum { SPARSE = 16 }; /* places per row; in a fuller index, to clear all of it is faster */

    if (s->n > s->mask / SPARSE) {
        memset(s->index, 0, (s->mask + 1) * sizeof(*s->index));
        s->n = 0;
    }
    /* In the reverse order of insertion each place is found directly, also after a collision: the
     * rows that were inserted later are gone. */
    for (size_t i = s->n; i-- > 0;) {
        size_t at = place_of(s, s->rows[i]);

        while (s->index[at] != i + 1)
            at = (at + 1) & s->mask;
        s->index[at] = 0;
    }
    s->n = s->fetched = 0;
}

static uint32_t slot_of(struct ps_slots *s, uint64_t row)
{
    size_t at = place_of(s, row);

    while (s->index[at] != 0) {
        if (s->rows[s->index[at] - 1] == row)
            return s->index[at] - 1;
        at = (at + 1) & s->mask;
    }
    CHECK(s->n < s->room && s->n < UINT32_MAX);
    s->rows[s->n] = row;
    s->index[at] = (uint32_t)++s->n;
    return (uint32_t)s->n - 1;
}

void ps_slots_resolve(struct ps_slots *s, int64_t *rows, size_t n)
{
    for (size_t i = 0; i < n; i++)
        rows[i] = slot_of(s, (uint64_t)rows[i]);
}
