/* test_racks.c - slow hosts, slow links and racks in pairs that a test makes up. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdbool.h>

#include "base/check.h"
#include "base/err.h"
#include "base/rng.h"
#include "preflight/racks.h"

enum { MOST = 12 };

static const uint64_t FAST = 1000000000, SLOW_UPLINK = 100000000;
static const struct rng_key key = { .seed = 5 };

struct net {
    struct racks_pair pairs[MOST * MOST];
    uint32_t n;
    struct racks r;
};

/* Every number up to a quarter worse, as on busy hosts. */
static void begin(struct net *x, uint32_t n, const uint32_t *rack)
{
    x->n = n;
    for (uint32_t i = 0; i < n * n; i++) {
        bool is_near = rack == NULL || rack[i / n] == rack[i % n];
        double noise = 1 - 0.25 * (double)rng_f32(&key, i);

        x->pairs[i] = (struct racks_pair){ (uint32_t)(50 / noise),
                                           (uint64_t)((double)(is_near ? FAST : SLOW_UPLINK) * noise) };
    }
}

static void set_rate(struct net *x, uint32_t a, uint32_t b, uint64_t rate)
{
    x->pairs[a * x->n + b].rate = rate;
}

static void find(struct net *x)
{
    struct err err;

    assert_int_equal(racks_find(x->pairs, x->n, &x->r, &err), 0);
}

static void equal_links_have_no_finding_and_one_rack(void **state)
{
    (void)state;
    for (uint32_t n = 2; n <= MOST; n++) {
        struct net x;

        begin(&x, n, NULL);
        find(&x);
        assert_int_equal(x.r.n_findings, 0);
        assert_int_equal(x.r.n_racks, 1);
        assert_true(x.r.median_rate > FAST / 2 && x.r.median_rate <= FAST);
        for (uint32_t i = 0; i < n; i++)
            assert_int_equal(x.r.rack[i], 0);
        racks_free(&x.r);
    }
}

static void slow_cable_of_a_host_is_one_finding(void **state)
{
    (void)state;
    for (uint32_t n = 3; n <= MOST; n++) {
        struct net x;

        begin(&x, n, NULL);
        for (uint32_t i = 0; i < n; i++) /* one direction is enough */
            set_rate(&x, n - 1, i, 20000000);
        find(&x);
        assert_int_equal(x.r.n_findings, 1);
        assert_int_equal(x.r.findings[0].kind, RACKS_RATE);
        assert_int_equal(x.r.findings[0].task, n - 1);
        assert_int_equal(x.r.findings[0].other, RACKS_NONE);
        assert_int_equal(x.r.findings[0].value, 20000000);
        assert_int_equal(x.r.n_racks, 1);
        assert_int_equal(x.r.rack[n - 1], RACKS_NONE);
        racks_free(&x.r);
    }
}

static void slow_link_is_one_finding(void **state)
{
    (void)state;
    for (uint32_t n = 3; n <= MOST; n++) {
        struct net x;

        begin(&x, n, NULL);
        set_rate(&x, 1, 0, 20000000);
        find(&x);
        assert_int_equal(x.r.n_findings, 1);
        assert_int_equal(x.r.findings[0].task, 0);
        assert_int_equal(x.r.findings[0].other, 1);
        assert_int_equal(x.r.n_racks, 1);
        racks_free(&x.r);
    }
}

static void racks_with_a_slow_uplink_are_found_without_a_finding(void **state)
{
    static const struct {
        uint32_t n, n_racks, rack[MOST];
    } rows[] = { { 4, 2, { 0, 0, 1, 1 } },
                 { 4, 2, { 0, 1, 0, 1 } },
                 { 6, 3, { 0, 1, 2, 2, 1, 0 } },
                 { 9, 3, { 0, 0, 0, 1, 1, 1, 2, 2, 2 } },
                 { 7, 2, { 0, 0, 0, 0, 0, 1, 1 } } };

    (void)state;
    for (size_t r = 0; r < COUNT_OF(rows); r++) {
        struct net x;

        begin(&x, rows[r].n, rows[r].rack);
        find(&x);
        assert_int_equal(x.r.n_findings, 0);
        assert_int_equal(x.r.n_racks, rows[r].n_racks);
        for (uint32_t i = 0; i < rows[r].n; i++) /* numbered in the order of the tasks */
            assert_int_equal(x.r.rack[i], rows[r].rack[i]);
        racks_free(&x.r);
    }
}

static void slow_link_and_slow_host_are_found_beside_racks(void **state)
{
    static const uint32_t rack[] = { 0, 0, 0, 1, 1, 1, 1 };
    struct net x;

    (void)state;
    begin(&x, COUNT_OF(rack), rack);
    set_rate(&x, 3, 4, 150000000); /* above the uplink, far below the rack */
    for (uint32_t i = 0; i < x.n; i++)
        set_rate(&x, i, 6, 5000000);
    find(&x);
    assert_int_equal(x.r.n_racks, 2);
    assert_int_equal(x.r.n_findings, 2);
    assert_int_equal(x.r.findings[0].task, 6);
    assert_int_equal(x.r.findings[0].other, RACKS_NONE);
    assert_int_equal(x.r.findings[1].task, 3);
    assert_int_equal(x.r.findings[1].other, 4);
    for (uint32_t i = 0; i < x.n; i++)
        assert_int_equal(x.r.rack[i], i == 6 ? RACKS_NONE : rack[i]);
    racks_free(&x.r);
}

static void long_round_trips_name_host_or_link(void **state)
{
    struct net x;

    (void)state;
    begin(&x, 5, NULL);
    for (uint32_t i = 0; i < 5; i++)
        x.pairs[2 * 5 + i].rtt_us = 4000;
    x.pairs[0 * 5 + 4].rtt_us = 5000;
    find(&x);
    assert_int_equal(x.r.n_findings, 2);
    assert_int_equal(x.r.findings[0].kind, RACKS_LATENCY);
    assert_int_equal(x.r.findings[0].task, 2);
    assert_int_equal(x.r.findings[0].other, RACKS_NONE);
    assert_int_equal(x.r.findings[1].task, 0);
    assert_int_equal(x.r.findings[1].other, 4);
    assert_int_equal(x.r.findings[1].value, 5000);
    racks_free(&x.r);
    begin(&x, 5, NULL);
    for (uint32_t i = 0; i < 25; i++) /* below 1 ms the scheduler decides */
        x.pairs[i].rtt_us = i == 7 ? 900 : 20;
    find(&x);
    assert_int_equal(x.r.n_findings, 0);
    racks_free(&x.r);
}

static void pairs_that_were_not_measured_are_ignored(void **state)
{
    struct net x = { .n = 4 };

    (void)state;
    find(&x);
    assert_int_equal(x.r.n_findings, 0);
    assert_int_equal(x.r.n_racks, 1);
    racks_free(&x.r);
    begin(&x, 4, NULL);
    for (uint32_t i = 0; i < 4; i++) {
        x.pairs[3 * 4 + i] = x.pairs[i * 4 + 3] = (struct racks_pair){ 0 };
    }
    find(&x);
    assert_int_equal(x.r.n_findings, 0);
    racks_free(&x.r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_links_have_no_finding_and_one_rack),
        cmocka_unit_test(slow_cable_of_a_host_is_one_finding),
        cmocka_unit_test(slow_link_is_one_finding),
        cmocka_unit_test(racks_with_a_slow_uplink_are_found_without_a_finding),
        cmocka_unit_test(slow_link_and_slow_host_are_found_beside_racks),
        cmocka_unit_test(long_round_trips_name_host_or_link),
        cmocka_unit_test(pairs_that_were_not_measured_are_ignored),
    };

    return cmocka_run_group_tests_name("preflight/racks", tests, NULL, NULL);
}
