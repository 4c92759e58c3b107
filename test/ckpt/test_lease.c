#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/fs.h"
#include "ckpt/lease.h"

enum { HOLD_MS = 1000, WATCH_MS = 1500 };

static char folder[64];
static uint64_t now_ms;

static void go(uint64_t ms)
{
    now_ms += ms;
    clock_fake(now_ms * 1000000);
}

static int begin(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/test_lease.XXXXXX");
    now_ms = 1000;
    go(0);
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static int end(void **state)
{
    (void)state;
    clock_fake(UINT64_MAX);
    fault_arm(NULL, NULL);
    return fs_remove_tree(folder, NULL);
}

static struct lease *contender(const char *name)
{
    char path[128];
    struct lease_opts o = { .directory = path,
                            .holder = name,
                            .incarnation = name,
                            .hold_ms = HOLD_MS,
                            .watch_ms = WATCH_MS };
    struct lease *l;
    struct err err;

    snprintf(path, sizeof(path), "%s/leases", folder);
    if (lease_new(&o, &l, &err) < 0)
        fail_msg("%s", err.text);
    return l;
}

static enum lease_news step(struct lease *l, const char *says)
{
    char text[LEASE_TEXT];
    uint64_t wait_ms;
    enum lease_news news = lease_step(l, text, &wait_ms);

    assert_in_range(wait_ms, 1, HOLD_MS / 3);
    if (says != NULL && strstr(text, says) == NULL)
        fail_msg("'%s' does not say '%s'", text, says);
    return news;
}

static void the_first_one_gets_it_and_the_second_is_told_whose_it_is(void **state)
{
    struct lease *a = contender("a"), *b = contender("b");

    (void)state;
    assert_int_equal(step(a, NULL), LEASE_NOTHING); /* nobody asked */
    lease_want(a, false);
    lease_want(b, false);
    assert_int_equal(step(a, "lease 1 is ours"), LEASE_GRANTED);
    assert_true(lease_is_held(a));
    assert_int_equal(lease_token(a), 1);
    assert_int_equal(lease_check(a, NULL), 0);
    assert_int_equal(step(b, "held by a"), LEASE_WAITING);
    assert_int_equal(step(b, NULL), LEASE_NOTHING); /* said once */
    assert_false(lease_is_held(b));
    assert_int_equal(lease_check(b, NULL), ERR_REFUSED);
    lease_free(a);
    lease_free(b);
}

static void a_holder_that_renews_keeps_it_for_ever(void **state)
{
    struct lease *a = contender("a"), *b = contender("b");

    (void)state;
    lease_want(a, false);
    lease_want(b, false);
    assert_int_equal(step(a, NULL), LEASE_GRANTED);
    assert_int_equal(step(b, NULL), LEASE_WAITING);
    for (int i = 0; i < 40; i++) {
        go(HOLD_MS / 2);
        assert_int_equal(step(a, NULL), LEASE_NOTHING);
        assert_int_equal(step(b, NULL), LEASE_NOTHING);
        assert_true(lease_is_held(a) && !lease_is_held(b));
    }
    lease_free(a);
    lease_free(b);
}

/* Whatever the moments at which the two look, they never hold it together. */
static void a_silent_holder_has_lost_it_before_another_can_have_it(void **state)
{
    (void)state;
    for (uint64_t gap = 10; gap < 400; gap += 37) {
        struct lease *a = contender("a"), *b = contender("b");
        bool granted = false;

        lease_want(a, false);
        lease_want(b, false);
        assert_int_equal(step(a, NULL), LEASE_GRANTED);
        for (int i = 0; i < 500 && !granted; i++) { /* a never steps again */
            go(gap);
            granted = step(b, NULL) == LEASE_GRANTED;
            assert_false(granted && lease_is_held(a));
        }
        assert_true(granted);
        assert_int_equal(lease_token(b), lease_token(a) + 1);
        assert_int_equal(step(a, "b took lease"), LEASE_LOST);
        assert_int_equal(lease_check(a, NULL), ERR_REFUSED);
        lease_drop(b);
        assert_int_equal(step(b, "given back"), LEASE_LOST);
        lease_free(a);
        lease_free(b);
    }
}

static void what_is_given_back_can_be_taken_at_once(void **state)
{
    struct lease *a = contender("a"), *b = contender("b");

    (void)state;
    lease_want(a, false);
    assert_int_equal(step(a, NULL), LEASE_GRANTED);
    lease_drop(a);
    assert_int_equal(step(a, "given back"), LEASE_LOST);
    lease_want(b, false);
    assert_int_equal(step(b, "lease 2"), LEASE_GRANTED);
    lease_free(a);
    lease_free(b);
}

static void force_does_not_wait_and_fences_the_holder(void **state)
{
    struct lease *a = contender("a"), *b = contender("b");
    struct err err;

    (void)state;
    lease_want(a, false);
    assert_int_equal(step(a, NULL), LEASE_GRANTED);
    lease_want(b, true);
    assert_int_equal(step(b, "lease 2"), LEASE_GRANTED);
    assert_true(lease_is_held(a)); /* it has not looked yet; but it can publish nothing */
    assert_int_equal(lease_check(a, &err), ERR_REFUSED);
    assert_non_null(strstr(err.text, "lease 2 was taken after our 1"));
    assert_int_equal(step(a, "b took lease 2"), LEASE_LOST);
    assert_int_equal(step(a, "held by b"), LEASE_WAITING);
    lease_free(a);
    lease_free(b);
}

static void storage_that_fails_costs_the_lease_after_the_time_to_hold(void **state)
{
    struct lease *a = contender("a");

    (void)state;
    lease_want(a, false);
    assert_int_equal(step(a, NULL), LEASE_GRANTED);
    assert_int_equal(fault_arm("lease.renew@1+", NULL), 0);
    go(HOLD_MS / 2);
    assert_int_equal(step(a, NULL), LEASE_NOTHING);
    assert_true(lease_is_held(a));
    go(HOLD_MS / 2 + 1);
    assert_false(lease_is_held(a)); /* without a look at the storage */
    assert_int_equal(step(a, "could not be renewed"), LEASE_LOST);
    fault_arm(NULL, NULL);
    go(WATCH_MS);
    assert_int_equal(step(a, "lease 2"), LEASE_GRANTED); /* nobody else came: a new number */
    assert_int_equal(lease_token(a), 2);
    lease_free(a);
}

static void trouble_with_the_storage_is_said_and_survived(void **state)
{
    static const char *const points[] = { "lease.look", "lease.take" };
    struct lease *a = contender("a");

    (void)state;
    lease_want(a, false);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(fault_arm(points[i], NULL), 0);
        assert_int_equal(step(a, i == 0 ? "look for leases" : "take '"), LEASE_WAITING);
    }
    assert_int_equal(step(a, NULL), LEASE_GRANTED);
    lease_free(a);
}

static void nonsense_in_the_folder_is_somebody_elses_until_it_is_old(void **state)
{
    struct lease *a = contender("a");
    char path[160];
    struct err err;

    (void)state;
    snprintf(path, sizeof(path), "%s/leases", folder);
    assert_int_equal(fs_mkdirs(path, &err), 0);
    snprintf(path, sizeof(path), "%s/leases/lease-00000007", folder);
    assert_int_equal(fs_replace(path, "\xff\x00{", 3, &err), 0);
    snprintf(path, sizeof(path), "%s/leases/lease-oops", folder);
    assert_int_equal(fs_replace(path, "x", 1, &err), 0);
    snprintf(path, sizeof(path), "%s/leases/lease-00000099x", folder);
    assert_int_equal(fs_replace(path, "x", 1, &err), 0);
    lease_want(a, false);
    assert_int_equal(step(a, "lease 7 is held by ?"), LEASE_WAITING);
    go(WATCH_MS);
    assert_int_equal(step(a, "lease 8 is ours"), LEASE_GRANTED);
    lease_free(a);
}

static void few_files_are_left(void **state)
{
    char path[160];
    struct dirent *e;
    uint32_t n = 0;
    DIR *d;

    (void)state;
    for (int i = 0; i < 20; i++) {
        struct lease *a = contender("a");

        lease_want(a, true);
        assert_int_equal(step(a, NULL), LEASE_GRANTED);
        lease_free(a);
    }
    snprintf(path, sizeof(path), "%s/leases", folder);
    d = opendir(path);
    assert_non_null(d);
    while ((e = readdir(d)) != NULL)
        n += e->d_name[0] != '.';
    closedir(d);
    assert_int_equal(n, 2);
}

static void settings_that_cannot_be_safe_are_refused(void **state)
{
    struct lease_opts o = {
        .directory = folder, .holder = "a", .incarnation = "a", .hold_ms = 5, .watch_ms = 5
    };
    struct lease *l = NULL;
    struct err err;

    (void)state;
    assert_int_equal(lease_new(&o, &l, &err), ERR_INPUT);
    o.watch_ms = 6;
    o.incarnation = "../a";
    assert_int_equal(lease_new(&o, &l, &err), ERR_INPUT);
    assert_null(l);
}

int main(void)
{
#define TEST(f_) cmocka_unit_test_setup_teardown(f_, begin, end)
    const struct CMUnitTest tests[] = {
        TEST(the_first_one_gets_it_and_the_second_is_told_whose_it_is),
        TEST(a_holder_that_renews_keeps_it_for_ever),
        TEST(a_silent_holder_has_lost_it_before_another_can_have_it),
        TEST(what_is_given_back_can_be_taken_at_once),
        TEST(force_does_not_wait_and_fences_the_holder),
        TEST(storage_that_fails_costs_the_lease_after_the_time_to_hold),
        TEST(trouble_with_the_storage_is_said_and_survived),
        TEST(nonsense_in_the_folder_is_somebody_elses_until_it_is_old),
        TEST(few_files_are_left),
        TEST(settings_that_cannot_be_safe_are_refused),
    };

    return cmocka_run_group_tests_name("ckpt/lease", tests, NULL, NULL);
}
