/* kit.h - small models for the import tests, and a check that a model is refused. */
#ifndef GRAPH_KIT_H
#define GRAPH_KIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "graph/graph.h"
#include "harness/model.h"

static inline int import_bytes(const void *bytes, size_t n, struct err *err)
{
    const struct graph_opts opts = { .path = "test.onnx" };
    struct graph *g = NULL;
    int rc;

    *err = (struct err){ 0 };
    rc = graph_import_bytes(&opts, bytes, n, &g, err);
    if (rc == 0)
        graph_free(g);
    else
        assert_null(g);
    return rc;
}

/* Asserts that the model is refused with this code and that the text contains each part
 * (NULL-terminated list). Frees the model. */
static inline void refused(struct model *m, int code, ...)
{
    struct err err;
    size_t n;
    const uint8_t *bytes = model_bytes(m, &n);
    const char *part;
    va_list ap;

    assert_int_equal(import_bytes(bytes, n, &err), code);
    va_start(ap, code);
    while ((part = va_arg(ap, const char *)) != NULL)
        if (strstr(err.text, part) == NULL)
            fail_msg("'%s' is not in: %s", part, err.text);
    va_end(ap);
    model_free(m);
}

/* x [batch, 4], w [4, 3]. */
static inline struct model *begin(int64_t opset)
{
    struct model *m = model_new(opset);

    model_input(m, "x", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)4));
    model_weights(m, "w", shape_of(2, (int64_t)4, (int64_t)3), 1);
    return m;
}

static inline struct model *linear(int64_t opset)
{
    struct model *m = begin(opset);

    model_node(m, "MatMul", "x w", "logits");
    model_output(m, "logits");
    return m;
}

static inline Onnx__TensorProto *weight_of(struct model *m)
{
    return model_proto(m)->graph->initializer[0];
}

#endif
