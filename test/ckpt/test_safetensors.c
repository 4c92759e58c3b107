#include "ckpt/kit.h"

#include "ckpt/safetensors.h"

static void safetensors_header_equals_the_specified_bytes(void **state)
{
    static const char json[] =
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
        "\"b \\\"q\\\"\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[24,32]}}";
    const struct safetensors_entry entries[] = {
        { "a", TENSOR_F32, { 2, { 2, 3 } }, 0, 24 },
        { "b \"q\"", TENSOR_I64, { 0, { 0 } }, 24, 32 },
    };
    struct buf b = { 0 };
    size_t n = sizeof(json) - 1, filled = (n + 7) / 8 * 8;

    (void)state;
    assert_int_equal(safetensors_header(entries, 2, NULL, 0, &b, NULL), 0);
    assert_int_equal(b.len, 8 + filled);
    assert_int_equal((uint8_t)b.data[0], filled & 255);
    assert_int_equal((uint8_t)b.data[1], filled >> 8);
    assert_memory_equal(b.data + 2, "\0\0\0\0\0\0", 6);
    assert_memory_equal(b.data + 8, json, n);
    for (size_t i = n; i < filled; i++)
        assert_int_equal(b.data[8 + i], ' ');
    buf_fini(&b);
}

static void safetensors_header_of_every_type_is_parsed(void **state)
{
    static const struct {
        enum tensor_dtype dtype;
        const char *name;
        size_t bytes;
    } types[] = { { TENSOR_F32, "F32", 4 }, { TENSOR_F64, "F64", 8 },   { TENSOR_F16, "F16", 2 },
                  { TENSOR_BF16, "BF16", 2 }, { TENSOR_I64, "I64", 8 }, { TENSOR_I32, "I32", 4 },
                  { TENSOR_I16, "I16", 2 }, { TENSOR_I8, "I8", 1 },     { TENSOR_U64, "U64", 8 },
                  { TENSOR_U32, "U32", 4 }, { TENSOR_U16, "U16", 2 },   { TENSOR_U8, "U8", 1 },
                  { TENSOR_BOOL, "BOOL", 1 } };

    (void)state;
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++) {
        struct safetensors_entry e = { "x", types[i].dtype, { 3, { 2, 1, 5 } }, 0,
                                       types[i].bytes * 10 };
        struct safetensors s;
        struct buf b = { 0 };
        uint64_t n = 0, file;

        assert_string_equal(safetensors_dtype(types[i].dtype), types[i].name);
        assert_int_equal(safetensors_header(&e, 1, NULL, 0, &b, NULL), 0);
        assert_non_null(strstr(b.data + 8, types[i].name));
        file = b.len + e.end;
        assert_int_equal(safetensors_json_bytes((uint8_t *)b.data, file, &n, NULL), 0);
        assert_int_equal(safetensors_parse(b.data + 8, n, file, &s, NULL), 0);
        assert_int_equal(s.n, 1);
        assert_int_equal(s.data_at, b.len);
        assert_int_equal(s.data_at % 8, 0);
        assert_string_equal(s.entries[0].name, "x");
        assert_int_equal(s.entries[0].dtype, e.dtype);
        assert_true(shape_equal(&s.entries[0].shape, &e.shape));
        assert_int_equal(s.entries[0].end, e.end);
        safetensors_fini(&s);
        buf_fini(&b);
    }
    assert_null(safetensors_dtype(TENSOR_NONE));
}

static int parse(const char *json, uint64_t data_bytes, struct safetensors *s, struct err *err)
{
    return safetensors_parse(json, strlen(json), 8 + strlen(json) + data_bytes, s, err);
}

#define T(name_, type_, shape_, begin_, end_)                                                      \
    "\"" name_ "\":{\"dtype\":\"" type_ "\",\"shape\":" shape_ ",\"data_offsets\":[" begin_        \
    "," end_ "]}"

static void safetensors_header_with_other_order_padding_and_metadata_is_parsed(void **state)
{
    struct safetensors s;

    (void)state;
    assert_int_equal(parse("{" T("c", "U8", "[3]", "12", "15") ",\n \"__metadata__\": {\"format\": "
                           "\"pt\"}, " T("a", "F32", "[1, 2]", "0", "8") ","
                           T("empty", "F64", "[4,0]", "8", "8") ","
                           "\"b\":{\"data_offsets\":[8,12],\"shape\":[],\"dtype\":\"I32\"}}    ",
                           15, &s, NULL), 0);
    assert_int_equal(s.n, 4);
    assert_string_equal(s.entries[0].name, "a");
    assert_string_equal(s.entries[1].name, "empty");
    assert_string_equal(s.entries[2].name, "b");
    assert_string_equal(s.entries[3].name, "c");
    safetensors_fini(&s);
    assert_int_equal(parse("{}", 0, &s, NULL), 0);
    assert_int_equal(s.n, 0);
    safetensors_fini(&s);
    assert_int_equal(parse("{\"__metadata__\":{}}", 0, &s, NULL), 0);
    safetensors_fini(&s);
}

static void safetensors_header_that_violates_the_format_is_refused_with_the_reason(void **state)
{
    static const struct {
        const char *json;
        uint64_t data_bytes;
        int code;
        const char *text;
    } cases[] = {
        { "", 0, ERR_CORRUPT, "'{'" },
        { " {}", 0, ERR_CORRUPT, "'{'" },
        { "[]", 0, ERR_CORRUPT, "'{'" },
        { "{", 0, ERR_CORRUPT, "safetensors header:1:" },
        { "{}x", 0, ERR_CORRUPT, "safetensors header:1:3" },
        { "{}", 1, ERR_CORRUPT, "need 0 bytes, the file has 1" },
        { "{" T("a", "F32", "[2]", "0", "8") "}", 9, ERR_CORRUPT, "need 8 bytes, the file has 9" },
        { "{" T("a", "F32", "[2]", "0", "8") "}", 7, ERR_CORRUPT, "need 8 bytes, the file has 7" },
        { "{" T("a", "F32", "[2]", "0", "7") "}", 7, ERR_CORRUPT, "F32 [2] needs 8" },
        { "{" T("a", "F32", "[2]", "0", "8") "," T("a", "F32", "[2]", "8", "16") "}", 16,
          ERR_CORRUPT, "a" },
        { "{" T("a", "F32", "[2]", "0", "8") "," T("b", "F32", "[2]", "9", "17") "}", 17,
          ERR_CORRUPT, "'b' starts at 9, expected 8: a gap" },
        { "{" T("a", "F32", "[2]", "4", "12") "}", 12, ERR_CORRUPT, "a gap" },
        { "{" T("a", "F32", "[2]", "0", "8") "," T("b", "F32", "[2]", "4", "12") "}", 12,
          ERR_CORRUPT, "overlaps another tensor" },
        { "{" T("a", "F32", "[2]", "8", "0") "}", 8, ERR_CORRUPT, "data_offsets [8, 0]" },
        { "{" T("a", "F32", "[2]", "-8", "0") "}", 8, ERR_CORRUPT, "number -8" },
        { "{" T("a", "F32", "[2]", "0.0", "8") "}", 8, ERR_CORRUPT, "0.0" },
        { "{" T("a", "F32", "[2]", "0", "18446744073709551616") "}", 8, ERR_CORRUPT,
          "18446744073709551616" },
        { "{" T("a", "F32", "[4294967296,4294967296]", "0", "8") "}", 8, ERR_CORRUPT, "needs" },
        { "{" T("a", "F32", "[9223372036854775808]", "0", "8") "}", 8, ERR_CORRUPT,
          "an integer" },
        { "{" T("a", "F32", "[-1]", "0", "8") "}", 8, ERR_CORRUPT, "number -1" },
        { "{" T("a", "F32", "[1,1,1,1,1,1,1,1,1]", "0", "4") "}", 4, ERR_CORRUPT, "8 dimensions" },
        { "{" T("a", "F32", "2", "0", "8") "}", 8, ERR_CORRUPT, "list of dimensions" },
        { "{" T("a", "F8_E4M3", "[2]", "0", "2") "}", 2, ERR_UNSUPPORTED, "F8_E4M3" },
        { "{" T("a", "f32", "[2]", "0", "8") "}", 8, ERR_UNSUPPORTED, "f32" },
        { "{\"a\":{\"dtype\":1,\"shape\":[2],\"data_offsets\":[0,8]}}", 8, ERR_CORRUPT, "dtype" },
        { "{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, ERR_CORRUPT, "expected dtype" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", 8, ERR_CORRUPT,
          "[begin, end]" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,9]}}", 8, ERR_CORRUPT,
          "[begin, end]" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":1}}", 8,
          ERR_CORRUPT, "only dtype" },
        { "{\"a\":[]}", 0, ERR_CORRUPT, "an object with dtype" },
        { "{\"__metadata__\":{\"a\":1}}", 0, ERR_CORRUPT, "a text" },
        { "{\"__metadata__\":\"a\"}", 0, ERR_CORRUPT, "object of texts" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct safetensors s;
        struct err err = { .text = "" };
        int rc = parse(cases[i].json, cases[i].data_bytes, &s, &err);

        if (rc != cases[i].code || err.code != rc)
            fail_msg("%s: %d %d '%s'", cases[i].json, rc, err.code, err.text);
        assert_text(err.text, cases[i].text);
    }
}

static void safetensors_invalid_length_is_refused(void **state)
{
    static const uint8_t huge[] = { 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff };
    static const uint8_t large[] = { 1, 0xe1, 0xf5, 5, 0, 0, 0, 0 }; /* 100000001 */
    uint64_t n;
    struct err err;

    (void)state;
    assert_int_equal(safetensors_json_bytes(huge, 1000, &n, &err), ERR_CORRUPT);
    assert_text(err.text, "the file has 1000");
    assert_int_equal(safetensors_json_bytes((uint8_t[8]){ 0 }, 7, &n, &err), ERR_CORRUPT);
    assert_int_equal(safetensors_json_bytes((uint8_t[8]){ 2 }, 9, &n, &err), ERR_CORRUPT);
    assert_int_equal(safetensors_json_bytes((uint8_t[8]){ 2 }, 10, &n, &err), 0);
    assert_int_equal(n, 2);
    assert_int_equal(safetensors_json_bytes(large, UINT64_MAX, &n, &err), ERR_CORRUPT);
    assert_text(err.text, "at most 100000000");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(safetensors_header_equals_the_specified_bytes),
        cmocka_unit_test(safetensors_header_of_every_type_is_parsed),
        cmocka_unit_test(safetensors_header_with_other_order_padding_and_metadata_is_parsed),
        cmocka_unit_test(safetensors_header_that_violates_the_format_is_refused_with_the_reason),
        cmocka_unit_test(safetensors_invalid_length_is_refused),
    };

    return cmocka_run_group_tests_name("ckpt/safetensors", tests, NULL, NULL);
}
