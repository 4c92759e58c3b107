/* test_location.c - paths of locations, and the variables that state them. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/check.h"
#include "base/err.h"
#include "base/location.h"

#define LONG_NAME "a23456789.123456789.123456789.123456789.123456789.123456789.123"

#define A16 "aaaaaaaaaaaaaaaa"
#define A64 A16 A16 A16 A16

static void path_of_1_to_4_names_is_accepted_and_any_other_refused(void **state)
{
    static const char *const good[] = { "", "h", "rack/host", "z-1/r_2/h.3", "a/b/c/D0",
                                        LONG_NAME "/" LONG_NAME "/" LONG_NAME "/" LONG_NAME };
    static const struct {
        const char *path, *words;
    } bad[] = {
        { "/", "empty name" },      { "/a", "empty name" },       { "a/", "empty name" },
        { "a//b", "empty name" },   { "a/b/c/d/e", "more than 4" }, { "a b", "0x20" },
        { "r\xc3\xa4" "ck", "0xc3" }, { "a:1", "0x3a" },          { LONG_NAME "4", "more than 63" },
        { "a\n", "0x0a" },
    };

    (void)state;
    assert_int_equal(strlen(LONG_NAME), LOCATION_PART_BYTES);
    for (size_t i = 0; i < COUNT_OF(good); i++) {
        struct err err = { 0 };

        if (location_check("place", good[i], &err) < 0)
            fail_msg("%s: %s", good[i], err.text);
        assert_true(strlen(good[i]) < LOCATION_BYTES);
    }
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct err err = { 0 };

        assert_int_equal(location_check("place", bad[i].path, &err), ERR_INPUT);
        if (strstr(err.text, bad[i].words) == NULL || strncmp(err.text, "place: ", 7) != 0)
            fail_msg("'%s': %s", bad[i].path, err.text);
    }
}

static void order_is_that_of_the_names_and_not_of_the_characters(void **state)
{
    static const char *const sorted[] = { "",    "a",     "a/b",   "a/b/c", "a/b-1", "a/c",
                                          "a-1", "a-1/a", "a.1/a", "aa/a",  "b" };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(sorted); i++)
        for (size_t k = 0; k < COUNT_OF(sorted); k++) {
            int c = location_compare(sorted[i], sorted[k]);

            if ((c > 0) - (c < 0) != (i > k) - (i < k))
                fail_msg("'%s' and '%s': %d", sorted[i], sorted[k], c);
        }
}

static void rack_and_equal_names_are_counted_by_names(void **state)
{
    static const struct {
        const char *a, *b;
        unsigned common;
        size_t rack; /* of a */
    } rows[] = {
        { "", "", 0, 0 },           { "h", "h", 1, 0 },       { "z/r/h", "z/r/i", 2, 3 },
        { "z/r/h", "z/ra/h", 1, 3 }, { "z/r/h", "z/r/h", 3, 3 }, { "z/r", "z/r/h", 2, 1 },
        { "zz/r", "z/r", 0, 2 },    { "a/b/c/d", "", 0, 5 },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        assert_int_equal(location_common(rows[i].a, rows[i].b), rows[i].common);
        assert_int_equal(location_common(rows[i].b, rows[i].a), rows[i].common);
        assert_int_equal(location_rack(rows[i].a), rows[i].rack);
    }
}

static void text_of_any_kind_becomes_a_name(void **state)
{
    static const char *const rows[][2] = {
        { "10.0.0.1", "10.0.0.1" },
        { "fe80::1%eth0", "fe80__1_eth0" },
        { "a/b c", "a_b_c" },
        { A64, "aaaaaaaaaaaaaaa" A16 A16 A16 },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char name[LOCATION_PART_BYTES + 1];

        location_name(rows[i][0], name);
        assert_string_equal(name, rows[i][1]);
        assert_int_equal(location_check("place", name, NULL), 0);
    }
}

static void own_variable_precedes_that_of_slurm(void **state)
{
    static const struct {
        struct location_env env;
        const char *path, *from;
    } rows[] = {
        { { NULL, NULL, NULL }, "", "" },
        { { "", "", "" }, "", "" },
        { { "r1/h1", "s0.n1", "switch.node" }, "r1/h1", "TRAINERD_LOCATION" },
        { { "", "sh04.sh04-isw-16.sh04-16n05", "switch.switch.node" },
          "sh04/sh04-isw-16/sh04-16n05",
          "SLURM_TOPOLOGY_ADDR" },
        { { NULL, "n1", "node" }, "n1", "SLURM_TOPOLOGY_ADDR" },
        { { NULL, "s0.n1", NULL }, "s0/n1", "SLURM_TOPOLOGY_ADDR" },
        { { NULL, "a.b.c.d.e.n1", "switch.switch.switch.switch.switch.node" },
          "c/d/e/n1",
          "SLURM_TOPOLOGY_ADDR" },
        { { NULL, "root.leaf[0-1,4].n1", "switch.switch.node" }, "root/leaf_0-1_4_/n1", "SLURM_TOPOLOGY_ADDR" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char path[LOCATION_BYTES] = "x";
        const char *from = NULL;
        struct err err = { 0 };

        if (location_find(&rows[i].env, path, &from, &err) < 0)
            fail_msg("row %zu: %s", i, err.text);
        assert_string_equal(path, rows[i].path);
        assert_string_equal(from, rows[i].from);
    }
}

static void wrong_variable_is_refused_by_its_name(void **state)
{
    static const struct {
        struct location_env env;
        const char *words;
    } rows[] = {
        { { "r1//h1", NULL, NULL }, "TRAINERD_LOCATION: 'r1//h1'" },
        { { NULL, "s0..n1", NULL }, "SLURM_TOPOLOGY_ADDR: 's0//n1'" },
        { { NULL, "s0.n1", "switch.switch.node" }, "SLURM_TOPOLOGY_ADDR_PATTERN 'switch.switch.node'" },
        { { NULL, "s0.s1", "switch.switch" }, "set TRAINERD_LOCATION" },
        { { NULL, "s0." A64, NULL }, "a name has more than 63 characters" },
        { { NULL, A64 A64 A64 A64, NULL }, "the last 4 parts have more than 255 characters" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char path[LOCATION_BYTES] = "x";
        const char *from = "y";
        struct err err = { 0 };

        assert_int_equal(location_find(&rows[i].env, path, &from, &err), ERR_INPUT);
        if (strstr(err.text, rows[i].words) == NULL)
            fail_msg("row %zu: %s", i, err.text);
        assert_string_equal(path, "x");
        assert_string_equal(from, "y");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(path_of_1_to_4_names_is_accepted_and_any_other_refused),
        cmocka_unit_test(order_is_that_of_the_names_and_not_of_the_characters),
        cmocka_unit_test(rack_and_equal_names_are_counted_by_names),
        cmocka_unit_test(text_of_any_kind_becomes_a_name),
        cmocka_unit_test(own_variable_precedes_that_of_slurm),
        cmocka_unit_test(wrong_variable_is_refused_by_its_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
