/* fuzz_preflight.c - any bytes as a message of a preflight: what is accepted is within its bounds, is
 * written again as the same bytes, and a table with such a row can be judged and printed. */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "fuzz/driver.h"
#include "preflight/judge.h"
#include "preflight/message.h"
#include "preflight/print.h"

enum { WORLD = 3 };

#define ZEROS8 "\0\0\0\0\0\0\0\0"
#define FACTS ZEROS8 "\x58\x1b\0\0" "\x10\0\0\0" ZEROS8 ZEROS8 ZEROS8 \
    "\x01\0\0\0" "c" "\x01\0\0\0" "j" "\x01\0\0\0" "1" "\x05\0\0\0" "1 cpu" "\0\0\0\0" "\0\0\0\0" "\0\0\0\0" "\0\0\0\0"
#define ENTRY_BYTES "\x01\x01\x01\x01\x01\x01\x01\0" "\x64\0\0\0" "\xdc\x05\0\0" "\x0a\0\0\0\0\0\0\0" \
    "\0\0\0\x40\0\0\0\0" ZEROS8

const struct fuzz_seed fuzz_seeds[] = {
    FUZZ_SEED("\x01\x01\x50\x46" "\x5d\0\0\0" "\x01\0\0\0" "\x03\0\0\0" FACTS),
    FUZZ_SEED("\x09\x01\x50\x46" "\xd5\0\0\0" "\x01\0\0\0" "\x03\0\0\0" FACTS ENTRY_BYTES ENTRY_BYTES ENTRY_BYTES),
    FUZZ_SEED("\x05\x01\x50\x46" "\x04\0\0\0" "\x02\0\0\0"),
    FUZZ_SEED("\x80\x01\x50\x46" "\x01\0\0\0" "0123456789abcdef"),
};
const size_t n_fuzz_seeds = COUNT_OF(fuzz_seeds);

static void check_equal(const struct buf *written, enum message_kind kind, const uint8_t *body,
                        size_t n)
{
    enum message_kind same;
    uint32_t length;

    CHECK(!written->failed && written->len == MESSAGE_HEAD + n);
    CHECK(message_read_head((uint8_t *)written->data, &same, &length) && same == kind &&
          length == n);
    CHECK(memcmp(written->data + MESSAGE_HEAD, body, n) == 0);
}

static void use_row(const struct preflight_row *row, uint32_t rank)
{
    const struct preflight_task tasks[WORLD] = { { "a", "x:1", "x", 1 }, { "b", "y:1", "y", 1 }, { "c", "z:1", "z", 1 } };
    struct preflight_entry entries[WORLD] = { { .control = PREFLIGHT_REACHED, .rtt_us = 1, .skew_us = 5 } };
    struct preflight_row rows[WORLD] = { { .entries = entries }, { .entries = entries }, { .entries = entries } };
    const struct preflight_table t = { .world = WORLD, .tasks = tasks, .rows = rows };
    struct preflight_findings found;
    struct buf out = { 0 };

    rows[(rank + 1) % WORLD].present = true;
    rows[rank] = *row;
    rows[rank].present = true;
    CHECK(judge(&t, &found, NULL) == 0);
    print_matrix(&t, &found, &out);
    print_verdict(&t, &found, &out);
    print_advice(&t, &found, &out);
    print_json(&t, &found, rank, &out);
    CHECK(!out.failed);
    free(found.at);
    buf_fini(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct preflight_entry entries[WORLD];
    struct preflight_row row = { .entries = entries };
    struct message_hello hello;
    struct buf out = { 0 };
    enum message_kind kind;
    uint8_t ticket[MESSAGE_TICKET_BYTES];
    uint32_t n, rank;
    uint64_t wide;

    if (size >= MESSAGE_DATA_HEAD)
        (void)message_read_data_head(data, &rank, ticket);
    if (size < MESSAGE_HEAD || !message_read_head(data, &kind, &n))
        return 0;
    CHECK(n <= MESSAGE_BODY_MAX);
    data += MESSAGE_HEAD;
    size -= MESSAGE_HEAD;
    (void)message_read_u32(data, size, &n);
    (void)message_read_u64(data, size, &wide);
    if (message_read_hello(data, size, &hello)) {
        CHECK(hello.world <= PREFLIGHT_WORLD_MAX && hello.rank < hello.world);
        message_write_hello(&hello, &out);
        check_equal(&out, MESSAGE_HELLO, data, size);
        fuzz_accept();
    }
    buf_reset(&out);
    if (message_read_row(data, size, WORLD, &rank, &row)) {
        CHECK(rank < WORLD);
        message_write_row(rank, WORLD, &row, &out);
        check_equal(&out, MESSAGE_ROW_IS, data, size);
        use_row(&row, rank);
        fuzz_accept();
    }
    buf_fini(&out);
    return 0;
}
