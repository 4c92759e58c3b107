/* Which connections are accepted: foreign ones, other keys, other generations, other lists of
 * members; and which members are missing. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "base/fault.h"
#include "comm/cast.h"

enum { READY = 40, DONE }; /* stage: number of members so far */

static void begin(struct cast *k, const char *layout, bool shared_memory)
{
    cast_init(k, layout, shared_memory, 4096);
}

/* ---- foreign connections ---- */

static int dial(const char *address)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    a.sin_port = htons((uint16_t)strtoul(strrchr(address, ':') + 1, NULL, 10));
    EXPECT(connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0, "connect to %s", address);
    return fd;
}

static void scene_strangers(struct cast *k, uint32_t self)
{
    struct comm *c;
    struct err err;

    if (self == 2) { /* no member: 300 silent connections, and 50 with invalid bytes */
        for (int i = 0; i < 350; i++) {
            int fd = dial(k->addresses[0]);
            char junk[300];

            memset(junk, 'A' + i % 26, sizeof(junk));
            if (i >= 300)
                EXPECT(send(fd, junk, sizeof(junk), MSG_NOSIGNAL) > 0, "send");
        }
        atomic_store(&k->stage->number[READY], 1);
        cast_until(k, DONE, 2);
        return;
    }
    k->n = 2;
    cast_until(k, READY, 1);
    if (self == 1)
        cast_until_asleep(k, 0); /* the foreign connections are first in the queue */
    c = cast_open(k, self);
    EXPECT(comm_barrier(c, 0, &err) == 0, "%s", err.text);
    atomic_fetch_add(&k->stage->number[DONE], 1);
    comm_close(c);
}

static void silent_and_invalid_connections_delay_no_member(void **state)
{
    struct cast k;

    (void)state;
    begin(&k, "A1 B1 C1", true);
    cast_play(&k, scene_strangers);
    cast_fini(&k);
}

static void scene_wrong_key(struct cast *k, uint32_t self)
{
    struct comm_opts o = cast_opts(k, self);
    struct comm_loss loss;
    struct comm *c;
    struct err err;
    int rc;

    o.key[7] ^= (uint8_t)self;
    EXPECT(comm_open(&o, &c, &err) == 0, "%s", err.text);
    rc = comm_connect(c, &err);
    if (self == 1) /* ERR_PATH: rejected for a while; ERR_AUTH: the deadline is earlier */
        EXPECT((rc == ERR_AUTH || rc == ERR_PATH) && strstr(err.text, "worker 0") &&
                   strstr(err.text, "not know the key") && comm_connect_loss(c, &loss) &&
                   loss.n_dead_paths == 1 && loss.dead_paths[0] == 0,
               "%d: %s", rc, err.text);
    else /* the called member sees only that the caller closes */
        EXPECT(rc == ERR_TIMEOUT && strstr(err.text, "worker 1") &&
                   strstr(err.text, "was interrupted"),
               "%d: %s", rc, err.text);
    comm_close(c);
}

static void peer_with_another_key_is_rejected(void **state)
{
    struct cast k;

    (void)state;
    for (uint64_t ms = CAST_SHORT_MS; ms != 0; cast_fini(&k)) {
        begin(&k, "A1 B1", true);
        k.deadline_ms = ms;
        cast_start(&k, scene_wrong_key);
        ms = cast_judge(&k);
    }
}

/* ---- generations ---- */

static void scene_stale(struct cast *k, uint32_t self)
{
    struct comm_opts o = cast_opts(k, self);
    struct comm *c;
    struct err err;
    int rc;

    o.view.generation = self == 0 ? 2 : 1;
    if (self == 1) { /* this member dials, and is in the earlier generation */
        rc = cast_connect(&o, &c, &err);
        EXPECT(rc == ERR_PEER &&
                   strstr(err.text, "generation 1 has ended: worker 0 is at generation 2"),
               "%d: %s", rc, err.text);
        o.view.generation = 2;
    }
    EXPECT(cast_connect(&o, &c, &err) == 0, "%s", err.text);
    EXPECT(comm_barrier(c, 0, &err) == 0, "%s", err.text);
    comm_close(c);
}

static void stale_generation_is_reported_and_may_connect_again(void **state)
{
    struct cast k;

    (void)state;
    begin(&k, "A1 B1", true);
    cast_play(&k, scene_stale);
    cast_fini(&k);
}

static void scene_future(struct cast *k, uint32_t self)
{
    struct comm_opts o = cast_opts(k, self);
    struct comm *c;
    struct err err;
    int rc;

    o.view.generation = self == 0 ? 1 : 2;
    if (self == 1) { /* waits */
        o.deadline_ms = 2 * CAST_LONG_MS;
    } else { /* this member is called, and is in the earlier generation */
        rc = cast_connect(&o, &c, &err);
        EXPECT(rc == ERR_TIMEOUT && strstr(err.text, "generation 2, but this member is at 1"),
               "%d: %s", rc, err.text);
        o.view.generation = 2;
        o.deadline_ms = 2 * CAST_LONG_MS;
    }
    EXPECT(cast_connect(&o, &c, &err) == 0, "%s", err.text);
    EXPECT(comm_barrier(c, 0, &err) == 0, "%s", err.text);
    comm_close(c);
}

static void peer_of_a_later_generation_waits(void **state)
{
    struct cast k;

    (void)state;
    for (uint64_t ms = CAST_SHORT_MS; ms != 0; cast_fini(&k)) {
        begin(&k, "A1 B1", true);
        k.deadline_ms = ms;
        cast_start(&k, scene_future);
        ms = cast_judge(&k);
    }
}

static void scene_other_members(struct cast *k, uint32_t self)
{
    struct comm_opts o = cast_opts(k, self);
    struct comm *c;
    struct err err;
    int rc;

    if (self == 1)
        k->members[0].n_devices = 2;
    rc = cast_connect(&o, &c, &err);
    EXPECT(rc == (self == 1 ? ERR_PEER : ERR_TIMEOUT), "%d: %s", rc, err.text);
    EXPECT(self == 0 || strstr(err.text, "another list of members for generation 1"), "%s",
           err.text);
}

static void different_list_of_members_is_refused(void **state)
{
    struct cast k;

    (void)state;
    for (uint64_t ms = CAST_SHORT_MS; ms != 0; cast_fini(&k)) {
        begin(&k, "A1 B1", true);
        k.deadline_ms = ms;
        cast_start(&k, scene_other_members);
        ms = cast_judge(&k);
    }
}

/* ---- opening alone ---- */

/* Aborts when the main thread sleeps in comm_connect(), or earlier. */
static void *abort_opening(void *c)
{
    WAIT_UNTIL(wait_is_asleep(getpid(), getpid()));
    comm_abort(c, "never mind");
    return NULL;
}

static void abort_while_connecting_ends_it_at_once(void **state)
{
    struct comm *c;
    struct comm_opts o;
    pthread_t thread;
    struct cast k;
    struct err err;

    (void)state;
    begin(&k, "A1 B1 A1", true);
    o = cast_opts(&k, 0);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(comm_open(&o, &c, &err), 0);
        assert_int_equal(pthread_create(&thread, NULL, abort_opening, c), 0);
        assert_int_equal(comm_connect(c, &err), ERR_CANCELED);
        assert_string_equal(err.text, "connect generation 1: worker 0: never mind");
        pthread_join(thread, NULL);
        assert_int_equal(comm_barrier(c, 0, &err), ERR_CANCELED);
        comm_close(c);
    }
    /* an abort before comm_connect() is effective */
    assert_int_equal(comm_open(&o, &c, &err), 0);
    comm_abort(c, "not even begun");
    assert_int_equal(comm_connect(c, &err), ERR_CANCELED);
    assert_true(comm_close_quiet(c, 0));
    cast_fini(&k);
}

static void missing_members_are_named_with_the_last_error(void **state)
{
    struct comm_opts o;
    struct comm *c;
    struct cast k;
    struct err err;

    (void)state;
    begin(&k, "A1 B1 C1", true);
    comm_listener_close(k.listeners[0]); /* refuses connections from now on */
    k.listeners[0] = NULL;
    o = cast_opts(&k, 1);
    o.deadline_ms = 100;
    if (cast_connect(&o, &c, &err) != ERR_TIMEOUT)
        fail_msg("%s", err.text);
    assert_non_null(
        strstr(err.text, "connect generation 1: missing after 0.1 s: worker 0 (127.0.0.1:"));
    assert_non_null(strstr(err.text, "Connection refused"));
    assert_non_null(strstr(err.text, "worker 2 (127.0.0.1:"));
    assert_non_null(strstr(err.text, "has not connected"));
    for (int i = 0; i < 2; i++) {
        static const char *const odd[] = { "localhost:80", "[nobody]:80" };

        k.members[0].data_address = odd[i];
        assert_int_equal(cast_connect(&o, &c, &err), ERR_PATH);
        assert_non_null(strstr(err.text, "': expected ip:port or [ip]:port"));
        assert_non_null(strstr(err.text, odd[i]));
    }
    cast_fini(&k);
}

/* The process of worker 0 runs, but a firewall answers for its data port. */
static void data_port_that_refuses_is_a_dead_path_before_the_deadline(void **state)
{
    struct comm_loss loss;
    struct comm_opts o;
    struct comm *c;
    struct cast k;
    struct err err;

    (void)state;
    begin(&k, "A1 B1 C1", true);
    comm_listener_close(k.listeners[0]);
    k.listeners[0] = NULL;
    o = cast_opts(&k, 1);
    o.deadline_ms = 600000;
    assert_int_equal(comm_open(&o, &c, &err), 0);
    if (comm_connect(c, &err) != ERR_PATH)
        fail_msg("%s", err.text);
    assert_non_null(strstr(err.text, "connect generation 1: worker 0 (127.0.0.1:"));
    assert_non_null(strstr(
        err.text, ") rejects every connection on the data path for 2 s: Connection refused"));
    assert_true(comm_connect_loss(c, &loss));
    assert_true(loss.n_dead_paths == 1 && loss.dead_paths[0] == 0);
    comm_close(c);
    cast_fini(&k);
}

static void listener_address_is_the_bound_address(void **state)
{
    struct comm_listener *l, *second;
    struct err err;
    char text[80];
    uint16_t port;

    (void)state;
    assert_int_equal(comm_listener_open("127.0.0.1", 0, 0, NULL, &l, &err), 0);
    snprintf(text, sizeof(text), "%s", comm_listener_address(l));
    assert_true(strncmp(text, "127.0.0.1:", 10) == 0);
    port = (uint16_t)strtoul(text + 10, NULL, 10);
    assert_int_equal(comm_listener_open("127.0.0.1", port, port, NULL, &second, &err), ERR_IO);
    assert_non_null(strstr(err.text, "Address already in use"));
    assert_int_equal(
        comm_listener_open("127.0.0.1", port, (uint16_t)(port + 20), NULL, &second, &err), 0);
    assert_true(strtoul(comm_listener_address(second) + 10, NULL, 10) > port);
    comm_listener_close(second);
    comm_listener_close(l);
    assert_int_equal(comm_listener_open("127.0.0.1", port, port, NULL, &l, &err), 0);
    assert_string_equal(comm_listener_address(l), text);
    comm_listener_close(l);
    assert_int_equal(comm_listener_open("not a name!", 0, 0, NULL, &l, &err), ERR_IO); /* it may resolve later */
    assert_int_equal(comm_listener_open("192.0.2.1", 0, 0, NULL, &l, &err), ERR_INPUT); /* not of this host */
    assert_string_equal(comm_host_key(), comm_host_key());
}

/* ---- retries ---- */

static void scene_refused_once(struct cast *k, uint32_t self)
{
    struct comm *c;
    struct err err;

    EXPECT(fault_arm("comm.connect@1", &err) == 0, "%s", err.text);
    c = cast_open(k, self);
    EXPECT(comm_barrier(c, 0, &err) == 0, "%s", err.text);
    EXPECT(self == 0 || fault_fired(), "no member dialled");
    comm_close(c);
}

static void refused_connection_is_retried(void **state)
{
    struct cast k;

    (void)state;
    for (int shared = 0; shared < 2; shared++) {
        begin(&k, "A1 A1", shared);
        cast_play(&k, scene_refused_once);
        cast_fini(&k);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(silent_and_invalid_connections_delay_no_member),
        cmocka_unit_test(peer_with_another_key_is_rejected),
        cmocka_unit_test(stale_generation_is_reported_and_may_connect_again),
        cmocka_unit_test(peer_of_a_later_generation_waits),
        cmocka_unit_test(different_list_of_members_is_refused),
        cmocka_unit_test(abort_while_connecting_ends_it_at_once),
        cmocka_unit_test(missing_members_are_named_with_the_last_error),
        cmocka_unit_test(data_port_that_refuses_is_a_dead_path_before_the_deadline),
        cmocka_unit_test(listener_address_is_the_bound_address),
        cmocka_unit_test(refused_connection_is_retried),
    };
    int failed;

    signal(SIGPIPE, SIG_IGN); /* as the daemon: OpenSSL writes without MSG_NOSIGNAL */
    failed = cmocka_run_group_tests_name("comm/connect", tests, NULL, NULL);
    cast_encrypts = true;
    return failed + cmocka_run_group_tests_name("comm/connect under TLS", tests, NULL, NULL);
}
