/* safetensors.h - the file format for named tensors:
 *
 *     uint64 n (little-endian) | n bytes of JSON | data
 *     {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...,
 *      "__metadata__": {"key": "text", ...}}
 *
 * Offsets count from the start of the data. The tensors cover the data without gaps and without
 * overlap (huggingface.co/docs/safetensors, the format). The JSON is padded with spaces so that the
 * data starts at a multiple of 8. Threads: any; pure functions. */
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
    uint64_t begin, end; /* bytes from the start of the data */
};

struct safetensors {
    struct arena mem;                  /* owns the entries and their names */
    struct safetensors_entry *entries; /* [n] in data order */
    size_t n;
    uint64_t data_at; /* bytes from the start of the file to the data */
};

/* Sets *n to the length of the JSON, from the first 8 bytes of a file of this size. Errors:
 * ERR_CORRUPT. */
int safetensors_json_bytes(const uint8_t head[SAFETENSORS_HEAD_BYTES], uint64_t file_bytes,
                           uint64_t *n, struct err *err);
/* Parses the JSON and checks all requirements of the format, including the file size. The caller
 * frees *out with safetensors_fini(). Errors: ERR_CORRUPT, ERR_UNSUPPORTED (an unknown dtype),
 * ERR_NOMEM. */
int safetensors_parse(const char *json, size_t n, uint64_t file_bytes, struct safetensors *out,
                      struct err *err);
void safetensors_fini(struct safetensors *s);

/* Returns the name of the type in the format, such as "F32"; NULL: the format has no such type. */
const char *safetensors_dtype(enum tensor_dtype t);
struct safetensors_text { /* a member of the metadata, such as "format": "pt" for files that PyTorch reads */
    const char *key, *value;
};
/* Appends length and JSON for these entries, which are the start of a file. n_metadata 0: no
 * metadata. Errors: ERR_NOMEM, ERR_UNSUPPORTED (the JSON exceeds the limit of the parser). */
int safetensors_header(const struct safetensors_entry *entries, size_t n,
                       const struct safetensors_text *metadata, size_t n_metadata, struct buf *out,
                       struct err *err);

#endif
