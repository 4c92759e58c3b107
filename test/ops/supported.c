/* supported.c - `ops supported`: the table of config/OPS.md, from the rows and the CUDA plugin. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/ops.h"

static const char *half_text(const struct op_def *def)
{
    switch (def->half) {
    case OP_HALF_NO: return "";
    case OP_HALF_SAME: return "if all inputs are";
    case OP_HALF_MIX: return "any input";
    case OP_HALF_WANT: return "product";
    }
    return "";
}

static const char *kernels_text(const struct op_def *def, const struct op_kernels *k)
{
    if (k == NULL)
        return "";
    if (k->fwd == NULL) /* its plan refuses what the planner did not compute */
        return "while planning";
    return def->diff != 0 && k->bwd != NULL ? "forward, backward" : "forward";
}

static const char *made_by_text(const struct op_def *def)
{
    return def->domain != NULL ? "fusion or import" : "the model";
}

static int by_name(const void *a, const void *b)
{
    const struct op_def *x = *(const struct op_def *const *)a,
                        *y = *(const struct op_def *const *)b;
    int order = (x->domain != NULL) - (y->domain != NULL);

    order = order != 0 ? order : strcmp(x->name, y->name);
    return order != 0 ? order : (x->since > y->since) - (x->since < y->since);
}

int ops_supported(void)
{
    const struct cuda_api *cuda = ops_open_gpu();
    size_t n;
    const struct op_def *const *all = op_all(&n);
    const struct op_def **rows = calloc(n, sizeof(*rows));

    if (cuda == NULL || rows == NULL) {
        free(rows);
        return 2;
    }
    memcpy(rows, all, n * sizeof(*rows));
    qsort(rows, n, sizeof(*rows), by_name);
    puts(
        "| op | opsets | written by | CPU | CUDA | 16-bit floats |\n| --- | --- | --- | --- | --- | --- |");
    for (size_t i = 0; i < n; i++) {
        char name[96], opsets[32];

        printf("| %s | %s | %s | %s | %s | %s |\n", ops_name(rows[i], name, sizeof(name)),
               ops_opsets(rows[i], opsets, sizeof(opsets)), made_by_text(rows[i]),
               kernels_text(rows[i], &rows[i]->cpu),
               kernels_text(rows[i], cuda->op(op_row(rows[i]))), half_text(rows[i]));
    }
    free(rows);
    return 0;
}
