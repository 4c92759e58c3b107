/* plan_fuse.h - what a pattern of plan_fuse.c works with. A pattern is a function and a line in the
 * table there:
 *
 *   int fuse_x(f, node, err)   looks whether a chain that ends at `node` fits, and if so calls
 *                              fuse_into(). 0 either way; errors only for lack of memory */
#ifndef GRAPH_PLAN_FUSE_H
#define GRAPH_PLAN_FUSE_H

#include "graph/plan_priv.h"

struct fuser {
    struct plan *p;
    uint32_t *maker;   /* [values] the node that makes it; GRAPH_NONE */
    uint32_t *readers; /* [values] inputs of nodes, and whoever reads it behind the last call */
    bool *gone;        /* [nodes] */
    size_t cap_values; /* of maker and readers, which are on the heap */
    VEC(uint32_t) masks; /* constants that attentions read so far (fuse_mask.c) */
    VEC(uint32_t) choices; /* nodes of fuse_same_choice() */
    char obstacle[240];  /* why the pattern that is being tried does not fit; "": nothing said yet */
};

enum { FUSE_MAX_IN = 8, FUSE_MAX_ATTRS = 12 };

struct fuse_row { /* a node with one output, or two */
    const struct op_def *def;
    const char *name;
    uint32_t stream; /* of random numbers: that of the random node it takes in */
    uint32_t n_in, n_attrs;
    uint32_t in[FUSE_MAX_IN];
    bool has_second; /* output 1 is `second`, which another node made until now: that goes */
    uint32_t second;
    struct op_attr attrs[FUSE_MAX_ATTRS]; /* what they point to lives as long as the plan */
};

/* Is the node of this row? domain NULL: ai.onnx. */
bool fuse_is(const struct plan_node *n, const char *domain, const char *op);
/* The node that makes a value; NULL: none, or GRAPH_NONE was given. */
struct plan_node *fuse_maker(const struct fuser *f, uint32_t value);
/* The value is output 0 of a node, read once, and no other output of the node is read: whoever
 * reads it may take the node in. */
bool fuse_is_ours(const struct fuser *f, uint32_t value);
const struct op_attr *fuse_attr(const struct plan_node *n, const char *name); /* NULL: absent */
/* The node of this op of ai.onnx that makes a value as its output 0; NULL: another, or none. */
const struct plan_node *fuse_made_by(const struct fuser *f, uint32_t value, const char *op);
/* A known float32 with one element. */
bool fuse_number(const struct fuser *f, uint32_t value, float *out);
/* `node` becomes a node of `row` with the same output 0, which must get the same type and shape, as must
 * a second one, which nobody may read before `node` does (fuse_is_first()); whatever nobody reads after
 * that goes. */
int fuse_into(struct fuser *f, uint32_t node, const struct fuse_row *row, struct err *err);

/* No value of the node has a reader any more: the node goes, and whatever only led to it. */
void fuse_drop(struct fuser *f, uint32_t node);

/* Does `node` come before all others that read the value? */
bool fuse_is_first(const struct fuser *f, uint32_t value, uint32_t node);

/* A new constant; the data of t lives as long as the plan. GRAPH_NONE: no memory. */
uint32_t fuse_add_constant(struct fuser *f, const char *name, const struct tensor *t);

/* Output 0 of a node, which only node `reader` reads, becomes a new value like t. false: no memory. */
bool fuse_new_output(struct fuser *f, uint32_t node, uint32_t reader, const struct tensor *t);

/* Notes why a pattern does not fit, if that is the first reason. Always false. */
bool fuse_blocked(struct fuser *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* perm [rank] of a Transpose. */
void fuse_perm(const struct plan_node *n, uint32_t rank, uint32_t *perm);

/* ---- fuse_thirds.c ---- */
/* A value is Transpose(view, perm), where view is a third of the columns of `whole`, those along its last axis, in
 * another shape, whose last axes they are. */
struct fuse_third {
    uint32_t whole;
    struct shape view;
    uint32_t perm[TENSOR_MAX_RANK];
};

/* Is the value third `which` of one? */
bool fuse_third(const struct fuser *f, uint32_t value, uint32_t which, struct fuse_third *out);

/* ---- the patterns ---- */
int fuse_same(struct fuser *f, uint32_t node, struct err *err);
int fuse_same_choice(struct fuser *f, uint32_t node, struct err *err);
int fuse_merged_transpose(struct fuser *f, uint32_t node, struct err *err);
int fuse_view_of_view(struct fuser *f, uint32_t node, struct err *err);
int fuse_unit_transpose(struct fuser *f, uint32_t node, struct err *err);
int fuse_merged_batch(struct fuser *f, uint32_t node, struct err *err);
int fuse_merged_product(struct fuser *f, uint32_t node, struct err *err);
int fuse_norm_relu(struct fuser *f, uint32_t node, struct err *err);
int fuse_norm_add(struct fuser *f, uint32_t node, struct err *err);
int fuse_product_transposes(struct fuser *f, uint32_t node, struct err *err);
int fuse_product_bias(struct fuser *f, uint32_t node, struct err *err);
int fuse_two_layers(struct fuser *f, uint32_t node, struct err *err);
int fuse_attention(struct fuser *f, uint32_t node, struct err *err);
int fuse_lowered_attention(struct fuser *f, uint32_t node, struct err *err);
int fuse_attention_turn(struct fuser *f, uint32_t node, struct err *err);
int fuse_rotary(struct fuser *f, uint32_t node, struct err *err);
int fuse_gate(struct fuser *f, uint32_t node, struct err *err);
int fuse_gated_product(struct fuser *f, uint32_t node, struct err *err);
int fuse_row_norm(struct fuser *f, uint32_t node, struct err *err);
int fuse_row_norm_add(struct fuser *f, uint32_t node, struct err *err);
int fuse_row_norm_bias(struct fuser *f, uint32_t node, struct err *err);

#endif
