#include "data/kit.h"

#include <math.h>

#include "data/data_priv.h"
#include "data/example.h"
#include "data/fixture.h"

#define FEATURE(name_, stored_, n_) { .name = (name_), .stored = (stored_), .shape = { 1, { n_ } } }

static int find(const void *record, size_t n, const struct data_feature *f, uint32_t n_features,
                struct data_entry *found, struct err *err)
{
    struct data_names *names;
    int rc;

    assert_int_equal(data_names_new(f, n_features, &names, NULL), 0);
    rc = data_example_find(names, record, n, found, err);
    data_names_free(names);
    return rc;
}

/* Reads one feature of an Example that contains `features`. */
static int read_one(const struct buf *features, const struct data_feature *f, size_t n, void *out,
                    struct err *err)
{
    struct buf example = { 0 };
    struct data_entry entry;
    const void *stored;
    uint64_t room[64], count;
    int rc;

    assert_true(n * tensor_dtype_bytes(f->stored) <= sizeof(room));
    kit_member(&example, 1, features->data, features->len);
    rc = find(example.data, example.len, f, 1, &entry, err);
    if (rc == 0)
        rc = data_example_read(f, n, &entry, room, &stored, &count, err);
    if (rc == 0)
        memcpy(out, stored, n * tensor_dtype_bytes(f->stored));
    buf_fini(&example);
    return rc;
}

static void check_fixture(const uint8_t *at, size_t n_all)
{
    static const struct data_feature features[] = {
        FEATURE("token", TENSOR_I64, 5),
        FEATURE("image", TENSOR_U8, 12),
        FEATURE("weight", TENSOR_F32, 3),
        { .name = "label", .stored = TENSOR_I32 },
    };
    static const size_t elements[] = { 5, 12, 3, 1 };
    static const int64_t tokens[] = { 1, 127, 128, INT64_MIN, INT64_MAX };

    for (int i = 0; n_all > 0; i++) {
        float weights[] = { (float)i + 0.5f, -2.0f * (float)i, 1e-3f };
        struct data_entry entries[4];
        const void *stored[4];
        uint64_t room[4][8], length, count;
        int32_t label;

        assert_int_equal(tfrecord_head(at, n_all, &length, NULL), 0);
        assert_int_equal(find(at + 12, length, features, 4, entries, NULL), 0);
        for (int k = 0; k < 4; k++)
            assert_int_equal(data_example_read(&features[k], elements[k], &entries[k], room[k],
                                               &stored[k], &count, NULL),
                             0);
        for (int k = 0; k < 12; k++)
            assert_int_equal(((const uint8_t *)stored[1])[k], (i * 50 + k * 7) & 255);
        assert_memory_equal(stored[0], tokens, sizeof(tokens));
        assert_memory_equal(stored[2], weights, sizeof(weights));
        memcpy(&label, stored[3], sizeof(label));
        assert_int_equal(label, i - 1);
        at += 16 + length;
        n_all -= 16 + length;
    }
}

static void example_of_the_independent_writer_is_read_packed_and_unpacked(void **state)
{
    (void)state;
    check_fixture(fixture_packed, sizeof(fixture_packed));
    check_fixture(fixture_loose, sizeof(fixture_loose));
}

/* Random mixtures of numbers of 1 to 10 bytes in lists of any length, so that all decoding paths
 * follow each other. */
static void example_packed_numbers_of_any_length_are_read(void **state)
{
    enum { MOST = 400 };
    static int64_t x[MOST], got[MOST + 1];
    uint64_t random = 1;

    (void)state;
    for (uint32_t round = 0; round < 3000; round++) {
        size_t n = round < 200 ? round : random % MOST;
        unsigned widest = round % 3 == 0 ? 64 : round % 3 == 1 ? 17 : 8;
        struct data_feature f = FEATURE("x", TENSOR_I64, (int64_t)n);
        struct buf list = { 0 }, example = { 0 };
        struct data_entry entry;
        const void *stored;
        uint64_t count;

        for (size_t i = 0; i < n; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            x[i] = (int64_t)((random ^ random >> 29) >> (64 - 1 - (random >> 40) % widest));
        }
        kit_ints(&list, "x", x, n);
        kit_member(&example, 1, list.data, list.len);
        got[n] = 77;
        assert_int_equal(find(example.data, example.len, &f, 1, &entry, NULL), 0);
        assert_int_equal(data_example_read(&f, n, &entry, got, &stored, &count, NULL), 0);
        assert_int_equal(count, n);
        assert_memory_equal(stored, x, n * sizeof(*x));
        assert_int_equal(got[n], 77); /* not written after the last value */
        buf_fini(&list);
        buf_fini(&example);
    }
}

static void example_int32_out_of_range_names_the_first_value(void **state)
{
    struct data_feature f = FEATURE("x", TENSOR_I32, 300);
    int64_t x[300];
    int32_t got[300];
    struct buf b = { 0 }, example = { 0 };
    struct data_entry entry;
    const void *stored;
    uint64_t count;
    struct err err;

    (void)state;
    for (int i = 0; i < 300; i++)
        x[i] = i * 1000;
    kit_ints(&b, "x", x, 300);
    kit_member(&example, 1, b.data, b.len);
    assert_int_equal(find(example.data, example.len, &f, 1, &entry, NULL), 0);
    assert_int_equal(data_example_read(&f, 300, &entry, got, &stored, &count, NULL), 0);
    for (int i = 0; i < 300; i++)
        assert_int_equal(((const int32_t *)stored)[i], i * 1000);
    buf_fini(&example);
    buf_reset(&b);
    x[201] = INT64_C(1) << 31;
    x[250] = INT64_MIN;
    kit_ints(&b, "x", x, 300);
    kit_member(&example, 1, b.data, b.len);
    assert_int_equal(find(example.data, example.len, &f, 1, &entry, NULL), 0);
    assert_int_equal(data_example_read(&f, 300, &entry, got, &stored, &count, &err), ERR_INPUT);
    assert_text(err, "value 201 is 2147483648, expected an int32");
    buf_fini(&example);
    buf_fini(&b);
}

static void example_floats_in_one_bytes_value_are_read(void **state)
{
    struct data_feature f = FEATURE("x", TENSOR_F32, 3);
    float x[] = { 1.5f, -0.0f, 3e38f }, got[3];
    struct buf b = { 0 };

    (void)state;
    kit_bytes(&b, "x", x, sizeof(x));
    assert_int_equal(read_one(&b, &f, 3, got, NULL), 0);
    assert_memory_equal(got, x, sizeof(x));
    buf_fini(&b);
}

static void example_duplicate_key_uses_the_last_entry(void **state)
{
    struct data_feature f = FEATURE("x", TENSOR_I64, 1);
    struct buf b = { 0 };
    int64_t got;

    (void)state;
    kit_ints(&b, "x", &(int64_t){ 1 }, 1);
    kit_ints(&b, "y", &(int64_t){ 2 }, 1);
    kit_ints(&b, "x", &(int64_t){ 3 }, 1);
    assert_int_equal(read_one(&b, &f, 1, &got, NULL), 0);
    assert_int_equal(got, 3);
    buf_fini(&b);
}

/* One list in four parts: packed, single, an unknown field, empty, packed. */
static void example_list_in_parts_is_concatenated(void **state)
{
    struct data_feature f = FEATURE("x", TENSOR_F32, 4);
    float x[] = { 1, 2, 3, 4 }, got[4];
    struct buf b = { 0 }, body = { 0 };

    (void)state;
    kit_member(&body, 1, x, 8);
    buf_add(&body, "\x0d", 1); /* field 1, 32 bits */
    buf_add(&body, &x[2], 4);
    kit_member(&body, 9, "unknown", 7);
    kit_member(&body, 1, "", 0);
    kit_member(&body, 1, &x[3], 4);
    kit_entry(&b, "x", 2, &body);
    assert_int_equal(read_one(&b, &f, 4, got, NULL), 0);
    assert_memory_equal(got, x, sizeof(x));
    buf_fini(&body);
    buf_fini(&b);
}

/* As in protobuf: the value may precede the key, and several values are merged. */
static void example_entry_with_value_before_key_is_read(void **state)
{
    struct data_feature f = FEATURE("x", TENSOR_I64, 3);

    (void)state;
    for (int n_values = 0; n_values < 4; n_values++)
        for (int key_at = 0; key_at <= n_values; key_at++) {
            struct buf entry = { 0 }, features = { 0 };
            int64_t got[3];
            struct err err;
            int rc;

            for (int i = 0; i <= n_values; i++) {
                uint8_t value[] = { 0x1a, 0x03, 0x0a, 0x01, (uint8_t)(10 + i) };

                if (i == key_at)
                    kit_member(&entry, 1, "x", 1);
                if (i < n_values)
                    kit_member(&entry, 2, value, sizeof(value));
            }
            kit_member(&features, 1, entry.data, entry.len);
            rc = read_one(&features, &f, 3, got, &err);
            assert_int_equal(rc, n_values == 3 ? 0 : ERR_INPUT);
            if (n_values < 3)
                assert_text(err, n_values == 0   ? "found an empty feature"
                                 : n_values == 1 ? "a list of 1 int64 values"
                                                 : "a list of 2 int64 values");
            for (int i = 0; rc == 0 && i < 3; i++)
                assert_int_equal(got[i], 10 + i);
            buf_fini(&entry);
            buf_fini(&features);
        }
}

static void example_list_of_another_kind_replaces_the_first(void **state)
{
    struct data_feature f = FEATURE("x", TENSOR_I64, 2);
    struct buf feature = { 0 }, entry = { 0 }, b = { 0 };
    int64_t got[2];

    (void)state;
    kit_member(&feature, 3, "\x08\x05", 2);           /* int64 5 */
    kit_member(&feature, 2, "\x0d\0\0\0\0", 5);       /* float 0 */
    kit_member(&feature, 3, "\x08\x06", 2);           /* int64 6 */
    kit_member(&entry, 2, feature.data, feature.len); /* the value before the key */
    kit_member(&entry, 1, "x", 1);
    kit_member(&entry, 2, "\x1a\x02\x08\x07", 4); /* a second value: appends int64 7 */
    kit_member(&b, 1, entry.data, entry.len);
    assert_int_equal(read_one(&b, &f, 2, got, NULL), 0);
    assert_int_equal(got[0], 6);
    assert_int_equal(got[1], 7);
    buf_fini(&feature);
    buf_fini(&entry);
    buf_fini(&b);
}

static void example_unknown_fields_of_every_wire_type_are_skipped(void **state)
{
    static const uint8_t unknown[] = {
        0x78, 0x96, 0x01,             /* field 15: number */
        0x79, 1, 2, 3, 4, 5, 6, 7, 8, /* 64 bits */
        0x7a, 3, 'a', 'b', 'c',       /* bytes */
        0x7d, 1, 2, 3, 4,             /* 32 bits */
        0x08, 0x01,                   /* field 1, here not of type number */
    };
    struct data_feature f = FEATURE("x", TENSOR_I64, 1);
    struct buf b = { 0 }, body = { 0 };
    int64_t got;

    (void)state;
    buf_add(&b, unknown, sizeof(unknown));
    buf_add(&body, unknown, sizeof(unknown) - 2);
    buf_add(&body, "\x08\x2a", 2);
    kit_entry(&b, "x", 3, &body);
    buf_add(&b, unknown, sizeof(unknown));
    assert_int_equal(read_one(&b, &f, 1, &got, NULL), 0);
    assert_int_equal(got, 42);
    buf_fini(&b);
    buf_fini(&body);
}

/* Rows: the content of feature "x" in the record, and the expected message. */
static void example_mismatch_reports_found_and_expected(void **state)
{
    static const float two[] = { 1, 2 };
    static const int64_t three[] = { 1, 2, INT64_C(1) << 31 };
    static const struct {
        struct data_feature f;
        size_t n;
        const char *parts[4];
    } cases[] = {
        { FEATURE("f", TENSOR_U8, 4), 4,
          { "'f'", "a list of 2 float values", "one bytes value of 4 bytes", "uint8 [4]" } },
        { FEATURE("b", TENSOR_U8, 4), 4, { "'b'", "a bytes value of 5 bytes", "4 bytes" } },
        { FEATURE("j", TENSOR_U8, 4), 4, { "JPEG" } },
        { FEATURE("bb", TENSOR_U8, 2), 2, { "a list of 2 bytes values" } },
        { FEATURE("f", TENSOR_F32, 3), 3,
          { "a list of 2 float values", "expected 3 float values or one bytes value of 12" } },
        { FEATURE("f", TENSOR_F32, 1), 1, { "a list of 2 float values" } },
        { FEATURE("b", TENSOR_I64, 3), 3, { "a bytes value of 5 bytes", "3 int64 values" } },
        { FEATURE("i", TENSOR_I64, 2), 2, { "a list of 3 int64 values", "expected 2" } },
        { FEATURE("i", TENSOR_F32, 3), 3, { "a list of 3 int64 values", "3 float values" } },
        { FEATURE("i", TENSOR_I32, 3), 3, { "'i'", "value 2 is 2147483648", "int32" } },
        { FEATURE("e", TENSOR_U8, 1), 1, { "an empty feature" } },
        { FEATURE("imgae", TENSOR_U8, 1), 1,
          { "'imgae' is not in the record", "did you mean 'image'", "'f', 'b'" } },
        { FEATURE("zzzzzzzz", TENSOR_U8, 1), 1, { "'zzzzzzzz' is not in the record; features" } },
    };
    struct buf b = { 0 }, body = { 0 };
    struct err err;
    uint8_t out[64];

    (void)state;
    kit_floats(&b, "f", two, 2);
    kit_bytes(&b, "b", "12345", 5);
    kit_bytes(&b, "j", "\xff\xd8\xff\xe0 more", 9);
    kit_ints(&b, "i", three, 3);
    kit_bytes(&b, "image", "1", 1);
    kit_member(&body, 1, "1", 1);
    kit_member(&body, 1, "2", 1);
    kit_entry(&b, "bb", 1, &body);
    kit_member(&b, 1,
               "\x0a\x01"
               "e",
               3);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        assert_int_equal(read_one(&b, &cases[i].f, cases[i].n, out, &err), ERR_INPUT);
        for (int k = 0; k < 4 && cases[i].parts[k] != NULL; k++)
            assert_text(err, cases[i].parts[k]);
    }
    buf_fini(&b);
    buf_fini(&body);
}

/* A record that is truncated or modified at any position is read or refused without a crash, and
 * under a sanitizer without a read past its end. */
static void example_truncated_or_modified_record_never_crashes(void **state)
{
    static const struct data_feature features[] = { FEATURE("token", TENSOR_I64, 5),
                                                    FEATURE("image", TENSOR_U8, 12),
                                                    FEATURE("weight", TENSOR_F32, 3) };
    static const size_t elements[] = { 5, 12, 3 };
    const size_t n = fixture_loose[0] | (size_t)fixture_loose[1] << 8;
    uint32_t refused = 0;

    (void)state;
    for (size_t cut = 0; cut <= n; cut++) {
        for (int change = 0; change < 256; change += cut == n ? 1 : 256) {
            for (size_t at = 0; at < (cut == n ? n : 1); at++) {
                uint8_t *r = malloc(cut > 0 ? cut : 1); /* exact size, for the sanitizer */
                struct data_entry entries[3];
                const void *stored;
                uint64_t room[8], count;
                struct err err;

                memcpy(r, fixture_loose + 12, cut);
                if (cut == n)
                    r[at] ^= (uint8_t)change;
                if (find(r, cut, features, 3, entries, &err) == 0) {
                    for (int k = 0; k < 3; k++)
                        refused += data_example_read(&features[k], elements[k], &entries[k], room,
                                                     &stored, &count, &err) < 0;
                } else {
                    refused++;
                }
                free(r);
            }
        }
    }
    assert_true(refused > n); /* each truncation, and most changes of a length or a tag */
}

static void example_malformed_protobuf_is_refused_with_its_position(void **state)
{
    static const struct {
        const char *bytes;
        size_t n;
        const char *text;
    } cases[] = {
        { "\x0a\x05" "abc", 5, "longer than the record at byte 0" },
        { "\x0a", 1, "length at byte 0" },
        { "\x00\x01", 2, "invalid protobuf tag at byte 0" },
        { "\x0b", 1, "unknown type at byte 0" },
        { "\x78\x01\x78\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 14, "number at byte 2" },
        { "\x0a\x02\x0a\x01", 4, "at byte 2" },
        { "\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11, "longer than the record" },
    };
    struct data_feature f = FEATURE("x", TENSOR_I64, 1);
    struct data_entry entry;
    struct err err;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        assert_int_equal(find(cases[i].bytes, cases[i].n, &f, 1, &entry, &err), ERR_INPUT);
        assert_text(err, cases[i].text);
    }
    assert_int_equal(find("", 0, &f, 1, &entry, &err), ERR_INPUT);
    assert_text(err, "features present: none");
}

/* For random bytes, both implementations return the numbers of a simple decoder. */
static void numbers_decoded_in_blocks_equal_single_decoding(void **state)
{
    uint64_t seed = 7;

    (void)state;
    for (int round = 0; round < 20000; round++) {
        uint8_t bytes[300];
        uint64_t out[2][200], want;
        size_t n[2], used[2], at = 0, room = 64 + (size_t)round % 130;

        for (size_t i = 0; i < sizeof(bytes); i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            bytes[i] = (uint8_t)(seed >> 56);
            if ((seed >> 40 & 7) < (uint64_t)(round % 8)) /* from short to very long numbers */
                bytes[i] |= 0x80;
            else if (round % 3 == 0)
                bytes[i] &= 0x7f;
        }
        n[0] = data_varints(bytes, sizeof(bytes), out[0], room, &used[0]);
        n[1] = data_varints_portable(bytes, sizeof(bytes), out[1], room, &used[1]);
        assert_int_equal(n[0], n[1]);
        assert_int_equal(used[0], used[1]);
        assert_true(n[0] <= room);
        for (size_t k = 0; k < n[0]; k++) {
            unsigned shift = 0;

            for (want = 0; bytes[at] >= 0x80; at++, shift += 7)
                want |= (uint64_t)(bytes[at] & 0x7f) << shift;
            want |= (uint64_t)bytes[at++] << shift;
            assert_true(out[0][k] == want && out[1][k] == want);
        }
        assert_int_equal(at, used[0]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_decoded_in_blocks_equal_single_decoding),
        cmocka_unit_test(example_of_the_independent_writer_is_read_packed_and_unpacked),
        cmocka_unit_test(example_packed_numbers_of_any_length_are_read),
        cmocka_unit_test(example_int32_out_of_range_names_the_first_value),
        cmocka_unit_test(example_floats_in_one_bytes_value_are_read),
        cmocka_unit_test(example_duplicate_key_uses_the_last_entry),
        cmocka_unit_test(example_list_in_parts_is_concatenated),
        cmocka_unit_test(example_entry_with_value_before_key_is_read),
        cmocka_unit_test(example_list_of_another_kind_replaces_the_first),
        cmocka_unit_test(example_unknown_fields_of_every_wire_type_are_skipped),
        cmocka_unit_test(example_mismatch_reports_found_and_expected),
        cmocka_unit_test(example_truncated_or_modified_record_never_crashes),
        cmocka_unit_test(example_malformed_protobuf_is_refused_with_its_position),
    };

    return cmocka_run_group_tests_name("data/example", tests, NULL, NULL);
}
