/* A writer that fails, is killed or is stopped, anywhere: what can be seen is complete. */
#include "ckpt/kit.h"

#include <signal.h>
#include <sys/wait.h>

#include "base/fault.h"

static void on_event_check(void *arg, const struct ckpt_event *e)
{
    struct kit_story *s = arg;

    kit_on_event(arg, e);
    if (fault_fired()) /* else it could hit what the check itself does */
        kit_check_folder(s->folder);
}

/* The n-th passage of any fault point fails, for every n, while step 2 is saved over step 1. */
static void whatever_fails_the_folder_holds_complete_checkpoints(void **state)
{
    uint64_t n = 1;
    bool fired = true;

    (void)state;
    for (; fired; n++) {
        char *folder = kit_folder(), spec[32];
        struct kit_story story = { .text = "", .folder = folder };
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
        kit_flush(w); /* tried again if it failed */
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
    assert_true(n > 20); /* it was a whole save with all its points */
}

/* In a process of its own: killed at the n-th passage. true: it was. */
static bool killed_at(const char *folder, uint64_t n, const struct ckpt_meta *meta, uint64_t seed,
                      bool exchange)
{
    struct ckpt_writer_opts opts = kit_opts(folder);
    struct ckpt_writer *w;
    char spec[64];
    int status;
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        uint8_t buffer[KIT_STATE_BYTES];

        alarm(20);
        opts.max_to_keep = 1;
        snprintf(spec, sizeof(spec), "*=kill@%d%s", (int)n,
                 exchange ? "" : ",ckpt.exchange@1+");
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

static void killed_anywhere_a_complete_checkpoint_is_left(void **state)
{
    uint64_t n = 1;
    bool killed = true;

    (void)state;
    for (; killed; n++) {
        char *folder = kit_folder();
        struct ckpt_meta two = kit_meta(2);
        struct ckpt_info info;

        kit_save(folder, 1, 1);
        killed = killed_at(folder, n, &two, 2, true);
        kit_check_folder(folder);
        kit_clean(folder); /* the next one cleans up */
        assert_int_equal(kit_count(folder, "."), 0);
        kit_check_folder(folder);
        assert_in_range(kit_newest(folder, &info), 1, 2);
        kit_remove(folder);
    }
    assert_true(n > 20);
}

/* The same while a checkpoint of another run is replaced: old or new, never none. On a file system
 * that cannot exchange names the old one may lie aside until the next writer comes. */
static void killed_while_replacing_the_old_or_the_new_one_is_left(void **state)
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
            killed = killed_at(folder, n, &other, 2, exchange);
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

/* A writer in another process is stopped at its n-th passage, for every n; meanwhile another task
 * becomes the one that writes: the same step, or the next. Then the first goes on. Whatever it
 * believes, every folder that can be seen is complete. */
static void a_former_writer_that_goes_on_harms_nothing(void **state)
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

            alarm(20);
            snprintf(spec, sizeof(spec), "*=stop@%d", (int)n);
            if (fault_arm(spec, NULL) < 0 || ckpt_writer_open(&opts, &w, NULL) < 0)
                _exit(1);
            kit_write(w, &two, 2);
            kit_flush(w); /* what was taken away from it is written anew */
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
        cmocka_unit_test(whatever_fails_the_folder_holds_complete_checkpoints),
        cmocka_unit_test(killed_anywhere_a_complete_checkpoint_is_left),
        cmocka_unit_test(killed_while_replacing_the_old_or_the_new_one_is_left),
        cmocka_unit_test(a_former_writer_that_goes_on_harms_nothing),
    };

    return cmocka_run_group_tests_name("ckpt/writer_fault", tests, NULL, NULL);
}
