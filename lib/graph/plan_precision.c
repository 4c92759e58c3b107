/* plan_precision.c - bfloat16 between and inside the products, float32 everywhere else.
 *
 * Nodes are visited in order; each row says what it does with bfloat16 (op.h, enum op_half). Where
 * an input has the other type than the node wants, a `Convert` node is put between, once per value,
 * for all who want it so. Parameters, their gradients, statistics, losses and metrics stay float32:
 * no row offers those operands. So does a sum of a bfloat16 and a float32 activation, and with it a
 * residual stream that began as float32. What a row computes in float32 for products alone it rounds
 * itself, if it can (half_round): what they would read is never stored as float32. */
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "graph/plan_priv.h"

struct converter {
    struct plan *p;
    const struct op_def *convert;
    bool *for_products; /* [values before this pass] nobody else reads it */
};

/* What this pass decides about: not a bfloat16 that the model casts to. */
static bool is_float(const struct plan_value *v)
{
    return v->tensor.dtype == TENSOR_F32 || v->is_half;
}

/* Makes *value the same value in the other type. */
static int in_other(struct converter *c, uint32_t *value, struct err *err)
{
    struct plan *p = c->p;
    const struct plan_value *v = &p->values.at[*value];
    const char *names[] = { v->name };
    struct plan_node n = { .def = c->convert, .name = v->name, .n_in = 1, .n_out = 1 };
    uint32_t from = *value;
    int rc;

    if (v->other_type == GRAPH_NONE) {
        n.in = arena_alloc(&p->mem, sizeof(*n.in));
        if (n.in == NULL)
            return plan_no_memory(err);
        n.in[0] = from;
        rc = plan_add_node(p, &n, names, err);
        if (rc < 0)
            return rc;
        p->values.at[n.out[0]].is_fed = p->values.at[from].is_fed;
        p->values.at[n.out[0]].is_half = !p->values.at[from].is_half;
        p->values.at[n.out[0]].other_type = from;
        p->values.at[from].other_type = n.out[0];
    }
    *value = p->values.at[from].other_type;
    return 0;
}

static int in_float32(struct converter *c, uint32_t *value, struct err *err)
{
    return c->p->values.at[*value].is_half ? in_other(c, value, err) : 0;
}

/* Is input i one that may be bfloat16? */
static bool may_be_half(const struct plan *p, const struct plan_node *n, uint32_t i)
{
    return n->in[i] != GRAPH_NONE && (n->def->half_of & graph_input_bit(i)) != 0 &&
           is_float(&p->values.at[n->in[i]]);
}

/* Do the outputs of node n become bfloat16? */
static bool becomes_half(const struct plan *p, const struct plan_node *n)
{
    bool any = false, all = true;
    uint32_t i;

    for (i = 0; i < n->n_in; i++) {
        const struct plan_value *v;

        if (!may_be_half(p, n, i))
            continue;
        v = &p->values.at[n->in[i]];
        if (n->def->half == OP_HALF_WANT)
            any = any || v->is_fed;
        else if (v->is_fed || n->def->half == OP_HALF_SAME) {
            any = any || v->is_half;
            all = all && v->is_half;
        }
    }
    return any && all;
}

static int settle_inputs(struct converter *c, struct plan_node *n, bool is_half, struct err *err)
{
    struct plan *p = c->p;
    uint32_t i;
    int rc = 0;

    for (i = 0; i < n->n_in && rc == 0; i++) {
        const struct plan_value *v;

        if (n->in[i] == GRAPH_NONE || !is_float(&p->values.at[n->in[i]]))
            continue;
        v = &p->values.at[n->in[i]];
        if (!may_be_half(p, n, i) || (n->def->half == OP_HALF_SAME && !is_half))
            rc = in_float32(c, &n->in[i], err);
        else if (n->def->half == OP_HALF_WANT && is_half && v->is_fed && !v->is_half)
            rc = in_other(c, &n->in[i], err);
    }
    return rc;
}

/* Marks what only products read, themselves or through views. */
static void find_products(struct converter *c, const struct plan_node *nodes, size_t n, bool *others)
{
    const struct plan *p = c->p;
    uint32_t k;
    size_t i;

    for (k = 0; k < p->n_kept; k++)
        others[p->kept[k].value] = true;
    for (i = n; i-- > 0;)
        for (k = 0; k < nodes[i].n_in; k++) {
            const struct plan_node *node = &nodes[i];
            bool is_product = node->def->half == OP_HALF_WANT ||
                              (node->def->view && node->out[0] != GRAPH_NONE &&
                               c->for_products[node->out[0]] && !others[node->out[0]]);

            if (node->in[k] != GRAPH_NONE && may_be_half(p, node, k) && is_product)
                c->for_products[node->in[k]] = true;
            else if (node->in[k] != GRAPH_NONE)
                others[node->in[k]] = true;
        }
    for (i = 0; i < p->values.n; i++)
        c->for_products[i] = c->for_products[i] && !others[i];
}

static int settle_node(struct converter *c, struct plan_node *n, struct err *err)
{
    struct plan *p = c->p;
    bool is_half = becomes_half(p, n), is_fed = false;
    uint32_t i;
    int rc = settle_inputs(c, n, is_half, err);

    for (i = 0; i < n->n_in; i++)
        is_fed = is_fed || (n->in[i] != GRAPH_NONE && p->values.at[n->in[i]].is_fed);
    for (i = 0; i < n->n_out && rc == 0; i++) {
        struct plan_value *v;
        bool rounds;

        if (n->out[i] == GRAPH_NONE)
            continue;
        v = &p->values.at[n->out[i]];
        v->index = (uint32_t)p->nodes.n;
        v->is_fed = is_fed;
        rounds = is_fed && c->for_products[n->out[i]] &&
                 (n->def->half_round & (graph_input_bit(i) << 16)) != 0;
        v->is_half = (is_half || rounds) && (n->def->half_of & (graph_input_bit(i) << 16)) != 0 &&
                     v->tensor.dtype == TENSOR_F32;
        if (v->is_half)
            v->tensor.dtype = TENSOR_BF16;
    }
    return rc < 0 || VEC_PUSH(p->nodes, *n) ? rc : plan_no_memory(err);
}

static int settle_all(struct converter *c, const struct plan_node *old, size_t n, struct err *err)
{
    struct plan *p = c->p;
    size_t i;
    int rc = 0;

    for (i = 0; i < p->values.n; i++) {
        p->values.at[i].is_fed = p->values.at[i].kind == PLAN_FEED;
        p->values.at[i].other_type = GRAPH_NONE;
    }
    p->nodes.n = 0;
    for (i = 0; i < n && rc == 0; i++) {
        struct plan_node node = old[i];

        rc = settle_node(c, &node, err);
    }
    for (i = 0; i < p->n_kept && rc == 0; i++) /* the caller reads float32 */
        rc = in_float32(c, &p->kept[i].value, err);
    return rc;
}

int plan_precision(struct plan *p, struct err *err)
{
    struct converter c = { .p = p, .convert = op_find("trainerd", "Convert", 1) };
    struct arena mem = { 0 };
    size_t n = p->nodes.n;
    struct plan_node *old;
    bool *others;
    int rc;

    CHECK(c.convert != NULL);
    if (p->there.cuda == NULL && !op_has_bfloat16())
        return err_set(err, ERR_UNSUPPORTED,
                       "bfloat16 needs a processor with the instructions of avx512_bf16; this one "
                       "has none (kernels: %s): compute in float32",
                       op_kernel_id());
    old = arena_array(&mem, n, sizeof(*old));
    others = arena_array(&mem, p->values.n, sizeof(*others));
    c.for_products = arena_array(&mem, p->values.n, sizeof(*c.for_products));
    if (old == NULL || others == NULL || c.for_products == NULL) {
        arena_fini(&mem);
        return plan_no_memory(err);
    }
    if (n > 0)
        memcpy(old, p->nodes.at, n * sizeof(*old));
    find_products(&c, old, n, others);
    rc = settle_all(&c, old, n, err);
    arena_fini(&mem);
    return rc;
}
