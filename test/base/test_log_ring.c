#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/log_ring.h"

static struct log_ring_record found[2 * LOG_RING_RECORDS];

static uint64_t newest(void)
{
    uint64_t last;

    (void)log_ring_read(UINT64_MAX, false, found, 1, &last);
    return last;
}

static void ring_frequent_records_do_not_displace_events(void **state)
{
    uint64_t before = newest(), last;
    char text[32];
    size_t n;

    (void)state;
    log_ring_add(LOG_INFO, "view", "generation 1");
    for (int i = 0; i < 3 * LOG_RING_RECORDS; i++) {
        snprintf(text, sizeof(text), "step %d", i);
        log_ring_add(LOG_INFO, "step", text);
    }
    log_ring_add(LOG_DEBUG, "view", "not kept");
    log_ring_add(LOG_WARN, "step", "a warning is an event");
    n = log_ring_read(before, true, found, LOG_RING_RECORDS, &last);
    assert_int_equal(n, 2);
    assert_string_equal(found[0].message, "generation 1");
    assert_string_equal(found[1].message, "a warning is an event");
    assert_int_equal(last, before + 2 + 3 * LOG_RING_RECORDS);
    n = log_ring_read(before, false, found, 2 * LOG_RING_RECORDS, &last);
    assert_int_equal(n, LOG_RING_RECORDS + 2);
    for (size_t i = 1; i < n; i++)
        assert_true(found[i - 1].number < found[i].number);
    assert_string_equal(found[1].message, "step 512"); /* the oldest of the newest 256 */
}

static void ring_read_with_little_room_returns_the_newest(void **state)
{
    uint64_t before = newest(), last;

    (void)state;
    log_ring_add(LOG_INFO, "view", "a");
    log_ring_add(LOG_INFO, "step", "b");
    log_ring_add(LOG_ERROR, "end", "c");
    assert_int_equal(log_ring_read(before, false, found, 2, &last), 2);
    assert_string_equal(found[0].message, "b");
    assert_string_equal(found[1].message, "c");
    assert_int_equal(found[1].level, LOG_ERROR);
    assert_int_equal(log_ring_read(last, false, found, 2, &last), 0);
}

static void ring_long_message_is_cut_between_characters(void **state)
{
    char text[2 * LOG_RING_BYTES];
    uint64_t before = newest(), last;

    (void)state;
    memset(text, 'x', sizeof(text));
    memcpy(text + LOG_RING_BYTES - 2, "\xc3\xa4", 2); /* its first byte is the last one that has room */
    text[sizeof(text) - 1] = '\0';
    log_ring_add(LOG_INFO, "view", text);
    assert_int_equal(log_ring_read(before, true, found, 1, &last), 1);
    assert_int_equal(strlen(found[0].message), LOG_RING_BYTES - 2);
}

static void ring_keeps_what_the_log_writes(void **state)
{
    uint64_t before = newest(), last;

    (void)state;
    log_init(LOG_TEXT, LOG_INFO);
    log_debug("view", "below the level");
    log_info("view", "%s", "kept");
    assert_int_equal(log_ring_read(before, true, found, 2, &last), 1);
    assert_string_equal(found[0].message, "kept");
    assert_string_equal(found[0].event, "view");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ring_frequent_records_do_not_displace_events),
        cmocka_unit_test(ring_read_with_little_room_returns_the_newest),
        cmocka_unit_test(ring_long_message_is_cut_between_characters),
        cmocka_unit_test(ring_keeps_what_the_log_writes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
