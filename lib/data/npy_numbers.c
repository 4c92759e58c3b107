/* npy_numbers.c - converts the numbers of .npy files. The sources are not aligned. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "data/npy.h"
#include "tensor/half.h"

/* Converts numbers from src until one of them does not fit, and returns how many it has converted. */
typedef size_t convert_fn(const void *src, size_t n, void *dst);

/* fits_: whether x has an equal number of type to_. */
#define CONVERT(name_, from_, to_, fits_)                                                          \
    static size_t name_(const void *src, size_t n, void *dst)                                      \
    {                                                                                              \
        to_ *to = dst;                                                                             \
                                                                                                   \
        for (size_t i = 0; i < n; i++) {                                                           \
            from_ x;                                                                               \
                                                                                                   \
            memcpy(&x, (const uint8_t *)src + sizeof(x) * i, sizeof(x));                           \
            if (!(fits_))                                                                          \
                return i;                                                                          \
            to[i] = (to_)x;                                                                        \
        }                                                                                          \
        return n;                                                                                  \
    }

#define IN_RANGE(to_) !__builtin_add_overflow(x, 0, &(to_){ 0 })
#define WHOLE(least_, above_) (x >= (least_) && x < (above_) && x == floor((double)x))
/* A float has 24 bits of precision; 2^63 and 2^64 cannot be converted back. */
#define SAME_AS_FLOAT_I64 ((float)x < 0x1p63f && (int64_t)(float)x == x)
#define SAME_AS_FLOAT_U64 ((float)x < 0x1p64f && (uint64_t)(float)x == x)

#define FROM_INTEGER(name_, from_, to_float_)                                                      \
    CONVERT(name_##_to_f32, from_, float, to_float_)                                               \
    CONVERT(name_##_to_i64, from_, int64_t, IN_RANGE(int64_t))                                     \
    CONVERT(name_##_to_i32, from_, int32_t, IN_RANGE(int32_t))                                     \
    CONVERT(name_##_to_u8, from_, uint8_t, IN_RANGE(uint8_t))
FROM_INTEGER(i8, int8_t, true)
FROM_INTEGER(u8, uint8_t, true)
FROM_INTEGER(i16, int16_t, true)
FROM_INTEGER(u16, uint16_t, true)
FROM_INTEGER(i32, int32_t, SAME_AS_FLOAT_I64)
FROM_INTEGER(u32, uint32_t, SAME_AS_FLOAT_I64)
FROM_INTEGER(i64, int64_t, SAME_AS_FLOAT_I64)
FROM_INTEGER(u64, uint64_t, SAME_AS_FLOAT_U64)

#define FROM_FLOAT(name_, from_)                                                                   \
    /* float64 is rounded, but no number becomes infinite */                                       \
    CONVERT(name_##_to_f32, from_, float, isfinite((float)x) || !isfinite(x))                      \
    CONVERT(name_##_to_i64, from_, int64_t, WHOLE(-0x1p63, 0x1p63))                                \
    CONVERT(name_##_to_i32, from_, int32_t, WHOLE(-0x1p31, 0x1p31))                                \
    CONVERT(name_##_to_u8, from_, uint8_t, WHOLE(0, 256))
FROM_FLOAT(f32, float)
FROM_FLOAT(f64, double)

/* float16 becomes float32 first, which has all its numbers. */
#define FROM_F16(name_, to_, next_)                                                                \
    static size_t name_(const void *src, size_t n, void *dst)                                      \
    {                                                                                              \
        for (size_t i = 0; i < n; i++) {                                                           \
            float x;                                                                               \
                                                                                                   \
            tensor_widen(TENSOR_F16, (const uint8_t *)src + 2 * i, 1, &x);                         \
            if (next_(&x, 1, (to_ *)dst + i) == 0)                                                 \
                return i;                                                                          \
        }                                                                                          \
        return n;                                                                                  \
    }
FROM_F16(f16_to_f32, float, f32_to_f32)
FROM_F16(f16_to_i64, int64_t, f32_to_i64)
FROM_F16(f16_to_i32, int32_t, f32_to_i32)
FROM_F16(f16_to_u8, uint8_t, f32_to_u8)

#define ROW(type_, name_)                                                                          \
    { type_, { name_##_to_f32, name_##_to_i64, name_##_to_i32, name_##_to_u8 } }
static const enum tensor_dtype targets[] = { TENSOR_F32, TENSOR_I64, TENSOR_I32, TENSOR_U8 };
static const struct {
    enum tensor_dtype from;
    convert_fn *to[COUNT_OF(targets)];
} rows[] = {
    ROW(TENSOR_I8, i8),   ROW(TENSOR_U8, u8),   ROW(TENSOR_BOOL, u8), ROW(TENSOR_I16, i16),
    ROW(TENSOR_U16, u16), ROW(TENSOR_I32, i32), ROW(TENSOR_U32, u32), ROW(TENSOR_I64, i64),
    ROW(TENSOR_U64, u64), ROW(TENSOR_F16, f16), ROW(TENSOR_F32, f32), ROW(TENSOR_F64, f64),
};

size_t npy_convert(enum tensor_dtype from, const void *src, size_t n, enum tensor_dtype to,
                   void *dst)
{
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        for (size_t k = 0; k < COUNT_OF(targets); k++)
            if (rows[i].from == from && targets[k] == to)
                return rows[i].to[k](src, n, dst);
    CHECK(false); /* npy_parse_header() accepts the types of the table alone */
    return 0;
}

void npy_print_number(enum tensor_dtype type, const void *src, size_t i, char *out, size_t room)
{
    const uint8_t *at = (const uint8_t *)src + i * tensor_dtype_bytes(type);
    uint64_t u64;
    double f64;
    float f32;
    int64_t i64;

    switch (type) {
    case TENSOR_U64:
        memcpy(&u64, at, sizeof(u64));
        snprintf(out, room, "%" PRIu64, u64);
        break;
    case TENSOR_F64:
        memcpy(&f64, at, sizeof(f64));
        snprintf(out, room, "%.17g", f64);
        break;
    case TENSOR_F16:
    case TENSOR_F32:
        (void)npy_convert(type, at, 1, TENSOR_F32, &f32); /* always fits */
        snprintf(out, room, "%.9g", (double)f32);
        break;
    default:
        (void)npy_convert(type, at, 1, TENSOR_I64, &i64); /* always fits */
        snprintf(out, room, "%" PRId64, i64);
    }
}
