/* trilu.h - the parameters of Trilu, for its kernels. */
#ifndef OP_SHAPE_TRILU_H
#define OP_SHAPE_TRILU_H

#include <stdint.h>

struct trilu { /* parameters of the op (op_def.param) */
    int64_t upper;
};

#endif
