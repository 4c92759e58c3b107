/* export.h - the trained weights as one safetensors file for other programs. */
#ifndef CKPT_EXPORT_H
#define CKPT_EXPORT_H

#include <stddef.h>

#include "tensor/tensor.h"

struct err;

struct ckpt_export_tensor {
    const char *name;     /* unique in the file */
    struct tensor tensor; /* plain, with data; borrowed during the call */
};

/* Writes the tensors in this order, largest elements first, with the metadata {"format": "pt"}.
 * float32 tensors are converted to `floats` (TENSOR_F32, TENSOR_F16, TENSOR_BF16; rounded to the
 * nearest), all others stay as they are. Durable and atomic: a temporary file, synced, renamed, and
 * the folder synced. Errors: ERR_INPUT (a name that cannot be written or is used twice),
 * ERR_UNSUPPORTED (a type that the format does not have), ERR_IO, ERR_FULL, ERR_NOENT, ERR_NOMEM. */
int ckpt_export(const char *path, const struct ckpt_export_tensor *tensors, size_t n,
                enum tensor_dtype floats, struct err *err);

#endif
