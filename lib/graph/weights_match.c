/* weights_match.c - maps names to a weights file, and compares its values. */
#include "graph/graph_priv.h"

#include <stdio.h>
#include <string.h>

#include "base/mapping.h"

/* ---- names ---- */

/* Matches `name` with a pattern that has at most one '*'. *part and *n receive the text that the
 * '*' matches. */
static bool match(const char *pattern, const char *name, const char **part, size_t *n)
{
    const char *star = strchr(pattern, '*');
    size_t before, after, len = strlen(name);

    *part = "";
    *n = 0;
    if (star == NULL)
        return strcmp(pattern, name) == 0;
    before = (size_t)(star - pattern);
    after = strlen(star + 1);
    if (len < before + after || strncmp(pattern, name, before) != 0 ||
        strcmp(star + 1, name + len - after) != 0)
        return false;
    *part = name + before;
    *n = len - before - after;
    return true;
}

bool graph_weights_name(const struct graph_weights *w, const char *name, char *out, size_t size)
{
    const struct graph_rename *best = NULL;
    const char *part, *star;
    size_t n, n_best = 0;
    int len;
    uint32_t i;

    for (i = 0; i < w->n_renames; i++)
        if (match(w->renames[i].graph, name, &part, &n) &&
            (best == NULL || strchr(w->renames[i].graph, '*') == NULL ||
             (strchr(best->graph, '*') != NULL && strlen(w->renames[i].graph) > n_best))) {
            best = &w->renames[i];
            n_best = strlen(best->graph);
        }
    if (best == NULL)
        return (size_t)snprintf(out, size, "%s", name) < size;
    (void)match(best->graph, name, &part, &n);
    star = strchr(best->file, '*');
    len = star == NULL ? snprintf(out, size, "%s", best->file)
                       : snprintf(out, size, "%.*s%.*s%s", (int)(star - best->file), best->file,
                                  (int)n, part, star + 1);
    return len >= 0 && (size_t)len < size;
}

bool graph_weights_find(const struct graph_weights *w, const char *name, struct graph_weight *out)
{
    char in_file[GRAPH_WEIGHT_NAME_BYTES];

    return graph_weights_name(w, name, in_file, sizeof(in_file)) && w->find(w->arg, in_file, out);
}

/* ---- comparison ---- */

static float element(const struct graph_weight *w, int64_t at)
{
    struct tensor one = w->tensor;
    float x;

    one.data = (char *)w->tensor.data + (size_t)at * tensor_dtype_bytes(one.dtype);
    one.shape.rank = 0;
    graph_read_floats(&one, NULL, &x);
    return x;
}

static bool is_float(enum tensor_dtype t)
{
    return t == TENSOR_F32 || t == TENSOR_F64 || t == TENSOR_F16 || t == TENSOR_BF16;
}

bool graph_weight_equals(const struct graph_weight *w, const float *values,
                         const struct shape *shape, const uint32_t *order)
{
    const struct shape *file = &w->tensor.shape;
    int64_t stride[TENSOR_MAX_RANK], index[TENSOR_MAX_RANK] = { 0 }, step = 1, at = 0, n, i;
    uint32_t d;

    if (!is_float(w->tensor.dtype) || file->rank != shape->rank)
        return false;
    for (d = file->rank; d-- > 0; step *= file->dim[d])
        stride[d] = step;
    for (d = 0; d < shape->rank; d++)
        if (shape->dim[d] != file->dim[order != NULL ? order[d] : d])
            return false;
    mapping_enable_thread();
    n = shape_elements(shape);
    for (i = 0; i < n; i++) {
        float x = element(w, at);

        if (memcmp(&x, &values[i], sizeof(x)) != 0)
            return false;
        for (d = shape->rank; d-- > 0;) { /* advances to the next index and its position in the
                                             file */
            uint32_t axis = order != NULL ? order[d] : d;

            at += stride[axis];
            if (++index[d] < shape->dim[d])
                break;
            at -= index[d] * stride[axis];
            index[d] = 0;
        }
    }
    return w->mapping == NULL || mapping_check(w->mapping, NULL) == 0;
}
