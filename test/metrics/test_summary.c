#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/fs.h"
#include "metrics/summary.h"
#include "metrics/summary_run.h"

enum { EVENTS_MAX = 20100, LINE_BYTES = 512 };

static char root[64];
static char (*lines)[LINE_BYTES]; /* output of the reader: one event per line, without wall times */
static int n_lines;

static int begin(void **state)
{
    (void)state;
    snprintf(root, sizeof(root), "/tmp/test_summary_XXXXXX");
    lines = calloc(EVENTS_MAX, sizeof(*lines));
    return lines != NULL && mkdtemp(root) != NULL ? 0 : -1;
}

static int finish(void **state)
{
    (void)state;
    fault_arm(NULL, NULL);
    free(lines);
    return fs_remove_tree(root, NULL);
}

static void assert_ok(int rc, const struct err *err)
{
    if (rc < 0)
        fail_msg("%s", err->text);
}

static struct summary *open_in(const char *directory, uint64_t purge_step)
{
    struct summary *s = NULL;
    struct err err;

    assert_ok(summary_open(directory, purge_step, &s, &err), &err);
    return s;
}

/* Reads all event files in `directory` with an independent program. */
static void read_back(const char *directory)
{
    char command[256];
    FILE *in;

    snprintf(command, sizeof(command), "python3 test/metrics/read_events.py '%s'", directory);
    in = popen(command, "r");
    assert_non_null(in);
    n_lines = 0;
    while (n_lines < EVENTS_MAX && fgets(lines[n_lines], LINE_BYTES, in) != NULL) {
        char *line = lines[n_lines++];
        char *time = strstr(line, "\"wall_time\": "), *comma = strchr(line, ',');

        line[strcspn(line, "\n")] = '\0';
        assert_ptr_equal(time, line + 1);
        assert_true(fabs(strtod(time + 13, NULL) - (double)clock_wall_us() / 1e6) < 100);
        memmove(line + 1, comma + 2, strlen(comma + 2) + 1);
    }
    assert_int_equal(pclose(in), 0);
}

static void summary_points_are_read_by_an_independent_reader(void **state)
{
    struct summary *s = open_in(root, 0);
    struct err err;

    (void)state;
    summary_scalar(s, 1, "loss", 2.5f);
    summary_scalar(s, 1, "eval/accuracy", 0);
    summary_scalar(s, UINT64_C(5000000000), "l\xc3\xa4nge", -0.125f);
    assert_ok(summary_flush(s, &err), &err);
    read_back(root); /* before close: flushed points are readable */
    summary_close(s);
    assert_int_equal(n_lines, 4);
    assert_string_equal(lines[0], "{\"file_version\": \"brain.Event:2\"}");
    assert_string_equal(lines[1], "{\"step\": 1, \"summary\": {\"loss\": 2.5}}");
    assert_string_equal(lines[2], "{\"step\": 1, \"summary\": {\"eval/accuracy\": 0.0}}");
    assert_string_equal(lines[3], "{\"step\": 5000000000, \"summary\": {\"l\\u00e4nge\": -0.125}}");
}

static void summary_file_name_has_time_host_and_process(void **state)
{
    char host[256] = "", end[300];
    struct summary *s = open_in(root, 0);
    DIR *d = opendir(root);
    struct dirent *e;
    int n = 0;

    (void)state;
    gethostname(host, sizeof(host) - 1);
    snprintf(end, sizeof(end), ".%s.%ld", host, (long)getpid());
    while ((e = readdir(d)) != NULL) {
        if (e->d_name[0] == '.')
            continue;
        n++;
        assert_int_equal(strncmp(e->d_name, "events.out.tfevents.", 20), 0);
        assert_in_range(atoll(e->d_name + 20), clock_wall_us() / 1000000 - 100,
                        clock_wall_us() / 1000000);
        assert_string_equal(e->d_name + 30, end);
    }
    closedir(d);
    assert_int_equal(n, 1);
    summary_close(s);
}

static void summary_of_a_resumed_run_purges_later_steps(void **state)
{
    char directory[128];
    struct summary *s;

    (void)state;
    snprintf(directory, sizeof(directory), "%s/deep/er", root); /* both directories are created */
    s = open_in(directory, 0);
    summary_scalar(s, 101, "loss", 1);
    summary_close(s);
    s = open_in(directory, 101); /* same second, same process: another file name */
    summary_scalar(s, 101, "loss", 0.5f);
    summary_close(s);
    read_back(directory);
    assert_int_equal(n_lines, 5);
    assert_string_equal(lines[1], "{\"step\": 101, \"summary\": {\"loss\": 1.0}}");
    assert_string_equal(lines[2], "{\"file_version\": \"brain.Event:2\"}");
    assert_string_equal(lines[3],
                        "{\"step\": 101, \"session_log\": {\"1\": 1}}"); /* status: START */
    assert_string_equal(lines[4], "{\"step\": 101, \"summary\": {\"loss\": 0.5}}");
}

static struct summary_run *describe(void)
{
    static const int64_t dims[] = { -1, 3 };
    struct summary_run *run = summary_run_new("digits");

    summary_run_number(run, "rate", 0.25);
    summary_run_text(run, "type", "sg\"d");
    summary_run_flag(run, "nesterov", false);
    summary_run_metric(run, "loss", false);
    summary_run_metric(run, "eval/loss", true);
    summary_run_node(run, &(struct summary_node){ .name = "x", .op = "Input", .dtype = "float32",
                                                  .has_shape = true, .dims = dims, .rank = 2 });
    summary_run_node(run, &(struct summary_node){ .name = "s", .op = "Constant", .has_shape = true, .dims = dims });
    summary_run_node(run, &(struct summary_node){ .name = "a/Add", .op = "Add", .n_inputs = 2,
                                                  .inputs = (const char *[]){ "x", "s:1" } });
    assert_false(summary_run_failed(run));
    return run;
}

static void assert_in_line(int i, const char *text)
{
    if (strstr(lines[i], text) == NULL)
        fail_msg("'%s' is not in: %s", text, lines[i]);
}

static void summary_describes_a_run_once(void **state)
{
    struct summary_run *run = describe();
    struct summary *s = open_in(root, 0);
    struct err err;

    (void)state;
    summary_describe(s, run);
    summary_describe(s, run); /* without effect */
    assert_ok(summary_flush(s, &err), &err);
    summary_scalar(s, 1, "loss", 1);
    summary_close(s);
    s = open_in(root, 2); /* the run continues in another process */
    summary_describe(s, run);
    summary_close(s);
    summary_run_free(run);
    read_back(root);
    assert_int_equal(n_lines, 7);
    assert_string_equal(lines[1],
                        "{\"graph\": [{\"name\": \"x\", \"op\": \"Input\", \"inputs\": [], \"_output_shapes\": [[-1, 3]], "
                        "\"dtype\": \"float32\"}, {\"name\": \"s\", \"op\": \"Constant\", \"inputs\": [], "
                        "\"_output_shapes\": [[]]}, {\"name\": \"a/Add\", \"op\": \"Add\", \"inputs\": [\"x\", \"s:1\"]}]}");
    assert_in_line(2, "\"_hparams_/experiment\": {\"name\": \"digits\"");
    assert_in_line(2, "\"hparams\": {\"rate\": \"number\", \"type\": \"string\", \"nesterov\": \"bool\"}, "
                      "\"metrics\": [[\"loss\", \"training\"], [\"eval/loss\", \"validation\"]]}");
    assert_in_line(3, "\"hparams\": {\"rate\": 0.25, \"type\": \"sg\\\"d\", \"nesterov\": false}}");
    assert_string_equal(lines[4], "{\"step\": 1, \"summary\": {\"loss\": 1.0}}");
    assert_string_equal(lines[5], "{\"file_version\": \"brain.Event:2\"}");
}

enum { WRITERS = 4, EACH = 200 };

static void *write_many(void *arg)
{
    for (uint64_t i = 0; i < EACH; i++)
        summary_scalar(arg, i, "x", (float)i);
    return NULL;
}

static void summary_points_of_several_threads_are_all_written(void **state)
{
    struct summary *s = open_in(root, 0);
    pthread_t threads[WRITERS];
    int seen[EACH] = { 0 };

    (void)state;
    for (int i = 0; i < WRITERS; i++)
        pthread_create(&threads[i], NULL, write_many, s);
    for (int i = 0; i < WRITERS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(summary_dropped(s), 0);
    summary_close(s);
    read_back(root);
    assert_int_equal(n_lines, 1 + WRITERS * EACH);
    for (int i = 1; i < n_lines; i++) {
        int step, value;

        /* step 0 is the protobuf default and therefore absent from the file */
        if (sscanf(lines[i], "{\"step\": %d, \"summary\": {\"x\": %d.0}}", &step, &value) == 2)
            assert_int_equal(step, value);
        else if (strcmp(lines[i], "{\"summary\": {\"x\": 0.0}}") == 0)
            step = 0;
        else
            fail_msg("%s", lines[i]);
        seen[step]++;
    }
    for (int i = 0; i < EACH; i++)
        assert_int_equal(seen[i], WRITERS);
}

static void summary_slow_disk_drops_points_without_delay(void **state)
{
    struct summary *s = open_in(root, 0);
    struct err err;
    const int n = 20000; /* more than the queue holds */

    (void)state;
    assert_int_equal(fault_arm("fs.write=hold@1+", &err), 0);
    for (int i = 1; i <= n; i++)
        summary_scalar(s, (uint64_t)i, "loss", 1); /* would not return if it waited for a write */
    assert_int_equal(fault_arm(NULL, NULL), 0);
    assert_ok(summary_flush(s, &err), &err);
    assert_true(summary_dropped(s) > 0);
    read_back(root);
    assert_int_equal(n_lines - 1 + (int)summary_dropped(s), n);
    fault_arm(NULL, NULL);
    summary_close(s);
}

static void summary_failed_write_is_reported_once_and_leaves_complete_records(void **state)
{
    struct summary *s = open_in(root, 0);
    struct err err = { 0 };

    (void)state;
    summary_scalar(s, 1, "loss", 1);
    assert_ok(summary_flush(s, &err), &err);
    assert_int_equal(fault_arm("fs.write@1", &err), 0);
    summary_scalar(s, 2, "loss", 2);
    assert_int_equal(summary_flush(s, &err), ERR_IO);
    assert_non_null(strstr(err.text, "events.out.tfevents."));
    assert_int_equal(summary_dropped(s), 1);
    assert_ok(summary_flush(s, &err), &err);
    summary_scalar(s, 3, "loss", 3); /* no fault is injected any more */
    assert_ok(summary_flush(s, &err), &err);
    summary_close(s);
    read_back(root);
    assert_int_equal(n_lines, 3);
    assert_string_equal(lines[2], "{\"step\": 3, \"summary\": {\"loss\": 3.0}}");
}

static void summary_partial_write_is_truncated(void **state)
{
    struct summary *s = open_in(root, 0);
    struct rlimit before, tight;
    struct err err = { 0 };
    int rc;

    (void)state;
    summary_scalar(s, 1, "loss", 1);
    assert_ok(summary_flush(s, &err), &err);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    tight = before;
    tight.rlim_cur = 500; /* room for a few more records and a part of the next */
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
    for (uint64_t i = 2; i < 50; i++)
        summary_scalar(s, i, "loss", 1);
    rc = summary_flush(s, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(rc, ERR_FULL);
    assert_int_equal(summary_dropped(s), 48);
    summary_scalar(s, 50, "loss", 3);
    assert_ok(summary_flush(s, &err), &err);
    summary_close(s);
    read_back(root);
    assert_int_equal(n_lines, 3);
    assert_string_equal(lines[1], "{\"step\": 1, \"summary\": {\"loss\": 1.0}}");
    assert_string_equal(lines[2], "{\"step\": 50, \"summary\": {\"loss\": 3.0}}");
}

static void summary_invalid_tag_is_dropped(void **state)
{
    char tag[SUMMARY_TAG_MAX + 2];
    struct summary *s = open_in(root, 0);

    (void)state;
    memset(tag, 'a', sizeof(tag));
    tag[SUMMARY_TAG_MAX + 1] = '\0';
    summary_scalar(s, 1, tag, 1);
    summary_scalar(s, 1, "not \xff utf-8", 1);
    summary_scalar(s, 1, "", 1);
    assert_int_equal(summary_dropped(s), 3);
    tag[SUMMARY_TAG_MAX] = '\0';
    summary_scalar(s, 1, tag, 1);
    assert_int_equal(summary_dropped(s), 3);
    summary_close(s);
    read_back(root);
    assert_int_equal(n_lines, 2);
    assert_non_null(strstr(lines[1], tag));
}

static void summary_directory_that_cannot_be_created_is_an_error(void **state)
{
    char path[128];
    struct summary *s = NULL;
    struct err err = { 0 };
    FILE *f;

    (void)state;
    snprintf(path, sizeof(path), "%s/file", root);
    f = fopen(path, "w");
    assert_non_null(f);
    fclose(f);
    assert_true(summary_open(path, 0, &s, &err) < 0);
    assert_non_null(strstr(err.text, path));
    assert_null(s);
}

static void summary_failed_open_leaves_no_file(void **state)
{
    struct summary *s = NULL;
    struct err err = { 0 };

    (void)state;
    assert_int_equal(fault_arm("fs.write@1", &err), 0);
    assert_int_equal(summary_open(root, 0, &s, &err), ERR_IO);
    assert_null(s);
    read_back(root);
    assert_int_equal(n_lines, 0);
}

#define TEST(f_) cmocka_unit_test_setup_teardown(f_, begin, finish)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(summary_points_are_read_by_an_independent_reader),
        TEST(summary_describes_a_run_once),
        TEST(summary_file_name_has_time_host_and_process),
        TEST(summary_of_a_resumed_run_purges_later_steps),
        TEST(summary_points_of_several_threads_are_all_written),
        TEST(summary_slow_disk_drops_points_without_delay),
        TEST(summary_failed_write_is_reported_once_and_leaves_complete_records),
        TEST(summary_partial_write_is_truncated),
        TEST(summary_invalid_tag_is_dropped),
        TEST(summary_directory_that_cannot_be_created_is_an_error),
        TEST(summary_failed_open_leaves_no_file),
    };

    return cmocka_run_group_tests_name("metrics/summary", tests, NULL, NULL);
}
