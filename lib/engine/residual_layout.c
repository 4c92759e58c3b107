/* residual_layout.c - see residual_layout.h. */
#include "engine/residual_layout.h"

#include <stdbool.h>
#include <stdlib.h>

#include "base/err.h"
#include "code/top_k.h"
#include "graph/graph.h"
#include "opts/code.h"

static struct power_sgd matrix_of(const struct graph_param *p, uint32_t rank)
{
    size_t rows = p->shape.rank > 0 ? (size_t)p->shape.dim[0] : 1;

    return (struct power_sgd){ .rows = rows,
                               .cols = rows > 0 ? p->elements / rows : 0,
                               .rank = rank };
}

static bool is_coded(const struct graph_param *p, const struct code_settings *code)
{
    struct power_sgd m = matrix_of(p, code->rank);

    if (p->kind != GRAPH_TRAINED || p->is_table || p->elements == 0 ||
        p->elements * sizeof(float) < code->min_bytes)
        return false;
    return code->kind == CODE_TOP_K ||
           (p->shape.rank >= 2 && power_sgd_is_shorter(m.rows, m.cols, m.rank));
}

static void add_part(struct residual_layout *l, const struct graph_param *p, uint32_t param,
                     size_t *bytes)
{
    struct residual_part *x = &l->parts[l->n];

    *x = (struct residual_part){ .param = param,
                                 .offset = p->offset,
                                 .elements = p->elements,
                                 .at = l->floats,
                                 .code_at = *bytes,
                                 .p_at = l->p_floats,
                                 .q_at = l->q_floats };
    l->floats += p->elements;
    if (l->code->kind == CODE_TOP_K) {
        *bytes += top_k_bytes(l->code->fraction, p->elements);
    } else {
        x->matrix = matrix_of(p, l->code->rank);
        x->matrix.number = l->n;
        l->p_floats += x->matrix.rank * x->matrix.rows;
        l->q_floats += x->matrix.rank * x->matrix.cols;
    }
    l->n++;
}

int residual_layout_open(struct residual_layout *l, const struct graph *graph,
                         const struct code_settings *code, struct err *err)
{
    uint32_t n;
    const struct graph_param *params;
    size_t bytes = 0;

    *l = (struct residual_layout){ 0 };
    if (code == NULL || !code_keeps_residuals(code->kind))
        return 0;
    params = graph_params(graph, &n);
    l->parts = calloc((size_t)n + 1, sizeof(*l->parts));
    if (l->parts == NULL)
        return err_set(err, ERR_NOMEM, "residuals of gradients: out of memory");
    l->code = code;
    for (uint32_t i = 0; i < n; i++)
        if (is_coded(&params[i], code))
            add_part(l, &params[i], i, &bytes);
    l->message = (bytes / sizeof(float) + RESIDUAL_GRAIN - 1) / RESIDUAL_GRAIN * RESIDUAL_GRAIN;
    return 0;
}

void residual_layout_close(struct residual_layout *l)
{
    free(l->parts);
    *l = (struct residual_layout){ 0 };
}

size_t residual_gap(const struct residual_layout *l, uint32_t k, size_t end, size_t *next)
{
    if (k == l->n)
        return end;
    *next = l->parts[k].offset + l->parts[k].elements;
    return l->parts[k].offset;
}

size_t residual_layout_state(const struct residual_layout *l)
{
    return l->code == NULL ? 0 : l->code->groups * l->floats + l->q_floats;
}
