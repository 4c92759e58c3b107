/* fake_engine.c - see fake_engine.h. */
#include "harness/fake_engine.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/cancel.h"
#include "base/checksum.h"
#include "base/err.h"
#include "base/gate.h"
#include "comm/comm.h"
#include "engine/common.h"
#include "engine/lanes.h"

struct fake {
    struct engine base;
    struct fake_script *script;
    float state[FAKE_FLOATS]; /* the device's */
    uint64_t held;            /* whose state that is */
    bool has_state;
    uint64_t step;        /* of the last verb that had one */
    pthread_mutex_t lock; /* between begin() and cancel(), which any thread may call */
    struct gate canceled; /* of two threads, one of which never comes; broken by cancel() */
};

struct fake_script *fake_next_script;

static struct fake *fake_of(const struct engine *e)
{
    return (struct fake *)(uintptr_t)e;
}

/* ---- numbers ---- */

/* A multiple of 1/64 below 1: sums of fewer than 2^18 of them are exact. */
static float gradient(uint64_t step, uint32_t lane, uint32_t i)
{
    return (float)((step * 31 + lane * 7 + i) % 64) / 64;
}

static void move(float *state, const float *sums)
{
    for (uint32_t i = 0; i < FAKE_FLOATS; i++)
        state[i] -= sums[i] / 8;
}

void fake_expect(uint64_t step, uint32_t lanes, float state[FAKE_FLOATS])
{
    memset(state, 0, FAKE_FLOATS * sizeof(*state));
    for (uint64_t k = 1; k <= step; k++) {
        float sums[FAKE_FLOATS] = { 0 };

        for (uint32_t lane = 0; lane < lanes; lane++)
            for (uint32_t i = 0; i < FAKE_FLOATS; i++)
                sums[i] += gradient(k, lane, i);
        move(state, sums);
    }
}

static bool is_nan_step(const struct fake_script *s, uint64_t step)
{
    uint32_t n = s->nan_steps > 0 ? s->nan_steps : 1;

    return s->nan_step > 0 && step >= s->nan_step && step < s->nan_step + n;
}

/* ---- every verb of a generation ---- */

static int enter(struct engine_replica *r, const char *verb, uint64_t step, struct err *err)
{
    struct fake *f = fake_of(r->engine);
    const struct fake_script *s = f->script;

    if (r->local != 0)
        return 0;
    f->step = step > 0 ? step : f->step;
    if (s->on_verb != NULL)
        s->on_verb(s->arg, verb, f->step);
    if (s->fail_verb != NULL && strcmp(s->fail_verb, verb) == 0 && s->fail_step == f->step)
        return err_set(err, ERR_DEVICE, "%s of step %llu fails as scripted", verb,
                       (unsigned long long)f->step);
    if (s->block_verb != NULL && strcmp(s->block_verb, verb) == 0 && s->block_step == f->step)
        (void)gate_wait(&f->canceled); /* the second thread never comes: only a break ends it */
    return engine_check_canceled(r->engine, err);
}

/* ---- task ---- */

static void fake_close(struct engine *e)
{
    engine_fini(e);
    free(e);
}

static int fake_open(const struct engine_opts *opts, struct engine **out, struct err *err)
{
    static const struct optim_def no_slots = { .name = "fake" };
    struct memory_opts m = { .params = FAKE_FLOATS,
                             .trained = FAKE_FLOATS,
                             .dense = FAKE_FLOATS,
                             .optimizer = &no_slots,
                             .hyper = opts->hyper };
    struct fake *f = calloc(1, sizeof(*f));
    int rc;

    if (f == NULL)
        return err_set(err, ERR_NOMEM, "fake: out of memory");
    pthread_mutex_init(&f->lock, NULL);
    f->script = fake_next_script;
    rc = engine_init(&f->base, &engine_fake, opts, err);
    if (rc == 0)
        rc = engine_open_memory(&f->base, &m, err);
    if (rc < 0) {
        fake_close(&f->base);
        return rc;
    }
    *out = &f->base;
    return 0;
}

static void fake_cancel(struct engine *e)
{
    struct fake *f = fake_of(e);

    pthread_mutex_lock(&f->lock);
    gate_break(&f->canceled);
    pthread_mutex_unlock(&f->lock);
}

static int fake_replace_region(struct engine *e, struct err *err)
{
    return engine_memory_replace_region(&e->memory, err);
}

static bool fake_overlaps(const struct engine *e)
{
    (void)e;
    return false;
}

static int fake_sync(struct engine *e, uint64_t held, struct err *err)
{
    struct fake *f = fake_of(e);

    if (e->memory.step == held)
        return 0;
    if (!f->has_state || f->held != held)
        return err_set(err, ERR_DEVICE, "the fake holds no state after step %llu",
                       (unsigned long long)held);
    memcpy(e->memory.state, f->state, sizeof(f->state));
    e->memory.step = held;
    return 0;
}

static int fake_snapshot(struct engine *e, uint64_t held, void *to, struct err *err)
{
    int rc = fake_sync(e, held, err);

    if (rc == 0)
        memcpy(to, e->memory.state, e->memory.state_bytes);
    return rc;
}

static int fake_wait_snapshot(struct engine *e, struct err *err)
{
    (void)e;
    (void)err;
    return 0;
}

static int fake_staging(struct engine *e, void **out, struct err *err)
{
    (void)e;
    (void)err;
    *out = NULL;
    return 0;
}

static void fake_abandon_staging(struct engine *e)
{
    (void)e;
}

static void fake_discard(struct engine *e)
{
    fake_of(e)->has_state = false;
}

/* ---- a generation ---- */

static int fake_begin(struct engine_replica *r, struct err *err)
{
    struct fake *f = fake_of(r->engine);

    pthread_mutex_lock(&f->lock);
    if (r->local == 0 && !cancel_requested(r->engine->opts->cancel))
        gate_init(&f->canceled, 2, false);
    pthread_mutex_unlock(&f->lock);
    return enter(r, "begin", 0, err);
}

static int fake_bind(struct engine_replica *r, uint64_t held, struct err *err)
{
    struct fake *f = fake_of(r->engine);
    int rc = enter(r, "bind", held, err);

    if (rc < 0 || r->local != 0 || (f->has_state && f->held == held && held > 0))
        return rc;
    memcpy(f->state, r->engine->memory.state, sizeof(f->state));
    f->held = held;
    f->has_state = true;
    return 0;
}

static int fake_open_reader(struct engine_replica *r, uint64_t first, uint64_t last,
                            struct err *err)
{
    (void)last;
    return enter(r, "read", first, err);
}

static int fake_end(struct engine_replica *r, struct err *err)
{
    (void)r;
    (void)err;
    return 0;
}

/* ---- a step ---- */

static int fake_run_lanes(struct engine_replica *r, uint64_t step, struct err *err)
{
    struct engine *e = r->engine;
    float **grads = r->arenas->grads;
    uint32_t top = 0;
    int rc = enter(r, "run_lanes", step, err);

    for (uint32_t l = 0; rc == 0 && l < r->n_lanes; l++) {
        float *g = grads[top++];

        memset(g, 0, e->memory.grads * sizeof(*g));
        for (uint32_t i = 0; i < FAKE_FLOATS; i++)
            g[i] = gradient(step, r->first_lane + l, i);
        g[FAKE_FLOATS + ENGINE_LOSS] =
            is_nan_step(fake_of(e)->script, step) ? NAN : 1 / (float)e->opts->lanes;
        for (uint32_t m = lane_merges(r, l); m > 0; m--, top--)
            tree_add_f32(grads[top - 2], grads[top - 1], e->memory.grads);
    }
    return rc;
}

static int fake_reduce(struct engine_replica *r, uint64_t step, struct err *err)
{
    struct engine *e = r->engine;
    int rc = enter(r, "reduce", step, err);

    place_bucket(&r->place, step, 0);
    if (rc < 0 || e->group.comm == NULL)
        return rc;
    return comm_all_reduce(e->group.comm, r->local, r->arenas->grads[0], e->memory.grads,
                           TENSOR_F32, COMM_SUM, err);
}

static int fake_scale(struct engine_replica *r, float by, struct err *err)
{
    (void)r;
    (void)by;
    (void)err;
    return 0;
}

static void fake_inspect(struct engine_replica *r)
{
    bool finite = true;

    (void)enter(r, "inspect", 0, NULL); /* this verb cannot fail */
    r->inspection.own = checksum_part(r->arenas->grads[0], FAKE_FLOATS, 0, &finite);
    r->inspection.bad = !finite;
}

static int fake_verify_gradient(struct engine_replica *r, uint64_t step, uint32_t *sum,
                                bool *finite, struct err *err)
{
    const struct engine_inspection *look = &r->engine->replicas[0]->inspection;

    (void)step;
    (void)err;
    *sum = look->own;
    *finite = !look->bad;
    return 0;
}

static void fake_gradient_norm(struct engine_replica *r, bool wanted, double *norm)
{
    (void)r;
    *norm = wanted ? 1 : NAN;
}

static int fake_update(struct engine_replica *r, const struct optim_hyper *h, struct err *err)
{
    struct fake *f = fake_of(r->engine);

    (void)err;
    if (r->local != 0)
        return 0;
    (void)enter(r, "update", h->step, NULL); /* after the commit gate nothing fails */
    move(f->state, r->arenas->grads[0]);
    if (f->script->flip_step == h->step)
        f->state[0] += 1;
    f->held = h->step;
    return 0;
}

static void fake_skip_update(struct engine_replica *r, uint64_t step)
{
    if (r->local == 0)
        fake_of(r->engine)->held = step;
}

static int fake_checksum(struct engine_replica *r, struct err *err)
{
    bool finite = true;
    int rc = enter(r, "checksum", 0, err);

    r->state_sum = checksum_part(fake_of(r->engine)->state, FAKE_FLOATS, 0, &finite);
    return rc;
}

static int fake_verify_state(struct engine_replica *r, uint64_t step, uint32_t *sum,
                             struct err *err)
{
    (void)step;
    (void)err;
    *sum = r->engine->replicas[0]->state_sum;
    return 0;
}

static int fake_end_step(struct engine_replica *r, struct err *err)
{
    return enter(r, "end_step", 0, err);
}

/* ---- other passes ---- */

static int fake_evaluate(struct engine_replica *r, struct err *err)
{
    memset(r->arenas->sums[0], 0, r->engine->eval_words * sizeof(double));
    return enter(r, "evaluate", 0, err);
}

static int fake_describe_nonfinite(struct engine_replica *r, const char *separator, char *text,
                                   size_t n, struct err *err)
{
    (void)separator;
    (void)text;
    (void)n;
    return enter(r, "describe", 0, err);
}

static int fake_locate_nonfinite(struct engine_replica *r, uint64_t step,
                                 struct engine_nonfinite *out, struct err *err)
{
    *out = (struct engine_nonfinite){ .lane = r->first_lane };
    engine_append(out->text, sizeof(out->text), "lane %u: scripted", r->first_lane);
    return enter(r, "locate", step, err);
}

const struct engine_ops engine_fake = {
    .name = "fake",
    .open = fake_open,
    .close = fake_close,
    .cancel = fake_cancel,
    .replace_region = fake_replace_region,
    .overlaps = fake_overlaps,
    .sync = fake_sync,
    .snapshot = fake_snapshot,
    .wait_snapshot = fake_wait_snapshot,
    .staging = fake_staging,
    .abandon_staging = fake_abandon_staging,
    .discard = fake_discard,
    .begin = fake_begin,
    .bind = fake_bind,
    .open_reader = fake_open_reader,
    .end = fake_end,
    .run_lanes = fake_run_lanes,
    .reduce = fake_reduce,
    .scale = fake_scale,
    .inspect = fake_inspect,
    .verify_gradient = fake_verify_gradient,
    .gradient_norm = fake_gradient_norm,
    .update = fake_update,
    .skip_update = fake_skip_update,
    .checksum = fake_checksum,
    .verify_state = fake_verify_state,
    .end_step = fake_end_step,
    .evaluate = fake_evaluate,
    .describe_nonfinite = fake_describe_nonfinite,
    .locate_nonfinite = fake_locate_nonfinite,
};
