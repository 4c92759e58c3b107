/* compare.c - Equal, Greater, GreaterOrEqual, Less, LessOrEqual: y = a op b, bool, with NumPy
 * broadcasting. A NaN compares false.   No gradient.
 * Equal 7, Greater 7, Less 7 (9 and 11 add types); GreaterOrEqual and LessOrEqual 12. */
#include "op/elem/elem.h"

#include <stdlib.h>

#define COMPARE(id_, name_, since_, operator_, bool_)                                              \
    ELEM_FWD_TO(id_##_f32, float, uint8_t, ELEM_A operator_ ELEM_B)                                \
    ELEM_FWD_TO(id_##_i32, int32_t, uint8_t, ELEM_A operator_ ELEM_B)                              \
    ELEM_FWD_TO(id_##_i64, int64_t, uint8_t, ELEM_A operator_ ELEM_B)                              \
    ELEM_FWD_TO(id_##_u64, uint64_t, uint8_t, ELEM_A operator_ ELEM_B)                             \
    static const struct elem_kernels id_##_kernels = {                                             \
        .f32 = id_##_f32, .i32 = id_##_i32, .i64 = id_##_i64, .u64 = id_##_u64,                    \
        .boolean = (bool_), .out = TENSOR_BOOL                                                     \
    };                                                                                             \
    ELEM_ROW_OF_TWO(id_, name_, since_, false)

ELEM_FWD(equal_bool, uint8_t, (ELEM_A != 0) == (ELEM_B != 0))

COMPARE(equal, "Equal", 7, ==, equal_bool)
COMPARE(greater, "Greater", 7, >, NULL)
COMPARE(greater_or_equal, "GreaterOrEqual", 12, >=, NULL)
COMPARE(less, "Less", 7, <, NULL)
COMPARE(less_or_equal, "LessOrEqual", 12, <=, NULL)
