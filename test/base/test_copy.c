/* Copies that bypass the caches: every alignment, every length around the limits, and nothing beside them. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/copy.h"

enum { ROOM = 4096, MARGIN = 64, PATTERN = 0xa5 };

static void compare(const uint8_t *from, size_t to_at, size_t from_at, size_t n)
{
    static uint8_t to[ROOM + 2 * MARGIN];

    memset(to, PATTERN, sizeof(to));
    copy_uncached(to + to_at, from + from_at, n);
    for (size_t i = 0; i < sizeof(to); i++)
        if (to[i] != (i >= to_at && i < to_at + n ? from[from_at + i - to_at] : PATTERN))
            fail_msg("%zu bytes from %zu to %zu: byte %zu is %u", n, from_at, to_at, i, to[i]);
}

static void copies_are_complete_and_change_nothing_else(void **state)
{
    static const size_t lengths[] = { 0, 1, 63, 64, 1023, 1024, 1025, 1087, 1088, 1089, 2000, 4096 };
    static uint8_t from[ROOM + MARGIN];

    (void)state;
    for (size_t i = 0; i < sizeof(from); i++)
        from[i] = (uint8_t)(i * 151 + (i >> 8));
    for (size_t k = 0; k < sizeof(lengths) / sizeof(*lengths); k++)
        for (size_t at = 0; at < MARGIN; at++) {
            compare(from, at, 0, lengths[k]);
            compare(from, 64, at, lengths[k]);
            compare(from, at, (at * 7) % MARGIN, lengths[k]);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(copies_are_complete_and_change_nothing_else) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
