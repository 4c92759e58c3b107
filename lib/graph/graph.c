/* graph.c - accessors and destructor of the imported network, its notes and its digest. */
#include "graph/graph_priv.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"

void graph_free(struct graph *g)
{
    size_t i;

    if (g == NULL)
        return;
    if (g->file.unpacked != NULL)
        onnx__model_proto__free_unpacked(g->file.unpacked, NULL);
    for (i = 0; i < g->file.parts.n; i++)
        protobuf_c_message_free_unpacked(g->file.parts.at[i], NULL);
    VEC_FINI(g->file.parts);
    graph_external_close(&g->file.external);
    free(g->values);
    map_fini(&g->by_name);
    graph_metadata_free(&g->file.metadata);
    VEC_FINI(g->report.classified);
    graph_free_generated(g);
    arena_fini(&g->mem);
    free(g);
}

const struct graph_param *graph_params(const struct graph *g, uint32_t *n)
{
    *n = g->n_params;
    return g->params;
}

size_t graph_arena_floats(const struct graph *g)
{
    return g->arena.floats;
}

size_t graph_trained_floats(const struct graph *g)
{
    return g->arena.trained_floats;
}

size_t graph_dense_floats(const struct graph *g)
{
    return g->arena.dense_floats;
}

const struct packed_table *graph_tables(const struct graph *g, uint32_t *n, size_t *words)
{
    *n = g->arena.n_tables;
    *words = g->arena.table_words;
    return g->arena.tables;
}

const struct graph_remote *graph_remotes(const struct graph *g, uint32_t *n)
{
    *n = g->n_remotes;
    return g->remotes;
}

const struct graph_io *graph_inputs(const struct graph *g, uint32_t *n)
{
    *n = g->io.n_inputs;
    return g->io.inputs;
}

const struct graph_io *graph_outputs(const struct graph *g, uint32_t *n)
{
    *n = g->io.n_outputs;
    return g->io.outputs;
}

uint32_t graph_opset(const struct graph *g)
{
    return g->opset;
}

const char *graph_producer(const struct graph *g)
{
    return g->file.producer;
}

const struct graph_op *graph_ops(const struct graph *g, uint32_t *n)
{
    *n = g->report.n_ops;
    return g->report.ops;
}

const char *const *graph_notes(const struct graph *g, uint32_t *n)
{
    *n = g->report.n_notes;
    return g->report.notes;
}

const char *graph_question(const struct graph *g)
{
    return g->report.question;
}

const struct graph_classified *graph_classified(const struct graph *g, uint32_t *n)
{
    *n = (uint32_t)g->report.classified.n;
    return g->report.classified.at;
}

const char *graph_class_name(enum graph_class v)
{
    static const char *const names[] = {
        [GRAPH_IS_TRAINED] = "trained",     [GRAPH_IS_FROZEN] = "frozen",
        [GRAPH_IS_STATISTIC] = "statistic", [GRAPH_IS_BUFFER] = "buffer",
        [GRAPH_IS_CONSTANT] = "constant",   [GRAPH_IS_REFUSED] = "refused",
    };

    return names[v];
}

const char *graph_digest(const struct graph *g)
{
    return g->digest;
}

/* ---- digest ----
 *
 * The SHA-256 of the structure as text: one line per input, parameter, constant, node and output,
 * in the order of the graph. Documentation, producer and values of parameters do not enter the
 * digest; constants do, because two models that differ in them compute different functions. */

static void digest_shape(struct buf *b, const struct tensor *t)
{
    char shape[192];

    buf_printf(b, " %s %s", tensor_dtype_name(t->dtype),
               shape_print(&t->shape, shape, sizeof(shape)));
}

static void digest_bytes(struct buf *b, const void *data, size_t n)
{
    uint8_t sum[DIGEST_BYTES];
    char hex[DIGEST_HEX_BYTES];

    digest_sha256(data, n, sum);
    digest_hex(sum, hex);
    buf_printf(b, " %s", hex);
}

static void digest_value(struct buf *b, const struct graph *g, const struct graph_value *v)
{
    static const char *const kinds[] = {
        [VALUE_INPUT] = "input", [VALUE_CONST] = "constant", [VALUE_PARAM] = "parameter"
    };

    if (v->kind == VALUE_NODE || v->kind == VALUE_INNER)
        return; /* the line of its node describes it */
    buf_printf(b, "%s", kinds[v->kind]);
    buf_json(b, v->name);
    if (v->kind == VALUE_INPUT) {
        struct tensor t = { .dtype = g->io.inputs[v->index].dtype,
                            .shape = g->io.inputs[v->index].shape };

        digest_shape(b, &t);
    } else {
        digest_shape(b, &v->tensor);
    }
    if (v->kind == VALUE_PARAM)
        buf_printf(b, " %s", g->params[v->index].kind == GRAPH_TRAINED ? "trained" : "statistic");
    if (v->kind == VALUE_CONST)
        digest_bytes(b, v->tensor.data, tensor_bytes(&v->tensor));
    buf_str(b, "\n");
}

static void digest_attr(struct buf *b, const struct op_attr *a)
{
    size_t i;

    buf_str(b, " ");
    buf_json(b, a->name);
    buf_printf(b, ":%d", (int)a->type);
    switch (a->type) {
    case OP_ATTR_FLOAT:
        buf_printf(b, " %a", (double)a->f);
        break;
    case OP_ATTR_INT:
        buf_printf(b, " %" PRId64, a->i);
        break;
    case OP_ATTR_STRING:
        buf_json(b, a->s);
        break;
    case OP_ATTR_FLOATS:
        for (i = 0; i < a->n; i++)
            buf_printf(b, " %a", (double)a->floats[i]);
        break;
    case OP_ATTR_INTS:
        for (i = 0; i < a->n; i++)
            buf_printf(b, " %" PRId64, a->ints[i]);
        break;
    case OP_ATTR_TENSOR:
        digest_shape(b, a->tensor);
        digest_bytes(b, a->tensor->data, tensor_bytes(a->tensor));
        break;
    case OP_ATTR_STRINGS:
        for (i = 0; i < a->n; i++)
            buf_json(b, a->strings[i]);
        break;
    }
}

static void digest_edges(struct buf *b, const struct graph *g, const uint32_t *values, uint32_t n)
{
    uint32_t i;

    for (i = 0; i < n; i++) {
        buf_str(b, " ");
        buf_json(b, values[i] == GRAPH_NONE ? "" : g->values[values[i]].name);
    }
}

static void digest_nodes(struct buf *b, const struct graph *g, const struct graph_node *nodes,
                         uint32_t n_nodes)
{
    uint32_t i, k;

    for (i = 0; i < n_nodes; i++) {
        const struct graph_node *n = &nodes[i];

        buf_printf(b, "node %s in", n->def->name);
        digest_edges(b, g, n->in, n->n_in);
        buf_str(b, " out");
        digest_edges(b, g, n->out, n->n_out);
        for (k = 0; k < n->n_attrs; k++)
            digest_attr(b, &n->attrs[k]);
        buf_str(b, "\n");
        for (k = 0; k < n->n_bodies; k++) {
            buf_str(b, "body in");
            digest_edges(b, g, n->bodies[k].in, n->bodies[k].n_in);
            buf_str(b, " out");
            digest_edges(b, g, n->bodies[k].out, n->bodies[k].n_out);
            buf_str(b, "\n");
            digest_nodes(b, g, n->bodies[k].nodes, n->bodies[k].n_nodes);
            buf_str(b, "end\n");
        }
    }
}

int graph_make_digest(struct graph *g, struct err *err)
{
    struct buf b = { 0 };
    uint8_t sum[DIGEST_BYTES];
    uint32_t i;

    buf_printf(&b, "opset %" PRIu32 "\n", g->opset);
    for (i = 0; i < g->n_values; i++)
        digest_value(&b, g, &g->values[i]);
    digest_nodes(&b, g, g->nodes, g->n_nodes);
    buf_str(&b, "outputs");
    digest_edges(&b, g, g->io.output_values, g->io.n_outputs);
    if (b.failed) {
        buf_fini(&b);
        return err_set(err, ERR_NOMEM, "digest of the model: out of memory");
    }
    digest_sha256(b.data, b.len, sum);
    digest_hex(sum, g->digest);
    buf_fini(&b);
    return 0;
}
