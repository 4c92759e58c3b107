/* The page of a host: the bytes that identify it, and what a follower rejects. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/err.h"
#include "comm/page.h"

enum { SLOTS = 3, BYTES = 320 + SLOTS * (128 + 2 * 16384) };

static struct host_page *new_page(void)
{
    struct host_page *page = aligned_alloc(64, (BYTES + 63) / 64 * 64);

    assert_non_null(page);
    memset(page, 0, BYTES);
    page_init(page, SLOTS);
    return page;
}

static void page_begins_with_the_fields_that_identify_it(void **state)
{
    static const uint8_t head[24] = {
        'p',  'n',  'r',  't', /* magic */
        4,    0,    0,    0,   /* layout */
        0xc0, 0x82, 0x01, 0,   /* 320 + 3 * 32896 = 99008 bytes */
        0,    0,    0,    0,   /* likewise */
        3,    0,    0,    0,   /* slots */
        0,    0,    0,    0,   /* spin: the leader decides later */
    };
    struct host_page *page = new_page();
    struct err err;

    (void)state;
    assert_int_equal(page_bytes(SLOTS), BYTES);
    assert_memory_equal(page, head, sizeof(head));
    assert_int_equal((uint8_t *)&page->slots[1] - (uint8_t *)page, 320 + 128);
    assert_int_equal((uint8_t *)&page->slots[2].calls[1] - (uint8_t *)page,
                     320 + 2 * 128 + 64 + 32);
    assert_int_equal(page_check(page, SLOTS, &err), 0);
    free(page);
}

static void page_with_an_invalid_field_is_rejected(void **state)
{
    static const struct {
        size_t at;
        uint8_t value;
        const char *why;
    } cases[] = {
        { 0, 'P', "magic 0x74726e50, expected 0x74726e70" },
        { 4, 0, "layout 0, expected 4" },
        { 4, 2, "layout 2, expected 4" },
        { 8, 0xc1, "99009 bytes, expected 99008" },
        { 15, 1, "expected 99008" },
        { 16, 2, "it has 2 slots, expected 3" },
        { 19, 0xff, "expected 3" },
    };
    struct host_page *page = new_page();
    struct err err;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        uint8_t *byte = (uint8_t *)page + cases[i].at, was = *byte;

        *byte = cases[i].value;
        assert_int_equal(page_check(page, SLOTS, &err), ERR_PEER);
        if (strstr(err.text, cases[i].why) == NULL)
            fail_msg("byte %zu: '%s', expected '%s'", cases[i].at, err.text, cases[i].why);
        *byte = was;
    }
    assert_int_equal(page_check(page, SLOTS, &err), 0);
    free(page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(page_begins_with_the_fields_that_identify_it),
        cmocka_unit_test(page_with_an_invalid_field_is_rejected),
    };

    return cmocka_run_group_tests_name("comm/page", tests, NULL, NULL);
}
