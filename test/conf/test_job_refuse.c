/* test_job_refuse.c - tests the errors of invalid jobs: code, position and remedy. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"
#include "base/fault.h"
#include "conf/job.h"
#include "conf/job_rows.h"

static int refused(const char *text, struct err *err)
{
    struct conf *c = NULL;
    int rc;

    memset(err, 0, sizeof(*err));
    rc = conf_parse("dir/job.json", text, strlen(text), &c, err);
    assert_null(c);
    return rc;
}

/* The text has one line, so the error starts with "dir/job.json:1:COLUMN: /pointer: message". */
static void assert_refused(const struct job_refusal *row)
{
    char *text = job_text(row->patches), place[128];
    const char *found;
    struct err err;
    int rc = refused(text, &err);

    snprintf(place, sizeof(place), row->place[0] == '\0' ? ": \"" : ": %s: ", row->place);
    found = strncmp(err.text, "dir/job.json:1:", 15) == 0 ? strstr(err.text, place) : NULL;
    if (rc != ERR_INPUT || err.code != ERR_INPUT || found == NULL ||
        strstr(found, row->message) == NULL)
        fail_msg("%s\n  gave %s \"%s\"\n  not %s: %s", text, err_name(rc), err.text, row->place,
                 row->message);
    free(text);
}

static void invalid_job_is_refused_at_its_position_with_a_remedy(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(job_refusals); i++)
        assert_refused(&job_refusals[i]);
}

static void contradiction_is_refused_at_one_key_and_names_the_other(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(job_contradictions); i++)
        assert_refused(&job_contradictions[i]);
}

static void error_position_is_the_line_and_column_of_the_value(void **state)
{
    static const char text[] = "{\n"
                               "  \"model\": { \"onnx\": \"a\",\n"
                               "             \"inputs\": { \"image\": 3 } }\n"
                               "}\n";
    struct err err;

    (void)state;
    assert_int_equal(refused(text, &err), ERR_INPUT);
    assert_string_equal(err.text, "dir/job.json:3:35: /model/inputs/image: expected a string, "
                                  "found the number 3");
}

static void text_that_is_not_a_json_object_is_refused(void **state)
{
    static const struct {
        const char *text, *message;
    } rows[] = {
        { "[]", "dir/job.json:1:1: a job must be an object, found an array" },
        { "null", "a job must be an object, found null" },
        { "", "dir/job.json:1:1" },
        { "{", "dir/job.json:1:2" },
        { "{\"train\": {}, \"train\": {}}", "dir/job.json:1:15" },
    };
    struct err err;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        assert_int_equal(refused(rows[i].text, &err), ERR_INPUT);
        if (strstr(err.text, rows[i].message) == NULL)
            fail_msg("row %zu: \"%s\" lacks \"%s\"", i, err.text, rows[i].message);
    }
}

/* Replaces a value by a list or map that is too long. */
static void list_or_map_above_its_limit_is_refused(void **state)
{
    static const struct {
        const char *pointer, *open, *item, *close, *message;
        unsigned n;
    } rows[] = {
        { "/model/frozen", "[", "'w%u'", "]", "expected 0 to 1024 entries, found 1025", 1025 },
        { "/model/inputs", "{", "'f%u':'x%u'", "}", "expected 1 to 64 entries, found 65", 65 },
        { "/data/features", "{", "'f%u':{'dtype':'uint8','shape':[%u]}", "}",
          "expected 1 to 64 entries, found 65", 65 },
    };
    struct err err;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct job_patch patches[JOB_MAX_PATCHES] = { { rows[i].pointer, NULL } };
        struct buf value = { 0 };
        char *text;

        buf_str(&value, rows[i].open);
        for (unsigned n = 1; n <= rows[i].n; n++) {
            char item[64];

            snprintf(item, sizeof(item), rows[i].item, n, n); /* NOLINT: our own formats */
            buf_printf(&value, "%s%s", n == 1 ? "" : ",", item);
        }
        buf_str(&value, rows[i].close);
        patches[0].value = value.data;
        text = job_text(patches);
        assert_int_equal(refused(text, &err), ERR_INPUT);
        assert_non_null(strstr(err.text, rows[i].message));
        assert_non_null(strstr(err.text, rows[i].pointer));
        free(text);
        buf_fini(&value);
    }
}

static void unknown_word_that_is_long_is_shortened_in_the_message(void **state)
{
    static char word[4096];
    struct job_patch patches[JOB_MAX_PATCHES] = { { "/data/cache", word } };
    struct err err;
    char *text;

    (void)state;
    memset(word, 'w', sizeof(word) - 1);
    word[0] = word[sizeof(word) - 2] = '\'';
    text = job_text(patches);
    assert_int_equal(refused(text, &err), ERR_INPUT);
    assert_true(strlen(err.text) < 300);
    assert_non_null(strstr(err.text, "expected one of: \"none\", \"memory\""));
    free(text);
}

/* Injects a fault at the 1st, 2nd, ... allocation, until there are no more. The sanitizer finds
 * leaks. */
static void parse_out_of_memory_is_refused_without_leaks(void **state)
{
    const struct job_patch patches[JOB_MAX_PATCHES] =
        P2("/model/frozen", "['a', 'b']", "/summary", "{'directory': 's'}");
    char *text = job_text(patches), spec[32];
    unsigned n_failed = 0;
    bool is_reached = true;

    (void)state;
    for (unsigned n = 1; is_reached; n++) {
        struct conf *c = NULL;
        struct err err = { 0 };
        int rc;

        assert_true(n < 10000);
        snprintf(spec, sizeof(spec), "mem@%u", n);
        assert_int_equal(fault_arm(spec, NULL), 0);
        rc = conf_parse("job.json", text, strlen(text), &c, &err);
        is_reached = fault_fired();
        assert_int_equal(fault_arm(NULL, NULL), 0);
        assert_int_equal(rc, is_reached ? ERR_NOMEM : 0);
        assert_true((c == NULL) == is_reached);
        n_failed += is_reached;
        conf_free(c);
    }
    assert_true(n_failed >= 3);
    free(text);
}

static void absent_file_is_refused_with_its_path(void **state)
{
    struct conf *c = NULL;
    struct err err = { 0 };

    (void)state;
    assert_int_equal(conf_read("/nonexistent/job.json", &c, &err), ERR_NOENT);
    assert_null(c);
    assert_non_null(strstr(err.text, "job file"));
    assert_non_null(strstr(err.text, "/nonexistent/job.json"));
    assert_int_not_equal(conf_read("/", &c, &err), 0);
    assert_null(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(invalid_job_is_refused_at_its_position_with_a_remedy),
        cmocka_unit_test(contradiction_is_refused_at_one_key_and_names_the_other),
        cmocka_unit_test(error_position_is_the_line_and_column_of_the_value),
        cmocka_unit_test(text_that_is_not_a_json_object_is_refused),
        cmocka_unit_test(list_or_map_above_its_limit_is_refused),
        cmocka_unit_test(unknown_word_that_is_long_is_shortened_in_the_message),
        cmocka_unit_test(parse_out_of_memory_is_refused_without_leaks),
        cmocka_unit_test(absent_file_is_refused_with_its_path),
    };

    return cmocka_run_group_tests_name("conf/job_refuse", tests, NULL, NULL);
}
