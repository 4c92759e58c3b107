#include "daemon/ctl_status.h"

#include <stdio.h>

#include "base/buf.h"
#include "base/text.h"

typedef unsigned long long ull;

static void task_name(const Trainerd__V1__Task *t, struct buf *out)
{
    if (t != NULL)
        buf_printf(out, "%s %u (%s)", t->type, t->index, t->address);
    else
        buf_str(out, "?");
}

void ctl_status_line(const Trainerd__V1__StatusReply *s, struct buf *out)
{
    buf_printf(out, "%s", s->phase);
    if (s->total_steps > 0)
        buf_printf(out, "  step %llu/%llu  epoch %llu", (ull)s->step, (ull)s->total_steps, (ull)s->epoch);
    if (s->step > 0) {
        char left[32] = "?";

        if (s->samples_per_second > 0) {
            buf_printf(out, "  loss %.4g  %.0f samples/s", s->loss, s->samples_per_second);
            if (s->step_seconds > 0 && s->total_steps >= s->step)
                text_duration(left, sizeof(left),
                              (uint64_t)(s->step_seconds * 1e9 * (double)(s->total_steps - s->step)));
            buf_printf(out, "  ETA %s", left);
        }
        buf_printf(out, "  [data %.0f%% compute %.0f%% reduction %.0f%%]", 100 * s->share_data,
                   100 * s->share_compute, 100 * s->share_reduce);
    }
}

/* Readings that the GPU does not report are omitted. */
static void gpu_line(const Trainerd__V1__Gpu *g, struct buf *out)
{
    buf_printf(out, "cuda:%u %s", g->index, g->name);
    if (g->utilization >= 0)
        buf_printf(out, ", %.0f %% busy", 100 * g->utilization);
    if (g->idle >= 0)
        buf_printf(out, ", %.1f %% of a step without work", 100 * g->idle);
    if (g->memory_used >= 0 && g->memory_total >= 0)
        buf_printf(out, ", %.1f of %.1f GiB", g->memory_used / (1 << 30), g->memory_total / (1 << 30));
    if (g->temperature >= 0)
        buf_printf(out, ", %.0f C", g->temperature);
    if (g->power >= 0)
        buf_printf(out, ", %.0f W", g->power);
    if (g->clock_mhz >= 0)
        buf_printf(out, ", %.0f MHz", g->clock_mhz);
    if (g->ecc_errors > 0)
        buf_printf(out, ", %.0f uncorrected ECC errors", g->ecc_errors);
    if (g->throttled[0] != '\0')
        buf_printf(out, ", slowed down by: %s", g->throttled);
    buf_str(out, "\n");
}

void ctl_status_text(const Trainerd__V1__StatusReply *s, struct buf *out)
{
    char since[32], up[32];

    text_duration(since, sizeof(since), s->phase_ms * 1000000);
    text_duration(up, sizeof(up), s->uptime_ms * 1000000);
    buf_printf(out, "job         %s\ntask        ", s->job);
    task_name(s->self, out);
    buf_printf(out, ", trainerd %s, up %s\nstate       %s, ", s->version, up, s->state);
    if (s->generation > 0)
        buf_printf(out, "generation %llu", (ull)s->generation);
    else
        buf_str(out, "in no generation");
    buf_printf(out, "\nphase       %s for %s\nprogress    ", s->phase, since);
    ctl_status_line(s, out);
    buf_str(out, "\nleader      ");
    if (s->leader != NULL)
        task_name(s->leader, out);
    else
        buf_str(out, "not known");
    buf_printf(out, ", %zu of %zu tasks in the group", s->n_view, s->n_tasks);
    if (s->cause[0] != '\0')
        buf_printf(out, "\nregrouped   %s", s->cause);
    if (s->lease[0] != '\0')
        buf_printf(out, "\nstorage     %s", s->lease);
    buf_printf(out, "\ncheckpoint  %s\n", s->checkpoint_path[0] != '\0' ? s->checkpoint_path : "none yet");
    if (s->skipped_records > 0)
        buf_printf(out, "data        %llu bad records skipped\n", (ull)s->skipped_records);
    if (s->loss_scale > 0)
        buf_printf(out, "loss scale  %.10g\n", s->loss_scale);
    buf_printf(out, "trouble     %s\n", s->last_trouble[0] != '\0' ? s->last_trouble : "none");
    for (size_t i = 0; i < s->n_gpus; i++) {
        buf_str(out, i == 0 ? "GPUs        " : "            ");
        gpu_line(s->gpus[i], out);
    }
    for (size_t i = 0; i < s->n_tasks; i++) {
        const Trainerd__V1__TaskStatus *t = s->tasks[i];

        buf_str(out, i == 0 ? "tasks       " : "            ");
        task_name(t->task, out);
        buf_printf(out, ": %s", t->state);
        if (t->step > 0)
            buf_printf(out, ", step %llu", (ull)t->step);
        if (t->phase[0] != '\0')
            buf_printf(out, ", %s for %.1f s, heard %.1f s ago", t->phase, (double)t->phase_ms / 1e3,
                       (double)t->heard_ms / 1e3);
        if (t->last_error[0] != '\0')
            buf_printf(out, ", %s", t->last_error);
        if (t->quarantine_ms > 0)
            buf_printf(out, "; next test of its data paths in %.1f s", (double)t->quarantine_ms / 1e3);
        buf_str(out, "\n");
    }
}

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

void ctl_status_json(const Trainerd__V1__StatusReply *s, struct buf *out)
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
    buf_str(out, ", \"gpus\": [");
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
        const Trainerd__V1__TaskStatus *t = s->tasks[i];

        buf_str(out, i > 0 ? ", {\"task\": " : "{\"task\": ");
        task_json(t->task, out);
        field(out, "state", t->state);
        field(out, "phase", t->phase);
        field(out, "last_error", t->last_error);
        buf_printf(out,
                   ", \"present\": %s, \"step\": %llu, \"step_held\": %llu, \"phase_ms\": %llu, "
                   "\"limit_ms\": %llu, \"heard_ms\": %llu, \"quarantine_ms\": %llu, \"incarnation\": \"%016llx\"",
                   t->present ? "true" : "false", (ull)t->step, (ull)t->step_held, (ull)t->phase_ms,
                   (ull)t->limit_ms, (ull)t->heard_ms, (ull)t->quarantine_ms, (ull)t->incarnation);
        number(out, "samples_per_second", t->samples_per_second);
        buf_str(out, "}");
    }
    buf_str(out, "]}\n");
}
