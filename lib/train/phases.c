/* phases.c - see phases.h. */
#include "train/phases.h"

#include <inttypes.h>
#include <math.h>

#include "base/err.h"
#include "optim/optim.h"
#include "ps/wants.h"
#include "train/model.h"
#include "train/train_types.h"

static uint64_t first_before(const struct phases *p, uint32_t phase)
{
    return phase > 0 ? p->at[phase - 1].until_step : 0;
}

static uint64_t last_of(const struct phases *p, uint32_t phase)
{
    return p->at[phase].until_step > 0 ? p->at[phase].until_step : p->total_steps;
}

/* Returns the number of steps of the period that begins after step `before`. */
static uint64_t length(const struct phases *p, uint32_t phase, uint64_t before)
{
    const struct train_phase *f = &p->at[phase];
    uint64_t left = last_of(p, phase) - before;
    double steps;
    uint64_t first = before + 1;

    if (f->mode == TRAIN_SYNC)
        return 1;
    if (f->sync_every > 0)
        return f->sync_every < left ? f->sync_every : left;
    /* The low rates of a warm-up would make periods longer than the warm-up. As the paper recommends,
     * its periods have the length of the first one after it. */
    if (first < p->schedule->warmup_steps)
        first = p->schedule->warmup_steps;
    steps = f->sync_rule.alpha / optim_rate(p->schedule, first);
    steps = fmax(f->sync_rule.base, floor(steps * steps));
    return steps < (double)left ? (uint64_t)steps : left;
}

/* Returns the first period of a phase after `before`; outer: number of outer steps until then. */
static struct period period_after(const struct phases *p, uint32_t phase, uint64_t before,
                                  uint64_t outer)
{
    bool is_local = p->at[phase].mode == TRAIN_LOCAL_SGD;

    return (struct period){ .phase = phase,
                            .is_local = is_local,
                            .before = before,
                            .last = before + length(p, phase, before),
                            .outer_step = outer + is_local };
}

/* Returns the period of this phase that contains `step`, starting from one that is not after it. */
static struct period seek(const struct phases *p, struct period x, uint64_t step)
{
    const struct train_phase *f = &p->at[x.phase];

    if (f->mode == TRAIN_SYNC) {
        x.before = step - 1;
        x.last = step;
    } else if (f->sync_every > 0) {
        uint64_t n = (step - 1 - x.before) / f->sync_every;

        x = period_after(p, x.phase, x.before + n * f->sync_every, x.outer_step - 1 + n);
    }
    while (x.last < step)
        x = period_after(p, x.phase, x.last, x.outer_step);
    return x;
}

struct period phases_period(struct phases *p, uint64_t step)
{
    struct period x = p->last;

    if (step == 0)
        return (struct period){ .last = 0 };
    if (!p->has_local) {
        x = (struct period){ .before = step - 1, .last = step, .is_async = p->is_async };
        while (x.phase + 1 < p->n && p->at[x.phase].until_step < step)
            x.phase++;
        x.is_async = x.is_async || (p->n > 0 && p->at[x.phase].mode == TRAIN_ASYNC);
        return x;
    }
    if (x.last == 0 || x.before >= step)
        x = period_after(p, 0, 0, 0);
    while (last_of(p, x.phase) < step && x.phase + 1 < p->n) {
        x = seek(p, x, last_of(p, x.phase));
        x = period_after(p, x.phase + 1, x.last, x.outer_step);
    }
    p->last = seek(p, x, step);
    return p->last;
}

const struct train_phase *phases_of(const struct phases *p, const struct period *period)
{
    return p->n > 0 ? &p->at[period->phase] : NULL;
}

bool phases_ends_phase(const struct phases *p, const struct period *period)
{
    return p->n > 0 && period->last == last_of(p, period->phase);
}

/* Slots become zero at each outer step of a phase with TRAIN_SLOTS_RESET. */
uint64_t phases_slot_steps(struct phases *p, uint64_t step)
{
    struct period x;
    uint64_t before;

    if (!p->has_local)
        return step;
    x = phases_period(p, step);
    before = x.before;
    for (uint32_t i = x.phase;; i--) {
        bool resets = p->at[i].mode == TRAIN_LOCAL_SGD && p->at[i].inner_slots == TRAIN_SLOTS_RESET;

        if (resets && before > first_before(p, i))
            return step - before;
        if (i == 0)
            return step;
        before = first_before(p, i); /* the last outer step of the phase before, if it has any */
    }
}

bool phases_evaluate(struct phases *p, const struct model *m, uint64_t step)
{
    return model_evaluates_since(m, phases_period(p, step).before, step);
}

/* ---- opening ---- */

bool phases_have_local(const struct train_run *run)
{
    for (uint32_t i = 0; i < run->n_phases; i++)
        if (run->phases[i].mode == TRAIN_LOCAL_SGD)
            return true;
    return false;
}

static int check_steps(const struct phases *p, struct err *err)
{
    for (uint32_t i = 0; i + 1 < p->n; i++)
        if (p->at[i].until_step >= p->total_steps)
            return err_set(err, ERR_INPUT,
                           "/train/phases/%u/until_step: the job ends after step %" PRIu64
                           ", so phase %u has no steps; expected a step below that, found %" PRIu64
                           ": train longer, or remove the phase",
                           i, p->total_steps, i + 1, p->at[i].until_step);
    return 0;
}

static int check_local(const struct train_opts *o, uint32_t phase, struct err *err)
{
    uint32_t groups = o->run.phases[phase].groups, block = o->lanes / groups;

    if (o->devices[0].kind != DEVICE_CPU)
        return err_set(err, ERR_UNSUPPORTED,
                       "/train/phases/%u/mode: \"local_sgd\" trains on CPUs alone: start the task "
                       "with --devices cpu:1, or use \"sync\"", phase);
    if (o->n_devices > 1)
        return err_set(err, ERR_UNSUPPORTED,
                       "/train/phases/%u/mode: \"local_sgd\" needs one replica in each task, because "
                       "the replicas of a task share weights, and this task has %u: start it with "
                       "--devices cpu:1, and as many tasks as there are cores",
                       phase, o->n_devices);
    if (o->ps != NULL && (o->ps->tables != PS_TABLES_NONE || ps_wants_dense(o->ps)))
        return err_set(err, ERR_UNSUPPORTED,
                       "/train/phases/%u/mode: groups of \"local_sgd\" have weights of their own, but "
                       "the parameters of /parameter_server are shared: set its \"tables\" to \"none\" and "
                       "\"dense\" to \"workers\", or use \"sync\"", phase);
    if (o->lanes % groups != 0 || (groups & (groups - 1)) != 0 || (block & (block - 1)) != 0)
        return err_set(err, ERR_INPUT,
                       "/train/phases/%u/groups: %u groups cannot have equal aligned blocks of %u "
                       "lanes: use a power of two of lanes that is at least the number of groups",
                       phase, groups, o->lanes);
    return 0;
}

static int check_async(const struct train_opts *o, struct err *err)
{
    if (o->ps == NULL)
        return err_set(err, ERR_INPUT,
                       "/parameter_server/staleness_kind: with \"bounded\" all parameters are on ps tasks, "
                       "and the cluster has none: add ps tasks, or write \"exact\"");
    if (o->n_devices > 1)
        return err_set(err, ERR_UNSUPPORTED,
                       "/parameter_server/staleness_kind: \"bounded\" needs one replica in each task, because "
                       "the replicas of a task share weights, and this task has %u: start it with --devices "
                       "cpu:1, and as many tasks as there are cores",
                       o->n_devices);
    if (o->sample_log != NULL)
        return err_set(err, ERR_UNSUPPORTED,
                       "--sample-log: lanes of one step belong to several groups with "
                       "/parameter_server/staleness_kind \"bounded\": remove the option");
    return 0;
}

int phases_open(struct phases *p, const struct train_opts *o, const struct optim_schedule *schedule,
                uint64_t total_steps, struct err *err)
{
    struct phases made = { .at = o->run.phases,
                           .n = o->run.n_phases,
                           .schedule = schedule,
                           .has_local = phases_have_local(&o->run),
                           .is_async = o->run.n_phases == 0 && ps_bound_of(o->ps_tables) > 0,
                           .total_steps = total_steps };
    int rc = check_steps(&made, err);

    for (uint32_t i = 0; rc == 0 && i < made.n && !o->only_evaluates; i++)
        if (made.at[i].mode == TRAIN_LOCAL_SGD)
            rc = check_local(o, i, err);
    if (rc == 0 && ps_bound_of(o->ps_tables) > 0 && !o->only_evaluates)
        rc = check_async(o, err);
    if (rc == 0)
        *p = made;
    return rc;
}
