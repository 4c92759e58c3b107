/* trilu.h - what Trilu settles at load, for its kernels. */
#ifndef OP_SHAPE_TRILU_H
#define OP_SHAPE_TRILU_H

#include <stdint.h>

struct trilu { /* op_def.param */
    int64_t upper;
};

#endif
