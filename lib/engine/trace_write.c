/* trace_write.c - the file and the sums, after the traced steps, in the trace's own thread. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/errno_text.h"
#include "base/fs.h"
#include "graph/graph.h"
#include "engine/trace_priv.h"
#include "engine/trace_write.h"

enum { PIECE_BYTES = 1 << 20, N_RESTS = 7 };

/* Inside a step: `rest` is what the sums call it, NULL for what other spans account for. */
static const struct {
    const char *name, *category, *rest;
} kinds[] = {
    [TRACE_STEP] = { "step", "step", NULL },
    [TRACE_DATA] = { "data", "data", "data" },
    [TRACE_FORWARD] = { "forward", "forward", NULL },
    [TRACE_BACKWARD] = { "backward", "backward", NULL },
    [TRACE_CALL] = { "", "", NULL },
    [TRACE_SUMS] = { "lane sums", "lane sums", "lane sums" },
    [TRACE_REDUCTION] = { "reduction", "reduction", "reduction" },
    [TRACE_CHECK] = { "check", "check", "check" },
    [TRACE_UPDATE] = { "update", "update", "update" },
    [TRACE_CHECKPOINT] = { "checkpoint", "checkpoint", "checkpoint" },
    [TRACE_EVALUATION] = { "evaluation", "evaluation", NULL },
};

static const char *op_of(const struct plan_call_info *c)
{
    return c->op[0] != '\0' ? c->op : "sum of gradients";
}

/* ---- the place ---- */

int trace_open_file(const char *path, int *fd, struct err *err)
{
    static const char remedy[] = "name a file in a folder that exists and may be written to";
    /* Not blocking: the path may name a pipe. */
    int made = open(path, O_CREAT | O_WRONLY | O_NONBLOCK | O_CLOEXEC, 0666);
    struct stat st;

    if (made < 0)
        return err_set(err, ERR_INPUT, "the trace cannot be written to '%s' (%s): %s", path,
                       errno_text(errno), remedy);
    if (fstat(made, &st) < 0 || !S_ISREG(st.st_mode)) {
        close(made);
        return err_set(err, ERR_INPUT, "the trace cannot be written to '%s', it is not a file: %s",
                       path, remedy);
    }
    *fd = made;
    return 0;
}

int trace_check_path(const char *path, struct err *err)
{
    bool was_there;
    int fd, rc;

    if (path == NULL)
        return 0;
    was_there = access(path, F_OK) == 0;
    rc = trace_open_file(path, &fd, err);
    if (rc < 0)
        return rc;
    close(fd);
    if (!was_there)
        (void)unlink(path); /* else an empty file stays: no harm */
    return 0;
}

/* ---- the file ---- */

/* Orders spans by time, parents before their children. */
static int by_time(const void *a, const void *b)
{
    const struct trace_span *x = a, *y = b;

    if (x->begin_ns != y->begin_ns)
        return x->begin_ns < y->begin_ns ? -1 : 1;
    if (x->end_ns != y->end_ns)
        return x->end_ns > y->end_ns ? -1 : 1;
    return x->what < y->what ? -1 : x->what > y->what;
}

static void add_us(struct buf *b, const char *key, uint64_t ns)
{
    buf_printf(b, ",\"%s\":%" PRIu64 ".%03u", key, ns / 1000, (unsigned)(ns % 1000));
}

static void add_span(struct buf *b, const struct trace *t, const struct trace_row *row,
                     uint32_t tid, const struct trace_span *s)
{
    struct plan_call_info c = { "", "", false };
    const char *name = kinds[s->what].name, *category = kinds[s->what].category;

    if (s->what == TRACE_CALL) {
        c = plan_call_info(row->plan, s->which);
        category = op_of(&c);
        name = c.node[0] != '\0' ? c.node : category;
    }
    buf_str(b, ",\n{\"ph\":\"X\",\"name\":");
    buf_json(b, name);
    buf_str(b, ",\"cat\":");
    buf_json(b, category);
    buf_printf(b, ",\"pid\":%u,\"tid\":%u", t->pid, tid);
    add_us(b, "ts", s->begin_ns);
    add_us(b, "dur", s->end_ns - s->begin_ns);
    buf_printf(b, ",\"args\":{\"step\":%" PRIu64, t->first + s->step);
    if (s->what == TRACE_CALL)
        buf_printf(b, ",\"direction\":\"%s\"", c.backward ? "backward" : "forward");
    else if (s->what == TRACE_DATA || s->what == TRACE_FORWARD || s->what == TRACE_BACKWARD)
        buf_printf(b, ",\"lane\":%u", s->which);
    buf_str(b, "}}");
}

static void add_name(struct buf *b, const char *what, uint32_t pid, uint32_t tid, const char *name)
{
    buf_printf(b, ",\n{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%u,\"tid\":%u,", what, pid, tid);
    buf_str(b, "\"args\":{\"name\":");
    buf_json(b, name);
    buf_str(b, "}}");
}

static int put(struct trace *t, struct buf *b, size_t above, struct err *err)
{
    int rc = 0;

    if (b->failed)
        return err_set(err, ERR_NOMEM, "out of memory");
    if (b->len > above)
        rc = fs_write_all(t->fd, b->data, b->len, t->opts.path, err);
    if (b->len > above)
        buf_reset(b);
    return rc;
}

static int write_row(struct trace *t, struct trace_row *row, uint32_t tid, struct buf *b,
                     struct err *err)
{
    int rc = 0;

    if (row->n == 0 && row->plan == NULL)
        return 0; /* no thread reduces for this replica; it has no GPU */
    add_name(b, "thread_name", t->pid, tid, row->name);
    buf_printf(b,
               ",\n{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":%u,\"tid\":%u,"
               "\"args\":{\"sort_index\":%u}}",
               t->pid, tid, tid);
    qsort(row->spans, row->n, sizeof(*row->spans), by_time);
    for (size_t i = 0; rc == 0 && i < row->n; i++) {
        add_span(b, t, row, tid, &row->spans[i]);
        rc = put(t, b, PIECE_BYTES, err);
    }
    return rc;
}

static int write_file(struct trace *t, struct err *err)
{
    struct buf b = { 0 };
    int rc = ftruncate(t->fd, 0) == 0 ? 0 : err_sys(err, errno, "empty '%s'", t->opts.path);

    buf_printf(&b,
               "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
               "{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":%u,\"tid\":0,"
               "\"args\":{\"sort_index\":%u}}",
               t->pid, t->pid);
    add_name(&b, "process_name", t->pid, 0, t->name);
    for (uint32_t i = 0; rc == 0 && i < t->opts.n_replicas; i++)
        for (uint32_t k = 0; rc == 0 && k < TRACE_ROWS; k++)
            rc =
                write_row(t, &t->rows[k * t->opts.n_replicas + i], TRACE_ROWS * i + k + 1, &b, err);
    buf_str(&b, "\n]}\n");
    if (rc == 0)
        rc = put(t, &b, 0, err);
    buf_fini(&b);
    return rc;
}

/* ---- the sums ---- */

/* Steps that all replicas have completed. */
static uint32_t whole_steps(const struct trace *t)
{
    const struct trace_row *row = trace_main_rows(t);
    uint32_t least = t->opts.steps;

    for (uint32_t r = 0; r < t->opts.n_replicas; r++, row++) {
        uint32_t n = 0;

        for (size_t i = 0; i < row->n; i++)
            n += row->spans[i].what == TRACE_STEP;
        least = n < least ? n : least;
    }
    return least;
}

static struct trace_profile_part *part_of(struct trace_profile *p, struct trace_profile_part *parts,
                                          const char *what, const char *direction)
{
    for (uint32_t i = 0; i < p->n_parts; i++)
        if (strcmp(parts[i].what, what) == 0 && strcmp(parts[i].direction, direction) == 0)
            return &parts[i];
    parts[p->n_parts] = (struct trace_profile_part){ .what = what, .direction = direction };
    return &parts[p->n_parts++];
}

static int by_size(const void *a, const void *b)
{
    const struct trace_profile_part *x = a, *y = b;

    return x->seconds > y->seconds ? -1 : x->seconds < y->seconds;
}

/* Adds up; part_of_call [calls] and parts [calls + N_RESTS] are filled in. */
static void add_up(const struct trace *t, struct trace_profile *p, struct trace_profile_part *parts,
                   uint32_t *part_of_call)
{
    const struct trace_row *row = trace_main_rows(t);
    uint32_t n_calls = row->calls;
    double share = 1e-9 / ((double)p->steps * t->opts.n_replicas), rest;

    for (uint32_t i = 0; i < n_calls; i++) {
        struct plan_call_info c = plan_call_info(row->plan, i);

        part_of_call[i] =
            (uint32_t)(part_of(p, parts, op_of(&c), c.backward ? "backward" : "forward") - parts);
    }
    for (uint32_t r = 0; r < t->opts.n_replicas; r++, row++)
        for (size_t i = 0; i < row->n; i++) {
            const struct trace_span *s = &row->spans[i];
            double seconds = (double)(s->end_ns - s->begin_ns) * share;

            if (s->step >= p->steps)
                continue;
            if (s->what == TRACE_STEP)
                p->step_seconds += seconds;
            if (s->what == TRACE_CALL)
                parts[part_of_call[s->which]].seconds += seconds;
            if (kinds[s->what].rest != NULL)
                part_of(p, parts, kinds[s->what].rest, "")->seconds += seconds;
        }
    rest = p->step_seconds;
    for (uint32_t i = 0; i < p->n_parts; i++)
        rest -= parts[i].seconds;
    part_of(p, parts, t->opts.on_gpus ? "idle" : "other", "")->seconds = rest;
    qsort(parts, p->n_parts, sizeof(*parts), by_size);
}

static void report_sums(const struct trace *t)
{
    struct trace_profile p = { .path = t->opts.path,
                               .first_step = t->first,
                               .steps = whole_steps(t),
                               .replicas = t->opts.n_replicas };
    uint32_t n_calls = trace_main_rows(t)->calls;
    struct trace_profile_part *parts = calloc(n_calls + N_RESTS, sizeof(*parts));
    uint32_t *part_of_call = calloc(n_calls + 1, sizeof(*part_of_call));

    if (p.steps == 0) {
        t->opts.on_done(t->opts.arg, NULL, "no step was completed while it was made");
    } else if (parts == NULL || part_of_call == NULL) {
        t->opts.on_done(t->opts.arg, NULL, "its sums: out of memory");
    } else {
        add_up(t, &p, parts, part_of_call);
        p.parts = parts;
        t->opts.on_done(t->opts.arg, &p, NULL);
    }
    free(parts);
    free(part_of_call);
}

void trace_write(struct trace *t)
{
    struct err err;

    if (write_file(t, &err) < 0)
        t->opts.on_done(t->opts.arg, NULL, err.text);
    report_sums(t);
}
