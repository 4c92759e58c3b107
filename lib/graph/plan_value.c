/* plan_value.c - appends values to a plan, and looks up values of the graph by name. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/map.h"
#include "base/text.h"
#include "graph/plan_priv.h"

/* rejects unrealistic shapes before they are allocated */
static const size_t max_tensor_bytes = (size_t)1 << 40;

int plan_no_memory(struct err *err)
{
    return err_set(err, ERR_NOMEM, "plan: out of memory");
}

uint32_t plan_add_value(struct plan *p, const char *name, enum plan_value_kind kind, uint32_t index,
                        const struct tensor *t)
{
    struct plan_value v = { .name = name,
                            .kind = kind,
                            .index = index,
                            .tensor = *t,
                            .other_type = GRAPH_NONE,
                            .other_layout = GRAPH_NONE,
                            .block = GRAPH_NONE,
                            .grad_block = GRAPH_NONE };

    v.root = v.grad_root = (uint32_t)p->values.n;
    if (p->values.n >= PLAN_SEQUENCE_FIRST || !VEC_PUSH(p->values, v))
        return GRAPH_NONE;
    return (uint32_t)p->values.n - 1;
}

uint32_t plan_add_ints(struct plan *p, const char *name, const int64_t *values, uint32_t n)
{
    struct tensor t = { .dtype = TENSOR_I64, .shape = { .rank = n > 0 ? 1 : 0, .dim = { n } } };
    size_t bytes = (n > 0 ? n : 1) * sizeof(*values);

    t.data = arena_alloc(&p->mem, bytes);
    if (t.data == NULL)
        return GRAPH_NONE;
    memcpy(t.data, values, bytes);
    return plan_add_value(p, name, PLAN_CONST, 0, &t);
}

bool plan_is_too_large(const struct tensor *t)
{
    return tensor_bytes(t) > max_tensor_bytes;
}

bool plan_is_known(const struct plan_value *v)
{
    return v->kind == PLAN_CONST ||
           (v->kind == PLAN_FEED && v->tensor.data != NULL && v->tensor.dtype != TENSOR_F32);
}

bool plan_read_number(const struct plan *p, uint32_t value, enum tensor_dtype dtype, int64_t *out)
{
    const struct plan_value *v;

    if (value >= PLAN_SEQUENCE_FIRST) /* a sequence, or GRAPH_NONE */
        return false;
    v = &p->values.at[value];
    if (!plan_is_known(v) || v->tensor.dtype != dtype || tensor_elements(&v->tensor) != 1)
        return false;
    *out = dtype == TENSOR_BOOL ? *(const uint8_t *)v->tensor.data != 0
                                : *(const int64_t *)v->tensor.data;
    return true;
}

uint32_t plan_mapped(const struct plan_builder *b, uint32_t value)
{
    return value != GRAPH_NONE ? b->map[value] : GRAPH_NONE;
}

bool plan_is_empty(const struct plan *p, const struct plan_node *n)
{
    uint32_t i;

    for (i = 0; i < n->n_out; i++)
        if (n->out[i] != GRAPH_NONE && tensor_elements(&p->values.at[n->out[i]].tensor) > 0)
            return false;
    return true;
}

int plan_find_tensor(const struct graph *g, const char *name, const char *role, uint32_t *out,
                     struct err *err)
{
    const char **names;
    const char *near;
    uint64_t id;
    uint32_t i;

    if (map_get(&g->by_name, name, &id)) {
        *out = (uint32_t)id;
        return 0;
    }
    names = calloc(g->n_values > 0 ? g->n_values : 1, sizeof(*names));
    if (names == NULL)
        return plan_no_memory(err);
    for (i = 0; i < g->n_values; i++)
        names[i] = g->values[i].name;
    near = text_nearest(name, names, g->n_values);
    if (near == NULL && g->io.n_outputs > 0)
        (void)err_set(err, ERR_INPUT, "%s: the model has no tensor '%s' (its output is '%s')", role,
                      name, g->io.outputs[0].name);
    else
        (void)err_set(err, ERR_INPUT, "%s: the model has no tensor '%s'; did you mean '%s'?", role,
                      name, near != NULL ? near : "");
    free(names);
    return ERR_INPUT;
}
