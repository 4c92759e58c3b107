/* lp_pool.c - LpPool: y = (sum over the window of |x|^p)^(1/p), p an integer >= 1.
 *   dx = sum of dy sign(x) |x|^(p-1) / y^(p-1) over the windows of x; 0 where y is 0.
 * GlobalLpPool: one window over the whole space. */
#include <inttypes.h>

#include "base/err.h"
#include "op/op_priv.h"
#include "op/pool/pool_priv.h"

enum { P_MAX = 64 /* for greater p, |x|^p is 0 or infinite for nearly every x */ };

static int settle(struct op_infer *f, bool whole, struct err *err)
{
    struct lp_pool_param *p = f->param;
    struct op_window w;
    int64_t power;
    int rc = op_attr_i(f, "p", 2, &power, err);

    if (rc == 0 && (power < 1 || power > P_MAX))
        rc = op_error(f, ERR_INPUT, err, "attribute 'p' is %" PRId64 "; expected 1 to %d", power,
                      P_MAX);
    if (rc == 0)
        rc = pool_infer(f, whole, false, &w, err);
    if (rc < 0)
        return rc;
    p->window = op_window_lift(&w, OP_SPATIAL_MAX);
    p->p = (float)power;
    return 0;
}

static int infer(struct op_infer *f, struct err *err)
{
    return settle(f, false, err);
}

static int infer_global(struct op_infer *f, struct err *err)
{
    return settle(f, true, err);
}

static const char *const attrs[] = { "auto_pad", "ceil_mode", "dilations", "kernel_shape",
                                     "p",        "pads",      "strides",   NULL };
static const char *const attrs_global[] = { "p", NULL };

#define FIELDS                                                                                     \
    .since = 2, .n_in = { 1, 1 }, .n_out = { 1, 1 }, .param_bytes = sizeof(struct lp_pool_param),  \
    .diff = OP_IN(0), .bwd_reads = OP_IN(0) | OP_OUT(0), .layout = OP_LAYOUT_CHANNELS,             \
    .cpu = { lp_pool_cpu_plan, lp_pool_cpu_fwd, lp_pool_cpu_bwd, NULL }

const struct op_def op_lp_pool = { FIELDS, .name = "LpPool", .attrs = attrs, .infer = infer };
const struct op_def op_global_lp_pool = { FIELDS, .name = "GlobalLpPool", .attrs = attrs_global,
                                          .infer = infer_global };
