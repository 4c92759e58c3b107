/* whole.c - see whole.h. */
#include "train/whole.h"

#include <string.h>

#include "base/check.h"
#include "engine/memory.h"
#include "graph/graph.h"

void whole_layout(struct whole *w, const struct graph *graph, const struct memory *mem)
{
    const struct optim_def *optim = mem->opts.optimizer;
    size_t at;

    *w = (struct whole){ .graph = graph,
                         .params = graph_arena_floats(graph),
                         .trained = graph_trained_floats(graph) };
    w->names[w->n_parts++] = "weights";
    at = w->params;
    for (uint32_t s = 0; s < optim->n_slots; s++) {
        if (!optim_uses(optim, mem->opts.hyper, s))
            continue;
        w->names[w->n_parts] = optim->slots[s].name;
        w->parts_at[w->n_parts++] = at;
        at += w->trained;
    }
    if (mem->opts.has_average) {
        w->average = w->n_parts;
        w->names[w->n_parts] = "average";
        w->parts_at[w->n_parts++] = at;
        at += w->params;
    }
    if (mem->opts.has_outer) {
        w->outer = w->n_parts;
        w->names[w->n_parts] = "outer_momentum";
        w->parts_at[w->n_parts++] = at;
        at += w->trained;
    }
    w->bytes = at * sizeof(float);
}

/* The layout of the state of this task, with the same parts. */
static void own_parts(const struct whole *w, const struct memory *mem, size_t out[WHOLE_MAX_PARTS])
{
    size_t at = mem->params;

    out[0] = 0;
    for (uint32_t i = 1; i < w->n_parts; i++) {
        out[i] = at;
        at += i == w->average ? mem->params : mem->slot;
    }
}

static const struct graph_param *find(const struct graph *g, const char *name)
{
    uint32_t n;
    const struct graph_param *p = graph_params(g, &n);

    for (uint32_t i = 0; i < n; i++)
        if (strcmp(p[i].name, name) == 0)
            return &p[i];
    return NULL;
}

/* A part has every trained parameter; weights and average have the statistics too. */
static bool has_part(const struct whole *w, const struct graph_param *p, uint32_t part)
{
    return p->kind == GRAPH_TRAINED || part == 0 || (part > 0 && part == w->average);
}

enum direction { TO_WHOLE, FROM_WHOLE };

static void move(const struct whole *w, const struct graph *own, const struct memory *mem,
                 enum direction d, float *state, float *whole)
{
    size_t parts[WHOLE_MAX_PARTS];
    uint32_t n;
    const struct graph_param *p = graph_params(own, &n);

    own_parts(w, mem, parts);
    for (uint32_t i = 0; i < n; i++) {
        const struct graph_param *to = find(w->graph, p[i].name);

        CHECK(to != NULL && to->elements == p[i].elements);
        for (uint32_t k = 0; k < w->n_parts; k++) {
            float *a = state + parts[k] + p[i].offset, *b = whole + w->parts_at[k] + to->offset;

            if (!has_part(w, &p[i], k))
                continue;
            if (d == TO_WHOLE)
                memcpy(b, a, p[i].elements * sizeof(float));
            else
                memcpy(a, b, p[i].elements * sizeof(float));
        }
    }
}

void whole_add_state(const struct whole *w, const struct graph *own, const struct memory *mem,
                     const float *state, float *whole)
{
    move(w, own, mem, TO_WHOLE, (float *)(uintptr_t)state, whole);
}

void whole_take_state(const struct whole *w, const struct graph *own, const struct memory *mem,
                      const float *whole, float *state)
{
    move(w, own, mem, FROM_WHOLE, state, (float *)(uintptr_t)whole);
}

size_t whole_table_at(const struct whole *w, const char *table, uint32_t part)
{
    const struct graph_param *p = find(w->graph, table);

    return p != NULL ? w->parts_at[part] + p->offset : SIZE_MAX;
}
