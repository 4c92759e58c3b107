/* test_agree_message.c - tests the byte layout of the agreement, and which messages a reader
 * rejects. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/err.h"
#include "train/agree_message.h"

#define MODEL "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define DATA "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210"
#define WEIGHTS "00112233445566778899aabbccddeeff"
#define ZEROS_32 "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"

static const struct agreement sample = {
    .step = 0x0102, .model_digest = MODEL, .data_digest = DATA, .initial_crc = 0xa0b0c0d0, .overlap = true,
    .uses_network = true, .content = { { 0x01020304 }, { [AGREE_CONTENT_PARTS - 1] = 0x05060708 } }
};
/* All but the last checksum of the content, which is 08 07 06 05. */
static const char golden[AGREE_BYTES + 1] =
    "agreemnt\x03\0\0\0\x01\0\0\0\x02\x01\0\0\0\0\0\0\xd0\xc0\xb0\xa0\x01\0\0\0" MODEL DATA ZEROS_32
    "\x04\x03\x02\x01";

static void copy_golden(uint8_t out[AGREE_BYTES])
{
    memcpy(out, golden, AGREE_BYTES);
    memcpy(out + AGREE_BYTES - 4, "\x08\x07\x06\x05", 4);
}

static int read_with(size_t at, uint8_t value, struct agreement *out, struct err *err)
{
    uint8_t bytes[AGREE_BYTES];

    copy_golden(bytes);
    bytes[at] = value;
    return agree_message_read(bytes, "chief 0", out, err);
}

static void agreement_has_the_bytes_of_its_layout(void **state)
{
    uint8_t bytes[AGREE_BYTES], expected[AGREE_BYTES];

    (void)state;
    copy_golden(expected);
    agree_message_write(&sample, bytes);
    assert_memory_equal(bytes, expected, sizeof(bytes));
}

static void agreement_is_read_as_it_was_written(void **state)
{
    struct agreement with_weights = sample, out;
    uint8_t bytes[AGREE_BYTES];
    struct err err;

    (void)state;
    strcpy(with_weights.weights_digest, WEIGHTS);
    with_weights.overlap = false;
    agree_message_write(&with_weights, bytes);
    assert_int_equal(agree_message_read(bytes, "chief 0", &out, &err), 0);
    assert_true(out.step == sample.step && out.initial_crc == sample.initial_crc && !out.overlap &&
                out.uses_network);
    assert_string_equal(out.model_digest, MODEL);
    assert_string_equal(out.data_digest, DATA);
    assert_string_equal(out.weights_digest, WEIGHTS);
    assert_memory_equal(out.content, sample.content, sizeof(out.content));
}

static void invalid_field_is_rejected_with_the_sender_and_the_field(void **state)
{
    static const struct {
        size_t at;
        uint8_t value;
        const char *field;
    } cases[] = {
        { 0, 'x', "magic" },   { 8, 1, "version" },           { 12, 2, "flags" }, { 28, 2, "flags" },
        { 23, 0x80, "step" },  { 32, 'g', "model" },          { 95, 0, "model" }, { 96, 'A', "training data" },
        { 160, 'a', "weights" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct agreement out;
        struct err err = { 0 };

        assert_int_equal(read_with(cases[i].at, cases[i].value, &out, &err), ERR_PEER);
        assert_non_null(strstr(err.text, "chief 0"));
        assert_non_null(strstr(err.text, cases[i].field));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agreement_has_the_bytes_of_its_layout),
        cmocka_unit_test(agreement_is_read_as_it_was_written),
        cmocka_unit_test(invalid_field_is_rejected_with_the_sender_and_the_field),
    };

    return cmocka_run_group_tests_name("train/agree_message", tests, NULL, NULL);
}
