/* test_path.c - tests of data paths: which paths are dead, and what a test leaves at a listener. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "comm/comm.h"
#include "comm/comm_priv.h"
#include "harness/wait.h"

enum { LIMIT_MS = 200, PATIENT_MS = 10000 /* limit of tests that must succeed on a busy machine */, BATCH = 100 };

/* A listener without a communicator: its socket, and its address in `text`. */
static int listen_with(int backlog, int receive_bytes, char text[32])
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t n = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    if (receive_bytes > 0)
        assert_int_equal(
            setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof(receive_bytes)), 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(listen(fd, backlog), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &n), 0);
    snprintf(text, 32, "127.0.0.1:%u", ntohs(a.sin_port));
    return fd;
}

static bool is_dead(const char *address, uint32_t limit_ms)
{
    struct err err;
    bool dead = false;

    assert_int_equal(comm_test_paths(&address, 1, limit_ms, &dead, &err), 0);
    return dead;
}

static void path_to_a_listener_works_although_no_thread_accepts(void **state)
{
    struct comm_listener *l;
    struct err err;

    (void)state;
    assert_int_equal(comm_listener_open("127.0.0.1", 0, 0, NULL, &l, &err), 0);
    assert_false(is_dead(comm_listener_address(l), PATIENT_MS));
    comm_listener_close(l);
}

static void path_to_a_port_that_refuses_is_dead(void **state)
{
    char address[32];
    int fd = listen_with(1, 0, address);

    (void)state;
    close(fd);
    assert_true(is_dead(address, PATIENT_MS));
}

static void path_without_an_answer_is_dead(void **state)
{
    char address[32];
    int fd = listen_with(0, 0, address), fill[4];
    struct sockaddr_storage to;
    struct err err;
    uint32_t n;

    (void)state;
    assert_int_equal(listener_parse(address, &to, &n, &err), 0);
    for (int i = 0; i < 4; i++) { /* a full queue: the kernel drops further attempts */
        fill[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        (void)connect(fill[i], (struct sockaddr *)&to, n);
    }
    assert_true(is_dead(address, LIMIT_MS));
    for (int i = 0; i < 4; i++)
        close(fill[i]);
    close(fd);
}

static void path_on_which_not_all_is_acknowledged_is_dead(void **state)
{
    char address[32];
    int fd = listen_with(8, 2048, address);

    (void)state;
    assert_true(is_dead(address, LIMIT_MS));
    close(fd);
}

static void paths_are_tested_at_the_same_time_and_each_for_itself(void **state)
{
    char small[2][32], good[32];
    int a = listen_with(8, 2048, small[0]), b = listen_with(8, 2048, small[1]),
        c = listen_with(8, 0, good);
    const char *addresses[] = { small[0], good, "not an address", small[1] };
    bool dead[4];
    struct err err;
    uint64_t begin_ms = clock_ms();

    (void)state;
    assert_int_equal(comm_test_paths(addresses, 4, 1000, dead, &err), 0);
    assert_true(clock_ms() - begin_ms >= 1000);
    assert_true(dead[0] && !dead[1] && dead[2] && dead[3]);
    close(a);
    close(b);
    close(c);
}

/* Sends a HELLO to the listener, in two parts. */
static int say_hello(const char *address, struct comm_listener *sweep_between)
{
    struct handshake_hello h = { .kind = HANDSHAKE_LIFE, .generation = 9 };
    uint8_t bytes[HANDSHAKE_HELLO_BYTES];
    struct sockaddr_storage to;
    struct err err;
    uint32_t n;
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    handshake_hello_write(&h, bytes);
    assert_int_equal(listener_parse(address, &to, &n, &err), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, n), 0);
    assert_int_equal(send(fd, bytes, 50, 0), 50);
    wait_disturb(1000000); /* the listener may see the first part alone */
    comm_listener_sweep(sweep_between);
    assert_int_equal(send(fd, bytes + 50, HANDSHAKE_HELLO_BYTES - 50, 0),
                     HANDSHAKE_HELLO_BYTES - 50);
    return fd;
}

static void sweep_removes_tests_and_keeps_early_connections(void **state)
{
    const char *addresses[BATCH];
    bool dead[BATCH];
    struct comm_listener *l;
    struct parked p;
    struct err err;
    int early;

    (void)state;
    assert_int_equal(comm_listener_open("127.0.0.1", 0, 0, NULL, &l, &err), 0);
    early = say_hello(comm_listener_address(l), l);
    for (int i = 0; i < BATCH; i++)
        addresses[i] = comm_listener_address(l);
    for (int batch = 0; batch < 15; batch++) { /* more than the queue can hold */
        assert_int_equal(comm_test_paths(addresses, BATCH, PATIENT_MS, dead, &err), 0);
        for (int i = 0; i < BATCH; i++)
            if (dead[i])
                fail_msg("the path is dead in batch %d", batch);
        comm_listener_sweep(l);
    }
    assert_true(listener_unpark(l, &p));
    assert_int_equal(p.done, HANDSHAKE_HELLO_BYTES);
    close(p.fd);
    assert_false(listener_unpark(l, &p));
    close(early);
    comm_listener_close(l);
}

static void sweep_keeps_a_bounded_number_of_connections(void **state)
{
    struct comm_listener *l;
    struct parked p;
    struct err err;
    int fds[300], n = 0;

    (void)state;
    assert_int_equal(comm_listener_open("127.0.0.1", 0, 0, NULL, &l, &err), 0);
    for (int i = 0; i < 300; i++)
        fds[i] = say_hello(comm_listener_address(l), l);
    comm_listener_sweep(l);
    while (listener_unpark(l, &p)) {
        close(p.fd);
        n++;
    }
    assert_in_range(n, 1, 200);
    for (int i = 0; i < 300; i++)
        close(fds[i]);
    comm_listener_close(l);
}

static void sweep_leaves_the_queue_to_a_handshake(void **state)
{
    struct comm_listener *l;
    struct parked p;
    struct err err;
    int early;

    (void)state;
    assert_int_equal(comm_listener_open("127.0.0.1", 0, 0, NULL, &l, &err), 0);
    listener_claim(l, true);
    early = say_hello(comm_listener_address(l), l);
    comm_listener_sweep(l);
    assert_false(listener_unpark(l, &p));
    listener_claim(l, false);
    comm_listener_sweep(l);
    assert_true(listener_unpark(l, &p));
    close(p.fd);
    close(early);
    comm_listener_close(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(path_to_a_listener_works_although_no_thread_accepts),
        cmocka_unit_test(path_to_a_port_that_refuses_is_dead),
        cmocka_unit_test(path_without_an_answer_is_dead),
        cmocka_unit_test(path_on_which_not_all_is_acknowledged_is_dead),
        cmocka_unit_test(paths_are_tested_at_the_same_time_and_each_for_itself),
        cmocka_unit_test(sweep_removes_tests_and_keeps_early_connections),
        cmocka_unit_test(sweep_keeps_a_bounded_number_of_connections),
        cmocka_unit_test(sweep_leaves_the_queue_to_a_handshake),
    };

    return cmocka_run_group_tests_name("comm/path", tests, NULL, NULL);
}
