/* A blocked stderr: no caller waits, records that do not fit the queue are lost as a whole and
 * counted, and the queued records are written later. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "harness/wait.h"

enum { RECORDS = 20000 };

static int old_stderr, reader;

static void block_stderr(bool is_socket)
{
    int fds[2];

    old_stderr = dup(STDERR_FILENO);
    if (is_socket) {
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    } else {
        assert_int_equal(pipe(fds), 0);
        (void)fcntl(fds[1], F_SETPIPE_SZ, 4096);
    }
    reader = fds[0];
    dup2(fds[1], STDERR_FILENO);
    close(fds[1]);
}

static void restore(void)
{
    dup2(old_stderr, STDERR_FILENO);
    close(old_stderr);
    close(reader);
}

/* Adds a line to the numbers of read_all(). */
static void count_line(const char *line, long *last, unsigned *seen, unsigned long long *lost)
{
    const char *record = strstr(line, "record ");
    unsigned long long some;

    if (strstr(line, " log records were lost") != NULL && sscanf(line, "%llu", &some) == 1) {
        *lost += some;
        return;
    }
    assert_non_null(record);
    assert_non_null(strstr(record, " of the test")); /* complete */
    assert_true(atol(record + 7) > *last);
    *last = atol(record + 7);
    *seen += 1;
}

/* Reads `n` records, of which the log reports some as lost. Asserts that the others are complete and
 * in order; returns their number and the number of the lost ones. */
static void read_all(uint64_t n, unsigned *seen, unsigned long long *lost)
{
    static char text[8 << 20];
    char *line = text, *end = text, *newline;
    long last = -1;

    *seen = 0;
    *lost = 0;
    while (*seen + *lost < n) {
        struct pollfd p = { .fd = reader, .events = POLLIN };
        ssize_t got;

        assert_int_equal(poll(&p, 1, WAIT_GUARD_MS), 1);
        got = read(reader, end, (size_t)(text + sizeof(text) - end));
        assert_true(got > 0);
        end += got;
        for (; (newline = memchr(line, '\n', (size_t)(end - line))) != NULL; line = newline + 1) {
            *newline = '\0';
            count_line(line, &last, seen, lost);
        }
    }
    assert_ptr_equal(line, end);
}

static void *write_records(void *arg)
{
    (void)arg;
    for (int i = 0; i < RECORDS; i++)
        log_info("test", "record %d of the test", i);
    return NULL;
}

static void check_blocked_stderr(bool is_socket)
{
    pthread_t writer;
    unsigned seen;
    unsigned long long lost;

    block_stderr(is_socket);
    assert_int_equal(pthread_create(&writer, NULL, write_records, NULL), 0);
    pthread_join(writer, NULL); /* fails by a hang */
    read_all(RECORDS, &seen, &lost);
    restore();
    assert_true(seen > 100 && lost > 0);
    assert_int_equal(seen + lost, RECORDS);
}

static void log_to_a_full_pipe_blocks_no_caller(void **state)
{
    (void)state;
    check_blocked_stderr(false);
}

static void log_to_a_full_socket_blocks_no_caller(void **state)
{
    (void)state;
    check_blocked_stderr(true);
}

static void log_flush_of_blocked_stderr_times_out_and_later_records_are_written(void **state)
{
    unsigned seen;
    unsigned long long lost;

    (void)state;
    block_stderr(false);
    for (int i = 0; i < 200; i++)
        log_info("test", "record %d of the test", i);
    log_flush(50);
    read_all(200, &seen, &lost);
    restore();
    assert_int_equal(seen, 200);
    assert_int_equal(lost, 0);
}

static bool write_record(enum log_level level, int i)
{
    return log_record(level, "test", NULL, 0, "record %d of the test", i);
}

static void record_that_waits_for_stderr_is_not_reported_as_written(void **state)
{
    unsigned n = 0, seen;
    unsigned long long lost;

    (void)state;
    block_stderr(false);
    while (n < 1000 && write_record(LOG_INFO, (int)n))
        n++;
    assert_in_range(n, 1, 999);
    assert_false(write_record(LOG_INFO, (int)n + 1));
    assert_true(write_record(LOG_DEBUG, 0)); /* not shown: no record is owed */
    read_all(n + 2, &seen, &lost);
    log_flush(2000);
    assert_true(write_record(LOG_INFO, (int)n + 2));
    restore();
    assert_int_equal(seen, n + 2);
    assert_int_equal(lost, 0);
}

static void record_that_stderr_refuses_is_not_reported_as_written(void **state)
{
    int full = open("/dev/full", O_WRONLY), before = dup(STDERR_FILENO);
    bool is_written;

    (void)state;
    assert_true(full >= 0 && before >= 0);
    dup2(full, STDERR_FILENO);
    is_written = write_record(LOG_INFO, 0);
    dup2(before, STDERR_FILENO);
    close(before);
    close(full);
    assert_false(is_written);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(log_to_a_full_pipe_blocks_no_caller),
        cmocka_unit_test(log_to_a_full_socket_blocks_no_caller),
        cmocka_unit_test(log_flush_of_blocked_stderr_times_out_and_later_records_are_written),
        cmocka_unit_test(record_that_waits_for_stderr_is_not_reported_as_written),
        cmocka_unit_test(record_that_stderr_refuses_is_not_reported_as_written),
    };

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests_name("base/log_stuck", tests, NULL, NULL);
}
