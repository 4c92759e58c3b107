/* test_transfer_chunk.c - tests the byte layout of the header of a chunk, and which chunks a
 * receiver rejects. */
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/err.h"
#include "train/health_types.h"
#include "train/state.h"
#include "train/transfer_chunk.h"

enum { OFFSET = 0x01020304, STEP = 7 };
static const uint32_t CRC = 0x18718682;

static const uint8_t state_bytes[5] = { 1, 2, 3, 4, 5 };

static const struct facts facts = {
    .step = STEP,
    .evaluated_step = 6,
    .loss = 0.5,
    .grad_norm = -2,
    .skips_in_row = 3,
    .scale = { .scale = 65536, .good = 0x0a0b },
    .plateau = { .step = 4, .has_best = true, .best = 0.25, .waited = 2, .reductions = 1 },
    .grad_scale = 0.25f,
    .learning_rate = 2,
    .is_skipped = true,
    .coding = CODING_ON,
};

static const uint8_t golden[TRANSFER_HEAD_BYTES] = {
    't', 'r', 'n', 'c', 'h', 'u', 'n', 'k',
    3, 0, 0, 0,                   /* version */
    0, 0, 0, 0,                   /* crc: see golden_head() */
    4, 3, 2, 1, 0, 0, 0, 0,       /* offset 0x01020304 */
    5, 0, 0, 0, 0, 0, 0, 0,       /* 5 bytes */
    7, 0, 0, 0, 0, 0, 0, 0,       /* step */
    6, 0, 0, 0, 0, 0, 0, 0,       /* evaluated_step */
    0, 0, 0, 0, 0, 0, 0xe0, 0x3f, /* loss 0.5 */
    0, 0, 0, 0, 0, 0, 0x00, 0xc0, /* grad_norm -2 */
    3, 0, 0, 0,                   /* skips_in_row */
    0x0b, 0x0a, 0, 0,             /* scale.good */
    0, 0, 0, 0, 0, 0, 0xf0, 0x40, /* scale.scale 65536 */
    4, 0, 0, 0, 0, 0, 0, 0,       /* plateau.step */
    0, 0, 0, 0, 0, 0, 0xd0, 0x3f, /* plateau.best 0.25 */
    2, 0, 0, 0,                   /* plateau.waited */
    1, 0, 0, 0,                   /* plateau.reductions */
    1, 0, 0, 0,                   /* plateau.has_best */
    0, 0, 0x80, 0x3e,             /* grad_scale 0.25 */
    0, 0, 0, 0, 0, 0, 0x00, 0x40, /* learning_rate 2 */
    1, 0, 0, 0,                   /* is_skipped */
    2, 0, 0, 0,                   /* coding: on */
};

/* Writes the checksum of `head` and state. */
static void seal(uint8_t head[TRANSFER_HEAD_BYTES], const uint8_t *state, size_t n)
{
    uint8_t all[TRANSFER_HEAD_BYTES + sizeof(state_bytes)];

    assert_true(n <= sizeof(state_bytes));
    bytes_set_u32(head + 12, 0);
    memcpy(all, head, TRANSFER_HEAD_BYTES);
    memcpy(all + TRANSFER_HEAD_BYTES, state, n);
    bytes_set_u32(head + 12, crc32c(0, all, TRANSFER_HEAD_BYTES + n));
}

static void golden_head(uint8_t head[TRANSFER_HEAD_BYTES])
{
    memcpy(head, golden, TRANSFER_HEAD_BYTES);
    bytes_set_u32(head + 12, CRC);
}

static int read_head(const uint8_t head[TRANSFER_HEAD_BYTES], struct facts *out, struct err *err)
{
    return transfer_chunk_read(head, OFFSET, state_bytes, sizeof(state_bytes), STEP, out, err);
}

static void head_is_written_as_the_layout_states(void **state)
{
    uint8_t head[TRANSFER_HEAD_BYTES], want[TRANSFER_HEAD_BYTES];

    (void)state;
    memset(head, 0xee, sizeof(head));
    golden_head(want);
    transfer_chunk_write(OFFSET, &facts, state_bytes, sizeof(state_bytes), head);
    assert_memory_equal(head, want, sizeof(head));
}

static void head_is_read_as_it_was_written(void **state)
{
    uint8_t head[TRANSFER_HEAD_BYTES];
    struct facts f;
    struct err err = { 0 };

    (void)state;
    golden_head(head);
    if (read_head(head, &f, &err) < 0)
        fail_msg("%s", err.text);
    assert_true(f.step == 7 && f.evaluated_step == 6 && f.loss == 0.5 && f.grad_norm == -2);
    assert_true(f.skips_in_row == 3 && f.scale.scale == 65536 && f.scale.good == 0x0a0b);
    assert_true(f.plateau.step == 4 && f.plateau.has_best && f.plateau.best == 0.25 &&
                f.plateau.waited == 2 && f.plateau.reductions == 1);
    assert_true(f.grad_scale == 0.25f && f.learning_rate == 2 && f.is_skipped &&
                f.coding == CODING_ON);
}

static void facts_of_a_state_without_a_loss_are_sent(void **state)
{
    const struct facts fresh = {
        .step = STEP, .loss = NAN, .grad_norm = NAN, .scale = { .scale = 1 }
    };
    uint8_t head[TRANSFER_HEAD_BYTES];
    struct facts f;
    struct err err;

    (void)state;
    transfer_chunk_write(OFFSET, &fresh, state_bytes, sizeof(state_bytes), head);
    assert_int_equal(read_head(head, &f, &err), 0);
    assert_true(isnan(f.loss) && isnan(f.grad_norm) && !f.plateau.has_best && f.scale.scale == 1);
}

static void any_changed_byte_is_rejected(void **state)
{
    uint8_t head[TRANSFER_HEAD_BYTES], other[sizeof(state_bytes)];
    struct facts f = { .step = 4711 };
    struct err err;

    (void)state;
    golden_head(head);
    for (size_t i = 0; i < sizeof(head); i++) {
        head[i] ^= 0x10;
        assert_int_equal(read_head(head, &f, &err), ERR_PEER);
        head[i] ^= 0x10;
    }
    for (size_t i = 0; i < sizeof(other); i++) {
        memcpy(other, state_bytes, sizeof(other));
        other[i] ^= 0x10;
        assert_int_equal(transfer_chunk_read(head, OFFSET, other, sizeof(other), STEP, &f, &err),
                         ERR_PEER);
        assert_non_null(strstr(err.text, "checksum 0x"));
    }
    assert_int_equal(f.step, 4711);
}

/* Each row has a valid checksum, as from a peer that computed invalid values. */
static void invalid_field_is_rejected_in_spite_of_the_checksum(void **state)
{
    static const struct {
        size_t at, n;
        uint8_t bytes[8];
        const char *why;
    } cases[] = {
        { 0, 1, { 'T' }, "magic \"trnchunk\"" },
        { 8, 1, { 2 }, "version 2, expected 3" },
        { 16, 1, { 5 }, "5 bytes at offset 16909061, expected 5 bytes at offset 16909060" },
        { 24, 1, { 4 }, "4 bytes at offset 16909060" },
        { 31, 1, { 0xff }, "expected 5 bytes" },
        { 32, 1, { 8 }, "state after step 8, expected step 7" },
        { 40, 1, { 8 }, "last evaluation after step 8" },
        { 64, 1, { 11 }, "11 skipped steps in a row, expected at most 10" },
        { 72, 8, { 0 }, "loss scale 0" },
        { 72, 8, { 0, 0, 0, 0, 0, 0, 0xf0, 0xbf }, "loss scale -1" },
        { 72, 8, { 0, 0, 0, 0, 0, 0, 0xf0, 0x7f }, "loss scale inf" },
        { 72, 8, { 0, 0, 0, 0, 0, 0, 0xf8, 0x7f }, "loss scale nan" },
        { 80, 1, { 8 }, "counted by the schedule after step 8" },
        { 88, 8, { 0, 0, 0, 0, 0, 0, 0xf0, 0x7f }, "best loss inf" },
        { 104, 1, { 2 }, "(flag 2)" },
        { 107, 1, { 1 }, "(flag 16777217)" },
        { 120, 1, { 2 }, "flag of a skipped step: 2" },
        { 124, 1, { 3 }, "coding of gradients: 3, expected at most 2" },
        { 127, 1, { 0xff }, "coding of gradients: 4278190082" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        uint8_t head[TRANSFER_HEAD_BYTES];
        struct facts f = { .step = 4711 };
        struct err err;

        golden_head(head);
        memcpy(head + cases[i].at, cases[i].bytes, cases[i].n);
        seal(head, state_bytes, sizeof(state_bytes));
        if (read_head(head, &f, &err) != ERR_PEER)
            fail_msg("byte %zu: accepted", cases[i].at);
        if (strstr(err.text, cases[i].why) == NULL)
            fail_msg("byte %zu: '%s', expected '%s'", cases[i].at, err.text, cases[i].why);
        assert_int_equal(f.step, 4711);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(head_is_written_as_the_layout_states),
        cmocka_unit_test(head_is_read_as_it_was_written),
        cmocka_unit_test(facts_of_a_state_without_a_loss_are_sent),
        cmocka_unit_test(any_changed_byte_is_rejected),
        cmocka_unit_test(invalid_field_is_rejected_in_spite_of_the_checksum),
    };

    return cmocka_run_group_tests_name("train/transfer_chunk", tests, NULL, NULL);
}
