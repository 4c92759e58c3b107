/* tensors.c - see tensors.h. */
#include "train/tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "ckpt/ckpt.h"
#include "engine/memory.h"
#include "graph/graph.h"

/* Adds the entry <parameter>/<slot> in an arena of the state. */
static int name_slot(struct tensors *t, const struct memory *mem, const struct graph_param *p,
                     const char *slot, const float *arena, struct err *err)
{
    char *name = t->slot_names[t->n_slots];
    int len = snprintf(name, sizeof(t->slot_names[0]), "%s/%s", p->name, slot);

    if (len < 0 || (size_t)len >= sizeof(t->slot_names[0]))
        return err_set(err, ERR_INPUT, "parameter '%.80s...': its name is longer than %zu bytes",
                       p->name, sizeof(t->slot_names[0]) - 32);
    t->slots[t->n_slots++] = (struct ckpt_tensor){
        .name = name,
        .dtype = TENSOR_F32,
        .shape = p->shape,
        .offset = ((size_t)(arena - mem->state) + p->offset) * sizeof(float),
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

int tensors_name(struct tensors *t, const struct graph *g, const struct memory *mem,
                 struct err *err)
{
    const struct optim_def *optim = mem->opts.optimizer;
    uint32_t n, n_module;
    const struct graph_param *p = graph_params(g, &n);

    (void)graph_module_tensors(g, &n_module);
    t->model = calloc((size_t)n + n_module + 1, sizeof(*t->model));
    t->slots = calloc((size_t)n * (optim->n_slots + 1) + 1, sizeof(*t->slots));
    t->slot_names = calloc((size_t)n * (optim->n_slots + 1) + 1, sizeof(*t->slot_names));
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
        name_tied(t, g, p, n);
    for (uint32_t i = 0; i < n; i++) {
        int rc = 0;

        if (p[i].kind != GRAPH_TRAINED)
            continue;
        for (uint32_t s = 0; rc == 0 && s < optim->n_slots; s++)
            if (mem->slots[s] != NULL)
                rc = name_slot(t, mem, &p[i], optim->slots[s].name, mem->slots[s], err);
        if (rc == 0 && mem->average != NULL)
            rc = name_slot(t, mem, &p[i], "average", mem->average, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

void tensors_free(struct tensors *t)
{
    free(t->model);
    free(t->slots);
    free(t->slot_names);
    *t = (struct tensors){ 0 };
}
