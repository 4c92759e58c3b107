/* The bytes of exchange heads, message heads and life messages, written out by hand, and what a reader rejects. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/err.h"
#include "comm/channel.h"
#include "comm/comm.h"
#include "comm/message.h"
#include "comm/spare_lanes.h"

enum { WORLD = 8, MEMBERS = 4, PEER = 2, CHANGES = 16 };

/* A change of one byte, and a part of the error that follows. */
struct change {
    size_t at;
    uint8_t value;
    const char *why;
};

/* ---- the head of an exchange ---- */

static const uint8_t reduce_head[MESSAGE_HEAD_BYTES] = {
    'x',  'c',  'h',  'g',                          /* magic */
    0x04, 0x03, 0x02, 0x01,                         /* number 0x01020304 */
    0x08, 0x07, 0x06, 0x05, 0,    0,    0,    0,    /* count 0x05060708 */
    0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11, /* tag 0x1112131415161718 */
    0,                                              /* all-reduce */
    1,                                              /* float32 */
    1,                                              /* maximum */
    0,                                              /* zero */
    0,    0,    0,    0,                            /* no root */
};

static const uint8_t broadcast_head[MESSAGE_HEAD_BYTES] = {
    'x', 'c', 'h', 'g', 9, 0, 0, 0, /* number 9 */
    3,   0,   0,   0,   0, 0, 0, 0, /* 3 bytes */
    0,   0,   0,   0,   1, 0, 0, 0, /* tag 1 << 32 */
    3,                              /* broadcast */
    2,                              /* uint8 */
    0,                              /* no operation */
    0,   7,   0,   0,   0,          /* zero; root 7 */
};

static const uint8_t barrier_head[MESSAGE_HEAD_BYTES] = {
    'x', 'c', 'h', 'g', 1, [24] = 4, [25] = 2, /* number 1; barrier of uint8 */
};

static const uint8_t coded_head[MESSAGE_HEAD_BYTES] = {
    'x', 'c', 'h', 'g', 2, [8] = 3, [24] = 5, [25] = 1, [26] = 3, /* number 2; 3 float32 as int8 */
};

static const uint8_t spared_head[MESSAGE_HEAD_BYTES] = {
    'x', 'c', 'h', 'g', 2, [8] = 3, [24] = 7, [25] = 1, [27] = 2, /* number 2; 3 float32; the block is apart */
};

static void head_is_written_as_the_layout_states(void **state)
{
    const struct comm_call coded = { .count = 3,
                                     .number = 2,
                                     .what = COMM_ALL_REDUCE_CODED,
                                     .dtype = TENSOR_F32,
                                     .op = CODE_INT8 };
    const struct comm_call spared = { .count = 3,
                                      .number = 2,
                                      .what = COMM_ALL_REDUCE_SPARED,
                                      .dtype = TENSOR_F32,
                                      .spare = SPARE_APART };
    const struct comm_call reduce = { .count = 0x05060708,
                                      .offset = 99,
                                      .number = 0x01020304,
                                      .what = COMM_ALL_REDUCE,
                                      .dtype = TENSOR_F32,
                                      .op = COMM_MAX };
    const struct comm_call broadcast = {
        .count = 3, .number = 9, .what = COMM_BROADCAST, .dtype = TENSOR_U8, .root = 7
    };
    const struct comm_call barrier = { .number = 1, .what = COMM_BARRIER, .dtype = TENSOR_U8 };
    uint8_t bytes[MESSAGE_HEAD_BYTES];

    (void)state;
    message_head_write(&reduce, 0x1112131415161718, bytes);
    assert_memory_equal(bytes, reduce_head, sizeof(bytes));
    message_head_write(&broadcast, (uint64_t)1 << 32, bytes);
    assert_memory_equal(bytes, broadcast_head, sizeof(bytes));
    message_head_write(&barrier, 0, bytes);
    assert_memory_equal(bytes, barrier_head, sizeof(bytes));
    message_head_write(&coded, 0, bytes);
    assert_memory_equal(bytes, coded_head, sizeof(bytes));
    message_head_write(&spared, 0, bytes);
    assert_memory_equal(bytes, spared_head, sizeof(bytes));
}

static void head_is_read_as_it_was_written(void **state)
{
    struct comm_call c;
    struct err err;
    uint64_t tag;

    (void)state;
    assert_int_equal(message_head_read(reduce_head, WORLD, &c, &tag, &err), 0);
    assert_true(c.count == 0x05060708 && c.offset == 0 && c.number == 0x01020304 &&
                c.what == COMM_ALL_REDUCE && c.dtype == TENSOR_F32 && c.op == COMM_MAX &&
                c.spare == 0 && c.root == 0 && c.stride == 0);
    assert_true(tag == 0x1112131415161718);
    assert_int_equal(message_head_read(broadcast_head, WORLD, &c, &tag, &err), 0);
    assert_true(c.count == 3 && c.number == 9 && c.what == COMM_BROADCAST && c.dtype == TENSOR_U8 &&
                c.op == 0 && c.root == 7 && tag == (uint64_t)1 << 32);
    assert_int_equal(message_head_read(barrier_head, WORLD, &c, &tag, &err), 0);
    assert_true(c.count == 0 && c.number == 1 && c.what == COMM_BARRIER && tag == 0);
    assert_int_equal(message_head_read(coded_head, WORLD, &c, &tag, &err), 0);
    assert_true(c.count == 3 && c.number == 2 && c.what == COMM_ALL_REDUCE_CODED &&
                c.op == CODE_INT8);
    assert_int_equal(message_head_read(spared_head, WORLD, &c, &tag, &err), 0);
    assert_true(c.count == 3 && c.number == 2 && c.what == COMM_ALL_REDUCE_SPARED &&
                c.spare == SPARE_APART);
}

static void expect_bad_heads(const uint8_t good[MESSAGE_HEAD_BYTES], const struct change *changes)
{
    for (size_t i = 0; changes[i].why != NULL; i++) {
        struct comm_call call = { .number = 4711 };
        uint8_t bytes[MESSAGE_HEAD_BYTES];
        uint64_t tag = 4711;
        struct err err;

        memcpy(bytes, good, sizeof(bytes));
        bytes[changes[i].at] = changes[i].value;
        if (message_head_read(bytes, WORLD, &call, &tag, &err) != ERR_PEER)
            fail_msg("byte %zu = %u is accepted", changes[i].at, changes[i].value);
        if (strstr(err.text, changes[i].why) == NULL)
            fail_msg("byte %zu = %u: '%s', expected '%s'", changes[i].at, changes[i].value,
                     err.text, changes[i].why);
        assert_true(call.number == 4711 && tag == 4711);
    }
}

static void head_with_an_invalid_field_is_rejected(void **state)
{
    (void)state;
    expect_bad_heads(reduce_head, (struct change[CHANGES]){
        { 0, 'X', "bytes 0 to 3 are 58 63 68 67, expected the magic \"xchg\"" },
        { 3, 'h', "magic" },
        { 15, 0x80, "elements are not possible" },             /* more than memory can be */
        { 15, 0x20, "elements are not possible" },             /* nor does count * 4 */
        { 24, 8, "kind of call 8, expected at most 7" },
        { 24, 255, "kind of call 255" },
        { 25, 0, "element type 0 is not possible" },           /* no type */
        { 25, 2, "element type 2 is not possible" },           /* uint8 cannot be added */
        { 25, 255, "element type 255 is not possible" },
        { 26, 2, "operation 2 is not possible" },              /* or: not of floats */
        { 26, 3, "operation 3 is not possible" },
        { 26, 255, "operation 255 is not possible" },
        { 27, 1, "the state of a spare block is 1, expected 0 in a call of kind 0" },
        { 28, 1, "root is rank 1, expected 0" },
        { 31, 1, "root is rank 16777216, expected 0" },
        { 0, 0, NULL } });
    expect_bad_heads(broadcast_head, (struct change[CHANGES]){
        { 25, 1, "element type 1 is not possible" },
        { 26, 1, "operation 1 is not possible" },
        { 28, 8, "root is rank 8, expected a rank of this world" },
        { 31, 255, "expected a rank of this world" },
        { 0, 0, NULL } });
    expect_bad_heads(barrier_head, (struct change[CHANGES]){
        { 8, 1, "1 elements are not possible" },
        { 25, 1, "element type 1 is not possible" },
        { 26, 1, "operation 1 is not possible" },
        { 28, 1, "root is rank 1" },
        { 0, 0, NULL } });
    expect_bad_heads(coded_head, (struct change[CHANGES]){
        { 25, 11, "element type 11 is not possible" },         /* float64 */
        { 26, 0, "operation 0 is not possible" },              /* no code */
        { 26, 5, "operation 5 is not possible" },
        { 28, 1, "root is rank 1" },
        { 0, 0, NULL } });
    expect_bad_heads(spared_head, (struct change[CHANGES]){
        { 27, 3, "the state of a spare block is 3, expected at most 2" },
        { 26, 2, "operation 2 is not possible" },
        { 28, 1, "root is rank 1" },
        { 0, 0, NULL } });
}

static void call_in_the_page_with_a_reserved_byte_is_rejected(void **state)
{
    struct comm_call call = { .what = COMM_BARRIER, .dtype = TENSOR_U8 };
    struct err err;

    (void)state;
    assert_int_equal(message_check_call(&call, WORLD, &err), 0);
    call.spare = 1;
    assert_int_equal(message_check_call(&call, WORLD, &err), ERR_PEER);
}

/* ---- life messages ---- */

static const uint8_t bye[MESSAGE_LIFE_BYTES] = {
    'l', 'i', 'f', 'e', 2, 0, 0, 0, /* version 2 */
    1,   0,   0,   0,               /* BYE */
    2,   0,   0,   0,               /* from member 2 */
};
static const uint8_t over[MESSAGE_LIFE_BYTES] = {
    'l', 'i', 'f', 'e', 2, 0, 0, 0, 2, 0, 0, 0, /* OVER */
    3,   0,   0,   0,                           /* member 3 is to blame */
    'l', 'a', 't', 'e', 0,
};
static const uint8_t join[MESSAGE_LIFE_BYTES] = {
    'l', 'i', 'f', 'e', 2, 0, 0, 0, 3, 0, 0, 0, /* JOIN */
    2,   0,   0,   0,                           /* from member 2 */
    0,   0,   1,   0,   0, 0, 0, 0,             /* 65536 bytes */
    [24] = 0x05, [151] = 0x80,                  /* cores 0, 2 and 1023 */
};
static const uint8_t part[MESSAGE_LIFE_BYTES] = {
    'l',  'i',  'f',  'e',  2, 0, 0,    0, 4, 0, 0, 0, /* PART */
    0xff, 0xff, 0xff, 0xff,                            /* the page */
    1,    0,    0,    0,    0, 0, 0x10, 0,             /* 2^52 + 1 bytes */
};

static const uint8_t offer[MESSAGE_LIFE_BYTES] = {
    'l',  'i',  'f',  'e',  2, 0, 0, 0, 5, 0, 0, 0, /* OFFER */
    2,    0,    0,    0,                            /* from member 2 */
    0x04, 0x03, 0x02, 0x81,                         /* for call 0x81020304 */
};

static void life_message_is_written_as_the_layout_states(void **state)
{
    static const struct {
        struct life_message m;
        const uint8_t *bytes;
    } cases[] = {
        { { .what = LIFE_BYE, .member = 2, .why = "not sent", .bytes = 1, .cores = { 1 } }, bye },
        { { .what = LIFE_OVER, .member = 3, .why = "late", .bytes = 1, .cores = { 1 } }, over },
        { { .what = LIFE_JOIN,
            .member = 2,
            .why = "not sent",
            .bytes = 65536,
            .cores = { 0x05, [127] = 0x80 } },
          join },
        { { .what = LIFE_PART,
            .member = LIFE_PAGE,
            .bytes = ((uint64_t)1 << 52) + 1,
            .cores = { 1 } },
          part },
        { { .what = LIFE_OFFER, .member = 2, .why = "not sent", .bytes = 0x81020304, .cores = { 1 } }, offer },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        uint8_t bytes[MESSAGE_LIFE_BYTES];

        memset(bytes, 0xee, sizeof(bytes));
        message_life_write(&cases[i].m, bytes);
        assert_memory_equal(bytes, cases[i].bytes, sizeof(bytes));
    }
}

static void life_message_is_read_as_it_was_written(void **state)
{
    static const uint8_t no_cores[COMM_CORES_BYTES] = { 0 },
                         cores[COMM_CORES_BYTES] = { 0x05, [127] = 0x80 };
    struct life_message m;
    struct err err;

    (void)state;
    assert_int_equal(message_life_read(bye, PEER, MEMBERS, &m, &err), 0);
    assert_true(m.what == LIFE_BYE && m.member == 2 && m.why[0] == '\0' && m.bytes == 0);
    assert_int_equal(message_life_read(over, PEER, MEMBERS, &m, &err), 0);
    assert_true(m.what == LIFE_OVER && m.member == 3 && m.bytes == 0);
    assert_string_equal(m.why, "late");
    assert_int_equal(message_life_read(join, PEER, MEMBERS, &m, &err), 0);
    assert_true(m.what == LIFE_JOIN && m.member == 2 && m.why[0] == '\0' && m.bytes == 65536);
    assert_memory_equal(m.cores, cores, sizeof(cores));
    assert_int_equal(message_life_read(part, PEER, MEMBERS, &m, &err), 0);
    assert_true(m.what == LIFE_PART && m.member == LIFE_PAGE && m.bytes == ((uint64_t)1 << 52) + 1);
    assert_memory_equal(m.cores, no_cores, sizeof(no_cores));
    assert_int_equal(message_life_read(offer, PEER, MEMBERS, &m, &err), 0);
    assert_true(m.what == LIFE_OFFER && m.member == 2 && m.why[0] == '\0' && m.bytes == 0x81020304);
    assert_memory_equal(m.cores, no_cores, sizeof(no_cores));
}

static void longest_reason_keeps_its_nul(void **state)
{
    struct life_message m = { .what = LIFE_OVER, .member = COMM_NO_MEMBER }, back;
    uint8_t bytes[MESSAGE_LIFE_BYTES];
    struct err err;

    (void)state;
    memset(m.why, 'y', sizeof(m.why)); /* without a NUL: the writer cuts the text */
    message_life_write(&m, bytes);
    assert_int_equal(bytes[MESSAGE_LIFE_BYTES - 2], 'y');
    assert_int_equal(bytes[MESSAGE_LIFE_BYTES - 1], 0);
    assert_int_equal(message_life_read(bytes, PEER, MEMBERS, &back, &err), 0);
    assert_int_equal(strlen(back.why), COMM_WHY_BYTES - 1);
    assert_true(back.member == COMM_NO_MEMBER);
}

static void expect_bad_lives(const uint8_t good[MESSAGE_LIFE_BYTES], const struct change *changes)
{
    for (size_t i = 0; changes[i].why != NULL; i++) {
        struct life_message m = { .what = 4711 };
        uint8_t bytes[MESSAGE_LIFE_BYTES];
        struct err err;

        memcpy(bytes, good, sizeof(bytes));
        bytes[changes[i].at] = changes[i].value;
        if (message_life_read(bytes, PEER, MEMBERS, &m, &err) != ERR_PEER)
            fail_msg("byte %zu = %u is accepted", changes[i].at, changes[i].value);
        if (strstr(err.text, changes[i].why) == NULL)
            fail_msg("byte %zu = %u: '%s', expected '%s'", changes[i].at, changes[i].value,
                     err.text, changes[i].why);
        assert_int_equal(m.what, 4711);
    }
}

static void life_message_with_an_invalid_field_is_rejected(void **state)
{
    uint8_t endless[MESSAGE_LIFE_BYTES], empty[MESSAGE_LIFE_BYTES];

    (void)state;
    memcpy(endless, over, sizeof(endless));
    memset(endless + 16, 'y', COMM_WHY_BYTES);
    memcpy(empty, join, sizeof(empty));
    memset(empty + 16, 0, 8);
    expect_bad_lives(offer, (struct change[CHANGES]){
        { 12, 1, "it names member 1 as its sender, expected 2" },
        { 20, 1, "it offers a block for call 6459360004" },
        { 24, 1, "bytes 24 to 255 are not all zero" },
        { 255, 1, "bytes 24 to 255 are not all zero" },
        { 0, 0, NULL } });
    expect_bad_lives(bye, (struct change[CHANGES]){
        { 0, 'L', "expected the magic \"life\"" },
        { 4, 1, "version 1, expected 2" },
        { 7, 1, "version 16777218, expected 2" },
        { 8, 0, "kind 0, expected 1 to 5" },
        { 8, 6, "kind 6, expected 1 to 5" },
        { 11, 1, "kind 16777217" },
        { 12, 1, "it names member 1 as its sender, expected 2" },
        { 16, 1, "bytes 16 to 255 are not all zero" },
        { 255, 1, "bytes 16 to 255 are not all zero" },
        { 0, 0, NULL } });
    expect_bad_lives(over, (struct change[CHANGES]){
        { 12, 4, "it names member 4 of 4" },
        { 15, 1, "it names member 16777219 of 4" },
        { 0, 0, NULL } });
    expect_bad_lives(endless, (struct change[CHANGES]){
        { 255, 'y', "its reason does not end within 240 bytes" },
        { 0, 0, NULL } });
    expect_bad_lives(join, (struct change[CHANGES]){
        { 12, 3, "it names member 3 as its sender, expected 2" },
        { 23, 0x80, "it passes memory of 9223372036854841344 bytes" },
        { 152, 1, "bytes 152 to 255 are not all zero" },
        { 255, 1, "bytes 152 to 255 are not all zero" },
        { 0, 0, NULL } });
    expect_bad_lives(empty, (struct change[CHANGES]){
        { 16, 0, "it passes memory of 0 bytes" },
        { 0, 0, NULL } });
    expect_bad_lives(part, (struct change[CHANGES]){
        { 12, 4, "it names member 4294967044 of 4" },
        { 24, 1, "bytes 24 to 255 are not all zero" },
        { 0, 0, NULL } });
}

/* ---- the head of a message on a channel ---- */

static void channel_head_is_written_and_read_as_the_layout_states(void **state)
{
    static const uint8_t head[MESSAGE_CHANNEL_BYTES] = {
        'm', 'e', 's', 'g', 1, 0, 0, 0, 3, 2, 1, 0, 0, 0, 0, 0 /* 0x010203 bytes in the ring */
    };
    uint8_t bytes[MESSAGE_CHANNEL_BYTES];
    enum channel_where where = CHANNEL_OFFER;
    size_t n = 0;

    (void)state;
    message_channel_write(CHANNEL_RING, 0x010203, bytes);
    assert_memory_equal(bytes, head, sizeof(head));
    assert_int_equal(message_channel_read(head, &where, &n, NULL), 0);
    assert_int_equal(where, CHANNEL_RING);
    assert_int_equal(n, 0x010203);
    message_channel_write(CHANNEL_STREAM, COMM_MESSAGE_MAX, bytes);
    assert_int_equal(message_channel_read(bytes, &where, &n, NULL), 0);
    assert_int_equal(where, CHANNEL_STREAM);
    assert_int_equal(n, COMM_MESSAGE_MAX);
    message_channel_write(CHANNEL_OFFER, 0, bytes);
    assert_int_equal(message_channel_read(bytes, &where, &n, NULL), 0);
    assert_int_equal(where, CHANNEL_OFFER);
    assert_int_equal(n, 0);
}

static void channel_head_with_an_invalid_field_is_rejected(void **state)
{
    static const struct change changes[] = {
        { 0, 'x', "bytes 0 to 3 are 78 65 73 67, expected the magic \"mesg\"" },
        { 3, 0, "the magic \"mesg\"" },
        { 4, 2, "an offer of 268435456 bytes, expected 0" },
        { 4, 3, "place 3 of a message, expected 0 to 2" },
        { 7, 0x80, "place 2147483648 of a message" },
        { 8, 1, "a message of 268435457 bytes, expected at most 268435456" },
        { 12, 1, "a message of 4563402752 bytes" },
        { 15, 0xff, "expected at most 268435456" },
    };
    struct err err;

    (void)state;
    for (size_t i = 0; i < sizeof(changes) / sizeof(*changes); i++) {
        uint8_t bytes[MESSAGE_CHANNEL_BYTES];
        enum channel_where where = CHANNEL_RING;
        size_t n = 77;

        message_channel_write(CHANNEL_STREAM, COMM_MESSAGE_MAX, bytes);
        bytes[changes[i].at] = changes[i].value;
        assert_int_equal(message_channel_read(bytes, &where, &n, &err), ERR_PEER);
        assert_int_equal(where, CHANNEL_RING);
        if (strstr(err.text, changes[i].why) == NULL)
            fail_msg("'%s' does not contain '%s'", err.text, changes[i].why);
        assert_int_equal(n, 77);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(head_is_written_as_the_layout_states),
        cmocka_unit_test(head_is_read_as_it_was_written),
        cmocka_unit_test(head_with_an_invalid_field_is_rejected),
        cmocka_unit_test(call_in_the_page_with_a_reserved_byte_is_rejected),
        cmocka_unit_test(channel_head_is_written_and_read_as_the_layout_states),
        cmocka_unit_test(channel_head_with_an_invalid_field_is_rejected),
        cmocka_unit_test(life_message_is_written_as_the_layout_states),
        cmocka_unit_test(life_message_is_read_as_it_was_written),
        cmocka_unit_test(longest_reason_keeps_its_nul),
        cmocka_unit_test(life_message_with_an_invalid_field_is_rejected),
    };

    return cmocka_run_group_tests_name("comm/message", tests, NULL, NULL);
}
