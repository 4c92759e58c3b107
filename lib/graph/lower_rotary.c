/* lower_rotary.c - lowers RotaryEmbedding (23) to the row trainerd.Rotary (op/attention/rotary.c).
 *
 *   X           [batch, heads, rows, columns], or [batch, rows, heads * columns] with num_heads,
 *               which is reshaped to [batch, rows, heads, columns]
 *   cos, sin    [positions, half], from which position_ids [batch, rows] selects rows; without it
 *               [batch, rows, half]
 * cos and sin have no gradient: training them is refused. rotary_embedding_dim: only the first
 * columns of a head are rotated; the others are split off first. */
#include "graph/plan_lower.h"

#include <inttypes.h>

#include "base/err.h"

struct rotary_node {
    struct lowering *l;
    bool is_flat;
    int64_t batch, rows, heads, columns, rotated; /* rotated: columns that are rotated */
    int64_t interleaved;
    uint32_t x; /* with four axes */
};

static void read_input(struct rotary_node *r)
{
    struct lowering *l = r->l;
    const struct shape s = lower_tensor(l, lower_in(l, 0))->shape;
    int64_t heads, dim[4];
    char text[192];

    l->rc = op_attr_i(&l->attrs, "num_heads", 0, &heads, l->err);
    if (l->rc == 0)
        l->rc = op_attr_i(&l->attrs, "rotary_embedding_dim", 0, &r->rotated, l->err);
    if (l->rc == 0)
        l->rc = op_attr_i(&l->attrs, "interleaved", 0, &r->interleaved, l->err);
    if (l->rc < 0)
        return;
    r->is_flat = s.rank == 3;
    if (!(s.rank == 4 || (s.rank == 3 && heads > 0 && s.dim[2] % heads == 0))) {
        LOWER_ERROR(l, ERR_INPUT, "input 0 is %s and num_heads is %" PRId64 "; expected [batch, heads, rows, columns], "
                    "or [batch, rows, heads * columns] and the number of heads", shape_print(&s, text, sizeof(text)),
                    heads);
        return;
    }
    dim[0] = r->batch = s.dim[0];
    dim[1] = r->rows = r->is_flat ? s.dim[1] : s.dim[2];
    dim[2] = r->heads = r->is_flat ? heads : s.dim[1];
    dim[3] = r->columns = r->is_flat ? s.dim[2] / heads : s.dim[3];
    r->rotated = r->rotated == 0 ? r->columns : r->rotated;
    if (r->rotated < 2 || r->rotated > r->columns || r->rotated % 2 != 0) {
        LOWER_ERROR(l, ERR_INPUT, "%" PRId64 " of %" PRId64 " columns of a head are rotated; expected an even number "
                    "of them", r->rotated, r->columns);
        return;
    }
    r->x = r->is_flat ? lower_reshape(l, lower_in(l, 0), dim, 4) : lower_in(l, 0);
}

/* cos or sin with an axis of size one for the heads. */
static uint32_t angles(const struct rotary_node *r, uint32_t input)
{
    struct lowering *l = r->l;
    const int64_t flat[] = { r->batch, r->rows, 1, r->rotated / 2 },
                  other[] = { r->batch, 1, r->rows, r->rotated / 2 };
    const uint32_t ids = lower_in(l, 3);
    uint32_t cache = lower_in(l, input);
    const struct shape *s;
    bool is_trained = false;
    char text[192];

    if (l->rc == 0 && l->p->purpose != PLAN_RUN)
        l->rc = plan_is_trained(l->p, cache, &is_trained, l->err);
    if (is_trained)
        LOWER_ERROR(l, ERR_UNSUPPORTED, "input %" PRIu32 " depends on a trained parameter, and angles have no "
                    "gradient; freeze it (model.frozen)", input);
    if (l->rc < 0)
        return GRAPH_NONE;
    s = &lower_tensor(l, cache)->shape;
    if (s->rank != (ids != GRAPH_NONE ? 2 : 3) || s->dim[s->rank - 1] != r->rotated / 2) {
        LOWER_ERROR(l, ERR_INPUT,
                    "input %" PRIu32 " is %s; expected [positions, %" PRId64
                    "] with position_ids, or "
                    "[batch, rows, %" PRId64 "] without",
                    input, shape_print(s, text, sizeof(text)), r->rotated / 2, r->rotated / 2);
        return GRAPH_NONE;
    }
    if (ids != GRAPH_NONE)
        cache = lower_op(l, "Gather", cache, ids, GRAPH_NONE);
    if (l->rc == 0 &&
        tensor_elements(lower_tensor(l, cache)) != r->batch * r->rows * (r->rotated / 2)) {
        LOWER_ERROR(l, ERR_INPUT, "input %" PRIu32 ": expected the angles of %" PRId64 " samples with %" PRId64
                    " rows", input, r->batch, r->rows);
        return GRAPH_NONE;
    }
    return lower_reshape(l, cache, r->is_flat ? flat : other, 4);
}

/* Columns first to end - 1 of x. */
static uint32_t columns_of(const struct rotary_node *r, int64_t first, int64_t end)
{
    struct plan *p = r->l->p;
    const int64_t axis = 3;
    const struct lower_node n = { .op = "Slice", .n_in = 4,
                                  .in = { r->x, plan_add_ints(p, "(start)", &first, 1),
                                          plan_add_ints(p, "(end)", &end, 1), plan_add_ints(p, "(axis)", &axis, 1) } };

    return lower_add(r->l, &n);
}

void lower_rotary(struct lowering *l)
{
    struct rotary_node r = { .l = l };
    struct lower_node n = { .domain = "trainerd", .op = "Rotary", .n_in = 3, .n_attrs = 1,
                            .attrs = { { .name = "interleaved", .type = OP_ATTR_INT } } };
    bool is_part;
    int64_t flat[3];
    uint32_t y;

    read_input(&r);
    n.in[1] = angles(&r, 1);
    n.in[2] = angles(&r, 2);
    if (l->rc < 0)
        return;
    is_part = r.rotated < r.columns;
    n.in[0] = is_part ? columns_of(&r, 0, r.rotated) : r.x;
    n.attrs[0].i = r.interleaved != 0;
    y = lower_add(l, &n);
    if (is_part)
        y = lower_concat(l, y, columns_of(&r, r.rotated, r.columns), 3);
    flat[0] = r.batch;
    flat[1] = r.rows;
    flat[2] = r.heads * r.columns;
    lower_out(l, 0, r.is_flat ? lower_reshape(l, y, flat, 3) : y);
}
