/* trace_merge.c - see trace_merge.h.
 *
 * A key is found by its text with the quotes, such as `"pid":`: inside a JSON string every quote has
 * a backslash in front of it, and the writer puts no blank after a key. */
#include "daemon/trace_merge.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/text.h"

static const char first_line[] = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[",
                  last_line[] = "]}";

enum { LINE_MAX_BYTES = 1 << 20 };

static int refuse(struct err *err, const char *line)
{
    return err_set(err, ERR_INPUT, "'%.80s' is not an event of a trace that trainerd wrote", line);
}

/* The value after a key of the line; NULL: the line has no such key. */
static const char *value_of(const char *line, const char *key)
{
    const char *at = strstr(line, key);

    return at != NULL ? at + strlen(key) : NULL;
}

/* Reads microseconds with three decimals, as the writer prints them. */
static bool read_us(const char *text, int64_t *ns)
{
    char *end;
    unsigned long long us = strtoull(text, &end, 10), rest;

    if (end == text || *end != '.' || strspn(end + 1, "0123456789") != 3 || us > (1ull << 52))
        return false;
    rest = strtoull(end + 1, NULL, 10);
    *ns = (int64_t)(us * 1000 + rest);
    return true;
}

/* One event: everything is copied except the values of pid and ts. */
static int add_event(const struct trace_merge *m, const char *line, struct buf *out,
                     struct err *err)
{
    const char *pid = value_of(line, "\"pid\":"), *ts = value_of(line, "\"ts\":");
    bool has_time = value_of(line, "\"ph\":\"X\"") != NULL;
    int64_t ns = 0;

    if (!text_starts(line, "{\"ph\":") || pid == NULL || has_time != (ts != NULL) ||
        (has_time && ts < pid) || (has_time && !read_us(ts, &ns)))
        return refuse(err, line);
    ns += m->shift_ns;
    if (has_time && ns < 0)
        return err_set(err, ERR_INPUT, "an event is older than the clock of the first task");
    buf_str(out, ",\n");
    buf_add(out, line, (size_t)(pid - line));
    buf_printf(out, "%u", m->pid);
    pid += strspn(pid, "0123456789");
    if (ts != NULL) {
        buf_add(out, pid, (size_t)(ts - pid));
        buf_printf(out, "%" PRId64 ".%03d", ns / 1000, (int)(ns % 1000));
        pid = ts + strspn(ts, "0123456789.");
    }
    buf_str(out, pid);
    return 0;
}

static int add_line(struct trace_merge *m, char *line, size_t n, struct buf *out, struct err *err)
{
    if (n > 0 && line[n - 1] == ',')
        line[n - 1] = '\0';
    if (m->has_ended)
        return refuse(err, line);
    if (!m->has_begun) {
        m->has_begun = true;
        return strcmp(line, first_line) == 0 ? 0 : refuse(err, line);
    }
    if (strcmp(line, last_line) == 0) {
        m->has_ended = true;
        return 0;
    }
    return add_event(m, line, out, err);
}

int trace_merge_add(struct trace_merge *m, const char *text, size_t n, struct buf *out,
                    struct err *err)
{
    int rc = 0;

    while (rc == 0 && n > 0) {
        const char *end = memchr(text, '\n', n);
        size_t part = end != NULL ? (size_t)(end - text) : n;

        buf_add(&m->line, text, part);
        if (m->line.failed)
            return err_set(err, ERR_NOMEM, "out of memory");
        if (m->line.len > LINE_MAX_BYTES || memchr(m->line.data, '\0', m->line.len) != NULL)
            return refuse(err, m->line.data);
        text += part;
        n -= part;
        if (end == NULL)
            break;
        text++;
        n--;
        rc = add_line(m, m->line.data, m->line.len, out, err);
        buf_reset(&m->line);
    }
    return rc;
}

int trace_merge_end(struct trace_merge *m, struct err *err)
{
    bool is_complete = m->has_ended && m->line.len == 0;

    buf_fini(&m->line);
    return is_complete ? 0 : err_set(err, ERR_INPUT, "the file is incomplete");
}
