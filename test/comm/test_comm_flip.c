/* test_comm_flip.c - one bit changes between two hosts, in clear text, in each part of a connection: handshake, heads,
 * data, checksums. A relay between the members changes it. No member may ever use other numbers or wait for ever,
 * the error names both ends, and the next generation works. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/check.h"
#include "comm/cast.h"
#include "comm/channel.h"
#include "comm/comm_priv.h"

enum {
    SMALL = 1000,
    LARGE = 300000, /* floats: several pieces in each direction */
    ROUNDS = 4,
    MESSAGE = 200000, /* bytes of the last message of a channel */
    PAIRS = 64,
    BUFFER = 64 << 10,
    /* bytes of a link before its first head */
    DIALLED = HANDSHAKE_HELLO_BYTES + HANDSHAKE_PROOF_BYTES,
    ACCEPTED = HANDSHAKE_CHALLENGE_BYTES + HANDSHAKE_READY_BYTES,
    FAILED = 40, /* stage: members whose generation failed; before it: members at the end of each generation */
};

/* ---- the relay ---- */

struct half { /* one direction of a connection */
    int from, to;
    uint8_t buffer[BUFFER];
    size_t begin, end;
    uint64_t passed; /* bytes read */
    bool ended;
};

static struct relay {
    int fd, wake[2];
    uint16_t port, target;
    /* The bit that changes, once: of byte `at` of a link, from the side that dialled it or to it. */
    uint64_t at;
    uint8_t bit;
    bool is_answer, is_done;
    uint64_t deadline_ms; /* of the first generation; 0: that of the cast */
    struct half (*halves)[2];
    uint32_t n;
    pthread_t thread;
} relay;

static int local_socket(uint16_t *port, bool connects)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(*port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t n = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    if (connects)
        return connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0 ? fd : (close(fd), -1);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(listen(fd, 64), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &n), 0);
    *port = ntohs(a.sin_port);
    return fd;
}

static void accept_pair(void)
{
    int from = accept(relay.fd, NULL, NULL), to = local_socket(&relay.target, true);

    assert_true(from >= 0 && relay.n < PAIRS);
    if (to < 0) {
        close(from);
        return;
    }
    for (int d = 0; d < 2; d++) {
        struct half *h = &relay.halves[relay.n][d];

        h->from = d == 0 ? from : to;
        h->to = d == 0 ? to : from;
        h->begin = h->end = 0;
        h->passed = 0;
        h->ended = false;
    }
    relay.n++;
}

/* Links, unlike life lines, begin with a HELLO of their kind, so the HELLO is read at once. */
static bool is_link(const struct half *pair)
{
    struct handshake_hello h;

    return pair[0].passed >= HANDSHAKE_HELLO_BYTES &&
           handshake_hello_read(pair[0].buffer, &h, NULL) && h.kind == HANDSHAKE_LINK;
}

static void pass(struct half *pair, bool *links, int d)
{
    struct half *h = &pair[d];
    size_t most =
        d == 0 && h->passed < HANDSHAKE_HELLO_BYTES ? HANDSHAKE_HELLO_BYTES - h->passed : BUFFER;
    ssize_t n =
        recv(h->from, h->buffer + (d == 0 && h->passed < HANDSHAKE_HELLO_BYTES ? h->passed : 0),
             most, MSG_DONTWAIT);

    if (n < 0 && errno == EAGAIN)
        return;
    if (n <= 0) {
        h->ended = true;
        (void)shutdown(h->to, SHUT_WR);
        return;
    }
    h->begin = d == 0 && h->passed < HANDSHAKE_HELLO_BYTES ? h->passed : 0;
    h->end = h->begin + (size_t)n;
    h->passed += (uint64_t)n;
    if (d == 0 && h->passed == HANDSHAKE_HELLO_BYTES) {
        h->begin = 0; /* all of the HELLO, which was kept until now */
        *links = is_link(pair);
    } else if (d == 0 && h->passed < HANDSHAKE_HELLO_BYTES) {
        h->begin = h->end;
        return;
    }
    if (*links && !relay.is_done && relay.is_answer == (d == 1) && relay.at < h->passed &&
        relay.at >= h->passed - (h->end - h->begin)) {
        h->buffer[h->end - (size_t)(h->passed - relay.at)] ^= relay.bit;
        relay.is_done = true;
    }
}

static void *relay_main(void *arg)
{
    static bool links[PAIRS];
    struct pollfd p[2 + 4 * PAIRS];

    (void)arg;
    for (;;) {
        nfds_t n = 2;

        p[0] = (struct pollfd){ .fd = relay.fd, .events = POLLIN };
        p[1] = (struct pollfd){ .fd = relay.wake[0], .events = POLLIN };
        for (uint32_t i = 0; i < relay.n; i++)
            for (int d = 0; d < 2; d++) {
                struct half *h = &relay.halves[i][d];

                p[n++] = (struct pollfd){ .fd = h->ended || h->begin < h->end ? -1 : h->from, .events = POLLIN };
                p[n++] = (struct pollfd){ .fd = h->begin < h->end ? h->to : -1, .events = POLLOUT };
            }
        (void)poll(p, n, -1);
        if (p[1].revents != 0)
            return NULL;
        for (uint32_t i = 0; i < relay.n; i++)
            for (int d = 0; d < 2; d++) {
                struct half *h = &relay.halves[i][d];

                if (h->begin == h->end && !h->ended)
                    pass(relay.halves[i], &links[i], d);
                if (h->begin < h->end) {
                    ssize_t sent = send(h->to, h->buffer + h->begin, h->end - h->begin,
                                        MSG_NOSIGNAL | MSG_DONTWAIT);

                    h->begin = sent < 0 && errno != EAGAIN
                                   ? h->end
                                   : h->begin + (size_t)(sent > 0 ? sent : 0);
                }
            }
        if (p[0].revents != 0) {
            links[relay.n < PAIRS ? relay.n : 0] = false;
            accept_pair();
        }
    }
}

static void relay_open(struct cast *k)
{
    assert_int_equal(sscanf(strrchr(k->addresses[0], ':'), ":%hu", &relay.target), 1);
    relay.port = 0;
    relay.fd = local_socket(&relay.port, false);
    relay.n = 0;
    relay.halves = malloc(PAIRS * sizeof(*relay.halves));
    assert_true(relay.halves != NULL && pipe(relay.wake) == 0);
    snprintf(k->addresses[0], sizeof(k->addresses[0]), "127.0.0.1:%u", relay.port);
}

/* Starts the thread of the relay. The processes must be forked before: a forked process inherits the locks of AddressSanitizer
 * (gcc 12) in the state in which other threads hold them. Connections wait in the queue of the socket until the thread runs. */
static void relay_start(void)
{
    assert_int_equal(pthread_create(&relay.thread, NULL, relay_main, NULL), 0);
}

static void relay_close(void)
{
    assert_int_equal(write(relay.wake[1], "", 1), 1);
    pthread_join(relay.thread, NULL);
    for (uint32_t i = 0; i < relay.n; i++) {
        close(relay.halves[i][0].from);
        close(relay.halves[i][0].to);
    }
    free(relay.halves);
    close(relay.fd);
    close(relay.wake[0]);
    close(relay.wake[1]);
}

/* ---- scenes: generations until one works ---- */

static int reduce(struct cast *k, struct comm *c, uint32_t self, struct err *err)
{
    float *data = k->arenas[self].base;
    int rc = 0;

    for (int round = 0; rc == 0 && round < ROUNDS; round++) {
        size_t n = round + 1 == ROUNDS ? LARGE : SMALL;

        for (size_t i = 0; i < n; i++)
            data[i] = (float)((i + (size_t)round) % 1000 * (self + 1));
        rc = comm_all_reduce(c, 0, data, n, TENSOR_F32, COMM_SUM, err);
        for (size_t i = 0; rc == 0 && i < n; i++)
            EXPECT(data[i] == (float)((i + (size_t)round) % 1000 * 3),
                   "round %d: element %zu is %g", round, i, (double)data[i]);
    }
    return rc;
}

/* The rank sends, the server answers with the same bytes. */
static int exchange(struct cast *k, struct comm *c, uint32_t self, struct err *err)
{
    static uint8_t bytes[MESSAGE];
    struct comm_message m;
    int rc = 0;

    for (size_t i = 0; i < MESSAGE; i++)
        bytes[i] = (uint8_t)(i * 7);
    for (int round = 0; rc == 0 && round < ROUNDS; round++) {
        size_t n = round + 1 == ROUNDS ? MESSAGE : 100;
        struct iovec parts[2] = { { bytes, n / 3 }, { bytes + n / 3, n - n / 3 } };
        uint32_t to = self == 0 ? comm_world(c) : 0;

        if (k->members[self].n_servers == 0)
            rc = comm_send(c, 0, to, parts, 2, err);
        if (rc == 0)
            rc = comm_receive(c, 0, &m, 0, err);
        if (rc == 0)
            EXPECT(m.bytes == n && memcmp(m.data, bytes, n) == 0, "other bytes");
        if (rc == 0 && k->members[self].n_servers > 0)
            rc = comm_send(c, 0, to, parts, 2, err);
    }
    return rc;
}

/* A generation in which a bit changes, and one more if that fails. */
static void scene(struct cast *k, uint32_t self)
{
    for (uint64_t generation = 1; generation <= 2; generation++) {
        struct comm_opts o = cast_opts(k, self);
        struct comm *c = NULL;
        struct err err;
        int rc;

        o.view.generation = generation;
        if (generation == 1 && relay.deadline_ms > 0)
            o.deadline_ms = relay.deadline_ms;
        EXPECT(comm_open(&o, &c, &err) == 0, "%s", err.text);
        rc = comm_connect(c, &err);
        if (rc == 0)
            rc =
                k->members[1].n_servers > 0 ? exchange(k, c, self, &err) : reduce(k, c, self, &err);
        EXPECT(rc == 0 || generation == 1, "%s", err.text);
        if (rc < 0) {
            atomic_fetch_add(&k->stage->number[FAILED], 1);
            snprintf(k->stage->text[self], sizeof(k->stage->text[self]), "%.255s", err.text);
        }
        atomic_fetch_add(&k->stage->number[generation], 1);
        cast_until(k, (int)generation, 2); /* no member leaves while the other one is in a call */
        comm_close(c);
        if (atomic_load(&k->stage->number[FAILED]) == 0)
            return;
    }
}

/* Changes a bit of byte `at` of a link. Returns whether a call failed. */
static bool play(const char *layout, bool is_answer, uint64_t at, uint8_t bit, char *why)
{
    struct cast k;
    bool failed;

    cast_init(&k, layout, true, LARGE * sizeof(float) + 4096);
    relay.at = at;
    relay.bit = bit;
    relay.is_answer = is_answer;
    relay.is_done = false;
    relay_open(&k);
    cast_start(&k, scene);
    relay_start();
    cast_join(&k);
    relay_close();
    assert_true(relay.is_done);
    failed = atomic_load(&k.stage->number[FAILED]) > 0;
    snprintf(why, 512, "%s | %s", k.stage->text[0], k.stage->text[1]);
    cast_fini(&k);
    return failed;
}

static void expect_named(const char *layout, const char *other, bool is_answer, uint64_t at)
{
    char why[512];

    if (!play(layout, is_answer, at, (uint8_t)(1 << at % 8), why))
        fail_msg("byte %llu: no call failed", (unsigned long long)at);
    if (strstr(why, "was changed on its way") == NULL ||
        strstr(why, "rank 0 (worker 0) at 127.0.0.1:") == NULL || strstr(why, other) == NULL)
        fail_msg("byte %llu: %s", (unsigned long long)at, why);
}

/* ---- tests ---- */

static void changed_exchange_ends_the_generation_and_names_the_link(void **state)
{
    /* A round consists of the head, its checksum, data and their checksum. */
    const uint64_t small = MESSAGE_HEAD_SEALED + SMALL * sizeof(float) + MESSAGE_SUM_BYTES;
    const uint64_t half = LARGE / 2 * sizeof(float),
                   large = (ROUNDS - 1) * small + MESSAGE_HEAD_SEALED;
    const uint64_t at[] = {
        0, 5, 8, 15, 17, 24, 25, 26, 27, 29, 32, 35, /* every field of the head */
        36, 2000, small - 5, small - 4, small - 1,
        small + 10, 2 * small + 100, large - 1, large, large + COMM_PIECE_BYTES - 1, large + COMM_PIECE_BYTES,
        large + half - 1, large + half + 64 /* of the second exchange of the large vector */
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(at); i++) {
        expect_named("A1 B1", "rank 1 (worker 1) at ", false, DIALLED + at[i]);
        expect_named("A1 B1", "rank 1 (worker 1) at ", true, ACCEPTED + at[i]);
    }
}

static void changed_message_of_a_channel_ends_the_generation_and_names_the_link(void **state)
{
    const uint64_t small = MESSAGE_CHANNEL_SEALED + 100 + MESSAGE_SUM_BYTES;
    const uint64_t large = (ROUNDS - 1) * small + MESSAGE_CHANNEL_SEALED;
    const uint64_t at[] = { 0, 4, 8, 9, 11, 15, 16, 19, 20, 53, 119, 120, 123, 124 + 9, large, large + 70000,
                            large + MESSAGE - 1, large + MESSAGE, large + MESSAGE + 3 };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(at); i++) {
        expect_named("A1 b1", "server 0 (ps 0) at ", false, DIALLED + at[i]);
        expect_named("A1 b1", "server 0 (ps 0) at ", true, ACCEPTED + at[i]);
    }
}

/* The handshake repeats a connection, or the generation ends with an error, at the latest at its deadline. */
static void changed_handshake_is_repeated_or_an_error(void **state)
{
    char why[512];

    (void)state;
    relay.deadline_ms = 2000;
    for (uint64_t at = 0; at < DIALLED; at += 17)
        (void)play("A1 B1", false, at, 4, why);
    for (uint64_t at = 0; at < ACCEPTED; at += 12)
        (void)play("A1 B1", true, at, 4, why);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(changed_exchange_ends_the_generation_and_names_the_link),
        cmocka_unit_test(changed_message_of_a_channel_ends_the_generation_and_names_the_link),
        cmocka_unit_test(changed_handshake_is_repeated_or_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
