#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "metrics/metrics.h"

struct served {
    struct metrics *m;
    struct metrics_http *http;
};

static void print_phase(void *arg, struct buf *out)
{
    buf_printf(out, "{\"phase\": \"%s\"}\n", (const char *)arg);
}

static void begin(struct served *s, void (*status)(void *, struct buf *))
{
    struct err err;

    s->m = metrics_new();
    metric_set(metrics_gauge(s->m, "trainerd_step", NULL, "Step."), 7);
    if (metrics_http_open(s->m, "127.0.0.1:0", status, (void *)"train", &s->http, &err) < 0)
        fail_msg("%s", err.text);
    assert_true(metrics_http_port(s->http) > 0);
}

static void end(struct served *s)
{
    metrics_http_close(s->http);
    metrics_free(s->m);
}

/* A plain client on a plain socket. */
static int dial(uint16_t port)
{
    struct sockaddr_in a = { .sin_family = AF_INET,
                             .sin_port = htons(port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    struct timeval patience = { .tv_sec = 5 };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    return fd;
}

/* Sends `request`, returns all that comes until the server closes; the memory is good until the
 * next call. */
static const char *ask(const struct served *s, const char *request)
{
    static char reply[65536];
    int fd = dial(metrics_http_port(s->http));
    size_t n = 0;
    ssize_t got;

    assert_int_equal(send(fd, request, strlen(request), MSG_NOSIGNAL), (ssize_t)strlen(request));
    while ((got = recv(fd, reply + n, sizeof(reply) - 1 - n, 0)) > 0)
        n += (size_t)got;
    reply[n] = '\0';
    close(fd);
    return reply;
}

#define TAIL " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"

static const char *body_of(const char *reply)
{
    const char *end_of_head = strstr(reply, "\r\n\r\n");

    assert_non_null(end_of_head);
    return end_of_head + 4;
}

static void assert_reply(const char *reply, const char *code, const char *header, const char *body)
{
    if (strncmp(reply, "HTTP/1.1 ", 9) != 0 || strncmp(reply + 9, code, 3) != 0)
        fail_msg("expected %s, found: %s", code, reply);
    assert_non_null(strstr(reply, header));
    assert_string_equal(body_of(reply), body);
}

#define TEXT "# HELP trainerd_step Step.\n# TYPE trainerd_step gauge\ntrainerd_step 7\n"

static void the_registry_is_served_as_prometheus_text(void **state)
{
    struct served s;

    (void)state;
    begin(&s, print_phase);
    assert_reply(ask(&s, "GET /metrics" TAIL), "200",
                 "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n", TEXT);
    assert_reply(ask(&s, "GET /metrics?name=x" TAIL), "200", "Cache-Control: no-store\r\n", TEXT);
    end(&s);
}

static void the_status_is_served_as_json(void **state)
{
    struct served s;

    (void)state;
    begin(&s, print_phase);
    assert_reply(ask(&s, "GET /status" TAIL), "200", "Content-Type: application/json\r\n",
                 "{\"phase\": \"train\"}\n");
    assert_reply(ask(&s, "GET /" TAIL), "200", "Content-Type: application/json\r\n",
                 "{\"phase\": \"train\"}\n");
    end(&s);
    begin(&s, NULL);
    assert_reply(ask(&s, "GET /status" TAIL), "404", "text/plain", "only /metrics is here\n");
    end(&s);
}

static void head_has_the_length_but_no_body(void **state)
{
    struct served s;
    char length[64];

    (void)state;
    begin(&s, print_phase);
    snprintf(length, sizeof(length), "Content-Length: %zu\r\n", strlen(TEXT));
    assert_reply(ask(&s, "HEAD /metrics" TAIL), "200", length, "");
    end(&s);
}

static void an_empty_registry_is_an_empty_page(void **state)
{
    struct served s = { .m = metrics_new() };
    struct err err;

    (void)state;
    assert_int_equal(metrics_http_open(s.m, "localhost:0", NULL, NULL, &s.http, &err), 0);
    assert_reply(ask(&s, "GET /metrics" TAIL), "200", "Content-Length: 0\r\n", "");
    end(&s);
}

static void other_pages_and_methods_are_refused(void **state)
{
    struct served s;

    (void)state;
    begin(&s, print_phase);
    assert_reply(ask(&s, "GET /metrics/" TAIL), "404", "text/plain",
                 "only /metrics and /status are here\n");
    assert_reply(ask(&s, "GET /../etc/passwd" TAIL), "404", "text/plain",
                 "only /metrics and /status are here\n");
    assert_reply(ask(&s, "DELETE /metrics" TAIL), "405", "Allow: GET, HEAD\r\n",
                 "only GET and HEAD are served here\n");
    assert_reply(ask(&s, "BREW /metrics" TAIL), "405", "Allow: GET, HEAD\r\n",
                 "only GET and HEAD are served here\n");
    assert_reply(ask(&s, "POST /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                         "Content-Length: 1000000000000\r\n\r\n"),
                 "405", "Allow: GET, HEAD\r\n", "only GET and HEAD are served here\n");
    end(&s);
}

static void nonsense_is_refused_and_the_next_one_is_served(void **state)
{
    static char long_line[40000];
    struct served s;
    const char *reply;

    (void)state;
    begin(&s, print_phase);
    reply = ask(&s, "\x16\x03\x01 nonsense\r\n\r\n");
    assert_true(reply[0] == '\0' || strstr(reply, " 400 ") != NULL ||
                strstr(reply, " 505 ") != NULL);
    snprintf(long_line, sizeof(long_line), "GET /%030000d" TAIL, 0);
    reply = ask(&s, long_line);
    assert_true(reply[0] == '\0' || strncmp(reply, "HTTP/1.1 4", 10) == 0);
    reply = ask(&s, "GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello");
    assert_null(strstr(reply, " 200 "));
    assert_reply(ask(&s, "GET /metrics" TAIL), "200", "text/plain", TEXT);
    end(&s);
}

static void idle_clients_do_not_hold_up_the_end(void **state)
{
    struct served s;
    int idle[8];

    (void)state;
    begin(&s, print_phase);
    for (int i = 0; i < 8; i++) {
        idle[i] = dial(metrics_http_port(s.http));
        assert_int_equal(send(idle[i], "GET /met", 8, MSG_NOSIGNAL), 8);
    }
    assert_reply(ask(&s, "GET /metrics" TAIL), "200", "text/plain", TEXT);
    end(&s); /* a hang would be seen by whoever runs the tests */
    for (int i = 0; i < 8; i++)
        close(idle[i]);
}

static void a_closed_server_gives_its_port_back(void **state)
{
    struct served s;
    struct err err;
    char at[32];

    (void)state;
    begin(&s, print_phase);
    (void)ask(&s, "GET /metrics" TAIL);
    snprintf(at, sizeof(at), "127.0.0.1:%u", (unsigned)metrics_http_port(s.http));
    metrics_http_close(s.http);
    assert_int_equal(metrics_http_open(s.m, at, NULL, NULL, &s.http, &err), 0);
    end(&s);
}

static void a_port_that_is_taken_is_an_error_with_a_remedy(void **state)
{
    struct metrics_http *second = NULL;
    struct served s;
    struct err err;
    char at[32];

    (void)state;
    begin(&s, NULL);
    snprintf(at, sizeof(at), "127.0.0.1:%u", (unsigned)metrics_http_port(s.http));
    assert_int_equal(metrics_http_open(s.m, at, NULL, NULL, &second, &err), ERR_IO);
    assert_non_null(strstr(err.text, at));
    assert_non_null(strstr(err.text, "another program listens there; choose another port"));
    assert_null(second);
    end(&s);
}

static void an_address_that_cannot_be_is_refused_with_the_reason(void **state)
{
    static const struct {
        const char *listen, *says;
    } rows[] = {
        { "", "there is no port" },
        { "9090", "there is no port; expected host:port" },
        { "localhost", "there is no port" },
        { ":9090",
          "write 127.0.0.1:9090 for this machine alone, 0.0.0.0:9090 for every interface" },
        { "localhost:", "the port '' is no number from 0 to 65535" },
        { "localhost:65536", "the port '65536'" },
        { "localhost:http", "the port 'http'" },
        { "localhost:-1", "the port '-1'" },
        { "::1:9090", "stands in brackets" },
        { "[]:9090", "stands in brackets|host '[]'" },
        { "http://localhost:9090", "it is a URL; expected host:port" },
        { "no-such-host.invalid:9090", "host 'no-such-host.invalid'" },
        { "192.0.2.1:9090", "this machine has no such address" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct metrics *m = metrics_new();
        struct metrics_http *http = NULL;
        struct err err = { 0 };
        int rc = metrics_http_open(m, rows[i].listen, NULL, NULL, &http, &err);
        const char *bar = strchr(rows[i].says, '|');
        char first[128];

        snprintf(first, sizeof(first), "%.*s",
                 bar != NULL ? (int)(bar - rows[i].says) : (int)strlen(rows[i].says), rows[i].says);
        assert_true(rc == ERR_INPUT ||
                    (rc == ERR_IO && strstr(rows[i].listen, ".invalid") != NULL));
        assert_null(http);
        if (strstr(err.text, first) == NULL && (bar == NULL || strstr(err.text, bar + 1) == NULL))
            fail_msg("'%s': expected '%s', found '%s'", rows[i].listen, rows[i].says, err.text);
        metrics_free(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_registry_is_served_as_prometheus_text),
        cmocka_unit_test(the_status_is_served_as_json),
        cmocka_unit_test(head_has_the_length_but_no_body),
        cmocka_unit_test(an_empty_registry_is_an_empty_page),
        cmocka_unit_test(other_pages_and_methods_are_refused),
        cmocka_unit_test(nonsense_is_refused_and_the_next_one_is_served),
        cmocka_unit_test(idle_clients_do_not_hold_up_the_end),
        cmocka_unit_test(a_closed_server_gives_its_port_back),
        cmocka_unit_test(a_port_that_is_taken_is_an_error_with_a_remedy),
        cmocka_unit_test(an_address_that_cannot_be_is_refused_with_the_reason),
    };

    return cmocka_run_group_tests_name("metrics/http", tests, NULL, NULL);
}
