/* einsum_chain.c - Einsum of any number of tensors as products of two.
 *
 * The result of a product is a dense tensor of the labels that somebody still needs: those of both
 * factors, then those of the left one, then those of the right one, each in the order in which they
 * lie there, so that it is a batched matrix product without a copy. Backward reads the results that
 * are factors again; they are saved. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/err.h"
#include "op/gemm/einsum.h"
#include "op/op_priv.h"

/* ---- the order ---- */

struct ordering {
    const int64_t *size;
    const struct einsum_term *out;
    struct einsum_term *term; /* inputs, then results */
    uint8_t left[EINSUM_TERMS]; /* the tensors that are still to be multiplied */
    uint32_t n_left;
};

/* Does the output or another tensor than places i and j have label k? */
static bool is_needed(const struct ordering *o, uint32_t i, uint32_t j, uint32_t k)
{
    bool needed = o->out->step[k] != 0;
    uint32_t t;

    for (t = 0; t < o->n_left; t++)
        needed = needed || (t != i && t != j && o->term[o->left[t]].step[k] != 0);
    return needed;
}

/* Multiplications of the product of places i and j; infinite where its result has too many axes. */
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

/* The needed labels that are in a and, as `both` says, in b or not: appended by falling steps. */
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

/* The dense result of places i and j; false: its bytes cannot be counted. */
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

/* Multiplies the two of `o` that cost least: the result takes the place of the first. */
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
    return make_pair(f, equation, size, &term[last->left],
                     o.n_left > 1 ? &term[last->right] : NULL, out, &last->pair, err);
}

/* ---- plan ---- */

struct chain {
    void *state[EINSUM_TERMS];   /* of each step's product */
    size_t value[EINSUM_TERMS];  /* where the result is: in save; without training in scratch */
    size_t grad[EINSUM_TERMS];   /* and its gradient: in scratch */
    bool wanted[2 * EINSUM_TERMS]; /* the gradient of this tensor */
    bool saves;
    size_t rest; /* scratch of the products */
};

void einsum_chain_free(void *state)
{
    struct chain *s = state;
    uint32_t i;

    for (i = 0; s != NULL && i < EINSUM_TERMS; i++)
        einsum_cpu_free(s->state[i]);
    free(s);
}

int einsum_chain_plan(struct op_plan *p, struct err *err)
{
    const struct einsum *e = p->param;
    struct chain *s = calloc(1, sizeof(*s));
    size_t values = 0, grads = 0, most = 0;
    uint32_t i;
    int rc = 0;

    if (s == NULL)
        return err_set(err, ERR_NOMEM, "Einsum '%s': out of memory", p->node);
    s->saves = p->training;
    for (i = 0; i < e->n_in; i++)
        s->wanted[i] = op_wants(p, i);
    for (i = 0; i < e->n_steps && rc == 0; i++) {
        const struct einsum_step *at = &e->step[i];
        bool left = s->wanted[at->left], right = at->right != EINSUM_NONE && s->wanted[at->right];
        struct op_plan one = *p;

        one.param = &at->pair;
        one.n_in = at->right != EINSUM_NONE ? 2 : 1;
        one.want_din = (left ? OP_IN(0) : 0) | (right ? OP_IN(1) : 0);
        one.save_bytes = one.scratch_bytes = 0;
        rc = einsum_cpu_plan(&one, err);
        if (rc < 0)
            break;
        s->state[i] = one.state;
        s->wanted[e->n_in + i] = left || right;
        most = op_max(most, one.scratch_bytes);
        if (i + 1 == e->n_steps)
            continue;
        s->value[i] = values;
        s->grad[i] = grads;
        values += op_round((size_t)at->floats * sizeof(float));
        grads += left || right ? op_round((size_t)at->floats * sizeof(float)) : 0;
    }
    if (rc < 0) {
        einsum_chain_free(s);
        return rc;
    }
    s->rest = s->saves ? grads : values;
    p->save_bytes = s->saves ? values : 0;
    p->scratch_bytes = s->rest + most;
    p->state = s;
    return 0;
}

/* ---- run ---- */

/* The call of one step; the pointers of `call` lead into the rest. */
struct one {
    struct op_call call;
    struct tensor made[EINSUM_IN + 1], grad[EINSUM_IN + 1]; /* of results, where they are some */
    const struct tensor *in[EINSUM_IN], *din[EINSUM_IN], *out, *dout;
};

static struct tensor floats_at(void *area, size_t offset, int64_t n)
{
    return (struct tensor){ .dtype = TENSOR_F32, .shape = shape_of(1, n),
                            .data = op_at(area, offset) };
}

static void set_factor(const struct op_call *c, const struct chain *s, uint32_t tensor, uint32_t i,
                       bool backward, struct one *o)
{
    const struct einsum *e = c->param;

    if (tensor < e->n_in) {
        o->in[i] = c->in[tensor];
        o->din[i] = backward ? c->din[tensor] : NULL;
        o->call.din_add |= backward && op_adds(c, tensor) ? OP_IN(i) : 0;
        return;
    }
    tensor -= e->n_in;
    o->made[i] = floats_at(s->saves ? c->save : c->scratch, s->value[tensor],
                           e->step[tensor].floats);
    o->grad[i] = floats_at(c->scratch, s->grad[tensor], e->step[tensor].floats);
    o->in[i] = &o->made[i];
    o->din[i] = backward && s->wanted[e->n_in + tensor] ? &o->grad[i] : NULL;
}

static void set_call(const struct op_call *c, uint32_t step, bool backward, struct one *o)
{
    const struct einsum *e = c->param;
    const struct chain *s = c->state;
    const struct einsum_step *at = &e->step[step];
    bool is_last = step + 1 == e->n_steps;

    *o = (struct one){ .call = *c };
    o->call.din_add = 0;
    set_factor(c, s, at->left, 0, backward, o);
    if (at->right != EINSUM_NONE)
        set_factor(c, s, at->right, 1, backward, o);
    o->made[EINSUM_OUT] = floats_at(s->saves ? c->save : c->scratch, s->value[step], at->floats);
    o->grad[EINSUM_OUT] = floats_at(c->scratch, s->grad[step], at->floats);
    o->out = is_last ? c->out[0] : &o->made[EINSUM_OUT];
    o->dout = !backward ? NULL : is_last ? c->dout[0] : &o->grad[EINSUM_OUT];
    o->call.param = &at->pair;
    o->call.state = s->state[step];
    o->call.n_in = at->right != EINSUM_NONE ? 2 : 1;
    o->call.in = o->in;
    o->call.out = &o->out;
    o->call.din = backward ? o->din : NULL;
    o->call.dout = &o->dout;
    o->call.scratch = op_at(c->scratch, s->rest);
}

int einsum_chain_fwd(const struct op_call *c, struct err *err)
{
    const struct einsum *e = c->param;
    struct one o;
    uint32_t i;
    int rc = 0;

    for (i = 0; i < e->n_steps && rc == 0; i++) {
        set_call(c, i, false, &o);
        rc = einsum_cpu_fwd(&o.call, err);
    }
    return rc;
}

int einsum_chain_bwd(const struct op_call *c, struct err *err)
{
    const struct einsum *e = c->param;
    const struct chain *s = c->state;
    struct one o;
    uint32_t i;
    int rc = 0;

    if (c->dout[0] == NULL) {
        op_bwd_zero(c);
        return 0;
    }
    for (i = e->n_steps; i-- > 0 && rc == 0;) {
        if (!s->wanted[e->n_in + i])
            continue;
        set_call(c, i, true, &o);
        rc = einsum_cpu_bwd(&o.call, err);
    }
    return rc;
}
