/* Messages between members that share memory: which path they take, full rings in both directions, the death of a
 * peer in the middle of a message, and invalid offers, heads and counters. test_channel.c has what is true of
 * both paths. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/err.h"
#include "base/fault.h"
#include "comm/cast.h"
#include "comm/channel.h"
#include "comm/channel_priv.h"

enum { RANK, SERVER, LARGE = 5 * RING_BYTES + 77, READY = 3, OUTCOME = 5, VARIANT = 63 };

static void fill(uint8_t *out, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (uint8_t)(((i + 1) * 0x9e3779b97f4a7c15u + seed * 0x85ebca6bu) >> 56);
}

static void send_filled(struct comm *c, uint32_t to, uint8_t *data, size_t n, uint32_t seed)
{
    size_t cut = n / 3;
    struct iovec parts[] = { { data, cut }, { NULL, 0 }, { data + cut, n - cut } };
    struct err err;

    fill(data, n, seed);
    EXPECT(comm_send(c, 0, to, parts, 3, &err) == 0, "%s", err.text);
}

static void receive_filled(struct comm *c, uint8_t *expected, size_t n, uint32_t seed)
{
    struct comm_message m;
    struct err err;

    fill(expected, n, seed);
    EXPECT(comm_receive(c, 0, &m, 0, &err) == 0, "%s", err.text);
    EXPECT(m.bytes == n && memcmp(m.data, expected, n) == 0, "content of %zu bytes", n);
}

/* Both ends have offered their rings when the message of the peer was read. */
static void greet(struct comm *c, uint32_t self)
{
    uint8_t byte;

    send_filled(c, 1 - self, &byte, 1, 7);
    receive_filled(c, &byte, 1, 7);
}

static void play(const char *layout, bool shared_memory, cast_scene *scene)
{
    struct cast k;

    cast_init(&k, layout, shared_memory, 4096);
    cast_play(&k, scene);
    cast_fini(&k);
}

/* ---- paths ---- */

static void scene_paths(struct cast *k, uint32_t self)
{
    static const size_t sizes[] = { CHANNEL_RING_MIN - 1, CHANNEL_RING_MIN, RING_BYTES, LARGE };
    struct comm *c = cast_open(k, self);
    const struct channel *ch = &c->ends[0].channels[0];
    bool shares = k->shared_memory && strcmp(k->hosts[0], k->hosts[1]) == 0;
    uint8_t *data = malloc(LARGE);
    uint64_t in_ring = 0;

    EXPECT(data != NULL, "memory");
    EXPECT(strstr(comm_describe(c), shares ? "server over shared memory" : "server over tcp"), "%s",
           comm_describe(c));
    greet(c, self);
    for (uint32_t i = 0; i < 4; i++) {
        if (self == RANK)
            send_filled(c, SERVER, data, sizes[i], i);
        else
            receive_filled(c, data, sizes[i], i);
        in_ring += shares && sizes[i] >= CHANNEL_RING_MIN ? sizes[i] : 0;
        EXPECT(self == SERVER || ch->ring_out.own == in_ring, "%zu bytes took the other path",
               sizes[i]);
    }
    /* The server may read the begin of the next message together with the end of one, so its bytes are compared here. */
    EXPECT(self == RANK || ch->ring_in.own == in_ring, "other bytes came through the ring");
    free(data);
    comm_close(c);
}

static void large_messages_go_through_memory_if_the_members_share_it(void **state)
{
    (void)state;
    play("A1 a1", true, scene_paths);
    play("A1 b1", true, scene_paths);
    play("A1 a1", false, scene_paths);
}

static void scene_full(struct cast *k, uint32_t self)
{
    struct comm *c = cast_open(k, self);
    uint8_t *data = malloc(LARGE);

    EXPECT(data != NULL, "memory");
    greet(c, self);
    for (uint32_t round = 0; round < 5; round++) /* all are sent before one is received */
        send_filled(c, 1 - self, data, LARGE - round, 2 * round + self);
    for (uint32_t round = 0; round < 5; round++)
        receive_filled(c, data, LARGE - round, 2 * round + 1 - self);
    free(data);
    comm_close(c);
}

static void ends_that_fill_both_rings_at_the_same_time_do_not_wait_for_each_other(void **state)
{
    (void)state;
    play("A1 a1", true, scene_full);
}

static void scene_leave(struct cast *k, uint32_t self)
{
    struct comm *c = cast_open(k, self);
    uint8_t *data = malloc(RING_BYTES);

    EXPECT(data != NULL, "memory");
    greet(c, self);
    if (self == RANK) {
        send_filled(c, SERVER, data, RING_BYTES, 1);
        comm_close(c);
        atomic_store(&k->stage->number[READY], 1);
    } else {
        cast_until(k, READY, 1);
        receive_filled(c, data, RING_BYTES, 1);
        comm_close(c);
    }
    free(data);
}

static void message_in_the_ring_outlives_its_sender(void **state)
{
    (void)state;
    play("A1 a1", true, scene_leave);
}

static void scene_late_offer(struct cast *k, uint32_t self)
{
    struct comm *c = cast_open(k, self);
    uint8_t *data = malloc(LARGE);
    struct err err;

    EXPECT(data != NULL, "memory");
    if (self == RANK)
        EXPECT(fault_arm("comm.pass", &err) == 0, "%s", err.text);
    greet(c, self);
    EXPECT(self == SERVER || (fault_fired() && !c->ends[0].channels[0].has_offered), "no fault");
    for (uint32_t i = 0; i < 2; i++) /* the second one goes through the ring */
        if (self == RANK)
            send_filled(c, SERVER, data, LARGE, i);
        else
            receive_filled(c, data, LARGE, i);
    greet(c, self);
    EXPECT(c->ends[0].channels[0].ring_in.page != NULL && c->ends[0].channels[0].has_offered,
           "no ring");
    free(data);
    comm_close(c);
}

static void offer_that_the_system_refuses_is_repeated(void **state)
{
    (void)state;
    play("A1 a1", true, scene_late_offer);
}

/* ---- the death of a peer ---- */

/* Variant 0: the rank dies while it writes a message. 1: the server dies while the ring is full. */
static void scene_death(struct cast *k, uint32_t self)
{
    bool writer_dies = k->shares[VARIANT] == 0;
    struct comm *c = cast_open(k, self);
    uint8_t *data = calloc(1, LARGE);
    struct iovec part = { data, LARGE };
    struct comm_message m;
    struct err err;
    int rc;

    EXPECT(data != NULL, "memory");
    greet(c, self);
    if (self == SERVER)
        atomic_store(&k->stage->number[OUTCOME], 1); /* the rank does not die before the server has its greeting */
    else
        cast_until(k, OUTCOME, 1);
    if (self == RANK && writer_dies)
        EXPECT(fault_arm("comm.ring=kill@4", &err) == 0, "%s", err.text);
    if (self == SERVER && !writer_dies) {
        cast_until(k, READY, 1);
        cast_until_asleep(k, RANK); /* the ring is full */
        raise(SIGKILL);
    }
    atomic_store(&k->stage->number[READY], 1);
    rc = self == RANK ? comm_send(c, 0, SERVER, &part, 1, &err)
                      : comm_receive(c, 0, &m, UINT64_MAX, &err);
    EXPECT(rc == ERR_PEER && strstr(err.text, writer_dies ? "worker 0" : "ps 0"), "%d: %s", rc,
           err.text);
    free(data);
    comm_close(c);
}

static void peer_that_dies_in_the_middle_of_a_message_is_named(void **state)
{
    (void)state;
    for (uint32_t variant = 0; variant < 2; variant++) {
        struct cast k;

        cast_init(&k, "A1 a1", true, 4096);
        k.deadline_ms = 60000 * SLOW;
        k.shares[VARIANT] = variant;
        k.expect_signal[variant] = SIGKILL;
        cast_play(&k, scene_death);
        cast_fini(&k);
    }
}

/* ---- invalid peers ---- */

static void send_head(const struct comm *c, enum channel_where where, size_t bytes)
{
    uint8_t head[MESSAGE_CHANNEL_SEALED];

    message_channel_write(where, bytes, head);
    message_seal(head, MESSAGE_CHANNEL_BYTES);
    EXPECT(send(c->ends[0].links[0].fd, head, sizeof(head), MSG_NOSIGNAL) == sizeof(head), "send");
}

static void no_descriptors(struct comm *c)
{
    send_head(c, CHANNEL_OFFER, 0);
}

static void second_offer(struct comm *c)
{
    c->ends[0].channels[0].has_offered = false;
    ring_close(&c->ends[0].channels[0].ring_out);
    EXPECT(channel_offer_ring(c, &c->ends[0], 0) == 0, "offer");
}

static void early_message(struct comm *c)
{
    send_head(c, CHANNEL_RING, LARGE);
    send_head(c, CHANNEL_STREAM, 1);
}

static void too_much(struct comm *c)
{
    struct ring_page *page = c->ends[0].channels[0].ring_out.page;

    atomic_store(&page->written, RING_BYTES + 1);
    send_head(c, CHANNEL_RING, LARGE);
}

static void back(struct comm *c)
{
    struct ring_page *page = c->ends[0].channels[0].ring_out.page;

    atomic_store(&page->written, 100);
    send_head(c, CHANNEL_RING, 1000);
    WAIT_UNTIL(atomic_load(&page->read) >= 100);
    atomic_store(&page->written, 99);
    EXPECT(write(c->ends[0].channels[0].peer_wake_fd, &(uint64_t){ 1 }, 8) == 8, "wake");
}

static void read_too_much(struct comm *c)
{
    atomic_store(&c->ends[0].channels[0].ring_in.page->read, LARGE);
}

static const struct {
    void (*act)(struct comm *c);
    const char *why;
} invalid[] = {
    { no_descriptors, "an offer after its first one" },
    { second_offer, "an offer after its first one" },
    { early_message, "sent a message before the end of the message before it" },
    { too_much, "wrote an invalid counter to the shared memory of its channel" },
    { back, "wrote an invalid counter" },
    { read_too_much, "wrote an invalid counter" },
};

/* The server misbehaves; the rank sends a message in the last variant, and receives in the others. */
static void scene_invalid(struct cast *k, uint32_t self)
{
    uint32_t variant = k->shares[VARIANT];
    struct comm *c = cast_open(k, self);
    uint8_t *data = calloc(1, LARGE);
    struct iovec part = { data, LARGE };
    struct comm_message m;
    struct err err;
    int rc = 0;

    EXPECT(data != NULL, "memory");
    greet(c, self);
    if (self == SERVER) {
        invalid[variant].act(c);
        atomic_store(&k->stage->number[READY], 1);
        cast_until(k, OUTCOME, 1);
    } else {
        if (invalid[variant].act == read_too_much) {
            cast_until(k, READY, 1);
            rc = comm_send(c, 0, SERVER, &part, 1, &err);
        } else {
            rc = comm_receive(c, 0, &m, UINT64_MAX, &err);
        }
        EXPECT(rc == ERR_PEER && strstr(err.text, "server 0 (ps 0)") &&
                   strstr(err.text, invalid[variant].why),
               "%u: %d: %s", variant, rc, err.text);
        atomic_store(&k->stage->number[OUTCOME], 1);
    }
    free(data);
    comm_close(c);
}

static void peer_that_writes_invalid_heads_or_counters_is_named(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < sizeof(invalid) / sizeof(*invalid); i++) {
        struct cast k;

        cast_init(&k, "A1 a1", true, 4096);
        k.shares[VARIANT] = i;
        cast_play(&k, scene_invalid);
        cast_fini(&k);
    }
}

/* The rank has not received an offer: the server sends none. */
static void scene_first(struct cast *k, uint32_t self)
{
    struct comm *c = cast_open(k, self);
    struct comm_message m;
    struct err err;
    int rc;

    if (self == SERVER) {
        send_head(c, k->shares[VARIANT] == 0 ? CHANNEL_OFFER : CHANNEL_RING, 0);
        cast_until(k, OUTCOME, 1);
    } else {
        rc = comm_receive(c, 0, &m, UINT64_MAX, &err);
        EXPECT(rc == ERR_PEER && strstr(err.text, "server 0 (ps 0) sent an invalid message") &&
                   strstr(err.text, k->shares[VARIANT] == 0 ? "without two descriptors"
                                                            : "a ring that was not offered"),
               "%d: %s", rc, err.text);
        atomic_store(&k->stage->number[OUTCOME], 1);
    }
    comm_close(c);
}

static void ring_without_descriptors_or_offer_is_refused(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 4; i++) { /* 2, 3: over TCP */
        struct cast k;

        cast_init(&k, "A1 a1", i < 2, 4096);
        k.shares[VARIANT] = i % 2;
        cast_play(&k, scene_first);
        cast_fini(&k);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(large_messages_go_through_memory_if_the_members_share_it),
        cmocka_unit_test(ends_that_fill_both_rings_at_the_same_time_do_not_wait_for_each_other),
        cmocka_unit_test(message_in_the_ring_outlives_its_sender),
        cmocka_unit_test(offer_that_the_system_refuses_is_repeated),
        cmocka_unit_test(peer_that_dies_in_the_middle_of_a_message_is_named),
        cmocka_unit_test(peer_that_writes_invalid_heads_or_counters_is_named),
        cmocka_unit_test(ring_without_descriptors_or_offer_is_refused),
    };

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests_name("comm/channel_ring", tests, NULL, NULL);
}
