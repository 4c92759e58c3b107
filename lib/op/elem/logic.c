/* logic.c - And, Or, Xor: y = a op b of bool, with NumPy broadcasting (opset 7).   No gradient. */
#include "op/elem/elem.h"

#include <stdlib.h>

#define LOGIC(id_, name_, expr_)                                                                   \
    ELEM_FWD(id_##_bool, uint8_t, expr_)                                                           \
    static const struct elem_kernels id_##_kernels = { .boolean = id_##_bool };                    \
    static int id_##_infer(struct op_infer *f, struct err *err)                                    \
    {                                                                                              \
        return elem_infer(f, &id_##_kernels, err);                                                 \
    }                                                                                              \
    static int id_##_fwd(const struct op_call *c, struct err *err)                                 \
    {                                                                                              \
        (void)err;                                                                                 \
        return elem_fwd(c, &id_##_kernels);                                                        \
    }                                                                                              \
    const struct op_def op_##id_ = {                                                               \
        .name = (name_),                                                                           \
        .since = 7,                                                                                \
        .n_in = { 2, 2 },                                                                          \
        .n_out = { 1, 1 },                                                                         \
        .infer = id_##_infer,                                                                      \
        .in_place = true,                                                                          \
        .layout = OP_LAYOUT_ANY,                                                                   \
        .cpu = { elem_plan, id_##_fwd, NULL, free },                                               \
    };

LOGIC(and, "And", (ELEM_A != 0) & (ELEM_B != 0))
LOGIC(or, "Or", (ELEM_A != 0) | (ELEM_B != 0))
LOGIC(xor, "Xor", (ELEM_A != 0) ^ (ELEM_B != 0))
