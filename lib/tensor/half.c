#include "tensor/half.h"

#include <math.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/float_formula.h"

/* ---- float16: sign, 5 bits of exponent, 10 of fraction ---- */

static float widen_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 0x1fu,
             fraction = h & 0x3ffu;

    if (exponent == 0x1f)
        return float_of_bits(sign | 0x7f800000u | fraction << 13);
    if (exponent == 0) { /* a multiple of 2^-24 */
        float x = (float)fraction * 0x1p-24f;

        return sign != 0 ? -x : x;
    }
    return float_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

static uint16_t narrow_f16(float x)
{
    uint32_t u = float_bits(x), size = u & 0x7fffffffu, dropped, kept;
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000u);
    uint32_t shift;

    if (size > 0x7f800000u)
        return sign | 0x7e00u;
    if (size >= 0x477ff000u) /* 65520 and above: infinity (the largest number is 65504) */
        return sign | 0x7c00u;
    if (size < 0x33000000u) /* below 2^-25: rounds to 0 */
        return sign;
    if (size >= 0x38800000u) { /* 2^-14 and above: normal */
        kept = (size - 0x38000000u) >> 13;
        dropped = size & 0x1fffu;
        shift = 13;
    } else { /* the fraction with its leading 1, as a multiple of 2^-24 */
        uint32_t whole = (size & 0x7fffffu) | 0x800000u;

        shift = 126 - (size >> 23);
        kept = whole >> shift;
        dropped = whole & ((1u << shift) - 1);
    }
    if (dropped > 1u << (shift - 1) || (dropped == 1u << (shift - 1) && (kept & 1) != 0))
        kept++; /* carry into the exponent */
    return (uint16_t)(sign | kept);
}

void tensor_widen(enum tensor_dtype type, const void *half, size_t n, float *out)
{
    size_t i;

    CHECK(tensor_is_half(type));
    for (i = 0; i < n; i++) {
        uint16_t h;

        memcpy(&h, (const char *)half + 2 * i, sizeof(h));
        out[i] = type == TENSOR_BF16 ? float_of_bfloat16(h) : widen_f16(h);
    }
}

void tensor_narrow(enum tensor_dtype type, const float *x, size_t n, void *half)
{
    size_t i;

    CHECK(tensor_is_half(type));
    for (i = 0; i < n; i++) {
        uint16_t h = type == TENSOR_BF16 ? float_to_bfloat16(x[i]) : narrow_f16(x[i]);

        memcpy((char *)half + 2 * i, &h, sizeof(h));
    }
}

int tensor_narrow_finite(enum tensor_dtype type, const float *x, size_t n, void *half,
                         struct err *err)
{
    /* the smallest number that rounds to infinity: half a step above the largest one */
    float limit = type == TENSOR_BF16 ? 0x1.ffp+127f : 65520.0f;
    size_t i;

    for (i = 0; i < n; i++)
        if (fabsf(x[i]) >= limit && isfinite(x[i]))
            return err_set(err, ERR_INPUT,
                           "element %zu is %g, which would become infinite in %s (the largest number is %s): write it "
                           "as float32%s",
                           i, (double)x[i], tensor_dtype_name(type), type == TENSOR_BF16 ? "3.39e38" : "65504",
                           type == TENSOR_BF16 ? "" : " or bfloat16");
    tensor_narrow(type, x, n, half);
    return 0;
}
