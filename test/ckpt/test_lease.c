/* The lease with a frozen clock: the holder, the time for which it holds, and the state that the
 * other tasks see. */
#include "ckpt/lease_kit.h"

#include <sys/stat.h>
#include <sys/wait.h>

static void lease_acquired_by_the_first_reports_the_holder_to_the_second(void **state)
{
    struct task a, b;

    (void)state;
    task_start(&a, 1);
    task_start(&b, 2);
    assert_int_equal(lease_hold_until(a.lease), 0);
    refresh(&a);
    assert_int_equal(a.now.token, 0);
    assert_false(a.now.is_mine || a.now.is_expired);
    assert_true(a.now.is_reachable);
    assert_text_has(&a, "no lease was acquired yet");
    assert_true(access(leases, F_OK) < 0); /* a refresh creates nothing */
    assert_true(acquire(&a, 0));
    assert_text_has(&a, "lease 1 is held by this task");
    assert_int_equal(lease_hold_until(a.lease), (now_ms + HOLD_MS) * 1000000);
    assert_int_equal(lease_check(a.lease, NULL), 0);
    assert_false(acquire(&b, 0));
    assert_int_equal(b.now.token, 1);
    assert_int_equal(b.now.holder, 1);
    assert_string_equal(b.now.incarnation, "0000000000abc001");
    assert_string_equal(b.now.name, "worker 1");
    assert_int_equal(b.now.n_members, 3);
    assert_int_equal(b.members[0], 3);
    assert_int_equal(b.members[2], 4);
    assert_false(b.now.is_expired);
    assert_text_has(&b, "lease 1 of worker 1");
    assert_text_has(&b, "is held");
    assert_int_equal(lease_check(b.lease, NULL), ERR_REFUSED);
    task_end(&a);
    task_end(&b);
}

/* A holder of the same name on the same host cannot listen there while this process does. */
static void lease_holder_of_equal_name_and_host_is_at_the_same_place(void **state)
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
    assert_true(acquire(&first, 0));
    refresh(&same);
    refresh(&other);
    refresh(&unknown);
    assert_true(same.now.is_same_address);
    assert_false(other.now.is_same_address);
    assert_false(unknown.now.is_same_address);
    task_end(&first);
    task_end(&same);
    task_end(&other);
    task_end(&unknown);
}

static void start_of_job(struct task *t, uint32_t rank, const char *job)
{
    lease_job = job;
    task_start(t, rank);
    lease_job = NULL;
}

static void lease_of_another_job_is_acquired_only_after_its_expiry(void **state)
{
    struct task a, b;

    (void)state;
    start_of_job(&a, 1, "job a");
    start_of_job(&b, 2, "job b");
    assert_true(acquire(&a, 0));
    assert_false(acquire(&b, 1)); /* a task of job a would have acquired it */
    assert_true(b.now.is_foreign);
    assert_int_equal(b.now.holder, LEASE_NO_RANK);
    assert_int_equal(b.now.n_members, 0);
    assert_string_equal(b.now.name, "worker 1");
    assert_int_equal(b.now.process.pid, getpid());
    assert_int_equal(strlen(b.now.process.since), strlen("2026-11-24T21:46:21Z"));
    assert_false(b.now.is_renewed || b.now.is_expired);
    task_end(&a); /* without a release */
    for (int i = 0; i < 6; i++) {
        advance_clock(WATCH_MS / 5);
        refresh(&b);
    }
    assert_true(b.now.is_expired);
    assert_true(acquire(&b, 1));
    assert_int_equal(b.now.token, 2);
    task_end(&b);
}

static void lease_renewed_twice_by_another_task_shows_that_it_is_alive(void **state)
{
    struct task a, b;

    (void)state;
    start_of_job(&a, 1, "job a");
    start_of_job(&b, 2, "job b");
    assert_true(acquire(&a, 0));
    refresh(&b);
    for (int i = 0; i < 2; i++) {
        assert_false(b.now.is_renewed);
        refresh(&a);
        assert_false(a.now.is_renewed);
        refresh(&b);
    }
    assert_true(b.now.is_renewed);
    assert_true(lease_release(a.lease, TIMEOUT_MS));
    refresh(&b);
    assert_true(b.now.is_expired);
    assert_true(acquire(&b, 1)); /* a released lease is acquired at once */
    assert_false(b.now.is_renewed);
    task_end(&a);
    task_end(&b);
}

static void lease_of_another_job_whose_process_ended_is_expired_at_once(void **state)
{
    struct task b;
    int status = 0;
    pid_t child;

    (void)state;
    child = fork();
    if (child == 0) {
        struct task a;

        start_of_job(&a, 1, "job a");
        _exit(acquire(&a, 0) ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    start_of_job(&b, 2, "job b");
    refresh(&b);
    assert_true(b.now.is_foreign && b.now.is_expired);
    assert_text_has(&b, "is expired: its process ended");
    assert_true(acquire(&b, 1));
    task_end(&b);
}

static void lease_requests_are_all_answered_and_only_the_next_token_is_acquired(void **state)
{
    struct task a, b;
    uint64_t first, second;

    (void)state;
    task_start(&a, 1);
    task_start(&b, 2);
    assert_false(acquire(&a, 5)); /* token 5 does not exist */
    assert_int_equal(a.now.token, 0);
    assert_true(acquire(&a, 0));
    assert_false(acquire(&b, 0));
    assert_true(acquire(&b, 1)); /* allowed before expiry: the caller decides */
    assert_int_equal(b.now.token, 2);
    first = lease_acquire(a.lease, 1, NULL, 0); /* replaced by the second request */
    second = lease_acquire(a.lease, 2, NULL, 0);
    assert_true(second > first);
    wait_for_answer(&a, second);
    assert_true(a.now.is_mine);
    assert_int_equal(a.now.token, 3);
    assert_int_equal(a.now.n_members, 0);
    task_end(&a);
    task_end(&b);
}

static void lease_holder_records_another_group_with_the_next_token(void **state)
{
    static const uint32_t two[] = { 7, 8 };
    struct task a, b;

    (void)state;
    task_start(&a, 1);
    task_start(&b, 2);
    assert_true(acquire(&a, 0));
    advance_clock(HOLD_MS - 1);
    wait_for_answer(&a, lease_acquire(a.lease, 1, two, 2));
    assert_true(a.now.is_mine);
    assert_int_equal(lease_hold_until(a.lease), (now_ms + HOLD_MS) * 1000000);
    assert_int_equal(a.now.token, 2);
    assert_int_equal(lease_check(a.lease, NULL), 0);
    refresh(&b);
    assert_int_equal(b.now.token, 2);
    assert_int_equal(b.now.n_members, 2);
    assert_int_equal(b.members[1], 8);
    assert_true(acquire(&a, 1)); /* an outdated request has no effect on the held lease */
    assert_int_equal(a.now.token, 2);
    task_end(&a);
    task_end(&b);
}

/* An operator removes all files, and another task acquires the same token before the holder's next
 * read. */
static void lease_token_acquired_again_by_another_task_is_lost_for_the_holder(void **state)
{
    struct task a, b;

    (void)state;
    task_start(&a, 1);
    task_start(&b, 2);
    assert_true(acquire(&a, 0));
    assert_int_equal(fs_remove_tree(leases, NULL), 0);
    assert_true(acquire(&b, 0));
    assert_int_equal(b.now.token, 1);
    assert_int_equal(lease_check(a.lease, NULL), ERR_REFUSED);
    assert_false(holds(&a));
    assert_int_equal(refresh(&a)->holder, 2);
    assert_false(a.now.is_mine || a.now.is_expired);
    assert_text_has(&a, "lease 1 of worker 2");
    assert_true(refresh(&b)->is_mine);
    task_end(&a);
    task_end(&b);
}

static void lease_renewed_is_kept(void **state)
{
    struct task a, b;

    (void)state;
    task_start(&a, 1);
    task_start(&b, 2);
    assert_true(acquire(&a, 0));
    for (int i = 0; i < 20; i++) {
        advance_clock(HOLD_MS / 2);
        assert_true(refresh(&a)->is_mine);
        assert_false(refresh(&b)->is_expired);
        assert_true(holds(&a));
    }
    task_end(&a);
    task_end(&b);
}

/* For any times at which the two tasks read the storage, they never hold the lease at the same
 * time. */
static void lease_not_renewed_is_lost_before_it_expires_for_observers(void **state)
{
    (void)state;
    for (uint64_t gap = 611; gap < 24000; gap += 3701) {
        uint64_t token = 0, looks, counts = gap < WATCH_MS / GAPS ? gap : WATCH_MS / GAPS;
        struct task a, b;

        task_start(&a, 1);
        task_start(&b, 2);
        token = refresh(&b)->token;
        assert_true(acquire(&a, token));
        for (looks = 0; !refresh(&b)->is_expired; looks++) { /* `a` does not refresh any more */
            assert_true(looks * counts <= WATCH_MS);
            advance_clock(gap);
        }
        assert_true(looks * counts >= WATCH_MS);
        assert_false(holds(&a));
        assert_text_has(&b, "expired");
        assert_true(acquire(&b, token + 1));
        assert_false(refresh(&a)->is_mine);
        assert_int_equal(a.now.token, token + 2);
        assert_int_equal(lease_check(a.lease, NULL), ERR_REFUSED);
        assert_true(lease_release(b.lease, TIMEOUT_MS));
        task_end(&a);
        task_end(&b);
    }
}

static void lease_lost_stays_lost_and_needs_a_new_token(void **state)
{
    struct task a;

    (void)state;
    task_start(&a, 1);
    assert_true(acquire(&a, 0));
    advance_clock(HOLD_MS);
    assert_false(holds(&a)); /* without a read of the storage */
    assert_false(refresh(&a)->is_mine);
    assert_true(a.now.is_expired); /* at once, because it is its own lease */
    assert_text_has(&a, "lost");
    assert_int_equal(a.now.token, 1);
    assert_true(acquire(&a, 1));
    assert_int_equal(a.now.token, 2);
    task_end(&a);
}

/* A host that was frozen while its clock continued: its reads are far apart. */
static void lease_observer_after_a_long_pause_does_not_see_expiry(void **state)
{
    struct task a, b;

    (void)state;
    task_start(&a, 1);
    task_start(&b, 2);
    assert_true(acquire(&a, 0));
    refresh(&b);
    advance_clock(10 * WATCH_MS);
    assert_false(refresh(&b)->is_expired);
    assert_true(watch(&b, WATCH_MS)->is_expired);
    task_end(&a);
    task_end(&b);
}

static void lease_released_is_expired_at_once(void **state)
{
    struct task a, b;

    (void)state;
    task_start(&a, 1);
    task_start(&b, 2);
    assert_true(acquire(&a, 0));
    assert_false(refresh(&b)->is_expired);
    assert_true(lease_release(a.lease, TIMEOUT_MS));
    assert_int_equal(lease_hold_until(a.lease), 0);
    assert_true(refresh(&b)->is_expired);
    assert_text_has(&b, "released");
    assert_false(refresh(&a)->is_mine);
    assert_true(a.now.is_expired);
    assert_true(acquire(&b, 1));
    assert_true(lease_release(a.lease, TIMEOUT_MS)); /* without a held lease */
    assert_true(refresh(&b)->is_mine);
    task_end(&a);
    task_end(&b);
}

static void lease_acquired_before_expiry_fences_the_holder(void **state)
{
    struct task a, b;
    struct err err;

    (void)state;
    task_start(&a, 1);
    task_start(&b, 2);
    assert_true(acquire(&a, 0));
    assert_true(acquire(&b, refresh(&b)->token));
    assert_true(holds(&a)); /* it has not read the storage yet, but lease_check() fails */
    assert_int_equal(lease_check(a.lease, &err), ERR_REFUSED);
    assert_non_null(strstr(err.text, "does not hold the lease"));
    assert_false(holds(&a));
    assert_int_equal(refresh(&a)->holder, 2);
    assert_text_has(&a, "lease 2 of worker 2");
    task_end(&a);
    task_end(&b);
}

static void lease_invalid_record_occupies_its_token_until_it_expires(void **state)
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
        refresh(&a);
        assert_int_equal(a.now.token, number);
        assert_int_equal(a.now.holder, LEASE_NO_RANK);
        assert_int_equal(a.now.n_members, 0);
        assert_false(a.now.is_expired);
        assert_text_has(&a, name);
        assert_false(watch(&a, WATCH_MS - 1)->is_expired);
        advance_clock(1);
        assert_true(refresh(&a)->is_expired);
        assert_true(acquire(&a, number));
        assert_true(lease_release(a.lease, TIMEOUT_MS));
        task_end(&a);
    }
}

static void lease_record_is_valid_only_complete_and_with_its_token(void **state)
{
    char path[160], other[160], text[1024];
    struct task a, b;
    size_t n;
    FILE *f;

    (void)state;
    task_start(&a, 1);
    assert_true(acquire(&a, 0));
    task_end(&a);
    snprintf(path, sizeof(path), "%s/lease-00000001", leases);
    snprintf(other, sizeof(other), "%s/lease-00000002", leases);
    f = fopen(path, "rb");
    assert_non_null(f);
    n = fread(text, 1, sizeof(text), f);
    fclose(f);
    put("lease-00000002", text, n); /* a copy with another name */
    task_start(&b, 2);
    assert_int_equal(refresh(&b)->token, 2);
    assert_text_has(&b, "its name has 2");
    assert_int_equal(unlink(other), 0);
    for (size_t i = 0; i < n; i++) { /* one byte changed, or the file truncated */
        text[i] ^= 1;
        put("lease-00000001", text, n);
        text[i] ^= 1;
        wait_for_answer(&b, lease_refresh(b.lease));
        assert_int_equal(b.now.holder, LEASE_NO_RANK);
        put("lease-00000001", text, i);
        assert_int_equal(refresh(&b)->holder, LEASE_NO_RANK);
    }
    put("lease-00000001", text, n);
    assert_int_equal(refresh(&b)->holder, 1);
    task_end(&b);
}

static void lease_prune_leaves_the_newest_two_tokens(void **state)
{
    struct task a, b;

    (void)state;
    put("lease-00000001.new-00000000000000ff", "x", 1); /* of a killed task */
    put("other", "x", 1);
    task_start(&a, 1);
    for (uint64_t i = 0; i < 20; i++)
        assert_true(acquire(&a, i));
    assert_int_equal(files(), 2 * 2 + 1); /* record and heartbeat of the newest two tokens */
    task_start(&b, 2);
    assert_false(acquire(&b, 7)); /* token 8 was acquired before, and its record removed */
    assert_int_equal(b.now.token, 20);
    assert_int_equal(files(), 2 * 2 + 1);
    task_end(&b);
    task_end(&a);
}

static void lease_unsafe_times_are_refused(void **state)
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
        TEST(lease_acquired_by_the_first_reports_the_holder_to_the_second),
        TEST(lease_holder_of_equal_name_and_host_is_at_the_same_place),
        TEST(lease_of_another_job_is_acquired_only_after_its_expiry),
        TEST(lease_renewed_twice_by_another_task_shows_that_it_is_alive),
        TEST(lease_of_another_job_whose_process_ended_is_expired_at_once),
        TEST(lease_requests_are_all_answered_and_only_the_next_token_is_acquired),
        TEST(lease_holder_records_another_group_with_the_next_token),
        TEST(lease_token_acquired_again_by_another_task_is_lost_for_the_holder),
        TEST(lease_renewed_is_kept),
        TEST(lease_not_renewed_is_lost_before_it_expires_for_observers),
        TEST(lease_lost_stays_lost_and_needs_a_new_token),
        TEST(lease_observer_after_a_long_pause_does_not_see_expiry),
        TEST(lease_released_is_expired_at_once),
        TEST(lease_acquired_before_expiry_fences_the_holder),
        TEST(lease_invalid_record_occupies_its_token_until_it_expires),
        TEST(lease_record_is_valid_only_complete_and_with_its_token),
        TEST(lease_prune_leaves_the_newest_two_tokens),
        TEST(lease_unsafe_times_are_refused),
    };

    return cmocka_run_group_tests_name("ckpt/lease", tests, NULL, NULL);
}
