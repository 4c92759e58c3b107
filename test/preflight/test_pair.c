/* test_pair.c - a measurement over loopback, and senders without a valid ticket. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "preflight/pair.h"

static const char HOST[] = "127.0.0.1";
static const atomic_bool goes_on = false, stops = true;

static struct pair_server *open_server(void)
{
    struct pair_server *s = NULL;
    struct err err;

    if (pair_serve(HOST, 0, 0, NULL, &s, &err) < 0)
        fail_msg("%s", err.text);
    assert_true(pair_port(s) > 0);
    return s;
}

static void pair_has_a_round_trip_and_a_rate(void **state)
{
    (void)state;
    for (int any = 0; any < 2; any++) {
        struct pair_result r = { 0 };
        struct pair_server *s;
        struct err err;

        assert_int_equal(pair_serve(any ? NULL : HOST, 0, 0, NULL, &s, &err), 0);
        if (pair_measure(HOST, pair_port(s), pair_ticket(s), 50, PAIR_BYTES_MAX, &goes_on, &r,
                         &err) < 0)
            fail_msg("%s", err.text);
        assert_true(r.rtt_us > 0 && r.rate > 0);
        pair_close(s);
    }
}

static void transfer_ends_at_its_number_of_bytes(void **state)
{
    struct pair_server *s = open_server();
    struct pair_result r = { 0 };
    struct err err;

    (void)state;
    assert_int_equal(
        pair_measure(HOST, pair_port(s), pair_ticket(s), PAIR_MS_MAX, 1000, &goes_on, &r, &err), 0);
    assert_true(r.rate > 0);
    pair_close(s);
}

static void wrong_ticket_is_refused_and_the_right_one_still_works(void **state)
{
    struct pair_server *s = open_server();
    uint8_t ticket[MESSAGE_TICKET_BYTES];
    struct pair_result r = { .rate = 7 };
    struct err err;

    (void)state;
    memcpy(ticket, pair_ticket(s), sizeof(ticket));
    ticket[3] ^= 1;
    assert_true(pair_measure(HOST, pair_port(s), ticket, 50, 1000, &goes_on, &r, &err) < 0);
    assert_int_equal(err.code, ERR_PEER);
    assert_int_equal(r.rate, 7);
    assert_int_equal(pair_measure(HOST, pair_port(s), pair_ticket(s), 50, 1000, &goes_on, &r, &err),
                     0);
    pair_close(s);
    pair_close(NULL);
}

/* Bytes of another program do not end the service. */
static void strangers_do_not_end_the_service(void **state)
{
    struct pair_server *s = open_server();
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(pair_port(s)) };
    struct pair_result r;
    struct err err;

    (void)state;
    assert_int_equal(inet_pton(AF_INET, HOST, &a.sin_addr), 1);
    for (int i = 0; i < 3; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);

        assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
        if (i > 0)
            assert_true(send(fd, "GET / HTTP/1.1\r\nhost: a-name-of-40-bytes\r\n\r\n",
                             i == 1 ? 5 : 44, 0) > 0);
        close(fd);
    }
    assert_int_equal(pair_measure(HOST, pair_port(s), pair_ticket(s), 50, 1000, &goes_on, &r, &err),
                     0);
    pair_close(s);
}

static void closed_port_and_stop_have_their_own_errors(void **state)
{
    struct pair_server *s = open_server();
    uint8_t ticket[MESSAGE_TICKET_BYTES];
    uint16_t port = pair_port(s);
    struct pair_result r;
    struct err err;

    (void)state;
    memcpy(ticket, pair_ticket(s), sizeof(ticket));
    assert_int_equal(pair_measure(HOST, port, ticket, 50, 1000, &stops, &r, &err), ERR_CANCELED);
    pair_close(s);
    assert_int_equal(pair_measure(HOST, port, ticket, 50, 1000, &goes_on, &r, &err), ERR_PEER);
    assert_non_null(strstr(err.text, "refuses the connection"));
    assert_int_equal(
        pair_measure("no-such-host.invalid", port, ticket, 50, 1000, &goes_on, &r, &err), ERR_PEER);
}

static void range_without_a_free_port_names_its_key(void **state)
{
    struct pair_server *s = open_server(), *other = NULL;
    uint16_t port = pair_port(s);
    struct err err;

    (void)state;
    assert_int_equal(pair_serve(HOST, port, port, NULL, &other, &err), ERR_IO);
    assert_non_null(strstr(err.text, "communication.data_port"));
    pair_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pair_has_a_round_trip_and_a_rate),
        cmocka_unit_test(transfer_ends_at_its_number_of_bytes),
        cmocka_unit_test(wrong_ticket_is_refused_and_the_right_one_still_works),
        cmocka_unit_test(strangers_do_not_end_the_service),
        cmocka_unit_test(closed_port_and_stop_have_their_own_errors),
        cmocka_unit_test(range_without_a_free_port_names_its_key),
    };

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests_name("preflight/pair", tests, NULL, NULL);
}
