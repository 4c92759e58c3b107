/* test_args.c - tests flags that come from the environment. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "daemon/args.h"

struct parsed {
    const char *port, *job, *task;
    bool insecure;
    int rc;
    struct err err;
};

static struct parsed parse(int argc, char **argv)
{
    struct parsed p = { 0 };
    const struct arg table[] = {
        { "port", "N", "TRAINERD_PORT", "", &p.port, NULL },
        { "job", "FILE", "TRAINERD_JOB", "", &p.job, NULL },
        { "task", "TYPE:INDEX", "TRAINERD_TASK", "", &p.task, NULL },
        { "insecure", NULL, "TRAINERD_INSECURE", "", NULL, &p.insecure },
    };

    p.rc = args_parse(table, COUNT_OF(table), &argc, argv, &p.err);
    return p;
}

static struct parsed parse_with_port(const char *value)
{
    char *argv[] = { (char *)"trainerd", NULL };
    struct parsed p;

    setenv("TRAINERD_PORT", value, 1);
    p = parse(1, argv);
    unsetenv("TRAINERD_PORT");
    return p;
}

static void service_variable_of_kubernetes_is_no_value_of_a_flag(void **state)
{
    static const char *const values[] = { "tcp://10.96.0.12:2222", "udp://10.96.0.12:53",
                                          "sctp://10.96.0.12:7", "tcp://[fd00::12]:2222" };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(values); i++) {
        struct parsed p = parse_with_port(values[i]);

        assert_int_equal(p.rc, 0);
        assert_null(p.port);
    }
}

static void other_value_of_the_variable_is_that_of_the_flag(void **state)
{
    static const char *const values[] = { "2222", "http://10.96.0.12", "tcp" };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(values); i++)
        assert_string_equal(parse_with_port(values[i]).port, values[i]);
}

static void link_in_another_variable_is_a_value(void **state)
{
    char *argv[] = { (char *)"trainerd", NULL };
    struct parsed p;

    (void)state;
    setenv("TRAINERD_TASK", "tcp://task", 1);
    p = parse(1, argv);
    unsetenv("TRAINERD_TASK");
    assert_string_equal(p.task, "tcp://task");
}

static void url_is_refused_where_a_flag_or_variable_is_a_path(void **state)
{
    char *argv[] = { (char *)"trainerd", (char *)"--job=s3://a/job.json", NULL };
    char *plain[] = { (char *)"trainerd", (char *)"--job", (char *)"a/job.json", NULL };
    struct parsed p;

    (void)state;
    p = parse(2, argv);
    assert_int_equal(p.rc, ERR_INPUT);
    assert_non_null(strstr(p.err.text, "--job: 's3://a/job.json' is a URL"));
    p = parse(3, plain);
    assert_int_equal(p.rc, 0);
    assert_string_equal(p.job, "a/job.json");
    setenv("TRAINERD_JOB", "s3://a/job.json", 1);
    p = parse(1, argv);
    unsetenv("TRAINERD_JOB");
    assert_int_equal(p.rc, ERR_INPUT);
    assert_non_null(strstr(p.err.text, "TRAINERD_JOB: 's3://a/job.json' is a URL"));
}

static void variable_that_nothing_reads_is_found_with_the_nearest_name(void **state)
{
    static const char *const unread[][2] = {
        { "TRAINERD_TOKN", "TRAINERD_TOKN is not read: did you mean TRAINERD_TOKEN? " },
        { "TRAINERD_PROT", "TRAINERD_PROT is not read: did you mean TRAINERD_PORT? " },
        { "TRAINERD_PORTS", "TRAINERD_PORTS is not read: did you mean TRAINERD_PORT? " },
        { "TRAINERD_COLOUR_SCHEME", "TRAINERD_COLOUR_SCHEME is not read; " },
        { "TRAINERD_KEEPER", "TRAINERD_KEEPER is not read; " },
    };
    static const char *const others[] = { "TRAINERD_TOKEN" };
    static const char *const read[] = { "TRAINERD_TOKEN", "TRAINERD_KEEP_PAUSE", "TRAINERD_SERVICE_HOST",
                                        "TRAINERD_SERVICE_PORT_GRPC", "TRAINERD_PORT_2222_TCP_ADDR",
                                        "TRAINERD_HEADLESS_PORT", "TRAINED_PORT" };
    const char *value = NULL;
    const struct arg table[] = { { "port", "N", "TRAINERD_PORT", "", &value, NULL } };
    char text[ARGS_UNREAD_BYTES];
    size_t at = 0;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(read); i++)
        setenv(read[i], "1", 1);
    assert_false(args_next_unread(table, 1, others, COUNT_OF(others), &at, text));
    for (size_t i = 0; i < COUNT_OF(unread); i++) {
        setenv(unread[i][0], "1", 1);
        at = 0;
        assert_true(args_next_unread(table, 1, others, COUNT_OF(others), &at, text));
        assert_non_null(strstr(text, unread[i][1]));
        assert_false(args_next_unread(table, 1, others, COUNT_OF(others), &at, text));
        unsetenv(unread[i][0]);
    }
    for (size_t i = 0; i < COUNT_OF(read); i++)
        unsetenv(read[i]);
}

static void flag_beside_a_service_variable_has_its_value(void **state)
{
    char *argv[] = { (char *)"trainerd", (char *)"--port=7000", NULL };
    struct parsed p;

    (void)state;
    setenv("TRAINERD_PORT", "tcp://10.96.0.12:2222", 1);
    p = parse(2, argv);
    unsetenv("TRAINERD_PORT");
    assert_int_equal(p.rc, 0);
    assert_string_equal(p.port, "7000");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(service_variable_of_kubernetes_is_no_value_of_a_flag),
        cmocka_unit_test(other_value_of_the_variable_is_that_of_the_flag),
        cmocka_unit_test(link_in_another_variable_is_a_value),
        cmocka_unit_test(url_is_refused_where_a_flag_or_variable_is_a_path),
        cmocka_unit_test(variable_that_nothing_reads_is_found_with_the_nearest_name),
        cmocka_unit_test(flag_beside_a_service_variable_has_its_value),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
