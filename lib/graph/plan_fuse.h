/* plan_fuse.h - functions for the patterns of plan_fuse.c. A pattern is a function and a line in
 * the table there:
 *
 *   int fuse_x(f, node, err)   tests whether a chain that ends at `node` matches, and if so calls
 *                              fuse_into(). Returns 0 in both cases; errors: ERR_NOMEM */
#ifndef GRAPH_PLAN_FUSE_H
#define GRAPH_PLAN_FUSE_H

#include "graph/plan_priv.h"

struct fuser {
    struct plan *p;
    uint32_t *producer;   /* [cap_values] node that computes the value; GRAPH_NONE */
    uint32_t *readers; /* [cap_values] number of readers: inputs of nodes, and uses after the last
                          call */
    bool *removed;        /* [n nodes] removed */
    size_t cap_values; /* capacity of producer and readers, which are on the heap */
    VEC(uint32_t) masks; /* known masks of the attentions so far (fuse_mask.c) */
    VEC(uint32_t) choices; /* nodes recorded by fuse_same_choice() */
    char obstacle[240];  /* why the current pattern does not match; "": no reason yet */
};

enum { FUSE_MAX_IN = 8, FUSE_MAX_ATTRS = 12 };

struct fuse_row { /* the fused node: one output, or two */
    const struct op_def *def;
    const char *name;
    uint32_t stream; /* RNG stream: that of the fused random node */
    uint32_t n_in, n_attrs;
    uint32_t in[FUSE_MAX_IN];
    bool has_second; /* output 1 is `second`, computed so far by another node, which is removed */
    uint32_t second;
    struct op_attr attrs[FUSE_MAX_ATTRS]; /* memory they point to must live as long as the plan */
};

/* ---- fuse_kit.c ---- */
/* Returns whether the node is of this row. domain NULL: ai.onnx. */
bool fuse_is(const struct plan_node *n, const char *domain, const char *op);
/* The node that computes a value; NULL: none, or value is GRAPH_NONE. */
struct plan_node *fuse_producer(const struct fuser *f, uint32_t value);
/* Returns whether the value is output 0 of a node, has one reader, and the node has no other output
 * with a reader: the reader may then absorb the node. */
bool fuse_is_exclusive(const struct fuser *f, uint32_t value);
const struct op_attr *fuse_attr(const struct plan_node *n, const char *name); /* NULL: absent */
/* The node of this op of ai.onnx that computes a value as its output 0; NULL: another op, or
 * none. */
const struct plan_node *fuse_made_by(const struct fuser *f, uint32_t value, const char *op);
/* Returns whether the value is a known float32 with one element; *out receives it. */
bool fuse_number(const struct fuser *f, uint32_t value, float *out);
/* Replaces `node` by a node of `row` with the same output 0. The outputs must keep their types and
 * shapes. A second output must not have a reader before `node` (fuse_is_first()). Removes nodes
 * that have no reader afterwards. */
int fuse_into(struct fuser *f, uint32_t node, const struct fuse_row *row, struct err *err);

/* Removes the node if no value of it has a reader, and then nodes that only it read. */
void fuse_remove(struct fuser *f, uint32_t node);

/* Returns whether `node` precedes all other readers of the value. */
bool fuse_is_first(const struct fuser *f, uint32_t value, uint32_t node);

/* Adds a constant; the data of t must live as long as the plan. GRAPH_NONE: out of memory. */
uint32_t fuse_add_constant(struct fuser *f, const char *name, const struct tensor *t);

/* Ensures that producer and readers have room for n values. false: out of memory. */
bool fuse_reserve(struct fuser *f, size_t n);

/* Replaces output 0 of a node, whose only reader is `reader`, by a new value like t. Returns false
 * if memory runs out. */
bool fuse_new_output(struct fuser *f, uint32_t node, uint32_t reader, const struct tensor *t);

/* Records why a pattern does not match, unless a reason is already recorded. Always returns
 * false. */
bool fuse_blocked(struct fuser *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Writes the permutation of a Transpose to perm [rank]. */
void fuse_perm(const struct plan_node *n, uint32_t rank, uint32_t *perm);

/* ---- fuse_qkv.c ---- */
/* A value that is Transpose(view, perm), where view is a third of the last axis of `whole`,
 * reshaped. perm has the rank of view. */
struct fuse_qkv {
    uint32_t whole;
    struct shape view;
    uint32_t perm[TENSOR_MAX_RANK];
};

/* Returns whether the value is third number `which` of another value. */
bool fuse_qkv(const struct fuser *f, uint32_t value, uint32_t which, struct fuse_qkv *out);

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
int fuse_attention_transpose(struct fuser *f, uint32_t node, struct err *err);
int fuse_rotary(struct fuser *f, uint32_t node, struct err *err);
int fuse_gate(struct fuser *f, uint32_t node, struct err *err);
int fuse_gated_product(struct fuser *f, uint32_t node, struct err *err);
int fuse_row_norm(struct fuser *f, uint32_t node, struct err *err);
int fuse_row_norm_add(struct fuser *f, uint32_t node, struct err *err);
int fuse_row_norm_bias(struct fuser *f, uint32_t node, struct err *err);

#endif
