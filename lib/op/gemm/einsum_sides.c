/* einsum_sides.c - a contraction of two tensors as a batched matrix product,
 *   y [batch, m, n] = a [batch, m, k] b [batch, k, n]
 * Each letter has one role: batch if it is in both inputs and the output, k if it is in both inputs
 * only, m or n if it is in one input and the output. A letter of one input alone is summed over
 * when that input is packed. Each of the three tensors is used in place if its letters are in order
 * (a and b may be transposed), else through a copy in scratch. contract.h computes contractions
 * that are not a matrix product, and tiny ones. */
#include "op/gemm/einsum_sides.h"

#include <string.h>

#include "op/op_priv.h"

enum { TINY = 16 /* multiplications below which a matrix product is not worth a call */ };

/* Adds a label to a role, sorted by the strides of `order`, longest first. */
static void add_label(const struct einsum_pair *p, struct einsum_roles *r, enum einsum_role role,
                      uint32_t label, uint32_t order)
{
    uint32_t *at = r->at[role], k = r->n[role]++;

    for (; k > 0 && p->step[order][at[k - 1]] < p->step[order][label]; k--)
        at[k] = at[k - 1];
    at[k] = label;
    r->size[role] *= (int64_t)p->size[label];
}

static struct einsum_roles find_roles(const struct einsum_pair *p, uint32_t left, uint32_t right)
{
    struct einsum_roles r = { .size = { 1, 1, 1, 1 } };
    uint32_t k;

    for (k = 0; k < p->n; k++) {
        bool a = p->step[left][k] != 0, b = p->step[right][k] != 0;

        if (p->step[EINSUM_OUT][k] != 0)
            add_label(p, &r, a && b ? EINSUM_BATCH : a ? EINSUM_ROW : EINSUM_COLUMN, k, EINSUM_OUT);
        else if (a && b)
            add_label(p, &r, EINSUM_INNER, k, left);
    }
    return r;
}

/* Computes the strides of a contiguous tensor with batch, `outer` and `inner` in this order. */
static size_t dense_steps(const struct einsum_pair *p, const struct einsum_roles *r,
                          enum einsum_role outer, enum einsum_role inner, ptrdiff_t *step)
{
    enum einsum_role order[] = { EINSUM_BATCH, outer, inner };
    size_t dense = 1;
    uint32_t i, k;

    memset(step, 0, CONTRACT_AXES * sizeof(*step));
    for (i = 3; i-- > 0;)
        for (k = r->n[order[i]]; k-- > 0;) {
            step[r->at[order[i]][k]] = (ptrdiff_t)dense;
            dense *= p->size[r->at[order[i]][k]];
        }
    return dense;
}

static bool has_order(const struct einsum_pair *p, uint32_t tensor, const ptrdiff_t *step)
{
    return memcmp(p->step[tensor], step, p->n * sizeof(*step)) == 0;
}

static void plan_side(const struct einsum_pair *p, const struct einsum_roles *r, uint32_t tensor,
                      enum einsum_role outer, enum einsum_role inner, struct einsum_side *s)
{
    size_t floats;
    uint32_t k;

    *s = (struct einsum_side){ .tensor = tensor };
    floats = dense_steps(p, r, inner, outer, s->step);
    s->trans = s->direct = tensor != EINSUM_OUT && has_order(p, tensor, s->step);
    if (s->direct)
        return;
    (void)dense_steps(p, r, outer, inner, s->step);
    s->direct = has_order(p, tensor, s->step);
    if (s->direct)
        return;
    s->bytes = op_round(floats * sizeof(float));
    for (k = 0; k < p->n; k++) {
        ptrdiff_t there = p->step[tensor][k];

        if (there == 0)
            continue;
        s->sums = s->sums || s->step[k] == 0;
        contract_add_axis(&s->sum, p->size[k], there, 0, s->step[k]);
        copy_add_axis(&s->unpack, (int64_t)p->size[k], s->step[k], there);
        if (s->step[k] != 0)
            copy_add_axis(&s->pack, (int64_t)p->size[k], there, s->step[k]);
    }
    contract_finish(&s->sum);
    copy_finish(&s->pack);
    copy_finish(&s->unpack);
}

struct einsum_roles einsum_sides(const struct einsum_pair *p, struct einsum_side side[EINSUM_SIDES])
{
    struct einsum_roles r;
    uint32_t left;

    for (left = 0; left < EINSUM_IN; left++) {
        r = find_roles(p, left, 1 - left);
        plan_side(p, &r, EINSUM_OUT, EINSUM_ROW, EINSUM_COLUMN, &side[EINSUM_RESULT]);
        if (side[EINSUM_RESULT].direct)
            break;
    }
    if (left == EINSUM_IN) {
        left = 0;
        r = find_roles(p, left, 1 - left);
        plan_side(p, &r, EINSUM_OUT, EINSUM_ROW, EINSUM_COLUMN, &side[EINSUM_RESULT]);
    }
    plan_side(p, &r, left, EINSUM_ROW, EINSUM_INNER, &side[EINSUM_LEFT]);
    plan_side(p, &r, 1 - left, EINSUM_INNER, EINSUM_COLUMN, &side[EINSUM_RIGHT]);
    return r;
}

bool einsum_is_product(const struct einsum_pair *p, uint32_t n_in, const struct einsum_roles *r)
{
    uint32_t k;

    for (k = 0; k < p->n; k++)
        if (p->size[k] == 0)
            return false;
    return n_in == 2 && r->size[EINSUM_INNER] > 1 &&
           r->size[EINSUM_ROW] * r->size[EINSUM_COLUMN] > 1 &&
           r->size[EINSUM_ROW] * r->size[EINSUM_COLUMN] * r->size[EINSUM_INNER] >= TINY;
}
