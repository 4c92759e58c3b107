#include "daemon/preflight.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/log.h"
#include "daemon/service.h"
#include "daemon/settle.h"
#include "daemon/stop_signals.h"
#include "device/cuda.h"
#include "preflight/print.h"

int preflight_tasks(const struct settled *s, struct preflight_task_list *out, struct err *err)
{
    const struct cluster *c = s->cluster;

    if (c->is_local || c->group < 2)
        return err_set(err, ERR_INPUT, "preflight: expected a cluster of at least 2 tasks of the group in TF_CONFIG or "
                                       "--cluster, found %s; nothing is to be measured", c->is_local ? "none" : "one task");
    if (c->is_dynamic || c->self->rank == CLUSTER_NO_RANK)
        return err_set(err, ERR_INPUT, "preflight: %s is not one of the tasks of the group that the cluster text lists; run it "
                                       "for the chief, the workers, and the ps tasks of a job with /parameter_server",
                       s->task_name);
    if (c->group > PREFLIGHT_WORLD_MAX)
        return err_set(err, ERR_INPUT, "preflight: expected at most %d tasks, found %u",
                       PREFLIGHT_WORLD_MAX, c->group);
    *out = (struct preflight_task_list){ .at = calloc(c->group, sizeof(*out->at)),
                                         .names = calloc(c->group, sizeof(*out->names)), .n = c->group };
    if (out->at == NULL || out->names == NULL) {
        preflight_tasks_free(out);
        return err_set(err, ERR_NOMEM, "out of memory");
    }
    for (uint32_t i = 0; i < c->group; i++) {
        const struct cluster_task *t = c->ranks[i];

        cluster_task_name(t, out->names[i], sizeof(out->names[i]));
        out->at[i] = (struct preflight_task){ .name = out->names[i], .address = t->address, .host = t->host, .port = t->port };
    }
    return 0;
}

void preflight_tasks_free(struct preflight_task_list *l)
{
    free(l->at);
    free(l->names);
    *l = (struct preflight_task_list){ .at = NULL };
}

void preflight_options(const struct settled *s, const struct preflight_task_list *tasks,
                       struct preflight_opts *out)
{
    struct preflight_facts *f = &out->facts;

    *out = (struct preflight_opts){ .self = s->cluster->self->rank,
                                    .world = tasks->n,
                                    .tasks = tasks->at,
                                    .binds_any = s->binds_any,
                                    .data_first = (uint16_t)s->conf->communication.data_port.first,
                                    .data_last = (uint16_t)s->conf->communication.data_port.last,
                                    .control_ports = &s->control_ports,
                                    .tls = s->security.tls,
                                    .storage = s->conf->checkpoint.directory };
    snprintf(f->cluster, sizeof(f->cluster), "%s", s->cluster->hash);
    snprintf(f->job, sizeof(f->job), "%s", s->conf->digest);
    snprintf(f->version, sizeof(f->version), "%s", TRAINERD_VERSION);
    if (!s->is_ps) /* the service threads of a ps are its own choice */
        snprintf(f->devices, sizeof(f->devices), "%u %s", s->n_devices,
                 s->gpus != NULL ? s->gpus[0].name : "cpu");
    snprintf(f->kernels, sizeof(f->kernels), "%s%s%s", s->kernels,
             s->nccl[0] != '\0' ? ", NCCL " : "", s->nccl);
}

/* Called several times a second: notifies the service manager, and looks for a blocked stop signal,
 * which run_task() then handles. */
static bool is_stop_pending(void *arg)
{
    (void)arg;
    service_watchdog(true);
    return stop_signals_are_pending();
}

/* A record for each line of the matrix. */
static void log_matrix(const struct preflight_task_list *tasks, const struct preflight_result *r)
{
    const struct preflight_table t = { .world = r->world, .tasks = tasks->at, .rows = r->rows };
    struct buf out = { 0 };

    print_matrix(&t, &r->findings, &out);
    for (char *line = out.failed ? NULL : out.data, *end; line != NULL && line[0] != '\0';
         line = end) {
        end = line + strcspn(line, "\n");
        if (end > line)
            log_info("preflight", "%.*s", (int)(end - line), line);
        end += end[0] == '\n';
    }
    buf_fini(&out);
}

static void report(const struct preflight_task_list *tasks, const struct preflight_result *r,
                   uint32_t self)
{
    uint32_t first = 0;

    if (r->has_yielded) {
        log_info(
            "preflight",
            "not measured: a task already trains, or another program answers at the address of a task");
        return;
    }
    while (first < self && !r->rows[first].present)
        first++;
    if (first == self)
        log_matrix(tasks, r);
    for (uint32_t i = 0; i < r->findings.n; i++) {
        const struct preflight_finding *f = &r->findings.at[i];

        log_event(
            f->severity == PREFLIGHT_FAULT ? LOG_WARN : LOG_INFO, "preflight", "%s%s%s: %s; %s",
            f->task != PREFLIGHT_NO_TASK ? tasks->at[f->task].name : "all tasks",
            f->other != PREFLIGHT_NO_TASK ? " and " : "",
            f->other != PREFLIGHT_NO_TASK ? tasks->at[f->other].name : "", f->text, f->remedy);
    }
    if (!r->has_fault)
        log_info("preflight", "no outlier among %u tasks", r->world);
}

void preflight_before_start(const struct settled *s, double seconds)
{
    struct preflight_task_list tasks;
    struct preflight_opts o;
    struct preflight_result r;
    struct err err;
    int rc;

    if (s->cluster->is_local || s->cluster->group < 2)
        return;
    rc = preflight_tasks(s, &tasks, &err);
    if (rc < 0) {
        log_warn("preflight", "%s", err.text);
        return;
    }
    preflight_options(s, &tasks, &o);
    o.limit_ms = (uint32_t)(seconds * 1e3);
    o.yields = true;
    o.is_stopped = is_stop_pending;
    log_info("preflight", "measures %u tasks for at most %.10g s", tasks.n, seconds);
    rc = preflight_run(&o, &r, &err);
    if (rc == 0) {
        report(&tasks, &r, o.self);
        preflight_free(&r);
    } else if (rc != ERR_CANCELED) {
        log_warn("preflight", "%s", err.text);
    }
    preflight_tasks_free(&tasks);
}
