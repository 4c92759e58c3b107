/* average_pool.c - AveragePool: the mean over each window. With count_include_pad, padding
 * counts as zeros, else not at all. Elements beyond the padding, which windows of ceil_mode may
 * reach, never count (as in PyTorch).   dx = the sum of dy / divisor over the windows of x.
 *
 * The kernels are our own. oneDNN's pooling computes a 3x3 window forward in a third of the
 * time, but these loops would have to stay: its only kernel for dilations is a reference kernel
 * (185 ms instead of 0.6 ms for [8, 256, 28, 28]), it divides a window that ceil_mode rounds up
 * by the whole kernel, and a mean over 56x56 elements has 25 times the error. cuDNN's pooling
 * has no dilations. */
#include "base/err.h"
#include "op/op_priv.h"
#include "op/pool/pool_priv.h"

static int infer(struct op_infer *f, struct err *err)
{
    struct average_pool_param *p = f->param;
    int64_t count_pad;
    struct op_window w = { 0 };
    uint32_t k;
    int rc = op_attr_i(f, "count_include_pad", 0, &count_pad, err);

    if (rc == 0)
        rc = pool_infer(f, false, count_pad == 0, &w, err);
    if (rc < 0)
        return rc;
    p->window = op_window_lift(&w, OP_SPATIAL_MAX);
    p->count_pad = count_pad != 0;
    for (k = 0; k < OP_SPATIAL_MAX; k++)
        p->end[k] = p->window.in[k] + p->window.pad_hi[k] - p->window.grown[k];
    return 0;
}

static const char *const attrs[] = { "auto_pad",     "ceil_mode", "count_include_pad", "dilations",
                                     "kernel_shape", "pads",      "strides",           NULL };

const struct op_def op_average_pool = {
    .name = "AveragePool",
    .since = 7,
    .n_in = { 1, 1 },
    .n_out = { 1, 1 },
    .attrs = attrs,
    .param_bytes = sizeof(struct average_pool_param),
    .infer = infer,
    .diff = OP_IN(0),
    .layout = OP_LAYOUT_CHANNELS,
    .half = OP_HALF_SAME,
    .half_of = OP_IN(0) | OP_OUT(0),
    .cpu = { average_pool_cpu_plan, average_pool_cpu_fwd, average_pool_cpu_bwd, NULL },
};
