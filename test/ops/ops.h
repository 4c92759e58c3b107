/* ops.h - the modes of the program `ops`, which checks and measures every op of lib/op/op_list.h. */
#ifndef TEST_OPS_OPS_H
#define TEST_OPS_OPS_H

#include <stdbool.h>
#include <stddef.h>

#include "device/cuda.h"
#include "op/op.h"

struct ops_options {
    const char *program; /* argv[0]: the test programs are found from its folder */
    const char *device;  /* "cpu" or "cuda" */
    char **ops;          /* only the rows with these names; speed: also optimizers */
    int n_ops;           /* 0: all rows */
    bool is_quick;       /* speed: tiny shapes, one call */
};

/* The text of a row's opsets: "13 to 17", "from 18". Returns out. */
const char *ops_opsets(const struct op_def *def, char *out, size_t bytes);
/* "trainerd.Mlp", "Relu". Returns out. */
const char *ops_name(const struct op_def *def, char *out, size_t bytes);
bool ops_is_chosen(const struct ops_options *o, const char *name);
/* The row states that it has no gradient: no differentiable input, or no backward kernel. */
bool ops_has_gradient(const struct op_def *def);
/* Returns why the row needs no case: forward, or its gradient; NULL: it needs one. cuda NULL: on CPUs. */
const char *ops_exempt(const struct cuda_api *cuda, const struct op_def *def, bool gradient);
/* Opens GPU 0. NULL: there is none; a message was printed. */
const struct cuda_api *ops_open_gpu(void);

/* Each mode returns the exit code of the program: 0, 1: an op failed or lacks a case, 2: the mode
 * could not run. */
int ops_supported(void);
int ops_test(const struct ops_options *o);
int ops_gradient(const struct ops_options *o);
int ops_speed(const struct ops_options *o);

#endif
