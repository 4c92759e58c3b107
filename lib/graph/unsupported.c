/* unsupported.c - the error about ops without a row: which ops, the first node of each, and the
 * remedy.
 *
 * The text begins with the missing ops. A list of all supported ops would hide them; `trainerctl
 * inspect --ops` prints that list. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"
#include "base/text.h"
#include "graph/graph_priv.h"
#include "graph/import_priv.h"

enum { LIST_MAX = 12 /* missing op types that a message lists */ };

/* Supported in all opsets, but not as rows: import replaces them. */
static const char *const others[] = { "Constant" };

/* The remedy for an op whose name occurs in no row. The first matching prefix applies. */
static const struct {
    const char *prefix, *remedy;
} remedies[] = {
    { "QLinear", "export the float model, before it is quantized" },
    { "Quantize", "export the float model, before it is quantized" },
    { "Dequantize", "export the float model, before it is quantized" },
    { "DynamicQuantize", "export the float model, before it is quantized" },
    { "ConvInteger", "export the float model, before it is quantized" },
    { "MatMulInteger", "export the float model, before it is quantized" },
    { "String", "compute strings before the network, in the data" },
    { "Regex", "compute strings before the network, in the data" },
    { "TfIdf", "compute strings before the network, in the data" },
    { "Sequence", "use tensors in place of sequences" },
    { "SplitToSequence", "use tensors in place of sequences" },
    { "ConcatFromSequence", "use tensors in place of sequences" },
    { "Optional", "use tensors in place of optionals" },
    { "Random", "feed the random numbers as an input of the graph" },
    { "ImageDecoder", "decode images in the data (feature key \"encoded\")" },
};

/* Enumerates the rows: those with kernels, those with bodies, and those that the planner lowers;
 * some are of another domain. NULL: no more rows. */
static const struct op_def *row_at(size_t i)
{
    size_t n;
    const struct op_def *const *rows = op_all(&n);

    if (i < n)
        return rows[i];
    return i < n + GRAPH_CONTROLS ? graph_control_at(i - n)
                                  : graph_lowered_at(i - n - GRAPH_CONTROLS);
}

static size_t count_rows(void)
{
    size_t n = 0;

    while (row_at(n) != NULL)
        n++;
    return n;
}

static bool is_known(const char *name)
{
    size_t i;

    for (i = 0; i < COUNT_OF(others); i++)
        if (strcmp(others[i], name) == 0)
            return true;
    for (i = 0; row_at(i) != NULL; i++)
        if (import_is_onnx(row_at(i)->domain) && strcmp(row_at(i)->name, name) == 0)
            return true;
    return false;
}

/* Appends the opsets for which a name has rows: "7 to 12, 13 and later". */
static void add_opsets(struct buf *out, const char *name)
{
    const struct op_def *row, *last = NULL;
    const char *between = "";

    for (size_t i = 0; (row = row_at(i)) != NULL; i++) {
        if (!import_is_onnx(row->domain) || strcmp(row->name, name) != 0 ||
            /* a row that the planner lowers others to */
            (last != NULL && last->since == row->since))
            continue;
        last = row;
        buf_printf(out, "%s%" PRIu32, between, row->since);
        if (row->until == 0)
            buf_str(out, " and later");
        else if (row->until != row->since)
            buf_printf(out, " to %" PRIu32, row->until);
        between = ", ";
    }
}

/* The supported op with the most similar name; NULL: none is similar, or out of memory. */
static const char *nearest(const char *name)
{
    size_t n = count_rows(), i, n_names = 0;
    const char **names = calloc(n + 1, sizeof(*names)), *best = NULL;

    for (i = 0; i < n && names != NULL; i++)
        if (import_is_onnx(row_at(i)->domain))
            names[n_names++] = row_at(i)->name;
    if (names != NULL)
        best = text_nearest(name, names, n_names);
    free(names);
    return best;
}

static void add_remedy(struct buf *out, const struct graph_op *op)
{
    const char *near;
    size_t i;

    if (op->domain[0] != '\0') {
        buf_printf(out, ": an op of another domain; export with ops of ai.onnx alone%s",
                   strncmp(op->domain, "com.microsoft", 13) == 0
                       ? ", before an optimizer for inference has rewritten the graph"
                       : "");
        return;
    }
    if (is_known(op->name)) {
        buf_str(out, ": supported in opset ");
        add_opsets(out, op->name);
        return;
    }
    for (i = 0; i < COUNT_OF(remedies); i++)
        if (text_starts(op->name, remedies[i].prefix)) {
            buf_printf(out, ": %s", remedies[i].remedy);
            return;
        }
    near = nearest(op->name);
    if (near != NULL)
        buf_printf(out, ": the nearest that is supported is %s", near);
}

int import_check_ops(const struct importer *im, struct err *err)
{
    const struct graph *g = im->g;
    struct buf text = { 0 };
    size_t listed = 0, more = 0, i;
    int rc;

    for (i = 0; i < g->report.n_ops; i++) {
        const struct graph_op *op = &g->report.ops[i];

        if (op->is_supported)
            continue;
        if (listed == LIST_MAX) {
            more += op->n;
            continue;
        }
        buf_printf(&text, "%s%.60s%s%.60s (%" PRIu32 " node%s, first '%.80s')",
                   listed > 0 ? "; " : "", op->domain, op->domain[0] != '\0' ? "." : "",
                   op->name[0] != '\0' ? op->name : "(no op_type)", op->n, op->n > 1 ? "s" : "",
                   op->first);
        add_remedy(&text, op);
        listed++;
    }
    if (listed == 0)
        return 0;
    if (more > 0)
        buf_printf(&text, "; and %zu more nodes", more);
    rc = text.failed ? import_no_memory(err)
                     : err_set(err, ERR_UNSUPPORTED,
                               "not supported at opset %" PRIu32 ": %s; `trainerctl inspect --ops` "
                               "lists all supported ops",
                               g->opset, text.data);
    buf_fini(&text);
    return rc;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

void graph_list_supported(struct buf *out)
{
    size_t n = count_rows(), i, n_names = 0;
    const char **names = calloc(n + COUNT_OF(others), sizeof(*names));

    if (names == NULL) {
        out->failed = true;
        return;
    }
    for (i = 0; i < n; i++)
        if (import_is_onnx(row_at(i)->domain))
            names[n_names++] = row_at(i)->name;
    for (i = 0; i < COUNT_OF(others); i++)
        names[n_names++] = others[i];
    qsort(names, n_names, sizeof(*names), compare_names);
    for (i = 0; i < n_names; i++) {
        struct buf opsets = { 0 };

        if (i > 0 && strcmp(names[i], names[i - 1]) == 0)
            continue;
        add_opsets(&opsets, names[i]);
        buf_printf(out, "%-28s %s\n", names[i], opsets.data != NULL ? opsets.data : "all");
        out->failed = out->failed || opsets.failed;
        buf_fini(&opsets);
    }
    free(names);
}
