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

enum { WIDE_COLUMNS = 130 /* of the table with all columns */, INDENT = 2 };

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

/* The number of bytes of `text` [n] that fit into `columns`, up to the end of a word where there is one. */
static size_t fitting(const char *text, size_t n, size_t columns)
{
    size_t indent = strspn(text, " "), at = 0, word = 0;

    for (size_t used = 0; at < n && used < columns; used++) {
        size_t bytes = text_utf8_char(text + at, n - at);

        if (text[at] == ' ' && at >= indent) /* a line of the indent alone would be blank */
            word = at;
        at += bytes > 0 ? bytes : 1;
    }
    return at >= n || text[at] == ' ' || word == 0 ? at : word;
}

/* Ends a line that began at `from`: continued, with an indent, on further lines where it is longer than the width. */
static void wrap_line(struct buf *out, size_t from, struct top_size size)
{
    size_t n = out->len - from, room = size.columns, at = 0;
    char *text;

    if (size.columns <= 2 * INDENT) {
        end_line(out, from, size);
        return;
    }
    text = strndup(out->data + from, n);
    CHECK(text != NULL);
    out->len = from;
    while (at < n || n == 0) {
        size_t part = fitting(text + at, n - at, room);

        buf_printf(out, "%*s%.*s\n", at > 0 ? INDENT : 0, "", (int)part, text + at);
        at += part;
        at += strspn(text + at, " ");
        room = size.columns - INDENT;
        if (n == 0)
            break;
    }
    free(text);
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
    wrap_line(out, at, size);
    at = out->len;
    ctl_status_line(s, out);
    if (s->step == 0)
        buf_printf(out, " for %s", since);
    wrap_line(out, at, size);
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
    wrap_line(out, at, size);
    at = out->len;
    buf_str(out, "trouble: ");
    ctl_add_text(out, s->last_trouble[0] != '\0' ? s->last_trouble : "none");
    wrap_line(out, at, size);
    for (size_t i = 0; i < s->n_advice; i++) {
        at = out->len;
        buf_str(out, "advice: ");
        ctl_add_text(out, s->advice[i]->text);
        buf_str(out, s->advice[i]->remedy[0] != '\0' ? "; " : "");
        ctl_add_text(out, s->advice[i]->remedy);
        wrap_line(out, at, size);
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

/* The texts of a row; "": unknown. */
struct row {
    char name[80], since[32], step[32], took[32], rate[32], lanes[32];
    struct buf phase;
    const char *trouble;
};

static void make_row(task_ref t, struct row *r)
{
    *r = (struct row){ .trouble = t->last_error[0] != '\0' ? t->last_error : t->last_trouble };
    snprintf(r->name, sizeof(r->name), "%.40s %u", t->task != NULL ? t->task->type : "?",
             t->task != NULL ? t->task->index : 0);
    ctl_add_text(&r->phase, t->phase);
    if (t->phase[0] != '\0')
        text_duration(r->since, sizeof(r->since), t->phase_ms * 1000000);
    if (t->step > 0)
        snprintf(r->step, sizeof(r->step), "%llu", (unsigned long long)t->step);
    if (t->step_time != NULL)
        text_duration(r->took, sizeof(r->took), (uint64_t)(t->step_time->seconds * 1e9));
    if (t->samples_per_second > 0)
        text_rate(r->rate, sizeof(r->rate), t->samples_per_second);
    if (t->n_devices > 0)
        snprintf(r->lanes, sizeof(r->lanes), "%u/%u", t->n_devices, t->lanes);
    else if (t->n_servers > 0)
        snprintf(r->lanes, sizeof(r->lanes), "%u/0", t->n_servers); /* service threads of a ps task */
}

static void add_wide(task_ref t, const struct row *r, struct top_size size, struct buf *out)
{
    const Trainerd__V1__StepTime *time = t->step_time;
    size_t at = out->len;

    buf_printf(out, "%-12s %-8.8s %-20.20s %10s %9s %9s %10s", r->name, t->state,
               r->phase.data != NULL ? r->phase.data : "", r->since, r->step, r->rate, r->took);
    add_share(out, time, time != NULL ? time->data : 0);
    add_share(out, time, time != NULL ? time->compute : 0);
    add_share(out, time, time != NULL ? time->reduce : 0);
    add_share(out, time, time != NULL ? time->checkpoint : 0);
    buf_printf(out, " %8s  ", r->lanes);
    ctl_add_text(out, r->trouble);
    while (out->len > at && out->data[out->len - 1] == ' ')
        out->data[--out->len] = '\0';
    end_line(out, at, size);
}

/* For 80 columns: without the age of the phase, the shares in one column, and the trouble below. */
static void add_narrow(task_ref t, const struct row *r, struct top_size size, struct buf *out)
{
    const Trainerd__V1__StepTime *time = t->step_time;
    size_t at = out->len;
    char shares[48] = "";

    if (time != NULL)
        snprintf(shares, sizeof(shares), "%.0f/%.0f/%.0f/%.0f", 100 * time->data,
                 100 * time->compute, 100 * time->reduce, 100 * time->checkpoint);
    buf_printf(out, "%-11s %-7.7s %-10.10s %8s %8s %8s %12s %8s", r->name, t->state,
               r->phase.data != NULL ? r->phase.data : "", r->step, r->rate, r->took, shares,
               r->lanes);
    while (out->len > at && out->data[out->len - 1] == ' ')
        out->data[--out->len] = '\0';
    end_line(out, at, size);
    if (r->trouble[0] == '\0')
        return;
    at = out->len;
    buf_printf(out, "%*s", INDENT, "");
    ctl_add_text(out, r->trouble);
    wrap_line(out, at, size);
}

static bool is_narrow(struct top_size size)
{
    return size.columns > 0 && size.columns < WIDE_COLUMNS;
}

static void add_task(task_ref t, struct top_size size, struct buf *out)
{
    struct row r;

    make_row(t, &r);
    if (is_narrow(size))
        add_narrow(t, &r, size, out);
    else
        add_wide(t, &r, size, out);
    buf_fini(&r.phase);
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

static size_t count_lines(const char *text)
{
    size_t n = 0;

    for (; text != NULL && *text != '\0'; text++)
        n += *text == '\n';
    return n;
}

static void add_all(const Trainerd__V1__StatusReply *s, struct top_size size, struct buf *out)
{
    for (size_t i = 0; i < s->n_tasks; i++)
        add_task(s->tasks[i], size, out);
}

/* Removes the lines that a low terminal has no room for. */
static void cut_rows(struct buf *out, size_t rows)
{
    size_t at = 0;

    for (size_t n = 0; n < rows && at < out->len; n++)
        at += strcspn(out->data + at, "\n") + 1;
    if (rows > 0 && at < out->len) {
        out->len = at;
        out->data[at] = '\0';
    }
}

/* Adds a line for each task, those with problems first, as far as they fit; the last line states how many are left out. */
static void add_some(const Trainerd__V1__StatusReply *s, struct top_size size, struct buf *out)
{
    size_t shown = 0, at;

    for (size_t rank = 0; rank <= COUNT_OF(urgent); rank++)
        for (size_t i = 0; i < s->n_tasks; i++) {
            if (rank_of(s->tasks[i]) != rank)
                continue;
            at = out->len;
            add_task(s->tasks[i], size, out);
            if (shown > 0 && count_lines(out->data) >= size.rows) {
                out->len = at;
                out->data[at] = '\0';
                goto done;
            }
            shown++;
        }
done:
    at = out->len;
    buf_printf(out, "... and %zu further tasks", s->n_tasks - shown);
    end_line(out, at, size);
}

void top_text(const Trainerd__V1__StatusReply *s, struct top_size size, struct buf *out)
{
    size_t at;

    add_head(s, size, out);
    at = out->len;
    if (is_narrow(size))
        buf_printf(out, "%-11s %-7s %-10s %8s %8s %8s %12s %8s", "TASK", "STATE", "PHASE", "STEP",
                   "SAMPLE/S", "TIME", "D/C/R/CKPT %", "DEV/LANE");
    else
        buf_printf(out, "%-12s %-8s %-20s %10s %9s %9s %10s %7s %7s %7s %7s %8s", "TASK", "STATE",
                   "PHASE", "FOR", "STEP", "SAMPLES/S", "STEP TIME", "DATA", "COMPUTE", "REDUCE",
                   "CKPT", "DEV/LANE");
    end_line(out, at, size);
    at = out->len;
    add_all(s, size, out);
    if (size.rows > 0 && count_lines(out->data) > size.rows) {
        out->len = at;
        out->data[at] = '\0';
        add_some(s, size, out);
    }
    cut_rows(out, size.rows);
    remove_controls(out);
}
