/* Tests the reload of a job file in one process: which changes are refused, and changes of the file
 * while a loop runs. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/log.h"
#include "conf/job_rows.h"
#include "daemon/reload.h"
#include "daemon/report.h"
#include "harness/wait.h"
#include "loop/loop.h"
#include "metrics/metrics.h"
#include "metrics/summary.h"
#include "rdzv/rdzv.h"
#include "train/train.h"

static const struct job_patch none[JOB_MAX_PATCHES] = { { NULL, NULL } };

/* ---- reload_compare ---- */

static int compare(const struct job_patch was[JOB_MAX_PATCHES],
                   const struct job_patch now[JOB_MAX_PATCHES], struct reload_changes *out,
                   struct err *err)
{
    struct conf *a = job_patched(was), *b = job_patched(now);
    int rc = reload_compare(a, b, out, err);

    conf_free(a);
    conf_free(b);
    return rc;
}

static void live_key_changed_change_is_listed_with_both_values(void **state)
{
    const struct job_patch now[JOB_MAX_PATCHES] =
        P3("/checkpoint", "{'directory':'c','every_steps':7,'every_seconds':2.5,'max_to_keep':0}",
           "/log", "{'level':'debug'}", "/train/log_every_steps", "3");
    const struct job_patch was[JOB_MAX_PATCHES] = P1("/checkpoint", "{'directory':'c'}");
    static const char *const expected[][3] = {
        { "/train/log_every_steps", "10", "3" },     { "/checkpoint/every_steps", "0", "7" },
        { "/checkpoint/every_seconds", "0", "2.5" }, { "/checkpoint/max_to_keep", "5", "0" },
        { "/log/level", "\"info\"", "\"debug\"" },
    };
    struct reload_changes changes;
    struct err err = { 0 };

    (void)state;
    assert_int_equal(compare(was, now, &changes, &err), 0);
    assert_int_equal(changes.n, COUNT_OF(expected));
    for (size_t i = 0; i < COUNT_OF(expected); i++) {
        assert_string_equal(changes.list[i].pointer, expected[i][0]);
        assert_string_equal(changes.list[i].from, expected[i][1]);
        assert_string_equal(changes.list[i].to, expected[i][2]);
    }
    assert_int_equal(compare(was, was, &changes, &err), 0);
    assert_int_equal(changes.n, 0);
}

/* Each row also changes a key that may change. */
static void fixed_key_changed_reload_is_refused_with_place_values_and_remedy(void **state)
{
    static const struct {
        struct job_patch patches[JOB_MAX_PATCHES];
        const char *message;
    } rows[] = {
        { P2("/train/log_every_steps", "3", "/model/onnx", "'other.onnx'"),
          "/jobs/job.json: /model/onnx changed from \"/jobs/net.onnx\" to \"/jobs/other.onnx\", which cannot "
          "change while the job runs; restore the old value, or restart all tasks" },
        { P2("/train/log_every_steps", "3", "/checkpoint", "{'directory':'c'}"),
          "/checkpoint/directory changed from null to \"/jobs/c\"" },
        { P2("/train/log_every_steps", "3", "/train/steps", "200"), "/train/steps changed from 100 to 200" },
        { P3("/train/log_every_steps", "3", "/train/seed", "5", "/train/steps", "200"),
          "/train/seed changed from 0 to 5 (and 1 more), which" },
        { P2("/train/log_every_steps", "3", "/train/grace_seconds", "20"),
          "/train/grace_seconds changed from 8 to 20" },
        { P2("/train/log_every_steps", "3", "/elastic", "{'min_world':1}"),
          "/elastic/min_world changed from 0 to 1" },
        { P2("/train/log_every_steps", "3", "/model/frozen", "['a']"), "/model/frozen changed, which" },
        { P2("/train/log_every_steps", "3", "/data/features/image/scale", "2"), "/data/features changed, which" },
        { P2("/train/log_every_steps", "3", "/name", "'n'"), "/name changed from \"job\" to \"n\"" },
        { P2("/train/log_every_steps", "3", "/export", "{'onnx':'o'}"), "/export/onnx changed from null" },
    };
    struct reload_changes changes;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct err err = { 0 };

        assert_int_equal(compare(none, rows[i].patches, &changes, &err), ERR_REFUSED);
        if (strstr(err.text, rows[i].message) == NULL)
            fail_msg("row %zu: \"%s\"\n  lacks \"%s\"", i, err.text, rows[i].message);
    }
}

static void change_value_long_text_is_cut_between_two_characters(void **state)
{
    char path[600] = "'", long_path[600];
    struct job_patch patches[JOB_MAX_PATCHES] = { { "/summary", long_path } };
    struct reload_changes changes;
    struct err err = { 0 };

    (void)state;
    for (int i = 0; i < 150; i++)
        strcat(path, "\xc3\xa9");
    snprintf(long_path, sizeof(long_path), "{'directory':%s'}", path);
    assert_int_equal(compare(none, patches, &changes, &err), 0);
    assert_int_equal(changes.n, 1);
    assert_in_range(strlen(changes.list[0].to), RELOAD_VALUE_BYTES - 6, RELOAD_VALUE_BYTES - 1);
    assert_string_equal(changes.list[0].to + strlen(changes.list[0].to) - 5, "\xc3\xa9...");
}

/* ---- reloads with a running loop ---- */

struct world {
    char folder[64], job[96];
    struct conf *conf;
    struct loop *loop;
    struct metrics *metrics;
    struct report *report;
    struct reload *reload;
    struct train_opts train;
    struct loop_timer *timer;
};

static void write_job(struct world *w, const struct job_patch patches[JOB_MAX_PATCHES])
{
    char *text = job_text(patches);
    struct err err;

    assert_int_equal(fs_replace(w->job, text, strlen(text), &err), 0);
    free(text);
}

static void world_open(struct world *w, const struct job_patch patches[JOB_MAX_PATCHES],
                       bool level_is_given)
{
    struct report_opts ro = { .train = &w->train, .job = "j", .task = "t", .version = "v", .log_every_steps = 1 };
    struct reload_opts o = { .level_is_given = level_is_given };
    struct err err = { 0 };

    memset(w, 0, sizeof(*w));
    snprintf(w->folder, sizeof(w->folder), "/tmp/trainerd-reload-XXXXXX");
    assert_non_null(mkdtemp(w->folder));
    snprintf(w->job, sizeof(w->job), "%s/job.json", w->folder);
    write_job(w, patches);
    assert_int_equal(conf_read(w->job, &w->conf, &err), 0);
    assert_int_equal(loop_open(&w->loop, &err), 0);
    w->metrics = metrics_new();
    ro.metrics = w->metrics;
    ro.summary_directory = w->conf->summary.directory;
    assert_int_equal(report_open(&ro, &w->report, &err), 0);
    report_set_coordinator(w->report, true);
    o.loop = w->loop;
    o.conf = w->conf;
    o.report = w->report;
    assert_int_equal(reload_open(&o, &w->reload, &err), 0);
    log_init(LOG_TEXT, w->conf->log.level);
}

static void world_close(struct world *w)
{
    struct err err;

    loop_timer_free(w->timer);
    reload_stop(w->reload);
    loop_close(w->loop);
    reload_close(w->reload);
    report_close(w->report);
    metrics_free(w->metrics);
    conf_free(w->conf);
    assert_int_equal(fs_remove_tree(w->folder, &err), 0);
    log_init(LOG_TEXT, LOG_INFO);
}

static void stop(void *arg)
{
    struct world *w = arg;

    loop_stop(w->loop);
}

static void run_for_ms(struct world *w, uint64_t ms)
{
    loop_timer_free(w->timer);
    w->timer = loop_timer_new(w->loop, ms, 0, stop, w);
    loop_run(w->loop);
}

static void stop_when_done(void *arg)
{
    struct world *w = arg;

    if (!reload_is_running(w->reload))
        loop_stop(w->loop);
}

static void run_until_done(struct world *w)
{
    loop_timer_free(w->timer);
    w->timer = loop_timer_new(w->loop, 1, 1, stop_when_done, w);
    loop_run(w->loop);
    assert_false(reload_is_running(w->reload));
}

/* Reloads `times` times and returns the lines that are logged to stderr; the caller frees the
 * text. */
static char *reload_lines(struct world *w, uint32_t times)
{
    char name[] = "/tmp/trainerd-reload-log-XXXXXX";
    int file = mkstemp(name), before = dup(STDERR_FILENO);
    struct buf text = { 0 };
    struct err err;

    assert_true(file >= 0 && before >= 0);
    assert_true(dup2(file, STDERR_FILENO) >= 0);
    for (uint32_t i = 0; i < times; i++)
        reload_start(w->reload);
    run_until_done(w);
    assert_true(dup2(before, STDERR_FILENO) >= 0);
    close(before);
    close(file);
    assert_int_equal(fs_read(name, 1 << 20, &text, &err), 0);
    unlink(name);
    if (text.data == NULL)
        buf_str(&text, "");
    return buf_detach(&text);
}

static void assert_logged(struct world *w, uint32_t times, const char *expected)
{
    char *lines = reload_lines(w, times);

    if (strstr(lines, expected) == NULL)
        fail_msg("\"%s\"\n  lacks \"%s\"", lines, expected);
    free(lines);
}

static uint32_t event_files(const struct world *w, const char *name)
{
    char path[128];
    struct dirent *e;
    uint32_t n = 0;
    DIR *d;

    snprintf(path, sizeof(path), "%s/%s", w->folder, name);
    d = opendir(path);
    while (d != NULL && (e = readdir(d)) != NULL)
        n += strncmp(e->d_name, "events.", 7) == 0;
    if (d != NULL)
        closedir(d);
    return n;
}

static void reload_valid_file_after_invalid_one_is_applied(void **state)
{
    const struct job_patch wrong[JOB_MAX_PATCHES] = P1("/log", "{'level':'loud'}");
    const struct job_patch refused[JOB_MAX_PATCHES] =
        P2("/log", "{'level':'error'}", "/train/seed", "3");
    const struct job_patch right[JOB_MAX_PATCHES] =
        P2("/log", "{'level':'debug'}", "/train/log_every_steps", "2");
    struct world w;
    struct err err;
    char *lines;

    (void)state;
    world_open(&w, none, false);
    assert_logged(&w, 1, "reload: no key changed in ");
    write_job(&w, wrong);
    lines = reload_lines(&w, 1);
    assert_non_null(strstr(lines, "job.json:1:"));
    assert_non_null(strstr(lines, "/log/level: the word \"loud\" is not known"));
    assert_non_null(strstr(lines, "no change was applied, the job continues"));
    free(lines);
    write_job(&w, refused);
    assert_logged(&w, 1, "/train/seed changed from 0 to 3, which cannot change");
    assert_int_equal(unlink(w.job), 0);
    assert_logged(&w, 1, "reload: job file: ");
    assert_int_equal(fs_replace(w.job, "{", 1, &err), 0);
    assert_logged(&w, 1, "job.json:1:2");
    write_job(&w, right); /* the level is still info, which shows its own change */
    lines = reload_lines(&w, 1);
    assert_non_null(strstr(lines, "/train/log_every_steps: 10 -> 2\n"));
    assert_non_null(strstr(lines, "/log/level: \"info\" -> \"debug\"\n"));
    free(lines);
    assert_logged(&w, 1, "no key changed in"); /* compared with the job in force */
    write_job(&w, none);
    assert_logged(&w, 1, "/log/level: \"debug\" -> \"info\"\n");
    world_close(&w);
}

static void reload_several_signals_and_log_level_flag_keep_the_level(void **state)
{
    const struct job_patch now[JOB_MAX_PATCHES] = P1("/log", "{'level':'error'}");
    struct world w;

    (void)state;
    world_open(&w, none, true);
    write_job(&w, now);
    assert_logged(
        &w, 3,
        "/log/level: \"info\" -> \"error\"; not applied, because --log-level has priority\n");
    assert_logged(&w, 1, "no key changed in"); /* info records are still logged */
    world_close(&w);
}

static void summary_directory_changed_curves_move_only_if_it_is_writable(void **state)
{
    const struct job_patch a[JOB_MAX_PATCHES] = P1("/summary", "{'directory':'a'}");
    const struct job_patch b[JOB_MAX_PATCHES] = P1("/summary", "{'directory':'b'}");
    const struct job_patch bad[JOB_MAX_PATCHES] = P1("/summary", "{'directory':'job.json/c'}");
    const struct train_event begun = { .kind = TRAIN_CONNECTED, .step = 5 };
    struct world w;

    (void)state;
    world_open(&w, none, false);
    write_job(&w, a);
    assert_logged(&w, 1, "/summary/directory: null -> ");
    assert_int_equal(event_files(&w, "a"), 0); /* training has not begun */
    report_event(w.report, &begun);
    assert_int_equal(event_files(&w, "a"), 1);
    write_job(&w, b);
    assert_logged(&w, 1, "/a\" -> ");
    assert_int_equal(event_files(&w, "b"), 1);
    write_job(&w, bad);
    assert_logged(&w, 1, "job.json: /summary/directory: curves in ");
    assert_logged(&w, 1, "no change was applied, the job continues");
    write_job(&w, none);
    assert_logged(&w, 1, "/b\" -> null\n");
    write_job(&w, b);
    assert_logged(&w, 2, "null -> ");
    assert_true(event_files(&w, "b") >= 1);
    world_close(&w);
}

static void reload_stopped_at_any_moment_frees_everything(void **state)
{
    const struct job_patch a[JOB_MAX_PATCHES] = P1("/summary", "{'directory':'a'}");
    const struct train_event begun = { .kind = TRAIN_CONNECTED, .step = 0 };
    struct world w;

    (void)state;
    for (uint32_t us = 0; us < 2000; us += 100) {
        world_open(&w, none, false);
        log_set_level(LOG_ERROR);
        report_event(w.report, &begun);
        write_job(&w, a);
        reload_start(w.reload);
        if (us % 200 == 0)
            run_for_ms(&w, us / 1000);
        else
            wait_disturb(us * 1000u);
        world_close(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(live_key_changed_change_is_listed_with_both_values),
        cmocka_unit_test(fixed_key_changed_reload_is_refused_with_place_values_and_remedy),
        cmocka_unit_test(change_value_long_text_is_cut_between_two_characters),
        cmocka_unit_test(reload_valid_file_after_invalid_one_is_applied),
        cmocka_unit_test(reload_several_signals_and_log_level_flag_keep_the_level),
        cmocka_unit_test(summary_directory_changed_curves_move_only_if_it_is_writable),
        cmocka_unit_test(reload_stopped_at_any_moment_frees_everything),
    };

    return cmocka_run_group_tests_name("daemon/reload", tests, NULL, NULL);
}
