/* bits.h - validated attributes of BitShift, for the kernels of CPUs and GPUs. */
#ifndef OP_ELEM_BITS_H
#define OP_ELEM_BITS_H

#include <stdbool.h>

struct bit_shift {
    bool to_left;
};

#endif
