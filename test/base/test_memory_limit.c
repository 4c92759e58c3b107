/* Tests which limit of the memory a process reaches first, with folders that imitate /proc and the
 * control groups of several kinds of hosts and containers. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cgroup.h"
#include "base/check.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/memory_limit.h"
#include "harness/tree.h"

#define MIB ((uint64_t)1 << 20)

static char root[64];
static struct memory_limit m;
static struct err err;

static void add(const char *name, const char *text)
{
    tree_add(root, name, text);
}

static void add_bytes(const char *name, uint64_t bytes)
{
    char text[32];

    snprintf(text, sizeof(text), "%llu\n", (unsigned long long)bytes);
    add(name, text);
}

/* A host with 1000 MiB, of which 600 are available, and this process in /a/b. */
static int make_tree(void **state)
{
    (void)state;
    snprintf(root, sizeof(root), "/tmp/test_memory_limit_XXXXXX");
    if (mkdtemp(root) == NULL)
        return -1;
    add("proc/meminfo", "MemTotal:        1024000 kB\nMemFree:  1 kB\nMemAvailable:     614400 kB\n"
                        "SwapTotal:         10240 kB\n");
    add("proc/self/cgroup", "0::/a/b\n");
    add("proc/self/mountinfo", "23 1 0:20 / / rw - ext4 /dev/vda rw\n"
                               "35 23 0:32 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n");
    add("proc/self/limits", "Limit                     Soft Limit           Hard Limit           Units\n"
                            "Max data size             unlimited            unlimited            bytes\n"
                            "Max address space         unlimited            unlimited            bytes\n");
    add("proc/self/status",
        "Name:\ttrainerd\nVmSize:\t  512000 kB\nVmRSS:\t   51200 kB\nVmData:\t  102400 kB\n");
    return 0;
}

static int remove_tree(void **state)
{
    (void)state;
    return fs_remove_tree(root, NULL);
}

/* A group of version 2. */
static void add_group(const char *folder, const char *max, uint64_t current, uint64_t inactive)
{
    char name[256], text[128];

    snprintf(name, sizeof(name), "sys/fs/cgroup%s/memory.max", folder);
    add(name, max);
    snprintf(name, sizeof(name), "sys/fs/cgroup%s/memory.current", folder);
    add_bytes(name, current);
    snprintf(name, sizeof(name), "sys/fs/cgroup%s/memory.stat", folder);
    snprintf(text, sizeof(text),
             "anon 1\ntotal_inactive_file 7\ninactive_file %llu\nactive_file 9\n",
             (unsigned long long)inactive);
    add(name, text);
}

static void expect(enum memory_limit_kind kind, uint64_t bytes, uint64_t used, const char *source)
{
    err.text[0] = '\0';
    assert_int_equal(memory_limit_read(root, &m, &err), 0);
    assert_string_equal(m.source, source);
    assert_int_equal(m.kind, kind);
    assert_int_equal(m.bytes, bytes);
    assert_int_equal(m.used, used);
}

#define HOST "memory of the host (/proc/meminfo)"

static void expect_host(void)
{
    expect(MEMORY_LIMIT_HOST, 1000 * MIB, 400 * MIB, HOST);
}

/* ---- hosts and groups of version 2 ---- */

static void no_group_has_a_limit_the_memory_of_the_host_is_the_limit(void **state)
{
    (void)state;
    expect_host();
    assert_int_equal(m.resident, 50 * MIB);
    assert_int_equal(m.swap, 10 * MIB);
    add_group("/a", "max\n", 10 * MIB, 0);
    add_group("/a/b", "max\n", 10 * MIB, 0);
    expect_host();
    assert_string_equal(m.ignored, "");
}

static void group_has_a_limit_file_pages_that_are_inactive_do_not_count(void **state)
{
    (void)state;
    add_group("/a/b", "104857600\n", 80 * MIB, 30 * MIB);
    expect(MEMORY_LIMIT_CGROUP, 100 * MIB, 50 * MIB, "cgroup /sys/fs/cgroup/a/b/memory.max");
    assert_string_equal(m.ignored, "");
    add_group("/a/b", "104857600\n", 20 * MIB, 30 * MIB);
    expect(MEMORY_LIMIT_CGROUP, 100 * MIB, 0, "cgroup /sys/fs/cgroup/a/b/memory.max");
}

static void group_that_contains_the_own_one_has_the_smaller_limit_it_is_the_limit(void **state)
{
    (void)state;
    add_group("/a/b", "209715200\n", 10 * MIB, 0);
    add_group("/a", "104857600\n", 10 * MIB, 0);
    expect(MEMORY_LIMIT_CGROUP, 100 * MIB, 10 * MIB, "cgroup /sys/fs/cgroup/a/memory.max");
    add_group("", "52428800\n", 10 * MIB, 0);
    expect(MEMORY_LIMIT_CGROUP, 50 * MIB, 10 * MIB, "cgroup /sys/fs/cgroup/memory.max");
}

static void larger_limit_is_nearly_used_by_others_it_is_the_limit(void **state)
{
    (void)state;
    add_group("/a/b", "104857600\n", 10 * MIB, 0);
    add_group("/a", "209715200\n", 195 * MIB, 0);
    expect(MEMORY_LIMIT_CGROUP, 200 * MIB, 195 * MIB, "cgroup /sys/fs/cgroup/a/memory.max");
    add("proc/meminfo", "MemTotal:        1024000 kB\nMemAvailable:     1024 kB\n");
    expect(MEMORY_LIMIT_HOST, 1000 * MIB, 999 * MIB, HOST);
}

static void limit_is_exceeded_or_zero_it_is_the_limit(void **state)
{
    (void)state;
    add_group("/a/b", "104857600\n", 110 * MIB, 0);
    expect(MEMORY_LIMIT_CGROUP, 100 * MIB, 110 * MIB, "cgroup /sys/fs/cgroup/a/b/memory.max");
    add_group("/a/b", "0\n", 1 * MIB, 0);
    expect(MEMORY_LIMIT_CGROUP, 0, 1 * MIB, "cgroup /sys/fs/cgroup/a/b/memory.max");
}

/* ---- version 1, containers, names ---- */

static void add_group_1(const char *folder, uint64_t limit, uint64_t usage)
{
    char name[256];

    snprintf(name, sizeof(name), "sys/fs/cgroup/memory%s/memory.limit_in_bytes", folder);
    add_bytes(name, limit);
    snprintf(name, sizeof(name), "sys/fs/cgroup/memory%s/memory.usage_in_bytes", folder);
    add_bytes(name, usage);
    snprintf(name, sizeof(name), "sys/fs/cgroup/memory%s/memory.stat", folder);
    add(name, "inactive_file 0\nhierarchical_memory_limit 1\ntotal_inactive_file 1048576\n");
}

static void version_1_limits_of_all_groups_count_and_the_largest_number_is_none(void **state)
{
    (void)state;
    add("proc/self/cgroup", "9:name=systemd:/x\n4:cpu,memory:/a/b\n0::/\n");
    add("proc/self/mountinfo", "34 23 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,memory_x\n"
                               "35 23 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
                               "36 23 0:33 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
    add_group_1("", INT64_MAX / 4096 * 4096, 900 * MIB);
    expect_host();
    add_group_1("/a/b", INT64_MAX / 4096 * 4096, 50 * MIB);
    add_group_1("/a", 100 * MIB, 50 * MIB);
    expect(MEMORY_LIMIT_CGROUP, 100 * MIB, 49 * MIB,
           "cgroup /sys/fs/cgroup/memory/a/memory.limit_in_bytes");
    add_group_1("/a/b", 60 * MIB, 50 * MIB);
    expect(MEMORY_LIMIT_CGROUP, 60 * MIB, 49 * MIB,
           "cgroup /sys/fs/cgroup/memory/a/b/memory.limit_in_bytes");
    assert_string_equal(m.ignored, "");
}

static void container_sees_only_its_own_group_the_folder_of_the_mount_is_read(void **state)
{
    static const char *const rows[][2] = {
        /* group, and the group that the mount shows */
        { "0::/\n", "/" },
        { "0::/docker/c1\n", "/docker/c1" },
        { "0::/docker/c1\n", "/kubepods/c2" }, /* another name than the group has here */
        { "0::/../c1\n", "/" },                /* outside the namespace of the process */
        { "0::/docker/c10\n", "/docker/c1" },
    };
    char text[256];

    (void)state;
    add_group("", "104857600\n", 10 * MIB, 0);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        add("proc/self/cgroup", rows[i][0]);
        snprintf(text, sizeof(text), "35 23 0:32 %s /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n",
                 rows[i][1]);
        add("proc/self/mountinfo", text);
        expect(MEMORY_LIMIT_CGROUP, 100 * MIB, 10 * MIB, "cgroup /sys/fs/cgroup/memory.max");
    }
}

static void container_has_groups_of_its_own_they_are_below_the_mount(void **state)
{
    (void)state;
    add("proc/self/cgroup", "0::/docker/c1/a\n");
    add("proc/self/mountinfo", "35 23 0:32 /docker/c1 /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n");
    add_group("/a", "104857600\n", 10 * MIB, 0);
    expect(MEMORY_LIMIT_CGROUP, 100 * MIB, 10 * MIB, "cgroup /sys/fs/cgroup/a/memory.max");
}

static void names_contain_blanks_and_colons_the_group_is_found(void **state)
{
    (void)state;
    add("proc/self/cgroup", "0::/a:b c\n");
    add("proc/self/mountinfo", "35 23 0:32 / /sys/my\\040groups\\134x rw - cgroup2 cgroup2 rw\n");
    add("sys/my groups\\x/a:b c/memory.max", "104857600\n");
    add("sys/my groups\\x/a:b c/memory.current", "10485760\n");
    add("sys/my groups\\x/a:b c/memory.stat", "inactive_file 0\n");
    expect(MEMORY_LIMIT_CGROUP, 100 * MIB, 10 * MIB, "cgroup /sys/my groups\\x/a:b c/memory.max");
}

/* ---- limits of the process ---- */

static void process_has_limits_the_one_that_is_reached_first_is_the_limit(void **state)
{
    (void)state;
    add("proc/self/limits", "Max data size             209715200            unlimited            bytes\n"
                            "Max address space         unlimited            unlimited            bytes\n");
    expect(MEMORY_LIMIT_DATA, 200 * MIB, 100 * MIB, "RLIMIT_DATA");
    assert_int_equal(m.swap, 0);
    add("proc/self/limits", "Max data size             209715200            unlimited            bytes\n"
                            "Max address space         576716800            unlimited            bytes\n");
    expect(MEMORY_LIMIT_ADDRESSES, 550 * MIB, 500 * MIB, "RLIMIT_AS");
    assert_string_equal(m.ignored, "");
}

/* ---- malformed files ---- */

static void file_is_malformed_its_limit_is_ignored_with_the_reason(void **state)
{
    static const struct {
        const char *name, *text, *why;
    } rows[] = {
        { "sys/fs/cgroup/a/b/memory.max", "many\n", "/a/b/memory.max': expected a number of bytes, found 'many" },
        { "sys/fs/cgroup/a/b/memory.max", "", "/a/b/memory.max': expected a number" },
        { "sys/fs/cgroup/a/b/memory.max", "-1\n", "/a/b/memory.max': expected a number" },
        { "sys/fs/cgroup/a/b/memory.max", "12 34\n", "/a/b/memory.max': expected a number" },
        { "sys/fs/cgroup/a/b/memory.max", "99999999999999999999\n", "/a/b/memory.max': expected a number" },
        { "sys/fs/cgroup/a/b/memory.current", "0x10\n", "/a/b/memory.current': expected a number" },
        { "sys/fs/cgroup/a/b/memory.current", "max\n", "/a/b/memory.current' has no number" },
        { "proc/self/cgroup", "no group\n", "/proc/self/cgroup': expected lines" },
        { "proc/self/cgroup", "0::relative\n", "/proc/self/cgroup': expected lines" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        add("proc/self/cgroup", "0::/a/b\n");
        add_group("/a/b", "104857600\n", 10 * MIB, 0);
        expect(MEMORY_LIMIT_CGROUP, 100 * MIB, 10 * MIB, "cgroup /sys/fs/cgroup/a/b/memory.max");
        add(rows[i].name, rows[i].text);
        expect_host();
        assert_non_null(strstr(m.ignored, rows[i].why));
    }
}

static void part_of_the_use_is_malformed_all_pages_count_and_the_reason_is_given(void **state)
{
    (void)state;
    add_group("/a/b", "104857600\n", 80 * MIB, 30 * MIB);
    add("sys/fs/cgroup/a/b/memory.stat", "inactive_file many\n");
    expect(MEMORY_LIMIT_CGROUP, 100 * MIB, 80 * MIB, "cgroup /sys/fs/cgroup/a/b/memory.max");
    assert_non_null(strstr(m.ignored, "/a/b/memory.stat': expected a line 'inactive_file BYTES'"));
}

static void files_of_proc_are_malformed_their_limits_are_ignored_with_the_reason(void **state)
{
    static const struct {
        const char *name, *text;
    } rows[] = {
        { "proc/meminfo", "MemTotal: 10 kB\n" },
        { "proc/meminfo", "MemTotal: 10\nMemAvailable: 5\n" },
        { "proc/meminfo", "MemTotal: ten kB\nMemAvailable: 5 kB\n" },
        { "proc/self/limits", "Max data size  lots  unlimited  bytes\n" },
        { "proc/self/status", "VmSize: 1 kB\nVmRSS: 99999999999999999999 kB\nVmData: 1 kB\n" },
    };
    char kept[1024];

    (void)state;
    add_group("/a/b", "104857600\n", 10 * MIB, 0);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct buf b = { 0 };

        snprintf(kept, sizeof(kept), "%s/%s", root, rows[i].name);
        assert_int_equal(cgroup_read_file(kept, &b, NULL), 0);
        add(rows[i].name, rows[i].text);
        expect(MEMORY_LIMIT_CGROUP, 100 * MIB, 10 * MIB, "cgroup /sys/fs/cgroup/a/b/memory.max");
        assert_non_null(strstr(m.ignored, rows[i].name));
        add(rows[i].name, b.data);
        buf_fini(&b);
    }
}

static void no_file_exists_the_error_states_it_and_the_result_is_unchanged(void **state)
{
    (void)state;
    assert_int_equal(fs_remove_tree(root, NULL), 0);
    m.bytes = 7;
    assert_int_equal(memory_limit_read(root, &m, &err), ERR_NOENT);
    assert_string_equal(err.text, "no limit of the memory is known: /proc is absent");
    assert_int_equal(m.bytes, 7);
    add("proc/meminfo", "nothing\n");
    assert_int_equal(memory_limit_read(root, &m, &err), ERR_NOENT);
    assert_non_null(strstr(err.text, "/proc/meminfo': expected lines 'MemTotal"));
}

static void file_with_a_nul_or_beyond_its_limit_is_refused(void **state)
{
    struct buf b = { 0 };
    char path[128], *large = calloc(1, (17 << 20) + 1);

    (void)state;
    assert_non_null(large);
    snprintf(path, sizeof(path), "%s/file", root);
    assert_int_equal(fs_replace(path, "a\0b", 3, NULL), 0);
    assert_int_equal(cgroup_read_file(path, &b, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "contains a NUL"));
    memset(large, 'x', 17 << 20);
    assert_int_equal(fs_replace(path, large, 17 << 20, NULL), 0);
    assert_int_equal(cgroup_read_file(path, &b, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "larger than"));
    assert_int_equal(cgroup_read_file(root, &b, &err), ERR_IO);
    buf_fini(&b);
    free(large);
}

static void this_process_has_a_limit_and_a_use(void **state)
{
    (void)state;
    assert_int_equal(memory_limit_read("", &m, &err), 0);
    assert_true(m.bytes > 0 && m.used > 0 && m.resident > 0 && m.source[0] != '\0');
    assert_string_equal(m.ignored, "");
}

int main(void)
{
#define TREE(f) cmocka_unit_test_setup_teardown(f, make_tree, remove_tree)
    const struct CMUnitTest tests[] = {
        TREE(no_group_has_a_limit_the_memory_of_the_host_is_the_limit),
        TREE(group_has_a_limit_file_pages_that_are_inactive_do_not_count),
        TREE(group_that_contains_the_own_one_has_the_smaller_limit_it_is_the_limit),
        TREE(larger_limit_is_nearly_used_by_others_it_is_the_limit),
        TREE(limit_is_exceeded_or_zero_it_is_the_limit),
        TREE(version_1_limits_of_all_groups_count_and_the_largest_number_is_none),
        TREE(container_sees_only_its_own_group_the_folder_of_the_mount_is_read),
        TREE(container_has_groups_of_its_own_they_are_below_the_mount),
        TREE(names_contain_blanks_and_colons_the_group_is_found),
        TREE(process_has_limits_the_one_that_is_reached_first_is_the_limit),
        TREE(file_is_malformed_its_limit_is_ignored_with_the_reason),
        TREE(part_of_the_use_is_malformed_all_pages_count_and_the_reason_is_given),
        TREE(files_of_proc_are_malformed_their_limits_are_ignored_with_the_reason),
        TREE(no_file_exists_the_error_states_it_and_the_result_is_unchanged),
        TREE(file_with_a_nul_or_beyond_its_limit_is_refused),
        cmocka_unit_test(this_process_has_a_limit_and_a_use),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
