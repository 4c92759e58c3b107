/* log.c - a record is built in one buffer and written with one call; the mutex serialises records
 * and the progress line. The buffers are reused, so after the first records no memory is allocated.
 *
 * No caller waits for stderr. While stderr is blocked (log_sink.c), records are queued in
 * `pending`, up to PENDING_BYTES; further records are dropped and counted. The drainer thread,
 * started when the first record is queued, writes them when stderr is writable again. */
#include "base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log_field.h"
#include "base/log_journal.h"
#include "base/log_ring.h"
#include "base/log_sink.h"
#include "base/text.h"
#include "base/thread.h"

#define ERASE_LINE "\r\033[K"

enum {
    TASK_BYTES = 64,
    WIDTH_UNKNOWN = 80,
    PENDING_BYTES = 256 * 1024,
    DRAIN_MS = 1000,
    EXIT_MS = 1000
};

static const struct {
    const char *json, *text;
} level_names[] = {
    [LOG_DEBUG] = { "debug", "DEBUG" },
    [LOG_INFO] = { "info", "INFO " },
    [LOG_WARN] = { "warn", "WARN " },
    [LOG_ERROR] = { "error", "ERROR" },
};

static atomic_int lowest_level = LOG_INFO;
static _Atomic(enum log_format) log_format = LOG_TEXT;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the rest, and stderr */
static char task[TASK_BYTES];
static struct buf record, message;
static struct buf progress; /* the line before truncation; empty: no line is drawn */
static struct buf pending;  /* queued bytes, from pending_from on */
static size_t pending_from;
static uint64_t n_lost; /* records dropped since the last notice (queue_lost_notice) */
static bool has_drainer;
static pthread_cond_t waiting = PTHREAD_COND_INITIALIZER, drained = PTHREAD_COND_INITIALIZER;

static void flush_at_exit(void)
{
    log_flush(EXIT_MS);
}

void log_init(enum log_format format, enum log_level lowest)
{
    static atomic_flag was_called = ATOMIC_FLAG_INIT;

    if (!atomic_flag_test_and_set(&was_called))
        (void)atexit(flush_at_exit); /* cannot fail for the first 32 handlers */
    atomic_store(&log_format, format);
    log_set_level(lowest);
}

bool log_is_text(void)
{
    return atomic_load(&log_format) == LOG_TEXT;
}

void log_set_level(enum log_level lowest)
{
    atomic_store(&lowest_level, (int)lowest);
}

void log_set_task(const char *name)
{
    pthread_mutex_lock(&lock);
    snprintf(task, sizeof(task), "%s", name);
    task[text_utf8_cut(task, strlen(task))] = '\0';
    pthread_mutex_unlock(&lock);
}

bool log_is_enabled(enum log_level level)
{
    return (int)level >= atomic_load_explicit(&lowest_level, memory_order_relaxed);
}

const char *log_level_name(enum log_level level)
{
    return level_names[level].json;
}

bool log_parse_level(const char *name, enum log_level *out)
{
    for (size_t i = 0; i < COUNT_OF(level_names); i++) {
        if (strcmp(level_names[i].json, name) == 0) {
            *out = (enum log_level)i;
            return true;
        }
    }
    return false;
}

/* ---- stderr ---- */

/* Writes queued bytes; true: the queue is empty. Caller holds `lock`. */
static bool drain(void)
{
    while (pending_from < pending.len) {
        ssize_t n = log_sink_write(pending.data + pending_from, pending.len - pending_from);

        if (n == 0)
            return false;
        if (n < 0) /* stderr failed permanently: drops the queue */
            break;
        pending_from += (size_t)n;
    }
    pending_from = 0;
    buf_reset(&pending);
    return true;
}

static void queue_lost_notice(void)
{
    char text[200];
    int n = snprintf(text, sizeof(text), atomic_load(&log_format) == LOG_JSON
                         ? "%s{\"level\":\"warn\",\"event\":\"log\",\"message\":\"%" PRIu64
                           " log records were lost while stderr was blocked\"}\n"
                         : "%s%" PRIu64 " log records were lost while stderr was blocked\n",
                     log_sink_prefix(LOG_WARN), n_lost);

    n_lost = 0;
    buf_add(&pending, text, (size_t)n);
}

static void *drainer(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&lock);
    for (;;) {
        if (drain() && n_lost > 0) {
            queue_lost_notice();
            continue;
        }
        pthread_cond_broadcast(&drained);
        if (pending.len == 0) {
            pthread_cond_wait(&waiting, &lock);
            continue;
        }
        pthread_mutex_unlock(&lock);
        log_sink_wait(DRAIN_MS);
        pthread_mutex_lock(&lock);
    }
    return NULL;
}

/* Queues n bytes. `is_rest`: they complete a partly written record and must not be dropped. */
static void queue_bytes(const char *text, size_t n, bool is_rest)
{
    pthread_t thread;

    if (!is_rest && pending.len - pending_from + n > PENDING_BYTES) {
        n_lost++;
        return;
    }
    buf_add(&pending, text, n);
    if (pending.failed) { /* out of memory: drops the queue */
        buf_fini(&pending);
        pending_from = 0;
        n_lost++;
        return;
    }
    if (!has_drainer)
        has_drainer = thread_start(&thread, "writes the log to stderr", drainer, NULL, NULL) == 0 &&
                      pthread_detach(thread) == 0;
    pthread_cond_signal(&waiting);
}

/* Returns true if stderr has taken all `n` bytes; false: the rest is queued or lost. Under `lock`. */
static bool write_or_queue(const char *text, size_t n)
{
    size_t done = 0;

    while (done < n && drain()) {
        ssize_t written = log_sink_write(text + done, n - done);

        if (written < 0)
            return false;
        if (written == 0)
            break;
        done += (size_t)written;
    }
    if (done < n)
        queue_bytes(text + done, n - done, done > 0);
    return done == n;
}

void log_flush(unsigned ms)
{
    struct timespec until = clock_after_ms(ms);

    pthread_mutex_lock(&lock);
    while (!drain() && has_drainer &&
           pthread_cond_clockwait(&drained, &lock, CLOCK_MONOTONIC, &until) == 0)
        ;
    pthread_mutex_unlock(&lock);
}

/* ---- records ---- */

/* Appends `s` with control characters escaped, because they would break the line or control the
 * terminal. */
static void add_escaped_text(struct buf *b, const char *s)
{
    for (; *s != '\0'; s++) {
        if ((unsigned char)*s >= 0x20 && *s != 0x7f)
            buf_add(b, s, 1);
        else if (*s == '\n')
            buf_str(b, "\\n");
        else
            buf_printf(b, "\\x%02x", (unsigned char)*s);
    }
}

static void add_time(struct buf *b)
{
    uint64_t us = clock_wall_us();
    time_t seconds = (time_t)(us / 1000000);
    struct tm t;
    char text[32];

    gmtime_r(&seconds, &t);
    strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &t);
    buf_printf(b, "%s.%03uZ", text, (unsigned)(us / 1000 % 1000));
}

static size_t terminal_width(void)
{
    struct winsize size;

    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) < 0 || size.ws_col == 0)
        return WIDTH_UNKNOWN;
    return size.ws_col;
}

/* Appends the progress line, truncated one column before the edge, because some terminals wrap in
 * the last column. */
static void add_progress(struct buf *b)
{
    size_t columns = terminal_width() - 1, at = 0;

    while (at < progress.len && columns > 0) {
        size_t bytes = text_utf8_char(progress.data + at, progress.len - at);
        char c = progress.data[at];

        if (bytes > 1)
            buf_add(b, progress.data + at, bytes);
        else /* a control character, or invalid UTF-8 */
            buf_add(b, bytes == 0 || (unsigned char)c < 0x20 || c == 0x7f ? "?" : &c, 1);
        at += bytes > 0 ? bytes : 1;
        columns--;
    }
}

static void add_json(struct buf *b, enum log_level level, const char *event,
                     const struct log_field *fields, uint32_t n_fields)
{
    buf_str(b, log_sink_prefix(level));
    buf_str(b, "{\"time\":\"");
    add_time(b);
    buf_printf(b, "\",\"level\":\"%s\"", level_names[level].json);
    if (task[0] != '\0') {
        buf_str(b, ",\"task\":");
        buf_json(b, task);
    }
    buf_str(b, ",\"event\":");
    buf_json(b, event);
    buf_str(b, ",\"message\":");
    buf_json(b, message.data);
    for (uint32_t i = 0; i < n_fields; i++) {
        buf_str(b, ",");
        buf_json(b, fields[i].key);
        buf_str(b, ":");
        log_field_json(b, &fields[i]);
    }
    buf_str(b, "}\n");
}

static void add_text(struct buf *b, enum log_level level)
{
    if (progress.len > 0)
        buf_str(b, ERASE_LINE);
    buf_str(b, log_sink_prefix(level));
    add_time(b);
    buf_printf(b, " %s ", level_names[level].text);
    if (task[0] != '\0') {
        add_escaped_text(b, task);
        buf_str(b, ": ");
    }
    add_escaped_text(b, message.data);
    buf_str(b, "\n");
    if (progress.len > 0)
        add_progress(b);
}

static bool write_record(enum log_level level, const char *event, const struct log_field *fields,
                         uint32_t n_fields, const char *fmt, va_list ap)
    __attribute__((format(printf, 5, 0)));

/* Writes `message` to stderr. Caller holds `lock`. */
static bool write_line(enum log_format format, enum log_level level, const char *event,
                       const struct log_field *fields, uint32_t n_fields)
{
    static const char *const lost[] = {
        [LOG_TEXT] = "a log record was lost: out of memory\n",
        [LOG_JSON] = "{\"level\":\"error\",\"event\":\"log\","
                     "\"message\":\"a log record was lost: out of memory\"}\n",
    };

    buf_reset(&record);
    if (!message.failed && format == LOG_JSON)
        add_json(&record, level, event, fields, n_fields);
    else if (!message.failed)
        add_text(&record, level);
    if (!message.failed && !record.failed)
        return write_or_queue(record.data, record.len);
    (void)write_or_queue(lost[format], strlen(lost[format])); /* the record itself is lost in any case */
    return false;
}

static bool write_record(enum log_level level, const char *event, const struct log_field *fields,
                         uint32_t n_fields, const char *fmt, va_list ap)
{
    enum log_format format = atomic_load(&log_format);
    int errnum = errno; /* preserved: a caller may log before it reads errno */
    bool is_written;

    if (!log_is_enabled(level))
        return true;
    pthread_mutex_lock(&lock);
    buf_reset(&message);
    buf_vprintf(&message, fmt, ap);
    is_written = format == LOG_TEXT && !message.failed &&
                 log_journal_send(&record, level, task, event, message.data, fields, n_fields);
    if (!is_written)
        is_written = write_line(format, level, event, fields, n_fields);
    if (!message.failed)
        log_ring_add(level, event, message.data);
    pthread_mutex_unlock(&lock);
    errno = errnum;
    return is_written;
}

void log_event(enum log_level level, const char *event, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    (void)write_record(level, event, NULL, 0, fmt, ap); /* no caller depends on the record */
    va_end(ap);
}

bool log_record(enum log_level level, const char *event, const struct log_field *fields,
                uint32_t n_fields, const char *fmt, ...)
{
    bool is_written;
    va_list ap;

    va_start(ap, fmt);
    is_written = write_record(level, event, fields, n_fields, fmt, ap);
    va_end(ap);
    return is_written;
}

void log_raw(const char *bytes, size_t n)
{
    pthread_mutex_lock(&lock);
    buf_reset(&record);
    if (progress.len > 0)
        buf_str(&record, ERASE_LINE);
    buf_add(&record, bytes, n);
    if (progress.len > 0)
        add_progress(&record);
    if (record.failed)
        (void)write_or_queue(bytes, n);
    else
        (void)write_or_queue(record.data, record.len);
    pthread_mutex_unlock(&lock);
}

bool log_progress_wanted(void)
{
    return log_is_text() && isatty(STDERR_FILENO);
}

void log_progress(const char *line)
{
    bool wanted = log_progress_wanted();

    pthread_mutex_lock(&lock);
    if (wanted && (line != NULL || progress.len > 0)) {
        buf_reset(&progress);
        buf_str(&progress, line != NULL ? line : "");
        buf_reset(&record);
        buf_str(&record, ERASE_LINE);
        add_progress(&record);
        if (!record.failed) /* after a failure, the next call or record draws the line */
            (void)write_or_queue(record.data, record.len);
    }
    pthread_mutex_unlock(&lock);
}
