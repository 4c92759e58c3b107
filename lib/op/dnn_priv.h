/* dnn_priv.h - between dnn.c, which runs kernels, and dnn_make.c, which describes them. */
#ifndef OP_DNN_PRIV_H
#define OP_DNN_PRIV_H

#include <oneapi/dnnl/dnnl.h>

#include "op/dnn.h"

enum { DNN_NO_ARG = -1 };

/* What it takes to make a kernel. */
struct dnn_recipe {
    const char *what; /* for messages */
    int n;
    int arg[DNN_ARGS];                  /* DNNL_ARG_... in the caller's order */
    dnnl_memory_desc_t md[DNN_ARGS];    /* as the caller lays them out; workspace: the library's */
    uint32_t outputs;
    int reordered;                      /* the argument whose layout the library may choose */
    bool few_channels;                  /* a convolution with little to sum over */
    bool add;                           /* onto what is in the output */
    bool packed;                        /* argument 1 comes in the library's layout */
};

/* Makes *out. `op`: descriptor of the kernel; NULL: it is a reorder of md[0] to md[1]. `fwd`: of
 * the forward kernel where `op` is a backward one, else NULL. `status`: of making the descriptors;
 * what it says about an operand without elements does not matter. */
int dnn_new(const struct dnn_recipe *r, dnnl_status_t status, const_dnnl_op_desc_t op,
            const_dnnl_op_desc_t fwd, struct dnn **out, struct err *err);
/* One kernel run over parts of its arguments that lie side by side. */
struct dnn_panels {
    struct dnn *first, *rest; /* taken over; rest, behind the n firsts, may be NULL */
    uint32_t n;
    size_t step[DNN_ARGS];    /* bytes from one part of an argument to the next */
    size_t bytes[DNN_ARGS];   /* of the whole arguments */
};
/* On failure both kernels are gone. Errors: ERR_NOMEM. */
int dnn_new_panels(const struct dnn_panels *p, struct dnn **out, struct err *err);
/* The layout that the kernel of `op` chooses for an argument left open. */
dnnl_status_t dnn_chosen(const struct dnn_recipe *r, const_dnnl_op_desc_t op, int arg,
                         dnnl_memory_desc_t *md);

#endif
