/* bits.h - settled attributes of BitShift, for the kernels for CPUs and for GPUs. */
#ifndef OP_ELEM_BITS_H
#define OP_ELEM_BITS_H

#include <stdbool.h>

struct bit_shift {
    bool to_left;
};

#endif
