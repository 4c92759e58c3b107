/* gpu_step.c - what a GPU does for a step, and for other passes over data. See gpu.h. */
#include "train/gpu_priv.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/fault.h"
#include "graph/graph.h"

/* NCCL keeps a network busy with pieces of this size; a smaller last one is waited for shorter. */
enum { GPU_BUCKET_BYTES = 16 << 20 };

/* ---- a batch on its way ---- */

static void fill_slot(struct replica *r, struct gpu_slot *s, struct plan *plan, const struct data_batch *b)
{
    const struct train *t = r->train;
    uint32_t n = t->opts->n_inputs, i;

    for (i = 0; i < n + t->opts->n_targets; i++) {
        uint32_t feature = i < n ? t->feature_of_input[i] : t->feature_of_target[i - n];

        memcpy(s->pinned + gpu_input_at(r, plan, i), b->features[feature], tensor_bytes(plan_input(plan, i)));
    }
    memcpy(s->pinned + gpu_input_at(r, plan, i), b->weights, t->lane_batch * sizeof(float));
    memcpy(s->samples, b->samples, t->lane_batch * sizeof(*s->samples));
    s->b = *b;
    s->b.samples = s->samples;
    s->b.features = NULL;
    s->b.weights = NULL;
}

/* To the stage, when the lane that was there has been taken and the host's copy is ours again. */
static int send_slot(struct replica *r, struct gpu_slot *s, struct plan *plan, const struct data_batch *b,
                     struct err *err)
{
    struct gpu *g = r->gpu;
    int rc = gpu_wait(r, s->brought, err);

    if (rc < 0)
        return rc;
    fill_slot(r, s, plan, b);
    rc = g->cuda->wait(g->feed, s->taken, err);
    if (rc == 0)
        rc = gpu_mark_begin(r, TRACE_FEED, err);
    if (rc == 0)
        rc = g->cuda->copy(s->stage, s->pinned, g->inputs_bytes, g->feed, err);
    if (rc == 0)
        rc = gpu_mark(r, TRACE_FEED, TRACE_DATA, b->lane, err);
    if (rc == 0)
        rc = g->cuda->record(s->brought, g->feed, err);
    s->is_full = rc == 0;
    return rc;
}

/* The next batch of the training data, if there is one. */
static int fetch(struct replica *r, struct gpu_slot *s, struct err *err)
{
    const struct data_batch *b;
    uint64_t before = clock_ns(), now;
    int rc = data_next(r->reader, &b, err);

    now = clock_ns();
    r->data_ns += now - before;
    if (rc < 0 || b == NULL)
        return rc;
    trace_add(r->trace, TRACE_DATA, b->lane, before, now);
    rc = send_slot(r, s, r->plan, b, err);
    data_release(r->reader);
    return rc;
}

/* The calls of a lane begin with it: they may be captured. */
static int take_inputs(struct replica *r, struct gpu_slot *s, struct plan *plan, struct err *err)
{
    struct gpu *g = r->gpu;
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < gpu_n_inputs(r->train); i++) {
        const struct tensor *in = plan_input(plan, i);

        rc = g->cuda->copy(in->data, s->stage + gpu_input_at(r, plan, i), tensor_bytes(in), g->work, err);
    }
    return rc;
}

/* What the lane is, for its kernels. `run` of the slot is free: the lane before in it is over. */
static int give_run(struct replica *r, struct gpu_slot *s, const struct op_run *run, struct err *err)
{
    struct gpu *g = r->gpu;

    *s->run = *run;
    s->run->queue = g->work;
    s->run->there = s->run_there;
    s->run->trouble = g->trouble;
    return g->cuda->copy(s->run_there, s->run, sizeof(*s->run), g->work, err);
}

/* ---- buckets ---- */

static size_t bucket_floats(const struct train *t)
{
    return (t->opts->bucket_bytes > 0 ? t->opts->bucket_bytes : GPU_BUCKET_BYTES) / sizeof(float);
}

/* Lanes that end with this one are added up in [begin, end), along their tree. */
static int add_lanes(struct replica *r, uint32_t lane, uint32_t top, size_t begin, size_t end, struct err *err)
{
    struct gpu *g = r->gpu;
    int rc = 0;

    for (uint32_t m = lane_merges(r, lane); rc == 0 && m > 0; m--, top--)
        rc = g->cuda->math->add(g->grads[top - 2] + begin, g->grads[top - 1] + begin, end - begin, g->work, err);
    return rc < 0 || lane_merges(r, lane) == 0 ? rc : gpu_mark(r, TRACE_WORK, TRACE_SUMS, lane, err);
}

/* Floats [begin, end) of arena 0 are final on the work stream: all replicas sum them up on theirs. */
static int sum_up(struct replica *r, size_t begin, size_t end, struct err *err)
{
    struct gpu *g = r->gpu;
    int rc = g->cuda->record(g->ready, g->work, err);

    if (rc == 0)
        rc = g->cuda->wait(g->sums, g->ready, err);
    if (rc == 0)
        rc = gpu_mark_begin(r, TRACE_SUM, err);
    if (rc == 0)
        rc = g->cuda->comm_sum(g->comm, g->grads[0] + begin, end - begin, g->sums, err);
    return rc < 0 ? rc : gpu_mark(r, TRACE_SUM, TRACE_REDUCTION, (uint32_t)(begin / bucket_floats(r->train)), err);
}

uint32_t gpu_pieces(const struct train *t)
{
    return (uint32_t)(t->mem.grads / bucket_floats(t)) + 2;
}

/* The work stream goes on when all sums so far are there. */
static int wait_in_stream(struct replica *r, struct err *err)
{
    struct gpu *g = r->gpu;
    int rc = g->cuda->record(g->summed, g->sums, err);

    if (rc == 0)
        rc = g->cuda->wait(g->work, g->summed, err);
    return rc < 0 ? rc : gpu_mark(r, TRACE_WORK, TRACE_REDUCTION, 0, err);
}

struct ready {
    struct replica *r;
    uint32_t lane;
    int rc;
    struct err *err;
};

static void on_ready(void *arg, size_t offset, size_t n)
{
    struct ready *x = arg;
    struct replica *r = x->r;
    size_t floats = bucket_floats(r->train), whole = (offset + n) / floats * floats, from = r->reducer.added;

    if (whole <= from || x->rc < 0)
        return;
    x->rc = add_lanes(r, x->lane, lane_merges(r, x->lane) + 1, from, whole, x->err);
    if (x->rc == 0)
        x->rc = sum_up(r, from, whole, x->err);
    r->reducer.added = whole;
}

/* ---- a lane ---- */

static int write_numbers(struct replica *r, float *grads, struct err *err)
{
    struct train *t = r->train;
    struct gpu *g = r->gpu;
    float *control = grads + t->mem.params;
    int rc = g->cuda->fill(control, 0, gpu_control_floats(t) * sizeof(float), g->work, err);

    if (rc == 0)
        rc = g->cuda->copy(control + CONTROL_LOSS, plan_loss_at(r->plan), sizeof(float), g->work, err);
    if (rc == 0 && t->opts->mean_of_weights)
        rc = g->cuda->copy(control + CONTROL_WEIGHT, plan_loss_weight_at(r->plan), sizeof(float), g->work, err);
    return rc;
}

/* All that the GPU does for lane i, which lies in arena top - 1 of the tree: may be captured. */
static int calls(struct replica *r, struct gpu_slot *s, uint32_t i, uint32_t top, struct err *err)
{
    struct gpu *g = r->gpu;
    bool last = i + 1 == r->n_lanes;
    struct ready ready = { .r = r, .lane = i, .err = err };
    struct op_run run = *s->run;
    uint32_t from;
    int rc = gpu_mark_begin(r, TRACE_WORK, err);

    if (rc == 0)
        rc = take_inputs(r, s, r->plan, err);
    if (rc == 0)
        rc = gpu_mark(r, TRACE_WORK, TRACE_DATA, run.lane, err);
    plan_watch(r->plan, r->trace != NULL ? gpu_mark_call : NULL, r); /* who captures has no trace */
    r->reducer.added = 0;
    from = gpu_mark_here(r);
    if (rc == 0)
        rc = plan_forward(r->plan, &run, err);
    if (rc == 0)
        gpu_mark_whole(r, TRACE_FORWARD, run.lane, from);
    if (rc == 0) /* backward may use the memory of the loss */
        rc = write_numbers(r, g->grads[top - 1], err);
    if (rc == 0)
        rc = gpu_mark_begin(r, TRACE_WORK, err);
    from = gpu_mark_here(r);
    if (rc == 0)
        rc = plan_backward(r->plan, &run, g->grads[top - 1], last && g->comm != NULL ? on_ready : NULL, &ready,
                           err);
    plan_watch(r->plan, NULL, NULL);
    if (rc == 0)
        rc = ready.rc;
    if (rc == 0)
        gpu_mark_whole(r, TRACE_BACKWARD, run.lane, from);
    if (rc == 0)
        rc = add_lanes(r, i, top, r->reducer.added, g->grads_floats, err);
    if (rc == 0 && last && g->comm != NULL)
        rc = g->cuda->copy(&g->back->computed, &s->run_there->step, sizeof(g->back->computed), g->work, err);
    if (rc == 0 && r->reducer.added > 0) /* behind the buckets, too */
        rc = wait_in_stream(r, err);
    return rc;
}

/* The first time a lane's libraries settle what they have to; the second time its calls are captured. A lane
 * has calls for every other step, which decides its slot too where lanes are odd in number: NCCL wants its
 * sums captured by all ranks in the same step or by none, however many lanes each has. */
static int launch(struct replica *r, struct gpu_slot *s, uint32_t i, uint32_t top, struct err *err)
{
    struct gpu *g = r->gpu;
    struct gpu_lane *lane = &g->lanes[i * GPU_SLOTS + (g->step - g->first_step) % GPU_SLOTS];
    struct err ignored;
    int rc;

    CHECK(lane->slot == NULL || lane->slot == s);
    CHECK(r->trace == NULL || g->step <= r->train->plain_until); /* a graph has no marks in it */
    if (lane->slot == NULL || g->step <= r->train->plain_until) {
        lane->slot = s;
        return calls(r, s, i, top, err); /* leaves r->reducer.added */
    }
    if (lane->graph == NULL) {
        rc = g->cuda->capture(g->work, err);
        if (rc < 0)
            return rc;
        rc = calls(r, s, i, top, err);
        if (rc < 0) {
            if (g->cuda->captured(g->work, &lane->graph, &ignored) == 0) /* it is half of one */
                g->cuda->graph_close(lane->graph);
            lane->graph = NULL;
            return rc;
        }
        rc = g->cuda->captured(g->work, &lane->graph, err);
        if (rc < 0)
            return rc;
        lane->added = r->reducer.added;
    }
    r->reducer.added = lane->added;
    return g->cuda->launch(lane->graph, g->work, err);
}

static int run_lane(struct replica *r, const struct op_run *run, uint32_t i, uint32_t top, struct err *err)
{
    struct gpu *g = r->gpu;
    struct gpu_slot *s = &g->slot[g->next];
    int rc = 0;

    place_enter(&r->place, PHASE_DATA);
    if (!s->is_full)
        rc = fetch(r, s, err);
    CHECK(rc < 0 || s->is_full); /* readers are opened up to the last step that asks */
    if (rc < 0)
        return rc;
    sample_log_batch(r->train->samples, r->local, &s->b);
    place_enter(&r->place, PHASE_LANE);
    rc = gpu_wait(r, s->taken, err); /* the lane before in this slot: its `run` is ours again */
    if (rc == 0 && i + 1 == r->n_lanes && g->comm != NULL)
        rc = fault_error("train.bucket", err); /* those that its calls sum up */
    if (rc == 0)
        rc = give_run(r, s, run, err);
    if (rc == 0)
        rc = g->cuda->wait(g->work, s->brought, err);
    if (rc == 0)
        rc = gpu_busy(r, err);
    if (rc == 0)
        rc = launch(r, s, i, top, err);
    if (rc == 0)
        rc = gpu_rest(r, err);
    if (rc == 0)
        rc = g->cuda->record(s->taken, g->work, err);
    s->is_full = false;
    g->next = (g->next + 1) % GPU_SLOTS;
    return rc < 0 ? err_wrap(err, rc, "lane %u", run->lane) : 0;
}

int gpu_lanes(struct replica *r, uint64_t step, struct err *err)
{
    struct train *t = r->train;
    struct op_run run = { .seed = t->opts->seed,
                          .step = step,
                          .loss_scale = step_loss_scale(r, step) };
    uint32_t top = 0;
    int rc = r->gpu->proves ? r->gpu->cuda->record(r->gpu->began, r->gpu->work, err) : 0;

    memset(r->grads[0] + t->mem.params, 0, gpu_control_floats(t) * sizeof(float)); /* sums of the step before */
    r->gpu->step = step;
    r->data_ns = 0;
    gpu_clock_begin(r);
    if (r->gpu->first_step == 0)
        r->gpu->first_step = step;
    for (uint32_t i = 0; rc == 0 && i < r->n_lanes; i++) {
        run.lane = r->first_lane + i;
        rc = train_check_canceled(t, err);
        if (rc == 0)
            rc = run_lane(r, &run, i, ++top, err);
        top -= lane_merges(r, i);
    }
    if (rc == 0 && r->gpu->proves)
        rc = r->gpu->cuda->record(r->gpu->ended, r->gpu->work, err);
    return rc;
}

/* The device that was asked for is the one that worked, by its own clock. */
static void prove(struct replica *r)
{
    struct train *t = r->train;
    struct gpu *g = r->gpu;
    char text[256], name[32];
    struct train_event e = { .kind = TRAIN_NOTE, .text = text };

    if (!g->proves)
        return;
    g->proves = false;
    device_name(&t->opts->devices[r->local], name, sizeof(name));
    snprintf(text, sizeof(text), "%s computed lanes %" PRIu32 " to %" PRIu32 " of the first step in %.1f ms",
             name, r->first_lane, r->first_lane + r->n_lanes - 1, g->cuda->elapsed_ms(g->began, g->ended));
    train_tell(t, &e);
}

/* What follows on the work stream is work of this step, behind a wait of the host. */
static int begin_work(struct replica *r, struct err *err)
{
    int rc = gpu_busy(r, err);

    return rc < 0 ? rc : gpu_mark_begin(r, TRACE_WORK, err);
}

/* ---- the reduction ---- */

/* Words behind loss and weight: those the lanes have written. Behind the trouble another replica's are 0. */
static int send_control(struct replica *r, struct err *err)
{
    struct train *t = r->train;
    struct gpu *g = r->gpu;
    size_t n = gpu_control_floats(t) - CONTROL_PAUSE;
    float *from = g->back->control + CONTROL_PAUSE;
    int rc = g->cuda->copy(g->grads[0] + t->mem.params + CONTROL_TROUBLE, &g->trouble->found, sizeof(float),
                           g->work, err);

    if (rc < 0 || r->local != 0)
        return rc;
    memcpy(from, r->grads[0] + t->mem.params + CONTROL_PAUSE, n * sizeof(float));
    return g->cuda->copy(g->grads[0] + t->mem.params + CONTROL_PAUSE, from, n * sizeof(float), g->work, err);
}

/* Of the last GPU of a task: the others have to see it. */
static int meet_faults(struct replica *r, struct err *err)
{
    int rc = 0;

    if (r->local + 1 != r->train->opts->n_devices)
        return 0;
    if (fault_hit("health.flip_gradient"))
        rc = gpu_spoil(r, GPU_GRADIENT, false, err);
    if (rc == 0 && fault_hit("health.not_finite"))
        rc = gpu_spoil(r, GPU_GRADIENT, true, err);
    return rc;
}

static int look(struct replica *r, struct err *err)
{
    struct train *t = r->train;
    struct gpu *g = r->gpu;
    float clip = (float)(t->opts->clip_value * r->scale);
    int rc = meet_faults(r, err);

    if (rc == 0)
        rc = g->cuda->math->optim_look(g->optim, g->grads[0], clip, g->look, g->work, err);
    if (rc == 0)
        rc = g->cuda->copy(&g->back->look, g->look, sizeof(*g->look), g->work, err);
    return rc < 0 ? rc : gpu_mark(r, TRACE_WORK, TRACE_CHECK, 0, err);
}

/* The first batch of the next lane goes to the GPU while this step's sums are under way. */
static int fetch_ahead(struct replica *r, struct err *err)
{
    struct gpu_slot *s = &r->gpu->slot[r->gpu->next];

    return s->is_full ? 0 : fetch(r, s, err);
}

struct sums_wait {
    struct replica *r;
    uint64_t since_ns, said_ns; /* others are waited for, and that was said last; 0: it computes itself */
};

enum { SAY_NS = 50000000 };

/* Who waits for others says so again and again: the one who hangs does not (progress.c). */
static int look_at_sums(void *arg, struct err *err)
{
    struct sums_wait *w = arg;
    struct replica *r = w->r;
    int rc = gpu_look_around(r, err);

    if (rc < 0) {
        if (rc == ERR_CANCELED && w->since_ns > 0)
            gpu_tell_wait(r, w->since_ns, "the sums of the GPUs");
        return rc;
    }
    if (r->gpu->comm == NULL ||
        __atomic_load_n(&r->gpu->back->computed, __ATOMIC_RELAXED) != r->gpu->step)
        return 0;
    if (w->since_ns == 0)
        w->since_ns = clock_ns();
    if (clock_ns() - w->said_ns > SAY_NS) {
        w->said_ns = clock_ns();
        place_wait(&r->place, PLACE_WAITS_PEERS);
    }
    return gpu_check_peers(r, w->since_ns, err);
}

static int wait_for_sums(struct replica *r, struct err *err)
{
    struct sums_wait w = { .r = r };
    int rc = device_watch(r->gpu->cuda, r->gpu->work, NULL, look_at_sums, &w, err);

    r->gpu->waited_ns = w.since_ns > 0 ? clock_ns() - w.since_ns : 0;
    return rc < 0 ? err_wrap(err, rc, "sum up the gradients (NCCL)") : 0;
}

/* Until the work stream is at rest: the error of a number that cannot be, if this GPU has met one. */
static int check_trouble(struct replica *r, const struct plan *plan, struct err *err)
{
    struct gpu *g = r->gpu;
    int rc = g->cuda->copy(&g->back->trouble, g->trouble, sizeof(*g->trouble), g->work, err);

    if (rc == 0)
        rc = gpu_wait(r, NULL, err);
    return rc == 0 && g->back->trouble.found != 0 ? plan_refuse(plan, &g->back->trouble, err) : rc;
}

int gpu_reduce(struct replica *r, struct err *err)
{
    struct train *t = r->train;
    struct gpu *g = r->gpu;
    size_t n = gpu_control_floats(t) * sizeof(float);
    int rc = begin_work(r, err);

    if (rc == 0)
        rc = send_control(r, err);
    if (rc == 0 && g->comm != NULL)
        rc = fault_error("train.bucket", err);
    if (rc == 0 && g->comm != NULL)
        rc = sum_up(r, r->reducer.added, g->grads_floats, err);
    if (rc == 0 && g->comm != NULL)
        rc = wait_in_stream(r, err);
    if (rc == 0)
        rc = g->cuda->copy(g->back->control, g->grads[0] + t->mem.params, n, g->work, err);
    if (rc == 0 && !t->opts->mean_of_weights) /* else it is not yet what will be used: gpu_scale() */
        rc = look(r, err);
    if (rc == 0)
        rc = gpu_rest(r, err);
    if (rc == 0)
        rc = fetch_ahead(r, err);
    if (rc < 0)
        return rc;
    rc = wait_for_sums(r, err);
    place_wait(&r->place, PLACE_WORKS);
    if (rc < 0)
        return rc;
    memcpy(r->grads[0] + t->mem.params, g->back->control, n);
    prove(r);
    gpu_clock_read(r);
    if (g->back->control[CONTROL_TROUBLE] > 0) /* somewhere */
        rc = check_trouble(r, r->plan, err);
    return rc < 0 ? err_wrap(err, rc, "lane %" PRIu32, g->back->trouble.lane) : 0;
}

int gpu_scale(struct replica *r, float by, struct err *err)
{
    struct train *t = r->train;
    struct gpu *g = r->gpu;
    int rc = begin_work(r, err);

    if (rc == 0)
        rc = g->cuda->math->scale(g->grads[0], t->mem.trained, by, g->work, err);
    if (rc == 0)
        rc = look(r, err);
    if (rc == 0)
        rc = gpu_rest(r, err);
    return rc < 0 ? rc : gpu_wait(r, NULL, err);
}

uint64_t gpu_waited_ns(const struct replica *r)
{
    return r->gpu->waited_ns;
}

const struct cuda_look *gpu_looked(const struct replica *r)
{
    return &r->gpu->back->look;
}

int gpu_show(struct replica *r, struct err *err)
{
    struct gpu *g = r->gpu;
    int rc = g->cuda->copy(r->grads[0], g->grads[0], r->train->mem.params * sizeof(float), g->work, err);

    return rc < 0 ? rc : gpu_wait(r, NULL, err);
}

/* ---- the update ---- */

int gpu_update(struct replica *r, const struct optim_hyper *h, struct err *err)
{
    struct train *t = r->train;
    struct gpu *g = r->gpu;
    struct optim_state state = { .w = g->state, .g = g->grads[0], .average = g->average,
                                 .read = g->rows_at > 0 ? g->grads[0] + g->rows_at : NULL };
    int rc;

    memcpy(state.slots, g->slots, sizeof(state.slots));
    rc = begin_work(r, err);
    if (rc == 0)
        rc = g->cuda->math->optim_update(g->optim, h, &state, 1.0f / (float)t->opts->lanes, g->work, err);
    if (rc == 0)
        rc = gpu_rest(r, err);
    if (rc == 0)
        rc = gpu_mark(r, TRACE_WORK, TRACE_UPDATE, 0, err);
    if (rc == 0)
        g->held = h->step;
    else
        g->has_state = false;
    return rc;
}

int gpu_weigh(struct replica *r, uint32_t *sum, struct err *err)
{
    struct train *t = r->train;
    struct gpu *g = r->gpu;
    int rc = begin_work(r, err);

    if (rc == 0)
        rc = g->cuda->math->look(g->state, t->mem.state_bytes / sizeof(float), g->look, g->work, err);
    if (rc == 0)
        rc = g->cuda->copy(&g->back->look, g->look, sizeof(*g->look), g->work, err);
    if (rc == 0)
        rc = gpu_rest(r, err);
    if (rc == 0)
        rc = gpu_mark(r, TRACE_WORK, TRACE_CHECK, 0, err);
    if (rc == 0)
        rc = gpu_wait(r, NULL, err);
    if (rc == 0)
        *sum = g->back->look.checksum;
    return rc;
}

/* ---- other passes ---- */

int gpu_feed(struct replica *r, struct plan *plan, const struct data_batch *b, struct err *err)
{
    struct gpu *g = r->gpu;
    struct gpu_slot *s = &g->slot[(g->next + 1) % GPU_SLOTS]; /* the other one may hold what comes next */
    int rc;

    gpu_clock_forget(r);
    rc = send_slot(r, s, plan, b, err);
    s->is_full = false;
    if (rc == 0)
        rc = g->cuda->wait(g->work, s->brought, err);
    if (rc == 0)
        rc = take_inputs(r, s, plan, err);
    return rc < 0 ? rc : g->cuda->record(s->taken, g->work, err);
}

int gpu_run(struct replica *r, struct plan *plan, const struct op_run *run, bool backward, struct err *err)
{
    struct gpu *g = r->gpu;
    struct gpu_slot *s = &g->slot[(g->next + 1) % GPU_SLOTS];
    struct op_run there;
    int rc = give_run(r, s, run, err);

    there = *s->run;
    there.cancel = run->cancel;
    if (rc == 0)
        rc = plan_forward(plan, &there, err);
    if (rc == 0 && backward)
        rc = plan_backward(plan, &there, g->grads[0], NULL, NULL, err);
    return rc < 0 ? rc : check_trouble(r, plan, err);
}
