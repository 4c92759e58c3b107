#include "ckpt/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/err.h"
#include "base/json.h"
#include "base/text.h"
#include "ckpt/ckpt_priv.h"

#define METADATA "__metadata__"

static const struct {
    const char *name;
    enum tensor_dtype dtype;
} dtypes[] = {
    { "F32", TENSOR_F32 },   { "F64", TENSOR_F64 }, { "F16", TENSOR_F16 }, { "BF16", TENSOR_BF16 },
    { "I64", TENSOR_I64 },   { "I32", TENSOR_I32 }, { "I16", TENSOR_I16 }, { "I8", TENSOR_I8 },
    { "U64", TENSOR_U64 },   { "U32", TENSOR_U32 }, { "U16", TENSOR_U16 }, { "U8", TENSOR_U8 },
    { "BOOL", TENSOR_BOOL },
};

const char *safetensors_dtype(enum tensor_dtype t)
{
    for (size_t i = 0; i < COUNT_OF(dtypes); i++)
        if (dtypes[i].dtype == t)
            return dtypes[i].name;
    return NULL;
}

/* ---- reading ---- */

int safetensors_json_bytes(const uint8_t head[SAFETENSORS_HEAD_BYTES], uint64_t file_bytes,
                           uint64_t *out, struct err *err)
{
    uint64_t n = bytes_get_u64(head);

    if (file_bytes < SAFETENSORS_HEAD_BYTES || n > file_bytes - SAFETENSORS_HEAD_BYTES)
        return err_set(err, ERR_CORRUPT,
                       "header of %" PRIu64 " bytes, but the file has %" PRIu64
                       ": truncated, or not a safetensors file",
                       n, file_bytes);
    if (n > SAFETENSORS_JSON_MAX)
        return err_set(err, ERR_CORRUPT, "header of %" PRIu64 " bytes, expected at most %d", n,
                       SAFETENSORS_JSON_MAX);
    *out = n;
    return 0;
}

static int read_number(const struct json *doc, const cJSON *value, uint64_t max, uint64_t *out,
                       struct err *err)
{
    const char *text = json_number_text(doc, value);

    if (text == NULL || !text_u64(text, max, out))
        return ckpt_unexpected(doc, value, "an integer from 0", err);
    return 0;
}

static int read_dtype(const struct json *doc, const cJSON *value, enum tensor_dtype *out,
                      struct err *err)
{
    if (!cJSON_IsString(value))
        return ckpt_unexpected(doc, value, "the name of a dtype", err);
    for (size_t i = 0; i < COUNT_OF(dtypes); i++) {
        if (strcmp(dtypes[i].name, value->valuestring) == 0) {
            *out = dtypes[i].dtype;
            return 0;
        }
    }
    json_error(doc, value, err, "dtype '%s' is not supported", value->valuestring);
    if (err != NULL)
        err->code = ERR_UNSUPPORTED;
    return ERR_UNSUPPORTED;
}

static int read_shape(const struct json *doc, const cJSON *value, struct shape *out,
                      struct err *err)
{
    const cJSON *dim;

    if (!cJSON_IsArray(value))
        return ckpt_unexpected(doc, value, "a list of dimensions", err);
    *out = (struct shape){ .rank = 0 };
    for (dim = value->child; dim != NULL; dim = dim->next) {
        uint64_t n;

        if (out->rank == TENSOR_MAX_RANK)
            return ckpt_unexpected(doc, value, "at most 8 dimensions", err);
        if (read_number(doc, dim, INT64_MAX, &n, err) < 0)
            return ERR_CORRUPT;
        out->dim[out->rank++] = (int64_t)n;
    }
    return 0;
}

static int read_offsets(const struct json *doc, const cJSON *value, struct safetensors_entry *out,
                        struct err *err)
{
    if (!cJSON_IsArray(value) || value->child == NULL || value->child->next == NULL ||
        value->child->next->next != NULL)
        return ckpt_unexpected(doc, value, "a list [begin, end]", err);
    if (read_number(doc, value->child, UINT64_MAX, &out->begin, err) < 0 ||
        read_number(doc, value->child->next, UINT64_MAX, &out->end, err) < 0)
        return ERR_CORRUPT;
    return 0;
}

static int check_size(const struct json *doc, const cJSON *value, const struct safetensors_entry *e,
                      struct err *err)
{
    struct tensor t = { .dtype = e->dtype, .shape = e->shape };
    size_t bytes = tensor_bytes(&t);
    char shape[192];

    if (bytes != SIZE_MAX && e->begin <= e->end && e->end - e->begin == bytes)
        return 0;
    json_error(doc, value, err,
               "%s %s needs %zu bytes, found data_offsets [%" PRIu64 ", %" PRIu64 "]",
               safetensors_dtype(e->dtype), shape_print(&e->shape, shape, sizeof(shape)), bytes,
               e->begin, e->end);
    return ckpt_corrupt(err);
}

static int read_entry(const struct json *doc, const cJSON *value, struct safetensors *s,
                      struct err *err)
{
    struct safetensors_entry *e = &s->entries[s->n];
    const cJSON *member;
    unsigned seen = 0;
    int rc = 0;

    if (!cJSON_IsObject(value))
        return ckpt_unexpected(doc, value, "an object with dtype, shape and data_offsets", err);
    for (member = value->child; rc == 0 && member != NULL; member = member->next) {
        if (strcmp(member->string, "dtype") == 0) {
            rc = read_dtype(doc, member, &e->dtype, err);
            seen |= 1;
        } else if (strcmp(member->string, "shape") == 0) {
            rc = read_shape(doc, member, &e->shape, err);
            seen |= 2;
        } else if (strcmp(member->string, "data_offsets") == 0) {
            rc = read_offsets(doc, member, e, err);
            seen |= 4;
        } else {
            rc =
                ckpt_unexpected(doc, member, "only dtype, shape and data_offsets in a tensor", err);
        }
    }
    if (rc < 0)
        return rc;
    if (seen != 7)
        return ckpt_unexpected(doc, value, "dtype, shape and data_offsets", err);
    e->name = arena_strdup(&s->mem, value->string);
    if (e->name == NULL)
        return err_set(err, ERR_NOMEM, "safetensors header: out of memory");
    s->n++;
    return check_size(doc, value, e, err);
}

static int check_metadata(const struct json *doc, const cJSON *value, struct err *err)
{
    const cJSON *member;

    if (!cJSON_IsObject(value))
        return ckpt_unexpected(doc, value, "an object of texts", err);
    for (member = value->child; member != NULL; member = member->next)
        if (!cJSON_IsString(member))
            return ckpt_unexpected(doc, member, "a text", err);
    return 0;
}

static int by_place(const void *a, const void *b)
{
    const struct safetensors_entry *x = a, *y = b;

    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    /* an empty tensor precedes the one at its offset */
    return (x->end > y->end) - (x->end < y->end);
}

/* Checks that each tensor starts at the end of the previous one, and that the last ends with the
 * file. */
static int check_places(const struct safetensors *s, uint64_t data_bytes, struct err *err)
{
    uint64_t at = 0;

    for (size_t i = 0; i < s->n; i++) {
        const struct safetensors_entry *e = &s->entries[i];

        if (e->begin != at)
            return err_set(
                err, ERR_CORRUPT,
                "safetensors header: tensor '%s' starts at %" PRIu64 ", expected %" PRIu64 ": %s",
                e->name, e->begin, at, e->begin > at ? "a gap" : "it overlaps another tensor");
        at = e->end;
    }
    if (at != data_bytes)
        return err_set(err, ERR_CORRUPT,
                       "safetensors header: the tensors need %" PRIu64
                       " bytes, the file has %" PRIu64,
                       at, data_bytes);
    return 0;
}

static int read_document(const struct json *doc, uint64_t data_bytes, struct safetensors *s,
                         struct err *err)
{
    const cJSON *root = json_root(doc), *value;
    size_t n = 0;
    int rc = 0;

    if (!cJSON_IsObject(root))
        return ckpt_unexpected(doc, root, "an object", err);
    for (value = root->child; value != NULL; value = value->next)
        n++;
    s->entries = arena_array(&s->mem, n, sizeof(*s->entries));
    if (s->entries == NULL)
        return err_set(err, ERR_NOMEM, "safetensors header: out of memory");
    for (value = root->child; rc == 0 && value != NULL; value = value->next)
        rc = strcmp(value->string, METADATA) == 0 ? check_metadata(doc, value, err)
                                                  : read_entry(doc, value, s, err);
    if (rc < 0)
        return rc;
    if (s->n > 1)
        qsort(s->entries, s->n, sizeof(*s->entries), by_place);
    return check_places(s, data_bytes, err);
}

int safetensors_parse(const char *json, size_t n, uint64_t file_bytes, struct safetensors *out,
                      struct err *err)
{
    struct safetensors s = { .data_at = SAFETENSORS_HEAD_BYTES + n };
    struct json *doc;
    int rc;

    CHECK(file_bytes >= s.data_at);
    if (n == 0 || json[0] != '{')
        return err_set(err, ERR_CORRUPT, "safetensors header: expected '{' as its first byte");
    rc = json_parse("safetensors header", json, n, 0, &doc, err);
    if (rc < 0)
        return rc == ERR_INPUT ? ckpt_corrupt(err) : rc;
    rc = read_document(doc, file_bytes - s.data_at, &s, err);
    json_free(doc);
    if (rc < 0) {
        safetensors_fini(&s);
        return rc;
    }
    *out = s;
    return 0;
}

void safetensors_fini(struct safetensors *s)
{
    arena_fini(&s->mem);
    *s = (struct safetensors){ 0 };
}

/* ---- writing ---- */

static void print_entry(const struct safetensors_entry *e, struct buf *out)
{
    buf_json(out, e->name);
    buf_printf(out, ":{\"dtype\":\"%s\",\"shape\":[", safetensors_dtype(e->dtype));
    for (uint32_t i = 0; i < e->shape.rank; i++)
        buf_printf(out, "%s%" PRId64, i > 0 ? "," : "", e->shape.dim[i]);
    buf_printf(out, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", e->begin, e->end);
}

int safetensors_header(const struct safetensors_entry *entries, size_t n,
                       const struct safetensors_text *metadata, size_t n_metadata, struct buf *out,
                       struct err *err)
{
    size_t start = out->len;
    uint64_t json_bytes;

    buf_add(out, "\0\0\0\0\0\0\0", SAFETENSORS_HEAD_BYTES); /* the length, set below */
    buf_str(out, "{");
    for (size_t i = 0; i < n_metadata; i++) {
        buf_str(out, i == 0 ? "\"" METADATA "\":{" : ",");
        buf_json(out, metadata[i].key);
        buf_str(out, ":");
        buf_json(out, metadata[i].value);
    }
    if (n_metadata > 0)
        buf_str(out, "}");
    for (size_t i = 0; i < n; i++) {
        if (i > 0 || n_metadata > 0)
            buf_str(out, ",");
        print_entry(&entries[i], out);
    }
    buf_str(out, "}");
    buf_add(out, "       ", (8 - (out->len - start) % 8) % 8);
    if (out->failed)
        return err_set(err, ERR_NOMEM, "safetensors header: out of memory");
    json_bytes = out->len - start - SAFETENSORS_HEAD_BYTES;
    if (json_bytes > JSON_MAX_BYTES)
        return err_set(err, ERR_UNSUPPORTED,
                       "safetensors header of %" PRIu64
                       " bytes for %zu tensors; the parser accepts at "
                       "most %d",
                       json_bytes, n, JSON_MAX_BYTES);
    bytes_set_u64(out->data + start, json_bytes);
    return 0;
}
