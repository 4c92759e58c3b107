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

/* Reads until no data arrives for 2 s. Asserts that the records are complete and in order. Returns
 * the number of records and the number that the log reports as lost. */
static void read_all(unsigned *seen, unsigned long long *lost)
{
    static char text[8 << 20];
    size_t n = 0;
    char *line, *rest;
    long last = -1;

    *seen = 0;
    *lost = 0;
    for (;;) {
        struct pollfd p = { .fd = reader, .events = POLLIN };
        ssize_t got;

        if (poll(&p, 1, 2000) <= 0)
            break;
        got = read(reader, text + n, sizeof(text) - 1 - n);
        if (got <= 0)
            break;
        n += (size_t)got;
    }
    text[n] = '\0';
    for (line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        const char *record = strstr(line, "record ");
        unsigned long long some;

        if (strstr(line, " log records were lost") != NULL && sscanf(line, "%llu", &some) == 1) {
            *lost += some;
            continue;
        }
        assert_non_null(record);
        assert_non_null(strstr(record, " of the test")); /* complete */
        assert_true(atol(record + 7) > last);
        last = atol(record + 7);
        *seen += 1;
    }
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
    read_all(&seen, &lost);
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
    read_all(&seen, &lost);
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
    read_all(&seen, &lost);
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
