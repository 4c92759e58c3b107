/* vmath.h - exp, log and related functions that compilers can vectorise: no table, branch or call.
 *
 * Maximum error against the exact value, over all floats (measured by test/op/test_vmath.c):
 *   vm_exp 1 ulp, vm_log 1 ulp, vm_tanh 2 ulp, vm_expm1 4 ulp, vm_log1p 3 ulp, vm_erf 2 ulp,
 *   vm_pow 1 ulp; op_sigmoidf and op_softplusf of formula.h 3 ulp; denormal results are within one
 *   denormal step.
 * A NaN argument gives NaN (but vm_pow(x, 0) and vm_pow(1, x) are 1, as in C). Infinities give the
 * limit. vm_log(0) is -inf, and vm_log of a negative number is NaN. The polynomials are minimax
 * fits for the intervals below (relative error below 6e-9). */
#ifndef OP_VMATH_H
#define OP_VMATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/float_formula.h"
#include "op/op_priv.h"

/* ln 2 as the sum of two floats. The first has 16 significant bits, so its product with an exponent
 * is exact. */
#define VM_LN2_HI 0x1.62e4p-1f
#define VM_LN2_LO 1.42860682e-6f

INLINED float vm_pow2(uint32_t k) /* 2^k; -126 <= (int)k <= 127 */
{
    return float_of_bits((k + 127u) << 23);
}

/* e^x = 2^k e^r, where k is x / ln 2 rounded to an integer, and |r| <= ln(2) / 2. Adding 1.5 * 2^23
 * rounds to an integer and leaves it in the low bits. 2^k is applied in two factors, because 2^128
 * is not a float and the result may be denormal. */
INLINED float vm_exp(float x)
{
    const float magic = 0x1.8p23f;
    float t, n, r, p;
    uint32_t k, half;

    x = x > 89.0f ? 89.0f : x; /* beyond these limits the result is inf or 0; NaN passes */
    x = x < -104.0f ? -104.0f : x;
    t = x * 0x1.715476p+0f + magic;
    n = t - magic;
    k = float_bits(t) - float_bits(magic);
    r = x - n * VM_LN2_HI - n * VM_LN2_LO;
    p = 0x1.6a1a72p-10f;
    p = p * r + 0x1.123fc6p-7f;
    p = p * r + 0x1.555916p-5f;
    p = p * r + 0x1.55548ap-3f;
    p = p * r + 0x1.fffffcp-2f;
    p = (p * (r * r) + r) + 1.0f;
    half = ((k + 512u) >> 1) - 256u;
    return p * vm_pow2(half) * vm_pow2(k - half);
}

/* ln x = e ln 2 + ln(1 + f) with sqrt(1/2) <= 1 + f < sqrt(2). */
INLINED float vm_log(float x)
{
    const uint32_t sqrt_half = 0x3f3504f3u;
    float tiny = x < 0x1p-126f ? 0x1p25f : 1.0f; /* scales denormals to normal numbers */
    uint32_t u = float_bits(x * tiny);
    int32_t k = (int32_t)((u + 0x40000000u - sqrt_half) >> 23) - 128;
    float e = (float)(x < 0x1p-126f ? k - 25 : k);
    float f = float_of_bits(u - ((uint32_t)k << 23)) - 1.0f;
    float s = f * f, p;

    p = -0x1.41eep-4f;
    p = p * f + 0x1.07d0eep-3f;
    p = p * f - 0x1.0ce07cp-3f;
    p = p * f + 0x1.226e4ap-3f;
    p = p * f - 0x1.54788ap-3f;
    p = p * f + 0x1.99a596p-3f;
    p = p * f - 0x1.00022p-2f;
    p = p * f + 0x1.55554ap-2f;
    p = f * s * p + e * VM_LN2_LO;
    p = (f + (p - 0.5f * s)) + e * VM_LN2_HI;
    p = x > 0.0f ? p : x == 0.0f ? -INFINITY : NAN;
    return x == INFINITY ? x : p;
}

/* With a = |x|: a + a^3 P(a^2) for small a, else 1 - 2 / (e^2a + 1). The result gets the sign of
 * x. */
INLINED float vm_tanh(float x)
{
    float a = fabsf(x), z = x * x, p, near, far;

    p = -0x1.76ac18p-8f;
    p = p * z + 0x1.5256d6p-6f;
    p = p * z - 0x1.b84448p-5f;
    p = p * z + 0x1.110768p-3f;
    p = p * z - 0x1.555534p-2f;
    near = a + a * (z * p);
    far = 1.0f - 2.0f / (vm_exp(2.0f * a) + 1.0f);
    return copysignf(a < 0.625f ? near : far, x);
}

/* e^x - 1: for small x the polynomial of vm_exp without the constant 1, else vm_exp(x) - 1. */
INLINED float vm_expm1(float x)
{
    float p;

    p = 0x1.6a1a72p-10f;
    p = p * x + 0x1.123fc6p-7f;
    p = p * x + 0x1.555916p-5f;
    p = p * x + 0x1.55548ap-3f;
    p = p * x + 0x1.fffffcp-2f;
    p = p * (x * x) + x;
    return fabsf(x) < 0.34f ? p : vm_exp(x) - 1.0f;
}

/* ln(1 + x) = ln(u) * x / (u - 1), u = 1 + x rounded: the factor corrects the rounding of u. */
INLINED float vm_log1p(float x)
{
    float u = 1.0f + x, kept = u - 1.0f;
    float y = vm_log(u) * (x / (kept == 0.0f ? 1.0f : kept));

    return kept == 0.0f ? x : x == INFINITY || u == 0.0f ? vm_log(u) : y;
}

/* With a = |x|: a + a P(a^2) for small a, 1 - e^(-a R(a)) above, and 1 from a = 4 on. The result
 * gets the sign of x. */
INLINED float vm_erf(float x)
{
    float a = fabsf(x), z = a * a, t = a > 4.0f ? 4.0f : a, p, q;

    p = 0x1.5f1134p-14f;
    p = p * z - 0x1.aae982p-11f;
    p = p * z + 0x1.54dad6p-8f;
    p = p * z - 0x1.b8107cp-6f;
    p = p * z + 0x1.ce2e2p-4f;
    p = p * z - 0x1.812744p-2f;
    p = p * z + 0x1.06eba8p-3f;
    q = 0x1.7b4d4ep-17f;
    q = q * t - 0x1.533f66p-12f;
    q = q * t + 0x1.ddcfe2p-9f;
    q = q * t - 0x1.856b88p-6f;
    q = q * t + 0x1.b32d0cp-4f;
    q = q * t + 0x1.4531fap-1f;
    q = q * t + 0x1.20ef2ep+0f;
    return copysignf(a < 0.921875f ? a + a * p : 1.0f - vm_exp(-t * q), x);
}

/* ---- computed in double, with a float result ---- */

/* ln x for a float x > 0: e ln 2 + 2 artanh(z), z = (m - 1) / (m + 1), computed by the series of
 * artanh. */
INLINED double vm_log_wide(float x)
{
    const uint32_t sqrt_half = 0x3f3504f3u;
    bool tiny = x < 0x1p-126f;
    uint32_t u = float_bits(x * (tiny ? 0x1p25f : 1.0f));
    int32_t k = (int32_t)((u + 0x40000000u - sqrt_half) >> 23) - 128;
    double m = (double)float_of_bits(u - ((uint32_t)k << 23));
    double z = (m - 1) / (m + 1), s = z * z, p;

    p = 1.0 / 17;
    p = p * s + 1.0 / 15;
    p = p * s + 1.0 / 13;
    p = p * s + 1.0 / 11;
    p = p * s + 1.0 / 9;
    p = p * s + 1.0 / 7;
    p = p * s + 1.0 / 5;
    p = p * s + 1.0 / 3;
    return (double)(tiny ? k - 25 : k) * 0x1.62e42fefa39efp-1 + 2 * (z + z * (s * p));
}

/* e^t rounded to float; 0 or inf outside the range of float. */
INLINED float vm_exp_wide(double t)
{
    const double magic = 0x1.8p52;
    double n, r, p, scale;
    uint64_t k;

    t = t > 100 ? 100 : t;
    t = t < -110 ? -110 : t;
    scale = t * 0x1.71547652b82fep+0 + magic;
    n = scale - magic;
    memcpy(&k, &scale, sizeof(k));
    k = (k + 1023) << 52; /* 2^n: the shift drops the bits of `magic` above the integer */
    r = t - n * 0x1.62e42fefa39efp-1;
    p = 1.0 / 3628800;
    p = p * r + 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * (r * r) + r + 1;
    memcpy(&scale, &k, sizeof(scale));
    return (float)(p * scale);
}

/* a^b, with the special cases of pow() in C. */
INLINED float vm_pow(float a, float b)
{
    float x = fabsf(a), y;
    bool whole = fabsf(b) >= 0x1p23f || b == truncf(b);
    bool odd = whole && fabsf(b) < 0x1p24f && b * 0.5f != truncf(b * 0.5f);
    double t = (double)b * vm_log_wide(x > 0.0f && x < INFINITY ? x : 1.0f);

    y = vm_exp_wide(t);
    y = x == 0.0f ? (b < 0.0f ? INFINITY : 0.0f) : y;
    y = x == INFINITY ? (b < 0.0f ? 0.0f : INFINITY) : y;
    y = odd ? copysignf(y, a) : a < 0.0f && x < INFINITY && !whole ? NAN : y;
    y = a != a || b != b ? NAN : y;
    return b == 0.0f || a == 1.0f || (x == 1.0f && fabsf(b) == INFINITY) ? 1.0f : y;
}

#endif
