#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/text.h"

static void err_wrap_prepends_the_outer_context(void **state)
{
    struct err err;
    int rc;

    (void)state;
    rc = err_sys(&err, ENOSPC, "create '%s'", "/ckpt/a.tmp");
    assert_int_equal(rc, ERR_FULL);
    rc = err_wrap(&err, rc, "open checkpoint for step %d", 1200);
    rc = err_wrap(&err, rc, "save job '%s'", "gpt");
    assert_int_equal(rc, ERR_FULL);
    assert_int_equal(err.code, ERR_FULL);
    assert_string_equal(err.text, "save job 'gpt': open checkpoint for step 1200: "
                                  "create '/ckpt/a.tmp': No space left on device");
}

static void err_set_without_struct_returns_the_code(void **state)
{
    (void)state;
    assert_int_equal(err_set(NULL, ERR_PEER, "worker %d", 1), ERR_PEER);
    assert_int_equal(err_sys(NULL, ENOENT, "open"), ERR_NOENT);
    assert_int_equal(err_wrap(NULL, ERR_AUTH, "join"), ERR_AUTH);
}

static void err_sys_maps_errno_to_the_documented_code(void **state)
{
    static const struct {
        int errnum, code;
    } cases[] = {
        { ENOSPC, ERR_FULL },  { EDQUOT, ERR_FULL },   { EFBIG, ERR_FULL },
        { ENOENT, ERR_NOENT }, { ENOTDIR, ERR_NOENT }, { EEXIST, ERR_EXISTS },
        { ENOMEM, ERR_NOMEM }, { EIO, ERR_IO },        { EACCES, ERR_IO },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct err err;

        assert_int_equal(err_sys(&err, cases[i].errnum, "x"), cases[i].code);
        assert_int_equal(err.code, cases[i].code);
        assert_memory_equal(err.text, "x: ", 3);
        assert_string_equal(err.text + 3, strerror(cases[i].errnum));
    }
}

static void err_text_with_control_characters_is_one_line(void **state)
{
    struct err err;

    (void)state;
    err_set(&err, ERR_INPUT, "%s", "a\nb\x7f\xc3\xa4\x1b[1m");
    assert_string_equal(err.text, "a b \xc3\xa4 [1m");
    err_wrap(&err, ERR_INPUT, "job '%s'", "a\r\n");
    assert_string_equal(err.text, "job 'a  ': a b \xc3\xa4 [1m");
    err_sys(&err, EIO, "open '%s'", "\x7f");
    assert_memory_equal(err.text, "open ' ': ", 10);
}

static void err_set_may_format_the_text_that_it_replaces(void **state)
{
    struct err err;

    (void)state;
    err_set(&err, ERR_IO, "disk gone");
    err_set(&err, ERR_PEER, "worker 3 said: %s", err.text);
    assert_string_equal(err.text, "worker 3 said: disk gone");
    assert_int_equal(err.code, ERR_PEER);
    err_wrap(&err, ERR_PEER, "<%s>", err.text);
    assert_string_equal(err.text, "<worker 3 said: disk gone>: worker 3 said: disk gone");
}

static void err_text_too_long_is_truncated_between_characters(void **state)
{
    struct err err;
    char text[3 * ERR_TEXT_BYTES];

    (void)state;
    for (size_t shift = 0; shift < 4; shift++) {
        memset(text, 'a', shift);
        for (size_t at = shift; at + 3 < sizeof(text); at += 3)
            memcpy(text + at, "\xe2\x82\xac", 4); /* the euro sign: three bytes */
        err_set(&err, ERR_INPUT, "%s", text);
        assert_true(text_is_utf8(err.text, strlen(err.text)));
        assert_in_range(strlen(err.text), ERR_TEXT_BYTES - 4, ERR_TEXT_BYTES - 1);
        err_wrap(&err, ERR_INPUT, "%.*s", 5, "outer");
        assert_memory_equal(err.text, "outer: ", 7);
        assert_true(text_is_utf8(err.text, strlen(err.text)));
        assert_in_range(strlen(err.text), ERR_TEXT_BYTES - 4, ERR_TEXT_BYTES - 1);
        err_wrap(&err, ERR_INPUT, "%s", text); /* no room for the separator either */
        assert_in_range(strlen(err.text), ERR_TEXT_BYTES - 4, ERR_TEXT_BYTES - 1);
        assert_memory_equal(err.text, text, ERR_TEXT_BYTES - 4);
    }
}

static void err_name_of_every_code_is_defined(void **state)
{
    (void)state;
    for (int code = ERR_AUTH; code <= 0; code++)
        assert_memory_equal(err_name(code), "ERR_", 4);
    assert_string_equal(err_name(ERR_FULL), "ERR_FULL");
    assert_string_equal(err_name(ERR_NONE), "ERR_NONE");
    assert_non_null(err_name(12345));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(err_wrap_prepends_the_outer_context),
        cmocka_unit_test(err_set_without_struct_returns_the_code),
        cmocka_unit_test(err_sys_maps_errno_to_the_documented_code),
        cmocka_unit_test(err_text_with_control_characters_is_one_line),
        cmocka_unit_test(err_set_may_format_the_text_that_it_replaces),
        cmocka_unit_test(err_text_too_long_is_truncated_between_characters),
        cmocka_unit_test(err_name_of_every_code_is_defined),
    };

    return cmocka_run_group_tests_name("base/err", tests, NULL, NULL);
}
