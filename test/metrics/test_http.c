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
#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "metrics/metrics.h"

struct served {
    struct metrics *m;
    struct metrics_http *http;
};

static bool print_phase(void *arg, struct buf *out)
{
    buf_printf(out, "{\"phase\": \"%s\"}\n", (const char *)arg);
    return true;
}

static bool print_nothing(void *arg, struct buf *out)
{
    (void)arg;
    buf_str(out, "a part of it");
    return false;
}

static const struct metrics_page pages[] = { { "/api/v1/status", "application/json", print_phase },
                                             { "/later", "application/json", print_nothing } };

static const char *const hosts[] = { "node-1.example", "*.lab.example", "node-2.example." };

static void begin(struct served *s, size_t n_pages)
{
    struct err err;

    s->m = metrics_new();
    metric_set(metrics_gauge(s->m, "trainerd_step", NULL, "Step."), 7);
    if (metrics_http_open(s->m, &(struct metrics_http_opts){ .listen = "127.0.0.1:0", .pages = pages, .n_pages = n_pages,
                                                             .arg = (void *)"train", .hosts = hosts,
                                                             .n_hosts = COUNT_OF(hosts) }, &s->http, &err) < 0)
        fail_msg("%s", err.text);
    assert_true(metrics_http_port(s->http) > 0);
}

static void end(struct served *s)
{
    metrics_http_close(s->http);
    metrics_free(s->m);
}

/* Connects a client socket to the server. */
static int connect_to(uint16_t port)
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

/* Sends `request` and returns all bytes until the server closes the connection; valid until the
 * next call. */
static const char *request_reply(const struct served *s, const char *request)
{
    static char reply[65536];
    int fd = connect_to(metrics_http_port(s->http));
    size_t n = 0;
    ssize_t got;

    assert_int_equal(send(fd, request, strlen(request), MSG_NOSIGNAL), (ssize_t)strlen(request));
    while ((got = recv(fd, reply + n, sizeof(reply) - 1 - n, 0)) > 0)
        n += (size_t)got;
    reply[n] = '\0';
    close(fd);
    return reply;
}

#define TAIL " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"

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

static void http_metrics_page_is_prometheus_text(void **state)
{
    struct served s;

    (void)state;
    begin(&s, 2);
    assert_reply(request_reply(&s, "GET /metrics" TAIL), "200",
                 "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n", TEXT);
    assert_reply(request_reply(&s, "GET /metrics?name=x" TAIL), "200",
                 "Cache-Control: no-store\r\n", TEXT);
    end(&s);
}

static void http_page_has_its_type_and_forbids_other_sources(void **state)
{
    struct served s;

    (void)state;
    begin(&s, 2);
    assert_reply(request_reply(&s, "GET /api/v1/status" TAIL), "200",
                 "Content-Type: application/json\r\n", "{\"phase\": \"train\"}\n");
    assert_reply(request_reply(&s, "GET /api/v1/status?x=1" TAIL), "200",
                 "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; "
                 "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n",
                 "{\"phase\": \"train\"}\n");
    assert_reply(request_reply(&s, "GET /api/v1/status" TAIL), "200",
                 "X-Content-Type-Options: nosniff\r\n", "{\"phase\": \"train\"}\n");
    end(&s);
    begin(&s, 0);
    assert_reply(request_reply(&s, "GET /api/v1/status" TAIL), "404", "text/plain",
                 "only /metrics is served here\n");
    end(&s);
}

static void http_page_without_a_document_is_503(void **state)
{
    struct served s;

    (void)state;
    begin(&s, 2);
    assert_reply(request_reply(&s, "GET /later" TAIL), "503", "text/plain",
                 "the task does not answer now; try again\n");
    end(&s);
}

static void http_head_has_the_length_and_no_body(void **state)
{
    struct served s;
    char length[64];

    (void)state;
    begin(&s, 2);
    snprintf(length, sizeof(length), "Content-Length: %zu\r\n", strlen(TEXT));
    assert_reply(request_reply(&s, "HEAD /metrics" TAIL), "200", length, "");
    end(&s);
}

static void http_empty_registry_is_an_empty_page(void **state)
{
    struct served s = { .m = metrics_new() };
    struct err err;

    (void)state;
    assert_int_equal(metrics_http_open(s.m, &(struct metrics_http_opts){ .listen = "127.0.0.1:0" }, &s.http, &err), 0);
    assert_reply(request_reply(&s, "GET /metrics" TAIL), "200", "Content-Length: 0\r\n", "");
    end(&s);
}

static void http_other_pages_and_methods_are_refused(void **state)
{
    struct served s;

    (void)state;
    begin(&s, 2);
    assert_reply(request_reply(&s, "GET /metrics/" TAIL), "404", "text/plain",
                 "this page does not exist; / is the status page, /metrics is for Prometheus\n");
    assert_reply(request_reply(&s, "GET /../etc/passwd" TAIL), "404", "text/plain",
                 "this page does not exist; / is the status page, /metrics is for Prometheus\n");
    assert_reply(request_reply(&s, "DELETE /metrics" TAIL), "405", "Allow: GET, HEAD\r\n",
                 "only GET and HEAD are served here\n");
    assert_reply(request_reply(&s, "BREW /metrics" TAIL), "405", "Allow: GET, HEAD\r\n",
                 "only GET and HEAD are served here\n");
    assert_reply(request_reply(&s, "POST /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                         "Content-Length: 1000000000000\r\n\r\n"),
                 "405", "Allow: GET, HEAD\r\n", "only GET and HEAD are served here\n");
    end(&s);
}

static void http_malformed_request_is_refused_and_the_next_is_served(void **state)
{
    static char long_line[40000];
    struct served s;
    const char *reply;

    (void)state;
    begin(&s, 2);
    reply = request_reply(&s, "\x16\x03\x01 nonsense\r\n\r\n");
    assert_true(reply[0] == '\0' || strstr(reply, " 400 ") != NULL ||
                strstr(reply, " 505 ") != NULL);
    snprintf(long_line, sizeof(long_line), "GET /%030000d" TAIL, 0);
    reply = request_reply(&s, long_line);
    assert_true(reply[0] == '\0' || strncmp(reply, "HTTP/1.1 4", 10) == 0);
    reply = request_reply(
        &s, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello");
    assert_null(strstr(reply, " 200 "));
    assert_reply(request_reply(&s, "GET /metrics" TAIL), "200", "text/plain", TEXT);
    end(&s);
}

static void http_close_with_idle_clients_does_not_wait(void **state)
{
    struct served s;
    int idle[8];

    (void)state;
    begin(&s, 2);
    for (int i = 0; i < 8; i++) {
        idle[i] = connect_to(metrics_http_port(s.http));
        assert_int_equal(send(idle[i], "GET /met", 8, MSG_NOSIGNAL), 8);
    }
    assert_reply(request_reply(&s, "GET /metrics" TAIL), "200", "text/plain", TEXT);
    end(&s); /* fails by a hang */
    for (int i = 0; i < 8; i++)
        close(idle[i]);
}

static void http_port_of_a_closed_server_is_free(void **state)
{
    struct served s;
    struct err err;
    char at[32];

    (void)state;
    begin(&s, 2);
    (void)request_reply(&s, "GET /metrics" TAIL);
    snprintf(at, sizeof(at), "127.0.0.1:%u", (unsigned)metrics_http_port(s.http));
    metrics_http_close(s.http);
    assert_int_equal(metrics_http_open(s.m, &(struct metrics_http_opts){ .listen = at }, &s.http, &err), 0);
    end(&s);
}

static void http_port_in_use_is_an_error_with_a_remedy(void **state)
{
    struct metrics_http *second = NULL;
    struct served s;
    struct err err;
    char at[32];

    (void)state;
    begin(&s, 0);
    snprintf(at, sizeof(at), "127.0.0.1:%u", (unsigned)metrics_http_port(s.http));
    assert_int_equal(metrics_http_open(s.m, &(struct metrics_http_opts){ .listen = at }, &second, &err), ERR_IO);
    assert_non_null(strstr(err.text, at));
    assert_non_null(strstr(err.text, "the port is in use; choose another port"));
    assert_null(second);
    end(&s);
}

/* A second server on every interface would be refused the port of the first one, if the first one
 * listened there too; on another loopback address the port is free. */
static void http_port_alone_listens_on_loopback_only(void **state)
{
    struct served s;
    struct metrics_http *other = NULL;
    struct err err;
    char at[32];

    (void)state;
    s.m = metrics_new();
    assert_int_equal(metrics_http_open(s.m, &(struct metrics_http_opts){ .listen = "0" }, &s.http, &err), 0);
    snprintf(at, sizeof(at), "127.0.0.2:%u", (unsigned)metrics_http_port(s.http));
    assert_int_equal(metrics_http_open(s.m, &(struct metrics_http_opts){ .listen = at }, &other, &err), 0);
    metrics_http_close(other);
    snprintf(at, sizeof(at), "127.0.0.1:%u", (unsigned)metrics_http_port(s.http));
    assert_int_equal(metrics_http_open(s.m, &(struct metrics_http_opts){ .listen = at }, &other, &err), ERR_IO);
    end(&s);
}

static void http_invalid_address_is_refused_with_the_reason(void **state)
{
    static const struct {
        const char *listen, *expected;
    } rows[] = {
        { "", "the port is missing" },
        { "70000", "the port is missing; expected a port" },
        { "localhost", "the port is missing" },
        { ":9090",
          "write 9090 for this machine alone, 0.0.0.0:9090 for every interface" },
        { "localhost:", "invalid port '' (0 to 65535)" },
        { "localhost:65536", "invalid port '65536'" },
        { "localhost:http", "invalid port 'http'" },
        { "localhost:-1", "invalid port '-1'" },
        { "::1:9090", "in brackets" },
        { "[]:9090", "in brackets|host '[]'" },
        { "http://localhost:9090", "found a URL; expected a port" },
        { "no-such-host.invalid:9090", "host 'no-such-host.invalid'" },
        { "192.0.2.1:9090", "this machine has no such address" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct metrics *m = metrics_new();
        struct metrics_http *http = NULL;
        struct err err = { 0 };
        int rc = metrics_http_open(m, &(struct metrics_http_opts){ .listen = rows[i].listen }, &http, &err);
        const char *bar = strchr(rows[i].expected, '|'); /* separates two alternatives */
        char first[128];

        snprintf(first, sizeof(first), "%.*s",
                 bar != NULL ? (int)(bar - rows[i].expected) : (int)strlen(rows[i].expected),
                 rows[i].expected);
        assert_true(rc == ERR_INPUT ||
                    (rc == ERR_IO && strstr(rows[i].listen, ".invalid") != NULL));
        assert_null(http);
        if (strstr(err.text, first) == NULL && (bar == NULL || strstr(err.text, bar + 1) == NULL))
            fail_msg("'%s': expected '%s', found '%s'", rows[i].listen, rows[i].expected, err.text);
        metrics_free(m);
    }
}

/* The reply to a request whose Host header is `host`. */
static const char *reply_to_host(const struct served *s, const char *host)
{
    char request[512];

    snprintf(request, sizeof(request),
             "GET /metrics HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", host);
    return request_reply(s, request);
}

static void http_host_of_another_site_is_refused(void **state)
{
    static const char *const accepted[] = { "127.0.0.1", "127.0.0.1:9090", "10.1.2.3:80", "[::1]:9090", "[fe80::1]",
                                            "localhost", "LOCALHOST:9090", "a.localhost:1", "node-1.example:9090",
                                            "Node-1.Example.", "node-2.example", "a.lab.example", "a.b.lab.example:1" };
    static const char *const refused[] = { "attacker.example", "attacker.example:9090", "node-1.example.attacker.example",
                                           "lab.example", "xlab.example", "localhost.attacker.example",
                                           "127.0.0.1.attacker.example:9090", "[::1.attacker]", "[::1", ":9090",
                                           "1.2.3.4.5" };
    struct served s;
    char own[256] = "";

    (void)state;
    begin(&s, 2);
    for (size_t i = 0; i < COUNT_OF(accepted); i++)
        if (strncmp(reply_to_host(&s, accepted[i]), "HTTP/1.1 200", 12) != 0)
            fail_msg("%s was refused", accepted[i]);
    for (size_t i = 0; i < COUNT_OF(refused); i++)
        if (strncmp(reply_to_host(&s, refused[i]), "HTTP/1.1 421", 12) != 0)
            fail_msg("%s was accepted", refused[i]);
    assert_non_null(strstr(reply_to_host(&s, "attacker.example:9090"),
                           "'attacker.example:9090' is not a name of this server; use its address, or add the name with "
                           "--metrics-hosts"));
    assert_int_equal(gethostname(own, sizeof(own) - 1), 0);
    assert_int_equal(strncmp(reply_to_host(&s, own), "HTTP/1.1 200", 12), 0);
    assert_int_equal(strncmp(request_reply(&s, "GET /metrics HTTP/1.0\r\n\r\n") + 8, " 200", 4), 0);
    end(&s);
}

static void http_hosts_option_accepts_every_name_and_refuses_other_texts(void **state)
{
    static const char *const any[] = { "*" }, *const wrong[] = { "http://node", "a b", "", "*.", "a/b", "node1:9090" };
    struct served s = { .m = metrics_new() };
    struct err err;

    (void)state;
    assert_int_equal(metrics_http_open(s.m, &(struct metrics_http_opts){ .listen = "0", .hosts = any, .n_hosts = 1 },
                                       &s.http, &err), 0);
    assert_int_equal(strncmp(reply_to_host(&s, "attacker.example"), "HTTP/1.1 200", 12), 0);
    metrics_http_close(s.http);
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        assert_int_equal(metrics_http_open(s.m, &(struct metrics_http_opts){ .listen = "0", .hosts = &wrong[i], .n_hosts = 1 },
                                           &s.http, &err), ERR_INPUT);
        assert_non_null(strstr(err.text, "is not a host name"));
    }
    metrics_free(s.m);
}

static void http_slow_connections_do_not_keep_others_out(void **state)
{
    enum { SLOW = 300 };
    static int slow[SLOW];
    struct served s;

    (void)state;
    begin(&s, 2);
    for (int i = 0; i < SLOW; i++) {
        slow[i] = connect_to(metrics_http_port(s.http));
        (void)send(slow[i], i % 2 ? "GET /met" : "", i % 2 ? 8 : 0, MSG_NOSIGNAL); /* it may be closed already */
    }
    for (int i = 0; i < 3; i++)
        assert_reply(request_reply(&s, "GET /metrics" TAIL), "200", "text/plain", TEXT);
    end(&s);
    for (int i = 0; i < SLOW; i++)
        close(slow[i]);
}

static void http_request_that_takes_too_long_is_ended(void **state)
{
    static const uint64_t MS = 1000000;
    struct served s;
    char byte;
    int slow, idle;

    (void)state;
    clock_fake(1000 * MS);
    begin(&s, 2);
    slow = connect_to(metrics_http_port(s.http));
    assert_int_equal(send(slow, "GET /met", 8, MSG_NOSIGNAL), 8);
    assert_reply(request_reply(&s, "GET /metrics" TAIL), "200", "text/plain", TEXT); /* after the first was accepted */
    clock_fake(8000 * MS);
    metrics_http_expire(s.http);
    assert_int_equal(send(slow, "r", 1, MSG_NOSIGNAL), 1); /* a byte from time to time does not prolong it */
    idle = connect_to(metrics_http_port(s.http));
    assert_reply(request_reply(&s, "GET /metrics" TAIL), "200", "text/plain", TEXT);
    assert_int_equal(recv(slow, &byte, 1, MSG_DONTWAIT), -1);
    clock_fake(11001 * MS);
    metrics_http_expire(s.http);
    assert_int_equal(recv(slow, &byte, 1, 0), 0);
    assert_int_equal(send(idle, "GET /metrics" TAIL, strlen("GET /metrics" TAIL), MSG_NOSIGNAL),
                     (ssize_t)strlen("GET /metrics" TAIL));
    assert_int_equal(recv(idle, &byte, 1, 0), 1);
    close(idle);
    close(slow);
    end(&s);
    clock_fake(UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(http_metrics_page_is_prometheus_text),
        cmocka_unit_test(http_page_has_its_type_and_forbids_other_sources),
        cmocka_unit_test(http_page_without_a_document_is_503),
        cmocka_unit_test(http_head_has_the_length_and_no_body),
        cmocka_unit_test(http_empty_registry_is_an_empty_page),
        cmocka_unit_test(http_other_pages_and_methods_are_refused),
        cmocka_unit_test(http_malformed_request_is_refused_and_the_next_is_served),
        cmocka_unit_test(http_close_with_idle_clients_does_not_wait),
        cmocka_unit_test(http_port_of_a_closed_server_is_free),
        cmocka_unit_test(http_port_in_use_is_an_error_with_a_remedy),
        cmocka_unit_test(http_port_alone_listens_on_loopback_only),
        cmocka_unit_test(http_invalid_address_is_refused_with_the_reason),
        cmocka_unit_test(http_host_of_another_site_is_refused),
        cmocka_unit_test(http_hosts_option_accepts_every_name_and_refuses_other_texts),
        cmocka_unit_test(http_slow_connections_do_not_keep_others_out),
        cmocka_unit_test(http_request_that_takes_too_long_is_ended),
    };

    return cmocka_run_group_tests_name("metrics/http", tests, NULL, NULL);
}
