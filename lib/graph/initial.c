/* initial.c - copies initial values from their source into the arena of parameters, once.
 *
 * A source is the unpacked model, a mapped file of external data, or a mapped weights file
 * (weights.c), the latter with any float type. The pages of a mapped file are dropped after they
 * have been copied, so that a model of any size needs little memory besides its arena. */
#include "graph/graph_priv.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/mapping.h"
#include "tensor/half.h"

enum { CHUNK = 1 << 20 }; /* elements that are copied before their pages are dropped */

static int copy_constant(struct graph *g, struct graph_value *v, struct err *err)
{
    const void *from = v->tensor.data;
    int rc;

    if (v->half.data != NULL) {
        v->tensor.data = arena_alloc(&g->mem, tensor_bytes(&v->tensor));
        if (v->tensor.data == NULL)
            return err_set(err, ERR_NOMEM, "constant '%s': out of memory", v->name);
        graph_read_floats(&v->half, v->external, v->tensor.data);
        v->half.data = NULL;
        return 0;
    }
    rc = graph_copy_tensor(&g->mem, &v->tensor, v->name, err);
    if (rc == 0)
        mapping_drop(v->external, from, tensor_bytes(&v->tensor));
    return rc;
}

int graph_copy_constants(struct graph *g, struct err *err)
{
    uint32_t i;
    int rc = 0;

    for (i = 0; i < g->n_values && rc == 0; i++) {
        struct graph_value *v = &g->values[i];

        if (v->kind != VALUE_CONST || v->external == NULL)
            continue;
        rc = copy_constant(g, v, err);
        v->external = NULL;
    }
    return rc;
}

int graph_set_initial(struct graph *g, struct err *err)
{
    uint32_t n = g->n_params + g->n_remotes, i;

    g->initials = arena_array(&g->mem, n, sizeof(*g->initials));
    if (g->initials == NULL)
        return err_set(err, ERR_NOMEM, "initial values: out of memory");
    for (i = 0; i < n; i++) {
        const struct graph_value *v = &g->values[g->param_values[i]];

        g->initials[i] = (struct graph_initial){ .from = v->half.data != NULL ? v->half : v->tensor,
                                                 .mapping = v->external,
                                                 .fill = v->fill };
    }
    return 0;
}

/* ---- conversion ---- */

/* `from` may have any alignment: safetensors files do not guarantee one. */
static void convert(enum tensor_dtype dtype, const uint8_t *from, size_t n, float *to)
{
    size_t i;

    if (tensor_is_half(dtype)) {
        tensor_widen(dtype, from, n, to);
    } else if (dtype == TENSOR_F64) {
        for (i = 0; i < n; i++) {
            double d;

            memcpy(&d, from + 8 * i, sizeof(d));
            to[i] = (float)d;
        }
    } else {
        memcpy(to, from, n * sizeof(float));
    }
}

void graph_read_floats(const struct tensor *t, const struct mapping *mapping, float *to)
{
    size_t n = (size_t)tensor_elements(t), width = tensor_dtype_bytes(t->dtype), at, some;
    const uint8_t *from = t->data;

    for (at = 0; at < n; at += some) {
        some = n - at < CHUNK ? n - at : CHUNK;
        convert(t->dtype, from + at * width, some, to + at);
        if (mapping != NULL)
            mapping_drop(mapping, from + at * width, some * width);
    }
}

/* ---- the arena ---- */

static int read_initial(const struct tensor *t, const struct mapping *mapping, float *to,
                        struct err *err)
{
    if (t->data == NULL)
        return err_set(err, ERR_INPUT, "the initial values were released already");
    graph_read_floats(t, mapping, to);
    return mapping != NULL ? mapping_check(mapping, err) : 0;
}

int graph_fill_initial(const struct graph *g, float *arena, struct err *err)
{
    uint32_t i;
    int rc = 0;

    mapping_enable_thread();
    for (i = 0; i < g->n_params && rc == 0; i++) {
        const struct graph_initial *from = &g->initials[i];
        const struct graph_param *p = &g->params[i];

        if (from->fill != NULL)
            table_fill_rows(from->fill, (uint32_t)p->shape.dim[1], 0, (uint64_t)p->shape.dim[0],
                            arena + p->offset);
        else
            rc = read_initial(&from->from, from->mapping, arena + p->offset, err);
    }
    return rc < 0 ? err_wrap(err, rc, "initial values") : 0;
}

int graph_fill_remote(const struct graph *g, uint32_t i, uint64_t first, uint64_t n, float *out,
                      struct err *err)
{
    const struct graph_remote *r = &g->remotes[i];
    const struct graph_initial *from = &g->initials[g->n_params + i];
    struct tensor rows = from->from;
    int rc;

    CHECK(i < g->n_remotes && first <= r->rows && n <= r->rows - first);
    rows.shape = shape_of(2, (int64_t)n, (int64_t)r->width);
    if (rows.data != NULL)
        rows.data = (uint8_t *)rows.data + first * r->width * tensor_dtype_bytes(rows.dtype);
    if (from->fill != NULL) {
        table_fill_rows(from->fill, r->width, first, n, out);
        return 0;
    }
    mapping_enable_thread();
    rc = read_initial(&rows, from->mapping, out, err);
    return rc < 0 ? err_wrap(err, rc, "initial values of '%s'", r->name) : 0;
}

/* Frees the list of a TensorProto that owns this memory, if one does. */
static void release(Onnx__TensorProto *t, const void *data)
{
    if (t->raw_data.data == data) {
        free(t->raw_data.data);
        t->raw_data = (ProtobufCBinaryData){ 0 };
    } else if ((const void *)t->float_data == data) {
        free(t->float_data);
        t->float_data = NULL;
        t->n_float_data = 0;
    }
}

/* Returns whether a constant uses this memory too: a frozen copy of an initializer shares it. */
static bool is_constant(const struct graph *g, const void *data)
{
    uint32_t i;

    for (i = 0; i < g->n_values; i++)
        if (g->values[i].kind == VALUE_CONST && g->values[i].tensor.data == data)
            return true;
    return false;
}

void graph_release_initial(struct graph *g)
{
    Onnx__GraphProto *file = g->file.unpacked->graph;
    uint32_t i;

    for (i = 0; i < g->n_params + g->n_remotes; i++) {
        struct graph_value *v = &g->values[g->param_values[i]];

        if (v->external == NULL && v->tensor.data != NULL && v->initializer < file->n_initializer &&
            g->params[i].elements > 0 && !is_constant(g, v->tensor.data))
            release(file->initializer[v->initializer], v->tensor.data);
        g->params[i].initial = NULL;
        g->initials[i] = (struct graph_initial){ .mapping = NULL };
        v->tensor.data = v->half.data = NULL;
        v->external = NULL;
    }
    graph_external_close(&g->file.external);
}
