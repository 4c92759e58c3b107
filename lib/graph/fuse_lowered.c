/* fuse_lowered.c - simplifies what exporters write around Attention of ONNX (23 and later), which
 * lower_attention.c has converted to one node: heads of k and v that are repeated by Expand are
 * read without the repetition, Transposes become an order of axes, and a known mask is shared by
 * all layers, becomes a band, or is removed (fuse_mask.c). */
#include <string.h>

#include "base/check.h"
#include "graph/fuse_scores.h"

static uint32_t rank_of(const struct fuser *f, const struct plan_node *n)
{
    return f->p->values.at[n->in[0]].tensor.shape.rank;
}

/* Reads an attribute: axis i of the operand is axis perm[i] of the input. */
static void read_perm(const struct plan_node *n, const char *name, uint32_t rank, uint32_t *perm)
{
    const struct op_attr *a = fuse_attr(n, name);

    for (uint32_t i = 0; i < rank; i++)
        perm[i] = a != NULL ? (uint32_t)a->ints[i] : i;
}

/* Traces input i back; o->perm and o->axis are those of the operand. */
static void trace(const struct fuser *f, const struct plan_node *n, uint32_t i, bool may_repeat,
                  struct fuse_operand *o)
{
    static const char *const names[] = { "perm_q", "perm_k", "perm_v" };
    const uint32_t rank = rank_of(f, n);
    uint32_t own[TENSOR_MAX_RANK], perm[TENSOR_MAX_RANK], axis = 0;

    fuse_trace(f, n->in[i], false, false, may_repeat, o);
    read_perm(n, names[i], rank, own);
    for (uint32_t k = 0; k < rank; k++) {
        perm[k] = o->perm[own[k]];
        if (own[k] == o->axis)
            axis = k;
    }
    memcpy(o->perm, perm, rank * sizeof(*perm));
    o->axis = axis;
}

static void find_operands(const struct fuser *f, const struct plan_node *n,
                          struct fuse_operand *all)
{
    const uint32_t rank = rank_of(f, n);

    trace(f, n, 0, false, &all[0]);
    for (int may_repeat = 1; may_repeat >= 0; may_repeat--) {
        trace(f, n, 1, may_repeat != 0, &all[1]);
        trace(f, n, 2, may_repeat != 0, &all[2]);
        if (all[1].repeats == all[2].repeats &&
            (all[1].repeats == 1 || (all[1].axis + 3 == rank && all[2].axis + 3 == rank)))
            return;
    }
}

/* Reads the steps of the node, the last one first. Returns false if there are more than a pattern
 * can hold. */
static bool read_steps(const struct plan_node *n, struct fuse_scores *c)
{
    const struct op_attr *steps = fuse_attr(n, "steps"), *numbers = fuse_attr(n, "numbers");
    const uint32_t count = steps != NULL ? (uint32_t)steps->n : 0;
    uint32_t mask = 3;

    *c = (struct fuse_scores){ .n_steps = count };
    if (count > FUSE_STEPS || n->n_in > FUSE_MAX_IN)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t at = count - 1 - i;
        const bool has_mask =
            strcmp(steps->strings[i], "scale") != 0 && strcmp(steps->strings[i], "cap") != 0;

        c->step[at] = steps->strings[i];
        c->number[at] = numbers->floats[i];
        c->mask[at] = has_mask ? n->in[mask++] : GRAPH_NONE;
        c->n_masks += has_mask;
    }
    return true;
}

/* Copies the attributes that do not change. */
static void keep_attrs(const struct plan_node *n, struct fuse_row *row)
{
    static const char *const kept[] = { "perm_y", "band", "empty", "dropout" };

    for (size_t i = 0; i < COUNT_OF(kept); i++) {
        const struct op_attr *a = fuse_attr(n, kept[i]);

        if (a != NULL)
            row->attrs[row->n_attrs++] = *a;
    }
}

int fuse_lowered_attention(struct fuser *f, uint32_t node, struct err *err)
{
    static const char *const perms[] = { "perm_q", "perm_k", "perm_v" };
    const struct plan_node *n = &f->p->nodes.at[node];
    struct fuse_row row = { .def = n->def, .name = n->name, .stream = n->stream, .n_in = 3 };
    const uint32_t rank = rank_of(f, n);
    struct fuse_operand all[3];
    struct fuse_scores c;
    int rc;

    if (fuse_attr(n, "parts") != NULL || !read_steps(n, &c))
        return 0;
    find_operands(f, n, all);
    rc = fuse_prepare_masks(f, &c, err);
    if (rc < 0)
        return rc;
    keep_attrs(n, &row);
    for (uint32_t i = 0; i < 3; i++)
        row.in[i] = all[i].value;
    if (!fuse_add_parts(f, &row, (struct fuse_operand *const[]){ &all[0], &all[1], &all[2] }))
        return plan_no_memory(err);
    for (uint32_t i = 0; i < 3; i++) {
        if (!fuse_add_perm(f->p, &row, perms[i], all[i].perm, rank))
            return plan_no_memory(err);
    }
    if ((fuse_attr(n, "band") == NULL &&
         !fuse_add_band(f, &row, &c, fuse_operand_dim(f, &all[0], rank - 2))) ||
        !fuse_add_steps(f->p, &row, &c, 1))
        return plan_no_memory(err);
    rc = fuse_into(f, node, &row, err);
    return rc == 0 ? fuse_note_attention(f, row.name, true, err) : rc;
}
