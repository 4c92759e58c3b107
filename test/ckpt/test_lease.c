/* The lease with the clock held: who has it, for how long, and what the others are told. */
#include "ckpt/lease_kit.h"

#include <sys/stat.h>

static void the_first_one_gets_it_and_the_second_is_told_whose_it_is(void **state)
{
    struct task a, b;

    (void)state;
    task_start(&a, 1);
    task_start(&b, 2);
    assert_int_equal(lease_hold_until(a.lease), 0);
    look(&a);
    assert_int_equal(a.now.token, 0);
    assert_false(a.now.is_mine || a.now.is_over);
    assert_true(a.now.is_reachable);
    says(&a, "no lease was taken yet");
    assert_true(access(leases, F_OK) < 0); /* looking leaves nothing */
    assert_true(take(&a, 0));
    says(&a, "lease 1 is ours");
    assert_int_equal(lease_hold_until(a.lease), (now_ms + HOLD_MS) * 1000000);
    assert_int_equal(lease_check(a.lease, NULL), 0);
    assert_false(take(&b, 0));
    assert_int_equal(b.now.token, 1);
    assert_int_equal(b.now.holder, 1);
    assert_string_equal(b.now.incarnation, "0000000000abc001");
    assert_string_equal(b.now.name, "worker 1");
    assert_int_equal(b.now.n_members, 3);
    assert_int_equal(b.members[0], 3);
    assert_int_equal(b.members[2], 4);
    assert_false(b.now.is_over);
    says(&b, "lease 1 of worker 1");
    says(&b, "is held");
    assert_int_equal(lease_check(b.lease, NULL), ERR_REFUSED);
    task_end(&a);
    task_end(&b);
}

/* A holder of the same name on the same host cannot listen there while this process does. */
static void holder_is_at_the_same_place_if_name_and_host_are_equal(void **state)
{
    struct task first, same, other, unknown;

    (void)state;
    lease_host = "boot-1 net:[1]";
    task_start(&first, 1);
    task_start(&same, 1);
    lease_host = "boot-2 net:[1]";
    task_start(&other, 1);
    lease_host = NULL;
    task_start(&unknown, 1);
    assert_true(take(&first, 0));
    look(&same);
    look(&other);
    look(&unknown);
    assert_true(same.now.is_same_place);
    assert_false(other.now.is_same_place);
    assert_false(unknown.now.is_same_place);
    task_end(&first);
    task_end(&same);
    task_end(&other);
    task_end(&unknown);
}

static void every_wish_is_answered_and_only_the_next_number_is_given(void **state)
{
    struct task a, b;
    uint64_t first, second;

    (void)state;
    task_start(&a, 1);
    task_start(&b, 2);
    assert_false(take(&a, 5)); /* there is no 5 */
    assert_int_equal(a.now.token, 0);
    assert_true(take(&a, 0));
    assert_false(take(&b, 0));
    assert_true(take(&b, 1)); /* not waited for a: the caller knows why */
    assert_int_equal(b.now.token, 2);
    first = lease_take(a.lease, 1, NULL, 0); /* of two wishes the later one counts */
    second = lease_take(a.lease, 2, NULL, 0);
    assert_true(second > first);
    answered(&a, second);
    assert_true(a.now.is_mine);
    assert_int_equal(a.now.token, 3);
    assert_int_equal(a.now.n_members, 0);
    task_end(&a);
    task_end(&b);
}

static void the_holder_records_another_group_under_the_next_number(void **state)
{
    static const uint32_t two[] = { 7, 8 };
    struct task a, b;

    (void)state;
    task_start(&a, 1);
    task_start(&b, 2);
    assert_true(take(&a, 0));
    go(HOLD_MS - 1);
    answered(&a, lease_take(a.lease, 1, two, 2));
    assert_true(a.now.is_mine);
    assert_int_equal(lease_hold_until(a.lease), (now_ms + HOLD_MS) * 1000000);
    assert_int_equal(a.now.token, 2);
    assert_int_equal(lease_check(a.lease, NULL), 0);
    look(&b);
    assert_int_equal(b.now.token, 2);
    assert_int_equal(b.now.n_members, 2);
    assert_int_equal(b.members[1], 8);
    assert_true(take(&a, 1)); /* an old wish costs nothing */
    assert_int_equal(a.now.token, 2);
    task_end(&a);
    task_end(&b);
}

/* An operator has removed all files, and another task takes the same number, before the holder looks. */
static void a_number_that_is_given_again_is_not_the_one_that_was_held(void **state)
{
    struct task a, b;

    (void)state;
    task_start(&a, 1);
    task_start(&b, 2);
    assert_true(take(&a, 0));
    assert_int_equal(fs_remove_tree(leases, NULL), 0);
    assert_true(take(&b, 0));
    assert_int_equal(b.now.token, 1);
    assert_int_equal(lease_check(a.lease, NULL), ERR_REFUSED);
    assert_false(holds(&a));
    assert_int_equal(look(&a)->holder, 2);
    assert_false(a.now.is_mine || a.now.is_over);
    says(&a, "lease 1 of worker 2");
    assert_true(look(&b)->is_mine);
    task_end(&a);
    task_end(&b);
}

static void a_holder_that_renews_keeps_it_for_ever(void **state)
{
    struct task a, b;

    (void)state;
    task_start(&a, 1);
    task_start(&b, 2);
    assert_true(take(&a, 0));
    for (int i = 0; i < 20; i++) {
        go(HOLD_MS / 2);
        assert_true(look(&a)->is_mine);
        assert_false(look(&b)->is_over);
        assert_true(holds(&a));
    }
    task_end(&a);
    task_end(&b);
}

/* Whatever the moments at which the two look, they never hold it together. */
static void a_silent_holder_has_lost_it_before_it_is_over_for_another(void **state)
{
    (void)state;
    for (uint64_t gap = 611; gap < 24000; gap += 3701) {
        uint64_t token = 0, looks, counts = gap < WATCH_MS / GAPS ? gap : WATCH_MS / GAPS;
        struct task a, b;

        task_start(&a, 1);
        task_start(&b, 2);
        token = look(&b)->token;
        assert_true(take(&a, token));
        for (looks = 0; !look(&b)->is_over; looks++) { /* a never looks again */
            assert_true(looks * counts <= WATCH_MS);
            go(gap);
        }
        assert_true(looks * counts >= WATCH_MS);
        assert_false(holds(&a));
        says(&b, "not renewed any more");
        assert_true(take(&b, token + 1));
        assert_false(look(&a)->is_mine);
        assert_int_equal(a.now.token, token + 2);
        assert_int_equal(lease_check(a.lease, NULL), ERR_REFUSED);
        assert_true(lease_release(b.lease, PATIENCE_MS));
        task_end(&a);
        task_end(&b);
    }
}

static void what_was_lost_once_stays_lost_and_needs_a_new_number(void **state)
{
    struct task a;

    (void)state;
    task_start(&a, 1);
    assert_true(take(&a, 0));
    go(HOLD_MS);
    assert_false(holds(&a)); /* without a look at the storage */
    assert_false(look(&a)->is_mine);
    assert_true(a.now.is_over); /* at once: it is ours */
    says(&a, "lost");
    assert_int_equal(a.now.token, 1);
    assert_true(take(&a, 1));
    assert_int_equal(a.now.token, 2);
    task_end(&a);
}

/* A host that was frozen: its clock went on, and it saw two renewals far apart, or none. */
static void a_long_pause_of_the_watcher_is_no_silence_of_the_holder(void **state)
{
    struct task a, b;

    (void)state;
    task_start(&a, 1);
    task_start(&b, 2);
    assert_true(take(&a, 0));
    look(&b);
    go(10 * WATCH_MS);
    assert_false(look(&b)->is_over);
    assert_true(watch(&b, WATCH_MS)->is_over);
    task_end(&a);
    task_end(&b);
}

static void what_is_released_is_over_at_once(void **state)
{
    struct task a, b;

    (void)state;
    task_start(&a, 1);
    task_start(&b, 2);
    assert_true(take(&a, 0));
    assert_false(look(&b)->is_over);
    assert_true(lease_release(a.lease, PATIENCE_MS));
    assert_int_equal(lease_hold_until(a.lease), 0);
    assert_true(look(&b)->is_over);
    says(&b, "released");
    assert_false(look(&a)->is_mine);
    assert_true(a.now.is_over);
    assert_true(take(&b, 1));
    assert_true(lease_release(a.lease, PATIENCE_MS)); /* of nothing */
    assert_true(look(&b)->is_mine);
    task_end(&a);
    task_end(&b);
}

static void who_takes_without_waiting_fences_the_holder(void **state)
{
    struct task a, b;
    struct err err;

    (void)state;
    task_start(&a, 1);
    task_start(&b, 2);
    assert_true(take(&a, 0));
    assert_true(take(&b, look(&b)->token));
    assert_true(holds(&a)); /* it has not looked yet; but it can publish nothing */
    assert_int_equal(lease_check(a.lease, &err), ERR_REFUSED);
    assert_non_null(strstr(err.text, "not ours"));
    assert_false(holds(&a));
    assert_int_equal(look(&a)->holder, 2);
    says(&a, "lease 2 of worker 2");
    task_end(&a);
    task_end(&b);
}

static void nonsense_takes_its_number_and_is_over_when_it_is_old(void **state)
{
    static const char *const nonsense[] = { "\xff{", "", "{}", "{\"token\": 7}" };
    static char huge[200000];
    char path[160];

    (void)state;
    for (int i = 0; i < 8; i++) {
        uint64_t number = 7 + 10 * (uint64_t)i;
        struct task a;
        char name[32];

        snprintf(name, sizeof(name), "lease-%08d", (int)number);
        snprintf(path, sizeof(path), "%s/%s", leases, name);
        if (i < 4)
            put(name, nonsense[i], strlen(nonsense[i]));
        else if (i == 4)
            put(name, huge, sizeof(huge));
        else if (i == 5)
            assert_int_equal(mkdir(path, 0777), 0);
        else if (i == 6)
            assert_int_equal(symlink("/dev/zero", path), 0);
        else
            assert_int_equal(mkfifo(path, 0666), 0);
        put("lease-oops", "x", 1);
        put("lease-00000999x", "x", 1);
        put("lease-999", "x", 1);
        put("lease-99999999999999999999999999", "x", 1);
        put("lease-18446744073709551615", "x", 1);
        task_start(&a, 1);
        look(&a);
        assert_int_equal(a.now.token, number);
        assert_int_equal(a.now.holder, LEASE_NOBODY);
        assert_int_equal(a.now.n_members, 0);
        assert_false(a.now.is_over);
        says(&a, name);
        assert_false(watch(&a, WATCH_MS - 1)->is_over);
        go(1);
        assert_true(look(&a)->is_over);
        assert_true(take(&a, number));
        assert_true(lease_release(a.lease, PATIENCE_MS));
        task_end(&a);
    }
}

static void a_record_is_believed_only_whole_and_under_its_own_number(void **state)
{
    char path[160], other[160], text[1024];
    struct task a, b;
    size_t n;
    FILE *f;

    (void)state;
    task_start(&a, 1);
    assert_true(take(&a, 0));
    task_end(&a);
    snprintf(path, sizeof(path), "%s/lease-00000001", leases);
    snprintf(other, sizeof(other), "%s/lease-00000002", leases);
    f = fopen(path, "rb");
    assert_non_null(f);
    n = fread(text, 1, sizeof(text), f);
    fclose(f);
    put("lease-00000002", text, n); /* a copy under another name */
    task_start(&b, 2);
    assert_int_equal(look(&b)->token, 2);
    says(&b, "its name says 2");
    assert_int_equal(unlink(other), 0);
    for (size_t i = 0; i < n; i++) { /* any byte changed, any byte missing */
        text[i] ^= 1;
        put("lease-00000001", text, n);
        text[i] ^= 1;
        answered(&b, lease_refresh(b.lease));
        assert_int_equal(b.now.holder, LEASE_NOBODY);
        put("lease-00000001", text, i);
        assert_int_equal(look(&b)->holder, LEASE_NOBODY);
    }
    put("lease-00000001", text, n);
    assert_int_equal(look(&b)->holder, 1);
    task_end(&b);
}

static void few_files_are_left(void **state)
{
    struct task a, b;

    (void)state;
    put("lease-00000001.new-00000000000000ff", "x", 1); /* of one that was killed */
    put("other", "x", 1);
    task_start(&a, 1);
    for (uint64_t i = 0; i < 20; i++)
        assert_true(take(&a, i));
    assert_int_equal(files(), 2 * 2 + 1); /* records and beats of the newest two */
    task_start(&b, 2);
    assert_false(take(&b, 7)); /* number 8 was taken, even if nothing tells it any more */
    assert_int_equal(b.now.token, 20);
    assert_int_equal(files(), 2 * 2 + 1);
    task_end(&b);
    task_end(&a);
}

static void settings_that_cannot_be_safe_are_refused(void **state)
{
    struct task t;
    struct lease_opts o = { .directory = folder, .name = "a", .hold_ms = 50, .watch_ms = 50,
                            .on_change = on_change, .arg = &t };
    struct lease *l = NULL;
    struct err err;

    (void)state;
    assert_int_equal(lease_open(&o, &l, &err), ERR_INPUT);
    o.hold_ms = 5;
    assert_int_equal(lease_open(&o, &l, &err), ERR_INPUT);
    assert_null(l);
    lease_close(NULL);
}

int main(void)
{
#define TEST(f_) cmocka_unit_test_setup_teardown(f_, begin, end)
    const struct CMUnitTest tests[] = {
        TEST(the_first_one_gets_it_and_the_second_is_told_whose_it_is),
        TEST(holder_is_at_the_same_place_if_name_and_host_are_equal),
        TEST(every_wish_is_answered_and_only_the_next_number_is_given),
        TEST(the_holder_records_another_group_under_the_next_number),
        TEST(a_number_that_is_given_again_is_not_the_one_that_was_held),
        TEST(a_holder_that_renews_keeps_it_for_ever),
        TEST(a_silent_holder_has_lost_it_before_it_is_over_for_another),
        TEST(what_was_lost_once_stays_lost_and_needs_a_new_number),
        TEST(a_long_pause_of_the_watcher_is_no_silence_of_the_holder),
        TEST(what_is_released_is_over_at_once),
        TEST(who_takes_without_waiting_fences_the_holder),
        TEST(nonsense_takes_its_number_and_is_over_when_it_is_old),
        TEST(a_record_is_believed_only_whole_and_under_its_own_number),
        TEST(few_files_are_left),
        TEST(settings_that_cannot_be_safe_are_refused),
    };

    return cmocka_run_group_tests_name("ckpt/lease", tests, NULL, NULL);
}
