/* mod.h - settled attributes of Mod, for the kernels for CPUs and for GPUs. */
#ifndef OP_ELEM_MOD_H
#define OP_ELEM_MOD_H

#include <stdint.h>

struct mod {
    int64_t fmod;
};

#endif
