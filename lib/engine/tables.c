/* tables.c - see tables.h. */
#include "engine/tables.h"

#include <inttypes.h>
#include <stdio.h>

#include "engine/common.h"
#include "graph/graph.h"

void tables_layout(const struct engine_opts *o, bool packed, struct memory_opts *out)
{
    const struct optim_opts *optim = optim_options(o->optim);

    *out = (struct memory_opts){ .params = graph_arena_floats(o->graph),
                                 .trained = graph_trained_floats(o->graph),
                                 .optimizer = optim->def,
                                 .hyper = o->hyper,
                                 .has_average = optim->average > 0,
                                 .n_delayed = o->n_delayed,
                                 .delayed_at = o->delays_dense ? 0 : graph_dense_floats(o->graph),
                                 .no_slots = o->remote_dense };
    out->tables = graph_tables(o->graph, &out->n_tables, &out->table_words);
    out->dense = graph_dense_floats(o->graph);
    if (packed)
        return;
    out->n_tables = 0;
    out->table_words = 0;
    out->dense = out->trained;
}

uint32_t tables_n_lazy(const struct engine_opts *o)
{
    struct optim_hyper h = *o->hyper;

    h.grad_scale = 1;
    return optim_skipping_tables(o->optim, &h);
}

void tables_note(const struct engine *e, bool packed)
{
    uint32_t n, resting = tables_n_lazy(e->opts);
    size_t words;
    const struct packed_table *tables = graph_tables(e->opts->graph, &n, &words);
    uint64_t rows = 0;
    char text[320];

    if (n == 0)
        return;
    for (uint32_t i = 0; i < n; i++)
        rows += tables[i].rows;
    if (resting == n)
        snprintf(text, sizeof(text),
                 "%" PRIu32 " embedding tables with %" PRIu64 " rows: a step %s rows that it "
                 "read",
                 n, rows,
                 packed ? "reduces and updates the" : "reduces whole gradients, and updates the");
    else
        snprintf(
            text, sizeof(text),
            "%" PRIu32 " embedding tables with %" PRIu64
            " rows: a step reduces %s, and updates every row of "
            "%" PRIu32
            " tables, since %s moves rows without a gradient too (optimizer.groups: lazy_rows)",
            n, rows, packed ? "the rows that it read" : "whole gradients", n - resting,
            optim_options(e->opts->optim)->def->name);
    engine_note(e, false, text);
}
