/* export.h - writes the trained weights to one safetensors file for other programs. */
#ifndef CKPT_EXPORT_H
#define CKPT_EXPORT_H

#include <stddef.h>

#include "tensor/tensor.h"

struct err;

struct ckpt_export_tensor {
    const char *name;     /* unique in the file */
    struct tensor tensor; /* plain, with data; borrowed during the call */
    /* Reads rows [first, first + n) of dimension 0 of a tensor without data, ascending. NULL: the tensor has data.
     * An error ends the export. */
    int (*read)(void *arg, uint64_t first, uint64_t n, void *out, struct err *err);
    void *arg;
};

/* Writes the tensors in this order, but largest element types first, with the metadata {"format":
 * "pt"}. float32 tensors are converted to `floats` (TENSOR_F32, TENSOR_F16, TENSOR_BF16; rounded to
 * nearest); all others are written unchanged. Durable and atomic: writes and syncs a temporary
 * file, renames it, syncs the directory. Errors: ERR_INPUT (an invalid or duplicate name),
 * ERR_UNSUPPORTED (the format has no such type), ERR_IO, ERR_FULL, ERR_NOENT, ERR_NOMEM. */
int ckpt_export(const char *path, const struct ckpt_export_tensor *tensors, size_t n,
                enum tensor_dtype floats, struct err *err);

#endif
