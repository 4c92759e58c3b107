/* plan_fold.c - memory of constants that are computed while planning.
 *
 * Small constants are allocated from the arena of the plan. A large one, such as the indices from
 * which an exporter computes a mask, has separate memory, which is freed after the passes if no
 * node reads it. */
#include <stdlib.h>

#include "graph/plan_priv.h"

enum { LARGE = 1 << 16 };

void *plan_fold_alloc(struct plan *p, size_t bytes)
{
    struct plan_fold fold = { .bytes = (bytes + 63) / 64 * 64 };
    uintptr_t at;

    if (bytes < LARGE) {
        at = (uintptr_t)arena_alloc(&p->mem, bytes + 64);
        return at != 0 ? (void *)((at + 63) / 64 * 64) : NULL;
    }
    fold.data = aligned_alloc(64, fold.bytes);
    if (fold.data == NULL || !VEC_PUSH(p->building.folds, fold)) {
        free(fold.data);
        return NULL;
    }
    return fold.data;
}

/* The fold whose memory contains an address; NULL: none. */
static struct plan_fold *fold_of(const struct plan *p, const void *data)
{
    uintptr_t at = (uintptr_t)data;

    for (size_t i = 0; i < p->building.folds.n; i++)
        if (at >= (uintptr_t)p->building.folds.at[i].data &&
            at < (uintptr_t)p->building.folds.at[i].data + p->building.folds.at[i].bytes)
            return &p->building.folds.at[i];
    return NULL;
}

static void mark_read(struct plan *p, uint32_t value)
{
    struct plan_fold *fold =
        value != GRAPH_NONE ? fold_of(p, p->values.at[value].tensor.data) : NULL;

    if (fold != NULL)
        fold->is_read = true;
}

void plan_fold_release(struct plan *p)
{
    size_t i, kept = 0;
    uint32_t k;

    for (i = 0; i < p->nodes.n; i++)
        for (k = 0; k < p->nodes.at[i].n_in; k++)
            mark_read(p, p->nodes.at[i].in[k]);
    mark_read(p, p->loss.value);
    mark_read(p, p->loss.weight);
    for (k = 0; k < p->n_metrics; k++) {
        mark_read(p, p->metrics[k].value);
        mark_read(p, p->metrics[k].weight);
    }
    for (k = 0; k < p->n_kept; k++)
        mark_read(p, p->kept[k].value);
    for (i = 0; i < p->values.n && p->building.folds.n > 0; i++) {
        struct tensor *t = &p->values.at[i].tensor;
        const struct plan_fold *fold = fold_of(p, t->data);

        if (fold != NULL && !fold->is_read)
            t->data = NULL;
    }
    for (i = 0; i < p->building.folds.n; i++) {
        if (p->building.folds.at[i].is_read)
            p->building.folds.at[kept++] = p->building.folds.at[i];
        else
            free(p->building.folds.at[i].data);
    }
    p->building.folds.n = kept;
}

void plan_fold_free(struct plan *p)
{
    for (size_t i = 0; i < p->building.folds.n; i++)
        free(p->building.folds.at[i].data);
    VEC_FINI(p->building.folds);
}
