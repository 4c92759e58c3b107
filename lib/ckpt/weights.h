/* weights.h - reads weight files of other programs: one safetensors file, or several with an index
 * in the format of Hugging Face.
 *
 *     model.safetensors.index.json:
 *     {"metadata": {...}, "weight_map": {"tensor": "model-00001-of-00002.safetensors", ...}}
 *
 * The files are not trusted: headers are checked like those of checkpoints (safetensors.h), the
 * files of an index must be below its directory and are not opened through symbolic links, and
 * index and files must agree on the file of each tensor. The files are mapped; tensors point into
 * the mappings (base/mapping.h) until the set is closed. Threads: any; the set is read-only after
 * ckpt_weights_open(). */
#ifndef CKPT_WEIGHTS_H
#define CKPT_WEIGHTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/map.h"
#include "tensor/tensor.h"

struct ckpt_weights;
struct err;
struct mapping;

enum { CKPT_WEIGHTS_DIGEST_BYTES = 33, CKPT_WEIGHTS_FILES_MAX = 4096 };

/* Opens the weights at `path`: a .safetensors file, an index (.json), or a directory with one of
 * them, in which an index has priority over a file, and "model.safetensors" over other names. On
 * success the caller owns *out. Errors: ERR_INPUT (invalid file, with its place), ERR_UNSUPPORTED
 * (a type that this program does not have), ERR_NOENT, ERR_IO, ERR_NOMEM. */
int ckpt_weights_open(const char *path, struct ckpt_weights **out, struct err *err);
void ckpt_weights_close(struct ckpt_weights *w); /* NULL is allowed */

const char *ckpt_weights_path(const struct ckpt_weights *w); /* of the file or the index */
uint64_t ckpt_weights_bytes(const struct ckpt_weights *w);   /* size of all files */
const char *const *ckpt_weights_names(const struct ckpt_weights *w, uint32_t *n);
/* Finds a tensor; false: there is no such tensor. out->data is not aligned; *mapping is the file
 * that contains it. */
bool ckpt_weights_find(const struct ckpt_weights *w, const char *name, struct tensor *out,
                       const struct mapping **mapping);
/* Computes the XXH3-128 of the content of all files, as 32 hex digits; reads all files.
 * Errors: ERR_IO (a file was truncated), ERR_NOMEM. */
int ckpt_weights_digest(const struct ckpt_weights *w, char out[CKPT_WEIGHTS_DIGEST_BYTES],
                        struct err *err);

/* ---- the index ---- */
struct ckpt_index {
    struct arena mem;   /* owns the arrays and strings */
    struct map file_of; /* tensor name -> index of its file */
    const char **files; /* [n_files] in the order of their first occurrence */
    uint32_t n_files;
    uint32_t n_tensors;
};
/* Parses an index. `name` is for messages. The caller frees *out with ckpt_index_fini(), also after
 * a failure. Errors: ERR_INPUT, ERR_NOMEM. */
int ckpt_index_parse(const char *name, const char *text, size_t n, struct ckpt_index *out,
                     struct err *err);
void ckpt_index_fini(struct ckpt_index *index);

#endif
