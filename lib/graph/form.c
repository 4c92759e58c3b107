/* form.c - classifies initializers by the form of the graph, in files without a signature.
 *
 * Ops have certain inputs for weights, biases and scales. A vector that is added to an activation
 * or scales its channels is a bias or a scale that the exporter wrote as Add and Mul. An exponent,
 * a bound, a divisor, a mask and a single number are constants of the formula. The role of a value
 * passes through ops that only rearrange elements, so a Transpose between a weight and its product
 * has no effect. Other tensors are unclear: a table of positions may be learned or not. */
#include "graph/param_priv.h"

#include <math.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/text.h"

enum role {
    ROLE_PARAM = 1,     /* an input that an op reserves for a parameter */
    ROLE_CONST = 2,     /* exponent, bound, divisor or subtrahend */
    ROLE_ADDED = 4,     /* added to an activation */
    ROLE_SCALES = 8,    /* multiplied with an activation */
    ROLE_RAW = 16,      /* combined with an input of the graph before any weight was applied */
    ROLE_OTHER = 32,
    ROLE_ONE_BIAS = 64, /* added to a product of width 1 */
    ROLE_STATE = 128,   /* initial state of a recurrent layer or a loop */
    ROLE_LSTM_BIAS = 256,
    ROLE_BIAS = 512,    /* added to the product of an activation and a weight */
};

static const struct place { /* the inputs of an op by their meaning */
    const char *op;
    uint32_t params, constants, states; /* bit masks of inputs */
} places[] = {
    { "Conv", 0x6, 0, 0 },
    { "ConvTranspose", 0x6, 0, 0 },
    { "Gemm", 0x6, 0, 0 },
    { "MatMul", 0x2, 0, 0 },
    { "LSTM", 0x8E, 0, 0x60 },
    { "GRU", 0xE, 0, 0x20 },
    { "RNN", 0xE, 0, 0x20 },
    { "LayerNormalization", 0x6, 0, 0 },
    { "RMSNormalization", 0x2, 0, 0 },
    { "InstanceNormalization", 0x6, 0, 0 },
    { "GroupNormalization", 0x6, 0, 0 },
    { "BatchNormalization", 0x6, 0, 0 },
    { "PRelu", 0x2, 0, 0 },
    { "Gather", 0x1, 0, 0 },
    { "Einsum", 0xFFFF, 0, 0 },
    { "Pow", 0, 0x2, 0 },
    { "Clip", 0, 0x6, 0 },
    { "Max", 0, 0xFFFF, 0 },
    { "Min", 0, 0xFFFF, 0 },
    { "Div", 0, 0x2, 0 },
    { "Mod", 0, 0x2, 0 },
    { "Pad", 0, 0xE, 0 },
    { "Resize", 0, 0xE, 0 },
    { "Dropout", 0, 0x6, 0 },
};

static const char *const rearranging[] = { "Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze",
                                           "Identity",  "Cast",    "Slice",   "Split",   "Expand",
                                           "Tile",      "Concat" };

struct forms {
    struct finder *f;
    bool *is_static; /* [n_values] depends only on initializers and constants */
    bool *is_fed;    /* [n_values] a weight is upstream */
    uint32_t *maker; /* [n_values] top-level node that computes the value; GRAPH_NONE: none */
};

static const struct place *find_place(const struct graph_node *n)
{
    size_t i;

    for (i = 0; i < COUNT_OF(places); i++)
        if (op_is_onnx(n->def, places[i].op))
            return &places[i];
    return NULL;
}

static bool rearranges(const struct graph_node *n)
{
    size_t i;

    for (i = 0; i < COUNT_OF(rearranging); i++)
        if (op_is_onnx(n->def, rearranging[i]))
            return true;
    return false;
}

/* ---- forward propagation: is_static and is_fed ---- */

static void propagate_static(struct forms *s)
{
    const struct graph *g = s->f->g;
    uint32_t i, k;

    for (i = 0; i < g->n_values; i++) {
        s->is_static[i] = g->values[i].kind == VALUE_CONST;
        s->is_fed[i] = g->values[i].kind == VALUE_INNER; /* bodies are not traced */
        s->maker[i] = GRAPH_NONE;
    }
    for (i = 0; i < g->n_nodes; i++) {
        const struct graph_node *n = &g->nodes[i];
        const struct place *place = find_place(n);
        bool is_static = n->n_bodies == 0, fed = n->n_bodies > 0;

        for (k = 0; k < n->n_in; k++) {
            if (n->in[k] == GRAPH_NONE)
                continue;
            is_static = is_static && s->is_static[n->in[k]];
            fed = fed || s->is_fed[n->in[k]] ||
                  (place != NULL && (place->params & graph_input_bit(k)) != 0);
        }
        for (k = 0; k < n->n_out; k++)
            if (n->out[k] != GRAPH_NONE) {
                s->is_static[n->out[k]] = is_static;
                s->is_fed[n->out[k]] = fed && !is_static;
                s->maker[n->out[k]] = i;
            }
    }
}

/* ---- backward propagation: roles ---- */

static uint16_t roles_of_outputs(const struct forms *s, const struct graph_node *n)
{
    uint16_t role = 0;
    uint32_t k;

    for (k = 0; k < n->n_out; k++)
        if (n->out[k] != GRAPH_NONE)
            role |= s->f->role[n->out[k]];
    return role;
}

/* The product of an activation and a weight that computes this value, directly or through
 * rearranging ops; NULL: none. */
static const struct graph_node *weighted_product(const struct forms *s, uint32_t value)
{
    static const char *const products[] = { "MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum" };
    const struct graph *g = s->f->g;
    uint32_t hops, i, k;

    for (hops = 0; hops < 4 && s->maker[value] != GRAPH_NONE; hops++) {
        const struct graph_node *n = &g->nodes[s->maker[value]];

        for (i = 0; i < COUNT_OF(products); i++)
            for (k = 0; op_is_onnx(n->def, products[i]) && k < n->n_in; k++)
                if (n->in[k] != GRAPH_NONE && s->is_static[n->in[k]])
                    return n;
        if (!rearranges(n) || n->in[0] == GRAPH_NONE)
            return NULL;
        value = n->in[0];
    }
    return NULL;
}

/* Returns whether a product has width 1; its bias then has one element. */
static bool is_narrow(const struct graph *g, const struct graph_node *n)
{
    const struct shape *shape;

    if (n->n_in < 2 || n->in[1] == GRAPH_NONE || g->values[n->in[1]].kind != VALUE_CONST)
        return false;
    shape = &g->values[n->in[1]].tensor.shape;
    return (op_is_onnx(n->def, "MatMul") && shape->rank == 2 && shape->dim[1] == 1) ||
           (op_is_onnx(n->def, "Conv") && shape->rank > 2 && shape->dim[0] == 1);
}

/* Properties of all inputs of a node, computed once, because a node may have 65535 inputs. */
struct inputs {
    bool is_static; /* all inputs are static */
    uint32_t n_fed;
};

static struct inputs examine_inputs(const struct forms *s, const struct graph_node *n)
{
    struct inputs in = { .is_static = true };
    uint32_t i;

    for (i = 0; i < n->n_in; i++) {
        if (n->in[i] == GRAPH_NONE)
            continue;
        in.is_static = in.is_static && s->is_static[n->in[i]];
        in.n_fed += s->is_fed[n->in[i]];
    }
    return in;
}

/* Role of input k of a Sum. */
static uint16_t role_in_sums(const struct forms *s, const struct graph_node *n, uint32_t k,
                             const struct inputs *in)
{
    return in->n_fed > (s->is_fed[n->in[k]] ? 1 : 0) ? ROLE_ADDED : ROLE_RAW;
}

/* Role of input k of a + b, a - b or a * b. */
static uint16_t role_in_sum(const struct forms *s, const struct graph_node *n, uint32_t k)
{
    uint32_t other = n->in[1 - k];
    const struct graph_node *product;
    uint16_t role;

    if (op_is_onnx(n->def, "Sub") && k == 1)
        return ROLE_CONST;
    if (!s->is_fed[other])
        return ROLE_RAW;
    role = op_is_onnx(n->def, "Mul") ? ROLE_SCALES : ROLE_ADDED;
    product = role == ROLE_ADDED ? weighted_product(s, other) : NULL;
    if (product != NULL)
        role |= ROLE_BIAS | (is_narrow(s->f->g, product) ? ROLE_ONE_BIAS : 0);
    return role;
}

static uint16_t role_of(const struct forms *s, const struct graph_node *n, uint32_t k,
                        const struct inputs *in)
{
    const struct place *place = find_place(n);

    if (op_is_onnx(n->def, "LSTM") && k == 3)
        return ROLE_PARAM | ROLE_LSTM_BIAS;
    if (place != NULL && (place->params & graph_input_bit(k)) != 0)
        return ROLE_PARAM;
    if (place != NULL && (place->constants & graph_input_bit(k)) != 0)
        return ROLE_CONST;
    if (place != NULL && (place->states & graph_input_bit(k)) != 0)
        return ROLE_STATE;
    if (in->is_static)
        return roles_of_outputs(s, n);
    if (rearranges(n)) /* other inputs, and all inputs of Concat, become a part of an activation */
        return k == 0 && !op_is_onnx(n->def, "Concat") ? roles_of_outputs(s, n) : ROLE_OTHER;
    if ((op_is_onnx(n->def, "Add") || op_is_onnx(n->def, "Sub") || op_is_onnx(n->def, "Mul")) &&
        n->n_in == 2)
        return role_in_sum(s, n, k);
    if (op_is_onnx(n->def, "Sum"))
        return role_in_sums(s, n, k, in);
    return ROLE_OTHER;
}

static void propagate_roles(struct forms *s, const struct graph_node *nodes, uint32_t n);

/* The inputs of a node have the roles of the corresponding inputs of its bodies; a loop-carried
 * value is a state. */
static void propagate_into_bodies(struct forms *s, const struct graph_node *n)
{
    uint32_t i, k;

    for (i = 0; i < n->n_bodies; i++) {
        const struct graph_body *body = &n->bodies[i];

        propagate_roles(s, body->nodes, body->n_nodes);
        for (k = 0; k < n->n_in && k < body->n_in; k++)
            if (n->in[k] != GRAPH_NONE)
                s->f->role[n->in[k]] |= s->f->role[body->in[k]];
    }
    for (k = 0; k < n->n_in; k++)
        if (n->in[k] != GRAPH_NONE && s->f->role[n->in[k]] == 0)
            s->f->role[n->in[k]] = ROLE_STATE;
}

static void propagate_roles(struct forms *s, const struct graph_node *nodes, uint32_t n)
{
    uint32_t i, k;

    for (i = n; i-- > 0;) {
        const struct inputs in = examine_inputs(s, &nodes[i]);

        if (nodes[i].n_bodies > 0) {
            propagate_into_bodies(s, &nodes[i]);
            continue;
        }
        for (k = 0; k < nodes[i].n_in; k++)
            if (nodes[i].in[k] != GRAPH_NONE)
                s->f->role[nodes[i].in[k]] |= role_of(s, &nodes[i], k, &in);
    }
}

int form_find_roles(struct finder *f, struct arena *mem, struct err *err)
{
    struct forms s = { .f = f };
    uint32_t n = f->g->n_values;

    f->role = arena_array(mem, n, sizeof(*f->role));
    s.is_static = arena_array(mem, n, sizeof(*s.is_static));
    s.is_fed = arena_array(mem, n, sizeof(*s.is_fed));
    s.maker = arena_array(mem, n, sizeof(*s.maker));
    if (f->role == NULL || s.is_static == NULL || s.is_fed == NULL || s.maker == NULL)
        return err_set(err, ERR_NOMEM, "find the parameters: out of memory");
    propagate_static(&s);
    propagate_roles(&s, f->g->nodes, f->g->n_nodes);
    return 0;
}

/* ---- classification ---- */

/* Returns whether a tensor is a mask: zeros and ones that are multiplied, or zeros and numbers that
 * a softmax converts to zero. A vector of equal numbers is not a mask but a scale or bias that was
 * never trained. A vector of zeros and ones that is added is the bias of a new LSTM, whose forget
 * gate begins with ones. */
static bool is_mask(const struct tensor *t, bool is_bias)
{
    const float *x = t->data;
    size_t n = (size_t)tensor_elements(t), zeros = 0, ones = 0, low = 0, i;

    if (t->dtype != TENSOR_F32 || t->data == NULL) /* large 16-bit data is not widened yet */
        return false;
    for (i = 0; i < n; i++) {
        float v;

        memcpy(&v, x + i, sizeof(v));
        zeros += v == 0.0f;
        ones += v == 1.0f;
        low += v <= -1e4f;
    }
    return (!is_bias && zeros > 0 && ones > 0 && zeros + ones == n) ||
           (low > 0 && zeros + low == n);
}

static bool is_zero(const struct tensor *t)
{
    const char *x = t->data;
    size_t n = tensor_bytes(t), i;

    if (x == NULL)
        return false;
    for (i = 0; i < n; i++)
        if (x[i] != 0)
            return false;
    return true;
}

/* B of a recurrent layer, [directions, 2 * gates * hidden]: returns whether the recurrent biases
 * are zero and the others are not. */
static bool has_zero_half(const struct tensor *t)
{
    const float *x = t->data;
    size_t half, i;

    if (t->dtype != TENSOR_F32 || x == NULL || t->shape.rank != 2 || is_zero(t))
        return false;
    half = (size_t)t->shape.dim[1] / 2;
    for (i = 0; i < half; i++)
        if (x[half + i] != 0)
            return false;
    return half > 0;
}

static bool is_vector(const struct shape *s)
{
    uint32_t wide = 0, i;

    for (i = 0; i < s->rank; i++)
        wide += s->dim[i] != 1;
    return wide == 1;
}

/* PyTorch's first exporter names initializers after the module's tensors ("scale", "block.scale"),
 * and those that it creates "onnx::Mul_12", "/block/Constant_output_0" or "12". Parameters of the
 * networks of `trainerctl model` have dots in their names. */
static bool has_module_name(const struct graph *g, const char *name)
{
    if (text_starts(g->file.producer, "trainerd"))
        return strchr(name, '.') != NULL;
    return text_starts(g->file.producer, "pytorch") && name[0] != '/' &&
           strstr(name, "::") == NULL && strspn(name, "0123456789") != strlen(name);
}

/* Words that occur in variable names of Keras, Flax and TensorFlow. */
static bool has_variable_name(const char *name)
{
    static const char *const words[] = { "kernel", "bias",      "gamma",   "beta",          "weight",
                                         "embedd", "Variable",  ".scale",  "/scale" };
    size_t i;

    for (i = 0; i < COUNT_OF(words); i++)
        if (strstr(name, words[i]) != NULL)
            return true;
    return false;
}

bool form_is_weight(const struct finder *f, uint32_t value)
{
    return (f->role[value] & ROLE_PARAM) != 0 && f->g->values[value].tensor.shape.rank > 1;
}

static float element(const struct tensor *t, size_t at)
{
    struct tensor one = { .dtype = t->dtype,
                          .data = (char *)t->data + at * tensor_dtype_bytes(t->dtype) };
    float x;

    if (t->dtype == TENSOR_F32) /* tables have many elements */
        memcpy(&x, one.data, sizeof(x));
    else
        graph_read_floats(&one, NULL, &x);
    return x;
}

/* ---- position tables ---- */

/* A pair (a, b) is the sine and the cosine of one angle, both times r plus c: a^2 + b^2 is then
 * linear in a + b. */
struct pairs {
    double n, sum, sum2, square, square2, product; /* sums over the pairs, with s = a + b and p =
                                                      a^2 + b^2 */
    double max_error;                               /* maximum of |p - 1| */
    double a, b, repeats; /* the last pair; number of pairs that are equal to the previous one */
};

static void add_pair(struct pairs *q, double a, double b)
{
    double s = a + b, p = a * a + b * b;

    q->repeats += q->n > 0 && a == q->a && b == q->b;
    q->a = a;
    q->b = b;
    q->n++;
    q->sum += s;
    q->sum2 += s * s;
    q->square += p;
    q->square2 += p * p;
    q->product += s * p;
    q->max_error = fabs(p - 1) > q->max_error || isnan(p) ? fabs(p - 1) : q->max_error;
}

enum { PAIRS_MANY = 16 };

/* Returns the residual variance of the linear fit over the square of the mean of p; NaN: no line fits. */
static double misfit_of(const struct pairs *q)
{
    double mean_square = q->square / q->n, mean_sum = q->sum / q->n;
    double ss = q->sum2 / q->n - mean_sum * mean_sum,
           pp = q->square2 / q->n - mean_square * mean_square,
           sp = q->product / q->n - mean_sum * mean_square;

    if (!(mean_square > 0) || !(ss > 0) || !isfinite(pp))
        return NAN;
    return (pp - sp * sp / ss) / (mean_square * mean_square);
}

/* If pairs are few, or many are equal (an identity matrix), only plain sines and cosines are
 * recognized: any few points are close to some line. */
static bool are_sinusoids(const struct pairs *q)
{
    if (q->max_error <= 1e-2) /* bfloat16 has 8 significant bits */
        return true;
    return q->n >= PAIRS_MANY && q->repeats * 2 <= q->n && misfit_of(q) <= 1e-4;
}

/* Is the misfit of some rows so large that more rows cannot make sinusoids of them? Random weights have 0.4 or
 * more. */
static bool are_far_off(const struct pairs *q)
{
    return q->n >= PAIRS_MANY && q->max_error > 1e-2 && misfit_of(q) > 0.05;
}

/* Adds the pairs of a row: `apart` is the distance from the sine to the cosine, `step` the distance
 * to the next pair, `run` the number of pairs in a block of 2 * run elements. */
static void add_row(struct pairs *q, const struct tensor *t, size_t at, size_t width, size_t run,
                    size_t apart, size_t step)
{
    size_t block, i;

    for (block = 0; block + 2 * run <= width; block += 2 * run)
        for (i = 0; i < run; i++)
            add_pair(q, (double)element(t, at + block + i * step),
                     (double)element(t, at + block + i * step + apart));
}

static bool is_zero_row(const struct tensor *t, size_t row, size_t width)
{
    size_t i;

    for (i = 0; i < width; i++)
        if (element(t, row * width + i) != 0)
            return false;
    return true;
}

/* Compares rows i - 1 and i: equal rows add no information. */
static bool are_equal_rows(const struct tensor *t, size_t i, size_t width)
{
    size_t k;

    for (k = 0; k < width; k++)
        if (element(t, (i - 1) * width + k) != element(t, i * width + k))
            return false;
    return true;
}

/* Tests three orders: all sines before all cosines, alternating, or sines and cosines of the height
 * before those of the width of an image. The first rows decide, because embedding tables have millions, and random
 * weights are recognized in fewer: a model of 26 tables starts tens of milliseconds earlier. */
bool form_is_sinusoid(const struct graph_value *v)
{
    enum { ROWS_READ = 4096, ROWS_FEW = 64 };
    const struct tensor *t = v->half.data != NULL ? &v->half : &v->tensor;
    struct pairs halves = { 0 }, mixed = { 0 }, quarters = { 0 };
    size_t width, rows, zeros = 0, i;

    if (v->fill != NULL || t->data == NULL || t->shape.rank < 2 || tensor_elements(t) == 0)
        return false;
    width = (size_t)t->shape.dim[t->shape.rank - 1];
    rows = (size_t)t->shape.dim[t->shape.rank - 2];
    if (rows < 2 || width < 4 || width % 2 != 0 || (size_t)tensor_elements(t) != rows * width)
        return false;
    for (i = 0; i < rows && i < ROWS_READ; i++) {
        if (i == ROWS_FEW && are_far_off(&halves) && are_far_off(&mixed) &&
            (width % 4 != 0 || are_far_off(&quarters)))
            return false;
        if ((is_zero_row(t, i, width) && zeros++ == 0) /* padding row */ ||
            (i > 0 && are_equal_rows(t, i, width)))
            continue;
        add_row(&halves, t, i * width, width, width / 2, width / 2, 1);
        add_row(&mixed, t, i * width, width, width / 2, 1, 2);
        if (width % 4 == 0)
            add_row(&quarters, t, i * width, width, width / 4, width / 4, 1);
    }
    return halves.n > 0 && (are_sinusoids(&halves) || are_sinusoids(&mixed) ||
                            (quarters.n > 0 && are_sinusoids(&quarters)));
}

bool form_may_have_inner_weights(const struct graph *g)
{
    return !g->file.metadata.has_signature && !text_starts(g->file.producer, "pytorch") &&
           !text_starts(g->file.producer, "trainerd");
}

enum form_class form_classify(const struct finder *f, uint32_t value, const char **reason)
{
    const struct graph_value *v = &f->g->values[value];
    uint16_t role = f->role[value];
    bool is_named = has_module_name(f->g, v->name);

    if ((role & ROLE_CONST) != 0 && (role & ROLE_PARAM) == 0 && !is_named) {
        *reason = "an exponent, a bound, a divisor or a subtrahend";
        return FORM_CONSTANT;
    }
    if ((role & ROLE_CONST) != 0 && tensor_elements(&v->tensor) == 1 && !is_named) {
        *reason = "a single number in several roles";
        return FORM_CONSTANT;
    }
    if ((role & ROLE_LSTM_BIAS) != 0 && text_starts(f->g->file.producer, "tf2onnx") &&
        is_zero(&v->tensor)) { /* an LSTM bias of Keras has ones for the forget gate */
        *reason = "zeros, which tf2onnx writes for an LSTM without a bias";
        return FORM_CONSTANT;
    }
    if ((role & ROLE_LSTM_BIAS) != 0 && has_zero_half(&v->tensor)) {
        *reason = "the second half of the biases is zero: a framework with one bias for each gate trains the "
                  "first half alone, ONNX trains both";
        return FORM_UNCLEAR;
    }
    if ((role & ROLE_PARAM) != 0) {
        *reason = "an input that an op reserves for a parameter";
        return FORM_PARAMETER;
    }
    if (tensor_elements(&v->tensor) == 1 && (role & ROLE_ONE_BIAS) == 0 && !is_named) {
        *reason = "a single number";
        return FORM_CONSTANT;
    }
    if (tensor_elements(&v->tensor) > 1 &&
        is_mask(&v->tensor,
                (role & (ROLE_ADDED | ROLE_SCALES)) == ROLE_ADDED && is_vector(&v->tensor.shape))) {
        *reason = "a mask";
        return FORM_CONSTANT;
    }
    if (role == ROLE_STATE && is_zero(&v->tensor)) {
        *reason = "an initial state of zeros";
        return FORM_CONSTANT;
    }
    if (is_named) {
        *reason = "it has the name of a tensor of the module";
        return FORM_PARAMETER;
    }
    if ((role & (ROLE_ADDED | ROLE_SCALES)) != 0 && (role & (ROLE_RAW | ROLE_OTHER)) == 0 &&
        (is_vector(&v->tensor.shape) || (role & (ROLE_BIAS | ROLE_ONE_BIAS)) != 0)) {
        *reason = (role & ROLE_SCALES) != 0 ? "a vector that scales an activation"
                                            : "a vector that is added to an activation";
        return FORM_PARAMETER;
    }
    if (has_variable_name(v->name)) {
        *reason = "it has the name of a variable";
        return FORM_PARAMETER;
    }
    *reason = "the form of the graph does not determine its meaning";
    return FORM_UNCLEAR;
}
