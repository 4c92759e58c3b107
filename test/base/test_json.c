#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/json.h"

static struct json *parse(const char *text)
{
    struct json *doc = NULL;
    struct err err = { 0 };

    if (json_parse("job.json", text, strlen(text), 0, &doc, &err) < 0)
        fail_msg("refused: %s", err.text);
    return doc;
}

/* Asserts that the text is refused with ERR_INPUT and exactly this message. */
static void assert_refused_bytes(const char *text, size_t n, const char *expected)
{
    struct json *doc = NULL;
    struct err err = { 0 };
    char *exact = malloc(n + !n); /* exact size, so that a sanitizer detects a read past the end */

    assert_non_null(exact);
    memcpy(exact, text, n);
    assert_int_equal(json_parse("j", exact, n, 0, &doc, &err), ERR_INPUT);
    assert_int_equal(err.code, ERR_INPUT);
    assert_string_equal(err.text, expected);
    assert_null(doc);
    free(exact);
}

static void assert_refused(const char *text, const char *expected)
{
    assert_refused_bytes(text, strlen(text), expected);
}

static const cJSON *member(const cJSON *object, const char *key)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, key);

    assert_non_null(value);
    return value;
}

static void assert_at(const struct json *doc, const cJSON *value, uint32_t line, uint32_t column,
                      const char *pointer)
{
    uint32_t l, c;

    json_position(doc, value, &l, &c);
    assert_int_equal(l, line);
    assert_int_equal(c, column);
    assert_string_equal(json_pointer(doc, value), pointer);
}

static void json_values_have_position_and_pointer(void **state)
{
    struct json *doc = parse("\xef\xbb\xbf{ \"cluster\": {\r\n"
                             "    \"worker\": [ \"a:1\", \"b:2\" ],\n"
                             "\t\"a/b~c\": {}, \"\": null, \"\xc3\xa9\": 1 },\n"
                             "  \"n\": [[1],[ [ 2 ] ]] }\n");
    const cJSON *root = json_root(doc), *cluster = member(root, "cluster"), *n = member(root, "n");

    (void)state;
    assert_at(doc, root, 1, 1, "");
    assert_at(doc, cluster, 1, 14, "/cluster");
    assert_at(doc, member(cluster, "worker"), 2, 15, "/cluster/worker");
    assert_at(doc, cJSON_GetArrayItem(member(cluster, "worker"), 1), 2, 24, "/cluster/worker/1");
    assert_at(doc, member(cluster, "a/b~c"), 3, 11, "/cluster/a~1b~0c");
    assert_at(doc, member(cluster, ""), 3, 19, "/cluster/");
    assert_at(doc, member(cluster, "\xc3\xa9"), 3, 31, "/cluster/\xc3\xa9");
    assert_at(doc, cJSON_GetArrayItem(cJSON_GetArrayItem(n, 1), 0), 4, 15, "/n/1/0");
    assert_ptr_equal(json_pointer(doc, n), json_pointer(doc, n));
    json_free(doc);
    json_free(NULL);
}

static void json_tree_equals_the_one_of_cjson(void **state)
{
    static const char *const texts[] = {
        "null",
        "true",
        " false ",
        "0",
        "-0",
        "12",
        "-1.5e3",
        "1E+2",
        "\"\"",
        "[]",
        "{}",
        "[1,2,[],{\"a\":[{}]},\"x\"]",
        "{\"a\":1,\"b\":{\"c\":[true,false,null]},\"d\":\"\"}",
        "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\u20AC\\ud83d\\ude00\\u001f\"",
        "[2147483648,-2147483649,1e308,5e-324,9007199254740993]",
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        struct json *doc = parse(texts[i]);
        cJSON *other = cJSON_Parse(texts[i]);
        char *ours = cJSON_Print(json_root(doc)), *theirs = cJSON_Print(other);

        assert_non_null(other);
        assert_true(cJSON_Compare(json_root(doc), other, true));
        assert_int_equal(json_root(doc)->type, other->type);
        assert_int_equal(json_root(doc)->valueint, other->valueint);
        assert_string_equal(ours, theirs);
        free(ours);
        free(theirs);
        cJSON_Delete(other);
        json_free(doc);
    }
}

static void json_strings_are_decoded(void **state)
{
    struct json *doc =
        parse("[\"a\\u0041\\u00e9\\u20ac\\uD83D\\uDE00\\/\\\"\", \"\xf0\x9f\x98\x80\"]");
    const cJSON *root = json_root(doc);

    (void)state;
    assert_string_equal(cJSON_GetArrayItem(root, 0)->valuestring,
                        "aA\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80/\"");
    assert_string_equal(cJSON_GetArrayItem(root, 1)->valuestring, "\xf0\x9f\x98\x80");
    json_free(doc);
}

static void json_numbers_keep_their_text_in_any_locale(void **state)
{
    static const char *const spellings[] = { "9007199254740993", "1.0", "1", "-0.50e+01",
                                             ("0.1000000000000000055511151231257827021181583404541"
                                              "015625000000000000000000000001") };
    char text[400];
    struct json *doc;

    (void)state;
    snprintf(text, sizeof(text), "[%s,%s,%s,%s,%s]", spellings[0], spellings[1], spellings[2],
             spellings[3], spellings[4]);
    (void)setlocale(LC_ALL, "de_DE.UTF-8"); /* if installed: the decimal separator is a comma */
    doc = parse(text);
    setlocale(LC_ALL, "C");
    for (int i = 0; i < 5; i++) {
        const cJSON *number = cJSON_GetArrayItem(json_root(doc), i);

        assert_string_equal(json_number_text(doc, number), spellings[i]);
        assert_true(number->valuedouble == strtod(spellings[i], NULL));
    }
    assert_null(json_number_text(doc, json_root(doc)));
    json_free(doc);
}

static void json_invalid_text_is_refused_with_position_and_remedy(void **state)
{
    static const struct {
        const char *text, *error;
    } cases[] = {
        { "", "j:1:1: found the end of the text, expected a value" },
        { " \n ", "j:2:2: found the end of the text, expected a value" },
        { "{} {}", "j:1:4: found '{', expected nothing more after the value" },
        { "[1,2,]", "j:1:6: found ']' after a comma; remove the comma" },
        { "{\"a\":1,\n}", "j:2:1: found '}' after a comma; remove the comma" },
        { "[,1]", "j:1:2: found ',', expected a value; remove the extra comma" },
        { "[1 2]", "j:1:4: found '2', expected ',' or ']'" },
        { "{\"a\" 1}", "j:1:6: found '1', expected ':' after a key" },
        { "{\"a\":1 \"b\":2}", "j:1:8: found '\"', expected ',' or '}'; is a comma or a colon "
                               "missing before it?" },
        { "{a:1}", "j:1:2: found 'a', expected a key in double quotes" },
        { "{'a':1}", "j:1:2: found ''', expected a key in double quotes; write strings in double "
                     "quotes" },
        { "{1:1}", "j:1:2: found '1', expected a key in double quotes" },
        { "['x']", "j:1:2: found ''', expected a value; write strings in double quotes" },
        { "// x\n1", "j:1:1: found '/', expected a value; JSON has no comments: remove it" },
        { "[1, /* x */ 2]", "j:1:5: found '/', expected a value; JSON has no comments: remove it" },
        { "1 # x", "j:1:3: found '#', expected nothing more after the value; JSON has no comments: "
                   "remove it" },
        { "NaN", "j:1:1: found 'N', expected a value; JSON has no NaN" },
        { "[Infinity]", "j:1:2: found 'I', expected a value; JSON has no infinity" },
        { "-Infinity", "j:1:1: found '-', expected a number with a digit after the '-'; JSON has "
                       "no infinity" },
        { "True", "j:1:1: found 'T', expected a value; write true" },
        { "None", "j:1:1: found 'N', expected a value; write null" },
        { "tru", "j:1:1: found 't', expected a value" },
        { "model:\n  onnx: a", "j:1:1: found 'm', expected a value; is this YAML, or the path of a file? Expected JSON, which begins with '{'" },
        { "/etc/a.json", "j:1:1: found '/', expected a value; is this YAML, or the path of a file? Expected JSON, which begins with '{'" },
        { "'{}'", "j:1:1: found ''', expected a value; remove the quotes around the text" },
        { "\"{\"a\": 1}\"", "j:1:4: found 'a', expected nothing more after the value, which is the string \"{\"; remove the quotes around the text" },
        { "\"[ \"a\"]\"", "j:1:5: found 'a', expected nothing more after the value, which is the string \"[\"; remove the quotes around the text" },
        { "\"{a\" \"b\"", "j:1:6: found '\"', expected nothing more after the value; is a comma or a colon missing before it?" },
        { "[\"a\" \"{b\"]", "j:1:6: found '\"', expected ',' or ']'; is a comma or a colon missing before it?" },
        { "truest", "j:1:5: found 's', expected nothing more after the value" },
        { "+1", "j:1:1: found '+', expected a value; a positive number has no sign" },
        { ".5", "j:1:1: found '.', expected a value; a number starts with a digit: write 0.5, not "
                ".5" },
        { "01", "j:1:1: a number must not start with a zero followed by digits; remove the zero" },
        { "-", "j:1:1: found '-', expected a number with a digit after the '-'" },
        { "1.", "j:1:3: found the end of the text, expected a digit after the point of a number" },
        { "[1.e3]", "j:1:4: found 'e', expected a digit after the point of a number" },
        { "1e", "j:1:3: found the end of the text, expected a digit in the exponent of a number" },
        { "1e+", "j:1:4: found the end of the text, expected a digit in the exponent of a number" },
        { "0x10", "j:1:2: found 'x', expected nothing more after the value" },
        { "1e999", "j:1:1: the number 1e999 is too large for a 64-bit float (largest: 1.8e308)" },
        { "-1e999", "j:1:1: the number -1e999 is too large for a 64-bit float (largest: 1.8e308)" },
        { "1e-999", "j:1:1: the number 1e-999 is too close to zero for a 64-bit float (smallest: "
                    "4.9e-324)" },
        { "\"abc", "j:1:1: unterminated string: the closing quote is missing" },
        { "\"abc\\",
          "j:1:5: invalid escape: after \\ expected one of \" \\ / b f n r t u; write \\\\ "
          "for a backslash" },
        { "\"\\x\"",
          "j:1:2: invalid escape: after \\ expected one of \" \\ / b f n r t u; write \\\\ "
          "for a backslash" },
        { "\"\\u12g4\"", "j:1:2: invalid escape: \\u takes four hexadecimal digits" },
        { "\"\\u12", "j:1:2: invalid escape: \\u takes four hexadecimal digits" },
        { "\"\\u0000\"", "j:1:2: a string must not contain the character NUL (\\u0000)" },
        { "\"\\ud800\"", "j:1:2: invalid escape: unpaired surrogate; write both halves, "
                         "\\uD8xx\\uDCxx" },
        { "\"\\udc00\\ud800\"", "j:1:2: invalid escape: unpaired surrogate; write both halves, "
                                "\\uD8xx\\uDCxx" },
        { "\"\\ud800\\u0041\"", "j:1:2: invalid escape: unpaired surrogate; write both halves, "
                                "\\uD8xx\\uDCxx" },
        { "\"a\nb\"", "j:1:3: the control byte 0x0a in a string; write it as an escape (\\n, \\t, "
                      "\\u000a), or is a closing quote missing?" },
        { "\"\xff\"", "j:1:2: the byte 0xff in a string is not UTF-8; save the text as UTF-8" },
        { "\"\xed\xa0\x80\"", "j:1:2: the byte 0xed in a string is not UTF-8; save the text as "
                              "UTF-8" },
        { "\xff\xfe[", "j:1:1: found the byte 0xff (not UTF-8), expected a value; save the file as "
                       "UTF-8, not as UTF-16" },
        { "\v1", "j:1:1: found the control byte 0x0b, expected a value" },
        { "\xe2\x82\xac", "j:1:1: found '\xe2\x82\xac', expected a value" },
        { "[", "j:1:2: found the end of the text, expected a value" },
        { "{\"a\":[1,{\"b\":2]}", "j:1:15: found ']', expected ',' or '}'" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        assert_refused(cases[i].text, cases[i].error);
    assert_refused_bytes("1\0", 2,
                         "j:1:2: found the control byte 0x00, expected nothing more "
                         "after the value");
    assert_refused_bytes("\"\0\"", 3,
                         "j:1:2: the control byte 0x00 in a string; write it as an "
                         "escape (\\n, \\t, \\u0000), or is a closing quote missing?");
}

static void json_zero_in_any_notation_is_accepted(void **state)
{
    struct json *doc = parse("[0.000, -0e999, 0E-999]");

    (void)state;
    for (int i = 0; i < 3; i++)
        assert_true(cJSON_GetArrayItem(json_root(doc), i)->valuedouble == 0);
    json_free(doc);
}

static void json_duplicate_key_is_refused_in_any_spelling(void **state)
{
    (void)state;
    assert_refused("{\"a\":1,\n \"b\":{\"a\":3}, \"\\u0061\":2}",
                   "j:2:15: duplicate key \"a\"; the first, with the number 1, is at 1:6; remove "
                   "one of them");
}

static void json_duplicate_with_last_wins_keeps_the_last(void **state)
{
    const char *text = "{\"a\":{\"x\":1}, \"b\":2, \"a\":[7], \"c\":3, \"a\":\"z\"}";
    struct json *doc = NULL;
    const cJSON *a;

    (void)state;
    assert_int_equal(json_parse("j", text, strlen(text), JSON_LAST_DUPLICATE_WINS, &doc, NULL), 0);
    assert_int_equal(cJSON_GetArraySize(json_root(doc)), 3);
    a = json_root(doc)->child; /* at the position of the first occurrence */
    assert_string_equal(a->string, "a");
    assert_string_equal(a->valuestring, "z");
    assert_null(a->child);
    assert_string_equal(a->next->string, "b");
    assert_string_equal(a->next->next->string, "c");
    assert_null(a->next->next->next);
    assert_at(doc, a, 1, 42, "/a");
    json_free(doc);
}

/* Returns n opening brackets followed by n closing brackets. The caller frees them. */
static char *nested(size_t n)
{
    char *text = malloc(2 * n + 1);

    assert_non_null(text);
    memset(text, '[', n);
    memset(text + n, ']', n);
    text[2 * n] = '\0';
    return text;
}

static void json_nesting_beyond_the_limit_is_refused(void **state)
{
    char *fits = nested(JSON_MAX_DEPTH), *deep = nested(JSON_MAX_DEPTH + 1),
         *very_deep = nested(5000000);

    (void)state;
    json_free(parse(fits));
    assert_refused(deep, "j:1:65: objects and arrays are nested more than 64 levels deep");
    assert_refused(very_deep, "j:1:65: objects and arrays are nested more than 64 levels deep");
    free(fits);
    free(deep);
    free(very_deep);
}

static void json_size_and_value_count_beyond_the_limit_are_refused(void **state)
{
    size_t n = JSON_MAX_BYTES + 1;
    char *text = malloc(n);

    (void)state;
    assert_non_null(text);
    memset(text, ' ', n);
    assert_refused_bytes(text, n, "j: the text has 16777217 bytes; at most 16777216 are allowed");
    text[0] = '[';
    for (size_t i = 1; i < 2 * (JSON_MAX_VALUES + 1); i += 2)
        memcpy(text + i, "1,", 2);
    assert_refused_bytes(text, n - 1, "j:1:2097152: more than 1048576 values in one text");
    free(text);
}

static void json_error_names_position_and_pointer(void **state)
{
    struct json *doc = parse("{\n  \"train\": { \"seed\": \"x\" }\n}");
    const cJSON *seed = member(member(json_root(doc), "train"), "seed");
    struct err err;

    (void)state;
    assert_int_equal(json_error(doc, seed, &err, "expected %s", "a number"), ERR_INPUT);
    assert_string_equal(err.text, "job.json:2:22: /train/seed: expected a number");
    assert_int_equal(err.code, ERR_INPUT);
    json_error(doc, json_root(doc), &err, "no model");
    assert_string_equal(err.text, "job.json:1:1: no model");
    json_error(doc, NULL, &err, "no model");
    assert_string_equal(err.text, "job.json: no model");
    assert_int_equal(json_error(doc, seed, NULL, "x"), ERR_INPUT);
    json_free(doc);
}

static void json_error_with_a_long_pointer_keeps_the_message(void **state)
{
    char *text = malloc(5100);
    struct err err;
    struct json *doc;

    (void)state;
    assert_non_null(text);
    memset(text, 'k', 5100);
    memcpy(text, "{\"", 2);
    memcpy(text + 5000, "\":1}", 5);
    doc = parse(text);
    json_error(doc, json_root(doc)->child, &err, "expected an array");
    assert_true(strlen(err.text) < 300);
    assert_non_null(strstr(err.text, "kkk...: expected an array"));
    json_free(doc);
    free(text);
}

static void json_describe_names_type_and_value(void **state)
{
    static const char *const expected[] = {
        "an object",
        "an array",
        "the string \"a\\\"b\\n\"",
        "the number 1.50",
        "true",
        "false",
        "null",
        "the string \"1234567890123456789012345678901234567890\"...",
        "the string \"123456789012345678901234567890123456789\"...",
    };
    struct json *doc = parse("[{}, [], \"a\\\"b\\n\", 1.50, true, false, null, "
                             "\"12345678901234567890123456789012345678901\","
                             "\"123456789012345678901234567890123456789\xc3\xa9\"]");
    char text[100];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(expected); i++) {
        json_describe(doc, cJSON_GetArrayItem(json_root(doc), (int)i), text, sizeof(text));
        assert_string_equal(text, expected[i]);
    }
    json_describe(doc, NULL, text, sizeof(text));
    assert_string_equal(text, "nothing");
    json_describe(doc, json_root(doc), text, 6);
    assert_string_equal(text, "an ar");
    json_free(doc);
}

/* Injects a failure at the 1st, 2nd, 3rd, ... allocation until the parse succeeds. */
static void json_parse_out_of_memory_is_an_error_at_every_allocation(void **state)
{
    char text[20000] = "{", spec[32];
    int failures = 0;

    (void)state;
    for (int i = 0; i < 500; i++)
        sprintf(text + strlen(text), "\"key-%d\":[%d,\"v\"],", i, i);
    strcat(text, "\"last\":0}");
    for (int n = 1;; n++) {
        struct json *doc = NULL;
        struct err err = { 0 };
        int rc;

        snprintf(spec, sizeof(spec), "mem@%d", n);
        fault_arm(spec, NULL);
        rc = json_parse("j", text, strlen(text), 0, &doc, &err);
        if (!fault_fired()) {
            assert_int_equal(rc, 0);
            json_free(doc);
            break;
        }
        failures++;
        assert_int_equal(rc, ERR_NOMEM);
        assert_string_equal(err.text, "j: out of memory");
        assert_null(doc);
    }
    fault_arm(NULL, NULL);
    assert_true(failures > 500); /* at least one per key */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_values_have_position_and_pointer),
        cmocka_unit_test(json_tree_equals_the_one_of_cjson),
        cmocka_unit_test(json_strings_are_decoded),
        cmocka_unit_test(json_numbers_keep_their_text_in_any_locale),
        cmocka_unit_test(json_invalid_text_is_refused_with_position_and_remedy),
        cmocka_unit_test(json_zero_in_any_notation_is_accepted),
        cmocka_unit_test(json_duplicate_key_is_refused_in_any_spelling),
        cmocka_unit_test(json_duplicate_with_last_wins_keeps_the_last),
        cmocka_unit_test(json_nesting_beyond_the_limit_is_refused),
        cmocka_unit_test(json_size_and_value_count_beyond_the_limit_are_refused),
        cmocka_unit_test(json_error_names_position_and_pointer),
        cmocka_unit_test(json_error_with_a_long_pointer_keeps_the_message),
        cmocka_unit_test(json_describe_names_type_and_value),
        cmocka_unit_test(json_parse_out_of_memory_is_an_error_at_every_allocation),
    };

    return cmocka_run_group_tests_name("base/json", tests, NULL, NULL);
}
