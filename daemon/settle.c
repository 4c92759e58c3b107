#include "daemon/settle.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/cpu_quota.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/text.h"
#include "conf/cluster_print.h"
#include "conf/job_print.h"
#include "daemon/meeting.h"
#include "device/cuda.h"
#include "optim/optim.h"
#include "train/phases.h"

/* Tasks of one host should not share a core while others idle: start where the tasks before us on the
 * same host name end. */
static uint32_t first_core(const struct cluster *c, uint32_t per_task)
{
    uint32_t before = 0;

    for (uint32_t i = 0; i < c->n_tasks; i++)
        if (&c->tasks[i] == c->self)
            return before * per_task;
        else if (c->tasks[i].host != NULL && c->self->host != NULL &&
                 strcmp(c->tasks[i].host, c->self->host) == 0)
            before++;
    return 0;
}

/* Other jobs and other pods of the host are not known here, and two processes that pin by the same rule use the same cores
 * while others are free. So by default a thread is pinned only if this task uses every core that it may use: then the cores are its
 * own, or no choice is left. */
static int settle_pins(const struct settled_args *args, struct settled *s, struct err *err)
{
    const char *pin = args->pin != NULL ? args->pin : "auto";
    bool is_pinned = strcmp(pin, "on") == 0;
    uint32_t n = s->is_ps ? s->n_servers : s->n_devices;

    if (strcmp(pin, "auto") == 0)
        is_pinned = n == device_mask();
    else if (!is_pinned && strcmp(pin, "off") != 0)
        return err_set(err, ERR_INPUT, "--pin: expected auto, on or off, found '%.80s'", pin);
    for (uint32_t i = 0; !is_pinned && i < n; i++)
        s->devices[i].core = -1;
    return 0;
}

static bool is_auto(const struct settled_args *args)
{
    return args->devices == NULL || strcmp(args->devices, "auto") == 0;
}

static int settle_devices(const struct settled_args *args, struct settled *s, struct err *err)
{
    bool is_default_ps = settle_is_ps_task(s) && is_auto(args); /* a ps task computes little */
    const char *spec = is_default_ps ? "cpu:1" : args->devices != NULL ? args->devices : "auto";
    int rc = device_parse(spec, 0, s->devices, &s->n_devices, err);

    if (rc == 0)
        rc = device_parse(spec, first_core(s->cluster, s->n_devices), s->devices, &s->n_devices,
                          err);
    if (rc < 0) /* asked for and not there: another try finds the same */
        return err_wrap(err, rc == ERR_DEVICE ? ERR_INPUT : rc, "--devices %s", spec);
    snprintf(s->devices_from, sizeof(s->devices_from), "%s%s",
             is_default_ps   ? "default of a ps task: "
             : is_auto(args) ? ""
                             : "--devices ",
             spec);
    return 0;
}

/* Logged or printed where the number of replicas follows from the quota, or exceeds it. */
static void note_quota(const struct settled_args *args, struct settled *s)
{
    struct cpu_quota q;

    if (s->devices[0].kind != DEVICE_CPU || settle_is_ps_task(s))
        return;
    cpu_quota_read("", &q);
    if (q.processors <= 0 || q.processors >= device_mask())
        return;
    if (is_auto(args) || strcmp(args->devices, "cpu") == 0)
        snprintf(s->devices_from, sizeof(s->devices_from),
                 "%s: %u of %u cores, by the processor quota of %.3g in %.120s",
                 is_auto(args) ? "auto" : "--devices cpu", s->n_devices, device_mask(),
                 q.processors, q.source);
    else if (s->n_devices > q.processors)
        snprintf(s->over_quota, sizeof(s->over_quota),
                 "--devices %.40s: %u replicas have a processor quota of %.3g (%.200s), so they are stopped for a part of each "
                 "period; use cpu:%u, or raise the quota (limits.cpu, --cpus, CPUQuota)",
                 args->devices, s->n_devices, q.processors, q.source, device_cores());
}

/* The number of cores is an accident of the host: of its own accord a task takes as many of them as
 * the job can use evenly. What was asked for by number is never changed. */
static void fit_devices(struct settled *s)
{
    uint32_t cores = s->n_devices, best = 0;
    uint64_t least = 0;

    if (phases_have_local(&s->conf->run)) {
        s->n_devices = 1;
        snprintf(s->devices_from, sizeof(s->devices_from),
                 "auto: 1 of %u cores, because local_sgd has one replica in each task", cores);
        return;
    }
    for (uint32_t n = cores; n > 0; n--) {
        uint64_t samples = settle_most_samples(s->conf, (uint64_t)s->cluster->world * n);

        if (samples != 0 && (best == 0 || samples < least)) {
            best = n;
            least = samples;
        }
    }
    if (best == 0 || best == cores)
        return;
    s->n_devices = best;
    snprintf(s->devices_from, sizeof(s->devices_from),
             "auto: %u of %u cores, so that lanes and batch divide", best, cores);
}

static int settle_elastic(struct settled *s, struct err *err)
{
    uint32_t requested = s->conf->elastic.min_world, world = s->cluster->world;

    s->min_world = requested != 0 ? requested : world;
    if (s->min_world > world)
        return err_set(err, ERR_INPUT,
                       "/elastic/min_world: %u tasks, but the cluster has %u: write at most that, "
                       "or leave it out to wait for all",
                       requested, world);
    if (2 * s->min_world <= world && s->conf->checkpoint.directory == NULL)
        return err_set(err, ERR_INPUT,
                       "/elastic/min_world: %u of %u tasks are no majority and may go on only "
                       "while they hold the lease "
                       "in /checkpoint/directory, which is not given; give it, or at least %u",
                       requested, world, world / 2 + 1);
    return 0;
}

bool settled_is_exposed(const struct settled *s)
{
    if (s->listen[0] == '\0' || s->cluster->self->rank == CLUSTER_NO_RANK)
        return false;
    return s->binds_any || !settled_is_loopback(s->cluster->self->host);
}

static int settle_security(struct settled *s, bool is_allowed_insecure, struct err *err)
{
    const struct security_opts o = { .token_file = s->conf->communication.token_file,
                                     .folder = s->conf->communication.tls,
                                     .host = s->cluster->is_local ? NULL : s->cluster->self->host };
    int rc;

    if (settled_is_evaluator(s))
        return 0;
    rc = security_open(&o, &s->security, err);
    if (rc < 0 || s->security.tls != NULL || is_allowed_insecure || !settled_is_exposed(s))
        return rc;
    return err_set(err, ERR_INPUT,
                   "control port %s: other hosts can reach it, and neither a token nor certificates protect it, so any "
                   "process that reaches it could join the group or stop the job; set the same secret in TRAINERD_TOKEN "
                   "for every task (`openssl rand -hex 32` prints one), or TRAINERD_TLS to a folder with tls.crt, tls.key "
                   "and ca.crt (`trainerctl keys` writes them), or give --insecure",
                   s->listen);
}

/* The groups that train. Frozen ones are added to the patterns of frozen tensors: the graph does
 * not make parameters of those. */
static int settle_groups(struct settled *s, struct err *err)
{
    const struct conf *c = s->conf;
    struct train_opts *t = &s->train;
    size_t n = c->model.n_frozen;

    for (uint32_t i = 0; i < c->n_groups; i++)
        n += c->groups[i].frozen ? c->groups[i].params.n_match : 0;
    s->arrays.frozen = calloc(n + 1, sizeof(*s->arrays.frozen));
    if (s->arrays.frozen == NULL)
        return err_set(err, ERR_NOMEM, "out of memory");
    for (n = 0; n < c->model.n_frozen; n++)
        s->arrays.frozen[n] = c->model.frozen[n];
    for (uint32_t i = 0; i < c->n_groups; i++) {
        const struct train_params *p = &c->groups[i].params;

        for (uint32_t k = 0; c->groups[i].frozen && k < p->n_match; k++)
            s->arrays.frozen[n++] = p->match[k];
        if (!c->groups[i].frozen)
            s->arrays.groups[t->n_groups++] = *p;
    }
    t->groups = s->arrays.groups;
    t->model.frozen = s->arrays.frozen;
    t->model.n_frozen = (uint32_t)n;
    return 0;
}

static int settle_optimizer(struct settled *s, struct err *err)
{
    struct optim_settings *o = &s->train.optimizer;
    double rate = s->conf->optimizer.schedule.learning_rate;

    *o = s->conf->optimizer;
    if (o->scaling.rule == OPTIM_SCALING_LINEAR)
        rate = optim_scale_linear(rate, s->lanes.global_batch, o->scaling.reference_batch_size);
    else if (o->scaling.rule == OPTIM_SCALING_SQUARE_ROOT)
        rate = optim_scale_sqrt(rate, s->lanes.global_batch, o->scaling.reference_batch_size);
    s->learning_rate = o->schedule.learning_rate = rate;
    if (o->schedule.base_momentum > 0)
        o->schedule.cycles = o->hyper.momentum > 0 ? OPTIM_CYCLES_MOMENTUM : OPTIM_CYCLES_BETA1;
    return settle_groups(s, err);
}

static int settle_train(struct settled *s, struct err *err)
{
    const struct conf *c = s->conf;
    struct train_opts *t = &s->train;
    uint32_t capability = s->gpus != NULL ? 10 * s->gpus[0].major + s->gpus[0].minor : 0;
    int rc = plan_precision_check(c->run.precision, capability, err);

    if (rc < 0)
        return err_wrap(err, rc, "/train/precision");
    rc = settle_losses(s, err);
    if (rc == 0)
        rc = settle_data(s, err);
    if (rc < 0)
        return rc;
    t->model = c->model;
    t->run = c->run;
    t->health = c->health;
    t->checkpoint = c->checkpoint;
    t->export = c->export;
    t->global_batch = s->lanes.global_batch;
    t->lanes = s->lanes.n;
    t->lane_tree = s->lanes.tree;
    t->code = c->communication.code;
    t->deterministic = c->communication.deterministic;
    t->replicas = s->replicas;
    t->devices = s->devices;
    t->n_devices = s->n_devices;
    t->ps = s->ps;
    t->ps_tables = c->has_ps ? &c->ps : NULL;
    t->min_replicas = s->min_world * s->n_devices;
    s->is_chief = s->cluster->self->rank == 0 && (!s->cluster->is_dynamic || s->cluster->is_chief);
    t->job_digest = c->digest;
    t->job_name = c->name;
    return settle_optimizer(s, err);
}

/* "step.json" of worker 1 of several is "step.worker-1.json": tasks may be given the same flags. */
static int name_file(const struct settled *s, const char *flag, const char *given, char out[4096],
                     struct err *err)
{
    enum { ROOM = 4096 };
    const struct cluster_task *self = s->cluster->self;
    const char *slash = strrchr(given, '/'), *dot;
    int n;

    slash = slash != NULL ? slash + 1 : given;
    dot = strrchr(slash, '.');
    if (dot == NULL || dot == slash)
        dot = slash + strlen(slash);
    if (s->cluster->world > 1 || settle_is_ps_task(s))
        n = snprintf(out, ROOM, "%.*s.%s-%u%s", (int)(dot - given), given,
                     cluster_type_name(self->type), self->index, dot);
    else
        n = snprintf(out, ROOM, "%s", given);
    if (n < 0 || n >= ROOM)
        return err_set(err, ERR_INPUT, "%s: the name is longer than %d bytes", flag, ROOM - 1);
    return 0;
}

static int settle_trace(const struct settled_args *args, struct settled *s, struct err *err)
{
    enum { STEPS = 5, MOST = 1000000 };
    uint64_t steps = STEPS;

    if (args->trace_steps != NULL && (!text_u64(args->trace_steps, MOST, &steps) || steps == 0))
        return err_set(err, ERR_INPUT,
                       "--trace-steps: expected a number from 1 to %d, found '%.80s'", MOST,
                       args->trace_steps);
    if (args->trace == NULL) {
        if (args->trace_steps != NULL)
            return err_set(err, ERR_INPUT,
                           "--trace-steps %s: of what? --trace FILE says where a trace goes",
                           args->trace_steps);
        return 0;
    }
    s->train.trace = s->trace;
    s->train.trace_steps = (uint32_t)steps;
    return name_file(s, "--trace", args->trace, s->trace, err);
}

static int settle_sample_log(const struct settled_args *args, struct settled *s, struct err *err)
{
    if (args->sample_log == NULL)
        return 0;
    s->train.sample_log = s->sample_log;
    return name_file(s, "--sample-log", args->sample_log, s->sample_log, err);
}

/* A file where the directory shall be, which no retry removes. outputs_check() finds other problems. */
static int check_checkpoint_directory(const struct conf *c, struct err *err)
{
    const char *directory = c->checkpoint.directory;
    struct stat st;

    if (directory == NULL || (stat(directory, &st) == 0 && S_ISDIR(st.st_mode)) ||
        (stat(directory, &st) < 0 && errno != ENOTDIR))
        return 0;
    return err_set(err, ERR_INPUT, "/checkpoint/directory: '%s' or a part of its path is a file; expected a folder, or "
                                   "a name that does not exist; remove the file, or name another folder", directory);
}

static int settle_address(const struct settled_args *args, struct settled *s, struct err *err)
{
    const struct cluster_task *self = s->cluster->self;

    if (s->cluster->is_local || settled_is_evaluator(s)) /* an evaluator opens no port */
        return 0;
    if (self->address == NULL)
        return 0; /* an evaluator that the cluster does not list: no task connects to it */
    if (args->bind != NULL && strcmp(args->bind, "named") != 0 && strcmp(args->bind, "any") != 0)
        return err_set(err, ERR_INPUT, "--bind: expected named or any, found '%.80s'", args->bind);
    s->binds_any = args->bind != NULL && strcmp(args->bind, "any") == 0;
    if (s->binds_any)
        snprintf(s->listen, sizeof(s->listen), "0.0.0.0:%u", self->port);
    else
        snprintf(s->listen, sizeof(s->listen), "%s", self->address);
    return 0;
}

/* There is one way for each kind of device; "auto" is whichever it is. */
static int check_implementation(const struct settled *s, struct err *err)
{
    enum conf_comm requested = s->conf->communication.implementation;
    bool on_gpus = s->devices[0].kind == DEVICE_CUDA;

    if (requested == CONF_COMM_NCCL && !on_gpus)
        return err_set(err, ERR_INPUT, "/communication/implementation: nccl needs CUDA devices, this task has CPU "
                                       "slots: say \"auto\", or --devices cuda");
    if (requested == CONF_COMM_CPU && on_gpus)
        return err_set(err, ERR_INPUT, "/communication/implementation: cpu sums up between CPUs, this task has "
                                       "GPUs: say \"auto\" or \"nccl\", or --devices cpu");
    return 0;
}

int settle(const struct settled_args *args, struct settled **out, struct err *err)
{
    struct settled *s = calloc(1, sizeof(*s));
    int rc;

    if (s == NULL)
        return err_set(err, ERR_NOMEM, "out of memory");
    (void)versions_protocol(s->protocol);
    rc = settle_cluster(args, s, err);
    if (rc < 0)
        goto fail;
    if (s->cluster->is_local)
        snprintf(s->task_name, sizeof(s->task_name), "local");
    else
        cluster_task_name(s->cluster->self, s->task_name, sizeof(s->task_name));
    rc = settle_devices(args, s, err);
    if (rc == 0)
        note_quota(args, s);
    if (rc == 0)
        rc = settle_gpus(s, err);
    if (rc == 0)
        rc = settle_address(args, s, err);
    if (rc == 0)
        rc = settle_trace(args, s, err);
    if (rc == 0)
        rc = settle_sample_log(args, s, err);
    if (rc == 0 && args->job != NULL)
        rc = conf_read(args->job, &s->conf, err);
    if (rc == 0 && s->conf != NULL)
        rc = check_checkpoint_directory(s->conf, err);
    if (rc == 0 && s->conf != NULL)
        rc = settle_ports(s, err);
    if (rc == 0)
        rc = settle_location(s, err);
    if (rc == 0 && s->conf != NULL)
        rc = settle_gpu_models(s, err);
    if (rc == 0 && s->conf != NULL)
        rc = settle_ps(s, err);
    if (rc == 0 && s->is_ps) {
        settle_ps_options(s);
        rc = settle_pins(args, s, err);
        if (rc == 0)
            rc = settle_elastic(s, err);
        if (rc == 0)
            rc = settle_security(s, args->insecure, err);
    } else if (rc == 0 && s->conf != NULL) {
        rc = check_implementation(s, err);
        if (rc == 0 && is_auto(args) && s->devices[0].kind == DEVICE_CPU)
            fit_devices(s);
        if (rc == 0)
            rc = settle_pins(args, s, err);
        if (rc == 0)
            rc = settle_lanes(s, err);
        if (rc == 0)
            rc = settle_elastic(s, err);
        if (rc == 0)
            rc = settle_security(s, args->insecure, err);
        if (rc == 0)
            rc = settle_train(s, err);
        if (rc == 0)
            settle_balance(s);
        if (rc == 0)
            settle_spare(s);
        if (rc == 0)
            rc = settle_evaluator(s, err);
    }
    if (rc == 0 && s->conf != NULL)
        rc = settle_outputs(args, s, err);
    if (rc < 0)
        goto fail;
    *out = s;
    return 0;

fail:
    settled_free(s);
    return rc;
}

void settled_free(struct settled *s)
{
    if (s == NULL)
        return;
    security_close(&s->security);
    conf_free(s->conf);
    cluster_free(s->cluster);
    meeting_close(s->meeting);
    free(s->gpus);
    free((void *)(uintptr_t)s->control_ports.at);
    free(s->arrays.frozen);
    free(s->arrays.steps);
    free(s);
}

void settled_print(const struct settled *s, const struct train_facts *f, const char *problem,
                   struct buf *out)
{
    const struct cluster_task *self = s->cluster->self;

    buf_str(out, "{\n  \"cluster\": ");
    cluster_print(s->cluster, out);
    buf_str(out, ",\n  \"task\": ");
    buf_json(out, s->task_name);
    buf_str(out, ",\n  \"rank\": ");
    if (self->rank == CLUSTER_NO_RANK)
        buf_str(out, "null");
    else
        buf_printf(out, "%u", self->rank);
    buf_printf(out, ",\n  \"world\": %u,\n  \"is_chief\": %s,\n  \"devices\": ", s->cluster->world,
               s->cluster->is_chief ? "true" : "false");
    settled_print_devices(s, out);
    buf_str(out, ",\n  \"devices_from\": ");
    buf_json(out, s->devices_from);
    settled_print_location(s, out);
    if (s->conf != NULL) {
        buf_printf(out, ",\n  \"min_world\": %u,\n  \"replicas\": %u", s->min_world, s->replicas);
        if (!s->is_ps) {
            settled_print_lanes(s, out);
            settled_print_balance(s, out);
        }
    }
    if (s->ps != NULL)
        settled_print_ps(s, out);
    if (s->conf != NULL && s->conf->has_ps)
        settled_print_staleness(s, out);
    if (s->conf != NULL && settled_is_evaluator(s))
        settled_print_evaluator(s, out);
    if (f != NULL)
        buf_printf(out,
                   ",\n  \"plan\": {\"records\": %llu, \"eval_records\": %llu, \"steps_per_epoch\": %llu, "
                   "\"total_steps\": %llu, \"parameters\": %llu, \"state_bytes\": %llu, "
                   "\"activation_bytes_per_replica\": %llu}",
                   (unsigned long long)f->records, (unsigned long long)f->eval_records,
                   (unsigned long long)f->steps_per_epoch, (unsigned long long)f->total_steps,
                   (unsigned long long)f->parameters, (unsigned long long)f->state_bytes,
                   (unsigned long long)f->work_bytes);
    if (f != NULL)
        settled_print_phases(s, f, out);
    if (f != NULL && s->train.model.weights != NULL) {
        buf_str(out, ",\n  \"weights\": {\"file\": ");
        buf_json(out, s->train.model.weights);
        buf_printf(out, ", \"loaded\": %u, \"fresh\": %u, \"surplus\": %u}", f->weights.loaded,
                   f->weights.fresh, f->weights.surplus);
    }
    if (s->sample_log[0] != '\0') {
        buf_str(out, ",\n  \"sample_log\": ");
        buf_json(out, s->sample_log);
    }
    if (problem != NULL) {
        buf_str(out, ",\n  \"problem\": ");
        buf_json(out, problem);
    }
    if (s->conf != NULL) {
        buf_str(out, ",\n  \"job_digest\": ");
        buf_json(out, s->conf->digest);
        buf_str(out, ",\n  \"job\": ");
        conf_print(s->conf, out);
    }
    buf_str(out, "\n}\n");
}
