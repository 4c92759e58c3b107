/* attention_cpu.h - the kernels of the row in attention.c, and what attention_plan.c prepares for
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

/* The products of blocks with so many rows of each query head that see so many keys. */
struct attention_products {
    int64_t rows, keys;
    struct dnn *scores, *y, *dp;
    struct dnn *dv, *dq, *dk; /* NULL: not wanted */
};

struct attention_areas { /* offsets in scratch, in bytes */
    size_t max, k, v, dk, dv, q, y, dq, scores, dp, dot, keep, capped, weights, slopes, pad;
};

struct attention_state {
    struct attention_products *products;
    size_t n_products;
    size_t *seen, *whole; /* [n_blocks] which products: of the keys it sees, of all keys */
    struct attention_areas at;
    bool has_save;        /* max and scale go there, not to scratch */
    bool is_half;         /* bfloat16 is multiplied */
};

int attention_cpu_plan(struct op_plan *p, struct err *err);
int attention_cpu_fwd(const struct op_call *c, struct err *err);
int attention_cpu_bwd(const struct op_call *c, struct err *err);
void attention_cpu_free(void *state);

#endif
