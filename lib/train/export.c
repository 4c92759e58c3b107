/* export.c - see export.h. */
#include "train/export.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/fs.h"
#include "train/remote.h"
#include "train/task.h"
#include "train/weights.h"

static int make_folder_of(const char *path, struct err *err)
{
    char *dir = fs_dirname(path);
    int rc = dir != NULL ? fs_mkdirs(dir, err) : err_set(err, ERR_NOMEM, "out of memory");

    free(dir);
    return rc;
}

static int export_onnx(struct train *t, bool averages, const float *arena, const char *path,
                       struct err *err)
{
    struct graph_row_reader rows;

    if (t->remote == NULL)
        return graph_export(t->model.graph, arena, path, err);
    remote_reader(t, averages, &rows);
    return graph_export_remote(t->model.graph, arena, &rows, path, err);
}

static int export_safetensors(struct train *t, bool averages, const float *arena, const char *path,
                              struct err *err)
{
    struct graph_row_reader rows;

    if (t->remote != NULL)
        remote_reader(t, averages, &rows);
    return weights_export(t->model.graph, arena, t->remote != NULL ? &rows : NULL,
                          t->opts->export.dtype, path, err);
}

/* Writes one file after the other. */
static int export_files(struct train *t, bool averages, struct err *err)
{
    const struct memory *m = &t->engine->memory;
    const struct {
        const char *path;
        int (*write)(struct train *t, bool averages, const float *arena, const char *path,
                     struct err *err);
    } files[] = {
        { t->opts->export.onnx, export_onnx },
        { t->opts->export.safetensors, export_safetensors },
    };

    for (size_t i = 0; i < COUNT_OF(files); i++) {
        struct train_event e = { .kind = TRAIN_EXPORTED,
                                 .step = t->model.total_steps,
                                 .text = files[i].path };
        int rc;

        if (files[i].path == NULL)
            continue;
        rc = fault_error("train.export", err);
        if (rc < 0)
            return rc;
        rc = make_folder_of(files[i].path, err);
        if (rc == 0)
            rc = t->engine->ops->sync(t->engine, state_held(&t->state), err);
        if (rc == 0)
            rc = remote_fetch_dense(t, averages ? ENGINE_ROWS_AVERAGE : ENGINE_ROWS_HELD, err);
        if (rc == 0)
            rc = files[i].write(t, averages, averages ? m->average : m->state, files[i].path, err);
        if (rc < 0)
            return err_wrap(err, rc, "export");
        events_send(&t->events, &e);
    }
    return 0;
}

int export_model(struct train *t, struct err *err)
{
    bool averages = t->opts->optimizer.average.decay > 0 && t->opts->optimizer.average.exported;

    if (t->opts->export.onnx == NULL && t->opts->export.safetensors == NULL)
        return 0;
    events_phase(&t->events, "export", t->model.total_steps);
    return export_files(t, averages, err);
}
