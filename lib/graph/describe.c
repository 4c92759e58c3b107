/* describe.c - lists the graph for a drawing: graph_describe(). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/map.h"
#include "graph/graph_priv.h"
#include "op/op.h"

struct describer {
    const struct graph *g;
    void (*each)(void *arg, const struct graph_described *node);
    void *arg;
    struct arena mem;
    struct map used;          /* the names of nodes */
    const char **value_names; /* [n_values] NAME or NAME:OUTPUT of the node that makes the value */
    bool *is_read;            /* [n_values] a node reads the value */
    bool failed;              /* memory is exhausted */
};

/* Returns a name for a drawing that no other node has. */
static const char *unique_name(struct describer *d, const char *name)
{
    char *base, *unique;

    while (*name == '/')
        name++;
    base = arena_strdup(&d->mem, *name != '\0' ? name : "unnamed");
    for (char *c = base; c != NULL && (c = strchr(c, ':')) != NULL;)
        *c = '_';
    unique = base;
    for (unsigned i = 2; unique != NULL; i++) {
        enum map_put put = map_put(&d->used, unique, 0);

        if (put == MAP_NEW)
            return unique;
        unique = put == MAP_EXISTED ? arena_printf(&d->mem, "%s_%u", base, i) : NULL;
    }
    d->failed = true;
    return NULL;
}

static void read_values(struct describer *d, const uint32_t *values, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (values[i] != GRAPH_NONE)
            d->is_read[values[i]] = true;
}

static void find_readers(struct describer *d)
{
    for (uint32_t i = 0; i < d->g->n_nodes; i++) {
        read_values(d, d->g->nodes[i].in, d->g->nodes[i].n_in);
        read_values(d, d->g->nodes[i].captured, d->g->nodes[i].n_captured);
    }
    read_values(d, d->g->io.output_values, d->g->io.n_outputs);
}

/* The inputs of the graph and the constant tensors that nodes read. */
static void describe_values(struct describer *d)
{
    const struct graph *g = d->g;

    for (uint32_t i = 0; i < g->n_values && !d->failed; i++) {
        const struct graph_value *v = &g->values[i];
        struct graph_described node = { .op = "Constant", .dtype = v->tensor.dtype, .has_shape = true,
                                        .shape = v->tensor.shape };

        if (v->kind == VALUE_INPUT) {
            const struct graph_io *io = &g->io.inputs[v->index];

            node.op = "Input";
            node.dtype = io->dtype;
            node.has_shape = io->has_shape;
            node.shape = io->shape;
        } else if (v->kind == VALUE_PARAM) {
            const struct graph_param *p = &g->params[v->index];

            node.op = p->kind == GRAPH_STATISTIC ? "Statistic" : "Parameter";
            node.dtype = TENSOR_F32;
            node.shape = p->shape;
        } else if (v->kind != VALUE_CONST || !d->is_read[i]) {
            continue;
        }
        node.name = d->value_names[i] = unique_name(d, v->name);
        if (node.name != NULL)
            d->each(d->arg, &node);
    }
}

/* Names the outputs of all nodes. */
static void name_nodes(struct describer *d, const char **names)
{
    for (uint32_t i = 0; i < d->g->n_nodes && !d->failed; i++) {
        const struct graph_node *n = &d->g->nodes[i];

        names[i] = unique_name(d, n->name);
        for (uint32_t k = 0; k < n->n_out && !d->failed; k++) {
            if (n->out[k] == GRAPH_NONE)
                continue;
            d->value_names[n->out[k]] =
                k == 0 ? names[i] : arena_printf(&d->mem, "%s:%u", names[i], k);
            d->failed = d->value_names[n->out[k]] == NULL;
        }
    }
}

static uint32_t add_inputs(const struct describer *d, const uint32_t *values, uint32_t n,
                           const char **out, uint32_t n_out)
{
    for (uint32_t i = 0; i < n; i++)
        if (values[i] != GRAPH_NONE && d->value_names[values[i]] != NULL)
            out[n_out++] = d->value_names[values[i]];
    return n_out;
}

static void describe_nodes(struct describer *d, const char *const *names)
{
    for (uint32_t i = 0; i < d->g->n_nodes && !d->failed; i++) {
        const struct graph_node *n = &d->g->nodes[i];
        const char **inputs = arena_array(&d->mem, n->n_in + n->n_captured + 1, sizeof(*inputs));
        struct graph_described node = { .name = names[i], .op = n->def->name, .inputs = inputs };

        d->failed = inputs == NULL;
        if (d->failed)
            return;
        node.n_inputs = add_inputs(d, n->in, n->n_in, inputs, 0);
        node.n_inputs = add_inputs(d, n->captured, n->n_captured, inputs, node.n_inputs);
        d->each(d->arg, &node);
    }
}

int graph_describe(const struct graph *g,
                   void (*each)(void *arg, const struct graph_described *node), void *arg,
                   struct err *err)
{
    struct describer d = { .g = g, .each = each, .arg = arg };
    const char **names = calloc((size_t)g->n_nodes + 1, sizeof(*names));

    d.value_names = calloc((size_t)g->n_values + 1, sizeof(*d.value_names));
    d.is_read = calloc((size_t)g->n_values + 1, sizeof(*d.is_read));
    d.failed = names == NULL || d.value_names == NULL || d.is_read == NULL;
    if (!d.failed) {
        find_readers(&d);
        describe_values(&d);
        name_nodes(&d, names);
        describe_nodes(&d, names);
    }
    map_fini(&d.used);
    arena_fini(&d.mem);
    free(d.value_names);
    free(d.is_read);
    free(names);
    return d.failed ? err_set(err, ERR_NOMEM, "graph: out of memory") : 0;
}
