/* memory.c - see memory.h. */
#include "engine/memory.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "engine/lanes.h"

static size_t align_up(size_t bytes)
{
    return (bytes + DEVICE_ALIGN - 1) / DEVICE_ALIGN * DEVICE_ALIGN;
}

/* Where each slot in use begins, with the average after them. Returns the floats of the state. */
static size_t lay_out_state(struct memory *m)
{
    const struct memory_opts *o = &m->opts;
    size_t at = m->params;

    for (uint32_t s = 0; s < o->optimizer->n_slots; s++) {
        if (!optim_uses(o->optimizer, o->hyper, s))
            continue;
        m->slots[s] = m->state != NULL ? m->state + at : NULL;
        at += m->slot;
    }
    if (o->has_average) {
        m->average = m->state != NULL ? m->state + at : NULL;
        at += m->params;
    }
    m->delayed_floats = o->n_delayed > 0 ? m->trained - o->delayed_at : 0;
    if (m->delayed_floats > 0) {
        m->delayed = m->state != NULL ? m->state + at : NULL;
        at += o->n_delayed * m->delayed_floats;
    }
    m->model_bytes = at * sizeof(float);
    if (o->has_outer) {
        m->outer = m->own.base != NULL ? (float *)m->own.base + at : NULL;
        at += m->trained;
    }
    if (o->residual_floats > 0) {
        m->residual = m->own.base != NULL ? (float *)m->own.base + at : NULL;
        at += o->residual_floats;
    }
    return at;
}

int engine_memory_open_spare(const struct memory *m, struct device_mem *out, struct err *err)
{
    int rc = device_mem_open(out, m->state_bytes, false, err);

    return rc < 0 ? err_wrap(err, rc, "memory for weights and optimizer state") : 0;
}

void engine_memory_use_spare(struct memory *m, struct device_mem *spare, uint64_t step)
{
    device_mem_close(&m->own);
    m->own = *spare;
    *spare = (struct device_mem){ .fd = -1 };
    m->state = m->own.base;
    m->step = step;
    (void)lay_out_state(m); /* the size is known */
}

void engine_memory_select(struct memory *m, float *model)
{
    m->state = model != NULL ? model : m->own.base;
    (void)lay_out_state(m); /* the size is known */
}

static void lay_out_replica(const struct memory *m, struct arenas *a, char *at)
{
    const struct memory_opts *o = &m->opts;
    char *sums_at = at + m->depth * m->grads_bytes, *marks_at = sums_at + m->depth * m->sums_bytes;
    char *remote_at = marks_at + (m->depth + 1) * m->marks_bytes;

    for (uint32_t d = 0; d < m->depth; d++) {
        a->grads[d] = (float *)(at + d * m->grads_bytes);
        a->sums[d] = (double *)(sums_at + d * m->sums_bytes);
        a->rows[d] =
            packed_init(o->tables, o->n_tables, o->table_words, marks_at + d * m->marks_bytes);
        a->remote[d] =
            packed_init(o->remote, o->n_remote, o->remote_words, remote_at + d * m->remote_bytes);
    }
    a->exchange = (float *)(remote_at + m->depth * m->remote_bytes);
    a->all_rows =
        packed_init(o->tables, o->n_tables, o->table_words, marks_at + m->depth * m->marks_bytes);
}

static int open_region(struct memory *m, struct err *err)
{
    uint32_t n = m->opts.n_replicas;
    size_t per_replica = (m->region_bytes - m->replicas_at) / n;
    int rc = device_mem_open(&m->region, m->region_bytes, m->opts.is_shared, err);

    if (rc < 0)
        return err_wrap(err, rc, "memory for gradients");
    m->head = m->region.base;
    for (uint32_t i = 0; i < n; i++)
        lay_out_replica(m, &m->arenas[i],
                        (char *)m->region.base + m->replicas_at + i * per_replica);
    return 0;
}

int engine_memory_replace_region(struct memory *m, struct err *err)
{
    device_mem_close(&m->region); /* closed first: there may be no room for both */
    return open_region(m, err);
}

/* Returns the floats of the values if all slots of the compact tables are marked. */
static size_t remote_floats(const struct memory_opts *o)
{
    size_t n = 0;

    for (uint32_t i = 0; i < o->n_remote; i++)
        n += o->remote[i].rows * o->remote[i].width;
    return n;
}

int engine_memory_open(struct memory *m, const struct memory_opts *opts, struct err *err)
{
    int rc;

    *m = (struct memory){ .opts = *opts, .own = { .fd = -1 }, .region = { .fd = -1 } };
    m->params = opts->params;
    m->trained = opts->trained;
    m->slot = opts->no_slots ? 0 : opts->trained;
    m->dense = opts->dense;
    m->grads = m->params + opts->control;
    m->depth = opts->depth;
    CHECK(m->depth >= 1 && m->depth <= MEMORY_MAX_TREE);
    m->state_bytes = lay_out_state(m) * sizeof(float);
    m->replicas_at = align_up(opts->head_bytes);
    m->remote_at = (m->grads + 15) / 16 * 16;
    m->grads_bytes = align_up((opts->n_remote > 0 ? m->remote_at + remote_floats(opts) : m->grads) *
                              sizeof(float));
    if (m->grads_bytes < MEMORY_LEAST_GRADS_BYTES)
        m->grads_bytes = MEMORY_LEAST_GRADS_BYTES;
    m->sums_bytes = align_up(opts->eval_words * sizeof(double));
    m->marks_bytes = align_up(packed_bytes(opts->n_tables, opts->table_words));
    m->remote_bytes = align_up(packed_bytes(opts->n_remote, opts->remote_words));
    m->exchange_bytes = align_up(opts->exchange_floats * sizeof(float));
    m->region_bytes =
        m->replicas_at + opts->n_replicas * (m->depth * (m->grads_bytes + m->sums_bytes) +
                                             (m->depth + 1) * m->marks_bytes +
                                             m->depth * m->remote_bytes + m->exchange_bytes);
    m->arenas = calloc(opts->n_replicas, sizeof(*m->arenas));
    if (m->arenas == NULL)
        return err_set(err, ERR_NOMEM, "memory for gradients: out of memory");
    rc = engine_memory_open_spare(m, &m->own, err);
    if (rc < 0)
        return rc;
    m->state = m->own.base;
    (void)lay_out_state(m); /* again: the state has an address now */
    return open_region(m, err);
}

void engine_memory_close(struct memory *m)
{
    device_mem_close(&m->own);
    device_mem_close(&m->region);
    free(m->arenas);
    m->arenas = NULL;
}

void engine_memory_fill_average(struct memory *m, bool fresh)
{
    size_t from = fresh ? 0 : m->trained;

    if (m->average != NULL)
        memcpy(m->average + from, m->state + from, (m->params - from) * sizeof(float));
}

float *engine_memory_delayed(const struct memory *m, uint32_t age)
{
    if (m->delayed == NULL || age == 0)
        return m->state;
    /* inside the state: the parameters are before it */
    return m->delayed + (age - 1) * m->delayed_floats - m->opts.delayed_at;
}

void engine_memory_delay(struct memory *m)
{
    for (uint32_t age = m->opts.n_delayed; m->delayed != NULL && age > 0; age--)
        memcpy(engine_memory_delayed(m, age) + m->opts.delayed_at,
               engine_memory_delayed(m, age - 1) + m->opts.delayed_at,
               m->delayed_floats * sizeof(float));
}

void engine_memory_fill_delayed(struct memory *m)
{
    for (uint32_t age = 0; age < m->opts.n_delayed; age++)
        engine_memory_delay(m);
}
