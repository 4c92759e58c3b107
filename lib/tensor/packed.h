/* packed.h - row-sparse gradients of embedding tables: only the rows that a step read.
 *
 * A table is a matrix [rows, width] of which a step reads a few rows; the gradient of all other
 * rows is zero. Each row has a mark (a bit), and only marked rows are stored: consecutively, rows
 * ascending, table after table, in memory that the caller passes to each call. The sum of two sets
 * has the union of their marks.
 *
 *     marks    table 0 [0 1 0 0 1 ...]      table 1 [1 0 1 ...]
 *     values   row 1, row 4, ...            row 0, row 2, ...
 *
 * If all rows are marked, the values are the whole tables: a dense gradient is a special case.
 *
 * Reproducibility: the values have the bits of a dense sum. A stored row starts at +0 and is only
 * added to, so no sum is -0, and the additions of 0 that are omitted here would not change x.
 *
 * Threads: one thread at a time per set. */
#ifndef TENSOR_PACKED_H
#define TENSOR_PACKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct packed_table {
    size_t rows, width; /* rows <= UINT32_MAX */
    size_t first_word;  /* index of its first word of marks; set by packed_layout() */
};

/* Assigns first_word to each table. Returns the total number of words. */
size_t packed_layout(struct packed_table *tables, uint32_t n);

struct packed {
    const struct packed_table *tables; /* with first_word; borrowed */
    uint32_t n_tables;
    size_t n_words;
    uint64_t *marks;  /* [n_words]; row r of a table: bit r % 64 of word first_word + r / 64 */
    uint32_t *before; /* [n_words]; number of marked rows of the same table in earlier words */
    size_t *first;    /* [n_tables + 1]; index of the first value of a table; the last: total number
                         of floats */
};

/* packed_init() creates a set without marks in `memory`, packed_bytes() bytes, 8-byte aligned, owned
 * by the caller. */
size_t packed_bytes(uint32_t n_tables, size_t n_words);
struct packed packed_init(const struct packed_table *tables, uint32_t n, size_t n_words,
                          void *memory);

void packed_clear(struct packed *p); /* removes all marks */
void packed_index(struct packed *p); /* call after the last mark: computes `before` and `first` */
static inline size_t packed_floats(const struct packed *p)
{
    return p->first[p->n_tables];
}

/* false: a row is marked that its table does not have. For marks that come from another task. */
bool packed_is_valid(const struct packed *p);

/* to += from. packed_index() must have been called for both sets, and `to` needs no further call
 * afterwards. `values` holds the values of `to` and has room for the union. from_values NULL: adds
 * zeros, and reads only the marks of `from`. */
void packed_add(struct packed *to, float *values, const struct packed *from,
                const float *from_values);

/* Iterates over runs of adjacent marked rows within floats [begin, end) of a table:
 *     run = packed_runs(p, table, begin, end);  while (packed_next(&run)) ...
 * The values of successive runs are contiguous. */
struct packed_run {
    size_t at, n;  /* range of floats in the table */
    size_t values; /* index of its first float in the values */
    const uint64_t *marks;
    size_t width, begin, end, row, end_row; /* iterator state: the range still to be searched */
};
struct packed_run packed_runs(const struct packed *p, uint32_t table, size_t begin, size_t end);
bool packed_next(struct packed_run *run); /* false: no more runs */

/* ---- one table, for kernels ---- */
struct packed_rows {
    uint64_t *marks; /* marks from its first row on; NULL: the gradient is dense */
    const uint32_t *before;
    float *values;   /* values from its first marked row on */
    float *read;     /* GPU only, where gradients are dense: [rows], zeroed, set to 1 for each row
                        read. NULL: not recorded */
};

static inline void packed_mark(const struct packed_rows *t, size_t row)
{
    t->marks[row / 64] |= (uint64_t)1 << row % 64;
}

/* Index of a marked row among the marked rows of the table. */
static inline size_t packed_place(const uint64_t *marks, const uint32_t *before, size_t row)
{
    uint64_t below = ((uint64_t)1 << row % 64) - 1;

    return before[row / 64] + (size_t)__builtin_popcountll(marks[row / 64] & below);
}

#endif
