/* graph.h - what a job says about a model file. The functions: graph/graph.h. */
#ifndef OPTS_GRAPH_H
#define OPTS_GRAPH_H

#include <stdint.h>

enum graph_norm { /* how a BatchNormalization in inference form is treated */
    GRAPH_NORM_ASK,    /* refuse the model if such a node would train: the job has to decide */
    GRAPH_NORM_TRAIN,  /* the node trains: it normalizes with the statistics of the batch, and
                          running averages are updated */
    GRAPH_NORM_FROZEN, /* every node of the file normalizes with its running averages, which do not
                          change */
};

/* Names of tensors that differ between the graph and a file of weights; see graph_weights. */
struct graph_rename {
    const char *graph, *file; /* each may have one '*' */
};

/* A row of embedding tables that receives no gradient from any Gather, as in
 * torch.nn.Embedding(padding_idx). `match` is an fnmatch pattern of initializers. */
struct graph_padding {
    const char *match;
    int64_t row;
};

/* An embedding table that the job makes larger than the model file, where it has one row: its initial rows
 * are functions of their number (tensor/fill.h). */
enum table_fill_kind { TABLE_FROM_FILE /* none of the others */, TABLE_ZEROS, TABLE_UNIFORM, TABLE_NORMAL };
enum table_size {
    TABLE_SIZED,   /* a number of rows */
    TABLE_DYNAMIC, /* a row for every 64-bit id that a step trains; on parameter servers (ps/store.h) */
};
struct graph_table {
    const char *name; /* of the initializer */
    enum table_size size;
    uint64_t rows; /* of TABLE_SIZED; else 0 */
    /* TABLE_DYNAMIC: struct ps_rules */
    uint32_t admit_after;
    uint64_t expire_steps, max_rows;
    enum table_fill_kind fill;
    double range;  /* TABLE_UNIFORM: [-range, range) */
    double stddev; /* TABLE_NORMAL, with mean 0 */
};

/* With every precision, parameters, their gradients, statistics, losses and all values that callers
 * read are float32, and so are accumulators. */
enum plan_precision {
    PLAN_FLOAT32,
    PLAN_TF32,     /* GPUs: products of float32 may use operands of 10 bits of fraction and 8 bits
                      of exponent */
    PLAN_BFLOAT16, /* products multiply bfloat16, and activations between them are bfloat16 */
    PLAN_FLOAT16,  /* GPUs: the same with float16. Its range ends at 65504, and values below 6e-8
                      become 0: gradients keep their precision if run->loss_scale is large enough */
};

#endif
