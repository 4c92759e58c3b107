/* op.c - the table of all rows, and the entry points of the kernel library. graph/ and tests call op.c; no other file of
 * op/ does. */
#include "op/op.h"

#include <fenv.h>
#include <string.h>

#include "base/check.h"
#include "op/dnn.h"

#define OP(row_) extern const struct op_def row_;
#include "op/op_list.h"
#undef OP

#define OP(row_) &row_,
static const struct op_def *const rows[] = {
#include "op/op_list.h"
};
#undef OP

static const char onnx_domain[] = "ai.onnx";

const struct op_def *const *op_all(size_t *n)
{
    *n = COUNT_OF(rows);
    return rows;
}

uint32_t op_row(const struct op_def *def)
{
    uint32_t i = 0;

    while (rows[i] != def)
        CHECK(++i < COUNT_OF(rows));
    return i;
}

static const char *domain_of(const char *domain)
{
    return domain == NULL || domain[0] == '\0' ? onnx_domain : domain;
}

const struct op_def *op_find(const char *domain, const char *name, uint32_t opset)
{
    size_t i;

    for (i = 0; i < COUNT_OF(rows); i++) {
        const struct op_def *row = rows[i];

        if (strcmp(row->name, name) == 0 && row->since <= opset &&
            (row->until == 0 || opset <= row->until) &&
            strcmp(domain_of(row->domain), domain_of(domain)) == 0)
            return row;
    }
    return NULL;
}

bool op_is_onnx(const struct op_def *row, const char *name)
{
    return row->domain == NULL && strcmp(row->name, name) == 0;
}

bool op_has_attr(const struct op_def *row, const char *name)
{
    const char *const *known = row->attrs;

    while (known != NULL && *known != NULL && strcmp(*known, name) != 0)
        known++;
    return known != NULL && *known != NULL;
}

/* ---- kernels ---- */

const char *op_kernel_id(void)
{
    return dnn_id();
}

bool op_has_bfloat16(void)
{
    return dnn_has_bfloat16();
}

void op_thread_init(void)
{
    /* Reset the floating-point environment to the state at program start (round to nearest, no
     * traps, denormals not flushed), because a library may have changed it for this thread. */
    (void)fesetenv(FE_DFL_ENV);
    dnn_thread_init();
}
