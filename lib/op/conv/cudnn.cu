/* cudnn.cu - a convolution as a cuDNN graph with one operation. See op/cudnn/graph.cuh. */
#include "op/conv/cudnn.cuh"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "op/cudnn/graph.cuh"

/* limit in bytes: faster engines that need more scratch are not used */
static constexpr int64_t SCRATCH_MAX = (int64_t)1 << 30;

struct cudnn_conv {
    struct cudnn_graph *graph; /* owned */
};

/* ---- the operation ---- */

/* Returns the number of axes of an operand, and its sizes in ONNX's order. */
static int sizes_of(const struct cudnn_conv_spec *spec, enum conv_operand which, int64_t *size)
{
    const struct op_window *w = spec->window;
    const int64_t *space = which == CONV_X ? w->in : which == CONV_W ? w->kernel : w->out;

    size[0] = which == CONV_W ? spec->o : spec->n;
    size[1] = which == CONV_X ? spec->c : which == CONV_W ? spec->c / spec->group : spec->o;
    for (uint32_t k = 0; k < w->spatial; k++)
        size[2 + k] = space[k];
    return (int)w->spatial + 2;
}

static cudnnBackendDescriptor_t tensor(struct cudnn_graph *g, const struct cudnn_conv_spec *spec,
                                       enum conv_operand which)
{
    struct cudnn_tensor t = { .type = cudnn_type(which == CONV_W ? spec->weights : spec->images),
                              .uid = which + 1 };
    bool last = spec->layout == TENSOR_CHANNELS_LAST;
    int64_t at = 1;

    t.axes = sizes_of(spec, which, t.size);
    if (last) {
        t.step[1] = 1;
        at = t.size[1];
    }
    for (int k = t.axes; k-- > 0;) {
        if (last && k == 1)
            continue;
        t.step[k] = at;
        at *= t.size[k];
    }
    return cudnn_tensor(g, &t);
}

static cudnnBackendDescriptor_t window(struct cudnn_graph *g, const struct op_window *w)
{
    cudnnBackendDescriptor_t d = cudnn_make(g, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    cudnnDataType_t sums = CUDNN_DATA_FLOAT;
    int64_t axes = w->spatial;

    cudnn_set(g, d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &axes);
    cudnn_set(g, d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &sums);
    cudnn_set(g, d, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    cudnn_set(g, d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, axes, w->pad_lo);
    cudnn_set(g, d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, axes, w->pad_lo);
    cudnn_set(g, d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, axes, w->stride);
    cudnn_set(g, d, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, axes, w->dilation);
    cudnn_finish(g, d, "describe the windows");
    return d;
}

/* The names that differ between the three operations. */
static const struct {
    const char *name;
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t window, x, w, y, alpha, beta;
} operations[CONV_OPERANDS] = {
#define ATTR(x_) CUDNN_ATTR_OPERATION_CONVOLUTION_##x_
    { "gradient of the images", CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
      ATTR(BWD_DATA_CONV_DESC), ATTR(BWD_DATA_DX), ATTR(BWD_DATA_W), ATTR(BWD_DATA_DY),
      ATTR(BWD_DATA_ALPHA), ATTR(BWD_DATA_BETA) },
    { "gradient of the weights", CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
      ATTR(BWD_FILTER_CONV_DESC), ATTR(BWD_FILTER_X), ATTR(BWD_FILTER_DW), ATTR(BWD_FILTER_DY),
      ATTR(BWD_FILTER_ALPHA), ATTR(BWD_FILTER_BETA) },
    { "convolution", CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
      ATTR(FORWARD_CONV_DESC), ATTR(FORWARD_X), ATTR(FORWARD_W), ATTR(FORWARD_Y), ATTR(FORWARD_ALPHA),
      ATTR(FORWARD_BETA) },
#undef ATTR
};

static void build(struct cudnn_graph *g, const struct cudnn_conv_spec *spec)
{
    const auto *op = &operations[spec->computed];
    cudnnBackendDescriptor_t x = tensor(g, spec, CONV_X), w = tensor(g, spec, CONV_W),
                             y = tensor(g, spec, CONV_Y), win = window(g, spec->window);
    cudnnBackendDescriptor_t d = cudnn_make(g, op->type);
    float alpha = 1, beta = spec->add ? 1 : 0;

    cudnn_set_descriptor(g, d, op->window, win);
    cudnn_set_descriptor(g, d, op->x, x);
    cudnn_set_descriptor(g, d, op->w, w);
    cudnn_set_descriptor(g, d, op->y, y);
    cudnn_set(g, d, op->alpha, CUDNN_TYPE_FLOAT, 1, &alpha);
    cudnn_set(g, d, op->beta, CUDNN_TYPE_FLOAT, 1, &beta);
    cudnn_operation(g, d);
}

static void describe(const struct cudnn_conv_spec *spec, char *out, size_t n)
{
    const struct op_window *w = spec->window;
    char text[CONV_OPERANDS + 3][96];
    const int64_t *lists[] = { w->stride, w->dilation, w->pad_lo };
    struct shape s;

    for (int k = 0; k < CONV_OPERANDS; k++) {
        s.rank = (uint32_t)sizes_of(spec, (enum conv_operand)k, s.dim);
        shape_print(&s, text[k], sizeof(text[k]));
    }
    for (int k = 0; k < 3; k++) {
        s.rank = w->spatial;
        memcpy(s.dim, lists[k], w->spatial * sizeof(s.dim[0]));
        shape_print(&s, text[CONV_OPERANDS + k], sizeof(text[0]));
    }
    snprintf(
        out, n, "%s%s, %s %s, x %s, w %s %s, y %s, strides %s, dilations %s, pads %s",
        operations[spec->computed].name, spec->add ? " added" : "", tensor_dtype_name(spec->images),
        spec->layout == TENSOR_CHANNELS_LAST ? "channels-last" : "plain", text[CONV_X],
        tensor_dtype_name(spec->weights), text[CONV_W], text[CONV_Y], text[3], text[4], text[5]);
}

int cudnn_conv_open(const struct cudnn_conv_spec *spec, struct cudnn_conv **out, struct err *err)
{
    struct cudnn_conv *c = (struct cudnn_conv *)calloc(1, sizeof(*c));
    char what[640];
    int rc;

    if (c == NULL)
        return err_set(err, ERR_NOMEM, "convolution: out of memory");
    describe(spec, what, sizeof(what));
    rc = cudnn_graph_open(what, &c->graph, err);
    if (rc == 0) {
        build(c->graph, spec);
        rc = cudnn_graph_select(c->graph, spec->tf32 || spec->images != TENSOR_F32, SCRATCH_MAX,
                                err);
    }
    if (rc < 0) {
        cudnn_conv_close(c);
        return rc;
    }
    *out = c;
    return 0;
}

void cudnn_conv_close(struct cudnn_conv *c)
{
    if (c == NULL)
        return;
    cudnn_graph_close(c->graph);
    free(c);
}

size_t cudnn_conv_scratch_bytes(const struct cudnn_conv *c)
{
    return c == NULL ? 0 : cudnn_graph_scratch_bytes(c->graph);
}

int cudnn_conv_run(struct cudnn_conv *c, void *const at[CONV_OPERANDS], void *scratch,
                   cudaStream_t s, struct err *err)
{
    static const int64_t uids[CONV_OPERANDS] = { CONV_X + 1, CONV_W + 1, CONV_Y + 1 };

    return cudnn_graph_run(c->graph, CONV_OPERANDS, uids, at, scratch, s, err);
}
