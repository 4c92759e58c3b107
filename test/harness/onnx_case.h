/* onnx_case.h - runs one case of ONNX's own node tests: a model, its inputs and the expected
 * outputs.
 *
 * Cases are in an archive written by test/conformance/make_cases.py: gzip around records of
 * little-endian uint32: length of the name, number of inputs, number of outputs; then the name, the
 * model, the inputs and the outputs, each of the last three preceded by its length. Inputs and
 * outputs are TensorProto messages. */
#ifndef HARNESS_ONNX_CASE_H
#define HARNESS_ONNX_CASE_H

#include <stddef.h>
#include <stdint.h>

enum { ONNX_CASE_MAX_TENSORS = 128 };

struct onnx_case_bytes {
    uint8_t *data; /* owned by the case */
    size_t n;
};

struct onnx_case {
    char *name;
    uint32_t n_in, n_out;
    struct onnx_case_bytes model, in[ONNX_CASE_MAX_TENSORS], out[ONNX_CASE_MAX_TENSORS];
};

enum onnx_verdict {
    ONNX_PASS,
    ONNX_REFUSED, /* rejected before anything was computed; `why` has the error */
    ONNX_WRONG,   /* outputs with other types, shapes or numbers, or an output is missing */
};

struct onnx_archive;

/* Opens an archive. NULL: the file cannot be opened. */
struct onnx_archive *onnx_archive_open(const char *path);
void onnx_archive_close(struct onnx_archive *a); /* NULL is allowed */
/* Reads the next case, which the caller frees. Returns 1: read, 0: end of the archive, -1:
 * damaged. */
int onnx_archive_next(struct onnx_archive *a, struct onnx_case *c);
void onnx_case_free(struct onnx_case *c);

/* Imports the model, runs it once on the inputs and compares each output: integers exactly, floats
 * within 1e-3 relative (one unit in the last place for 16-bit types). If an op draws random
 * numbers, only types and shapes are compared. `why` receives the reason of each verdict except
 * ONNX_PASS, for which it is empty. */
enum onnx_verdict onnx_case_run(const struct onnx_case *c, char *why, size_t n);

/* Compares the gradient of the sum of all float32 outputs by each float32 input, of at most
 * ONNX_CASE_MAX_ELEMENTS, with central differences of the outputs, `step` to either side. Returns
 * the number of elements compared; -1: they differ, or the case is refused, and `why` has the
 * reason. */
enum { ONNX_CASE_MAX_ELEMENTS = 600 };
int onnx_case_check_gradients(const struct onnx_case *c, float step, char *why, size_t n);

#endif
