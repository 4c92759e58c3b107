/* settle_ps.c - parameter servers: whether the job uses the ps tasks of the cluster, and the options of a
 * ps task. */
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "daemon/settle.h"
#include "member/node.h"
#include "ps/wants.h"

bool settle_is_ps_task(const struct settled *s)
{
    return !s->cluster->is_local && s->cluster->self->type == CLUSTER_PS;
}

/* The default of 1 is valid without ps tasks, too: the same job then keeps its tables on the training tasks. */
static int check_min_ps(const struct settled *s, uint32_t n_ps, struct err *err)
{
    uint32_t requested = s->conf->ps.min_ps;

    if (requested <= n_ps || requested == 1)
        return 0;
    return err_set(err, ERR_INPUT,
                   "/parameter_server/min_ps: %u ps tasks, but the cluster has %u: write at most that, or leave it out "
                   "to train with any number of them",
                   requested, n_ps);
}

int settle_ps(struct settled *s, struct err *err)
{
    uint32_t n_ps = s->cluster->is_local ? 0 : s->cluster->n_ps;
    int rc;

    if (!s->conf->has_ps || settled_is_evaluator(s))
        return 0;
    rc = check_min_ps(s, n_ps, err);
    if (rc < 0)
        return rc;
    if (n_ps == 0) { /* the tables are on the training tasks */
        s->ps_unused = true;
        return 0;
    }
    rc = cluster_use_ps(s->cluster, err);
    if (rc < 0)
        return rc;
    s->ps = &s->conf->ps;
    s->is_ps = settle_is_ps_task(s);
    if (!s->is_ps)
        return 0;
    if (s->devices[0].kind != DEVICE_CPU)
        return err_set(err, ERR_INPUT,
                       "--devices: %s has service threads on CPUs: give --devices cpu:N",
                       s->task_name);
    if (s->n_devices > MEMBER_SERVERS_MAX)
        return err_set(err, ERR_INPUT, "--devices: %u service threads of %s, expected at most %d",
                       s->n_devices, s->task_name, MEMBER_SERVERS_MAX);
    s->n_servers = s->n_devices;
    s->n_devices = 0;
    return 0;
}

/* A parameter server reads no data and has no lanes: what depends on the devices of the training
 * tasks, such as the global batch of batch_size_per_replica, is 0 here. */
void settle_ps_options(struct settled *s)
{
    const struct conf *c = s->conf;
    struct train_opts *t = &s->train;

    s->lanes.n = c->train.lanes;
    s->lanes.tree = settle_lane_tree(c);
    s->lanes.from = "job";
    s->lanes.global_batch = c->train.global_batch_size;
    s->learning_rate = c->optimizer.schedule.learning_rate;
    t->model = c->model;
    t->run = c->run;
    t->checkpoint = c->checkpoint;
    t->optimizer = c->optimizer;
    t->global_batch = s->lanes.global_batch;
    t->lanes = s->lanes.n;
    t->lane_tree = s->lanes.tree;
    t->devices = s->devices;
    t->job_digest = c->digest;
    t->job_name = c->name;
}

void settled_print_ps(const struct settled *s, struct buf *out)
{
    buf_printf(out, ",\n  \"parameter_servers\": {\"tasks\": %u, \"min_ps\": %u, \"replicas\": %u",
               s->cluster->n_ps, s->ps->min_ps,
               s->ps->replicas < s->cluster->n_ps ? s->ps->replicas : s->cluster->n_ps);
    if (s->is_ps)
        buf_printf(out, ", \"threads\": %u", s->n_servers);
    buf_str(out, "}");
}

void settled_print_staleness(const struct settled *s, struct buf *out)
{
    uint32_t k = ps_staleness_of(&s->conf->ps), bound = ps_bound_of(&s->conf->ps);

    if (bound > 0)
        buf_printf(out,
                   ",\n  \"staleness\": {\"steps\": %u, \"kind\": \"bounded\", \"meaning\": \"in asynchronous phases a task "
                   "begins its lanes of step t when all lanes of the steps up to t - %u are applied; results depend on "
                   "time\"}",
                   bound, bound + 1);
    if (k > 0)
        buf_printf(out,
                   ",\n  \"staleness\": {\"steps\": %u, \"kind\": \"exact\", \"meaning\": \"step t computes with the "
                   "rows of tables after step max(0, t - %u), and with all other parameters after step t - 1\"}",
                   k, k + 1);
}
