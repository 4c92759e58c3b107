#include "data/kit.h"

#include "data/fixture.h"

static void tfrecord_append_equals_the_independent_writer(void **state)
{
    struct buf ours = { 0 };
    uint64_t length;
    size_t at = 0;

    (void)state;
    while (at < sizeof(fixture_packed)) {
        assert_int_equal(tfrecord_head(fixture_packed + at, UINT64_MAX, &length, NULL), 0);
        tfrecord_append(&ours, fixture_packed + at + TFRECORD_HEAD_BYTES, length);
        at += TFRECORD_HEAD_BYTES + length + TFRECORD_TAIL_BYTES;
    }
    assert_int_equal(ours.len, sizeof(fixture_packed));
    assert_memory_equal(ours.data, fixture_packed, ours.len);
    buf_fini(&ours);
}

/* The CRC-32C of "123456789" is published (e3069283), so the frame can be computed by hand. */
static void tfrecord_append_equals_a_frame_computed_by_hand(void **state)
{
    static const uint8_t tail[] = { 0xe5, 0xb0, 0x8a, 0xc7 }; /* rotr15(e3069283) + a282ead8 */
    struct buf b = { 0 };
    uint64_t length = 0;

    (void)state;
    tfrecord_append(&b, "123456789", 9);
    assert_int_equal(b.len, 25);
    assert_int_equal(tfrecord_head((uint8_t *)b.data, 9, &length, NULL), 0);
    assert_int_equal(length, 9);
    assert_memory_equal(b.data + 21, tail, 4);
    assert_int_equal(tfrecord_check("123456789", 9, tail, NULL), 0);
    buf_fini(&b);
}

static void tfrecord_single_bit_flip_is_detected(void **state)
{
    struct buf b = { 0 };
    struct err err;
    uint64_t length;

    (void)state;
    tfrecord_append(&b, "some data", 9);
    for (size_t bit = 0; bit < b.len * 8; bit++) {
        uint8_t *r = (uint8_t *)b.data;
        int rc;

        r[bit / 8] ^= (uint8_t)(1 << bit % 8);
        rc = tfrecord_head(r, 9, &length, &err);
        if (rc == 0)
            rc = tfrecord_check(r + 12, length, r + 21, &err);
        assert_int_equal(rc, ERR_CORRUPT);
        r[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    buf_fini(&b);
}

static void tfrecord_length_above_the_limit_is_refused_with_both_numbers(void **state)
{
    struct buf b = { 0 };
    struct err err;
    uint64_t length = 77;

    (void)state;
    tfrecord_append(&b, "0123456789", 10);
    assert_int_equal(tfrecord_head((uint8_t *)b.data, 9, &length, &err), ERR_CORRUPT);
    assert_text(err, "10 bytes");
    assert_text(err, "at most 9");
    assert_int_equal(length, 77);
    buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tfrecord_append_equals_the_independent_writer),
        cmocka_unit_test(tfrecord_append_equals_a_frame_computed_by_hand),
        cmocka_unit_test(tfrecord_single_bit_flip_is_detected),
        cmocka_unit_test(tfrecord_length_above_the_limit_is_refused_with_both_numbers),
    };

    return cmocka_run_group_tests_name("data/tfrecord", tests, NULL, NULL);
}
