/* inspect_tensors.c - the part of `trainerctl inspect` about initializers. */
#include "daemon/inspect_tensors.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/buf.h"
#include "graph/graph.h"

void inspect_tensors_print(const struct graph *g)
{
    uint32_t n, i, k;
    const struct graph_classified *t = graph_classified(g, &n);

    for (i = 0; i < n; i++) {
        char shape[192];

        printf("%-11s%-40s %-20s %s: %s", i == 0 ? "tensors" : "", t[i].name,
               shape_print(&t[i].shape, shape, sizeof(shape)),
               graph_class_name(t[i].classification), t[i].reason);
        if (t[i].name_in_file != NULL)
            printf("; in the file: %s", t[i].name_in_file);
        for (k = 0; k < t[i].n_tied; k++)
            printf("%s%s", k == 0 ? "; tied to: " : ", ", t[i].tied[k]);
        printf("\n");
    }
}

static void add_shape(struct buf *out, const struct shape *s)
{
    uint32_t k;

    buf_str(out, "[");
    for (k = 0; k < s->rank; k++)
        buf_printf(out, "%s%" PRId64, k > 0 ? ", " : "", s->dim[k]);
    buf_str(out, "]");
}

void inspect_tensors_json(const struct graph *g, struct buf *out)
{
    uint32_t n, i, k;
    const struct graph_classified *t = graph_classified(g, &n);

    buf_str(out, ",\n  \"tensors\": [");
    for (i = 0; i < n; i++) {
        buf_str(out, i > 0 ? ",\n    {\"name\": " : "\n    {\"name\": ");
        buf_json(out, t[i].name);
        buf_printf(out, ", \"dtype\": \"%s\", \"shape\": ", tensor_dtype_name(t[i].dtype));
        add_shape(out, &t[i].shape);
        buf_printf(out,
                   ", \"verdict\": \"%s\", \"reason\": ", graph_class_name(t[i].classification));
        buf_json(out, t[i].reason);
        if (t[i].name_in_file != NULL) {
            buf_str(out, ", \"name_in_file\": ");
            buf_json(out, t[i].name_in_file);
        }
        for (k = 0; k < t[i].n_tied; k++) {
            buf_str(out, k == 0 ? ", \"tied\": [" : ", ");
            buf_json(out, t[i].tied[k]);
        }
        buf_str(out, t[i].n_tied > 0 ? "]}" : "}");
    }
    buf_str(out, "]");
}
