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

enum { RANK, SERVER, LARGEST = 3 << 20, GUARD = 0x5a, ROW = 260, ROWS = 3001 };

/* Some are beside the bytes that are read together with a head (4 KiB), and beside those after which a receiver
 * wakes (128 KiB). */
static const size_t sizes[] = { 1, 100, 4079, 4080, 4081, (128 << 10) + 1, LARGEST };
enum { SIZES = sizeof(sizes) / sizeof(*sizes) };

static uint8_t byte_of(size_t i, uint32_t round)
{
    uint32_t x = ((uint32_t)i + 1) * 0x9e3779b9u + round * 0x85ebca6bu;

    return (uint8_t)(x >> 24);
}

/* A request is the size of the answer, a number of the bytes, and the bytes of a part in which they are sent; 0: all. */
struct request {
    uint64_t bytes;
    uint32_t round, part;
};

static void request_parts(struct comm *c, size_t bytes, uint32_t round, uint32_t part_bytes)
{
    struct request q = { .bytes = bytes, .round = round, .part = part_bytes };
    struct iovec part = { &q, sizeof(q) };
    struct err err;

    EXPECT(comm_send(c, 0, SERVER, &part, 1, &err) == 0, "%s", err.text);
}

static void request(struct comm *c, size_t bytes, uint32_t round)
{
    request_parts(c, bytes, round, 0);
}

/* The server answers until the rank has left. */
static void answer_all(struct comm *c)
{
    uint8_t *data = malloc(LARGEST + 1);
    struct iovec *parts = malloc(LARGEST * sizeof(*parts));
    struct comm_message m;
    struct err err;

    EXPECT(data != NULL && parts != NULL, "memory");
    while (comm_receive(c, 0, &m, 0, &err) == 0) {
        struct request q;
        uint32_t n = 0;

        EXPECT(m.bytes == sizeof(q), "a request of %zu bytes", m.bytes);
        memcpy(&q, m.data, sizeof(q));
        for (size_t i = 0; i < q.bytes; i++)
            data[i] = byte_of(i, q.round);
        for (size_t at = 0, bytes; at < q.bytes; at += bytes) {
            bytes = q.part > 0 && q.part < q.bytes - at ? q.part : q.bytes - at;
            parts[n++] = (struct iovec){ data + at, bytes };
        }
        EXPECT(comm_send(c, 0, RANK, parts, n, &err) == 0, "%s", err.text);
    }
    EXPECT(strstr(err.text, "left") != NULL, "%s", err.text);
    free(data);
    free(parts);
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

/* Rows that do not follow each other, behind a head, and before a large place. Parts of a size that divides neither. */
static void ask_for_rows(struct comm *c)
{
    uint8_t *memory = malloc(ROWS * (ROW + 1) + LARGEST);
    struct iovec *places = malloc((ROWS + 2) * sizeof(*places));

    EXPECT(memory != NULL && places != NULL, "memory");
    for (uint32_t part = 1; part < 3000; part = 3 * part + 7) {
        size_t bytes = 0, at = 0, n = part == 1 ? 100 : ROWS;

        memset(memory, GUARD, ROWS * (ROW + 1) + LARGEST);
        for (uint32_t i = 0; i < n + 2; i++) {
            size_t length = i == 0 ? 40 : i <= n ? ROW : 50000;

            places[i] = (struct iovec){ memory + at, length };
            at += length + 1;
            bytes += length;
        }
        comm_place(c, 0, SERVER, places, (uint32_t)n + 2);
        request_parts(c, bytes, part, part);
        request_parts(c, bytes, part + 1, part);
        expect_placed(c, places, (uint32_t)n + 2, bytes, part);
        expect_message(c, bytes, part + 1);
    }
    free(memory);
    free(places);
}

static void play(struct cast *k, uint32_t self, void (*ask)(struct comm *c))
{
    struct comm *c = cast_open(k, self);

    if (self == RANK)
        ask(c);
    else
        answer_all(c);
    comm_close(c);
}

static void scene_sizes(struct cast *k, uint32_t self)
{
    play(k, self, ask_all);
}

static void scene_rows(struct cast *k, uint32_t self)
{
    play(k, self, ask_for_rows);
}

static const char *layout = "A1 b1";

static void test(void (*scene)(struct cast *k, uint32_t self))
{
    struct cast k;

    cast_init(&k, layout, true, 4096);
    cast_play(&k, scene);
    cast_fini(&k);
}

static void messages_of_the_expected_size_are_written_to_their_places(void **state)
{
    (void)state;
    test(scene_sizes);
}

static void small_parts_are_written_to_small_places(void **state)
{
    (void)state;
    test(scene_rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_of_the_expected_size_are_written_to_their_places),
        cmocka_unit_test(small_parts_are_written_to_small_places),
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
