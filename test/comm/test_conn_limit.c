/* Which connection is closed if too many are not authenticated. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/cast.h"
#include "comm/comm_priv.h"
#include "comm/conn_limit.h"

struct row {
    const char *from; /* NULL: must stay */
    uint64_t since;
};

static const char *source(const void *arg, size_t i, uint64_t *since)
{
    const struct row *rows = arg;

    *since = rows[i].since;
    return rows[i].from;
}

static void without_a_majority_the_oldest_is_closed(void **state)
{
    const struct row rows[] = { { "10.0.0.1:5", 9 }, { "10.0.0.2:5", 3 }, { "10.0.0.3:5", 4 }, { "[::1]:7", 8 } };

    (void)state;
    assert_int_equal(conn_limit_victim(4, source, rows), 1);
    assert_int_equal(conn_limit_victim(1, source, rows), 0);
}

static void host_with_most_connections_loses_its_oldest(void **state)
{
    const struct row rows[] = { { "10.0.0.1:5", 1 }, { "10.0.0.9:1", 8 }, { "10.0.0.9:2", 7 },
                                { "10.0.0.99:3", 2 }, { "10.0.0.9:3", 9 } };

    (void)state;
    assert_int_equal(conn_limit_victim(5, source, rows), 2);
}

static void authenticated_connection_is_never_closed(void **state)
{
    const struct row rows[] = { { NULL, 1 }, { "10.0.0.9:1", 8 }, { NULL, 2 } };

    (void)state;
    assert_int_equal(conn_limit_victim(3, source, rows), 1);
    assert_int_equal(conn_limit_victim(1, source, rows), SIZE_MAX);
    assert_int_equal(conn_limit_victim(0, source, rows), SIZE_MAX);
}

static void park(struct comm_listener *l, const char *host, int port)
{
    struct parked p = { .fd = -1 };

    snprintf(p.from, sizeof(p.from), "%s:%d", host, port);
    listener_park(l, &p);
}

static void flood_of_early_hellos_keeps_the_early_peers_of_other_hosts(void **state)
{
    struct comm_listener *l;
    struct parked p;
    struct cast k;
    int n;

    (void)state;
    cast_init(&k, "A1", true, 4096);
    l = k.listeners[0];
    park(l, "10.0.0.9", 1);
    park(l, "10.0.0.1", 1);
    for (int i = 2; i < 3 * COMM_PARKED_MAX; i++)
        park(l, "10.0.0.9", i);
    park(l, "10.0.0.2", 1);
    assert_true(listener_unpark(l, &p));
    assert_string_equal(p.from, "10.0.0.1:1");
    for (n = 1; listener_unpark(l, &p); n++) /* the others are the newest, in order */
        if (n < COMM_PARKED_MAX - 1)
            assert_int_equal(atoi(strrchr(p.from, ':') + 1), 2 * COMM_PARKED_MAX + 1 + n);
    assert_int_equal(n, COMM_PARKED_MAX);
    assert_string_equal(p.from, "10.0.0.2:1");
    cast_fini(&k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_majority_the_oldest_is_closed),
        cmocka_unit_test(host_with_most_connections_loses_its_oldest),
        cmocka_unit_test(authenticated_connection_is_never_closed),
        cmocka_unit_test(flood_of_early_hellos_keeps_the_early_peers_of_other_hosts),
    };

    return cmocka_run_group_tests_name("comm/conn_limit", tests, NULL, NULL);
}
