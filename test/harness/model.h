/* model.h - ONNX models for tests, made in C.
 *
 *     struct model *m = model_new(17);
 *     model_input(m, "x", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)5));
 *     model_weights(m, "w", shape_of(2, (int64_t)5, (int64_t)3), 1);
 *     model_node(m, "MatMul", "x w", "logits");
 *     model_output(m, "logits");
 *     bytes = model_bytes(m, &n);
 *
 * Names are separated by one blank, "-" is an absent one. A dimension of -1 is dynamic. What goes
 * wrong stops the test program. */
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
/* Random, the same for the same seed, of variance about 1 / (elements of one row). */
void model_weights(struct model *m, const char *name, struct shape shape, uint64_t seed);
void model_floats(struct model *m, const char *name, struct shape shape, const float *values);
void model_int64s(struct model *m, const char *name, const int64_t *values, size_t n);
void model_node(struct model *m, const char *op, const char *inputs, const char *outputs);
/* Attributes of the last node. */
void model_int(struct model *m, const char *name, int64_t value);
void model_float(struct model *m, const char *name, float value);
void model_ints(struct model *m, const char *name, const int64_t *values, size_t n);
void model_string(struct model *m, const char *name, const char *value);

/* To change what the functions above do not; what is put in must outlive the model. */
Onnx__ModelProto *model_proto(struct model *m);
/* Serialised; the model's, until the next call. */
const uint8_t *model_bytes(struct model *m, size_t *n);

#endif
