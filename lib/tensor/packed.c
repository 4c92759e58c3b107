#include "tensor/packed.h"

#include <string.h>

#include "base/clones.h"

static size_t words_of(const struct packed_table *t)
{
    return (t->rows + 63) / 64;
}

size_t packed_layout(struct packed_table *tables, uint32_t n)
{
    size_t words = 0;

    for (uint32_t i = 0; i < n; i++) {
        tables[i].first_word = words;
        words += words_of(&tables[i]);
    }
    return words;
}

size_t packed_bytes(uint32_t n_tables, size_t n_words)
{
    return n_words * (sizeof(uint64_t) + sizeof(uint32_t)) + n_words % 2 * sizeof(uint32_t) +
           ((size_t)n_tables + 1) * sizeof(size_t);
}

struct packed packed_init(const struct packed_table *tables, uint32_t n, size_t n_words,
                          void *memory)
{
    struct packed p = { .tables = tables, .n_tables = n, .n_words = n_words, .marks = memory };

    p.first = (size_t *)(p.marks + n_words);
    p.before = (uint32_t *)(p.first + n + 1);
    packed_clear(&p);
    packed_index(&p);
    return p;
}

void packed_clear(struct packed *p)
{
    memset(p->marks, 0, p->n_words * sizeof(*p->marks));
}

CLONES static size_t count(const uint64_t *marks, uint32_t *before, size_t n)
{
    size_t marked = 0;

    for (size_t i = 0; i < n; i++) {
        before[i] = (uint32_t)marked;
        marked += (size_t)__builtin_popcountll(marks[i]);
    }
    return marked;
}

void packed_index(struct packed *p)
{
    p->first[0] = 0;
    for (uint32_t i = 0; i < p->n_tables; i++) {
        const struct packed_table *t = &p->tables[i];
        size_t marked = count(p->marks + t->first_word, p->before + t->first_word, words_of(t));

        p->first[i + 1] = p->first[i] + marked * t->width;
    }
}

/* ---- sums ---- */

CLONES static size_t count_union(const uint64_t *a, const uint64_t *b, size_t n)
{
    size_t marked = 0;

    for (size_t i = 0; i < n; i++)
        marked += (size_t)__builtin_popcountll(a[i] | b[i]);
    return marked;
}

static size_t union_floats(const struct packed *a, const struct packed *b)
{
    size_t floats = 0;

    for (uint32_t i = 0; i < a->n_tables; i++) {
        const struct packed_table *t = &a->tables[i];

        floats +=
            t->width * count_union(a->marks + t->first_word, b->marks + t->first_word, words_of(t));
    }
    return floats;
}

/* The ends of the rows still to be added. Addition runs from the last row to the first: a row of
 * the union is never before the row of `old` that it contains, so `old` and `new` may share
 * memory. */
struct ends {
    float *new, *old;
    const float *from; /* NULL: all zeros */
};

CLONES static void add_words(struct ends *e, uint64_t *to, const uint64_t *from, size_t n,
                             size_t width)
{
    while (n-- > 0) {
        uint64_t a = to[n], b = from[n], left = a | b;

        while (left != 0) {
            uint64_t mark = (uint64_t)1 << (63 - __builtin_clzll(left));
            float *row = e->new -= width;
            const float *x = e->from;

            left ^= mark;
            if ((a & mark) != 0) {
                e->old -= width;
                if (row != e->old)
                    memmove(row, e->old, width * sizeof(*row));
            }
            if ((b & mark) == 0)
                continue;
            if (x != NULL)
                x = e->from -= width;
            if (x == NULL && (a & mark) == 0)
                memset(row, 0, width * sizeof(*row));
            else if (x != NULL && (a & mark) == 0)
                memcpy(row, x, width * sizeof(*row));
            else if (x != NULL)
                for (size_t k = 0; k < width; k++)
                    row[k] += x[k];
        }
        to[n] = a | b;
    }
}

bool packed_is_valid(const struct packed *p)
{
    for (uint32_t i = 0; i < p->n_tables; i++) {
        const struct packed_table *t = &p->tables[i];
        size_t n = words_of(t);
        uint64_t last = n > 0 ? p->marks[t->first_word + n - 1] : 0;

        if (t->rows % 64 != 0 && last >> t->rows % 64 != 0)
            return false;
    }
    return true;
}

void packed_add(struct packed *to, float *values, const struct packed *from,
                const float *from_values)
{
    struct ends e = { .new = values + union_floats(to, from), .old = values + packed_floats(to) };

    if (from_values != NULL)
        e.from = from_values + packed_floats(from);
    for (uint32_t i = to->n_tables; i-- > 0;) {
        const struct packed_table *t = &to->tables[i];

        add_words(&e, to->marks + t->first_word, from->marks + t->first_word, words_of(t),
                  t->width);
    }
    packed_index(to);
}

/* ---- runs ---- */

/* Returns the first row in [row, end) whose mark is `mark`; `end` if there is none. */
static size_t find(const uint64_t *marks, size_t row, size_t end, bool mark)
{
    while (row < end) {
        uint64_t word = mark ? marks[row / 64] : ~marks[row / 64];

        word >>= row % 64;
        if (word != 0) {
            row += (size_t)__builtin_ctzll(word);
            return row < end ? row : end;
        }
        row += 64 - row % 64;
    }
    return end;
}

struct packed_run packed_runs(const struct packed *p, uint32_t table, size_t begin, size_t end)
{
    const struct packed_table *t = &p->tables[table];
    struct packed_run run = { .marks = p->marks + t->first_word,
                              .width = t->width,
                              .begin = begin,
                              .end = end,
                              .row = begin / t->width,
                              .end_row = end / t->width + (end % t->width != 0) };

    if (begin >= end)
        return (struct packed_run){ .marks = run.marks };
    run.values =
        p->first[table] + packed_place(run.marks, p->before + t->first_word, run.row) * t->width;
    if ((run.marks[run.row / 64] >> run.row % 64 & 1) != 0)
        run.values += begin % t->width;
    return run;
}

bool packed_next(struct packed_run *run)
{
    size_t row = find(run->marks, run->row, run->end_row, true);
    size_t stop = find(run->marks, row, run->end_row, false), at = row * run->width;

    if (row == run->end_row)
        return false;
    run->values += run->n;
    run->row = stop;
    run->at = at > run->begin ? at : run->begin; /* the first row may begin before the range */
    run->n = (stop * run->width < run->end ? stop * run->width : run->end) - run->at;
    return true;
}
