/* plan_node.c - adds single nodes to a plan: inference and constant folding. */
#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "graph/plan_priv.h"
#include "tensor/narrow.h"

/* Total size of the folded constants of a plan; further nodes are computed in every run. */
static const size_t max_fold_bytes = (size_t)1 << 30;

static int check_output(const struct op_infer *f, uint32_t i, struct err *err)
{
    const struct tensor *t = &f->out[i];
    char shape[192];

    CHECK(t->dtype != TENSOR_NONE);
    if (plan_is_too_large(t))
        return op_error(f, ERR_INPUT, err, "output %" PRIu32 " of shape %s is too large", i,
                        shape_print(&t->shape, shape, sizeof(shape)));
    return 0;
}

/* Returns whether an input has a type that most rows do not support although ONNX allows it. */
static bool has_rare_type(const struct op_infer *f)
{
    uint32_t i;

    for (i = 0; i < f->n_in; i++)
        if (f->in[i] != NULL && f->in[i]->dtype != TENSOR_F32 && f->in[i]->dtype != TENSOR_I64 &&
            f->in[i]->dtype != TENSOR_BOOL)
            return true;
    return false;
}

/* Dropout before opset 12: the file does not state whether it trains. PLAN_RUN executes it in
 * inference form. */
static bool is_old_dropout(const struct op_def *def)
{
    return def->random && def->until != 0;
}

static int set_code(struct err *err, int code)
{
    if (err != NULL)
        err->code = code;
    return code;
}

/* Refuses types of 8, 4 and 2 bits, except in Cast, which converts them, and in ops that only move
 * elements. No other row supports them, and training does not need them. */
static int refuse_narrow(const struct plan *p, const struct op_infer *f, struct err *err)
{
    static const char *const movers[] = { "Cast", "CastLike", "Concat", "Expand", "Flatten", "Gather",
                                          "Identity", "Reshape", "Shape", "Size", "Slice", "Split",
                                          "Squeeze", "Tile", "Transpose", "Unsqueeze" };
    enum tensor_dtype t = TENSOR_NONE;
    size_t i;

    for (i = 0; i < f->n_in; i++)
        if (f->in[i] != NULL && tensor_is_narrow(f->in[i]->dtype))
            t = f->in[i]->dtype;
    for (i = 0; i < f->n_out; i++)
        if (tensor_is_narrow(f->out[i].dtype))
            t = f->out[i].dtype;
    if (t == TENSOR_NONE)
        return 0;
    if (p->purpose != PLAN_RUN)
        return op_error(f, ERR_UNSUPPORTED, err,
                        "type %s is not supported in training, only by trainerctl run",
                        tensor_dtype_name(t));
    for (i = 0; i < COUNT_OF(movers); i++)
        if (op_is_onnx(f->def, movers[i]))
            return 0;
    return op_error(f, ERR_UNSUPPORTED, err, "type %s is not supported; expected a wider type: insert Cast or "
                    "DequantizeLinear before it", tensor_dtype_name(t));
}

int plan_infer_node(struct plan *p, struct plan_node *n, struct tensor **out, struct err *err)
{
    const struct tensor **in = arena_array(&p->mem, n->n_in, sizeof(*in));
    struct op_infer f = { .def = n->def,
                          .node = n->name,
                          .opset = p->g->opset,
                          .training =
                              p->training && !(p->purpose == PLAN_RUN && is_old_dropout(n->def)),
                          .attrs = n->attrs,
                          .n_attrs = n->n_attrs,
                          .n_in = n->n_in,
                          .in = in,
                          .n_out = n->n_out,
                          .mem = &p->mem };
    uint32_t i;
    int rc;

    f.out = arena_array(&p->mem, n->n_out, sizeof(*f.out));
    f.param = arena_alloc(&p->mem, n->def->param_bytes);
    if (in == NULL || f.out == NULL || f.param == NULL)
        return plan_no_memory(err);
    for (i = 0; i < n->n_in; i++)
        in[i] = n->in[i] != GRAPH_NONE ? &p->values.at[n->in[i]].tensor : NULL;
    rc = plan_folds_double(p, n) ? plan_infer_double(n, &f, err) : n->def->infer(&f, err);
    rc = plan_refuse_double(p, n, rc, err);
    if (rc == 0)
        rc = refuse_narrow(p, &f, err);
    for (i = 0; i < n->n_out && rc == 0; i++)
        rc = check_output(&f, i, err);
    if (rc == ERR_INPUT && has_rare_type(&f))
        rc = set_code(err, ERR_UNSUPPORTED);
    if (rc < 0)
        return rc;
    n->param = f.param;
    n->flops = n->def->flops != NULL ? n->def->flops(&f) : (double)tensor_elements(&f.out[0]);
    *out = f.out;
    return 0;
}

int plan_add_node(struct plan *p, struct plan_node *n, const char *const *out_names,
                  struct err *err)
{
    struct tensor *out;
    uint32_t i;
    int rc = plan_infer_node(p, n, &out, err);

    if (rc < 0)
        return rc;
    n->save_block = GRAPH_NONE;
    n->out = arena_array(&p->mem, n->n_out, sizeof(*n->out));
    if (n->out == NULL)
        return plan_no_memory(err);
    for (i = 0; i < n->n_out; i++) {
        n->out[i] = GRAPH_NONE;
        if (out_names[i] == NULL || out_names[i][0] == '\0')
            continue;
        n->out[i] = plan_add_value(p, out_names[i], PLAN_MADE, (uint32_t)p->nodes.n, &out[i]);
        if (n->out[i] == GRAPH_NONE)
            return plan_no_memory(err);
    }
    return VEC_PUSH(p->nodes, *n) ? 0 : plan_no_memory(err);
}

/* ---- constant folding ---- */

/* Returns whether the node can be folded. Nodes that require channels-last cannot, because layouts
 * are selected later. */
static bool can_fold(const struct plan *p, const struct plan_node *n)
{
    size_t bytes = 0, limit = max_fold_bytes - p->building.folded_bytes;
    uint32_t i;

    if (n->def->random || n->def->layout == OP_LAYOUT_CHANNELS ||
        (n->n_in == 0 && !n->def->of_shape))
        return false;
    for (i = 0; i < n->n_in && !n->def->of_shape; i++) {
        const struct plan_value *v = n->in[i] != GRAPH_NONE ? &p->values.at[n->in[i]] : NULL;

        if (v == NULL || (n->def->of_type & graph_input_bit(i)) != 0)
            continue;
        if (!plan_is_known(v))
            return false;
        if (v->kind == PLAN_FEED) /* folded to determine shapes, not to save work */
            limit = PLAN_MAX_VALUES * sizeof(int64_t);
    }
    for (i = 0; i < n->n_out; i++)
        if (n->out[i] != GRAPH_NONE)
            bytes += tensor_bytes(&p->values.at[n->out[i]].tensor);
    return bytes <= limit;
}

static int run_folded(struct plan *p, const struct plan_node *n, struct arena *mem, struct err *err)
{
    static const struct op_run run = { .loss_scale = 1.0f };
    const struct tensor **in = arena_array(mem, n->n_in, sizeof(*in));
    const struct tensor **out = arena_array(mem, n->n_out, sizeof(*out));
    struct tensor *outs = arena_array(mem, n->n_out, sizeof(*outs));
    struct op_plan op = { .def = n->def,
                          .node = n->name,
                          .param = n->param,
                          .n_in = n->n_in,
                          .n_out = n->n_out,
                          .in = in,
                          .out = outs };
    struct op_call c = {
        .param = n->param, .n_in = n->n_in, .n_out = n->n_out, .in = in, .out = out, .run = &run
    };
    uint32_t i;
    int rc = 0;

    if (in == NULL || out == NULL || outs == NULL)
        return plan_no_memory(err);
    for (i = 0; i < n->n_in; i++)
        in[i] = n->in[i] != GRAPH_NONE ? &p->values.at[n->in[i]].tensor : NULL;
    for (i = 0; i < n->n_out; i++) {
        if (n->out[i] == GRAPH_NONE)
            continue;
        outs[i] = p->values.at[n->out[i]].tensor;
        out[i] = &outs[i];
    }
    if (n->def->cpu.plan != NULL)
        rc = n->def->cpu.plan(&op, err);
    if (rc < 0)
        return rc;
    c.state = op.state;
    /* The arena aligns to 16 bytes, kernels require 64. */
    c.save = arena_alloc(mem, op.save_bytes + 64);
    c.scratch = arena_alloc(mem, op.scratch_bytes + 64);
    if (c.save == NULL || c.scratch == NULL)
        rc = plan_no_memory(err);
    c.save = op.save_bytes > 0 ? (void *)(((uintptr_t)c.save + 63) / 64 * 64) : NULL;
    c.scratch = (void *)(((uintptr_t)c.scratch + 63) / 64 * 64);
    if (rc == 0)
        rc = n->def->cpu.fwd(&c, err);
    if (n->def->cpu.free_state != NULL)
        n->def->cpu.free_state(op.state);
    return rc;
}

static int fold(struct plan *p, struct plan_node *n, struct err *err)
{
    struct arena mem = { 0 };
    uint32_t i;
    int rc = 0;

    for (i = 0; i < n->n_out; i++) {
        struct plan_value *v;

        if (n->out[i] == GRAPH_NONE)
            continue;
        v = &p->values.at[n->out[i]];
        v->tensor.data = plan_fold_alloc(p, tensor_bytes(&v->tensor));
        if (v->tensor.data == NULL)
            return plan_no_memory(err);
        p->building.folded_bytes += tensor_bytes(&v->tensor);
    }
    if (!plan_is_empty(p, n))
        rc = plan_folds_double(p, n) ? plan_compute_double(p, n, err) : run_folded(p, n, &mem, err);
    arena_fini(&mem);
    if (rc < 0)
        return err_wrap(err, rc, "fold %s '%s'", n->def->name, n->name);
    for (i = 0; i < n->n_out; i++)
        if (n->out[i] != GRAPH_NONE)
            p->values.at[n->out[i]].kind = PLAN_CONST;
    return 0;
}

int plan_fold_node(struct plan *p, struct plan_node *n, struct err *err)
{
    if (!can_fold(p, n))
        return plan_check_double(p, n, err);
    p->nodes.n--; /* only its result remains */
    return fold(p, n, err);
}

/* ---- nodes added by the planner ---- */

int plan_add_op(struct plan *p, const char *op, const char *name, const struct op_attr *attrs,
                uint32_t n_attrs, const uint32_t *in, uint32_t n_in, uint32_t *out, uint32_t n_out,
                struct err *err)
{
    struct plan_node n = {
        .def = op_find(NULL, op, p->g->opset), .name = name, .n_in = n_in, .n_out = n_out
    };
    struct op_attr *copy = arena_array(&p->mem, n_attrs, sizeof(*copy));
    const char **names = arena_array(&p->mem, n_out, sizeof(*names));
    uint32_t i;
    int rc;

    n.in = arena_array(&p->mem, n_in, sizeof(*n.in));
    if (copy == NULL || names == NULL || n.in == NULL)
        return plan_no_memory(err);
    CHECK(n.def != NULL);
    memcpy(n.in, in, n_in * sizeof(*in));
    for (i = 0; i < n_out; i++)
        names[i] = name;
    if (n_attrs > 0)
        memcpy(copy, attrs, n_attrs * sizeof(*copy));
    n.attrs = copy;
    n.n_attrs = n_attrs;
    rc = plan_add_node(p, &n, names, err);
    if (rc < 0)
        return rc;
    memcpy(out, n.out, n_out * sizeof(*out));
    rc = plan_mark_samples(p, &n, err);
    return rc < 0 ? rc : plan_fold_node(p, &n, err);
}

int plan_move_axis(struct plan *p, const char *name, uint32_t *value, int64_t axis, bool insert,
                   struct err *err)
{
    const struct shape s = p->values.at[*value].tensor.shape;
    int64_t dim[TENSOR_MAX_RANK + 1];
    uint32_t in[2] = { *value, GRAPH_NONE }, n = 0, k;

    if (insert && s.rank == TENSOR_MAX_RANK)
        return err_set(err, ERR_UNSUPPORTED, "'%s' has %d dimensions and would get one more", name,
                       TENSOR_MAX_RANK);
    for (k = 0; k < s.rank; k++) {
        if (insert && k == (uint64_t)axis)
            dim[n++] = 1;
        if (insert || k != (uint64_t)axis)
            dim[n++] = s.dim[k];
    }
    if (insert && (uint64_t)axis == s.rank)
        dim[n++] = 1;
    in[1] = n > 0 ? plan_add_ints(p, "(shape)", dim, n) : GRAPH_NONE;
    if (n == 0) { /* no dimensions: an empty list */
        struct tensor none = { .dtype = TENSOR_I64, .shape = { .rank = 1 }, .data = dim };

        none.data = arena_alloc(&p->mem, sizeof(*dim));
        in[1] = none.data != NULL ? plan_add_value(p, "(shape)", PLAN_CONST, 0, &none) : GRAPH_NONE;
    }
    if (in[1] == GRAPH_NONE)
        return plan_no_memory(err);
    return plan_add_op(p, "Reshape", name, NULL, 0, in, 2, value, 1, err);
}

int plan_mark_and_fold(struct plan *p, struct plan_node *n, struct err *err)
{
    int rc = plan_mark_samples(p, n, err);

    return rc < 0 ? rc : plan_fold_node(p, n, err);
}
