/* convert.c - the table of conversions, a row per pair of stored and fed type. The sources are not
 * aligned, so they are loaded with memcpy, which compilers translate to plain (vector) loads. */
#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "base/clones.h"
#include "base/err.h"
#include "data/data_priv.h"

/* These loops are vectorised. The results do not depend on the vector width: multiplication and
 * addition are rounded separately (-ffp-contract=off). */

CLONES static void scale_u8(size_t n, const uint8_t *restrict src, float *restrict dst, float scale,
                            float offset)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = (float)src[i] * scale + offset;
}

CLONES static void scale_f32(size_t n, const uint8_t *restrict src, float *restrict dst,
                             float scale, float offset)
{
    for (size_t i = 0; i < n; i++) {
        float x;

        memcpy(&x, src + 4 * i, 4);
        dst[i] = x * scale + offset;
    }
}

static int u8_to_f32(const struct data_feature *f, size_t n, const void *src, void *dst,
                     struct err *err)
{
    (void)err;
    scale_u8(n, src, dst, (float)f->scale, (float)f->offset);
    return 0;
}

static int f32_to_f32(const struct data_feature *f, size_t n, const void *src, void *dst,
                      struct err *err)
{
    (void)err;
    if (f->scale == 1 && f->offset == 0) /* preserves the sign of zero, and NaN */
        memcpy(dst, src, n * 4);
    else
        scale_f32(n, src, dst, (float)f->scale, (float)f->offset);
    return 0;
}

static int i64_to_f32(const struct data_feature *f, size_t n, const void *src, void *dst,
                      struct err *err)
{
    float scale = (float)f->scale, offset = (float)f->offset, *to = dst;

    (void)err;
    for (size_t i = 0; i < n; i++) {
        int64_t x;

        memcpy(&x, (const uint8_t *)src + 8 * i, 8);
        to[i] = (float)x * scale + offset;
    }
    return 0;
}

static int i32_to_f32(const struct data_feature *f, size_t n, const void *src, void *dst,
                      struct err *err)
{
    float scale = (float)f->scale, offset = (float)f->offset, *to = dst;

    (void)err;
    for (size_t i = 0; i < n; i++) {
        int32_t x;

        memcpy(&x, (const uint8_t *)src + 4 * i, 4);
        to[i] = (float)x * scale + offset;
    }
    return 0;
}

static int i64_to_i32(const struct data_feature *f, size_t n, const void *src, void *dst,
                      struct err *err)
{
    int32_t *to = dst;

    for (size_t i = 0; i < n; i++) {
        int64_t x;

        memcpy(&x, (const uint8_t *)src + 8 * i, 8);
        to[i] = (int32_t)x;
        if (to[i] != x)
            return err_set(err, ERR_INPUT,
                           "feature '%s': value %zu is %" PRId64 ", expected an int32, the type "
                           "in the batch",
                           f->name, i, x);
    }
    return 0;
}

static int i32_to_i64(const struct data_feature *f, size_t n, const void *src, void *dst,
                      struct err *err)
{
    int64_t *to = dst;

    (void)f;
    (void)err;
    for (size_t i = 0; i < n; i++) {
        int32_t x;

        memcpy(&x, (const uint8_t *)src + 4 * i, 4);
        to[i] = x;
    }
    return 0;
}

static int u8_to_i64(const struct data_feature *f, size_t n, const void *src, void *dst,
                     struct err *err)
{
    const uint8_t *from = src;
    int64_t *to = dst;

    (void)f;
    (void)err;
    for (size_t i = 0; i < n; i++)
        to[i] = from[i];
    return 0;
}

static int u8_to_i32(const struct data_feature *f, size_t n, const void *src, void *dst,
                     struct err *err)
{
    const uint8_t *from = src;
    int32_t *to = dst;

    (void)f;
    (void)err;
    for (size_t i = 0; i < n; i++)
        to[i] = from[i];
    return 0;
}

/* Conversions of unsigned tokens, which differ in their types only. */
#define FROM_TOKENS(name_, from_, to_, as_)                                                        \
    static int name_(const struct data_feature *f, size_t n, const void *src, void *dst,           \
                     struct err *err)                                                              \
    {                                                                                              \
        float scale = (float)f->scale, offset = (float)f->offset;                                  \
        to_ *to = dst;                                                                             \
                                                                                                   \
        (void)err;                                                                                 \
        (void)scale;                                                                               \
        (void)offset;                                                                              \
        for (size_t i = 0; i < n; i++) {                                                           \
            from_ x;                                                                               \
                                                                                                   \
            memcpy(&x, (const uint8_t *)src + sizeof(x) * i, sizeof(x));                           \
            to[i] = as_;                                                                           \
        }                                                                                          \
        return 0;                                                                                  \
    }
FROM_TOKENS(u16_to_f32, uint16_t, float, (float)x * scale + offset)
FROM_TOKENS(u32_to_f32, uint32_t, float, (float)x * scale + offset)
FROM_TOKENS(u16_to_i64, uint16_t, int64_t, x)
FROM_TOKENS(u32_to_i64, uint32_t, int64_t, x)
FROM_TOKENS(u16_to_i32, uint16_t, int32_t, x)

static int u32_to_i32(const struct data_feature *f, size_t n, const void *src, void *dst,
                      struct err *err)
{
    int32_t *to = dst;

    for (size_t i = 0; i < n; i++) {
        uint32_t x;

        memcpy(&x, (const uint8_t *)src + 4 * i, 4);
        if (x > INT32_MAX)
            return err_set(err, ERR_INPUT,
                           "feature '%s': value %zu is %" PRIu32 ", expected an int32, the type "
                           "in the batch",
                           f->name, i, x);
        to[i] = (int32_t)x;
    }
    return 0;
}

/* Conversions to bool: true if the number is not 0. */
#define TO_BOOL(name_, from_)                                                                      \
    static int name_(const struct data_feature *f, size_t n, const void *src, void *dst,           \
                     struct err *err)                                                              \
    {                                                                                              \
        uint8_t *to = dst;                                                                         \
                                                                                                   \
        (void)f;                                                                                   \
        (void)err;                                                                                 \
        for (size_t i = 0; i < n; i++) {                                                           \
            from_ x;                                                                               \
                                                                                                   \
            memcpy(&x, (const uint8_t *)src + sizeof(x) * i, sizeof(x));                           \
            to[i] = x != 0;                                                                        \
        }                                                                                          \
        return 0;                                                                                  \
    }
TO_BOOL(u8_to_bool, uint8_t)
TO_BOOL(i32_to_bool, int32_t)
TO_BOOL(i64_to_bool, int64_t)

#define TO_U8(name_, from_)                                                                        \
    static int name_(const struct data_feature *f, size_t n, const void *src, void *dst,           \
                     struct err *err)                                                              \
    {                                                                                              \
        uint8_t *to = dst;                                                                         \
                                                                                                   \
        for (size_t i = 0; i < n; i++) {                                                           \
            from_ x;                                                                               \
                                                                                                   \
            memcpy(&x, (const uint8_t *)src + sizeof(x) * i, sizeof(x));                           \
            if (x < 0 || x > UINT8_MAX)                                                            \
                return err_set(err, ERR_INPUT,                                                     \
                               "feature '%s': value %zu is %" PRId64                               \
                               ", expected 0 to 255, the range "                                   \
                               "of uint8 in the batch",                                            \
                               f->name, i, (int64_t)x);                                            \
            to[i] = (uint8_t)x;                                                                    \
        }                                                                                          \
        return 0;                                                                                  \
    }
TO_U8(i32_to_u8, int32_t)
TO_U8(i64_to_u8, int64_t)

static int copy(const struct data_feature *f, size_t n, const void *src, void *dst, struct err *err)
{
    (void)err;
    memcpy(dst, src, n * tensor_dtype_bytes(f->stored));
    return 0;
}

static const struct data_convert converts[] = {
    { TENSOR_U8, TENSOR_F32, u8_to_f32 },   { TENSOR_U8, TENSOR_I64, u8_to_i64 },
    { TENSOR_U8, TENSOR_I32, u8_to_i32 },   { TENSOR_F32, TENSOR_F32, f32_to_f32 },
    { TENSOR_I64, TENSOR_F32, i64_to_f32 }, { TENSOR_I64, TENSOR_I64, copy },
    { TENSOR_I64, TENSOR_I32, i64_to_i32 }, { TENSOR_I32, TENSOR_F32, i32_to_f32 },
    { TENSOR_I32, TENSOR_I64, i32_to_i64 }, { TENSOR_I32, TENSOR_I32, copy },
    { TENSOR_U16, TENSOR_F32, u16_to_f32 }, { TENSOR_U16, TENSOR_I64, u16_to_i64 },
    { TENSOR_U16, TENSOR_I32, u16_to_i32 }, { TENSOR_U32, TENSOR_F32, u32_to_f32 },
    { TENSOR_U32, TENSOR_I64, u32_to_i64 }, { TENSOR_U32, TENSOR_I32, u32_to_i32 },
    { TENSOR_U8, TENSOR_U8, copy },         { TENSOR_I64, TENSOR_U8, i64_to_u8 },
    { TENSOR_I32, TENSOR_U8, i32_to_u8 },   { TENSOR_U8, TENSOR_BOOL, u8_to_bool },
    { TENSOR_I64, TENSOR_BOOL, i64_to_bool }, { TENSOR_I32, TENSOR_BOOL, i32_to_bool },
};

const struct data_convert *data_convert_find(enum tensor_dtype stored, enum tensor_dtype fed)
{
    for (size_t i = 0; i < COUNT_OF(converts); i++)
        if (converts[i].stored == stored && converts[i].fed == fed)
            return &converts[i];
    return NULL;
}
