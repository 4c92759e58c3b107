/* settle_phases.c - the phases of a job, as --check prints them: which steps, how many outer steps,
 * and the memory for the models of local SGD. */
#include <inttypes.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"
#include "daemon/settle.h"
#include "train/phases.h"

static const char *const modes[] = { [TRAIN_SYNC] = "sync",
                                     [TRAIN_LOCAL_SGD] = "local_sgd",
                                     [TRAIN_ASYNC] = "async" };

static void print_local(const struct settled *s, const struct train_phase *phase,
                        const struct train_facts *f, uint64_t outer_steps, struct buf *out)
{
    uint32_t block = s->lanes.n / phase->groups, rank = s->cluster->self->rank, first, n;

    buf_printf(out, ", \"groups\": %" PRIu32 ", \"outer_steps\": %" PRIu64, phase->groups,
               outer_steps);
    if (rank == CLUSTER_NO_RANK)
        return;
    settled_task_lanes(s, rank, &first, &n); /* shares are equal: groups are powers of two (train/phases.h) */
    if (settled_order_unknown(s) == NULL)
        buf_printf(out, ", \"mine\": [%" PRIu32 ", %" PRIu32 "]", first / block,
                   (first + n - 1) / block);
    else
        buf_str(out, ", \"mine\": null");
    buf_printf(out, ", \"model_bytes\": %" PRIu64, (n > block ? n / block : 1) * f->model_bytes);
}

void settled_print_phases(const struct settled *s, const struct train_facts *f, struct buf *out)
{
    const struct train_opts *t = &s->train;
    struct optim_schedule schedule = t->optimizer.schedule;
    uint64_t before = 0, outer_steps = 0;
    struct phases phases;
    struct err err;
    int rc;

    if (t->run.n_phases == 0)
        return;
    schedule.total_steps = f->total_steps;
    rc = phases_open(&phases, t, &schedule, f->total_steps, &err);
    CHECK(rc == 0); /* as when the task was opened for `f` */
    buf_str(out, ",\n  \"phases\": [");
    for (uint32_t i = 0; i < t->run.n_phases; i++) {
        const struct train_phase *phase = &t->run.phases[i];
        uint64_t last = phase->until_step > 0 ? phase->until_step : f->total_steps;
        uint64_t done = phases_period(&phases, last).outer_step;

        buf_printf(out, "%s{\"steps\": [%" PRIu64 ", %" PRIu64 "], \"mode\": \"%s\"",
                   i > 0 ? ", " : "", before + 1, last, modes[phase->mode]);
        if (phase->mode == TRAIN_LOCAL_SGD)
            print_local(s, phase, f, done - outer_steps, out);
        buf_str(out, "}");
        before = last;
        outer_steps = done;
    }
    buf_str(out, "]");
}
