/* restore_dropout.c - replaces noise that a file computes from random numbers by Dropout.
 *
 * PyTorch's exporter writes torch.nn.Dropout as the op, but writes other layers that disable parts
 * in training (Dropout1d to 3d, stochastic depth, timm's DropPath) with elementary ops:
 *
 *   b = RandomUniformLike(e) < p     1 with probability p, of the shape of e
 *   d = b / p                        multiplied with an activation
 *
 * These ops do not state that they are for training only: in evaluation and in the exported model
 * the network would be random, while the module is not. The division in the message is therefore
 * replaced by
 *
 *   d = Dropout(ones of the shape of e, ratio 1 - p, training_mode true)
 *
 * which has the same distribution, is 1 in evaluation, and is disabled by export. */
#include "graph/graph_priv.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "graph/import_priv.h"

struct drop { /* a match: nodes of the message */
    size_t div, cast, less, uniform;
    size_t like; /* the CastLike of p, which reads the random numbers to get their type; SIZE_MAX:
                    none */
    const char *shape_of; /* the tensor e */
    float keep;           /* p */
};

struct rewriter {
    struct graph *g;
    const Onnx__GraphProto *p;
    struct map producer;   /* tensor name to index of the node that computes it */
    struct map reader;  /* tensor name to index into readers */
    uint32_t *readers;  /* number of inputs that read the tensor */
    uint32_t n_readers;
    VEC(struct drop) list;
    VEC(Onnx__NodeProto *) out;
    bool *is_dead; /* [n_node] */
    struct err *err;
};

static int no_memory(struct err *err)
{
    return err_set(err, ERR_NOMEM, "dropout: out of memory");
}

static bool is_op(const Onnx__NodeProto *n, const char *op, size_t n_in)
{
    return import_is_onnx(n->domain) && strcmp(import_text(n->op_type), op) == 0 &&
           n->n_input >= n_in && n->n_output >= 1;
}

/* The node that computes a tensor, if it is this op; else NULL. */
static const Onnx__NodeProto *made_by(const struct rewriter *r, const char *tensor, const char *op,
                                      size_t n_in, size_t *node)
{
    uint64_t i;

    if (!map_get(&r->producer, tensor, &i) || !is_op(r->p->node[i], op, n_in))
        return NULL;
    *node = (size_t)i;
    return r->p->node[i];
}

/* Reads the float32 scalar of an initializer or a Constant, directly or through a Cast or
 * CastLike. */
static bool is_number(const struct rewriter *r, const char *tensor, float *out)
{
    const Onnx__TensorProto *t = NULL;
    const Onnx__NodeProto *n;
    size_t node, i;

    n = made_by(r, tensor, "CastLike", 2, &node);
    if (n == NULL)
        n = made_by(r, tensor, "Cast", 1, &node);
    if (n != NULL)
        tensor = n->input[0];
    n = made_by(r, tensor, "Constant", 0, &node);
    if (n != NULL && n->n_attribute == 1 && n->attribute[0]->has_f &&
        strcmp(import_text(n->attribute[0]->name), "value_float") == 0) {
        *out = n->attribute[0]->f;
        return true;
    }
    if (n != NULL && n->n_attribute == 1)
        t = n->attribute[0]->t;
    for (i = 0; n == NULL && i < r->p->n_initializer && t == NULL; i++)
        if (strcmp(import_text(r->p->initializer[i]->name), tensor) == 0)
            t = r->p->initializer[i];
    if (t == NULL || t->data_type != TENSOR_F32 || t->n_dims > 1 ||
        (t->n_dims == 1 && t->dims[0] != 1))
        return false;
    if (t->has_raw_data && t->raw_data.len == sizeof(*out)) {
        memcpy(out, t->raw_data.data, sizeof(*out));
        return true;
    }
    if (t->n_float_data != 1)
        return false;
    *out = t->float_data[0];
    return true;
}

static bool is_unit_interval(const Onnx__NodeProto *uniform)
{
    size_t i;

    for (i = 0; i < uniform->n_attribute; i++) {
        const Onnx__AttributeProto *a = uniform->attribute[i];

        if ((strcmp(import_text(a->name), "low") == 0 && a->f != 0) ||
            (strcmp(import_text(a->name), "high") == 0 && a->f != 1))
            return false;
    }
    return true;
}

static bool recognise(const struct rewriter *r, size_t node, struct drop *d)
{
    const Onnx__NodeProto *div = r->p->node[node], *cast, *less, *uniform;
    float over;

    if (!is_op(div, "Div", 2) || !is_number(r, div->input[1], &over))
        return false;
    d->div = node;
    cast = made_by(r, div->input[0], "Cast", 1, &d->cast);
    if (cast == NULL)
        cast = made_by(r, div->input[0], "CastLike", 2, &d->cast);
    less = cast != NULL ? made_by(r, cast->input[0], "Less", 2, &d->less) : NULL;
    uniform = less != NULL ? made_by(r, less->input[0], "RandomUniformLike", 1, &d->uniform) : NULL;
    if (uniform == NULL || !is_unit_interval(uniform) || !is_number(r, less->input[1], &d->keep) ||
        !(d->keep > 0 && d->keep < 1) || fabsf(over - d->keep) > 1e-6f)
        return false;
    if (made_by(r, less->input[1], "CastLike", 2, &d->like) == NULL)
        d->like = SIZE_MAX;
    d->shape_of = uniform->input[0];
    return true;
}

/* ---- producers and readers ---- */

static bool count_reader(struct rewriter *r, const char *tensor)
{
    uint64_t at;

    if (!map_get(&r->reader, tensor, &at)) {
        at = r->n_readers++;
        if (map_put(&r->reader, tensor, at) == MAP_NOMEM)
            return false;
    }
    r->readers[at]++;
    return true;
}

static bool index_nodes(struct rewriter *r)
{
    size_t i, k;

    for (i = 0; i < r->p->n_node; i++) {
        const Onnx__NodeProto *n = r->p->node[i];

        for (k = 0; k < n->n_output; k++)
            if (n->output[k][0] != '\0' && map_put(&r->producer, n->output[k], i) == MAP_NOMEM)
                return false;
        for (k = 0; k < n->n_input; k++)
            if (!count_reader(r, n->input[k]))
                return false;
    }
    for (i = 0; i < r->p->n_output; i++)
        if (!count_reader(r, import_text(r->p->output[i]->name)))
            return false;
    return true;
}

static uint32_t *readers_of(struct rewriter *r, const char *tensor)
{
    uint64_t at;

    return map_get(&r->reader, tensor, &at) ? &r->readers[at] : NULL;
}

/* Marks a node without readers as dead. Nodes closer to the output must be handled first. */
static void remove_unread(struct rewriter *r, size_t node)
{
    const Onnx__NodeProto *n = r->p->node[node];
    uint32_t *left = readers_of(r, n->output[0]);
    size_t k;

    if (r->is_dead[node] || (left != NULL && *left > 0))
        return;
    r->is_dead[node] = true;
    for (k = 0; k < n->n_input; k++)
        --*readers_of(r, n->input[k]);
}

/* ---- replacement ---- */

static void *alloc(struct rewriter *r, size_t n, size_t size)
{
    void *p = arena_array(&r->g->mem, n, size);

    if (p == NULL)
        (void)no_memory(r->err);
    return p;
}

static char *name_of(struct rewriter *r, const char *of, const char *what)
{
    char *s = arena_printf(&r->g->mem, "%s%s", of, what);

    if (s == NULL)
        (void)no_memory(r->err);
    return s;
}

/* Appends a node with one output; the arena owns `in` and `out`. NULL: out of memory. */
static Onnx__NodeProto *new_node(struct rewriter *r, const Onnx__NodeProto *like, const char *op,
                                 char *const *in, size_t n_in, char *out)
{
    Onnx__NodeProto *n = alloc(r, 1, sizeof(*n));
    size_t i;

    if (n == NULL || out == NULL)
        return NULL;
    onnx__node_proto__init(n);
    n->op_type = (char *)(uintptr_t)op;
    n->name = out;
    n->input = alloc(r, n_in + 1, sizeof(*n->input));
    n->output = alloc(r, 1, sizeof(*n->output));
    if (n->input == NULL || n->output == NULL || !VEC_PUSH(r->out, n)) {
        (void)no_memory(r->err);
        return NULL;
    }
    for (i = 0; i < n_in; i++) {
        if (in[i] == NULL)
            return NULL;
        n->input[i] = in[i];
    }
    n->n_input = n_in;
    n->output[0] = out;
    n->n_output = 1;
    n->metadata_props = like->metadata_props; /* names the layer */
    n->n_metadata_props = like->n_metadata_props;
    return n;
}

/* Sets the attribute `value`: one number of 4 bytes, or one bool. */
static bool set_value(struct rewriter *r, Onnx__NodeProto *n, enum tensor_dtype dtype,
                      const void *bytes, size_t size, bool is_list)
{
    Onnx__AttributeProto *a = alloc(r, 1, sizeof(*a)), **list = alloc(r, 1, sizeof(*list));
    Onnx__TensorProto *t = alloc(r, 1, sizeof(*t));
    int64_t *one = alloc(r, 1, sizeof(*one));
    uint8_t *data = alloc(r, size, 1);

    if (a == NULL || list == NULL || t == NULL || one == NULL || data == NULL)
        return false;
    onnx__attribute_proto__init(a);
    onnx__tensor_proto__init(t);
    memcpy(data, bytes, size);
    *one = 1;
    t->has_data_type = 1;
    t->data_type = dtype;
    t->dims = one;
    t->n_dims = is_list ? 1 : 0;
    t->has_raw_data = 1;
    t->raw_data.data = data;
    t->raw_data.len = size;
    a->name = (char *)"value";
    a->has_type = 1;
    a->type = OP_ATTR_TENSOR;
    a->t = t;
    list[0] = a;
    n->attribute = list;
    n->n_attribute = 1;
    return true;
}

static bool append_dropout(struct rewriter *r, const struct drop *d)
{
    const Onnx__NodeProto *div = r->p->node[d->div];
    const char *name = div->output[0];
    char *shape = name_of(r, name, ".shape"), *ones = name_of(r, name, ".ones");
    char *in[] = { ones, name_of(r, name, ".ratio"), name_of(r, name, ".training_mode") };
    char *of = (char *)(uintptr_t)d->shape_of;
    float one = 1, ratio = 1 - d->keep;
    uint8_t yes = 1;
    Onnx__NodeProto *n = new_node(r, div, "Shape", &of, 1, shape);

    if (n == NULL)
        return false;
    n = new_node(r, div, "ConstantOfShape", &shape, 1, ones);
    if (n == NULL || !set_value(r, n, TENSOR_F32, &one, sizeof(one), true))
        return false;
    n = new_node(r, div, "Constant", NULL, 0, in[1]);
    if (n == NULL || !set_value(r, n, TENSOR_F32, &ratio, sizeof(ratio), false))
        return false;
    n = new_node(r, div, "Constant", NULL, 0, in[2]);
    if (n == NULL || !set_value(r, n, TENSOR_BOOL, &yes, sizeof(yes), false))
        return false;
    return new_node(r, div, "Dropout", in, 3, div->output[0]) != NULL;
}

/* Records the constants p that the division and the comparison read: initializers or Constants. */
static bool record_unread(struct rewriter *r)
{
    size_t i;

    r->g->unread = alloc(r, 2 * r->list.n, sizeof(*r->g->unread));
    for (i = 0; i < r->list.n && r->g->unread != NULL; i++) {
        const struct drop *d = &r->list.at[i];

        r->g->unread[r->g->n_unread++] = r->p->node[d->div]->input[1];
        r->g->unread[r->g->n_unread++] =
            d->like != SIZE_MAX ? r->p->node[d->like]->input[0] : r->p->node[d->less]->input[1];
    }
    return r->g->unread != NULL;
}

static int rewrite(struct rewriter *r)
{
    Onnx__ModelProto *model = alloc(r, 1, sizeof(*model));
    Onnx__GraphProto *graph = alloc(r, 1, sizeof(*graph));
    size_t i, k = 0;

    r->is_dead = alloc(r, r->p->n_node, sizeof(*r->is_dead));
    if (model == NULL || graph == NULL || r->is_dead == NULL || !record_unread(r))
        return ERR_NOMEM;
    for (i = 0; i < r->list.n; i++) {
        const struct drop *d = &r->list.at[i];
        size_t input;

        r->is_dead[d->div] = true;
        for (input = 0; input < r->p->node[d->div]->n_input; input++)
            --*readers_of(r, r->p->node[d->div]->input[input]);
        remove_unread(r, d->cast);
        remove_unread(r, d->less);
        if (d->like != SIZE_MAX)
            remove_unread(r, d->like);
        remove_unread(r, d->uniform);
    }
    for (i = 0; i < r->p->n_node; i++) {
        if (k < r->list.n && r->list.at[k].div == i) {
            if (!append_dropout(r, &r->list.at[k++]))
                return ERR_NOMEM;
        } else if (!r->is_dead[i] && !VEC_PUSH(r->out, r->p->node[i])) {
            return no_memory(r->err);
        }
    }
    *model = *r->g->file.model;
    *graph = *r->p;
    graph->node = alloc(r, r->out.n, sizeof(*graph->node));
    if (graph->node == NULL)
        return ERR_NOMEM;
    memcpy(graph->node, r->out.at, r->out.n * sizeof(*graph->node));
    graph->n_node = r->out.n;
    model->graph = graph;
    r->g->file.model = model;
    return graph_note(r->g, r->err,
                      "%zu layers that drop parts at random (first '%s') were recognised: they are disabled "
                      "in evaluation and in the exported model",
                      r->list.n, r->p->node[r->list.at[0].div]->output[0]);
}

int graph_restore_dropout(struct graph *g, struct err *err)
{
    struct rewriter r = { .g = g, .p = g->file.model->graph, .err = err };
    struct drop d;
    size_t n_readers = 0, i;
    int rc = 0;

    if (g->opset < 12) /* first opset of Dropout with training_mode */
        return 0;
    for (i = 0; i < r.p->n_node; i++)
        n_readers += r.p->node[i]->n_input;
    r.readers = arena_array(&g->mem, n_readers + r.p->n_output, sizeof(*r.readers));
    if (r.readers == NULL || !index_nodes(&r))
        rc = no_memory(err);
    for (i = 0; i < r.p->n_node && rc == 0; i++)
        if (recognise(&r, i, &d) && !VEC_PUSH(r.list, d))
            rc = no_memory(err);
    if (rc == 0 && r.list.n > 0)
        rc = rewrite(&r);
    map_fini(&r.producer);
    map_fini(&r.reader);
    VEC_FINI(r.list);
    VEC_FINI(r.out);
    return rc;
}
