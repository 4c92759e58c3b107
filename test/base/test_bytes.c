#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/bytes.h"

static void number_is_stored_lowest_byte_first(void **state)
{
    static const uint8_t want[22] = { 0xee, 0x04, 0x03, 0x02, 0x01, 0x08, 0x07, 0x06,
                                      0x05, 0x04, 0x03, 0x02, 0x01, 0,    0,    0,
                                      0,    0,    0,    0xf8, 0xbf, 0xee };
    uint8_t bytes[22];

    (void)state;
    memset(bytes, 0xee, sizeof(bytes)); /* odd addresses; the bytes before and after stay */
    bytes_set_u32(bytes + 1, 0x01020304);
    bytes_set_u64(bytes + 5, 0x0102030405060708);
    bytes_set_f64(bytes + 13, -1.5);
    assert_memory_equal(bytes, want, sizeof(want));
}

static void number_is_read_as_it_was_stored(void **state)
{
    uint8_t bytes[9] = { 0 };
    double nan = NAN, back;

    (void)state;
    bytes_set_u32(bytes + 1, UINT32_MAX - 1);
    assert_true(bytes_get_u32(bytes + 1) == UINT32_MAX - 1);
    bytes_set_u64(bytes + 1, UINT64_MAX - 1);
    assert_true(bytes_get_u64(bytes + 1) == UINT64_MAX - 1);
    bytes_set_f64(bytes + 1, 0.1);
    assert_true(bytes_get_f64(bytes + 1) == 0.1);
    bytes_set_f64(bytes + 1, nan);
    back = bytes_get_f64(bytes + 1);
    assert_memory_equal(&back, &nan, sizeof(nan));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(number_is_stored_lowest_byte_first),
        cmocka_unit_test(number_is_read_as_it_was_stored),
    };

    return cmocka_run_group_tests_name("base/bytes", tests, NULL, NULL);
}
