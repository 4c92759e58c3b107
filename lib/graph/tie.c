/* tie.c - second names of parameters and buffers, which the job states (model.tied).
 *
 * PyTorch lists a tensor that the module has under several names under each of them in the
 * signature of the file, and stores it under one. Where a module reads it under another name, the
 * metadata show the tie (restore.c). A name that no call of the module passes through leaves no
 * trace, as does a parameter that the module does not use, so the file does not state which it is. */
#include <inttypes.h>

#include "base/err.h"
#include "base/text.h"
#include "graph/graph_priv.h"

static bool has_tensor(const struct graph_metadata *e, uint32_t target)
{
    uint64_t k;

    return map_get(&e->by_tensor, e->targets[target].name, &k);
}

static int find_target(const struct graph_metadata *e, struct arena *mem, const char *name,
                       uint32_t *out, struct err *err)
{
    const char **names, *near;
    uint64_t k;
    uint32_t i;

    if (map_get(&e->by_name, name, &k)) {
        *out = e->targets[k].alias_of != METADATA_NONE ? e->targets[k].alias_of : (uint32_t)k;
        return 0;
    }
    names = arena_array(mem, e->n_targets, sizeof(*names));
    if (names == NULL)
        return err_set(err, ERR_NOMEM, "model.tied: out of memory");
    for (i = 0; i < e->n_targets; i++)
        names[i] = e->targets[i].name;
    near = text_nearest(name, names, e->n_targets);
    return err_set(err, ERR_INPUT,
                   "model.tied: the signature of the module has no parameter or buffer '%s'%s%s%s",
                   name, near != NULL ? "; did you mean '" : "", near != NULL ? near : "",
                   near != NULL ? "'?" : "");
}

static int tie(struct graph_metadata *e, struct arena *mem, const struct graph_rename *r,
               struct err *err)
{
    uint32_t a, b, holder, other;
    int rc = find_target(e, mem, r->graph, &a, err);

    if (rc == 0)
        rc = find_target(e, mem, r->file, &b, err);
    if (rc < 0 || a == b) /* the metadata of the file show the tie */
        return rc;
    if (has_tensor(e, a) && has_tensor(e, b))
        return err_set(err, ERR_INPUT,
                       "model.tied: the file has a tensor for each of '%s' and '%s', so they are not tied; "
                       "remove this entry",
                       r->graph, r->file);
    if (!has_tensor(e, a) && !has_tensor(e, b))
        return err_set(err, ERR_INPUT,
                       "model.tied: the file has no tensor for '%s' and none for '%s'; expected a tensor for one "
                       "of them (trainerctl inspect lists the tensors)",
                       r->graph, r->file);
    holder = has_tensor(e, a) ? a : b;
    other = holder == a ? b : a;
    e->targets[other].alias_of = holder;
    e->targets[other].next_alias = e->targets[holder].aliases;
    e->targets[holder].aliases = other;
    return 0;
}

int graph_tie_names(struct graph *g, const struct graph_rename *ties, uint32_t n, struct err *err)
{
    struct arena mem = { 0 };
    uint32_t i;
    int rc = 0;

    if (n > 0 && !g->file.metadata.has_signature)
        return err_set(err, ERR_INPUT,
                       "model.tied: the file does not have the signature of the module, which lists all of its "
                       "names; expected a file of torch.onnx.export(.., dynamo=True, optimize=False)");
    for (i = 0; i < n && rc == 0; i++)
        rc = tie(&g->file.metadata, &mem, &ties[i], err);
    arena_fini(&mem);
    return rc;
}
