/* Messages between ranks and servers: content, order, deadlock, limits, and the ends of a
 * communicator that blocked calls must notice. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <sys/socket.h>
#include <sys/uio.h>

#include "base/crc32c.h"
#include "base/fault.h"
#include "comm/cast.h"
#include "comm/channel.h"
#include "comm/comm_priv.h"
#include "harness/allocations.h"
#include "tls/tls.h"

enum { ELEMENTS = 30011, POINTS_MAX = 16, ROUNDS = 3 };
/* stage: argument or progress; ends that are in a call; the all-reduces, or ranks that send; ends whose call has returned */
enum { AT = 32, READY, SUMS, DONE = 40 };

/* Some are beside multiples of the bytes after which a receiver wakes (128 KiB). */
static const size_t sizes[] = { 0, 1, 8 << 10, (128 << 10) - 1, 128 << 10, (256 << 10) + 1, 3 << 20 };
enum { SIZES = sizeof(sizes) / sizeof(*sizes) };

static bool on_one_host; /* all members share memory */

static void begin(struct cast *k, const char *layout)
{
    cast_init(k, layout, true, ELEMENTS * sizeof(float));
    for (uint32_t i = 0; on_one_host && i < k->n; i++)
        memcpy(k->hosts[i], "A", 2);
}

/* `from` is a point of member `self`. */
static bool has_channel(const struct comm *c, uint32_t self, uint32_t from, uint32_t to)
{
    return comm_point_member(c, to) != self && (from >= comm_world(c) || to >= comm_world(c));
}

static uint32_t n_points(const struct comm *c)
{
    return comm_world(c) + comm_servers(c);
}

/* ---- content ---- */

/* Fills a message that differs for each pair of points, size and round. */
static void fill(uint8_t *out, size_t n, uint32_t from, uint32_t to, uint32_t round)
{
    uint32_t x = from * 0x9e3779b9u + to * 0x85ebca6bu + round * 0xc2b2ae35u + (uint32_t)n;

    for (size_t i = 0; i < n; i++) {
        x = x * 1664525 + 1013904223;
        out[i] = (uint8_t)(x >> 24);
    }
}

/* Sends every size to every point, in parts of odd sizes. */
static void send_all(struct comm *c, uint32_t self, uint32_t local, uint32_t round, uint8_t *data)
{
    uint32_t own = comm_first_point(c) + local;
    struct err err;

    for (uint32_t s = 0; s < SIZES; s++)
        for (uint32_t i = 1; i < n_points(c); i++) {
            uint32_t to = (own + i) % n_points(c);
            size_t cut = sizes[s] / 3, small = sizes[s] > 5000 ? 5000 : 0;
            struct iovec parts[] = { { data, cut },
                                     { NULL, 0 },
                                     { data + cut, sizes[s] - cut - small },
                                     { data + sizes[s] - small, small } };

            if (!has_channel(c, self, own, to))
                continue;
            fill(data, sizes[s], own, to, round);
            EXPECT(comm_send(c, local, to, parts, 4, &err) == 0, "%s", err.text);
        }
}

/* A message whose memory comm_exchange() took. */
struct taken {
    uint8_t *data;
    size_t capacity, bytes;
    uint32_t crc;
};

static void take(struct comm *c, uint32_t local, const struct comm_message *m, struct taken *t)
{
    EXPECT(t->data == NULL || crc32c(0, t->data, t->bytes) == t->crc,
           "a message of %zu bytes that was taken has changed", t->bytes);
    comm_exchange(c, local, &t->data, &t->capacity);
    EXPECT(t->data == m->data && t->capacity >= m->bytes, "the memory of another message");
    t->bytes = m->bytes;
    t->crc = crc32c(0, t->data, t->bytes);
}

/* Receives as many messages as send_all() of all points sends in a round: a fast point may be a
 * round ahead of a slow one. Takes the memory of every third. `got`: number of messages from each point so
 * far. */
static void receive_all(struct comm *c, uint32_t self, uint32_t local, uint32_t *got,
                        uint8_t *expected)
{
    uint32_t own = comm_first_point(c) + local, n = 0;
    struct taken taken = { 0 };
    struct comm_message m;
    struct err err;

    for (uint32_t p = 0; p < n_points(c); p++)
        n += has_channel(c, self, own, p) ? SIZES : 0;
    EXPECT(n > 0, "no channel");
    for (; n > 0; n--) {
        uint32_t round;
        size_t want;

        EXPECT(comm_receive(c, local, &m, 0, &err) == 0, "%s", err.text);
        EXPECT(m.from < n_points(c) && got[m.from] < SIZES * ROUNDS, "too many from %u", m.from);
        round = got[m.from] / SIZES;
        want = sizes[got[m.from]++ % SIZES];
        EXPECT(m.bytes == want, "%zu bytes from %u, expected %zu", m.bytes, m.from, want);
        EXPECT(m.data != NULL && (uintptr_t)m.data % 64 == 0, "alignment");
        fill(expected, want, m.from, own, round);
        EXPECT(memcmp(m.data, expected, want) == 0, "content of %zu bytes from %u", want, m.from);
        if (n % 3 == 0)
            take(c, local, &m, &taken);
    }
    free(taken.data);
}

static void *reduce_meanwhile(void *arg)
{
    struct cast_thread *t = arg;
    float *data =
        (void *)((uint8_t *)t->cast->arenas[t->self].base + t->local * t->cast->arena_bytes);
    uint32_t rank = comm_first_rank(t->c) + t->local, crc = 0;
    struct err err;

    for (uint32_t round = 0; round < 40; round++) {
        for (size_t i = 0; i < ELEMENTS; i++)
            data[i] = (float)((rank + 1) * (i % 1009) + round) * (i % 3 == 0 ? 1e-5f : 0.37f);
        EXPECT(comm_all_reduce(t->c, t->local, data, round % 2 ? ELEMENTS : 100, TENSOR_F32,
                               COMM_SUM, &err) == 0,
               "%s", err.text);
        crc = crc32c(crc, data, (round % 2 ? ELEMENTS : 100) * sizeof(float));
    }
    if (rank == 0)
        atomic_store(&t->cast->stage->number[SUMS], crc);
    return NULL;
}

static void exchange(struct cast *k, struct comm *c, uint32_t self, uint32_t local)
{
    struct cast_thread sums = { .cast = k, .c = c, .self = self, .local = local };
    uint8_t *data = malloc(sizes[SIZES - 1]);
    uint32_t got[POINTS_MAX] = { 0 };
    bool reduces = k->members[self].n_devices > 0;

    EXPECT(data != NULL, "memory");
    if (reduces)
        EXPECT(pthread_create(&sums.id, NULL, reduce_meanwhile, &sums) == 0, "a thread");
    for (uint32_t round = 0; comm_servers(c) > 0 && round < ROUNDS; round++) {
        /* all ends send before they receive: more than the buffers of the kernel hold */
        send_all(c, self, local, round, data);
        receive_all(c, self, local, got, data);
    }
    if (reduces)
        pthread_join(sums.id, NULL);
    free(data);
}

static void scene_exchange(struct cast *k, uint32_t self)
{
    struct comm *c = cast_open(k, self);

    EXPECT(comm_point_member(c, comm_first_point(c)) == self, "the first point");
    cast_ranks(k, c, self, exchange);
    EXPECT(atomic_load(&k->stage->told[self]) == 0, "on_broken: %s", k->stage->why[self]);
    EXPECT(comm_close_quiet(c, 0), "close");
}

static uint64_t sums_of(const char *layout)
{
    struct cast k;
    uint64_t sums;

    begin(&k, layout);
    cast_play(&k, scene_exchange);
    sums = atomic_load(&k.stage->number[SUMS]);
    cast_fini(&k);
    return sums;
}

static void every_pair_exchanges_all_sizes_at_the_same_time(void **state)
{
    (void)state;
    assert_int_equal(sums_of("A2 B2 c2 a2"), sums_of("A2 B2"));
}

static void ps_at_any_place_and_on_the_host_of_a_trainer(void **state)
{
    (void)state;
    assert_int_equal(sums_of("a1 A1 b2 A1 B1"), sums_of("A1 A1 B1"));
    (void)sums_of("A1 a1");
}

/* ---- order, turns and memory ---- */

enum { FLOOD = 3000 };

static void flood(struct cast *k, struct comm *c, uint32_t self, uint32_t local)
{
    uint32_t own = comm_first_point(c) + local, n = 0, last = 0, turns = 0;
    uint32_t next[POINTS_MAX] = { 0 };
    struct comm_message m;
    uint64_t before = 0;
    struct err err;

    (void)k;
    (void)self;
    if (own < comm_world(c)) {
        for (uint32_t i = 0; i < FLOOD; i++) {
            struct iovec part = { &i, sizeof(i) };

            EXPECT(comm_send(c, local, comm_world(c), &part, 1, &err) == 0, "%s", err.text);
            if (i == 100) /* so many fit the buffers */
                atomic_fetch_add(&k->stage->number[SUMS], 1);
        }
        return;
    }
    cast_until(k, SUMS, comm_world(c)); /* messages of all ranks wait */
    for (; n < FLOOD * comm_world(c); n++) {
        if (n == FLOOD)
            before = allocations();
        EXPECT(comm_receive(c, local, &m, 0, &err) == 0, "%s", err.text);
        EXPECT(m.bytes == 4 && memcmp(m.data, &next[m.from], 4) == 0, "order of rank %u", m.from);
        next[m.from]++;
        turns += m.from != last;
        last = m.from;
    }
    EXPECT(turns >= 4, "only %u turns", turns);
    EXPECT(allocations() == before, "%llu allocations in warm calls",
           (unsigned long long)(allocations() - before));
}

static void scene_flood(struct cast *k, uint32_t self)
{
    struct comm *c = cast_open(k, self);

    cast_ranks(k, c, self, flood);
    comm_close(c); /* the ranks leave before their messages are received */
}

static void messages_of_a_point_keep_their_order_and_points_take_turns(void **state)
{
    struct cast k;

    (void)state;
    begin(&k, "A2 B1 c1");
    cast_play(&k, scene_flood);
    cast_fini(&k);
}

/* ---- limits ---- */

static void scene_limits(struct cast *k, uint32_t self)
{
    static uint8_t byte;
    struct iovec parts[] = { { &byte, 1 }, { &byte, (size_t)COMM_MESSAGE_MAX } };
    struct comm *c = cast_open(k, self);
    struct comm_message m;
    struct err err;
    int rc;

    if (self == 0) {
        rc = comm_receive(c, 0, &m, 5, &err);
        EXPECT(rc == ERR_TIMEOUT && strstr(err.text, "no message within 5 ms"), "%d: %s", rc,
               err.text);
        rc = comm_send(c, 0, 2, parts, 2, &err); /* refused before a byte is read */
        EXPECT(rc == ERR_INPUT && strstr(err.text, "server 0 (ps 0)"), "%d: %s", rc, err.text);
        atomic_store(&k->stage->number[AT], 1);
        EXPECT(comm_receive(c, 0, &m, UINT64_MAX, &err) == 0 && m.bytes == 1 && m.from == 3, "%s",
               err.text);
        rc = comm_receive(c, 0, &m, 0, &err);
        EXPECT((rc == ERR_TIMEOUT && strstr(err.text, "rank 0 (worker 0) has received no message "
                                                      "within") &&
                strstr(err.text, "fewest so far from server 0 (ps 0)")) ||
                   (rc == ERR_PEER && strstr(err.text, "within") != NULL),
               "%d: %s", rc, err.text);
        EXPECT(comm_receive(c, 0, &m, 1, &err) == rc, "works again after the end");
    } else if (self == 1) { /* waits longer than rank 0, and does not blame it */
        cast_until(k, AT, 1);
        EXPECT(comm_barrier(c, 0, &err) < 0, "rank 0 does not come");
    } else if (self == 3) {
        cast_until(k, AT, 1);
        EXPECT(comm_send(c, 0, 0, parts, 1, &err) == 0, "%s", err.text);
    }
    cast_until_told(k, self);
    EXPECT(atomic_load(&k->stage->told[self]) == 1 + 2, "blames member %u: %s",
           atomic_load(&k->stage->told[self]) - 1, k->stage->why[self]);
    comm_close(c);
}

static void limit_of_a_receive_ends_the_generation_only_if_it_is_the_deadline(void **state)
{
    struct cast k;

    (void)state;
    for (uint64_t ms = 4 * CAST_SHORT_MS; ms != 0; cast_fini(&k)) {
        begin(&k, "A1 B1 c1 d1");
        k.deadline_ms = ms;
        cast_start(&k, scene_limits);
        ms = cast_judge(&k);
    }
}

/* ---- ends ---- */

/* Even ends wait for a message; odd ends send until the buffers of the kernel are full. */
static void block(struct cast *k, struct comm *c, uint32_t self, uint32_t local)
{
    uint32_t own = comm_first_point(c) + local, to = 0;
    size_t bytes = 8 << 20;
    uint8_t *data = calloc(1, bytes);
    struct iovec part = { data, bytes };
    struct comm_message m;
    struct err err = { 0 };
    int rc = 0;

    EXPECT(data != NULL, "memory");
    while (!has_channel(c, self, own, to) || to % 2 != 0) /* a point that does not receive */
        to++;
    atomic_fetch_add(&k->stage->number[READY], 1);
    while (rc == 0)
        rc = own % 2 == 0 ? comm_receive(c, local, &m, UINT64_MAX, &err)
                          : comm_send(c, local, to, &part, 1, &err);
    atomic_store(&k->stage->number[DONE + own], 1);
    atomic_store(&k->stage->number[self], (uint64_t)-rc);
    EXPECT(comm_receive(c, local, &m, UINT64_MAX, NULL) == rc, "receives after '%s'", err.text);
    EXPECT(comm_send(c, local, to, &part, 1, NULL) == rc, "sends after '%s'", err.text);
    if (local == 0)
        snprintf(k->stage->text[self], sizeof(k->stage->text[self]), "%.255s", err.text);
    free(data);
}

static void *end_soon(void *arg)
{
    struct cast_thread *t = arg;

    cast_until(t->cast, READY, 8);
    wait_disturb(20000000); /* most calls are blocked then */
    if (t->cast->expect_signal[t->self] != 0)
        raise(SIGKILL);
    comm_abort(t->c, "regroup");
    return NULL;
}

static void scene_block(struct cast *k, uint32_t self)
{
    struct comm *c = cast_open(k, self);
    struct cast_thread t = { .cast = k, .c = c, .self = self };
    bool ends = self == (uint32_t)k->shares[63]; /* not used by the communicator */

    if (ends)
        EXPECT(pthread_create(&t.id, NULL, end_soon, &t) == 0, "a thread");
    cast_ranks(k, c, self, block);
    if (ends)
        pthread_join(t.id, NULL);
    comm_close(c);
}

static void check_block(uint32_t member, bool dies)
{
    static const char *const names[] = { "worker 0", "worker 1", "ps 0", "ps 1" };
    struct cast k;

    begin(&k, "A2 B2 c2 a2");
    k.shares[63] = member;
    k.expect_signal[member] = dies ? SIGKILL : 0;
    cast_play(&k, scene_block);
    for (uint32_t m = 0; m < k.n; m++) {
        if (m == member && dies)
            continue;
        assert_int_equal(atomic_load(&k.stage->number[m]), m == member ? -ERR_CANCELED : -ERR_PEER);
        assert_non_null(strstr(k.stage->text[m], names[member]));
        for (uint32_t i = 0; i < 2; i++)
            assert_int_equal(atomic_load(&k.stage->number[DONE + 2 * m + i]), 1);
    }
    cast_fini(&k);
}

static void dead_member_is_named_by_every_blocked_call(void **state)
{
    (void)state;
    check_block(2, true); /* a ps */
    check_block(3, true); /* a ps on the host of a trainer */
    check_block(1, true); /* a trainer */
}

static void abort_ends_every_blocked_call(void **state)
{
    (void)state;
    check_block(0, false);
    check_block(2, false);
}

static void scene_leave(struct cast *k, uint32_t self)
{
    struct comm *c = cast_open(k, self);
    struct comm_message m;
    struct err err;
    uint8_t byte = (uint8_t)self;
    struct iovec part = { &byte, 1 };
    int rc;

    atomic_fetch_add(&k->stage->number[AT], 1);
    if (self < 2) {
        cast_until(k, AT, 3); /* a member that leaves while another connects is an error */
        if (self == 1)
            cast_until(k, READY, 1);
        EXPECT(comm_send(c, 0, 2, &part, 1, &err) == 0, "%s", err.text);
        comm_close(c);
        return;
    }
    EXPECT(comm_receive(c, 0, &m, 0, &err) == 0 && m.from == 0, "%s", err.text);
    rc = comm_receive(c, 0, &m, 500, &err); /* rank 0 has left: longer than the life line takes */
    EXPECT(rc == ERR_TIMEOUT, "%d: %s", rc, err.text);
    atomic_store(&k->stage->number[READY], 1);
    EXPECT(comm_receive(c, 0, &m, 0, &err) == 0 && m.from == 1, "%s", err.text);
    EXPECT(atomic_load(&k->stage->told[self]) == 0, "on_broken: %s", k->stage->why[self]);
    rc = comm_receive(c, 0, &m, UINT64_MAX, &err);
    EXPECT(rc == ERR_PEER && strstr(err.text, "rank 1 (worker 1) has left, but is still needed"),
           "%d: %s", rc, err.text);
    comm_close(c);
}

static void member_that_left_is_an_error_only_if_no_other_can_send(void **state)
{
    struct cast k;

    (void)state;
    begin(&k, "A1 B1 c1");
    cast_play(&k, scene_leave);
    cast_fini(&k);
}

/* ---- invalid bytes ---- */

static void scene_invalid(struct cast *k, uint32_t self)
{
    uint8_t head[MESSAGE_CHANNEL_SEALED];
    struct comm *c = cast_open(k, self);
    const struct comm_link *link = &c->ends[0].links[0];
    struct comm_message m;
    struct err err;
    int rc;

    message_channel_write(CHANNEL_STREAM, COMM_MESSAGE_MAX, head);
    if (k->shares[63] == 0)
        head[8]++; /* one byte too many */
    else if (k->shares[63] == 1)
        head[4] = 3;
    else
        memset(head, 'x', sizeof(head));
    message_seal(head, MESSAGE_CHANNEL_BYTES);
    if (self == 1) { /* the server */
        ssize_t n = link->tls != NULL ? tls_stream_send(link->tls, head, sizeof(head))
                                      : send(link->fd, head, sizeof(head), MSG_NOSIGNAL);

        EXPECT(n == (ssize_t)sizeof(head), "send");
    }
    rc = comm_receive(c, 0, &m, UINT64_MAX, &err);
    EXPECT(rc == ERR_PEER && strstr(err.text, "server 0 (ps 0) sent an invalid message: ") &&
               strstr(err.text, k->shares[63] == 0   ? "a message of 268435457 bytes"
                                : k->shares[63] == 1 ? "place 3 of a message"
                                                     : "78 78 78 78"),
           "%d: %s", rc, err.text);
    EXPECT(atomic_load(&k->stage->told[0]) == 0 || atomic_load(&k->stage->told[0]) == 2, "culprit");
    comm_close(c);
}

static void invalid_head_names_the_sender(void **state)
{
    struct cast k;

    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        begin(&k, "A1 b1");
        k.shares[63] = i;
        cast_play(&k, scene_invalid);
        cast_fini(&k);
    }
}

static void scene_other_servers(struct cast *k, uint32_t self)
{
    struct comm_opts o = cast_opts(k, self);
    struct comm *c;
    struct err err;
    int rc;

    if (self == 1)
        k->members[1].n_servers = 2;
    rc = cast_connect(&o, &c, &err);
    EXPECT(rc == (self == 1 ? ERR_PEER : ERR_TIMEOUT), "%d: %s", rc, err.text);
    EXPECT(self == 0 || strstr(err.text, "another list of members"), "%s", err.text);
}

static void different_number_of_servers_is_refused(void **state)
{
    struct cast k;

    (void)state;
    for (uint64_t ms = CAST_SHORT_MS; ms != 0; cast_fini(&k)) {
        begin(&k, "A1 b1");
        k.deadline_ms = ms;
        cast_start(&k, scene_other_servers);
        ms = cast_judge(&k);
    }
}

/* ---- injected faults ---- */

static void scene_fault(struct cast *k, uint32_t self)
{
    struct comm_opts o = cast_opts(k, self);
    uint8_t byte = 7;
    struct iovec part = { &byte, 1 };
    struct comm *c = NULL;
    struct comm_message m;
    struct err err;
    char spec[64];
    int rc;

    snprintf(spec, sizeof(spec), "*@%llu", (unsigned long long)atomic_load(&k->stage->number[AT]));
    if (self == k->shares[63])
        EXPECT(fault_arm(spec, &err) == 0, "%s", err.text);
    rc = cast_connect(&o, &c, &err);
    if (rc == 0)
        rc = comm_send(c, 0, self == 0 ? 1 : 0, &part, 1, &err);
    if (rc == 0)
        rc = comm_receive(c, 0, &m, 0, &err);
    EXPECT(rc == 0 || rc == ERR_PEER || rc == ERR_TIMEOUT || rc == ERR_IO || rc == ERR_NOMEM,
           "%s: %s", spec, err.text);
    EXPECT(rc != 0 || (m.bytes == 1 && m.data[0] == 7), "%s: content", spec);
    comm_close(c);
    if (self == k->shares[63])
        atomic_store(&k->stage->number[READY], fault_fired());
}

static void single_fault_at_any_point_ends_with_an_error_or_success(void **state)
{
    struct cast k;

    (void)state;
    for (uint32_t self = 0; self < 2; self++) {
        bool fired = true;

        for (uint64_t n = 1; fired && n < 60; n++) {
            begin(&k, "A1 b1");
            k.deadline_ms = CAST_SHORT_MS;
            k.shares[63] = self;
            atomic_store(&k.stage->number[AT], n);
            cast_play(&k, scene_fault);
            fired = atomic_load(&k.stage->number[READY]) != 0;
            cast_fini(&k);
        }
        assert_false(fired);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pair_exchanges_all_sizes_at_the_same_time),
        cmocka_unit_test(ps_at_any_place_and_on_the_host_of_a_trainer),
        cmocka_unit_test(messages_of_a_point_keep_their_order_and_points_take_turns),
        cmocka_unit_test(limit_of_a_receive_ends_the_generation_only_if_it_is_the_deadline),
        cmocka_unit_test(dead_member_is_named_by_every_blocked_call),
        cmocka_unit_test(abort_ends_every_blocked_call),
        cmocka_unit_test(member_that_left_is_an_error_only_if_no_other_can_send),
        cmocka_unit_test(invalid_head_names_the_sender),
        cmocka_unit_test(different_number_of_servers_is_refused),
        cmocka_unit_test(single_fault_at_any_point_ends_with_an_error_or_success),
    };
    const struct CMUnitTest in_memory[] = { /* those in which no ps was on the host of a rank */
        cmocka_unit_test(messages_of_a_point_keep_their_order_and_points_take_turns),
        cmocka_unit_test(limit_of_a_receive_ends_the_generation_only_if_it_is_the_deadline),
        cmocka_unit_test(member_that_left_is_an_error_only_if_no_other_can_send),
        cmocka_unit_test(invalid_head_names_the_sender),
        cmocka_unit_test(single_fault_at_any_point_ends_with_an_error_or_success),
    };
    int failed;

    signal(SIGPIPE, SIG_IGN); /* as the daemon: OpenSSL writes without MSG_NOSIGNAL */
    failed = cmocka_run_group_tests_name("comm/channel", tests, NULL, NULL);
    on_one_host = true;
    failed += cmocka_run_group_tests_name("comm/channel on one host", in_memory, NULL, NULL);
    on_one_host = false;
    cast_encrypts = true;
    return failed + cmocka_run_group_tests_name("comm/channel under TLS", tests, NULL, NULL);
}
