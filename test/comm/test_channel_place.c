/* Messages that are received into places of the caller: comm_place(). */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <sys/uio.h>

#include "base/err.h"
#include "comm/cast.h"
#include "comm/channel.h"

enum { RANK, SERVER, LARGEST = 3 << 20, GUARD = 0x5a };

/* Some are beside the bytes that are read together with a head (4 KiB), and beside those after which a receiver
 * wakes (128 KiB). */
static const size_t sizes[] = { 1, 100, 4079, 4080, 4081, (128 << 10) + 1, LARGEST };
enum { SIZES = sizeof(sizes) / sizeof(*sizes) };

static uint8_t byte_of(size_t i, uint32_t round)
{
    uint32_t x = ((uint32_t)i + 1) * 0x9e3779b9u + round * 0x85ebca6bu;

    return (uint8_t)(x >> 24);
}

/* A request is the size of the answer and a number of the bytes. */
struct request {
    uint64_t bytes;
    uint32_t round, zero;
};

static void request(struct comm *c, size_t bytes, uint32_t round)
{
    struct request q = { .bytes = bytes, .round = round };
    struct iovec part = { &q, sizeof(q) };
    struct err err;

    EXPECT(comm_send(c, 0, SERVER, &part, 1, &err) == 0, "%s", err.text);
}

/* The server answers until the rank has left. */
static void answer_all(struct comm *c)
{
    uint8_t *data = malloc(LARGEST + 1);
    struct comm_message m;
    struct err err;

    EXPECT(data != NULL, "memory");
    while (comm_receive(c, 0, &m, 0, &err) == 0) {
        struct request q;
        struct iovec part = { data, 0 };

        EXPECT(m.bytes == sizeof(q), "a request of %zu bytes", m.bytes);
        memcpy(&q, m.data, sizeof(q));
        for (size_t i = 0; i < q.bytes; i++)
            data[i] = byte_of(i, q.round);
        part.iov_len = (size_t)q.bytes;
        EXPECT(comm_send(c, 0, RANK, &part, 1, &err) == 0, "%s", err.text);
    }
    EXPECT(strstr(err.text, "left") != NULL, "%s", err.text);
    free(data);
}

static void expect_bytes(const uint8_t *at, size_t first, size_t n, uint32_t round)
{
    for (size_t i = 0; i < n; i++)
        EXPECT(at[i] == byte_of(first + i, round), "byte %zu of round %u", first + i, round);
}

static void expect_message(struct comm *c, size_t bytes, uint32_t round)
{
    struct comm_message m;
    struct err err;

    EXPECT(comm_receive(c, 0, &m, 0, &err) == 0, "%s", err.text);
    EXPECT(m.from == SERVER && m.bytes == bytes && m.data != NULL,
           "a message of %zu bytes, not in places", m.bytes);
    expect_bytes(m.data, 0, bytes, round);
}

static void expect_placed(struct comm *c, const struct iovec *places, uint32_t n, size_t bytes,
                          uint32_t round)
{
    struct comm_message m;
    struct err err;
    size_t at = 0;

    EXPECT(comm_receive(c, 0, &m, 0, &err) == 0, "%s", err.text);
    EXPECT(m.from == SERVER && m.bytes == bytes && m.data == NULL, "%zu bytes in a message",
           m.bytes);
    for (uint32_t i = 0; i < n; at += places[i++].iov_len) {
        const uint8_t *p = places[i].iov_base;

        expect_bytes(p, at, places[i].iov_len, round);
        EXPECT(p[places[i].iov_len] == GUARD, "the byte after place %u has changed", i);
    }
}

/* Divides `bytes` bytes among places that do not follow each other; some are empty. */
static uint32_t make_places(uint8_t *memory, size_t bytes, struct iovec out[5])
{
    size_t lengths[] = { bytes / 3, 0, bytes / 5, bytes - bytes / 3 - bytes / 5, 0 };

    memset(memory, GUARD, bytes + 5);
    for (uint32_t i = 0; i < 5; i++) {
        out[i] = (struct iovec){ memory, lengths[i] };
        memory += lengths[i] + 1;
    }
    return 5;
}

static void ask_all(struct comm *c)
{
    uint8_t *memory = malloc(LARGEST + 5);
    struct iovec places[5];
    uint32_t round = 0;

    EXPECT(memory != NULL, "memory");
    for (uint32_t i = 0; i < SIZES; i++, round += 3) {
        uint32_t n = make_places(memory, sizes[i], places);

        comm_place(c, 0, SERVER, places, n);
        request(c, sizes[i] + 1, round); /* no message for these places */
        request(c, sizes[i], round + 1);
        request(c, sizes[i], round + 2); /* they were used */
        expect_message(c, sizes[i] + 1, round);
        expect_placed(c, places, n, sizes[i], round + 1);
        expect_message(c, sizes[i], round + 2);
    }
    comm_place(c, 0, SERVER, places, make_places(memory, LARGEST, places));
    comm_place(c, 0, SERVER, places, make_places(memory, 100, places)); /* replaces them */
    request(c, 100, round);
    expect_placed(c, places, 5, 100, round);
    comm_place(c, 0, SERVER, places, make_places(memory, LARGEST, places)); /* never used */
    free(memory);
}

static void scene(struct cast *k, uint32_t self)
{
    struct comm *c = cast_open(k, self);

    if (self == RANK)
        ask_all(c);
    else
        answer_all(c);
    comm_close(c);
}

static const char *layout = "A1 b1";

static void messages_of_the_expected_size_are_written_to_their_places(void **state)
{
    struct cast k;

    (void)state;
    cast_init(&k, layout, true, 4096);
    cast_play(&k, scene);
    cast_fini(&k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_of_the_expected_size_are_written_to_their_places),
    };
    int failed;

    signal(SIGPIPE, SIG_IGN); /* as the daemon: OpenSSL writes without MSG_NOSIGNAL */
    failed = cmocka_run_group_tests_name("comm/channel_place", tests, NULL, NULL);
    layout = "A1 a1";
    failed += cmocka_run_group_tests_name("comm/channel_place on one host", tests, NULL, NULL);
    layout = "A1 b1";
    cast_encrypts = true;
    return failed + cmocka_run_group_tests_name("comm/channel_place under TLS", tests, NULL, NULL);
}
