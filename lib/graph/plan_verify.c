/* plan_verify.c - checks the memory of a finished plan.
 *
 * The function walks through the list of calls without computing, and records which content each
 * range of memory holds (plan_verify.h). Lifetimes follow from these reads and writes alone: the
 * blocks, roots and times of the planner are not used, and no function is shared with its passes.
 * A value that is overwritten too early, an offset that is wrong, or a gradient that lacks a
 * contribution is therefore found at the first call that reads it. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "graph/plan_verify.h"

/* ---- contents ---- */

/* The layouts of a tensor have the same bytes if it has one channel or one pixel. */
static bool layouts_agree(const struct shape *s)
{
    int64_t pixels = 1;
    uint32_t i;

    for (i = 2; i < s->rank; i++)
        pixels *= s->dim[i];
    return s->rank < 3 || s->dim[1] == 1 || pixels == 1;
}

static int add_view(struct verifier *v, const struct plan_node *n)
{
    const struct tensor *in = &v->p->values.at[n->in[0]].tensor;
    const struct tensor *out = &v->p->values.at[n->out[0]].tensor;
    bool is_reorder = strcmp(n->def->name, "Reorder") == 0;

    if ((!n->def->view && !is_reorder) || in->dtype != out->dtype ||
        tensor_bytes(in) != tensor_bytes(out) ||
        (in->layout != out->layout && !layouts_agree(&in->shape)))
        return err_set(v->err, ERR_CORRUPT,
                       "memory plan: %s '%s': output '%s' is a view of '%s'; expected an op whose "
                       "output has the bytes of its input, found other bytes",
                       n->def->name, n->name, v->p->values.at[n->out[0]].name,
                       v->p->values.at[n->in[0]].name);
    v->value_of[n->out[0]] = v->value_of[n->in[0]];
    if (!n->stops_gradient && n->def->cpu.bwd != NULL && (n->def->diff & OP_IN(0)) != 0)
        v->grad_of[n->out[0]] = v->grad_of[n->in[0]];
    return 0;
}

static int add_contents(struct verifier *v)
{
    const struct plan *p = v->p;
    size_t i;
    int rc = 0;

    v->value_of = arena_array(&v->mem, p->values.n, sizeof(*v->value_of));
    v->grad_of = arena_array(&v->mem, p->values.n, sizeof(*v->grad_of));
    v->saved_by = arena_array(&v->mem, p->nodes.n, sizeof(*v->saved_by));
    if (v->value_of == NULL || v->grad_of == NULL || v->saved_by == NULL)
        return verify_no_memory(v->err);
    for (i = 0; i < p->values.n; i++) {
        v->value_of[i] = verify_add(&v->m, "value", p->values.at[i].name);
        v->grad_of[i] = verify_add(&v->m, "gradient", p->values.at[i].name);
        if (v->value_of[i] == GRAPH_NONE || v->grad_of[i] == GRAPH_NONE)
            return verify_no_memory(v->err);
    }
    for (i = 0; i < p->nodes.n; i++) {
        v->saved_by[i] = verify_add(&v->m, "memory saved by", p->nodes.at[i].name);
        if (v->saved_by[i] == GRAPH_NONE)
            return verify_no_memory(v->err);
    }
    for (i = 0; i < p->nodes.n && rc == 0; i++)
        if (p->nodes.at[i].is_alias)
            rc = add_view(v, &p->nodes.at[i]);
    return rc;
}

/* ---- remote tables ---- */

/* Checks that exactly the calls that read a remote table have a lookup. A sum of gradients reads
 * none. */
static int check_lookups(struct verifier *v, const struct plan_call *call, bool is_sum)
{
    const struct plan *p = v->p;
    const struct plan_node *n = &p->nodes.at[call->node];
    bool is_remote = false;
    uint32_t k;

    for (k = 0; !is_sum && k < n->n_in; k++)
        is_remote =
            is_remote || (n->in[k] != GRAPH_NONE && p->values.at[n->in[k]].kind == PLAN_PARAM &&
                          p->values.at[n->in[k]].index >= p->g->n_params);
    if (is_remote == (call->call.lookup != NULL))
        return 0;
    return err_set(v->err, ERR_CORRUPT, "memory plan: %s '%s'; expected %s, found %s", n->def->name,
                   n->name, is_remote ? "a lookup of the remote table" : "no lookup",
                   is_remote ? "none" : "one");
}

/* Reads the indices of all lookups, as plan_forward_indices() does after the first calls. */
static int read_indices(struct verifier *v)
{
    const struct plan *p = v->p;
    uint32_t i;
    int rc = 0;

    snprintf(v->place, sizeof(v->place), "end of the calls that compute indices");
    for (i = 0; i < p->remote.n && rc == 0; i++) {
        const struct plan_call *call = p->remote.calls[i];
        uint32_t value = p->nodes.at[call->node].in[1];

        if (call->call.number < p->remote.n_calls)
            return err_set(v->err, ERR_CORRUPT,
                           "memory plan: Gather '%s' from a remote table; expected it after call "
                           "%" PRIu32 ", found call %" PRIu32,
                           p->nodes.at[call->node].name, p->remote.n_calls, call->call.number);
        v->operands.n = 0;
        rc = verify_add_tensor(v, "indices", i, value, v->value_of[value], call->call.in[1], true,
                               false);
        if (rc == 0)
            rc = verify_read(&v->m, &v->operands.at[0], v->err);
    }
    return rc;
}

/* ---- what is in memory before the first call ---- */

static void set_present(struct verifier *v, uint32_t content, uint32_t base, size_t offset,
                        size_t bytes)
{
    struct verify_content *c = &v->m.contents.at[content];

    c->state = VERIFY_INTACT;
    c->base = base;
    c->offset = offset;
    c->bytes = bytes;
}

static int set_constants(struct verifier *v)
{
    const struct plan *p = v->p;
    size_t i, end = sizeof(float); /* the number 1 */

    for (i = 0; i < p->device.constant_values.n; i++) {
        const struct plan_value *c = &p->values.at[p->device.constant_values.at[i]];

        if (c->constant_at < end)
            return err_set(v->err, ERR_CORRUPT,
                           "memory plan: constant '%s' begins at %zu of the constants; expected at "
                           "least %zu, the end of the constant before it",
                           c->name, c->constant_at, end);
        end = c->constant_at + tensor_bytes(&c->tensor);
    }
    return 0;
}

static int set_initial(struct verifier *v)
{
    const struct plan *p = v->p;
    bool on_gpu = p->device.cuda != NULL;
    size_t i;

    for (i = 0; i < p->values.n; i++) {
        const struct plan_value *x = &p->values.at[i];
        size_t bytes = tensor_bytes(&x->tensor);

        if (x->kind == PLAN_PARAM)
            set_present(v, v->value_of[i], plan_param_base(p, x->index),
                        p->g->params[x->index].offset * sizeof(float), bytes);
        else if (x->kind == PLAN_CONST && on_gpu)
            set_present(v, v->value_of[i], PLAN_CONSTANTS, x->constant_at, bytes);
        else if (x->kind == PLAN_CONST)
            set_present(v, v->value_of[i], PLAN_BASES, (size_t)(uintptr_t)x->tensor.data, bytes);
    }
    if (p->loss.value != GRAPH_NONE)
        set_present(v, v->grad_of[p->loss.value], on_gpu ? PLAN_CONSTANTS : PLAN_BASES,
                    on_gpu ? 0 : (size_t)(uintptr_t)p->loss.grad.data, sizeof(float));
    return set_constants(v);
}

/* ---- what callers write and read ---- */

/* The caller writes all inputs before the first call. */
static int write_inputs(struct verifier *v)
{
    const struct plan *p = v->p;
    uint32_t i;
    int rc = 0;

    snprintf(v->place, sizeof(v->place), "inputs");
    v->m.call = GRAPH_NONE;
    v->operands.n = 0;
    for (i = 0; i < p->inputs.n && rc == 0; i++) {
        uint32_t value = p->inputs.values[i];

        rc = verify_add_tensor(v, "input", i, value, v->value_of[value], p->values.at[value].fwd,
                               false, true);
    }
    return rc == 0 ? verify_end_call(v) : rc;
}

static int read_value(struct verifier *v, const char *role, uint32_t i, uint32_t value)
{
    int rc;

    if (value == GRAPH_NONE)
        return 0;
    v->operands.n = 0;
    rc = verify_add_tensor(v, role, i, value, v->value_of[value], v->p->values.at[value].fwd, true,
                           false);
    return rc == 0 ? verify_read(&v->m, &v->operands.at[0], v->err) : rc;
}

static int read_loss(struct verifier *v)
{
    int rc;

    snprintf(v->place, sizeof(v->place), "end of forward");
    rc = read_value(v, "loss", 0, v->p->loss.value);
    return rc == 0 ? read_value(v, "weight of the loss", 0, v->p->loss.weight) : rc;
}

/* Inputs are kept too: forward may run again on the same batch. */
static int read_results(struct verifier *v)
{
    const struct plan *p = v->p;
    size_t k;
    uint32_t i;
    int rc = 0;

    snprintf(v->place, sizeof(v->place), "end of the plan");
    for (i = 0; i < p->inputs.n && rc == 0; i++)
        rc = read_value(v, "input", i, p->inputs.values[i]);
    for (i = 0; i < p->n_kept && rc == 0; i++)
        rc = read_value(v, "kept tensor", i, p->kept[i].value);
    for (i = 0; i < p->n_metrics && rc == 0; i++) {
        rc = read_value(v, "metric", i, p->metrics[i].value);
        if (rc == 0)
            rc = read_value(v, "weight of metric", i, p->metrics[i].weight);
    }
    for (k = 0; k < v->m.contents.n && rc == 0; k++)
        if (v->m.contents.at[k].target != GRAPH_NONE)
            rc = verify_refuse_gradient(v, v->m.contents.at[k].name, "a sum of all contributions",
                                        "a temporary gradient that no call adds");
    for (i = 0; p->inputs.feed_grads && i < p->inputs.n_feeds && rc == 0; i++) {
        uint32_t value = p->inputs.values[i];

        if (!p->values.at[value].has_grad)
            continue;
        v->operands.n = 0;
        rc = verify_add_tensor(v, "gradient of input", i, value, v->grad_of[value],
                               p->values.at[value].grad, true, false);
        if (rc == 0)
            rc = verify_read(&v->m, &v->operands.at[0], v->err);
    }
    return rc;
}

/* ---- ranges of final gradients ---- */

/* Checks that nothing writes to the gradient of parameter i after call `last` of backward, which
 * reports it. */
static int check_final(struct verifier *v, uint32_t i, uint32_t last)
{
    const struct plan *p = v->p;
    bool is_written = false;
    size_t k;

    for (k = 0; k < p->values.n; k++) {
        const struct plan_value *x = &p->values.at[k];
        const struct verify_content *g = &v->m.contents.at[v->grad_of[k]];

        if (x->kind != PLAN_PARAM || x->index != i || g->state == VERIFY_UNWRITTEN)
            continue;
        is_written = true;
        if (last == GRAPH_NONE || g->written_by - p->calls.forward.n > last)
            return verify_refuse_gradient(
                v, x->name, "no write after the call that reports it as final", "a later write");
    }
    for (k = 0; k < p->calls.zeros.n && !is_written; k++)
        is_written = p->calls.zeros.at[k].offset == p->g->params[i].offset &&
                     p->calls.zeros.at[k].n == p->g->params[i].elements;
    return is_written
               ? 0
               : verify_refuse_gradient(v, p->g->params[i].name, "a write or zeros", "neither");
}

static int check_ready(struct verifier *v)
{
    const struct plan *p = v->p;
    size_t end = 0, r;
    uint32_t i = 0;
    int rc = 0;

    snprintf(v->place, sizeof(v->place), "ranges of final gradients");
    for (r = 0; r < p->calls.ready.n && rc == 0; r++) {
        if (p->calls.ready.at[r].offset != end)
            return err_set(v->err, ERR_CORRUPT,
                           "memory plan: %s: range %zu; expected it at %zu, found %zu", v->place, r,
                           end, p->calls.ready.at[r].offset);
        end += p->calls.ready.at[r].n;
        for (; i < p->g->n_params && p->g->params[i].offset < end && rc == 0; i++)
            if (p->g->params[i].kind == GRAPH_TRAINED)
                rc = check_final(v, i, p->calls.ready.at[r].call);
    }
    if (rc == 0 && end != p->g->arena.trained_floats)
        return err_set(v->err, ERR_CORRUPT,
                       "memory plan: %s; expected %zu floats in total, found %zu", v->place,
                       p->g->arena.trained_floats, end);
    return rc;
}

/* ---- the walk ---- */

static int walk(struct verifier *v)
{
    const struct plan *p = v->p;
    size_t i;
    int rc = verify_memory_open(&v->m, p, v->err);

    if (rc == 0)
        rc = add_contents(v);
    if (rc == 0)
        rc = set_initial(v);
    if (rc == 0)
        rc = write_inputs(v);
    for (i = 0; i < p->calls.forward.n && rc == 0; i++) {
        if (i == p->remote.n_calls)
            rc = read_indices(v);
        if (rc == 0)
            rc = check_lookups(v, p->calls.forward.at[i], false);
        if (rc == 0)
            rc = verify_forward(v, i);
    }
    if (rc == 0)
        rc = read_loss(v);
    for (i = 0; i < p->calls.backward.n && rc == 0; i++) {
        rc = check_lookups(v, p->calls.backward.at[i], p->calls.backward.at[i]->call.din == NULL);
        if (rc == 0)
            rc = verify_backward(v, i);
    }
    if (rc == 0)
        rc = read_results(v);
    return rc == 0 && p->purpose == PLAN_TRAIN ? check_ready(v) : rc;
}

int plan_verify(const struct plan *p, struct err *err)
{
    struct verifier v = { .p = p, .err = err };
    int rc;

    v.m.place = v.place;
    rc = walk(&v);
    verify_memory_close(&v.m);
    VEC_FINI(v.operands);
    arena_fini(&v.mem);
    return rc;
}
