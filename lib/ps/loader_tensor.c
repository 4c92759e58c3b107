/* loader_tensor.c - finds the tensors of a table in a checkpoint; see loader_priv.h. */
#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "ps/loader_priv.h"
#include "ps/store.h"
#include "ps/wants.h"

static int check_dense(struct loader *l, const struct ckpt_rows_tensor *t)
{
    l->elements = (uint64_t)shape_elements(&t->shape);
    if (t->dtype == TENSOR_F32 && ps_dense_rows(l->elements) == l->n_rows)
        return 0;
    return err_set(l->err, ERR_CORRUPT, "tensor '%s': expected the floats of the parameter",
                   t->name);
}

int loader_find_tensor(struct loader *l)
{
    const struct ps_store *store = l->job.store;
    struct ckpt_rows_tensor t;
    char *name = NULL;
    int rc;

    l->kind = l->part == 0 ? CKPT_SHARD_MODEL : CKPT_SHARD_OPTIMIZER;
    if (asprintf(&name, l->part == 0 ? "%s" : "%s/%s", ps_store_table_name(store, l->table),
                 ps_store_part_name(store, l->part)) < 0)
        return err_set(l->err, ERR_NOMEM, "rows of a checkpoint: out of memory");
    rc = ckpt_rows_find(l->from, l->kind, name, &l->tensor, l->err);
    free(name);
    if (rc < 0)
        return rc;
    ckpt_rows_describe(l->from, l->kind, l->tensor, &t);
    l->row_bytes = l->job.widths[l->table] * sizeof(float);
    l->is_dense = ps_store_is_dense(store, l->table);
    if (l->is_dense)
        return check_dense(l, &t);
    if (t.dtype != TENSOR_F32 || t.rows != l->n_rows || t.row_bytes != l->row_bytes)
        return err_set(l->err, ERR_CORRUPT, "tensor '%s': expected rows and width of the table",
                       t.name);
    return 0;
}
