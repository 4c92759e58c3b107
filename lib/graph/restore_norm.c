/* restore_norm.c - replaces batch normalization that a file expresses as arithmetic by the op.
 *
 * Keras and TensorFlow (tf2onnx, jax2onnx) write the inference form of a batch normalization with
 * elementary ops on initializers:
 *
 *   r = 1 / sqrt(variance + epsilon)      s = r * gamma
 *   y = x * s + (beta - mean * s)         or  y = (x - mean) * s + beta
 *
 * If this form were trained, the averages would not change, or would even become weights. Its nodes
 * in the imported graph are therefore replaced by a BatchNormalization in inference form, which
 * norm_form.c handles like any other (model.batch_norm). The message that export writes keeps the
 * arithmetic, with the new numbers. Channels are the last dimension, where vectors without a
 * Reshape broadcast, or dimension 1. With channels last the node works on [rows, channels], so that
 * the statistics are over all other dimensions. The arithmetic does not contain the momentum of the
 * averages; the default of Keras and Flax is used, 0.99.
 *
 * Files of PyTorch are not changed: PyTorch writes the op, and arithmetic only for modules whose
 * statistics never change (FrozenBatchNorm2d). */
#include "graph/graph_priv.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

static const float default_momentum = 0.99f;

enum { INTERIOR_MAX = 24 };

struct norm_match { /* a normalization: its initializers and nodes */
    uint32_t x, mean, variance, gamma, beta; /* values; gamma, beta: GRAPH_NONE if absent */
    float epsilon;
    bool first;                      /* channels are dimension 1 */
    uint32_t interior[INTERIOR_MAX]; /* nodes other than the last */
    uint32_t n_interior;
    uint32_t rank; /* rank of a reshaped vector; 0: no vector was reshaped */
};

struct restorer {
    struct graph *g;
    uint32_t *match_at; /* [n_nodes] at the last node of a match: its index in `list` + 1; 0:
                        none */
    VEC(struct norm_match) list;
    uint32_t *readers; /* [n_values] number of readers */
    struct err *err;
};

/* The node that computes a value, if it is this op; the node is recorded as a part of `f`. NULL
 * otherwise. */
static const struct graph_node *made_by(const struct graph *g, struct norm_match *f, uint32_t value,
                                        const char *op)
{
    const struct graph_value *v;

    if (value == GRAPH_NONE || f->n_interior == INTERIOR_MAX)
        return NULL;
    v = &g->values[value];
    if (v->kind != VALUE_NODE || !op_is_onnx(g->nodes[v->index].def, op))
        return NULL;
    f->interior[f->n_interior++] = v->index;
    return &g->nodes[v->index];
}

static bool is_number(const struct graph *g, uint32_t value, float *out)
{
    const struct tensor *t;

    if (value == GRAPH_NONE || g->values[value].kind != VALUE_CONST)
        return false;
    t = &g->values[value].tensor;
    if (t->dtype != TENSOR_F32 || tensor_elements(t) != 1)
        return false;
    *out = *(const float *)t->data;
    return true;
}

/* Determines the dimension of the channels from a Reshape's target [1, C, 1, 1] or [1, 1, 1, C].
 * Returns false for other targets. */
static bool set_channel_axis(struct norm_match *f, const struct tensor *target, int64_t c)
{
    const int64_t *dim = target->data;
    uint32_t rank = (uint32_t)target->shape.dim[0], k;
    bool first;

    if (target->dtype != TENSOR_I64 || target->shape.rank != 1 || rank < 1 ||
        rank > TENSOR_MAX_RANK)
        return false;
    first = rank > 2 && dim[rank - 1] != c;
    for (k = 0; k < rank; k++)
        if (dim[k] != (k == (first ? 1 : rank - 1) ? c : 1))
            return false;
    if (f->rank != 0 && (f->rank != rank || f->first != first))
        return false;
    f->rank = rank;
    f->first = first;
    return true;
}

/* Returns whether the value is a vector [C] of the file, directly or reshaped. */
static bool is_vector(const struct graph *g, struct norm_match *f, uint32_t value, uint32_t *out)
{
    uint32_t n = f->n_interior, from = value;
    const struct graph_node *reshape = made_by(g, f, value, "Reshape");
    const struct graph_value *v;

    if (reshape != NULL)
        from = reshape->in[0];
    if (from == GRAPH_NONE)
        return false;
    v = &g->values[from];
    if (v->kind != VALUE_CONST || v->initializer == GRAPH_NONE || v->tensor.dtype != TENSOR_F32 ||
        v->tensor.shape.rank != 1 || v->tensor.shape.dim[0] < 1 ||
        (reshape != NULL &&
         (reshape->n_in < 2 || reshape->in[1] == GRAPH_NONE ||
          g->values[reshape->in[1]].kind != VALUE_CONST ||
          !set_channel_axis(f, &g->values[reshape->in[1]].tensor, v->tensor.shape.dim[0])))) {
        f->n_interior = n;
        return false;
    }
    *out = from;
    return true;
}

/* r = 1 / sqrt(variance + epsilon) */
static bool is_inverse_deviation(const struct graph *g, struct norm_match *f, uint32_t value)
{
    uint32_t n = f->n_interior, k;
    const struct graph_node *over = made_by(g, f, value, "Reciprocal"), *root, *add;
    float one = 1;
    bool is = true;

    if (over == NULL) {
        over = made_by(g, f, value, "Div");
        is = over != NULL && is_number(g, over->in[0], &one) && one == 1;
    }
    root = is ? made_by(g, f, over->in[over->n_in - 1], "Sqrt") : NULL;
    add = root != NULL ? made_by(g, f, root->in[0], "Add") : NULL;
    for (k = 0; add != NULL && k < 2; k++)
        if (is_number(g, add->in[k], &f->epsilon) && f->epsilon > 0 &&
            is_vector(g, f, add->in[!k], &f->variance))
            return true;
    f->n_interior = n;
    return false;
}

/* s = r * gamma, or s = r */
static bool is_scale(const struct graph *g, struct norm_match *f, uint32_t value)
{
    uint32_t n = f->n_interior, k;
    const struct graph_node *mul;

    f->gamma = GRAPH_NONE;
    if (is_inverse_deviation(g, f, value))
        return true;
    mul = made_by(g, f, value, "Mul");
    for (k = 0; mul != NULL && k < 2; k++)
        if (is_inverse_deviation(g, f, mul->in[k]) && is_vector(g, f, mul->in[!k], &f->gamma))
            return true;
    f->n_interior = n;
    f->gamma = GRAPH_NONE;
    return false;
}

/* mean * s, or -mean * s */
static bool is_shift(const struct graph *g, struct norm_match *f, uint32_t value, uint32_t scale,
                     bool negated)
{
    uint32_t n = f->n_interior, k;
    const struct graph_node *mul = made_by(g, f, value, "Mul"), *neg;

    for (k = 0; mul != NULL && k < 2; k++) {
        uint32_t mean = mul->in[!k];

        if (mul->in[k] != scale)
            continue;
        neg = negated ? made_by(g, f, mean, "Neg") : NULL;
        if ((neg != NULL) == negated && is_vector(g, f, neg != NULL ? neg->in[0] : mean, &f->mean))
            return true;
    }
    f->n_interior = n;
    return false;
}

/* beta - mean * s */
static bool is_offset(const struct graph *g, struct norm_match *f, uint32_t value, uint32_t scale)
{
    uint32_t n = f->n_interior, k;
    const struct graph_node *sum;

    f->beta = GRAPH_NONE;
    if (is_shift(g, f, value, scale, true))
        return true;
    sum = made_by(g, f, value, "Sub");
    if (sum != NULL && is_shift(g, f, sum->in[1], scale, false) &&
        is_vector(g, f, sum->in[0], &f->beta))
        return true;
    f->n_interior = n;
    sum = made_by(g, f, value, "Add");
    for (k = 0; sum != NULL && k < 2; k++)
        if (is_shift(g, f, sum->in[k], scale, true) && is_vector(g, f, sum->in[!k], &f->beta))
            return true;
    f->n_interior = n;
    return false;
}

/* x * s + offset, where `mul` computes x * s */
static bool is_scaled(const struct graph *g, struct norm_match *f, const struct graph_node *mul,
                      uint32_t offset)
{
    uint32_t n = f->n_interior, k;

    for (k = 0; k < 2; k++) {
        f->n_interior = n;
        if (is_scale(g, f, mul->in[k]) && is_offset(g, f, offset, mul->in[k])) {
            f->x = mul->in[!k];
            return true;
        }
    }
    return false;
}

/* (x - mean) * s + beta, where `mul` computes (x - mean) * s */
static bool is_centered(const struct graph *g, struct norm_match *f, const struct graph_node *mul,
                        uint32_t offset)
{
    uint32_t n = f->n_interior, k;

    for (k = 0; k < 2; k++) {
        const struct graph_node *sub;

        f->n_interior = n;
        sub = made_by(g, f, mul->in[!k], "Sub");
        if (sub != NULL && is_scale(g, f, mul->in[k]) && is_vector(g, f, sub->in[1], &f->mean) &&
            is_vector(g, f, offset, &f->beta)) {
            f->x = sub->in[0];
            return true;
        }
    }
    return false;
}

static int64_t length(const struct graph *g, uint32_t value)
{
    return g->values[value].tensor.shape.dim[0];
}

/* All vectors must have one length, mean and variance must differ, and x must be computed or
 * fed. */
static bool is_complete(const struct graph *g, const struct norm_match *f)
{
    int64_t c = length(g, f->mean);

    return length(g, f->variance) == c && f->mean != f->variance && f->x != GRAPH_NONE &&
           (f->gamma == GRAPH_NONE || length(g, f->gamma) == c) &&
           (f->beta == GRAPH_NONE || length(g, f->beta) == c) &&
           (g->values[f->x].kind == VALUE_NODE || g->values[f->x].kind == VALUE_INPUT);
}

static bool recognise(const struct graph *g, const struct graph_node *add, struct norm_match *f)
{
    uint32_t k;

    if (add == NULL || !op_is_onnx(add->def, "Add") || add->in[0] == GRAPH_NONE ||
        add->in[1] == GRAPH_NONE)
        return false;
    for (k = 0; k < 2; k++) {
        const struct graph_node *mul;

        *f = (struct norm_match){ .gamma = GRAPH_NONE, .beta = GRAPH_NONE, .x = GRAPH_NONE };
        mul = made_by(g, f, add->in[k], "Mul");
        if (mul != NULL &&
            (is_scaled(g, f, mul, add->in[!k]) || is_centered(g, f, mul, add->in[!k])))
            return is_complete(g, f);
    }
    return false;
}

/* ---- replacement ---- */

static uint32_t add_value(struct restorer *r, const struct graph_node *of, const char *what,
                          struct graph_value v)
{
    struct graph *g = r->g;

    v.name = arena_printf(&g->mem, "(%s of %s)", what, of->name);
    v.initializer = v.identity = GRAPH_NONE;
    if (v.name == NULL || !vec_grow((void **)&g->values, &g->cap_values, (size_t)g->n_values + 1,
                                    sizeof(*g->values))) {
        (void)err_set(r->err, ERR_NOMEM, "batch normalisation: out of memory");
        return GRAPH_NONE;
    }
    switch (map_put(&g->by_name, v.name, g->n_values)) {
    case MAP_NOMEM:
        (void)err_set(r->err, ERR_NOMEM, "batch normalisation: out of memory");
        return GRAPH_NONE;
    case MAP_EXISTED:
        (void)err_set(r->err, ERR_INPUT, "two tensors of the graph have the name '%s'", v.name);
        return GRAPH_NONE;
    case MAP_NEW:
        break;
    }
    g->values[g->n_values] = v;
    return g->n_values++;
}

/* A constant [C] with all elements equal to `number`. */
static uint32_t add_vector(struct restorer *r, const struct graph_node *of, const char *what,
                           int64_t c, float number)
{
    struct graph_value v = { .kind = VALUE_CONST,
                             .tensor = { .dtype = TENSOR_F32, .shape = shape_of(1, c) } };
    float *data = arena_array(&r->g->mem, (size_t)c, sizeof(*data));
    int64_t i;

    if (data == NULL) {
        (void)err_set(r->err, ERR_NOMEM, "batch normalisation: out of memory");
        return GRAPH_NONE;
    }
    for (i = 0; i < c; i++)
        data[i] = number;
    v.tensor.data = data;
    return add_value(r, of, what, v);
}

static uint32_t add_target(struct restorer *r, const struct graph_node *of, int64_t c)
{
    struct graph_value v = { .kind = VALUE_CONST,
                             .tensor = { .dtype = TENSOR_I64, .shape = shape_of(1, (int64_t)2) } };
    int64_t *dim = arena_array(&r->g->mem, 2, sizeof(*dim));

    if (dim == NULL) {
        (void)err_set(r->err, ERR_NOMEM, "batch normalisation: out of memory");
        return GRAPH_NONE;
    }
    dim[0] = -1;
    dim[1] = c;
    v.tensor.data = dim;
    return add_value(r, of, "target", v);
}

/* Sets *node to a node with one output that replaces `of`. */
static bool set_node(struct restorer *r, const struct graph_node *of, const struct op_def *def,
                     const uint32_t *in, uint32_t n_in, uint32_t out, struct graph_node *node)
{
    uint32_t *edges = arena_array(&r->g->mem, (size_t)n_in + 1, sizeof(*edges));
    uint32_t i;

    if (edges == NULL) {
        (void)err_set(r->err, ERR_NOMEM, "batch normalisation: out of memory");
        return false;
    }
    for (i = 0; i < n_in; i++)
        edges[i] = in[i];
    edges[n_in] = out;
    *node = (struct graph_node){ .name = of->name, .def = def, .in = edges, .n_in = n_in,
                                 .out = edges + n_in, .n_out = 1, .proto = of->proto };
    return out != GRAPH_NONE;
}

static bool set_norm(struct restorer *r, const struct graph_node *of, const struct norm_match *f,
                     uint32_t x, uint32_t y, struct graph_node *node)
{
    int64_t c = length(r->g, f->mean);
    struct op_attr *attrs = arena_array(&r->g->mem, 2, sizeof(*attrs));
    uint32_t in[] = { x, f->gamma, f->beta, f->mean, f->variance };

    if (f->gamma == GRAPH_NONE)
        in[1] = add_vector(r, of, "scale", c, 1);
    if (f->beta == GRAPH_NONE)
        in[2] = add_vector(r, of, "bias", c, 0);
    if (attrs == NULL)
        (void)err_set(r->err, ERR_NOMEM, "batch normalisation: out of memory");
    if (attrs == NULL || in[1] == GRAPH_NONE || in[2] == GRAPH_NONE)
        return false;
    attrs[0] = (struct op_attr){ .name = "epsilon", .type = OP_ATTR_FLOAT, .f = f->epsilon };
    attrs[1] = (struct op_attr){ .name = "momentum", .type = OP_ATTR_FLOAT, .f = default_momentum };
    if (!set_node(r, of, op_find(NULL, "BatchNormalization", 14), in, 5, y, node))
        return false;
    node->attrs = attrs;
    node->n_attrs = 2;
    node->is_restored = true;
    return true;
}

enum { REPLACING_MAX = 4 };

/* Writes the nodes that replace `of`, the last node of the arithmetic. Returns their number; 0: an
 * error. */
static uint32_t replace(struct restorer *r, const struct graph_node *of, const struct norm_match *f,
                        struct graph_node out[REPLACING_MAX])
{
    const struct op_def *reshape = op_find(NULL, "Reshape", 14),
                        *shape = op_find(NULL, "Shape", 13);
    struct graph_value made = { .kind = VALUE_NODE };
    uint32_t y = of->out[0], sizes, rows, normal, target, pair[2];

    if (f->first)
        return set_norm(r, of, f, f->x, y, &out[0]) ? 1 : 0;
    sizes = add_value(r, of, "shape", made);
    rows = sizes != GRAPH_NONE ? add_value(r, of, "rows", made) : GRAPH_NONE;
    normal = rows != GRAPH_NONE ? add_value(r, of, "normal", made) : GRAPH_NONE;
    target = normal != GRAPH_NONE ? add_target(r, of, length(r->g, f->mean)) : GRAPH_NONE;
    if (target == GRAPH_NONE || !set_node(r, of, shape, &f->x, 1, sizes, &out[0]))
        return 0;
    pair[0] = f->x;
    pair[1] = target;
    if (!set_node(r, of, reshape, pair, 2, rows, &out[1]) ||
        !set_norm(r, of, f, rows, normal, &out[2]))
        return 0;
    pair[0] = normal;
    pair[1] = sizes;
    return set_node(r, of, reshape, pair, 2, y, &out[3]) ? 4 : 0;
}

/* ---- rebuilding the graph ---- */

static void count_readers(struct restorer *r)
{
    const struct graph *g = r->g;
    uint32_t i, k;

    for (i = 0; i < g->n_nodes; i++) {
        for (k = 0; k < g->nodes[i].n_in; k++)
            if (g->nodes[i].in[k] != GRAPH_NONE)
                r->readers[g->nodes[i].in[k]]++;
        for (k = 0; k < g->nodes[i].n_captured; k++)
            r->readers[g->nodes[i].captured[k]]++;
    }
    for (i = 0; i < g->io.n_outputs; i++)
        r->readers[g->io.output_values[i]]++;
}

static void release_inputs(struct restorer *r, const struct graph_node *n)
{
    uint32_t k;

    for (k = 0; k < n->n_in; k++)
        if (n->in[k] != GRAPH_NONE)
            r->readers[n->in[k]]--;
}

/* Marks dead nodes: the last node of each normalization, and its other nodes that have no other
 * reader. */
static void find_dead(struct restorer *r, bool *is_interior, bool *is_dead)
{
    const struct graph *g = r->g;
    uint32_t i, k;

    for (i = 0; i < g->n_nodes; i++) {
        if (r->match_at[i] == 0)
            continue;
        is_dead[i] = true;
        release_inputs(r, &g->nodes[i]);
        r->readers[r->list.at[r->match_at[i] - 1].x]++; /* read by the replacement */
        for (k = 0; k < r->list.at[r->match_at[i] - 1].n_interior; k++)
            is_interior[r->list.at[r->match_at[i] - 1].interior[k]] = true;
    }
    for (i = g->n_nodes; i-- > 0;) {
        const struct graph_node *n = &g->nodes[i];

        if (is_dead[i] || !is_interior[i] || n->n_out != 1 || r->readers[n->out[0]] > 0)
            continue;
        is_dead[i] = true;
        release_inputs(r, n);
        g->values[n->out[0]].kind = VALUE_INNER; /* no node computes it any more */
    }
}

static int rebuild(struct restorer *r, const bool *is_dead)
{
    struct graph *g = r->g;
    uint32_t old = g->n_nodes, n = 0, i, k;
    struct graph_node *nodes =
        arena_array(&g->mem, old + REPLACING_MAX * r->list.n, sizeof(*nodes));

    if (nodes == NULL)
        return err_set(r->err, ERR_NOMEM, "batch normalisation: out of memory");
    for (i = 0; i < old; i++) {
        uint32_t more = 0;

        if (r->match_at[i] != 0) {
            more = replace(r, &g->nodes[i], &r->list.at[r->match_at[i] - 1], &nodes[n]);
            if (more == 0)
                return r->err->code;
        } else if (!is_dead[i]) {
            nodes[n] = g->nodes[i];
            more = 1;
        }
        n += more;
    }
    g->nodes = nodes;
    g->n_nodes = n;
    for (i = 0; i < n; i++)
        for (k = 0; k < nodes[i].n_out; k++)
            if (nodes[i].out[k] != GRAPH_NONE)
                g->values[nodes[i].out[k]].index = i;
    return graph_note(g, r->err,
                      "%zu batch normalisations that the file expresses as arithmetic were recognised (first "
                      "'%s', averages '%s'); the file does not state the momentum of their running "
                      "averages; the default %g is used",
                      r->list.n, g->values[r->list.at[0].mean].name,
                      g->values[r->list.at[0].variance].name, (double)default_momentum);
}

int graph_restore_norms(struct graph *g, struct err *err)
{
    struct arena mem = { 0 };
    struct err own = { 0 };
    struct restorer r = { .g = g, .err = err != NULL ? err : &own };
    struct norm_match f;
    bool *is_interior, *is_dead;
    uint32_t i;
    int rc = 0;

    if (strncmp(g->file.producer, "pytorch", 7) == 0)
        return 0;
    r.match_at = arena_array(&mem, g->n_nodes, sizeof(*r.match_at));
    r.readers = arena_array(&mem, g->n_values, sizeof(*r.readers));
    is_interior = arena_array(&mem, g->n_nodes, sizeof(*is_interior));
    is_dead = arena_array(&mem, g->n_nodes, sizeof(*is_dead));
    if (r.match_at == NULL || r.readers == NULL || is_interior == NULL || is_dead == NULL)
        rc = err_set(err, ERR_NOMEM, "batch normalisation: out of memory");
    for (i = 0; i < g->n_nodes && rc == 0; i++) {
        if (!recognise(g, &g->nodes[i], &f))
            continue;
        if (!VEC_PUSH(r.list, f))
            rc = err_set(err, ERR_NOMEM, "batch normalisation: out of memory");
        else
            r.match_at[i] = (uint32_t)r.list.n;
    }
    if (rc == 0 && r.list.n > 0) {
        count_readers(&r);
        find_dead(&r, is_interior, is_dead);
        rc = rebuild(&r, is_dead);
    }
    VEC_FINI(r.list);
    arena_fini(&mem);
    return rc;
}
