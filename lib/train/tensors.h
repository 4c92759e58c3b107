/* tensors.h - the content of a checkpoint as named tensors: those of the state of the task, and the remote tables,
 * which it does not have. The tables that the job keeps on parameter servers, whether or not the group has
 * them, are in shard files (ckpt/shard_files.h), dynamic tables with tensors of integers. */
#ifndef TRAIN_TENSORS_H
#define TRAIN_TENSORS_H

#include <stddef.h>
#include <stdint.h>

struct ckpt_tensor;
struct err;
struct graph;
struct parts;
struct residual_layout;
struct train_opts;

struct tensors { /* all owned; offsets are bytes of the state (parts.h) */
    struct ckpt_tensor *model, *slots;
    uint32_t n_model, n_slots;
    uint32_t n_inner; /* slots without the last ones: the outer momentum, or the residuals of compression */
    char (*slot_names)[512]; /* [n_slots] "<parameter>/<slot>" */
    char (*id_names)[512];   /* "<dynamic table>/ids" */
    uint32_t n_ids;
};

/* The residuals of a code, and where they begin in the state. */
struct tensors_residual {
    const struct residual_layout *layout;
    size_t at; /* floats; SIZE_MAX: the state does not have them */
};

/* On failure tensors_free() frees the rest. Errors: ERR_INPUT (a name is too long), ERR_NOMEM. */
int tensors_name(struct tensors *t, const struct parts *parts,
                 const struct tensors_residual *residual, const struct train_opts *o,
                 const struct graph *g, struct err *err);
void tensors_free(struct tensors *t); /* a zeroed one is allowed */

#endif
