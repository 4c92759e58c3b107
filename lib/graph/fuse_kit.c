/* fuse_kit.c - questions about nodes and values, and changes of the plan, for the patterns (plan_fuse.h). */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "graph/plan_fuse.h"

bool fuse_is(const struct plan_node *n, const char *domain, const char *op)
{
    bool ours = n->def->domain != NULL;

    return strcmp(n->def->name, op) == 0 && ours == (domain != NULL) &&
           (!ours || strcmp(n->def->domain, domain) == 0);
}

struct plan_node *fuse_producer(const struct fuser *f, uint32_t value)
{
    return value == GRAPH_NONE || f->producer[value] == GRAPH_NONE
               ? NULL
               : &f->p->nodes.at[f->producer[value]];
}

bool fuse_is_exclusive(const struct fuser *f, uint32_t value)
{
    const struct plan_node *n = fuse_producer(f, value);
    uint32_t k;

    if (n == NULL || n->out[0] != value || f->readers[value] != 1)
        return false;
    for (k = 1; k < n->n_out; k++)
        if (n->out[k] != GRAPH_NONE && f->readers[n->out[k]] > 0)
            return false;
    return true;
}

const struct op_attr *fuse_attr(const struct plan_node *n, const char *name)
{
    uint32_t i;

    for (i = 0; i < n->n_attrs; i++)
        if (strcmp(n->attrs[i].name, name) == 0)
            return &n->attrs[i];
    return NULL;
}

void fuse_perm(const struct plan_node *n, uint32_t rank, uint32_t *perm)
{
    const struct op_attr *a = fuse_attr(n, "perm");

    for (uint32_t i = 0; i < rank; i++)
        perm[i] = a != NULL && a->n == rank ? (uint32_t)a->ints[i] : rank - 1 - i;
}

const struct plan_node *fuse_made_by(const struct fuser *f, uint32_t value, const char *op)
{
    const struct plan_node *n = fuse_producer(f, value);

    return n != NULL && fuse_is(n, NULL, op) && n->out[0] == value ? n : NULL;
}

bool fuse_number(const struct fuser *f, uint32_t value, float *out)
{
    const struct plan_value *v = value != GRAPH_NONE ? &f->p->values.at[value] : NULL;

    if (v == NULL || v->kind != PLAN_CONST || v->tensor.dtype != TENSOR_F32 ||
        tensor_elements(&v->tensor) != 1)
        return false;
    *out = *(const float *)v->tensor.data;
    return true;
}

static void release_inputs(struct fuser *f, const struct plan_node *n)
{
    uint32_t k;

    for (k = 0; k < n->n_in; k++) {
        uint32_t v = n->in[k];

        if (v != GRAPH_NONE && --f->readers[v] == 0 && f->producer[v] != GRAPH_NONE)
            fuse_remove(f, f->producer[v]);
    }
}

void fuse_remove(struct fuser *f, uint32_t node)
{
    const struct plan_node *n = &f->p->nodes.at[node];
    uint32_t k;

    for (k = 0; k < n->n_out; k++)
        if (n->out[k] != GRAPH_NONE && f->readers[n->out[k]] > 0)
            return;
    f->removed[node] = true;
    release_inputs(f, n);
}

bool fuse_is_first(const struct fuser *f, uint32_t value, uint32_t node)
{
    uint32_t i, k;

    for (i = f->producer[value] + 1; i < node; i++)
        for (k = 0; !f->removed[i] && k < f->p->nodes.at[i].n_in; k++)
            if (f->p->nodes.at[i].in[k] == value)
                return false;
    return true;
}

int fuse_into(struct fuser *f, uint32_t node, const struct fuse_row *row, struct err *err)
{
    struct plan *p = f->p;
    struct plan_node *old = &p->nodes.at[node];
    struct plan_node n = { .def = row->def,
                           .name = row->name,
                           .stream = row->stream,
                           .n_in = row->n_in,
                           .n_out = row->has_second ? 2 : 1,
                           .n_attrs = row->n_attrs,
                           .save_block = GRAPH_NONE };
    struct op_attr *attrs = arena_array(&p->mem, row->n_attrs, sizeof(*attrs));
    struct tensor *out;
    uint32_t i;
    int rc;

    n.in = arena_array(&p->mem, n.n_in, sizeof(*n.in));
    n.out = arena_array(&p->mem, n.n_out, sizeof(*n.out));
    CHECK(n.def != NULL);
    if (attrs == NULL || n.in == NULL || n.out == NULL)
        return plan_no_memory(err);
    for (i = 0; i < n.n_attrs; i++)
        attrs[i] = row->attrs[i];
    n.attrs = attrs;
    for (i = 0; i < n.n_in; i++)
        n.in[i] = row->in[i];
    n.out[0] = old->out[0];
    if (row->has_second)
        n.out[1] = row->second;
    rc = plan_infer_node(p, &n, &out, err);
    if (rc < 0)
        return err_wrap(err, rc, "fuse into '%s'", old->name);
    for (i = 0; i < n.n_out; i++) {
        const struct tensor *want = &p->values.at[n.out[i]].tensor;

        CHECK(out[i].dtype == want->dtype && shape_equal(&out[i].shape, &want->shape));
    }
    for (i = 0; i < n.n_in; i++) /* before the old node releases inputs that both read */
        if (n.in[i] != GRAPH_NONE)
            f->readers[n.in[i]]++;
    if (row->has_second) {
        uint32_t other = f->producer[row->second];

        CHECK(other < node && p->nodes.at[other].n_out == 1);
        f->removed[other] = true;
        f->producer[row->second] = node;
        release_inputs(f, &p->nodes.at[other]);
    }
    release_inputs(f, old);
    *old = n;
    return 0;
}

bool fuse_blocked(struct fuser *f, const char *fmt, ...)
{
    va_list args;

    if (f->obstacle[0] != '\0')
        return false;
    va_start(args, fmt);
    vsnprintf(f->obstacle, sizeof(f->obstacle), fmt, args);
    va_end(args);
    return false;
}

bool fuse_reserve(struct fuser *f, size_t n)
{
    size_t cap = n > f->cap_values ? n + n / 4 : f->cap_values;
    uint32_t *producer, *readers;

    if (cap == f->cap_values)
        return true;
    producer = realloc(f->producer, cap * sizeof(*producer));
    if (producer == NULL)
        return false;
    f->producer = producer;
    readers = realloc(f->readers, cap * sizeof(*readers));
    if (readers == NULL)
        return false;
    f->readers = readers;
    for (size_t i = f->cap_values; i < cap; i++) {
        f->producer[i] = GRAPH_NONE;
        f->readers[i] = 0;
    }
    f->cap_values = cap;
    return true;
}

uint32_t fuse_add_constant(struct fuser *f, const char *name, const struct tensor *t)
{
    if (!fuse_reserve(f, f->p->values.n + 1))
        return GRAPH_NONE;
    return plan_add_value(f->p, name, PLAN_CONST, 0, t);
}

bool fuse_new_output(struct fuser *f, uint32_t node, uint32_t reader, const struct tensor *t)
{
    uint32_t old = f->p->nodes.at[node].out[0], id, k;
    struct plan_value *v;

    if (!fuse_reserve(f, f->p->values.n + 1))
        return false;
    id = plan_add_value(f->p, f->p->values.at[old].name, PLAN_MADE, f->p->values.at[old].index, t);
    if (id == GRAPH_NONE)
        return false;
    v = &f->p->values.at[id];
    v->by_sample = f->p->values.at[old].by_sample;
    v->tensor.data = NULL;
    f->p->nodes.at[node].out[0] = id;
    for (k = 0; k < f->p->nodes.at[reader].n_in; k++)
        if (f->p->nodes.at[reader].in[k] == old)
            f->p->nodes.at[reader].in[k] = id;
    f->producer[id] = node;
    f->readers[id] = f->readers[old];
    f->producer[old] = GRAPH_NONE;
    f->readers[old] = 0;
    return true;
}

/* Removes one reader of each input. */
