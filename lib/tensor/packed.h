/* packed.h - gradients of tables without the rows that nobody reached.
 *
 * A table is a matrix [rows, width] of which a step reads a few rows; all others have a gradient of
 * zero. So a row has a mark, a bit, and only rows with a mark have a place: they lie one after the
 * other, rows ascending, table behind table, in memory that the caller gives to each call. Two such
 * sets add up to one whose marks are the union.
 *
 *     marks    table 0 [0 1 0 0 1 ...]      table 1 [1 0 1 ...]
 *     values   row 1, row 4, ...            row 0, row 2, ...
 *
 * If all rows have marks, the tables lie there whole: a dense gradient is the same thing.
 *
 * Bits: what a set holds is what a dense sum would: a place starts at +0 and is only added to, and
 * such a sum is never -0, so x + 0, which is left out here, would be x.
 *
 * Threads: a set belongs to one at a time. */
#ifndef TENSOR_PACKED_H
#define TENSOR_PACKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct packed_table {
    size_t rows, width; /* rows <= UINT32_MAX */
    size_t first_word;  /* of its marks; packed_lay_out() fills it */
};

/* Words of marks that all tables have together. */
size_t packed_lay_out(struct packed_table *tables, uint32_t n);

struct packed {
    const struct packed_table *tables; /* laid out; borrowed */
    uint32_t n_tables;
    size_t n_words;
    uint64_t *marks;  /* [n_words] row r of a table: bit r % 64 of word first_word + r / 64 */
    uint32_t *before; /* [n_words] marked rows of the same table in the words before */
    size_t *first;    /* [n_tables + 1] where its values begin; at the end all floats */
};

/* A set without marks in memory of the caller, aligned to 8 bytes: packed_bytes(). */
size_t packed_bytes(uint32_t n_tables, size_t n_words);
struct packed packed_at(const struct packed_table *tables, uint32_t n, size_t n_words, void *memory);

void packed_clear(struct packed *p);  /* no marks */
void packed_settle(struct packed *p); /* after the last mark: `before` and `first` */
static inline size_t packed_floats(const struct packed *p)
{
    return p->first[p->n_tables];
}

/* to += from; both settled, `to` is so afterwards. `values` has room for the union. from_values
 * NULL: zeros; then only the marks of `from` are looked at. */
void packed_add(struct packed *to, float *values, const struct packed *from,
                const float *from_values);

/* Marked rows side by side, as far as they lie in floats [begin, end) of a table:
 *     run = packed_runs(p, table, begin, end);  while (packed_next(&run)) ...
 * Their values lie one run behind the other. */
struct packed_run {
    size_t at, n;  /* floats of the table */
    size_t values; /* where the first of them is among the values */
    const uint64_t *marks;
    size_t width, begin, end, row, end_row; /* what is left to look at */
};
struct packed_run packed_runs(const struct packed *p, uint32_t table, size_t begin, size_t end);
bool packed_next(struct packed_run *run); /* false: that was the last */

/* ---- one table, as a kernel sees it ---- */
struct packed_rows {
    uint64_t *marks; /* of its first row; NULL: this gradient is a whole table */
    const uint32_t *before;
    float *values;   /* of its first marked row */
    float *read;     /* of a GPU, whose gradients are whole: [rows] 0; 1 where a row was read. NULL: not wanted */
};

static inline void packed_mark(const struct packed_rows *t, size_t row)
{
    t->marks[row / 64] |= (uint64_t)1 << row % 64;
}

/* The number of a marked row among those that have a mark. */
static inline size_t packed_place(const uint64_t *marks, const uint32_t *before, size_t row)
{
    uint64_t below = ((uint64_t)1 << row % 64) - 1;

    return before[row / 64] + (size_t)__builtin_popcountll(marks[row / 64] & below);
}

#endif
