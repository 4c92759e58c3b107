/* nodes.c - reads the nodes of a model, and the bodies of If, Loop and Scan.
 *
 * A body sees the names of the enclosing graphs. Its values are in the table of the whole graph, so
 * an edge is an index regardless of the graph it leads to; values that a body reads from outside
 * are recorded at the node as if they were inputs. Bodies are unpacked while ops are counted, and
 * read in the same order later. */
#include "graph/import_priv.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"

static bool is_constant(const Onnx__NodeProto *p)
{
    return import_is_onnx(p->domain) && strcmp(import_text(p->op_type), "Constant") == 0;
}

/* The name of a node in messages. */
static const char *node_name(const Onnx__NodeProto *p)
{
    size_t i;

    if (p->name != NULL && p->name[0] != '\0')
        return p->name;
    for (i = 0; i < p->n_output; i++)
        if (p->output[i][0] != '\0')
            return p->output[i];
    return "(no name)";
}

const struct op_def *graph_find_row(const char *name, uint32_t opset)
{
    const struct op_def *row = graph_control_row(name, opset);

    if (row == NULL)
        row = graph_sequence_row(name, opset);
    if (row == NULL)
        row = graph_lowered_row(name, opset);
    return row != NULL ? row : op_find(NULL, name, opset);
}

/* Rows of domain trainerd are reserved for the passes: a file cannot use them. */
static const struct op_def *find_row(const struct graph *g, const Onnx__NodeProto *p)
{
    return import_is_onnx(p->domain) ? graph_find_row(import_text(p->op_type), g->opset) : NULL;
}

/* ---- counting ops ---- */

static int count_op(struct importer *im, const Onnx__NodeProto *p, struct err *err)
{
    struct graph *g = im->g;
    const char *domain = import_is_onnx(p->domain) ? "" : p->domain,
               *name = import_text(p->op_type);
    uint32_t i;

    for (i = 0; i < g->report.n_ops; i++)
        if (strcmp(g->report.ops[i].name, name) == 0 &&
            strcmp(g->report.ops[i].domain, domain) == 0) {
            g->report.ops[i].n++;
            return 0;
        }
    if ((g->report.n_ops & (g->report.n_ops - 1)) == 0) { /* the capacity is a power of two */
        struct graph_op *more = arena_array(
            &g->mem, g->report.n_ops > 0 ? 2 * (size_t)g->report.n_ops : 1, sizeof(*more));

        if (more == NULL)
            return import_no_memory(err);
        if (g->report.n_ops > 0)
            memcpy(more, g->report.ops, g->report.n_ops * sizeof(*more));
        g->report.ops = more;
    }
    g->report.ops[g->report.n_ops++] =
        (struct graph_op){ .domain = domain,
                           .name = name,
                           .n = 1,
                           .is_supported = is_constant(p) || find_row(g, p) != NULL,
                           .first = node_name(p) };
    return 0;
}

static int survey_nodes(struct importer *im, Onnx__NodeProto *const *nodes, size_t n,
                        uint32_t depth, struct err *err);

static int survey_body(struct importer *im, const Onnx__NodeProto *p, const Onnx__AttributeProto *a,
                       uint32_t depth, struct err *err)
{
    const Onnx__GraphProto *body;
    char what[160];

    snprintf(what, sizeof(what), "%s '%.80s': attribute '%.40s'", p->op_type, node_name(p),
             import_text(a->name));
    if (depth == GRAPH_MAX_DEPTH)
        return err_set(err, ERR_UNSUPPORTED, "%s is a graph nested in %d others; the limit is %d",
                       what, depth, GRAPH_MAX_DEPTH);
    body = (const Onnx__GraphProto *)graph_unpack_part(im->g, &onnx__graph_proto__descriptor, &a->g,
                                                       what, err);
    if (body == NULL)
        return err->code;
    if (!VEC_PUSH(im->bodies, body))
        return import_no_memory(err);
    return survey_nodes(im, body->node, body->n_node, depth + 1, err);
}

static int survey_nodes(struct importer *im, Onnx__NodeProto *const *nodes, size_t n,
                        uint32_t depth, struct err *err)
{
    size_t i, k;
    int rc = 0;

    for (i = 0; i < n && rc == 0; i++) {
        bool constant = is_constant(nodes[i]);

        im->n_nodes += !constant;
        if (im->n_nodes > GRAPH_MAX_NODES)
            return err_set(err, ERR_UNSUPPORTED,
                           "the graph has more than %d nodes, which is the limit", GRAPH_MAX_NODES);
        rc = count_op(im, nodes[i], err);
        if (rc < 0 || constant || !graph_is_control(find_row(im->g, nodes[i])))
            continue;
        for (k = 0; k < nodes[i]->n_attribute && rc == 0; k++)
            if (nodes[i]->attribute[k]->has_g)
                rc = survey_body(im, nodes[i], nodes[i]->attribute[k], depth, err);
    }
    return rc;
}

int import_count_ops(struct importer *im, struct err *err)
{
    struct err own; /* receives the error code of a part that cannot be unpacked */

    return survey_nodes(im, im->proto->node, im->proto->n_node, 0, err != NULL ? err : &own);
}

/* ---- edges ---- */

static int unknown_input(const Onnx__GraphProto *in, const Onnx__NodeProto *p, const char *input,
                         struct err *err)
{
    size_t i, k;

    for (i = 0; i < in->n_node; i++)
        for (k = 0; k < in->node[i]->n_output; k++)
            if (strcmp(in->node[i]->output[k], input) == 0)
                return err_set(err, ERR_INPUT,
                               "%s '%s' reads '%s' before %s '%s' computes it; expected nodes in "
                               "topological order: export the model again",
                               import_text(p->op_type), node_name(p), input,
                               import_text(in->node[i]->op_type), node_name(in->node[i]));
    return err_set(err, ERR_INPUT, "%s '%s' reads '%s', which the graph does not contain",
                   import_text(p->op_type), node_name(p), input);
}

static bool find_name(const struct scope *scope, const char *name, uint64_t *out)
{
    for (; scope != NULL; scope = scope->outer)
        if (map_get(scope->names, name, out))
            return true;
    return false;
}

/* Trailing absent inputs and outputs are not counted as present, but must not exceed the maximum of
 * the op. */
static int check_counts(const struct graph_node *node, const Onnx__NodeProto *p, struct err *err)
{
    const struct op_def *d = node->def;

    if (node->n_in < d->n_in.min || p->n_input > d->n_in.max)
        return err_set(err, ERR_INPUT, "%s '%s' has %zu inputs, expected %" PRIu32 " to %" PRIu32,
                       d->name, node->name, node->n_in < d->n_in.min ? node->n_in : p->n_input,
                       d->n_in.min, d->n_in.max);
    if (node->n_out < d->n_out.min || p->n_output > d->n_out.max)
        return err_set(err, ERR_INPUT, "%s '%s' has %zu outputs, expected %" PRIu32 " to %" PRIu32,
                       d->name, node->name, node->n_out < d->n_out.min ? node->n_out : p->n_output,
                       d->n_out.min, d->n_out.max);
    if (!graph_is_control(d) && (node->n_out == 0 || node->out[0] == GRAPH_NONE))
        return err_set(err, ERR_INPUT, "%s '%s' has no output 0", d->name, node->name);
    return 0;
}

/* Returns whether input i is Loop's trip count or condition, which precede its values. */
static bool is_loop_head(const struct op_def *d, size_t i)
{
    return i < 2 && strcmp(d->name, "Loop") == 0;
}

/* An empty name means an absent input. The first n_in.min inputs of a row are required, and so is
 * every input of a variadic op: kernels and passes read those without testing for an absent one. */
static int check_required(const struct op_def *d, const Onnx__NodeProto *p, struct err *err)
{
    size_t n = d->n_in.max == OP_MANY ? p->n_input : d->n_in.min, i;

    for (i = 0; i < n && i < p->n_input; i++)
        if (p->input[i][0] == '\0' && !is_loop_head(d, i))
            return err_set(err, ERR_INPUT,
                           "%s '%s': input %zu has an empty name, which means that it is absent; expected the "
                           "name of a tensor, since the op requires this input",
                           d->name, node_name(p), i);
    return 0;
}

static bool has_output(const Onnx__NodeProto *p)
{
    size_t i;

    for (i = 0; i < p->n_output; i++)
        if (p->output[i][0] != '\0')
            return true;
    return false;
}

/* `from` is the graph that contains the node. `index` is the node's index in the list of the file's
 * graph. */
static int read_edges(struct importer *im, const struct scope *scope, const Onnx__GraphProto *from,
                      const Onnx__NodeProto *p, uint32_t index, struct graph_node *node,
                      struct err *err)
{
    struct graph *g = im->g;
    uint32_t *in = arena_array(&g->mem, p->n_input, sizeof(*in));
    uint32_t *out = arena_array(&g->mem, p->n_output, sizeof(*out));
    size_t i;
    int rc = 0;

    if (in == NULL || out == NULL)
        return import_no_memory(err);
    for (i = 0; i < p->n_input; i++) {
        uint64_t id = GRAPH_NONE;

        if (p->input[i][0] != '\0' && !find_name(scope, p->input[i], &id))
            return unknown_input(from, p, p->input[i], err);
        in[i] = (uint32_t)id;
    }
    for (i = 0; i < p->n_output && rc == 0; i++) {
        struct graph_value v = { .kind = scope->outer == NULL ? VALUE_NODE : VALUE_INNER,
                                 .index = index,
                                 .initializer = GRAPH_NONE,
                                 .identity = GRAPH_NONE };

        const char *name = p->output[i];
        uint64_t shadowed;

        out[i] = GRAPH_NONE;
        /* Kernels always write output 0, so it needs a value even if no node reads it. */
        if (i == 0 && name[0] == '\0' && has_output(p) && !graph_is_control(node->def))
            name = arena_printf(&g->mem, "(unnamed %" PRIu32 ")", g->n_values);
        if (name == NULL)
            return import_no_memory(err);
        if (find_name(scope->outer, name, &shadowed))
            return err_set(err, ERR_INPUT,
                           "%s '%s' in a nested graph computes '%s', and so does an enclosing graph; "
                           "expected unique names: rename one of them",
                           node->def->name, node->name, name);
        if (name[0] != '\0')
            rc = import_add_value(im, scope, name, v, &out[i], err);
    }
    node->in = in;
    node->out = out;
    node->n_in = (uint32_t)p->n_input;
    node->n_out = (uint32_t)p->n_output;
    /* Trailing absent ones are removed: BatchNormalization detects training form by the number of
     * its outputs. */
    while (node->n_in > 0 && in[node->n_in - 1] == GRAPH_NONE)
        node->n_in--;
    while (node->n_out > 0 && out[node->n_out - 1] == GRAPH_NONE)
        node->n_out--;
    return rc;
}

static int read_constant(struct importer *im, const struct scope *scope, const Onnx__NodeProto *p,
                         struct err *err)
{
    struct graph_value v = { .kind = VALUE_CONST,
                             .initializer = GRAPH_NONE,
                             .identity = GRAPH_NONE };
    uint32_t id;
    int rc;

    if (p->n_output != 1)
        return err_set(err, ERR_INPUT, "Constant '%s' has %zu outputs, expected 1", node_name(p),
                       p->n_output);
    rc = graph_read_constant(&im->src, p, node_name(p), &v.tensor, err);
    return rc < 0 ? rc : import_add_value(im, scope, p->output[0], v, &id, err);
}

/* ---- bodies ---- */

static int read_list(struct importer *im, const struct scope *scope, const Onnx__GraphProto *from,
                     struct graph_node **out, uint32_t *n_out, struct err *err);

static int name_edges(struct importer *im, const struct scope *scope, const Onnx__GraphProto *p,
                      struct graph_body *body, uint32_t *in, struct err *err)
{
    size_t i;
    int rc = 0;

    for (i = 0; i < p->n_input && rc == 0; i++) {
        struct graph_value v = { .kind = VALUE_INNER,
                                 .initializer = GRAPH_NONE,
                                 .identity = GRAPH_NONE };

        rc = import_add_value(im, scope, p->input[i]->name, v, &in[i], err);
    }
    body->in = in;
    body->n_in = (uint32_t)p->n_input;
    return rc;
}

static int read_body(struct importer *im, const struct scope *outer, struct graph_body *body,
                     struct err *err)
{
    struct graph *g = im->g;
    const Onnx__GraphProto *p;
    struct map names = { 0 };
    const struct scope scope = { .names = &names, .outer = outer };
    uint32_t *in, *out;
    size_t i;
    int rc;

    CHECK(im->next_body < im->bodies.n);
    p = im->bodies.at[im->next_body++];
    in = arena_array(&g->mem, p->n_input, sizeof(*in));
    out = arena_array(&g->mem, p->n_output, sizeof(*out));
    if (in == NULL || out == NULL)
        return import_no_memory(err);
    rc = import_initializers(im, p, &scope, true, err);
    if (rc == 0)
        rc = name_edges(im, &scope, p, body, in, err);
    if (rc == 0)
        rc = read_list(im, &scope, p, &body->nodes, &body->n_nodes, err);
    for (i = 0; i < p->n_output && rc == 0; i++) {
        uint64_t id;

        if (!find_name(&scope, import_text(p->output[i]->name), &id))
            rc = err_set(err, ERR_INPUT, "no node computes output '%s' of the nested graph",
                         import_text(p->output[i]->name));
        else
            out[i] = (uint32_t)id;
    }
    body->out = out;
    body->n_out = (uint32_t)p->n_output;
    map_fini(&names);
    return rc;
}

static int compare_u32(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

struct ids {
    uint32_t *at;
    size_t n, cap;
};

static bool add_outer(struct ids *list, const uint32_t *values, uint32_t n, uint32_t first_inner)
{
    uint32_t i;

    for (i = 0; i < n; i++)
        if (values[i] < first_inner && !VEC_PUSH(*list, values[i]))
            return false;
    return true;
}

/* Values with a lower index than the first value of the bodies come from outside. */
static int find_captured(struct importer *im, struct graph_node *node, uint32_t first_inner,
                         struct err *err)
{
    struct ids list = { 0 };
    uint32_t *captured;
    uint32_t i, k;
    size_t n = 0, j;
    bool ok = true;

    for (i = 0; i < node->n_bodies && ok; i++) {
        const struct graph_body *body = &node->bodies[i];

        ok = add_outer(&list, body->out, body->n_out, first_inner);
        for (k = 0; k < body->n_nodes && ok; k++)
            ok = add_outer(&list, body->nodes[k].in, body->nodes[k].n_in, first_inner) &&
                 add_outer(&list, body->nodes[k].captured, body->nodes[k].n_captured, first_inner);
    }
    captured = ok ? arena_array(&im->g->mem, list.n, sizeof(*captured)) : NULL;
    if (captured == NULL) {
        VEC_FINI(list);
        return import_no_memory(err);
    }
    if (list.n > 0)
        qsort(list.at, list.n, sizeof(*list.at), compare_u32);
    for (j = 0; j < list.n; j++)
        if (n == 0 || captured[n - 1] != list.at[j])
            captured[n++] = list.at[j];
    node->captured = captured;
    node->n_captured = (uint32_t)n;
    VEC_FINI(list);
    return 0;
}

/* Stores the bodies in the order of the row's attributes, regardless of their order in the file. */
static int read_bodies(struct importer *im, const struct scope *scope, const Onnx__NodeProto *p,
                       struct graph_node *node, struct err *err)
{
    bool is_if = strcmp(node->def->name, "If") == 0;
    uint32_t n = is_if ? 2 : 1, first_inner = im->g->n_values, have = 0;
    struct graph_body *bodies = arena_array(&im->g->mem, n, sizeof(*bodies));
    size_t i;
    int rc = 0;

    if (bodies == NULL)
        return import_no_memory(err);
    for (i = 0; i < p->n_attribute && rc == 0; i++) {
        const Onnx__AttributeProto *a = p->attribute[i];
        uint32_t at = is_if && strcmp(a->name, "else_branch") == 0;

        if (!a->has_g)
            continue;
        if (strcmp(a->name, node->def->attrs[at]) != 0)
            return err_set(err, ERR_INPUT, "%s '%s': attribute '%s' is a graph", node->def->name,
                           node->name, a->name);
        rc = read_body(im, scope, &bodies[at], err);
        have |= 1u << at;
    }
    if (rc == 0 && have != (1u << n) - 1)
        rc = err_set(err, ERR_INPUT, "expected the attribute%s '%s'%s%s%s", is_if ? "s" : "",
                     node->def->attrs[0], is_if ? " and '" : "", is_if ? node->def->attrs[1] : "",
                     is_if ? "'" : "");
    node->bodies = bodies;
    node->n_bodies = n;
    if (rc == 0)
        rc = find_captured(im, node, first_inner, err);
    return rc < 0 ? err_wrap(err, rc, "%s '%s'", node->def->name, node->name) : 0;
}

/* ---- nodes of one graph ---- */

/* Export writes a body unchanged, so it must not contain a node that inference has to switch
 * off. */
static int check_inner(const struct graph_node *node, struct err *err)
{
    if (!node->def->random && node->def->stat == 0)
        return 0;
    return err_set(err, ERR_UNSUPPORTED,
                   "%s '%s' is inside an If, Loop or Scan, where %s: move it outside",
                   node->def->name, node->name,
                   node->def->random && strcmp(node->def->name, "Dropout") != 0
                       ? "each iteration would draw the same numbers"
                       : "it could not be switched to inference at export");
}

static int wrong_body(const struct graph_node *node, const struct graph_body *body,
                      const char *expected, struct err *err)
{
    return err_set(
        err, ERR_INPUT,
        "%s '%s' with %" PRIu32 " inputs and %" PRIu32 " outputs has a nested graph with "
        "%" PRIu32 " and %" PRIu32 "; expected %s",
        node->def->name, node->name, node->n_in, node->n_out, body->n_in, body->n_out, expected);
}

/* Validates that the inputs and outputs of the bodies match those of the node; the file may omit
 * trailing ones of either. */
static int check_bodies(const struct graph_node *node, struct err *err)
{
    const struct graph_body *body = &node->bodies[0];
    int64_t scanned = 0;
    uint32_t i;

    if (node->n_bodies == 2) {
        for (i = 0; i < 2; i++)
            if (node->bodies[i].n_in != 0 || node->bodies[i].n_out < node->n_out)
                return wrong_body(node, &node->bodies[i], "no inputs, and as many outputs", err);
        return 0;
    }
    if (strcmp(node->def->name, "Loop") == 0) {
        if (body->n_in < 2 || (body->n_in > 2 ? body->n_in != node->n_in : node->n_in > 2) ||
            body->n_out < body->n_in - 1 || body->n_out < node->n_out + 1)
            return wrong_body(node, body,
                              "the inputs iteration number, condition and loop-carried values, and "
                              "the outputs condition, loop-carried values and scan outputs",
                              err);
        return 0;
    }
    for (i = 0; i < node->n_attrs; i++)
        if (strcmp(node->attrs[i].name, "num_scan_inputs") == 0)
            scanned = node->attrs[i].i;
    if (scanned < 1 || scanned > node->n_in || body->n_in != node->n_in ||
        body->n_out < node->n_in - (uint32_t)scanned || body->n_out < node->n_out)
        return wrong_body(node, body,
                          "as many inputs, num_scan_inputs of them scanned, and outputs "
                          "for the state variables and the scan outputs",
                          err);
    return 0;
}

static size_t count_names(char *const *names, size_t n)
{
    while (n > 0 && names[n - 1][0] == '\0')
        n--;
    return n;
}

/* Returns whether the row allows the attributes and the numbers of inputs and outputs of the node. */
static bool has_form(const Onnx__NodeProto *p, const struct op_def *row)
{
    for (size_t i = 0; i < p->n_attribute; i++)
        if (!op_has_attr(row, import_text(p->attribute[i]->name)))
            return false;
    return count_names(p->input, p->n_input) >= row->n_in.min && p->n_input <= row->n_in.max &&
           count_names(p->output, p->n_output) >= row->n_out.min && p->n_output <= row->n_out.max;
}

/* The opset next to that of the model, a later one if there is one, whose form of the op the node has; 0: none, or the
 * node has the form of the model's opset. */
static uint32_t opset_of_form(const struct graph *g, const struct graph_node *node,
                              const Onnx__NodeProto *p)
{
    const struct op_def *row;
    uint32_t opset;

    if (has_form(p, node->def))
        return 0;
    for (opset = g->opset + 1; opset <= GRAPH_OPSET_MAX; opset++)
        if ((row = graph_find_row(node->def->name, opset)) != NULL && has_form(p, row))
            return opset;
    for (opset = g->opset - 1; opset >= GRAPH_OPSET_MIN; opset--)
        if ((row = graph_find_row(node->def->name, opset)) != NULL && has_form(p, row))
            return opset;
    return 0;
}

/* Appends to the error of a node which other opset it is of, if it is of one. Returns rc. */
static int name_opset(const struct graph *g, const struct graph_node *node,
                      const Onnx__NodeProto *p, int rc, struct err *err)
{
    uint32_t opset = rc == ERR_INPUT || rc == ERR_UNSUPPORTED ? opset_of_form(g, node, p) : 0;
    struct err own;

    if (opset == 0 || err == NULL)
        return rc;
    own = *err;
    return err_set(err, rc, "%s; the model has opset %" PRIu32 ", and the node is of opset %" PRIu32
                            ": export the model with opset %" PRIu32,
                   own.text, g->opset, opset, opset);
}

static int read_node(struct importer *im, const struct scope *scope, const Onnx__GraphProto *from,
                     size_t i, uint32_t index, struct graph_node *node, struct err *err)
{
    const Onnx__NodeProto *p = from->node[i];
    int rc;

    node->name = node_name(p);
    node->def = find_row(im->g, p);
    node->proto = (uint32_t)i;
    node->call = im->trains ? graph_fx_text(p) : NULL;
    node->stops_gradient = im->trains && graph_is_detach(p);
    node->stream = node->def->random ? im->streams++ : 0;
    rc = scope->outer != NULL ? check_inner(node, err) : 0;
    if (rc == 0)
        rc = graph_read_attrs(&im->src, p, node, err);
    /* A body sees values computed before its node, but not the outputs of the node itself. */
    if (rc == 0 && graph_is_control(node->def))
        rc = read_bodies(im, scope, p, node, err);
    if (rc == 0)
        rc = read_edges(im, scope, from, p, index, node, err);
    if (rc == 0)
        rc = check_required(node->def, p, err);
    if (rc == 0)
        rc = check_counts(node, p, err);
    rc = name_opset(im->g, node, p, rc, err);
    return rc == 0 && graph_is_control(node->def) ? check_bodies(node, err) : rc;
}

static int read_list(struct importer *im, const struct scope *scope, const Onnx__GraphProto *from,
                     struct graph_node **out, uint32_t *n_out, struct err *err)
{
    struct graph_node *nodes = arena_array(&im->g->mem, from->n_node, sizeof(*nodes));
    uint32_t n = 0;
    size_t i;
    int rc = 0;

    if (nodes == NULL)
        return import_no_memory(err);
    for (i = 0; i < from->n_node && rc == 0; i++) {
        if (is_constant(from->node[i]))
            rc = read_constant(im, scope, from->node[i], err);
        else
            rc = read_node(im, scope, from, i, n, &nodes[n], err), n++;
    }
    *out = nodes;
    *n_out = n;
    return rc;
}

int import_nodes(struct importer *im, const struct scope *scope, struct err *err)
{
    return read_list(im, scope, im->proto, &im->g->nodes, &im->g->n_nodes, err);
}
