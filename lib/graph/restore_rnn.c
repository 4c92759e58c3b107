/* restore_rnn.c - weights of recurrent layers.
 *
 * A module has weight_ih [gates * hidden, input], weight_hh [gates * hidden, hidden] and two biases
 * [gates * hidden] for each layer and direction. ONNX requires W [directions, gates * hidden,
 * input], R of the same form, and B [directions, 2 * gates * hidden], with another order of gates.
 * The exporter folds that concatenation. This file restores the module's parameters and adds Split,
 * Concat and Reshape nodes that concatenate them:
 *
 *   torch LSTM i f g o -> ONNX i o f c;   torch GRU r z n -> ONNX z r h */
#include "graph/restore_priv.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"

enum { GATES_MAX = 4, PIECES_MAX = 4, LIST_MAX = 256, OPSET_SPLIT_INPUT = 13 };

struct kind { /* a type of recurrent layer */
    const char *onnx, *aten;
    uint32_t gates;
    uint8_t from[GATES_MAX]; /* ONNX gate k is the module's gate from[k] */
};

static const struct kind kinds[] = {
    { "LSTM", "lstm", 4, { 0, 3, 1, 2 } },
    { "GRU", "gru", 3, { 1, 0, 2 } },
    { "RNN", "rnn_tanh", 1, { 0 } },
    { "RNN", "rnn_relu", 1, { 0 } },
};

struct layer { /* parameters of one ONNX node, in the order of the FX node's list */
    const struct kind *kind;
    uint32_t list[LIST_MAX]; /* all parameters of all layers */
    uint32_t n_list, base;   /* the node's parameters begin at base */
    uint32_t directions, per_direction;
};

static const struct kind *find_kind(const Onnx__NodeProto *n, const struct fx *fx)
{
    size_t i;

    for (i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (strcmp(n->op_type, kinds[i].onnx) == 0 && fx_is(fx->op, kinds[i].aten))
            return &kinds[i];
    return NULL;
}

/* The tensor at an input of the node, if it is folded from n_sources parameters and has no other
 * reader; else METADATA_NONE. */
static uint32_t folded_input(const struct restorer *r, const Onnx__NodeProto *n, size_t input,
                             uint32_t n_sources)
{
    uint64_t i;

    if (input >= n->n_input || !map_get(&r->e->by_tensor, n->input[input], &i) ||
        i >= r->n_tensors || r->is_removed[i] || r->e->tensors.at[i].kind != METADATA_FOLDED ||
        r->e->tensors.at[i].n_sources != n_sources || r->first_use[i] == METADATA_NONE ||
        r->uses.at[r->first_use[i]].next != METADATA_NONE)
        return METADATA_NONE;
    return (uint32_t)i;
}

static bool read_list(const struct restorer *r, const struct fx *fx, struct layer *l)
{
    struct fx_span span;
    size_t at = 0;

    while (fx_next_name(fx->args[2], &at, &span)) {
        uint32_t target = graph_metadata_parameter(r->e, span);

        if (target == METADATA_NONE || l->n_list == LIST_MAX)
            return false;
        l->list[l->n_list++] = target;
    }
    return l->n_list > 0;
}

/* Finds the node's layer of the module: W is folded from the first parameter of the layer. */
static bool find_layer(const struct restorer *r, const struct fx *fx, uint32_t w, struct layer *l)
{
    uint32_t n, i;

    if (fx->n_args < 9 || !read_list(r, fx, l))
        return false;
    l->per_direction = fx_is(fx->args[3], "True") ? 4 : 2;
    l->directions = fx_is(fx->args[7], "True") ? 2 : 1;
    n = l->per_direction * l->directions;
    if (l->n_list % n != 0)
        return false;
    for (i = 0; i < l->n_list; i += n)
        if (l->list[i] == r->e->tensors.at[w].target) {
            l->base = i;
            return true;
        }
    return false;
}

/* ---- one input of the node ---- */

struct rebuild {
    uint32_t tensor;              /* W, R or B */
    uint32_t targets[PIECES_MAX]; /* [n_pieces] in the order of the concatenation */
    uint32_t n_pieces;
    size_t rows, row_bytes;       /* of one gate */
    struct shape shape;           /* of one piece */
    struct tensor t;
};

static int add_pieces(struct restorer *r, const struct kind *kind, const struct rebuild *b)
{
    size_t gate_bytes = b->rows * b->row_bytes, piece_bytes = kind->gates * gate_bytes;
    struct arena mem = { 0 };
    uint8_t *piece = arena_alloc(&mem, piece_bytes);
    uint32_t i, k;
    int rc = piece != NULL ? 0 : restore_no_memory(r);

    for (i = 0; i < b->n_pieces && rc == 0; i++) {
        const uint8_t *from = (const uint8_t *)b->t.data + i * piece_bytes;

        for (k = 0; k < kind->gates; k++)
            memcpy(piece + kind->from[k] * gate_bytes, from + k * gate_bytes, gate_bytes);
        rc = restore_add_param(r, b->targets[i], &b->shape, b->t.dtype, piece, b->tensor);
    }
    arena_fini(&mem);
    return rc;
}

/* Appends the names of the gates of a piece to `parts`, in ONNX's order. */
static int split_piece(struct restorer *r, const struct kind *kind, const struct rebuild *b,
                       const char *param, const char *sizes, const char **parts, size_t *n_parts)
{
    const char *in[2] = { param, sizes }, *gates[GATES_MAX];
    Onnx__NodeProto *n;
    uint32_t k;

    (void)b;
    if (kind->gates == 1) {
        parts[(*n_parts)++] = param;
        return 0;
    }
    for (k = 0; k < kind->gates; k++) {
        gates[k] = restore_name(r, param, "gate");
        if (gates[k] == NULL)
            return restore_no_memory(r);
    }
    n = restore_add_node(r, "Split", in, 2, gates, kind->gates);
    if (n == NULL || restore_add_attr(r, n, "axis", 0) < 0)
        return r->err->code;
    for (k = 0; k < kind->gates; k++)
        parts[(*n_parts)++] = gates[kind->from[k]];
    return 0;
}

static int add_nodes(struct restorer *r, const struct kind *kind, const struct rebuild *b)
{
    const char *output = r->e->tensors.at[b->tensor].name, *parts[PIECES_MAX * GATES_MAX], *in[2];
    const char *sizes = NULL, *joined = restore_name(r, output, "rows");
    int64_t rows[GATES_MAX];
    Onnx__NodeProto *n;
    size_t n_parts = 0;
    uint32_t i;
    int rc = joined != NULL ? 0 : restore_no_memory(r);

    for (i = 0; i < kind->gates; i++)
        rows[i] = (int64_t)b->rows;
    if (rc == 0)
        rc = restore_add_ints(r, joined, rows, kind->gates, &sizes);
    for (i = 0; i < b->n_pieces && rc == 0; i++)
        rc = split_piece(r, kind, b, r->e->targets[b->targets[i]].name, sizes, parts, &n_parts);
    if (rc < 0)
        return rc;
    n = restore_add_node(r, "Concat", parts, n_parts, &joined, 1);
    if (n == NULL || restore_add_attr(r, n, "axis", 0) < 0)
        return r->err->code;
    in[0] = joined;
    rc = restore_add_ints(r, output, b->t.shape.dim, b->t.shape.rank, &in[1]);
    if (rc == 0 && restore_add_node(r, "Reshape", in, 2, &output, 1) == NULL)
        rc = r->err->code;
    r->is_removed[b->tensor] = rc == 0;
    return rc;
}

/* Returns false if the shape of the tensor does not match the operator's definition, or if another
 * tensor holds a parameter. */
static bool is_expected(const struct restorer *r, const struct layer *l, struct rebuild *b)
{
    const struct shape *s = &b->t.shape;
    size_t pieces_of_direction = b->n_pieces / l->directions, elements = l->kind->gates, i;
    uint64_t ignored;

    if ((s->rank != 2 && s->rank != 3) || s->dim[0] != l->directions ||
        tensor_elements(&b->t) == 0 || (size_t)s->dim[1] % (elements * pieces_of_direction) != 0)
        return false;
    for (i = 0; i < b->n_pieces; i++)
        if (r->e->targets[b->targets[i]].is_held ||
            map_get(&r->names, r->e->targets[b->targets[i]].name, &ignored))
            return false;
    b->rows = (size_t)s->dim[1] / (elements * pieces_of_direction);
    b->row_bytes = (s->rank == 3 ? (size_t)s->dim[2] : 1) * tensor_dtype_bytes(b->t.dtype);
    b->shape = (struct shape){ .rank = s->rank - 1, .dim = { (int64_t)(b->rows * elements) } };
    if (s->rank == 3)
        b->shape.dim[1] = s->dim[2];
    return true;
}

static int rebuild(struct restorer *r, const struct layer *l, uint32_t tensor, uint32_t first,
                   uint32_t each)
{
    struct rebuild b = { .tensor = tensor, .n_pieces = each * l->directions };
    struct arena mem = { 0 };
    uint32_t d, k;
    int rc;

    if (tensor == METADATA_NONE)
        return 0;
    for (d = 0; d < l->directions; d++)
        for (k = 0; k < each; k++)
            b.targets[d * each + k] = l->list[l->base + d * l->per_direction + first + k];
    restore_place(r, tensor);
    rc = restore_read(r, tensor, &mem, &b.t);
    if (rc == 0 && is_expected(r, l, &b)) {
        rc = add_pieces(r, l->kind, &b);
        if (rc == 0)
            rc = add_nodes(r, l->kind, &b);
    }
    arena_fini(&mem);
    return rc;
}

int restore_rnn(struct restorer *r, uint32_t node, const struct fx *fx)
{
    const Onnx__NodeProto *n = r->p->node[node];
    struct layer l = { .kind = find_kind(n, fx) };
    uint32_t directions = fx->n_args > 7 && fx_is(fx->args[7], "True") ? 2 : 1, w, rr, b;
    int rc;

    if (l.kind == NULL || r->g->opset < OPSET_SPLIT_INPUT)
        return 0;
    w = folded_input(r, n, 1, directions);
    rr = folded_input(r, n, 2, directions);
    b = folded_input(r, n, 3, 2 * directions);
    if (w == METADATA_NONE || rr == METADATA_NONE || !find_layer(r, fx, w, &l) ||
        r->e->tensors.at[rr].target != l.list[l.base + 1] ||
        (l.per_direction == 4 && b == METADATA_NONE) ||
        (b != METADATA_NONE && r->e->tensors.at[b].target != l.list[l.base + 3]))
        return 0; /* uncertain: refused if it receives a gradient */
    rc = rebuild(r, &l, w, 0, 1);
    if (rc == 0)
        rc = rebuild(r, &l, rr, 1, 1);
    return rc == 0 ? rebuild(r, &l, b, 2, 2) : rc;
}
