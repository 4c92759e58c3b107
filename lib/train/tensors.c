/* tensors.c - see tensors.h. */
#include "train/tensors.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "ckpt/ckpt.h"
#include "ckpt/shard_files.h"
#include "engine/residual_layout.h"
#include "graph/graph.h"
#include "opts/code.h"
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
    bool is_dynamic;
};

enum { NAME_BYTES = 512 };

static size_t offset_of(const struct named *p, size_t part_at)
{
    return p->offset == SIZE_MAX ? CKPT_ELSEWHERE : (part_at + p->offset) * sizeof(float);
}

static int print_name(const struct named *p, const char *part, char out[NAME_BYTES],
                      struct err *err)
{
    int len = snprintf(out, NAME_BYTES, "%s/%s", p->name, part);

    return len >= 0 && len < NAME_BYTES
               ? 0
               : err_set(err, ERR_INPUT, "parameter '%.80s...': its name is longer than %d bytes",
                         p->name, NAME_BYTES - 32);
}

/* Returns an entry of a tensor of integers of a dynamic table. */
static struct ckpt_tensor integers_of(const struct named *p, const char *name,
                                      enum ckpt_group group)
{
    return (struct ckpt_tensor){ .name = name,
                                 .dtype = TENSOR_I64,
                                 .shape = { 1, { 0 } },
                                 .offset = CKPT_ELSEWHERE,
                                 .table = p->table,
                                 .group = 1 + group };
}

/* Adds the entries of the integers of a dynamic table. */
static int name_integers(struct tensors *t, const struct named *p, struct err *err)
{
    int rc = print_name(p, "ids", t->id_names[t->n_ids], err);

    if (rc < 0)
        return rc;
    t->model[t->n_model++] = integers_of(p, t->id_names[t->n_ids++], CKPT_TRAINED);
    for (int i = 0; rc == 0 && i < CKPT_INTEGERS; i++) {
        char *name = t->slot_names[t->n_slots];

        rc = print_name(p, ckpt_integers[i].part, name, err);
        t->slots[t->n_slots++] = integers_of(p, name, ckpt_integers[i].group);
    }
    return rc;
}

/* Adds the entry <parameter>/<part>. */
static int name_slot(struct tensors *t, const struct named *p, const char *part, size_t part_at,
                     struct err *err)
{
    char *name = t->slot_names[t->n_slots];
    int rc = print_name(p, part, name, err);

    if (rc < 0)
        return rc;
    t->slots[t->n_slots++] = (struct ckpt_tensor){ .name = name,
                                                   .dtype = TENSOR_F32,
                                                   .shape = p->shape,
                                                   .offset = offset_of(p, part_at),
                                                   .table = p->table,
                                                   .group = p->is_dynamic };
    return 0;
}

static void name_weights(struct tensors *t, const struct named *p)
{
    t->model[t->n_model++] = (struct ckpt_tensor){ .name = p->name,
                                                   .dtype = TENSOR_F32,
                                                   .shape = p->shape,
                                                   .offset = offset_of(p, 0),
                                                   .table = p->table,
                                                   .group = p->is_dynamic };
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
                                 p[i].is_delayed || ps_wants_dense(o->ps), false };

        if (p[i].kind == GRAPH_TRAINED)
            rc = name_slots(t, parts, &x, first, end, err);
    }
    for (uint32_t i = 0; rc == 0 && i < n_remotes; i++) {
        const struct named x = { r[i].name, r[i].shape, SIZE_MAX, i + 1, true, r[i].rows == 0 };

        rc = name_slots(t, parts, &x, first, end, err);
    }
    return rc;
}

/* Also adds the integers of dynamic tables, which precede all slots. */
static int name_model(struct tensors *t, const struct graph *g, const uint32_t *numbers,
                      struct err *err)
{
    uint32_t n, n_remotes;
    const struct graph_param *p = graph_params(g, &n);
    const struct graph_remote *r = graph_remotes(g, &n_remotes);
    int rc = 0;

    for (uint32_t i = 0; i < n; i++)
        name_weights(t, &(struct named){ p[i].name, p[i].shape, p[i].offset, numbers[i], false, false });
    for (uint32_t i = 0; rc == 0 && i < n_remotes; i++) {
        const struct named x = { r[i].name, r[i].shape, SIZE_MAX, i + 1, false, r[i].rows == 0 };

        if (x.is_dynamic)
            rc = name_integers(t, &x, err);
        name_weights(t, &x);
    }
    if (n > 0)
        name_tied(t, g, p, numbers, n);
    return rc;
}

/* Adds an entry of a code with residuals, which is `at` floats after their beginning. */
static int name_residual(struct tensors *t, const struct tensors_residual *r, const char *param,
                         const char *part, struct shape shape, size_t at, struct err *err)
{
    size_t offset = r->at == SIZE_MAX ? SIZE_MAX : r->at + at;
    const struct named x = { param, shape, offset, 0, false, false };

    return name_slot(t, &x, part, 0, err);
}

/* Adds <parameter>/residual.<group> of all coded parameters, and <parameter>/power_sgd_q. */
static int name_residuals(struct tensors *t, const struct tensors_residual *r,
                          const struct graph *g, struct err *err)
{
    const struct residual_layout *l = r->layout;
    uint32_t n, groups = l->n > 0 ? l->code->groups : 0;
    const struct graph_param *p = graph_params(g, &n);
    int rc = 0;

    for (uint32_t k = 0; rc == 0 && k < l->n; k++) {
        const struct residual_part *x = &l->parts[k];
        const struct graph_param *param = &p[x->param];
        const struct shape factor = { 2, { x->matrix.rank, (int64_t)x->matrix.cols } };
        char part[32];

        for (uint32_t group = 0; rc == 0 && group < groups; group++) {
            snprintf(part, sizeof(part), "residual.%u", group);
            rc = name_residual(t, r, param->name, part, param->shape, group * l->floats + x->at,
                               err);
        }
        if (rc == 0 && l->q_floats > 0)
            rc = name_residual(t, r, param->name, "power_sgd_q", factor,
                               groups * l->floats + x->q_at, err);
    }
    return rc;
}

static int name_all(struct tensors *t, const struct parts *parts, const struct train_opts *o,
                    const struct graph *g, const uint32_t *numbers, struct err *err)
{
    uint32_t n_inner = parts->outer > 0 ? parts->outer : parts->n;
    int rc;

    rc = name_model(t, g, numbers, err);
    if (rc == 0)
        rc = name_parts(t, parts, o, g, numbers, 1, n_inner, err);
    t->n_inner = t->n_slots;
    return rc < 0 ? rc : name_parts(t, parts, o, g, numbers, n_inner, parts->n, err);
}

static size_t residuals_of(const struct residual_layout *l)
{
    return l->n > 0 ? l->n * ((size_t)l->code->groups + 1) : 0;
}

int tensors_name(struct tensors *t, const struct parts *parts,
                 const struct tensors_residual *residual, const struct train_opts *o,
                 const struct graph *g, struct err *err)
{
    uint32_t n, n_remotes, n_module, *numbers;
    size_t n_slots;
    int rc;

    (void)graph_params(g, &n);
    (void)graph_remotes(g, &n_remotes);
    (void)graph_module_tensors(g, &n_module);
    n += n_remotes;
    numbers = calloc((size_t)n + 1, sizeof(*numbers));
    t->model = calloc((size_t)n + n_remotes + n_module + 1, sizeof(*t->model));
    n_slots = (size_t)n * parts->n + n_remotes * CKPT_INTEGERS + residuals_of(residual->layout) + 1;
    t->slots = calloc(n_slots, sizeof(*t->slots));
    t->slot_names = calloc(n_slots, sizeof(*t->slot_names));
    t->id_names = calloc((size_t)n_remotes + 1, sizeof(*t->id_names));
    if (numbers == NULL || t->model == NULL || t->slots == NULL || t->slot_names == NULL ||
        t->id_names == NULL) {
        rc = err_set(err, ERR_NOMEM, "checkpoint: out of memory");
    } else {
        groups_number_tables(o, g, numbers);
        rc = name_all(t, parts, o, g, numbers, err);
        if (rc == 0)
            rc = name_residuals(t, residual, g, err);
    }
    free(numbers);
    return rc;
}

void tensors_free(struct tensors *t)
{
    free(t->model);
    free(t->slots);
    free(t->slot_names);
    free(t->id_names);
    *t = (struct tensors){ 0 };
}
