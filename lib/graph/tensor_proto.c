/* tensor_proto.c - converts a TensorProto to a tensor.
 *
 * Elements are stored as raw little-endian bytes, in the typed list that the schema defines for the
 * type, or in an external data file. Raw bytes, lists with the element width of the tensor and
 * mapped files are used in place. */
#include "graph/graph_priv.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/mapping.h"
#include "base/text.h"
#include "tensor/half.h"
#include "tensor/narrow.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "raw_data is used in place");

enum { WIDENED_LATER = 1 << 19 }; /* elements; 1 MiB in the file */
enum { LOCATION_DEFAULT = 0, LOCATION_EXTERNAL = 1 };

static _Alignas(16) uint8_t no_elements[16]; /* data of tensors without elements */

static int read_shape(const Onnx__TensorProto *p, const char *what, struct tensor *out,
                      struct err *err)
{
    size_t i;

    if (p->n_dims > TENSOR_MAX_RANK)
        return err_set(err, ERR_UNSUPPORTED, "%s has %zu dimensions; supported are %d", what,
                       p->n_dims, TENSOR_MAX_RANK);
    out->dtype = (enum tensor_dtype)p->data_type;
    if (!p->has_data_type || tensor_dtype_bytes(out->dtype) == 0)
        return err_set(err, ERR_UNSUPPORTED, "%s has ONNX data type %d, which is not supported",
                       what, p->data_type);
    out->layout = TENSOR_PLAIN;
    out->shape.rank = (uint32_t)p->n_dims;
    for (i = 0; i < p->n_dims; i++) {
        if (p->dims[i] < 0)
            return err_set(err, ERR_INPUT, "%s: dimension %zu is %" PRId64, what, i, p->dims[i]);
        out->shape.dim[i] = p->dims[i];
    }
    if (tensor_bytes(out) == SIZE_MAX)
        return err_set(err, ERR_INPUT, "%s is larger than the address space", what);
    return 0;
}

static int wrong_count(const char *what, const struct tensor *t, size_t found, const char *unit,
                       struct err *err)
{
    char shape[128];

    return err_set(err, ERR_INPUT, "%s is %s %s but holds %zu %s", what,
                   tensor_dtype_name(t->dtype), shape_print(&t->shape, shape, sizeof(shape)), found,
                   unit);
}

/* ---- external data ---- */

static int external_number(const char *what, const char *key, const char *text, uint64_t *out,
                           struct err *err)
{
    if (!text_u64(text, INT64_MAX, out))
        return err_set(err, ERR_INPUT, "%s: external data: %s is '%s', expected a number of bytes",
                       what, key, text);
    return 0;
}

int graph_copy_tensor(struct arena *mem, struct tensor *t, const char *what, struct err *err)
{
    size_t bytes = tensor_bytes(t);
    void *copy = arena_alloc(mem, bytes);

    if (copy == NULL)
        return err_set(err, ERR_NOMEM, "%s: out of memory for %zu bytes", what, bytes);
    if (bytes > 0)
        memcpy(copy, t->data, bytes);
    t->data = copy;
    return 0;
}

/* Expands t->data, which has several elements per byte, to one byte per element. */
static int unpack(struct tensor_source *src, const char *what, struct tensor *t, struct err *err)
{
    size_t n = (size_t)tensor_elements(t);
    uint8_t *data = arena_array(src->mem, n, 1);

    if (data == NULL)
        return err_set(err, ERR_NOMEM, "%s: out of memory for %zu bytes", what, n);
    tensor_unpack(t->dtype, t->data, n, data);
    t->data = data;
    return 0;
}

static int read_external(struct tensor_source *src, const Onnx__TensorProto *p, const char *what,
                         struct tensor *out, struct err *err)
{
    const char *location = NULL;
    const struct mapping *file;
    uint64_t offset = 0, length = 0, bytes = tensor_file_bytes(out);
    bool has_offset = false, has_length = false, twice;
    size_t i;
    int rc = 0;

    for (i = 0; i < p->n_external_data && rc == 0; i++) {
        const char *key = p->external_data[i]->key, *value = p->external_data[i]->value;

        if (key == NULL || value == NULL)
            return err_set(err, ERR_INPUT, "%s: external data: an entry without key or value",
                           what);
        twice = (location != NULL && strcmp(key, "location") == 0) ||
                (has_offset && strcmp(key, "offset") == 0) ||
                (has_length && strcmp(key, "length") == 0);
        if (twice)
            return err_set(err, ERR_INPUT, "%s: external data: duplicate key '%s'", what, key);
        if (strcmp(key, "location") == 0)
            location = value;
        else if (strcmp(key, "offset") == 0)
            rc = external_number(what, key, value, &offset, err), has_offset = true;
        else if (strcmp(key, "length") == 0)
            rc = external_number(what, key, value, &length, err), has_length = true;
        /* "checksum" (SHA-1) and keys of other tools do not affect the position of the bytes. */
    }
    if (rc < 0)
        return rc;
    if (location == NULL)
        return err_set(err, ERR_INPUT, "%s: external data without a location", what);
    if (has_length && length != bytes)
        return wrong_count(what, out, length, "bytes of external data", err);
    if (bytes > src->budget)
        return err_set(err, ERR_INPUT, "%s: the external data is larger than the allowed size",
                       what);
    src->budget -= bytes;
    rc = graph_external_map(src->external, location, &file, err);
    if (rc < 0)
        return err_wrap(err, rc, "%s", what);
    if (offset > mapping_bytes(file) || bytes > mapping_bytes(file) - offset)
        return err_set(err, ERR_INPUT,
                       "%s: external data '%s' has %" PRIu64 " bytes; expected %" PRIu64
                       " bytes at offset %" PRIu64,
                       what, location, mapping_bytes(file), bytes, offset);
    out->data = (void *)(uintptr_t)(mapping_data(file) + offset); /* never written */
    if (tensor_file_bits(out->dtype) < 8)
        return unpack(src, what, out, err);
    if (src->stays_mapped && offset % tensor_dtype_bytes(out->dtype) == 0) {
        src->mapped = file;
        return 0;
    }
    return graph_copy_tensor(src->mem, out, what, err);
}

/* ---- typed lists ---- */

/* Copies the low bytes of each element of an int32 or uint64 list that stores narrower elements. */
static int low_bytes(struct tensor_source *src, const char *what, const void *list, size_t wide,
                     size_t n, struct tensor *out, struct err *err)
{
    size_t width = tensor_dtype_bytes(out->dtype), i;
    uint8_t *data = arena_array(src->mem, n, width);

    if (data == NULL)
        return err_set(err, ERR_NOMEM, "%s: out of memory", what);
    for (i = 0; i < n; i++)
        memcpy(data + i * width, (const uint8_t *)list + i * wide, width);
    out->data = data;
    return 0;
}

static int read_list(struct tensor_source *src, const Onnx__TensorProto *p, const char *what,
                     struct tensor *out, struct err *err)
{
    bool is_packed = tensor_file_bits(out->dtype) < 8; /* each int32 stores one byte of the packed
                                                          form */
    size_t want = is_packed ? tensor_file_bytes(out) : (size_t)tensor_elements(out);
    size_t n, wide, width = tensor_dtype_bytes(out->dtype);
    int rc;
    const void *list;
    const char *unit;

    switch (out->dtype) {
    case TENSOR_F32:
        list = p->float_data, n = p->n_float_data, wide = 4, unit = "floats";
        break;
    case TENSOR_F64:
        list = p->double_data, n = p->n_double_data, wide = 8, unit = "doubles";
        break;
    case TENSOR_I64:
        list = p->int64_data, n = p->n_int64_data, wide = 8, unit = "int64";
        break;
    case TENSOR_U32:
    case TENSOR_U64:
        list = p->uint64_data, n = p->n_uint64_data, wide = 8, unit = "uint64";
        break;
    default:
        list = p->int32_data, n = p->n_int32_data, wide = 4, unit = "int32";
        break;
    }
    if (n != want)
        return wrong_count(what, out, n, unit, err);
    if (wide != width) {
        rc = low_bytes(src, what, list, wide, n, out, err);
        return rc == 0 && is_packed ? unpack(src, what, out, err) : rc;
    }
    out->data = (void *)(uintptr_t)list; /* never written afterwards */
    return 0;
}

/* ---- 16-bit floats ---- */

enum tensor_dtype graph_read_type(struct tensor_source *src, enum tensor_dtype t)
{
    if (!src->widens || !tensor_is_half(t))
        return t;
    if (src->n_widened++ == 0)
        src->widened = t;
    return TENSOR_F32;
}

static int widen(struct tensor_source *src, const char *what, struct tensor *t, struct err *err)
{
    enum tensor_dtype from = t->dtype;
    size_t n = (size_t)tensor_elements(t);
    float *data;

    t->dtype = graph_read_type(src, from);
    if (t->dtype == from || n == 0)
        return 0;
    if (tensor_bytes(t) == SIZE_MAX)
        return err_set(err, ERR_INPUT, "%s is larger than the address space", what);
    if (src->mapped != NULL && n >= WIDENED_LATER) {
        src->half = *t;
        src->half.dtype = from;
        t->data = NULL;
        return 0;
    }
    data = arena_array(src->mem, n, sizeof(*data));
    if (data == NULL)
        return err_set(err, ERR_NOMEM, "%s: out of memory", what);
    tensor_widen(from, t->data, n, data);
    if (src->mapped != NULL)
        mapping_drop(src->mapped, t->data, 2 * n);
    src->mapped = NULL;
    t->data = data;
    return 0;
}

/* A tensor must have one storage field: readers that prefer another field would read other
 * numbers. */
static int check_places(const Onnx__TensorProto *p, const char *what, struct err *err)
{
    const struct {
        const char *name;
        bool is_set;
    } places[] = {
        { "external data", p->data_location == LOCATION_EXTERNAL },
        { "raw_data", p->has_raw_data && p->raw_data.len > 0 },
        { "float_data", p->n_float_data > 0 },
        { "string_data", p->n_string_data > 0 },
        { "int32_data", p->n_int32_data > 0 },
        { "int64_data", p->n_int64_data > 0 },
        { "double_data", p->n_double_data > 0 },
        { "uint64_data", p->n_uint64_data > 0 },
    };
    const char *first = NULL;
    size_t i;

    for (i = 0; i < COUNT_OF(places); i++) {
        if (places[i].is_set && first != NULL)
            return err_set(err, ERR_INPUT,
                           "%s has %s and %s; expected one of them: export the model again", what,
                           first, places[i].name);
        if (places[i].is_set)
            first = places[i].name;
    }
    return 0;
}

int graph_read_tensor(struct tensor_source *src, const Onnx__TensorProto *p, const char *what,
                      struct tensor *out, struct err *err)
{
    struct tensor t = { 0 };
    int rc = read_shape(p, what, &t, err);

    src->mapped = NULL;
    src->half.data = NULL;
    if (rc < 0)
        return rc;
    if (p->has_segment)
        return err_set(
            err, ERR_UNSUPPORTED,
            "%s is a segmented TensorProto, which is not supported; export the model again", what);
    if (p->data_location != LOCATION_DEFAULT && p->data_location != LOCATION_EXTERNAL)
        return err_set(err, ERR_INPUT, "%s: data location %d does not exist", what,
                       p->data_location);
    rc = check_places(p, what, err);
    if (rc < 0)
        return rc;
    if (p->data_location == LOCATION_EXTERNAL)
        rc = read_external(src, p, what, &t, err);
    else if (!p->has_raw_data)
        rc = read_list(src, p, what, &t, err);
    else if (p->raw_data.len != tensor_file_bytes(&t))
        rc = wrong_count(what, &t, p->raw_data.len, "bytes", err);
    else
        t.data = p->raw_data.data,
        rc = tensor_file_bits(t.dtype) < 8 ? unpack(src, what, &t, err) : 0;
    if (rc == 0)
        rc = widen(src, what, &t, err);
    if (rc < 0)
        return rc;
    if (tensor_bytes(&t) == 0)
        t.data = no_elements;
    *out = t;
    return 0;
}
