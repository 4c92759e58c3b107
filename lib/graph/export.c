/* export.c - writes the trained model for inference.
 *
 * The imported message is written again, with shallow copies of the parts that change. Weights
 * point into the caller's arena, so no large data is copied, and packing streams to the file. The
 * rows of remote tables are read in parts: directly to external data, or to memory if the table is
 * in the model itself. */
#include "graph/export_ids.h"
#include "graph/graph_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fault.h"
#include "base/fs.h"
#include "base/rng.h"
#include "tensor/half.h"
#include "tensor/narrow.h"

enum {
    BUFFER_BYTES = 256 << 10,
    EXTERNAL_MIN_BYTES = 1024, /* smaller tensors remain in the model */
    EXTERNAL_ALIGN = 4096,     /* allows a reader to map the tensors */
    IR_COPIES = 4,            /* from this IR version on, initializers need not be inputs too */
    LOCATION_EXTERNAL = 1,
    READ_FLOATS = 1 << 20,    /* part of a remote table that is read at once, at least one row */
};

static const uint64_t inline_max = 1900000000; /* limit of protobuf: 2 GiB */

static int no_memory(struct err *err)
{
    return err_set(err, ERR_NOMEM, "out of memory");
}

/* ---- atomic replacement of a file ---- */

struct out {
    ProtobufCBuffer base; /* first member: pack passes its address to append() */
    int fd;
    char *temporary; /* owned */
    const char *path;
    uint8_t *buffer; /* owned */
    size_t used;
    uint64_t written; /* bytes, including those in the buffer */
    int rc;           /* the first error; later output is discarded */
    struct err *err;
};

static void flush(struct out *o)
{
    if (o->rc == 0)
        o->rc = fs_write_all(o->fd, o->buffer, o->used, o->temporary, o->err);
    o->used = 0;
}

static void append(ProtobufCBuffer *base, size_t n, const uint8_t *bytes)
{
    struct out *o = (struct out *)base;

    if (o->used + n > BUFFER_BYTES)
        flush(o);
    o->written += n;
    if (n >= BUFFER_BYTES) {
        if (o->rc == 0)
            o->rc = fs_write_all(o->fd, bytes, n, o->temporary, o->err);
        return;
    }
    if (n > 0)
        memcpy(o->buffer + o->used, bytes, n);
    o->used += n;
}

/* Closes the file in any state; a file that was not published is removed. */
static void out_close(struct out *o)
{
    if (o->fd >= 0) {
        close(o->fd);
        (void)unlink(o->temporary); /* the close path cannot report an error */
    }
    free(o->temporary);
    free(o->buffer);
    *o = (struct out){ .fd = -1 };
}

static int out_open(struct out *o, const char *path, struct err *err)
{
    uint64_t random;
    int rc;

    *o = (struct out){ .base = { append }, .fd = -1, .path = path, .err = err };
    rc = rng_os(&random, sizeof(random));
    if (rc < 0)
        return err_set(err, ERR_IO, "cannot read random bytes from the kernel");
    o->buffer = malloc(BUFFER_BYTES);
    if (asprintf(&o->temporary, "%s.tmp-%016" PRIx64, path, random) < 0)
        o->temporary = NULL;
    if (o->buffer == NULL || o->temporary == NULL) {
        out_close(o);
        return no_memory(err);
    }
    o->fd = open(o->temporary, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
    if (o->fd < 0) {
        rc = err_sys(err, errno, "create '%s'", o->temporary);
        out_close(o);
        return rc;
    }
    return 0;
}

/* Makes the bytes durable under the temporary name. */
static int out_sync(struct out *o)
{
    flush(o);
    if (o->rc == 0 && (fault_hit("export.sync") ? (errno = EIO, -1) : fsync(o->fd)) < 0)
        o->rc = err_sys(o->err, errno, "sync '%s'", o->temporary);
    return o->rc;
}

static int out_publish(struct out *o)
{
    char *dir;
    int rc;

    if ((fault_hit("export.rename") ? (errno = EIO, -1) : rename(o->temporary, o->path)) < 0)
        return err_sys(o->err, errno, "rename '%s' to '%s'", o->temporary, o->path);
    close(o->fd);
    o->fd = -1; /* published: out_close() must not remove it */
    dir = fs_dirname(o->path);
    if (dir == NULL)
        return no_memory(o->err);
    rc = fs_sync_dir(dir, o->err);
    free(dir);
    return rc;
}

/* ---- the message ---- */

struct exporter {
    const struct graph *g;
    const float *arena;
    const struct graph_row_reader *rows;
    /* [n_remotes] tensors whose data comes from `rows`; raw_data.data is NULL until it is read */
    Onnx__TensorProto **remotes;
    struct export_ids *ids; /* [n_remotes] of dynamic tables */
    struct arena mem;
    Onnx__ModelProto model; /* shallow copies of the graph's messages */
    Onnx__GraphProto graph;
    uint64_t weight_bytes;
};

/* The current data of a value. */
static const void *value_data(const struct exporter *e, const struct graph_value *v)
{
    return v->kind == VALUE_PARAM ? e->arena + e->g->params[v->index].offset : v->tensor.data;
}

/* The values converted to the type in the file, which the surrounding graph requires. NULL: out of
 * memory. */
static const void *narrowed(struct exporter *e, const Onnx__TensorProto *t,
                            const struct graph_value *v)
{
    size_t n = (size_t)tensor_elements(&v->tensor);
    uint16_t *data = arena_array(&e->mem, n, sizeof(*data));

    if (data != NULL)
        tensor_narrow((enum tensor_dtype)t->data_type, value_data(e, v), n, data);
    return data;
}

/* ---- remote tables ---- */

/* A dynamic table has a row of zeros after those of its ids. */
static uint64_t rows_of(const struct exporter *e, uint32_t remote)
{
    const struct graph_remote *r = &e->g->remotes[remote];

    return r->rows > 0 ? r->rows : e->ids[remote].n + 1;
}

/* rows->read(), and the last row of a dynamic table. */
static int read_part(struct exporter *e, uint32_t i, uint64_t first, uint64_t n, float *out,
                     struct err *err)
{
    const struct graph_remote *r = &e->g->remotes[i];
    bool has_zeros = r->rows == 0 && first + n == rows_of(e, i);

    if (has_zeros)
        memset(out + (n - 1) * r->width, 0, r->width * sizeof(*out));
    n -= has_zeros;
    return n > 0 ? e->rows->read(e->rows->arg, i, first, n, out, err) : 0;
}

/* Reads all rows of remote table i in the type in the file. Each part is appended to *to, or with
 * to NULL stored at `at`. */
static int read_rows(struct exporter *e, uint32_t i, struct out *to, uint8_t *at, struct err *err)
{
    const struct graph_remote *r = &e->g->remotes[i];
    enum tensor_dtype dtype = (enum tensor_dtype)e->remotes[i]->data_type;
    uint64_t most = r->width < READ_FLOATS ? READ_FLOATS / r->width : 1, first, n;
    float *part = malloc(most * r->width * sizeof(*part));
    int rc = part != NULL ? 0 : no_memory(err);

    for (first = 0; first < rows_of(e, i) && rc == 0; first += n) {
        size_t bytes;

        n = rows_of(e, i) - first < most ? rows_of(e, i) - first : most;
        bytes = n * r->width * tensor_dtype_bytes(dtype);
        rc = read_part(e, i, first, n, part, err);
        if (rc == 0 && tensor_is_half(dtype)) /* in place: element k is read before it is written */
            tensor_narrow(dtype, part, n * r->width, (uint16_t *)part);
        if (rc == 0 && to != NULL) {
            append(&to->base, bytes, (const uint8_t *)part);
            rc = to->rc;
        } else if (rc == 0) {
            memcpy(at, part, bytes);
            at += bytes;
        }
    }
    free(part);
    return rc < 0 ? err_wrap(err, rc, "remote table '%s'", r->name) : 0;
}

/* The remote table whose data the tensor lacks so far; GRAPH_NONE: another tensor. */
static uint32_t remote_of(const struct exporter *e, const Onnx__TensorProto *t)
{
    uint32_t i;

    for (i = 0; i < e->g->n_remotes; i++)
        if (e->remotes[i] == t && t->raw_data.data == NULL)
            return i;
    return GRAPH_NONE;
}

/* Reads the remote tables whose data is in the model itself: those below `least` bytes. */
static int read_inline_rows(struct exporter *e, size_t least, struct err *err)
{
    uint32_t i;
    int rc = 0;

    for (i = 0; i < e->g->n_remotes && rc == 0; i++) {
        Onnx__TensorProto *t = e->remotes[i];
        uint8_t *data;

        if (t->raw_data.len >= least)
            continue;
        data = arena_alloc(&e->mem, t->raw_data.len);
        if (data == NULL)
            return no_memory(err);
        rc = read_rows(e, i, NULL, data, err);
        t->raw_data.data = data;
    }
    return rc;
}

/* ---- the data of tensors ---- */

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
    const void *data = is_remote                               ? NULL
                       : is_narrow                             ? narrowed(e, t, v)
                       : tensor_file_bits(v->tensor.dtype) < 8 ? packed(e, &v->tensor)
                                                               : value_data(e, v);

    if (data == NULL && !is_remote)
        return no_memory(err);
    if (is_remote) {
        e->remotes[v->index - e->g->n_params] = t;
        whole.shape.dim[0] *= v->is_dynamic ? (int64_t)rows_of(e, v->index - e->g->n_params) : 1;
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
        return no_memory(err);
    t->n_dims = 2;
    t->dims[0] =
        v->is_dynamic ? (int64_t)rows_of(e, v->index - e->g->n_params) : v->tensor.shape.dim[0];
    t->dims[1] = v->tensor.shape.dim[1];
    return 0;
}

/* Writes the current values of weights, and includes external data, because the model may be
 * moved. */
static int copy_initializers(struct exporter *e, struct err *err)
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
        return no_memory(err);
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

/* ---- inference form ---- */

/* Removes training_mode, and all outputs but the normalized values. */
static int infer_batch_norm(struct exporter *e, Onnx__NodeProto *n, struct err *err)
{
    Onnx__AttributeProto **kept = arena_array(&e->mem, n->n_attribute, sizeof(*kept));
    size_t n_kept = 0, i;

    if (kept == NULL)
        return no_memory(err);
    for (i = 0; i < n->n_attribute; i++)
        if (strcmp(n->attribute[i]->name, "training_mode") != 0)
            kept[n_kept++] = n->attribute[i];
    n->attribute = kept;
    n->n_attribute = n_kept;
    if (n->n_output > 1)
        n->n_output = 1;
    return 0;
}

/* Removes the third input (training_mode, from opset 12 on), after which the node copies its input.
 * Nodes of older opsets do so already. */
static int infer_dropout(struct exporter *e, Onnx__NodeProto *n, struct err *err)
{
    (void)e, (void)err;
    if (n->n_input > 2)
        n->n_input = 2;
    return 0;
}

static const struct {
    const char *op;
    int (*to_inference)(struct exporter *e, Onnx__NodeProto *n, struct err *err);
} switches[] = {
    { "BatchNormalization", infer_batch_norm },
    { "Dropout", infer_dropout },
};

static int copy_nodes(struct exporter *e, struct err *err)
{
    const struct graph *g = e->g;
    const Onnx__GraphProto *from = g->file.model->graph;
    Onnx__NodeProto **list = arena_array(&e->mem, from->n_node, sizeof(*list));
    bool *removed = arena_array(&e->mem, from->n_node, sizeof(*removed));
    size_t n = 0, i, k;
    int rc = 0;

    if (list == NULL || removed == NULL)
        return no_memory(err);
    for (i = 0; i < g->n_values; i++)
        if (g->values[i].identity != GRAPH_NONE)
            removed[g->values[i].identity] = true;
    for (i = 0; i < from->n_node && rc == 0; i++) {
        if (removed[i])
            continue;
        list[n] = from->node[i];
        for (k = 0; k < sizeof(switches) / sizeof(switches[0]) && rc == 0; k++) {
            Onnx__NodeProto *copy;

            if (strcmp(from->node[i]->op_type, switches[k].op) != 0)
                continue;
            copy = arena_alloc(&e->mem, sizeof(*copy));
            if (copy == NULL)
                return no_memory(err);
            *copy = *from->node[i];
            list[n] = copy;
            rc = switches[k].to_inference(e, copy, err);
        }
        n++;
    }
    e->graph.node = list;
    e->graph.n_node = n;
    return rc;
}

/* Removes the inputs that repair.c removed. */
static int remove_inputs(struct exporter *e, struct err *err)
{
    const struct graph *g = e->g;
    uint32_t i;
    size_t k;

    for (i = 0; i < g->n_nodes; i++) {
        const struct graph_node *n = &g->nodes[i];
        const Onnx__NodeProto *from = g->file.model->graph->node[n->proto];
        Onnx__NodeProto *copy;

        if (strcmp(n->def->name, "Conv") != 0 || from->n_input <= n->n_in)
            continue;
        for (k = 0; k < e->graph.n_node && e->graph.node[k] != from; k++)
            ;
        if (k == e->graph.n_node)
            continue;
        copy = arena_alloc(&e->mem, sizeof(*copy));
        if (copy == NULL)
            return no_memory(err);
        *copy = *from;
        copy->n_input = n->n_in;
        e->graph.node[k] = copy;
    }
    return 0;
}

/* ---- dynamic tables ---- */

/* Lists the ids of all dynamic tables. */
static int list_ids(struct exporter *e, struct err *err)
{
    int rc = 0;

    e->ids = arena_array(&e->mem, e->g->n_remotes, sizeof(*e->ids));
    if (e->ids == NULL)
        return no_memory(err);
    for (uint32_t i = 0; rc == 0 && i < e->g->n_remotes; i++) {
        struct export_ids *t = &e->ids[i];

        if (e->g->remotes[i].rows > 0)
            continue;
        t->table = e->g->remotes[i].name;
        rc = e->rows->list(e->rows->arg, i, &t->ids, &t->n, err);
        if (rc == 0)
            rc = export_ids_check(t, err);
    }
    return rc;
}

static int encode_ids(struct exporter *e, struct err *err)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < e->g->n_remotes; i++)
        if (e->g->remotes[i].rows == 0)
            rc = export_ids_encode(e->g, &e->ids[i], &e->mem, &e->model, &e->graph, err);
    return rc;
}

/* ---- unread constants ---- */

static bool is_same(const char *a, const char *b)
{
    return a != NULL && b != NULL && strcmp(a, b) == 0;
}

/* Nested graphs are opaque bytes here; the imported nodes list the outer values that they read. */
static bool is_captured(const struct graph *g, const char *name)
{
    uint32_t i, k;

    for (i = 0; i < g->n_nodes; i++)
        for (k = 0; k < g->nodes[i].n_captured; k++)
            if (is_same(g->values[g->nodes[i].captured[k]].name, name))
                return true;
    return false;
}

static bool is_read(const struct exporter *e, const char *name)
{
    size_t i, k;

    for (i = 0; i < e->graph.n_node; i++)
        for (k = 0; k < e->graph.node[i]->n_input; k++)
            if (is_same(e->graph.node[i]->input[k], name))
                return true;
    for (i = 0; i < e->graph.n_output; i++)
        if (is_same(e->graph.output[i]->name, name))
            return true;
    /* Without the initializer, an input of the same name would have to be fed. */
    for (i = 0; i < e->graph.n_input; i++)
        if (is_same(e->graph.input[i]->name, name))
            return true;
    return is_captured(e->g, name);
}

/* Removes the initializer or Constant node of this name. The exporter owns both lists. */
static void remove_constant(struct exporter *e, const char *name)
{
    size_t n = 0, i;

    for (i = 0; i < e->graph.n_initializer; i++)
        if (!is_same(e->graph.initializer[i]->name, name))
            e->graph.initializer[n++] = e->graph.initializer[i];
    e->graph.n_initializer = n;
    for (n = 0, i = 0; i < e->graph.n_node; i++) {
        const Onnx__NodeProto *p = e->graph.node[i];

        if (!is_same(p->op_type, "Constant") || p->n_output != 1 || !is_same(p->output[0], name))
            e->graph.node[n++] = e->graph.node[i];
    }
    e->graph.n_node = n;
}

/* Removes unread training_mode constants of Dropout nodes, and unread constants that import
 * recorded: runtimes warn about an initializer that no node reads. */
static void remove_unread(struct exporter *e)
{
    const Onnx__GraphProto *from = e->g->file.model->graph;
    const char *last = NULL;
    size_t i;

    for (i = 0; i < e->g->n_unread; i++)
        if (!is_read(e, e->g->unread[i]))
            remove_constant(e, e->g->unread[i]);

    for (i = 0; i < from->n_node; i++) {
        const Onnx__NodeProto *p = from->node[i];
        const char *mode = is_same(p->op_type, "Dropout") && p->n_input > 2 ? p->input[2] : NULL;

        if (mode == NULL || mode[0] == '\0' || is_same(mode, last))
            continue; /* exporters share one training_mode; it is searched once */
        last = mode;
        if (!is_read(e, mode))
            remove_constant(e, mode);
    }
}

/* ---- external data ---- */

static int add_external_entry(struct exporter *e, Onnx__TensorProto *t, char *key, char *value,
                              struct err *err)
{
    Onnx__StringStringEntryProto *entry = arena_alloc(&e->mem, sizeof(*entry));

    if (entry == NULL || value == NULL)
        return no_memory(err);
    onnx__string_string_entry_proto__init(entry);
    entry->key = key;
    entry->value = value;
    t->external_data[t->n_external_data++] = entry;
    return 0;
}

static int move_to_external(struct exporter *e, Onnx__TensorProto *t, const char *location,
                            struct out *data, struct err *err)
{
    static const uint8_t zeros[EXTERNAL_ALIGN];
    size_t gap = (EXTERNAL_ALIGN - data->written % EXTERNAL_ALIGN) % EXTERNAL_ALIGN;
    uint32_t remote = remote_of(e, t);
    int rc;

    append(&data->base, gap, zeros);
    t->external_data = arena_array(&e->mem, 3, sizeof(*t->external_data));
    if (t->external_data == NULL)
        return no_memory(err);
    rc = add_external_entry(e, t, "location", arena_strdup(&e->mem, location), err);
    if (rc == 0)
        rc = add_external_entry(e, t, "offset", arena_printf(&e->mem, "%" PRIu64, data->written),
                                err);
    if (rc == 0)
        rc = add_external_entry(e, t, "length", arena_printf(&e->mem, "%zu", t->raw_data.len), err);
    if (rc == 0 && remote != GRAPH_NONE)
        rc = read_rows(e, remote, data, NULL, err);
    else
        append(&data->base, t->raw_data.len, t->raw_data.data);
    t->has_raw_data = 0;
    t->has_data_location = 1;
    t->data_location = LOCATION_EXTERNAL;
    return rc < 0 ? rc : data->rc;
}

static int write_external_data(struct exporter *e, const char *data_path, struct out *data,
                               struct err *err)
{
    const char *slash = strrchr(data_path, '/');
    size_t i;
    int rc = out_open(data, data_path, err);

    for (i = 0; i < e->graph.n_initializer && rc == 0; i++) {
        Onnx__TensorProto *t = e->graph.initializer[i];

        if (t->has_raw_data && t->raw_data.len >= EXTERNAL_MIN_BYTES)
            rc = move_to_external(e, t, slash != NULL ? slash + 1 : data_path, data, err);
    }
    return rc == 0 ? out_sync(data) : rc;
}

/* ---- writing ---- */

static int pack(const Onnx__ModelProto *model, struct out *o)
{
    size_t n = onnx__model_proto__get_packed_size(model);

    if (n > INT32_MAX)
        return err_set(o->err, ERR_UNSUPPORTED,
                       "the model needs %zu bytes without its weights, "
                       "but protobuf allows at most 2 GiB",
                       n);
    onnx__model_proto__pack_to_buffer(model, &o->base);
    return out_sync(o);
}

static int write_model(struct exporter *e, const char *path, uint64_t limit, struct err *err)
{
    char *data_path = arena_printf(&e->mem, "%s.data", path);
    struct out model = { .fd = -1 }, data = { .fd = -1 };
    bool is_split = e->weight_bytes > limit;
    int rc = data_path != NULL ? 0 : no_memory(err);

    if (rc == 0)
        rc = read_inline_rows(e, is_split ? EXTERNAL_MIN_BYTES : SIZE_MAX, err);
    if (rc == 0 && is_split)
        rc = write_external_data(e, data_path, &data, err);
    if (rc == 0)
        rc = out_open(&model, path, err);
    if (rc == 0)
        rc = pack(&e->model, &model);
    /* Two files cannot be replaced atomically. Between the renames there must be no model: an old
     * model would read the new weights. */
    if (rc == 0 && is_split && unlink(path) < 0 && errno != ENOENT)
        rc = err_sys(err, errno, "remove the previous model '%s'", path);
    if (rc == 0 && is_split)
        rc = out_publish(&data);
    if (rc == 0)
        rc = out_publish(&model);
    out_close(&model);
    out_close(&data);
    return rc;
}

int graph_write_model(const Onnx__ModelProto *model, const char *path, struct err *err)
{
    struct out o = { .fd = -1 };
    int rc = out_open(&o, path, err);

    if (rc == 0)
        rc = pack(model, &o);
    if (rc == 0)
        rc = out_publish(&o);
    out_close(&o);
    return rc < 0 ? err_wrap(err, rc, "write '%s'", path) : 0;
}

int graph_export_split(const struct graph *g, const float *arena,
                       const struct graph_row_reader *rows, const char *path, uint64_t limit,
                       struct err *err)
{
    struct exporter e = { .g = g,
                          .arena = arena,
                          .rows = rows,
                          .model = *g->file.model,
                          .graph = *g->file.model->graph };
    int rc = 0;

    e.model.graph = &e.graph;
    e.remotes = arena_array(&e.mem, g->n_remotes, sizeof(*e.remotes));
    if (e.remotes == NULL)
        rc = no_memory(err);
    else if (g->n_remotes > 0 && rows == NULL)
        rc = err_set(err, ERR_UNSUPPORTED,
                     "the values of '%s' are on parameter servers; expected a reader of its rows",
                     g->remotes[0].name);
    if (rc == 0)
        rc = list_ids(&e, err);
    if (rc == 0)
        rc = copy_initializers(&e, err);
    if (rc == 0)
        rc = copy_nodes(&e, err);
    if (rc == 0)
        rc = remove_inputs(&e, err);
    if (rc == 0)
        rc = encode_ids(&e, err);
    if (rc == 0)
        remove_unread(&e);
    if (rc == 0)
        rc = write_model(&e, path, limit, err);
    arena_fini(&e.mem);
    return rc < 0 ? err_wrap(err, rc, "export '%s'", path) : 0;
}

int graph_export(const struct graph *g, const float *arena, const char *path, struct err *err)
{
    return graph_export_split(g, arena, NULL, path, inline_max, err);
}

int graph_export_remote(const struct graph *g, const float *arena,
                        const struct graph_row_reader *rows, const char *path, struct err *err)
{
    return graph_export_split(g, arena, rows, path, inline_max, err);
}
