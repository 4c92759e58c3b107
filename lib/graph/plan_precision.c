/* plan_precision.c - selects bfloat16 or float16 between and in products, float32 elsewhere.
 *
 * Nodes are visited in order; each row states how it handles 16 bits (op.h, enum op_half). Where an
 * input has another type than the node requires, a `Convert` node is inserted, once per value, for
 * all its readers. Parameters, their gradients, statistics, losses and metrics stay float32: no row
 * offers those operands. A sum of a 16-bit activation and a float32 one stays float32 too, and
 * therefore a residual stream that begins as float32. If only products read a float32 result, the
 * row rounds it itself if it can (half_round), so that it is never stored as float32. */
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "graph/plan_priv.h"

static const struct {
    const char *name;
    enum tensor_dtype half;
    uint32_t capability; /* minimum compute capability of GPUs */
} precisions[] = {
    [PLAN_FLOAT32] = { "float32", TENSOR_NONE, 0 },
    [PLAN_TF32] = { "tf32", TENSOR_NONE, 80 },
    [PLAN_BFLOAT16] = { "bfloat16", TENSOR_BF16, 80 },
    [PLAN_FLOAT16] = { "float16", TENSOR_F16, 70 },
};

const char *plan_precision_name(enum plan_precision p)
{
    return precisions[p].name;
}

enum tensor_dtype plan_precision_half(enum plan_precision p)
{
    return precisions[p].half;
}

bool plan_precision_parse(const char *name, enum plan_precision *out)
{
    for (size_t i = 0; i < COUNT_OF(precisions); i++)
        if (strcmp(name, precisions[i].name) == 0) {
            *out = (enum plan_precision)i;
            return true;
        }
    return false;
}

int plan_precision_check(enum plan_precision p, uint32_t capability, struct err *err)
{
    uint32_t least = precisions[p].capability;

    if (capability > 0 && capability < least)
        return err_set(err, ERR_UNSUPPORTED,
                       "%s needs GPUs of compute capability %u.%u or later, these have %u.%u: use \"float32\"%s, "
                       "or use other GPUs",
                       precisions[p].name, least / 10, least % 10, capability / 10, capability % 10,
                       p != PLAN_FLOAT16 && capability >= precisions[PLAN_FLOAT16].capability ? " or \"float16\""
                                                                                              : "");
    if (capability > 0 || p == PLAN_FLOAT32 || (p == PLAN_BFLOAT16 && op_has_bfloat16()))
        return 0;
    if (p == PLAN_BFLOAT16)
        return err_set(err, ERR_UNSUPPORTED,
                       "bfloat16 needs a processor with the instructions of avx512_bf16, which are absent "
                       "(kernels: %s): use \"float32\", or other machines",
                       op_kernel_id());
    return err_set(err, ERR_UNSUPPORTED,
                   "%s is supported by GPUs only: use \"float32\"%s, or train with --devices cuda",
                   precisions[p].name, op_has_bfloat16() ? " or \"bfloat16\"" : "");
}

struct converter {
    struct plan *p;
    const struct op_def *convert;
    bool *for_products; /* [values before this pass] only products read the value */
};

/* Values whose type this pass selects; types to which the model casts are excluded. */
static bool is_float(const struct plan_value *v)
{
    return v->tensor.dtype == TENSOR_F32 || v->is_half;
}

/* Replaces *value by the same value in the other type. */
static int convert_type(struct converter *c, uint32_t *value, struct err *err)
{
    struct plan *p = c->p;
    const struct plan_value *v = &p->values.at[*value];
    const char *names[] = { v->name };
    struct plan_node n = { .def = c->convert, .name = v->name, .n_in = 1, .n_out = 1, .n_attrs = 1 };
    struct op_attr *to;
    uint32_t from = *value;
    int rc;

    if (v->other_type == GRAPH_NONE) {
        n.in = arena_alloc(&p->mem, sizeof(*n.in));
        n.attrs = to = arena_alloc(&p->mem, sizeof(*to));
        if (n.in == NULL || to == NULL)
            return plan_no_memory(err);
        n.in[0] = from;
        *to = (struct op_attr){ .name = "to",
                                .type = OP_ATTR_INT,
                                .i = v->is_half ? TENSOR_F32 : p->types.half };
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

static int convert_to_float32(struct converter *c, uint32_t *value, struct err *err)
{
    return c->p->values.at[*value].is_half ? convert_type(c, value, err) : 0;
}

/* Returns whether input i may have 16 bits. */
static bool may_be_half(const struct plan *p, const struct plan_node *n, uint32_t i)
{
    return n->in[i] != GRAPH_NONE && (n->def->half_of & graph_input_bit(i)) != 0 &&
           is_float(&p->values.at[n->in[i]]);
}

/* Returns whether the outputs of node n become 16 bits. */
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

static int convert_inputs(struct converter *c, struct plan_node *n, bool is_half, struct err *err)
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
            rc = convert_to_float32(c, &n->in[i], err);
        else if (n->def->half == OP_HALF_WANT && is_half && v->is_fed && !v->is_half)
            rc = convert_type(c, &n->in[i], err);
    }
    return rc;
}

/* Marks values that only products read, directly or through views. */
static void find_products(struct converter *c, const struct plan_node *nodes, size_t n,
                          bool *others)
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

static int select_type(struct converter *c, struct plan_node *n, struct err *err)
{
    struct plan *p = c->p;
    bool is_half = becomes_half(p, n), is_fed = false;
    uint32_t i;
    int rc = convert_inputs(c, n, is_half, err);

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
            v->tensor.dtype = p->types.half;
    }
    return rc < 0 || VEC_PUSH(p->nodes, *n) ? rc : plan_no_memory(err);
}

static int select_types(struct converter *c, const struct plan_node *old, size_t n, struct err *err)
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

        rc = select_type(c, &node, err);
    }
    for (i = 0; i < p->n_kept && rc == 0; i++) /* the caller reads float32 */
        rc = convert_to_float32(c, &p->kept[i].value, err);
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
    rc = select_types(&c, old, n, err);
    arena_fini(&mem);
    return rc;
}
