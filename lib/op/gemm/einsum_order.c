/* einsum_order.c - chooses the order of the contractions of Einsum: see einsum_chain.c. */
#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "base/err.h"
#include "op/gemm/einsum.h"
#include "op/op_priv.h"

struct ordering {
    const int64_t *size;
    const struct einsum_term *out;
    struct einsum_term *term; /* inputs, then results */
    uint8_t left[EINSUM_TERMS]; /* the tensors that remain to be multiplied */
    uint32_t n_left;
};

/* Returns true if label k occurs in the output or in a remaining tensor other than i and j. */
static bool is_needed(const struct ordering *o, uint32_t i, uint32_t j, uint32_t k)
{
    bool needed = o->out->step[k] != 0;
    uint32_t t;

    for (t = 0; t < o->n_left; t++)
        needed = needed || (t != i && t != j && o->term[o->left[t]].step[k] != 0);
    return needed;
}

/* Number of multiplications of the product of remaining tensors i and j; infinite if its result has
 * too many axes. */
static double cost_of(const struct ordering *o, uint32_t i, uint32_t j)
{
    const struct einsum_term *a = &o->term[o->left[i]], *b = &o->term[o->left[j]];
    uint32_t k, rank = 0, labels = 0;
    double cost = 1;

    for (k = 0; k < EINSUM_LABELS; k++)
        if (a->step[k] != 0 || b->step[k] != 0) {
            cost *= (double)o->size[k];
            rank += is_needed(o, i, j, k);
            labels++;
        }
    return rank > TENSOR_MAX_RANK || labels > CONTRACT_AXES ? INFINITY : cost;
}

/* Appends the needed labels of tensor i that tensor j has (`both`) or does not have, by descending
 * strides. */
static uint32_t add_labels(const struct ordering *o, uint32_t i, uint32_t j, bool both,
                           uint8_t *label, uint32_t n)
{
    const struct einsum_term *a = &o->term[o->left[i]], *b = &o->term[o->left[j]];
    uint32_t first = n, k, at;

    for (k = 0; k < EINSUM_LABELS; k++) {
        if (a->step[k] == 0 || (b->step[k] != 0) != both || !is_needed(o, i, j, k))
            continue;
        for (at = n++; at > first && a->step[label[at - 1]] < a->step[k]; at--)
            label[at] = label[at - 1];
        label[at] = (uint8_t)k;
    }
    return n;
}

/* Computes the contiguous result of tensors i and j; false: its size overflows. */
static bool make_result(const struct ordering *o, uint32_t i, uint32_t j, struct einsum_term *y,
                        int64_t *floats)
{
    uint8_t label[TENSOR_MAX_RANK];
    uint32_t n = add_labels(o, i, j, true, label, 0), k;

    n = add_labels(o, i, j, false, label, n);
    n = add_labels(o, j, i, false, label, n);
    *y = (struct einsum_term){ { 0 }, false };
    *floats = 1;
    for (k = n; k-- > 0;) {
        int64_t size = o->size[label[k]];

        y->step[label[k]] = *floats > 0 ? (ptrdiff_t)*floats : 1;
        if (__builtin_mul_overflow(*floats, size, floats) || *floats > INT64_MAX / 8)
            return false;
    }
    return true;
}

static int make_pair(const struct op_infer *f, const char *equation, const int64_t *size,
                     const struct einsum_term *a, const struct einsum_term *b,
                     const struct einsum_term *y, struct einsum_pair *p, struct err *err)
{
    uint32_t k;

    p->diagonal[0] = a->diagonal;
    p->diagonal[1] = b != NULL && b->diagonal;
    for (k = 0; k < EINSUM_LABELS; k++) {
        ptrdiff_t of_b = b != NULL ? b->step[k] : 0;

        if (a->step[k] == 0 && of_b == 0)
            continue;
        if (p->n == CONTRACT_AXES)
            return op_error(f, ERR_UNSUPPORTED, err, "equation '%s' has more than %d axes",
                            equation, CONTRACT_AXES);
        p->size[p->n] = (size_t)size[k];
        p->step[0][p->n] = a->step[k];
        p->step[1][p->n] = of_b;
        p->step[EINSUM_OUT][p->n] = y->step[k];
        p->n++;
    }
    return 0;
}

/* Multiplies the two tensors of `o` with the lowest cost; the result replaces the first. */
static int multiply(const struct op_infer *f, const char *equation, struct ordering *o,
                    struct einsum *p, struct err *err)
{
    struct einsum_step *s = &p->step[p->n_steps];
    uint32_t i, j, at_i = 0, at_j = 0;
    struct einsum_term *y = &o->term[p->n_in + p->n_steps];
    double least = INFINITY;
    int rc;

    for (i = 0; i < o->n_left; i++)
        for (j = i + 1; j < o->n_left; j++) {
            double cost = cost_of(o, i, j);

            if (cost < least) {
                least = cost;
                at_i = i;
                at_j = j;
            }
        }
    if (at_j == 0 || !make_result(o, at_i, at_j, y, &s->floats))
        return op_error(f, ERR_UNSUPPORTED, err, "equation '%s': no two of its tensors have a "
                        "product of at most %d axes that fits in memory: write it as several nodes",
                        equation, TENSOR_MAX_RANK);
    s->left = o->left[at_i];
    s->right = o->left[at_j];
    rc = make_pair(f, equation, o->size, &o->term[s->left], &o->term[s->right], y, &s->pair, err);
    o->left[at_i] = (uint8_t)(p->n_in + p->n_steps++);
    for (j = at_j; j + 1 < o->n_left; j++)
        o->left[j] = o->left[j + 1];
    o->n_left--;
    return rc;
}

int einsum_order(struct op_infer *f, const char *equation, const int64_t *size,
                 const struct einsum_term *in, const struct einsum_term *out, struct err *err)
{
    struct einsum_term term[2 * EINSUM_TERMS];
    struct ordering o = { .size = size, .out = out, .term = term, .n_left = f->n_in };
    struct einsum *p = f->param;
    struct einsum_step *last;
    uint32_t i;
    int rc = 0;

    memcpy(term, in, f->n_in * sizeof(*in));
    for (i = 0; i < f->n_in; i++)
        o.left[i] = (uint8_t)i;
    p->n_in = f->n_in;
    p->step = arena_array(f->mem, f->n_in, sizeof(*p->step));
    if (p->step == NULL)
        return op_error(f, ERR_NOMEM, err, "out of memory");
    while (o.n_left > EINSUM_IN && rc == 0)
        rc = multiply(f, equation, &o, p, err);
    if (rc < 0)
        return rc;
    last = &p->step[p->n_steps++];
    last->left = o.left[0];
    last->right = o.n_left > 1 ? o.left[1] : EINSUM_NONE;
    last->floats = shape_elements(&f->out[0].shape);
    return make_pair(f, equation, size, &term[last->left], o.n_left > 1 ? &term[last->right] : NULL,
                     out, &last->pair, err);
}
