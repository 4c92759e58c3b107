/* control.c - the rows of If, Loop and Scan, which have no kernels, and their bodies. A flat list
 * of calls cannot contain them, so the planner expands them (plan_control.c): conditions and
 * iteration counts must be known once shapes are known. */
#include "graph/graph_priv.h"

#include <string.h>

#include "base/check.h"
#include "base/err.h"

static const char *const if_attrs[] = { "then_branch", "else_branch", NULL };
static const char *const loop_attrs[] = { "body", NULL };
static const char *const scan_attrs[] = { "body",
                                          "num_scan_inputs",
                                          "scan_input_axes",
                                          "scan_input_directions",
                                          "scan_output_axes",
                                          "scan_output_directions",
                                          NULL };

static const struct op_def rows[] = {
    { .name = "If", .since = 1, .n_in = { 1, 1 }, .n_out = { 1, OP_MANY }, .attrs = if_attrs },
    { .name = "Loop",
      .since = 1,
      .n_in = { 0, OP_MANY },
      .n_out = { 1, OP_MANY },
      .attrs = loop_attrs },
    { .name = "Scan",
      .since = 9,
      .n_in = { 1, OP_MANY },
      .n_out = { 1, OP_MANY },
      .attrs = scan_attrs },
};

_Static_assert(COUNT_OF(rows) == GRAPH_CONTROLS, "all rows are listed");

const struct op_def *graph_control_at(size_t i)
{
    CHECK(i < GRAPH_CONTROLS);
    return &rows[i];
}

const struct op_def *graph_control_row(const char *name, uint32_t opset)
{
    size_t i;

    for (i = 0; i < COUNT_OF(rows); i++)
        if (strcmp(rows[i].name, name) == 0 && rows[i].since <= opset)
            return &rows[i];
    return NULL;
}

bool graph_is_control(const struct op_def *def)
{
    return def >= rows && def < rows + COUNT_OF(rows);
}

uint32_t graph_n_carried(const struct graph_node *n)
{
    const struct graph_body *body = &n->bodies[0];
    int64_t scanned = 0;
    uint32_t i;

    if (strcmp(n->def->name, "Loop") == 0)
        return body->n_in - 2;
    if (strcmp(n->def->name, "Scan") != 0)
        return 0;
    for (i = 0; i < n->n_attrs; i++)
        if (strcmp(n->attrs[i].name, "num_scan_inputs") == 0)
            scanned = n->attrs[i].i;
    return n->n_in - (uint32_t)scanned;
}

ProtobufCMessage *graph_unpack_part(struct graph *g, const ProtobufCMessageDescriptor *type,
                                    const ProtobufCBinaryData *bytes, const char *what,
                                    struct err *err)
{
    ProtobufCMessage *part;
    int rc = graph_scan(type, bytes->data, bytes->len, &g->file.unpack_budget, err);

    if (rc < 0) {
        (void)err_wrap(err, rc, "%s", what);
        return NULL;
    }
    part = protobuf_c_message_unpack(type, NULL, bytes->len, bytes->data);
    if (part == NULL) {
        (void)err_set(err, ERR_INPUT, "%s: the fields do not fit the schema of ONNX", what);
        return NULL;
    }
    if (!VEC_PUSH(g->file.parts, part)) {
        protobuf_c_message_free_unpacked(part, NULL);
        (void)err_set(err, ERR_NOMEM, "%s: out of memory", what);
        return NULL;
    }
    return part;
}
