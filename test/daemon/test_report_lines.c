/* Log lines of steps and evaluations: the events of a generation, and what the log of a task then
 * holds. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fault.h"
#include "base/log.h"
#include "daemon/report.h"
#include "metrics/metrics.h"
#include "train/train.h"

struct world {
    struct metrics *metrics;
    struct train_opts train;
    struct report *report;
    uint64_t unlogged; /* the step of the last call of on_unlogged; 0: none */
    int before, file;  /* stderr before, and while the log is captured */
};

static void on_unlogged(void *arg, uint64_t step)
{
    struct world *w = arg;

    w->unlogged = step;
}

static void world_open_with(struct world *w, bool leads, uint32_t log_every, enum train_spare spare)
{
    struct report_opts o = { .train = &w->train, .job = "j", .task = "t", .version = "v",
                             .log_every_steps = log_every, .on_unlogged = on_unlogged, .arg = w };
    char path[] = "/tmp/trainerd-lines-XXXXXX";
    struct err err = { 0 };

    memset(w, 0, sizeof(*w));
    w->train.spare = spare;
    w->metrics = metrics_new();
    o.metrics = w->metrics;
    assert_int_equal(report_open(&o, &w->report, &err), 0);
    report_set_total(w->report, 1000, 10);
    report_set_coordinator(w->report, leads);
    w->file = mkstemp(path);
    assert_true(w->file >= 0);
    unlink(path);
    w->before = dup(STDERR_FILENO);
    log_init(LOG_JSON, LOG_INFO);
    dup2(w->file, STDERR_FILENO);
}

static void world_open(struct world *w, bool leads, uint32_t log_every)
{
    world_open_with(w, leads, log_every, SPARE_OFF);
}

static void world_close(struct world *w)
{
    dup2(w->before, STDERR_FILENO);
    close(w->before);
    close(w->file);
    report_close(w->report);
    metrics_free(w->metrics);
}

/* The last of `n` steps that were applied at once. */
static void period(struct world *w, uint64_t k, uint64_t n)
{
    struct train_step_report s = { .step = k, .steps = n, .epoch = (k - 1) / 10, .loss = 1.0 / (double)k,
                                   .learning_rate = 0.5, .grad_norm = 2, .samples = 8, .ns = 1000,
                                   .since_ns = 1000 };

    report_event(w->report, &(struct train_event){ .kind = TRAIN_STEP, .step = k, .report = &s });
}

static void step(struct world *w, uint64_t k)
{
    period(w, k, 1);
}

static void evaluation(struct world *w, uint64_t k)
{
    struct train_eval_report e = { .step = k, .loss = 0.25, .samples = 100 };

    report_event(w->report, &(struct train_event){ .kind = TRAIN_EVAL, .step = k, .eval = &e });
}

static void logged(struct world *w, uint64_t k, bool is_written)
{
    report_event(w->report, &(struct train_event){ .kind = TRAIN_LOGGED, .step = k, .done = is_written });
}

/* The events and steps of the captured records since the last call: "step 3, eval 3". The stderr of the
 * test is the one from before while an assertion fails. */
static void assert_log(struct world *w, const char *expected)
{
    static char text[1 << 16];
    char found[1 << 10] = "", *rest, *line;
    ssize_t n = pread(w->file, text, sizeof(text) - 1, 0);
    size_t at = 0;

    text[n > 0 ? n : 0] = '\0';
    assert_int_equal(ftruncate(w->file, 0), 0);
    assert_true(lseek(w->file, 0, SEEK_SET) == 0);
    for (line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        const char *event = strstr(line, "\"event\":\""), *number = strstr(line, "\"step\":");
        char name[16] = "";

        assert_non_null(event);
        assert_non_null(number);
        sscanf(event + 9, "%15[a-z]", name);
        at += (size_t)snprintf(found + at, sizeof(found) - at, "%s%s %ld", at > 0 ? ", " : "", name,
                               atol(number + 7));
    }
    if (strcmp(found, expected) != 0) {
        dup2(w->before, STDERR_FILENO);
        fail_msg("the log holds \"%s\", expected \"%s\"", found, expected);
    }
}

/* ---- tests ---- */

static void coordinator_writes_each_line_at_once(void **state)
{
    struct world w;

    (void)state;
    world_open(&w, true, 1);
    step(&w, 1);
    assert_log(&w, "step 1");
    step(&w, 2);
    evaluation(&w, 2);
    report_generation_end(w.report);
    assert_log(&w, "step 2, eval 2");
    assert_int_equal(w.unlogged, 0);
    world_close(&w);
}

/* Local SGD: a line that is due between two outer steps comes with the next one. */
static void line_due_within_a_period_is_written_at_its_last_step(void **state)
{
    struct world w;

    (void)state;
    world_open(&w, true, 10);
    period(&w, 4, 4);
    assert_log(&w, "step 4"); /* the first report */
    period(&w, 8, 4);
    period(&w, 9, 1);
    assert_log(&w, "");
    period(&w, 13, 4);
    assert_log(&w, "step 13");
    period(&w, 17, 4);
    period(&w, 50, 33);
    assert_log(&w, "step 50");
    period(&w, 54, 4);
    assert_log(&w, "");
    report_generation_end(w.report);
    world_close(&w);
}

static void follower_writes_no_line_that_the_coordinator_has_written(void **state)
{
    struct world w;

    (void)state;
    world_open(&w, false, 1);
    for (uint64_t k = 1; k <= 20; k++) {
        step(&w, k);
        if (k % 10 == 0)
            evaluation(&w, k);
        logged(&w, k, true);
    }
    report_generation_end(w.report);
    assert_log(&w, "");
    world_close(&w);
}

static void generation_ends_undecided_follower_writes_the_last_lines_once(void **state)
{
    struct world w;

    (void)state;
    world_open(&w, false, 1);
    step(&w, 1);
    logged(&w, 1, true);
    step(&w, 2);
    evaluation(&w, 2);
    assert_log(&w, "");
    report_generation_end(w.report);
    assert_log(&w, "step 2, eval 2");
    report_generation_end(w.report);
    logged(&w, 2, false);
    assert_log(&w, "");
    assert_int_equal(w.unlogged, 0);
    world_close(&w);
}

static void leadership_moves_between_each_step_no_line_is_missing(void **state)
{
    struct world w;

    (void)state;
    world_open(&w, false, 1);
    for (uint64_t k = 1; k <= 3; k++) { /* the coordinator dies after each step, and a third task follows */
        step(&w, k);
        report_generation_end(w.report);
    }
    report_set_coordinator(w.report, true);
    step(&w, 4);
    report_generation_end(w.report);
    report_set_coordinator(w.report, false);
    step(&w, 5);
    report_generation_end(w.report);
    assert_log(&w, "step 1, step 2, step 3, step 4, step 5");
    world_close(&w);
}

static void coordinator_could_not_write_follower_writes(void **state)
{
    struct world w;

    (void)state;
    world_open(&w, false, 1);
    step(&w, 1);
    logged(&w, 1, false);
    assert_log(&w, "step 1");
    step(&w, 2);
    evaluation(&w, 2);
    logged(&w, 2, false);
    assert_log(&w, "step 2, eval 2");
    step(&w, 3);
    logged(&w, 3, true);
    report_generation_end(w.report);
    assert_log(&w, "");
    world_close(&w);
}

static void next_step_comes_undecided_follower_writes_the_kept_lines(void **state)
{
    struct world w;

    (void)state;
    world_open(&w, false, 1);
    step(&w, 1);
    step(&w, 2); /* received, after an interruption */
    assert_log(&w, "step 1");
    logged(&w, 2, true);
    step(&w, 3);
    logged(&w, 4, true); /* the state after step 4 was received; its step was not reported here */
    assert_log(&w, "step 3");
    world_close(&w);
}

static void step_that_is_not_due_is_not_kept(void **state)
{
    struct world w;

    (void)state;
    world_open(&w, false, 5);
    step(&w, 5);
    logged(&w, 5, true);
    step(&w, 6);
    logged(&w, 6, false);
    step(&w, 7);
    report_generation_end(w.report);
    assert_log(&w, "");
    world_close(&w);
}

static void follower_at_level_debug_writes_each_line_once(void **state)
{
    struct world w;

    (void)state;
    world_open(&w, false, 1);
    log_set_level(LOG_DEBUG);
    step(&w, 1);
    assert_log(&w, "step 1");
    logged(&w, 1, false);
    step(&w, 2);
    report_generation_end(w.report);
    assert_log(&w, "step 2");
    log_set_level(LOG_INFO);
    world_close(&w);
}

static void line_that_stderr_does_not_take_is_reported_as_unlogged(void **state)
{
    int full = open("/dev/full", O_WRONLY);
    struct world w;

    (void)state;
    assert_true(full >= 0);
    world_open(&w, true, 1);
    dup2(full, STDERR_FILENO);
    step(&w, 1);
    dup2(w.file, STDERR_FILENO);
    assert_int_equal(w.unlogged, 1);
    evaluation(&w, 2);
    assert_int_equal(w.unlogged, 1);
    assert_int_equal(fault_arm("report.line@1", NULL), 0);
    step(&w, 3);
    assert_int_equal(fault_arm(NULL, NULL), 0);
    assert_int_equal(w.unlogged, 3);
    report_set_coordinator(w.report, false); /* a follower's last line waits: it may lead next */
    step(&w, 4);
    dup2(full, STDERR_FILENO);
    report_generation_end(w.report);
    dup2(w.file, STDERR_FILENO);
    assert_int_equal(w.unlogged, 4);
    assert_log(&w, "eval 2");
    close(full);
    world_close(&w);
}

/* ---- spare lanes ---- */

static void spare_step(struct world *w, uint64_t k, uint32_t used, uint32_t given)
{
    struct train_step_report s = { .step = k, .steps = 1, .spare_used = used, .spare_given = given,
                                   .spare_helped = "worker 1", .spare_helper = "worker 0" };

    report_event(w->report, &(struct train_event){ .kind = TRAIN_STEP, .step = k, .report = &s });
}

/* Compares the messages about spare lanes that were captured since the last call. */
static void assert_messages(struct world *w, const char *expected)
{
    static const char begin[] = "\"event\":\"spare\",\"message\":\"";
    char text[4096], found[4096] = "";
    ssize_t n = pread(w->file, text, sizeof(text) - 1, 0);

    text[n > 0 ? n : 0] = '\0';
    assert_int_equal(ftruncate(w->file, 0), 0);
    assert_true(lseek(w->file, 0, SEEK_SET) == 0);
    for (char *at = strstr(text, begin); at != NULL; at = strstr(at, begin)) {
        at += strlen(begin);
        snprintf(found + strlen(found), sizeof(found) - strlen(found), "%.*s\n",
                 (int)strcspn(at, "\""), at);
    }
    if (strcmp(found, expected) != 0) {
        dup2(w->before, STDERR_FILENO);
        fail_msg("the log holds \"%s\", expected \"%s\"", found, expected);
    }
}

static void generation_ends_lines_count_each_spare_lane_once(void **state)
{
    struct world w;

    (void)state;
    world_open_with(&w, false, 1000, SPARE_AUTO);
    spare_step(&w, 1, 2, 0); /* the first one has a line at once, the others until 10 s later have none */
    assert_messages(
        &w,
        "worker 1 was late: this task computed lanes of it up to step 1, 2 in its place, 0 to compare\n");
    spare_step(&w, 2, 2, 3);
    spare_step(&w, 3, 2, 0);
    spare_step(&w, 4, 0, 0);
    assert_messages(&w, "");
    report_generation_end(w.report);
    assert_messages(&w, "worker 1 was late: this task computed lanes of it up to step 3, 4 in its place, 0 to compare\n"
                        "this task was late: worker 0 computed 3 lanes of it up to step 3\n");
    report_generation_end(w.report);
    assert_messages(&w, "");
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(coordinator_writes_each_line_at_once),
        cmocka_unit_test(line_due_within_a_period_is_written_at_its_last_step),
        cmocka_unit_test(follower_writes_no_line_that_the_coordinator_has_written),
        cmocka_unit_test(generation_ends_undecided_follower_writes_the_last_lines_once),
        cmocka_unit_test(leadership_moves_between_each_step_no_line_is_missing),
        cmocka_unit_test(coordinator_could_not_write_follower_writes),
        cmocka_unit_test(next_step_comes_undecided_follower_writes_the_kept_lines),
        cmocka_unit_test(step_that_is_not_due_is_not_kept),
        cmocka_unit_test(follower_at_level_debug_writes_each_line_once),
        cmocka_unit_test(line_that_stderr_does_not_take_is_reported_as_unlogged),
        cmocka_unit_test(generation_ends_lines_count_each_spare_lane_once),
    };

    return cmocka_run_group_tests_name("daemon/report_lines", tests, NULL, NULL);
}
