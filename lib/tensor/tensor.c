#include "tensor/tensor.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"

struct dtype_row {
    enum tensor_dtype dtype;
    size_t bytes;
    const char *name; /* NumPy's name; types that NumPy lacks: the name in ml_dtypes */
};

static const struct dtype_row dtypes[] = {
    { TENSOR_F32, 4, "float32" }, { TENSOR_U8, 1, "uint8" },     { TENSOR_I8, 1, "int8" },
    { TENSOR_U16, 2, "uint16" },  { TENSOR_I16, 2, "int16" },    { TENSOR_I32, 4, "int32" },
    { TENSOR_I64, 8, "int64" },   { TENSOR_BOOL, 1, "bool" },    { TENSOR_F16, 2, "float16" },
    { TENSOR_F64, 8, "float64" }, { TENSOR_U32, 4, "uint32" },   { TENSOR_U64, 8, "uint64" },
    { TENSOR_BF16, 2, "bfloat16" },
    { TENSOR_F8E4M3FN, 1, "float8_e4m3fn" },
    { TENSOR_F8E4M3FNUZ, 1, "float8_e4m3fnuz" },
    { TENSOR_F8E5M2, 1, "float8_e5m2" },
    { TENSOR_F8E5M2FNUZ, 1, "float8_e5m2fnuz" },
    { TENSOR_U4, 1, "uint4" },
    { TENSOR_I4, 1, "int4" },
    { TENSOR_F4E2M1, 1, "float4_e2m1fn" },
    { TENSOR_F8E8M0, 1, "float8_e8m0fnu" },
    { TENSOR_U2, 1, "uint2" },
    { TENSOR_I2, 1, "int2" },
};

static const struct dtype_row *dtype_row(enum tensor_dtype t)
{
    size_t i;

    for (i = 0; i < COUNT_OF(dtypes); i++)
        if (dtypes[i].dtype == t)
            return &dtypes[i];
    return NULL;
}

size_t tensor_dtype_bytes(enum tensor_dtype t)
{
    const struct dtype_row *row = dtype_row(t);

    return row != NULL ? row->bytes : 0;
}

const char *tensor_dtype_name(enum tensor_dtype t)
{
    const struct dtype_row *row = dtype_row(t);

    return row != NULL ? row->name : "unknown type";
}

bool tensor_dtype_parse(const char *name, enum tensor_dtype *out)
{
    size_t i;

    for (i = 0; i < COUNT_OF(dtypes); i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            *out = dtypes[i].dtype;
            return true;
        }
    }
    return false;
}

int64_t shape_elements(const struct shape *s)
{
    int64_t n = 1;
    bool fits = true;
    uint32_t i;

    CHECK(s->rank <= TENSOR_MAX_RANK);
    for (i = 0; i < s->rank; i++) {
        if (s->dim[i] == 0)
            return 0; /* even if the product of the other dimensions overflows */
        if (s->dim[i] < 0 || __builtin_mul_overflow(n, s->dim[i], &n))
            fits = false;
    }
    return fits ? n : -1;
}

bool shape_equal(const struct shape *a, const struct shape *b)
{
    uint32_t i;

    if (a->rank != b->rank)
        return false;
    for (i = 0; i < a->rank; i++)
        if (a->dim[i] != b->dim[i])
            return false;
    return true;
}

struct shape shape_of(uint32_t rank, ...)
{
    struct shape s = { .rank = rank };
    uint32_t i;
    va_list ap;

    CHECK(rank <= TENSOR_MAX_RANK);
    va_start(ap, rank);
    for (i = 0; i < rank; i++)
        s.dim[i] = va_arg(ap, int64_t);
    va_end(ap);
    return s;
}

const char *shape_print(const struct shape *s, char *out, size_t n)
{
    char text[TENSOR_MAX_RANK * 22 + 3]; /* the longest int64 has 20 characters */
    size_t at = 0;
    uint32_t i;

    CHECK(s->rank <= TENSOR_MAX_RANK && n > 0);
    text[at++] = '[';
    for (i = 0; i < s->rank; i++)
        at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%" PRId64, i > 0 ? ", " : "",
                               s->dim[i]);
    text[at++] = ']';
    if (at > n - 1)
        at = n - 1;
    memcpy(out, text, at);
    out[at] = '\0';
    return out;
}

bool shape_broadcast(const struct shape *a, const struct shape *b, struct shape *out)
{
    uint32_t rank = a->rank > b->rank ? a->rank : b->rank, i;
    struct shape s = { .rank = rank };

    for (i = 0; i < rank; i++) { /* aligns the axes at the last one; a missing axis has size 1 */
        uint32_t skip_a = rank - a->rank, skip_b = rank - b->rank;
        int64_t da = i < skip_a ? 1 : a->dim[i - skip_a];
        int64_t db = i < skip_b ? 1 : b->dim[i - skip_b];

        if (da != db && da != 1 && db != 1)
            return false;
        s.dim[i] = da == 1 ? db : da;
    }
    *out = s;
    return true;
}

int64_t tensor_elements(const struct tensor *t)
{
    return shape_elements(&t->shape);
}

size_t tensor_bytes(const struct tensor *t)
{
    int64_t n = tensor_elements(t);
    size_t bytes;

    if (n < 0 || __builtin_mul_overflow((size_t)n, tensor_dtype_bytes(t->dtype), &bytes))
        return SIZE_MAX;
    return bytes;
}
