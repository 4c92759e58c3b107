/* attention.h - shared by attention.c, which infers shapes (the contract of the op is there),
 * attention_seen.c, which finds the keys that masks hide, attention_plan.c and attention_cpu.c, which
 * walk over heads and blocks, and attention_rows.c, which computes the softmax of a block of scores.
 *
 * Grouped heads (GQA, MQA): when k and v have fewer heads than q, infer splits the last batch axis of q
 * into [heads of k, shared], and k and v have stride 0 along `shared`. A matrix index counts query heads;
 * the `shared` query heads of one key head are consecutive. */
#ifndef OP_ATTENTION_ATTENTION_H
#define OP_ATTENTION_ATTENTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "op/act/dropout.h"
#include "op/op.h"

enum { ATTENTION_STEPS = 8, ATTENTION_QKV = 3 /* inputs in front of the masks */ };
#define ATTENTION_HIDDEN (-1e38f) /* what is added to a score to hide its key: at most this */
/* A key with this score or less, or to whose score so much is added, may be taken for hidden
 * altogether: the scores of those that are not lie far above. */
#define ATTENTION_BURIED (-1e4f)

/* What happens to a score s before the softmax. */
enum attention_kind {
    ATTENTION_SCALE, /* s * number */
    ATTENTION_ADD,   /* s + mask */
    ATTENTION_KEEP,  /* mask ? s : number */
    ATTENTION_FILL,  /* mask ? number : s */
    ATTENTION_CAP,   /* number * tanh(s / number) (softcap); at most one such step */
};

/* Where the matrices of an operand lie in a tensor: the element where the first begins, and elements from one
 * index to the next. 0: broadcast. */
struct attention_at {
    ptrdiff_t start;
    ptrdiff_t batch[TENSOR_MAX_RANK];
    ptrdiff_t row, col;
};

struct attention_step {
    enum attention_kind kind;
    float number;
    uint32_t input;         /* of the mask; SCALE: 0 */
    struct attention_at at; /* of the mask */
    float most;             /* ADD: greatest element of a constant mask */
    bool is_known;          /* the mask is a constant */
    bool is_causal;         /* it is, and does nothing but hide from each row the keys behind its own, by
                               ATTENTION_BURIED or lower */
};

static inline bool attention_has_mask(const struct attention_step *s)
{
    return s->kind == ATTENTION_ADD || s->kind == ATTENTION_KEEP || s->kind == ATTENTION_FILL;
}

struct attention_range { /* of keys: first to end - 1 */
    int64_t first, end;
};

struct attention { /* op_def.param */
    struct shape batch; /* of the query heads; if shared > 1 the last axis has the size `shared` */
    int64_t n;        /* matrices: query heads of all samples */
    int64_t shared;   /* query heads that read one head of k and v; >= 1 */
    int64_t t, s;     /* rows: queries, keys */
    int64_t d, dv;    /* columns: of q and k; of v and y */
    struct attention_at q, k, v, y;
    uint32_t of[ATTENTION_QKV]; /* the input that q, k, v lie in */
    uint32_t n_steps;
    struct attention_step step[ATTENTION_STEPS];
    struct dropout dropout;
    int64_t rows;     /* of a block */
    int64_t group;    /* heads of k and v of a block, with `shared` matrices each; above 1 only where one
                         block has all rows */
    int64_t n_blocks; /* of a matrix */
    const struct attention_range *seen; /* [n_blocks] keys that some row of the block may see */
    uint32_t hiding;  /* bits: steps because of which the other keys are out of sight */
    bool has_band;    /* row i sees only the keys i + lower to i + upper: all others weigh exactly 0 */
    int64_t lower, upper; /* of the band; within +-ATTENTION_FAR */
    bool zero_empty;  /* a row whose scores are all -inf has zero weights instead of NaN */
    bool has_cap;     /* a step is ATTENTION_CAP */
};

#define ATTENTION_FAR ((int64_t)1 << 40) /* limit of a band that does not restrict a row */

/* Keys of `keys` that the band shows to row `row`; first == end: none. */
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

/* Fills seen and hiding, when everything else is settled. */
int attention_seen(const struct op_infer *f, struct attention *a, struct err *err);
/* The greatest score that a key out of sight can have in this call: what hides it, and the steps
 * after. */
float attention_hidden(const struct op_call *c, const struct attention *a);

/* Element of an operand at which matrix i begins. */
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

/* Some rows of scores, those of one matrix one after the other. */
struct attention_rows {
    const struct attention *a;
    const struct op_call *c;
    int64_t matrix;              /* the first row's */
    int64_t row;                 /* of it */
    int64_t rows;                /* in one matrix */
    int64_t matrices;
    struct attention_range keys; /* of each row */
    float *max, *scale;          /* [n, t] of the whole call: greatest score, 1 / sum of e^(x - max),
                                    x being the scores of the row */
    uint8_t *keep;               /* [keys of a row], room for what dropout keeps */
    float *capped;               /* [keys of a row], room for scores after ATTENTION_CAP; else NULL */
};

/* Every row of scores becomes e^(x - max) where x is the score after the steps (times what dropout
 * makes of it); max and scale are written. */
void attention_rows_fwd(const struct attention_rows *r, float *scores);
/* After it: would a key with the score `hidden` weigh nothing in any row? */
bool attention_rows_outweigh(const struct attention_rows *r, float hidden);
/* From scores before the steps, and dp, the gradient of what v was multiplied with: that, and the
 * gradient of the scores before the steps. dot [matrices, rows]: the inner product of y and dy. */
void attention_rows_bwd(const struct attention_rows *r, const float *dot, float *scores,
                        float *dp);

#endif
