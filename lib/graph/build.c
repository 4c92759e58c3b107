#include "graph/build.h"

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/err.h"
#include "graph/graph_priv.h"

enum { IR_VERSION = 8 }; /* of opset 15 to 18; readers of later opsets accept it */

struct build {
    struct arena mem;
    Onnx__ModelProto proto;
    Onnx__GraphProto graph;
    bool failed, is_too_large;
    size_t bytes;          /* size of all tensors */
    Onnx__NodeProto spare; /* receives attributes if no node could be allocated */
};

static void *alloc(struct build *b, size_t n, size_t size)
{
    void *p = arena_array(&b->mem, n, size);

    b->failed = b->failed || p == NULL;
    return p;
}

void *build_alloc(struct build *b, size_t n, size_t size)
{
    return alloc(b, n, size);
}

static char *copy(struct build *b, const char *s)
{
    char *p = arena_strdup(&b->mem, s);

    b->failed = b->failed || p == NULL;
    return p;
}

/* Appends to an array of pointers in the form of protobuf-c. Arrays grow at powers of two; the
 * arena keeps the previous arrays. */
static void append(struct build *b, void *array, size_t *n, void *item)
{
    void ***at = array;

    if (item == NULL)
        return;
    if ((*n & (*n - 1)) == 0) {
        void **more = alloc(b, *n > 0 ? 2 * *n : 1, sizeof(*more));

        if (more == NULL)
            return;
        if (*n > 0)
            memcpy(more, *at, *n * sizeof(*more));
        *at = more;
    }
    (*at)[(*n)++] = item;
}

struct build *build_new(const char *graph_name, int64_t opset)
{
    struct build *b = calloc(1, sizeof(*b));
    Onnx__OperatorSetIdProto *id;

    if (b == NULL)
        return NULL;
    onnx__model_proto__init(&b->proto);
    onnx__graph_proto__init(&b->graph);
    b->proto.graph = &b->graph;
    b->proto.has_ir_version = 1;
    b->proto.ir_version = IR_VERSION;
    b->proto.producer_name = (char *)(uintptr_t) "trainerd";
    b->graph.name = copy(b, graph_name);
    id = alloc(b, 1, sizeof(*id));
    if (id != NULL) {
        onnx__operator_set_id_proto__init(id);
        id->has_version = 1;
        id->version = opset;
        id->domain = (char *)(uintptr_t) "";
    }
    append(b, &b->proto.opset_import, &b->proto.n_opset_import, id);
    return b;
}

void build_free(struct build *b)
{
    if (b == NULL)
        return;
    arena_fini(&b->mem);
    free(b);
}

/* ---- inputs and outputs ---- */

static Onnx__TensorShapeProto__Dimension *dimension(struct build *b, int64_t dim)
{
    Onnx__TensorShapeProto__Dimension *d = alloc(b, 1, sizeof(*d));

    if (d == NULL)
        return NULL;
    onnx__tensor_shape_proto__dimension__init(d);
    if (dim >= 0) {
        d->value_case = ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE;
        d->dim_value = dim;
    } else if (dim != INT64_MIN) {
        d->value_case = ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM;
        d->dim_param = (char *)(uintptr_t) "batch";
    }
    return d;
}

static Onnx__ValueInfoProto *value_info(struct build *b, const char *name, enum tensor_dtype dtype,
                                        const struct shape *shape)
{
    Onnx__ValueInfoProto *v = alloc(b, 1, sizeof(*v));
    Onnx__TypeProto *type = alloc(b, 1, sizeof(*type));
    Onnx__TypeProto__Tensor *tensor = alloc(b, 1, sizeof(*tensor));
    Onnx__TensorShapeProto *dims = alloc(b, 1, sizeof(*dims));
    uint32_t i;

    if (v == NULL || type == NULL || tensor == NULL || dims == NULL)
        return NULL;
    onnx__value_info_proto__init(v);
    onnx__type_proto__init(type);
    onnx__type_proto__tensor__init(tensor);
    onnx__tensor_shape_proto__init(dims);
    v->name = copy(b, name);
    v->type = type;
    type->tensor_type = tensor;
    tensor->has_elem_type = 1;
    tensor->elem_type = (int32_t)dtype;
    tensor->shape = dims;
    for (i = 0; i < shape->rank; i++)
        append(b, &dims->dim, &dims->n_dim, dimension(b, shape->dim[i]));
    return v;
}

void build_input(struct build *b, const char *name, enum tensor_dtype dtype, struct shape shape)
{
    append(b, &b->graph.input, &b->graph.n_input, value_info(b, name, dtype, &shape));
}

void build_output(struct build *b, const char *name, enum tensor_dtype dtype, struct shape shape)
{
    append(b, &b->graph.output, &b->graph.n_output, value_info(b, name, dtype, &shape));
}

/* ---- tensors ---- */

static Onnx__TensorProto *tensor(struct build *b, const char *name, enum tensor_dtype dtype,
                                 const struct shape *shape, const void *data)
{
    Onnx__TensorProto *t = alloc(b, 1, sizeof(*t));
    struct tensor like = { .dtype = dtype, .shape = *shape };
    size_t bytes = tensor_bytes(&like);
    uint32_t i;

    if (bytes > INT32_MAX || b->bytes + bytes > INT32_MAX)
        b->is_too_large = true;
    if (t == NULL || b->is_too_large)
        return NULL;
    b->bytes += bytes;
    onnx__tensor_proto__init(t);
    t->name = copy(b, name);
    t->has_data_type = t->has_raw_data = 1;
    t->data_type = (int32_t)dtype;
    t->n_dims = shape->rank;
    t->dims = alloc(b, TENSOR_MAX_RANK, sizeof(*t->dims));
    t->raw_data.data = alloc(b, bytes, 1);
    if (t->dims == NULL || t->raw_data.data == NULL)
        return NULL;
    t->raw_data.len = bytes;
    for (i = 0; i < shape->rank; i++)
        t->dims[i] = shape->dim[i];
    if (data != NULL && bytes > 0)
        memcpy(t->raw_data.data, data, bytes);
    return t;
}

void build_data(struct build *b, const char *name, enum tensor_dtype dtype, struct shape shape,
                const void *data)
{
    append(b, &b->graph.initializer, &b->graph.n_initializer, tensor(b, name, dtype, &shape, data));
}

float *build_weights(struct build *b, const char *name, struct shape shape)
{
    Onnx__TensorProto *t = tensor(b, name, TENSOR_F32, &shape, NULL);

    append(b, &b->graph.initializer, &b->graph.n_initializer, t);
    return t != NULL ? (float *)(void *)t->raw_data.data : NULL;
}

/* ---- nodes ---- */

static void add_names(struct build *b, char ***array, size_t *n, const char *names)
{
    char *list = copy(b, names), *rest, *name;

    if (list == NULL)
        return;
    for (name = strtok_r(list, " ", &rest); name != NULL; name = strtok_r(NULL, " ", &rest))
        append(b, array, n, strcmp(name, "-") == 0 ? (char *)(uintptr_t) "" : name);
}

void build_node(struct build *b, const char *op, const char *inputs, const char *outputs)
{
    Onnx__NodeProto *node = alloc(b, 1, sizeof(*node));

    if (node == NULL)
        return;
    onnx__node_proto__init(node);
    node->op_type = copy(b, op);
    add_names(b, &node->input, &node->n_input, inputs);
    add_names(b, &node->output, &node->n_output, outputs);
    append(b, &b->graph.node, &b->graph.n_node, node);
}

/* Returns NULL if memory runs out. */
static Onnx__AttributeProto *attribute(struct build *b, const char *name, enum op_attr_type type)
{
    Onnx__AttributeProto *a = alloc(b, 1, sizeof(*a));
    Onnx__NodeProto *node = b->graph.n_node > 0 ? b->graph.node[b->graph.n_node - 1] : &b->spare;

    if (a == NULL)
        return NULL;
    onnx__attribute_proto__init(a);
    a->name = copy(b, name);
    a->has_type = 1;
    a->type = (int32_t)type;
    append(b, &node->attribute, &node->n_attribute, a);
    return a;
}

void build_int(struct build *b, const char *name, int64_t value)
{
    Onnx__AttributeProto *a = attribute(b, name, OP_ATTR_INT);

    if (a != NULL) {
        a->has_i = 1;
        a->i = value;
    }
}

void build_float(struct build *b, const char *name, float value)
{
    Onnx__AttributeProto *a = attribute(b, name, OP_ATTR_FLOAT);

    if (a != NULL) {
        a->has_f = 1;
        a->f = value;
    }
}

void build_ints(struct build *b, const char *name, const int64_t *values, size_t n)
{
    Onnx__AttributeProto *a = attribute(b, name, OP_ATTR_INTS);

    if (a == NULL)
        return;
    a->ints = alloc(b, n, sizeof(*values));
    if (a->ints != NULL && n > 0)
        memcpy(a->ints, values, n * sizeof(*values));
    a->n_ints = a->ints != NULL ? n : 0;
}

void build_string(struct build *b, const char *name, const char *value)
{
    Onnx__AttributeProto *a = attribute(b, name, OP_ATTR_STRING);

    if (a == NULL)
        return;
    a->has_s = 1;
    a->s.data = (uint8_t *)copy(b, value);
    a->s.len = a->s.data != NULL ? strlen(value) : 0;
}

void build_constant(struct build *b, const char *name, enum tensor_dtype dtype, struct shape shape,
                    const void *data)
{
    Onnx__AttributeProto *a;

    build_node(b, "Constant", "", name);
    a = attribute(b, "value", OP_ATTR_TENSOR);
    if (a != NULL)
        a->t = tensor(b, name, dtype, &shape, data);
}

/* ---- the model ---- */

bool build_failed(const struct build *b)
{
    return b->failed || b->is_too_large;
}

Onnx__ModelProto *build_proto(struct build *b)
{
    return &b->proto;
}

int build_save(struct build *b, const char *path, struct err *err)
{
    if (b->is_too_large)
        return err_set(err, ERR_UNSUPPORTED,
                       "write '%s': the weights exceed the limit of an ONNX file of 2 GiB", path);
    if (b->failed)
        return err_set(err, ERR_NOMEM, "write '%s': out of memory", path);
    return graph_write_model(&b->proto, path, err);
}
