#include "daemon/status_json.h"

#include "base/buf.h"

typedef unsigned long long ull;

static void field(struct buf *out, const char *key, const char *value)
{
    buf_printf(out, ", \"%s\": ", key);
    buf_json(out, value);
}

static void number(struct buf *out, const char *key, double value)
{
    buf_printf(out, ", \"%s\": ", key);
    buf_f64(out, value);
}

static void task_json(const Trainerd__V1__Task *t, struct buf *out)
{
    buf_str(out, "{\"type\": ");
    buf_json(out, t != NULL ? t->type : "");
    buf_printf(out, ", \"index\": %u", t != NULL ? t->index : 0);
    field(out, "address", t != NULL ? t->address : "");
    buf_str(out, "}");
}

static void add_number(struct buf *out, const char *key, double value)
{
    if (value >= 0)
        number(out, key, value);
}

static void gpu_json(const Trainerd__V1__Gpu *g, struct buf *out)
{
    buf_printf(out, "{\"index\": %u", g->index);
    field(out, "name", g->name);
    field(out, "uuid", g->uuid);
    add_number(out, "utilization", g->utilization);
    add_number(out, "idle", g->idle);
    add_number(out, "memory_used_bytes", g->memory_used);
    add_number(out, "memory_total_bytes", g->memory_total);
    add_number(out, "temperature_celsius", g->temperature);
    add_number(out, "power_watts", g->power);
    add_number(out, "ecc_uncorrected_errors", g->ecc_errors);
    add_number(out, "sm_clock_mhz", g->clock_mhz);
    field(out, "throttled", g->throttled);
    buf_str(out, "}");
}

/* `key` with the time of a step; null: unknown. */
static void step_time_json(const Trainerd__V1__StepTime *t, struct buf *out)
{
    buf_str(out, ", \"step_time\": ");
    if (t == NULL) {
        buf_str(out, "null");
        return;
    }
    buf_str(out, "{\"seconds\": ");
    buf_f64(out, t->seconds);
    number(out, "data", t->data);
    number(out, "compute", t->compute);
    number(out, "reduce", t->reduce);
    number(out, "checkpoint", t->checkpoint);
    buf_str(out, "}");
}

static void task_status_json(const Trainerd__V1__TaskStatus *t, struct buf *out)
{
    buf_str(out, "{\"task\": ");
    task_json(t->task, out);
    field(out, "state", t->state);
    field(out, "phase", t->phase);
    field(out, "location", t->location);
    field(out, "last_error", t->last_error);
    field(out, "last_trouble", t->last_trouble);
    buf_printf(out,
               ", \"present\": %s, \"step\": %llu, \"step_held\": %llu, \"phase_ms\": %llu, "
               "\"limit_ms\": %llu, \"heard_ms\": %llu, \"quarantine_ms\": %llu, \"incarnation\": \"%016llx\", "
               "\"n_devices\": %u, \"n_servers\": %u, \"lanes\": %u",
               t->present ? "true" : "false", (ull)t->step, (ull)t->step_held, (ull)t->phase_ms,
               (ull)t->limit_ms, (ull)t->heard_ms, (ull)t->quarantine_ms, (ull)t->incarnation,
               t->n_devices, t->n_servers, t->lanes);
    number(out, "samples_per_second", t->samples_per_second);
    step_time_json(t->step_time, out);
    buf_str(out, "}");
}

/* null: the task is no parameter server. */
static void server_json(const Trainerd__V1__ServerStatus *p, struct buf *out)
{
    buf_str(out, ", \"server\": ");
    if (p == NULL) {
        buf_str(out, "null");
        return;
    }
    buf_printf(out,
               "{\"version\": %llu, \"shards\": %u, \"copying\": %u, \"bytes\": %llu, \"rows_read\": %llu, "
               "\"rows_updated\": %llu, \"staleness\": %u, \"bounded\": %s, \"rows_stale\": [",
               (ull)p->version, p->shards, p->copying, (ull)p->bytes, (ull)p->rows_read, (ull)p->rows_updated,
               p->staleness, p->bounded ? "true" : "false");
    for (size_t i = 0; i < p->n_rows_stale; i++)
        buf_printf(out, "%s%llu", i > 0 ? ", " : "", (ull)p->rows_stale[i]);
    buf_str(out, "], \"tables\": [");
    for (size_t i = 0; i < p->n_tables; i++) {
        const Trainerd__V1__TableStatus *t = p->tables[i];

        buf_str(out, i > 0 ? ", {\"name\": " : "{\"name\": ");
        buf_json(out, t->name);
        buf_printf(out, ", \"rows\": %llu, \"admitted\": %llu, \"expired\": %llu}", (ull)t->rows,
                   (ull)t->admitted, (ull)t->expired);
    }
    buf_str(out, "]}");
}

/* null: no limit is known. */
static void memory_json(const Trainerd__V1__MemoryStatus *m, struct buf *out)
{
    buf_str(out, ", \"memory\": ");
    if (m == NULL) {
        buf_str(out, "null");
        return;
    }
    buf_printf(out, "{\"used_bytes\": %llu, \"limit_bytes\": %llu", (ull)m->used, (ull)m->limit);
    field(out, "source", m->source);
    field(out, "warning", m->warning);
    buf_str(out, "}");
}

static void spare_json(const Trainerd__V1__SpareStatus *p, struct buf *out)
{
    buf_str(out, ", \"spare\": ");
    if (p == NULL) {
        buf_str(out, "null");
        return;
    }
    buf_printf(out,
               "{\"offered_lanes\": %llu, \"used_lanes\": %llu, \"compared_lanes\": %llu, \"given_lanes\": %llu, "
               "\"wrong_lanes\": %llu",
               (ull)p->offered, (ull)p->used, (ull)p->compared, (ull)p->given, (ull)p->wrong);
    field(out, "mode", p->mode);
    buf_str(out, "}");
}

/* null: no evaluation yet. */
static void evaluation_json(const Trainerd__V1__Evaluation *e, struct buf *out)
{
    buf_str(out, ", \"evaluation\": ");
    if (e == NULL) {
        buf_str(out, "null");
        return;
    }
    buf_printf(out, "{\"step\": %llu", (ull)e->step);
    number(out, "loss", e->loss);
    buf_str(out, ", \"metrics\": {");
    for (size_t i = 0; i < e->n_metrics; i++) {
        buf_str(out, i > 0 ? ", " : "");
        buf_json(out, e->metrics[i]->name);
        buf_str(out, ": ");
        buf_f64(out, e->metrics[i]->value);
    }
    buf_str(out, "}}");
}

static void checkpoint_json(const Trainerd__V1__CheckpointStatus *c, struct buf *out)
{
    buf_printf(out, "{\"step\": %llu, \"bytes\": %llu, \"time_us\": %llu", (ull)c->step,
               (ull)c->bytes, (ull)c->time_us);
    number(out, "seconds", c->seconds);
    field(out, "state", c->state);
    field(out, "path", c->path);
    field(out, "reason", c->reason);
    buf_str(out, "}");
}

void status_json_records(const Trainerd__V1__LogsReply *l, struct buf *out)
{
    buf_printf(out, "{\"last\": %llu, \"records\": [", (ull)l->last);
    for (size_t i = 0; i < l->n_records; i++) {
        const Trainerd__V1__LogRecord *r = l->records[i];

        buf_printf(out, "%s{\"number\": %llu, \"time_us\": %llu", i > 0 ? ",\n" : "",
                   (ull)r->number, (ull)r->time_us);
        field(out, "level", r->level);
        field(out, "event", r->event);
        field(out, "message", r->message);
        buf_str(out, "}");
    }
    buf_str(out, "]}\n");
}

static void advice_json(const Trainerd__V1__Advice *x, struct buf *out)
{
    buf_printf(out, "{\"time_us\": %llu", (ull)x->time_us);
    field(out, "kind", x->kind);
    number(out, "value", x->value);
    number(out, "limit", x->limit);
    field(out, "culprit", x->culprit);
    field(out, "text", x->text);
    field(out, "remedy", x->remedy);
    buf_str(out, "}");
}

void status_json(const Trainerd__V1__StatusReply *s, struct buf *out)
{
    buf_str(out, "{\"task\": ");
    task_json(s->self, out);
    field(out, "version", s->version);
    field(out, "job", s->job);
    field(out, "state", s->state);
    field(out, "phase", s->phase);
    buf_printf(out, ", \"phase_ms\": %llu, \"generation\": %llu, \"step\": %llu, \"total_steps\": %llu, "
                    "\"epoch\": %llu, \"checkpoint_step\": %llu, \"uptime_ms\": %llu, "
                    "\"skipped_records\": %llu",
               (ull)s->phase_ms, (ull)s->generation, (ull)s->step, (ull)s->total_steps, (ull)s->epoch,
               (ull)s->checkpoint_step, (ull)s->uptime_ms, (ull)s->skipped_records);
    number(out, "loss", s->loss);
    if (s->loss_scale > 0)
        number(out, "loss_scale", s->loss_scale);
    if (s->train_phase > 0)
        buf_printf(out, ", \"train_phase\": %u, \"groups\": %u, \"outer_step\": %llu",
                   s->train_phase, s->groups, (ull)s->outer_step);
    if (s->compression_sent_bytes > 0)
        buf_printf(out, ", \"compression_sent_bytes\": %llu, \"compression_saved_bytes\": %llu",
                   (ull)s->compression_sent_bytes, (ull)s->compression_saved_bytes);
    number(out, "samples_per_second", s->samples_per_second);
    number(out, "step_seconds", s->step_seconds);
    number(out, "share_data", s->share_data);
    number(out, "share_compute", s->share_compute);
    number(out, "share_reduce", s->share_reduce);
    field(out, "checkpoint_path", s->checkpoint_path);
    field(out, "last_trouble", s->last_trouble);
    field(out, "cause", s->cause);
    field(out, "lease", s->lease);
    buf_printf(out, ", \"lease_token\": %llu, \"leader\": ", (ull)s->lease_token);
    if (s->leader != NULL)
        task_json(s->leader, out);
    else
        buf_str(out, "null");
    field(out, "page", s->page);
    field(out, "leader_page", s->leader_page);
    number(out, "share_checkpoint", s->share_checkpoint);
    buf_printf(out, ", \"lanes\": %u, \"global_batch\": %u, \"time_us\": %llu", s->lanes,
               s->global_batch, (ull)s->time_us);
    field(out, "devices", s->devices);
    evaluation_json(s->evaluation, out);
    server_json(s->server, out);
    memory_json(s->memory, out);
    spare_json(s->spare, out);
    buf_str(out, ", \"advice\": [");
    for (size_t i = 0; i < s->n_advice; i++) {
        buf_str(out, i > 0 ? ", " : "");
        advice_json(s->advice[i], out);
    }
    buf_str(out, "], \"checkpoints\": [");
    for (size_t i = 0; i < s->n_checkpoints; i++) {
        buf_str(out, i > 0 ? ", " : "");
        checkpoint_json(s->checkpoints[i], out);
    }
    buf_str(out, "], \"gpus\": [");
    for (size_t i = 0; i < s->n_gpus; i++) {
        buf_str(out, i > 0 ? ", " : "");
        gpu_json(s->gpus[i], out);
    }
    buf_str(out, "], \"view\": [");
    for (size_t i = 0; i < s->n_view; i++) {
        buf_str(out, i > 0 ? ", " : "");
        task_json(s->view[i], out);
    }
    buf_str(out, "], \"tasks\": [");
    for (size_t i = 0; i < s->n_tasks; i++) {
        buf_str(out, i > 0 ? ", " : "");
        task_status_json(s->tasks[i], out);
    }
    buf_str(out, "]}\n");
}
