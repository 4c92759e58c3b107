/* padding.c - embeddings with a padding row: torch.nn.Embedding(padding_idx).
 *
 * PyTorch masks the gradient that an embedding passes to its padding row. Nothing else changes:
 * other readers of the table (a tied projection) pass their gradient to the row, and weight decay
 * changes it. ONNX has no attribute for the padding row. PyTorch's current exporter stores the ATen
 * call with each node, and its third argument is the row; for other files the job specifies it
 * (model.padding_idx). The row becomes a private attribute of each Gather along axis 0 that reads
 * the table. */
#include "graph/graph_priv.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/text.h"
#include "op/shape/rows.h"

struct padding_search { /* state of the search */
    struct graph *g;
    const struct graph_opts *opts;
    bool *used;         /* [n_padding] patterns of the job that match a table */
    const char **names; /* [n_names] tables that a Gather along axis 0 reads */
    uint32_t n_names;
    struct err *err;
};

/* The initializer that a Gather along axis 0 reads, directly or through Identity nodes; GRAPH_NONE:
 * another node. */
static uint32_t table_of(const struct graph *g, const struct graph_node *n)
{
    uint32_t value, i;
    int64_t axis = 0;

    if (!op_is_onnx(n->def, "Gather") || n->in[0] == GRAPH_NONE)
        return GRAPH_NONE;
    for (i = 0; i < n->n_attrs; i++)
        if (strcmp(n->attrs[i].name, "axis") == 0)
            axis = n->attrs[i].i;
    value = n->in[0];
    for (i = 0; i < g->n_nodes && g->values[value].kind == VALUE_NODE; i++) {
        const struct graph_node *from = &g->nodes[g->values[value].index];

        if (!op_is_onnx(from->def, "Identity") || from->n_in != 1)
            return GRAPH_NONE;
        value = from->in[0];
    }
    if (g->values[value].initializer == GRAPH_NONE ||
        (axis != 0 && axis != -(int64_t)g->values[value].tensor.shape.rank))
        return GRAPH_NONE;
    return value;
}

/* The third argument of "...aten.embedding.default](args = (%weight, %indices, 3), ..."; -1:
 * none. */
static int64_t row_in_metadata(const Onnx__NodeProto *p)
{
    static const char call[] = "aten.embedding.default](args = (";
    const char *at = NULL;
    char *end;
    int64_t row;
    size_t i;

    for (i = 0; i < p->n_metadata_props && at == NULL; i++) {
        const Onnx__StringStringEntryProto *e = p->metadata_props[i];

        if (e->key != NULL && e->value != NULL && strcmp(e->key, "pkg.torch.onnx.fx_node") == 0)
            at = strstr(e->value, call);
    }
    if (at == NULL)
        return -1;
    at += sizeof(call) - 1;
    for (i = 0; i < 2; i++) { /* skips two names, which contain no brackets */
        at += strcspn(at, ",()");
        if (*at++ != ',')
            return -1;
    }
    row = strtoll(at, &end, 10);
    return end != at && (*end == ')' || *end == ',') ? row : -1;
}

/* The padding row that the job specifies for a table; -1: none. */
static int64_t row_of_job(struct padding_search *s, const char *name)
{
    uint32_t i;

    for (i = 0; i < s->opts->n_padding; i++)
        if (fnmatch(s->opts->padding[i].match, name, 0) == 0) {
            s->used[i] = true;
            return s->opts->padding[i].row;
        }
    return -1;
}

static int add_padding_attr(struct padding_search *s, struct graph_node *n, const char *table,
                            int64_t row)
{
    struct op_attr *attrs = arena_array(&s->g->mem, (size_t)n->n_attrs + 1, sizeof(*attrs));

    if (attrs == NULL)
        return err_set(s->err, ERR_NOMEM, "Gather '%s': out of memory", n->name);
    if (n->n_attrs > 0)
        memcpy(attrs, n->attrs, n->n_attrs * sizeof(*attrs));
    attrs[n->n_attrs++] =
        (struct op_attr){ .name = ROWS_PADDING_ATTR, .type = OP_ATTR_INT, .i = row };
    n->attrs = attrs;
    return graph_note(s->g, s->err,
                      "row %" PRId64 " of '%s' is the padding row of its embedding '%s': no gradient "
                      "reaches it there (padding_idx)",
                      row, table, n->name);
}

static int set_padding_row(struct padding_search *s, struct graph_node *n)
{
    uint32_t value = table_of(s->g, n);
    const struct tensor *t;
    const char *name;
    int64_t row;

    if (value == GRAPH_NONE)
        return 0;
    name = s->g->values[value].name;
    t = &s->g->values[value].tensor;
    s->names[s->n_names++] = name;
    row = row_of_job(s, name);
    if (row < 0)
        row = row_in_metadata(s->g->file.model->graph->node[n->proto]);
    if (row < 0 || (t->dtype != TENSOR_F32 && t->dtype != TENSOR_F16 && t->dtype != TENSOR_BF16))
        return 0;
    if (t->shape.rank == 0 || (row >= t->shape.dim[0] && !s->g->values[value].is_dynamic))
        return err_set(s->err, ERR_INPUT,
                       "padding_idx of '%s' is %" PRId64 "; expected a row from 0 to %" PRId64,
                       name, row, t->shape.rank > 0 ? t->shape.dim[0] - 1 : 0);
    return add_padding_attr(s, n, name, row);
}

static int check_used(const struct padding_search *s)
{
    uint32_t i;

    for (i = 0; i < s->opts->n_padding; i++) {
        const char *match = s->opts->padding[i].match, *near;

        if (s->used[i])
            continue;
        near = text_nearest(match, s->names, s->n_names);
        return err_set(
            s->err, ERR_INPUT,
            "model.padding_idx: '%s' matches no table that a Gather along axis 0 reads%s%s%s",
            match, near != NULL ? "; did you mean '" : "", near != NULL ? near : "",
            near != NULL ? "'?" : "");
    }
    return 0;
}

int graph_set_padding(struct graph *g, const struct graph_opts *opts, struct err *err)
{
    struct arena mem = { 0 };
    struct padding_search s = { .g = g, .opts = opts, .err = err };
    uint32_t i;
    int rc = 0;

    s.used = arena_array(&mem, opts->n_padding, sizeof(*s.used));
    s.names = arena_array(&mem, g->n_nodes, sizeof(*s.names));
    if (s.used == NULL || s.names == NULL)
        rc = err_set(err, ERR_NOMEM, "padding rows: out of memory");
    for (i = 0; i < g->n_nodes && rc == 0; i++)
        rc = set_padding_row(&s, &g->nodes[i]);
    if (rc == 0)
        rc = check_used(&s);
    arena_fini(&mem);
    return rc;
}
