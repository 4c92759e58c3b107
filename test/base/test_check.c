#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"

static void check_of_a_true_condition_evaluates_it_once(void **state)
{
    int evaluated = 0;

    (void)state;
    CHECK(++evaluated == 1);
    assert_int_equal(evaluated, 1);
}

static void check_of_a_false_condition_prints_its_location_and_aborts(void **state)
{
    const struct rlimit no_core = { 0, 0 };
    char text[1024] = "";
    int out[2], status;
    size_t n = 0;
    ssize_t got;
    pid_t child;

    (void)state;
    assert_int_equal(pipe(out), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(out[1], STDERR_FILENO);
        signal(SIGABRT, SIG_DFL);
        setrlimit(RLIMIT_CORE, &no_core);
        CHECK(1 + 1 == 3);
        _exit(0);
    }
    close(out[1]);
    while ((got = read(out[0], text + n, sizeof(text) - 1 - n)) > 0)
        n += (size_t)got;
    close(out[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGABRT);
    assert_non_null(strstr(text, "CHECK(1 + 1 == 3) failed"));
    assert_non_null(strstr(text, "test_check.c:"));
    assert_non_null(strstr(text, __func__));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(check_of_a_true_condition_evaluates_it_once),
        cmocka_unit_test(check_of_a_false_condition_prints_its_location_and_aborts),
    };

    return cmocka_run_group_tests_name("base/check", tests, NULL, NULL);
}
