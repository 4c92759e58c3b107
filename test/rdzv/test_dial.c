/* test_dial.c - a connection, or the reason why there is none. "Refused" means that all addresses
 * of a name refused. */
#include "harness/lacking.h"
#include "rdzv/kit.h"

#include <fcntl.h>
#include <poll.h>

#include "rdzv/rdzv_priv.h"
#include "tls/tls.h"

struct result {
    struct loop *loop;
    uint32_t n; /* number of calls of fn */
    uint32_t n_progress;
    int fd;
    struct tls_stream *tls;
    bool is_refused;
    char why[256];
};

static void on_progress(void *arg)
{
    struct result *r = arg;

    assert_int_equal(r->n, 0); /* before the result */
    r->n_progress++;
}

static void on_dialled(void *arg, const struct rdzv_dialled *d)
{
    struct result *r = arg;

    r->n++;
    r->fd = d->fd;
    r->tls = d->tls;
    r->is_refused = d->is_refused;
    snprintf(r->why, sizeof(r->why), "%s", d->why);
    loop_stop(r->loop);
}

static struct result dial(const char *address, uint64_t wait_ms)
{
    struct result r = { .fd = -1 };

    assert_int_equal(loop_open(&r.loop, NULL), 0);
    assert_non_null(rdzv_dial_start(r.loop, address, NULL, wait_ms, on_dialled, on_progress, &r));
    assert_int_equal(r.n, 0); /* never called inside rdzv_dial_start() */
    loop_run(r.loop);
    loop_close(r.loop);
    assert_int_equal(r.n, 1);
    return r;
}

/* Returns a listener on this address and port (0: any); -1 if the host has no such address. */
static int listen_on(const char *ip, uint16_t *port, int backlog)
{
    struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_port = htons(*port) };
    struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_port = htons(*port) };
    bool is_v6 = inet_pton(AF_INET6, ip, &v6.sin6_addr) == 1;
    struct sockaddr *a = is_v6 ? (struct sockaddr *)&v6 : (struct sockaddr *)&v4;
    socklen_t n = is_v6 ? sizeof(v6) : sizeof(v4);
    int one = 1, fd = socket(a->sa_family, SOCK_STREAM, 0);

    if (!is_v6)
        inet_pton(AF_INET, ip, &v4.sin_addr);
    if (fd >= 0)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (fd < 0 || bind(fd, a, n) < 0 || listen(fd, backlog) < 0) {
        if (fd >= 0)
            close(fd);
        return -1;
    }
    assert_int_equal(getsockname(fd, a, &n), 0);
    *port = ntohs(is_v6 ? v6.sin6_port : v4.sin_port);
    return fd;
}

static void dial_listening_address_connects(void **state)
{
    static const char *const formats[] = { "127.0.0.1:%u", "localhost:%u" };
    uint16_t port = 0;
    int fd = listen_on("127.0.0.1", &port, 8);
    char address[64];

    (void)state;
    for (size_t i = 0; i < 2; i++) { /* ::1 may refuse: one address is enough */
        struct result r;

        snprintf(address, sizeof(address), formats[i], port);
        r = dial(address, 1000);
        assert_true(r.fd >= 0);
        assert_false(r.is_refused);
        assert_int_equal(r.n_progress, 1);
        close(r.fd);
    }
    close(fd);
}

struct callee {
    int fd;
    struct tls_stream *stream;
    bool is_complete;
};

static void *accept_handshake(void *arg)
{
    struct callee *c = arg;
    int rc = 0;

    while ((rc = tls_stream_handshake(c->stream, NULL)) == 0) {
        struct pollfd p = { .fd = c->fd, .events = tls_stream_events(c->stream) };

        if (poll(&p, 1, WAIT_GUARD_MS) != 1)
            return NULL;
    }
    c->is_complete = rc == 1;
    return NULL;
}

/* Returns the number of reports of a dial whose handshake succeeds. */
static uint32_t reports_under_tls(struct tls *tls)
{
    uint16_t port = 0;
    int fd = listen_on("127.0.0.1", &port, 8);
    struct result r = { .fd = -1 };
    struct callee c = { .fd = -1 };
    char address[64];
    pthread_t thread;

    assert_int_equal(loop_open(&r.loop, NULL), 0);
    snprintf(address, sizeof(address), "127.0.0.1:%u", port);
    assert_non_null(
        rdzv_dial_start(r.loop, address, tls, WAIT_GUARD_MS, on_dialled, on_progress, &r));
    c.fd = accept(fd, NULL, NULL);
    assert_true(c.fd >= 0);
    assert_int_equal(fcntl(c.fd, F_SETFL, O_NONBLOCK), 0);
    assert_int_equal(tls_stream_new(tls, TLS_SERVER, c.fd, NULL, &c.stream, NULL), 0);
    assert_int_equal(pthread_create(&thread, NULL, accept_handshake, &c), 0);
    loop_run(r.loop);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(c.is_complete);
    assert_true(r.fd >= 0);
    tls_stream_free(r.tls);
    tls_stream_free(c.stream);
    close(r.fd);
    close(c.fd);
    close(fd);
    loop_close(r.loop);
    return (uint32_t)r.n_progress;
}

/* The callee accepts the connection, and later continues the handshake: each is progress. On a busy machine the answer can be
 * there before the dial waits for it, which is one report less. */
static void dial_under_tls_reports_the_connection_and_the_handshake(void **state)
{
    static const char *const hosts[] = { "127.0.0.1" };
    struct tls *tls;

    (void)state;
    assert_int_equal(tls_open_token("t0ken", hosts, 1, &tls, NULL), 0);
    WAIT_UNTIL(reports_under_tls(tls) >= 2);
    tls_close(tls);
}

static void dial_port_without_listener_is_refused(void **state)
{
    static const char *const formats[] = { "127.0.0.1:%u", "localhost:%u" };
    uint16_t port = 0;
    int fd = listen_on("127.0.0.1", &port, 8);
    char address[64];

    (void)state;
    close(fd);
    for (size_t i = 0; i < 2; i++) {
        struct result r;

        snprintf(address, sizeof(address), formats[i], port);
        r = dial(address, 1000);
        assert_int_equal(r.fd, -1);
        assert_true(r.is_refused);
        assert_string_equal(r.why, "connect: Connection refused");
    }
}

static void dial_ipv6_address_connects_or_is_refused(void **state)
{
    uint16_t port = 0;
    int fd = listen_on("::1", &port, 8);
    char address[64];
    struct result r;

    (void)state;
    if (fd < 0)
        skip_lacking("no IPv6");
    snprintf(address, sizeof(address), "[::1]:%u", port);
    r = dial(address, 1000);
    assert_true(r.fd >= 0);
    close(r.fd);
    close(fd);
    r = dial(address, 1000);
    assert_true(r.is_refused);
}

/* A listener that does not accept, with a full queue: connections hang, as to a silent host. */
static void dial_silent_address_times_out_and_is_not_refused(void **state)
{
    uint16_t port = 0;
    int fd = listen_on("127.0.0.1", &port, 0), fillers[4];
    char address[64];
    struct result r;
    uint64_t start_ms;

    (void)state;
    snprintf(address, sizeof(address), "127.0.0.1:%u", port);
    for (size_t i = 0; i < 4; i++)
        fillers[i] = dial(address, 100).fd;
    start_ms = clock_ms();
    r = dial(address, 200);
    assert_int_equal(r.fd, -1);
    assert_false(r.is_refused);
    assert_string_equal(r.why, "connect: no answer for 0.2 s");
    assert_true(clock_ms() - start_ms >= 200);
    /* one address of the name is silent, the other may refuse: no proof */
    snprintf(address, sizeof(address), "localhost:%u", port);
    r = dial(address, 200);
    assert_int_equal(r.fd, -1);
    assert_false(r.is_refused);
    for (size_t i = 0; i < 4; i++)
        if (fillers[i] >= 0)
            close(fillers[i]);
    close(fd);
}

static void dial_unresolvable_name_is_not_refused(void **state)
{
    struct result r = dial("no-such-host.invalid:2222", 1000);

    (void)state;
    assert_int_equal(r.fd, -1);
    assert_false(r.is_refused);
    assert_non_null(strstr(r.why, "resolve 'no-such-host.invalid': "));
    r = dial("nowhere", 1000);
    assert_false(r.is_refused);
    assert_string_equal(r.why, "'nowhere': expected HOST:PORT");
}

static void dial_cancelled_callback_is_not_called(void **state)
{
    struct result r = { .fd = -1 };
    uint16_t port = 0;
    int fd = listen_on("127.0.0.1", &port, 128);
    char address[64];

    (void)state;
    snprintf(address, sizeof(address), "127.0.0.1:%u", port);
    assert_int_equal(loop_open(&r.loop, NULL), 0);
    for (int i = 0; i < 100; i++) {
        struct rdzv_dial *d =
            rdzv_dial_start(r.loop, address, NULL, 1000, on_dialled, on_progress, &r);

        if (i % 2 == 0)
            wait_disturb(1000000); /* the result usually waits in the loop by now */
        rdzv_dial_cancel(d);
    }
    loop_close(r.loop); /* runs the posted functions */
    assert_int_equal(r.n, 0);
    rdzv_dial_cancel(NULL);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dial_listening_address_connects),
        cmocka_unit_test(dial_under_tls_reports_the_connection_and_the_handshake),
        cmocka_unit_test(dial_port_without_listener_is_refused),
        cmocka_unit_test(dial_ipv6_address_connects_or_is_refused),
        cmocka_unit_test(dial_silent_address_times_out_and_is_not_refused),
        cmocka_unit_test(dial_unresolvable_name_is_not_refused),
        cmocka_unit_test(dial_cancelled_callback_is_not_called),
    };

    (void)signal(SIGPIPE, SIG_IGN); /* as tls.h demands */
    return cmocka_run_group_tests_name("rdzv/dial", tests, NULL, NULL);
}
