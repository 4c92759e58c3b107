/* client_push.c - the gradients of a step: one message for each server; see client_priv.h. */
#include <string.h>

#include "base/prefetch.h"
#include "ps/client_priv.h"
#include "tensor/packed.h"

/* Sorts by row: least significant digits first, as many as the largest row has. */
static void sort(struct ps_client *c, size_t n, uint64_t largest)
{
    enum { BITS = 11 };
    struct client_order *from = c->order, *to = c->spare;
    uint32_t shift = 0;

    do {
        size_t first[1 << BITS] = { 0 }, at = 0;

        for (size_t i = 0; i < n; i++)
            first[from[i].row >> shift & ((1 << BITS) - 1)]++;
        for (size_t i = 0; i < 1 << BITS; i++) {
            size_t count = first[i];

            first[i] = at;
            at += count;
        }
        for (size_t i = 0; i < n; i++)
            to[first[from[i].row >> shift & ((1 << BITS) - 1)]++] = from[i];
        struct client_order *swap = from;

        from = to;
        to = swap;
        shift += BITS;
    } while (shift < 64 && largest >> shift > 0);
    c->order = from;
    c->spare = to;
}

/* Lists the marked slots of a table in the order of their rows. */
static size_t list_marked(struct ps_client *c, uint32_t table, const struct packed *marks)
{
    const struct ps_slots *s = &c->tables[table].slots;
    const uint64_t *words = marks->marks + marks->tables[table].first_word;
    uint64_t largest = 0;
    uint32_t n = 0;

    for (size_t w = 0; w < (s->n + 63) / 64; w++)
        for (uint64_t left = words[w]; left != 0; left &= left - 1, n++) {
            uint64_t row = s->rows[w * 64 + (size_t)__builtin_ctzll(left)];

            c->order[n] = (struct client_order){ row, n };
            largest = row > largest ? row : largest;
        }
    if (n > 1)
        sort(c, n, largest);
    return n;
}

/* Adds the rows of n marked slots to the messages of their holders, and their values, which stay where they are
 * (borrows) or are copied. */
static void write_rows(struct ps_client *c, const struct client_table *t, size_t n,
                       const float *values, bool borrows)
{
    size_t width = t->width;

    for (size_t i = 0; i < n; i++) {
        const uint32_t *holders = client_holders_of(c, t, c->order[i].row);
        const float *from = values + c->order[i].place * width;

        if (i + PREFETCH_AHEAD < n && !borrows) /* the values are in another order */
            prefetch_row(values + c->order[i + PREFETCH_AHEAD].place * width,
                         width * sizeof(*from));
        for (uint32_t h = 0; h < c->route->n_holders; h++) {
            struct client_peer *p = &c->peers[holders[h]];

            *p->rows++ = c->order[i].row;
            if (borrows) {
                ps_write_borrow(&p->out, from, width * sizeof(*from));
            } else {
                memcpy(p->values, from, width * sizeof(*from));
                p->values += width;
            }
        }
    }
}

/* Adds the section of a table to the message of each holder: the rows, then their values. `values`
 * has those of the marked slots. */
static int write_push(struct ps_client *c, uint32_t table, const struct packed *marks,
                      const float *values, struct err *err)
{
    const struct client_table *t = &c->tables[table];
    size_t n = list_marked(c, table, marks), width = t->width;
    bool borrows = width * sizeof(float) >= PS_BORROW_BYTES;

    for (size_t i = 0; i < n; i++)
        for (uint32_t h = 0; h < c->route->n_holders; h++)
            c->peers[client_holders_of(c, t, c->order[i].row)[h]].n++;
    for (uint32_t i = 0; i < c->n_peers; i++) {
        struct client_peer *p = &c->peers[i];
        size_t floats = p->n * width;

        ps_write_section(&p->out, table, table, 0, p->n);
        p->rows =
            ps_write_room(&p->out, p->n * sizeof(*p->rows) + (borrows ? 0 : ps_padded(floats)));
        if (p->rows == NULL)
            return client_no_memory(err);
        p->values = (float *)(p->rows + p->n);
        if (floats % 2 != 0 && !borrows)
            p->values[floats] = 0;
    }
    write_rows(c, t, n, values, borrows);
    for (uint32_t i = 0; i < c->n_peers; i++) {
        if (borrows)
            ps_write_padding(&c->peers[i].out, c->peers[i].n * width);
        c->peers[i].n = 0;
    }
    return 0;
}

static int push(struct ps_client *c, const struct ps_message *m, const struct packed *marks,
                const float *values, const float *const *dense, struct err *err)
{
    int rc = 0;

    client_begin_messages(c, m);
    for (uint32_t i = 0; rc == 0 && i < c->n_sparse; i++)
        rc = write_push(c, i, marks, values + marks->first[i], err);
    for (uint32_t i = c->n_sparse; rc == 0 && i < c->n_tables; i++)
        rc = client_push_dense(c, i, dense[i - c->n_sparse], err);
    for (uint32_t i = 0; rc == 0 && i < c->n_peers; i++) { /* the ranks do not begin with the same server */
        uint32_t to = (c->rank + i) % c->n_peers;

        rc = client_send_to(c, to, err);
    }
    return rc;
}

int ps_client_push(struct ps_client *c, uint64_t version, const struct packed *marks,
                   const float *values, const float *const *dense, float clip, struct err *err)
{
    const struct ps_message m = {
        .kind = PS_PUSH, .step = version, .number = c->first_leaf, .first = c->n_leaves, .clip = clip
    };

    return push(c, &m, marks, values, dense, err);
}

int ps_client_push_unit(struct ps_client *c, const struct ps_unit *unit, const struct packed *marks,
                        const float *values, const float *const *dense, float clip, struct err *err)
{
    const struct ps_message m = { .kind = PS_PUSH,
                                  .step = unit->step,
                                  .flag = 1,
                                  .number = unit->first,
                                  .first = unit->n,
                                  .clip = clip };

    return push(c, &m, marks, values, dense, err);
}
