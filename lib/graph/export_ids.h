/* export_ids.h - dynamic tables in an exported model: ids become row numbers.
 *
 *     indices [..] int64 -> LabelEncoder (ai.onnx.ml) -> row numbers -> Gather(table)
 *
 * The table has its trained rows in the order of their ids, and one more row for all other ids. */
#ifndef GRAPH_EXPORT_IDS_H
#define GRAPH_EXPORT_IDS_H

#include <stdint.h>

#include "proto/onnx.pb-c.h"

struct arena;
struct err;
struct graph;

struct export_ids { /* the ids of a table */
    const char *table;
    const int64_t *ids; /* [n] ascending; borrowed until the model is written */
    uint64_t n;
};

/* Refuses ids that do not fit into a file of protobuf. Errors: ERR_UNSUPPORTED, with the remedy. */
int export_ids_check(const struct export_ids *t, struct err *err);
/* Inserts the nodes in front of the Gather nodes of the file that read the table. p: the graph that is written, whose
 * list of nodes the caller owns; m: its model. New parts are in `mem`. Errors: ERR_UNSUPPORTED (the model imports an older
 * ai.onnx.ml), ERR_NOMEM. */
int export_ids_encode(const struct graph *g, const struct export_ids *t, struct arena *mem,
                      Onnx__ModelProto *m, Onnx__GraphProto *p, struct err *err);

#endif
