/* step.c - one optimizer step of one replica: its lanes, the reduction, its part of the update. */
#include "train/gpu.h"
#include "train/train_priv.h"

#include <math.h>
#include <string.h>
#include <time.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/clones.h"
#include "base/fault.h"
#include "op/op.h"

enum { PERMISSION_MS = 2 };

uint64_t step_samples(const struct train *t, uint64_t step)
{
    uint64_t batch = t->opts->global_batch;
    uint64_t first = (step - 1) % t->steps_per_epoch * batch;
    uint64_t left = data_samples(t->data) - first;

    return left < batch ? left : batch;
}

float step_loss_scale(const struct replica *r, uint64_t step)
{
    return (float)(r->scale / (double)step_samples(r->train, step));
}

void step_fill(struct replica *r, struct plan *plan, const struct data_batch *b)
{
    const struct train *t = r->train;
    uint32_t n = t->opts->n_inputs;

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
}

int step_feed(struct replica *r, struct plan *plan, struct data_reader *reader, struct err *err)
{
    const struct data_batch *b;
    int rc = data_next(reader, &b, err);

    if (rc < 0)
        return rc;
    CHECK(b != NULL); /* readers are opened up to the last step that asks */
    if (r->gpu != NULL)
        rc = gpu_feed(r, plan, b, err);
    else
        step_fill(r, plan, b);
    if (rc == 0 && reader == r->reader)
        sample_log_batch(r->train->samples, r->local, b);
    data_release(reader);
    return rc;
}

static int feed_lane(struct replica *r, uint32_t lane, struct err *err)
{
    uint64_t before = clock_ns(), now;
    int rc;

    place_enter(&r->place, PHASE_DATA);
    rc = step_feed(r, r->plan, r->reader, err);
    place_enter(&r->place, PHASE_LANE);
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
    uint32_t n = r->n_lanes;
    struct op_run run = {
        .seed = t->opts->seed,
        .step = step,
        .cancel = &t->cancel,
        .loss_scale = step_loss_scale(r, step),
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
        rc = train_check_canceled(t, err);
        if (rc == 0)
            rc = feed_lane(r, run.lane, err);
        plan_pack(r->plan, rows);
        if (rc == 0)
            rc = run_plan(r, &run, grads, overlaps ? reduce_ready : NULL, err);
        if (rc < 0)
            return rc;
        memset(control, 0, (t->mem.grads - t->mem.params) * sizeof(float));
        control[CONTROL_LOSS] = plan_loss(r->plan);
        if (t->opts->mean_of_weights)
            control[CONTROL_WEIGHT] = plan_loss_weight(r->plan);
        reduce_add_lanes(r, i, top, t->mem.grads);
        top -= lane_merges(r, i);
    }
    return 0;
}

/* The mean over what counts: nobody knows how much that is before all lanes are added up. */
CLONES static void scale(float *x, size_t n, float factor)
{
    for (size_t i = 0; i < n; i++)
        x[i] *= factor;
}

/* The coordinator alone can hold up a step that it may not make now: without it nobody has the sum. */
static int wait_for_permission(struct replica *r, struct err *err)
{
    const struct train_group *g = &r->train->group;
    struct timespec nap = { .tv_nsec = PERMISSION_MS * 1000000 };
    int rc;

    if (r->local != 0 || !train_leads(r->train))
        return 0;
    rc = save_check_storage(r->train, err);
    if (rc < 0 || g->may_step == NULL || g->may_step(r->train->opts->arg))
        return rc;
    place_enter(&r->place, PHASE_PERMISSION);
    do {
        rc = train_check_canceled(r->train, err);
        if (rc < 0)
            return rc;
        nanosleep(&nap, NULL);
    } while (!g->may_step(r->train->opts->arg));
    return 0;
}

static void write_control(struct replica *r, uint64_t step)
{
    struct train *t = r->train;
    float *control = r->grads[0] + t->mem.params;

    control[CONTROL_PAUSE] =
        (__atomic_load_n(&t->requests, __ATOMIC_RELAXED) & TRAIN_ASK_PAUSE) != 0;
    control[CONTROL_WEIGH] = train_leads(t) && save_is_due(t, step);
    health_contribute(t, control);
}

static int read_control(struct replica *r, uint64_t step, struct step_result *out, struct err *err)
{
    struct train *t = r->train;
    float *grads = r->grads[0], *control = grads + t->mem.params;
    int rc = 0;

    out->loss = control[CONTROL_LOSS] / r->scale;
    if (t->opts->mean_of_weights) {
        float sum = control[CONTROL_WEIGHT] / (float)r->scale;
        float weight = sum > 0 ? sum : 1; /* 0: so is all else */
        float by = 1.0f / weight;

        out->loss /= (double)weight;
        if (r->gpu != NULL)
            rc = gpu_scale(r, by, err);
        else if (by != 1.0f)
            scale(grads, t->mem.dense + packed_floats(&r->rows[0]), by);
    }
    out->trouble = control[CONTROL_TROUBLE] > 0;
    out->pause = control[CONTROL_PAUSE] > 0;
    out->weigh = control[CONTROL_WEIGH] > 0 || health_weighs(t, step);
    return rc;
}

static int finish_reduction(struct replica *r, uint64_t step, struct step_result *out,
                            struct err *err)
{
    struct train *t = r->train;
    uint64_t before, now;
    int rc = wait_for_permission(r, err);

    if (rc < 0)
        return rc;
    place_bucket(&r->place, step, r->reducer.n_buckets - 1);
    before = clock_ns();
    if (r->local == 0)
        write_control(r, step);
    if (r->gpu != NULL)
        rc = gpu_reduce(r, err);
    else if (t->comm != NULL)
        rc = reduce_rest(r, err);
    now = clock_ns();
    r->reduce_ns = r->gpu != NULL ? gpu_waited_ns(r) : now - before; /* a GPU computes meanwhile */
    trace_add(r->trace, TRACE_REDUCTION, 0, before, now);
    return rc < 0 ? rc : read_control(r, step, out, err);
}

/* Was the step before this one equal everywhere? Its state, which is still there, may be saved then. */
static int look_back(struct replica *r, uint64_t step, struct err *err)
{
    uint64_t before;
    int rc = health_compare(r, step, err);

    if (rc < 0 || r->local != 0 || !train_leads(r->train) ||
        !health_allows(r->train, step - 1))
        return rc;
    place_enter(&r->place, PHASE_COPY);
    before = trace_clock(r->trace);
    if (save_if_due(r->train, step - 1))
        trace_until_now(r->trace, TRACE_CHECKPOINT, 0, before);
    return 0;
}

/* The step happens in all replicas of this task, or in none: behind this gate, and what is seen there
 * by all of them alike, nothing fails. */
static int commit(struct replica *r, uint64_t step, const struct step_result *result, bool *finite,
                  struct err *err)
{
    uint64_t before = trace_clock(r->trace);
    int rc;

    place_enter(&r->place, PHASE_CHECK);
    rc = fault_error("train.commit", err);
    if (rc == 0)
        health_look(r);
    if (rc == 0)
        rc = generation_gate(r, err);
    trace_until_now(r->trace, TRACE_CHECK, 0, before);
    if (rc == 0 && result->trouble) /* whose it is has not come here, and says what it was */
        rc = err_set(err, ERR_PEER, "a GPU of another task met a number that its model cannot use (an index, a "
                                    "label): its log names it. The step is not made");
    return rc < 0 ? rc : health_judge(r, step, result->loss, finite, err);
}

static int update(struct replica *r, uint64_t step, double *norm, struct err *err)
{
    uint64_t before = trace_clock(r->trace);
    int rc;

    place_enter(&r->place, PHASE_UPDATE);
    rc = update_run(r, step, norm, err);
    trace_until_now(r->trace, TRACE_UPDATE, 0, before);
    return rc;
}

void step_tell(struct replica *r, const struct facts *facts, uint64_t begin_ns)
{
    struct train *t = r->train;
    uint64_t now = clock_ns();
    bool here = begin_ns != 0;
    struct train_step_report report = {
        .step = facts->step,
        .epoch = (facts->step - 1) / t->steps_per_epoch,
        .loss = facts->loss,
        .learning_rate = optim_rate(&t->schedule, facts->step),
        .grad_norm = facts->grad_norm,
        .loss_scale = loss_scale_is_on(&t->opts->loss_scale) ? facts->scale.scale : 0,
        .samples = step_samples(t, facts->step),
        .skipped = data_skipped(t->data) +
                   (t->eval_data != NULL ? data_skipped(t->eval_data) : 0),
        .ns = here ? now - begin_ns : 0,
        .data_ns = here ? r->data_ns : 0,
        .reduce_ns = here ? r->reduce_ns : 0,
        .reduce_work_ns = here ? r->reducer.work_ns : 0,
        .since_ns = now - t->last_report_ns,
        .device_idle = here && train_on_gpus(t) ? t->device_idle : NULL,
    };
    struct train_event e = { .kind = TRAIN_STEP, .step = facts->step, .report = &report };

    t->last_report_ns = now;
    train_tell(t, &e);
}

/* Whole or not at all: what update() returns is said behind a step that was made. */
static int apply(struct replica *r, uint64_t step, const struct step_result *result, bool finite,
                 uint64_t begin, struct err *err)
{
    struct train *t = r->train;
    double norm = NAN;
    int rc = 0;

    if (finite) {
        if (r->local == 0)
            sample_log_done(t->samples, step); /* agreed, and about to be applied */
        rc = update(r, step, &norm, err);
        health_updated(r);
    } else if (health_overflowed(r, result->loss)) {
        health_overflow(r, step);
        if (r->local == 0)
            sample_log_done(t->samples, step); /* agreed, with nothing to apply */
    } else {
        rc = health_trouble(r, step, result, err);
        if (rc < 0)
            return rc;
        if (r->local == 0)
            sample_log_done(t->samples, step); /* agreed, with nothing to apply */
    }
    if (r->local != 0)
        return rc;
    t->facts.loss = result->loss;
    t->facts.grad_norm = norm;
    step_tell(r, &t->facts, begin);
    return rc;
}

static int make(struct replica *r, uint64_t step, struct step_result *out, bool *finite,
                struct err *err)
{
    int rc = fault_error("train.forward", err);

    if (rc == 0)
        rc = r->gpu != NULL ? gpu_lanes(r, step, err) : run_lanes(r, step, err);
    if (rc == 0)
        rc = fault_error("train.reduce", err);
    if (rc == 0)
        rc = sample_log_give(r->train->samples, r->local, err); /* before the last contribution */
    if (rc == 0)
        rc = finish_reduction(r, step, out, err);
    if (rc == 0)
        rc = look_back(r, step, err);
    return rc < 0 ? rc : commit(r, step, out, finite, err);
}

int step_run(struct replica *r, uint64_t step, struct step_result *out, struct err *err)
{
    struct train *t = r->train;
    uint64_t begin = clock_ns();
    bool finite = true;
    int rc;

    r->scale = t->facts.scale.scale;
    r->trace = t->tracing ? trace_begin(t->trace, r->local, step) : NULL;
    place_step(&r->place, step);
    reduce_begin(r, step);
    rc = make(r, step, out, &finite, err);
    if (rc == 0)
        rc = apply(r, step, out, finite, begin, err);
    if (rc == 0 && out->weigh)
        rc = health_weigh(r, step, err);
    if (rc == 0 && r->gpu != NULL)
        rc = gpu_clock_tell(r, err);
    if (rc < 0)
        return err_wrap(err, rc, "step %llu", (unsigned long long)step);
    if (trace_step_done(r->trace, begin))
        r->trace = NULL;
    return 0;
}
