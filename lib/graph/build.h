/* build.h - assembles an ONNX model in memory and writes it to a file.
 *
 *     struct build *b = build_new("mlp", 17);
 *     build_input(b, "x", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)784));
 *     fill(build_weights(b, "fc1.weight", shape_of(2, (int64_t)128, (int64_t)784)), ...);
 *     build_node(b, "Gemm", "x fc1.weight", "h");
 *     build_int(b, "transB", 1);
 *     build_output(b, "h", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)128));
 *     rc = build_save(b, "mlp.onnx", &err);
 *
 * Names are separated by one space; "-" is an absent name. A dimension of -1 is dynamic ("batch").
 * If memory runs out, or the model exceeds the 2 GiB limit of protobuf, the builder records the
 * error and build_save() reports it. Threads: one at a time. */
#ifndef GRAPH_BUILD_H
#define GRAPH_BUILD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/onnx.pb-c.h"
#include "tensor/tensor.h"

struct build;
struct err;

struct build *build_new(const char *graph_name, int64_t opset); /* NULL: out of memory */
void build_free(struct build *b);                               /* NULL is allowed */

void build_input(struct build *b, const char *name, enum tensor_dtype dtype, struct shape shape);
/* A dimension of INT64_MIN is written without value and name. */
void build_output(struct build *b, const char *name, enum tensor_dtype dtype, struct shape shape);
/* Adds an initializer; the data is copied. */
void build_data(struct build *b, const char *name, enum tensor_dtype dtype, struct shape shape,
                const void *data);
/* Adds a float32 initializer of zeros and returns its values for the caller to fill; the model owns
 * them. NULL: out of memory. */
float *build_weights(struct build *b, const char *name, struct shape shape);
/* Adds a Constant node: a constant of a formula rather than a weight. */
void build_constant(struct build *b, const char *name, enum tensor_dtype dtype, struct shape shape,
                    const void *data);
/* Zeroed memory that is freed with the model. NULL: out of memory. */
void *build_alloc(struct build *b, size_t n, size_t size);
void build_node(struct build *b, const char *op, const char *inputs, const char *outputs);
/* The following functions set attributes of the last node. */
void build_int(struct build *b, const char *name, int64_t value);
void build_float(struct build *b, const char *name, float value);
void build_ints(struct build *b, const char *name, const int64_t *values, size_t n);
void build_string(struct build *b, const char *name, const char *value);

bool build_failed(const struct build *b); /* out of memory: a part of the model is missing */
/* The message, for changes that the functions above do not offer; added objects must outlive the
 * model. */
Onnx__ModelProto *build_proto(struct build *b);
/* Durable and atomic. Errors: ERR_NOMEM, ERR_IO, ERR_FULL, ERR_UNSUPPORTED (above 2 GiB). */
int build_save(struct build *b, const char *path, struct err *err);

#endif
