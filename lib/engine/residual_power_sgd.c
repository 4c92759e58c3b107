/* residual_power_sgd.c - power_sgd in a step; see residual.h. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "engine/lanes.h"
#include "engine/residual.h"
#include "engine/residual_priv.h"
#include "opts/code.h"

static int begin(const struct engine_replica *r, struct residual_work *w, struct err *err)
{
    const struct residual_layout *l = w->layout;

    (void)r;
    w->p = calloc(w->n_groups * l->p_floats + 1, sizeof(*w->p));
    w->q = calloc(w->n_groups * l->q_floats + 1, sizeof(*w->q));
    w->begin_q = calloc(l->q_floats + 1, sizeof(*w->begin_q));
    if (w->p == NULL || w->q == NULL || w->begin_q == NULL)
        return err_set(err, ERR_NOMEM, "factors of %u groups: out of memory", w->n_groups);
    return 0;
}

static void take_group(struct engine_replica *r, struct residual_work *w, uint32_t i)
{
    (void)r; /* all products are made together, after the last lane */
    (void)w;
    (void)i;
}

static struct power_sgd matrix_of(const struct engine_replica *r, const struct residual_part *p)
{
    struct power_sgd m = p->matrix;

    m.seed = r->engine->opts->seed;
    return m;
}

/* Adds up the factors of all groups of the replica along the tree over groups, into those of the first one. */
static void sum_groups(const struct residual_work *w, float *factors, size_t n)
{
    for (uint32_t step = 1; step < w->n_groups; step *= 2)
        for (uint32_t i = 0; i + step < w->n_groups; i += 2 * step)
            tree_add_f32(factors + i * n, factors + (i + step) * n, n);
}

static void make_p(const struct engine_replica *r, struct residual_work *w)
{
    const struct residual_layout *l = w->layout;

    memcpy(w->begin_q, residual_of_group(r->engine, l->code->groups), l->q_floats * sizeof(float));
    for (uint32_t k = 0; k < l->n; k++) {
        const struct residual_part *p = &l->parts[k];
        const struct power_sgd m = matrix_of(r, p);

        power_sgd_begin(&m, w->begin_q + p->q_at);
        for (uint32_t i = 0; i < w->n_groups; i++)
            power_sgd_left(&m, residual_left(w, i) + p->at, w->begin_q + p->q_at,
                           w->p + i * l->p_floats + p->p_at);
    }
    sum_groups(w, w->p, l->p_floats);
}

/* P is the sum of all groups. Leaves in left[] what the groups do not send. */
static void make_q(const struct engine_replica *r, struct residual_work *w)
{
    const struct residual_layout *l = w->layout;

    for (uint32_t k = 0; k < l->n; k++) {
        const struct residual_part *p = &l->parts[k];
        const struct power_sgd m = matrix_of(r, p);

        power_sgd_orthogonalize(&m, w->p + p->p_at);
        for (uint32_t i = 0; i < w->n_groups; i++) {
            float *q = w->q + i * l->q_floats + p->q_at, *x = residual_left(w, i) + p->at;

            power_sgd_right(&m, x, w->p + p->p_at, q);
            power_sgd_subtract(&m, w->p + p->p_at, q, x);
        }
    }
    sum_groups(w, w->q, l->q_floats);
}

static void decode(const struct engine_replica *r, const struct residual_work *w)
{
    for (uint32_t k = 0; k < w->layout->n; k++) {
        const struct residual_part *p = &w->layout->parts[k];
        const struct power_sgd m = matrix_of(r, p);

        power_sgd_decode(&m, w->p + p->p_at, w->q + p->q_at, r->arenas->grads[0] + p->offset);
    }
}

static int reduce(struct engine_replica *r, struct residual_work *w, size_t end, struct err *err)
{
    const struct residual_layout *l = w->layout;
    float *grads = r->arenas->grads[0], *exchange = r->arenas->exchange;
    size_t plain = residual_pack(l, grads, end, exchange);
    int rc;

    make_p(r, w);
    memcpy(exchange + plain, w->p, l->p_floats * sizeof(float));
    rc = residual_exchange(r, plain + l->p_floats, err);
    if (rc < 0)
        return rc;
    residual_unpack(l, exchange, end, grads);
    memcpy(w->p, exchange + plain, l->p_floats * sizeof(float));
    make_q(r, w);
    memcpy(exchange, w->q, l->q_floats * sizeof(float));
    rc = residual_exchange(r, l->q_floats, err);
    if (rc < 0)
        return rc;
    memcpy(w->q, exchange, l->q_floats * sizeof(float));
    decode(r, w);
    return 0;
}

static double sent(const struct residual_work *w, uint32_t ranks_of_node, uint32_t n)
{
    (void)ranks_of_node;
    return 2.0 * (n - 1) / n * (double)(w->layout->p_floats + w->layout->q_floats);
}

const struct residual_code residual_power_sgd = { begin, take_group, reduce, sent };
