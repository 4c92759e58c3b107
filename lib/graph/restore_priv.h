/* restore_priv.h - what restore.c (which parameter a node reads), restore_form.c (the message is
 * rewritten) and restore_rnn.c (recurrent layers) share. */
#ifndef GRAPH_RESTORE_PRIV_H
#define GRAPH_RESTORE_PRIV_H

#include "graph/evidence.h"
#include "graph/import_priv.h"

enum restore_form { /* how a tensor of the file derives from the parameter of the module */
    RESTORE_SAME,
    RESTORE_TRANSPOSED, /* two dimensions, exchanged */
    RESTORE_FLAT,       /* the parameter has one dimension; the tensor has more, of which all but one are 1 */
};

struct restore_use { /* a node reads an initializer that is, or derives from, a parameter */
    uint32_t node, input;
    uint32_t target; /* the parameter, EVIDENCE_NONE: not known */
    enum restore_form form;
    uint32_t next; /* use of the same tensor; EVIDENCE_NONE */
};

/* What the uses of one tensor read in place of it, noted for the tensor that was last treated. */
struct restore_value {
    uint32_t tensor; /* EVIDENCE_NONE: none yet */
    enum restore_form form;
    const char *name; /* NULL: not made yet */
};

struct restore_mentions { /* parameters among the arguments of an FX node */
    uint32_t n;           /* different ones, counted up to 2 */
    uint32_t first;
    bool has_lost; /* one of them is no initializer */
};

struct restore_node { /* a new node */
    Onnx__NodeProto *node;
    uint32_t at;  /* it goes in front of this node of the file */
    size_t order; /* among those of the same place */
};

struct restorer {
    struct graph *g;
    struct evidence *e;
    Onnx__GraphProto *p; /* the message, changed in place; all of its memory is malloc's */
    struct tensor_source *src;
    const struct graph_weights *weights; /* of the job; NULL: none */
    struct arena mem;
    VEC(struct restore_use) uses;
    uint32_t *first_use; /* [n_tensors] */
    bool *is_removed;    /* [n_tensors] initializers that a node computes now */
    uint32_t *made_from; /* [n_targets] tensor that the parameter was made from; EVIDENCE_NONE */
    struct restore_value *values; /* [n_targets] see there */
    /* The text of a node is read once for all of its inputs: each may have a size of megabytes. */
    struct restore_mentions mentions;
    uint32_t mentions_of;     /* the node that they are of; EVIDENCE_NONE */
    uint32_t *target_in_text; /* [n_targets] 1 + the last node whose text mentions it */
    uint32_t *tensor_in_text; /* [n_tensors] likewise */
    uint32_t unseen;          /* all parameters before this one are known: see graph_next_unseen() */
    uint32_t n_collisions;    /* of new names with others */
    uint32_t n_tensors;  /* initializers of the file */
    struct map names;    /* of all values; to 1 + index of the initializer, or 0 */
    VEC(struct restore_node) made;
    uint32_t at;         /* where the next new node goes */
    uint32_t first_body; /* first node that contains a graph, which may read any value */
    struct err *err;
};

/* ---- restore_form.c ---- */
int restore_no_memory(struct restorer *r);
/* Subtracts memory that the message does not contain from the budget of the file. */
int restore_charge(struct restorer *r, uint64_t bytes);
/* Can an initializer of the parameter's name be added? */
bool restore_can_add(const struct restorer *r, uint32_t target);
/* Reads initializer i; data that is not in the message comes from `mem`. */
int restore_read(struct restorer *r, uint32_t i, struct arena *mem, struct tensor *out);
/* A new initializer with the name of a parameter; `data` is copied. `from`: tensor, for messages. */
int restore_add_param(struct restorer *r, uint32_t target, const struct shape *shape,
                      enum tensor_dtype dtype, const void *data, uint32_t from);
/* A new initializer of int64 with a name made from `stem`; *name belongs to the message. */
int restore_add_ints(struct restorer *r, const char *stem, const int64_t *values, size_t n,
                     const char **name);
/* New nodes go in front of the first reader of this tensor. */
void restore_place(struct restorer *r, uint32_t tensor);
/* A new node. `inputs` and `outputs` are copied. */
Onnx__NodeProto *restore_add_node(struct restorer *r, const char *op, const char *const *inputs,
                                  size_t n_in, const char *const *outputs, size_t n_out);
int restore_add_attr(struct restorer *r, Onnx__NodeProto *n, const char *name, int64_t value);
int restore_add_perm(struct restorer *r, Onnx__NodeProto *n);
/* A name that no value has, "<stem>/<suffix>"; it lives in r->mem. */
const char *restore_name(struct restorer *r, const char *stem, const char *suffix);
int restore_set_input(struct restorer *r, Onnx__NodeProto *n, size_t input, const char *name);
/* Makes initializer `i` a function of parameters: for each of its uses the parameter becomes an
 * initializer, and a node computes what the use reads. All uses are known. */
int restore_tensor(struct restorer *r, uint32_t i);
/* Removes and adds what the functions above noted. */
int restore_commit(struct restorer *r);
int restore_refuse(struct restorer *r, uint32_t tensor, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- restore_rnn.c ---- */
/* Weights of LSTM, GRU and RNN, which the exporter concatenates from those of the module. */
int restore_rnn(struct restorer *r, uint32_t node, const struct fx *fx);

#endif
