/* dnn_priv.h - shared by dnn.c, which runs kernels, and dnn_make.c, which describes them. */
#ifndef OP_DNN_PRIV_H
#define OP_DNN_PRIV_H

#include "op/dnn.h"
#include "op/dnn_api.h"

enum { DNN_NO_ARG = -1 };

/* Everything needed to create a kernel. */
struct dnn_recipe {
    const char *what; /* name, for error messages */
    int n;
    int arg[DNN_ARGS];                  /* DNNL_ARG_... in the caller's order */
    struct dnn_layout own[DNN_ARGS];    /* layout of the caller; of a workspace: the library's */
    struct dnn_op op;
    uint32_t outputs;
    int reordered;                      /* index of the argument whose layout the library may
                                           choose; DNN_NO_ARG: none */
    bool few_channels;                  /* a convolution with few products per sum */
    bool add;                           /* accumulates into the output */
    bool packed;                        /* argument 1 has the library's layout */
    bool is_pack;                       /* converts own[0] to the layout that `op` chooses for w */
};

int dnn_new(const struct dnn_recipe *r, struct dnn **out, struct err *err);
/* One kernel applied to consecutive parts of its arguments. */
struct dnn_panels {
    struct dnn *first, *rest; /* owned; `rest` runs after n runs of `first`, and may be NULL */
    uint32_t n;
    size_t step[DNN_ARGS];    /* bytes from one part of an argument to the next */
    size_t bytes[DNN_ARGS];   /* bytes of the whole argument */
};
/* Takes ownership of both kernels, also on failure. Errors: ERR_NOMEM. */
int dnn_new_panels(const struct dnn_panels *p, struct dnn **out, struct err *err);

#endif
