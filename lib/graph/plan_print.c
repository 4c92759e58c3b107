/* plan_print.c - prints a plan: the calls in order, and the memory of their results. */
#include <inttypes.h>
#include <stdio.h>

#include "base/text.h"
#include "graph/plan_priv.h"

static void print_tensor(struct buf *out, const struct tensor *t)
{
    char shape[192];

    buf_printf(out, "%s%s%s", shape_print(&t->shape, shape, sizeof(shape)),
               t->layout == TENSOR_CHANNELS_LAST ? " last" : "", t->dtype == TENSOR_F32 ? "" : " ");
    if (t->dtype != TENSOR_F32)
        buf_str(out, tensor_dtype_name(t->dtype));
}

static void print_values(struct buf *out, const struct plan *p, const uint32_t *values, uint32_t n)
{
    uint32_t i;

    for (i = 0; i < n; i++) {
        const struct plan_value *v;

        buf_str(out, i > 0 ? ", " : "");
        if (values[i] == GRAPH_NONE) {
            buf_str(out, "-");
            continue;
        }
        v = &p->values.at[values[i]];
        buf_printf(out, "%s ", v->name);
        print_tensor(out, &v->tensor);
    }
}

static void print_node(struct buf *out, const struct plan *p, uint32_t i)
{
    const struct plan_node *n = &p->nodes.at[i];
    const struct plan_value *root = &p->values.at[p->values.at[n->out[0]].root];

    buf_printf(out, "%5" PRIu32 "  %-18s %-24s ", i, n->def->name, n->name);
    print_values(out, p, n->in, n->n_in);
    buf_str(out, " -> ");
    print_values(out, p, n->out, n->n_out);
    if (n->is_alias)
        buf_printf(out, "; view of %s", root->name);
    else if (n->in_place)
        buf_printf(out, "; in place of %s", p->values.at[n->in[0]].name);
    else if (root->block != GRAPH_NONE)
        buf_printf(out, "; at %zu, until %" PRIu32, p->memory.blocks.at[root->block].offset,
                   p->memory.blocks.at[root->block].last);
    if (n->lookup != NULL)
        buf_str(out, "; looks up rows of a remote table");
    if (n->save_bytes > 0)
        buf_printf(out, "; saves %zu bytes", n->save_bytes);
    if (n->scratch_bytes > 0)
        buf_printf(out, "; scratch %zu bytes", n->scratch_bytes);
    if (!n->is_alias)
        buf_printf(out, "; %.4g MFLOP", n->flops / 1e6);
    buf_str(out, "\n");
}

static void print_backward(struct buf *out, const struct plan *p)
{
    size_t i, next = 0;
    uint32_t k;

    for (i = 0; i < p->calls.backward.n; i++) {
        const struct plan_call *call = p->calls.backward.at[i];
        const struct plan_node *n = &p->nodes.at[call->node];

        if (call->call.din == NULL) {
            buf_printf(out, "%5" PRIu32 "  %-18s %s\n", call->time, "(sum)", n->name);
            continue;
        }
        buf_printf(out, "%5" PRIu32 "  %-18s %-24s ->", call->time, n->def->name, n->name);
        for (k = 0; k < n->n_in; k++)
            if (call->call.din[k] != NULL)
                buf_printf(out, " %s%s", (call->call.din_add & OP_IN(k)) != 0 ? "+" : "",
                           p->values.at[n->in[k]].name);
        for (; next < p->calls.ready.n && p->calls.ready.at[next].call <= i; next++)
            buf_printf(out, "; ready: floats %zu to %zu", p->calls.ready.at[next].offset,
                       p->calls.ready.at[next].offset + p->calls.ready.at[next].n);
        buf_str(out, "\n");
    }
}

/* Maximum of the bytes in use at one time: a lower bound for the work memory. */
static size_t least_bytes(const struct plan *p)
{
    size_t most = 0, i;
    uint32_t time;

    for (time = 0; time <= 2 * p->nodes.n; time++) {
        size_t bytes = 0;

        for (i = 0; i < p->memory.blocks.n; i++)
            if (p->memory.blocks.at[i].first <= time && time <= p->memory.blocks.at[i].last)
                bytes += p->memory.blocks.at[i].bytes;
        if (bytes > most)
            most = bytes;
    }
    return most;
}

static void print_zeros(struct buf *out, const struct plan *p)
{
    size_t i;
    uint32_t k;

    for (i = 0; i < p->calls.zeros.n; i++)
        for (k = 0; k < p->g->n_params; k++)
            if (p->g->params[k].offset == p->calls.zeros.at[i].offset)
                buf_printf(out, "the loss does not depend on '%s': its gradient is zero\n",
                           p->g->params[k].name);
}

void plan_print(const struct plan *p, struct buf *out)
{
    size_t all = 0, i;
    char text[3][32];
    double flops = 0;

    if (p->purpose == PLAN_RUN)
        buf_str(out, "run\nforward\n");
    else
        buf_printf(out, "%s, %" PRIu32 " samples a call\nforward\n",
                   p->purpose == PLAN_TRAIN ? "train" : "evaluate", p->batch);
    for (i = 0; i < p->nodes.n; i++) {
        if (p->remote.n > 0 && i == p->remote.n_nodes)
            buf_str(out, "(the indices of remote tables are complete)\n");
        print_node(out, p, (uint32_t)i);
        flops += p->nodes.at[i].is_alias ? 0 : p->nodes.at[i].flops;
    }
    if (p->calls.backward.n > 0) {
        buf_str(out, "backward\n");
        print_backward(out, p);
        print_zeros(out, p);
    }
    for (i = 0; i < p->memory.blocks.n; i++)
        all += p->memory.blocks.at[i].bytes;
    text_bytes(text[0], sizeof(text[0]), p->memory.work_bytes);
    text_bytes(text[1], sizeof(text[1]), least_bytes(p));
    text_bytes(text[2], sizeof(text[2]), all);
    buf_printf(out, "forward %.4g MFLOP; work memory %s (in use at once %s, without reuse %s)\n",
               flops / 1e6, text[0], text[1], text[2]);
}
