/* linear_attention.h - the parameters of LinearAttention, for its kernels. */
#ifndef OP_ATTENTION_LINEAR_ATTENTION_H
#define OP_ATTENTION_LINEAR_ATTENTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum linear_input { LINEAR_Q, LINEAR_K, LINEAR_V, LINEAR_PAST, LINEAR_DECAY, LINEAR_BETA, LINEAR_INPUTS };

struct linear_attention { /* op_def.param */
    int64_t batch, t;         /* samples; tokens per sample */
    int64_t heads, key_heads; /* heads of q; heads of k and v, a divisor of it */
    int64_t d, dv;            /* columns per head of q and k, and of v */
    bool has_decay, has_beta;
    int64_t decays;           /* decays per head: 1 or d */
    int64_t betas;            /* betas per token: 1 or key_heads */
    float scale;              /* factor of the output */
    int64_t chunk, n_chunks;  /* backward keeps the state before every chunk-th token */
};

/* Numbers in a state [d, dv], and in all states that a training plan saves. */
static inline int64_t linear_state(const struct linear_attention *a)
{
    return a->d * a->dv;
}

static inline int64_t linear_kept(const struct linear_attention *a)
{
    return a->batch * a->key_heads * a->n_chunks * linear_state(a);
}

#endif
