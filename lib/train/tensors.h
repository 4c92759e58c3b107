/* tensors.h - the layout of a state as named tensors, for checkpoints. */
#ifndef TRAIN_TENSORS_H
#define TRAIN_TENSORS_H

#include <stdint.h>

struct ckpt_tensor;
struct err;
struct whole;

struct tensors { /* all owned; offsets are bytes of the whole state (whole.h) */
    struct ckpt_tensor *model, *slots;
    uint32_t n_model, n_slots;
    uint32_t n_inner; /* slots without the outer momentum, which is last */
    char (*slot_names)[512]; /* [n_slots] "<parameter>/<slot>" */
};

/* On failure tensors_free() frees the rest. Errors: ERR_INPUT (a name is too long), ERR_NOMEM. */
int tensors_name(struct tensors *t, const struct whole *w, struct err *err);
void tensors_free(struct tensors *t); /* a zeroed one is allowed */

#endif
