/* row_cuda.cuh - rows of two operands on a GPU: one formula per result, of a and b (and d, the
 * gradient of the output). A file defines its formulas as functors, and has one line per row. */
#ifndef OP_ELEM_ROW_CUDA_CUH
#define OP_ELEM_ROW_CUDA_CUH

#include <stdlib.h>

#include "op/elem/elem_cuda.cuh"
#include "op/elem/elem_formula.h"

extern "C" {
#include "op/op_priv.h"
}

/* Functor name_: y of a and b, of any type T. U is T, or the unsigned integer of its size, which
 * wraps. */
#define ELEM_CUDA_Y(name_, expr_)                                                                      \
    namespace {                                                                                        \
    struct name_ {                                                                                     \
        template <typename T> __device__ auto operator()(T a, T b) const                               \
        {                                                                                              \
            using U [[maybe_unused]] = elem_wrapping<T>;                                               \
                                                                                                       \
            return elem_result<T>(expr_);                                                              \
        }                                                                                              \
    };                                                                                                 \
    }

/* Functor name_: a gradient as a function of d; of d and one operand; of d and both operands. */
#define ELEM_CUDA_D(name_, expr_)                                                                      \
    namespace {                                                                                        \
    struct name_ {                                                                                     \
        __device__ float operator()(float d) const { return (expr_); }                                 \
    };                                                                                                 \
    }
#define ELEM_CUDA_DX(name_, expr_)                                                                     \
    namespace {                                                                                        \
    struct name_ {                                                                                     \
        __device__ float operator()(float d, float x) const { return (expr_); }                        \
    };                                                                                                 \
    }
#define ELEM_CUDA_DAB(name_, expr_)                                                                    \
    namespace {                                                                                        \
    struct name_ {                                                                                     \
        __device__ float operator()(float d, float a, float b) const { return (expr_); }               \
    };                                                                                                 \
    }

template <typename T>
using elem_wrapping =
    std::conditional_t<std::is_same_v<T, int32_t>, uint32_t,
                       std::conditional_t<std::is_same_v<T, int64_t>, uint64_t, T>>;

/* Converts a formula's value for storing: bool stays bool, others become the type T of the
 * operands. */
template <typename T, typename R> __device__ static inline auto elem_result(R r)
{
    if constexpr (std::is_same_v<R, bool>)
        return r;
    else
        return (T)r;
}

/* The state is a struct elem_loops, freed with free(). */
static inline int elem_cuda_plan(struct op_plan *p, struct err *err)
{
    struct elem_operand operands[ELEM_OPERANDS];
    struct elem_loops *s = (struct elem_loops *)calloc(1, sizeof(*s));

    if (s == NULL)
        return err_set(err, ERR_NOMEM, "%s '%s': out of memory", p->def->name, p->node);
    for (uint32_t k = 0; k < p->n_in; k++)
        operands[k] = { p->in[k], NULL };
    elem_loops_make(s, &p->out[0], operands, p->n_in);
    for (uint32_t k = 0; k < p->n_in; k++)
        if (op_wants(p, k))
            p->scratch_bytes = op_max(p->scratch_bytes, elem_cuda_scratch(s, k));
    p->state = s;
    return 0;
}

template <typename V> static inline elem_in<V> elem_operand_of(const struct op_call *c, int i)
{
    return { c->in[i], i };
}

/* y = f(a, b), both of type V; V = float stands for all floating types. */
template <typename V, typename F>
static inline int elem_cuda_of(const struct op_call *c, F f, struct err *err)
{
    return elem_cuda_run((const struct elem_loops *)c->state, op_stream(c), c->out[0], false, f,
                         err, elem_operand_of<V>(c, 0), elem_operand_of<V>(c, 1));
}

/* y = f(a, b) for floats, int32, int64 and uint64. */
template <typename F> static inline int elem_cuda_fwd(const struct op_call *c, F f, struct err *err)
{
    enum tensor_dtype t = c->in[0]->dtype;

    return t == TENSOR_I32   ? elem_cuda_of<int32_t>(c, f, err)
           : t == TENSOR_I64 ? elem_cuda_of<int64_t>(c, f, err)
           : t == TENSOR_U64 ? elem_cuda_of<uint64_t>(c, f, err)
                             : elem_cuda_of<float>(c, f, err);
}

/* Computes the gradient of operand k if it is needed: f of d and of these operands. dout[0] is
 * present. */
template <typename F, typename... V>
static inline int elem_cuda_din(const struct op_call *c, uint32_t k, F f, struct err *err,
                                const elem_in<V> &...in)
{
    const elem_in<float> d = { c->dout[0], ELEM_DENSE };

    if (!op_cuda_wants(c, k))
        return 0;
    return elem_cuda_grad((const struct elem_loops *)c->state, op_stream(c), k, c->din[k],
                          c->scratch, op_cuda_adds(c, k), f, err, d, in...);
}

#define ELEM_CUDA_FWD(op_, y_)                                                                         \
    static int op_##_fwd(const struct op_call *c, struct err *err)                                     \
    {                                                                                                  \
        return elem_cuda_fwd(c, y_(), err);                                                            \
    }

/* of_da_, of_db_: the arguments of da_ and db_: D, DA (d and a), DB or DAB. */
#define ELEM_CUDA_BWD(op_, da_, of_da_, db_, of_db_)                                                   \
    static int op_##_bwd(const struct op_call *c, struct err *err)                                     \
    {                                                                                                  \
        int rc;                                                                                        \
                                                                                                       \
        if (c->dout[0] == NULL)                                                                        \
            return op_cuda_zero(c, err);                                                               \
        rc = ELEM_DIN_##of_da_(c, 0, da_);                                                             \
        return rc < 0 ? rc : ELEM_DIN_##of_db_(c, 1, db_);                                             \
    }
#define ELEM_DIN_D(c_, k_, f_) elem_cuda_din(c_, k_, f_(), err)
#define ELEM_DIN_DA(c_, k_, f_) elem_cuda_din(c_, k_, f_(), err, elem_operand_of<float>(c_, 0))
#define ELEM_DIN_DB(c_, k_, f_) elem_cuda_din(c_, k_, f_(), err, elem_operand_of<float>(c_, 1))
#define ELEM_DIN_DAB(c_, k_, f_)                                                                       \
    elem_cuda_din(c_, k_, f_(), err, elem_operand_of<float>(c_, 0), elem_operand_of<float>(c_, 1))

#define ELEM_CUDA_ROW(id_)                                                                            \
    OP_CUDA(op_##id_, .plan = elem_cuda_plan, .fwd = id_##_fwd, .bwd = id_##_bwd, .free_state = free);

#endif
