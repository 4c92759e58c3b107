/* pool_priv.h - what the pools settle in infer and their kernels read. All take x and y
 * channels-last (OP_LAYOUT_CHANNELS): [n, in.., c]. */
#ifndef OP_POOL_POOL_PRIV_H
#define OP_POOL_POOL_PRIV_H

#include "op/op.h"
#include "op/window.h"

/* Shape and type of x, the window (`whole`: all of space; then no attributes), shape and type of
 * y. `touch`: a window wholly in the padding is refused. */
int pool_infer(struct op_infer *f, bool whole, bool touch, struct op_window *w, struct err *err);

struct max_pool_param {
    struct op_window window;
};

int max_pool_cpu_plan(struct op_plan *p, struct err *err);
int max_pool_cpu_fwd(const struct op_call *c, struct err *err);
int max_pool_cpu_bwd(const struct op_call *c, struct err *err);
void max_pool_cpu_free(void *state);

/* y = sum over the window / divisor */
struct average_pool_param {
    struct op_window window;    /* of three axes */
    bool count_pad;             /* the divisor is the number of taps within the padded space, */
    int64_t end[OP_SPATIAL_MAX]; /* which ends here; else that of taps inside */
};

int average_pool_cpu_fwd(const struct op_call *c, struct err *err);
int average_pool_cpu_bwd(const struct op_call *c, struct err *err);
int average_pool_cpu_plan(struct op_plan *p, struct err *err);

/* y = (sum over the window of |x|^p)^(1/p) */
struct lp_pool_param {
    struct op_window window; /* of three axes */
    float p;
};

int lp_pool_cpu_fwd(const struct op_call *c, struct err *err);
int lp_pool_cpu_bwd(const struct op_call *c, struct err *err);
int lp_pool_cpu_plan(struct op_plan *p, struct err *err);

int global_average_pool_cpu_plan(struct op_plan *p, struct err *err);
int global_average_pool_cpu_fwd(const struct op_call *c, struct err *err);
int global_average_pool_cpu_bwd(const struct op_call *c, struct err *err);

#endif
