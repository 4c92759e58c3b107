/* log_sink.c - non-blocking writes to stderr, which may be a stopped terminal (Ctrl-S), a pipe to a
 * pager, or the journal's socket.
 *
 * The file description of stderr is shared with other processes, so O_NONBLOCK must not be set on
 * it. Instead:
 *   - a pipe or a terminal is opened a second time through /proc, with O_NONBLOCK; if the open is
 *     not permitted (a pipe of another user), at most PIPE_BUF bytes are written when poll()
 *     reports room;
 *   - a socket is written with MSG_DONTWAIT;
 *   - a regular file does not block. */
#include "base/log_sink.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static struct sink {
    bool is_known;
    dev_t device;
    ino_t inode;
    bool is_socket, is_file;
    int own_fd; /* owned; the second descriptor of the pipe or terminal; -1: not open */
} sink = { .own_fd = -1 };

/* Updates `sink` if stderr is another file than at the last record (dup2). */
static void refresh_sink(void)
{
    struct stat s;

    if (fstat(STDERR_FILENO, &s) < 0 ||
        (sink.is_known && s.st_dev == sink.device && s.st_ino == sink.inode))
        return;
    if (sink.own_fd >= 0)
        close(sink.own_fd);
    sink = (struct sink){ .is_known = true, .device = s.st_dev, .inode = s.st_ino,
                          .is_socket = S_ISSOCK(s.st_mode), .is_file = S_ISREG(s.st_mode),
                          .own_fd = -1 };
    if (S_ISFIFO(s.st_mode) || S_ISCHR(s.st_mode))
        sink.own_fd = open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

static bool has_room(void)
{
    struct pollfd p = { .fd = STDERR_FILENO, .events = POLLOUT };

    return poll(&p, 1, 0) > 0 && (p.revents & POLLOUT) != 0;
}

static ssize_t write_some(const void *bytes, size_t n)
{
    if (sink.is_socket)
        return send(STDERR_FILENO, bytes, n, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sink.own_fd >= 0)
        return write(sink.own_fd, bytes, n);
    if (sink.is_file)
        return write(STDERR_FILENO, bytes, n);
    if (!has_room()) {
        errno = EAGAIN;
        return -1;
    }
    return write(STDERR_FILENO, bytes, n < PIPE_BUF ? n : PIPE_BUF);
}

ssize_t log_sink_write(const void *bytes, size_t n)
{
    ssize_t written;

    refresh_sink();
    do
        written = write_some(bytes, n);
    while (written < 0 && errno == EINTR);
    if (written < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return 0;
    return written == 0 ? -1 : written;
}

void log_sink_wait(int ms)
{
    struct pollfd p = { .fd = STDERR_FILENO, .events = POLLOUT };

    if (poll(&p, 1, ms) > 0 && (p.revents & POLLOUT) == 0)
        (void)poll(NULL, 0, ms); /* stderr has an error, which the next write reports */
}

void log_sink_write_final(const char *text, size_t n)
{
    if (has_room() && write(STDERR_FILENO, text, n < PIPE_BUF ? n : PIPE_BUF) < 0)
        return; /* no other way to report */
}

void log_sink_write_final_parts(const char *const *parts, size_t n)
{
    char line[1024];
    size_t room = sizeof(line) - 1, at = 0;

    for (size_t i = 0; i < n; i++) {
        size_t len = strnlen(parts[i], room - at);

        memcpy(line + at, parts[i], len);
        at += len;
    }
    line[at] = '\n';
    log_sink_write_final(line, at + 1);
}

/* ---- the journal ---- */

/* Priorities of syslog(3), in the order of enum log_level. */
static const char *const priorities[] = { "<7>", "<6>", "<4>", "<3>" };

static struct {
    unsigned long long device, inode;
    bool is_set; /* JOURNAL_STREAM is valid */
} stream;

static void read_environment(void)
{
    const char *text = getenv("JOURNAL_STREAM");

    stream.is_set = text != NULL && sscanf(text, "%llu:%llu", &stream.device, &stream.inode) == 2;
}

static bool stderr_is_journal(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct stat s;

    (void)pthread_once(&once, read_environment); /* cannot fail with these arguments */
    return stream.is_set && fstat(STDERR_FILENO, &s) == 0 && s.st_dev == stream.device &&
           s.st_ino == stream.inode;
}

const char *log_sink_prefix(enum log_level level)
{
    return stderr_is_journal() ? priorities[level] : "";
}
