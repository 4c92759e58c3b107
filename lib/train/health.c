/* health.c - see health.h. */
#include "train/health.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "comm/comm.h"
#include "data/data.h"
#include "train/apply.h"
#include "train/copies.h"
#include "train/locate.h"
#include "train/save.h"
#include "train/step_report.h"
#include "train/task.h"

/* Three words of every task: there are at most as many tasks as replicas. A word is 1 + checksum, 0:
 * this task has no checksum. The first two show that the numbers of a task are wrong. */
enum { WORD_GRADIENT, WORD_STATE, N_NUMBERS, WORD_DATA = N_NUMBERS, WORDS };
static const char *const what_differs[N_NUMBERS] = { "reduced gradient",
                                                 "weights and optimizer state" };

size_t health_words(const struct train_opts *o)
{
    return ((size_t)o->replicas * WORDS + 15) / 16 * 16;
}

/* Initializes the state again from the model file. */
static int start_over(struct train *t, struct err *err)
{
    struct memory *m = &t->engine->memory;
    int rc = 0;

    memset(m->state, 0, m->state_bytes);
    if (t->model.fill != NULL)
        rc = t->model.fill(&t->model, m->state, err);
    if (rc < 0)
        return rc;
    engine_memory_fill_average(m, true);
    engine_memory_fill_delayed(m);
    m->step = 0;
    state_begin(&t->state, &t->opts->run.loss_scale);
    return 0;
}

int health_adopt(struct train *t, uint64_t held, const int64_t *votes, struct err *err)
{
    struct health *h = &t->health;
    int rc = 0;

    h->restored_at = (uint64_t)votes[VOTE_RESTORED_AT];
    if (h->state_invalid && held == 0)
        rc = start_over(t, err);
    h->state_invalid = rc < 0; /* otherwise the state is from a peer or a checkpoint, or initial */
    return rc;
}

enum train_end health_end(const struct train *t)
{
    const struct health *h = &t->health;

    return h->rolls_back                         ? TRAIN_ROLL_BACK
           : h->differs && h->peer != UINT32_MAX ? TRAIN_DIVERGED
                                                 : TRAIN_FAILED;
}

void health_begin(struct train *t)
{
    struct health *h = &t->health;

    h->compares = group_view_n_trainers(&t->generation.opts.view) > 1;
    h->data_step = 0;
    h->gradient_step = h->state_step = h->equal_step = h->equal_state_step = 0;
    h->rolls_back = h->differs = false;
    h->peer = UINT32_MAX;
}

static void discard_state(struct train *t)
{
    t->health.state_invalid = true;
    state_hold(&t->state, 0);
    t->engine->ops->discard(t->engine);
}

static void report(const struct train *t, int kind, uint64_t step, const char *text)
{
    struct train_event e = { .kind = kind,
                             .step = step,
                             .text = text,
                             .done = t->state.facts.skips_in_row,
                             .all = t->health.skips };

    events_send(&t->events, &e);
}

/* ---- weights and optimizer state ---- */

/* Returns true if there are other copies of the state: on peers, or in this task. */
static bool has_copies(const struct train *t)
{
    return t->opts->health.check_weights_every_steps > 0 &&
           (t->health.compares || t->engine->n_states > 1);
}

/* Reports a divergence within this task, which detects it before its peers do. */
static int report_own(struct replica *r, uint64_t step, const struct err *err)
{
    struct train *t = r->train;

    if (r->local == 0) {
        t->health.differs = true;
        t->health.peer = t->generation.opts.view.self;
        report(t, TRAIN_DIFFERS, step, err->text);
    }
    return err->code;
}

bool health_checksum_is_due(const struct train *t, uint64_t before, uint64_t step)
{
    uint64_t every = t->opts->health.check_weights_every_steps;

    return has_copies(t) && step / every > before / every;
}

int health_checksum(struct replica *r, uint64_t step, struct err *err)
{
    struct train *t = r->train;
    uint32_t sum = 0;
    int rc;

    if (!has_copies(t))
        return 0;
    rc = ops_of(r)->checksum(r->device, err);
    if (rc == 0)
        rc = generation_gate(&t->generation, &r->device->place, err);
    if (rc < 0)
        return rc;
    rc = ops_of(r)->verify_state(r->device, step, &sum, err);
    if (rc < 0) {
        (void)report_own(r, step, err);
        if (r->local == 0)
            discard_state(t);
        return rc;
    }
    if (r->local == 0) {
        t->health.state = sum;
        t->health.state_step = step;
    }
    return 0;
}

/* ---- comparing ---- */

void health_contribute(const struct train *t, uint64_t step, float *control)
{
    const struct health *h = &t->health;
    float *words = control + CONTROL_WORDS + (size_t)t->generation.opts.view.self * WORDS;

    if (!h->compares)
        return;
    if (h->gradient_step > 0 && t->opts->health.check_gradients)
        words[WORD_GRADIENT] = (float)(h->gradient + 1);
    if (h->state_step > 0)
        words[WORD_STATE] = (float)(h->state + 1);
    if (h->data_step > 0 && h->data_step == step)
        words[WORD_DATA] = (float)h->data;
}

/* Returns the value that more than half of the nonzero words have; 0: there is no majority. *n:
 * number of nonzero words; *n_equal: how many of them equal the result. */
static uint32_t majority(const float *words, uint32_t n_members, uint32_t *n, uint32_t *n_equal)
{
    uint32_t value = 0, lead = 0;

    *n = *n_equal = 0;
    for (uint32_t m = 0; m < n_members;
         m++) { /* Boyer-Moore: a majority value, if any, is the last candidate */
        uint32_t word = (uint32_t)words[(size_t)m * WORDS];

        if (word == 0)
            continue;
        ++*n;
        if (lead == 0)
            value = word;
        lead += word == value ? 1 : -1u;
    }
    for (uint32_t m = 0; m < n_members && value != 0; m++)
        *n_equal += (uint32_t)words[(size_t)m * WORDS] == value;
    return 2 * *n_equal > *n ? value : 0;
}

/* The generation ends by `err`, on every task: no task aborts the communicator before all know the
 * error. */
static int end_everywhere(struct replica *r, const struct err *err)
{
    generation_set_error(&r->train->generation, err);
    if (r->train->generation.comm != NULL)
        (void)comm_barrier(r->train->generation.comm, r->local,
                           NULL); /* the error is known on all tasks */
    return err->code;
}

/* Names the first member that differs, or states that there is no majority. */
static int report_difference(struct replica *r, uint32_t which, uint64_t step, const float *words,
                             struct err *err)
{
    struct train *t = r->train;
    uint32_t n, n_equal,
        value = majority(words, group_view_n_trainers(&t->generation.opts.view), &n, &n_equal);
    uint32_t odd = UINT32_MAX, own = (uint32_t)words[(size_t)t->generation.opts.view.self * WORDS];

    for (uint32_t m = group_view_n_trainers(&t->generation.opts.view); m-- > 0 && value != 0;) {
        uint32_t word = (uint32_t)words[(size_t)m * WORDS];

        odd = word != 0 && word != value ? m : odd;
    }
    if (value != 0)
        (void)err_set(err, ERR_DEVICE,
                      "%s differs from the others: its %s of step %" PRIu64
                      " has checksum %06x, %u of "
                      "%u tasks have %06x. A processor or memory of %s computed or stored a wrong "
                      "value; its state is invalid, and it receives that of the others",
                      t->generation.opts.view.members[odd].name, what_differs[which], step,
                      (uint32_t)words[(size_t)odd * WORDS] - 1, n_equal, n, value - 1,
                      t->generation.opts.view.members[odd].name);
    else
        (void)err_set(
            err, ERR_DEVICE,
            "tasks differ, and no majority shows which are right: the %s of step %" PRIu64
            " has checksum %06x on %s, and %u tasks of %u have another. Every state in memory is "
            "invalid; restart the tasks to continue from the last checkpoint, which was equal on "
            "all tasks",
            what_differs[which], step, own - 1,
            t->generation.opts.view.members[t->generation.opts.view.self].name, n - (own != 0), n);
    if (r->local == 0) {
        t->health.differs = true;
        t->health.peer = odd;
        if (value == 0 || own != value)
            discard_state(t);
        report(t, TRAIN_DIFFERS, step, err->text);
    }
    return end_everywhere(r, err);
}

int health_compare(struct replica *r, uint64_t step, struct err *err)
{
    struct train *t = r->train;
    struct health *h = &t->health;
    const float *words = engine_control(r->device) + CONTROL_WORDS;
    uint64_t of = step - 1;

    for (uint32_t which = 0; which < N_NUMBERS && h->compares; which++) {
        uint32_t n, n_equal;

        (void)majority(words + which, group_view_n_trainers(&t->generation.opts.view), &n,
                       &n_equal);
        if (n_equal != n)
            return report_difference(r, which, of, words + which, err);
        if (r->local == 0 && n == group_view_n_trainers(&t->generation.opts.view))
            *(which == WORD_STATE ? &h->equal_state_step : &h->equal_step) = of;
    }
    if (r->local == 0)
        h->gradient_step = h->state_step = 0;
    return 0;
}

int health_compare_data(struct replica *r, uint64_t step, struct err *err)
{
    struct train *t = r->train;
    const struct group_view *v = &t->generation.opts.view;
    const float *words = engine_control(r->device) + CONTROL_WORDS;
    uint32_t here = (uint32_t)words[(size_t)v->self * WORDS + WORD_DATA];
    uint32_t there = (uint32_t)words[(size_t)v->coordinator * WORDS + WORD_DATA];
    char place[1100];

    if (!t->health.compares || here == 0 || there == 0 || here == there)
        return 0;
    data_check_place(t->model.data, step, t->reads->check_every, place, sizeof(place));
    return err_set(err, ERR_INPUT,
                   "the training data of this task differs from that of %s in %s (checksum %06x, expected %06x); the "
                   "steps up to %" PRIu64 " were trained on data that differ: give every task the same files, and train "
                   "again from a checkpoint that you trust",
                   v->members[v->coordinator].name, place, here - 1, there - 1, step - 1);
}

bool health_allows(const struct train *t, uint64_t step)
{
    const struct train_opts *o = t->opts;
    const struct health *h = &t->health;

    if (!h->compares)
        return true;
    return (!o->health.check_gradients || h->equal_step == step || h->equal_state_step == step) &&
           (o->health.check_weights_every_steps == 0 || h->equal_state_step == step);
}

int health_compare_last(struct replica *r, uint64_t step, struct err *err)
{
    struct train *t = r->train;
    float *control = engine_control(r->device);
    size_t words = CONTROL_WORDS + health_words(t->opts);
    int rc;

    if (!t->health.compares)
        return 0;
    /* Another replica may still read the checksums that this call writes again. */
    rc = generation_gate(&t->generation, &r->device->place, err);
    if (rc == 0)
        rc = health_checksum(r, step, err);
    memset(control, 0, words * sizeof(float));
    if (rc == 0 && r->local == 0) {
        health_contribute(t, 0, control);
        control[CONTROL_UNLOGGED] = step_report_unlogged(t, step);
    }
    if (rc == 0)
        rc = comm_all_reduce(t->generation.comm, r->local, control, words, TENSOR_F32, COMM_SUM,
                             err);
    if (rc == 0)
        step_report_logged(r, step);
    return rc == 0 ? health_compare(r, step + 1, err) : rc;
}

/* ---- the gradient, immediately before its use ---- */

int health_check_step(struct replica *r, uint64_t step, double loss, bool *finite, struct err *err)
{
    struct health *h = &r->train->health;
    uint32_t sum;
    int rc = ops_of(r)->verify_gradient(r->device, step, &sum, finite, err);

    if (rc < 0)
        return report_own(r, step, err);
    *finite = *finite && isfinite(loss);
    if (r->local == 0) {
        h->gradient = sum;
        h->gradient_step = step;
    }
    return 0;
}

void health_updated(struct replica *r)
{
    if (r->local == 0)
        r->train->state.facts.skips_in_row = 0;
}

/* ---- a step that is not finite ---- */

bool health_overflowed(const struct replica *r, double loss)
{
    const struct loss_scale now = { .scale = r->device->scale };

    return isfinite(loss) && loss_scale_can_shrink(&r->train->opts->run.loss_scale, now);
}

void health_skip_overflow(struct replica *r, uint64_t step)
{
    struct train *t = r->train;
    char text[200];
    struct train_event e = { .kind = TRAIN_OVERFLOWED, .step = step, .text = text };

    apply_skip(r, step, true);
    if (r->local != 0)
        return;
    e.all = ++t->health.overflows;
    snprintf(text, sizeof(text),
             "step %" PRIu64 ": the gradient overflows float16 with a loss scale of %.10g; the "
             "step is skipped, the scale is %.10g from now on",
             step, r->device->scale, t->state.facts.scale.scale);
    events_send(&t->events, &e);
}

static int skip(struct replica *r, uint64_t step, const char *text, struct err *err)
{
    struct train *t = r->train;
    char all[1200];
    int rc;

    /* all replicas have read the count; it may change after the gate */
    rc = generation_gate(&t->generation, &r->device->place, err);
    if (rc < 0)
        return rc;
    apply_skip(r, step, false);
    if (r->local != 0)
        return 0;
    t->state.facts.skips_in_row++;
    t->health.skips++;
    snprintf(all, sizeof(all),
             "%s; the step is skipped, weights and optimizer state stay as they are (%u in a row, "
             "more than "
             "%d end the job)",
             text, t->state.facts.skips_in_row, HEALTH_MAX_SKIPS);
    report(t, TRAIN_SKIPPED, step, all);
    return 0;
}

/* The state is that after step `before`; it is saved first. */
static int stop(struct replica *r, uint64_t before, const char *text, const char *why,
                struct err *err)
{
    struct train *t = r->train;
    int rc;

    if (r->local == 0)
        t->health.gradient_step = 0; /* the gradient of this step need not be compared */
    rc = health_compare_last(r, before, err);
    if (rc == 0)
        rc = copies_make(r, before, err);
    if (rc == 0 && r->local == 0 && generation_is_coordinator(&t->generation) && before > 0)
        rc = save_now(t, before, t->generation.opts.deadline_ms, err);
    if (rc < 0)
        return err_wrap(err, rc, "%s; while the job was stopping", text);
    (void)err_set(err, ERR_INPUT, "%s; %s; the state after step %" PRIu64 " is kept", text, why,
                  before);
    return end_everywhere(r, err);
}

int health_roll_back(struct replica *r, const struct err *why)
{
    struct train *t = r->train;
    int rc = end_everywhere(r, why);

    if (r->local == 0) { /* the other replicas have read it */
        t->health.rolls_back = true;
        discard_state(t);
    }
    return rc;
}

static int roll_back(struct replica *r, uint64_t step, const char *text, struct err *err)
{
    int rc;

    (void)err_set(err, ERR_DEVICE, "%s; all tasks return to the newest checkpoint", text);
    rc = health_roll_back(r, err);
    if (r->local == 0)
        r->train->health.restored_at = step;
    return rc;
}

/* Applies the policy of the job; the held state is that after step `before`. Returns 0 if the step is
 * skipped; the other policies end the generation. */
static int decide(struct replica *r, uint64_t before, uint64_t step, const char *text,
                  struct err *err)
{
    const struct train *t = r->train;
    const struct health *h = &t->health;
    char why[128];

    if (t->opts->health.non_finite == TRAIN_RESTORE && h->restored_at != step)
        return roll_back(r, step, text, err);
    if (t->opts->health.non_finite == TRAIN_SKIP && t->state.facts.skips_in_row < HEALTH_MAX_SKIPS)
        return 0;
    if (t->opts->health.non_finite == TRAIN_SKIP)
        snprintf(why, sizeof(why), "%d steps in a row were skipped before it, so the job stops",
                 HEALTH_MAX_SKIPS);
    else if (t->opts->health.non_finite == TRAIN_STOP)
        snprintf(why, sizeof(why), "health.non_finite is \"stop\"");
    else
        snprintf(why, sizeof(why), "so it was before, from the checkpoint on, so the job stops");
    return stop(r, before, text, why, err);
}

int health_handle_nonfinite(struct replica *r, uint64_t step, const struct step_result *result,
                            struct err *err)
{
    char text[900];
    int rc;

    place_enter(&r->device->place, PHASE_LOCATE);
    rc = locate_run(r, step, result, text, sizeof(text), err);
    if (rc < 0)
        return err_wrap(err, rc, "find out why loss or gradient are not finite");
    rc = decide(r, step - 1, step, text, err);
    return rc < 0 ? rc : skip(r, step, text, err);
}

int health_handle_local(struct replica *r, uint64_t before, uint64_t step, const char *text,
                        struct err *err)
{
    struct train *t = r->train;
    char all[1200];
    int rc = decide(r, before, step, text, err);

    if (rc < 0)
        return rc;
    t->state.facts.skips_in_row++;
    t->health.skips++;
    snprintf(all, sizeof(all),
             "%s; the groups leave out such steps (%u outer steps in a row after such a step, more "
             "than %d end the job)",
             text, t->state.facts.skips_in_row, HEALTH_MAX_SKIPS);
    report(t, TRAIN_SKIPPED, step, all);
    return 0;
}
