/* fill.h - initial rows of embedding tables that no file contains: pure functions of a seed, the name of the
 * table, the row and the column, so every task computes the rows that it holds. The numbers have the same
 * bits with every C library, and depend on nothing else: not on the number of rows, nor on the rest of the
 * model. No constant here may ever change. Threads: any. */
#ifndef TENSOR_FILL_H
#define TENSOR_FILL_H

#include <stdint.h>

#include "opts/graph.h"

struct table_fill {
    enum table_fill_kind kind;
    uint32_t stream; /* of the name of the table */
    uint64_t seed;   /* of the job and of the name */
    double scale;    /* range, or standard deviation */
};

struct table_fill table_fill_of(enum table_fill_kind kind, double scale, uint64_t seed,
                                const char *name);
/* Writes rows [first, first + n) of `width` floats. The kind is not TABLE_FROM_FILE. */
void table_fill_rows(const struct table_fill *f, uint32_t width, uint64_t first, uint64_t n,
                     float *out);

#endif
