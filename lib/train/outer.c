/* outer.c - see outer.h. */
#include "train/outer.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/checksum.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/text.h"
#include "comm/comm.h"
#include "engine/trace.h"
#include "train/apply.h"
#include "train/health.h"
#include "train/outer_math.h"
#include "train/outer_nonfinite.h"
#include "train/sample_log.h"
#include "train/save.h"
#include "train/step.h"
#include "train/step_report.h"
#include "train/task.h"

enum { CHUNK_FLOATS = 1 << 20, NO_PHASE = UINT32_MAX };

struct outer {
    uint32_t phase;            /* of the present generation, for which this is ready; NO_PHASE: none */
    struct device_mem *models; /* owned [n_models] */
    const float **at;          /* owned [n_models] addresses of the models */
    double *losses;            /* owned [n_models] sums over the steps of the period */
    uint32_t n_models;         /* groups of this task; 1: a group, or a part of one */
    uint32_t n_lanes;          /* of this task in each of its groups */
    bool leads;                /* this task contributes its models to the outer step */
    bool is_shared;            /* other tasks train the same group */
};

/* One period. */
struct work {
    struct replica *r;
    struct train *t;
    struct outer *o;
    const struct train_phase *phase;
    const struct period *period;
    uint64_t held, begin_ns;
    uint64_t data_ns, reduce_ns, reduce_work_ns;
    struct outer_note note;
    uint32_t n_chunks; /* reduced so far; a watchdog sees each of them */
    uint32_t checksum; /* of the reduced models */
    bool finite;       /* they are */
};

/* ---- opening ---- */

int outer_open(struct train *t, struct err *err)
{
    if (!t->phases.has_local || t->opts->only_evaluates)
        return 0;
    if (t->engine->ops->select == NULL)
        return err_set(err, ERR_UNSUPPORTED,
                       "/train/phases: \"local_sgd\" trains on CPUs alone: start the task with "
                       "--devices cpu:1, or use \"sync\"");
    t->outer = calloc(1, sizeof(*t->outer));
    if (t->outer == NULL)
        return err_set(err, ERR_NOMEM, "local SGD: out of memory");
    t->outer->phase = NO_PHASE;
    return 0;
}

static void free_models(struct outer *o)
{
    for (uint32_t i = 0; i < o->n_models; i++)
        device_mem_close(&o->models[i]);
    free(o->models);
    free(o->at);
    free(o->losses);
    o->models = NULL;
    o->at = NULL;
    o->losses = NULL;
    o->n_models = 0;
}

void outer_close(struct train *t)
{
    if (t->outer != NULL)
        free_models(t->outer);
    free(t->outer);
    t->outer = NULL;
}

void outer_join(struct train *t)
{
    if (t->outer != NULL)
        t->outer->phase = NO_PHASE;
}

static int open_models(const struct train *t, struct outer *o, uint32_t n, struct err *err)
{
    const struct memory *m = &t->engine->memory;
    char need[32], held[32];
    int rc = 0;

    if (o->n_models == n)
        return 0;
    free_models(o);
    o->models = calloc(n, sizeof(*o->models));
    o->at = calloc(n, sizeof(*o->at));
    o->losses = calloc(n, sizeof(*o->losses));
    if (o->models == NULL || o->at == NULL || o->losses == NULL)
        rc = err_set(err, ERR_NOMEM, "out of memory");
    while (rc == 0 && o->n_models < n) {
        struct device_mem *mem = &o->models[o->n_models];

        rc = device_mem_open(mem, m->model_bytes, false, err);
        if (rc == 0)
            o->at[o->n_models++] = mem->base;
    }
    if (rc == 0)
        return 0;
    free_models(o);
    text_bytes(need, sizeof(need), n * m->model_bytes);
    text_bytes(held, sizeof(held), m->state_bytes);
    return err_wrap(err, rc,
                    "local SGD: the models of %u groups on this task need %s, beside %s of the held "
                    "state; use more tasks or fewer groups", n, need, held);
}

/* The ranks of the group of this task, which has fewer lanes than a group. */
static void find_part(const struct train *t, uint32_t block, uint32_t *first, uint32_t *n)
{
    uint32_t own = t->replicas[0].device->first_lane / block, lane = 0;

    *first = *n = 0;
    for (uint32_t rank = 0; lane < (own + 1) * block; lane += t->generation.shares[rank++]) {
        if (lane == own * block)
            *first = rank;
        *n += lane >= own * block;
    }
}

static void note_placement(const struct work *w, uint32_t first_group, uint32_t n_ranks)
{
    const struct memory *m = &w->t->engine->memory;
    char text[320], size[32], of[64] = "";

    text_bytes(size, sizeof(size), w->o->n_models * m->model_bytes);
    if (n_ranks > 1)
        snprintf(of, sizeof(of), " together with %u other tasks", n_ranks - 1);
    snprintf(text, sizeof(text),
             "phase %u trains with local SGD in %u groups; this task trains %u of them, from group "
             "%u on%s: %s for the models",
             w->period->phase + 1, w->phase->groups, w->o->n_models, first_group, of, size);
    events_note(&w->t->events, text);
}

/* Finds the groups of this task, when a generation trains its first period of a phase. */
static int prepare(struct work *w, struct err *err)
{
    struct train *t = w->t;
    struct outer *o = w->o;
    const struct engine_replica *d = w->r->device;
    uint32_t block = t->opts->lanes / w->phase->groups, first = d->rank, n_ranks = 1;
    uint32_t n_models = d->n_lanes >= block ? d->n_lanes / block : 1;
    int rc;

    if (o->phase == w->period->phase)
        return 0;
    if (d->n_lanes < block)
        find_part(t, block, &first, &n_ranks);
    rc = open_models(t, o, n_models, err);
    if (rc == 0 && t->generation.comm != NULL)
        rc = comm_divide(t->generation.comm, w->r->local, first, n_ranks, err);
    if (rc < 0)
        return rc;
    o->n_lanes = d->n_lanes / n_models;
    o->leads = d->first_lane % block == 0;
    o->is_shared = n_ranks > 1;
    o->phase = w->period->phase;
    note_placement(w, d->first_lane / block, n_ranks);
    return 0;
}

/* ---- the steps of the groups ---- */

static void update(struct work *w, uint64_t step, struct err *err)
{
    struct engine_replica *d = w->r->device;
    const struct train_run *run = &w->t->opts->run;
    struct optim_hyper h = apply_hyper(w->t, step, d->scale);
    double norm;
    int rc;

    place_enter(&d->place, PHASE_UPDATE);
    d->remote_squares = 0;
    ops_of(w->r)->gradient_norm(d, run->clip_norm > 0, &norm);
    if (run->clip_norm > 0)
        h.grad_scale *= optim_clip(norm, run->clip_norm);
    rc = ops_of(w->r)->update(d, &h, err);
    CHECK(rc == 0); /* an update in the host's memory does not fail */
}

/* One step of one group. A step that is not finite is left out. */
static int group_step(struct work *w, uint32_t i, uint64_t step, struct err *err)
{
    struct engine_replica *d = w->r->device;
    const struct engine_ops *ops = ops_of(w->r);
    double loss;
    uint32_t sum;
    bool finite;
    int rc = ops->run_lanes(d, step, err);

    if (rc == 0)
        rc = ops->reduce(d, step, err);
    if (rc < 0)
        return rc;
    w->data_ns += d->data_ns;
    w->reduce_ns += d->reduce_ns;
    w->reduce_work_ns += d->reduce_work_ns;
    loss = engine_control(d)[ENGINE_LOSS] / d->scale;
    if (w->t->opts->mean_of_weights) { /* the mean of the group's own samples */
        float weight = engine_control(d)[ENGINE_WEIGHT] / (float)d->scale;

        loss /= weight > 0 ? (double)weight : 1;
        rc = ops->scale(d, weight > 0 ? 1.0f / weight : 1, err);
    }
    place_enter(&d->place, PHASE_CHECK);
    ops->inspect(d);
    if (rc == 0)
        rc = ops->verify_gradient(d, step, &sum, &finite, err);
    if (rc < 0)
        return rc;
    if (!finite || !isfinite(loss))
        return outer_note_step(w->r, step, w->period->last, loss, &w->note, err);
    w->o->losses[i] += loss;
    update(w, step, err);
    return 0;
}

static int one_step(struct work *w, uint64_t step, struct err *err)
{
    struct train *t = w->t;
    struct engine_replica *d = w->r->device;
    uint32_t first_lane = d->first_lane, n_lanes = d->n_lanes;
    uint64_t begin = clock_ns();
    int rc;

    d->scale = t->state.facts.scale.scale;
    /* The mean is over the samples of a group. */
    d->loss_scale =
        (float)(d->scale * w->phase->groups / (double)model_samples_of(&t->model, step));
    d->trace = t->is_tracing ? trace_begin(t->trace, w->r->local, step) : NULL;
    place_step(&d->place, step);
    rc = fault_error("train.forward", err);
    for (uint32_t i = 0; rc == 0 && i < w->o->n_models; i++) {
        ops_of(w->r)->select(d, w->o->models[i].base);
        d->first_lane = first_lane + i * w->o->n_lanes;
        d->n_lanes = w->o->n_lanes;
        rc = group_step(w, i, step, err);
    }
    d->first_lane = first_lane;
    d->n_lanes = n_lanes;
    if (rc == 0)
        rc = sample_log_write(t->samples, w->r->local, err);
    if (rc == 0)
        rc = fault_error("train.inner", err);
    if (rc == 0 && trace_end_step(d->trace, begin))
        d->trace = NULL;
    return rc < 0 ? err_wrap(err, rc, "step %" PRIu64, step) : 0;
}

#define NO_CHECKSUM INT64_MIN /* less than every checksum, and than minus every checksum */

/* The tasks of a group hold the same model after the last step of a period. Only one of them
 * contributes it to the outer step, so a wrong one would stay unnoticed. Errors: ERR_DEVICE. The
 * held state is valid: the next generation trains the period again. */
static int compare_models(const struct work *w, struct err *err)
{
    struct train *t = w->t;
    int64_t *ends = engine_scratch(w->r->device); /* the largest checksum, and minus the smallest */
    bool finite = true;
    uint32_t own;
    int rc;

    /* Tasks may have other values of health.check_gradients. All of the group make the call, and each that checks
     * states its checksum. */
    if (!w->o->is_shared)
        return 0;
    own = checksum_part(w->o->at[0], t->engine->memory.model_bytes / sizeof(float), 0, &finite);
    ends[0] = t->opts->health.check_gradients ? own : NO_CHECKSUM;
    ends[1] = t->opts->health.check_gradients ? -(int64_t)own : NO_CHECKSUM;
    rc = comm_all_reduce(t->generation.comm, w->r->local, ends, 2, TENSOR_I64, COMM_MAX, err);
    if (rc < 0 || ends[0] == NO_CHECKSUM || ends[0] == -ends[1])
        return rc;
    (void)err_set(err, ERR_DEVICE,
                  "the tasks of group %u hold different models after step %" PRIu64
                  ": their checksums are %06x to %06x, that of %s is %06x. A processor or memory of "
                  "one of them computed or stored a wrong value; the state after step %" PRIu64
                  " is valid",
                  w->r->device->first_lane / (t->opts->lanes / w->phase->groups), w->period->last,
                  (unsigned)-ends[1], (unsigned)ends[0],
                  t->generation.opts.view.members[t->generation.opts.view.self].name, own,
                  w->held);
    generation_set_error(&t->generation, err);
    /* No task of the group ends the generation before all of them know the error. */
    (void)comm_all_reduce(t->generation.comm, w->r->local, ends, 2, TENSOR_I64, COMM_MAX, NULL);
    return ERR_DEVICE;
}

/* The policies other than skipping end the generation at the outer step. */
static bool has_to_stop(const struct work *w)
{
    return w->note.key > 0 && w->t->opts->health.non_finite != TRAIN_SKIP;
}

static int all_steps(struct work *w, struct err *err)
{
    struct train *t = w->t;
    struct comm *comm = t->generation.comm;
    int rc = 0;

    for (uint32_t i = 0; i < w->o->n_models; i++) {
        memcpy(w->o->models[i].base, t->engine->memory.state, t->engine->memory.model_bytes);
        w->o->losses[i] = 0;
    }
    t->engine->group.lanes = t->opts->lanes / w->phase->groups;
    if (comm != NULL)
        comm_set_part(comm, w->r->local, true);
    for (uint64_t k = w->held + 1; rc == 0 && k <= w->period->last && !has_to_stop(w); k++)
        rc = one_step(w, k, err);
    if (rc == 0)
        rc = compare_models(w, err);
    if (comm != NULL)
        comm_set_part(comm, w->r->local, false);
    t->engine->group.lanes = t->opts->lanes;
    ops_of(w->r)->select(w->r->device, NULL);
    return rc;
}

/* ---- the outer step: reduction ---- */

/* Reduces the elements [at, at + n) of the models into the first model, as their mean. */
static int reduce_range(struct work *w, size_t at, size_t n, const float *theta, struct err *err)
{
    struct train *t = w->t;
    struct memory *m = &t->engine->memory;
    size_t room = m->grads_bytes / sizeof(float);
    float *arena = engine_scratch(w->r->device), *to = w->o->models[0].base;
    float share = 1.0f / (float)w->phase->groups;
    int rc = 0;

    if (room > CHUNK_FLOATS)
        room = CHUNK_FLOATS;
    for (size_t end = at + n; rc == 0 && at < end; at += n) {
        n = end - at < room ? end - at : room;
        place_bucket(&w->r->device->place, w->period->last, w->n_chunks++);
        if (w->o->leads)
            outer_sum(arena, w->o->at, w->o->n_models, theta, at, n);
        else
            memset(arena, 0, n * sizeof(float));
        if (t->generation.comm != NULL)
            rc = comm_all_reduce(t->generation.comm, w->r->local, arena, n, TENSOR_F32, COMM_SUM,
                                 err);
        if (rc < 0)
            break;
        for (size_t i = 0; i < n; i++)
            to[at + i] = arena[i] * share;
        w->checksum = checksum_add(w->checksum, checksum_part(to + at, n, at, &w->finite));
    }
    return rc;
}

static bool averages_slots(const struct work *w)
{
    return w->phase->inner_slots == TRAIN_SLOTS_AVERAGE;
}

/* Floats of a model before its average, and of all of it. */
static size_t slots_end(const struct memory *m)
{
    return m->model_bytes / sizeof(float) - (m->average != NULL ? m->params : 0);
}

static int reduce_models(struct work *w, struct err *err)
{
    const struct memory *m = &w->t->engine->memory;
    size_t slots = slots_end(m), all = m->model_bytes / sizeof(float);
    int rc = reduce_range(w, 0, m->trained, m->state, err);

    if (rc == 0) /* statistics */
        rc = reduce_range(w, m->trained, m->params - m->trained, NULL, err);
    if (rc == 0 && averages_slots(w))
        rc = reduce_range(w, m->params, slots - m->params, NULL, err);
    if (rc == 0)
        rc = reduce_range(w, slots, all - slots, NULL, err);
    return rc;
}

/* The sum over the groups of this task [n, a power of two] along the tree. */
static float sum_losses(const double *losses, uint32_t n)
{
    return n == 1 ? (float)losses[0]
                  : sum_losses(losses, n / 2) + sum_losses(losses + n / 2, n / 2);
}

static void write_control(const struct work *w, float *control)
{
    struct train *t = w->t;

    memset(control, 0, t->engine->opts->control_floats * sizeof(float));
    if (w->o->leads)
        control[ENGINE_LOSS] = sum_losses(w->o->losses, w->o->n_models);
    control[CONTROL_PAUSE] = (atomic_load_explicit(&t->generation.requests, memory_order_relaxed) &
                              TRAIN_REQUEST_PAUSE) != 0;
    control[CONTROL_CHECKSUM] =
        (generation_is_coordinator(&t->generation) && save_is_due(t, w->period->last)) ||
        health_checksum_is_due(t, w->period->before, w->period->last);
    control[CONTROL_UNLOGGED] = step_report_unlogged(t, w->held);
    control[CONTROL_LOCAL_BAD] = w->note.key > 0;
    health_contribute(t, 0, control);
}

static void read_control(struct work *w, const float *control, struct step_result *out)
{
    double steps = (double)(w->period->last - w->held);

    *out = (struct step_result){
        .loss = control[ENGINE_LOSS] / w->phase->groups / steps,
        .pause = control[CONTROL_PAUSE] > 0,
        .checksum = control[CONTROL_CHECKSUM] > 0,
    };
    step_report_logged(w->r, w->held);
}

/* After the last reduction the outer step is agreed. Tasks reach the first one at different times. */
static int reduce(struct work *w, struct step_result *out, struct err *err)
{
    struct train *t = w->t;
    struct comm *comm = t->generation.comm;
    float *control = engine_control(w->r->device);
    uint64_t before = clock_ns();
    int rc = fault_error("train.reduce", err);

    if (comm != NULL)
        comm_set_patience(comm, w->r->local, w->period->last - w->held);
    if (rc == 0)
        rc = reduce_models(w, err);
    if (comm != NULL)
        comm_set_patience(comm, w->r->local, 1);
    if (rc == 0)
        rc = step_wait_for_permission(w->r, err);
    if (rc < 0)
        return rc;
    write_control(w, control);
    place_bucket(&w->r->device->place, w->period->last, w->n_chunks);
    if (comm != NULL)
        rc = comm_all_reduce(comm, w->r->local, control, t->engine->opts->control_floats,
                             TENSOR_F32, COMM_SUM, err);
    w->reduce_ns += clock_ns() - before;
    w->reduce_work_ns += clock_ns() - before;
    if (rc == 0)
        read_control(w, control, out);
    return rc;
}

/* ---- the outer step: decision ---- */

/* Handles steps and sums that are not finite. *applies: the outer step changes the state. */
static int handle_nonfinite(struct work *w, bool is_noted, bool *applies, struct err *err)
{
    int rc = 0;

    *applies = w->finite;
    if (!is_noted && w->finite) {
        health_updated(w->r);
        return 0;
    }
    place_enter(&w->r->device->place, PHASE_LOCATE);
    if (is_noted)
        rc = outer_share_note(w->r, &w->note, err);
    else
        snprintf(w->note.text, sizeof(w->note.text),
                 "outer step after step %" PRIu64 ": the models of all groups are finite, but their "
                 "mean is not", w->period->last);
    return rc < 0 ? rc : health_handle_local(w->r, w->held, w->period->last, w->note.text, err);
}

static int commit(struct work *w, struct err *err)
{
    int rc;

    place_enter(&w->r->device->place, PHASE_CHECK);
    rc = fault_error("train.commit", err);
    if (rc == 0)
        rc = generation_gate(&w->t->generation, &w->r->device->place, err);
    if (rc < 0)
        return rc;
    w->t->health.gradient = w->checksum;
    w->t->health.gradient_step = w->period->last;
    return 0;
}

/* ---- the outer step: update ---- */

/* Slots that are reset also become zero where the outer step is left out: phases_slot_steps() counts
 * from here. */
static void apply_slots(const struct work *w, bool applies)
{
    const struct memory *m = &w->t->engine->memory;
    const float *mean = w->o->at[0];
    size_t slots = slots_end(m), all = m->model_bytes / sizeof(float);

    if (!averages_slots(w))
        memset(m->state + m->params, 0, (slots - m->params) * sizeof(float));
    if (!applies)
        return;
    memcpy(m->state + m->trained, mean + m->trained, (m->params - m->trained) * sizeof(float));
    if (averages_slots(w))
        memcpy(m->state + m->params, mean + m->params, (slots - m->params) * sizeof(float));
    memcpy(m->state + slots, mean + slots, (all - slots) * sizeof(float));
}

/* The errors of fault points are returned after the whole update. */
static int apply(struct work *w, const struct step_result *result, bool applies, struct err *err)
{
    struct train *t = w->t;
    const struct memory *m = &t->engine->memory;
    int first, middle, last;

    for (uint64_t k = w->held + 1; k <= w->period->last; k++)
        sample_log_done(t->samples, k); /* agreed, and about to be applied */
    place_enter(&w->r->device->place, PHASE_UPDATE);
    first = fault_error("train.update", err);
    if (applies)
        outer_nesterov(m->state, m->outer, w->o->at[0], m->trained,
                       (float)w->phase->outer.learning_rate, (float)w->phase->outer.momentum);
    middle = fault_error("train.update_middle", err);
    apply_slots(w, applies);
    if (phases_ends_phase(&t->phases, w->period)) {
        memset(m->outer, 0, m->trained * sizeof(float));
        free_models(w->o);
    }
    t->state.facts.learning_rate = optim_rate(&t->state.schedule, w->period->last);
    t->state.facts.grad_scale = 1;
    t->state.facts.is_skipped = !applies;
    live_end_step(&t->live, w->period->last);
    t->state.facts.step = w->period->last;
    state_hold(&t->state, w->period->last);
    last = fault_error("train.update_end", err);
    t->state.facts.loss = result->loss;
    t->state.facts.grad_norm = NAN;
    w->r->device->data_ns = w->data_ns; /* of the whole period, for the report */
    w->r->device->reduce_ns = w->reduce_ns;
    w->r->device->reduce_work_ns = w->reduce_work_ns;
    step_report(w->r, &t->state.facts, w->begin_ns);
    return first < 0 ? first : middle < 0 ? middle : last;
}

static int outer_step(struct work *w, struct step_result *out, struct err *err)
{
    bool is_noted, applies;
    int rc = reduce(w, out, err);

    is_noted = engine_control(w->r->device)[CONTROL_LOCAL_BAD] > 0;
    if (rc == 0)
        rc = step_look_back(w->r, w->held, err);
    if (rc == 0)
        rc = commit(w, err);
    if (rc == 0)
        rc = handle_nonfinite(w, is_noted, &applies, err);
    if (rc == 0)
        rc = apply(w, out, applies, err);
    if (rc == 0 && out->checksum)
        rc = health_checksum(w->r, w->period->last, err);
    if (rc == 0)
        rc = ops_of(w->r)->end_step(w->r->device, err);
    return rc < 0 ? err_wrap(err, rc, "outer step after step %" PRIu64, w->period->last) : 0;
}

int outer_run(struct replica *r, const struct period *period, uint64_t held,
              struct step_result *out, struct err *err)
{
    struct train *t = r->train;
    struct work w = { .r = r,
                      .t = t,
                      .o = t->outer,
                      .phase = phases_of(&t->phases, period),
                      .period = period,
                      .held = held,
                      .begin_ns = clock_ns(),
                      .finite = true };
    int rc = prepare(&w, err);

    if (rc == 0)
        rc = all_steps(&w, err);
    return rc < 0 ? rc : outer_step(&w, out, err);
}
