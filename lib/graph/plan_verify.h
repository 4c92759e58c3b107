/* plan_verify.h - the memory of a plan while plan_verify() walks through its calls.
 *
 * A content is what a range of memory holds: a value, a gradient, the memory that a node saves for
 * backward, or a temporary gradient. Values that are views of each other are one content. A write
 * destroys every other content that it overlaps; a read requires that its content was written and
 * is intact. Alignment, bounds, and operands of one call that overlap are checked for each call.
 *
 * One thread; no function keeps a pointer after verify_memory_close(). */
#ifndef GRAPH_PLAN_VERIFY_H
#define GRAPH_PLAN_VERIFY_H

#include "graph/plan_priv.h"

enum verify_state {
    VERIFY_UNWRITTEN,
    VERIFY_INTACT,
    VERIFY_DESTROYED, /* by the content `destroyer`, in the call that `place` describes */
};

struct verify_content {
    const char *kind, *name; /* "gradient", "x" */
    enum verify_state state;
    uint32_t base; /* enum plan_base; PLAN_BASES: not bound, `offset` is the address */
    size_t offset, bytes;
    uint32_t destroyer;    /* content; GRAPH_NONE: scratch memory */
    uint32_t destroyed_by; /* index of the call, as in plan_call_info() */
    uint32_t written_by;   /* the last call that wrote the content; GRAPH_NONE: no call */
    uint32_t target;       /* temporary gradients: the gradient to which it is added; else GRAPH_NONE */
    const struct tensor *tensor; /* temporary gradients: the tensor that the calls share */
    bool is_read;          /* gradients: a backward kernel has read the sum */
};

struct verify_operand { /* of a call */
    const char *role;   /* "input" */
    uint32_t i;
    uint32_t content;   /* GRAPH_NONE: scratch memory */
    const void *at;     /* the field with the address: &tensor.data, &op_call.save, &op_call.scratch */
    void *data;         /* its value, for memory that is not bound */
    size_t bytes;
    bool reads, writes;
    uint32_t in_place;  /* the operand whose memory this one may overwrite; GRAPH_NONE: none */
    /* set by verify_access(): */
    uint32_t base;
    size_t offset;
};

struct verify_memory {
    const struct plan *p;
    struct verify_address *addresses; /* [n_addresses] the binds of the plan, ordered by field */
    size_t n_addresses;
    VEC(struct verify_content) contents;
    VEC(uint32_t) intact; /* the contents that a write can destroy */
    uint32_t call;        /* index of the current call; GRAPH_NONE: the caller writes the inputs */
    const char *place;    /* the current call, for messages */
};

/* Errors: ERR_NOMEM, ERR_CORRUPT (an address is bound twice). verify_memory_close() is required after
 * an error too. */
int verify_memory_open(struct verify_memory *m, const struct plan *p, struct err *err);
void verify_memory_close(struct verify_memory *m);
/* Appends a content that is not written. Returns its index; GRAPH_NONE: out of memory. */
uint32_t verify_add(struct verify_memory *m, const char *kind, const char *name);
/* Finds the memory to which binding sets the field `at`. Returns false if it is not bound. */
bool verify_find(const struct verify_memory *m, const void *at, uint32_t *base, size_t *offset);
/* Performs the reads and writes of one call. Errors: ERR_CORRUPT with the place, the operand, and
 * what was expected and found; ERR_NOMEM. */
int verify_access(struct verify_memory *m, struct verify_operand *operands, uint32_t n,
                  struct err *err);
/* Returns ERR_CORRUPT unless the operand's content is intact at its memory. */
int verify_read(struct verify_memory *m, struct verify_operand *o, struct err *err);
int verify_no_memory(struct err *err);

/* ---- plan_verify_call.c: the operands of calls ---- */

struct verifier {
    const struct plan *p;
    struct verify_memory m;
    struct arena mem;   /* owns the arrays */
    uint32_t *value_of; /* [values.n] content of a value */
    uint32_t *grad_of;  /* [values.n] content of its gradient */
    uint32_t *saved_by; /* [nodes.n] content that a node saves for backward */
    VEC(struct verify_operand) operands; /* of the current call */
    char place[256]; /* m.place */
    struct err *err;
};

/* Adds an operand with the type and size of a value: the value itself, or its gradient. */
int verify_add_tensor(struct verifier *v, const char *role, uint32_t i, uint32_t value,
                      uint32_t content, const struct tensor *t, bool reads, bool writes);
/* Performs the reads and writes of the operands that were added. */
int verify_end_call(struct verifier *v);
/* Sets an error about the gradient of the value called `value`. Returns ERR_CORRUPT. */
int verify_refuse_gradient(const struct verifier *v, const char *value, const char *expected,
                           const char *found);
int verify_forward(struct verifier *v, size_t index);  /* call `index` of plan.calls.forward */
int verify_backward(struct verifier *v, size_t index); /* call `index` of plan.calls.backward */

#endif
