/* restore_priv.h - declarations shared by restore.c (which parameter a node reads), restore_form.c
 * (rewriting the message) and restore_rnn.c (recurrent layers). */
#ifndef GRAPH_RESTORE_PRIV_H
#define GRAPH_RESTORE_PRIV_H

#include "graph/metadata.h"
#include "graph/import_priv.h"

enum restore_form { /* how a tensor of the file derives from the parameter of the module */
    RESTORE_SAME,
    RESTORE_TRANSPOSED, /* two dimensions, exchanged */
    RESTORE_FLAT, /* the parameter has one dimension; the tensor has more, all but one of size 1 */
};

struct restore_use { /* a use: a node reads an initializer that is, or derives from, a parameter */
    uint32_t node, input;
    uint32_t target; /* the parameter; METADATA_NONE: unknown */
    enum restore_form form;
    uint32_t next; /* next use of the same tensor; METADATA_NONE: end */
};

/* The value that the uses of a tensor read in its place; recorded for the tensor that was last
 * processed. */
struct restore_value {
    uint32_t tensor; /* METADATA_NONE: no tensor yet */
    enum restore_form form;
    const char *name; /* NULL: not created yet */
};

struct restore_mentions { /* parameters among the arguments of an FX node */
    uint32_t n;           /* number of different ones, counted up to 2 */
    uint32_t first;
    bool has_lost; /* one of them is not an initializer */
};

struct restore_node { /* a new node */
    Onnx__NodeProto *node;
    uint32_t at;  /* inserted before this node of the file */
    size_t order; /* order among nodes of the same position */
};

struct restorer {
    struct graph *g;
    struct graph_metadata *e;
    Onnx__GraphProto *p; /* the message, changed in place; all of its memory is allocated with
                            malloc */
    struct tensor_source *src;
    const struct graph_weights *weights; /* weights of the job; NULL: none */
    struct arena mem;
    VEC(struct restore_use) uses;
    uint32_t *first_use; /* [n_tensors] first use; METADATA_NONE: none */
    bool *is_removed;    /* [n_tensors] initializers that a new node computes */
    uint32_t *made_from; /* [n_targets] tensor from which the parameter was created; METADATA_NONE:
                            none */
    struct restore_value *values; /* [n_targets] see struct restore_value */
    /* The text of a node is read once for all of its inputs, because it may have a size of
     * megabytes. */
    struct restore_mentions mentions;
    uint32_t mentions_of;     /* the node of `mentions`; METADATA_NONE: none */
    uint32_t *target_in_text; /* [n_targets] 1 + the last node whose text mentions it; 0: none */
    uint32_t *tensor_in_text; /* [n_tensors] the same for tensors */
    uint32_t unseen; /* all parameters before this index are known: see graph_next_unseen() */
    uint32_t n_collisions;    /* number of name collisions */
    uint32_t n_tensors;  /* initializers of the file */
    struct map names;    /* names of all values, to 1 + index of the initializer, or 0 */
    VEC(struct restore_node) made;
    uint32_t at;         /* position of the next new node */
    uint32_t first_body; /* first node that contains a graph, which may read any value */
    struct err *err;
};

/* ---- restore_form.c ---- */
int restore_no_memory(struct restorer *r);
/* Subtracts memory that the message does not contain from the budget of the file. Errors:
 * ERR_INPUT. */
int restore_charge(struct restorer *r, uint64_t bytes);
/* Returns whether an initializer of the parameter's name can be added. */
bool restore_can_add(const struct restorer *r, uint32_t target);
/* Reads initializer i; `mem` owns data that is not in the message. */
int restore_read(struct restorer *r, uint32_t i, struct arena *mem, struct tensor *out);
/* Adds an initializer with the name of a parameter; `data` is copied. `from` is the tensor it was
 * created from, for messages. */
int restore_add_param(struct restorer *r, uint32_t target, const struct shape *shape,
                      enum tensor_dtype dtype, const void *data, uint32_t from);
/* Adds an initializer of int64 with a name derived from `stem`; the message owns *name. */
int restore_add_ints(struct restorer *r, const char *stem, const int64_t *values, size_t n,
                     const char **name);
/* Sets the position of new nodes to the first reader of this tensor. */
void restore_place(struct restorer *r, uint32_t tensor);
/* Adds a node. `inputs` and `outputs` are copied. NULL: error. */
Onnx__NodeProto *restore_add_node(struct restorer *r, const char *op, const char *const *inputs,
                                  size_t n_in, const char *const *outputs, size_t n_out);
int restore_add_attr(struct restorer *r, Onnx__NodeProto *n, const char *name, int64_t value);
int restore_add_perm(struct restorer *r, Onnx__NodeProto *n);
/* An unused name, "<stem>/<suffix>", owned by r->mem. NULL: out of memory. */
const char *restore_name(struct restorer *r, const char *stem, const char *suffix);
int restore_set_input(struct restorer *r, Onnx__NodeProto *n, size_t input, const char *name);
/* Converts initializer `i` to a function of parameters: for each of its uses the parameter becomes
 * an initializer, and a node computes the value that the use reads. All uses must be resolved. */
int restore_tensor(struct restorer *r, uint32_t i);
/* Applies the removals and additions recorded by the functions above. */
int restore_commit(struct restorer *r);
int restore_refuse(struct restorer *r, uint32_t tensor, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- restore_rnn.c ---- */
/* Restores the parameters of LSTM, GRU and RNN, which the exporter concatenates. */
int restore_rnn(struct restorer *r, uint32_t node, const struct fx *fx);

#endif
