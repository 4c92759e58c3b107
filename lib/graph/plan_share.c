/* plan_share.c - values that share the memory of another value.
 *
 * A view always shares memory: values never change, so any number of them may share it. A node that
 * supports it works in place if its input has no later reader: no later node, no backward kernel,
 * no caller, and not the node itself through another input. These conditions apply to all values
 * that share the memory. */
#include <string.h>

#include "graph/plan_priv.h"

struct shared {         /* properties of a root, combined over all values that share its memory */
    uint32_t last_read; /* index of the node, in forward */
    bool reserved;      /* read in backward or by the caller, or not a computed value */
};

/* Sets the properties of each single value. */
static void find_readers(const struct plan *p, struct shared *s)
{
    size_t i;
    uint32_t k;

    for (i = 0; i < p->values.n; i++)
        s[i].reserved = p->values.at[i].kept || p->values.at[i].kind != PLAN_MADE;
    for (i = 0; i < p->nodes.n; i++) {
        const struct plan_node *n = &p->nodes.at[i];

        for (k = 0; k < n->n_in; k++) {
            if (n->in[k] == GRAPH_NONE)
                continue;
            s[n->in[k]].last_read = (uint32_t)i;
            if (n->runs_bwd && (n->def->bwd_reads & graph_input_bit(k)) != 0)
                s[n->in[k]].reserved = true;
        }
        for (k = 0; k < n->n_out; k++)
            if (n->out[k] != GRAPH_NONE && n->runs_bwd &&
                (n->def->bwd_reads & (graph_input_bit(k) << 16)) != 0)
                s[n->out[k]].reserved = true;
    }
}

static bool fits_in_place(const struct plan *p, const struct plan_node *n, const struct shared *s,
                          uint32_t time)
{
    const struct plan_value *in, *out;
    uint32_t k;

    if (!n->def->in_place || n->n_in == 0 || n->in[0] == GRAPH_NONE || n->out[0] == GRAPH_NONE)
        return false;
    in = &p->values.at[n->in[0]];
    out = &p->values.at[n->out[0]];
    if (in->tensor.dtype != out->tensor.dtype || in->tensor.layout != out->tensor.layout ||
        !shape_equal(&in->tensor.shape, &out->tensor.shape))
        return false;
    for (k = 1; k < n->n_in; k++)
        if (n->in[k] != GRAPH_NONE && p->values.at[n->in[k]].root == in->root)
            return false;
    return !s[in->root].reserved && s[in->root].last_read <= time;
}

static void share_memory(struct plan *p, struct shared *s, uint32_t value, uint32_t root)
{
    p->values.at[value].root = root;
    s[root].reserved = s[root].reserved || s[value].reserved;
    if (s[root].last_read < s[value].last_read)
        s[root].last_read = s[value].last_read;
}

int plan_share(struct plan *p, struct err *err)
{
    struct arena mem = { 0 };
    struct shared *s = arena_array(&mem, p->values.n, sizeof(*s));
    size_t i;

    if (s == NULL)
        return plan_no_memory(err);
    find_readers(p, s);
    for (i = 0; i < p->nodes.n; i++) {
        struct plan_node *n = &p->nodes.at[i];

        n->in_place = !n->is_alias && fits_in_place(p, n, s, (uint32_t)i);
        if (n->is_alias || n->in_place)
            share_memory(p, s, n->out[0], p->values.at[n->in[0]].root);
    }
    arena_fini(&mem);
    return 0;
}
