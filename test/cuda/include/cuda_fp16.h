/* cuda_fp16.h - IEEE half precision for kernels. Conversions round to nearest even; numbers above
 * 65504 (65519 still rounds down to it) become infinity; a NaN stays a NaN. There is no arithmetic:
 * kernels convert to float, which rounds once, while CUDA's operators round in each operation. */
#ifndef CUDA_FP16_H
#define CUDA_FP16_H

#include <stdint.h>
#include <string.h>

#include <cuda_runtime.h>

static inline unsigned short emulated_half_of(float x)
{
    uint32_t bits, sign, magnitude, mantissa, shift, half, rest;

    memcpy(&bits, &x, sizeof(bits));
    sign = bits >> 16 & 0x8000;
    magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return 0x7fff;           /* CUDA's NaN */
    if (magnitude >= 0x477ff000) /* 65520 */
        return (unsigned short)(sign | 0x7c00);
    if (magnitude < 0x33000000) /* below half of the smallest subnormal */
        return (unsigned short)sign;
    if (magnitude >= 0x38800000) { /* normal: 2^-14 and up */
        half = (magnitude - 0x38000000) >> 13;
        rest = magnitude & 0x1fff;
        shift = 13;
    } else {
        mantissa = (magnitude & 0x7fffff) | 0x800000;
        shift = 126 - (magnitude >> 23); /* 14 to 24 */
        half = mantissa >> shift;
        rest = mantissa & ((1u << shift) - 1);
    }
    if (rest > 1u << (shift - 1) || (rest == 1u << (shift - 1) && (half & 1) != 0))
        half++; /* may carry into the exponent */
    return (unsigned short)(sign | half);
}
static inline float emulated_half_value(unsigned short h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 1023,
             bits;
    float x;

    if (exponent == 0) { /* mantissa * 2^-24, exactly */
        x = (float)mantissa * 0x1p-24f;
        return sign != 0 ? -x : x;
    }
    bits = sign | (exponent == 31 ? 0x7f800000 : (exponent + 112) << 23) | mantissa << 13;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

struct __half {
    unsigned short x;
#ifdef __cplusplus
    __half() = default;
    explicit __half(float v) : x(emulated_half_of(v))
    {
    }
    explicit operator float() const
    {
        return emulated_half_value(x);
    }
#endif
};
#ifndef __cplusplus
typedef struct __half __half;
#endif

struct __attribute__((aligned(4))) __half2 {
    __half x, y;
};
#ifndef __cplusplus
typedef struct __half2 __half2;
#endif

/* ---- bits ---- */

static inline __half __ushort_as_half(unsigned short bits)
{
    __half h;

    h.x = bits;
    return h;
}
static inline unsigned short __half_as_ushort(__half h)
{
    return h.x;
}

/* ---- one value ---- */

static inline __half __float2half_rn(float x)
{
    return __ushort_as_half(emulated_half_of(x));
}
static inline __half __float2half(float x)
{
    return __float2half_rn(x);
}
static inline float __half2float(__half h)
{
    return emulated_half_value(h.x);
}

/* ---- two values ---- */

static inline __half2 __halves2half2(__half x, __half y)
{
    __half2 v;

    v.x = x;
    v.y = y;
    return v;
}
static inline __half2 __floats2half2_rn(float x, float y)
{
    return __halves2half2(__float2half_rn(x), __float2half_rn(y));
}
static inline __half2 __float22half2_rn(float2 v)
{
    return __floats2half2_rn(v.x, v.y);
}
static inline __half2 __float2half2_rn(float x)
{
    return __floats2half2_rn(x, x);
}
static inline float2 __half22float2(__half2 v)
{
    return make_float2(__half2float(v.x), __half2float(v.y));
}
static inline __half __low2half(__half2 v)
{
    return v.x;
}
static inline __half __high2half(__half2 v)
{
    return v.y;
}
#ifdef __cplusplus
static inline float __low2float(__half2 v)
{
    return __half2float(v.x);
}
static inline float __high2float(__half2 v)
{
    return __half2float(v.y);
}
#endif

#ifdef __cplusplus
typedef __half half;
typedef __half2 half2;
#endif

#endif
