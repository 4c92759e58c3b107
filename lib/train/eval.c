/* eval.c - loss and metrics over the whole evaluation set.
 *
 * The set is cut into global batches and lanes like the training set (in file order, the last batch
 * padded with weight zero), every lane adds up in double over its batches, lanes are added along the
 * tree: the figures do not depend on who computed what either. */
#include "train/train_priv.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "op/op.h"

enum { SUM_LOSS, SUM_METRICS };

static int lane_sums(struct replica *r, struct data_reader *reader, uint64_t step, uint32_t lane,
                     double *sums, struct err *err)
{
    struct train *t = r->train;
    struct op_run run = { .seed = t->opts->seed, .step = step, .lane = lane, .loss_scale = 1 };
    int rc = step_feed(r, r->eval_plan, reader, err);

    if (rc == 0)
        rc = plan_forward(r->eval_plan, &run, err);
    if (rc < 0)
        return rc;
    sums[SUM_LOSS] += plan_loss(r->eval_plan);
    for (uint32_t m = 0; m < t->opts->n_metrics; m++)
        sums[SUM_METRICS + m] += plan_metric(r->eval_plan, m);
    return 0;
}

/* A reader delivers step by step, lane by lane; the sums are kept per lane: the stack has an entry
 * for each while batches run (depth is not enough, so they live in `per_lane`). */
static int all_lanes(struct replica *r, struct data_reader *reader, double (*per_lane)[EVAL_WORDS],
                     struct err *err)
{
    struct train *t = r->train;

    for (uint64_t s = 1; s <= t->eval_steps; s++)
        for (uint32_t i = 0; i < t->lanes_per_replica; i++) {
            int rc = lane_sums(r, reader, s, r->first_lane + i, per_lane[i], err);

            if (rc < 0)
                return rc;
            if (t->cancel)
                return err_set(err, ERR_CANCELED, "the generation ended");
        }
    return 0;
}

static void add_lanes(struct replica *r, double (*per_lane)[EVAL_WORDS])
{
    uint32_t n = r->train->lanes_per_replica, top = 0;

    for (uint32_t i = 0; i < n; i++) {
        memcpy(r->sums[top++], per_lane[i], sizeof(per_lane[i]));
        for (uint32_t m = tree_merges(i, n); m > 0; m--, top--)
            tree_add_f64(r->sums[top - 2], r->sums[top - 1], EVAL_WORDS);
    }
}

int eval_run(struct replica *r, uint64_t step, struct err *err)
{
    struct train *t = r->train;
    const struct train_opts *o = t->opts;
    struct data_reader_opts ro = {
        .seed = o->seed,
        .pad = true,
        .global_batch = o->global_batch,
        .lanes = o->lanes,
        .first_lane = r->first_lane,
        .n_lanes = t->lanes_per_replica,
        .first_step = 1,
        .last_step = t->eval_steps,
        .threads = 0,
        .prefetch = 1,
    };
    struct data_reader *reader = NULL;
    uint64_t begin = clock_ns();
    double(*per_lane)[EVAL_WORDS] = calloc(t->lanes_per_replica, sizeof(*per_lane));
    int rc;

    if (r->local == 0)
        train_phase(t, "evaluate", step);
    if (per_lane == NULL)
        return err_set(err, ERR_NOMEM, "evaluation: out of memory");
    rc = data_reader_open(t->eval_data, &ro, &reader, err);
    if (rc == 0)
        rc = all_lanes(r, reader, per_lane, err);
    if (rc == 0) {
        add_lanes(r, per_lane);
        if (t->comm != NULL)
            rc = comm_all_reduce(t->comm, r->local, r->sums[0], EVAL_WORDS, TENSOR_F64, COMM_SUM,
                                 err);
    }
    data_reader_close(reader);
    free(per_lane);
    if (rc < 0)
        return err_wrap(err, rc, "evaluation after step %llu", (unsigned long long)step);
    if (r->local == 0) {
        uint64_t samples = data_records(t->eval_data);
        struct train_eval_report report = {
            .step = step,
            .epoch = (step - 1) / t->steps_per_epoch,
            .samples = samples,
            .loss = r->sums[0][SUM_LOSS] / (double)samples,
            .ns = clock_ns() - begin,
        };
        struct train_event e = { .kind = TRAIN_EVAL, .step = step, .eval = &report };

        for (uint32_t m = 0; m < o->n_metrics; m++)
            report.metrics[m] = r->sums[0][SUM_METRICS + m] / (double)samples;
        train_tell(t, &e);
        train_phase(t, "train", step);
    }
    return 0;
}
