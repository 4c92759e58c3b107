/* fuse_scores.h - between fuse_attention.c, which finds an attention and makes the node,
 * fuse_scores.c, which follows the scores from the softmax back to their product,
 * fuse_operand.c, which follows q, k and v back to where they lie, and fuse_mask.c. */
#ifndef GRAPH_FUSE_SCORES_H
#define GRAPH_FUSE_SCORES_H

#include "graph/plan_fuse.h"

enum {
    FUSE_STEPS = 8,
    FUSE_MASKS = FUSE_MAX_IN - 3,
};

/* What happens to the scores between their product and the softmax, the last step first. */
struct fuse_scores {
    uint32_t product; /* node that multiplies q and k */
    uint32_t n_steps, n_masks;
    const char *step[FUSE_STEPS]; /* as trainerd.Attention names them */
    float number[FUSE_STEPS];
    uint32_t mask[FUSE_STEPS]; /* GRAPH_NONE: none */
};

/* ---- fuse_scores.c ---- */
/* From `value`, the input of the softmax, back to the product; false: f->obstacle says why not. */
bool fuse_find_scores(struct fuser *f, uint32_t value, struct fuse_scores *out);
/* Does a product of two computed matrices lead to `value` through nodes that work element by element or change
 * the shape? Then a softmax of it that multiplies a third one is an attention. */
bool fuse_come_from_product(const struct fuser *f, uint32_t value);
/* x * number or x / number with a finite number: *value is x. */
bool fuse_is_scaled(const struct fuser *f, const struct plan_node *n, uint32_t *value, float *by);

/* ---- fuse_mask.c ---- */
/* A mask as the node reads it: one that is known and the same along an axis has one element there, and of
 * masks that are equal all nodes read the first. *idle: it changes no score. Errors: ERR_NOMEM. */
int fuse_settle_mask(struct fuser *f, const char *step, uint32_t *mask, bool *idle,
                     struct err *err);

/* Takes out the steps that hide all keys but those of a band around the row's own and do nothing else (causal
 * masks, sliding windows), of scores with so many rows; the row gets the band as its attribute. false: no
 * memory. */
bool fuse_add_band(struct fuser *f, struct fuse_row *row, struct fuse_scores *c, int64_t rows);

/* ---- fuse_operand.c ---- */
struct fuse_operand {
    uint32_t value;
    uint32_t perm[TENSOR_MAX_RANK]; /* axis i of the operand is axis perm[i] of the value */
    int64_t repeats;                /* each index of `axis` of the operand stands for so many */
    uint32_t axis;                  /* without meaning if repeats is 1 */
    float scale;
};
/* Where `value`, operand of a product, comes from: without Transposes, without factors if `may_scale`,
 * without the repetition of heads if `may_repeat`. turned: its last two axes are swapped. */
void fuse_trace(const struct fuser *f, uint32_t value, bool turned, bool may_scale, bool may_repeat,
                struct fuse_operand *o);
int64_t fuse_operand_dim(const struct fuser *f, const struct fuse_operand *o, uint32_t axis);

/* ---- fuse_attention.c ---- */
/* If q, k and v are thirds of one value and have no other reader, the row reads that value in their place, and the
 * orders of their axes become those of the thirds. false: no memory. */
bool fuse_add_parts(const struct fuser *f, struct fuse_row *row, struct fuse_operand *const all[3]);
/* Axes as an attribute of the row, if they are not in order. false: no memory. */
bool fuse_add_perm(struct plan *p, struct fuse_row *row, const char *name, const uint32_t *perm,
                   uint32_t rank);
/* Steps and masks of the row, in the order in which they are done; scale comes before them. false: no memory. */
bool fuse_add_steps(struct plan *p, struct fuse_row *row, const struct fuse_scores *c, float scale);
/* fuse_settle_mask() for each mask; steps that change nothing go. */
int fuse_settle_masks(struct fuser *f, struct fuse_scores *c, struct err *err);
/* Notes for `trainerctl inspect` whether the attention called `name` is one node; if not, f->obstacle says why. */
int fuse_note_attention(struct fuser *f, const char *name, bool is_fused, struct err *err);

#endif
