/* npy.h - reads and writes arrays in NumPy's .npy format, versions 1 to 3 (numpy.lib.format).
 *
 *   "\x93NUMPY" major minor | length of the header, 2 bytes (version 1) or 4, little-endian |
 *   {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), } padded with blanks, '\n' | elements
 *
 * Supports little-endian numbers and booleans; arrays in Fortran order are converted to C order.
 * Other types, big-endian types and objects are rejected. Threads: any. */
#ifndef DATA_NPY_H
#define DATA_NPY_H

#include <stdbool.h>
#include <stddef.h>

#include "tensor/tensor.h"

struct err;

struct npy { /* the content of a header */
    enum tensor_dtype dtype;
    bool fortran;
    struct shape shape;
    size_t data_at; /* bytes from the start of the file to the first element */
};

enum { NPY_HEADER_BYTES = (1 << 16) + 12 }; /* the largest header that is accepted */

/* Parses the header only, from the first NPY_HEADER_BYTES bytes of a file, or from all of a smaller
 * file. `what` is for messages. Errors: ERR_INPUT, ERR_UNSUPPORTED. */
int npy_parse_header(const void *bytes, size_t n, const char *what, struct npy *out,
                     struct err *err);

/* Reads the whole file. The caller frees out->data with free(). A file larger than max_bytes is
 * rejected. Errors: ERR_INPUT, ERR_UNSUPPORTED (element type), ERR_NOENT, ERR_IO, ERR_NOMEM. */
int npy_read(const char *path, size_t max_bytes, struct tensor *out, struct err *err);
/* Reads an array from memory, as npy_read() does from a file; `what` is for messages. */
int npy_parse(const void *bytes, size_t n, const char *what, struct tensor *out, struct err *err);

/* npy_numbers.c: converts n numbers (of any alignment) of a type that a header can state to float32, int64, int32 or uint8,
 * each to the same number, but float64 to the nearest float32. Returns n, or the index of the first number that does not fit,
 * such as 300 in uint8, 0.5 in int64, 16777217 in float32; dst is then undefined from this index on. */
size_t npy_convert(enum tensor_dtype from, const void *src, size_t n, enum tensor_dtype to,
                   void *dst);
/* Prints number i. */
void npy_print_number(enum tensor_dtype type, const void *src, size_t i, char *out, size_t room);

/* Writes a plain tensor atomically. Errors: ERR_UNSUPPORTED (bfloat16), those of fs_replace(). */
int npy_write(const char *path, const struct tensor *t, struct err *err);

#endif
