/* weights.c - initial weights from a file that is not the model, and the module's tensors to a file
 * for other programs. Both are safetensors files (ckpt/weights.h, ckpt/export.h), whose names are
 * those of the graph. */
#include "train/train_priv.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "ckpt/export.h"
#include "ckpt/weights.h"

static bool find(const void *arg, const char *name, struct graph_weight *out)
{
    return ckpt_weights_find(arg, name, &out->tensor, &out->mapping);
}

int weights_open(struct train *t, struct graph_opts *opts, struct err *err)
{
    const struct train_opts *o = t->opts;
    int rc;

    if (o->weights == NULL)
        return 0;
    CHECK(t->weights == NULL);
    train_phase(t, "weights", 0);
    rc = ckpt_weights_open(o->weights, &t->weights, err);
    if (rc == 0 && t->weights_digest[0] == '\0')
        rc = ckpt_weights_digest(t->weights, t->weights_digest, err);
    if (rc < 0)
        return rc;
    t->weights_of = (struct graph_weights){ .path = ckpt_weights_path(t->weights),
                                            .find = find,
                                            .arg = t->weights,
                                            .renames = o->weights_names,
                                            .n_renames = o->n_weights_names,
                                            .fresh = o->weights_fresh,
                                            .n_fresh = o->n_weights_fresh };
    t->weights_of.names = ckpt_weights_names(t->weights, &t->weights_of.n_names);
    opts->weights = &t->weights_of;
    return 0;
}

void weights_close(struct train *t)
{
    ckpt_weights_close(t->weights);
    t->weights = NULL;
}

int weights_export(struct train *t, const char *path, struct err *err)
{
    const float *arena = t->opts->export_average ? t->mem.average : t->mem.state;
    uint32_t n;
    const struct graph_tensor *from = graph_module_tensors(t->graph, &n);
    struct ckpt_export_tensor *tensors = calloc(n > 0 ? n : 1, sizeof(*tensors));
    int rc;

    if (tensors == NULL)
        return err_set(err, ERR_NOMEM, "export '%s': out of memory", path);
    for (uint32_t i = 0; i < n; i++) {
        tensors[i] = (struct ckpt_export_tensor){ from[i].name, from[i].tensor };
        if (from[i].is_param)
            tensors[i].tensor.data = (void *)(uintptr_t)(arena + from[i].offset);
    }
    rc = ckpt_export(path, tensors, n, t->opts->export_floats, err);
    free(tensors);
    return rc;
}
