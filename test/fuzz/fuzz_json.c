/* fuzz_json.c - any bytes as JSON: nothing crashes, and another parser accepts everything that this
 * one accepts. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "base/check.h"
#include "base/err.h"
#include "base/json.h"
#include "fuzz/driver.h"

const struct fuzz_seed fuzz_seeds[] = {
    FUZZ_SEED(
        "{\"cluster\":{\"worker\":[\"a:1\",\"b:2\"]},\"task\":{\"type\":\"worker\",\"index\":0}}"),
    FUZZ_SEED("\xef\xbb\xbf[0, -1.5e3, 1E+2, 5e-324, 1e308, 9007199254740993]"),
    FUZZ_SEED("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\u20AC\\ud83d\\ude00\""),
    FUZZ_SEED(" {\"a\":1,\n \"b\":{\"a\":3}, \"\\u0061\":2, \"c\":[true,false,null]} "),
    FUZZ_SEED("[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]"),
    FUZZ_SEED("{\"\":{\"~/\":{\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\":[{},[],\"\"]}}}"),
};
const size_t n_fuzz_seeds = sizeof(fuzz_seeds) / sizeof(fuzz_seeds[0]);

/* Checks that every value has the position of a byte that can start it, and that every number
 * equals its text. */
static void check_value(const struct json *doc, const cJSON *value, uint32_t size)
{
    uint32_t line, column;
    char text[64];

    json_position(doc, value, &line, &column);
    CHECK(line >= 1 && line <= size && column >= 1 && column <= size);
    CHECK(value == json_root(doc) ? json_pointer(doc, value)[0] == '\0'
                                  : json_pointer(doc, value)[0] == '/');
    json_describe(doc, value, text, sizeof(text));
    CHECK(strlen(text) >= 4);
    if (cJSON_IsNumber(value)) {
        CHECK(strtod(json_number_text(doc, value), NULL) == value->valuedouble);
        CHECK(isfinite(value->valuedouble));
    } else {
        CHECK(json_number_text(doc, value) == NULL);
    }
    for (const cJSON *child = value->child; child != NULL; child = child->next) {
        CHECK((child->string != NULL) == cJSON_IsObject(value));
        CHECK(child->next == NULL ? value->child->prev == child : child->next->prev == child);
        check_value(doc, child, size);
    }
}

/* cJSON truncates numbers of 64 and more characters, so those cannot be compared. */
static bool has_long_number(const struct json *doc, const cJSON *value)
{
    if (cJSON_IsNumber(value) && strlen(json_number_text(doc, value)) > 60)
        return true;
    for (const cJSON *child = value->child; child != NULL; child = child->next)
        if (has_long_number(doc, child))
            return true;
    return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err err = { 0 };
    struct json *doc = NULL, *lax = NULL;
    int rc = json_parse("fuzz", (const char *)data, size, 0, &doc, &err);
    int rc_lax = json_parse("fuzz", (const char *)data, size, JSON_LAST_DUPLICATE_WINS, &lax, NULL);

    CHECK(rc == 0 || rc == ERR_INPUT);
    CHECK((rc == 0) == (doc != NULL) && (rc_lax == 0) == (lax != NULL));
    if (rc < 0)
        CHECK(err.code == rc && strncmp(err.text, "fuzz:", 5) == 0);
    if (lax != NULL)
        check_value(lax, json_root(lax), (uint32_t)size);
    if (doc != NULL) {
        check_value(doc, json_root(doc), (uint32_t)size);
        CHECK(lax != NULL && cJSON_Compare(json_root(doc), json_root(lax), true));
        if (!has_long_number(doc, json_root(doc))) {
            /* cJSON does not skip a byte order mark that is followed by a single byte */
            size_t mark = size >= 3 && memcmp(data, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
            cJSON *other = cJSON_ParseWithLength((const char *)data + mark, size - mark);

            CHECK(other != NULL && cJSON_Compare(json_root(doc), other, true));
            cJSON_Delete(other);
        }
    }
    json_free(doc);
    json_free(lax);
    return 0;
}
