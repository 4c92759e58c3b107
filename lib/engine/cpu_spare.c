/* cpu_spare.c - see cpu_spare.h. */
#include "engine/cpu_spare.h"

#include <inttypes.h>
#include <stdio.h>
#include <time.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "comm/comm.h"
#include "data/data.h"
#include "engine/common.h"
#include "engine/cpu_lane.h"
#include "engine/cpu_types.h"
#include "engine/lanes.h"
#include "engine/plans.h"
#include "graph/graph.h"
#include "op/op.h"

enum {
    COPY = 2,       /* arena of the copy */
    WARM_STEPS = 3, /* of a generation, in which no replica helps: they touch memory for the first time */
    /* A replica helps after this part of the time of the block. The gain of a pause P, with a block of B, is the
       smaller of B and P - B less this wait; replicas that are a little uneven should not read samples in vain. */
    PATIENCE_PARTS = 4,
    LEAST_PATIENCE_NS = 2000000, /* below it, waits are those of the scheduler */
    NAP_NS = 500000,
};

static struct spare *spare_of(const struct engine_replica *r)
{
    return &cpu_of(r)->spare;
}

/* ---- a generation ---- */

/* Returns why a job has no spare lanes; NULL: it can have them. The same on all tasks. */
static const char *why_never(const struct engine *e, bool can_overlap)
{
    const struct engine_opts *o = e->opts;

    if (e->memory.opts.n_tables > 0)
        return "gradients of tables are sent as rows";
    if (o->spare == SPARE_AUTO && can_overlap && o->overlap != ENGINE_OVERLAP_NEVER)
        return "gradients are reduced while backward computes, which \"always\" gives up";
    return NULL;
}

void spare_open(struct engine *e, bool can_overlap)
{
    const char *why = e->opts->spare != SPARE_OFF ? why_never(e, can_overlap) : NULL;

    e->spares = e->opts->spare != SPARE_OFF && why == NULL;
    e->why_no_spares = why;
}

bool spare_is_on(const struct engine *e)
{
    return e->spares && e->group.comm != NULL && comm_spares(e->group.comm) && !e->group.overlap;
}

static const char *why_off(const struct engine *e)
{
    if (!e->spares)
        return e->why_no_spares;
    if (comm_why_no_spares(e->group.comm) != NULL)
        return comm_why_no_spares(e->group.comm);
    return e->group.overlap ? "the task of rank 0 reduces gradients while backward computes" : NULL;
}

static const char *name_of(const struct engine_replica *r, uint32_t rank)
{
    const struct group_view *v = r->engine->group.view;
    uint32_t m = 0;

    while (rank >= v->members[m].n_devices) /* a ps has none */
        rank -= v->members[m++].n_devices;
    return v->members[m].name;
}

/* Writes which lanes this task may compute for another one, and which of its own another one may compute. */
static void describe(const struct engine_replica *r, char *out, size_t n)
{
    const struct spare *s = spare_of(r);

    out[0] = '\0';
    if (r->n_helped > 0)
        engine_append(out, n,
                      "spare lanes: if %s is late, this task computes its last %" PRIu32 " lane%s",
                      s->helped, r->n_helped, r->n_helped > 1 ? "s" : "");
    else
        engine_append(out, n, "spare lanes: %s computes one lane, which is not spare", s->helped);
    if (r->n_block > 0)
        engine_append(out, n, "; if this task is late, %s computes its last %" PRIu32, s->helper,
                      r->n_block);
    else
        engine_append(out, n, "; this task computes one lane");
}

void spare_bind(struct engine_replica *r)
{
    const struct engine *e = r->engine;
    struct spare *s = spare_of(r);
    const char *why;
    char text[256];

    *s = (struct spare){ .is_passive = false };
    r->spare = (struct engine_spare){ 0 };
    if (e->opts->spare == SPARE_OFF || e->group.comm == NULL)
        return;
    why = why_off(e);
    /* The log says which task used a sample. It would not, if another task computed the lane. */
    s->is_passive = e->opts->on_lane != NULL;
    if (spare_is_on(e)) {
        s->helped = name_of(r, spare_helped(r->rank, comm_world(e->group.comm)));
        s->helper = name_of(r, spare_helper(r->rank, comm_world(e->group.comm)));
    }
    if (why != NULL)
        snprintf(text, sizeof(text), "spare lanes are off: %s", why);
    else if (s->is_passive)
        snprintf(text, sizeof(text),
                 "spare lanes: not in this task, which writes a log of samples");
    else
        describe(r, text, sizeof(text));
    if (r->local == 0)
        engine_note(e, false, text);
}

/* ---- the own lanes ---- */

uint32_t spare_begin(struct engine_replica *r, uint64_t step)
{
    struct spare *s = spare_of(r);
    uint32_t owed = s->owed;

    if (spare_is_on(r->engine)) /* otherwise replica 0 of the task reads it, for its report, while this one computes */
        r->spare = (struct engine_spare){ 0 };
    s->is_given = false;
    s->owed = 0;
    s->step = step;
    s->begin_ns = clock_ns();
    return owed;
}

uint32_t spare_merges(const struct engine_replica *r, uint32_t i)
{
    uint32_t n_first = r->n_lanes - r->n_block;

    if (!spare_is_on(r->engine) || r->n_block == 0)
        return lane_merges(r, i);
    return i < n_first ? tree_merges(NULL, i, n_first) : tree_merges(NULL, i - n_first, r->n_block);
}

bool spare_is_block(const struct engine_replica *r, uint32_t i)
{
    return spare_is_on(r->engine) && !spare_of(r)->is_passive && i >= r->n_lanes - r->n_block;
}

bool spare_is_offered(void *arg)
{
    const struct engine_replica *r = arg;

    return comm_is_offered(r->engine->group.comm, r->local);
}

void spare_lane_begins(struct engine_replica *r, uint32_t i)
{
    if (i == r->n_lanes - r->n_block)
        spare_of(r)->block_ns = clock_ns() - r->data_ns;
}

void spare_give(struct engine_replica *r, uint32_t n_fed)
{
    struct spare *s = spare_of(r);

    s->is_given = true;
    s->owed = r->n_lanes - n_fed;
    r->spare.given = r->n_block;
    r->spare.given_ns = clock_ns() - r->data_ns - s->block_ns;
}

void spare_lanes_end(struct engine_replica *r)
{
    struct spare *s = spare_of(r);
    uint64_t ns = clock_ns() - s->begin_ns, n = r->n_lanes - r->spare.given,
             other = r->data_ns + r->spare.given_ns;

    ns = (ns > other ? ns - other : 0) / n; /* the first lanes are always computed */
    s->lane_ns = s->n_steps++ == 0 ? ns : (3 * s->lane_ns + ns) / 4;
}

/* ---- the copy ---- */

static bool is_no_longer_late(void *arg)
{
    const struct engine_replica *r = arg;

    return !comm_is_late(r->engine->group.comm, r->local);
}

/* Waits for the samples, but not longer than for the late replica. */
static int feed(struct engine_replica *r, struct err *err)
{
    const struct timespec nap = { .tv_nsec = NAP_NS };
    const struct data_batch *b;
    int rc;

    while (!data_is_ready(r->plans->side)) {
        if (is_no_longer_late(r))
            return err_set(err, ERR_CANCELED, "the replica is no longer late");
        nanosleep(&nap, NULL);
    }
    rc = data_next(r->plans->side, &b, err);
    if (rc < 0)
        return rc;
    CHECK(b != NULL);                           /* the reader was opened for these lanes */
    (void)cpu_feed(r, r->plans->train, b, err); /* a copy within the host: cannot fail */
    data_release(r->plans->side);
    return 0;
}

static int compute(struct engine_replica *r, struct err *err)
{
    const struct engine *e = r->engine;
    struct plan *plan = r->plans->train;
    struct op_run run = { .seed = e->opts->seed,
                          .step = spare_of(r)->step,
                          .cancel = e->opts->cancel,
                          .stops = is_no_longer_late,
                          .stops_arg = r,
                          .loss_scale = r->loss_scale };
    uint32_t top = COPY;
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < r->n_helped; i++) {
        float **grads = r->arenas->grads;

        CHECK(top < e->memory.depth);
        run.lane = r->helped_lane + i;
        rc = feed(r, err);
        if (rc == 0)
            rc = fault_error("train.spare", err);
        if (rc == 0)
            rc = plan_forward(plan, &run, err);
        if (rc == 0)
            rc = plan_backward(plan, &run, grads[top], NULL, NULL, err);
        if (rc < 0)
            break;
        cpu_write_control(r, grads[top++]);
        for (uint32_t m = tree_merges(NULL, i, r->n_helped); m > 0; m--, top--)
            tree_add_f32(grads[top - 2], grads[top - 1], e->memory.grads);
    }
    return rc;
}

/* A comm_spare.help. What fails here fails in the late replica too, unless only this task is to blame: then it
 * helps no more. */
static bool help(void *arg)
{
    struct engine_replica *r = arg;
    struct spare *s = spare_of(r);
    struct err err;
    char text[sizeof(err.text) + 128];
    int rc = plans_open_helped(r, s->step, &err);

    if (rc == 0)
        rc = compute(r, &err);
    plans_close_side(r);
    if (rc < 0 && rc != ERR_CANCELED) {
        s->is_broken = true;
        snprintf(text, sizeof(text), "spare lanes: this task does not help %s any more: %s",
                 s->helped, err.text);
        engine_note(r->engine, true, text);
    }
    return rc == 0;
}

/* ---- the exchange ---- */

static uint64_t patience_ns(const struct engine_replica *r)
{
    uint64_t ns = spare_of(r)->lane_ns * r->n_helped / PATIENCE_PARTS;

    return ns > LEAST_PATIENCE_NS ? ns : LEAST_PATIENCE_NS;
}

static void count(struct engine_replica *r, const struct comm_spare *c)
{
    const struct spare *s = spare_of(r);

    r->spare.offered = c->has_offered ? r->n_helped : 0;
    r->spare.used = c->is_used ? r->n_helped : 0;
    r->spare.compared = c->is_compared ? r->n_helped : 0;
    r->spare.helped = s->helped;
    r->spare.helper = s->helper;
}

int spare_reduce(struct engine_replica *r, size_t n, struct err *err)
{
    const struct engine *e = r->engine;
    struct spare *s = spare_of(r);
    bool helps = r->n_helped > 0 && s->n_steps > WARM_STEPS && !s->is_passive && !s->is_broken;
    bool is_offered = r->n_block > 0 && !s->is_passive && spare_is_offered(r);
    struct comm_spare c = { .state = s->is_given ? SPARE_GIVEN : is_offered ? SPARE_APART : SPARE_OWN,
                            .help = helps ? help : NULL,
                            .patience_ns = patience_ns(r),
                            .arg = r };
    int rc;

    (void)fault_hit("train.spare_exchange");              /* a test kills the process here */
    if (c.state == SPARE_OWN && r->n_block > r->n_second) /* the halves of one subtree */
        tree_add_f32(r->arenas->grads[0], r->arenas->grads[1], n);
    rc = comm_all_reduce_spared(e->group.comm, r->local, r->arenas->grads[0], e->memory.grads_bytes,
                                n, TENSOR_F32, &c, err);
    if (rc == 0)
        count(r, &c);
    else
        r->spare.wrong = c.n_wrong;
    return rc;
}
