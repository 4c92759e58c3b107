/* fx.h - the text of an FX node, which PyTorch's exporter stores with each ONNX node.
 *
 *   %linear : [num_users=1] = call_function[target=torch.ops.aten.linear.default](
 *       args = (%x, %p_fc_weight, %p_fc_bias), kwargs = {})
 *
 * The text comes from a file and is not trusted: parsing is linear in its length, copies nothing
 * and accepts any bytes. Spans point into the text. */
#ifndef GRAPH_FX_H
#define GRAPH_FX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FX_MAX_ARGS = 16, FX_MAX_NAME = 1024 /* longer names are never equal to another name */ };

struct fx_span {
    const char *at;
    size_t n;
};

struct fx {
    struct fx_span name;              /* "linear" */
    struct fx_span op; /* "linear" in torch.ops.aten.linear.default; empty for other targets */
    struct fx_span overload;          /* "default" in it; empty if it has none */
    struct fx_span args[FX_MAX_ARGS]; /* top-level arguments, trimmed */
    uint32_t n_args;
    struct fx_span all;               /* all arguments, also those beyond FX_MAX_ARGS and kwargs */
};

/* Parses the text. NULL, or a text that is not a call_function node, gives an empty struct. */
void fx_parse(const char *text, struct fx *out);
bool fx_is(struct fx_span s, const char *text);
/* Finds the next "%name" at or after *at and moves *at after it. Returns false at the end. */
bool fx_next_name(struct fx_span text, size_t *at, struct fx_span *out);
/* Copies the span into a string. Returns false if the span has FX_MAX_NAME bytes or more. */
bool fx_copy(struct fx_span s, char out[FX_MAX_NAME]);
/* "mul" and "mul_12" have the stem "mul". */
bool fx_has_stem(struct fx_span name, const char *stem);

#endif
