/* pow.c - Pow: y = a^b, of the type of a.   da = dy b a^(b-1), db = dy y ln a; both are 0 where
 * their limit is: da at b = 0, db at a = 0 < b. Opset 7: NumPy broadcasting; 12: b may have a type
 * of its own.
 *
 * A constant exponent of 2 or 3, the usual case, is recognised when called and costs a product. */
#include "op/elem/elem.h"

#include <stdlib.h>

#include "base/err.h"

ELEM_FWD(pow_f32, float, op_powf(ELEM_A, ELEM_B))
ELEM_FWD(square, float, elem_square(ELEM_A))
ELEM_FWD(cube, float, elem_cube(ELEM_A))
ELEM_FWD_TO(pow_i32, int32_t, uint32_t, elem_pow_whole(ELEM_A, ELEM_B))
ELEM_FWD_TO(pow_i64, int64_t, uint64_t, elem_pow_whole(ELEM_A, ELEM_B))

ELEM_BWD(pow_da, 0, elem_pow_da(ELEM_D, ELEM_B, op_powf(ELEM_A, ELEM_B - 1.0f)))
ELEM_BWD(pow_db, 1, elem_pow_db(ELEM_D, ELEM_A, ELEM_B, op_powf(ELEM_A, ELEM_B)))
ELEM_BWD(square_da, 0, ELEM_D *(2.0f * ELEM_A))
ELEM_BWD(cube_da, 0, ELEM_D *(3.0f * (ELEM_A * ELEM_A)))

static const struct elem_kernels kernels = {
    .f32 = pow_f32, .i32 = pow_i32, .i64 = pow_i64, .bwd = { pow_da, pow_db }
};
static const struct elem_kernels squared = { .f32 = square, .bwd = { square_da, pow_db } };
static const struct elem_kernels cubed = { .f32 = cube, .bwd = { cube_da, pow_db } };

/* For a float32 base and an integer exponent, a float32 copy of the exponent is at the head of the
 * scratch. */
static bool converts(const struct tensor *const *in)
{
    return in[0]->dtype == TENSOR_F32 && in[1]->dtype != TENSOR_F32;
}

static int pow_infer(struct op_infer *f, struct err *err)
{
    const struct tensor *a = f->in[0], *b = f->in[1];

    if (a == NULL || b == NULL || a->dtype == b->dtype)
        return elem_infer(f, &kernels, err);
    if (a->dtype != TENSOR_F32 || (b->dtype != TENSOR_I32 && b->dtype != TENSOR_I64))
        return op_error(f, ERR_UNSUPPORTED, err, "%s to the power of %s; supported are float32, "
                        "int32 and int64 to a power of their own type, and float32 to an integer",
                        tensor_dtype_name(a->dtype), tensor_dtype_name(b->dtype));
    f->out[0].dtype = TENSOR_F32;
    return elem_infer_shape(f, 0, 1, err);
}

static size_t copy_bytes(const struct tensor *const *in)
{
    return converts(in) ? op_round((size_t)tensor_elements(in[1]) * sizeof(float)) : 0;
}

static int pow_plan(struct op_plan *p, struct err *err)
{
    int rc = elem_plan(p, err);

    if (rc == 0)
        p->scratch_bytes = op_round(p->scratch_bytes) + copy_bytes(p->in);
    return rc;
}

/* The call as elem expects it: a float32 exponent; the scratch of the sums follows it. */
static void prepare(const struct op_call *c, const struct tensor *in[2], struct tensor *b,
                    struct op_call *out)
{
    size_t n = (size_t)tensor_elements(c->in[1]), i;

    *out = *c;
    out->in = in;
    in[0] = c->in[0];
    in[1] = c->in[1];
    if (!converts(c->in))
        return;
    *b = *c->in[1];
    b->dtype = TENSOR_F32;
    b->data = c->scratch;
    for (i = 0; i < n; i++)
        ((float *)b->data)[i] = c->in[1]->dtype == TENSOR_I32
                                    ? (float)((const int32_t *)c->in[1]->data)[i]
                                    : (float)((const int64_t *)c->in[1]->data)[i];
    in[1] = b;
    out->scratch = (char *)c->scratch + copy_bytes(c->in);
}

static const struct elem_kernels *kernels_for(const struct op_call *c)
{
    const float *b = c->in[1]->data;

    if (c->in[0]->dtype != TENSOR_F32 || tensor_elements(c->in[1]) != 1)
        return &kernels;
    return *b == 2.0f ? &squared : *b == 3.0f ? &cubed : &kernels;
}

static int pow_fwd(const struct op_call *c, struct err *err)
{
    const struct tensor *in[2];
    struct op_call call;
    struct tensor b;

    (void)err;
    prepare(c, in, &b, &call);
    return elem_fwd(&call, kernels_for(&call));
}

static int pow_bwd(const struct op_call *c, struct err *err)
{
    const struct tensor *in[2];
    struct op_call call;
    struct tensor b;

    (void)err;
    prepare(c, in, &b, &call);
    return elem_bwd(&call, kernels_for(&call));
}

const struct op_def op_pow = {
    .name = "Pow",
    .since = 7,
    .n_in = { 2, 2 },
    .n_out = { 1, 1 },
    .infer = pow_infer,
    .diff = OP_IN(0) | OP_IN(1),
    .bwd_reads = OP_IN(0) | OP_IN(1),
    .in_place = true,
    .layout = OP_LAYOUT_ANY,
    .cpu = { pow_plan, pow_fwd, pow_bwd, free },
};
