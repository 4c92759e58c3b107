/* update.c - the optimizer's part of a step: groups of parameters, clipping, the sweep over this
 * replica's part, statistics, the average of the weights. */
#include "train/gpu.h"
#include "train/train_priv.h"

#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fault.h"
#include "base/text.h"

/* ---- opening ---- */

static bool matches(const struct train_params *group, const char *name, bool *used)
{
    bool found = false;

    for (uint32_t i = 0; i < group->n_match; i++)
        if (fnmatch(group->match[i], name, 0) == 0)
            found = used[i] = true;
    return found;
}

/* A pattern that matches nothing is a slip of the pen. */
static int check_used(const struct train *t, const struct train_params *group, uint32_t g,
                      const bool *used, struct err *err)
{
    const char *names[256];
    uint32_t n, n_names = 0;
    const struct graph_param *p = graph_params(t->graph, &n);

    for (uint32_t i = 0; i < n && n_names < 256; i++)
        if (p[i].kind == GRAPH_TRAINED)
            names[n_names++] = p[i].name;
    for (uint32_t i = 0; i < group->n_match; i++) {
        const char *near = text_nearest(group->match[i], names, n_names);

        if (used[i])
            continue;
        return err_set(err, ERR_INPUT,
                       "/optimizer/groups/%u/match: '%s' matches no parameter that trains; %s '%s'",
                       g, group->match[i], near != NULL ? "did you mean" : "the first one is",
                       near != NULL ? near : n_names > 0 ? names[0] : "");
    }
    return 0;
}

static int check_lazy(const struct train *t, const struct graph_param *p,
                      const struct train_params *group, uint32_t g, struct err *err)
{
    if (group->lazy && t->opts->optimizer->measure != NULL)
        return err_set(err, ERR_INPUT,
                       "/optimizer/groups/%u/lazy_rows: %s takes norms over all rows of a parameter; "
                       "take lazy_rows out, or another optimizer", g, t->opts->optimizer->name);
    if (group->lazy && !p->is_table)
        return err_set(err, ERR_INPUT,
                       "/optimizer/groups/%u/lazy_rows: '%s' is no table: something else than Gather "
                       "along axis 0 reads it; match tables alone", g, p->name);
    return 0;
}

/* Groups from the last to the first, so that the first one that matches has the last word. */
static int apply_groups(const struct train *t, struct optim_param *params,
                        const uint32_t *param_of, uint32_t n_params, struct err *err)
{
    const struct train_opts *o = t->opts;
    uint32_t n;
    const struct graph_param *p = graph_params(t->graph, &n);
    int rc = 0;

    for (uint32_t g = o->n_groups; rc == 0 && g-- > 0;) {
        const struct train_params *group = &o->groups[g];
        bool *used = calloc(group->n_match + 1, sizeof(*used));

        if (used == NULL)
            return err_set(err, ERR_NOMEM, "optimizer groups: out of memory");
        for (uint32_t i = 0; rc == 0 && i < n_params; i++)
            if (matches(group, p[param_of[i]].name, used)) {
                params[i].rate_factor = group->rate_factor;
                params[i].weight_decay = group->weight_decay;
                params[i].adapts = group->adapts;
                params[i].lazy = group->lazy;
                rc = check_lazy(t, &p[param_of[i]], group, g, err);
            }
        if (rc == 0)
            rc = check_used(t, group, g, used, err);
        free(used);
    }
    return rc;
}

/* What the optimizer gets: a stretch for each trained parameter, or several between frozen rows. */
struct stretches {
    struct optim_param *at; /* [cap] */
    uint32_t *param_of;     /* [cap] the graph's parameter of each */
    uint32_t n;
};

static int compare_rows(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

static bool has_frozen_rows(const struct train_rows *f, const struct graph_param *p)
{
    return p->kind == GRAPH_TRAINED && fnmatch(f->match, p->name, 0) == 0;
}

/* The frozen rows of one parameter, ascending; `rows` has room for those of all entries. */
static int frozen_rows_of(const struct train *t, const struct graph_param *p, uint32_t *rows,
                          uint32_t *n, struct err *err)
{
    const struct train_opts *o = t->opts;
    int64_t n_rows = p->shape.rank > 0 ? p->shape.dim[0] : 0;

    *n = 0;
    for (uint32_t i = 0; i < o->n_frozen_rows; i++) {
        const struct train_rows *f = &o->frozen_rows[i];

        for (uint32_t k = 0; has_frozen_rows(f, p) && k < f->n; k++) {
            if (f->rows[k] >= n_rows)
                return err_set(err, ERR_INPUT,
                               "/model/frozen_rows: '%s' has row %u; '%s' has %lld rows, expected 0 to %lld",
                               f->match, f->rows[k], p->name, (long long)n_rows, (long long)n_rows - 1);
            rows[(*n)++] = f->rows[k];
        }
    }
    qsort(rows, *n, sizeof(*rows), compare_rows);
    return 0;
}

/* The stretches of one parameter: its floats without those of frozen rows. */
static int cut(struct train *t, uint32_t i, const struct packed_table *table, uint32_t *rows,
               struct stretches *s, struct err *err)
{
    const struct graph_param *p = &graph_params(t->graph, &(uint32_t){ 0 })[i];
    size_t width = 0, done = 0;
    uint32_t n_rows = 0, before = s->n;
    int rc = frozen_rows_of(t, p, rows, &n_rows, err);

    if (n_rows > 0)
        width = p->elements / (size_t)p->shape.dim[0];
    for (uint32_t k = 0; rc == 0 && k <= n_rows; k++) {
        size_t end = k < n_rows ? rows[k] * width : p->elements;

        if (end > done) {
            s->param_of[s->n] = i;
            s->at[s->n++] = (struct optim_param){ .first = p->offset + done,
                                                  .n = end - done,
                                                  .table = table,
                                                  .rate_factor = 1,
                                                  .weight_decay = t->opts->hyper.weight_decay,
                                                  .adapts = true,
                                                  .skipped = done };
        }
        done = end + width;
    }
    if (rc == 0 && s->n == before)
        return err_set(err, ERR_INPUT, "/model/frozen_rows: all rows of '%s' are frozen; use model.frozen",
                       p->name);
    return rc;
}

static int check_frozen_rows(const struct train *t, struct err *err)
{
    uint32_t n, k;
    const struct graph_param *p = graph_params(t->graph, &n);

    for (uint32_t i = 0; i < t->opts->n_frozen_rows; i++) {
        for (k = 0; k < n && !has_frozen_rows(&t->opts->frozen_rows[i], &p[k]); k++)
            ;
        if (k == n)
            return err_set(err, ERR_INPUT,
                           "/model/frozen_rows: '%s' matches no parameter that trains (the first one is '%s')",
                           t->opts->frozen_rows[i].match, n > 0 ? p[0].name : "");
    }
    return 0;
}

static int open_stretches(struct train *t, struct stretches *s, uint32_t *rows, struct err *err)
{
    uint32_t n, n_tables, next_table = 0;
    size_t words;
    const struct packed_table *tables = graph_tables(t->graph, &n_tables, &words);
    const struct graph_param *p = graph_params(t->graph, &n);
    int rc = check_frozen_rows(t, err);

    for (uint32_t i = 0; rc == 0 && i < n; i++)
        if (p[i].kind == GRAPH_TRAINED)
            rc = cut(t, i, p[i].is_table ? &tables[next_table++] : NULL, rows, s, err);
    return rc < 0 ? rc : apply_groups(t, s->at, s->param_of, s->n, err);
}

int update_open(struct train *t, struct err *err)
{
    const struct train_opts *o = t->opts;
    struct optim_opts opts = { .def = o->optimizer, .n_parts = o->n_devices, .average = o->average };
    struct stretches s = { 0 };
    uint32_t n, *rows;
    const struct graph_param *p = graph_params(t->graph, &n);
    size_t n_rows = 0, cap = (size_t)n + 1;
    int rc = 0;

    for (uint32_t i = 0; i < o->n_frozen_rows; i++) {
        n_rows += o->frozen_rows[i].n;
        for (uint32_t k = 0; k < n; k++) /* each frozen row ends a stretch */
            cap += has_frozen_rows(&o->frozen_rows[i], &p[k]) ? o->frozen_rows[i].n : 0;
    }
    rows = calloc(n_rows + 1, sizeof(*rows));
    s.at = calloc(cap, sizeof(*s.at));
    s.param_of = calloc(cap, sizeof(*s.param_of));
    if (rows == NULL || s.at == NULL || s.param_of == NULL)
        rc = err_set(err, ERR_NOMEM, "optimizer: out of memory");
    if (rc == 0)
        rc = open_stretches(t, &s, rows, err);
    opts.params = s.at;
    opts.n_params = s.n;
    if (rc == 0)
        rc = optim_new(&opts, &t->optim, err);
    free(rows);
    free(s.at);
    free(s.param_of);
    return rc;
}

uint32_t update_resting_tables(const struct train *t)
{
    struct optim_hyper h = t->opts->hyper;

    h.grad_scale = 1;
    return optim_resting_tables(t->optim, &h);
}

void update_fill_average(struct train *t, bool fresh)
{
    size_t from = fresh ? 0 : t->mem.trained;

    if (t->mem.average != NULL)
        memcpy(t->mem.average + from, t->mem.state + from, (t->mem.params - from) * sizeof(float));
}

/* ---- a step ---- */

static void move_statistics(struct train *t, const float *grads)
{
    uint32_t n;
    const struct graph_param *params = graph_params(t->graph, &n);
    float share = 1.0f / (float)t->opts->lanes;

    for (uint32_t i = 0; i < n; i++) {
        float *w = t->mem.state + params[i].offset;
        const float *g = grads + params[i].offset;
        float keep = params[i].momentum;

        if (params[i].kind != GRAPH_STATISTIC)
            continue;
        for (size_t e = 0; e < params[i].elements; e++)
            w[e] = keep * w[e] + (1.0f - keep) * (g[e] * share);
    }
    update_fill_average(t, false);
}

/* The other replicas of the task are there too: they have the reduction. */
static void meet(struct replica *r)
{
    bool whole = place_meet(&r->place, &r->train->solid);

    CHECK(whole); /* nobody breaks this gate */
}

/* Clipping, and the norm where it is wanted. Gradients are scaled as the loss is; by a power of two they can
 * as well be divided where they are used. */
static double measure(struct replica *r, struct optim_hyper *h, const struct optim_state *state)
{
    struct train *t = r->train;
    const struct train_opts *o = t->opts;
    bool is_wanted = o->clip_norm > 0 || live_norm_is_due(t, h->step);
    double norm;

    h->grad_scale = (float)(1 / r->scale);
    if (r->gpu == NULL && o->clip_value > 0)
        optim_clip_values(t->optim, r->local, state, (float)(o->clip_value * r->scale));
    if (!is_wanted)
        return NAN;
    if (r->gpu == NULL) {
        optim_measure_gradient(t->optim, r->local, state);
        meet(r);
        norm = optim_gradient_norm(t->optim) / r->scale;
    } else {
        norm = sqrt(gpu_looked(r)->squares) / r->scale;
    }
    h->grad_scale *= optim_clip(norm, o->clip_norm);
    return norm;
}

static void move_weights(struct replica *r, const struct optim_hyper *h, const struct optim_state *state)
{
    struct optim *o = r->train->optim;

    if (optim_needs_norms(o)) {
        optim_measure(o, r->local, h, state);
        meet(r);
    }
    optim_update(o, r->local, h, state);
}

/* Between the gates every replica writes its own part, of weights, slots and average. All that is
 * read of the parts of others was written before the gate in front of it. */
int update_run(struct replica *r, uint64_t step, double *norm, struct err *err)
{
    struct train *t = r->train;
    struct optim_hyper h = t->opts->hyper;
    struct optim_state state = { .w = t->mem.state,
                                 .g = r->grads[0],
                                 .packed = t->mem.n_tables > 0 ? &r->rows[0] : NULL,
                                 .values = r->grads[0] + t->mem.dense,
                                 .average = t->mem.average };
    int first, middle, last, there = 0;

    h.step = step;
    h.learning_rate = optim_rate(&t->schedule, step);
    optim_cycle(&t->schedule, step, &h);
    memcpy(state.slots, t->mem.slots, sizeof(state.slots));
    *norm = measure(r, &h, &state);
    first = fault_error("train.update", err);
    if (r->gpu != NULL)
        there = gpu_update(r, &h, err);
    else
        move_weights(r, &h, &state);
    middle = fault_error("train.update_middle", err);
    if (r->local == 0) {
        if (r->gpu == NULL)
            move_statistics(t, r->grads[0]);
        t->facts.scale = loss_scale_after_good(&t->opts->loss_scale, t->facts.scale);
        live_end_step(t, step);
    }
    meet(r);
    if (r->local == 0) {
        t->facts.step = step;
        __atomic_store_n(&t->held_step, step, __ATOMIC_RELEASE);
    }
    last = fault_error("train.update_end", err);
    return there < 0 ? there : first < 0 ? first : middle < 0 ? middle : last;
}

/* What the others read of the next step is written in front of the gate. Nothing breaks that: a step is
 * skipped by all replicas of the task, or by none. */
void update_skip(struct replica *r, uint64_t step, bool overflowed)
{
    struct train *t = r->train;

    if (r->gpu != NULL)
        gpu_hold(r, step);
    if (r->local == 0) {
        if (overflowed)
            t->facts.scale = loss_scale_after_overflow(&t->opts->loss_scale, t->facts.scale);
        live_end_step(t, step);
    }
    meet(r);
    if (r->local == 0) {
        t->facts.step = step;
        __atomic_store_n(&t->held_step, step, __ATOMIC_RELEASE);
    }
}
