/* sequence.c - the rows of the ops on sequences of tensors, which have no kernels. A sequence
 * exists only while a plan is made, as a list of values (plan_sequence.c). */
#include "graph/graph_priv.h"

#include <string.h>

#include "base/check.h"

static const char *const split_attrs[] = { "axis", "keepdims", NULL };
static const char *const empty_attrs[] = { "dtype", NULL };
static const char *const concat_attrs[] = { "axis", "new_axis", NULL };

/* diff: inputs that receive gradients, through the tensor ops that the planner inserts. */
static const struct op_def rows[] = {
    { .name = "SequenceEmpty", .since = 11, .n_in = { 0, 0 }, .n_out = { 1, 1 },
      .attrs = empty_attrs },
    { .name = "SequenceConstruct", .since = 11, .n_in = { 1, OP_MANY }, .n_out = { 1, 1 },
      .diff = 0xFFFF },
    { .name = "SequenceInsert", .since = 11, .n_in = { 2, 3 }, .n_out = { 1, 1 },
      .diff = OP_IN(0) | OP_IN(1) },
    { .name = "SequenceErase", .since = 11, .n_in = { 1, 2 }, .n_out = { 1, 1 },
      .diff = OP_IN(0) },
    { .name = "SequenceAt", .since = 11, .n_in = { 2, 2 }, .n_out = { 1, 1 }, .diff = OP_IN(0) },
    { .name = "SequenceLength", .since = 11, .n_in = { 1, 1 }, .n_out = { 1, 1 } },
    { .name = "SplitToSequence", .since = 11, .n_in = { 1, 2 }, .n_out = { 1, 1 },
      .attrs = split_attrs, .diff = OP_IN(0) },
    { .name = "ConcatFromSequence", .since = 11, .n_in = { 1, 1 }, .n_out = { 1, 1 },
      .attrs = concat_attrs, .diff = OP_IN(0) },
};

const struct op_def *graph_sequence_row(const char *name, uint32_t opset)
{
    size_t i;

    for (i = 0; i < COUNT_OF(rows); i++)
        if (strcmp(rows[i].name, name) == 0 && rows[i].since <= opset)
            return &rows[i];
    return NULL;
}

bool graph_is_sequence(const struct op_def *def)
{
    return def >= rows && def < rows + COUNT_OF(rows);
}
