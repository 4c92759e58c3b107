/* step.c - one optimizer step of one replica: its lanes, the reduction, its part of the update. */
#include "train/train_priv.h"

#include <math.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/fault.h"
#include "op/op.h"

uint64_t step_samples(const struct train *t, uint64_t step)
{
    uint64_t batch = t->opts->global_batch;
    uint64_t first = (step - 1) % t->steps_per_epoch * batch;
    uint64_t left = data_records(t->data) - first;

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
    memcpy(plan_input(plan, n)->data, b->features[t->label_feature],
           tensor_bytes(plan_input(plan, n)));
    memcpy(plan_input(plan, n + 1)->data, b->weights, t->lane_batch * sizeof(float));
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
        for (uint32_t m = tree_merges(i, t->lanes_per_replica); m > 0; m--, top--)
            tree_add_f32(r->grads[top - 2], r->grads[top - 1], n);
    }
    return 0;
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
    out->stop = control[CONTROL_STOP] > 0;
    out->stop_everywhere = control[CONTROL_STOP_ALL] > 0;
    out->askers = (uint32_t)control[CONTROL_STOP];
    out->asker = (uint32_t)control[CONTROL_STOP_WHO] - 1;
    return rc;
}

/* This replica's part of the trained floats, cut at blocks so that norm and update do not
 * depend on how many replicas there are. */
static void part_of(const struct replica *r, size_t *first, size_t *n)
{
    const struct train *t = r->train;
    size_t blocks = (t->mem.trained + OPTIM_BLOCK - 1) / OPTIM_BLOCK;
    uint32_t parts = t->opts->n_devices;
    size_t begin = blocks * r->local / parts * OPTIM_BLOCK;
    size_t end = blocks * (r->local + 1) / parts * OPTIM_BLOCK;

    if (end > t->mem.trained)
        end = t->mem.trained;
    *first = begin;
    *n = end - begin;
}

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
}

static int canceled(struct err *err)
{
    return err_set(err, ERR_CANCELED, "another replica of this task ended the generation");
}

static int update(struct replica *r, uint64_t step, double *norm, struct err *err)
{
    struct train *t = r->train;
    const struct train_opts *o = t->opts;
    struct optim_hyper h = o->hyper;
    float *slots[OPTIM_MAX_SLOTS] = { NULL };
    size_t first, n;

    part_of(r, &first, &n);
    *norm = NAN;
    h.grad_scale = 1;
    if (o->clip_norm > 0 || (o->norm_every_steps > 0 && step % o->norm_every_steps == 0)) {
        optim_square_sums(r->grads[0] + first, n, t->norm_partials + first / OPTIM_BLOCK);
        if (!gate_wait(&t->gate))
            return canceled(err);
        *norm = optim_norm(t->norm_partials, (t->mem.trained + OPTIM_BLOCK - 1) / OPTIM_BLOCK);
        h.grad_scale = optim_clip(*norm, o->clip_norm);
    }
    h.learning_rate = optim_rate(&t->schedule, step);
    h.step = step;
    for (uint32_t s = 0; s < o->optimizer->n_slots; s++)
        slots[s] = t->mem.slots[s] + first;
    o->optimizer->sweep(&h, n, t->mem.state + first, r->grads[0] + first, slots);
    if (r->local == 0)
        move_statistics(t, r->grads[0]);
    return gate_wait(&t->gate) ? 0 : canceled(err);
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
        rc = update(r, step, &norm, err);
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
