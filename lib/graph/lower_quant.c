/* lower_quant.c - lowers quantized arithmetic, only in PLAN_RUN.
 *
 *   DequantizeLinear (10)       (x - zero point) * scale
 *   QuantizeLinear (10)         saturate(round(x / scale) + zero point)
 *   DynamicQuantizeLinear (11)  the same with the scale and zero point of x's range
 *   MatMulInteger, ConvInteger (10), QLinearMatMul, QLinearConv (10)
 *
 * A product is computed in float32 from integers of at most 9 bits, 256 terms at a time: such sums
 * are below 2^24, so float32 represents them exactly, and int64 sums them. Scales are applied in
 * float32. */
#include "graph/lower_kit.h"

#include <inttypes.h>
#include <string.h>

#include "base/err.h"
#include "tensor/narrow.h"

enum { EXACT_TERMS = 256, PIECES_MAX = 1024, BYTE_RANGE = 255 };

static bool require_run(struct lowering *l)
{
    if (l->rc == 0 && l->p->purpose != PLAN_RUN)
        LOWER_ERROR(l, ERR_UNSUPPORTED, "quantised integers have no gradient, so the graph can be run but not "
                    "trained; export the float model, before it is quantized");
    return l->rc == 0;
}

static uint32_t cast_to(struct lowering *l, uint32_t x, enum tensor_dtype to)
{
    return l->rc < 0 ? GRAPH_NONE : lower_tensor(l, x)->dtype == to ? x : lower_cast(l, x, to);
}

/* A value of one element as a scalar. */
static uint32_t one_number(struct lowering *l, uint32_t value)
{
    bool is_scalar = l->rc < 0 || lower_tensor(l, value)->shape.rank == 0;

    return is_scalar ? value : kit_op(l, "Squeeze", value, GRAPH_NONE, GRAPH_NONE);
}

static bool is_real(enum tensor_dtype t)
{
    return t == TENSOR_F32 || t == TENSOR_F16 || t == TENSOR_BF16;
}

/* Sets the range of a quantised integer type. Returns false for every other type. */
static bool range_of(enum tensor_dtype t, float *lo, float *hi)
{
    static const struct {
        enum tensor_dtype t;
        float lo, hi;
    } ranges[] = { { TENSOR_U8, 0, 255 },      { TENSOR_I8, -128, 127 }, { TENSOR_U16, 0, 65535 },
                   { TENSOR_I16, -32768, 32767 }, { TENSOR_U4, 0, 15 },  { TENSOR_I4, -8, 7 },
                   { TENSOR_U2, 0, 3 },        { TENSOR_I2, -2, 1 } };

    for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++)
        if (ranges[i].t == t) {
            *lo = ranges[i].lo, *hi = ranges[i].hi;
            return true;
        }
    return false;
}

/* ---- broadcasting of scales and zero points ---- */

/* A scale or zero point in a form that broadcasts to x: one number, one number per index of the
 * axis, or one per block of block_size indices. */
static uint32_t broadcast_to_x(struct lowering *l, uint32_t value, const struct shape *x,
                               const char *what)
{
    struct shape s = lower_tensor(l, value)->shape, wide = { .rank = x->rank };
    int64_t axis, block = 0, *at;
    uint32_t index;

    if (l->rc == 0)
        l->rc = op_attr_i(&l->attrs, "block_size", 0, &block, l->err);
    if (l->rc < 0)
        return GRAPH_NONE;
    if (shape_elements(&s) == 1 && block == 0)
        return one_number(l, value);
    axis = kit_axis(l, "axis", 1, x->rank);
    if (l->rc < 0)
        return GRAPH_NONE;
    if (block == 0) {
        if (s.rank != 1 || s.dim[0] != x->dim[axis])
            return LOWER_ERROR(l, ERR_INPUT, "%s has %" PRIu32 " dimensions; expected one number or %" PRId64
                               " of them, as x has along axis %" PRId64, what, s.rank, x->dim[axis], axis),
                   GRAPH_NONE;
        for (uint32_t k = 0; k < x->rank; k++)
            wide.dim[k] = k == (uint32_t)axis ? s.dim[0] : 1;
        return kit_reshape(l, value, &wide);
    }
    wide = *x;
    if (block > 0)
        wide.dim[axis] = x->dim[axis] / block + (x->dim[axis] % block != 0);
    if (block < 0 || !shape_equal(&wide, &s))
        return LOWER_ERROR(l, ERR_INPUT, "%s does not have the shape of x with one place for each block of %" PRId64
                           " along axis %" PRId64, what, block, axis),
               GRAPH_NONE;
    at = arena_array(&l->p->mem, (size_t)x->dim[axis], sizeof(*at));
    if (at == NULL || x->dim[axis] > INT32_MAX)
        return l->rc = plan_no_memory(l->err), GRAPH_NONE;
    for (int64_t i = 0; i < x->dim[axis]; i++)
        at[i] = i / block;
    if (x->dim[axis] == 0)
        return value;
    index = kit_ints(l, at, (uint32_t)x->dim[axis]);
    return kit_op_int(l, "Gather", value, index, GRAPH_NONE, "axis", axis);
}

static uint32_t broadcast_input(struct lowering *l, uint32_t i, const struct shape *x,
                                const char *what)
{
    return l->rc < 0 || lower_in(l, i) == GRAPH_NONE ? GRAPH_NONE
                                                     : broadcast_to_x(l, lower_in(l, i), x, what);
}

/* ---- DequantizeLinear ---- */

static enum tensor_dtype type_attr(struct lowering *l, const char *name, enum tensor_dtype dflt)
{
    int64_t t = 0;

    if (l->rc == 0)
        l->rc = op_attr_i(&l->attrs, name, 0, &t, l->err);
    if (l->rc == 0 &&
        (t < 0 || t > 100 || (t != 0 && tensor_dtype_bytes((enum tensor_dtype)t) == 0)))
        LOWER_ERROR(l, ERR_UNSUPPORTED, "%s is type %" PRId64 ", which is not supported", name, t);
    return t == 0 ? dflt : (enum tensor_dtype)t;
}

void lower_dequantize(struct lowering *l)
{
    const struct tensor *x = require_run(l) ? kit_input(l, 0, TENSOR_NONE) : NULL;
    const struct tensor *scale = x != NULL ? kit_input(l, 1, TENSOR_NONE) : NULL;
    uint32_t value = lower_in(l, 0), zero, factor;
    enum tensor_dtype to, real;
    struct shape shape;
    float lo, hi;

    if (scale == NULL)
        return;
    shape = x->shape;
    real = scale->dtype;
    to = type_attr(l, "output_dtype", real);
    if (l->rc == 0 && (!is_real(to) || (!is_real(real) && real != TENSOR_F8E8M0)))
        LOWER_ERROR(l, ERR_UNSUPPORTED,
                    "scale is %s, output %s; expected float32, float16 or bfloat16",
                    tensor_dtype_name(real), tensor_dtype_name(to));
    if (l->rc == 0 && x->dtype != TENSOR_I32 && !range_of(x->dtype, &lo, &hi) &&
        !tensor_is_narrow_float(x->dtype))
        LOWER_ERROR(l, ERR_INPUT, "x is %s; expected a quantised type",
                    tensor_dtype_name(x->dtype));
    if (l->rc < 0)
        return;
    real = tensor_is_narrow_float(x->dtype) ? TENSOR_F32 : TENSOR_I64;
    value = cast_to(l, value, real);
    zero = broadcast_input(l, 2, &shape, "the zero point");
    if (zero != GRAPH_NONE)
        value = kit_op(l, "Sub", value, cast_to(l, zero, real), GRAPH_NONE);
    value = cast_to(l, value, TENSOR_F32);
    factor = broadcast_input(l, 1, &shape, "the scale");
    value = kit_op(l, "Mul", value, cast_to(l, factor, TENSOR_F32), GRAPH_NONE);
    lower_out(l, 0, cast_to(l, value, to));
}

/* ---- QuantizeLinear ---- */

/* round(x) + zero, clipped to the type `to` and converted to it; `zero` GRAPH_NONE: 0. x is
 * float32. */
static uint32_t saturate(struct lowering *l, uint32_t x, uint32_t zero, enum tensor_dtype to)
{
    float lo = 0, hi = 0;

    if (l->rc == 0 && !range_of(to, &lo, &hi))
        LOWER_ERROR(l, ERR_UNSUPPORTED, "output is %s; expected an integer of at most 16 bits",
                    tensor_dtype_name(to));
    x = kit_op(l, "Round", x, GRAPH_NONE, GRAPH_NONE);
    if (zero != GRAPH_NONE)
        x = kit_op(l, "Add", x, cast_to(l, zero, TENSOR_F32), GRAPH_NONE);
    x = kit_op(l, "Clip", x, lower_number(l, lo), lower_number(l, hi));
    return cast_to(l, x, to);
}

static uint32_t to_narrow_float(struct lowering *l, uint32_t x, uint32_t zero, enum tensor_dtype to)
{
    struct lower_node n = { .op = "Cast", .opset = 19, .n_in = 1, .n_attrs = 2 };
    int64_t saturate = 1;

    if (l->rc == 0)
        l->rc = op_attr_i(&l->attrs, "saturate", 1, &saturate, l->err);
    if (zero != GRAPH_NONE)
        x = kit_op(l, "Add", x, cast_to(l, zero, TENSOR_F32), GRAPH_NONE);
    n.in[0] = x;
    n.attrs[0] = (struct op_attr){ .name = "to", .type = OP_ATTR_INT, .i = to };
    n.attrs[1] = (struct op_attr){ .name = "saturate", .type = OP_ATTR_INT, .i = saturate };
    return l->rc < 0 ? GRAPH_NONE : lower_add(l, &n);
}

void lower_quantize(struct lowering *l)
{
    const struct tensor *x = require_run(l) ? kit_input(l, 0, TENSOR_NONE) : NULL;
    const struct tensor *scale = x != NULL ? kit_input(l, 1, TENSOR_NONE) : NULL;
    uint32_t value = lower_in(l, 0), zero, by, zero_in = lower_in(l, 2);
    enum tensor_dtype to, precision;
    struct shape shape;

    if (scale == NULL)
        return;
    shape = x->shape;
    to = zero_in != GRAPH_NONE ? lower_tensor(l, zero_in)->dtype : TENSOR_U8;
    if (zero_in == GRAPH_NONE)
        to = type_attr(l, "output_dtype", to);
    else if (type_attr(l, "output_dtype", to) != to)
        LOWER_ERROR(l, ERR_INPUT, "output_dtype is not the type of the zero point, %s",
                    tensor_dtype_name(to));
    precision = type_attr(l, "precision", is_real(scale->dtype) ? scale->dtype : TENSOR_F32);
    if (l->rc == 0 &&
        (!is_real(precision) || !is_real(x->dtype == TENSOR_I32 ? TENSOR_F32 : x->dtype) ||
         (!is_real(scale->dtype) && scale->dtype != TENSOR_F8E8M0)))
        LOWER_ERROR(l, ERR_UNSUPPORTED,
                    "x is %s, scale %s, the division of %s; expected float32, float16 or bfloat16",
                    tensor_dtype_name(x->dtype), tensor_dtype_name(scale->dtype),
                    tensor_dtype_name(precision));
    if (l->rc < 0)
        return;
    by = broadcast_input(l, 1, &shape, "the scale");
    zero = broadcast_input(l, 2, &shape, "the zero point");
    value = cast_to(l, cast_to(l, value, precision), TENSOR_F32);
    by = cast_to(l, cast_to(l, by, precision), TENSOR_F32);
    value = kit_op(l, "Div", value, by, GRAPH_NONE);
    value = cast_to(l, cast_to(l, value, precision), TENSOR_F32);
    value = l->rc == 0 && tensor_is_narrow_float(to) ? to_narrow_float(l, value, zero, to)
                                                     : saturate(l, value, zero, to);
    lower_out(l, 0, value);
}

void lower_dynamic_quantize(struct lowering *l)
{
    const struct tensor *x = require_run(l) ? kit_input(l, 0, TENSOR_F32) : NULL;
    uint32_t in = lower_in(l, 0), zero, lo, hi, scale, point;

    if (x == NULL)
        return;
    zero = lower_number(l, 0);
    lo = kit_op_int(l, "ReduceMin", in, GRAPH_NONE, GRAPH_NONE, "keepdims", 0);
    hi = kit_op_int(l, "ReduceMax", in, GRAPH_NONE, GRAPH_NONE, "keepdims", 0);
    lo = kit_op(l, "Min", lo, zero, GRAPH_NONE);
    hi = kit_op(l, "Max", hi, zero, GRAPH_NONE);
    scale = kit_op(l, "Div", kit_op(l, "Sub", hi, lo, GRAPH_NONE), lower_number(l, BYTE_RANGE),
                   GRAPH_NONE);
    point = kit_op(l, "Div", kit_op(l, "Sub", zero, lo, GRAPH_NONE), scale, GRAPH_NONE);
    point = saturate(l, point, GRAPH_NONE, TENSOR_U8);
    if (lower_is_needed(l, 0))
        lower_out(l, 0, saturate(l, kit_op(l, "Div", in, scale, GRAPH_NONE), point, TENSOR_U8));
    lower_out(l, 1, scale);
    lower_out(l, 2, point);
}

/* ---- products ---- */

/* Input i, an 8-bit integer, minus its zero point, as float32. `zero` broadcasts to it. */
static uint32_t subtract_zero_point(struct lowering *l, uint32_t i, uint32_t zero)
{
    const struct tensor *x = kit_input(l, i, TENSOR_NONE);
    uint32_t value = lower_in(l, i);
    struct shape shape;

    if (x == NULL)
        return GRAPH_NONE;
    if (x->dtype != TENSOR_U8 && x->dtype != TENSOR_I8)
        return LOWER_ERROR(l, ERR_UNSUPPORTED, "input %" PRIu32 " is %s; expected uint8 or int8", i,
                           tensor_dtype_name(x->dtype)),
               GRAPH_NONE;
    shape = x->shape;
    value = cast_to(l, value, TENSOR_F32);
    if (zero == GRAPH_NONE)
        return value;
    value = kit_op(l, "Sub", value, cast_to(l, zero, TENSOR_F32), GRAPH_NONE);
    if (l->rc == 0 && !shape_equal(&shape, &lower_tensor(l, value)->shape))
        LOWER_ERROR(l, ERR_INPUT,
                    "the zero point of input %" PRIu32 " does not broadcast to its shape", i);
    return value;
}

static uint32_t slice_axis(struct lowering *l, uint32_t x, int64_t axis, int64_t from, int64_t to)
{
    struct lower_node n = { .op = "Slice", .opset = KIT_OPSET, .n_in = 4 };

    if (l->rc < 0 || (from == 0 && to >= lower_tensor(l, x)->shape.dim[axis]))
        return x;
    n.in[0] = x;
    n.in[1] = kit_ints(l, &from, 1);
    n.in[2] = kit_ints(l, &to, 1);
    n.in[3] = kit_ints(l, &axis, 1);
    return l->rc < 0 ? GRAPH_NONE : lower_add(l, &n);
}

/* Reshapes a vector that is a scale or zero point of rows (axis -2) or columns of a matrix so that
 * it broadcasts; other values are unchanged. */
static uint32_t for_lines(struct lowering *l, uint32_t i, bool rows)
{
    uint32_t value = lower_in(l, i);
    const struct shape *s;

    if (l->rc < 0 || value == GRAPH_NONE)
        return GRAPH_NONE;
    s = &lower_tensor(l, value)->shape;
    if (s->rank <= 1 && shape_elements(s) == 1)
        return one_number(l, value);
    return s->rank == 1 && rows ? kit_reshape(l, value, &(struct shape){ .rank = 2, .dim = { s->dim[0], 1 } }) : value;
}

/* The product of inputs a and b minus their zero points, int64 and exact. */
static uint32_t exact_matmul(struct lowering *l, uint32_t a, uint32_t b, uint32_t a_zero,
                             uint32_t b_zero)
{
    uint32_t x = subtract_zero_point(l, a, for_lines(l, a_zero, true)),
             y = subtract_zero_point(l, b, for_lines(l, b_zero, false));
    uint32_t sum = GRAPH_NONE, ra, rb;
    int64_t terms;

    if (l->rc < 0)
        return GRAPH_NONE;
    ra = lower_tensor(l, x)->shape.rank, rb = lower_tensor(l, y)->shape.rank;
    if (ra == 0 || rb == 0)
        return LOWER_ERROR(l, ERR_INPUT, "an input is a scalar; expected matrices"), GRAPH_NONE;
    terms = lower_tensor(l, x)->shape.dim[ra - 1];
    if (terms > (int64_t)EXACT_TERMS * PIECES_MAX)
        return LOWER_ERROR(l, ERR_UNSUPPORTED, "%" PRId64 " terms in a sum; expected at most %d",
                           terms, EXACT_TERMS * PIECES_MAX),
               GRAPH_NONE;
    for (int64_t at = 0; (at < terms || at == 0) && l->rc == 0; at += EXACT_TERMS) {
        int64_t end = at + EXACT_TERMS < terms ? at + EXACT_TERMS : terms;
        uint32_t piece = kit_op(l, "MatMul", slice_axis(l, x, ra - 1, at, end),
                                slice_axis(l, y, rb > 1 ? rb - 2 : 0, at, end), GRAPH_NONE);

        piece = cast_to(l, piece, TENSOR_I64);
        sum = sum == GRAPH_NONE ? piece : kit_op(l, "Add", sum, piece, GRAPH_NONE);
    }
    return sum;
}

static uint32_t conv_node(struct lowering *l, uint32_t x, uint32_t w)
{
    struct lower_node n = { .op = "Conv", .opset = 11, .n_in = 2, .in = { x, w } };

    for (uint32_t i = 0; i < l->attrs.n_attrs && n.n_attrs < LOWER_MAX_ATTRS; i++)
        n.attrs[n.n_attrs++] = l->attrs.attrs[i];
    return l->rc < 0 ? GRAPH_NONE : lower_add(l, &n);
}

/* One number per output channel in the shape [channels, 1, ...] (weights) or [1, channels, 1,
 * ...]. */
static uint32_t for_channels(struct lowering *l, uint32_t i, uint32_t rank, uint32_t axis,
                             int64_t channels)
{
    uint32_t value = lower_in(l, i);
    struct shape wide = { .rank = rank };
    const struct shape *s;

    if (l->rc < 0 || value == GRAPH_NONE)
        return GRAPH_NONE;
    s = &lower_tensor(l, value)->shape;
    if (shape_elements(s) == 1)
        return one_number(l, value);
    if (s->rank != 1 || s->dim[0] != channels)
        return LOWER_ERROR(l, ERR_INPUT, "input %" PRIu32 " does not have one number or one for each of %" PRId64
                           " output channels", i, channels),
               GRAPH_NONE;
    for (uint32_t k = 0; k < rank; k++)
        wide.dim[k] = k == axis ? channels : 1;
    return kit_reshape(l, value, &wide);
}

/* The convolution of inputs x and w minus their zero points, int64 and exact; padding is 0 after
 * the subtraction. */
static uint32_t exact_conv(struct lowering *l, uint32_t x, uint32_t w, uint32_t x_zero,
                           uint32_t w_zero)
{
    const struct tensor *images = kit_input(l, x, TENSOR_NONE),
                        *weights = kit_input(l, w, TENSOR_NONE);
    uint32_t a, b, sum = GRAPH_NONE, rank = weights != NULL ? weights->shape.rank : 0;
    int64_t place = 1, channels, depth, each, group = 1;

    if (l->rc == 0)
        l->rc = op_attr_i(&l->attrs, "group", 1, &group, l->err);
    if (l->rc == 0 && (images == NULL || rank < 3 || images->shape.rank != rank))
        LOWER_ERROR(l, ERR_INPUT, "x and w do not have the same number of dimensions, at least 3");
    if (l->rc < 0)
        return GRAPH_NONE;
    for (uint32_t k = 2; k < rank; k++)
        place = place > EXACT_TERMS || weights->shape.dim[k] > EXACT_TERMS
                    ? EXACT_TERMS + 1
                    : place * weights->shape.dim[k];
    channels = weights->shape.dim[0]; /* adding a node moves the tensors: `weights` is invalid after subtract_zero_point() */
    depth = weights->shape.dim[1];
    each = place > 0 && place <= EXACT_TERMS ? EXACT_TERMS / place : 0;
    if (each == 0 || (depth > each && (group != 1 || depth / each > PIECES_MAX)))
        return LOWER_ERROR(l, ERR_UNSUPPORTED,
                           "sums of more than %d products of a channel, or of a group of several",
                           EXACT_TERMS),
               GRAPH_NONE;
    a = subtract_zero_point(l, x, for_channels(l, x_zero, rank, 1, -1));
    b = subtract_zero_point(l, w, for_channels(l, w_zero, rank, 0, channels));
    for (int64_t at = 0; (at < depth || at == 0) && l->rc == 0; at += each) {
        int64_t end = at + each < depth ? at + each : depth;
        uint32_t piece = conv_node(l, group == 1 ? slice_axis(l, a, 1, at, end) : a,
                                   slice_axis(l, b, 1, at, end));

        piece = cast_to(l, piece, TENSOR_I64);
        sum = sum == GRAPH_NONE ? piece : kit_op(l, "Add", sum, piece, GRAPH_NONE);
    }
    return sum;
}

void lower_matmul_integer(struct lowering *l)
{
    uint32_t sum = require_run(l) ? exact_matmul(l, 0, 1, 2, 3) : GRAPH_NONE;

    lower_out(l, 0, cast_to(l, sum, TENSOR_I32));
}

void lower_conv_integer(struct lowering *l)
{
    uint32_t sum = require_run(l) ? exact_conv(l, 0, 1, 2, 3) : GRAPH_NONE;

    lower_out(l, 0, cast_to(l, sum, TENSOR_I32));
}

/* saturate(round(sum * (a_scale * b_scale / y_scale)) + y_zero) in the type of the zero point. */
static void requantize(struct lowering *l, uint32_t sum, uint32_t a_scale, uint32_t b_scale)
{
    uint32_t y_scale = lower_in(l, 6), zero = lower_in(l, 7), factor;
    enum tensor_dtype to;

    if (l->rc == 0 && (y_scale == GRAPH_NONE || zero == GRAPH_NONE || a_scale == GRAPH_NONE ||
                       b_scale == GRAPH_NONE))
        LOWER_ERROR(l, ERR_INPUT, "a scale or the zero point of y is missing");
    if (l->rc == 0 && (shape_elements(&lower_tensor(l, y_scale)->shape) != 1 ||
                       shape_elements(&lower_tensor(l, zero)->shape) != 1))
        LOWER_ERROR(l, ERR_UNSUPPORTED, "scale or zero point of y is a list; expected one number");
    if (l->rc < 0)
        return;
    to = lower_tensor(l, zero)->dtype;
    if (to != TENSOR_U8 && to != TENSOR_I8)
        LOWER_ERROR(l, ERR_UNSUPPORTED, "y is %s; expected uint8 or int8", tensor_dtype_name(to));
    y_scale = one_number(l, y_scale);
    zero = one_number(l, zero);
    factor = kit_op(l, "Mul", cast_to(l, a_scale, TENSOR_F32), cast_to(l, b_scale, TENSOR_F32),
                    GRAPH_NONE);
    factor = kit_op(l, "Div", factor, cast_to(l, y_scale, TENSOR_F32), GRAPH_NONE);
    sum = kit_op(l, "Mul", cast_to(l, sum, TENSOR_F32), factor, GRAPH_NONE);
    lower_out(l, 0, saturate(l, sum, zero, to));
}

void lower_qlinear_matmul(struct lowering *l)
{
    uint32_t sum = require_run(l) ? exact_matmul(l, 0, 3, 2, 5) : GRAPH_NONE;

    requantize(l, sum, for_lines(l, 1, true), for_lines(l, 4, false));
}

void lower_qlinear_conv(struct lowering *l)
{
    uint32_t sum = require_run(l) ? exact_conv(l, 0, 3, 2, 5) : GRAPH_NONE, rank, bias;
    int64_t channels;

    if (l->rc < 0)
        return;
    rank = lower_tensor(l, sum)->shape.rank;
    channels = lower_tensor(l, lower_in(l, 3))->shape.dim[0];
    bias = for_channels(l, 8, rank, 1, channels);
    if (bias != GRAPH_NONE)
        sum = kit_op(l, "Add", sum, cast_to(l, bias, TENSOR_I64), GRAPH_NONE);
    requantize(l, sum, for_channels(l, 1, rank, 1, -1), for_channels(l, 4, rank, 1, channels));
}
