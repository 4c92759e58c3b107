/* npy.h - NumPy's .npy: a header, then the elements of one array.
 *
 *     "\x93NUMPY" | major, minor | length of the text: uint16 (1.0) or uint32 (2.0, 3.0), little-endian |
 *     text: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), } blanks, newline | elements
 *
 * (numpy.lib.format.) Little-endian numbers in C order only. Threads: pure functions. */
#ifndef DATA_NPY_H
#define DATA_NPY_H

#include <stddef.h>
#include <stdint.h>

#include "tensor/tensor.h"

struct buf;
struct err;

enum { NPY_HEAD_MAX = 64 << 10 }; /* longer headers are refused */

struct npy {
    enum tensor_dtype dtype;
    struct shape shape;
    uint64_t data_at; /* bytes from the start of the file to the first element */
};

/* Reads the header from the first bytes of a file, NPY_HEAD_MAX of them or the whole file.
 * ERR_INPUT (no .npy, a cut header), ERR_UNSUPPORTED (an order or a type that we do not read). */
int npy_head(const void *bytes, size_t n, struct npy *out, struct err *err);
/* Adds a header of version 1.0, so that elements can follow, at a multiple of 64 bytes. */
void npy_append_head(struct buf *out, enum tensor_dtype dtype, const struct shape *shape);

#endif
