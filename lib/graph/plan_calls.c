/* plan_calls.c - converts nodes to calls.
 *
 * A call reads and writes tensors: a type, a shape, and an address that plan_bind() or
 * plan_backward() sets. This pass creates one tensor for each value and one for each gradient,
 * records the lifetime of their memory, and creates the calls in order. In backward, values that a
 * row does not list in bwd_reads have a shape but an address that faults, because their memory may
 * have been reused. */
#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "graph/plan_priv.h"
#include "tensor/packed.h"

static const float one = 1.0f;

struct call_builder {
    struct plan *p;
    uint32_t *final; /* [parameters and remote tables of the graph] the last backward call that
                        writes the gradient; GRAPH_NONE: none */
    uint32_t *last_writer; /* [values.n] of a gradient root: 1 + the last node whose backward call
                              writes to it */
    uint32_t *by_order;    /* [nodes.n] the node with this plan_node.order */
    struct err *err;
};

static uint32_t end_of_time(const struct plan *p)
{
    return 2 * (uint32_t)p->nodes.n;
}

/* ---- memory ---- */

static uint32_t new_block(struct plan *p, size_t bytes, uint32_t time)
{
    struct plan_block b = { .bytes = bytes, .first = time, .last = time };

    return VEC_PUSH(p->memory.blocks, b) ? (uint32_t)p->memory.blocks.n - 1 : GRAPH_NONE;
}

static void extend_lifetime(struct plan *p, uint32_t block, uint32_t time)
{
    struct plan_block *b = &p->memory.blocks.at[block];

    if (time < b->first)
        b->first = time;
    if (time > b->last)
        b->last = time;
}

static bool bind_at(struct plan *p, enum plan_base base, void **at, size_t offset, uint32_t block)
{
    return VEC_PUSH(p->memory.binds[base],
                    (struct plan_bind){ .at = at, .offset = offset, .block = block });
}

static struct tensor *new_tensor(struct plan *p, const struct tensor *like, void *data)
{
    struct tensor *t = arena_alloc(&p->mem, sizeof(*t));

    if (t != NULL) {
        *t = *like;
        t->data = data;
    }
    return t;
}

/* The tensor of a value; extends the lifetime of its memory to `time`. NULL: out of memory. */
static struct tensor *value_at(struct plan *p, uint32_t value, uint32_t time)
{
    struct plan_value *v = &p->values.at[value], *root = &p->values.at[v->root];
    bool in_work = root->kind == PLAN_FEED || root->kind == PLAN_MADE;
    bool on_device = root->kind == PLAN_CONST && p->device.cuda != NULL;

    if (in_work && root->block == GRAPH_NONE)
        root->block = new_block(p, tensor_bytes(&root->tensor), time);
    if (in_work && root->block == GRAPH_NONE)
        return NULL;
    if (in_work)
        extend_lifetime(p, root->block, time);
    if (v->fwd != NULL)
        return v->fwd;
    v->fwd = new_tensor(p, &v->tensor, root->tensor.data);
    if (v->fwd == NULL)
        return NULL;
    if (root->kind == PLAN_PARAM &&
        !bind_at(p, plan_param_base(p, root->index), &v->fwd->data,
                 p->g->params[root->index].offset * sizeof(float), GRAPH_NONE))
        return NULL;
    if (in_work && !bind_at(p, PLAN_WORK, &v->fwd->data, 0, root->block))
        return NULL;
    if (on_device &&
        (!plan_device_add_constant(p, v->root) ||
         !bind_at(p, PLAN_CONSTANTS, &v->fwd->data, p->values.at[v->root].constant_at, GRAPH_NONE)))
        return NULL;
    return v->fwd;
}

static struct tensor *shape_of_value(struct plan *p, uint32_t value)
{
    struct plan_value *v = &p->values.at[value];

    if (v->meta == NULL)
        v->meta = new_tensor(p, &v->tensor, PLAN_POISON_ADDRESS);
    return v->meta;
}

/* The tensor of a value's gradient; extends the lifetime of its memory to `time`. NULL: out of
 * memory. */
static struct tensor *grad_at(struct plan *p, uint32_t value, uint32_t time)
{
    struct plan_value *v = &p->values.at[value], *root = &p->values.at[v->grad_root];
    bool in_work = root->kind != PLAN_PARAM;

    if (value == p->loss.value)
        return &p->loss.grad; /* never written */
    if (in_work && root->grad_block == GRAPH_NONE)
        root->grad_block = new_block(p, tensor_bytes(&root->tensor), time);
    if (in_work && root->grad_block == GRAPH_NONE)
        return NULL;
    if (in_work)
        extend_lifetime(p, root->grad_block, time);
    if (v->grad != NULL)
        return v->grad;
    v->grad = new_tensor(p, &v->tensor, NULL);
    if (v->grad == NULL)
        return NULL;
    if (in_work ? !bind_at(p, PLAN_WORK, &v->grad->data, 0, root->grad_block)
                : !bind_at(
                      p, graph_param_is_remote(p->g, root->index) ? PLAN_REMOTE_GRADS : PLAN_GRADS,
                      &v->grad->data, p->g->params[root->index].offset * sizeof(float), GRAPH_NONE))
        return NULL;
    return v->grad;
}

/* ---- plan functions of rows ---- */

static int prepare(struct plan *p, struct op_plan *op, const struct op_kernels **kernels,
                   struct err *err)
{
    int rc = plan_kernels(p, op->def, op->node, kernels, err);

    if (rc < 0 || (*kernels)->plan == NULL)
        return rc;
    rc = (*kernels)->plan(op, err);
    if (rc < 0)
        return rc;
    if ((*kernels)->free_state == NULL)
        return 0;
    if (!VEC_PUSH(p->calls.states, (struct plan_state){ op->state, (*kernels)->free_state })) {
        (*kernels)->free_state(op->state);
        return plan_no_memory(err);
    }
    return 0;
}

static int prepare_node(struct plan *p, struct plan_node *n, struct err *err)
{
    const struct tensor **in = arena_array(&p->mem, n->n_in, sizeof(*in));
    struct tensor *out = arena_array(&p->mem, n->n_out, sizeof(*out));
    struct op_plan op = { .def = n->def,
                          .node = n->name,
                          .param = n->param,
                          .training = n->runs_bwd,
                          .tf32 = p->types.tf32,
                          .n_in = n->n_in,
                          .n_out = n->n_out,
                          .in = in,
                          .out = out };
    uint32_t k;
    int rc;

    if (in == NULL || out == NULL)
        return plan_no_memory(err);
    for (k = 0; k < n->n_in; k++) {
        if (n->in[k] == GRAPH_NONE)
            continue;
        in[k] = shape_of_value(p, n->in[k]);
        if (in[k] == NULL)
            return plan_no_memory(err);
        if (n->runs_bwd && (plan_needs_grad(p, n, k) || plan_needs_stat(p, n, k)))
            op.want_din |= k < 31 ? OP_IN(k) : OP_IN(31);
    }
    for (k = 0; k < n->n_out; k++) {
        if (n->out[k] != GRAPH_NONE) {
            out[k] = p->values.at[n->out[k]].tensor;
            out[k].data = NULL;
        }
    }
    rc = prepare(p, &op, &n->kernels, err);
    n->state = op.state;
    n->save_bytes = n->lookup == NULL ? op.save_bytes : 0; /* a lookup is the list of rows */
    n->scratch_bytes = op.scratch_bytes;
    return rc;
}

/* ---- calls ---- */

static struct plan_call *new_call(struct plan *p, uint32_t node, uint32_t time)
{
    const struct plan_node *n = &p->nodes.at[node];
    struct plan_call *call = arena_alloc(&p->mem, sizeof(*call));

    if (call == NULL)
        return NULL;
    call->node = node;
    call->time = time;
    call->call.param = n->param;
    call->call.state = n->state;
    call->call.n_in = n->n_in;
    call->call.n_out = n->n_out;
    call->call.stream = n->stream;
    call->call.lookup = n->lookup;
    return call;
}

/* The row-sparse gradient of the table that a node reads. NULL: it reads no table, or passes no
 * gradient to it. */
static const struct packed_rows *rows_of(const struct plan *p, const struct plan_node *n)
{
    const struct plan_value *v;

    if (p->purpose != PLAN_TRAIN || n->n_in == 0 || n->in[0] == GRAPH_NONE)
        return NULL;
    v = &p->values.at[n->in[0]];
    if (v->kind != PLAN_PARAM || !p->g->params[v->index].is_table || !plan_needs_grad(p, n, 0))
        return NULL;
    CHECK(strcmp(n->def->name, "Gather") == 0); /* other ops do not support packed rows */
    if (graph_param_is_remote(p->g, v->index))
        return &p->remote.rows[v->index - p->g->n_params];
    return &p->tables.rows[v->index - p->g->arena.first_table];
}

/* Adds the memory for saved values, which lives from forward to backward, and scratch memory, which
 * lives for the call. */
static bool add_memory(struct plan *p, struct plan_call *call)
{
    struct plan_node *n = &p->nodes.at[call->node];
    uint32_t scratch;

    if (n->save_bytes > 0) {
        if (n->save_block == GRAPH_NONE)
            n->save_block = new_block(p, n->save_bytes, call->time);
        if (n->save_block == GRAPH_NONE ||
            !bind_at(p, PLAN_WORK, &call->call.save, 0, n->save_block))
            return false;
        extend_lifetime(p, n->save_block, call->time);
    }
    if (n->scratch_bytes > 0) {
        scratch = new_block(p, n->scratch_bytes, call->time);
        if (scratch == GRAPH_NONE || !bind_at(p, PLAN_WORK, &call->call.scratch, 0, scratch))
            return false;
    }
    return true;
}

static int add_forward(struct plan *p, uint32_t node, struct err *err)
{
    struct plan_node *n = &p->nodes.at[node];
    struct plan_call *call = new_call(p, node, node);
    const struct tensor **in = arena_array(&p->mem, n->n_in, sizeof(*in));
    const struct tensor **out = arena_array(&p->mem, n->n_out, sizeof(*out));
    uint32_t k;

    if (call == NULL || in == NULL || out == NULL)
        return plan_no_memory(err);
    for (k = 0; k < n->n_in; k++) {
        if (n->in[k] == GRAPH_NONE)
            continue;
        in[k] = value_at(p, n->in[k], node);
        if (in[k] == NULL)
            return plan_no_memory(err);
    }
    for (k = 0; k < n->n_out; k++) {
        /* Output 0 is always present, so that kernels need not test for it. */
        if (n->out[k] == GRAPH_NONE || (k > 0 && !p->values.at[n->out[k]].is_read))
            continue;
        out[k] = value_at(p, n->out[k], node);
        if (out[k] == NULL)
            return plan_no_memory(err);
    }
    call->kernel = n->kernels->fwd;
    call->call.rows = rows_of(p, n);
    call->call.in = in;
    call->call.out = out;
    call->call.number = (uint32_t)p->calls.forward.n;
    if (!add_memory(p, call) || !VEC_PUSH(p->calls.forward, call))
        return plan_no_memory(err);
    if (n->lookup != NULL)
        p->remote.calls[n->lookup - p->remote.reads] = call;
    if (node < p->remote.n_nodes)
        p->remote.n_calls = (uint32_t)p->calls.forward.n;
    return 0;
}

/* Adds the forward values that backward may read. */
static bool add_values_read(struct plan *p, const struct plan_node *n, struct plan_call *call)
{
    const struct tensor **in = arena_array(&p->mem, n->n_in, sizeof(*in));
    const struct tensor **out = arena_array(&p->mem, n->n_out, sizeof(*out));
    uint32_t k;

    if (in == NULL || out == NULL)
        return false;
    for (k = 0; k < n->n_in; k++) {
        if (n->in[k] == GRAPH_NONE)
            continue;
        in[k] = (n->def->bwd_reads & graph_input_bit(k)) != 0 ? value_at(p, n->in[k], call->time)
                                                              : shape_of_value(p, n->in[k]);
        if (in[k] == NULL)
            return false;
    }
    for (k = 0; k < n->n_out; k++) {
        if (n->out[k] == GRAPH_NONE || (k > 0 && !p->values.at[n->out[k]].is_read))
            continue;
        out[k] = (n->def->bwd_reads & (graph_input_bit(k) << 16)) != 0
                     ? value_at(p, n->out[k], call->time)
                     : shape_of_value(p, n->out[k]);
        if (out[k] == NULL)
            return false;
    }
    call->call.in = in;
    call->call.out = out;
    return true;
}

static bool add_output_grads(struct plan *p, const struct plan_node *n, struct plan_call *call)
{
    const struct tensor **dout = arena_array(&p->mem, n->n_out, sizeof(*dout));
    uint32_t k;

    if (dout == NULL)
        return false;
    for (k = 0; k < n->n_out; k++) {
        if (n->out[k] == GRAPH_NONE || !p->values.at[n->out[k]].has_grad)
            continue;
        dout[k] = grad_at(p, n->out[k], call->time);
        if (dout[k] == NULL)
            return false;
    }
    call->call.dout = dout;
    return true;
}

/* ---- gradients to which two inputs of one call contribute ---- */

/* grad += part, with the forward kernel of Add in place. A backward kernel must not write one
 * buffer through two inputs, because the order of its writes is not defined. */
static int add_sum(struct call_builder *m, uint32_t node, uint32_t time, uint32_t value,
                   struct tensor *part)
{
    struct plan *p = m->p;
    const struct op_def *def = op_find(NULL, "Add", GRAPH_OPSET_MIN);
    struct plan_call *call = new_call(p, node, time);
    const struct tensor **io = arena_array(&p->mem, 3, sizeof(*io));
    struct tensor out = { 0 }, wide = *part; /* infer supports only float32 */
    const struct tensor *like[] = { &wide, &wide };
    struct op_infer f = { .def = def,
                          .node = "(gradient sum)",
                          .opset = GRAPH_OPSET_MIN,
                          .n_in = 2,
                          .in = like,
                          .n_out = 1,
                          .out = &out,
                          .mem = &p->mem };
    struct op_plan op = {
        .def = def, .node = f.node, .n_in = 2, .n_out = 1, .in = io, .out = &out
    };
    const struct op_kernels *kernels;
    int rc;

    CHECK(def != NULL && def->in_place);
    f.param = arena_alloc(&p->mem, def->param_bytes);
    if (call == NULL || io == NULL || f.param == NULL)
        return plan_no_memory(m->err);
    io[0] = io[2] = grad_at(p, value, time);
    io[1] = part;
    op.param = f.param;
    wide.dtype = TENSOR_F32;
    rc = def->infer(&f, m->err);
    if (rc < 0)
        return rc;
    out.dtype = part->dtype;
    out.layout = part->layout;
    rc = prepare(p, &op, &kernels, m->err);
    if (rc < 0)
        return rc;
    CHECK(op.save_bytes == 0 && op.scratch_bytes == 0);
    call->kernel = kernels->fwd;
    call->call = (struct op_call){
        .param = f.param, .state = op.state, .n_in = 2, .n_out = 1, .in = io, .out = io + 2
    };
    if (!VEC_PUSH(p->calls.backward, call))
        return plan_no_memory(m->err);
    return 0;
}

static struct tensor *temporary_grad(struct plan *p, uint32_t value, uint32_t time)
{
    const struct plan_value *v = &p->values.at[value];
    struct tensor *t = new_tensor(p, &v->tensor, NULL);
    uint32_t block = new_block(p, tensor_bytes(&v->tensor), time);

    if (t == NULL || block == GRAPH_NONE || !bind_at(p, PLAN_WORK, &t->data, 0, block))
        return NULL;
    return t;
}

/* The tensor that receives the gradient of input k. The gradient of a parameter, or of a value with
 * several readers, is written by the first of them, and the others add to it. *is_temporary: the
 * call writes a temporary tensor, which is then added. */
static struct tensor *input_grad(struct call_builder *m, const struct plan_node *n, uint32_t k,
                                 struct plan_call *call, bool *is_temporary)
{
    struct plan *p = m->p;
    uint32_t root = p->values.at[n->in[k]].grad_root;
    bool twice = m->last_writer[root] == call->node + 1;

    *is_temporary = twice || (p->values.at[root].grad_written && k >= 31);
    if (*is_temporary)
        return temporary_grad(p, n->in[k], call->time);
    if (p->values.at[root].grad_written)
        call->call.din_add |= OP_IN(k);
    p->values.at[root].grad_written = true;
    return grad_at(p, n->in[k], call->time);
}

/* Nodes that share a running average add to one statistic. */
static struct tensor *statistic_at(struct plan *p, struct plan_call *call, uint32_t value,
                                   uint32_t input)
{
    struct plan_value *v = &p->values.at[value];
    struct tensor *t = new_tensor(p, &v->tensor, NULL);

    if (t == NULL || !bind_at(p, PLAN_GRADS, &t->data,
                              p->g->params[v->index].offset * sizeof(float), GRAPH_NONE))
        return NULL;
    if (v->grad_written)
        call->call.din_add |= OP_IN(input);
    v->grad_written = true;
    return t;
}

static int add_input_grads(struct call_builder *m, const struct plan_node *n,
                           struct plan_call *call)
{
    struct plan *p = m->p;
    struct tensor **din = arena_array(&p->mem, n->n_in, sizeof(*din));
    bool *is_temporary = arena_array(&p->mem, n->n_in, sizeof(*is_temporary));
    uint32_t k;
    int rc = 0;

    if (din == NULL || is_temporary == NULL)
        return plan_no_memory(m->err);
    call->call.din = (const struct tensor *const *)din;
    for (k = 0; k < n->n_in; k++) {
        bool stat = plan_needs_stat(p, n, k);

        if (!stat && !plan_needs_grad(p, n, k))
            continue;
        din[k] =
            stat ? statistic_at(p, call, n->in[k], k) : input_grad(m, n, k, call, &is_temporary[k]);
        if (din[k] == NULL)
            return plan_no_memory(m->err);
        m->last_writer[p->values.at[n->in[k]].grad_root] = call->node + 1;
    }
    if (!VEC_PUSH(p->calls.backward, call))
        return plan_no_memory(m->err);
    for (k = 0; k < n->n_in && rc == 0; k++) {
        const struct plan_value *root;

        if (is_temporary[k])
            rc = add_sum(m, call->node, call->time, n->in[k], din[k]);
        root = din[k] != NULL ? &p->values.at[p->values.at[n->in[k]].grad_root] : NULL;
        if (root != NULL && root->kind == PLAN_PARAM)
            m->final[root->index] = (uint32_t)p->calls.backward.n - 1;
    }
    return rc;
}

static int add_backward(struct call_builder *m, uint32_t node)
{
    struct plan *p = m->p;
    const struct plan_node *n = &p->nodes.at[node];
    struct plan_call *call = new_call(p, node, end_of_time(p) - 1 - n->order);

    if (call == NULL)
        return plan_no_memory(m->err);
    call->kernel = n->kernels->bwd;
    call->call.rows = rows_of(p, n);
    if (!add_values_read(p, n, call) || !add_output_grads(p, n, call) || !add_memory(p, call))
        return plan_no_memory(m->err);
    return add_input_grads(m, n, call);
}

/* ---- ranges of final gradients ---- */

/* Gradients of parameters become final approximately in the order of the arena. A range is reported
 * after all ranges before it. No range contains both tables and others. Parameters without a
 * gradient are zero from the start. */
static int add_ready(struct call_builder *m)
{
    struct plan *p = m->p;
    const struct graph *g = p->g;
    uint32_t latest = GRAPH_NONE, i;

    for (i = 0; i < g->n_params && g->params[i].kind == GRAPH_TRAINED; i++) {
        const struct graph_param *q = &g->params[i];
        bool last = i + 1 == g->n_params || g->params[i + 1].kind != GRAPH_TRAINED;
        size_t end = last ? g->arena.trained_floats : g->params[i + 1].offset;
        bool later = m->final[i] != GRAPH_NONE && (latest == GRAPH_NONE || m->final[i] > latest);

        if (m->final[i] == GRAPH_NONE &&
            !VEC_PUSH(p->calls.zeros, (struct plan_span){ q->offset, q->elements }))
            return plan_no_memory(m->err);
        if (later)
            latest = m->final[i];
        if (p->calls.ready.n > 0 && !later && !(q->is_table && i == g->arena.first_table)) {
            p->calls.ready.at[p->calls.ready.n - 1].n += end - q->offset;
            continue;
        }
        if (!VEC_PUSH(p->calls.ready, (struct plan_ready){ latest, q->offset, end - q->offset }))
            return plan_no_memory(m->err);
    }
    return 0;
}

/* ---- the pass ---- */

static void find_read(struct plan *p)
{
    size_t i;
    uint32_t k;

    for (i = 0; i < p->values.n; i++)
        p->values.at[i].is_read = p->values.at[i].kept;
    if (p->loss.weight != GRAPH_NONE)
        p->values.at[p->loss.weight].is_read = true;
    for (k = 0; k < p->n_metrics; k++)
        p->values.at[p->metrics[k].weight].is_read = true;
    for (i = 0; i < p->nodes.n; i++) {
        const struct plan_node *n = &p->nodes.at[i];

        for (k = 0; k < n->n_in; k++)
            if (n->in[k] != GRAPH_NONE)
                p->values.at[n->in[k]].is_read = true;
        for (k = 0; k < n->n_out; k++)
            if (n->out[k] != GRAPH_NONE && n->runs_bwd &&
                (n->def->bwd_reads & (graph_input_bit(k) << 16)) != 0)
                p->values.at[n->out[k]].is_read = true;
    }
}

/* Extends the lifetime of values that are read after the calls. */
static int extend_final_lifetimes(struct plan *p, struct err *err)
{
    size_t i;
    uint32_t k;

    for (i = 0; i < p->values.n; i++) {
        bool is_feed = p->values.at[i].kind == PLAN_FEED;

        if (!p->values.at[i].kept)
            continue;
        if ((is_feed && value_at(p, (uint32_t)i, 0) == NULL) ||
            value_at(p, (uint32_t)i, end_of_time(p)) == NULL)
            return plan_no_memory(err);
    }
    /* Loss and weight are read at the end of forward, metrics at the end of the plan. */
    if (p->loss.value != GRAPH_NONE && value_at(p, p->loss.value, (uint32_t)p->nodes.n) == NULL)
        return plan_no_memory(err);
    if (p->loss.weight != GRAPH_NONE && value_at(p, p->loss.weight, (uint32_t)p->nodes.n) == NULL)
        return plan_no_memory(err);
    for (k = 0; k < p->n_metrics; k++)
        if (value_at(p, p->metrics[k].value, end_of_time(p)) == NULL ||
            value_at(p, p->metrics[k].weight, end_of_time(p)) == NULL)
            return plan_no_memory(err);
    for (k = 0; p->inputs.feed_grads && k < p->inputs.n_feeds; k++)
        if (p->values.at[p->inputs.values[k]].has_grad &&
            grad_at(p, p->inputs.values[k], end_of_time(p)) == NULL)
            return plan_no_memory(err);
    return 0;
}

static bool is_called(const struct plan *p, uint32_t node)
{
    return !p->nodes.at[node].is_alias && !plan_is_empty(p, &p->nodes.at[node]);
}

static int make_calls(struct call_builder *m)
{
    struct plan *p = m->p;
    uint32_t i;
    int rc = 0;

    for (i = 0; i < p->nodes.n; i++)
        m->by_order[p->nodes.at[i].order] = i;
    find_read(p);
    for (i = 0; i < p->nodes.n && rc == 0; i++)
        if (is_called(p, i))
            rc = prepare_node(p, &p->nodes.at[i], m->err);
    for (i = 0; i < p->nodes.n && rc == 0; i++)
        if (is_called(p, i))
            rc = add_forward(p, i, m->err);
    for (i = (uint32_t)p->nodes.n; i-- > 0 && rc == 0;)
        if (p->nodes.at[m->by_order[i]].runs_bwd)
            rc = add_backward(m, m->by_order[i]);
    if (rc == 0)
        rc = extend_final_lifetimes(p, m->err);
    return rc == 0 && p->purpose == PLAN_TRAIN ? add_ready(m) : rc;
}

int plan_calls(struct plan *p, struct err *err)
{
    struct arena mem = { 0 };
    struct call_builder m = { .p = p, .err = err };
    uint32_t n_params = p->g->n_params + p->g->n_remotes, i;
    int rc;

    m.final = arena_array(&mem, n_params, sizeof(*m.final));
    m.by_order = arena_array(&mem, p->nodes.n, sizeof(*m.by_order));
    m.last_writer = arena_array(&mem, p->values.n, sizeof(*m.last_writer));
    p->tables.rows = arena_array(&p->mem, p->g->arena.n_tables, sizeof(*p->tables.rows));
    p->loss.grad = (struct tensor){ .dtype = TENSOR_F32, .data = (void *)(uintptr_t)&one };
    if (m.final == NULL || m.last_writer == NULL || m.by_order == NULL || p->tables.rows == NULL) {
        arena_fini(&mem);
        return plan_no_memory(err);
    }
    for (i = 0; i < n_params; i++)
        m.final[i] = GRAPH_NONE;
    rc = p->device.cuda == NULL || bind_at(p, PLAN_CONSTANTS, &p->loss.grad.data, 0, GRAPH_NONE)
             ? make_calls(&m)
             : plan_no_memory(err);
    arena_fini(&mem);
    return rc;
}
