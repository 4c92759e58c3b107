/* Tests when the use of memory is a warning, and which tables of a ps are refused, with folders that
 * imitate /proc and the control groups of a container. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/fs.h"
#include "daemon/memory_watch.h"
#include "harness/tree.h"
#include "ps/budget.h"

#define MIB ((uint64_t)1 << 20)
#define SOURCE "cgroup /sys/fs/cgroup/memory.max"

static char root[64];
static struct memory_watch *watch;
static uint64_t now_ms;

static void add(const char *name, const char *text)
{
    tree_add(root, name, text);
}

static void set_used(uint64_t bytes)
{
    char text[32];

    snprintf(text, sizeof(text), "%llu\n", (unsigned long long)bytes);
    add("sys/fs/cgroup/memory.current", text);
}

/* A container with 100 MiB on a host with 1000 MiB. */
static int make_container(void **state)
{
    (void)state;
    snprintf(root, sizeof(root), "/tmp/test_memory_watch_XXXXXX");
    if (mkdtemp(root) == NULL)
        return -1;
    add("proc/meminfo", "MemTotal: 1024000 kB\nMemAvailable: 1000000 kB\n");
    add("proc/self/cgroup", "0::/\n");
    add("proc/self/mountinfo", "35 23 0:32 / /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n");
    add("proc/self/limits",
        "Max data size  unlimited unlimited bytes\nMax address space  unlimited unlimited bytes\n");
    add("proc/self/status", "VmSize: 1 kB\nVmRSS: 20480 kB\nVmData: 1 kB\n");
    add("sys/fs/cgroup/memory.max", "104857600\n");
    add("sys/fs/cgroup/memory.stat", "inactive_file 0\n");
    set_used(10 * MIB);
    watch = memory_watch_new(root, true);
    now_ms = 1000;
    return 0;
}

static int remove_container(void **state)
{
    (void)state;
    memory_watch_free(watch);
    return fs_remove_tree(root, NULL);
}

/* Reads a second later; returns whether a warning was logged. */
static bool warns_at(uint64_t used)
{
    set_used(used);
    now_ms += 1000;
    return memory_watch_tick(watch, now_ms, false) != NULL;
}

static const char *warning(void)
{
    static struct memory_status s;

    assert_true(memory_watch_status(watch, &s));
    return s.warning;
}

static void expect_words(const char *text, const char *const *words, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strstr(text, words[i]) == NULL)
            fail_msg("'%s' is not in: %s", words[i], text);
}

#define EXPECT_WORDS(text, ...)                                                                    \
    do {                                                                                           \
        const char *const words_[] = { __VA_ARGS__ };                                              \
        expect_words(text, words_, COUNT_OF(words_));                                              \
    } while (0)

/* ---- the use ---- */

static void use_exceeds_85_per_cent_one_warning_until_it_was_below_80(void **state)
{
    static const struct {
        uint64_t used;
        bool warns, is_near;
    } rows[] = {
        { 50 * MIB, false, false },  { 85 * MIB, false, false }, { 85 * MIB + 1, true, true },
        { 99 * MIB, false, true },   { 81 * MIB, false, true },  { 90 * MIB, false, true },
        { 80 * MIB, false, true },   { 86 * MIB, false, true },  { 80 * MIB - 1, false, false },
        { 84 * MIB, false, false },  { 86 * MIB, true, true },   { 120 * MIB, false, true },
        { 0, false, false },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        assert_int_equal(warns_at(rows[i].used), rows[i].warns);
        assert_int_equal(warning()[0] != '\0', rows[i].is_near);
    }
}

static void warning_states_use_limit_source_consequence_and_remedy(void **state)
{
    (void)state;
    assert_true(warns_at(90 * MIB));
    EXPECT_WORDS(warning(), "90.0 MiB of 100.0 MiB are in use (90 %)",
                 "20.0 MiB resident in this task", "limit: " SOURCE, "the kernel kills the process",
                 "start more ps tasks, or raise the limit");
    memory_watch_free(watch);
    watch = memory_watch_new(root, false);
    assert_true(warns_at(90 * MIB));
    EXPECT_WORDS(warning(), "raise the limit, start more tasks");
    add("proc/self/limits",
        "Max data size  1024 unlimited bytes\nMax address space  unlimited unlimited bytes\n");
    assert_false(warns_at(90 * MIB));
    EXPECT_WORDS(warning(), "limit: RLIMIT_DATA", "the process gets no more memory");
}

static void less_than_a_second_has_passed_the_use_is_read_only_at_once(void **state)
{
    (void)state;
    assert_false(warns_at(50 * MIB));
    set_used(90 * MIB);
    assert_null(memory_watch_tick(watch, now_ms + 999, false));
    assert_non_null(memory_watch_tick(watch, now_ms + 999, true));
}

static void no_limit_is_known_the_status_is_absent_and_nothing_fails(void **state)
{
    struct memory_status s;

    (void)state;
    assert_false(memory_watch_status(watch, &s)); /* not read yet */
    assert_int_equal(fs_remove_tree(root, NULL), 0);
    assert_null(memory_watch_tick(watch, now_ms, true));
    assert_false(memory_watch_status(watch, &s));
    assert_int_equal(memory_watch_plan(watch,
                                       &(struct ps_memory){ .planned = UINT64_MAX / 2, .n_reported = 1, .n_servers = 1 },
                                       NULL), 0);
}

/* ---- the tables of a ps ---- */

static struct err err;

static int plan(uint64_t held, uint64_t planned, uint32_t n_reported, uint32_t n_servers)
{
    return memory_watch_plan(watch,
                             &(struct ps_memory){ .held = held,
                                                  .planned = planned,
                                                  .planned_memory = planned,
                                                  .n_reported = n_reported,
                                                  .n_servers = n_servers },
                             &err);
}

static void tables_fit_no_warning(void **state)
{
    (void)state;
    assert_int_equal(plan(0, 75 * MIB, 1, 1), 0);
    assert_string_equal(warning(), "");
    assert_null(memory_watch_tick(watch, now_ms, true));
}

static void tables_fit_barely_one_warning_before_they_are_allocated(void **state)
{
    (void)state;
    assert_int_equal(plan(0, 76 * MIB, 1, 1), 0);
    EXPECT_WORDS(warning(), "need 76.0 MiB", "10.0 MiB that are in use for other things",
                 "86 % of the limit of 100.0 MiB", SOURCE,
                 "start more ps tasks, or raise the limit");
    assert_string_equal(memory_watch_tick(watch, now_ms, true), warning());
    assert_null(memory_watch_tick(watch, now_ms, true));
    assert_int_equal(plan(0, 76 * MIB, 1, 1), 0); /* the same tables in the next generation */
    assert_null(memory_watch_tick(watch, now_ms, true));
    set_used(84 * MIB); /* with fewer other things */
    assert_int_equal(plan(75 * MIB, 76 * MIB, 1, 1), 0);
    assert_string_equal(warning(), "");
    set_used(10 * MIB);
    assert_int_equal(plan(0, 40 * MIB, 1, 1), 0); /* another ps task has joined */
    assert_string_equal(warning(), "");
    assert_null(memory_watch_tick(watch, now_ms, true));
    assert_int_equal(plan(0, 76 * MIB, 1, 1), 0);
    assert_non_null(memory_watch_tick(watch, now_ms, true));
}

static void huge_pages_can_occupy_more_than_the_rows_it_counts_for_the_warning(void **state)
{
    const struct ps_memory m = { .planned = 60 * MIB, .planned_memory = 110 * MIB, .n_reported = 1, .n_servers = 1 };

    (void)state;
    assert_int_equal(memory_watch_plan(watch, &m, &err), 0);
    EXPECT_WORDS(warning(), "need 60.0 MiB", "with huge pages up to 110.0 MiB",
                 "120 % of the limit of 100.0 MiB");
}

static void several_servers_report_their_sum_is_compared(void **state)
{
    (void)state;
    assert_int_equal(plan(0, 45 * MIB, 1, 2), 0);
    assert_string_equal(warning(), "");
    set_used(55 * MIB); /* the first one has filled its tables; they do not count twice */
    assert_int_equal(plan(0, 90 * MIB, 2, 2), 0);
    EXPECT_WORDS(warning(), "need 90.0 MiB", "10.0 MiB that are in use", "100 % of the limit");
    assert_int_equal(plan(0, 45 * MIB, 1, 2), 0);
    assert_int_equal(plan(0, 101 * MIB, 2, 2), ERR_NOMEM);
}

static void tables_exceed_the_limit_they_are_refused_with_both_numbers(void **state)
{
    (void)state;
    assert_int_equal(plan(0, 100 * MIB, 1, 1), 0);
    assert_int_equal(plan(0, 100 * MIB + 1, 1, 2), ERR_NOMEM); /* the others have not reported yet */
    assert_int_equal(plan(0, 250 * MIB, 1, 1), ERR_NOMEM);
    EXPECT_WORDS(err.text, "need at least 250.0 MiB", "exceeds the limit of 100.0 MiB: " SOURCE,
                 "start more ps tasks, or raise the limit");
}

/* A generation has begun with tables of 20 MiB; now table 'emb' has grown by so many bytes. */
static int grow(uint64_t grown)
{
    return memory_watch_plan(watch,
                             &(struct ps_memory){ .planned = 20 * MIB + grown, .planned_memory = 20 * MIB + grown,
                                                  .n_reported = 1, .n_servers = 1, .grown = grown,
                                                  .growing = "emb" },
                             &err);
}

/* 100 MiB without the margin of a 32nd are 96.875 MiB. */
static void dynamic_table_grows_it_is_refused_by_the_use_that_is_measured(void **state)
{
    (void)state;
    assert_int_equal(plan(0, 20 * MIB, 1, 1), 0);
    set_used(40 * MIB); /* with buffers that nobody planned */
    assert_int_equal(grow(30 * MIB), 0);
    set_used(70 * MIB); /* the growth, when it was made */
    assert_int_equal(grow(56 * MIB), 0);
    set_used(96 * MIB);
    assert_int_equal(grow(56 * MIB + MIB / 2), 0);
    assert_int_equal(grow(58 * MIB), ERR_NOMEM);
    EXPECT_WORDS(err.text, "table 'emb' needs more", "the tables need 78.0 MiB, of which 58.0 MiB",
                 "96.0 MiB of 100.0 MiB are in use: " SOURCE,
                 "set /model/tables/emb/max_rows or expire_steps");
    set_used(60 * MIB); /* rows have expired: the refused growth was not made */
    assert_int_equal(grow(57 * MIB), 0);
    assert_int_equal(grow(57 * MIB + MIB / 2), 0); /* less than a 64th of what is left: not read again */
    assert_int_equal(plan(57 * MIB, 57 * MIB, 1, 1), 0); /* the next generation counts from 0 */
    assert_int_equal(grow(MIB), 0);
    set_used(200 * MIB);
    assert_int_equal(grow(3 * MIB), ERR_NOMEM);
}

/* An eighth of 100 MiB is 12.5 MiB, a 64th 1.5625 MiB. */
static void little_is_left_a_checkpoint_is_asked_for_again_at_each_half(void **state)
{
    (void)state;
    assert_int_equal(plan(0, 20 * MIB, 1, 1), 0);
    set_used(80 * MIB);
    assert_int_equal(grow(MIB), 0);
    set_used(88 * MIB);
    assert_int_equal(grow(2 * MIB), 1); /* 7.875 MiB are left */
    assert_int_equal(grow(2 * MIB + MIB / 2), 0);
    set_used(92 * MIB);
    assert_int_equal(grow(4 * MIB), 1); /* 3.375 MiB */
    assert_int_equal(grow(4 * MIB + MIB / 2), 0);
    set_used(95 * MIB);
    assert_int_equal(grow(5 * MIB), 0); /* 1.375 MiB: too little to write a checkpoint */
    set_used(92 * MIB);
    assert_int_equal(plan(0, 20 * MIB, 1, 1), 0);
    assert_int_equal(grow(MIB / 4), 1); /* a new generation */
}

static void dynamic_table_grows_near_the_limit_one_warning(void **state)
{
    (void)state;
    assert_int_equal(plan(0, 20 * MIB, 1, 1), 0);
    assert_null(memory_watch_tick(watch, now_ms, true));
    assert_int_equal(grow(54 * MIB), 0);
    assert_null(memory_watch_tick(watch, now_ms, true));
    assert_int_equal(grow(56 * MIB), 0);
    EXPECT_WORDS(memory_watch_tick(watch, now_ms, true), "need 76.0 MiB", "86 % of the limit");
    assert_int_equal(grow(58 * MIB), 0);
    assert_null(memory_watch_tick(watch, now_ms, true));
}

static void swap_space_holds_the_rest_the_tables_are_only_a_warning(void **state)
{
    (void)state;
    add("proc/meminfo", "MemTotal: 1024000 kB\nMemAvailable: 1000000 kB\nSwapTotal: 51200 kB\n");
    assert_int_equal(plan(0, 150 * MIB, 1, 1), 0);
    EXPECT_WORDS(warning(), "160 % of the limit");
    assert_int_equal(plan(0, 151 * MIB, 1, 1), ERR_NOMEM);
    EXPECT_WORDS(err.text, "exceeds the limit of 100.0 MiB and 50.0 MiB of swap space: " SOURCE);
}

static void addresses_are_the_limit_the_store_has_reserved_them(void **state)
{
    (void)state;
    add("proc/self/limits",
        "Max data size  unlimited unlimited bytes\nMax address space  1048576 unlimited bytes\n");
    assert_int_equal(plan(0, 500 * MIB, 1, 1), 0);
    assert_string_equal(warning(), "");
}

int main(void)
{
#define CONTAINER(f) cmocka_unit_test_setup_teardown(f, make_container, remove_container)
    const struct CMUnitTest tests[] = {
        CONTAINER(use_exceeds_85_per_cent_one_warning_until_it_was_below_80),
        CONTAINER(warning_states_use_limit_source_consequence_and_remedy),
        CONTAINER(less_than_a_second_has_passed_the_use_is_read_only_at_once),
        CONTAINER(no_limit_is_known_the_status_is_absent_and_nothing_fails),
        CONTAINER(tables_fit_no_warning),
        CONTAINER(tables_fit_barely_one_warning_before_they_are_allocated),
        CONTAINER(huge_pages_can_occupy_more_than_the_rows_it_counts_for_the_warning),
        CONTAINER(several_servers_report_their_sum_is_compared),
        CONTAINER(tables_exceed_the_limit_they_are_refused_with_both_numbers),
        CONTAINER(dynamic_table_grows_it_is_refused_by_the_use_that_is_measured),
        CONTAINER(little_is_left_a_checkpoint_is_asked_for_again_at_each_half),
        CONTAINER(dynamic_table_grows_near_the_limit_one_warning),
        CONTAINER(swap_space_holds_the_rest_the_tables_are_only_a_warning),
        CONTAINER(addresses_are_the_limit_the_store_has_reserved_them),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
