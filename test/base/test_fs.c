#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/fs.h"
#include "harness/lacking.h"
#include "harness/wait.h"

static char root[] = "/tmp/test_fs_XXXXXX";
static char path_memory[4][256];
static unsigned next_path;

/* Returns root/name, valid for the next three calls. */
static const char *in_root(const char *name)
{
    char *path = path_memory[next_path++ % 4];

    snprintf(path, sizeof(path_memory[0]), "%s/%s", root, name);
    return path;
}

static int make_root(void **state)
{
    (void)state;
    return mkdtemp(root) != NULL ? 0 : -1;
}

static int remove_root(void **state)
{
    (void)state;
    fault_arm(NULL, NULL);
    return fs_remove_tree(root, NULL);
}

static int count_entries(const char *dir)
{
    DIR *d = opendir(dir);
    int n = -2; /* . and .. */

    assert_non_null(d);
    while (readdir(d) != NULL)
        n++;
    closedir(d);
    return n;
}

static bool exists(const char *path)
{
    struct stat st;

    return lstat(path, &st) == 0;
}

static void assert_content(const char *path, const char *expected)
{
    struct buf b = { 0 };
    struct err err;

    assert_int_equal(fs_read(path, 1 << 20, &b, &err), 0);
    assert_int_equal(b.len, strlen(expected));
    if (b.len > 0)
        assert_string_equal(b.data, expected);
    buf_fini(&b);
}

static void fs_read_appends_the_written_bytes(void **state)
{
    const char *path = in_root("hello");
    struct buf b = { 0 };
    struct err err;

    (void)state;
    assert_int_equal(fs_replace(path, "hello", 5, &err), 0);
    buf_str(&b, "> ");
    assert_int_equal(fs_read(path, 5, &b, &err), 0);
    assert_string_equal(b.data, "> hello");
    assert_int_equal(fs_read(path, 4, &b, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "larger than the 4 B"));
    assert_string_equal(b.data, "> hello"); /* as before */
    buf_fini(&b);
}

static void fs_read_of_a_file_larger_than_one_read_is_complete(void **state)
{
    enum { N = 300001 };
    const char *path = in_root("large");
    char *data = malloc(N);
    struct buf b = { 0 };

    (void)state;
    assert_non_null(data);
    for (int i = 0; i < N; i++)
        data[i] = (char)(i * 7);
    assert_int_equal(fs_replace(path, data, N, NULL), 0);
    assert_int_equal(fs_read(path, N, &b, NULL), 0);
    assert_int_equal(b.len, N);
    assert_memory_equal(b.data, data, N);
    assert_int_equal(fs_read(path, N - 1, &b, NULL), ERR_INPUT);
    buf_fini(&b);
    free(data);
}

static void fs_read_error_names_the_path(void **state)
{
    struct buf b = { 0 };
    struct err err;

    (void)state;
    assert_int_equal(fs_read(in_root("missing"), 10, &b, &err), ERR_NOENT);
    assert_non_null(strstr(err.text, "/missing'"));
    assert_non_null(strstr(err.text, "No such file"));
    assert_int_equal(fs_read(root, 10, &b, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "it is a folder, expected a file"));
    assert_int_equal(fs_read("/dev/zero", 1 << 20, &b, &err), ERR_INPUT); /* exceeds any limit */
    assert_int_equal(b.len, 0);
    buf_fini(&b);
}

static void fs_write_to_a_full_disk_reports_err_full(void **state)
{
    int fd = open("/dev/full", O_WRONLY | O_CLOEXEC);
    struct err err;

    (void)state;
    if (fd < 0)
        skip_lacking("no /dev/full");
    assert_int_equal(fs_write_all(fd, "x", 1, "/dev/full", &err), ERR_FULL);
    assert_non_null(strstr(err.text, "write '/dev/full': No space left"));
    close(fd);
}

/* Injects a failure at each step in turn: the file has the old or the new content, and no temporary
 * file remains. */
static void fs_replace_failing_at_any_step_leaves_old_or_new_content(void **state)
{
    int failures = 0;

    (void)state;
    assert_int_equal(fs_mkdirs(in_root("replace"), NULL), 0);
    assert_int_equal(fs_replace(in_root("replace/f"), "old", 3, NULL), 0);
    for (int n = 1;; n++) {
        const char *path = in_root("replace/f");
        struct err err;
        char spec[32];
        int rc;

        snprintf(spec, sizeof(spec), "*@%d", n);
        fault_arm(spec, NULL);
        rc = fs_replace(path, "new", 3, &err);
        if (!fault_fired()) {
            assert_int_equal(rc, 0);
            break;
        }
        fault_arm(NULL, NULL);
        failures++;
        assert_int_equal(rc, ERR_IO);
        assert_non_null(strstr(err.text, "replace"));
        assert_int_equal(count_entries(in_root("replace")), 1);
        assert_content(path, n <= 4 ? "old" : "new"); /* open, write, sync, rename | directory */
        assert_int_equal(fs_replace(path, "old", 3, NULL), 0);
    }
    fault_arm(NULL, NULL);
    assert_int_equal(failures, 6); /* ... and the directory's open and sync */
    assert_content(in_root("replace/f"), "new");
}

static void fs_mkdirs_creates_parents_and_accepts_existing(void **state)
{
    struct err err;

    (void)state;
    assert_int_equal(fs_mkdirs(in_root("a//b/c/"), &err), 0);
    assert_true(exists(in_root("a/b/c")));
    assert_int_equal(fs_mkdirs(in_root("a/b/c/d"), &err), 0);
    assert_int_equal(fs_mkdirs(in_root("a/b/c/d"), &err), 0);
    assert_int_equal(fs_mkdirs("/", &err), 0);
    assert_int_equal(fs_replace(in_root("a/file"), "", 0, &err), 0);
    assert_int_equal(fs_mkdirs(in_root("a/file"), &err), ERR_EXISTS);
    assert_non_null(strstr(err.text, "a/file"));
    assert_true(fs_mkdirs(in_root("a/file/x"), &err) < 0);
    assert_int_equal(fs_mkdirs("", &err), ERR_NOENT);
}

static void fs_remove_tree_does_not_follow_links(void **state)
{
    struct err err;

    (void)state;
    assert_int_equal(fs_mkdirs(in_root("tree/x/y"), NULL), 0);
    assert_int_equal(fs_mkdirs(in_root("other"), NULL), 0);
    assert_int_equal(fs_replace(in_root("other/kept"), "k", 1, NULL), 0);
    assert_int_equal(fs_replace(in_root("tree/x/f"), "f", 1, NULL), 0);
    assert_int_equal(symlink(in_root("other"), in_root("tree/x/link")), 0);
    assert_int_equal(symlink("/nowhere", in_root("tree/broken")), 0);
    assert_int_equal(fs_remove_tree(in_root("tree"), &err), 0);
    assert_false(exists(in_root("tree")));
    assert_true(exists(in_root("other/kept")));
    assert_int_equal(fs_remove_tree(in_root("tree"), &err), 0);       /* does not exist */
    assert_int_equal(fs_remove_tree(in_root("other/kept"), &err), 0); /* a file */
    assert_false(exists(in_root("other/kept")));
}

static void fs_remove_tree_failure_is_reported(void **state)
{
    struct err err;

    (void)state;
    assert_int_equal(fs_mkdirs(in_root("stuck/x"), NULL), 0);
    fault_arm("fs.remove@2", NULL);
    assert_int_equal(fs_remove_tree(in_root("stuck"), &err), ERR_IO);
    fault_arm(NULL, NULL);
    assert_non_null(strstr(err.text, "stuck'"));
    assert_int_equal(fs_remove_tree(in_root("stuck"), &err), 0);
}

/* Opens the FIFO and writes to it, each time after the main thread has begun to wait. */
static void *write_to_waiting(void *arg)
{
    int fd;

    WAIT_UNTIL(wait_is_asleep(getpid(), getpid()));
    fd = open(arg, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    (void)!write(fd, "from a", 6);
    WAIT_UNTIL(wait_is_asleep(getpid(), getpid()));
    (void)!write(fd, " FIFO", 5);
    close(fd);
    return NULL;
}

/* A FIFO as created by `--job <(...)`. An earlier version waited without limit for a FIFO without a
 * writer, with all signals blocked. */
static void fs_read_of_a_fifo_waits_for_its_writer(void **state)
{
    const char *path = in_root("fifo");
    struct buf b = { 0 };
    struct err err = { 0 };
    pthread_t writer;

    (void)state;
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(pthread_create(&writer, NULL, write_to_waiting, (void *)(uintptr_t)path), 0);
    if (fs_read(path, 100, &b, &err) < 0)
        fail_msg("%s", err.text);
    pthread_join(writer, NULL);
    assert_string_equal(b.data, "from a FIFO");
    buf_fini(&b);
    unlink(path);
}

static void fs_join_and_fs_dirname_handle_slashes(void **state)
{
    static const struct {
        const char *dir, *name, *path;
    } joins[] = {
        { "a", "b", "a/b" }, { "a/", "b", "a/b" }, { "/", "b", "/b" },
        { "a", "/b", "/b" }, { "", "b", "b" },     { "a", "../b", "a/../b" },
    };
    static const char *const dirs[][2] = {
        { "a/b", "a" }, { "a", "." },    { "/a", "/" },     { "/", "/" },
        { "", "." },    { "a/b/", "a" }, { "/a//b", "/a" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(joins); i++) {
        char *path = fs_join(joins[i].dir, joins[i].name);

        assert_string_equal(path, joins[i].path);
        free(path);
    }
    for (size_t i = 0; i < COUNT_OF(dirs); i++) {
        char *dir = fs_dirname(dirs[i][0]);

        assert_string_equal(dir, dirs[i][1]);
        free(dir);
    }
}

static void path_that_other_programs_would_expand_is_refused_with_a_remedy(void **state)
{
    static const struct {
        const char *path, *remedy; /* NULL: accepted */
    } rows[] = {
        { "s3://bucket/run", "mount the storage" },
        { "gs://bucket", "mount the storage" },
        { "hdfs://name/run", "mount the storage" },
        { "abfss://a@b.c/run", "mount the storage" },
        { "dbfs:/run", "mount the storage" },
        { "S3://bucket", "write './' in front" },
        { "C:\\run", "is a path of Windows" },
        { "c:/run", "is a path of Windows" },
        { "\\\\host\\run", "is a path of Windows" },
        { "%h/run", "'%h' is not expanded" },
        { "/data/run-%j", "'%j' is not expanded" },
        { "run-%A_%a", "'%A' is not expanded" },
        { "/data/%USER_NAME%/run", "'%USER_NAME%' is not expanded" },
        { "/$USER/%h", "'$USER' is not expanded" },
        { "file:///data/run", "without 'file://'" },
        { "~", "'~', which is not expanded" },
        { "~/run", "'~', which is not expanded" },
        { "~user/run", "'~', which is not expanded" },
        { "$HOME/run", "'$HOME' is not expanded" },
        { "/data/${USER}/run", "'${USER}' is not expanded" },
        { "run-$(date)", "'$(date)' is not expanded" },
        { "a$/b$1", "'$1' is not expanded" },
        { "run", NULL },
        { "/data/run", NULL },
        { "./s3:/run", NULL },
        { "./~", NULL },
        { "a~/b", NULL },
        { "12:30/run", NULL },
        { "./C:/run", NULL },
        { "a/C:\\run", NULL },
        { "\\[a\\]", NULL },
        { "100%done", NULL },
        { "x%C3%A9/%CE%BB", NULL },
        { "5%", NULL },
        { "5%/a", NULL },
        { "%_a", NULL },
        { "a:b", NULL },
        { "a/b:/c", NULL },
        { "a$", NULL },
        { "a$/b", NULL },
        { "", NULL },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct err err = { .text = "" };
        int rc = fs_check_path(rows[i].path, &err);

        if (rc != (rows[i].remedy == NULL ? 0 : ERR_INPUT) ||
            (rc < 0 && strstr(err.text, rows[i].remedy) == NULL))
            fail_msg("'%s': %d, '%s'", rows[i].path, rc, err.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fs_read_appends_the_written_bytes),
        cmocka_unit_test(fs_read_of_a_file_larger_than_one_read_is_complete),
        cmocka_unit_test(fs_read_error_names_the_path),
        cmocka_unit_test(fs_write_to_a_full_disk_reports_err_full),
        cmocka_unit_test(fs_replace_failing_at_any_step_leaves_old_or_new_content),
        cmocka_unit_test(fs_mkdirs_creates_parents_and_accepts_existing),
        cmocka_unit_test(fs_remove_tree_does_not_follow_links),
        cmocka_unit_test(fs_remove_tree_failure_is_reported),
        cmocka_unit_test(fs_read_of_a_fifo_waits_for_its_writer),
        cmocka_unit_test(path_that_other_programs_would_expand_is_refused_with_a_remedy),
        cmocka_unit_test(fs_join_and_fs_dirname_handle_slashes),
    };

    return cmocka_run_group_tests_name("base/fs", tests, make_root, remove_root);
}
