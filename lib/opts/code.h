/* code.h - what a job says about the compression of gradients: plain values, which lib/conf fills and
 * lib/code, lib/engine and lib/train read. The codes: code/code.h. */
#ifndef OPTS_CODE_H
#define OPTS_CODE_H

#include <stdint.h>

enum code_kind { CODE_NONE, CODE_BFLOAT16, CODE_FLOAT16, CODE_INT8, CODE_INT4, CODE_KINDS };

enum code_when {
    CODE_ALWAYS,  /* also in a task that has no peers: the numbers are the same */
    CODE_NETWORK, /* if the first step of the job is reduced between hosts; decided once */
};

struct code_settings { /* all zero: gradients are not compressed */
    enum code_kind kind;
    uint32_t groups;    /* a power of two; each is an aligned block of lanes (micro-batches) */
    uint64_t min_bytes; /* gradients of fewer bytes stay float32 */
    enum code_when when;
};

#endif
