#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/fault.h"

static void buf_additions_of_several_kinds_are_concatenated_and_terminated(void **state)
{
    struct buf b = { 0 };

    (void)state;
    buf_str(&b, "step ");
    buf_printf(&b, "%d of %s", 7, "many");
    buf_add(&b, "\0x", 2);
    assert_int_equal(b.len, 16);
    assert_memory_equal(b.data, "step 7 of many\0x", 17);
    buf_reset(&b);
    assert_int_equal(b.len, 0);
    assert_string_equal(b.data, "");
    buf_fini(&b);
    assert_null(b.data);
}

static void buf_printf_of_a_long_text_is_not_truncated(void **state)
{
    struct buf b = { 0 };
    char *text;

    (void)state;
    for (int i = 0; i < 1000; i++)
        buf_printf(&b, "%08d", i);
    buf_printf(&b, "%5000d", 1);
    assert_int_equal(b.len, 13000);
    assert_memory_equal(b.data + 7992, "00000999", 8);
    assert_int_equal(b.data[12999], '1');
    text = buf_detach(&b);
    assert_int_equal(strlen(text), 13000);
    assert_null(b.data);
    free(text);
}

static void buf_take_of_an_empty_buffer_returns_the_empty_string(void **state)
{
    struct buf b = { 0 };
    char *text = buf_detach(&b);

    (void)state;
    assert_string_equal(text, "");
    free(text);
}

static void buf_after_a_failed_allocation_stays_failed_until_taken(void **state)
{
    struct buf b = { 0 };

    (void)state;
    for (int n = 1; n <= 3; n++) {
        char spec[32];

        snprintf(spec, sizeof(spec), "mem@%d", n);
        fault_arm(spec, NULL);
        for (int i = 0; i < 100; i++)
            buf_str(&b, "abcdef");
        buf_printf(&b, "%d", 5);
        assert_true(b.failed);
        if (b.data != NULL)
            assert_int_equal(strlen(b.data), b.len);
        assert_null(buf_detach(&b));
    }
    fault_arm(NULL, NULL);
    buf_str(&b, "ok"); /* usable again */
    assert_string_equal(b.data, "ok");
    buf_fini(&b);
}

static void buf_add_beyond_the_size_limit_fails(void **state)
{
    struct buf b = { 0 };

    (void)state;
    buf_str(&b, "a");
    buf_add(&b, "b", SIZE_MAX);
    assert_true(b.failed);
    assert_string_equal(b.data, "a");
    buf_fini(&b);
}

static void assert_json(const char *s, const char *expected)
{
    struct buf b = { 0 };

    buf_json(&b, s);
    assert_string_equal(b.data, expected);
    buf_fini(&b);
}

static void buf_json_of_any_bytes_is_escaped_valid_utf8(void **state)
{
    (void)state;
    assert_json("", "\"\"");
    assert_json("plain / text", "\"plain / text\"");
    assert_json("a\"b\\c\n\t\r\b\f\x01\x1f\x7f",
                "\"a\\\"b\\\\c\\n\\t\\r\\b\\f\\u0001\\u001f\x7f\"");
    assert_json("\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80",
                "\"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80\"");
    assert_json("\xff"
                "a\xc3",
                "\"\xef\xbf\xbd"
                "a\xef\xbf\xbd\"");
    assert_json("\xed\xa0\x80", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""); /* a surrogate */
}

static void assert_f64(double v, const char *expected)
{
    struct buf b = { 0 };

    buf_f64(&b, v);
    assert_string_equal(b.data, expected);
    buf_fini(&b);
}

static void assert_f32(float v, const char *expected)
{
    struct buf b = { 0 };

    buf_f32(&b, v);
    assert_string_equal(b.data, expected);
    buf_fini(&b);
}

static void floats_are_printed_with_the_fewest_digits(void **state)
{
    (void)state;
    assert_f64(0.1, "0.1");
    assert_f64(0.1 + 0.2, "0.30000000000000004");
    assert_f64(1.0 / 3, "0.3333333333333333");
    assert_f64(100, "100");
    assert_f64(0, "0");
    assert_f64(-0.0, "-0.0");
    assert_f64(1e300, "1e+300");
    assert_f64(5e-324, "5e-324");
    assert_f64(DBL_MAX, "1.7976931348623157e+308");
    assert_f64(9007199254740992.0, "9007199254740992");
    assert_f64(INFINITY, "null");
    assert_f64(NAN, "null");
    assert_f32(0.1f, "0.1");
    assert_f32(16777216.0f, "16777216");
    assert_f32(0.3f, "0.3");
    assert_f32(FLT_MAX, "3.4028235e+38");
    assert_f32(1e-45f, "1e-45");
    assert_f32(-INFINITY, "null");
}

static void random_floats_printed_and_parsed_are_unchanged(void **state)
{
    uint64_t x = 88172645463325252u;
    struct buf b = { 0 };

    (void)state;
    for (int i = 0; i < 20000; i++) {
        double d;
        float f;
        uint32_t low;

        x ^= x << 13, x ^= x >> 7, x ^= x << 17; /* xorshift */
        low = (uint32_t)x;
        memcpy(&d, &x, sizeof(d));
        memcpy(&f, &low, sizeof(f));
        buf_reset(&b);
        buf_f64(&b, d);
        if (isfinite(d))
            assert_true(strtod(b.data, NULL) == d);
        buf_reset(&b);
        buf_f32(&b, f);
        if (isfinite(f))
            assert_true(strtof(b.data, NULL) == f);
    }
    buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buf_additions_of_several_kinds_are_concatenated_and_terminated),
        cmocka_unit_test(buf_printf_of_a_long_text_is_not_truncated),
        cmocka_unit_test(buf_take_of_an_empty_buffer_returns_the_empty_string),
        cmocka_unit_test(buf_after_a_failed_allocation_stays_failed_until_taken),
        cmocka_unit_test(buf_add_beyond_the_size_limit_fails),
        cmocka_unit_test(buf_json_of_any_bytes_is_escaped_valid_utf8),
        cmocka_unit_test(floats_are_printed_with_the_fewest_digits),
        cmocka_unit_test(random_floats_printed_and_parsed_are_unchanged),
    };

    return cmocka_run_group_tests_name("base/buf", tests, NULL, NULL);
}
