#include "tensor/narrow.h"

#include <math.h>
#include <string.h>

#include "base/check.h"

/* The format of a signed float: 1 sign bit, exponent, fraction. */
struct form {
    enum tensor_dtype dtype;
    int bits, fraction, bias; /* bias: exponent code of 1.0 */
    uint8_t top;              /* code of the largest number */
    uint8_t nan;              /* code of NaN, without the sign */
    bool has_infinity;        /* code top + 1 */
    bool is_unsigned_zero;    /* FNUZ: no -0; its code is NaN */
};

static const struct form forms[] = {
    { TENSOR_F8E4M3FN, 8, 3, 7, 0x7E, 0x7F, false, false },
    { TENSOR_F8E4M3FNUZ, 8, 3, 8, 0x7F, 0x80, false, true },
    { TENSOR_F8E5M2, 8, 2, 15, 0x7B, 0x7E, true, false },
    { TENSOR_F8E5M2FNUZ, 8, 2, 16, 0x7F, 0x80, false, true },
    { TENSOR_F4E2M1, 4, 1, 1, 0x7, 0x8, false, false }, /* no NaN: converted to -0 */
};

static const struct form *form_of(enum tensor_dtype t)
{
    for (size_t i = 0; i < COUNT_OF(forms); i++)
        if (forms[i].dtype == t)
            return &forms[i];
    return NULL;
}

bool tensor_is_narrow_float(enum tensor_dtype t)
{
    return t == TENSOR_F8E8M0 || form_of(t) != NULL;
}

bool tensor_is_narrow(enum tensor_dtype t)
{
    return tensor_is_narrow_float(t) || t == TENSOR_U4 || t == TENSOR_I4 || t == TENSOR_U2 ||
           t == TENSOR_I2;
}

uint32_t tensor_file_bits(enum tensor_dtype t)
{
    if (t == TENSOR_U4 || t == TENSOR_I4 || t == TENSOR_F4E2M1)
        return 4;
    return t == TENSOR_U2 || t == TENSOR_I2 ? 2 : 8 * (uint32_t)tensor_dtype_bytes(t);
}

size_t tensor_file_bytes(const struct tensor *t)
{
    size_t bytes = tensor_bytes(t), bits = tensor_file_bits(t->dtype);

    return bytes == SIZE_MAX || bits >= 8 ? bytes : bytes / (8 / bits) + (bytes % (8 / bits) != 0);
}

uint8_t tensor_wrap(enum tensor_dtype t, int64_t v)
{
    uint32_t bits = tensor_file_bits(t);
    uint8_t low = (uint8_t)((uint64_t)v & ((1u << bits) - 1));
    bool has_sign = t == TENSOR_I4 || t == TENSOR_I2;

    return has_sign && (low >> (bits - 1)) != 0 ? (uint8_t)(low | 0xFFu << bits) : low;
}

void tensor_unpack(enum tensor_dtype t, const uint8_t *packed, size_t n, void *out)
{
    uint32_t bits = tensor_file_bits(t), each = 8 / bits;
    uint8_t *to = out;

    CHECK(bits == 2 || bits == 4);
    for (size_t i = 0; i < n; i++)
        to[i] = tensor_wrap(t, packed[i / each] >> (i % each * bits));
}

void tensor_pack(enum tensor_dtype t, const void *x, size_t n, uint8_t *packed)
{
    uint32_t bits = tensor_file_bits(t), each = 8 / bits;
    const uint8_t *from = x;

    CHECK(bits == 2 || bits == 4);
    memset(packed, 0, n / each + (n % each != 0));
    for (size_t i = 0; i < n; i++)
        packed[i / each] |= (uint8_t)((from[i] & ((1u << bits) - 1)) << (i % each * bits));
}

/* ---- float8e8m0: only an exponent ---- */

enum { E8M0_NAN = 0xFF, E8M0_TOP = 0xFE, E8M0_BIAS = 127 };

static uint8_t exponent_code(double v, bool saturate, enum narrow_round round)
{
    double fraction;
    int exponent;

    if (isnan(v) || v < 0)
        return E8M0_NAN;
    if (v == 0 || v < 0x1p-127)
        return saturate ? 0 : E8M0_NAN;
    if (v > 0x1p127)
        return saturate ? E8M0_TOP : E8M0_NAN;
    fraction = 2 * frexp(v, &exponent); /* v = fraction * 2^(exponent - 1), 1 <= fraction < 2 */
    exponent += E8M0_BIAS - 1;
    if (round == NARROW_UP ? fraction > 1 : round == NARROW_NEAREST && fraction >= 1.5)
        exponent++;
    return (uint8_t)exponent;
}

/* ---- the others ---- */

double tensor_narrow_number(enum tensor_dtype t, uint8_t code)
{
    const struct form *f = form_of(t);
    int exponent, fraction;
    uint8_t size;
    double v;

    if (t == TENSOR_F8E8M0)
        return code == E8M0_NAN ? (double)NAN : ldexp(1, code - E8M0_BIAS);
    CHECK(f != NULL);
    size = code & (uint8_t)((1u << (f->bits - 1)) - 1);
    code &= (uint8_t)((1u << f->bits) - 1);
    if (f->is_unsigned_zero && code == f->nan)
        return NAN;
    if (size > f->top)
        return f->has_infinity && size == f->top + 1 ? (size == code ? INFINITY : -INFINITY)
                                                     : (double)NAN;
    exponent = size >> f->fraction;
    fraction = size & ((1 << f->fraction) - 1);
    v = exponent == 0 ? ldexp(fraction, 1 - f->bias - f->fraction)
                      : ldexp(fraction | 1 << f->fraction, exponent - f->bias - f->fraction);
    return size == code ? v : -v;
}

/* Returns the code of v >= 0. Codes of ascending numbers are consecutive, so a carry of the
 * fraction increments the exponent. */
static int steps_of(const struct form *f, double v)
{
    int exponent;

    if (v >= ldexp(1, 40)) /* larger than any type; includes infinity */
        return 1 << 8;
    (void)frexp(v, &exponent); /* v < 2^exponent */
    exponent = v == 0 || exponent - 1 < 1 - f->bias ? 1 - f->bias : exponent - 1;
    return ((exponent + f->bias - 1) << f->fraction) + (int)rint(ldexp(v, f->fraction - exponent));
}

uint8_t tensor_narrow_code(enum tensor_dtype t, double v, bool saturate, enum narrow_round round)
{
    const struct form *f = form_of(t);
    uint8_t sign;
    int steps;

    if (t == TENSOR_F8E8M0)
        return exponent_code(v, saturate, round);
    CHECK(f != NULL);
    sign = signbit(v) ? (uint8_t)(1u << (f->bits - 1)) : 0;
    if (isnan(v))
        return f->nan | (f->dtype == TENSOR_F4E2M1 ? 0 : sign);
    steps = steps_of(f, fabs(v));
    if (f->is_unsigned_zero && steps == 0)
        return 0;
    if (steps <= f->top)
        return (uint8_t)(sign | steps);
    if (saturate || f->dtype == TENSOR_F4E2M1)
        return sign | f->top;
    return sign | (f->has_infinity ? (uint8_t)(f->top + 1) : f->nan);
}
