/* Tests of the admission of connections: relayed bytes, limit, end. The test reads what gRPC would
 * receive. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "harness/process.h"
#include "harness/wait.h"
#include "rdzv/admission.h"
#include "tls/tls.h"
#include "rdzv/frames.h"

enum { HANDED_MAX = 64 };

struct place {
    pthread_mutex_t lock;
    int handed[HANDED_MAX];
    uint32_t n;
    bool is_secure; /* the last one has a certificate */
    uint16_t port;
    struct admission *a;
    struct tls *tls; /* NULL: clear text alone */
};

static void on_accept(void *arg, int fd, struct tls_peer *peer)
{
    struct place *p = arg;

    p->is_secure = peer != NULL;
    tls_peer_free(peer);
    pthread_mutex_lock(&p->lock);
    assert_true(p->n < HANDED_MAX);
    p->handed[p->n++] = fd;
    pthread_mutex_unlock(&p->lock);
}

static uint32_t n_handed(struct place *p)
{
    uint32_t n;

    pthread_mutex_lock(&p->lock);
    n = p->n;
    pthread_mutex_unlock(&p->lock);
    return n;
}

/* A port that was free a moment ago: another process may take it, so several ports are tried. */
static void open_place_with(struct place *p, uint32_t tasks, struct tls *tls)
{
    struct err err = { 0 };
    int tries, rc = -1;

    *p = (struct place){ .tls = tls };
    pthread_mutex_init(&p->lock, NULL);
    for (tries = 0; tries < 20 && rc < 0; tries++) {
        struct admission_opts opts = { .tasks = tasks, .tls = tls, .accept = on_accept, .arg = p };
        char listen[32];

        p->port =
            (uint16_t)(12000 + (unsigned)(clock_ns() / 1000 + (uint64_t)getpid() * 7919) % 18000);
        snprintf(listen, sizeof(listen), "127.0.0.1:%u", p->port);
        opts.listen = listen;
        rc = admission_open(&opts, &p->a, &err);
    }
    if (rc < 0)
        fail_msg("%s", err.text);
}

static void open_place(struct place *p, uint32_t tasks)
{
    open_place_with(p, tasks, NULL);
}

static void close_place(struct place *p)
{
    admission_close(p->a);
    tls_close(p->tls);
    for (uint32_t i = 0; i < p->n; i++)
        close(p->handed[i]);
    pthread_mutex_destroy(&p->lock);
}

static int dial(const struct place *p)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(p->port), .sin_addr = { htonl(INADDR_LOOPBACK) } };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof(at)), 0);
    return fd;
}

static void write_all(int fd, const void *bytes, size_t n)
{
    const uint8_t *at = bytes;

    while (n > 0) {
        ssize_t done = send(fd, at, n, MSG_NOSIGNAL);

        if (done < 0 && (errno == EAGAIN || errno == EINTR)) {
            struct pollfd poll_fd = { .fd = fd, .events = POLLOUT };

            assert_int_equal(poll(&poll_fd, 1, WAIT_GUARD_MS), 1);
            continue;
        }
        assert_true(done > 0);
        at += done;
        n -= (size_t)done;
    }
}

/* Reads n bytes; fewer if the other side closes. */
static size_t read_all(int fd, void *bytes, size_t n)
{
    size_t got = 0;

    while (got < n) {
        struct pollfd poll_fd = { .fd = fd, .events = POLLIN };
        ssize_t done;

        assert_int_equal(poll(&poll_fd, 1, WAIT_GUARD_MS), 1);
        done = recv(fd, (uint8_t *)bytes + got, n - got, 0);
        if (done < 0 && (errno == EAGAIN || errno == EINTR))
            continue;
        if (done <= 0)
            break;
        got += (size_t)done;
    }
    return got;
}

static void wait_handed(struct place *p, uint32_t n)
{
    WAIT_UNTIL(n_handed(p) >= n);
    assert_int_equal(n_handed(p), n);
}

static void preface_in_pieces_and_bytes_of_both_ways_arrive_as_sent(void **state)
{
    enum { N = 200000 };
    static uint8_t sent[N], got[N];
    uint8_t head[FRAMES_PREFACE_BYTES + FRAMES_HEAD_BYTES] = { 0 };
    struct place p;
    int client, other;
    size_t i;

    (void)state;
    open_place(&p, 2);
    client = dial(&p);
    write_all(client, frames_preface, 7);
    other = dial(&p); /* its preface arrives later, in one piece */
    write_all(other, frames_preface, FRAMES_PREFACE_BYTES);
    wait_handed(&p, 1);
    write_all(client, frames_preface + 7, FRAMES_PREFACE_BYTES - 7);
    wait_handed(&p, 2);
    for (i = 0; i < N; i++)
        sent[i] = (uint8_t)(i * 2654435761U >> 13);
    memcpy(sent, (const uint8_t[]){ (N - FRAMES_HEAD_BYTES) >> 16, (uint8_t)((N - FRAMES_HEAD_BYTES) >> 8),
                                    (uint8_t)(N - FRAMES_HEAD_BYTES), 0, 0, 0, 0, 0, 1 }, FRAMES_HEAD_BYTES);
    for (i = 0; i < N; i += 5000) {
        write_all(client, sent + i, 5000);
        if (i == 0) {
            assert_int_equal(read_all(p.handed[1], head, FRAMES_PREFACE_BYTES),
                             FRAMES_PREFACE_BYTES);
            assert_memory_equal(head, frames_preface, FRAMES_PREFACE_BYTES);
        }
        assert_int_equal(read_all(p.handed[1], got + i, 5000), 5000);
    }
    assert_memory_equal(sent, got, N);
    memset(got, 0, N);
    for (i = 0; i < N; i += 5000) {
        write_all(p.handed[1], sent + i, 5000);
        assert_int_equal(read_all(client, got + i, 5000), 5000);
    }
    assert_memory_equal(sent, got, N);
    close(other);
    close(client);
    close_place(&p);
}

static void end_of_either_side_reaches_the_other_after_its_last_bytes(void **state)
{
    uint8_t got[64];
    struct place p;
    int client;

    (void)state;
    open_place(&p, 2);
    client = dial(&p);
    write_all(client, frames_preface, FRAMES_PREFACE_BYTES);
    wait_handed(&p, 1);
    write_all(p.handed[0], "goodbye", 7);
    close(p.handed[0]);
    p.n = 0;
    assert_int_equal(read_all(client, got, sizeof(got)), 7);
    assert_memory_equal(got, "goodbye", 7);
    close(client);
    client = dial(&p);
    write_all(client, frames_preface, FRAMES_PREFACE_BYTES);
    wait_handed(&p, 1);
    close(client);
    assert_int_equal(read_all(p.handed[0], got, sizeof(got)), FRAMES_PREFACE_BYTES);
    close_place(&p);
}

/* The client keeps its TCP connection open: only its close_notify ends the stream. The bytes and the close_notify
 * arrive in one segment, so one read of OpenSSL has both. */
static void end_of_tls_in_the_segment_of_the_last_bytes_reaches_the_other_side(void **state)
{
    static const char *const hosts[] = { "127.0.0.1" };
    uint8_t got[FRAMES_PREFACE_BYTES + FRAMES_HEAD_BYTES + 1], ping[FRAMES_HEAD_BYTES] = { 0 };
    int client, on = 1, off = 0, rc = 0;
    struct tls_stream *stream;
    struct tls *tls;
    struct place p;

    (void)state;
    assert_int_equal(tls_open_token("t0ken", hosts, 1, &tls, NULL), 0);
    open_place_with(&p, 2, tls);
    client = dial(&p);
    assert_int_equal(fcntl(client, F_SETFL, O_NONBLOCK), 0);
    assert_int_equal(tls_stream_new(tls, TLS_CLIENT, client, NULL, &stream, NULL), 0);
    while ((rc = tls_stream_handshake(stream, NULL)) == 0) {
        struct pollfd poll_fd = { .fd = client, .events = tls_stream_events(stream) };

        assert_int_equal(poll(&poll_fd, 1, WAIT_GUARD_MS), 1);
    }
    assert_int_equal(rc, 1);
    assert_int_equal(tls_stream_send(stream, frames_preface, FRAMES_PREFACE_BYTES),
                     FRAMES_PREFACE_BYTES);
    wait_handed(&p, 1);
    assert_int_equal(read_all(p.handed[0], got, FRAMES_PREFACE_BYTES), FRAMES_PREFACE_BYTES);
    assert_int_equal(setsockopt(client, IPPROTO_TCP, TCP_CORK, &on, sizeof(on)), 0);
    assert_int_equal(tls_stream_send(stream, ping, sizeof(ping)), sizeof(ping));
    tls_stream_free(stream);
    assert_int_equal(setsockopt(client, IPPROTO_TCP, TCP_CORK, &off, sizeof(off)), 0);
    assert_int_equal(read_all(p.handed[0], got, sizeof(ping) + 1), sizeof(ping));
    close(client);
    close_place(&p);
}

/* Returns a connection that has sent the first message of a handshake and does not read the answer. The message is made beside a
 * socket pair: a client could read the answer before its first call returns. */
static int say_hello(const struct place *p)
{
    struct tls_stream *stream;
    uint8_t hello[4096];
    int pair[2], fd = dial(p);
    ssize_t n;

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(tls_stream_new(p->tls, TLS_CLIENT, pair[0], NULL, &stream, NULL), 0);
    assert_int_equal(tls_stream_handshake(stream, NULL), 0);
    n = recv(pair[1], hello, sizeof(hello), 0);
    assert_true(n > 0 && n < (ssize_t)sizeof(hello));
    write_all(fd, hello, (size_t)n);
    tls_stream_free(stream);
    close(pair[0]);
    close(pair[1]);
    return fd;
}

static uint32_t n_answered(const int *all, uint32_t n)
{
    uint32_t answered = 0;

    for (uint32_t i = 0; i < n; i++) {
        struct pollfd p = { .fd = all[i], .events = POLLIN };

        answered += poll(&p, 1, 0) == 1;
    }
    return answered;
}

/* The admission has seen everything that was sent before: its thread handles events in order. */
static int pass_once(struct place *p)
{
    uint32_t n = n_handed(p);
    int fd = dial(p);

    write_all(fd, frames_preface, FRAMES_PREFACE_BYTES);
    wait_handed(p, n + 1);
    return fd;
}

static void many_handshakes_at_once_wait_in_order_for_a_place(void **state)
{
    enum { N = ADMISSION_HANDSHAKES + 8 };
    static const char *const hosts[] = { "127.0.0.1" };
    int all[N];
    struct tls *tls;
    struct place p;
    uint64_t now_ns;
    int passed[2];

    (void)state;
    assert_int_equal(tls_open_token("t0ken", hosts, 1, &tls, NULL), 0);
    open_place_with(&p, 2, tls);
    now_ns = clock_ns();
    clock_fake(now_ns); /* no place expires */
    for (uint32_t i = 0; i < N; i++)
        all[i] = say_hello(&p);
    WAIT_UNTIL(n_answered(all, N) >= ADMISSION_HANDSHAKES);
    passed[0] = pass_once(&p);
    passed[1] = pass_once(&p);
    assert_int_equal(n_answered(all, N), ADMISSION_HANDSHAKES);
    assert_int_equal(n_answered(all, ADMISSION_HANDSHAKES), ADMISSION_HANDSHAKES); /* the first ones */
    close(all[0]); /* gives its place up */
    WAIT_UNTIL(n_answered(all + 1, N - 1) == ADMISSION_HANDSHAKES);
    clock_fake(now_ns + ADMISSION_PLACE_MS * UINT64_C(1000000)); /* all places expire */
    close(passed[0]);
    passed[0] = pass_once(&p);
    WAIT_UNTIL(n_answered(all + 1, N - 1) == N - 1);
    clock_fake(UINT64_MAX);
    for (uint32_t i = 1; i < N; i++)
        close(all[i]);
    close(passed[0]);
    close(passed[1]);
    close_place(&p);
}

static void other_protocol_is_closed_and_not_passed_to_grpc(void **state)
{
    uint8_t got[8];
    struct place p;
    int client;

    (void)state;
    open_place(&p, 2);
    client = dial(&p);
    write_all(client, "GET / HTTP/1.1\r\n\r\n", 18);
    assert_int_equal(read_all(client, got, sizeof(got)), 0);
    assert_int_equal(n_handed(&p), 0);
    close(client);
    close_place(&p);
}

/* A process that this one has forked holds copies of the sockets, so the kernel does not forget them when they are
 * closed here. */
static void closed_connection_is_forgotten_while_a_forked_process_holds_its_sockets(void **state)
{
    struct place p;
    int first, second;
    pid_t child;

    (void)state;
    open_place(&p, 2);
    first = dial(&p);
    write_all(first, frames_preface, FRAMES_PREFACE_BYTES);
    wait_handed(&p, 1);
    child = process_fork();
    assert_true(child >= 0);
    if (child == 0)
        for (;;)
            pause();
    shutdown(first, SHUT_RDWR);
    shutdown(p.handed[0], SHUT_RDWR);
    second = dial(&p);
    write_all(second, frames_preface, FRAMES_PREFACE_BYTES);
    wait_handed(&p, 2);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    close(first);
    close(second);
    close_place(&p);
}

/* Opens more connections than the limit: the silent ones are closed, the active one stays. */
static void connection_limit_reached_silent_connections_are_closed_first(void **state)
{
    enum { IDLE = 600 };
    static int idle[IDLE];
    uint8_t ping[FRAMES_HEAD_BYTES] = { 0 }, got[FRAMES_PREFACE_BYTES];
    struct place p;
    int client, i;

    (void)state;
    open_place(&p, 2);
    client = dial(&p);
    write_all(client, frames_preface, FRAMES_PREFACE_BYTES);
    wait_handed(&p, 1);
    assert_int_equal(read_all(p.handed[0], got, sizeof(got)), sizeof(got));
    for (i = 0; i < IDLE; i++)
        idle[i] = dial(&p);
    assert_int_equal(read_all(idle[0], got, 1), 0); /* closed for a later connection */
    write_all(client, ping, sizeof(ping));
    assert_int_equal(read_all(p.handed[0], got, sizeof(ping)), sizeof(ping));
    for (i = 0; i < IDLE; i++)
        close(idle[i]);
    close(client);
    close_place(&p);
}

/* The clock stands still, so the attacker's allowance is used up and does not grow. */
static void flood_of_resets_waits_and_another_client_is_served(void **state)
{
    enum { FLOOD = 20000 };
    static uint8_t flood[FLOOD * FRAMES_HEAD_BYTES];
    uint8_t got[FRAMES_PREFACE_BYTES];
    struct place p;
    int attacker, client;
    ssize_t unread;
    size_t i, arrived = 0;

    (void)state;
    open_place(&p, 2);
    clock_fake(clock_ns());
    attacker = dial(&p);
    write_all(attacker, frames_preface, FRAMES_PREFACE_BYTES);
    wait_handed(&p, 1);
    for (i = 0; i < FLOOD; i++)
        /* RST_STREAM: 80,000 units, at 1,050 units per second */
        flood[i * FRAMES_HEAD_BYTES + 3] = 3;
    assert_true(send(attacker, flood, sizeof(flood), MSG_DONTWAIT | MSG_NOSIGNAL) > 0);
    client = dial(&p); /* its round trip ends after the thread has read from the attacker */
    write_all(client, frames_preface, FRAMES_PREFACE_BYTES);
    wait_handed(&p, 2);
    assert_int_equal(read_all(p.handed[1], got, sizeof(got)), sizeof(got));
    while ((unread = recv(p.handed[0], flood, sizeof(flood), MSG_DONTWAIT)) > 0)
        arrived += (size_t)unread;
    assert_true(arrived < sizeof(flood) / 4);
    clock_fake(UINT64_MAX);
    close(attacker);
    close(client);
    close_place(&p);
}

static void address_of_another_host_is_refused(void **state)
{
    struct admission_opts opts = { .listen = "192.0.2.1:7777", .tasks = 1, .accept = on_accept };
    struct admission *a;
    struct err err = { 0 };

    (void)state;
    assert_int_equal(admission_open(&opts, &a, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "not an address of this host"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(preface_in_pieces_and_bytes_of_both_ways_arrive_as_sent),
        cmocka_unit_test(end_of_either_side_reaches_the_other_after_its_last_bytes),
        cmocka_unit_test(end_of_tls_in_the_segment_of_the_last_bytes_reaches_the_other_side),
        cmocka_unit_test(many_handshakes_at_once_wait_in_order_for_a_place),
        cmocka_unit_test(other_protocol_is_closed_and_not_passed_to_grpc),
        cmocka_unit_test(closed_connection_is_forgotten_while_a_forked_process_holds_its_sockets),
        cmocka_unit_test(connection_limit_reached_silent_connections_are_closed_first),
        cmocka_unit_test(flood_of_resets_waits_and_another_client_is_served),
        cmocka_unit_test(address_of_another_host_is_refused),
    };

    (void)signal(SIGPIPE, SIG_IGN); /* as tls.h demands */
    return cmocka_run_group_tests_name("rdzv/admission", tests, NULL, NULL);
}
