/* weights.h - files of weights that other programs wrote: one safetensors file, or several with an
 * index as Hugging Face writes it.
 *
 *     model.safetensors.index.json:
 *     {"metadata": {...}, "weight_map": {"tensor": "model-00001-of-00002.safetensors", ...}}
 *
 * Nothing in these files is trusted: headers are checked as those of checkpoints are
 * (safetensors.h), the files of an index must lie below its folder and are not reached through
 * symbolic links, and index and files must agree on which file has which tensor.
 * The files are mapped; tensors point into the mappings (base/mapping.h) until the set is closed.
 * Threads: read-only after it was opened. */
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

/* `path`: a .safetensors file, an index (.json), or a folder with one of them: the index goes before
 * the file, "model.safetensors" before other names. On success the caller owns *out.
 * Errors: ERR_INPUT (invalid file, with its place), ERR_UNSUPPORTED (a type that this program does
 * not have), ERR_NOENT, ERR_IO, ERR_NOMEM. */
int ckpt_weights_open(const char *path, struct ckpt_weights **out, struct err *err);
void ckpt_weights_close(struct ckpt_weights *w); /* NULL is fine */

const char *ckpt_weights_path(const struct ckpt_weights *w); /* of the file or of the index */
uint64_t ckpt_weights_bytes(const struct ckpt_weights *w);   /* of all files */
const char *const *ckpt_weights_names(const struct ckpt_weights *w, uint32_t *n);
/* false: there is no such tensor. Its data may be at any address; *mapping is the file that has it. */
bool ckpt_weights_find(const struct ckpt_weights *w, const char *name, struct tensor *out,
                       const struct mapping **mapping);
/* XXH3-128 of the content of all files, 32 hex digits; reads them from start to end.
 * Errors: ERR_IO (truncated meanwhile), ERR_NOMEM. */
int ckpt_weights_digest(const struct ckpt_weights *w, char out[CKPT_WEIGHTS_DIGEST_BYTES],
                        struct err *err);

/* ---- the index ---- */
struct ckpt_index {
    struct arena mem; /* owns everything */
    struct map file_of; /* tensor -> number of its file */
    const char **files; /* [n_files], in the order in which they are first named */
    uint32_t n_files;
    uint32_t n_tensors;
};
/* `name` is for messages. Ended with ckpt_index_fini(), also after a failure. Errors: ERR_INPUT,
 * ERR_NOMEM. */
int ckpt_index_parse(const char *name, const char *text, size_t n, struct ckpt_index *out,
                     struct err *err);
void ckpt_index_fini(struct ckpt_index *index);

#endif
