/* plan_sequence.c - converts sequences of tensors to the tensor ops that they express.
 *
 * Exporters write chunk, split and unbind as SplitToSequence and SequenceAt, and EmbeddingBag as a
 * Loop that inserts a row per bag and concatenates the rows at the end. While a plan is made,
 * shapes and positions are known, so a sequence is a list of values of the plan: selecting an
 * element has no cost, SplitToSequence is one Split, ConcatFromSequence one Concat. In the
 * builder's map a sequence has an index from PLAN_SEQUENCE_FIRST on.
 *
 * Sequences that grow at the end share memory: `list` has spare capacity after the used
 * elements. */
#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "graph/plan_priv.h"

enum {
    PARTS_MAX = 65536,     /* maximum number of elements of a sequence */
    ITEMS_MAX = 1 << 22,   /* maximum for all sequences of a plan: bounds memory */
};

struct plan_list { /* elements shared by one or several sequences */
    uint32_t *items;
    uint32_t used, cap;
};

bool plan_is_sequence(uint32_t value)
{
    return value != GRAPH_NONE && value >= PLAN_SEQUENCE_FIRST;
}

int plan_refuse_sequence(const struct graph_node *n, const char *name, struct err *err)
{
    return err_set(err, ERR_UNSUPPORTED,
                   "%s '%s' reads '%s', which is a sequence of tensors; supported are the ops "
                   "Sequence*, SplitToSequence, ConcatFromSequence, Identity, If and Loop: stack or "
                   "concatenate the tensors before",
                   n->def->name, n->name, name);
}

static struct plan_sequence *sequence(struct plan *p, uint32_t value)
{
    return &p->building.sequences.at[value - PLAN_SEQUENCE_FIRST];
}

/* ---- lists ---- */

static int new_list(struct plan *p, const struct graph_node *from, uint32_t cap,
                    struct plan_list **out, struct err *err)
{
    struct plan_list *l;

    if (cap > PARTS_MAX || cap > ITEMS_MAX - p->building.sequence_items)
        return err_set(err, ERR_UNSUPPORTED,
                       "%s '%s': sequences of more than %d tensors, or %d in all", from->def->name,
                       from->name, PARTS_MAX, ITEMS_MAX);
    p->building.sequence_items += cap;
    l = arena_alloc(&p->mem, sizeof(*l));
    if (l == NULL)
        return plan_no_memory(err);
    l->items = arena_array(&p->mem, cap, sizeof(*l->items));
    if (l->items == NULL)
        return plan_no_memory(err);
    l->cap = cap;
    *out = l;
    return 0;
}

static int add_sequence(struct plan_builder *b, uint32_t to, struct plan_list *list, uint32_t n,
                        struct err *err)
{
    struct plan *p = b->p;
    struct plan_sequence s = { .list = list, .n = n };

    if (to == GRAPH_NONE)
        return 0;
    if (p->building.sequences.n >= GRAPH_NONE - PLAN_SEQUENCE_FIRST ||
        !VEC_PUSH(p->building.sequences, s))
        return plan_no_memory(err);
    b->map[to] = PLAN_SEQUENCE_FIRST + (uint32_t)(p->building.sequences.n - 1);
    return 0;
}

/* ---- inputs ---- */

static int get_sequence(struct plan_builder *b, const struct graph_node *from, uint32_t *out,
                        struct err *err)
{
    uint32_t value = from->in[0] != GRAPH_NONE ? b->map[from->in[0]] : GRAPH_NONE;

    if (!plan_is_sequence(value))
        return err_set(err, ERR_INPUT, "%s '%s': input 0 is not a sequence", from->def->name,
                       from->name);
    *out = value;
    return 0;
}

static int get_tensor(struct plan_builder *b, const struct graph_node *from, uint32_t i,
                      uint32_t *out, struct err *err)
{
    uint32_t value = i < from->n_in && from->in[i] != GRAPH_NONE ? b->map[from->in[i]] : GRAPH_NONE;

    if (value == GRAPH_NONE || plan_is_sequence(value))
        return err_set(err, ERR_INPUT, "%s '%s': input %" PRIu32 " is not a tensor",
                       from->def->name, from->name, i);
    *out = value;
    return 0;
}

/* Reads the integers of input i; n = 0 if it is absent. */
static int known_ints(struct plan_builder *b, const struct graph_node *from, uint32_t i,
                      const char *what, int64_t **out, uint32_t *n, struct err *err)
{
    const struct plan_value *v;
    uint32_t value, k;
    int rc;

    *n = 0;
    if (i >= from->n_in || from->in[i] == GRAPH_NONE)
        return 0;
    rc = get_tensor(b, from, i, &value, err);
    if (rc < 0)
        return rc;
    v = &b->p->values.at[value];
    if (!plan_is_known(v) || (v->tensor.dtype != TENSOR_I64 && v->tensor.dtype != TENSOR_I32))
        return err_set(err, ERR_UNSUPPORTED,
                       "%s '%s': %s depends on the data; expected a value that is known once the "
                       "shapes are: use torch.stack or torch.cat and index the tensor",
                       from->def->name, from->name, what);
    if (tensor_elements(&v->tensor) < 1 || tensor_elements(&v->tensor) > PARTS_MAX)
        return err_set(err, ERR_INPUT, "%s '%s': %s has %" PRId64 " numbers; expected 1 to %d",
                       from->def->name, from->name, what, tensor_elements(&v->tensor), PARTS_MAX);
    *n = (uint32_t)tensor_elements(&v->tensor);
    *out = arena_array(&b->p->mem, *n, sizeof(**out));
    if (*out == NULL)
        return plan_no_memory(err);
    for (k = 0; k < *n; k++)
        (*out)[k] = v->tensor.dtype == TENSOR_I64 ? ((const int64_t *)v->tensor.data)[k]
                                                  : ((const int32_t *)v->tensor.data)[k];
    return 0;
}

/* Reads the position in input i, 0 .. n - 1; `dflt` if it is absent. */
static int position(struct plan_builder *b, const struct graph_node *from, uint32_t i, uint32_t n,
                    uint32_t dflt, uint32_t *out, struct err *err)
{
    int64_t *at;
    uint32_t given;
    int rc = known_ints(b, from, i, "its position", &at, &given, err);

    if (rc < 0)
        return rc;
    if (given != 0 && (at[0] < -(int64_t)n || at[0] >= (int64_t)n))
        return err_set(err, ERR_INPUT, "%s '%s': position %" PRId64 " of %" PRIu32 " tensors",
                       from->def->name, from->name, at[0], n);
    *out = given == 0 ? dflt : (uint32_t)(at[0] < 0 ? at[0] + n : at[0]);
    return 0;
}

static int64_t attr(const struct graph_node *from, const char *name, int64_t dflt)
{
    uint32_t i;

    for (i = 0; i < from->n_attrs; i++)
        if (strcmp(from->attrs[i].name, name) == 0 && from->attrs[i].type == OP_ATTR_INT)
            return from->attrs[i].i;
    return dflt;
}

static int axis_of(const struct graph_node *from, uint32_t rank, int64_t *axis, struct err *err)
{
    *axis = attr(from, "axis", 0);
    if (*axis < -(int64_t)rank || *axis >= (int64_t)rank)
        return err_set(err, ERR_INPUT,
                       "%s '%s': axis %" PRId64 " of a tensor with %" PRIu32 " dimensions",
                       from->def->name, from->name, *axis, rank);
    *axis += *axis < 0 ? rank : 0;
    return 0;
}

/* ---- the ops ---- */

static int construct(struct plan_builder *b, const struct graph_node *from, struct err *err)
{
    struct plan_list *l;
    uint32_t i;
    int rc = new_list(b->p, from, from->n_in, &l, err);

    for (i = 0; i < from->n_in && rc == 0; i++)
        rc = get_tensor(b, from, i, &l->items[i], err);
    if (rc < 0)
        return rc;
    l->used = from->n_in;
    return add_sequence(b, from->out[0], l, from->n_in, err);
}

static int insert(struct plan_builder *b, const struct graph_node *from, struct err *err)
{
    struct plan_list *l, *old;
    uint32_t s = GRAPH_NONE, item = GRAPH_NONE, at, n;
    int rc = get_sequence(b, from, &s, err);

    if (rc == 0)
        rc = get_tensor(b, from, 1, &item, err);
    if (rc < 0)
        return rc;
    n = sequence(b->p, s)->n;
    l = old = sequence(b->p, s)->list;
    rc = position(b, from, 2, n + 1, n, &at, err); /* n: append after the last element */
    if (rc < 0)
        return rc;
    if (at < n || l == NULL || l->used > n || l->used == l->cap) {
        rc = new_list(b->p, from, n < 4 ? 8 : n >= PARTS_MAX / 2 ? n + 1 : 2 * n, &l, err);
        if (rc < 0)
            return rc;
        if (at > 0)
            memcpy(l->items, old->items, at * sizeof(*l->items));
        if (at < n)
            memcpy(l->items + at + 1, old->items + at, (n - at) * sizeof(*l->items));
    }
    l->items[at] = item;
    l->used = n + 1;
    return add_sequence(b, from->out[0], l, n + 1, err);
}

static int erase(struct plan_builder *b, const struct graph_node *from, struct err *err)
{
    const struct plan_list *old;
    struct plan_list *l;
    uint32_t s = GRAPH_NONE, at, n;
    int rc = get_sequence(b, from, &s, err);

    if (rc < 0)
        return rc;
    n = sequence(b->p, s)->n;
    old = sequence(b->p, s)->list;
    if (n == 0)
        return err_set(err, ERR_INPUT, "SequenceErase '%s': the sequence is empty", from->name);
    rc = position(b, from, 1, n, n - 1, &at, err);
    if (rc == 0)
        rc = new_list(b->p, from, n - 1, &l, err);
    if (rc < 0)
        return rc;
    if (at > 0)
        memcpy(l->items, old->items, at * sizeof(*l->items));
    if (at + 1 < n)
        memcpy(l->items + at, old->items + at + 1, (n - 1 - at) * sizeof(*l->items));
    l->used = n - 1;
    return add_sequence(b, from->out[0], l, n - 1, err);
}

static int element(struct plan_builder *b, const struct graph_node *from, struct err *err)
{
    uint32_t s = GRAPH_NONE, at;
    int rc = get_sequence(b, from, &s, err);

    if (rc == 0)
        rc = position(b, from, 1, sequence(b->p, s)->n, 0, &at, err);
    if (rc == 0 && from->out[0] != GRAPH_NONE)
        b->map[from->out[0]] = sequence(b->p, s)->list->items[at];
    return rc;
}

static int length(struct plan_builder *b, const struct graph_node *from, struct err *err)
{
    uint32_t s = GRAPH_NONE;
    int64_t n;
    int rc = get_sequence(b, from, &s, err);

    if (rc < 0 || from->out[0] == GRAPH_NONE)
        return rc;
    n = sequence(b->p, s)->n;
    b->map[from->out[0]] = plan_add_ints(b->p, b->p->g->values[from->out[0]].name, &n, 0);
    return b->map[from->out[0]] != GRAPH_NONE ? 0 : plan_no_memory(err);
}

/* The sizes of the parts of an axis of `whole` elements: as listed, or of one size each, the last
 * one smaller. *is_given: the node has a size input. */
static int part_sizes(struct plan_builder *b, const struct graph_node *from, int64_t whole,
                      int64_t **out, uint32_t *n, bool *is_given, struct err *err)
{
    int64_t *given, each = 1, total = 0, i;
    uint32_t n_given;
    bool is_list;
    int rc = known_ints(b, from, 1, "the size of its parts", &given, &n_given, err);

    if (rc < 0)
        return rc;
    *is_given = n_given > 0;
    is_list = n_given > 0 && b->p->values.at[b->map[from->in[1]]].tensor.shape.rank > 0;
    if (n_given > 0 && !is_list)
        each = given[0];
    for (i = 0; is_list && i < n_given && given[i] >= 0 && given[i] <= whole - total; i++)
        total += given[i];
    if (each < 1 || (is_list && (i < n_given || total != whole)))
        return err_set(err, ERR_INPUT,
                       "SplitToSequence '%s': its parts are not the %" PRId64
                       " elements of the axis; expected sizes that add up to them, or one size of "
                       "at least 1",
                       from->name, whole);
    if (is_list) {
        *out = given;
        *n = n_given;
        return 0;
    }
    if (whole / each >= PARTS_MAX)
        return err_set(err, ERR_UNSUPPORTED, "SplitToSequence '%s' creates more than %d parts",
                       from->name, PARTS_MAX);
    *n = (uint32_t)((whole + each - 1) / each);
    *out = arena_array(&b->p->mem, *n, sizeof(**out));
    if (*out == NULL)
        return plan_no_memory(err);
    for (i = 0; i < (int64_t)*n; i++)
        (*out)[i] = whole - i * each < each ? whole - i * each : each;
    return 0;
}

static int split(struct plan_builder *b, const struct graph_node *from, struct err *err)
{
    struct op_attr axis = { .name = "axis", .type = OP_ATTR_INT };
    struct plan *p = b->p;
    struct plan_list *l = NULL;
    uint32_t in[2], n = 0, i;
    int64_t *sizes = NULL;
    bool is_given = false;
    int rc = get_tensor(b, from, 0, &in[0], err);

    if (rc == 0)
        rc = axis_of(from, p->values.at[in[0]].tensor.shape.rank, &axis.i, err);
    if (rc == 0)
        rc = part_sizes(b, from, p->values.at[in[0]].tensor.shape.dim[axis.i], &sizes, &n,
                        &is_given, err);
    if (rc == 0)
        rc = new_list(p, from, n, &l, err);
    if (rc < 0)
        return rc;
    if (n == 1)
        l->items[0] = in[0];
    if (n > 1) {
        in[1] = plan_add_ints(p, "(split)", sizes, n);
        if (in[1] == GRAPH_NONE)
            return plan_no_memory(err);
        rc = p->g->opset >= 13
                 ? plan_add_op(p, "Split", from->name, &axis, 1, in, 2, l->items, n, err)
                 : plan_add_op(p, "Split", from->name,
                               (struct op_attr[]){ axis,
                                                   { .name = "split",
                                                     .type = OP_ATTR_INTS,
                                                     .ints = sizes,
                                                     .n = n } },
                               2, in, 1, l->items, n, err);
    }
    for (i = 0; i < n && rc == 0 && !is_given && attr(from, "keepdims", 1) == 0; i++)
        rc = plan_move_axis(p, from->name, &l->items[i], axis.i, false, err);
    l->used = n;
    return rc == 0 ? add_sequence(b, from->out[0], l, n, err) : rc;
}

static int concat(struct plan_builder *b, const struct graph_node *from, struct err *err)
{
    struct op_attr axis = { .name = "axis", .type = OP_ATTR_INT };
    bool stacks = attr(from, "new_axis", 0) != 0, done = false;
    struct plan *p = b->p;
    uint32_t s = GRAPH_NONE, n, i, *items;
    int rc = get_sequence(b, from, &s, err);

    if (rc < 0 || from->out[0] == GRAPH_NONE)
        return rc;
    n = sequence(p, s)->n;
    if (n == 0)
        return err_set(err, ERR_UNSUPPORTED,
                       "ConcatFromSequence '%s': the sequence is empty, so that the type and the "
                       "shape of the result are not known",
                       from->name);
    items = arena_array(&p->mem, n, sizeof(*items));
    if (items == NULL)
        return plan_no_memory(err);
    memcpy(items, sequence(p, s)->list->items, n * sizeof(*items));
    rc = axis_of(from, p->values.at[items[0]].tensor.shape.rank + stacks, &axis.i, err);
    if (rc == 0 && axis.i == 0)
        rc =
            plan_embedding_bags(p, from->name, items, n, stacks, &b->map[from->out[0]], &done, err);
    for (i = 0; i < n && rc == 0 && stacks && !done; i++)
        rc = plan_move_axis(p, from->name, &items[i], axis.i, true, err);
    if (rc < 0 || done)
        return rc;
    if (n == 1) {
        b->map[from->out[0]] = items[0];
        return 0;
    }
    return plan_add_op(p, "Concat", from->name, &axis, 1, items, n, &b->map[from->out[0]], 1, err);
}

int plan_sequence(struct plan_builder *b, const struct graph_node *from, struct err *err)
{
    static const struct {
        const char *op;
        int (*run)(struct plan_builder *b, const struct graph_node *from, struct err *err);
    } ops[] = {
        { "SequenceConstruct", construct }, { "SequenceInsert", insert },
        { "SequenceErase", erase },         { "SequenceAt", element },
        { "SequenceLength", length },       { "SplitToSequence", split },
        { "ConcatFromSequence", concat },
    };
    size_t i;

    if (strcmp(from->def->name, "SequenceEmpty") == 0)
        return add_sequence(b, from->out[0], NULL, 0, err);
    for (i = 0; i < COUNT_OF(ops); i++)
        if (strcmp(ops[i].op, from->def->name) == 0)
            return ops[i].run(b, from, err);
    CHECK(!"a row of sequence.c without an entry");
    return 0;
}
