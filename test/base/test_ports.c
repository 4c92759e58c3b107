/* test_ports.c - tests listening on every address, and the choice of a port. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/ports.h"

/* Returns false if the host has no address of this family. */
static bool connect_to(int family, const char *text, uint16_t port)
{
    struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_port = htons(port) };
    struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0), rc;

    if (fd < 0)
        return false;
    if (family == AF_INET) {
        assert_int_equal(inet_pton(AF_INET, text, &v4.sin_addr), 1);
        rc = connect(fd, (const struct sockaddr *)&v4, sizeof(v4));
    } else {
        assert_int_equal(inet_pton(AF_INET6, text, &v6.sin6_addr), 1);
        rc = connect(fd, (const struct sockaddr *)&v6, sizeof(v6));
    }
    assert_true(rc == 0 || errno == EADDRNOTAVAIL || errno == ENETUNREACH);
    close(fd);
    return rc == 0;
}

static void any_address_is_that_of_both_families(void **state)
{
    int fd = listen_any(0, 8), other;
    uint16_t port;

    (void)state;
    assert_true(fd >= 0);
    port = port_of_socket(fd);
    assert_true(port > 0);
    assert_true(connect_to(AF_INET, "127.0.0.1", port));
    (void)connect_to(AF_INET6, "::1", port); /* asserts that it is not refused */
    other = listen_any(port, 8);
    assert_int_equal(other, -EADDRINUSE);
    close(fd);
}

static void mapped_address_becomes_that_of_ipv4(void **state)
{
    static const struct {
        const char *text, *expected;
    } rows[] = { { "::ffff:10.0.0.1", "10.0.0.1" }, { "fd00::1", NULL }, { "::1", NULL } };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct sockaddr_in6 from = { .sin6_family = AF_INET6, .sin6_port = htons(7) };
        struct sockaddr_storage a = { 0 };
        socklen_t n = sizeof(from);
        char text[INET6_ADDRSTRLEN];

        assert_int_equal(inet_pton(AF_INET6, rows[i].text, &from.sin6_addr), 1);
        memcpy(&a, &from, sizeof(from));
        address_unmap(&a, &n);
        if (rows[i].expected == NULL) {
            assert_int_equal(a.ss_family, AF_INET6);
            assert_int_equal(n, sizeof(from));
            continue;
        }
        assert_int_equal(a.ss_family, AF_INET);
        assert_int_equal(n, sizeof(struct sockaddr_in));
        assert_int_equal(((struct sockaddr_in *)&a)->sin_port, htons(7));
        assert_string_equal(
            inet_ntop(AF_INET, &((struct sockaddr_in *)&a)->sin_addr, text, sizeof(text)),
            rows[i].expected);
    }
}

/* ---- the choice ---- */

struct fake {
    uint16_t busy;      /* a port that another process has */
    uint16_t opened[8]; /* the requested ports, without `busy` */
    int n_opened;
    int first; /* a socket of which the first call returns a copy; -1: none */
};

static int open_port(void *arg, uint16_t port)
{
    struct fake *f = arg;

    if (port != 0 && port == f->busy)
        return -EADDRINUSE;
    assert_true(f->n_opened < 8);
    f->opened[f->n_opened++] = port;
    return f->first >= 0 && f->n_opened == 1 ? dup(f->first) : listen_any(0, 1);
}

static void range_is_searched_without_the_ports_of_others(void **state)
{
    const uint16_t at[] = { 7000, 7001 };
    struct port_list others = { .at = at, .n = 2 };
    struct fake f = { .busy = 7002, .first = -1 };
    int fd;

    (void)state;
    assert_int_equal(port_choose(7000, 7002, &others, open_port, &f), -EADDRINUSE);
    assert_int_equal(f.n_opened, 0);
    fd = port_choose(7000, 7004, &others, open_port, &f);
    assert_true(fd >= 0);
    assert_int_equal(f.n_opened, 1);
    assert_int_equal(f.opened[0], 7003);
    close(fd);
}

static void port_of_the_system_is_none_of_others(void **state)
{
    int taken = listen_any(0, 1);
    const uint16_t at[] = { port_of_socket(taken) };
    struct port_list others = { .at = at, .n = 1 };
    struct fake f = { .first = taken };
    int fd = port_choose(0, 0, &others, open_port, &f);

    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(f.n_opened, 2);
    assert_true(port_of_socket(fd) != at[0]);
    close(fd);
    f.n_opened = 0;
    fd = port_choose(0, 0, NULL, open_port, &f);
    assert_int_equal(f.n_opened, 1);
    assert_int_equal(port_of_socket(fd), at[0]);
    close(fd);
    close(taken);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_address_is_that_of_both_families),
        cmocka_unit_test(mapped_address_becomes_that_of_ipv4),
        cmocka_unit_test(range_is_searched_without_the_ports_of_others),
        cmocka_unit_test(port_of_the_system_is_none_of_others),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
