#include "daemon/ctl_top_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/text.h"
#include "daemon/ctl_group.h"
#include "daemon/ctl_status.h"

typedef const Trainerd__V1__TaskStatus *task_ref;

/* Ends a line that began at `from`: cut to the width, between two characters. */
static void end_line(struct buf *out, size_t from, struct top_size size)
{
    size_t n = 0, at = from;

    while (size.columns > 0 && at < out->len && n < size.columns) {
        size_t bytes = text_utf8_char(out->data + at, out->len - at);

        at += bytes > 0 ? bytes : 1;
        n++;
    }
    if (size.columns > 0 && at < out->len) {
        out->len = at;
        out->data[at] = '\0';
    }
    buf_str(out, "\n");
}

static void add_head(const Trainerd__V1__StatusReply *s, struct top_size size, struct buf *out)
{
    size_t at = out->len;
    char since[32], up[32];

    text_duration(since, sizeof(since), s->phase_ms * 1000000);
    text_duration(up, sizeof(up), s->uptime_ms * 1000000);
    ctl_add_text(out, s->job);
    buf_printf(out, "  generation %llu: %zu of %zu tasks, %s  up %s",
               (unsigned long long)s->generation, s->n_view, s->n_tasks, s->state, up);
    end_line(out, at, size);
    at = out->len;
    ctl_status_line(s, out);
    if (s->step == 0)
        buf_printf(out, " for %s", since);
    end_line(out, at, size);
    at = out->len;
    buf_printf(out, "lanes %u  batch %u  %s  checkpoint %llu", s->lanes, s->global_batch,
               s->devices, (unsigned long long)s->checkpoint_step);
    if (s->evaluation != NULL)
        buf_printf(out, "  evaluation after step %llu: loss %.4g",
                   (unsigned long long)s->evaluation->step, s->evaluation->loss);
    for (size_t i = 0; s->evaluation != NULL && i < s->evaluation->n_metrics; i++) {
        buf_str(out, ", ");
        ctl_add_text(out, s->evaluation->metrics[i]->name);
        buf_printf(out, " %.4g", s->evaluation->metrics[i]->value);
    }
    end_line(out, at, size);
    at = out->len;
    buf_str(out, "trouble: ");
    ctl_add_text(out, s->last_trouble[0] != '\0' ? s->last_trouble : "none");
    end_line(out, at, size);
    for (size_t i = 0; i < s->n_advice; i++) {
        at = out->len;
        buf_str(out, "advice: ");
        ctl_add_text(out, s->advice[i]->text);
        end_line(out, at, size);
    }
    buf_str(out, "\n");
}

/* A share of the step time; blank: unknown. */
static void add_share(struct buf *out, const Trainerd__V1__StepTime *t, double share)
{
    if (t != NULL)
        buf_printf(out, " %5.0f %%", 100 * share);
    else
        buf_str(out, "        ");
}

static void add_task(task_ref t, struct top_size size, struct buf *out)
{
    const Trainerd__V1__StepTime *time = t->step_time;
    size_t at = out->len;
    char name[80], since[32] = "", step[32] = "", took[32] = "", rate[32] = "", lanes[32] = "";
    struct buf phase = { 0 };

    snprintf(name, sizeof(name), "%.40s %u", t->task != NULL ? t->task->type : "?",
             t->task != NULL ? t->task->index : 0);
    ctl_add_text(&phase, t->phase);
    if (t->phase[0] != '\0')
        text_duration(since, sizeof(since), t->phase_ms * 1000000);
    if (t->step > 0)
        snprintf(step, sizeof(step), "%llu", (unsigned long long)t->step);
    if (time != NULL)
        text_duration(took, sizeof(took), (uint64_t)(time->seconds * 1e9));
    if (t->samples_per_second > 0)
        snprintf(rate, sizeof(rate), "%.0f", t->samples_per_second);
    if (t->n_devices > 0)
        snprintf(lanes, sizeof(lanes), "%u/%u", t->n_devices, t->lanes);
    else if (t->n_servers > 0)
        snprintf(lanes, sizeof(lanes), "%u/0", t->n_servers); /* service threads of a ps task */
    buf_printf(out, "%-12s %-8.8s %-20.20s %10s %9s %9s %10s", name, t->state,
               phase.data != NULL ? phase.data : "", since, step, rate, took);
    buf_fini(&phase);
    add_share(out, time, time != NULL ? time->data : 0);
    add_share(out, time, time != NULL ? time->compute : 0);
    add_share(out, time, time != NULL ? time->reduce : 0);
    add_share(out, time, time != NULL ? time->checkpoint : 0);
    buf_printf(out, " %8s  ", lanes);
    ctl_add_text(out, t->last_error[0] != '\0' ? t->last_error : t->last_trouble);
    while (out->len > at && out->data[out->len - 1] == ' ')
        out->data[--out->len] = '\0';
    end_line(out, at, size);
}

/* States that need a look, the most urgent one first. */
static const char *const urgent[] = { "missing", "joined", "unknown" };

static size_t rank_of(task_ref t)
{
    size_t i = 0;

    while (i < COUNT_OF(urgent) && strcmp(t->state, urgent[i]) != 0)
        i++;
    return i;
}

/* No text of a task can steer the terminal. */
static void remove_controls(struct buf *out)
{
    for (size_t i = 0; i < out->len; i++)
        if (((unsigned char)out->data[i] < ' ' && out->data[i] != '\n') || out->data[i] == 0x7f)
            out->data[i] = ' ';
}

static void add_table(const Trainerd__V1__StatusReply *s, struct top_size size, struct buf *out)
{
    enum { HEAD_LINES = 6 }; /* with the line of the table's columns */
    size_t head = HEAD_LINES + s->n_advice, shown = 0, at;
    size_t room = size.rows > head + 1 ? size.rows - head - 1 : 1;

    if (size.rows == 0 || s->n_tasks <= room + 1) {
        for (size_t i = 0; i < s->n_tasks; i++)
            add_task(s->tasks[i], size, out);
        return;
    }
    for (size_t rank = 0; rank <= COUNT_OF(urgent); rank++)
        for (size_t i = 0; i < s->n_tasks && shown < room; i++)
            if (rank_of(s->tasks[i]) == rank) {
                add_task(s->tasks[i], size, out);
                shown++;
            }
    at = out->len;
    buf_printf(out, "... and %zu further tasks", s->n_tasks - shown);
    end_line(out, at, size);
}

void top_text(const Trainerd__V1__StatusReply *s, struct top_size size, struct buf *out)
{
    size_t at;

    add_head(s, size, out);
    at = out->len;
    buf_printf(out, "%-12s %-8s %-20s %10s %9s %9s %10s %7s %7s %7s %7s %8s", "TASK", "STATE",
               "PHASE", "FOR", "STEP", "SAMPLES/S", "STEP TIME", "DATA", "COMPUTE", "REDUCE",
               "CKPT", "DEV/LANE");
    end_line(out, at, size);
    add_table(s, size, out);
    remove_controls(out);
}
