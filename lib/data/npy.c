#include "data/npy.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"
#include "base/file_kind.h"
#include "base/fs.h"

enum { MAGIC_BYTES = 6, ALIGN = 64, HEADER_MAX = 1 << 16 };

static const char magic[] = "\x93NUMPY";

static const struct {
    const char *descr;
    enum tensor_dtype dtype;
} types[] = {
    { "<f4", TENSOR_F32 }, { "<f8", TENSOR_F64 }, { "<f2", TENSOR_F16 }, { "|b1", TENSOR_BOOL },
    { "|i1", TENSOR_I8 },  { "|u1", TENSOR_U8 },  { "<i2", TENSOR_I16 }, { "<u2", TENSOR_U16 },
    { "<i4", TENSOR_I32 }, { "<u4", TENSOR_U32 }, { "<i8", TENSOR_I64 }, { "<u8", TENSOR_U64 },
};

/* ---- the header: a Python literal of three keys ---- */

struct header {
    const char *at, *end;
    const char *what;
    struct err *err;
    enum tensor_dtype dtype;
    bool fortran;
    struct shape shape;
    unsigned seen; /* bit per key */
};

static int bad(struct header *h, const char *expected)
{
    return err_set(h->err, ERR_INPUT, "%s: invalid .npy header: expected %s at '%.*s'", h->what,
                   expected, (int)(h->end - h->at < 20 ? h->end - h->at : 20), h->at);
}

static void skip_blanks(struct header *h)
{
    while (h->at < h->end && (*h->at == ' ' || *h->at == '\n' || *h->at == '\t'))
        h->at++;
}

static bool accept(struct header *h, const char *token)
{
    size_t n = strlen(token);

    skip_blanks(h);
    if ((size_t)(h->end - h->at) < n || memcmp(h->at, token, n) != 0)
        return false;
    h->at += n;
    return true;
}

static int read_descr(struct header *h)
{
    size_t i;

    for (i = 0; i < COUNT_OF(types); i++) {
        char quoted[8] = "'";

        strcat(strcat(quoted, types[i].descr), "'");
        if (!accept(h, quoted))
            continue;
        h->dtype = types[i].dtype;
        return 0;
    }
    skip_blanks(h);
    if (accept(h, "["))
        return err_set(
            h->err, ERR_UNSUPPORTED,
            "%s: its elements are structures; save a file for each field: array['field']", h->what);
    if (accept(h, "'|O'"))
        return err_set(h->err, ERR_UNSUPPORTED,
                       "%s: its elements are Python objects, such as lists of different lengths; "
                       "save an array of numbers: array.astype('<f4')",
                       h->what);
    for (i = 1; h->at + i < h->end && i < 20 && h->at[i] != '\'';)
        i++;
    return err_set(h->err, ERR_UNSUPPORTED,
                   "%s: its elements are %.*s; supported are little-endian numbers and booleans, such "
                   "as '<f4': convert it with array.astype('<f4')",
                   h->what, (int)(h->end - h->at < (ptrdiff_t)i + 1 ? h->end - h->at : (ptrdiff_t)i + 1), h->at);
}

static int read_dimension(struct header *h)
{
    int64_t d = 0;

    if (h->at >= h->end || *h->at < '0' || *h->at > '9')
        return bad(h, "a dimension");
    for (; h->at < h->end && *h->at >= '0' && *h->at <= '9'; h->at++)
        if (__builtin_mul_overflow(d, 10, &d) || __builtin_add_overflow(d, *h->at - '0', &d))
            return bad(h, "a smaller dimension");
    if (h->shape.rank == TENSOR_MAX_RANK)
        return err_set(h->err, ERR_UNSUPPORTED, "%s has more than %d dimensions", h->what,
                       TENSOR_MAX_RANK);
    h->shape.dim[h->shape.rank++] = d;
    return 0;
}

static int read_shape(struct header *h)
{
    int rc = 0;

    if (!accept(h, "("))
        return bad(h, "'('");
    while (rc == 0 && !accept(h, ")")) {
        skip_blanks(h);
        rc = read_dimension(h);
        if (rc == 0 && !accept(h, ",") && !(accept(h, ")") && (h->at--, true)))
            return bad(h, "',' or ')'");
    }
    return rc;
}

static int read_order(struct header *h)
{
    if (accept(h, "True"))
        h->fortran = true;
    else if (!accept(h, "False"))
        return bad(h, "True or False");
    return 0;
}

static int read_header(struct header *h)
{
    static const struct {
        const char *key;
        int (*read)(struct header *h);
    } keys[] = { { "'descr'", read_descr },
                 { "'fortran_order'", read_order },
                 { "'shape'", read_shape } };

    if (!accept(h, "{"))
        return bad(h, "'{'");
    while (!accept(h, "}")) {
        size_t i = 0;
        int rc;

        while (i < COUNT_OF(keys) && !accept(h, keys[i].key))
            i++;
        if (i == COUNT_OF(keys) || (h->seen >> i & 1u) != 0)
            return bad(h, "'descr', 'fortran_order' and 'shape', each once,");
        h->seen |= 1u << i;
        if (!accept(h, ":"))
            return bad(h, "':'");
        rc = keys[i].read(h);
        if (rc < 0)
            return rc;
        if (!accept(h, ",") && !(accept(h, "}") && (h->at--, true)))
            return bad(h, "',' or '}'");
    }
    skip_blanks(h);
    return h->at == h->end && h->seen == 7 ? 0 : bad(h, "the end after all three keys");
}

/* ---- reading ---- */

/* Copies elements from Fortran order (the first index varies fastest) to C order. */
static void from_fortran(const struct tensor *t, const uint8_t *from, uint8_t *to)
{
    size_t width = tensor_dtype_bytes(t->dtype), n = (size_t)tensor_elements(t), i;
    int64_t at[TENSOR_MAX_RANK] = { 0 };
    uint32_t k;

    for (i = 0; i < n; i++) {
        size_t place = 0;

        for (k = 0; k < t->shape.rank; k++)
            place = place * (size_t)t->shape.dim[k] + (size_t)at[k];
        memcpy(to + place * width, from + i * width, width);
        for (k = 0; k < t->shape.rank && ++at[k] == t->shape.dim[k]; k++)
            at[k] = 0;
    }
}

static int find_header(const uint8_t *bytes, size_t n, struct header *h)
{
    const struct file_kind *kind;
    size_t length, first;

    if (n < MAGIC_BYTES + 4 || memcmp(bytes, magic, MAGIC_BYTES) != 0) {
        kind = file_kind_of(bytes, n);
        if (kind != NULL)
            return err_set(
                h->err, ERR_INPUT, "%s is %s, expected a .npy file: %s", h->what, kind->what,
                kind->remedy != NULL ? kind->remedy : "write the array with numpy.save()");
        return err_set(h->err, ERR_INPUT,
                       "%s is not a .npy file: it does not begin with \\x93NUMPY", h->what);
    }
    if (bytes[6] < 1 || bytes[6] > 3)
        return err_set(h->err, ERR_UNSUPPORTED, "%s is of .npy version %d; supported are 1 to 3",
                       h->what, bytes[6]);
    length = bytes[8] | (size_t)bytes[9] << 8;
    first = 10;
    if (bytes[6] > 1) {
        if (n < 12)
            return err_set(h->err, ERR_INPUT, "%s is truncated in its header", h->what);
        length |= (size_t)bytes[10] << 16 | (size_t)bytes[11] << 24;
        first = 12;
    }
    if (length > HEADER_MAX || length > n - first)
        return err_set(h->err, ERR_INPUT, "%s is truncated in its header, which has %zu bytes",
                       h->what, length);
    h->at = (const char *)bytes + first;
    h->end = h->at + length;
    return 0;
}

int npy_parse_header(const void *bytes, size_t n, const char *what, struct npy *out,
                     struct err *err)
{
    struct header h = { .what = what, .err = err };
    const char *data;
    int rc = find_header(bytes, n, &h);

    data = h.end;
    if (rc == 0)
        rc = read_header(&h);
    if (rc < 0)
        return rc;
    *out = (struct npy){ .dtype = h.dtype, .fortran = h.fortran, .shape = h.shape,
                         .data_at = (size_t)(data - (const char *)bytes) };
    return 0;
}

int npy_parse(const void *bytes, size_t n, const char *what, struct tensor *out, struct err *err)
{
    struct npy h;
    struct tensor t = { 0 };
    const uint8_t *data;
    size_t have, want;
    int rc = npy_parse_header(bytes, n, what, &h, err);

    if (rc < 0)
        return rc;
    data = (const uint8_t *)bytes + h.data_at;
    t.dtype = h.dtype;
    t.shape = h.shape;
    want = tensor_bytes(&t);
    have = n - h.data_at;
    if (want != have)
        return err_set(err, ERR_INPUT, "%s contains %zu bytes of elements; its shape needs %zu",
                       what, have, want);
    t.data = malloc(want > 0 ? want : 1);
    if (t.data == NULL)
        return err_set(err, ERR_NOMEM, "%s: out of memory for %zu bytes", what, want);
    if (h.fortran && t.shape.rank > 1)
        from_fortran(&t, data, t.data);
    else
        memcpy(t.data, data, want);
    *out = t;
    return 0;
}

int npy_read(const char *path, size_t max_bytes, struct tensor *out, struct err *err)
{
    struct buf bytes = { 0 };
    char what[300];
    int rc = fs_read(path, max_bytes, &bytes, err);

    snprintf(what, sizeof(what), "'%.280s'", path);
    if (rc == 0)
        rc = npy_parse(bytes.data != NULL ? bytes.data : "", bytes.len, what, out, err);
    buf_fini(&bytes);
    return rc;
}

/* ---- writing ---- */

int npy_write(const char *path, const struct tensor *t, struct err *err)
{
    struct buf header = { 0 }, file = { 0 };
    size_t i, total;
    uint32_t k;
    int rc;

    CHECK(t->layout == TENSOR_PLAIN);
    for (i = 0; i < COUNT_OF(types) && types[i].dtype != t->dtype; i++)
        ;
    if (i == COUNT_OF(types))
        return err_set(err, ERR_UNSUPPORTED, "write '%s': .npy has no type for %s", path,
                       tensor_dtype_name(t->dtype));
    buf_printf(&header, "{'descr': '%s', 'fortran_order': False, 'shape': (", types[i].descr);
    for (k = 0; k < t->shape.rank; k++)
        buf_printf(&header, "%s%" PRId64 "%s", k > 0 ? " " : "", t->shape.dim[k],
                   k + 1 < t->shape.rank || t->shape.rank == 1 ? "," : "");
    buf_str(&header, "), }");
    total = (MAGIC_BYTES + 4 + header.len + 1 + ALIGN - 1) / ALIGN * ALIGN;
    while (!header.failed && MAGIC_BYTES + 4 + header.len + 1 < total)
        buf_str(&header, " ");
    buf_str(&header, "\n");
    buf_add(&file, magic, MAGIC_BYTES);
    buf_add(&file, (const uint8_t[]){ 1, 0, (uint8_t)header.len, (uint8_t)(header.len >> 8) }, 4);
    buf_add(&file, header.data, header.len);
    buf_add(&file, t->data, tensor_bytes(t));
    rc = header.failed || file.failed ? err_set(err, ERR_NOMEM, "write '%s': out of memory", path)
                                      : fs_replace(path, file.data, file.len, err);
    buf_fini(&header);
    buf_fini(&file);
    return rc;
}
