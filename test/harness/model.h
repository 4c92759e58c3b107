/* model.h - builds ONNX models for tests in C.
 *
 *     struct model *m = model_new(17);
 *     model_input(m, "x", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)5));
 *     model_weights(m, "w", shape_of(2, (int64_t)5, (int64_t)3), 1);
 *     model_node(m, "MatMul", "x w", "logits");
 *     model_output(m, "logits");
 *     bytes = model_bytes(m, &n);
 *
 * Names are separated by one blank, "-" is an absent one. A dimension of -1 is dynamic. An error
 * ends the test program. */
#ifndef HARNESS_MODEL_H
#define HARNESS_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include "proto/onnx.pb-c.h"
#include "tensor/tensor.h"

struct model;

struct model *model_new(int64_t opset);
void model_free(struct model *m);

void model_input(struct model *m, const char *name, enum tensor_dtype dtype, struct shape shape);
void model_output(struct model *m, const char *name); /* float32, two dimensions of any size */
/* Random values with variance about 1 / (elements of one row); equal for equal seeds. */
void model_weights(struct model *m, const char *name, struct shape shape, uint64_t seed);
void model_floats(struct model *m, const char *name, struct shape shape, const float *values);
void model_int64s(struct model *m, const char *name, const int64_t *values, size_t n);
void model_node(struct model *m, const char *op, const char *inputs, const char *outputs);
/* Adds an attribute to the last node. */
void model_int(struct model *m, const char *name, int64_t value);
void model_float(struct model *m, const char *name, float value);
void model_ints(struct model *m, const char *name, const int64_t *values, size_t n);
void model_string(struct model *m, const char *name, const char *value);

/* Returns the message, to change what the functions above do not; pointers stored in it must
 * outlive the model. */
Onnx__ModelProto *model_proto(struct model *m);
/* Returns the serialised model, owned by the model and valid until the next call. */
const uint8_t *model_bytes(struct model *m, size_t *n);

#endif
