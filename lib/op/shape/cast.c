/* cast.c - Cast: converts to the type given by the attribute (opset 6, 9, 13; 19 to 25 add types of
 * 8, 4 and 2 bits, which tensor/narrow.h converts). CastLike (opset 15): converts to the type of
 * input 1. dx = dy from float32 to float32; other types have no gradient.
 *
 * Values are converted through a 64-bit integer or a double, whichever represents the source. To a
 * float: rounds once to nearest even. Float to integer: truncates towards 0; a value out of range
 * becomes the nearest limit, NaN becomes 0 (ONNX leaves both open). Integer to a smaller integer:
 * drops the high bits. To bool: not 0. */
#include <math.h>

#include "base/err.h"
#include "op/op_priv.h"
#include "op/shape/view.h"
#include "tensor/narrow.h"

#include <string.h>

enum { CHUNK = 256 };

union wide {
    int64_t i; /* uint64: its bits */
    double f;
};

/* ---- 16-bit floats: sign, exponent, fraction ---- */

struct half {
    int fraction, bias; /* bits of the fraction; exponent code of 1.0 */
};

static const struct half float16 = { 10, 15 }, bfloat16 = { 7, 127 };

static double half_value(struct half h, uint16_t code)
{
    int exponent = (code & 0x7FFF) >> h.fraction, top = 0x7FFF >> h.fraction;
    int fraction = code & ((1 << h.fraction) - 1);
    double v;

    if (exponent == top)
        v = fraction != 0 ? NAN : INFINITY;
    else if (exponent == 0)
        v = ldexp(fraction, 1 - h.bias - h.fraction);
    else
        v = ldexp(fraction | 1 << h.fraction, exponent - h.bias - h.fraction);
    return (code & 0x8000) != 0 ? -v : v;
}

/* Returns the code of v. Codes of ascending numbers are consecutive: a carry of the fraction
 * increments the exponent, and from the last exponent gives infinity. */
static uint16_t half_code(struct half h, double v)
{
    const uint16_t top = (uint16_t)(0x7FFF >> h.fraction << h.fraction);
    uint16_t sign = signbit(v) ? 0x8000 : 0;
    int exponent;
    double steps;

    v = fabs(v);
    if (isnan(v))
        return sign | top | (uint16_t)(1 << (h.fraction - 1));
    if (v >= ldexp(1, h.bias + 1))
        return sign | top;
    (void)frexp(v, &exponent); /* v < 2^exponent */
    exponent = exponent - 1 < 1 - h.bias || v == 0 ? 1 - h.bias : exponent - 1;
    steps = rint(ldexp(v, h.fraction - exponent));
    return sign | (uint16_t)(((exponent + h.bias - 1) << h.fraction) + (int)steps);
}

struct param {
    bool saturate;
    enum narrow_round round;
};

static bool is_float(enum tensor_dtype t)
{
    return tensor_is_narrow_float(t) || t == TENSOR_F32 || t == TENSOR_F64 || t == TENSOR_F16 ||
           t == TENSOR_BF16;
}

#define EACH for (k = 0; k < n; k++)

static void load(enum tensor_dtype t, const void *x, size_t n, union wide *w)
{
    size_t k;

    if (tensor_is_narrow_float(t)) {
        EACH w[k].f = tensor_narrow_number(t, ((const uint8_t *)x)[k]);
        return;
    }
    switch ((int)t) {
    case TENSOR_F32: EACH w[k].f = (double)((const float *)x)[k]; return;
    case TENSOR_F64: EACH w[k].f = ((const double *)x)[k]; return;
    case TENSOR_F16: EACH w[k].f = half_value(float16, ((const uint16_t *)x)[k]); return;
    case TENSOR_BF16: EACH w[k].f = half_value(bfloat16, ((const uint16_t *)x)[k]); return;
    case TENSOR_U8:
    case TENSOR_U4:
    case TENSOR_U2:
    case TENSOR_BOOL: EACH w[k].i = ((const uint8_t *)x)[k]; return;
    case TENSOR_I8:
    case TENSOR_I4:
    case TENSOR_I2: EACH w[k].i = ((const int8_t *)x)[k]; return;
    case TENSOR_U16: EACH w[k].i = ((const uint16_t *)x)[k]; return;
    case TENSOR_I16: EACH w[k].i = ((const int16_t *)x)[k]; return;
    case TENSOR_U32: EACH w[k].i = ((const uint32_t *)x)[k]; return;
    case TENSOR_I32: EACH w[k].i = ((const int32_t *)x)[k]; return;
    default: EACH w[k].i = ((const int64_t *)x)[k]; return;
    }
}

/* Truncates v to [lo, end). The largest double below `end` is exact up to 32 bits; with 64 bits it
 * is rounded. */
static int64_t limit(double v, double lo, double end)
{
    if (isnan(v))
        return 0;
    if (v >= end)
        return end >= 0x1p63 ? INT64_MAX : (int64_t)end - 1;
    return v <= lo ? (int64_t)lo : (int64_t)v;
}

static int64_t limit_u64(double v)
{
    return v >= 0x1p64 ? -1 : v >= 1 ? (int64_t)(uint64_t)v : 0;
}

static void to_integers(enum tensor_dtype to, size_t n, union wide *w)
{
    static const struct {
        double lo, end;
    } ranges[] = {
        [TENSOR_U8] = { 0, 0x1p8 },    [TENSOR_I8] = { -0x1p7, 0x1p7 },
        [TENSOR_U16] = { 0, 0x1p16 },  [TENSOR_I16] = { -0x1p15, 0x1p15 },
        [TENSOR_U32] = { 0, 0x1p32 },  [TENSOR_I32] = { -0x1p31, 0x1p31 },
        [TENSOR_I64] = { -0x1p63, 0x1p63 },
    };
    size_t k;

    for (k = 0; k < n; k++)
        w[k].i = to == TENSOR_BOOL      ? w[k].f != 0
                 : tensor_is_narrow(to) ? limit(w[k].f, -0x1p63, 0x1p63) /* store() wraps it */
                 : to == TENSOR_U64     ? limit_u64(w[k].f)
                                        : limit(w[k].f, ranges[to].lo, ranges[to].end);
}

/* Converts to a double with round-to-odd: lost bits set the last bit, so that a later rounding to a
 * smaller float gives the same result as rounding from all bits. */
static double to_odd(uint64_t v)
{
    const uint64_t low = 0x7FF;

    return (double)(v >> 53 == 0 ? v : (v & ~low) | ((v & low) != 0 ? low + 1 : 0));
}

static void to_floats(enum tensor_dtype from, enum tensor_dtype to, size_t n, union wide *w)
{
    size_t k;

    for (k = 0; k < n; k++) {
        bool minus = from != TENSOR_U64 && w[k].i < 0;
        uint64_t v = minus ? 0 - (uint64_t)w[k].i : (uint64_t)w[k].i;
        double f = to == TENSOR_F64 ? (double)v : to_odd(v);

        w[k].f = minus ? -f : f;
    }
}

static void store(enum tensor_dtype t, const struct param *p, void *y, size_t n,
                  const union wide *w)
{
    size_t k;

    if (tensor_is_narrow_float(t)) {
        EACH((uint8_t *)y)[k] = tensor_narrow_code(t, w[k].f, p->saturate, p->round);
        return;
    }
    switch ((int)t) {
    case TENSOR_F32: EACH((float *)y)[k] = (float)w[k].f; return;
    case TENSOR_F64: EACH((double *)y)[k] = w[k].f; return;
    case TENSOR_F16: EACH((uint16_t *)y)[k] = half_code(float16, w[k].f); return;
    case TENSOR_BF16: EACH((uint16_t *)y)[k] = half_code(bfloat16, w[k].f); return;
    case TENSOR_BOOL: EACH((uint8_t *)y)[k] = w[k].i != 0; return;
    case TENSOR_U8:
    case TENSOR_I8: EACH((uint8_t *)y)[k] = (uint8_t)w[k].i; return;
    case TENSOR_U4:
    case TENSOR_I4:
    case TENSOR_U2:
    case TENSOR_I2: EACH((uint8_t *)y)[k] = tensor_wrap(t, w[k].i); return;
    case TENSOR_U16:
    case TENSOR_I16: EACH((uint16_t *)y)[k] = (uint16_t)w[k].i; return;
    case TENSOR_U32:
    case TENSOR_I32: EACH((uint32_t *)y)[k] = (uint32_t)w[k].i; return;
    default: EACH((int64_t *)y)[k] = w[k].i; return;
    }
}

static int cast_fwd(const struct op_call *c, struct err *err)
{
    enum tensor_dtype from = c->in[0]->dtype, to = c->out[0]->dtype;
    size_t n = (size_t)tensor_elements(c->in[0]), at, m;
    const char *x = c->in[0]->data;
    char *y = c->out[0]->data;
    union wide w[CHUNK];

    if (from == to)
        return view_fwd(c, err);
    for (at = 0; at < n; at += m) {
        m = n - at < CHUNK ? n - at : CHUNK;
        load(from, x + at * tensor_dtype_bytes(from), m, w);
        if (is_float(from) && !is_float(to))
            to_integers(to, m, w);
        if (!is_float(from) && is_float(to))
            to_floats(from, to, m, w);
        store(to, c->param, y + at * tensor_dtype_bytes(to), m, w);
    }
    return 0;
}

static int read_param(struct op_infer *f, struct err *err)
{
    struct param *p = f->param;
    const char *round = "up";
    int64_t saturate;
    int rc = op_attr_i(f, "saturate", 1, &saturate, err);

    if (rc == 0)
        rc = op_attr_s(f, "round_mode", "up", &round, err);
    if (rc < 0)
        return rc;
    p->saturate = saturate != 0;
    p->round = strcmp(round, "up") == 0     ? NARROW_UP
               : strcmp(round, "down") == 0 ? NARROW_DOWN
                                            : NARROW_NEAREST;
    if (p->round == NARROW_NEAREST && strcmp(round, "nearest") != 0)
        return op_error(f, ERR_INPUT, err, "round_mode is '%s'; expected up, down or nearest",
                        round);
    return 0;
}

static int set_output(struct op_infer *f, int64_t to, struct err *err)
{
    const struct tensor *x = f->in[0];
    int64_t t[2];
    int i, rc = read_param(f, err);

    if (rc < 0)
        return rc;

    if (x == NULL)
        return op_error(f, ERR_INPUT, err, "input 0 is missing");
    t[0] = x->dtype;
    t[1] = to;
    for (i = 0; i < 2; i++)
        if (tensor_dtype_bytes((enum tensor_dtype)t[i]) == 0)
            return op_error(f, ERR_UNSUPPORTED, err, "%s type %lld (%s); supported are float16, "
                            "bfloat16, float32, float64, bool, integers of 2 to 64 bits, float8 and float4",
                            i == 0 ? "from" : "to", (long long)t[i],
                            tensor_dtype_name((enum tensor_dtype)t[i]));
    f->out[0].dtype = (enum tensor_dtype)to;
    f->out[0].shape = x->shape;
    return 0;
}

static int cast_infer(struct op_infer *f, struct err *err)
{
    int64_t to;
    int rc = op_attr_i(f, "to", 0, &to, err);

    return rc < 0 ? rc : set_output(f, to < 0 || to > 1000 ? 0 : to, err);
}

static int cast_like_infer(struct op_infer *f, struct err *err)
{
    if (f->in[1] == NULL)
        return op_error(f, ERR_INPUT, err, "input 1 is missing");
    return set_output(f, f->in[1]->dtype, err);
}

static const char *const attrs[] = { "to", "saturate", "round_mode", NULL };
static const char *const like_attrs[] = { "saturate", "round_mode", NULL };

#define FIELDS                                                                                     \
    .n_out = { 1, 1 }, .diff = OP_IN(0), .layout = OP_LAYOUT_ANY,                                  \
    .param_bytes = sizeof(struct param),                                                           \
    .cpu = { .fwd = cast_fwd, .bwd = view_bwd }

const struct op_def op_cast = { FIELDS, .name = "Cast", .since = 6, .n_in = { 1, 1 },
                                .attrs = attrs, .infer = cast_infer };
const struct op_def op_cast_like = { FIELDS, .name = "CastLike", .since = 15, .n_in = { 2, 2 },
                                     .attrs = like_attrs, .infer = cast_like_infer,
                                     .of_type = OP_IN(1) };
