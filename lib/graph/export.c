/* export.c - writes the trained model for inference.
 *
 * The imported message is written again, with shallow copies of the parts that change. Weights
 * point into the caller's arena, so no large data is copied, and packing streams to the file. The
 * rows of remote tables are read in parts: directly to external data, or to memory if the table is
 * in the model itself. */
#include "graph/export_priv.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "graph/export_ids.h"

static const uint64_t inline_max = 1900000000; /* limit of protobuf: 2 GiB */

/* ---- dynamic tables ---- */

/* Lists the ids of all dynamic tables. */
static int list_ids(struct exporter *e, struct err *err)
{
    int rc = 0;

    e->ids = arena_array(&e->mem, e->g->n_remotes, sizeof(*e->ids));
    if (e->ids == NULL)
        return export_no_memory(err);
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

/* ---- writing ---- */

static int pack(const Onnx__ModelProto *model, struct export_out *o)
{
    size_t n = onnx__model_proto__get_packed_size(model);

    if (n > INT32_MAX)
        return err_set(o->err, ERR_UNSUPPORTED,
                       "the model needs %zu bytes without its weights, "
                       "but protobuf allows at most 2 GiB",
                       n);
    onnx__model_proto__pack_to_buffer(model, &o->base);
    return export_out_sync(o);
}

static int write_model(struct exporter *e, const char *path, uint64_t limit, struct err *err)
{
    char *data_path = arena_printf(&e->mem, "%s.data", path);
    struct export_out model = { .fd = -1 }, data = { .fd = -1 };
    bool is_split = e->weight_bytes > limit;
    int rc = data_path != NULL ? 0 : export_no_memory(err);

    if (rc == 0)
        rc = export_read_inline(e, is_split ? EXPORT_EXTERNAL_BYTES : SIZE_MAX, err);
    if (rc == 0 && is_split)
        rc = export_write_external(e, data_path, &data, err);
    if (rc == 0)
        rc = export_out_open(&model, path, err);
    if (rc == 0)
        rc = pack(&e->model, &model);
    /* Two files cannot be replaced atomically. Between the renames there must be no model: an old
     * model would read the new weights. */
    if (rc == 0 && is_split && unlink(path) < 0 && errno != ENOENT)
        rc = err_sys(err, errno, "remove the previous model '%s'", path);
    if (rc == 0 && is_split)
        rc = export_out_publish(&data);
    if (rc == 0)
        rc = export_out_publish(&model);
    export_out_close(&model);
    export_out_close(&data);
    return rc;
}

int graph_write_model(const Onnx__ModelProto *model, const char *path, struct err *err)
{
    struct export_out o = { .fd = -1 };
    int rc = export_out_open(&o, path, err);

    if (rc == 0)
        rc = pack(model, &o);
    if (rc == 0)
        rc = export_out_publish(&o);
    export_out_close(&o);
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
        rc = export_no_memory(err);
    else if (g->n_remotes > 0 && rows == NULL)
        rc = err_set(err, ERR_UNSUPPORTED,
                     "the values of '%s' are on parameter servers; expected a reader of its rows",
                     g->remotes[0].name);
    if (rc == 0)
        rc = list_ids(&e, err);
    if (rc == 0)
        rc = export_copy_initializers(&e, err);
    if (rc == 0)
        rc = export_copy_nodes(&e, err);
    if (rc == 0)
        rc = export_remove_inputs(&e, err);
    if (rc == 0)
        rc = encode_ids(&e, err);
    if (rc == 0)
        export_remove_unread(&e);
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
