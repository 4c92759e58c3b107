#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/crc32c.h"

/* The definition, one bit at a time. */
static uint32_t reference_crc(uint32_t crc, const uint8_t *p, size_t n)
{
    crc = ~crc;
    while (n-- > 0) {
        crc ^= *p++;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc & 1) != 0 ? (crc >> 1) ^ 0x82f63b78u : crc >> 1;
    }
    return ~crc;
}

static uint8_t *random_bytes(size_t n)
{
    uint8_t *bytes = malloc(n);
    uint32_t x = 12345;

    assert_non_null(bytes);
    for (size_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        bytes[i] = (uint8_t)(x >> 24);
    }
    return bytes;
}

static void crc32c_matches_the_published_vectors(void **state)
{
    uint8_t zeros[32] = { 0 }, ones[32], up[32], down[32];
    /* RFC 3720 B.4, and the check value of the catalogue for "123456789" */
    const struct {
        const void *data;
        size_t n;
        uint32_t crc;
    } cases[] = {
        { "", 0, 0 },
        { "123456789", 9, 0xe3069283 },
        { zeros, 32, 0x8a9136aa },
        { ones, 32, 0x62a8ab43 },
        { up, 32, 0x46dd794e },
        { down, 32, 0x113fdb5c },
    };

    (void)state;
    memset(ones, 0xff, 32);
    for (int i = 0; i < 32; i++) {
        up[i] = (uint8_t)i;
        down[i] = (uint8_t)(31 - i);
    }
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        assert_int_equal(crc32c(0, cases[i].data, cases[i].n), cases[i].crc);
        assert_int_equal(crc32c_portable(0, cases[i].data, cases[i].n), cases[i].crc);
    }
}

static void crc32c_of_any_length_and_alignment_matches_the_definition(void **state)
{
    uint8_t *bytes = random_bytes(40000);
    /* lengths around one word, around one and two blocks of each stride, and around those that are folded */
    static const size_t lengths[] = { 1,    7,    8,    9,    63,    767,   768,   769,   776,   1023, 1024,
                                      1025, 1279, 1280, 1281, 1535,  1536,  2311,  12287, 12288, 12289,
                                      13063, 24576, 39000 };

    (void)state;
    for (size_t n = 0; n < 100; n++)
        assert_int_equal(crc32c(0, bytes, n), reference_crc(0, bytes, n));
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        for (size_t shift = 0; shift < 9; shift += 1 + shift) {
            uint32_t expected = reference_crc(0x1234, bytes + shift, lengths[i]);

            assert_int_equal(crc32c(0x1234, bytes + shift, lengths[i]), expected);
            assert_int_equal(crc32c_streams(0x1234, bytes + shift, lengths[i]), expected);
            assert_int_equal(crc32c_portable(0x1234, bytes + shift, lengths[i]), expected);
        }
    }
    free(bytes);
}

static void crc32c_continued_over_two_parts_matches_the_whole(void **state)
{
    uint8_t *bytes = random_bytes(30000);
    uint32_t whole = crc32c(0, bytes, 30000);

    (void)state;
    for (size_t cut = 0; cut <= 30000; cut += 1237)
        assert_int_equal(crc32c(crc32c(0, bytes, cut), bytes + cut, 30000 - cut), whole);
    free(bytes);
}

static void crc32c_mask_matches_tfrecord(void **state)
{
    (void)state;
    /* the rotation moves bit 15 to bit 0, and bit 0 to bit 17 */
    assert_int_equal(crc32c_mask(0), 0xa282ead8);
    assert_int_equal(crc32c_mask(0x00008000), 0xa282ead9);
    assert_int_equal(crc32c_mask(0x00000001), 0xa284ead8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crc32c_matches_the_published_vectors),
        cmocka_unit_test(crc32c_of_any_length_and_alignment_matches_the_definition),
        cmocka_unit_test(crc32c_continued_over_two_parts_matches_the_whole),
        cmocka_unit_test(crc32c_mask_matches_tfrecord),
    };

    return cmocka_run_group_tests_name("base/crc32c", tests, NULL, NULL);
}
