/* logic.c - And, Or, Xor: y = a op b of bool, with NumPy broadcasting (opset 7).   No gradient. */
#include "op/elem/elem.h"

#include <stdlib.h>

#define LOGIC(id_, name_, expr_)                                                                   \
    ELEM_FWD(id_##_bool, uint8_t, expr_)                                                           \
    static const struct elem_kernels id_##_kernels = { .boolean = id_##_bool };                    \
    ELEM_ROW_OF_TWO(id_, name_, 7, true)

LOGIC(and, "And", (ELEM_A != 0) & (ELEM_B != 0))
LOGIC(or, "Or", (ELEM_A != 0) | (ELEM_B != 0))
LOGIC(xor, "Xor", (ELEM_A != 0) ^ (ELEM_B != 0))
