/* compare_cuda.cu - see compare.c, logic.c. */
#include "op/elem/row_cuda.cuh"

#define COMPARE(id_, operator_)                                                                        \
    ELEM_CUDA_Y(id_##_y, a operator_ b)                                                                \
    static int id_##_fwd(const struct op_call *c, struct err *err)                                     \
    {                                                                                                  \
        return elem_cuda_fwd(c, id_##_y(), err);                                                       \
    }                                                                                                  \
    OP_CUDA(op_##id_, .plan = elem_cuda_plan, .fwd = id_##_fwd, .free_state = free);

#define LOGIC(id_, operator_)                                                                          \
    ELEM_CUDA_Y(id_##_y, (a != 0)operator_(b != 0))                                                    \
    static int id_##_fwd(const struct op_call *c, struct err *err)                                     \
    {                                                                                                  \
        return elem_cuda_of<uint8_t>(c, id_##_y(), err);                                               \
    }                                                                                                  \
    OP_CUDA(op_##id_, .plan = elem_cuda_plan, .fwd = id_##_fwd, .free_state = free);

COMPARE(greater, >)
COMPARE(greater_or_equal, >=)
COMPARE(less, <)
COMPARE(less_or_equal, <=)

LOGIC(and, &&)
LOGIC(or, ||)
LOGIC(xor, !=)

/* Equal also accepts bool. */
ELEM_CUDA_Y(equal_y, a == b)
ELEM_CUDA_Y(equal_bool, (a != 0) == (b != 0))

static int equal_fwd(const struct op_call *c, struct err *err)
{
    return c->in[0]->dtype == TENSOR_BOOL ? elem_cuda_of<uint8_t>(c, equal_bool(), err)
                                          : elem_cuda_fwd(c, equal_y(), err);
}
OP_CUDA(op_equal, .plan = elem_cuda_plan, .fwd = equal_fwd, .free_state = free);
