#include "harness/model.h"

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/check.h"
#include "base/rng.h"

struct model {
    struct arena mem;
    Onnx__ModelProto proto;
    Onnx__GraphProto graph;
    uint8_t *bytes;
};

static void *alloc(struct model *m, size_t bytes)
{
    void *p = arena_alloc(&m->mem, bytes);

    CHECK(p != NULL);
    return p;
}

static char *copy(struct model *m, const char *s)
{
    char *p = arena_strdup(&m->mem, s);

    CHECK(p != NULL);
    return p;
}

/* Appends to an array of pointers as protobuf-c has them; the old array stays in the arena. */
static void append(struct model *m, void *array, size_t *n, void *item)
{
    void ***at = array;
    void **more = alloc(m, (*n + 1) * sizeof(*more));

    if (*n > 0)
        memcpy(more, *at, *n * sizeof(*more));
    more[*n] = item;
    *at = more;
    *n += 1;
}

struct model *model_new(int64_t opset)
{
    struct model *m = calloc(1, sizeof(*m));
    Onnx__OperatorSetIdProto *id;

    CHECK(m != NULL);
    onnx__model_proto__init(&m->proto);
    onnx__graph_proto__init(&m->graph);
    m->proto.graph = &m->graph;
    m->proto.has_ir_version = 1;
    m->proto.ir_version = 8;
    m->graph.name = copy(m, "test");
    id = alloc(m, sizeof(*id));
    onnx__operator_set_id_proto__init(id);
    id->has_version = 1;
    id->version = opset;
    id->domain = copy(m, "");
    append(m, &m->proto.opset_import, &m->proto.n_opset_import, id);
    return m;
}

void model_free(struct model *m)
{
    arena_fini(&m->mem);
    free(m->bytes);
    free(m);
}

static Onnx__ValueInfoProto *value_info(struct model *m, const char *name, enum tensor_dtype dtype,
                                        const struct shape *shape)
{
    Onnx__ValueInfoProto *v = alloc(m, sizeof(*v));
    Onnx__TypeProto *type = alloc(m, sizeof(*type));
    Onnx__TypeProto__Tensor *tensor = alloc(m, sizeof(*tensor));
    Onnx__TensorShapeProto *dims = alloc(m, sizeof(*dims));
    uint32_t i;

    onnx__value_info_proto__init(v);
    onnx__type_proto__init(type);
    onnx__type_proto__tensor__init(tensor);
    v->name = copy(m, name);
    v->type = type;
    type->tensor_type = tensor;
    tensor->has_elem_type = 1;
    tensor->elem_type = (int32_t)dtype;
    onnx__tensor_shape_proto__init(dims);
    tensor->shape = dims;
    for (i = 0; i < shape->rank; i++) {
        Onnx__TensorShapeProto__Dimension *d = alloc(m, sizeof(*d));

        onnx__tensor_shape_proto__dimension__init(d);
        if (shape->dim[i] == INT64_MIN) {
            d->value_case = ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE__NOT_SET;
        } else if (shape->dim[i] >= 0) {
            d->value_case = ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE;
            d->dim_value = shape->dim[i];
        } else {
            d->value_case = ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM;
            d->dim_param = copy(m, "batch");
        }
        append(m, &dims->dim, &dims->n_dim, d);
    }
    return v;
}

void model_input(struct model *m, const char *name, enum tensor_dtype dtype, struct shape shape)
{
    append(m, &m->graph.input, &m->graph.n_input, value_info(m, name, dtype, &shape));
}

void model_output(struct model *m, const char *name)
{
    struct shape shape = shape_of(2, INT64_MIN, INT64_MIN); /* says nothing but the rank */

    append(m, &m->graph.output, &m->graph.n_output, value_info(m, name, TENSOR_F32, &shape));
}

static void initializer(struct model *m, const char *name, enum tensor_dtype dtype,
                        struct shape shape, const void *data, size_t bytes)
{
    Onnx__TensorProto *t = alloc(m, sizeof(*t));
    uint32_t i;

    onnx__tensor_proto__init(t);
    t->name = copy(m, name);
    t->has_data_type = 1;
    t->data_type = (int32_t)dtype;
    t->n_dims = shape.rank;
    t->dims = alloc(m, sizeof(shape.dim));
    for (i = 0; i < shape.rank; i++)
        t->dims[i] = shape.dim[i];
    t->has_raw_data = 1;
    t->raw_data.len = bytes;
    t->raw_data.data = alloc(m, bytes);
    memcpy(t->raw_data.data, data, bytes);
    append(m, &m->graph.initializer, &m->graph.n_initializer, t);
}

void model_floats(struct model *m, const char *name, struct shape shape, const float *values)
{
    initializer(m, name, TENSOR_F32, shape, values,
                (size_t)shape_elements(&shape) * sizeof(*values));
}

void model_weights(struct model *m, const char *name, struct shape shape, uint64_t seed)
{
    size_t n = (size_t)shape_elements(&shape), i;
    float *values = alloc(m, n * sizeof(*values));
    float row = shape.rank > 1 ? (float)n / (float)shape.dim[0] : 4.0f, scale = 1.0f;
    const struct rng_key key = { .seed = seed };

    while (scale * scale * row > 3.0f) /* about sqrt(3 / row): a uniform in -scale .. scale */
        scale *= 0.9f;
    for (i = 0; i < n; i++)
        values[i] = (2.0f * rng_f32(&key, i) - 1.0f) * scale;
    model_floats(m, name, shape, values);
}

void model_int64s(struct model *m, const char *name, const int64_t *values, size_t n)
{
    initializer(m, name, TENSOR_I64, shape_of(1, (int64_t)n), values, n * sizeof(*values));
}

static void add_names(struct model *m, char ***array, size_t *n, const char *names)
{
    char *list = copy(m, names), *rest, *name;

    for (name = strtok_r(list, " ", &rest); name != NULL; name = strtok_r(NULL, " ", &rest))
        append(m, array, n, strcmp(name, "-") == 0 ? copy(m, "") : name);
}

void model_node(struct model *m, const char *op, const char *inputs, const char *outputs)
{
    Onnx__NodeProto *node = alloc(m, sizeof(*node));

    onnx__node_proto__init(node);
    node->op_type = copy(m, op);
    add_names(m, &node->input, &node->n_input, inputs);
    add_names(m, &node->output, &node->n_output, outputs);
    append(m, &m->graph.node, &m->graph.n_node, node);
}

static Onnx__AttributeProto *attribute(struct model *m, const char *name, int32_t type)
{
    Onnx__AttributeProto *a = alloc(m, sizeof(*a));
    Onnx__NodeProto *node;

    CHECK(m->graph.n_node > 0);
    node = m->graph.node[m->graph.n_node - 1];
    onnx__attribute_proto__init(a);
    a->name = copy(m, name);
    a->has_type = 1;
    a->type = type;
    append(m, &node->attribute, &node->n_attribute, a);
    return a;
}

void model_int(struct model *m, const char *name, int64_t value)
{
    Onnx__AttributeProto *a = attribute(m, name, 2);

    a->has_i = 1;
    a->i = value;
}

void model_float(struct model *m, const char *name, float value)
{
    Onnx__AttributeProto *a = attribute(m, name, 1);

    a->has_f = 1;
    a->f = value;
}

void model_ints(struct model *m, const char *name, const int64_t *values, size_t n)
{
    Onnx__AttributeProto *a = attribute(m, name, 7);

    a->ints = alloc(m, n * sizeof(*values));
    memcpy(a->ints, values, n * sizeof(*values));
    a->n_ints = n;
}

Onnx__ModelProto *model_proto(struct model *m)
{
    return &m->proto;
}

const uint8_t *model_bytes(struct model *m, size_t *n)
{
    free(m->bytes);
    *n = onnx__model_proto__get_packed_size(&m->proto);
    m->bytes = malloc(*n > 0 ? *n : 1);
    CHECK(m->bytes != NULL);
    onnx__model_proto__pack(&m->proto, m->bytes);
    return m->bytes;
}
