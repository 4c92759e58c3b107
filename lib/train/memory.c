/* memory.c - what a task holds, and what it works with.
 *
 *   own      state: parameters | slot 0 | slot 1 | ... | average   (what a checkpoint holds, and what
 *            goes to a task that is behind). Private: no peer can write to it, not even one that
 *            was believed dead and wakes up; and it can have huge pages
 *   region   agreement: step and digests
 *            per replica: `depth` gradient arenas (parameters' layout | control words)
 *                         `depth` rows of evaluation sums
 *                         `depth` + 1 sets of marks of tables
 *            Shared with the peers of the host, so that nothing is copied to be reduced. Nothing in
 *            it outlives a generation: it can be replaced by a fresh one */
#include "train/train_priv.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
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

int memory_aside(const struct train *t, struct device_mem *out, struct err *err)
{
    int rc = device_mem_open(out, t->mem.state_bytes, false, err);

    return rc < 0 ? err_wrap(err, rc, "memory for weights and optimizer state") : 0;
}

void memory_take(struct train *t, struct device_mem *aside)
{
    device_mem_close(&t->mem.own);
    t->mem.own = *aside;
    *aside = (struct device_mem){ .fd = -1 };
    t->mem.state = t->mem.own.base;
    (void)lay_out_state(t);
}

static void lay_out_replica(struct replica *r, char *at)
{
    const struct memory *m = &r->train->mem;
    char *sums_at = at + m->depth * m->grads_bytes, *marks_at = sums_at + m->depth * m->sums_bytes;

    for (uint32_t d = 0; d < m->depth; d++) {
        r->grads[d] = (float *)(at + d * m->grads_bytes);
        r->sums[d] = (double *)(sums_at + d * m->sums_bytes);
        r->rows[d] =
            packed_at(m->tables, m->n_tables, m->table_words, marks_at + d * m->marks_bytes);
    }
    r->all_rows =
        packed_at(m->tables, m->n_tables, m->table_words, marks_at + m->depth * m->marks_bytes);
}

static int open_region(struct train *t, struct err *err)
{
    const struct train_opts *o = t->opts;
    struct memory *m = &t->mem;
    size_t per_replica = (m->region_bytes - m->replicas_at) / o->n_devices;
    int rc = device_mem_open(&m->region, m->region_bytes, o->replicas > o->n_devices, err);

    if (rc < 0)
        return err_wrap(err, rc, "memory for gradients");
    m->agreement = m->region.base;
    for (uint32_t i = 0; i < o->n_devices; i++)
        lay_out_replica(&t->replicas[i], (char *)m->region.base + m->replicas_at + i * per_replica);
    return 0;
}

int memory_renew_region(struct train *t, struct err *err)
{
    device_mem_close(&t->mem.region); /* first: there may be no room for both */
    return open_region(t, err);
}

int memory_open(struct train *t, struct err *err)
{
    struct memory *m = &t->mem;
    int rc;

    m->params = graph_arena_floats(t->graph);
    m->trained = graph_trained_floats(t->graph);
    m->slot = m->trained;
    tables_open(t);
    m->grads = m->params + CONTROL_WORDS + health_words(t->opts);
    m->depth = tree_depth(t->max_lanes);
    CHECK(m->depth <= MAX_TREE);
    m->state_bytes = lay_out_state(t) * sizeof(float);
    m->replicas_at = align_up(sizeof(struct agreement));
    m->grads_bytes = align_up(m->grads * sizeof(float));
    if (m->grads_bytes < LEAST_GRADS_BYTES)
        m->grads_bytes = LEAST_GRADS_BYTES;
    m->sums_bytes = align_up(t->eval_words * sizeof(double));
    m->marks_bytes = align_up(packed_bytes(m->n_tables, m->table_words));
    m->region_bytes =
        m->replicas_at + t->opts->n_devices * (m->depth * (m->grads_bytes + m->sums_bytes) +
                                               (m->depth + 1) * m->marks_bytes);
    rc = memory_aside(t, &m->own, err);
    if (rc < 0)
        return rc;
    m->state = m->own.base;
    (void)lay_out_state(t); /* now that it has an address */
    return open_region(t, err);
}

void memory_close(struct train *t)
{
    device_mem_close(&t->mem.own);
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

uint32_t lane_merges(const struct replica *r, uint32_t i)
{
    return tree_merges(i, r->n_lanes);
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
