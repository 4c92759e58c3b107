/* memory.c - one shared region per task:
 *
 *   state      parameters | slot 0 | slot 1 | ... | average   (what a checkpoint holds, and what is
 *                                                          broadcast when a generation starts)
 *   agreement  step and digests
 *   per replica: `depth` gradient arenas (parameters' layout | control words)
 *                `depth` + 1 sets of marks of tables
 *                `depth` rows of evaluation sums
 *
 * All of it lies where peers of the host can reach it, so that nothing is copied to be reduced. */
#include "train/train_priv.h"

#include <stdlib.h>
#include <string.h>

#include "base/clones.h"
#include "op/op.h"

/* Levels of a binary-counter tree over n lanes: arenas that may be occupied at once. */
static uint32_t tree_depth(uint32_t n)
{
    uint32_t depth = 1;

    while ((1u << (depth - 1)) < n)
        depth++;
    return depth;
}

static size_t align_up(size_t bytes)
{
    return (bytes + DEVICE_ALIGN - 1) / DEVICE_ALIGN * DEVICE_ALIGN;
}

/* Where each slot that is in use begins, the average behind them. Returns the floats of the state. */
static size_t lay_out_state(struct train *t)
{
    const struct train_opts *o = t->opts;
    struct memory *m = &t->mem;
    size_t at = m->params;

    for (uint32_t s = 0; s < o->optimizer->n_slots; s++) {
        if (!optim_uses(o->optimizer, &o->hyper, s))
            continue;
        m->slots[s] = m->state != NULL ? m->state + at : NULL;
        at += m->slot;
    }
    if (o->average > 0) {
        m->average = m->state != NULL ? m->state + at : NULL;
        at += m->params;
    }
    return at;
}

int memory_open(struct train *t, struct err *err)
{
    struct memory *m = &t->mem;
    const struct train_opts *o = t->opts;
    size_t agreement_at, replicas_at, grads_bytes, sums_bytes, marks_bytes, per_replica;
    char *base;
    int rc;

    m->params = graph_arena_floats(t->graph);
    m->trained = graph_trained_floats(t->graph);
    m->slot = m->trained;
    tables_open(t);
    m->grads = m->params + CONTROL_WORDS + health_words(t->opts);
    m->depth = tree_depth(t->lanes_per_replica);
    m->state_bytes = lay_out_state(t) * sizeof(float);
    agreement_at = align_up(m->state_bytes);
    replicas_at = align_up(agreement_at + sizeof(struct agreement));
    grads_bytes = align_up(m->grads * sizeof(float));
    if (grads_bytes < MEMORY_LEAST_GRADS)
        grads_bytes = MEMORY_LEAST_GRADS;
    sums_bytes = align_up(t->eval_words * sizeof(double));
    marks_bytes = align_up(packed_bytes(m->n_tables, m->table_words));
    per_replica = m->depth * (grads_bytes + sums_bytes) + (m->depth + 1) * marks_bytes;

    /* Alone, nobody maps it, and private memory can have huge pages where shared memory has none. */
    rc = device_mem_open(&m->region, replicas_at + o->n_devices * per_replica,
                         o->replicas > o->n_devices, err);
    if (rc < 0)
        return err_wrap(err, rc, "memory for weights and gradients");
    base = m->region.base;
    m->state = (float *)base;
    (void)lay_out_state(t); /* now that it has an address */
    m->agreement = (struct agreement *)(base + agreement_at);
    for (uint32_t i = 0; i < o->n_devices; i++) {
        char *at = base + replicas_at + i * per_replica;
        char *marks_at = at + m->depth * (grads_bytes + sums_bytes);

        for (uint32_t d = 0; d < m->depth; d++) {
            t->replicas[i].grads[d] = (float *)(at + d * grads_bytes);
            t->replicas[i].sums[d] = (double *)(at + m->depth * grads_bytes + d * sums_bytes);
            t->replicas[i].rows[d] = packed_at(m->tables, m->n_tables, m->table_words,
                                               marks_at + d * marks_bytes);
        }
        t->replicas[i].all_rows = packed_at(m->tables, m->n_tables, m->table_words,
                                            marks_at + m->depth * marks_bytes);
    }
    return 0;
}

void memory_close(struct train *t)
{
    device_mem_close(&t->mem.region);
}

uint32_t tree_merges(uint32_t i, uint32_t n)
{
    uint32_t merges = 0;

    if (i + 1 == n) /* all entries but one: as many as n has ones, after the regular merges */
        return (uint32_t)__builtin_ctz(n) + (uint32_t)__builtin_popcount(n) - 1;
    for (uint32_t count = i + 1; count % 2 == 0; count /= 2)
        merges++;
    return merges;
}

CLONES void tree_add_f32(float *restrict dst, const float *restrict src, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] += src[i];
}

CLONES void tree_add_f64(double *restrict dst, const double *restrict src, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] += src[i];
}
