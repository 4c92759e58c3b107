/* inspect_batch.c - chooses the number of samples of a plan and prints the source of the number. */
#include "daemon/inspect_batch.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/buf.h"
#include "graph/graph.h"

void inspect_batch_choose(struct inspect_batch *b, const struct graph *g)
{
    uint32_t n, i;
    const struct graph_io *io = graph_inputs(g, &n);

    if (b->from == INSPECT_BATCH_FLAG)
        return;
    *b = (struct inspect_batch){ .n = 1, .from = INSPECT_BATCH_DEFAULT };
    for (i = 0; i < n; i++) {
        int64_t first = io[i].has_shape && io[i].shape.rank > 0 ? io[i].shape.dim[0] : -1;

        if (first < 1 || first > INSPECT_BATCH_MAX)
            continue;
        *b = (struct inspect_batch){ (uint32_t)first, INSPECT_BATCH_FILE, io[i].name };
        return; /* plan_new() refuses inputs with different batches */
    }
}

void inspect_batch_print(const struct inspect_batch *b)
{
    printf("%-11s%" PRIu32 " sample%s", "batch", b->n, b->n == 1 ? "" : "s");
    switch (b->from) {
    case INSPECT_BATCH_DEFAULT: puts("; --batch N plans with another number"); return;
    case INSPECT_BATCH_FLAG: puts(", by --batch"); return;
    case INSPECT_BATCH_FILE: printf(", the batch that the file fixes at its input '%s'\n", b->why); return;
    case INSPECT_BATCH_LEAST: printf(", because 1 is refused: %s\n", b->why); return;
    }
}

void inspect_batch_json(const struct inspect_batch *b, struct buf *out)
{
    static const char *const names[] = { [INSPECT_BATCH_DEFAULT] = "default",
                                         [INSPECT_BATCH_FLAG] = "flag",
                                         [INSPECT_BATCH_FILE] = "file",
                                         [INSPECT_BATCH_LEAST] = "least" };

    buf_printf(out, ",\n  \"batch\": %" PRIu32 ",\n  \"batch_from\": \"%s\"", b->n, names[b->from]);
}
