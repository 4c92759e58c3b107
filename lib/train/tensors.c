/* tensors.c - see tensors.h. */
#include "train/tensors.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "ckpt/ckpt.h"
#include "graph/graph.h"
#include "train/groups.h"
#include "train/parts.h"
#include "train/train_types.h"

/* A parameter, or a remote table. */
struct named {
    const char *name;
    struct shape shape;
    size_t offset;  /* floats from the start of a part; SIZE_MAX: not in the state */
    uint32_t table; /* as ckpt_tensor.table */
    bool is_delayed; /* has older versions */
};

static size_t offset_of(const struct named *p, size_t part_at)
{
    return p->offset == SIZE_MAX ? CKPT_ELSEWHERE : (part_at + p->offset) * sizeof(float);
}

/* Adds the entry <parameter>/<part>. */
static int name_slot(struct tensors *t, const struct named *p, const char *part, size_t part_at,
                     struct err *err)
{
    char *name = t->slot_names[t->n_slots];
    int len = snprintf(name, sizeof(t->slot_names[0]), "%s/%s", p->name, part);

    if (len < 0 || (size_t)len >= sizeof(t->slot_names[0]))
        return err_set(err, ERR_INPUT, "parameter '%.80s...': its name is longer than %zu bytes",
                       p->name, sizeof(t->slot_names[0]) - 32);
    t->slots[t->n_slots++] = (struct ckpt_tensor){ .name = name,
                                                   .dtype = TENSOR_F32,
                                                   .shape = p->shape,
                                                   .offset = offset_of(p, part_at),
                                                   .table = p->table };
    return 0;
}

static void name_weights(struct tensors *t, const struct named *p)
{
    t->model[t->n_model++] = (struct ckpt_tensor){ .name = p->name,
                                                   .dtype = TENSOR_F32,
                                                   .shape = p->shape,
                                                   .offset = offset_of(p, 0),
                                                   .table = p->table };
}

/* Adds the entries of the parts [first, end), from 1 on. */
static int name_slots(struct tensors *t, const struct parts *parts, const struct named *p,
                      uint32_t first, uint32_t end, struct err *err)
{
    int rc = 0;

    for (uint32_t k = first; rc == 0 && k < end; k++)
        if (p->is_delayed || !parts_is_delayed(parts, k))
            rc = name_slot(t, p, parts->names[k], parts->at[k], err);
    return rc;
}

/* A parameter that the module ties is in the file under each of its names, since PyTorch's
 * load_state_dict() requires all of them; the entries share their place in the state. A table in shard
 * files is there under its name in the graph alone. */
static void name_tied(struct tensors *t, const struct graph *g, const struct graph_param *p,
                      const uint32_t *numbers, uint32_t n)
{
    uint32_t n_tensors;
    const struct graph_tensor *of = graph_module_tensors(g, &n_tensors);

    for (uint32_t i = 0, last = 0; i < n_tensors; i++) {
        if (!of[i].is_param)
            continue;
        for (uint32_t k = 0; p[last].offset != of[i].offset && k < n; k++)
            last = last + 1 < n ? last + 1 : 0;
        if (strcmp(p[last].name, of[i].name) != 0 && numbers[last] == 0)
            t->model[t->n_model++] = (struct ckpt_tensor){ .name = of[i].name,
                                                           .dtype = TENSOR_F32,
                                                           .shape = of[i].tensor.shape,
                                                           .offset = of[i].offset * sizeof(float) };
    }
}

/* Adds the entries of the parts [first, end), from 1 on, of all parameters and remote tables. */
static int name_parts(struct tensors *t, const struct parts *parts, const struct train_opts *o,
                      const struct graph *g, const uint32_t *numbers, uint32_t first, uint32_t end,
                      struct err *err)
{
    uint32_t n, n_remotes;
    const struct graph_param *p = graph_params(g, &n);
    const struct graph_remote *r = graph_remotes(g, &n_remotes);
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < n; i++) {
        const struct named x = { p[i].name, p[i].shape, p[i].offset, numbers[i],
                                 p[i].is_delayed || ps_wants_dense(o->ps) };

        if (p[i].kind == GRAPH_TRAINED)
            rc = name_slots(t, parts, &x, first, end, err);
    }
    for (uint32_t i = 0; rc == 0 && i < n_remotes; i++) {
        const struct named x = { r[i].name, r[i].shape, SIZE_MAX, i + 1, true };

        rc = name_slots(t, parts, &x, first, end, err);
    }
    return rc;
}

static void name_model(struct tensors *t, const struct graph *g, const uint32_t *numbers)
{
    uint32_t n, n_remotes;
    const struct graph_param *p = graph_params(g, &n);
    const struct graph_remote *r = graph_remotes(g, &n_remotes);

    for (uint32_t i = 0; i < n; i++)
        name_weights(t, &(struct named){ p[i].name, p[i].shape, p[i].offset, numbers[i], false });
    for (uint32_t i = 0; i < n_remotes; i++)
        name_weights(t, &(struct named){ r[i].name, r[i].shape, SIZE_MAX, i + 1, false });
    if (n > 0)
        name_tied(t, g, p, numbers, n);
}

static int name_all(struct tensors *t, const struct parts *parts, const struct train_opts *o,
                    const struct graph *g, const uint32_t *numbers, struct err *err)
{
    uint32_t n_inner = parts->outer > 0 ? parts->outer : parts->n;
    int rc;

    name_model(t, g, numbers);
    rc = name_parts(t, parts, o, g, numbers, 1, n_inner, err);
    t->n_inner = t->n_slots;
    return rc < 0 ? rc : name_parts(t, parts, o, g, numbers, n_inner, parts->n, err);
}

int tensors_name(struct tensors *t, const struct parts *parts, const struct train_opts *o,
                 const struct graph *g, struct err *err)
{
    uint32_t n, n_remotes, n_module, *numbers;
    int rc;

    (void)graph_params(g, &n);
    (void)graph_remotes(g, &n_remotes);
    (void)graph_module_tensors(g, &n_module);
    n += n_remotes;
    numbers = calloc((size_t)n + 1, sizeof(*numbers));
    t->model = calloc((size_t)n + n_module + 1, sizeof(*t->model));
    t->slots = calloc((size_t)n * parts->n + 1, sizeof(*t->slots));
    t->slot_names = calloc((size_t)n * parts->n + 1, sizeof(*t->slot_names));
    if (numbers == NULL || t->model == NULL || t->slots == NULL || t->slot_names == NULL) {
        rc = err_set(err, ERR_NOMEM, "checkpoint: out of memory");
    } else {
        groups_number_tables(o, g, numbers);
        rc = name_all(t, parts, o, g, numbers, err);
    }
    free(numbers);
    return rc;
}

void tensors_free(struct tensors *t)
{
    free(t->model);
    free(t->slots);
    free(t->slot_names);
    *t = (struct tensors){ 0 };
}
