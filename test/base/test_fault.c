#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <fcntl.h>
#include <stdio.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "harness/wait.h"

static int disarm(void **state)
{
    (void)state;
    return fault_arm(NULL, NULL);
}

static void fault_point_unarmed_does_nothing(void **state)
{
    (void)state;
    assert_false(fault_hit("disk"));
    assert_int_equal(fault_n_passages(), 0);
    assert_false(fault_fired());
}

static void fault_with_a_passage_fires_only_there(void **state)
{
    (void)state;
    assert_int_equal(fault_arm("disk@3", NULL), 0);
    for (int i = 1; i <= 6; i++) {
        assert_int_equal(fault_hit("disk"), i == 3);
        assert_false(fault_hit("net"));
        assert_int_equal(fault_fired(), i >= 3);
    }
    assert_int_equal(fault_n_passages(), 12);
    assert_int_equal(fault_arm(NULL, NULL), 0);
    assert_int_equal(fault_n_passages(), 0);
    assert_false(fault_fired());
}

static void fault_with_plus_fires_at_every_later_passage(void **state)
{
    (void)state;
    assert_int_equal(fault_arm("disk=fail@2+", NULL), 0);
    assert_false(fault_hit("disk"));
    assert_true(fault_hit("disk"));
    assert_true(fault_hit("disk"));
}

static void fault_with_two_passages_fires_from_one_to_the_other(void **state)
{
    (void)state;
    assert_int_equal(fault_arm("disk=fail@2-4,disk=fail@6-6", NULL), 0);
    for (int i = 1; i <= 8; i++)
        assert_int_equal(fault_hit("disk"), (i >= 2 && i <= 4) || i == 6);
}

static void fault_with_star_counts_passages_of_all_points(void **state)
{
    (void)state;
    assert_int_equal(fault_arm("*@3", NULL), 0);
    assert_false(fault_hit("a"));
    assert_false(fault_hit("b"));
    assert_true(fault_hit("a"));
    assert_false(fault_hit("b"));
}

static void faults_of_different_points_count_separately(void **state)
{
    (void)state;
    assert_int_equal(fault_arm("a,b@2,a@3", NULL), 0);
    assert_true(fault_hit("a"));
    assert_false(fault_hit("b"));
    assert_false(fault_hit("a"));
    assert_true(fault_hit("b"));
    assert_true(fault_hit("a"));
    assert_false(fault_hit("a"));
}

static void fault_delay_waits_and_does_not_fail(void **state)
{
    uint64_t end = clock_ns() + 20000000;

    (void)state;
    assert_int_equal(fault_arm("slow=delay:20", NULL), 0);
    assert_false(fault_hit("slow"));
    assert_true(fault_fired());
    assert_true(clock_ns() >= end); /* any duration above is right */
}

static void *hit_held(void *result)
{
    __atomic_store_n((int *)result, fault_hit("held"), __ATOMIC_SEQ_CST);
    return NULL;
}

static void fault_hold_lasts_until_the_next_arm(void **state)
{
    static const char *const next[] = { NULL, "another", "held@2" };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(next); i++) {
        int result = -1;
        pthread_t thread;

        assert_int_equal(fault_arm("held=hold", NULL), 0);
        assert_int_equal(pthread_create(&thread, NULL, hit_held, &result), 0);
        WAIT_UNTIL(fault_fired());
        assert_false(fault_hit("held"));                   /* the second passage */
        assert_int_equal(fault_arm("=", NULL), ERR_INPUT); /* changes nothing */
        wait_disturb(2000000);
        assert_int_equal(__atomic_load_n(&result, __ATOMIC_SEQ_CST), -1);
        assert_int_equal(fault_arm(next[i], NULL), 0);
        pthread_join(thread, NULL);
        assert_int_equal(result, false);
    }
}

static void fault_arm_with_an_invalid_spec_is_refused_and_changes_nothing(void **state)
{
    static const char *const bad[] = {
        "",
        ",",
        "a,",
        "=fail",
        "@2",
        "a@",
        "a@0",
        "a@x",
        "a@-1",
        "a@+",
        "a@2+3",
        "a@2-",
        "a@3-2",
        "a@2-x",
        "a=",
        "a=explode",
        "a=delay",
        "a=delay:",
        "a=delay:x",
        "a=fail:3",
        "a=exit:1",
        "a=delay:99999999999",
        "a=wait",
        "a=wait:",
        "a=touch",
        "a=touch:",
        "a=hangs",
        "a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a",
        "name_that_is_longer_than_sixty_three_characters_which_is_all_that_fits",
    };
    char huge[5000];

    (void)state;
    memset(huge, 'n', sizeof(huge) - 1);
    huge[sizeof(huge) - 1] = '\0';
    assert_int_equal(fault_arm("kept", NULL), 0);
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct err err = { 0 };

        assert_int_equal(fault_arm(bad[i], &err), ERR_INPUT);
        assert_int_equal(err.code, ERR_INPUT);
        assert_non_null(strstr(err.text, "expected name[=action][@n[+|-m]]"));
    }
    assert_int_equal(fault_arm(huge, NULL), ERR_INPUT);
    assert_true(fault_hit("kept"));
}

/* Passes the fault point in a child process and returns its wait status. */
static int hit_in_child(const char *spec)
{
    int status;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        fault_arm(spec, NULL);
        _exit(fault_hit("point") ? 1 : 0);
    }
    if (strstr(spec, "stop") != NULL) {
        assert_int_equal(waitpid(child, &status, WUNTRACED), child);
        assert_true(WIFSTOPPED(status));
        kill(child, SIGCONT);
    }
    if (strstr(spec, "hang") != NULL) {
        bool ended = false;

        WAIT_UNTIL((ended = waitpid(child, &status, WNOHANG) != 0) || wait_is_asleep(child, child));
        assert_false(ended);
        kill(child, SIGTERM);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void fault_actions_end_stop_or_hang_the_process(void **state)
{
    int status;

    (void)state;
    status = hit_in_child("point=exit");
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 138);
    status = hit_in_child("point=kill");
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    status = hit_in_child("point=stop");
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    status = hit_in_child("point=hang");
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
}

static void fault_wait_ends_when_the_file_exists(void **state)
{
    char folder[] = "/tmp/trainerd-fault-XXXXXX", path[64], spec[80], byte;
    int ready[2], status;
    pid_t child;

    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/open", folder);
    snprintf(spec, sizeof(spec), "point=wait:%s@2", path);
    assert_int_equal(pipe(ready), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        bool is_invalid = fault_arm(spec, NULL) != 0 || fault_hit("point"); /* the first passage does not wait */
        bool is_told = write(ready[1], "x", 1) == 1;

        _exit(is_invalid || !is_told || fault_hit("point") || access(path, F_OK) != 0);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(creat(path, 0600) < 0, 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    unlink(path);
    rmdir(folder);
}

static void fault_touch_creates_the_file(void **state)
{
    char folder[] = "/tmp/trainerd-fault-XXXXXX", path[64], spec[80];

    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/saved", folder);
    snprintf(spec, sizeof(spec), "point=touch:%s@2", path);
    assert_int_equal(fault_arm(spec, NULL), 0);
    assert_false(fault_hit("point"));
    assert_int_not_equal(access(path, F_OK), 0);
    assert_false(fault_hit("point"));
    assert_int_equal(access(path, F_OK), 0);
    unlink(path);
    rmdir(folder);
}

/* Runs this program again with TRAINERD_FAULT set; its exit code is 10 + the two results of
 * main(). */
static int run_with(const char *spec)
{
    int status;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        setenv("TRAINERD_FAULT", spec, 1);
        dup2(STDOUT_FILENO, STDERR_FILENO);
        execl("/proc/self/exe", "test_fault", "hit-twice", (char *)NULL);
        _exit(127);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void fault_in_the_environment_is_armed(void **state)
{
    (void)state;
    assert_int_equal(run_with("point"), 11);
    assert_int_equal(run_with("point@2"), 12);
    assert_int_equal(run_with("point@1+"), 13);
    assert_int_equal(run_with("other"), 10);
    assert_int_equal(run_with(""), 10);
    assert_int_equal(run_with("point=explode"), 2);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(fault_point_unarmed_does_nothing, disarm),
        cmocka_unit_test_teardown(fault_with_a_passage_fires_only_there, disarm),
        cmocka_unit_test_teardown(fault_with_plus_fires_at_every_later_passage, disarm),
        cmocka_unit_test_teardown(fault_with_two_passages_fires_from_one_to_the_other, disarm),
        cmocka_unit_test_teardown(fault_with_star_counts_passages_of_all_points, disarm),
        cmocka_unit_test_teardown(faults_of_different_points_count_separately, disarm),
        cmocka_unit_test_teardown(fault_delay_waits_and_does_not_fail, disarm),
        cmocka_unit_test_teardown(fault_hold_lasts_until_the_next_arm, disarm),
        cmocka_unit_test_teardown(fault_arm_with_an_invalid_spec_is_refused_and_changes_nothing,
                                  disarm),
        cmocka_unit_test_teardown(fault_actions_end_stop_or_hang_the_process, disarm),
        cmocka_unit_test_teardown(fault_wait_ends_when_the_file_exists, disarm),
        cmocka_unit_test_teardown(fault_touch_creates_the_file, disarm),
        cmocka_unit_test_teardown(fault_in_the_environment_is_armed, disarm),
    };

    if (argc > 1 && strcmp(argv[1], "hit-twice") == 0)
        return 10 + fault_hit("point") + 2 * fault_hit("point");
    return cmocka_run_group_tests_name("base/fault", tests, NULL, NULL);
}
