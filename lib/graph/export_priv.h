/* export_priv.h - the parts of the export of a trained model (export.c).
 *
 *     export_nodes.c   the nodes for inference, without constants that no node reads
 *     export_data.c    the data of initializers, in the model or in a file of external data
 *     export_rows.c    the rows of remote tables
 *     export_out.c     the files, which are replaced when they are complete
 *
 * Threads: the one that exports. */
#ifndef GRAPH_EXPORT_PRIV_H
#define GRAPH_EXPORT_PRIV_H

#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"
#include "graph/graph_priv.h"
#include "proto/onnx.pb-c.h"

struct export_ids;

enum { EXPORT_EXTERNAL_BYTES = 1024 /* smaller tensors remain in the model */ };

struct exporter {
    const struct graph *g;
    const float *arena;
    const struct graph_row_reader *rows;
    /* [n_remotes] tensors whose data comes from `rows`; raw_data.data is NULL until it is read */
    Onnx__TensorProto **remotes;
    struct export_ids *ids; /* [n_remotes] of dynamic tables */
    struct arena mem;
    Onnx__ModelProto model; /* shallow copies of the graph's messages */
    Onnx__GraphProto graph;
    uint64_t weight_bytes;
};

static inline int export_no_memory(struct err *err)
{
    return err_set(err, ERR_NOMEM, "out of memory");
}

/* ---- export_out.c: atomic replacement of a file ---- */
struct export_out {
    ProtobufCBuffer base; /* first member: pack passes its address to export_append() */
    int fd;
    char *temporary; /* owned */
    const char *path;
    uint8_t *buffer; /* owned */
    size_t used;
    uint64_t written; /* bytes, including those in the buffer */
    int rc;           /* the first error; later output is discarded */
    struct err *err;
};

/* Creates the file under a temporary name. path, err: borrowed until it is closed. Errors: ERR_IO, ERR_NOMEM. */
int export_out_open(struct export_out *o, const char *path, struct err *err);
/* base: of a struct export_out, whose rc has the result. */
void export_append(ProtobufCBuffer *base, size_t n, const uint8_t *bytes);
/* Makes the bytes durable under the temporary name. Returns o->rc. */
int export_out_sync(struct export_out *o);
/* Moves the file to its path. Errors: ERR_IO, ERR_NOMEM. */
int export_out_publish(struct export_out *o);
/* Closes the file in any state, also with fd -1; a file that was not published is removed. */
void export_out_close(struct export_out *o);

/* ---- export_rows.c: remote tables. Errors: those of rows->read(), ERR_NOMEM ---- */
/* A dynamic table has a row of zeros after those of its ids. */
uint64_t export_rows_of(const struct exporter *e, uint32_t remote);
/* Reads all rows of remote table i in the type in the file. Each part is appended to *to, or with to NULL stored at `at`. */
int export_read_rows(struct exporter *e, uint32_t i, struct export_out *to, uint8_t *at,
                     struct err *err);
/* Returns the remote table whose data the tensor lacks so far; GRAPH_NONE: another tensor. */
uint32_t export_remote_of(const struct exporter *e, const Onnx__TensorProto *t);
/* Reads the remote tables whose data is in the model itself: those below `least` bytes. */
int export_read_inline(struct exporter *e, size_t least, struct err *err);

/* ---- export_data.c ---- */
/* Writes the current values of weights to e->graph, and includes external data, because the model may be moved. Sets
 * e->weight_bytes. Errors: ERR_NOMEM. */
int export_copy_initializers(struct exporter *e, struct err *err);
/* Writes the data of all tensors of at least EXPORT_EXTERNAL_BYTES to a file, which the caller publishes and closes. Errors: those
 * of export_out_open() and export_read_rows(). */
int export_write_external(struct exporter *e, const char *data_path, struct export_out *data,
                          struct err *err);

/* ---- export_nodes.c. Errors: ERR_NOMEM ---- */
/* Writes the nodes to e->graph, in the form for inference. */
int export_copy_nodes(struct exporter *e, struct err *err);
/* Removes the inputs that repair.c removed. After export_copy_nodes(). */
int export_remove_inputs(struct exporter *e, struct err *err);
/* Removes unread training_mode constants of Dropout nodes, and unread constants that import recorded: runtimes warn about an
 * initializer that no node reads. */
void export_remove_unread(struct exporter *e);

#endif
