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
        buf_printf(out, "  step %llu/%llu  epoch %llu", (ull)s->step, (ull)s->total_steps,
                   (ull)s->epoch);
    if (s->step > 0) {
        char left[32] = "?", speed[32];

        if (s->samples_per_second > 0) {
            text_rate(speed, sizeof(speed), s->samples_per_second);
            buf_printf(out, "  loss %.4g  %s samples/s", s->loss, speed);
            if (s->step_seconds > 0 && s->total_steps >= s->step)
                text_duration(
                    left, sizeof(left),
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
        buf_printf(out, ", %.1f of %.1f GiB", g->memory_used / (1 << 30),
                   g->memory_total / (1 << 30));
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

static void memory_line(const Trainerd__V1__MemoryStatus *m, struct buf *out)
{
    char used[32], limit[32];

    text_bytes(used, sizeof(used), m->used);
    text_bytes(limit, sizeof(limit), m->limit);
    buf_printf(out, "memory      %s of %s in use, limit: %s\n", used, limit, m->source);
    if (m->warning[0] != '\0')
        buf_printf(out, "            %s\n", m->warning);
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
    buf_printf(out, "\ncheckpoint  %s\n",
               s->checkpoint_path[0] != '\0' ? s->checkpoint_path : "none yet");
    if (s->skipped_records > 0)
        buf_printf(out, "data        %llu bad records skipped\n", (ull)s->skipped_records);
    if (s->loss_scale > 0)
        buf_printf(out, "loss scale  %.10g\n", s->loss_scale);
    if (s->train_phase > 0 && s->groups > 0)
        buf_printf(out, "training    phase %u, local SGD with %u groups, %llu outer steps\n",
                   s->train_phase, s->groups, (ull)s->outer_step);
    else if (s->train_phase > 0)
        buf_printf(out, "training    phase %u, synchronous, %llu outer steps\n", s->train_phase,
                   (ull)s->outer_step);
    if (s->compression_sent_bytes > 0)
        buf_printf(out, "gradients   %.1f MiB sent, %.1f MiB saved by compression\n",
                   (double)s->compression_sent_bytes / (1 << 20),
                   (double)s->compression_saved_bytes / (1 << 20));
    if (s->spare != NULL)
        buf_printf(out,
                   "spare lanes %s: %llu of late tasks computed (%llu used, %llu compared), %llu of this task by "
                   "another; wrong copies: %llu lanes\n",
                   s->spare->mode, (ull)s->spare->offered, (ull)s->spare->used, (ull)s->spare->compared,
                   (ull)s->spare->given, (ull)s->spare->wrong);
    buf_printf(out, "trouble     %s\n", s->last_trouble[0] != '\0' ? s->last_trouble : "none");
    if (s->server != NULL)
        buf_printf(
            out,
            "tables      %u shards (%u being copied) after step %llu, %.1f MiB, %llu rows read, %llu "
            "gradients of rows\n",
            s->server->shards, s->server->copying, (ull)s->server->version, (double)s->server->bytes / (1 << 20),
            (ull)s->server->rows_read, (ull)s->server->rows_updated);
    if (s->server != NULL && s->server->staleness > 0)
        buf_printf(out,
                   s->server->bounded
                       ? "staleness   in asynchronous phases tasks are at most %u steps apart\n"
                       : "staleness   steps read rows that are %u steps older\n",
                   s->server->staleness);
    for (size_t i = 0; s->server != NULL && i < s->server->n_tables; i++)
        buf_printf(out,
                   "table       '%s': %llu rows are trained; %llu were admitted, %llu expired\n",
                   s->server->tables[i]->name, (ull)s->server->tables[i]->rows,
                   (ull)s->server->tables[i]->admitted, (ull)s->server->tables[i]->expired);
    if (s->memory != NULL)
        memory_line(s->memory, out);
    for (size_t i = 0; i < s->n_advice; i++)
        buf_printf(out, "advice      %s: %s\n            remedy: %s\n", s->advice[i]->kind,
                   s->advice[i]->text, s->advice[i]->remedy);
    for (size_t i = 0; i < s->n_gpus; i++) {
        buf_str(out, i == 0 ? "GPUs        " : "            ");
        gpu_line(s->gpus[i], out);
    }
    for (size_t i = 0; i < s->n_tasks; i++) {
        const Trainerd__V1__TaskStatus *t = s->tasks[i];

        buf_str(out, i == 0 ? "tasks       " : "            ");
        task_name(t->task, out);
        buf_printf(out, ": %s", t->state);
        if (t->location[0] != '\0')
            buf_printf(out, ", at %s", t->location);
        if (t->step > 0)
            buf_printf(out, ", step %llu", (ull)t->step);
        if (t->phase[0] != '\0')
            buf_printf(out, ", %s for %.1f s, heard %.1f s ago", t->phase,
                       (double)t->phase_ms / 1e3, (double)t->heard_ms / 1e3);
        if (t->last_error[0] != '\0')
            buf_printf(out, ", %s", t->last_error);
        if (t->quarantine_ms > 0)
            buf_printf(out, "; next test of its data paths in %.1f s",
                       (double)t->quarantine_ms / 1e3);
        buf_str(out, "\n");
    }
}
