/* npy.h - arrays in NumPy's .npy format, versions 1 to 3 (numpy.lib.format).
 *
 *   "\x93NUMPY" major minor | length of the header, 2 bytes (version 1) or 4, little-endian |
 *   {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), } padded with blanks, '\n' | elements
 *
 * Numbers and booleans, little-endian; what lies in Fortran's order is turned. Other types, big-endian
 * ones and objects are refused. Threads: any. */
#ifndef DATA_NPY_H
#define DATA_NPY_H

#include <stdbool.h>
#include <stddef.h>

#include "tensor/tensor.h"

struct err;

struct npy { /* what a header says */
    enum tensor_dtype dtype;
    bool fortran;
    struct shape shape;
    size_t data_at; /* bytes from the start of the file to the first element */
};

enum { NPY_HEAD_BYTES = (1 << 16) + 12 }; /* the most that a header may have */

/* The header alone, from the first bytes of a file: NPY_HEAD_BYTES of them, or all there are.
 * `what` is for messages. Errors: ERR_INPUT, ERR_UNSUPPORTED. */
int npy_head(const void *bytes, size_t n, const char *what, struct npy *out, struct err *err);

/* The whole file. out->data is the caller's: free(). A file larger than max_bytes is refused.
 * Errors: ERR_INPUT, ERR_UNSUPPORTED (a type), ERR_NOENT, ERR_IO, ERR_NOMEM. */
int npy_read(const char *path, size_t max_bytes, struct tensor *out, struct err *err);
/* The same from memory; `what` is for messages. */
int npy_parse(const void *bytes, size_t n, const char *what, struct tensor *out, struct err *err);
/* Writes a plain tensor, atomically. bfloat16 is not possible: ERR_UNSUPPORTED. */
int npy_write(const char *path, const struct tensor *t, struct err *err);

#endif
