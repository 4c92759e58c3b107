/* safetensors.h - the container of named tensors:
 *
 *     uint64 n (little-endian) | n bytes of JSON | data
 *     {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...,
 *      "__metadata__": {"key": "text", ...}}
 *
 * Offsets count from the start of the data; the tensors fill it without holes and without sharing
 * (huggingface.co/docs/safetensors, the format). The JSON is filled up with spaces so that the
 * data starts at a multiple of 8. Threads: pure functions. */
#ifndef CKPT_SAFETENSORS_H
#define CKPT_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "tensor/tensor.h"

struct buf;
struct err;

enum { SAFETENSORS_HEAD_BYTES = 8, SAFETENSORS_JSON_MAX = 100 * 1000 * 1000 };

struct safetensors_entry {
    const char *name;
    enum tensor_dtype dtype;
    struct shape shape;
    uint64_t begin, end; /* in the data */
};

struct safetensors {
    struct arena mem; /* owns the entries and their names */
    struct safetensors_entry *entries; /* in the order of the data */
    size_t n;
    uint64_t data_at; /* where the data starts in the file */
};

/* Length of the JSON from the first 8 bytes of a file of this size. ERR_CORRUPT. */
int safetensors_json_bytes(const uint8_t head[SAFETENSORS_HEAD_BYTES], uint64_t file_bytes,
                           uint64_t *n, struct err *err);
/* Everything the format promises is checked, against the size of the file too. Ended with
 * safetensors_fini(). ERR_CORRUPT, ERR_UNSUPPORTED (a dtype we do not have), ERR_NOMEM. */
int safetensors_parse(const char *json, size_t n, uint64_t file_bytes, struct safetensors *out,
                      struct err *err);
void safetensors_fini(struct safetensors *s);

/* "F32"; NULL: the format has no such type. */
const char *safetensors_dtype(enum tensor_dtype t);
/* Length and JSON for these entries, as they would start a file. `format`: of the metadata ("pt" for
 * files that PyTorch reads); NULL: no metadata. ERR_NOMEM; ERR_UNSUPPORTED if it would be too long to
 * be read again. */
int safetensors_header(const struct safetensors_entry *entries, size_t n, const char *format,
                       struct buf *out, struct err *err);

#endif
