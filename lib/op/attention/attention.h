/* attention.h - shared by the files of Attention: attention.c infers shapes (and documents the op),
 * attention_visible.c finds the keys that masks hide, attention_plan.c and attention_cpu.c iterate
 * over heads and blocks, and attention_rows.c computes the softmax of a block of scores.
 *
 * Grouped heads (GQA, MQA): if k and v have fewer heads than q, infer splits the last batch axis of
 * q into [heads of k, shared], and k and v have stride 0 along `shared`. A matrix index counts
 * query heads; the `shared` query heads of one key head are consecutive. */
#ifndef OP_ATTENTION_ATTENTION_H
#define OP_ATTENTION_ATTENTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "op/act/dropout.h"
#include "op/op.h"

enum { ATTENTION_STEPS = 8, ATTENTION_QKV = 3 /* number of inputs before the masks */ };
/* a mask hides a key by adding this number or less to its score */
#define ATTENTION_HIDDEN (-1e38f)
/* A key counts as hidden if its score, or the number added to it, is this or less: visible scores
 * are far larger. */
#define ATTENTION_BURIED (-1e4f)

/* Operations on a score s before the softmax. */
enum attention_kind {
    ATTENTION_SCALE, /* s * number */
    ATTENTION_ADD,   /* s + mask */
    ATTENTION_KEEP,  /* mask ? s : number */
    ATTENTION_FILL,  /* mask ? number : s */
    ATTENTION_CAP,   /* number * tanh(s / number) (softcap); at most one such step */
};

/* Strides of the matrices of an operand: `start` is the element at which the first matrix begins,
 * the others are in elements per index. 0: broadcast. */
struct attention_at {
    ptrdiff_t start;
    ptrdiff_t batch[TENSOR_MAX_RANK];
    ptrdiff_t row, col;
};

struct attention_step {
    enum attention_kind kind;
    float number;
    uint32_t input;         /* input index of the mask; SCALE: 0 */
    struct attention_at at; /* position of the mask */
    float most;             /* ADD: largest element of a constant mask */
    bool is_known;          /* the mask is a constant */
    bool is_causal;         /* the mask is a constant that only hides from each row the keys after
                               its own, by ATTENTION_BURIED or lower */
};

static inline bool attention_has_mask(const struct attention_step *s)
{
    return s->kind == ATTENTION_ADD || s->kind == ATTENTION_KEEP || s->kind == ATTENTION_FILL;
}

struct attention_range { /* a range of keys: first to end - 1 */
    int64_t first, end;
};

struct attention { /* parameters of the op (op_def.param) */
    struct shape batch; /* batch axes of q; if shared > 1 the last axis has size `shared` */
    int64_t n;        /* number of matrices: query heads of all samples */
    int64_t shared;   /* number of query heads per head of k and v; >= 1 */
    int64_t t, s;     /* rows of q and of k: queries, keys */
    int64_t d, dv;    /* columns of q and k, and of v and y */
    struct attention_at q, k, v, y;
    uint32_t of[ATTENTION_QKV]; /* index of the input that contains q, k, v */
    uint32_t n_steps;
    struct attention_step step[ATTENTION_STEPS];
    struct dropout dropout;
    int64_t rows;     /* rows of q per block */
    int64_t group;    /* heads of k and v per block, with `shared` matrices each; above 1 only if
                         one block has all rows */
    int64_t n_blocks; /* blocks per matrix */
    const struct attention_range *seen; /* [n_blocks]; keys that a row of the block may see */
    uint32_t hiding;  /* bits: the steps that hide the keys outside `seen` */
    bool has_band;    /* row i sees only the keys i + lower to i + upper; all others have weight
                         0 */
    int64_t lower, upper; /* limits of the band, within +-ATTENTION_FAR */
    bool zero_empty;  /* a row whose scores are all -inf has zero weights instead of NaN */
    bool has_cap;     /* a step is ATTENTION_CAP */
};

#define ATTENTION_FAR ((int64_t)1 << 40) /* limit of a band that does not restrict any row */

/* Returns the keys of `keys` inside the band of row `row`; first == end: none. */
static inline struct attention_range attention_band(const struct attention *a, int64_t row,
                                                    struct attention_range keys)
{
    struct attention_range r = keys;

    if (!a->has_band)
        return r;
    if (r.first < row + a->lower)
        r.first = row + a->lower;
    if (r.end > row + a->upper + 1)
        r.end = row + a->upper + 1;
    if (r.first >= r.end || r.first >= keys.end || r.end <= keys.first)
        r.first = r.end = keys.first;
    return r;
}

/* Computes seen and hiding; called after all other fields are set. Errors: ERR_NOMEM. */
int attention_visible(const struct op_infer *f, struct attention *a, struct err *err);
/* Returns the largest score that a key outside `seen` can have in this call, after the steps. */
float attention_masked(const struct op_call *c, const struct attention *a);

/* Returns the element of an operand at which matrix i begins. */
static inline ptrdiff_t attention_matrix(const struct attention *a, const struct attention_at *at,
                                         int64_t i)
{
    ptrdiff_t offset = at->start;

    for (uint32_t k = a->batch.rank; k-- > 0;) {
        offset += (ptrdiff_t)(i % a->batch.dim[k]) * at->batch[k];
        i /= a->batch.dim[k];
    }
    return offset;
}

static inline int64_t attention_rows_of(const struct attention *a, int64_t block)
{
    return block + 1 < a->n_blocks ? a->rows : a->t - block * a->rows;
}

/* A block of rows of scores, stored matrix after matrix. */
struct attention_rows {
    const struct attention *a;
    const struct op_call *c;
    int64_t matrix;              /* index of the first matrix */
    int64_t row;                 /* index of the first row in its matrix */
    int64_t rows;                /* rows per matrix */
    int64_t matrices;
    struct attention_range keys; /* keys of each row */
    float *max, *scale;          /* [n, t], of the whole call: largest score x of each row, and 1 /
                                    sum of e^(x - max) */
    uint8_t *keep;               /* scratch for the dropout mask of a row, one byte per key */
    float *capped;               /* scratch for the scores of a row after ATTENTION_CAP; else
                                    NULL */
};

/* Applies the steps, and replaces each row of scores x by e^(x - max), multiplied by the dropout
 * mask. Writes max and scale. */
void attention_rows_fwd(const struct attention_rows *r, float *scores);
/* Called after attention_rows_fwd(). Returns true if a key with the score `hidden` would have
 * weight 0 in every row. */
bool attention_rows_cost_more(const struct attention_rows *r, float hidden);
/* Input: the scores before the steps, and in dp the gradient of the weights. Output: the weights in
 * `scores`, and in dp the gradient of the scores before the steps. dot [matrices, rows]: the inner
 * product of y and dy. */
void attention_rows_bwd(const struct attention_rows *r, const float *dot, float *scores, float *dp);

#endif
