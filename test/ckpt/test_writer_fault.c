/* A writer that fails, is killed or is stopped at any point: all visible checkpoints are
 * complete. */
#include "ckpt/kit.h"

#include <signal.h>
#include <sys/wait.h>

#include "base/fault.h"

static void on_event_check(void *arg, const struct ckpt_event *e)
{
    struct kit_events *s = arg;

    kit_on_event(arg, e);
    if (fault_fired()) /* else the fault could fire in the check itself */
        kit_check_folder(s->folder);
}

/* Injects a failure at the n-th passage of any fault point, for every n, while step 2 is saved
 * after step 1. */
static void writer_with_a_failure_anywhere_leaves_complete_checkpoints(void **state)
{
    uint64_t n = 1;
    bool fired = true;

    (void)state;
    for (; fired; n++) {
        char *folder = kit_folder(), spec[32];
        struct kit_events story = { .text = "", .folder = folder };
        struct ckpt_writer_opts opts = kit_opts(folder);
        struct ckpt_meta two = kit_meta(2);
        struct ckpt_info info;
        struct ckpt_writer *w;

        kit_save(folder, 1, 1);
        opts.max_to_keep = 1;
        opts.on_event = on_event_check;
        opts.arg = &story;
        w = kit_open(&opts);
        snprintf(spec, sizeof(spec), "*@%d", (int)n);
        assert_int_equal(fault_arm(spec, NULL), 0);
        kit_write(w, &two, 2);
        kit_flush(w); /* retries after a failure */
        fired = fault_fired();
        assert_int_equal(fault_arm(NULL, NULL), 0);
        ckpt_writer_close(w);
        if (!fired)
            assert_string_equal(story.text, "written 2, removed 1");
        assert_int_equal(kit_newest(folder, &info), 2);
        kit_check_folder(folder);
        kit_clean(folder);
        assert_int_equal(kit_count(folder, "."), 0);
        kit_remove(folder);
    }
    assert_true(n > 20); /* a complete save passes more than 20 points */
}

/* Saves in a child process that is killed at the n-th passage. true: it was killed. */
static bool child_killed_at(const char *folder, uint64_t n, const struct ckpt_meta *meta,
                            uint64_t seed, bool exchange)
{
    struct ckpt_writer_opts opts = kit_opts(folder);
    struct ckpt_writer *w;
    char spec[64];
    int status;
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        uint8_t buffer[KIT_STATE_BYTES];

        alarm(WAIT_GUARD_S);
        opts.max_to_keep = 1;
        snprintf(spec, sizeof(spec), "*=kill@%d%s", (int)n, exchange ? "" : ",ckpt.exchange@1+");
        kit_fill(buffer, seed);
        if (fault_arm(spec, NULL) < 0 || ckpt_writer_open(&opts, &w, NULL) < 0 ||
            ckpt_write(w, meta, buffer, NULL) < 0 || flush_for(w, 20000, NULL) < 0)
            _exit(1);
        ckpt_writer_close(w);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true((WIFEXITED(status) && WEXITSTATUS(status) == 0) ||
                (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
    return WIFSIGNALED(status);
}

static void writer_killed_anywhere_leaves_a_complete_checkpoint(void **state)
{
    uint64_t n = 1;
    bool killed = true;

    (void)state;
    for (; killed; n++) {
        char *folder = kit_folder();
        struct ckpt_meta two = kit_meta(2);
        struct ckpt_info info;

        kit_save(folder, 1, 1);
        killed = child_killed_at(folder, n, &two, 2, true);
        kit_check_folder(folder);
        kit_clean(folder); /* the next writer cleans up */
        assert_int_equal(kit_count(folder, "."), 0);
        kit_check_folder(folder);
        assert_in_range(kit_newest(folder, &info), 1, 2);
        kit_remove(folder);
    }
    assert_true(n > 20);
}

/* The same while a checkpoint of another run is replaced: the old or the new one exists. On a file
 * system that cannot exchange names, the old one may be moved aside until the next writer moves it
 * back. */
static void writer_killed_while_replacing_leaves_the_old_or_the_new_checkpoint(void **state)
{
    uint64_t n;
    bool killed;

    (void)state;
    for (int exchange = 0; exchange < 2; exchange++) {
        killed = true;
        for (n = 1; killed; n++) {
            char *folder = kit_folder();
            struct ckpt_meta other = kit_meta(1);
            struct ckpt_info info;

            kit_save(folder, 1, 1);
            strcpy(other.job_digest, "another");
            killed = child_killed_at(folder, n, &other, 2, exchange);
            if (exchange)
                assert_int_equal(kit_newest(folder, &info), 1);
            kit_clean(folder);
            assert_int_equal(kit_count(folder, "."), 0);
            assert_int_equal(kit_newest(folder, &info), 1);
            kit_load(info.path, strcmp(info.meta.job_digest, "another") == 0 ? 2 : 1);
            if (!killed)
                assert_string_equal(info.meta.job_digest, "another");
            kit_remove(folder);
        }
        assert_true(n > 20);
    }
}

/* A writer in another process is stopped at its n-th passage, for every n. Another task becomes the
 * writer and saves the same or the next step. Then the first writer continues. All visible
 * checkpoints must be complete. */
static void former_writer_that_continues_damages_nothing(void **state)
{
    bool stopped = true;
    uint64_t n;

    (void)state;
    for (n = 1; stopped; n++) {
        char *folder = kit_folder(), spec[32];
        uint64_t step = 2 + n % 2;
        struct ckpt_writer_opts opts = kit_opts(folder);
        struct ckpt_meta two = kit_meta(2);
        struct ckpt_info info;
        int status;
        pid_t pid;

        kit_save(folder, 1, 1);
        pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            struct ckpt_writer *w;

            alarm(WAIT_GUARD_S);
            snprintf(spec, sizeof(spec), "*=stop@%d", (int)n);
            if (fault_arm(spec, NULL) < 0 || ckpt_writer_open(&opts, &w, NULL) < 0)
                _exit(1);
            kit_write(w, &two, 2);
            kit_flush(w); /* writes again what was removed */
            ckpt_writer_close(w);
            _exit(0);
        }
        assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
        stopped = WIFSTOPPED(status);
        kit_save(folder, step, step);
        kit_check_folder(folder);
        if (stopped) {
            assert_int_equal(kill(pid, SIGCONT), 0);
            assert_int_equal(waitpid(pid, &status, 0), pid);
        }
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        kit_check_folder(folder);
        assert_int_equal(kit_newest(folder, &info), step);
        kit_clean(folder);
        assert_int_equal(kit_count(folder, "."), 0);
        kit_remove(folder);
    }
    assert_true(n > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writer_with_a_failure_anywhere_leaves_complete_checkpoints),
        cmocka_unit_test(writer_killed_anywhere_leaves_a_complete_checkpoint),
        cmocka_unit_test(writer_killed_while_replacing_leaves_the_old_or_the_new_checkpoint),
        cmocka_unit_test(former_writer_that_continues_damages_nothing),
    };

    return cmocka_run_group_tests_name("ckpt/writer_fault", tests, NULL, NULL);
}
