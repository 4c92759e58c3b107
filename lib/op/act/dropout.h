/* dropout.h - the mask of Dropout, for ops that contain a Dropout. */
#ifndef OP_ACT_DROPOUT_H
#define OP_ACT_DROPOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct op_call;
struct op_infer;

struct dropout {
    bool drops;
    uint64_t below; /* an element is dropped if its random word is less; 2^32 drops all */
    float scale;    /* 1 / (1 - ratio); 0 for ratio 1 */
};

/* Fills *d for a tensor of n elements. `drops`: the model drops in training. Errors: ERR_INPUT
 * (ratio), ERR_UNSUPPORTED (too many elements). */
int dropout_finish(const struct op_infer *f, double ratio, bool drops, int64_t n, struct dropout *d,
                   struct err *err);
/* Computes keep[i]: 1 if element first + i, in the order of the shape, is kept in this call. */
void dropout_draw(const struct dropout *d, const struct op_call *c, uint64_t first, size_t n,
                  uint8_t *keep);

#endif
