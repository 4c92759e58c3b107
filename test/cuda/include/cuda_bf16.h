/* cuda_bf16.h - bfloat16 for kernels: the upper half of a float. Conversions round to nearest even;
 * a NaN stays a NaN. There is no arithmetic: kernels convert to float, which rounds once, while
 * CUDA's operators round in each operation. */
#ifndef CUDA_BF16_H
#define CUDA_BF16_H

#include <stdint.h>
#include <string.h>

#include <cuda_runtime.h>

static inline unsigned short emulated_bf16_of(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    if ((bits & 0x7fffffff) > 0x7f800000)
        return 0x7fff; /* CUDA's NaN */
    return (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
static inline float emulated_bf16_value(unsigned short h)
{
    uint32_t bits = (uint32_t)h << 16;
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

struct __nv_bfloat16 {
    unsigned short x;
#ifdef __cplusplus
    __nv_bfloat16() = default;
    explicit __nv_bfloat16(float v) : x(emulated_bf16_of(v))
    {
    }
    explicit operator float() const
    {
        return emulated_bf16_value(x);
    }
#endif
};
#ifndef __cplusplus
typedef struct __nv_bfloat16 __nv_bfloat16;
#endif

struct __attribute__((aligned(4))) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};
#ifndef __cplusplus
typedef struct __nv_bfloat162 __nv_bfloat162;
#endif

/* ---- bits ---- */

static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits)
{
    __nv_bfloat16 h;

    h.x = bits;
    return h;
}
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 h)
{
    return h.x;
}

/* ---- one value ---- */

static inline __nv_bfloat16 __float2bfloat16_rn(float x)
{
    return __ushort_as_bfloat16(emulated_bf16_of(x));
}
static inline __nv_bfloat16 __float2bfloat16(float x)
{
    return __float2bfloat16_rn(x);
}
static inline float __bfloat162float(__nv_bfloat16 h)
{
    return emulated_bf16_value(h.x);
}

/* ---- two values ---- */

static inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y)
{
    __nv_bfloat162 v;

    v.x = x;
    v.y = y;
    return v;
}
static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y)
{
    return __halves2bfloat162(__float2bfloat16_rn(x), __float2bfloat16_rn(y));
}
static inline __nv_bfloat162 __float22bfloat162_rn(float2 v)
{
    return __floats2bfloat162_rn(v.x, v.y);
}
static inline __nv_bfloat162 __float2bfloat162_rn(float x)
{
    return __floats2bfloat162_rn(x, x);
}
static inline float2 __bfloat1622float2(__nv_bfloat162 v)
{
    return make_float2(__bfloat162float(v.x), __bfloat162float(v.y));
}
static inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 v)
{
    return v.x;
}
static inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 v)
{
    return v.y;
}
#ifdef __cplusplus
static inline float __low2float(__nv_bfloat162 v)
{
    return __bfloat162float(v.x);
}
static inline float __high2float(__nv_bfloat162 v)
{
    return __bfloat162float(v.y);
}
#endif

#ifdef __cplusplus
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;
#endif

#endif
