/* pool_priv.h - validated attributes of the pools. All kernels expect x and y channels-last
 * (OP_LAYOUT_CHANNELS): [n, in.., c]. */
#ifndef OP_POOL_POOL_PRIV_H
#define OP_POOL_POOL_PRIV_H

#include "op/op.h"
#include "op/window.h"

/* Validates the shape and type of x, computes the window (`whole`: the whole space, without
 * attributes), and sets the shape and type of y. `touch`: a window without any element of x is
 * refused. */
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
    bool count_pad;             /* divisor: the number of taps in the padded space, */
    int64_t end[OP_SPATIAL_MAX]; /* which ends here; else the number of taps inside x */
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
