/* plan_padded_bags.c - the bags of nn.EmbeddingBag with padding_idx: positions without those of one id.
 *
 * PyTorch's exporter writes, for each bag, a Loop over its positions with two values, the position j and
 * the list of the positions whose id is not the padding:
 *
 *     index = Gather(ids, j)
 *     index = If(index < 0, index + rows of the table, index)
 *     list  = If(Not(index = padding), Concat(list, [j]), list)
 *     row   = If(Size(list) = 0, zeros, Reduce(Gather(rows, list), axis 0))
 *
 * The length of the list depends on the data. The planner replaces the list by all positions of the bag,
 * which it notes as a selection. plan_embedding_bags.c reads the notes, and reduces the rows with a mask. The
 * replacement is valid only for that reader, so the readers of the list are compared first, and a node that
 * still reads a selection when the plan is built is refused. */
#include <string.h>

#include "base/err.h"
#include "graph/plan_priv.h"

/* ---- parts of a body ---- */

static const struct graph_node *maker_of(const struct graph_body *body, uint32_t value)
{
    for (uint32_t i = 0; i < body->n_nodes; i++)
        if (body->nodes[i].n_out > 0 && body->nodes[i].out[0] == value)
            return &body->nodes[i];
    return NULL;
}

/* Returns the value whose copy, with another type or not, this value of the body is. */
static uint32_t source_of(const struct graph_body *body, uint32_t value)
{
    const struct graph_node *n = maker_of(body, value);

    while (n != NULL && (op_is_onnx(n->def, "Identity") || op_is_onnx(n->def, "Cast") ||
                         op_is_onnx(n->def, "CastLike"))) {
        value = n->in[0];
        n = maker_of(body, value);
    }
    return value;
}

static const struct graph_node *made_by(const struct graph_body *body, uint32_t value,
                                        const char *op)
{
    const struct graph_node *n = maker_of(body, source_of(body, value));

    return n != NULL && op_is_onnx(n->def, op) ? n : NULL;
}

/* Reads an integer that the body does not compute. Returns false if it is not known. */
static bool read_int(const struct plan_builder *b, const struct graph_body *body, uint32_t value,
                     int64_t *out)
{
    return plan_read_number(b->p, plan_mapped(b, source_of(body, value)), TENSOR_I64, out);
}

static bool is_int(const struct plan_builder *b, const struct graph_body *body, uint32_t value,
                   int64_t expected)
{
    int64_t found;

    return read_int(b, body, value, &found) && found == expected;
}

static bool has_axis_0(const struct graph_node *n)
{
    for (uint32_t i = 0; i < n->n_attrs; i++)
        if (strcmp(n->attrs[i].name, "axis") == 0 && n->attrs[i].i != 0)
            return false;
    return true;
}

/* ---- the loop over the positions of a bag ---- */

/* A Loop whose body matches. The inputs of the body are: iteration, condition, then the position and the
 * list in any order; its outputs: condition, then both in the same order. */
struct filter {
    const struct graph_body *body;
    uint32_t position, list;      /* 0 and 1, or 1 and 0 */
    uint32_t ids;                 /* graph value */
    int64_t padding, table_rows;  /* table_rows 0: negative ids do not count from the end */
    int64_t end;
};

static uint32_t position_in(const struct filter *f)
{
    return f->body->in[2 + f->position];
}

static uint32_t list_in(const struct filter *f)
{
    return f->body->in[2 + f->list];
}

/* index, or If(index < 0, index + n, index) */
static bool read_index(const struct plan_builder *b, struct filter *f, uint32_t value)
{
    const struct graph_node *choice = made_by(f->body, value, "If"), *less, *add, *gather;
    uint32_t index = value;

    f->table_rows = 0;
    if (choice != NULL) {
        if (choice->n_bodies != 2 || choice->n_out != 1)
            return false;
        less = made_by(f->body, choice->in[0], "Less");
        add = made_by(&choice->bodies[0], choice->bodies[0].out[0], "Add");
        index = source_of(&choice->bodies[1], choice->bodies[1].out[0]);
        if (less == NULL || add == NULL || add->in[0] != index || less->in[0] != index ||
            !is_int(b, f->body, less->in[1], 0) ||
            !read_int(b, &choice->bodies[0], add->in[1], &f->table_rows))
            return false;
    }
    gather = made_by(f->body, index, "Gather");
    if (gather == NULL || !has_axis_0(gather) || gather->in[1] != position_in(f))
        return false;
    f->ids = gather->in[0];
    return true;
}

/* Concat(list, [j]) */
static bool appends(const struct filter *f, const struct graph_body *branch)
{
    const struct graph_node *concat = made_by(branch, branch->out[0], "Concat"), *item;

    if (concat == NULL || concat->n_in != 2 || !has_axis_0(concat) || concat->in[0] != list_in(f))
        return false;
    item = made_by(branch, concat->in[1], "Reshape");
    if (item == NULL)
        item = made_by(branch, concat->in[1], "Unsqueeze");
    return item != NULL && item->in[0] == position_in(f);
}

/* The list grows by j if the id is not the padding. */
static bool read_choice(const struct plan_builder *b, struct filter *f)
{
    const struct graph_node *choice = made_by(f->body, f->body->out[1 + f->list], "If"), *n;
    bool is_padding = true;
    uint32_t condition;

    if (choice == NULL || choice->n_bodies != 2 || choice->n_out != 1)
        return false;
    condition = choice->in[0];
    while ((n = made_by(f->body, condition, "Not")) != NULL) {
        is_padding = !is_padding;
        condition = n->in[0];
    }
    n = made_by(f->body, condition, "Equal");
    return n != NULL && read_int(b, f->body, n->in[1], &f->padding) && read_index(b, f, n->in[0]) &&
           source_of(&choice->bodies[!is_padding], choice->bodies[!is_padding].out[0]) ==
               list_in(f) &&
           appends(f, &choice->bodies[is_padding]);
}

/* j grows by 1 as long as it is below the end. */
static bool read_count(const struct plan_builder *b, struct filter *f)
{
    const struct graph_node *less = made_by(f->body, f->body->out[0], "Less"),
                            *add = made_by(f->body, f->body->out[1 + f->position], "Add");

    return less != NULL && add != NULL && source_of(f->body, less->in[0]) == add->out[0] &&
           add->in[0] == position_in(f) && is_int(b, f->body, add->in[1], 1) &&
           read_int(b, f->body, less->in[1], &f->end);
}

static bool read_filter(const struct plan_builder *b, const struct graph_node *from,
                        struct filter *f)
{
    const struct graph_body *body = &from->bodies[0];

    if (!op_is_onnx(from->def, "Loop") || from->n_in != 4 || from->in[0] != GRAPH_NONE ||
        body->n_in != 4 || body->n_out != 3 || from->n_out != 2)
        return false;
    f->body = body;
    for (f->list = 0; f->list < 2; f->list++) {
        f->position = 1 - f->list;
        if (read_choice(b, f) && read_count(b, f))
            return true;
    }
    return false;
}

/* ---- the readers of the list ---- */

typedef bool reader_fn(const struct plan_builder *b, const struct graph_body *outer,
                       const struct graph_node *reader, uint32_t input);

/* Returns whether every reader of a value in the body, and in the bodies of its nodes, is one of these. */
static bool all_readers(const struct plan_builder *b, const struct graph_body *outer,
                        const struct graph_body *body, uint32_t value, reader_fn *is_valid)
{
    for (uint32_t i = 0; i < body->n_out; i++)
        if (body->out[i] == value)
            return false;
    for (uint32_t i = 0; i < body->n_nodes; i++) {
        const struct graph_node *n = &body->nodes[i];

        for (uint32_t k = 0; k < n->n_in; k++)
            if (n->in[k] == value && !is_valid(b, outer, n, k))
                return false;
        for (uint32_t k = 0; k < n->n_bodies; k++)
            if (!all_readers(b, outer, &n->bodies[k], value, is_valid))
                return false;
    }
    return true;
}

static bool is_zero(const struct plan_builder *b, uint32_t value)
{
    const struct graph_value *v = &b->p->g->values[value];

    if (v->kind != VALUE_CONST || v->tensor.dtype != TENSOR_F32 || v->tensor.data == NULL)
        return false;
    for (int64_t i = 0; i < (int64_t)tensor_elements(&v->tensor); i++)
        if (((const float *)v->tensor.data)[i] != 0)
            return false;
    return true;
}

/* If(Size(list) = 0, zeros, ...) */
static bool selects_zeros(const struct plan_builder *b, const struct graph_body *outer,
                          const struct graph_node *reader, uint32_t input)
{
    const struct graph_body *empty;
    const struct graph_node *expand;

    (void)outer;
    (void)input;
    if (!op_is_onnx(reader->def, "If") || reader->n_bodies != 2 || reader->n_out != 1)
        return false;
    empty = &reader->bodies[0];
    expand = made_by(empty, empty->out[0], "Expand");
    return is_zero(b, expand != NULL ? expand->in[0] : source_of(empty, empty->out[0]));
}

static bool compares_with_0(const struct plan_builder *b, const struct graph_body *outer,
                            const struct graph_node *reader, uint32_t input)
{
    if (op_is_onnx(reader->def, "CastLike"))
        return input == 1;
    return op_is_onnx(reader->def, "Equal") && is_int(b, outer, reader->in[1 - input], 0) &&
           all_readers(b, outer, outer, reader->out[0], selects_zeros);
}

static bool reads_rows_or_size(const struct plan_builder *b, const struct graph_body *outer,
                               const struct graph_node *reader, uint32_t input)
{
    if (op_is_onnx(reader->def, "Size"))
        return all_readers(b, outer, outer, reader->out[0], compares_with_0);
    return op_is_onnx(reader->def, "Gather") && input == 1 && has_axis_0(reader);
}

/* Returns the body that contains the node; NULL: none of these nodes does. */
static const struct graph_body *body_of(const struct graph_node *nodes, uint32_t n,
                                        const struct graph_node *node)
{
    const struct graph_body *found = NULL;

    for (uint32_t i = 0; i < n && found == NULL; i++)
        for (uint32_t k = 0; k < nodes[i].n_bodies && found == NULL; k++) {
            const struct graph_body *body = &nodes[i].bodies[k];

            found = node >= body->nodes && node < body->nodes + body->n_nodes
                        ? body
                        : body_of(body->nodes, body->n_nodes, node);
        }
    return found;
}

/* Returns whether the first iteration runs. */
static bool begins(const struct plan_builder *b, const struct graph_node *loop)
{
    int64_t condition;

    return loop->in[1] == GRAPH_NONE ||
           (plan_read_number(b->p, plan_mapped(b, loop->in[1]), TENSOR_BOOL, &condition) &&
            condition != 0);
}

/* ---- selections ---- */

static int add_selection(struct plan_builder *b, const struct graph_node *from,
                         const struct filter *f, int64_t first, struct err *err)
{
    struct plan *p = b->p;
    uint32_t n = (uint32_t)(f->end - first);
    int64_t *positions = arena_array(&p->mem, n, sizeof(*positions));
    struct plan_selection s = { .name = from->name,
                                .ids = b->map[f->ids],
                                .first = first,
                                .end = f->end,
                                .padding = f->padding,
                                .from_end = f->padding - f->table_rows };

    if (positions == NULL)
        return plan_no_memory(err);
    for (uint32_t i = 0; i < n; i++)
        positions[i] = first + i;
    s.positions = plan_add_ints(p, "(positions)", positions, n);
    if (s.positions == GRAPH_NONE || !VEC_PUSH(p->building.selections, s))
        return plan_no_memory(err);
    b->map[from->out[f->list]] = s.positions;
    if (from->out[f->position] == GRAPH_NONE)
        return 0;
    b->map[from->out[f->position]] = plan_add_ints(p, "(position)", &f->end, 0);
    return b->map[from->out[f->position]] != GRAPH_NONE ? 0 : plan_no_memory(err);
}

int plan_padded_bag(struct plan_builder *b, const struct graph_node *from, bool *done,
                    struct err *err)
{
    const struct plan_value *ids, *list;
    const struct graph_body *outer;
    struct filter f;
    int64_t first;

    *done = false;
    if (!read_filter(b, from, &f) || !begins(b, from) || from->out[f.list] == GRAPH_NONE ||
        b->map[f.ids] == GRAPH_NONE || b->map[from->in[2 + f.list]] == GRAPH_NONE)
        return 0;
    ids = &b->p->values.at[b->map[f.ids]];
    list = &b->p->values.at[b->map[from->in[2 + f.list]]];
    outer = body_of(b->p->g->nodes, b->p->g->n_nodes, from);
    if (outer == NULL || !read_int(b, outer, from->in[2 + f.position], &first) || first < 0 ||
        f.end <= first || ids->tensor.shape.rank != 1 || ids->tensor.dtype != TENSOR_I64 ||
        f.end > ids->tensor.shape.dim[0] || tensor_elements(&list->tensor) != 0 ||
        !all_readers(b, outer, outer, from->out[f.list], reads_rows_or_size))
        return 0;
    *done = true;
    return add_selection(b, from, &f, first, err);
}
