/* fuse_scores.h - declarations shared by fuse_attention.c, which recognizes attentions and creates
 * the node, fuse_scores.c, which traces the scores from the softmax back to their product,
 * fuse_operand.c, which traces q, k and v back to their origin, and fuse_mask.c (masks). */
#ifndef GRAPH_FUSE_SCORES_H
#define GRAPH_FUSE_SCORES_H

#include "graph/plan_fuse.h"

enum {
    FUSE_STEPS = 8,
    FUSE_MASKS = FUSE_MAX_IN - 3,
};

/* The steps between the product of q and k and the softmax, the last step first. */
struct fuse_scores {
    uint32_t product; /* node that multiplies q and k */
    uint32_t n_steps, n_masks;
    const char *step[FUSE_STEPS]; /* names as in trainerd.Attention */
    float number[FUSE_STEPS];
    uint32_t mask[FUSE_STEPS]; /* GRAPH_NONE: no mask */
};

/* ---- fuse_scores.c ---- */
/* Traces `value`, the input of the softmax, back to the product. Returns false if a step is not
 * supported; f->obstacle then states the reason. */
bool fuse_find_scores(struct fuser *f, uint32_t value, struct fuse_scores *out);
/* Returns whether `value` derives from a product of two computed matrices through nodes that work
 * element by element or change the shape. A softmax of such a value that multiplies a third matrix
 * is an attention. */
bool fuse_derives_from_product(const struct fuser *f, uint32_t value);
/* Returns whether a node is x * number or x / number with a finite number; *value is x, *by the
 * factor. */
bool fuse_is_scaled(const struct fuser *f, const struct plan_node *n, uint32_t *value, float *by);

/* ---- fuse_mask.c ---- */
/* Converts a mask to the form that the node reads: a known mask that is constant along an axis gets
 * one element there, and equal masks share the first one. *no_effect: the mask changes no score.
 * Errors: ERR_NOMEM. */
int fuse_prepare_mask(struct fuser *f, const char *step, uint32_t *mask, bool *no_effect,
                      struct err *err);

/* Removes the steps that only hide all keys outside a band around the row's own key (causal masks,
 * sliding windows), for scores with `rows` rows, and sets the band as an attribute of the row.
 * Returns false if memory runs out. */
bool fuse_add_band(struct fuser *f, struct fuse_row *row, struct fuse_scores *c, int64_t rows);

/* ---- fuse_operand.c ---- */
struct fuse_operand {
    uint32_t value;
    uint32_t perm[TENSOR_MAX_RANK]; /* axis i of the operand is axis perm[i] of the value */
    int64_t repeats; /* each index along `axis` of the operand represents this many indices */
    uint32_t axis;                  /* undefined if repeats is 1 */
    float scale;
};
/* Traces `value`, operand of a product, back through Transposes, through factors if `may_scale`,
 * and through the repetition of heads if `may_repeat`. is_transposed: its last two axes are
 * swapped. */
void fuse_trace(const struct fuser *f, uint32_t value, bool is_transposed, bool may_scale,
                bool may_repeat, struct fuse_operand *o);
int64_t fuse_operand_dim(const struct fuser *f, const struct fuse_operand *o, uint32_t axis);

/* ---- fuse_attention.c ---- */
/* If q, k and v are thirds of one value and have no other reader, the row reads that value instead,
 * and the orders of their axes become those of the thirds. Returns false if memory runs out. */
bool fuse_add_parts(const struct fuser *f, struct fuse_row *row, struct fuse_operand *const all[3]);
/* Adds the order of axes as an attribute of the row, unless they are in order. Returns false if
 * memory runs out. */
bool fuse_add_perm(struct plan *p, struct fuse_row *row, const char *name, const uint32_t *perm,
                   uint32_t rank);
/* Adds steps and masks to the row in the order of execution; the scale precedes them. Returns false
 * if memory runs out. */
bool fuse_add_steps(struct plan *p, struct fuse_row *row, const struct fuse_scores *c, float scale);
/* Calls fuse_prepare_mask() for each mask and removes steps without effect. Errors: ERR_NOMEM. */
int fuse_prepare_masks(struct fuser *f, struct fuse_scores *c, struct err *err);
/* Records for `trainerctl inspect` whether the attention called `name` is one node; if not, with
 * f->obstacle as the reason. */
int fuse_note_attention(struct fuser *f, const char *name, bool is_fused, struct err *err);

#endif
