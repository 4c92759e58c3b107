/* replica.c - the thread of a replica, for one generation:
 *
 *     load -> connect -> agree, transfer -> what is owed -> steps -> save, export -> end
 *
 * Every replica of every task takes the same decisions at the same step, from the step number and
 * from what was reduced with the gradients. A checkpoint of a step is taken within the next one, when
 * the state has been compared and is not yet changed (health.h). */
#include "train/gpu.h"
#include "train/train_priv.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "op/op.h"

enum { TRACE_WARM_STEPS = 3 };

/* Of one reader. What is small and in memory is decoded sooner than a thread wakes up for it. */
static uint32_t reading_threads(const struct train *t)
{
    const struct train_opts *o = t->opts;
    size_t sample_bytes = 0;
    bool any_image = false;

    if (o->data_threads > 0)
        return (o->data_threads + o->n_devices - 1) / o->n_devices;
    for (uint32_t i = 0; i < o->n_features; i++) {
        sample_bytes += (size_t)shape_elements(&o->features[i].shape) * sizeof(float);
        any_image = any_image || o->features[i].encoded || o->features[i].n_steps > 0;
    }
    return o->cache_memory && !any_image && sample_bytes * t->lane_batch <= 1 << 20 ? 0 : 1;
}

struct data_reader_opts replica_reads(const struct replica *r, uint64_t first, uint64_t last)
{
    const struct train_opts *o = r->train->opts;

    return (struct data_reader_opts){
        .seed = o->seed,
        .shuffle = o->shuffle,
        .pad = o->pad,
        .global_batch = o->global_batch,
        .lanes = o->lanes,
        .first_lane = r->first_lane,
        .n_lanes = r->n_lanes,
        .first_step = first,
        .last_step = last,
        .threads = reading_threads(r->train),
        .prefetch = (o->prefetch > 0 ? o->prefetch : 1) * r->n_lanes,
        .deadline_ms = o->data_deadline_ms,
    };
}

static int open_reader(struct replica *r, uint64_t from, struct err *err)
{
    struct train *t = r->train;
    struct data_reader_opts ro = replica_reads(r, from, t->total_steps);

    return reader_open(t, t->data, &ro, &r->reader, err);
}

/* Behind a step, or behind the one that is held when a generation begins. */
static int between(struct replica *r, uint64_t step, bool evaluates, struct err *err)
{
    int rc = 0;

    place_enter(&r->place, PHASE_BETWEEN);
    if (evaluates) {
        rc = eval_run(r, step, err);
        place_enter(&r->place, PHASE_BETWEEN);
    }
    return rc;
}

static int steps(struct replica *r, uint64_t held, struct err *err)
{
    struct train *t = r->train;
    struct step_result result = { .pause = r->votes[VOTE_PAUSE] > 0 };
    uint64_t last = held;
    int rc = 0;

    if (!result.pause || held == t->total_steps)
        rc = between(r, held, r->votes[VOTE_UNEVALUATED] > 0, err);
    if (rc == 0 && held > 0)
        rc = health_weigh(r, held, err);
    if (r->local == 0 && train_leads(t))
        (void)save_is_due(t, held); /* it is asked for again behind the first comparison */
    if (rc == 0 && held < t->total_steps && !result.pause)
        rc = open_reader(r, held + 1, err);
    for (uint64_t k = held + 1; rc == 0 && k <= t->total_steps && !result.pause; k++) {
        rc = step_run(r, k, &result, err);
        if (k == t->total_steps)
            result.pause = false; /* it is the end anyway */
        if (rc == 0) /* an evaluation that a pause puts off is owed to the next generation */
            rc = between(r, k, eval_due(t, k) && !result.pause, err);
        last = k;
    }
    return rc < 0 ? rc : health_last(r, last, err);
}

/* Not the first steps, which touch memory for the first time, unless there are no others. */
static int start_trace(struct train *t, uint64_t held, struct err *err)
{
    uint64_t left = t->total_steps - held, first = held + 1;

    struct train_event e = { .kind = TRAIN_WARN, .text = "trace: no step is left that could be traced" };

    if (t->trace == NULL || t->traced)
        return 0;
    if (left == 0) {
        train_tell(t, &e);
        return 0;
    }
    if (left > t->opts->trace_steps)
        first += left - t->opts->trace_steps < TRACE_WARM_STEPS ? left - t->opts->trace_steps
                                                                : TRACE_WARM_STEPS;
    t->traced = t->tracing = true;
    return trace_start(t->trace, first, t->group.self + 1, t->members[t->group.self].name, err);
}

/* Local replica 0, for the whole process. */
static int join_group(struct train *t, struct err *err)
{
    struct replica *r = &t->replicas[0];
    int rc = 0;

    if (t->renew_region) {
        rc = memory_renew_region(t, err);
        t->renew_region = rc < 0;
    }
    if (rc == 0 && train_leads(t) && t->group.newest_step == 0 && t->held_step == 0) {
        place_enter(&r->place, PHASE_LOAD);
        rc = save_load_newest(t, err);
    }
    if (rc == 0 && !train_leads(t))
        save_leave(t);
    else if (rc == 0 && t->group.coordinator > 0 && !t->was_leading)
        t->save_due = true; /* the storage of a lower rank failed: this task makes up for what is missing */
    t->was_leading = train_leads(t);
    t->save_steps[0] = t->save_steps[1] = 0; /* that state may be gone; what is due stays due (save_due) */
    if (rc == 0)
        rc = train_check_canceled(t, err);
    place_enter(&r->place, PHASE_CONNECT);
    return rc < 0 ? rc : agree_connect(t, err);
}

static int take_up_state(struct replica *r, uint64_t *held, struct err *err)
{
    struct train *t = r->train;
    int rc = agree_on_state(r, held, err);

    if (rc == 0 && r->votes[VOTE_BEHIND] > 0)
        rc = transfer_state(r, *held, err);
    if (rc == 0 && r->local == 0)
        rc = health_take_up(t, *held, r->votes, err);
    if (rc == 0 && r->local == 0) /* of the task that traces most, wherever it begins */
        t->plain_until = r->votes[VOTE_TRACES] > 0 ? *held + TRACE_WARM_STEPS + (uint64_t)r->votes[VOTE_TRACES] : 0;
    if (rc == 0)
        rc = generation_gate(r, err); /* the state has its place now */
    if (rc == 0)
        rc = reduce_open(r, err);
    if (rc < 0)
        return rc;
    place_step(&r->place, *held);
    plan_watch(r->plan, NULL, NULL);
    if (r->gpu != NULL)
        return gpu_give(r, *held, err);
    plan_bind(r->plan, t->mem.state, r->work.base);
    if (r->eval_plan != NULL)
        plan_bind(r->eval_plan, t->opts->evaluate_average ? t->mem.average : t->mem.state,
                  r->eval_work.base);
    return 0;
}

static int tell_connected(struct train *t, uint64_t held, struct err *err)
{
    struct train_event e = { .kind = TRAIN_CONNECTED, .step = held };

    t->last_report_ns = clock_ns();
    train_tell(t, &e);
    if (!t->told_resumed) {
        e.kind = TRAIN_RESUMED;
        e.text = t->resumed_path;
        train_tell(t, &e);
        t->told_resumed = true;
    }
    train_phase(t, "train", held);
    return start_trace(t, held, err);
}

static bool is_storage_failure(int rc)
{
    return rc == ERR_IO || rc == ERR_FULL || rc == ERR_NOENT || rc == ERR_EXISTS || rc == ERR_TIMEOUT ||
           rc == ERR_UNSUPPORTED;
}

/* Of the job, on the coordinator. */
static int finish(struct replica *r, struct err *err)
{
    struct train *t = r->train;
    int rc;

    place_enter(&r->place, PHASE_SAVE);
    rc = save_now(t, t->total_steps, t->group.deadline_ms, err);
    if (rc == 0) {
        place_enter(&r->place, PHASE_EXPORT);
        rc = save_export(t, err);
    }
    t->is_unsaved = is_storage_failure(rc);
    return rc;
}

static int generation(struct replica *r, struct err *err)
{
    struct train *t = r->train;
    uint64_t held = 0;
    int rc = device_enter(&t->opts->devices[r->local], err);

    op_thread_init();
    if (rc == 0 && r->local == 0)
        rc = join_group(t, err);
    if (rc == 0)
        rc = generation_gate(r, err);
    if (rc == 0 && r->gpu != NULL)
        rc = gpu_begin(r, err);
    if (rc == 0)
        rc = take_up_state(r, &held, err);
    if (rc == 0 && r->local == 0)
        rc = tell_connected(t, held, err);
    if (rc == 0)
        rc = generation_gate(r, err); /* nobody steps before everyone has the state */
    if (rc == 0)
        rc = steps(r, held, err);
    if (rc == 0 && r->local == 0 && train_leads(t) && t->held_step == t->total_steps)
        rc = finish(r, err);
    return rc;
}

void *replica_main(void *arg)
{
    struct replica *r = arg;
    struct train *t = r->train;
    struct err err;

    place_own(&r->place);
    if (generation(r, &err) < 0)
        train_fail(t, &err); /* also lets the reducer out of its call */
    reduce_close(r);
    if (r->gpu != NULL)
        gpu_end(r);
    reader_close(t, &r->reader);
    r->trace = NULL;
    place_enter(&r->place, PHASE_REST);
    if (__atomic_sub_fetch(&t->running, 1, __ATOMIC_ACQ_REL) == 0)
        generation_over(t);
    return NULL;
}
