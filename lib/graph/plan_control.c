/* plan_control.c - expands If, Loop and Scan into the nodes of their bodies.
 *
 * Shapes, and all values that depend only on shapes, are known at this time, so conditions and
 * iteration counts that do not depend on data are known. The node is replaced by the selected
 * branch, or by one copy of the body per iteration. Scan outputs get a leading axis per iteration
 * and are concatenated; scan inputs are split. */
#include <inttypes.h>
#include <string.h>

#include "base/err.h"
#include "graph/plan_priv.h"

enum { ITERATIONS_MAX = 65536 /* limit per plan */ };

static int not_known(const struct graph_node *n, const char *what, struct err *err)
{
    return err_set(
        err, ERR_UNSUPPORTED,
        "%s '%s': %s depends on the data; expected a value that is known once the shapes are%s",
        n->def->name, n->name, what,
        strcmp(n->def->name, "If") == 0
            ? ": compute both branches and select with Where (torch.where in place of torch.cond)"
            : "");
}

/* Adds the nodes of a body once. */
static int add_body(struct plan_builder *b, const struct graph_node *from,
                    const struct graph_body *body, struct err *err)
{
    struct plan *p = b->p;
    uint32_t i;
    int rc = 0;

    if (p->building.n_expanded++ == ITERATIONS_MAX)
        return err_set(err, ERR_UNSUPPORTED,
                       "%s '%s': expanding the loops needs more than %d iterations",
                       from->def->name, from->name, ITERATIONS_MAX);
    for (i = 0; i < body->n_nodes && rc == 0; i++)
        rc = b->add_node(b, &body->nodes[i], err);
    if (rc == 0 && p->nodes.n > GRAPH_MAX_NODES)
        rc = err_set(err, ERR_UNSUPPORTED,
                     "%s '%s': the expanded graph has more than %d nodes, which is the limit",
                     from->def->name, from->name, GRAPH_MAX_NODES);
    return rc;
}

static int normalize_axis(const struct graph_node *from, int64_t *axis, uint32_t rank,
                          struct err *err)
{
    if (*axis < -(int64_t)rank || *axis >= (int64_t)rank)
        return err_set(err, ERR_INPUT,
                       "%s '%s': axis %" PRId64 " of a tensor with %" PRIu32 " dimensions",
                       from->def->name, from->name, *axis, rank);
    *axis += *axis < 0 ? rank : 0;
    return 0;
}

/* Concatenates the parts [n], one from each iteration, along a new axis. */
static int stack_parts(struct plan_builder *b, const struct graph_node *from, uint32_t to,
                       uint32_t *parts, uint32_t n, int64_t axis, bool backwards, struct err *err)
{
    struct plan *p = b->p;
    const char *name = p->g->values[to].name;
    struct op_attr attr = { .name = "axis", .type = OP_ATTR_INT };
    uint32_t i;
    bool done = false;
    int rc;

    if (n == 0)
        return err_set(err, ERR_UNSUPPORTED,
                       "%s '%s' runs 0 iterations; its output '%s' would be empty", from->def->name,
                       from->name, name);
    for (i = 0; i < n; i++)
        if (plan_is_sequence(parts[i]))
            return plan_refuse_sequence(from, name, err);
    rc = normalize_axis(from, &axis, p->values.at[parts[0]].tensor.shape.rank + 1, err);
    if (rc == 0 && axis == 0 && !backwards)
        rc = plan_embedding_bags(p, name, parts, n, true, &b->map[to], &done, err);
    if (done)
        return rc;
    for (i = 0; i < n && rc == 0; i++)
        rc = plan_move_axis(p, name, &parts[i], axis, true, err);
    for (i = 0; backwards && i < n / 2; i++) {
        uint32_t swap = parts[i];

        parts[i] = parts[n - 1 - i];
        parts[n - 1 - i] = swap;
    }
    attr.i = axis;
    return rc == 0 ? plan_add_op(p, "Concat", name, &attr, 1, parts, n, &b->map[to], 1, err) : rc;
}

/* ---- If ---- */

static int expand_branch(struct plan_builder *b, const struct graph_node *from, struct err *err)
{
    const struct graph_body *body;
    int64_t condition;
    uint32_t i;
    int rc;

    if (from->in[0] == GRAPH_NONE ||
        !plan_read_number(b->p, plan_mapped(b, from->in[0]), TENSOR_BOOL, &condition))
        return not_known(from, "its condition", err);
    body = &from->bodies[condition ? 0 : 1];
    rc = add_body(b, from, body, err);
    for (i = 0; i < from->n_out && rc == 0; i++)
        if (from->out[i] != GRAPH_NONE)
            b->map[from->out[i]] = b->map[body->out[i]];
    return rc;
}

/* ---- Loop and Scan ---- */

struct iterations {
    uint32_t n, cap;
    uint32_t n_carried, n_stacked; /* loop-carried values; scan outputs */
    uint32_t first_out;            /* number of body outputs before the loop-carried values */
    uint32_t *stacked;             /* [n_stacked][cap] values of the scan outputs */
};

static int init_iterations(struct plan_builder *b, const struct graph_node *from,
                           uint32_t first_out, uint32_t cap, struct iterations *t, struct err *err)
{
    t->first_out = first_out;
    t->n_carried = graph_n_carried(from);
    t->n_stacked = from->bodies[0].n_out - first_out - t->n_carried;
    t->cap = cap;
    t->stacked = arena_array(&b->p->mem, (size_t)t->n_stacked * cap, sizeof(*t->stacked));
    return t->stacked != NULL ? 0 : plan_no_memory(err);
}

/* Adds one iteration; its loop-carried results become the inputs of the next. */
static int add_iteration(struct plan_builder *b, const struct graph_node *from, uint32_t first_in,
                         struct iterations *t, struct err *err)
{
    const struct graph_body *body = &from->bodies[0];
    uint32_t *next, i;
    int rc = add_body(b, from, body, err);

    if (rc < 0)
        return rc;
    next = arena_array(&b->p->mem, t->n_carried, sizeof(*next));
    if (next == NULL)
        return plan_no_memory(err);
    for (i = 0; i < t->n_stacked; i++)
        t->stacked[(size_t)i * t->cap + t->n] = b->map[body->out[t->first_out + t->n_carried + i]];
    for (i = 0; i < t->n_carried; i++) /* all are read before one is written: they may be
                                          permuted */
        next[i] = b->map[body->out[t->first_out + i]];
    for (i = 0; i < t->n_carried; i++)
        b->map[body->in[first_in + i]] = next[i];
    t->n++;
    return 0;
}

static int set_loop_inputs(struct plan_builder *b, const struct graph_node *from, uint32_t first_in,
                           const struct iterations *t, struct err *err)
{
    uint32_t i;

    for (i = 0; i < t->n_carried; i++) {
        uint32_t at = first_in + i;
        uint32_t value = at < from->n_in ? plan_mapped(b, from->in[at]) : GRAPH_NONE;

        if (value == GRAPH_NONE)
            return err_set(err, ERR_INPUT, "%s '%s': input %" PRIu32 " is missing", from->def->name,
                           from->name, at);
        b->map[from->bodies[0].in[at]] = value;
    }
    return 0;
}

static void set_loop_outputs(struct plan_builder *b, const struct graph_node *from,
                             uint32_t first_in, const struct iterations *t)
{
    uint32_t i;

    for (i = 0; i < t->n_carried && i < from->n_out; i++)
        if (from->out[i] != GRAPH_NONE)
            b->map[from->out[i]] = b->map[from->bodies[0].in[first_in + i]];
}

/* Adds iterations of a Loop until the trip count is reached or its condition is false. */
static int iterate_loop(struct plan_builder *b, const struct graph_node *from, int64_t trips,
                        struct iterations *t, struct err *err)
{
    const struct graph_body *body = &from->bodies[0];
    struct plan *p = b->p;
    int64_t condition_holds = 1;
    int rc = 0;

    if (from->n_in > 1 && from->in[1] != GRAPH_NONE &&
        !plan_read_number(p, plan_mapped(b, from->in[1]), TENSOR_BOOL, &condition_holds))
        return not_known(from, "its condition", err);
    while (rc == 0 && condition_holds && (int64_t)t->n < trips) {
        static uint8_t yes = 1;
        const struct tensor condition = { .dtype = TENSOR_BOOL, .data = &yes };
        const int64_t iteration = t->n;

        if (t->n == t->cap)
            return err_set(err, ERR_UNSUPPORTED, "Loop '%s' runs more than %d iterations",
                           from->name, ITERATIONS_MAX);
        b->map[body->in[0]] = plan_add_ints(p, "(iteration)", &iteration, 0);
        b->map[body->in[1]] = plan_add_value(p, "(condition)", PLAN_CONST, 0, &condition);
        if (b->map[body->in[0]] == GRAPH_NONE || b->map[body->in[1]] == GRAPH_NONE)
            return plan_no_memory(err);
        rc = add_iteration(b, from, 2, t, err);
        if (rc == 0 && !plan_read_number(p, b->map[body->out[0]], TENSOR_BOOL, &condition_holds))
            rc = not_known(from, "the condition of its body", err);
    }
    return rc;
}

static int unroll_loop(struct plan_builder *b, const struct graph_node *from, struct err *err)
{
    struct iterations t = { 0 };
    int64_t trips = INT64_MAX;
    bool done;
    uint32_t i;
    int rc = plan_padded_bag(b, from, &done, err);

    if (done)
        return rc;
    if (from->n_in > 0 && from->in[0] != GRAPH_NONE &&
        !plan_read_number(b->p, plan_mapped(b, from->in[0]), TENSOR_I64, &trips))
        return not_known(from, "its trip count", err);
    rc = init_iterations(
        b, from, 1, trips < ITERATIONS_MAX ? (uint32_t)(trips > 0 ? trips : 0) : ITERATIONS_MAX, &t,
        err);
    if (rc == 0)
        rc = set_loop_inputs(b, from, 2, &t, err);
    if (rc == 0)
        rc = iterate_loop(b, from, trips, &t, err);
    if (rc < 0)
        return rc;
    set_loop_outputs(b, from, 2, &t);
    for (i = 0; i < t.n_stacked && t.n_carried + i < from->n_out && rc == 0; i++)
        if (from->out[t.n_carried + i] != GRAPH_NONE)
            rc = stack_parts(b, from, from->out[t.n_carried + i], t.stacked + (size_t)i * t.cap,
                             t.n, 0, false, err);
    return rc;
}

/* Element i of a list attribute; 0 if it is absent. */
static int64_t attr_at(const struct graph_node *from, const char *name, uint32_t i)
{
    uint32_t k;

    for (k = 0; k < from->n_attrs; k++)
        if (strcmp(from->attrs[k].name, name) == 0 && i < from->attrs[k].n &&
            from->attrs[k].ints != NULL)
            return from->attrs[k].ints[i];
    return 0;
}

/* Splits scan input i into n parts without the scan axis, in the order of the iterations. (A Split
 * writes its gradient once in backward; one Slice per iteration would write it n times.) */
static int split_scan_input(struct plan_builder *b, const struct graph_node *from, uint32_t i,
                            uint32_t first, uint32_t n, uint32_t *parts, struct err *err)
{
    struct plan *p = b->p;
    uint32_t value = plan_mapped(b, from->in[first + i]), k;
    struct op_attr attr = { .name = "axis", .type = OP_ATTR_INT };
    int64_t *sizes = arena_array(&p->mem, n, sizeof(*sizes));
    uint32_t in[2] = { value, GRAPH_NONE };
    int rc;

    if (sizes == NULL)
        return plan_no_memory(err);
    attr.i = attr_at(from, "scan_input_axes", i);
    rc = normalize_axis(from, &attr.i, p->values.at[value].tensor.shape.rank, err);
    if (rc < 0)
        return rc;
    for (k = 0; k < n; k++)
        sizes[k] = 1;
    in[1] = plan_add_ints(p, "(split)", sizes, n);
    if (in[1] == GRAPH_NONE)
        return plan_no_memory(err);
    rc =
        plan_add_op(p, "Split", from->name, &attr, 1, in, p->g->opset >= 13 ? 2 : 1, parts, n, err);
    for (k = 0; k < n && rc == 0; k++)
        rc = plan_move_axis(p, from->name, &parts[k], attr.i, false, err);
    for (k = 0; rc == 0 && attr_at(from, "scan_input_directions", i) == 1 && k < n / 2; k++) {
        uint32_t swap = parts[k];

        parts[k] = parts[n - 1 - k];
        parts[n - 1 - k] = swap;
    }
    return rc;
}

/* The common length of the scan inputs. */
static int scan_length(struct plan_builder *b, const struct graph_node *from, uint32_t first,
                       uint32_t *out, struct err *err)
{
    uint32_t i;

    *out = 0;
    for (i = 0; first + i < from->n_in; i++) {
        const struct shape *s;
        int64_t axis = attr_at(from, "scan_input_axes", i);
        int rc;

        if (from->in[first + i] == GRAPH_NONE)
            return err_set(err, ERR_INPUT, "Scan '%s': input %" PRIu32 " is missing", from->name,
                           first + i);
        if (plan_is_sequence(plan_mapped(b, from->in[first + i])))
            return plan_refuse_sequence(from, b->p->g->values[from->in[first + i]].name, err);
        s = &b->p->values.at[plan_mapped(b, from->in[first + i])].tensor.shape;
        rc = normalize_axis(from, &axis, s->rank, err);
        if (rc < 0)
            return rc;
        if (s->dim[axis] > ITERATIONS_MAX || (i > 0 && s->dim[axis] != (int64_t)*out))
            return err_set(err, ERR_UNSUPPORTED,
                           "Scan '%s' has %" PRId64 " elements along the scan axis of input %" PRIu32
                           "; expected the same number for each input, and at most %d",
                           from->name, s->dim[axis], first + i, ITERATIONS_MAX);
        *out = (uint32_t)s->dim[axis];
    }
    return 0;
}

static int unroll_scan(struct plan_builder *b, const struct graph_node *from, struct err *err)
{
    const struct graph_body *body = &from->bodies[0];
    uint32_t first = graph_n_carried(from), n_scanned = from->n_in - first, length, i, iteration;
    struct iterations t = { 0 };
    uint32_t *parts;
    int rc = scan_length(b, from, first, &length, err);

    if (rc == 0)
        rc = init_iterations(b, from, 0, length, &t, err);
    if (rc == 0)
        rc = set_loop_inputs(b, from, 0, &t, err);
    if (rc < 0)
        return rc;
    parts = arena_array(&b->p->mem, (size_t)n_scanned * length, sizeof(*parts));
    if (parts == NULL)
        return plan_no_memory(err);
    for (i = 0; i < n_scanned && length > 0 && rc == 0; i++)
        rc = split_scan_input(b, from, i, first, length, parts + (size_t)i * length, err);
    for (iteration = 0; iteration < length && rc == 0; iteration++) {
        for (i = 0; i < n_scanned; i++)
            b->map[body->in[first + i]] = parts[(size_t)i * length + iteration];
        rc = add_iteration(b, from, 0, &t, err);
    }
    if (rc < 0)
        return rc;
    set_loop_outputs(b, from, 0, &t);
    for (i = 0; i < t.n_stacked && t.n_carried + i < from->n_out && rc == 0; i++)
        if (from->out[t.n_carried + i] != GRAPH_NONE)
            rc = stack_parts(b, from, from->out[t.n_carried + i], t.stacked + (size_t)i * t.cap,
                             t.n, attr_at(from, "scan_output_axes", i),
                             attr_at(from, "scan_output_directions", i) == 1, err);
    return rc;
}

int plan_control(struct plan_builder *b, const struct graph_node *from, struct err *err)
{
    if (from->n_bodies == 2)
        return expand_branch(b, from, err);
    return strcmp(from->def->name, "Loop") == 0 ? unroll_loop(b, from, err)
                                                : unroll_scan(b, from, err);
}
