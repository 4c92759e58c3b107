#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdbool.h>
#include <string.h>

#include "base/buf.h"
#include "base/bytes.h"
#include "preflight/group.h"
#include "preflight/message.h"

static const uint8_t *body_of(const struct buf *message, enum message_kind kind, size_t *n)
{
    enum message_kind got;
    uint32_t length;

    assert_true(message_read_head((uint8_t *)message->data, &got, &length));
    assert_int_equal(got, kind);
    assert_int_equal(message->len, MESSAGE_HEAD + length);
    *n = length;
    return (uint8_t *)message->data + MESSAGE_HEAD;
}

static void row_is_read_as_it_was_written(void **state)
{
    struct group g;
    struct preflight_entry entries[GROUP];
    struct preflight_row row = { .entries = entries };
    struct buf out = { 0 };
    uint32_t rank;
    size_t n;
    const uint8_t *body;

    (void)state;
    group_init(&g, GROUP);
    message_write_row(2, GROUP, &g.rows[2], &out);
    body = body_of(&out, MESSAGE_ROW_IS, &n);
    assert_true(message_read_row(body, n, GROUP, &rank, &row));
    assert_int_equal(rank, 2);
    assert_memory_equal(&row.facts, &g.rows[2].facts, sizeof(row.facts));
    assert_memory_equal(entries, g.entries[2], sizeof(entries));
    assert_false(message_read_row(body, n, GROUP - 1, &rank, &row));
    for (size_t less = 0; less < n; less++)
        assert_false(message_read_row(body, less, GROUP, &rank, &row));
    buf_fini(&out);
}

static void hello_is_read_as_it_was_written(void **state)
{
    struct group g;
    struct message_hello hello = { .rank = 1, .world = 3 }, got;
    struct buf out = { 0 };
    size_t n;
    const uint8_t *body;

    (void)state;
    group_init(&g, GROUP);
    hello.facts = g.rows[1].facts;
    message_write_hello(&hello, &out);
    body = body_of(&out, MESSAGE_HELLO, &n);
    assert_true(message_read_hello(body, n, &got));
    assert_int_equal(got.rank, 1);
    assert_int_equal(got.world, 3);
    assert_memory_equal(&got.facts, &hello.facts, sizeof(got.facts));
    buf_fini(&out);
}

static void values_out_of_range_are_refused(void **state)
{
    struct group g;
    struct preflight_entry entries[GROUP], *e;
    struct preflight_row row = { .entries = entries };

    (void)state;
    for (int i = 0; i < 7; i++) {
        struct buf out = { 0 };
        uint32_t rank;
        size_t n;
        const uint8_t *body;

        group_init(&g, GROUP);
        e = &g.entries[0][1];
        if (i == 0)
            e->control = PREFLIGHT_REACHES;
        else if (i == 1)
            e->lock = PREFLIGHT_CHECKS;
        else if (i == 2)
            e->rate = UINT64_MAX;
        else if (i == 3)
            e->skew_us = INT64_MIN;
        else if (i == 4)
            e->mtu = UINT32_MAX;
        else if (i == 5)
            g.rows[0].facts.devices[0] = '\x1b'; /* would control a terminal */
        else
            g.rows[0].facts.data_port = 65536;
        message_write_row(0, GROUP, &g.rows[0], &out);
        body = body_of(&out, MESSAGE_ROW_IS, &n);
        assert_false(message_read_row(body, n, GROUP, &rank, &row));
        buf_fini(&out);
    }
}

static void head_with_another_mark_kind_or_length_is_refused(void **state)
{
    struct buf out = { 0 };
    enum message_kind kind;
    uint32_t n;
    uint8_t head[MESSAGE_HEAD];

    (void)state;
    message_write(MESSAGE_PING, NULL, 0, &out);
    memcpy(head, out.data, sizeof(head));
    assert_true(message_read_head(head, &kind, &n));
    bytes_set_u32(head + 4, MESSAGE_BODY_MAX + 1);
    assert_false(message_read_head(head, &kind, &n));
    memcpy(head, "\0\0\x06\x04\0\0\0\0", sizeof(head)); /* SETTINGS of an HTTP/2 server */
    assert_false(message_read_head(head, &kind, &n));
    buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(row_is_read_as_it_was_written),
        cmocka_unit_test(hello_is_read_as_it_was_written),
        cmocka_unit_test(values_out_of_range_are_refused),
        cmocka_unit_test(head_with_another_mark_kind_or_length_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
