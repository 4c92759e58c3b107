/* fuse_act.c - fuses activations that exporters write as a product of x and a function of x:
 *   x Sigmoid(x)                                       Swish
 *   x Tanh(Softplus(x))                                Mish
 *   x HardSigmoid(x), x Clip(x + 3, 0, 6) / 6          HardSwish
 *   x (1 + Erf(x / sqrt 2)) / 2                        Gelu
 *   x (1 + Tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2    Gelu, approximate=tanh
 * with the factors in any order. Also fuses the product of one of them, or of Sigmoid, with another
 * tensor of the same shape into one node, which saves no intermediate results (SwiGLU, GEGLU,
 * GLU). */
#include <math.h>
#include <string.h>

#include "graph/plan_fuse.h"

enum {
    MAX_FACTORS = 3,
    MAX_PARTS = 16, /* values that are examined; longer chains of products are not activations */
};

/* k times the product of the n values v. */
struct product {
    double k;
    uint32_t n; /* MAX_FACTORS + 1: more than supported */
    uint32_t parts;
    uint32_t v[MAX_FACTORS];
};

static bool close_to(double a, double b)
{
    return fabs(a - b) <= 1e-6 * fabs(b);
}

/* Collects the factors of `value`. The outermost node may have other readers. */
static void collect(const struct fuser *f, uint32_t value, bool outermost, struct product *p)
{
    const struct plan_node *n = fuse_producer(f, value);
    bool open = n != NULL && (outermost || fuse_is_exclusive(f, value));
    float number;

    if (p->n > MAX_FACTORS || p->parts++ == MAX_PARTS) {
        p->n = MAX_FACTORS + 1;
    } else if (fuse_number(f, value, &number)) {
        p->k *= (double)number;
    } else if (open && fuse_is(n, NULL, "Mul")) {
        collect(f, n->in[0], false, p);
        collect(f, n->in[1], false, p);
    } else if (open && fuse_is(n, NULL, "Div") && fuse_number(f, n->in[1], &number)) {
        p->k /= (double)number;
        collect(f, n->in[0], false, p);
    } else if (p->n < MAX_FACTORS) {
        p->v[p->n++] = value;
    } else {
        p->n = MAX_FACTORS + 1;
    }
}

static struct product product_of(const struct fuser *f, uint32_t value)
{
    struct product p = { .k = 1 };

    collect(f, value, true, &p);
    return p;
}

/* Matches value = number + rest, written as an Add. */
static bool is_sum(const struct fuser *f, uint32_t value, double number, uint32_t *rest)
{
    const struct plan_node *n = fuse_made_by(f, value, "Add");
    uint32_t i;
    float k;

    for (i = 0; n != NULL && i < 2; i++)
        if (fuse_number(f, n->in[i], &k) && close_to((double)k, number)) {
            *rest = n->in[!i];
            return true;
        }
    return false;
}

static bool is_times(const struct fuser *f, uint32_t value, uint32_t x, double k)
{
    struct product p = product_of(f, value);

    return p.n == 1 && p.v[0] == x && close_to(p.k, k);
}

static bool is_cube(const struct fuser *f, uint32_t value, uint32_t x)
{
    struct product p = product_of(f, value);
    const struct plan_node *pow = p.n == 1 ? fuse_made_by(f, p.v[0], "Pow") : NULL;
    float exponent;

    if (!close_to(p.k, 0.044715))
        return false;
    if (pow != NULL)
        return pow->in[0] == x && fuse_number(f, pow->in[1], &exponent) && exponent == 3.0f;
    return p.n == 3 && p.v[0] == x && p.v[1] == x && p.v[2] == x;
}

/* sqrt(2 / pi) (x + 0.044715 x^3) */
static bool is_tanh_argument(const struct fuser *f, uint32_t value, uint32_t x)
{
    struct product p = product_of(f, value);
    const struct plan_node *sum = p.n == 1 ? fuse_made_by(f, p.v[0], "Add") : NULL;

    return sum != NULL && close_to(p.k, 0.79788456080286536) &&
           ((sum->in[0] == x && is_cube(f, sum->in[1], x)) ||
            (sum->in[1] == x && is_cube(f, sum->in[0], x)));
}

static bool is_hard_gate(const struct fuser *f, uint32_t gate, uint32_t x, double k)
{
    const struct plan_node *n = fuse_made_by(f, gate, "HardSigmoid");
    const struct op_attr *alpha = n != NULL ? fuse_attr(n, "alpha") : NULL;
    uint32_t rest;
    float lo, hi;

    if (n != NULL) /* the default of beta is 0.5 */
        return n->in[0] == x && k == 1 && alpha != NULL && close_to((double)alpha->f, 1.0 / 6) &&
               (fuse_attr(n, "beta") == NULL || fuse_attr(n, "beta")->f == 0.5f);
    n = fuse_made_by(f, gate, "Clip");
    return n != NULL && close_to(k, 1.0 / 6) && n->n_in == 3 && fuse_number(f, n->in[1], &lo) &&
           fuse_number(f, n->in[2], &hi) && lo == 0.0f && hi == 6.0f &&
           is_sum(f, n->in[0], 3, &rest) && rest == x;
}

/* The row that computes k x gate; NULL: none. */
static const struct op_def *row_for(const struct fuser *f, uint32_t x, uint32_t gate, double k,
                                    bool *is_tanh)
{
    const struct plan_node *n = fuse_producer(f, gate), *inner;
    uint32_t rest;

    if (n == NULL || !fuse_is_exclusive(f, gate))
        return NULL;
    if (k == 1 && fuse_is(n, NULL, "Sigmoid") && n->in[0] == x)
        return op_find("trainerd", "Swish", 1);
    inner = k == 1 && fuse_is(n, NULL, "Tanh") ? fuse_made_by(f, n->in[0], "Softplus") : NULL;
    if (inner != NULL && inner->in[0] == x)
        return op_find(NULL, "Mish", 18);
    if (is_hard_gate(f, gate, x, k))
        return op_find(NULL, "HardSwish", 14);
    if (k != 0.5 || !is_sum(f, gate, 1, &rest))
        return NULL;
    inner = fuse_made_by(f, rest, "Erf");
    if (inner != NULL && is_times(f, inner->in[0], x, 0.70710678118654752))
        return op_find(NULL, "Gelu", 20);
    inner = fuse_made_by(f, rest, "Tanh");
    *is_tanh = true;
    return inner != NULL && is_tanh_argument(f, inner->in[0], x) ? op_find(NULL, "Gelu", 20) : NULL;
}

int fuse_gate(struct fuser *f, uint32_t node, struct err *err)
{
    const struct plan_node *n = &f->p->nodes.at[node];
    struct product p = product_of(f, n->out[0]);
    struct fuse_row row = { .name = n->name, .n_in = 1 };
    bool is_tanh = false;
    uint32_t i;

    for (i = 0; i < 2 && p.n == 2 && row.def == NULL; i++) {
        row.def = row_for(f, p.v[i], p.v[!i], p.k, &is_tanh);
        row.in[0] = p.v[i];
    }
    if (row.def == NULL || f->p->values.at[row.in[0]].tensor.dtype != TENSOR_F32)
        return 0;
    if (is_tanh)
        row.attrs[row.n_attrs++] =
            (struct op_attr){ .name = "approximate", .type = OP_ATTR_STRING, .s = "tanh" };
    return fuse_into(f, node, &row, err);
}

/* The name in trainerd.Gated of the function that a node computes; NULL: not supported. */
static const char *gate_function(const struct plan_node *n)
{
    const struct op_attr *a;

    if (fuse_is(n, "trainerd", "Swish"))
        return "swish";
    if (fuse_is(n, NULL, "Sigmoid"))
        return "sigmoid";
    if (!fuse_is(n, NULL, "Gelu"))
        return NULL;
    a = fuse_attr(n, "approximate");
    return a != NULL && strcmp(a->s, "tanh") == 0 ? "gelu_tanh" : "gelu";
}

int fuse_gated_product(struct fuser *f, uint32_t node, struct err *err)
{
    const struct plan_node *n = &f->p->nodes.at[node];
    struct fuse_row row = { .def = op_find("trainerd", "Gated", 1), .name = n->name, .n_in = 2, .n_attrs = 1 };

    for (uint32_t i = 0; i < 2; i++) {
        const struct plan_node *gate = fuse_producer(f, n->in[i]);
        const char *function =
            gate != NULL && fuse_is_exclusive(f, n->in[i]) ? gate_function(gate) : NULL;
        const struct tensor *a = &f->p->values.at[n->in[i]].tensor,
                            *b = &f->p->values.at[n->in[!i]].tensor;

        if (function == NULL || a->dtype != TENSOR_F32 || b->dtype != TENSOR_F32 ||
            !shape_equal(&a->shape, &b->shape) || n->in[0] == n->in[1])
            continue;
        row.in[0] = gate->in[0];
        row.in[1] = n->in[!i];
        row.attrs[0] = (struct op_attr){ .name = "function", .type = OP_ATTR_STRING, .s = function };
        return fuse_into(f, node, &row, err);
    }
    return 0;
}
