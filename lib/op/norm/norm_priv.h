/* norm_priv.h - the parameters of the normalisations, set by infer and read by their kernels. */
#ifndef OP_NORM_NORM_PRIV_H
#define OP_NORM_NORM_PRIV_H

#include <stdbool.h>
#include <stddef.h>

#include "op/op.h"

struct batch_norm_param {
    float epsilon;
    float momentum;   /* weight of the old running average, after all nodes that share it */
    float share;      /* weight of this node's statistics among the nodes that share the average; 1:
                         not shared */
    bool from_batch;  /* normalises with the statistics of this batch; else with the running ones */
    float correction; /* factor of the population variance in the running average: 1, or n / (n -
                         1) */
    bool clamp;       /* y is clamped to 0 .. ceiling */
    float ceiling;
};

int batch_norm_cpu_plan(struct op_plan *p, struct err *err);
int batch_norm_cpu_fwd(const struct op_call *c, struct err *err);
int batch_norm_cpu_bwd(const struct op_call *c, struct err *err);

/* x [rows, n]; scale and bias [n] */
struct layer_norm_param {
    size_t rows, n;
    float epsilon;
    bool rms;  /* deviations from 0 instead of the mean */
    bool adds; /* the normalised tensor is the sum of inputs 0 and 3, and output 1 */
};

int layer_norm_cpu_plan(struct op_plan *p, struct err *err);
int layer_norm_cpu_fwd(const struct op_call *c, struct err *err);
int layer_norm_cpu_bwd(const struct op_call *c, struct err *err);

/* x [batch, groups, parts, len]; a row is everything after the group; scale and bias [groups,
 * parts]. A part is a channel, or (opset 18) a whole group. */
struct group_norm_param {
    size_t batch, groups, parts, len;
    size_t channels;
    float epsilon;
};

/* Attributes of LRN. */
struct lrn_param {
    int64_t size;
    float alpha, beta, bias;
};

int group_norm_cpu_plan(struct op_plan *p, struct err *err);
int group_norm_cpu_fwd(const struct op_call *c, struct err *err);
int group_norm_cpu_bwd(const struct op_call *c, struct err *err);

#endif
