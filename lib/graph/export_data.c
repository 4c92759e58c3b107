/* export_data.c - see export_priv.h: the data of initializers, in the model itself or in a file of external data. */
#include "graph/export_priv.h"

#include <inttypes.h>
#include <string.h>

#include "base/err.h"
#include "tensor/half.h"
#include "tensor/narrow.h"

enum {
    EXTERNAL_ALIGN = 4096, /* allows a reader to map the tensors */
    IR_COPIES = 4,         /* from this IR version on, initializers need not be inputs too */
    LOCATION_EXTERNAL = 1,
};

/* ---- the data of tensors ---- */

/* The current data of a value. */
static const void *value_data(const struct exporter *e, const struct graph_value *v)
{
    return v->kind == VALUE_PARAM ? e->arena + e->g->params[v->index].offset : v->tensor.data;
}

/* Sets *out to the values converted to the type in the file, which the surrounding graph requires. */
static int narrow(struct exporter *e, const Onnx__TensorProto *t, const struct graph_value *v,
                  const void **out, struct err *err)
{
    size_t n = (size_t)tensor_elements(&v->tensor);
    uint16_t *data = arena_array(&e->mem, n, sizeof(*data));

    int rc;

    if (data == NULL)
        return export_no_memory(err);
    rc = tensor_narrow_finite((enum tensor_dtype)t->data_type, value_data(e, v), n, data, err);
    *out = data;
    return rc < 0 ? err_wrap(err, rc, "initializer '%s'", v->name) : 0;
}

/* Elements of 4 or 2 bits in the packed form of files. NULL: out of memory. */
static const void *packed(struct exporter *e, const struct tensor *t)
{
    uint8_t *data = arena_alloc(&e->mem, tensor_file_bytes(t));

    if (data != NULL)
        tensor_pack(t->dtype, t->data, (size_t)tensor_elements(t), data);
    return data;
}

/* Replaces the data of a tensor, in any storage field, by raw bytes. */
static int set_raw_data(struct exporter *e, Onnx__TensorProto *t, const struct graph_value *v,
                        struct err *err)
{
    bool is_narrow =
        v->tensor.dtype == TENSOR_F32 && tensor_is_half((enum tensor_dtype)t->data_type);
    bool is_remote = v->kind == VALUE_PARAM && graph_param_is_remote(e->g, v->index);
    struct tensor whole = v->tensor; /* its size */
    const void *data = is_remote || is_narrow                  ? NULL
                       : tensor_file_bits(v->tensor.dtype) < 8 ? packed(e, &v->tensor)
                                                               : value_data(e, v);
    int rc = is_narrow && !is_remote ? narrow(e, t, v, &data, err) : 0;

    if (rc < 0)
        return rc;
    if (data == NULL && !is_remote)
        return export_no_memory(err);
    if (is_remote) {
        e->remotes[v->index - e->g->n_params] = t;
        whole.shape.dim[0] *=
            v->is_dynamic ? (int64_t)export_rows_of(e, v->index - e->g->n_params) : 1;
    }
    t->n_float_data = t->n_int32_data = t->n_int64_data = t->n_uint64_data = 0;
    t->n_double_data = t->n_string_data = t->n_external_data = 0;
    t->has_data_location = 0;
    t->has_raw_data = 1;
    t->raw_data.len = is_narrow ? tensor_bytes(&whole) / 2 : tensor_file_bytes(&whole);
    t->raw_data.data = (uint8_t *)(uintptr_t)data; /* never written */
    e->weight_bytes += t->raw_data.len;
    return 0;
}

/* A generated table has more rows than in the file. */
static int set_rows(struct exporter *e, Onnx__TensorProto *t, const struct graph_value *v,
                    struct err *err)
{
    t->dims = arena_array(&e->mem, 2, sizeof(*t->dims));
    if (t->dims == NULL)
        return export_no_memory(err);
    t->n_dims = 2;
    t->dims[0] = v->is_dynamic ? (int64_t)export_rows_of(e, v->index - e->g->n_params)
                               : v->tensor.shape.dim[0];
    t->dims[1] = v->tensor.shape.dim[1];
    return 0;
}

int export_copy_initializers(struct exporter *e, struct err *err)
{
    const struct graph *g = e->g;
    Onnx__GraphProto *p = &e->graph;
    size_t old = p->n_initializer, n = old;
    Onnx__TensorProto **list, *copies;
    uint32_t i;
    int rc = 0;

    for (i = 0; i < g->n_values; i++)
        n += g->values[i].identity != GRAPH_NONE;
    list = arena_array(&e->mem, n, sizeof(*list));
    copies = arena_array(&e->mem, n, sizeof(*copies));
    if (list == NULL || copies == NULL)
        return export_no_memory(err);
    for (i = 0; i < old; i++) {
        list[i] = &copies[i];
        copies[i] = *p->initializer[i];
    }
    p->n_initializer = old;
    for (i = 0; i < g->n_values; i++) {
        const struct graph_value *v = &g->values[i];
        Onnx__TensorProto *t;

        if (v->initializer == GRAPH_NONE)
            continue;
        t = &copies[v->initializer];
        if (v->identity != GRAPH_NONE) { /* the initializer replaces that Identity node */
            t = list[p->n_initializer] = &copies[p->n_initializer];
            p->n_initializer++;
            *t = *g->file.model->graph->initializer[v->initializer];
            t->name = (char *)(uintptr_t)v->name;
        }
        if (rc == 0 && v->fill != NULL)
            rc = set_rows(e, t, v, err);
        if (rc == 0 && (v->kind == VALUE_PARAM || v->identity != GRAPH_NONE || v->is_loaded ||
                        t->data_location == LOCATION_EXTERNAL))
            rc = set_raw_data(e, t, v, err);
        if (rc < 0)
            return rc;
    }
    p->initializer = list;
    if (n > old && (!e->model.has_ir_version || e->model.ir_version < IR_COPIES)) {
        e->model.has_ir_version = 1;
        e->model.ir_version = IR_COPIES;
    }
    return 0;
}

/* ---- external data ---- */

static int add_external_entry(struct exporter *e, Onnx__TensorProto *t, char *key, char *value,
                              struct err *err)
{
    Onnx__StringStringEntryProto *entry = arena_alloc(&e->mem, sizeof(*entry));

    if (entry == NULL || value == NULL)
        return export_no_memory(err);
    onnx__string_string_entry_proto__init(entry);
    entry->key = key;
    entry->value = value;
    t->external_data[t->n_external_data++] = entry;
    return 0;
}

static int move_to_external(struct exporter *e, Onnx__TensorProto *t, const char *location,
                            struct export_out *data, struct err *err)
{
    static const uint8_t zeros[EXTERNAL_ALIGN];
    size_t gap = (EXTERNAL_ALIGN - data->written % EXTERNAL_ALIGN) % EXTERNAL_ALIGN;
    uint32_t remote = export_remote_of(e, t);
    int rc;

    export_append(&data->base, gap, zeros);
    t->external_data = arena_array(&e->mem, 3, sizeof(*t->external_data));
    if (t->external_data == NULL)
        return export_no_memory(err);
    rc = add_external_entry(e, t, "location", arena_strdup(&e->mem, location), err);
    if (rc == 0)
        rc = add_external_entry(e, t, "offset", arena_printf(&e->mem, "%" PRIu64, data->written),
                                err);
    if (rc == 0)
        rc = add_external_entry(e, t, "length", arena_printf(&e->mem, "%zu", t->raw_data.len), err);
    if (rc == 0 && remote != GRAPH_NONE)
        rc = export_read_rows(e, remote, data, NULL, err);
    else
        export_append(&data->base, t->raw_data.len, t->raw_data.data);
    t->has_raw_data = 0;
    t->has_data_location = 1;
    t->data_location = LOCATION_EXTERNAL;
    return rc < 0 ? rc : data->rc;
}

int export_write_external(struct exporter *e, const char *data_path, struct export_out *data,
                          struct err *err)
{
    const char *slash = strrchr(data_path, '/');
    size_t i;
    int rc = export_out_open(data, data_path, err);

    for (i = 0; i < e->graph.n_initializer && rc == 0; i++) {
        Onnx__TensorProto *t = e->graph.initializer[i];

        if (t->has_raw_data && t->raw_data.len >= EXPORT_EXTERNAL_BYTES)
            rc = move_to_external(e, t, slash != NULL ? slash + 1 : data_path, data, err);
    }
    return rc == 0 ? export_out_sync(data) : rc;
}
