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
    data_release(reader);
    return 0;
}

/* Gradients, statistics and loss of this replica's lanes, added up in grads[0]. */
static int run_lanes(struct replica *r, uint64_t step, struct err *err)
{
    struct train *t = r->train;
    size_t n = t->mem.grads;
    struct op_run run = {
        .seed = t->opts->seed,
        .step = step,
        .loss_scale = (float)(1.0 / (double)step_samples(t, step)),
    };
    uint32_t top = 0; /* arenas of the stack that are occupied */

    r->data_ns = 0;
    for (uint32_t i = 0; i < t->lanes_per_replica; i++) {
        float *grads = r->grads[top++];
        float *control = grads + t->mem.params;
        uint64_t before = clock_ns();
        int rc = step_feed(r, r->plan, r->reader, err);

        if (rc < 0)
            return rc;
        r->data_ns += clock_ns() - before;
        run.lane = r->first_lane + i;
        rc = plan_forward(r->plan, &run, err);
        if (rc == 0)
            rc = plan_backward(r->plan, &run, grads, NULL, NULL, err);
        if (rc < 0)
            return err_wrap(err, rc, "lane %u", run.lane);
        memset(control, 0, CONTROL_WORDS * sizeof(float));
        control[CONTROL_LOSS] = plan_loss(r->plan);
        if (t->opts->mean_of_weights)
            control[CONTROL_WEIGHT] = plan_loss_weight(r->plan);
        for (uint32_t m = tree_merges(i, t->lanes_per_replica); m > 0; m--, top--)
            tree_add_f32(r->grads[top - 2], r->grads[top - 1], n);
    }
    return 0;
}

/* The mean over what counts: nobody knows how much that is before all lanes are added up. */
CLONES static void scale(float *x, size_t n, float factor)
{
    for (size_t i = 0; i < n; i++)
        x[i] *= factor;
}

static int reduce(struct replica *r, struct step_result *out, struct err *err)
{
    struct train *t = r->train;
    float *grads = r->grads[0];
    float *control = grads + t->mem.params;
    uint64_t before = clock_ns();
    int rc = 0;

    if (r->local == 0) {
        unsigned asked = __atomic_load_n(&t->requests, __ATOMIC_RELAXED);

        control[CONTROL_STOP] = (asked & (TRAIN_ASK_STOP | TRAIN_ASK_STOP_ALL)) != 0;
        control[CONTROL_STOP_ALL] = (asked & TRAIN_ASK_STOP_ALL) != 0;
        control[CONTROL_STOP_WHO] = control[CONTROL_STOP] * (float)(t->group.self + 1);
    }
    if (t->comm != NULL)
        rc = comm_all_reduce(t->comm, r->local, grads, t->mem.grads, TENSOR_F32, COMM_SUM, err);
    r->reduce_ns = clock_ns() - before;
    out->loss = control[CONTROL_LOSS];
    if (rc == 0 && t->opts->mean_of_weights && control[CONTROL_WEIGHT] > 0) { /* else all is 0 */
        out->loss /= (double)control[CONTROL_WEIGHT];
        scale(grads, t->mem.trained, 1.0f / control[CONTROL_WEIGHT]);
    }
    out->stop = control[CONTROL_STOP] > 0;
    out->stop_everywhere = control[CONTROL_STOP_ALL] > 0;
    out->askers = (uint32_t)control[CONTROL_STOP];
    out->asker = (uint32_t)control[CONTROL_STOP_WHO] - 1;
    return rc;
}

int step_run(struct replica *r, uint64_t step, struct step_result *out, struct err *err)
{
    struct train *t = r->train;
    uint64_t begin = clock_ns();
    double norm = NAN;
    int rc;

    if (fault_hit("train.forward"))
        return err_set(err, ERR_DEVICE, "fault point train.forward");
    rc = run_lanes(r, step, err);
    if (rc == 0 && fault_hit("train.reduce"))
        return err_set(err, ERR_DEVICE, "fault point train.reduce");
    if (rc == 0)
        rc = reduce(r, out, err);
    if (rc == 0 && fault_hit("train.update"))
        return err_set(err, ERR_DEVICE, "fault point train.update");
    if (rc == 0)
        rc = update_run(r, step, &norm, err);
    if (rc < 0)
        return err_wrap(err, rc, "step %llu", (unsigned long long)step);
    if (r->local == 0) {
        uint64_t now = clock_ns();
        struct train_step_report report = {
            .step = step,
            .epoch = (step - 1) / t->steps_per_epoch,
            .loss = out->loss,
            .learning_rate = optim_rate(&t->schedule, step),
            .grad_norm = norm,
            .samples = step_samples(t, step),
            .skipped = data_skipped(t->data) +
                       (t->eval_data != NULL ? data_skipped(t->eval_data) : 0),
            .ns = now - begin,
            .data_ns = r->data_ns,
            .reduce_ns = r->reduce_ns,
            .since_ns = now - t->last_report_ns,
        };
        struct train_event e = { .kind = TRAIN_STEP, .step = step, .report = &report };

        t->last_report_ns = now;
        __atomic_store_n(&t->held_step, step, __ATOMIC_RELEASE);
        train_tell(t, &e);
    }
    return 0;
}
