/* plan_remote.c - Gathers from remote tables, and the order of the nodes before them.
 *
 * The rows of a remote table are fetched in the middle of forward: after the indices are known, and
 * before the first Gather reads them. The nodes that compute indices are therefore moved to the
 * front, without changing their order, so that one fetch serves all lookups of a lane. An index
 * that depends on a row of a remote table would need a second fetch, and is refused.
 *
 * Backward keeps the order that it had before the move (plan_node.order): a gradient with several
 * contributions has the bits of a plan with local tables. */
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "graph/plan_priv.h"
#include "op/shape/rows.h"
#include "tensor/packed.h"

/* The remote table whose values the value is; GRAPH_NONE: another value. */
static uint32_t table_of(const struct plan *p, uint32_t value)
{
    const struct plan_value *v = value != GRAPH_NONE ? &p->values.at[value] : NULL;

    return v != NULL && v->kind == PLAN_PARAM && graph_param_is_remote(p->g, v->index)
               ? v->index - p->g->n_params
               : GRAPH_NONE;
}

static bool reads_remote(const struct plan *p, const struct plan_node *n)
{
    return n->n_in > 0 && table_of(p, n->in[0]) != GRAPH_NONE;
}

/* ---- the order of nodes ---- */

struct mover {
    struct plan *p;
    /* the node, a Gather from a remote table, whose indices need the value or the node; GRAPH_NONE:
     * none do */
    uint32_t *value_for; /* [values.n] */
    uint32_t *node_for;  /* [nodes.n] */
};

static int refuse_chain(const struct plan *p, uint32_t reader, uint32_t first, struct err *err)
{
    const struct plan_node *a = &p->nodes.at[reader], *b = &p->nodes.at[first];

    return err_set(err, ERR_UNSUPPORTED,
                   "Gather '%s' reads remote table '%s' at indices that depend on Gather '%s' from "
                   "remote table '%s'; expected indices that depend on no row of a remote table: "
                   "keep '%s' on the workers",
                   a->name, p->values.at[a->in[0]].name, b->name, p->values.at[b->in[0]].name,
                   p->values.at[b->in[0]].name);
}

/* A walk from the last node to the first. Errors: ERR_UNSUPPORTED. */
static int find_index_nodes(struct mover *m, struct err *err)
{
    const struct plan *p = m->p;
    uint32_t i, k;

    for (i = (uint32_t)p->nodes.n; i-- > 0;) {
        const struct plan_node *n = &p->nodes.at[i];

        for (k = 0; k < n->n_out; k++)
            if (n->out[k] != GRAPH_NONE && m->value_for[n->out[k]] != GRAPH_NONE)
                m->node_for[i] = m->value_for[n->out[k]];
        if (reads_remote(p, n)) {
            if (m->node_for[i] != GRAPH_NONE)
                return refuse_chain(p, m->node_for[i], i, err);
            m->value_for[n->in[1]] = i;
        }
        for (k = 0; m->node_for[i] != GRAPH_NONE && k < n->n_in; k++)
            if (n->in[k] != GRAPH_NONE)
                m->value_for[n->in[k]] = m->node_for[i];
    }
    return 0;
}

/* Moves the nodes that compute indices to the front. */
static int move_nodes(struct mover *m, struct arena *mem, struct err *err)
{
    struct plan *p = m->p;
    struct plan_node *old = arena_array(mem, p->nodes.n, sizeof(*old));
    uint32_t n = 0, i, k;
    int later;

    if (old == NULL)
        return plan_no_memory(err);
    memcpy(old, p->nodes.at, p->nodes.n * sizeof(*old));
    for (later = 0; later < 2; later++) {
        for (i = 0; i < p->nodes.n; i++)
            if ((m->node_for[i] == GRAPH_NONE) == (later == 1))
                p->nodes.at[n++] = old[i];
        if (later == 0)
            p->remote.n_nodes = n;
    }
    for (i = 0; i < p->nodes.n; i++)
        for (k = 0; k < p->nodes.at[i].n_out; k++)
            if (p->nodes.at[i].out[k] != GRAPH_NONE)
                p->values.at[p->nodes.at[i].out[k]].index = i;
    return 0;
}

static int order_nodes(struct plan *p, struct err *err)
{
    struct arena mem = { 0 };
    struct mover m = { .p = p };
    int rc;

    m.value_for = arena_array(&mem, p->values.n, sizeof(*m.value_for));
    m.node_for = arena_array(&mem, p->nodes.n, sizeof(*m.node_for));
    if (m.value_for != NULL && m.node_for != NULL) {
        memset(m.value_for, 0xFF, p->values.n * sizeof(*m.value_for)); /* GRAPH_NONE */
        memset(m.node_for, 0xFF, p->nodes.n * sizeof(*m.node_for));
        rc = find_index_nodes(&m, err);
        if (rc == 0)
            rc = move_nodes(&m, &mem, err);
    } else {
        rc = plan_no_memory(err);
    }
    arena_fini(&mem);
    return rc;
}

/* ---- lookups ---- */

static int check_support(const struct plan *p, const struct plan_node *n, struct err *err)
{
    CHECK(op_is_onnx(n->def, "Gather")); /* see param.c */
    if (p->device.cuda != NULL)
        return err_set(err, ERR_UNSUPPORTED,
                       "Gather '%s' reads remote table '%s', which GPUs do not support: train on "
                       "CPUs, or keep the table on the workers",
                       n->name, p->values.at[n->in[0]].name);
    if (p->purpose == PLAN_RUN)
        return err_set(err, ERR_UNSUPPORTED,
                       "Gather '%s' reads remote table '%s'; expected a plan that trains or "
                       "evaluates",
                       n->name, p->values.at[n->in[0]].name);
    return 0;
}

static int add_lookup(struct plan *p, struct plan_node *n, struct err *err)
{
    const struct rows *r = n->param;
    uint32_t i = p->remote.n++;
    struct plan_lookup *l = &p->remote.lookups[i];

    l->table = table_of(p, n->in[0]);
    l->n = r->n;
    l->padding = r->padding;
    l->rows = arena_array(&p->mem, r->n, sizeof(*l->rows));
    if (r->padding >= 0)
        p->remote.is_padding[i] = arena_array(&p->mem, r->n, sizeof(*p->remote.is_padding[i]));
    if (l->rows == NULL || (r->padding >= 0 && p->remote.is_padding[i] == NULL))
        return plan_no_memory(err);
    n->lookup = &p->remote.reads[i];
    *n->lookup = (struct op_lookup){ .slots = l->rows, .is_padding = p->remote.is_padding[i] };
    return 0;
}

static int add_lookups(struct plan *p, uint32_t n, struct err *err)
{
    struct plan_remote *r = &p->remote;
    size_t i;
    int rc = 0;

    r->lookups = arena_array(&p->mem, n, sizeof(*r->lookups));
    r->reads = arena_array(&p->mem, n, sizeof(*r->reads));
    r->is_padding = arena_array(&p->mem, n, sizeof(*r->is_padding));
    r->calls = arena_array(&p->mem, n, sizeof(*r->calls));
    if (r->lookups == NULL || r->reads == NULL || r->is_padding == NULL || r->calls == NULL)
        return plan_no_memory(err);
    for (i = 0; i < p->nodes.n && rc == 0; i++)
        if (reads_remote(p, &p->nodes.at[i]) && !plan_is_empty(p, &p->nodes.at[i]))
            rc = add_lookup(p, &p->nodes.at[i], err);
    return rc;
}

int plan_remote(struct plan *p, struct err *err)
{
    uint32_t n = 0, i;
    int rc = 0;

    p->remote.rows = arena_array(&p->mem, p->g->n_remotes, sizeof(*p->remote.rows));
    if (p->remote.rows == NULL)
        return plan_no_memory(err);
    for (i = 0; i < p->nodes.n && rc == 0; i++) {
        p->nodes.at[i].order = i;
        if (!reads_remote(p, &p->nodes.at[i]))
            continue;
        rc = check_support(p, &p->nodes.at[i], err);
        n++;
    }
    if (rc < 0 || n == 0)
        return rc;
    rc = order_nodes(p, err);
    return rc == 0 ? add_lookups(p, n, err) : rc;
}

/* ---- execution ---- */

const struct plan_lookup *plan_lookups(struct plan *p, uint32_t *n)
{
    *n = p->remote.n;
    return p->remote.lookups;
}

uint64_t plan_lookup_room(const struct plan *p, uint32_t table)
{
    uint64_t room = 0;
    uint32_t i;

    for (i = 0; i < p->remote.n; i++)
        if (p->remote.lookups[i].table == table)
            room += p->remote.lookups[i].n;
    return room;
}

int plan_remote_list(struct plan *p, const struct op_run *run, struct err *err)
{
    uint32_t k;
    size_t i;

    for (k = 0; k < p->remote.n; k++) {
        const struct plan_lookup *l = &p->remote.lookups[k];
        struct plan_call *call = p->remote.calls[k];
        uint8_t *is_padding = p->remote.is_padding[k];
        int rc = 0;

        call->call.run = run;
        if (p->g->remotes[l->table].rows == 0)
            rows_list_ids(&call->call, l->rows);
        else
            rc = rows_list(&call->call, "Gather", l->rows, err);
        if (rc < 0) /* as plan_forward() reports the error of a Gather from a local table */
            return err_wrap(err, rc, "forward of Gather '%s'", p->nodes.at[call->node].name);
        for (i = 0; is_padding != NULL && i < l->n; i++)
            is_padding[i] = l->rows[i] == l->padding;
    }
    return 0;
}

void plan_set_remote(struct plan *p, float *const *values, struct packed *rows, size_t at)
{
    uint32_t i;

    CHECK(rows == NULL || (p->purpose == PLAN_TRAIN && rows->n_tables == p->g->n_remotes));
    for (i = 0; i < p->remote.n; i++)
        p->remote.reads[i].values = values[p->remote.lookups[i].table];
    p->remote.packed = rows;
    p->remote.at = at;
    for (i = 0; i < p->g->n_remotes; i++) {
        size_t word = rows != NULL ? rows->tables[i].first_word : 0;

        CHECK(rows == NULL || rows->tables[i].width == p->g->remotes[i].width);
        p->remote.rows[i] = (struct packed_rows){ 0 };
        if (rows == NULL)
            continue;
        p->remote.rows[i].marks = rows->marks + word;
        p->remote.rows[i].before = rows->before + word;
    }
}

void plan_remote_open(struct plan *p, float *grads)
{
    float *values = grads + p->remote.at;
    uint32_t i;

    packed_index(p->remote.packed);
    memset(values, 0, packed_floats(p->remote.packed) * sizeof(float));
    for (i = 0; i < p->g->n_remotes; i++)
        p->remote.rows[i].values = values + p->remote.packed->first[i];
}
