/* weights.h - initial weights from a file that is not the model, and the module's tensors to a file
 * for other programs. Both are safetensors files (ckpt/weights.h, ckpt/export.h), whose names are
 * those of the graph. Threads: one at a time. */
#ifndef TRAIN_WEIGHTS_H
#define TRAIN_WEIGHTS_H

#include "ckpt/weights.h"
#include "graph/graph.h"

struct err;
struct events;
struct train_opts;

struct weights_file {
    struct ckpt_weights *file;              /* owned; NULL: not open */
    struct graph_weights of;                /* the same for the import */
    char digest[CKPT_WEIGHTS_DIGEST_BYTES]; /* "": not read yet, or the job names no file */
};

/* Opens the file of weights, if the job names one, and sets opts->weights. Phase "weights". Errors:
 * those of ckpt_weights_open(), ERR_IO. */
int weights_open(struct weights_file *w, const struct train_opts *o, const struct events *events,
                 struct graph_opts *opts, struct err *err);
/* Ends the mapping: the initial values of the graph have been copied or released. */
void weights_close(struct weights_file *w);
/* Writes the tensors of the module with the values of `arena`, and of `rows` for remote tables, which are read in
 * parts; NULL: there are none. Errors: those of ckpt_export() and of `rows`. */
int weights_export(const struct graph *g, const float *arena, const struct graph_row_reader *rows,
                   enum tensor_dtype floats, const char *path, struct err *err);

#endif
