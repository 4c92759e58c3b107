/* gpu_residual_power_sgd.c - power_sgd in a step of a GPU; see gpu_residual.h. The factors of the first group of the
 * replica become the sums. P is after the numbers that are not coded, so that both are one exchange. */
#include "code/power_sgd.h"
#include "engine/gpu_residual_priv.h"
#include "engine/gpu_types.h"
#include "engine/residual.h"
#include "opts/code.h"

/* What the replica enqueues in a step. */
struct work {
    struct engine_replica *r;
    struct gpu *g;
    const struct cuda_math *math;
    const struct residual_layout *l;
    struct cuda_stream *s;
    uint32_t n_groups;
    float *p, *q; /* [n_groups] factors of all matrices */
};

static int take_group(struct engine_replica *r, uint32_t i, struct err *err)
{
    (void)r; /* all products are made together, after the last lane */
    (void)i;
    (void)err;
    return 0;
}

static struct power_sgd matrix_of(const struct work *w, const struct residual_part *p)
{
    struct power_sgd m = p->matrix;

    m.seed = w->r->engine->opts->seed;
    return m;
}

/* Adds up the factors [n] of all groups of the replica along the tree over groups. */
static int sum_groups(const struct work *w, float *factors, size_t n, struct err *err)
{
    int rc = 0;

    for (uint32_t step = 1; step < w->n_groups; step *= 2)
        for (uint32_t i = 0; rc == 0 && i + step < w->n_groups; i += 2 * step)
            rc = w->math->add(factors + i * n, factors + (i + step) * n, n, w->s, err);
    return rc;
}

static int make_p(const struct work *w, struct err *err)
{
    float *begin_q = w->g->residual.begin_q;
    int rc = 0;

    if (w->l->q_floats > 0)
        rc = w->g->cuda->copy(begin_q, gpu_residual_in_state(w->r, w->l->code->groups),
                              w->l->q_floats * sizeof(float), w->s, err);
    for (uint32_t k = 0; rc == 0 && k < w->l->n; k++) {
        const struct residual_part *p = &w->l->parts[k];
        const struct power_sgd m = matrix_of(w, p);

        rc = w->math->power_sgd_begin(&m, begin_q + p->q_at, w->s, err);
        for (uint32_t i = 0; rc == 0 && i < w->n_groups; i++)
            rc = w->math->power_sgd_left(&m, gpu_residual_left(w->r, i) + p->at, begin_q + p->q_at,
                                         w->p + i * w->l->p_floats + p->p_at, w->s, err);
    }
    return rc < 0 ? rc : sum_groups(w, w->p, w->l->p_floats, err);
}

/* P is the sum of all groups. Leaves in x what the groups do not send. */
static int make_q(const struct work *w, struct err *err)
{
    int rc = 0;

    for (uint32_t k = 0; rc == 0 && k < w->l->n; k++) {
        const struct residual_part *p = &w->l->parts[k];
        const struct power_sgd m = matrix_of(w, p);
        float *factor = w->p + p->p_at;

        rc = w->math->power_sgd_orthogonalize(&m, factor, w->s, err);
        for (uint32_t i = 0; rc == 0 && i < w->n_groups; i++) {
            float *q = w->q + i * w->l->q_floats + p->q_at, *x = gpu_residual_left(w->r, i) + p->at;

            rc = w->math->power_sgd_right(&m, x, factor, q, w->s, err);
            if (rc == 0)
                rc = w->math->power_sgd_subtract(&m, factor, q, x, w->s, err);
        }
    }
    return rc < 0 ? rc : sum_groups(w, w->q, w->l->q_floats, err);
}

static int decode(const struct work *w, struct err *err)
{
    int rc = 0;

    for (uint32_t k = 0; rc == 0 && k < w->l->n; k++) {
        const struct residual_part *p = &w->l->parts[k];
        const struct power_sgd m = matrix_of(w, p);

        rc = w->math->power_sgd_decode(&m, w->p + p->p_at, w->q + p->q_at,
                                       w->g->grads.tree[0] + p->offset, w->s, err);
    }
    return rc;
}

static int reduce(struct engine_replica *r, struct cuda_stream *s, struct err *err)
{
    struct gpu *g = gpu_of(r);
    const struct work w = { .r = r,
                            .g = g,
                            .math = g->cuda->math,
                            .l = &r->engine->residual,
                            .s = s,
                            .n_groups = gpu_residual_groups(r),
                            .p = g->residual.exchange + gpu_residual_plain(r),
                            .q = g->residual.q };
    int rc = make_p(&w, err);

    if (rc == 0)
        rc = gpu_residual_reduce_plain(r, w.l->p_floats, err);
    if (rc == 0)
        rc = make_q(&w, err);
    if (rc == 0)
        rc = gpu_residual_all_reduce(r, w.q, w.l->q_floats, err);
    return rc < 0 ? rc : decode(&w, err);
}

static double sent(const struct engine_replica *r)
{
    const struct residual_layout *l = &r->engine->residual;
    uint32_t n = gpu_of(r)->order.world;

    return 2.0 * (n - 1) / n * (double)(l->p_floats + l->q_floats);
}

const struct gpu_residual_code gpu_residual_power_sgd = { take_group, reduce, sent };
