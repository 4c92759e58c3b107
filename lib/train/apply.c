/* apply.c - see apply.h. */
#include "train/apply.h"

#include "base/check.h"
#include "base/fault.h"
#include "train/coding.h"
#include "train/remote.h"
#include "train/task.h"

/* Waits for the other replicas of the task. They arrive, because they have the result of the
 * all-reduce. */
static void meet(struct replica *r)
{
    bool whole = place_meet(&r->device->place, &r->train->generation.commit_gate);

    CHECK(whole); /* no thread breaks this gate */
}

/* Ends the step: writes the values that the other replicas read in the next step before the
 * gate. */
static void end_step(struct replica *r, uint64_t step)
{
    struct train *t = r->train;

    if (r->local == 0)
        live_end_step(&t->live, step);
    meet(r);
    if (r->local == 0) {
        t->state.facts.step = step;
        t->state.facts.coding = coding_fact(t);
        state_hold(&t->state, step);
    }
}

struct optim_hyper apply_hyper(struct train *t, uint64_t step, double scale)
{
    struct optim_hyper h = t->opts->optimizer.hyper;

    h.step = phases_slot_steps(&t->phases, step);
    h.learning_rate = optim_rate(&t->state.schedule, step);
    optim_cycle(&t->state.schedule, step, &h);
    /* The gradients contain the loss scale. It is a power of two, so the update can divide by it
     * without a rounding error. */
    h.grad_scale = (float)(1 / scale);
    return h;
}

int apply_update(struct replica *r, uint64_t step, double *norm, struct err *err)
{
    struct train *t = r->train;
    const struct train_opts *o = t->opts;
    struct optim_hyper h = apply_hyper(t, step, r->device->scale);
    bool wanted = o->run.clip_norm > 0 || live_norm_is_due(&t->live, step);
    int first, middle, last, rc;

    ops_of(r)->gradient_norm(r->device, wanted, norm);
    if (wanted)
        h.grad_scale *= optim_clip(*norm, o->run.clip_norm);
    remote_commit(r, step, &h);
    first = fault_error("train.update", err);
    rc = ops_of(r)->update(r->device, &h, err);
    middle = fault_error("train.update_middle", err);
    if (r->local == 0) {
        t->state.facts.learning_rate = h.learning_rate;
        t->state.facts.grad_scale = h.grad_scale;
        t->state.facts.is_skipped = false;
        t->state.facts.scale = loss_scale_after_good(&o->run.loss_scale, t->state.facts.scale);
    }
    end_step(r, step);
    last = fault_error("train.update_end", err);
    return rc < 0 ? rc : first < 0 ? first : middle < 0 ? middle : last;
}

void apply_skip(struct replica *r, uint64_t step, bool overflowed)
{
    struct train *t = r->train;

    remote_commit(r, step, NULL);
    ops_of(r)->skip_update(r->device, step);
    if (r->local == 0)
        t->state.facts.is_skipped = true;
    if (r->local == 0 && overflowed)
        t->state.facts.scale =
            loss_scale_after_overflow(&t->opts->run.loss_scale, t->state.facts.scale);
    end_step(r, step);
}
