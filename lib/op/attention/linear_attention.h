/* linear_attention.h - settled shapes of the row in linear_attention.c, for its kernels. */
#ifndef OP_ATTENTION_LINEAR_ATTENTION_H
#define OP_ATTENTION_LINEAR_ATTENTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum linear_input { LINEAR_Q, LINEAR_K, LINEAR_V, LINEAR_PAST, LINEAR_DECAY, LINEAR_BETA, LINEAR_INPUTS };

struct linear_attention { /* op_def.param */
    int64_t batch, t;         /* samples; tokens of a sample */
    int64_t heads, key_heads; /* of q; of k and v, a divisor */
    int64_t d, dv;            /* columns of a head of q and k; of v */
    bool has_decay, has_beta;
    int64_t decays;           /* of a head: 1 or d */
    int64_t betas;            /* of a token: 1 or key_heads */
    float scale;              /* of the output */
    int64_t chunk, n_chunks;  /* backward keeps the state before every chunk-th token */
};

/* Elements of a state [d, dv], and of all that a plan that trains keeps. */
static inline int64_t linear_state(const struct linear_attention *a)
{
    return a->d * a->dv;
}

static inline int64_t linear_kept(const struct linear_attention *a)
{
    return a->batch * a->key_heads * a->n_chunks * linear_state(a);
}

#endif
