/* fuzz_comm.c - any bytes as an exchange head, as the head of a message on a channel, as a life message, as a call in the page of a host,
 * and as the beginning of that page. What a reader accepts has only possible values, and is the
 * same when it is written and read again. */
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "comm/channel.h"
#include "comm/comm.h"
#include "comm/message.h"
#include "comm/page.h"
#include "fuzz/driver.h"

enum { WORLD = 8, MEMBERS = 4, PEER = 2, SLOTS = 3 };

#define HEAD "xchg\x04\0\0\0\xe8\x03\0\0\0\0\0\0\x01\0\0\0\0\0\0\0"
#define LIFE "life\x01\0\0\0"
#define PAGE "pnrt\x01\0\0\0\xc0\x82\x01\0\0\0\0\0\x03\0\0\0"

const struct fuzz_seed fuzz_seeds[] = {
    FUZZ_SEED(HEAD "\0\x01\x01\0\0\0\0\0"),
    FUZZ_SEED(HEAD "\x01\x0b\0\0\0\0\0\0"),
    FUZZ_SEED(HEAD "\x03\x02\0\0\x07\0\0\0"),
    FUZZ_SEED("mesg\0\0\0\0\0\0\0\x10\0\0\0\0"),
    FUZZ_SEED("mesg\x01\0\0\0\x07\0\0\0\0\0\0\0"),
    FUZZ_SEED("mesg\x02\0\0\0\0\0\0\0\0\0\0\0"),
    FUZZ_SEED(LIFE "\x01\0\0\0\x02\0\0\0"),
    FUZZ_SEED(LIFE "\x02\0\0\0\x03\0\0\0lost rank 3: Connection reset by peer"),
    FUZZ_SEED(LIFE "\x02\0\0\0\xff\xff\xff\xffno member is to blame"),
    FUZZ_SEED(LIFE "\x03\0\0\0\x02\0\0\0\0\0\x01\0\0\0\0\0\xff\x0f"),
    FUZZ_SEED(LIFE "\x04\0\0\0\x01\0\0\0\0\0\x01\0\0\0\0\0"),
    FUZZ_SEED(LIFE "\x04\0\0\0\xff\xff\xff\xff\0\0\x01\0\0\0\0\0"),
    FUZZ_SEED(PAGE),
    /* a struct comm_call */
    FUZZ_SEED("\xe8\x03\0\0\0\0\0\0\0\x10\0\0\0\0\0\0\x04\0\0\0\0\x01\0\0\0\0\0\0\0\0\0\0"),
};
const size_t n_fuzz_seeds = COUNT_OF(fuzz_seeds);

static void check_call(const struct comm_call *call)
{
    size_t element = tensor_dtype_bytes((enum tensor_dtype)call->dtype);

    CHECK(call->what <= COMM_ALL_REDUCE_PIECES && call->op <= COMM_OR && element > 0 &&
          call->root < WORLD);
    CHECK(call->count <= PTRDIFF_MAX / element);
}

static void fuzz_head(const uint8_t in[MESSAGE_HEAD_BYTES])
{
    uint8_t again[MESSAGE_HEAD_BYTES];
    struct err err = { 0 };
    struct comm_call call;
    uint64_t tag;

    if (message_head_read(in, WORLD, &call, &tag, &err) < 0) {
        CHECK(err.code == ERR_PEER && err.text[0] != '\0');
        return;
    }
    fuzz_accept();
    check_call(&call);
    message_head_write(&call, tag, again);
    CHECK(memcmp(in, again, sizeof(again)) == 0);
}

static void fuzz_channel(const uint8_t in[MESSAGE_CHANNEL_BYTES])
{
    uint8_t again[MESSAGE_CHANNEL_BYTES];
    struct err err = { 0 };
    enum channel_where where;
    size_t bytes;

    if (message_channel_read(in, &where, &bytes, &err) < 0) {
        CHECK(err.code == ERR_PEER && err.text[0] != '\0');
        return;
    }
    fuzz_accept();
    CHECK(where <= CHANNEL_OFFER && bytes <= COMM_MESSAGE_MAX);
    message_channel_write(where, bytes, again);
    CHECK(memcmp(in, again, sizeof(again)) == 0);
}

static void fuzz_life(const uint8_t in[MESSAGE_LIFE_BYTES])
{
    uint8_t bytes[MESSAGE_LIFE_BYTES];
    struct life_message m, again;
    struct err err = { 0 };

    memset(&m, 0, sizeof(m));
    memset(&again, 0, sizeof(again));
    if (message_life_read(in, PEER, MEMBERS, &m, &err) < 0) {
        CHECK(err.code == ERR_PEER && err.text[0] != '\0');
        return;
    }
    fuzz_accept();
    CHECK(m.what >= LIFE_BYE && m.what <= LIFE_OFFER &&
          (m.member < MEMBERS || m.member == COMM_NO_MEMBER));
    CHECK(strnlen(m.why, sizeof(m.why)) < sizeof(m.why) && m.bytes <= PTRDIFF_MAX);
    message_life_write(&m, bytes);
    CHECK(message_life_read(bytes, PEER, MEMBERS, &again, &err) == 0);
    CHECK(m.what == again.what && m.member == again.member && m.bytes == again.bytes &&
          strcmp(m.why, again.why) == 0 && memcmp(m.cores, again.cores, sizeof(m.cores)) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t head[MESSAGE_HEAD_BYTES] = { 0 }, life[MESSAGE_LIFE_BYTES] = { 0 };
    struct host_page page = { .magic = 0 };
    struct comm_call call = { .count = 0 };
    struct err err;

    memcpy(head, data, size < sizeof(head) ? size : sizeof(head));
    memcpy(life, data, size < sizeof(life) ? size : sizeof(life));
    memcpy(&page, data, size < sizeof(page) ? size : sizeof(page));
    memcpy(&call, data, size < sizeof(call) ? size : sizeof(call));
    fuzz_head(head);
    fuzz_channel(head); /* shorter than that */
    fuzz_life(life);
    if (page_check(&page, SLOTS, &err) == 0)
        CHECK(page.n_slots == SLOTS && page.bytes == page_bytes(SLOTS));
    if (message_check_call(&call, WORLD, &err) == 0)
        check_call(&call);
    return 0;
}
