/* test_ident.c - the message about two jobs that differ. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "member/member_priv.h"

static void job_difference_names_the_keys_and_both_values(void **state)
{
    static const struct { const char *theirs, *ours, *text; } rows[] = {
        { "{\"a\":{\"b\":1,\"c\":\"x\"}}", "{\"a\":{\"b\":2,\"c\":\"x\"}}", "/a/b: it has 1, the coordinator has 2" },
        { "{\"a\":1}", "{}", "/a: it has 1, the coordinator has nothing" },
        { "{}", "{\"a\":[1]}", "/a: it has nothing, the coordinator has [1]" },
        { "{\"a\":{\"b\":1}}", "{\"a\":3}", "/a: it has {\"b\":1}, the coordinator has 3" },
        { "{\"b\":1,\"a\":0}", "{\"a\":1,\"c\":0,\"b\":2}",
          "/b: it has 1, the coordinator has 2; /a: it has 0, the coordinator has 1; /c: it has nothing, the coordinator "
          "has 0" },
        { "{\"a\":1,\"b\":1,\"c\":1,\"d\":1,\"e\":1,\"f\":1,\"g\":1}", "{}",
          "/a: it has 1, the coordinator has nothing; /b: it has 1, the coordinator has nothing; /c: it has 1, the "
          "coordinator has nothing; /d: it has 1, the coordinator has nothing; /e: it has 1, the coordinator has nothing; "
          "and 2 more keys" },
    };
    char out[600];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        assert_true(member_job_difference(rows[i].theirs, rows[i].ours, out, sizeof(out)));
        assert_string_equal(out, rows[i].text);
    }
}

static void job_difference_of_equal_or_unknown_jobs_is_none(void **state)
{
    char out[600];

    (void)state;
    assert_false(
        member_job_difference("{\"a\":1,\"b\":[2]}", "{\"b\":[2],\"a\":1}", out, sizeof(out)));
    assert_false(member_job_difference("", "{}", out, sizeof(out)));
    assert_false(member_job_difference(NULL, "{}", out, sizeof(out)));
    assert_false(member_job_difference("{", "{}", out, sizeof(out)));
}

static void job_difference_longer_than_its_buffer_is_cut(void **state)
{
    char text[400], out[64];

    (void)state;
    memset(text, 'x', sizeof(text));
    memcpy(text, "{\"", 2);
    memcpy(text + sizeof(text) - 5, "\":1}", 5);
    assert_true(member_job_difference(text, "{}", out, sizeof(out)));
    assert_int_equal(strlen(out), sizeof(out) - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(job_difference_names_the_keys_and_both_values),
        cmocka_unit_test(job_difference_of_equal_or_unknown_jobs_is_none),
        cmocka_unit_test(job_difference_longer_than_its_buffer_is_cut),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
