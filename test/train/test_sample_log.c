/* test_sample_log.c - the log of sample numbers: its content after a step, after a failure, and
 * after a kill in the middle of a line. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/err.h"
#include "base/fault.h"
#include "data/data.h"
#include "train/sample_file.h"
#include "train/sample_log.h"

static char path[] = "/tmp/test-sample-log-XXXXXX";

static int make_file(void **state)
{
    int fd;

    (void)state;
    strcpy(path + sizeof(path) - 7, "XXXXXX");
    fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int remove_file(void **state)
{
    (void)state;
    (void)fault_arm(NULL, NULL);
    return unlink(path);
}

static struct sample_log *open_log(void)
{
    struct sample_log_opts o = { .path = path, .replicas = 2, .lanes = 2, .lane_batch = 3 };
    struct sample_log *l;
    struct err err;

    assert_int_equal(sample_log_open(&o, &l, &err), 0);
    return l;
}

static void batch(struct sample_log *l, uint32_t replica, uint64_t step, uint32_t lane,
                  uint32_t n_real, const uint64_t samples[3])
{
    struct data_batch b = { .step = step, .lane = lane, .n_real = n_real, .samples = samples };

    sample_log_batch(l, replica, &b);
}

static void group(struct sample_log *l, uint64_t generation, const char *key)
{
    sample_log_group(l, generation, key, strlen(key));
}

/* Compares the file without times and process number with `expected`. */
static void assert_file(const char *expected)
{
    char bytes[4096], text[4096] = "";
    FILE *f = fopen(path, "r");
    size_t n = fread(bytes, 1, sizeof(bytes) - 1, f);

    fclose(f);
    bytes[n] = '\0';
    for (char *line = strtok(bytes, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        unsigned long long a, c;
        char name[64];
        int pid;

        if (sscanf(line, "open %llu %d", &a, &pid) == 2) {
            assert_int_equal(pid, getpid());
            assert_true(a > 1600000000000000);
            strcat(text, "open\n");
        } else if (sscanf(line, "done %63s %llu %llu", name, &a, &c) == 3) {
            assert_true(c > 1600000000000000);
            snprintf(text + strlen(text), 128, "done %s %llu\n", name, a);
        } else {
            strcat(strcat(text, line), "\n");
        }
    }
    assert_string_equal(text, expected);
}

static void lanes_precede_their_done_line_and_padding_is_omitted(void **state)
{
    static const uint64_t a[] = { 7, 0, UINT64_MAX }, b[] = { 10, 11, 12 };
    struct sample_log *l = open_log();

    (void)state;
    group(l, 3, "one");
    batch(l, 0, 41, 0, 3, a);
    batch(l, 1, 41, 1, 2, b);
    assert_file("open\n");
    assert_int_equal(sample_log_write(l, 1, NULL), 0);
    assert_int_equal(sample_log_write(l, 0, NULL), 0);
    sample_log_done(l, 41);
    assert_file("open\ngive 3.f5632fca 41 1 10 11\ngive 3.f5632fca 41 0 7 0 18446744073709551615\n"
                "done 3.f5632fca 41\n");
    sample_log_close(l);
}

static void lanes_of_an_aborted_step_are_discarded(void **state)
{
    static const uint64_t a[] = { 1, 2, 3 };
    struct sample_log *l = open_log();

    (void)state;
    group(l, 1, "one");
    batch(l, 0, 5, 0, 3, a);
    group(l, 1, "two"); /* another group with generation number 1 */
    batch(l, 0, 5, 0, 3, a);
    batch(l, 0, 5, 1, 1, a);
    assert_int_equal(sample_log_write(l, 0, NULL), 0);
    assert_file("open\ngive 1.9e1cec35 5 0 1 2 3\ngive 1.9e1cec35 5 1 1\n");
    sample_log_close(l);
}

static void line_truncated_by_a_kill_is_marked_by_the_next_process(void **state)
{
    struct sample_log *l = open_log();
    int fd;

    (void)state;
    sample_log_close(l);
    fd = open(path, O_WRONLY | O_APPEND);
    assert_int_equal(write(fd, "give 1 2 0 12", 13), 13);
    close(fd);
    l = open_log();
    group(l, 1, "one");
    sample_log_done(l, 2);
    sample_log_close(l);
    assert_file("open\ngive 1 2 0 12 # torn\nopen\ndone 1.f5632fca 2\n");
}

static void step_that_was_not_written_fails_the_next_one(void **state)
{
    static const uint64_t a[] = { 1, 2, 3 };
    struct sample_log *l = open_log();
    struct err err;

    (void)state;
    assert_int_equal(fault_arm("samples.write", &err), 0);
    sample_log_done(l, 1);
    batch(l, 0, 2, 0, 3, a);
    assert_int_equal(sample_log_write(l, 0, &err), ERR_IO);
    assert_non_null(strstr(err.text, path));
    batch(l, 1, 2, 1, 3, a);
    assert_int_equal(sample_log_write(l, 1, &err), ERR_IO); /* no line may follow a gap */
    assert_file("open\n");
    sample_log_close(l);
}

static void storage_stalls_steps_continue_and_their_lines_follow(void **state)
{
    static const uint64_t a[] = { 1, 2, 3 };
    struct sample_log *l = open_log();
    struct err err;

    (void)state;
    group(l, 1, "one");
    assert_int_equal(fault_arm("samples.write=hold", &err), 0);
    batch(l, 0, 1, 0, 3, a);
    assert_int_equal(sample_log_write(l, 0, &err), 0); /* after SAMPLE_FILE_WAIT_MS */
    sample_log_done(l, 1);
    batch(l, 0, 2, 0, 1, a);
    assert_int_equal(sample_log_write(l, 0, &err), 0);
    assert_file("open\n");
    assert_int_equal(fault_arm(NULL, NULL), 0);
    sample_log_close(l);
    assert_file("open\ngive 1.f5632fca 1 0 1 2 3\ndone 1.f5632fca 1\ngive 1.f5632fca 2 0 1\n");
}

static uint32_t n_losses;

static void count_loss(void *arg, const char *text)
{
    assert_non_null(strstr(text, arg));
    n_losses++;
}

static void queue_is_full_lines_are_counted_in_their_place(void **state)
{
    struct sample_file_opts o = { .path = path, .room = 16, .on_loss = count_loss, .arg = path };
    struct sample_file *f;
    struct err err;

    (void)state;
    n_losses = 0;
    o.fd = open(path, O_WRONLY | O_APPEND);
    assert_int_equal(sample_file_open(&o, &f, &err), 0);
    assert_int_equal(fault_arm("samples.write=hold", &err), 0);
    assert_int_equal(sample_file_append(f, "give 1\n", 7, &err), 0);
    assert_int_equal(sample_file_append(f, "give 2\n", 7, &err), 0);
    assert_int_equal(sample_file_append(f, "give 3\ngive 4\n", 14, &err), 0);
    assert_int_equal(sample_file_append(f, "give 555555\n", 12, &err), 0);
    assert_int_equal(n_losses, 1); /* once for the gap */
    assert_int_equal(fault_arm(NULL, NULL), 0);
    sample_file_close(f);
    assert_file("give 1\ngive 2\nlost 3\n");
}

static void path_that_is_not_a_file_is_refused(void **state)
{
    static const struct { const char *path, *word; } rows[] = {
        { "/dev/null", "not a file" },
        { "/tmp", "directory" },
        { "/no/such/folder/log", "No such file" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct sample_log_opts o = { .path = rows[i].path, .replicas = 1, .lanes = 1, .lane_batch = 1 };
        struct sample_log *l;
        struct err err;

        assert_int_equal(sample_log_open(&o, &l, &err), ERR_INPUT);
        assert_non_null(strstr(err.text, rows[i].word));
        assert_non_null(strstr(err.text, rows[i].path));
    }
}

static void calls_without_a_log_have_no_effect(void **state)
{
    struct data_batch b = { .step = 1 };

    (void)state;
    sample_log_batch(NULL, 0, &b);
    assert_int_equal(sample_log_write(NULL, 0, NULL), 0);
    sample_log_group(NULL, 1, "", 0);
    sample_log_done(NULL, 1);
    sample_log_close(NULL);
}

int main(void)
{
#define TEST(name_) cmocka_unit_test_setup_teardown(name_, make_file, remove_file)
    const struct CMUnitTest tests[] = {
        TEST(lanes_precede_their_done_line_and_padding_is_omitted),
        TEST(lanes_of_an_aborted_step_are_discarded),
        TEST(line_truncated_by_a_kill_is_marked_by_the_next_process),
        TEST(step_that_was_not_written_fails_the_next_one),
        TEST(storage_stalls_steps_continue_and_their_lines_follow),
        TEST(queue_is_full_lines_are_counted_in_their_place),
        TEST(path_that_is_not_a_file_is_refused),
        TEST(calls_without_a_log_have_no_effect),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
