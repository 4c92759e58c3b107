/* weights.c - see weights.h. */
#include "train/weights.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "ckpt/export.h"
#include "train/events.h"
#include "train/train_types.h"

static bool find(const void *arg, const char *name, struct graph_weight *out)
{
    return ckpt_weights_find(arg, name, &out->tensor, &out->mapping);
}

int weights_open(struct weights_file *w, const struct train_opts *o, const struct events *events,
                 struct graph_opts *opts, struct err *err)
{
    int rc;

    if (o->model.weights == NULL)
        return 0;
    CHECK(w->file == NULL);
    events_phase(events, "weights", 0);
    rc = ckpt_weights_open(o->model.weights, &w->file, err);
    if (rc == 0 && w->digest[0] == '\0')
        rc = ckpt_weights_digest(w->file, w->digest, err);
    if (rc < 0)
        return rc;
    w->of = (struct graph_weights){ .path = ckpt_weights_path(w->file),
                                    .find = find,
                                    .arg = w->file,
                                    .renames = o->model.weights_names,
                                    .n_renames = o->model.n_weights_names,
                                    .fresh = o->model.weights_fresh,
                                    .n_fresh = o->model.n_weights_fresh };
    w->of.names = ckpt_weights_names(w->file, &w->of.n_names);
    opts->weights = &w->of;
    return 0;
}

void weights_close(struct weights_file *w)
{
    ckpt_weights_close(w->file);
    w->file = NULL;
}

struct remote_table {
    const struct graph_row_reader *rows;
    uint32_t i;
};

/* ckpt_export_tensor.read */
static int read_remote(void *arg, uint64_t first, uint64_t n, void *out, struct err *err)
{
    const struct remote_table *r = arg;

    return r->rows->read(r->rows->arg, r->i, first, n, out, err);
}

int weights_export(const struct graph *g, const float *arena, const struct graph_row_reader *rows,
                   enum tensor_dtype floats, const char *path, struct err *err)
{
    uint32_t n;
    const struct graph_tensor *from = graph_module_tensors(g, &n);
    struct ckpt_export_tensor *tensors = calloc(n > 0 ? n : 1, sizeof(*tensors));
    struct remote_table *remotes = calloc(n > 0 ? n : 1, sizeof(*remotes));
    int rc;

    if (tensors == NULL || remotes == NULL) {
        free(tensors);
        free(remotes);
        return err_set(err, ERR_NOMEM, "export '%s': out of memory", path);
    }
    for (uint32_t i = 0; i < n; i++) {
        tensors[i] = (struct ckpt_export_tensor){ .name = from[i].name, .tensor = from[i].tensor };
        remotes[i] = (struct remote_table){ rows, from[i].remote };
        if (from[i].is_remote) {
            tensors[i].read = read_remote;
            tensors[i].arg = &remotes[i];
        }
        if (from[i].is_param)
            tensors[i].tensor.data = (void *)(uintptr_t)(arena + from[i].offset);
    }
    rc = ckpt_export(path, tensors, n, floats, err);
    free(tensors);
    free(remotes);
    return rc;
}
