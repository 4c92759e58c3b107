/* tensors.c - see tensors.h. */
#include "train/tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "ckpt/ckpt.h"
#include "graph/graph.h"
#include "train/whole.h"

/* Adds the entry <parameter>/<part> of a part that begins at float `at` of the state. */
static int name_slot(struct tensors *t, const struct graph_param *p, const char *part, size_t at,
                     struct err *err)
{
    char *name = t->slot_names[t->n_slots];
    int len = snprintf(name, sizeof(t->slot_names[0]), "%s/%s", p->name, part);

    if (len < 0 || (size_t)len >= sizeof(t->slot_names[0]))
        return err_set(err, ERR_INPUT, "parameter '%.80s...': its name is longer than %zu bytes",
                       p->name, sizeof(t->slot_names[0]) - 32);
    t->slots[t->n_slots++] = (struct ckpt_tensor){
        .name = name,
        .dtype = TENSOR_F32,
        .shape = p->shape,
        .offset = (at + p->offset) * sizeof(float),
    };
    return 0;
}

/* A parameter that the module ties is in the file under each of its names, since PyTorch's
 * load_state_dict() requires all of them; the entries share their place in the state. */
static void name_tied(struct tensors *t, const struct graph *g, const struct graph_param *p,
                      uint32_t n)
{
    uint32_t n_tensors;
    const struct graph_tensor *of = graph_module_tensors(g, &n_tensors);

    for (uint32_t i = 0, last = 0; i < n_tensors; i++) {
        if (!of[i].is_param)
            continue;
        for (uint32_t k = 0; p[last].offset != of[i].offset && k < n; k++)
            last = last + 1 < n ? last + 1 : 0;
        if (strcmp(p[last].name, of[i].name) != 0)
            t->model[t->n_model++] = (struct ckpt_tensor){ .name = of[i].name,
                                                           .dtype = TENSOR_F32,
                                                           .shape = of[i].tensor.shape,
                                                           .offset = of[i].offset * sizeof(float) };
    }
}

/* Adds the entries of the parts [first, end) of each trained parameter. */
static int name_parts(struct tensors *t, const struct whole *w, uint32_t first, uint32_t end,
                      struct err *err)
{
    uint32_t n;
    const struct graph_param *p = graph_params(w->graph, &n);

    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = first; p[i].kind == GRAPH_TRAINED && k < end; k++) {
            int rc = name_slot(t, &p[i], w->names[k], w->parts_at[k], err);

            if (rc < 0)
                return rc;
        }
    return 0;
}

int tensors_name(struct tensors *t, const struct whole *w, struct err *err)
{
    uint32_t n, n_module, n_inner = w->outer > 0 ? w->outer : w->n_parts;
    int rc;
    const struct graph_param *p = graph_params(w->graph, &n);

    (void)graph_module_tensors(w->graph, &n_module);
    t->model = calloc((size_t)n + n_module + 1, sizeof(*t->model));
    t->slots = calloc((size_t)n * w->n_parts + 1, sizeof(*t->slots));
    t->slot_names = calloc((size_t)n * w->n_parts + 1, sizeof(*t->slot_names));
    if (t->model == NULL || t->slots == NULL || t->slot_names == NULL)
        return err_set(err, ERR_NOMEM, "checkpoint: out of memory");
    t->n_model = n;
    for (uint32_t i = 0; i < n; i++) {
        t->model[i] = (struct ckpt_tensor){ .name = p[i].name,
                                            .dtype = TENSOR_F32,
                                            .shape = p[i].shape,
                                            .offset = p[i].offset * sizeof(float) };
    }
    if (n > 0)
        name_tied(t, w->graph, p, n);
    rc = name_parts(t, w, 1, n_inner, err);
    t->n_inner = t->n_slots;
    return rc < 0 ? rc : name_parts(t, w, n_inner, w->n_parts, err);
}

void tensors_free(struct tensors *t)
{
    free(t->model);
    free(t->slots);
    free(t->slot_names);
    *t = (struct tensors){ 0 };
}
