/* locate.c - where did the first number come from that is none?
 *
 * Steps are repeatable: every replica computes its lanes of the step again, with an eye on every number
 * (plan_hunt). The lowest lane that finds something speaks for all. If none does, the lanes' numbers
 * may still be so large that their sum is infinite; else it was no number of this job that
 * did it. */
#include "train/health.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "op/op.h"
#include "train/gpu.h"
#include "train/train_priv.h"

/* What replicas tell each other; in gradient arena 0, which peers can reach. */
struct note {
    double key;     /* 0: found nothing; else the larger the lower the lane, and the rank in it */
    double largest; /* sum over lanes of the largest number in gradient and loss */
    char text[1000];
};
_Static_assert(sizeof(struct note) <= LEAST_GRADS_BYTES, "a note fits into every arena");
enum { KEY_RANKS = COMM_MAX_RANKS };

static void __attribute__((format(printf, 3, 4))) add(char *text, size_t n, const char *fmt, ...)
{
    size_t used = strlen(text);
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text + used, n - used, fmt, ap);
    va_end(ap);
}

/* ---- what everybody sees ---- */

static bool all_finite(const float *x, size_t n)
{
    size_t i = 0;

    while (i < n && isfinite(x[i]))
        i++;
    return i == n;
}

static bool is_finite_param(const struct replica *r, const struct graph_param *p, uint32_t *table)
{
    const struct memory *m = &r->train->mem;
    const struct packed *rows = &r->rows[0];
    size_t first;

    if (!p->is_table || m->n_tables == 0)
        return all_finite(r->grads[0] + p->offset, p->elements);
    first = rows->first[*table];
    ++*table;
    return all_finite(r->grads[0] + m->dense + first, rows->first[*table] - first);
}

/* "the loss is nan", "the reduced gradient of 'fc.weight' holds NaN or infinity". */
static void say_seen(const struct replica *r, double loss, char *text, size_t n)
{
    uint32_t n_params, table = 0;
    const struct graph_param *p = graph_params(r->train->graph, &n_params);

    const struct loss_scale_rule *rule = &r->train->opts->loss_scale;

    text[0] = '\0';
    if (loss_scale_is_on(rule))
        add(text, n, "with a loss scale of %.10g%s ", r->scale, r->scale <= rule->min ? ", the least," : "");
    if (!isfinite(loss))
        add(text, n, "the loss is %s", isnan(loss) ? "nan" : loss > 0 ? "inf" : "-inf");
    for (uint32_t i = 0; i < n_params; i++) {
        if (is_finite_param(r, &p[i], &table))
            continue;
        add(text, n, "%sthe reduced %s of '%s' holds NaN or infinity", isfinite(loss) ? "" : ", ",
            p[i].kind == GRAPH_STATISTIC ? "statistic" : "gradient", p[i].name);
        return;
    }
}

/* ---- a lane again ---- */

static float largest_of(const float *x, size_t n, float largest)
{
    for (size_t i = 0; i < n; i++)
        largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
    return largest;
}

static void say_lane(const struct replica *r, uint64_t step, uint32_t lane, const struct data_batch *b,
                     const struct plan_culprit *c, char *text, size_t n)
{
    const struct train *t = r->train;
    char name[32];
    uint64_t first = (step - 1) % t->steps_per_epoch * t->opts->global_batch +
                     (uint64_t)lane * t->lane_batch;

    text[0] = '\0';
    add(text, n, "lane %" PRIu32 " (positions %" PRIu64 " to %" PRIu64 " of epoch %" PRIu64 ")", lane,
        first, first + t->lane_batch - 1, (step - 1) / t->steps_per_epoch);
    if (c->sample < t->lane_batch)
        add(text, n, ", sample %" PRIu64 " of the data at position %" PRIu64, b->samples[c->sample],
            first + c->sample);
    add(text, n, ": %s", c->text);
    device_name(&t->opts->devices[r->local], name, sizeof(name));
    if (r->gpu != NULL)
        add(text, n, ", on %s of %s", name, t->members[t->group.self].name);
}

static int again_here(struct replica *r, const struct op_run *run, const struct data_batch *b,
                      struct err *err)
{
    int rc;

    step_fill(r, r->plan, b);
    plan_pack(r->plan, r->train->mem.n_tables > 0 ? &r->rows[0] : NULL);
    rc = plan_forward(r->plan, run, err);
    return rc < 0 ? rc : plan_backward(r->plan, run, r->grads[0], NULL, NULL, err);
}

static int again_there(struct replica *r, const struct op_run *run, const struct data_batch *b,
                       struct err *err)
{
    int rc = gpu_feed(r, r->plan, b, err);

    if (rc == 0)
        rc = gpu_run(r, r->plan, run, true, err);
    return rc < 0 ? rc : gpu_show(r, err);
}

/* One lane; *largest grows. */
static int run_lane(struct replica *r, const struct op_run *run, const struct plan_culprit *culprit,
                    double *largest, char *text, size_t n, struct err *err)
{
    struct train *t = r->train;
    const struct data_batch *b;
    float *grads = r->grads[0], top;
    int rc = data_next(r->side_reader, &b, err);

    if (rc < 0)
        return rc;
    CHECK(b != NULL);
    rc = r->gpu != NULL ? again_there(r, run, b, err) : again_here(r, run, b, err);
    if (rc == 0 && culprit->found)
        say_lane(r, run->step, run->lane, b, culprit, text, n);
    if (rc == 0) {
        top = largest_of(grads, t->mem.dense, fabsf(plan_loss(r->plan)));
        if (t->mem.n_tables > 0)
            top = largest_of(grads + t->mem.dense, packed_floats(&r->rows[0]), top);
        *largest += top;
    }
    data_release(r->side_reader);
    return rc;
}

/* Up to the first lane of ours that has something to say: *lane, else t->opts->lanes. */
static int run_lanes(struct replica *r, uint64_t step, uint32_t *lane, double *largest, char *text,
                     size_t n, struct err *err)
{
    struct train *t = r->train;
    const struct train_opts *o = t->opts;
    struct data_reader_opts ro = replica_reads(r, step, step);
    struct op_run run = { .seed = o->seed, .step = step, .cancel = &t->cancel,
                          .loss_scale = step_loss_scale(r, step) };
    struct plan_culprit culprit = { .found = false };
    int rc = reader_open(t, t->data, &ro, &r->side_reader, err);

    if (rc < 0)
        return rc;
    *lane = o->lanes;
    *largest = 0;
    plan_hunt(r->plan, &culprit);
    for (uint32_t i = 0; rc == 0 && i < ro.n_lanes && !culprit.found; i++) {
        run.lane = r->first_lane + i;
        rc = run_lane(r, &run, &culprit, largest, text, n, err);
        if (rc == 0 && culprit.found)
            *lane = run.lane;
    }
    plan_hunt(r->plan, NULL);
    reader_close(t, &r->side_reader);
    return rc;
}

/* ---- the same on every task ---- */

static int share(struct replica *r, struct note *note, struct err *err)
{
    struct comm *c = r->train->comm;
    uint32_t root;
    int rc;

    if (c == NULL)
        return 0;
    rc = comm_all_reduce(c, r->local, &note->key, 1, TENSOR_F64, COMM_MAX, err);
    if (rc == 0)
        rc = comm_all_reduce(c, r->local, &note->largest, 1, TENSOR_F64, COMM_SUM, err);
    root = (uint32_t)fmod(note->key, KEY_RANKS);
    if (rc == 0 && note->key > 0)
        rc = comm_broadcast(c, r->local, note->text, sizeof(note->text), root, err);
    return rc;
}

int locate_run(struct replica *r, uint64_t step, const struct step_result *result, char *text,
               size_t n, struct err *err)
{
    struct train *t = r->train;
    struct note *note = (struct note *)r->grads[0];
    float weight = r->grads[0][t->mem.params + CONTROL_WEIGHT];
    double shrink = t->opts->mean_of_weights && weight > 0 ? (double)weight / r->scale : 1, largest;
    char found[sizeof(note->text)] = "", seen[400];
    uint32_t lane;
    struct train_event e = { .kind = TRAIN_WARN, .step = step, .text = text };
    int rc = 0;

    if (r->gpu != NULL)
        rc = gpu_show(r, err);
    if (rc < 0)
        return rc;
    say_seen(r, result->loss, seen, sizeof(seen));
    if (r->local == 0) {
        snprintf(text, n, "step %" PRIu64 ": %s; its lanes are computed again to find out why", step,
                 seen);
        train_tell(t, &e);
    }
    rc = run_lanes(r, step, &lane, &largest, found, sizeof(found), err);
    if (rc < 0)
        return rc;
    note->key = lane < t->opts->lanes ? (double)(t->opts->lanes - lane) * KEY_RANKS + r->rank : 0;
    note->largest = largest / shrink;
    memcpy(note->text, found, sizeof(found));
    rc = share(r, note, err);
    if (rc < 0)
        return rc;
    text[0] = '\0';
    add(text, n, "step %" PRIu64 ": %s; ", step, seen);
    if (note->key > 0)
        add(text, n, "first in %s", note->text);
    else if (note->largest > FLT_MAX)
        add(text, n, "every lane's numbers are finite, up to %g together, but their sum is not",
            note->largest);
    else
        add(text, n, "when every lane was computed again all was finite: a processor or memory of %s "
                     "computed or kept something wrong",
            t->group.n_members == 1 ? t->members[0].name : "one of the tasks, nobody knows which,");
    return 0;
}
