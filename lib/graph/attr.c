/* attr.c - converts AttributeProto to the attributes that ops read; reads Constant nodes. */
#include "graph/graph_priv.h"

#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/text.h"

/* ONNX's numbers that enum op_attr_type lacks */
enum { ATTR_GRAPH = 5, ATTR_TENSORS = 9, ATTR_GRAPHS = 10 };

/* Files of the oldest tools omit the type; the field that is set then determines it. */
static int attr_type(const Onnx__AttributeProto *p)
{
    if (p->has_type)
        return p->type;
    if (p->has_f)
        return OP_ATTR_FLOAT;
    if (p->has_i)
        return OP_ATTR_INT;
    if (p->has_s)
        return OP_ATTR_STRING;
    if (p->t != NULL)
        return OP_ATTR_TENSOR;
    if (p->has_g || p->n_graphs > 0)
        return ATTR_GRAPH;
    if (p->n_strings > 0)
        return OP_ATTR_STRINGS;
    return p->n_floats > 0 ? OP_ATTR_FLOATS : OP_ATTR_INTS;
}

static int attr_string(struct tensor_source *src, const Onnx__AttributeProto *p,
                       const ProtobufCBinaryData *s, const char *node, const char **out,
                       struct err *err)
{
    if (!text_is_utf8((const char *)s->data, s->len) ||
        (s->len > 0 && memchr(s->data, 0, s->len) != NULL))
        return err_set(err, ERR_INPUT, "node '%s': attribute '%s' is not UTF-8 text", node,
                       p->name);
    *out = s->len > 0 ? arena_strndup(src->mem, (const char *)s->data, s->len) : "";
    return *out != NULL ? 0 : err_set(err, ERR_NOMEM, "node '%s': out of memory", node);
}

static int attr_strings(struct tensor_source *src, const Onnx__AttributeProto *p, const char *node,
                        struct op_attr *out, struct err *err)
{
    const char **list = arena_array(src->mem, p->n_strings + 1, sizeof(*list));
    size_t i;
    int rc = 0;

    if (list == NULL)
        return err_set(err, ERR_NOMEM, "node '%s': out of memory", node);
    for (i = 0; i < p->n_strings && rc == 0; i++)
        rc = attr_string(src, p, &p->strings[i], node, &list[i], err);
    out->strings = list;
    out->n = p->n_strings;
    return rc;
}

static int attr_tensor(struct tensor_source *src, const Onnx__TensorProto *p, const char *node,
                       const char *attr, struct tensor *out, struct err *err)
{
    int rc = graph_read_tensor(src, p, "its tensor", out, err);

    return rc < 0 ? err_wrap(err, rc, "node '%s': attribute '%s'", node, attr) : 0;
}

/* A reader that selects by field would read a value of another type. */
int graph_check_attr(const char *node, const Onnx__AttributeProto *p, struct err *err)
{
    const struct {
        const char *name;
        int type;
        bool is_set;
    } fields[] = {
        { "f", OP_ATTR_FLOAT, p->has_f },           { "i", OP_ATTR_INT, p->has_i },
        { "s", OP_ATTR_STRING, p->has_s },          { "t", OP_ATTR_TENSOR, p->t != NULL },
        { "g", ATTR_GRAPH, p->has_g },              { "floats", OP_ATTR_FLOATS, p->n_floats > 0 },
        { "ints", OP_ATTR_INTS, p->n_ints > 0 },    { "strings", OP_ATTR_STRINGS, p->n_strings > 0 },
        { "tensors", ATTR_TENSORS, p->n_tensors > 0 }, { "graphs", ATTR_GRAPHS, p->n_graphs > 0 },
    };
    int type = attr_type(p);
    size_t i;

    for (i = 0; i < COUNT_OF(fields); i++)
        if (fields[i].is_set && fields[i].type != type)
            return err_set(err, ERR_INPUT,
                           "node '%s': attribute '%s' has type %d, but a value in the field '%s', which is of type %d: "
                           "export the model again",
                           node, p->name != NULL ? p->name : "", type, fields[i].name, fields[i].type);
    return 0;
}

static int read_attr(struct tensor_source *src, const Onnx__AttributeProto *p, const char *node,
                     bool is_control, struct op_attr *out, struct err *err)
{
    struct tensor *t;

    out->name = p->name;
    out->type = (enum op_attr_type)attr_type(p);
    switch ((int)out->type) {
    case OP_ATTR_FLOAT:
        out->f = p->f;
        return 0;
    case OP_ATTR_INT:
        out->i = p->i;
        if (strcmp(p->name, "to") == 0 || strcmp(p->name, "dtype") == 0)
            out->i = graph_read_type(src, (enum tensor_dtype)p->i);
        return 0;
    case OP_ATTR_STRING:
        return attr_string(src, p, &p->s, node, &out->s, err);
    case OP_ATTR_STRINGS:
        return attr_strings(src, p, node, out, err);
    case OP_ATTR_FLOATS:
        out->floats = p->floats, out->n = p->n_floats;
        return 0;
    case OP_ATTR_INTS:
        out->ints = p->ints, out->n = p->n_ints;
        return 0;
    case OP_ATTR_TENSOR:
        t = arena_alloc(src->mem, sizeof(*t));
        if (t == NULL)
            return err_set(err, ERR_NOMEM, "node '%s': out of memory", node);
        out->tensor = t;
        if (p->t == NULL)
            return err_set(err, ERR_INPUT, "node '%s': attribute '%s' contains no tensor", node,
                           p->name);
        return attr_tensor(src, p->t, node, p->name, t, err);
    case ATTR_GRAPH:
        if (is_control && p->has_g)
            return 0; /* read as a body */
        /* fall through */
    case ATTR_GRAPHS:
        return err_set(err, ERR_UNSUPPORTED,
                       "node '%s': attribute '%s' is a graph; supported are "
                       "numbers, strings, lists of them, and tensors",
                       node, p->name);
    default:
        return err_set(err, ERR_UNSUPPORTED,
                       "node '%s': attribute '%s' has type %d; supported are "
                       "numbers, strings, lists of them, and tensors",
                       node, p->name, (int)out->type);
    }
}

static size_t count_names(const char *const *names)
{
    size_t n = 0;

    while (names != NULL && names[n] != NULL)
        n++;
    return n;
}

/* The row must list the attribute, and it must occur once. */
static int check_attr(const struct graph_node *node, const Onnx__NodeProto *p, size_t i,
                      struct err *err)
{
    const Onnx__AttributeProto *a = p->attribute[i];
    const char *const *known = node->def->attrs;
    const char *near;
    size_t k;

    if (a->name == NULL || a->name[0] == '\0')
        return err_set(err, ERR_INPUT, "%s '%s': an attribute without a name", p->op_type,
                       node->name);
    if (a->ref_attr_name != NULL && a->ref_attr_name[0] != '\0')
        return err_set(err, ERR_INPUT,
                       "%s '%s': attribute '%s' refers to a function's attribute "
                       "outside of a function",
                       p->op_type, node->name, a->name);
    for (k = 0; k < i; k++)
        if (strcmp(p->attribute[k]->name, a->name) == 0)
            return err_set(err, ERR_INPUT, "%s '%s': attribute '%s' occurs twice", p->op_type,
                           node->name, a->name);
    if (op_has_attr(node->def, a->name))
        return 0;
    near = text_nearest(a->name, known, count_names(known));
    return err_set(err, ERR_UNSUPPORTED, "%s '%s': attribute '%s' is not supported%s%s%s",
                   p->op_type, node->name, a->name, near != NULL ? "; did you mean '" : "",
                   near != NULL ? near : "", near != NULL ? "'?" : "");
}

int graph_read_attrs(struct tensor_source *src, const Onnx__NodeProto *p, struct graph_node *node,
                     struct err *err)
{
    struct op_attr *attrs = arena_array(src->mem, p->n_attribute, sizeof(*attrs));
    size_t i;
    int rc = 0;

    if (attrs == NULL)
        return err_set(err, ERR_NOMEM, "node '%s': out of memory", node->name);
    if (p->n_attribute > 256) /* no operator has 30; check_attr() compares each with all previous
                                 ones */
        return err_set(err, ERR_INPUT, "%s '%s' has %zu attributes", p->op_type, node->name,
                       p->n_attribute);
    for (i = 0; i < p->n_attribute && rc == 0; i++) {
        rc = check_attr(node, p, i, err);
        if (rc == 0)
            rc = graph_check_attr(node->name, p->attribute[i], err);
        if (rc == 0)
            rc = read_attr(src, p->attribute[i], node->name, graph_is_control(node->def), &attrs[i],
                           err);
    }
    node->attrs = attrs;
    node->n_attrs = (uint32_t)p->n_attribute;
    return rc;
}

/* ---- Constant ---- */

static int constant_of(struct tensor *out, enum tensor_dtype dtype, const void *data, size_t n,
                       bool list)
{
    static _Alignas(16) uint8_t no_elements[16];

    *out = (struct tensor){ .dtype = dtype };
    out->shape.rank = list ? 1 : 0;
    out->shape.dim[0] = list ? (int64_t)n : 0;
    out->data = n > 0 ? (void *)(uintptr_t)data : no_elements; /* never written afterwards */
    return 0;
}

int graph_read_constant(struct tensor_source *src, const Onnx__NodeProto *p, const char *name,
                        struct tensor *out, struct err *err)
{
    const Onnx__AttributeProto *a = p->n_attribute == 1 ? p->attribute[0] : NULL;
    int rc;

    if (a == NULL || a->name == NULL || p->n_input != 0)
        return err_set(err, ERR_INPUT,
                       "Constant '%s' has %zu inputs and %zu attributes, expected "
                       "0 and 1",
                       name, p->n_input, p->n_attribute);
    rc = graph_check_attr(name, a, err);
    if (rc < 0)
        return rc;
    if (strcmp(a->name, "value") == 0 && a->t != NULL)
        return attr_tensor(src, a->t, name, a->name, out, err);
    if (strcmp(a->name, "value_float") == 0 && a->has_f)
        return constant_of(out, TENSOR_F32, &a->f, 1, false);
    if (strcmp(a->name, "value_floats") == 0)
        return constant_of(out, TENSOR_F32, a->floats, a->n_floats, true);
    if (strcmp(a->name, "value_int") == 0 && a->has_i)
        return constant_of(out, TENSOR_I64, &a->i, 1, false);
    if (strcmp(a->name, "value_ints") == 0)
        return constant_of(out, TENSOR_I64, a->ints, a->n_ints, true);
    return err_set(err, ERR_UNSUPPORTED,
                   "Constant '%s': attribute '%s' is not supported; supported "
                   "are value, value_float, value_floats, value_int and value_ints",
                   name, a->name);
}
