/* plan_fuse.c - replaces chains of nodes by single nodes that one kernel computes.
 *
 * A pattern tests a node and the nodes that compute its inputs. If it matches, the last node of the
 * chain is replaced by a node of another row with the same output, and nodes without other readers
 * are removed. A value with another reader is never removed; a chain that does not match exactly is
 * not changed. Patterns are applied node by node in graph order, so that the result of one may be a
 * part of the next; each table is applied after the previous one is complete. */
#include <stdlib.h>

#include "base/check.h"
#include "base/err.h"
#include "graph/plan_fuse.h"

struct pattern {
    const char *domain, *op; /* op of the last node of the chain; NULL: any op */
    int (*fuse)(struct fuser *f, uint32_t node, struct err *err);
};

/* Patterns that simplify nodes that exporters write around the others. */
static const struct pattern early[] = {
    { NULL, NULL, fuse_same },
    { NULL, "Where", fuse_same_choice },
    { NULL, "Reshape", fuse_merged_transpose },
    { NULL, "Reshape", fuse_merged_product },
    { NULL, "Transpose", fuse_unit_transpose },
    { NULL, "Reshape", fuse_view_of_view },
    { NULL, "Squeeze", fuse_view_of_view },
    { NULL, "Reshape", fuse_merged_batch },
};

static const struct pattern patterns[] = {
    { NULL, "Relu", fuse_norm_relu },
    { NULL, "Clip", fuse_norm_relu },
    { NULL, "Add", fuse_norm_add },
    { NULL, "Add", fuse_rotary },
    { "trainerd", "Attention", fuse_lowered_attention },
    { "trainerd", "MatMul", fuse_attention }, /* before the patterns that create such a node */
    { NULL, "MatMul", fuse_attention },
    { NULL, "Transpose", fuse_attention_transpose },
    { NULL, "MatMul", fuse_product_transposes },
    { NULL, "Add", fuse_product_bias },
    { NULL, "Mul", fuse_gate },
    { NULL, "Mul", fuse_gated_product },
    { NULL, "Mul", fuse_row_norm },
    { NULL, "Add", fuse_row_norm_bias },
};

static const struct pattern late[] = {
    { NULL, "LayerNormalization", fuse_row_norm_add },
    { NULL, "RMSNormalization", fuse_row_norm_add },
    { "trainerd", "RMSNormalization", fuse_row_norm_add },
    { NULL, "MatMul", fuse_two_layers },
    { NULL, "Gemm", fuse_two_layers },
    { "trainerd", "MatMul", fuse_two_layers },
};

/* ---- the pass ---- */

static void count(const struct fuser *f, uint32_t value)
{
    if (value != GRAPH_NONE)
        f->readers[value]++;
}

static void count_readers(struct fuser *f)
{
    const struct plan *p = f->p;
    size_t i;
    uint32_t k;

    for (i = 0; i < p->nodes.n; i++) {
        const struct plan_node *n = &p->nodes.at[i];

        for (k = 0; k < n->n_in; k++)
            count(f, n->in[k]);
        for (k = 0; k < n->n_out; k++)
            if (n->out[k] != GRAPH_NONE)
                f->producer[n->out[k]] = (uint32_t)i;
    }
    count(f, p->loss.value);
    count(f, p->loss.weight);
    for (k = 0; k < p->n_metrics; k++) {
        count(f, p->metrics[k].value);
        count(f, p->metrics[k].weight);
    }
    for (k = 0; k < p->n_kept; k++)
        count(f, p->kept[k].value);
}

static int try_all(struct fuser *f, const struct pattern *of, size_t n, struct err *err)
{
    const struct plan *p = f->p;
    size_t i, k;

    for (i = 0; i < p->nodes.n; i++)
        for (k = 0; k < n && !f->removed[i]; k++) {
            int rc = 0;

            if ((of[k].op == NULL || fuse_is(&p->nodes.at[i], of[k].domain, of[k].op)) &&
                p->nodes.at[i].out[0] != GRAPH_NONE)
                rc = of[k].fuse(f, (uint32_t)i, err);
            if (rc < 0)
                return rc;
        }
    return 0;
}

static int fuse_all(struct fuser *f, struct err *err)
{
    struct plan *p = f->p;
    size_t i, kept = 0;
    int rc = try_all(f, early, COUNT_OF(early), err);

    if (rc == 0)
        rc = try_all(f, patterns, COUNT_OF(patterns), err);
    if (rc == 0)
        rc = try_all(f, late, COUNT_OF(late), err);
    if (rc < 0)
        return rc;
    for (i = 0; i < p->nodes.n; i++)
        if (!f->removed[i])
            p->nodes.at[kept++] = p->nodes.at[i];
    p->nodes.n = kept;
    return 0;
}

int plan_fuse(struct plan *p, struct err *err)
{
    struct arena mem = { 0 };
    struct fuser f = { .p = p };
    int rc;

    f.removed = arena_array(&mem, p->nodes.n, sizeof(*f.removed));
    if (f.removed != NULL && fuse_reserve(&f, p->values.n + 1)) {
        count_readers(&f);
        rc = fuse_all(&f, err);
    } else {
        rc = plan_no_memory(err);
    }
    VEC_FINI(f.masks);
    VEC_FINI(f.choices);
    free(f.producer);
    free(f.readers);
    arena_fini(&mem);
    return rc;
}
