/* Tests of the cost of the frames of a client, for any split of the bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "rdzv/frames.h"

enum { HEADERS = 1, RST_STREAM = 3, PING = 6 };

static size_t put_frame(uint8_t *to, uint8_t type, uint32_t payload)
{
    memset(to, 0, FRAMES_HEAD_BYTES + payload);
    to[0] = (uint8_t)(payload >> 16);
    to[1] = (uint8_t)(payload >> 8);
    to[2] = (uint8_t)payload;
    to[3] = type;
    return FRAMES_HEAD_BYTES + payload;
}

static size_t put_stream(uint8_t *to)
{
    size_t n = FRAMES_PREFACE_BYTES;

    memcpy(to, frames_preface, n);
    n += put_frame(to + n, HEADERS, 300);
    n += put_frame(to + n, 0, 4096); /* DATA */
    n += put_frame(to + n, PING, 8);
    return n + put_frame(to + n, RST_STREAM, 4);
}

static void frames_split_anywhere_cost_is_equal(void **state)
{
    static uint8_t bytes[8192];
    size_t n = put_stream(bytes), piece;
    double whole = 0;
    struct frames f = { 0 };

    (void)state;
    assert_true(frames_read(&f, bytes, n, &whole));
    assert_true(frames_has_preface(&f) && f.rest == 0 && f.n_head == 0);
    assert_true(whole > 1 + 0.25 + 1 + 4 && whole < 1 + 0.25 + 1 + 4 + 0.5); /* with the payload */
    for (piece = 1; piece < 64; piece++) {
        double cost = 0;
        size_t at;

        memset(&f, 0, sizeof(f));
        for (at = 0; at < n; at += piece)
            assert_true(frames_read(&f, bytes + at, n - at < piece ? n - at : piece, &cost));
        assert_true(cost > whole - 1e-6 && cost < whole + 1e-6);
    }
}

static void preface_wrong_byte_is_detected_at_once(void **state)
{
    static const char get[] = "GET / HTTP/1.1\r\n\r\n", nearly[] = "PRI * HTTP/2.0\r\n\r\nSMS";
    struct frames f = { 0 };
    double cost = 0;

    (void)state;
    assert_false(frames_read(&f, (const uint8_t *)get, 1, &cost));
    memset(&f, 0, sizeof(f));
    assert_true(frames_read(&f, (const uint8_t *)nearly, 20, &cost));
    assert_false(frames_has_preface(&f));
    assert_false(frames_read(&f, (const uint8_t *)nearly + 20, 1, &cost));
    assert_true(cost == 0);
}

static void reset_stream_costs_more_than_a_message(void **state)
{
    uint8_t bytes[64];
    struct frames f = { .n_preface = FRAMES_PREFACE_BYTES };
    double message = 0, reset = 0;

    (void)state;
    assert_true(frames_read(&f, bytes, put_frame(bytes, 0, 8), &message));
    assert_true(frames_read(&f, bytes, put_frame(bytes, RST_STREAM, 4), &reset));
    assert_true(reset > 10 * message);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_split_anywhere_cost_is_equal),
        cmocka_unit_test(preface_wrong_byte_is_detected_at_once),
        cmocka_unit_test(reset_stream_costs_more_than_a_message),
    };

    return cmocka_run_group_tests_name("rdzv/frames", tests, NULL, NULL);
}
