#include "harness/model.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/rng.h"
#include "graph/build.h"

struct model {
    struct build *build;
    uint8_t *bytes;
};

struct model *model_new(int64_t opset)
{
    struct model *m = calloc(1, sizeof(*m));

    CHECK(m != NULL);
    m->build = build_new("test", opset);
    CHECK(m->build != NULL);
    return m;
}

void model_free(struct model *m)
{
    build_free(m->build);
    free(m->bytes);
    free(m);
}

void model_input(struct model *m, const char *name, enum tensor_dtype dtype, struct shape shape)
{
    build_input(m->build, name, dtype, shape);
}

void model_output(struct model *m, const char *name)
{
    struct shape shape = shape_of(2, INT64_MIN, INT64_MIN); /* only the rank is known */

    build_output(m->build, name, TENSOR_F32, shape);
}

void model_floats(struct model *m, const char *name, struct shape shape, const float *values)
{
    build_data(m->build, name, TENSOR_F32, shape, values);
}

void model_weights(struct model *m, const char *name, struct shape shape, uint64_t seed)
{
    size_t n = (size_t)shape_elements(&shape), i;
    float *values = build_weights(m->build, name, shape);
    float row = shape.rank > 1 ? (float)n / (float)shape.dim[0] : 4.0f, scale = 1.0f;
    const struct rng_key key = { .seed = seed };

    CHECK(values != NULL);
    while (scale * scale * row > 3.0f) /* about sqrt(3 / row): a uniform in -scale .. scale */
        scale *= 0.9f;
    for (i = 0; i < n; i++)
        values[i] = (2.0f * rng_f32(&key, i) - 1.0f) * scale;
}

void model_int64s(struct model *m, const char *name, const int64_t *values, size_t n)
{
    build_data(m->build, name, TENSOR_I64, shape_of(1, (int64_t)n), values);
}

void model_node(struct model *m, const char *op, const char *inputs, const char *outputs)
{
    build_node(m->build, op, inputs, outputs);
}

void model_int(struct model *m, const char *name, int64_t value)
{
    build_int(m->build, name, value);
}

void model_float(struct model *m, const char *name, float value)
{
    build_float(m->build, name, value);
}

void model_ints(struct model *m, const char *name, const int64_t *values, size_t n)
{
    build_ints(m->build, name, values, n);
}

void model_string(struct model *m, const char *name, const char *value)
{
    build_string(m->build, name, value);
}

Onnx__ModelProto *model_proto(struct model *m)
{
    return build_proto(m->build);
}

const uint8_t *model_bytes(struct model *m, size_t *n)
{
    CHECK(!build_failed(m->build));
    free(m->bytes);
    *n = onnx__model_proto__get_packed_size(build_proto(m->build));
    m->bytes = malloc(*n > 0 ? *n : 1);
    CHECK(m->bytes != NULL);
    onnx__model_proto__pack(build_proto(m->build), m->bytes);
    return m->bytes;
}
