/* thread_start(), and its error if no thread can be created. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>

#include "base/err.h"
#include "base/fault.h"
#include "base/thread.h"

static void *read_mask(void *arg)
{
    pthread_sigmask(SIG_SETMASK, NULL, arg);
    return NULL;
}

static void thread_blocks_all_signals_except_those_of_instructions(void **state)
{
    sigset_t of_thread, before, after;
    pthread_t thread;

    (void)state;
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    assert_int_equal(thread_start(&thread, "reads its mask", read_mask, &of_thread, NULL), 0);
    pthread_join(thread, NULL);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    assert_true(sigismember(&of_thread, SIGTERM) && sigismember(&of_thread, SIGHUP));
    assert_false(sigismember(&of_thread, SIGBUS) || sigismember(&of_thread, SIGSEGV));
    assert_int_equal(sigismember(&before, SIGTERM), sigismember(&after, SIGTERM));
}

static void thread_start_failure_names_the_purpose_of_the_thread(void **state)
{
    pthread_t thread;
    struct err err;

    (void)state;
    assert_int_equal(fault_arm("thread.start", NULL), 0);
    assert_int_equal(thread_start(&thread, "reads its mask", read_mask, NULL, &err), ERR_IO);
    assert_int_equal(fault_arm(NULL, NULL), 0);
    assert_string_equal(err.text,
                        "start the thread that reads its mask: Resource temporarily unavailable");
}

static void room_for_threads_is_missing_the_library_is_named(void **state)
{
    struct err err;

    (void)state;
    assert_int_equal(thread_check_room(THREAD_ROOM_MAX, "a library", &err), 0);
    assert_int_equal(fault_arm("thread.room", NULL), 0);
    assert_int_equal(thread_check_room(THREAD_ROOM_MAX, "a library", &err), ERR_IO);
    assert_int_equal(fault_arm(NULL, NULL), 0);
    assert_string_equal(err.text,
                        "start the threads of a library: Resource temporarily unavailable");
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(thread_blocks_all_signals_except_those_of_instructions),
        cmocka_unit_test(thread_start_failure_names_the_purpose_of_the_thread),
        cmocka_unit_test(room_for_threads_is_missing_the_library_is_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
