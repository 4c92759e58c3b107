/* attention_cpu.h - the CPU kernels of Attention, and the state that attention_plan.c prepares for
 * them. */
#ifndef OP_ATTENTION_ATTENTION_CPU_H
#define OP_ATTENTION_ATTENTION_CPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dnn;
struct err;
struct op_call;
struct op_plan;

/* The products for blocks with `rows` rows of each query head that see `keys` keys. */
struct attention_products {
    int64_t rows, keys;
    struct dnn *scores, *y, *dp;
    struct dnn *dv, *dq, *dk; /* NULL: not requested */
};

struct attention_areas { /* byte offsets in scratch */
    size_t max, k, v, dk, dv, q, y, dq, scores, dp, dot, keep, capped, weights, slopes, pad;
};

struct attention_state {
    struct attention_products *products;
    size_t n_products;
    size_t *seen, *whole; /* [n_blocks], index in `products`: for the keys that the block sees, for
                             all keys */
    struct attention_areas at;
    bool has_save;        /* max and scale are stored in save, not in scratch */
    bool is_half;         /* the factors of the products are bfloat16 */
};

int attention_cpu_plan(struct op_plan *p, struct err *err);
int attention_cpu_fwd(const struct op_call *c, struct err *err);
int attention_cpu_bwd(const struct op_call *c, struct err *err);
void attention_cpu_free(void *state);

#endif
