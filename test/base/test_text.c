#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fnmatch.h>
#include <string.h>

#include "base/check.h"
#include "base/text.h"

static const char *const keys[] = { "learning_rate", "momentum", "epochs", "steps", "cuda", "CPU" };

static void text_nearest_of_a_typo_finds_the_word(void **state)
{
    static const struct {
        const char *word, *nearest;
    } cases[] = {
        { "learning_rate", "learning_rate" },
        { "learnin_rate", "learning_rate" },   /* a letter is missing */
        { "learninng_rate", "learning_rate" }, /* a letter is doubled */
        { "laerning_rate", "learning_rate" },  /* two letters are swapped */
        { "LEARNING_rate", "learning_rate" },  /* 8 half steps, the maximum */
        { "learningRate", "learning_rate" },
        { "epoch", "epochs" },
        { "step", "steps" },
        { "cpu", "CPU" },
        { "cpus", NULL }, /* three half steps and a step: 2.5 exceeds the maximum of 2 */
        { "batch_size", NULL },
        { "", NULL },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const char *nearest = text_nearest(cases[i].word, keys, COUNT_OF(keys));

        assert_string_equal(nearest != NULL ? nearest : "(none)",
                            cases[i].nearest != NULL ? cases[i].nearest : "(none)");
    }
    assert_null(text_nearest("x", NULL, 0));
}

static void text_nearest_prefers_the_smaller_distance_and_ignores_long_words(void **state)
{
    static const char *const two[] = { "size_a", "size_bb", "size_b" };
    char huge[100000];

    (void)state;
    assert_string_equal(text_nearest("size_bc", two, 3), "size_bb");
    assert_string_equal(text_nearest("size_", two, 3), "size_a"); /* a tie: the first */
    memset(huge, 'a', sizeof(huge) - 1);
    huge[sizeof(huge) - 1] = '\0';
    assert_null(text_nearest(huge, keys, COUNT_OF(keys)));
}

static void text_is_utf8_accepts_well_formed_text_only(void **state)
{
    static const struct {
        const char *bytes;
        bool good;
    } cases[] = {
        { "", true },
        { "plain", true },
        { "\xc2\x80", true },
        { "\xdf\xbf", true },
        { "\xe0\xa0\x80", true },
        { "\xed\x9f\xbf", true },
        { "\xee\x80\x80", true },
        { "\xf0\x90\x80\x80", true },
        { "\xf4\x8f\xbf\xbf", true },
        { "\x80", false },             /* a continuation alone */
        { "\xc0\x80", false },         /* overlong */
        { "\xc1\xbf", false },         /* overlong */
        { "\xe0\x9f\xbf", false },     /* overlong */
        { "\xf0\x8f\xbf\xbf", false }, /* overlong */
        { "\xed\xa0\x80", false },     /* a surrogate */
        { "\xf4\x90\x80\x80", false }, /* above U+10FFFF */
        { "\xf5\x80\x80\x80", false },
        { "\xff", false },
        { "\xe2\x82", false }, /* incomplete */
        { "\xe2\x82z", false },
        { "\xc3z", false },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        assert_int_equal(text_is_utf8(cases[i].bytes, strlen(cases[i].bytes)), cases[i].good);
    assert_true(text_is_utf8("a\0b", 3));
}

static void text_utf8_cut_never_splits_a_character(void **state)
{
    const char *s = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z";
    static const size_t cuts[] = { 0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 11 };

    (void)state;
    for (size_t n = 0; n < COUNT_OF(cuts); n++)
        assert_int_equal(text_utf8_cut(s, n), cuts[n]);
    assert_int_equal(text_utf8_cut("\xff\xff", 2), 1);
    assert_int_equal(text_utf8_cut("\x80\x80\x80\x80\x80", 5), 5); /* not UTF-8 */
}

static void text_u64_accepts_plain_numbers_in_range_only(void **state)
{
    static const char *const bad[] = { "",
                                       "-1",
                                       "+1",
                                       " 1",
                                       "1 ",
                                       "01",
                                       "00",
                                       "1.0",
                                       "0x1",
                                       "1e3",
                                       "a",
                                       "18446744073709551616",
                                       "99999999999999999999" };
    uint64_t v;

    (void)state;
    assert_true(text_u64("0", 0, &v));
    assert_int_equal(v, 0);
    assert_true(text_u64("18446744073709551615", UINT64_MAX, &v));
    assert_true(v == UINT64_MAX);
    assert_true(text_u64("65535", 65535, &v));
    assert_int_equal(v, 65535);
    v = 7;
    assert_false(text_u64("65536", 65535, &v));
    assert_false(text_u64("5", 4, &v));
    assert_false(text_u64("10", 4, &v));
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        assert_false(text_u64(bad[i], UINT64_MAX, &v));
    assert_int_equal(v, 7);
}

static void text_starts_compares_the_prefix(void **state)
{
    (void)state;
    assert_true(text_starts("cuda:0", "cuda"));
    assert_true(text_starts("x", ""));
    assert_false(text_starts("cud", "cuda"));
}

static void text_bytes_and_text_duration_select_the_unit(void **state)
{
    static const struct {
        uint64_t value;
        const char *bytes, *time;
    } cases[] = {
        { 0, "0 B", "0 ns" },
        { 999, "999 B", "999 ns" },
        { 1023, "1023 B", "1 us" },
        { 1024, "1.0 KiB", "1 us" },
        { 1536, "1.5 KiB", "2 us" },
        { 999499, "976.1 KiB", "999 us" },
        { 999500, "976.1 KiB", "1 ms" },
        { 1048575, "1.0 MiB", "1 ms" },
        { 45000000, "42.9 MiB", "45 ms" },
        { 999500000, "953.2 MiB", "1.0 s" },
        { 1610612736, "1.5 GiB", "1.6 s" },
        { 12300000000u, "11.5 GiB", "12.3 s" },
        { 59940000000u, "55.8 GiB", "59.9 s" },
        { 59960000000u, "55.8 GiB", "1 min 0 s" },
        { 12000000000000u, "10.9 TiB", "3 h 20 min" },
        { 180000000000000u, "163.7 TiB", "2 d 2 h" },
        { UINT64_MAX, "16.0 EiB", "213503 d 23 h" },
    };
    char text[32];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        text_bytes(text, sizeof(text), cases[i].value);
        assert_string_equal(text, cases[i].bytes);
        text_duration(text, sizeof(text), cases[i].value);
        assert_string_equal(text, cases[i].time);
    }
    text_bytes(text, 4, 1536);
    assert_string_equal(text, "1.5");
}

static void text_quote_pattern_matches_the_text_alone(void **state)
{
    static const struct {
        const char *text, *pattern;
    } rows[] = {
        { "/data/run-1", "/data/run-1" },
        { "/a[b]?c*d\\e", "/a\\[b\\]\\?c\\*d\\\\e" },
        { "/{feature}", "/\\{feature\\}" },
        { "", "" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char out[64];

        text_quote_pattern(rows[i].text, out);
        assert_string_equal(out, rows[i].pattern);
        assert_int_equal(fnmatch(out, rows[i].text, 0), 0);
        text_unquote_pattern(out);
        assert_string_equal(out, rows[i].text);
    }
}

static void text_rate_has_three_significant_digits(void **state)
{
    static const struct {
        double rate;
        const char *text;
    } cases[] = { { 0, "0" }, { 4704.4, "4704" }, { 100, "100" }, { 99.96, "100" }, { 99.94, "99.9" }, { 16, "16.0" },
                  { 9.996, "10.0" }, { 9.994, "9.99" }, { 1, "1.00" }, { 0.9996, "1.00" }, { 0.25, "0.250" },
                  { 0.0625, "0.0625" }, { 0.001234, "0.00123" }, { 1e7, "10000000" } };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char text[32];

        text_rate(text, sizeof(text), cases[i].rate);
        assert_string_equal(text, cases[i].text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_nearest_of_a_typo_finds_the_word),
        cmocka_unit_test(text_nearest_prefers_the_smaller_distance_and_ignores_long_words),
        cmocka_unit_test(text_is_utf8_accepts_well_formed_text_only),
        cmocka_unit_test(text_utf8_cut_never_splits_a_character),
        cmocka_unit_test(text_u64_accepts_plain_numbers_in_range_only),
        cmocka_unit_test(text_starts_compares_the_prefix),
        cmocka_unit_test(text_quote_pattern_matches_the_text_alone),
        cmocka_unit_test(text_bytes_and_text_duration_select_the_unit),
        cmocka_unit_test(text_rate_has_three_significant_digits),
    };

    return cmocka_run_group_tests_name("base/text", tests, NULL, NULL);
}
