/* code.h - what a job says about the compression of gradients: plain values, which lib/conf fills and
 * lib/code, lib/engine and lib/train read. The codes of blocks: code/code.h; those that keep residuals:
 * code/residual.h. */
#ifndef OPTS_CODE_H
#define OPTS_CODE_H

#include <stdbool.h>
#include <stdint.h>

enum code_kind {
    CODE_NONE,
    CODE_BFLOAT16,
    CODE_FLOAT16,
    CODE_INT8,
    CODE_INT4,
    CODE_KINDS, /* the codes before it code blocks; those from it on keep residuals */
    CODE_TOP_K = CODE_KINDS,
    CODE_POWER_SGD,
};

enum code_when {
    CODE_ALWAYS,  /* also in a task that has no peers: the numbers are the same */
    CODE_NETWORK, /* if the first step of the job is reduced between hosts; decided once */
};

struct code_settings { /* all zero: gradients are not compressed */
    enum code_kind kind;
    uint32_t groups;    /* a power of two; each is an aligned block of lanes (micro-batches) */
    uint64_t min_bytes; /* gradients of fewer bytes stay float32 */
    enum code_when when;
    double fraction;           /* top_k: of the numbers of a block that are sent; above 0, at most 1 */
    uint32_t rank;             /* power_sgd: columns of the factors; 1 to CODE_MAX_RANK */
    uint32_t copy_every_steps; /* residuals: each task copies the whole state after every so many steps; above 0 */
};

enum { CODE_MAX_RANK = 64 };

/* Does the code keep what it does not send, for the next step? */
static inline bool code_keeps_residuals(enum code_kind kind)
{
    return kind >= CODE_KINDS;
}

#endif
