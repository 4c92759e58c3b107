/* mod.h - validated attributes of Mod, for the kernels of CPUs and GPUs. */
#ifndef OP_ELEM_MOD_H
#define OP_ELEM_MOD_H

#include <stdint.h>

struct mod {
    int64_t fmod;
};

#endif
