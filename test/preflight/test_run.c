/* test_run.c - three tasks of one process measure each other on loopback. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fs.h"
#include "harness/wait.h"
#include "preflight/preflight.h"
#include "tls/tls.h"

enum { TASKS = 3, LIMIT_MS = 60000, SHORT_MS = 1500 };

struct runner {
    struct preflight_opts o;
    struct preflight_result result;
    struct err err;
    int rc;
    pthread_t thread;
};

struct rig {
    struct preflight_task tasks[TASKS];
    char names[TASKS][16], addresses[TASKS][32];
    int reserved[TASKS]; /* sockets that reserve the ports */
    struct runner runners[TASKS];
    struct tls *tls[TASKS];
    char folder[64];
};

/* Reserves a port: it is bound without SO_REUSEADDR, and does not listen. */
static int reserve(uint16_t *port)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t n = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;

    assert_true(fd >= 0 && bind(fd, (struct sockaddr *)&a, n) == 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &n), 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), 0);
    *port = ntohs(a.sin_port);
    return fd;
}

static void rig_open(struct rig *r)
{
    memset(r, 0, sizeof(*r));
    snprintf(r->folder, sizeof(r->folder), "/tmp/preflight-XXXXXX");
    assert_non_null(mkdtemp(r->folder));
    for (uint32_t i = 0; i < TASKS; i++) {
        struct preflight_task *t = &r->tasks[i];

        r->reserved[i] = reserve(&t->port);
        snprintf(r->names[i], sizeof(r->names[i]), "worker %u", i);
        snprintf(r->addresses[i], sizeof(r->addresses[i]), "127.0.0.1:%u", t->port);
        t->name = r->names[i];
        t->address = r->addresses[i];
        t->host = "127.0.0.1";
        r->runners[i].o = (struct preflight_opts){ .self = i, .world = TASKS, .tasks = r->tasks, .storage = r->folder,
                                                   .limit_ms = LIMIT_MS };
    }
}

static void rig_close(struct rig *r)
{
    for (uint32_t i = 0; i < TASKS; i++) {
        preflight_free(&r->runners[i].result);
        tls_close(r->tls[i]);
        close(r->reserved[i]);
    }
    assert_int_equal(rmdir(r->folder), 0); /* every file was removed */
}

static void *run(void *arg)
{
    struct runner *r = arg;

    r->rc = preflight_run(&r->o, &r->result, &r->err);
    return NULL;
}

static void start(struct rig *r, uint32_t first, uint32_t end)
{
    for (uint32_t i = first; i < end; i++)
        assert_int_equal(pthread_create(&r->runners[i].thread, NULL, run, &r->runners[i]), 0);
}

static void join(struct rig *r, uint32_t first, uint32_t end)
{
    for (uint32_t i = first; i < end; i++)
        assert_int_equal(pthread_join(r->runners[i].thread, NULL), 0);
}

/* Numbers are not compared here, because all tasks share the cores of this machine. */
static void expect_reached(const struct rig *r)
{
    for (uint32_t i = 0; i < TASKS; i++) {
        const struct preflight_result *x = &r->runners[i].result;

        assert_int_equal(r->runners[i].rc, 0);
        for (uint32_t from = 0; from < TASKS; from++) {
            assert_true(x->rows[from].present);
            for (uint32_t to = 0; to < TASKS; to++) {
                const struct preflight_entry *e = &x->rows[from].entries[to];

                if (from == to)
                    continue;
                assert_int_equal(e->control, PREFLIGHT_REACHED);
                assert_int_equal(e->data, PREFLIGHT_REACHED);
                assert_int_equal(e->in, 1);
                assert_int_equal(e->large, PREFLIGHT_GOOD);
                assert_int_equal(e->storage, PREFLIGHT_GOOD);
                assert_int_equal(e->lock, PREFLIGHT_GOOD);
                assert_true(e->rtt_us > 0 && e->rate > 0 && e->mtu > 0);
            }
        }
    }
}

/* The file of a killed run must not remain: rig_close() expects an empty folder. */
static void every_task_receives_every_row(void **state)
{
    struct rig r;
    char stale[128];

    (void)state;
    rig_open(&r);
    snprintf(stale, sizeof(stale), "%s/.preflight-1-0123456789abcdef", r.folder);
    assert_int_equal(fs_replace(stale, "x", 1, NULL), 0);
    start(&r, 0, TASKS);
    join(&r, 0, TASKS);
    expect_reached(&r);
    rig_close(&r);
}

static void tasks_with_the_same_token_measure_under_tls(void **state)
{
    static const char token[] = "a token for the tests";
    const char *host = "127.0.0.1";
    struct rig r;

    (void)state;
    rig_open(&r);
    for (uint32_t i = 0; i < TASKS; i++) {
        assert_int_equal(tls_open_token(token, &host, 1, &r.tls[i], NULL), 0);
        r.runners[i].o.tls = r.tls[i];
    }
    start(&r, 0, TASKS);
    join(&r, 0, TASKS);
    expect_reached(&r);
    rig_close(&r);
}

/* Connects to the address and sends bytes that are no message. */
static int send_garbage(uint16_t port)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port) };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    if (connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0)
        (void)!send(fd, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 24, MSG_NOSIGNAL);
    return fd;
}

static void strangers_at_the_control_port_do_not_disturb(void **state)
{
    enum { STRANGERS = 40 };
    struct rig r;
    int fds[STRANGERS];

    (void)state;
    rig_open(&r);
    start(&r, 1, TASKS); /* they wait for task 0 */
    for (int i = 0; i < STRANGERS; i++)
        fds[i] = send_garbage(r.tasks[1 + i % 2].port);
    start(&r, 0, 1);
    join(&r, 0, TASKS);
    expect_reached(&r);
    for (int i = 0; i < STRANGERS; i++)
        close(fds[i]);
    rig_close(&r);
}

static void absent_task_is_the_only_control_fault(void **state)
{
    struct rig r;

    (void)state;
    rig_open(&r);
    for (uint32_t i = 0; i < 2; i++)
        r.runners[i].o.limit_ms = 2 * SHORT_MS;
    start(&r, 0, 2);
    join(&r, 0, 2);
    for (uint32_t i = 0; i < 2; i++) {
        const struct preflight_findings *f = &r.runners[i].result.findings;
        uint32_t n = 0;

        assert_int_equal(r.runners[i].rc, 0);
        assert_true(r.runners[i].result.has_fault);
        for (uint32_t k = 0; k < f->n; k++)
            if (strcmp(f->at[k].what, "control port") == 0) {
                assert_int_equal(f->at[k].task, 2);
                n++;
            }
        assert_int_equal(n, 1);
    }
    rig_close(&r);
}

static void port_in_use_is_an_error(void **state)
{
    struct rig r;

    (void)state;
    rig_open(&r);
    assert_int_equal(listen(r.reserved[0], 1), 0);
    start(&r, 0, 1);
    join(&r, 0, 1);
    assert_int_equal(r.runners[0].rc, ERR_IO);
    assert_non_null(strstr(r.runners[0].err.text, "address already in use"));
    rig_close(&r);
}

static bool is_stopped(void *arg)
{
    return atomic_load((atomic_bool *)arg);
}

static void stop_ends_the_call(void **state)
{
    struct rig r;
    atomic_bool stop = true;

    (void)state;
    rig_open(&r);
    r.runners[0].o.is_stopped = is_stopped;
    r.runners[0].o.arg = &stop;
    start(&r, 0, 1);
    join(&r, 0, 1);
    assert_int_equal(r.runners[0].rc, ERR_CANCELED);
    rig_close(&r);
}

/* Answers every connection like an HTTP/2 server. */
static void *serve_http2(void *arg)
{
    int listener = *(int *)arg, fd;

    while ((fd = accept(listener, NULL, NULL)) >= 0) {
        (void)!send(fd, "\0\0\0\x04\0\0\0\0\0", 9, MSG_NOSIGNAL);
        close(fd);
    }
    return NULL;
}

static void task_that_yields_ends_at_once_if_another_program_answers(void **state)
{
    struct rig r;
    pthread_t server;

    (void)state;
    rig_open(&r);
    assert_int_equal(listen(r.reserved[1], 8), 0);
    assert_int_equal(pthread_create(&server, NULL, serve_http2, &r.reserved[1]), 0);
    r.runners[0].o.yields = true;
    r.runners[0].o.limit_ms = 4 * WAIT_GUARD_MS; /* others are awaited for half of the limit */
    alarm(WAIT_GUARD_S);
    start(&r, 0, 1);
    join(&r, 0, 1);
    alarm(0);
    assert_int_equal(r.runners[0].rc, 0);
    assert_true(r.runners[0].result.has_yielded);
    assert_int_equal(r.runners[0].result.findings.n, 0);
    shutdown(r.reserved[1], SHUT_RDWR);
    pthread_join(server, NULL);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_task_receives_every_row),
        cmocka_unit_test(tasks_with_the_same_token_measure_under_tls),
        cmocka_unit_test(strangers_at_the_control_port_do_not_disturb),
        cmocka_unit_test(absent_task_is_the_only_control_fault),
        cmocka_unit_test(port_in_use_is_an_error),
        cmocka_unit_test(stop_ends_the_call),
        cmocka_unit_test(task_that_yields_ends_at_once_if_another_program_answers),
    };

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
