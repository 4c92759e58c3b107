/* Tests the processor quota, with folders that imitate /proc and the control groups of hosts and containers. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cpu_quota.h"
#include "base/fs.h"
#include "harness/tree.h"

static char root[64];

static int make_root(void **state)
{
    (void)state;
    snprintf(root, sizeof(root), "/tmp/test_cpu_quota_XXXXXX");
    return mkdtemp(root) != NULL ? 0 : -1;
}

static int remove_root(void **state)
{
    (void)state;
    return fs_remove_tree(root, NULL);
}

static void add(const char *name, const char *text)
{
    tree_add(root, name, text);
}

static void expect(double processors, const char *source)
{
    struct cpu_quota q;

    cpu_quota_read(root, &q);
    if (q.processors != processors || strcmp(q.source, source) != 0)
        fail_msg("%g in '%s', expected %g in '%s'", q.processors, q.source, processors, source);
}

static void quota_of_version_2_is_the_smallest_of_the_own_group_and_its_parents(void **state)
{
    (void)state;
    expect(0, ""); /* no /proc */
    add("proc/self/cgroup", "0::/a/b\n");
    add("proc/self/mountinfo", "35 23 0:32 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    expect(0, "");
    add("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    expect(0, "");
    add("sys/fs/cgroup/a/cpu.max", "250000 100000\n");
    expect(2.5, "/sys/fs/cgroup/a/cpu.max");
    add("sys/fs/cgroup/a/b/cpu.max", "50000 100000\n");
    expect(0.5, "/sys/fs/cgroup/a/b/cpu.max");
    add("sys/fs/cgroup/a/b/cpu.max", "400000 100000\n");
    expect(2.5, "/sys/fs/cgroup/a/cpu.max");
}

static void quota_of_version_1_is_divided_by_its_period(void **state)
{
    (void)state;
    add("proc/self/cgroup", "4:memory:/m\n3:cpu,cpuacct:/a\n0::/\n");
    add("proc/self/mountinfo", "33 23 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
                               "34 23 0:31 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n");
    add("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "50000\n");
    add("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "-1\n");
    expect(0, "");
    add("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "150000\n");
    expect(3, "/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us");
}

static void quota_that_is_malformed_is_none(void **state)
{
    static const char *const texts[] = { "", "many 100000\n", "100000\n", "0 100000\n", "-5 100000\n",
                                         "100000 0\n", "nan 100000\n", "100000 nan\n" };

    (void)state;
    add("proc/self/cgroup", "0::/\n");
    add("proc/self/mountinfo", "35 23 0:32 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        add("sys/fs/cgroup/cpu.max", texts[i]);
        expect(0, "");
    }
}

static void limit_of_a_process_is_between_1_and_its_cores(void **state)
{
    (void)state;
    assert_int_equal(cpu_quota_limit(1), 1);
    assert_in_range(cpu_quota_limit(100000), 1, 100000);
}

int main(void)
{
#define TEST(f_) cmocka_unit_test_setup_teardown(f_, make_root, remove_root)
    const struct CMUnitTest tests[] = {
        TEST(quota_of_version_2_is_the_smallest_of_the_own_group_and_its_parents),
        TEST(quota_of_version_1_is_divided_by_its_period),
        TEST(quota_that_is_malformed_is_none),
        TEST(limit_of_a_process_is_between_1_and_its_cores),
    };

    return cmocka_run_group_tests_name("base/cpu_quota", tests, NULL, NULL);
}
