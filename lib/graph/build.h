/* build.h - an ONNX model put together in memory, and written to a file.
 *
 *     struct build *b = build_new("mlp", 17);
 *     build_input(b, "x", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)784));
 *     fill(build_weights(b, "fc1.weight", shape_of(2, (int64_t)128, (int64_t)784)), ...);
 *     build_node(b, "Gemm", "x fc1.weight", "h");
 *     build_int(b, "transB", 1);
 *     build_output(b, "h", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)128));
 *     rc = build_save(b, "mlp.onnx", &err);
 *
 * Names are separated by one blank, "-" is an absent one. A dimension of -1 is dynamic ("batch").
 * Running out of memory, or of the 2 GiB that a protobuf may have, is remembered and said by
 * build_save(). Threads: one at a time. */
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
void build_free(struct build *b);                               /* NULL is fine */

void build_input(struct build *b, const char *name, enum tensor_dtype dtype, struct shape shape);
/* A dimension of INT64_MIN says nothing at all. */
void build_output(struct build *b, const char *name, enum tensor_dtype dtype, struct shape shape);
/* An initializer; the data is copied. */
void build_data(struct build *b, const char *name, enum tensor_dtype dtype, struct shape shape,
                const void *data);
/* A float32 initializer of zeros, to be filled; the model's. NULL: out of memory. */
float *build_weights(struct build *b, const char *name, struct shape shape);
/* A Constant node: what is a number of the formula, and not a weight. */
void build_constant(struct build *b, const char *name, enum tensor_dtype dtype, struct shape shape,
                    const void *data);
/* Zeroed memory that lives with the model. NULL: out of memory. */
void *build_alloc(struct build *b, size_t n, size_t size);
void build_node(struct build *b, const char *op, const char *inputs, const char *outputs);
/* Attributes of the last node. */
void build_int(struct build *b, const char *name, int64_t value);
void build_float(struct build *b, const char *name, float value);
void build_ints(struct build *b, const char *name, const int64_t *values, size_t n);
void build_string(struct build *b, const char *name, const char *value);

bool build_failed(const struct build *b); /* something was lost: out of memory */
/* To change what the functions above do not; what is put in must outlive the model. */
Onnx__ModelProto *build_proto(struct build *b);
/* Durable and atomic. Errors: ERR_NOMEM, ERR_IO, ERR_FULL, ERR_UNSUPPORTED (above 2 GiB). */
int build_save(struct build *b, const char *path, struct err *err);

#endif
