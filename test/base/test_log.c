#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <poll.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "base/fault.h"
#include "base/log.h"
#include "base/log_sink.h"

/* While capturing, stderr is `fd_in`, and the written bytes are read from `fd_out`. */
static int real_stderr = -1, fd_out = -1;
static char captured[1 << 20];

static void capture(int fd_in, int fd_read)
{
    fflush(stderr);
    real_stderr = dup(STDERR_FILENO);
    assert_true(real_stderr >= 0);
    assert_true(dup2(fd_in, STDERR_FILENO) >= 0);
    close(fd_in);
    fd_out = fd_read;
}

static void capture_file(void)
{
    char path[] = "/tmp/test_log_XXXXXX";
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    unlink(path);
    capture(fd, dup(fd));
}

static void capture_terminal(unsigned short width)
{
    const struct winsize size = { .ws_row = 24, .ws_col = width };
    int master = posix_openpt(O_RDWR | O_NOCTTY), slave;

    assert_true(master >= 0);
    assert_int_equal(grantpt(master), 0);
    assert_int_equal(unlockpt(master), 0);
    slave = open(ptsname(master), O_RDWR | O_NOCTTY);
    assert_true(slave >= 0);
    assert_int_equal(ioctl(slave, TIOCSWINSZ, &size), 0);
    capture(slave, master);
}

/* Restores stderr and returns the bytes written since capture(). A terminal delivers bytes with a
 * delay, so a mark is written last and read back. */
static const char *release(void)
{
    bool is_terminal = lseek(fd_out, 0, SEEK_SET) < 0;
    size_t len = 0;
    ssize_t n;

    if (is_terminal)
        assert_int_equal(write(STDERR_FILENO, "\f", 1), 1);
    do {
        n = read(fd_out, captured + len, sizeof(captured) - 1 - len);
        len += n > 0 ? (size_t)n : 0;
    } while (n > 0 && is_terminal && captured[len - 1] != '\f');
    captured[is_terminal && len > 0 ? len - 1 : len] = '\0';
    dup2(real_stderr, STDERR_FILENO);
    close(real_stderr);
    close(fd_out);
    return captured;
}

static int reset(void **state)
{
    (void)state;
    log_init(LOG_TEXT, LOG_INFO);
    log_set_task("");
    return fault_arm(NULL, NULL);
}

/* Asserts that the line starts with a time such as "2026-01-31T12:00:00.123Z" and returns the
 * rest. */
static const char *after_time(const char *line)
{
    static const char form[] = "dddd-dd-ddTdd:dd:dd.dddZ";

    for (size_t i = 0; form[i] != '\0'; i++) {
        if (form[i] == 'd')
            assert_in_range(line[i], '0', '9');
        else
            assert_int_equal(line[i], form[i]);
    }
    return line + sizeof(form) - 1;
}

static void log_text_record_has_time_level_task_and_message(void **state)
{
    (void)state;
    capture_file();
    log_set_task("worker 1");
    log_info("join", "asked %s, try %d", "chief", 2);
    log_set_task("");
    log_error("end", "over");
    release();
    assert_string_equal(strchr(captured, '\n') + 1 + 24, " ERROR over\n");
    *(strchr(captured, '\n') + 1) = '\0';
    assert_string_equal(after_time(captured), " INFO  worker 1: asked chief, try 2\n");
}

static void log_record_below_the_level_is_dropped(void **state)
{
    (void)state;
    capture_file();
    log_set_level(LOG_WARN);
    log_info("a", "quiet");
    log_warn("b", "loud");
    log_set_level(LOG_DEBUG);
    log_debug("c", "detail");
    release();
    assert_null(strstr(captured, "quiet"));
    assert_non_null(strstr(captured, " WARN  loud\n"));
    assert_non_null(strstr(captured, " DEBUG detail\n"));
}

static void log_text_record_with_newlines_stays_one_line(void **state)
{
    (void)state;
    capture_file();
    log_info("x", "first\nsecond\r\x1b[31mred\x7f");
    release();
    assert_string_equal(after_time(captured), " INFO  first\\nsecond\\x0d\\x1b[31mred\\x7f\n");
}

static void log_level_is_parsed_by_name(void **state)
{
    enum log_level level = LOG_ERROR;

    (void)state;
    assert_true(log_parse_level("debug", &level));
    assert_int_equal(level, LOG_DEBUG);
    assert_true(log_parse_level("warn", &level));
    assert_int_equal(level, LOG_WARN);
    assert_false(log_parse_level("loud", &level));
    assert_false(log_parse_level("", &level));
    assert_int_equal(level, LOG_WARN);
}

static void log_json_record_has_its_fields_as_members(void **state)
{
    const struct log_field fields[] = {
        LOG_U64("step", 7),    LOG_I64("delta", -3),        LOG_F64("loss", 0.1),
        LOG_F32("rate", 0.3f), LOG_STR("why", "a \"b\"\n"), LOG_FLAG("last", true),
        LOG_F64("gap", NAN),   LOG_STR("none", NULL),       LOG_JSON_TEXT("list", "[1,{}]"),
    };
    const char *rest;
    cJSON *record;

    (void)state;
    capture_file();
    log_init(LOG_JSON, LOG_INFO);
    log_set_task("worker 0");
    log_record(LOG_INFO, "step", fields, 9, "step %d\xff", 7);
    release();
    assert_memory_equal(captured, "{\"time\":\"", 9);
    rest = after_time(captured + 9);
    assert_string_equal(
        rest, "\",\"level\":\"info\",\"task\":\"worker 0\",\"event\":\"step\",\"message\":\"step "
              "7\xef\xbf\xbd\","
              "\"step\":7,\"delta\":-3,\"loss\":0.1,\"rate\":0.3,\"why\":\"a \\\"b\\\"\\n\","
              "\"last\":true,\"gap\":null,\"none\":null,\"list\":[1,{}]}\n");
    record = cJSON_Parse(captured);
    assert_non_null(record);
    assert_true(cJSON_GetObjectItem(record, "loss")->valuedouble == 0.1);
    cJSON_Delete(record);
}

static void log_task_name_too_long_is_truncated_between_characters(void **state)
{
    (void)state;
    capture_file();
    log_set_task("123456789012345678901234567890123456789012345678901234567890ab\xe2\x82\xac");
    log_info("x", "m");
    release();
    assert_string_equal(after_time(captured),
                        " INFO  1234567890123456789012345678901234567890123456"
                        "78901234567890ab: m\n");
}

static void log_record_erases_and_redraws_the_progress_line(void **state)
{
    (void)state;
    capture_terminal(12);
    assert_true(log_progress_wanted());
    log_progress("step 5 \xe2\x82\xac");
    log_info("x", "hello");
    log_progress("step 6 and much more");
    log_progress(NULL);
    log_info("x", "plain");
    release();
    assert_memory_equal(captured,
                        "\r\033[Kstep 5 \xe2\x82\xac"
                        "\r\033[K",
                        18);
    /* the terminal converts \n to \r\n */
    assert_non_null(strstr(captured, "Z INFO  hello\r\nstep 5 \xe2\x82\xac"
                                     "\r\033[Kstep 6 and \r\033[K2"));
    assert_null(strstr(captured, "much"));
    assert_memory_equal(captured + strlen(captured) - 15, "Z INFO  plain\r\n", 15);
}

static void log_progress_without_terminal_or_in_json_draws_nothing(void **state)
{
    bool wanted_in_file, wanted_in_json;

    (void)state;
    capture_file();
    wanted_in_file = log_progress_wanted();
    log_progress("step 5");
    release();
    assert_false(wanted_in_file);
    assert_string_equal(captured, "");
    capture_terminal(80);
    log_init(LOG_JSON, LOG_INFO);
    wanted_in_json = log_progress_wanted();
    log_progress("step 5");
    release();
    assert_false(wanted_in_json);
    assert_string_equal(captured, "");
}

static void log_record_lost_for_lack_of_memory_is_reported(void **state)
{
    char *huge = malloc(300000); /* larger than the logger's buffers at this point */

    (void)state;
    assert_non_null(huge);
    memset(huge, 'a', 299999);
    huge[299999] = '\0';
    capture_file();
    fault_arm("mem@1+", NULL);
    log_info("x", "%s", huge);
    fault_arm(NULL, NULL);
    log_info("x", "%s", huge);
    release();
    assert_memory_equal(captured, "a log record was lost: out of memory\n2", 38);
    assert_int_equal(strlen(captured), 37 + 24 + 7 + 299999 + 1);
    free(huge);
}

enum { TALKERS = 4, LINES = 300 };

static void *write_lines(void *arg)
{
    for (int i = 0; i < LINES; i++)
        log_info("x", "%s says a few words", (const char *)arg);
    return NULL;
}

static void log_lines_of_several_threads_do_not_mix(void **state)
{
    static char names[TALKERS][4] = { "ann", "bob", "cat", "dan" };
    pthread_t threads[TALKERS];
    unsigned n = 0;

    (void)state;
    capture_file();
    for (int i = 0; i < TALKERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, write_lines, names[i]), 0);
    for (int i = 0; i < TALKERS; i++)
        pthread_join(threads[i], NULL);
    release();
    for (char *line = strtok(captured, "\n"); line != NULL; line = strtok(NULL, "\n"), n++) {
        const char *rest = after_time(line);

        assert_memory_equal(rest, " INFO  ", 7);
        assert_string_equal(rest + 10, " says a few words");
    }
    assert_int_equal(n, TALKERS * LINES);
}

static void log_last_line_of_many_parts_is_truncated_and_complete(void **state)
{
    static char text[600];
    const char *const parts[] = { "begin ", text, text, "end" };
    const char *line;

    (void)state;
    memset(text, 'x', sizeof(text) - 1);
    capture_file();
    log_sink_write_final_parts(parts, 1);
    log_sink_write_final_parts(parts, 4);
    line = release();
    assert_memory_equal(line, "begin \nbegin xxx", 16);
    assert_int_equal(strlen(line), 7 + 1024);
    assert_memory_equal(line + 7 + 1020, "xxx\n", 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(log_text_record_has_time_level_task_and_message, reset),
        cmocka_unit_test_setup(log_record_below_the_level_is_dropped, reset),
        cmocka_unit_test_setup(log_text_record_with_newlines_stays_one_line, reset),
        cmocka_unit_test_setup(log_level_is_parsed_by_name, reset),
        cmocka_unit_test_setup(log_json_record_has_its_fields_as_members, reset),
        cmocka_unit_test_setup(log_task_name_too_long_is_truncated_between_characters, reset),
        cmocka_unit_test_setup(log_record_erases_and_redraws_the_progress_line, reset),
        cmocka_unit_test_setup(log_progress_without_terminal_or_in_json_draws_nothing, reset),
        cmocka_unit_test_setup(log_record_lost_for_lack_of_memory_is_reported, reset),
        cmocka_unit_test_setup(log_lines_of_several_threads_do_not_mix, reset),
        cmocka_unit_test_setup(log_last_line_of_many_parts_is_truncated_and_complete, reset),
    };

    return cmocka_run_group_tests_name("base/log", tests, NULL, NULL);
}
