#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "metrics/metrics.h"

static void assert_text(struct metrics *m, const char *expected)
{
    struct buf out = { 0 };

    metrics_print(m, &out);
    assert_false(out.failed);
    assert_string_equal(out.data != NULL ? out.data : "", expected);
    buf_fini(&out);
}

static void metrics_print_families_in_the_order_of_registration(void **state)
{
    struct metrics *m = metrics_new();
    struct metric *steps = metrics_counter(m, "trainerd_steps_total", NULL, "Steps done.");
    struct metric *rtt =
        metrics_gauge(m, "trainerd_peer_rtt_seconds", "peer=\"worker 1\"", "Round trip.");
    struct metric *loss = metrics_gauge(m, "trainerd_loss", NULL, "Training loss.");
    struct metric *far =
        metrics_gauge(m, "trainerd_peer_rtt_seconds", "peer=\"worker 2\"", "Round trip.");

    (void)state;
    metric_add(steps, 1);
    metric_add(steps, 41);
    metric_set(rtt, 0.1);
    metric_set(far, 2);
    metric_add(far, -0.5);
    metric_set(loss, 1e-9);
    assert_text(m, "# HELP trainerd_steps_total Steps done.\n"
                   "# TYPE trainerd_steps_total counter\n"
                   "trainerd_steps_total 42\n"
                   "# HELP trainerd_peer_rtt_seconds Round trip.\n"
                   "# TYPE trainerd_peer_rtt_seconds gauge\n"
                   "trainerd_peer_rtt_seconds{peer=\"worker 1\"} 0.1\n"
                   "trainerd_peer_rtt_seconds{peer=\"worker 2\"} 1.5\n"
                   "# HELP trainerd_loss Training loss.\n"
                   "# TYPE trainerd_loss gauge\n"
                   "trainerd_loss 1e-09\n");
    metrics_free(m);
}

static void series_without_a_value_is_absent(void **state)
{
    static const double bounds[] = { 1 };
    struct metrics *m = metrics_new();
    struct metric *loss = metrics_gauge(m, "trainerd_loss", NULL, "Training loss.");
    struct metric *phases[] = { metrics_gauge(m, "trainerd_phase", "phase=\"a\"", "Phase."),
                                metrics_gauge(m, "trainerd_phase", "phase=\"b\"", "Phase.") };

    (void)state;
    (void)metrics_histogram(m, "trainerd_step_seconds", NULL, "Time of a step.", bounds, 1);
    (void)metrics_counter(m, "trainerd_steps_total", NULL, "Steps done.");
    metric_set(phases[1], 1);
    assert_text(m, "# HELP trainerd_phase Phase.\n"
                   "# TYPE trainerd_phase gauge\n"
                   "trainerd_phase{phase=\"b\"} 1\n"
                   "# HELP trainerd_steps_total Steps done.\n"
                   "# TYPE trainerd_steps_total counter\n"
                   "trainerd_steps_total 0\n");
    metric_set(loss, 0);
    metric_forget(phases[1]);
    assert_text(m, "# HELP trainerd_loss Training loss.\n"
                   "# TYPE trainerd_loss gauge\n"
                   "trainerd_loss 0\n"
                   "# HELP trainerd_steps_total Steps done.\n"
                   "# TYPE trainerd_steps_total counter\n"
                   "trainerd_steps_total 0\n");
    metrics_free(m);
}

/* The value of a series in the process's text; NaN: absent. */
static double process_value(const char *name)
{
    struct buf out = { 0 };
    const char *at;
    char line[80];
    double v = NAN;

    metrics_print_process(&out);
    snprintf(line, sizeof(line), "\n%s ", name);
    at = strstr(out.data, line);
    if (at != NULL)
        v = strtod(at + strlen(line), NULL);
    buf_fini(&out);
    return v;
}

static void process_series_agree_with_the_system(void **state)
{
    struct timespec now;
    double open_files = process_value("process_open_fds"),
           cpu = process_value("process_cpu_seconds_total");
    double started = process_value("process_start_time_seconds");
    int fds[2];

    (void)state;
    assert_int_equal(pipe(fds), 0);
    assert_true(process_value("process_open_fds") == open_files + 2);
    close(fds[0]);
    close(fds[1]);
    while (process_value("process_cpu_seconds_total") < cpu + 0.05) /* ends: the loop uses processor time */
        ;
    clock_gettime(CLOCK_REALTIME, &now);
    assert_true(started <= (double)now.tv_sec + 1 && started > (double)now.tv_sec - 3600);
    assert_true(process_value("process_start_time_seconds") == started);
    assert_true(process_value("process_resident_memory_bytes") > 100e3);
    assert_true(process_value("process_threads") >= 1);
}

static void histogram_counts_each_value_in_all_buckets_at_or_above_it(void **state)
{
    static const double bounds[] = { 0.5, 1, 4 };
    struct metrics *m = metrics_new();
    struct metric *h = metrics_histogram(m, "trainerd_step_seconds", "device=\"cpu\"",
                                         "Time of a step.", bounds, 3);

    (void)state;
    metric_observe_many(h, 0.25, 1);
    metric_observe_many(h, 7, 0); /* no value */
    metric_observe(h, 1);         /* a value equal to a bound counts in that bucket */
    metric_observe(h, 1.5);
    metric_observe(h, 100);
    assert_text(m, "# HELP trainerd_step_seconds Time of a step.\n"
                   "# TYPE trainerd_step_seconds histogram\n"
                   "trainerd_step_seconds_bucket{device=\"cpu\",le=\"0.5\"} 1\n"
                   "trainerd_step_seconds_bucket{device=\"cpu\",le=\"1\"} 2\n"
                   "trainerd_step_seconds_bucket{device=\"cpu\",le=\"4\"} 3\n"
                   "trainerd_step_seconds_bucket{device=\"cpu\",le=\"+Inf\"} 4\n"
                   "trainerd_step_seconds_sum{device=\"cpu\"} 102.75\n"
                   "trainerd_step_seconds_count{device=\"cpu\"} 4\n");
    metrics_free(m);
}

static void metrics_print_non_finite_values_by_name(void **state)
{
    static const double bounds[] = { 1 };
    struct metrics *m = metrics_new();
    struct metric *a = metrics_gauge(m, "trainerd_a", NULL, "A.");
    struct metric *b = metrics_gauge(m, "trainerd_b", NULL, "B.");
    struct metric *c = metrics_gauge(m, "trainerd_c", NULL, "C.");
    struct metric *h = metrics_histogram(m, "trainerd_h", NULL, "H.", bounds, 1);

    (void)state;
    metric_set(a, NAN);
    metric_set(b, INFINITY);
    metric_set(c, -INFINITY);
    metric_observe(h, NAN);
    assert_text(m, "# HELP trainerd_a A.\n# TYPE trainerd_a gauge\ntrainerd_a NaN\n"
                   "# HELP trainerd_b B.\n# TYPE trainerd_b gauge\ntrainerd_b +Inf\n"
                   "# HELP trainerd_c C.\n# TYPE trainerd_c gauge\ntrainerd_c -Inf\n"
                   "# HELP trainerd_h H.\n# TYPE trainerd_h histogram\n"
                   "trainerd_h_bucket{le=\"1\"} 0\ntrainerd_h_bucket{le=\"+Inf\"} 1\n"
                   "trainerd_h_sum NaN\ntrainerd_h_count 1\n");
    metrics_free(m);
}

static void metrics_labels_and_help_are_escaped(void **state)
{
    struct metrics *m = metrics_new();
    struct buf labels = { 0 };

    (void)state;
    metrics_label(&labels, "path", "C:\\a \"b\"\nc");
    metrics_label(&labels, "job", "b\xc3\xa4r\xff");
    assert_string_equal(labels.data,
                        "path=\"C:\\\\a \\\"b\\\"\\nc\",job=\"b\xc3\xa4r\xef\xbf\xbd\"");
    metric_set(metrics_gauge(m, "trainerd_x", labels.data, "Two\nlines, a \\ and \"quotes\"."), 0);
    assert_text(m,
                "# HELP trainerd_x Two\\nlines, a \\\\ and \"quotes\".\n# TYPE trainerd_x gauge\n"
                "trainerd_x{path=\"C:\\\\a \\\"b\\\"\\nc\",job=\"b\xc3\xa4r\xef\xbf\xbd\"} 0\n");
    buf_fini(&labels);
    metrics_free(m);
}

static void metrics_registering_twice_returns_the_same_metric(void **state)
{
    static const double bounds[] = { 1, 2 };
    struct metrics *m = metrics_new();
    struct metric *c = metrics_counter(m, "trainerd_joins_total", "x=\"1\"", "Joins.");
    struct metric *h = metrics_histogram(m, "trainerd_wait_seconds", NULL, "Waits.", bounds, 2);

    (void)state;
    assert_ptr_equal(metrics_counter(m, "trainerd_joins_total", "x=\"1\"", "Joins."), c);
    assert_ptr_not_equal(metrics_counter(m, "trainerd_joins_total", "x=\"2\"", "Joins."), c);
    assert_ptr_equal(metrics_histogram(m, "trainerd_wait_seconds", NULL, "Waits.", bounds, 2), h);
    metrics_free(m);
}

enum { THREADS = 4, ROUNDS = 20000 };

struct load {
    struct metrics *m;
    struct metric *counter, *histogram;
};

static void *update(void *arg)
{
    struct load *l = arg;

    for (int i = 0; i < ROUNDS; i++) {
        metric_add(l->counter, 1);
        metric_observe(l->histogram, i % 3);
    }
    return NULL;
}

static void *register_and_print(void *arg)
{
    struct load *l = arg;

    for (int i = 0; i < 200; i++) {
        struct buf labels = { 0 }, out = { 0 };
        char value[16];

        snprintf(value, sizeof(value), "%d", i);
        metrics_label(&labels, "i", value);
        metric_set(metrics_gauge(l->m, "trainerd_many", labels.data, "Many."), i);
        metrics_print(l->m, &out);
        assert_false(out.failed);
        buf_fini(&labels);
        buf_fini(&out);
    }
    return NULL;
}

static void metrics_updates_of_several_threads_are_all_counted(void **state)
{
    static const double bounds[] = { 0, 1 };
    struct load l = { .m = metrics_new() };
    pthread_t threads[THREADS + 1];
    struct buf out = { 0 };
    char expected[64];

    (void)state;
    l.counter = metrics_counter(l.m, "trainerd_events_total", NULL, "Events.");
    l.histogram = metrics_histogram(l.m, "trainerd_size_bytes", NULL, "Sizes.", bounds, 2);
    for (int i = 0; i <= THREADS; i++)
        pthread_create(&threads[i], NULL, i < THREADS ? update : register_and_print, &l);
    for (int i = 0; i <= THREADS; i++)
        pthread_join(threads[i], NULL);
    metrics_print(l.m, &out);
    snprintf(expected, sizeof(expected), "trainerd_events_total %d\n", THREADS * ROUNDS);
    assert_non_null(strstr(out.data, expected));
    snprintf(expected, sizeof(expected), "trainerd_size_bytes_count %d\n", THREADS * ROUNDS);
    assert_non_null(strstr(out.data, expected));
    /* 20000 rounds of 0, 1, 2: 6667 zeros, 6667 ones, 6666 twos */
    snprintf(expected, sizeof(expected), "trainerd_size_bytes_sum %d\n",
             THREADS * (6667 + 2 * 6666));
    assert_non_null(strstr(out.data, expected));
    buf_fini(&out);
    metrics_free(l.m);
}

/* ---- programming errors stop the process ---- */

static void counter_without_total(struct metrics *m)
{
    metrics_counter(m, "trainerd_steps", NULL, "Steps.");
}

static void foreign_prefix(struct metrics *m)
{
    metrics_gauge(m, "steps", NULL, "Steps.");
}

static void different_type(struct metrics *m)
{
    metrics_gauge(m, "trainerd_x", NULL, "X.");
    metrics_histogram(m, "trainerd_x", NULL, "X.", (const double[]){ 1 }, 1);
}

static void different_help(struct metrics *m)
{
    metrics_gauge(m, "trainerd_x", "a=\"1\"", "X.");
    metrics_gauge(m, "trainerd_x", "a=\"2\"", "Y.");
}

static void descending_bounds(struct metrics *m)
{
    metrics_histogram(m, "trainerd_x", NULL, "X.", (const double[]){ 2, 1 }, 2);
}

static void negative_increment(struct metrics *m)
{
    metric_add(metrics_counter(m, "trainerd_x_total", NULL, "X."), -1);
}

static void metrics_programming_error_stops_the_process(void **state)
{
    static void (*const mistakes[])(struct metrics *) = {
        counter_without_total, foreign_prefix,    different_type, different_help,
        descending_bounds,        negative_increment
    };

    (void)state;
    for (size_t i = 0; i < sizeof(mistakes) / sizeof(mistakes[0]); i++) {
        const struct rlimit no_core = { 0, 0 };
        pid_t child = fork();
        int status;

        assert_true(child >= 0);
        if (child == 0) {
            dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
            signal(SIGABRT, SIG_DFL);
            setrlimit(RLIMIT_CORE, &no_core);
            mistakes[i](metrics_new());
            _exit(0);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(metrics_print_families_in_the_order_of_registration),
        cmocka_unit_test(series_without_a_value_is_absent),
        cmocka_unit_test(process_series_agree_with_the_system),
        cmocka_unit_test(histogram_counts_each_value_in_all_buckets_at_or_above_it),
        cmocka_unit_test(metrics_print_non_finite_values_by_name),
        cmocka_unit_test(metrics_labels_and_help_are_escaped),
        cmocka_unit_test(metrics_registering_twice_returns_the_same_metric),
        cmocka_unit_test(metrics_updates_of_several_threads_are_all_counted),
        cmocka_unit_test(metrics_programming_error_stops_the_process),
    };

    return cmocka_run_group_tests_name("metrics/metrics", tests, NULL, NULL);
}
