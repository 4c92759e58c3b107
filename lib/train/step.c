/* step.c - one optimizer step of one replica: its lanes, the reduction, its part of the update. */
#include "train/train_priv.h"

#include <math.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/clones.h"
#include "base/fault.h"
#include "op/op.h"

uint64_t step_samples(const struct train *t, uint64_t step)
{
    uint64_t batch = t->opts->global_batch;
    uint64_t first = (step - 1) % t->steps_per_epoch * batch;
    uint64_t left = data_samples(t->data) - first;

    return left < batch ? left : batch;
}

int step_feed(struct replica *r, struct plan *plan, struct data_reader *reader, struct err *err)
{
    const struct train *t = r->train;
    const struct data_batch *b;
    uint32_t n = t->opts->n_inputs;
    int rc = data_next(reader, &b, err);

    if (rc < 0)
        return rc;
    CHECK(b != NULL); /* readers are opened up to the last step that asks */
    for (uint32_t i = 0; i < n; i++) {
        const struct tensor *in = plan_input(plan, i);

        memcpy(in->data, b->features[t->feature_of_input[i]], tensor_bytes(in));
    }
    for (uint32_t i = 0; i < t->opts->n_targets; i++) {
        const struct tensor *in = plan_input(plan, n + i);

        memcpy(in->data, b->features[t->feature_of_target[i]], tensor_bytes(in));
    }
    memcpy(plan_input(plan, n + t->opts->n_targets)->data, b->weights,
           t->lane_batch * sizeof(float));
    if (reader == r->reader)
        sample_log_batch(t->samples, r->local, t->group.generation, b);
    data_release(reader);
    return 0;
}

static int feed_lane(struct replica *r, uint32_t lane, struct err *err)
{
    uint64_t before = clock_ns(), now;
    int rc = step_feed(r, r->plan, r->reader, err);

    now = clock_ns();
    r->data_ns += now - before;
    trace_add(r->trace, TRACE_DATA, lane, before, now);
    return rc;
}

static int run_plan(struct replica *r, const struct op_run *run, float *grads, plan_ready_fn *ready,
                    struct err *err)
{
    uint64_t before = trace_clock(r->trace);
    int rc = plan_forward(r->plan, run, err);

    if (rc == 0) {
        trace_calls(r->trace, false, run->lane, before);
        before = trace_clock(r->trace);
        rc = plan_backward(r->plan, run, grads, ready, r, err);
    }
    if (rc == 0)
        trace_calls(r->trace, true, run->lane, before);
    return rc < 0 ? err_wrap(err, rc, "lane %u", run->lane) : 0;
}

/* Gradients, statistics and loss of this replica's lanes, added up in grads[0]; as far as they are
 * already being reduced, the sums over all replicas. */
static int run_lanes(struct replica *r, uint64_t step, struct err *err)
{
    struct train *t = r->train;
    uint32_t n = t->lanes_per_replica;
    struct op_run run = {
        .seed = t->opts->seed,
        .step = step,
        .loss_scale = (float)(1.0 / (double)step_samples(t, step)),
    };
    uint32_t top = 0; /* arenas of the stack that are occupied */

    r->data_ns = 0;
    for (uint32_t i = 0; i < n; i++) {
        bool overlaps = i + 1 == n && r->reducer.n_buckets > 1;
        struct packed *rows = t->mem.n_tables > 0 ? &r->rows[top] : NULL;
        float *grads = r->grads[top++];
        float *control = grads + t->mem.params;
        int rc;

        run.lane = r->first_lane + i;
        rc = feed_lane(r, run.lane, err);
        plan_pack(r->plan, rows);
        if (rc == 0)
            rc = run_plan(r, &run, grads, overlaps ? reduce_ready : NULL, err);
        if (rc < 0)
            return rc;
        memset(control, 0, CONTROL_WORDS * sizeof(float));
        control[CONTROL_LOSS] = plan_loss(r->plan);
        if (t->opts->mean_of_weights)
            control[CONTROL_WEIGHT] = plan_loss_weight(r->plan);
        reduce_add_lanes(r, i, top, t->mem.grads);
        top -= tree_merges(i, n);
    }
    return 0;
}

/* The mean over what counts: nobody knows how much that is before all lanes are added up. */
CLONES static void scale(float *x, size_t n, float factor)
{
    for (size_t i = 0; i < n; i++)
        x[i] *= factor;
}

static int finish_reduction(struct replica *r, struct step_result *out, struct err *err)
{
    struct train *t = r->train;
    float *grads = r->grads[0];
    float *control = grads + t->mem.params;
    uint64_t before = clock_ns(), now;
    int rc = 0;

    if (r->local == 0) {
        unsigned asked = __atomic_load_n(&t->requests, __ATOMIC_RELAXED);

        control[CONTROL_STOP] = (asked & (TRAIN_ASK_STOP | TRAIN_ASK_STOP_ALL)) != 0;
        control[CONTROL_STOP_ALL] = (asked & TRAIN_ASK_STOP_ALL) != 0;
        control[CONTROL_STOP_WHO] = control[CONTROL_STOP] * (float)(t->group.self + 1);
    }
    if (t->comm != NULL)
        rc = reduce_rest(r, err);
    now = clock_ns();
    r->reduce_ns = now - before;
    trace_add(r->trace, TRACE_REDUCTION, 0, before, now);
    out->loss = control[CONTROL_LOSS];
    if (rc == 0 && t->opts->mean_of_weights && control[CONTROL_WEIGHT] > 0) { /* else all is 0 */
        out->loss /= (double)control[CONTROL_WEIGHT];
        scale(grads, t->mem.dense + packed_floats(&r->rows[0]), 1.0f / control[CONTROL_WEIGHT]);
    }
    out->stop = control[CONTROL_STOP] > 0;
    out->stop_everywhere = control[CONTROL_STOP_ALL] > 0;
    out->askers = (uint32_t)control[CONTROL_STOP];
    out->asker = (uint32_t)control[CONTROL_STOP_WHO] - 1;
    return rc;
}

static int update(struct replica *r, uint64_t step, double *norm, struct err *err)
{
    uint64_t before = trace_clock(r->trace);
    int rc = update_run(r, step, norm, err);

    trace_until_now(r->trace, TRACE_UPDATE, 0, before);
    return rc;
}

static void tell_step(struct replica *r, uint64_t step, const struct step_result *result,
                      double norm, uint64_t begin)
{
    struct train *t = r->train;
    uint64_t now = clock_ns();
    struct train_step_report report = {
        .step = step,
        .epoch = (step - 1) / t->steps_per_epoch,
        .loss = result->loss,
        .learning_rate = optim_rate(&t->schedule, step),
        .grad_norm = norm,
        .samples = step_samples(t, step),
        .skipped = data_skipped(t->data) +
                   (t->eval_data != NULL ? data_skipped(t->eval_data) : 0),
        .ns = now - begin,
        .data_ns = r->data_ns,
        .reduce_ns = r->reduce_ns,
        .reduce_work_ns = r->reducer.work_ns,
        .since_ns = now - t->last_report_ns,
    };
    struct train_event e = { .kind = TRAIN_STEP, .step = step, .report = &report };

    t->last_report_ns = now;
    __atomic_store_n(&t->held_step, step, __ATOMIC_RELEASE);
    train_tell(t, &e);
}

int step_run(struct replica *r, uint64_t step, struct step_result *out, struct err *err)
{
    struct train *t = r->train;
    uint64_t begin = clock_ns();
    double norm = NAN;
    int rc;

    r->trace = trace_begin(t->trace, r->local, step);
    reduce_begin(r);

    if (fault_hit("train.forward"))
        return err_set(err, ERR_DEVICE, "fault point train.forward");
    rc = run_lanes(r, step, err);
    if (rc == 0 && fault_hit("train.reduce"))
        return err_set(err, ERR_DEVICE, "fault point train.reduce");
    if (rc == 0)
        rc = sample_log_give(t->samples, r->local, err); /* before the last contribution */
    if (rc == 0)
        rc = finish_reduction(r, out, err);
    if (rc == 0 && r->local == 0)
        sample_log_done(t->samples, t->group.generation, step); /* behind the commit, before the update */
    if (rc == 0 && fault_hit("train.update"))
        return err_set(err, ERR_DEVICE, "fault point train.update");
    if (rc == 0)
        rc = update(r, step, &norm, err);
    if (rc < 0)
        return err_wrap(err, rc, "step %llu", (unsigned long long)step);
    if (r->local == 0)
        tell_step(r, step, out, norm, begin);
    if (trace_step_done(r->trace, begin))
        r->trace = NULL;
    return 0;
}
