/* plan_verify_call.c - the operands of one call of a plan, from its node and its tensors. */
#include <inttypes.h>
#include <stdio.h>

#include "base/err.h"
#include "graph/plan_verify.h"

/* The bit of input i in the masks of a row; the 16th input and all after it share a bit. */
static uint32_t mask_bit(uint32_t i)
{
    return 1u << (i < 15 ? i : 15);
}

static bool reads_input(const struct op_def *def, uint32_t i)
{
    return (def->bwd_reads & mask_bit(i)) != 0;
}

static bool reads_output(const struct op_def *def, uint32_t i)
{
    return (def->bwd_reads & (mask_bit(i) << 16)) != 0;
}

/* ---- operands ---- */

/* Adds an operand with the type and size of a value: the value itself, or its gradient. */
int verify_add_tensor(struct verifier *v, const char *role, uint32_t i, uint32_t value,
                      uint32_t content, const struct tensor *t, bool reads, bool writes)
{
    const struct plan_value *x = &v->p->values.at[value];
    struct verify_operand o = { .role = role,
                                .i = i,
                                .content = content,
                                .reads = reads,
                                .writes = writes,
                                .in_place = GRAPH_NONE };

    if (t == NULL)
        return err_set(v->err, ERR_CORRUPT,
                       "memory plan: %s: %s %" PRIu32 ", '%s'; expected a tensor, found none",
                       v->place, role, i, x->name);
    o.at = &t->data;
    o.data = t->data;
    o.bytes = tensor_bytes(t);
    if (t->dtype != x->tensor.dtype || o.bytes != tensor_bytes(&x->tensor))
        return err_set(v->err, ERR_CORRUPT,
                       "memory plan: %s: %s %" PRIu32 ", '%s'; expected %zu bytes of %s, found %zu "
                       "bytes of %s",
                       v->place, role, i, x->name, tensor_bytes(&x->tensor),
                       tensor_dtype_name(x->tensor.dtype), o.bytes, tensor_dtype_name(t->dtype));
    return VEC_PUSH(v->operands, o) ? 0 : verify_no_memory(v->err);
}

/* Saved memory is read and possibly overwritten by backward; scratch memory has no content. */
static int add_buffers(struct verifier *v, const struct plan_call *call, bool backward)
{
    const struct plan_node *n = &v->p->nodes.at[call->node];
    struct verify_operand save = { .role = "saved memory",
                                   .content = v->saved_by[call->node],
                                   .at = &call->call.save,
                                   .bytes = n->save_bytes,
                                   .reads = backward,
                                   .writes = true,
                                   .in_place = GRAPH_NONE };
    struct verify_operand scratch = { .role = "scratch memory",
                                      .content = GRAPH_NONE,
                                      .at = &call->call.scratch,
                                      .bytes = n->scratch_bytes,
                                      .writes = true,
                                      .in_place = GRAPH_NONE };

    return VEC_PUSH(v->operands, save) && VEC_PUSH(v->operands, scratch) ? 0
                                                                         : verify_no_memory(v->err);
}

static void begin_call(struct verifier *v, const char *direction, const struct plan_call *call,
                       size_t index)
{
    const struct plan_node *n = &v->p->nodes.at[call->node];

    snprintf(v->place, sizeof(v->place), "%s of %s '%s'", direction, n->def->name, n->name);
    v->m.call = (uint32_t)index;
    v->operands.n = 0;
}

int verify_end_call(struct verifier *v)
{
    return verify_access(&v->m, v->operands.at, (uint32_t)v->operands.n, v->err);
}

/* ---- forward ---- */

/* Output 0 may overwrite input 0 if the row permits it and both have the same bytes. */
static bool may_be_in_place(const struct plan *p, const struct plan_node *n)
{
    const struct tensor *in, *out;

    if (!n->def->in_place || n->n_in == 0 || n->in[0] == GRAPH_NONE || n->out[0] == GRAPH_NONE)
        return false;
    in = &p->values.at[n->in[0]].tensor;
    out = &p->values.at[n->out[0]].tensor;
    return in->dtype == out->dtype && in->layout == out->layout &&
           shape_equal(&in->shape, &out->shape);
}

int verify_forward(struct verifier *v, size_t index)
{
    const struct plan_call *call = v->p->calls.forward.at[index];
    const struct plan_node *n = &v->p->nodes.at[call->node];
    uint32_t first_out, k;
    int rc = 0;

    begin_call(v, "forward", call, index);
    for (k = 0; k < n->n_in && rc == 0; k++)
        if (n->in[k] != GRAPH_NONE)
            rc = verify_add_tensor(v, "input", k, n->in[k], v->value_of[n->in[k]], call->call.in[k],
                                   true, false);
    first_out = (uint32_t)v->operands.n;
    for (k = 0; k < n->n_out && rc == 0; k++) {
        if (n->out[k] == GRAPH_NONE || (k > 0 && call->call.out[k] == NULL))
            continue;
        rc = verify_add_tensor(v, "output", k, n->out[k], v->value_of[n->out[k]], call->call.out[k],
                               false, true);
    }
    if (rc == 0 && first_out < v->operands.n && may_be_in_place(v->p, n))
        v->operands.at[first_out].in_place = 0;
    if (rc == 0)
        rc = add_buffers(v, call, false);
    return rc == 0 ? verify_end_call(v) : rc;
}

/* ---- backward ---- */

/* A forward operand of backward: read if the row lists it, else it must have an address that
 * faults. */
static int add_forward_operand(struct verifier *v, const char *role, uint32_t k, uint32_t value,
                               const struct tensor *t, bool is_listed)
{
    uint32_t base;
    size_t offset;

    if (is_listed)
        return verify_add_tensor(v, role, k, value, v->value_of[value], t, true, false);
    if (t != NULL && (t->data != PLAN_POISON_ADDRESS || verify_find(&v->m, &t->data, &base, &offset)))
        return err_set(v->err, ERR_CORRUPT,
                       "memory plan: %s: %s %" PRIu32 ", '%s'; expected an address that faults, "
                       "because bwd_reads does not list it, found memory",
                       v->place, role, k, v->p->values.at[value].name);
    return 0;
}

static int add_output_gradient(struct verifier *v, const struct plan_node *n, uint32_t k,
                               const struct tensor *dout)
{
    struct verify_content *g = &v->m.contents.at[v->grad_of[n->out[k]]];

    if (dout != NULL) {
        g->is_read = true;
        return verify_add_tensor(v, "gradient of output", k, n->out[k], v->grad_of[n->out[k]], dout,
                                 true, false);
    }
    if (g->state != VERIFY_UNWRITTEN)
        return err_set(v->err, ERR_CORRUPT,
                       "memory plan: %s: gradient of output %" PRIu32 ", '%s'; expected the "
                       "gradient that later nodes wrote, found none",
                       v->place, k, v->p->values.at[n->out[k]].name);
    return 0;
}

int verify_refuse_gradient(const struct verifier *v, const char *value, const char *expected,
                           const char *found)
{
    return err_set(v->err, ERR_CORRUPT, "memory plan: %s: gradient of '%s'; expected %s, found %s",
                   v->place, value, expected, found);
}

/* The first contribution to a gradient overwrites it, later ones are added, and all precede its
 * reader. */
static int check_contribution(const struct verifier *v, uint32_t content, bool adds)
{
    const struct verify_content *g = &v->m.contents.at[content];

    if (g->is_read)
        return verify_refuse_gradient(v, g->name,
                                      "all contributions before the call that reads them",
                                      "a later contribution");
    if (!adds && g->state != VERIFY_UNWRITTEN)
        return verify_refuse_gradient(v, g->name, "a contribution that is added",
                                      "one that overwrites those before it");
    return 0;
}

/* A contribution goes to the gradient itself, or to a temporary tensor that the next calls add. */
static int add_input_gradient(struct verifier *v, const struct plan_call *call, uint32_t k)
{
    const struct plan_node *n = &v->p->nodes.at[call->node];
    const struct plan_value *x = &v->p->values.at[n->in[k]];
    const struct tensor *din = call->call.din[k];
    uint32_t content = v->grad_of[n->in[k]];
    bool adds = k < 31 && (call->call.din_add & OP_IN(k)) != 0;
    bool is_statistic = (n->def->stat & mask_bit(k)) != 0 && x->kind == PLAN_PARAM;
    int rc;

    if (din != x->grad && !is_statistic) {
        uint32_t target = content;

        content = verify_add(&v->m, "temporary gradient", x->name);
        if (content == GRAPH_NONE)
            return verify_no_memory(v->err);
        v->m.contents.at[content].target = target;
        v->m.contents.at[content].tensor = din;
    }
    rc = check_contribution(v, content, adds);
    return rc == 0
               ? verify_add_tensor(v, "gradient of input", k, n->in[k], content, din, adds, true)
               : rc;
}

/* A call that adds a temporary gradient, of the call before it, to a gradient. */
static int sum_call(struct verifier *v, const struct plan_call *call)
{
    const struct tensor *const *in = call->call.in;
    uint32_t temporary = (uint32_t)v->m.contents.n, target, value = GRAPH_NONE, k;
    const struct plan_node *n = &v->p->nodes.at[call->node];
    int rc;

    while (temporary > 0 && v->m.contents.at[temporary - 1].tensor != in[1])
        temporary--;
    if (temporary == 0)
        return err_set(v->err, ERR_CORRUPT,
                       "memory plan: %s: a sum of gradients; expected a temporary gradient as "
                       "input 1, found another tensor",
                       v->place);
    target = v->m.contents.at[--temporary].target;
    for (k = 0; k < n->n_in; k++)
        if (n->in[k] != GRAPH_NONE && v->grad_of[n->in[k]] == target)
            value = n->in[k];
    if (value == GRAPH_NONE || call->call.out[0] != in[0] || !call->call.in[0])
        return err_set(v->err, ERR_CORRUPT,
                       "memory plan: %s: a sum of gradients; expected the gradient of an input of "
                       "this node, found another tensor",
                       v->place);
    v->m.contents.at[temporary].target = GRAPH_NONE; /* added */
    rc = check_contribution(v, target, true);
    if (rc == 0)
        rc = verify_add_tensor(v, "sum", 0, value, target, in[0], true, true);
    return rc == 0 ? verify_add_tensor(v, "sum", 1, value, temporary, in[1], true, false) : rc;
}

int verify_backward(struct verifier *v, size_t index)
{
    const struct plan_call *call = v->p->calls.backward.at[index];
    const struct plan_node *n = &v->p->nodes.at[call->node];
    uint32_t k;
    int rc = 0;

    begin_call(v, "backward", call, v->p->calls.forward.n + index);
    if (call->call.din == NULL) {
        rc = sum_call(v, call);
        return rc == 0 ? verify_end_call(v) : rc;
    }
    for (k = 0; k < n->n_in && rc == 0; k++)
        if (n->in[k] != GRAPH_NONE)
            rc = add_forward_operand(v, "input", k, n->in[k], call->call.in[k],
                                     reads_input(n->def, k));
    for (k = 0; k < n->n_out && rc == 0; k++) {
        if (n->out[k] == GRAPH_NONE)
            continue;
        if (k == 0 || call->call.out[k] != NULL || reads_output(n->def, k))
            rc = add_forward_operand(v, "output", k, n->out[k], call->call.out[k],
                                     reads_output(n->def, k));
        if (rc == 0)
            rc = add_output_gradient(v, n, k, call->call.dout[k]);
    }
    for (k = 0; k < n->n_in && rc == 0; k++)
        if (call->call.din[k] != NULL)
            rc = add_input_gradient(v, call, k);
    if (rc == 0)
        rc = add_buffers(v, call, true);
    return rc == 0 ? verify_end_call(v) : rc;
}
