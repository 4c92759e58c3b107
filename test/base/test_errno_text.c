#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <pthread.h>

#include "base/errno_text.h"

static void *overwrite(void *arg)
{
    (void)arg;
    (void)errno_text(54321);
    return NULL;
}

static void errno_text_of_a_known_number_is_its_description(void **state)
{
    (void)state;
    assert_string_equal(errno_text(ENOENT), "No such file or directory");
}

/* The C library formats an unknown number into a buffer. */
static void errno_text_survives_a_call_in_another_thread(void **state)
{
    const char *text = errno_text(12345);
    pthread_t thread;

    (void)state;
    assert_string_equal(text, "Unknown error 12345");
    assert_int_equal(pthread_create(&thread, NULL, overwrite, NULL), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_string_equal(text, "Unknown error 12345");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errno_text_of_a_known_number_is_its_description),
        cmocka_unit_test(errno_text_survives_a_call_in_another_thread),
    };

    return cmocka_run_group_tests_name("base/errno_text", tests, NULL, NULL);
}
