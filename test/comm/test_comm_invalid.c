/* A member that has passed the handshake sends invalid bytes, or writes them into the page of the
 * host: the other member names it and ends the generation. Member 1 sends, member 0 receives. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <sys/socket.h>

#include <signal.h>

#include "comm/cast.h"
#include "comm/comm_priv.h"

enum { ELEMENTS = 1000 };
enum { READY = 40, DONE }; /* stage: members that are connected; member 0 has seen the failure */

static void *data_of(struct cast *k, uint32_t self)
{
    return k->arenas[self].base;
}

/* Returns when both members are connected: earlier messages would end the handshake. */
static struct comm *open_both(struct cast *k, uint32_t self)
{
    struct comm *c = cast_open(k, self);

    atomic_fetch_add(&k->stage->number[READY], 1);
    cast_until(k, READY, 2);
    return c;
}

static void send_bytes(int fd, const void *bytes, size_t n)
{
    EXPECT(send(fd, bytes, n, MSG_NOSIGNAL) == (ssize_t)n, "%zu bytes could not be sent", n);
}

/* Member 0: makes a call, which fails for the reason `why`; member 1 is the culprit. */
static void expect_failed_call(struct cast *k, struct comm *c, const char *why)
{
    struct err err;
    int rc = comm_all_reduce(c, 0, data_of(k, 0), ELEMENTS, TENSOR_F32, COMM_SUM, &err);

    EXPECT(rc == ERR_PEER && strstr(err.text, why) != NULL, "%d: '%s', expected '%s'", rc, err.text,
           why);
    cast_until_told(k, 0);
    EXPECT(atomic_load(&k->stage->told[0]) == 1 + 1, "member %u is blamed",
           atomic_load(&k->stage->told[0]) - 1);
    atomic_store(&k->stage->number[DONE], 1);
}

static void play(const char *layout, bool shared_memory, cast_scene *scene)
{
    struct cast k;

    cast_init(&k, layout, shared_memory, ELEMENTS * sizeof(float));
    cast_play(&k, scene);
    cast_fini(&k);
}

/* ---- links ---- */

static void scene_junk_on_link(struct cast *k, uint32_t self)
{
    struct comm *c = open_both(k, self);
    uint8_t junk[MESSAGE_HEAD_SEALED];

    if (self == 0) {
        expect_failed_call(
            k, c, "rank 1 (worker 1) sent an invalid exchange head: bytes 0 to 3 are ee ee ee ee");
    } else {
        memset(junk, 0xee, sizeof(junk));
        message_seal(junk, MESSAGE_HEAD_BYTES);
        send_bytes(c->ranks[0].links[0].fd, junk, sizeof(junk));
        cast_until(k, DONE, 1);
    }
    comm_close(c);
}

static void scene_bad_type_on_link(struct cast *k, uint32_t self)
{
    struct comm *c = open_both(k, self);
    const struct comm_call call = {
        .count = ELEMENTS, .number = 1, .what = COMM_ALL_REDUCE, .dtype = 200
    };
    uint8_t head[MESSAGE_HEAD_SEALED];

    if (self == 0) {
        expect_failed_call(
            k, c,
            "rank 1 (worker 1) sent an invalid exchange head: element type 200 is not possible");
    } else {
        message_head_write(&call, 0, head);
        message_seal(head, MESSAGE_HEAD_BYTES);
        send_bytes(c->ranks[0].links[0].fd, head, sizeof(head));
        cast_until(k, DONE, 1);
    }
    comm_close(c);
}

static void scene_other_part_on_link(struct cast *k, uint32_t self)
{
    struct comm *c = open_both(k, self);
    const struct comm_call call = {
        .count = ELEMENTS, .number = 1, .what = COMM_ALL_REDUCE, .dtype = TENSOR_F32
    };
    uint8_t head[MESSAGE_HEAD_SEALED];

    if (self == 0) {
        expect_failed_call(
            k, c,
            "rank 1 (worker 1) sent part 0x1234 of call 1, all-reduce of 1000 float32 (sum), "
            "expected part 0x");
    } else {
        message_head_write(&call, 0x1234, head);
        message_seal(head, MESSAGE_HEAD_BYTES);
        send_bytes(c->ranks[0].links[0].fd, head, sizeof(head));
        cast_until(k, DONE, 1);
    }
    comm_close(c);
}

static void invalid_exchange_head_names_its_sender(void **state)
{
    (void)state;
    play("A1 B1", true, scene_junk_on_link);
    play("A1 B1", true, scene_bad_type_on_link);
    play("A1 B1", true, scene_other_part_on_link);
}

/* ---- life lines and tethers ---- */

/* The connection on which member 1 sends to member 0. */
static int life_of(struct comm *c)
{
    return c->shm.tether_fd >= 0 ? c->shm.tether_fd : c->watch.lives[0].fd;
}

/* A life line, unlike a tether, carries a code after each message. */
static void send_life(struct comm *c, const uint8_t message[MESSAGE_LIFE_BYTES])
{
    uint8_t bytes[MESSAGE_LIFE_BYTES + MESSAGE_CODE_BYTES];

    memcpy(bytes, message, MESSAGE_LIFE_BYTES);
    message_life_code(bytes, c->self, c->watch.lives[0].key, bytes + MESSAGE_LIFE_BYTES);
    send_bytes(life_of(c), bytes, c->shm.tether_fd >= 0 ? MESSAGE_LIFE_BYTES : sizeof(bytes));
}

static void scene_junk_on_life(struct cast *k, uint32_t self)
{
    struct comm *c = open_both(k, self);
    uint8_t junk[MESSAGE_LIFE_BYTES];

    if (self == 0) {
        expect_failed_call(k, c,
                           "worker 1 sent an invalid life message: bytes 0 to 3 are ee ee ee ee");
    } else {
        memset(junk, 0xee, sizeof(junk));
        send_life(c, junk);
        cast_until(k, DONE, 1);
    }
    comm_close(c);
}

static void scene_bad_culprit_on_life(struct cast *k, uint32_t self)
{
    struct comm *c = open_both(k, self);
    const struct life_message m = { .what = LIFE_OVER, .member = 2, .why = "a reason" };
    uint8_t bytes[MESSAGE_LIFE_BYTES];

    if (self == 0) {
        expect_failed_call(k, c, "worker 1 sent an invalid life message: it names member 2 of 2");
    } else {
        message_life_write(&m, bytes);
        send_life(c, bytes);
        cast_until(k, DONE, 1);
    }
    comm_close(c);
}

static void scene_memory_on_life(struct cast *k, uint32_t self)
{
    struct comm *c = open_both(k, self);
    const struct life_message m = { .what = LIFE_JOIN, .member = 1, .bytes = 4096 };
    uint8_t bytes[MESSAGE_LIFE_BYTES];

    if (self == 0) {
        expect_failed_call(k, c, "worker 1 passed memory on a connection of another kind");
    } else {
        message_life_write(&m, bytes);
        send_life(c, bytes);
        cast_until(k, DONE, 1);
    }
    comm_close(c);
}

static void invalid_life_message_names_its_sender(void **state)
{
    static const char *const layouts[] = { "A1 A1", "A1 B1" }; /* a tether, a life line */

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        play(layouts[i], true, scene_junk_on_life);
        play(layouts[i], true, scene_bad_culprit_on_life);
        play(layouts[i], true, scene_memory_on_life);
    }
}

/* ---- under TLS ---- */

/* What a process sends that has the socket, but not the key. */
static void scene_foreign_bytes_on_link(struct cast *k, uint32_t self)
{
    struct comm *c = open_both(k, self);
    const struct comm_call call = {
        .count = ELEMENTS, .number = 1, .what = COMM_ALL_REDUCE, .dtype = TENSOR_F32
    };
    uint8_t head[MESSAGE_HEAD_SEALED];

    if (self == 0) {
        expect_failed_call(k, c, "rank 1 (worker 1)");
    } else {
        message_head_write(&call, 0, head);
        message_seal(head, MESSAGE_HEAD_BYTES);
        send_bytes(c->ranks[0].links[0].fd, head, sizeof(head));
        cast_until(k, DONE, 1);
    }
    comm_close(c);
}

static void scene_life_message_without_code(struct cast *k, uint32_t self)
{
    struct comm *c = open_both(k, self);
    const struct life_message m = { .what = LIFE_OVER, .member = 0, .why = "a lie" };
    uint8_t bytes[MESSAGE_LIFE_BYTES + MESSAGE_CODE_BYTES] = { 0 };

    if (self == 0) {
        expect_failed_call(k, c, "worker 1 sent a life message with an invalid code");
    } else {
        message_life_write(&m, bytes);
        send_bytes(life_of(c), bytes, sizeof(bytes));
        cast_until(k, DONE, 1);
    }
    comm_close(c);
}

static void bytes_without_the_key_are_detected(void **state)
{
    (void)state;
    cast_encrypts = true;
    play("A1 B1", true, scene_foreign_bytes_on_link);
    play("A1 B1", true, scene_life_message_without_code);
    cast_encrypts = false;
}

/* ---- the page ---- */

/* Member 1: publishes this call as its first one. */
static void publish(struct comm *c, struct comm_call call)
{
    c->shm.page->slots[c->shm.slot_of[1]].calls[1] = call;
    c->ranks[0].deadline_ns = clock_ns() + c->deadline_ns;
    (void)host_barrier(c, &c->ranks[0], 0, 2); /* fails if the other member was faster */
}

static void scene_bad_call_in_page(struct cast *k, uint32_t self)
{
    struct comm *c = open_both(k, self);

    if (self == 0) {
        expect_failed_call(k, c, "rank 1 (worker 1) made an invalid call: kind of call 77");
    } else {
        publish(c, (struct comm_call){ .number = 1, .what = 77, .dtype = 200 });
        cast_until(k, DONE, 1);
    }
    comm_close(c);
}

static void scene_bad_offset_in_page(struct cast *k, uint32_t self)
{
    struct comm *c = open_both(k, self);

    if (self == 0) {
        c->shm.page->spin = 1; /* takes the path of a call that reads the vectors in place */
        expect_failed_call(
            k, c, "rank 1 (worker 1): its data is at 18446744073709551615, outside its arena");
    } else {
        publish(c, (struct comm_call){ .count = ELEMENTS,
                                       .offset = UINT64_MAX,
                                       .number = 1,
                                       .what = COMM_ALL_REDUCE,
                                       .dtype = TENSOR_F32 });
        cast_until(k, DONE, 1);
    }
    comm_close(c);
}

static void invalid_call_in_the_page_names_its_writer(void **state)
{
    (void)state;
    play("A1 A1", true, scene_bad_call_in_page);
    play("A1 A1", true, scene_bad_offset_in_page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(invalid_exchange_head_names_its_sender),
        cmocka_unit_test(invalid_life_message_names_its_sender),
        cmocka_unit_test(bytes_without_the_key_are_detected),
        cmocka_unit_test(invalid_call_in_the_page_names_its_writer),
    };

    signal(SIGPIPE, SIG_IGN); /* as the daemon: OpenSSL writes without MSG_NOSIGNAL */
    return cmocka_run_group_tests_name("comm/invalid", tests, NULL, NULL);
}
