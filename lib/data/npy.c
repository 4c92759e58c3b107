#include "data/npy.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"

enum { MAGIC_BYTES = 6, ALIGNMENT = 64 };

static const char magic[MAGIC_BYTES] = { '\x93', 'N', 'U', 'M', 'P', 'Y' };

static const struct {
    const char *descr; /* without the mark of the byte order */
    enum tensor_dtype dtype;
} types[] = {
    { "f4", TENSOR_F32 }, { "f8", TENSOR_F64 }, { "f2", TENSOR_F16 }, { "i1", TENSOR_I8 },
    { "u1", TENSOR_U8 },  { "i2", TENSOR_I16 }, { "u2", TENSOR_U16 }, { "i4", TENSOR_I32 },
    { "u4", TENSOR_U32 }, { "i8", TENSOR_I64 }, { "u8", TENSOR_U64 }, { "b1", TENSOR_BOOL },
};

/* The text of the header: a Python literal of a fixed kind. */
struct text {
    const char *at, *end;
};

static void skip_blanks(struct text *t)
{
    while (t->at < t->end && (*t->at == ' ' || *t->at == '\n' || *t->at == '\t'))
        t->at++;
}

static bool take(struct text *t, char c)
{
    skip_blanks(t);
    if (t->at == t->end || *t->at != c)
        return false;
    t->at++;
    return true;
}

static bool take_word(struct text *t, const char *word)
{
    size_t n = strlen(word);

    skip_blanks(t);
    if ((size_t)(t->end - t->at) < n || memcmp(t->at, word, n) != 0)
        return false;
    t->at += n;
    return true;
}

/* 'abc' or "abc", without escapes: none occur. */
static bool take_string(struct text *t, char *out, size_t size)
{
    char quote = take(t, '\'') ? '\'' : take(t, '"') ? '"' : '\0';
    size_t n = 0;

    if (quote == '\0')
        return false;
    while (t->at < t->end && *t->at != quote && n + 1 < size)
        out[n++] = *t->at++;
    out[n] = '\0';
    return take(t, quote);
}

static bool take_number(struct text *t, int64_t *out)
{
    int64_t v = 0;
    const char *begin;

    skip_blanks(t);
    begin = t->at;
    while (t->at < t->end && *t->at >= '0' && *t->at <= '9')
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, *t->at++ - '0', &v))
            return false;
    *out = v;
    return t->at > begin;
}

/* (), (3,), (3, 4) */
static bool take_shape(struct text *t, struct shape *out)
{
    out->rank = 0;
    if (!take(t, '('))
        return false;
    while (!take(t, ')')) {
        if (out->rank == TENSOR_MAX_RANK || !take_number(t, &out->dim[out->rank]))
            return false;
        out->rank++;
        if (!take(t, ','))
            return take(t, ')');
    }
    return true;
}

static int unreadable(const struct text *t, const char *begin, struct err *err)
{
    return err_set(err, ERR_INPUT,
                   ".npy header: expected {'descr': ..., 'fortran_order': ..., 'shape': ...} with at "
                   "most %d dimensions, lost the thread at byte %zu of it",
                   TENSOR_MAX_RANK, (size_t)(t->at - begin));
}

static int set_type(const char *descr, enum tensor_dtype *out, struct err *err)
{
    const char *type = descr + (strchr("<|=", descr[0]) != NULL && descr[0] != '\0');

    for (size_t i = 0; i < COUNT_OF(types); i++)
        if (strcmp(type, types[i].descr) == 0) {
            *out = types[i].dtype;
            return 0;
        }
    return err_set(err, ERR_UNSUPPORTED,
                   "elements of type '%.20s'%s; expected little-endian numbers such as '<f4', '<i8', "
                   "'|u1': save array.astype('float32') or the like",
                   descr, descr[0] == '>' ? " (big-endian)" : "");
}

static int read_text(const char *begin, size_t n, struct npy *out, struct err *err)
{
    enum { DESCR = 1, ORDER = 2, SHAPE = 4 };
    struct text t = { begin, begin + n };
    char key[32], descr[32] = "";
    bool fortran = false;
    unsigned seen = 0;

    if (!take(&t, '{'))
        return unreadable(&t, begin, err);
    while (!take(&t, '}')) {
        if (!take_string(&t, key, sizeof(key)) || !take(&t, ':'))
            return unreadable(&t, begin, err);
        if (strcmp(key, "descr") == 0) {
            if (take(&t, '['))
                return err_set(err, ERR_UNSUPPORTED, ".npy of records with fields: save a plain "
                                                     "array for each field");
            if (!take_string(&t, descr, sizeof(descr)))
                return unreadable(&t, begin, err);
            seen |= DESCR;
        } else if (strcmp(key, "fortran_order") == 0) {
            fortran = take_word(&t, "True");
            if (!fortran && !take_word(&t, "False"))
                return unreadable(&t, begin, err);
            seen |= ORDER;
        } else if (strcmp(key, "shape") == 0 && take_shape(&t, &out->shape)) {
            seen |= SHAPE;
        } else {
            return unreadable(&t, begin, err);
        }
        (void)take(&t, ','); /* there may be one behind the last, too */
    }
    if (seen != (DESCR | ORDER | SHAPE))
        return unreadable(&t, begin, err);
    if (fortran && out->shape.rank > 1)
        return err_set(err, ERR_UNSUPPORTED,
                       ".npy in Fortran order: save numpy.ascontiguousarray(array)");
    return set_type(descr, &out->dtype, err);
}

int npy_head(const void *bytes, size_t n, struct npy *out, struct err *err)
{
    const uint8_t *b = bytes;
    size_t length, text_at;
    struct npy found = { .dtype = TENSOR_NONE };
    int rc;

    if (n < MAGIC_BYTES + 4 || memcmp(b, magic, MAGIC_BYTES) != 0)
        return err_set(err, ERR_INPUT, "no .npy file: it does not begin with \\x93NUMPY");
    if (b[6] < 1 || b[6] > 3)
        return err_set(err, ERR_UNSUPPORTED, ".npy version %u.%u, expected 1.0 to 3.0", b[6], b[7]);
    text_at = b[6] == 1 ? 10 : 12;
    length = (size_t)b[8] | (size_t)b[9] << 8;
    if (b[6] > 1 && n >= 12)
        length |= (size_t)b[10] << 16 | (size_t)b[11] << 24;
    if (text_at + length > n || text_at + length > NPY_HEAD_MAX)
        return err_set(err, ERR_INPUT, "a .npy header of %zu bytes, of which %zu are there (and at "
                                       "most %d are read)",
                       length, n > text_at ? n - text_at : 0, NPY_HEAD_MAX);
    rc = read_text((const char *)b + text_at, length, &found, err);
    if (rc == 0 && shape_elements(&found.shape) < 0)
        rc = err_set(err, ERR_INPUT, "a .npy of more than 2^63 elements");
    if (rc < 0)
        return rc;
    found.data_at = text_at + length;
    *out = found;
    return 0;
}

void npy_append_head(struct buf *out, enum tensor_dtype dtype, const struct shape *shape)
{
    char text[512];
    size_t n, filled, i = 0;

    while (i < COUNT_OF(types) && types[i].dtype != dtype)
        i++;
    CHECK(i < COUNT_OF(types));
    n = (size_t)snprintf(text, sizeof(text), "{'descr': '%s%s', 'fortran_order': False, 'shape': (",
                         tensor_dtype_bytes(dtype) == 1 ? "|" : "<", types[i].descr);
    for (uint32_t d = 0; d < shape->rank; d++)
        n += (size_t)snprintf(text + n, sizeof(text) - n, "%" PRId64 ",%s", shape->dim[d],
                              d + 1 < shape->rank ? " " : "");
    n += (size_t)snprintf(text + n, sizeof(text) - n, "), }");
    filled = (MAGIC_BYTES + 4 + n + 1 + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT - MAGIC_BYTES - 4;
    CHECK(filled < sizeof(text));
    memset(text + n, ' ', filled - n);
    text[filled - 1] = '\n';
    buf_add(out, magic, MAGIC_BYTES);
    buf_add(out, (uint8_t[]){ 1, 0, (uint8_t)filled, (uint8_t)(filled >> 8) }, 4);
    buf_add(out, text, filled);
}
