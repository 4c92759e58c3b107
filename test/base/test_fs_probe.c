/* test_fs_probe.c - whether a place can be written is found with the calls that need it, and leaves nothing. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/fs.h"
#include "base/fs_probe.h"
#include "harness/process.h"
#include "harness/refuse.h"

static char root[64];

static int make_root(void **state)
{
    (void)state;
    snprintf(root, sizeof(root), "/tmp/test-fs-probe-XXXXXX");
    return mkdtemp(root) != NULL ? 0 : -1;
}

static int remove_root(void **state)
{
    (void)state;
    return fs_remove_tree(root, NULL);
}

static const char *in_root(const char *name)
{
    static char path[128];

    snprintf(path, sizeof(path), "%s/%s", root, name);
    return path;
}

/* Removes the folder, which fails if it is not empty. */
static bool is_empty(const char *folder)
{
    return rmdir(folder) == 0 && mkdir(folder, 0777) == 0;
}

static void place_that_can_be_written_is_accepted_and_left_as_it_was(void **state)
{
    struct err err = { .text = "" };

    (void)state;
    assert_int_equal(fs_probe_folder(root, &err), 0);
    assert_int_equal(fs_probe_folder(in_root("absent/below/it"), &err), 0);
    assert_int_equal(fs_probe_file(in_root("model.onnx"), &err), 0);
    assert_int_equal(fs_probe_file(in_root("absent/model.onnx"), &err), 0);
    assert_string_equal(err.text, "");
    assert_true(is_empty(root));
}

static void file_in_the_place_of_a_folder_and_the_reverse_are_refused(void **state)
{
    struct err err = { .text = "" };

    (void)state;
    assert_int_equal(fs_replace(in_root("file"), "x", 1, &err), 0);
    assert_int_equal(fs_probe_folder(in_root("file"), &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "Not a directory; remove the file"));
    assert_int_equal(fs_probe_folder(in_root("file/run"), &err), ERR_INPUT);
    assert_int_equal(fs_probe_file(in_root("file/model.onnx"), &err), ERR_INPUT);
    assert_int_equal(fs_probe_file(in_root("file"), &err), 0); /* it will be replaced */
    assert_int_equal(fs_probe_file(root, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "is a folder; expected the name of a file"));
    assert_int_equal(unlink(in_root("file")), 0);
    assert_true(is_empty(root));
}

static void failure_of_any_call_may_pass_and_leaves_nothing(void **state)
{
    char spec[32];
    unsigned n = 0;

    (void)state;
    do {
        struct err err = { .text = "" };
        int rc;

        snprintf(spec, sizeof(spec), "fs.probe@%u", ++n);
        assert_int_equal(fault_arm(spec, NULL), 0);
        rc = fs_probe_folder(root, &err);
        assert_int_equal(rc, fault_fired() ? ERR_IO : 0);
        assert_true(rc == 0 || strstr(err.text, "Input/output error") != NULL);
        assert_true(is_empty(root));
    } while (fault_fired());
    fault_arm(NULL, NULL);
    assert_int_equal(n, 7);
}

static void folder_that_is_append_only_or_immutable_is_refused_and_left_as_it_was(void **state)
{
    static const struct {
        int flag;
        const char *text;
    } rows[] = { { FS_APPEND_FL, "is append-only (chattr +a), so nothing in it can be renamed or removed; remove the attribute (chattr -a)" },
                 { FS_IMMUTABLE_FL, "is immutable (chattr +i), so nothing in it can be created" } };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        int fd = open(root, O_RDONLY | O_DIRECTORY), none = 0, rc;
        struct err err = { .text = "" };

        assert_true(fd >= 0);
        if (ioctl(fd, FS_IOC_SETFLAGS, &rows[i].flag) < 0) {
            print_message("no such attribute here, or no permission to set it\n");
            close(fd);
            skip();
        }
        rc = fs_probe_folder(root, &err);
        assert_int_equal(ioctl(fd, FS_IOC_SETFLAGS, &none), 0);
        close(fd);
        assert_int_equal(rc, ERR_INPUT);
        assert_non_null(strstr(err.text, rows[i].text));
        assert_true(is_empty(root));
    }
}

static void limit_of_descriptors_is_named_and_not_the_storage(void **state)
{
    pid_t child = process_fork();
    int status;

    (void)state;
    if (child == 0) {
        struct err err = { .text = "" };

        refuse_calls(SYS_openat, SYS_openat, EMFILE);
        EXPECT(fs_probe_folder(root, &err) == ERR_IO, "%s", err.text);
        EXPECT(
            strstr(
                err.text,
                "the storage is not the cause: this process has no file descriptor left: raise RLIMIT_NOFILE") !=
                NULL,
            "%s", err.text);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_true(is_empty(root));
}

static void missing_permission_or_call_is_refused_with_the_call_and_a_remedy(void **state)
{
    static const struct {
        int calls[2], errnum;
        const char *call, *remedy;
    } rows[] = {
        { { REFUSE_MKDIR }, EACCES, "create a folder (mkdir) '", "': Permission denied; this process runs as user" },
        { { REFUSE_MKDIR }, EROFS, "create a folder (mkdir) '", "': Read-only file system; mount it for writing" },
        { { SYS_openat, SYS_openat }, EPERM, "create (open) '", "': Operation not permitted; this process runs as user" },
        { { SYS_fsync, SYS_fsync }, EINVAL, "fsync '", "': Invalid argument; this file system lacks a call" },
        { { REFUSE_LINK }, EROFS, "create a hard link (link) '", "': Read-only file system; mount it for writing" },
        { { REFUSE_RENAME }, ENOSYS, "rename a folder (rename) '", "': Function not implemented; this file system lacks a call" },
        { { REFUSE_RENAME }, EMFILE, "rename a folder (rename) '", "': Too many open files; this file system lacks a call" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        pid_t child = process_fork();
        int status;

        if (child == 0) {
            struct err err = { .text = "" };

            refuse_calls(rows[i].calls[0], rows[i].calls[1], rows[i].errnum);
            EXPECT(fs_probe_folder(root, &err) == ERR_INPUT, "%s", err.text);
            EXPECT(strncmp(err.text, rows[i].call, strlen(rows[i].call)) == 0, "%s", err.text);
            EXPECT(strstr(err.text, rows[i].remedy) != NULL, "%s", err.text);
            _exit(0);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
        assert_true(is_empty(root));
    }
}

static void file_system_without_hard_links_is_accepted(void **state)
{
    pid_t child = process_fork();
    int status;

    (void)state;
    if (child == 0) {
        struct err err = { .text = "" };

        refuse_calls(REFUSE_LINK, EPERM);
        EXPECT(fs_probe_folder(root, &err) == 0, "%s", err.text);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(place_that_can_be_written_is_accepted_and_left_as_it_was),
        cmocka_unit_test(file_in_the_place_of_a_folder_and_the_reverse_are_refused),
        cmocka_unit_test(failure_of_any_call_may_pass_and_leaves_nothing),
        cmocka_unit_test(folder_that_is_append_only_or_immutable_is_refused_and_left_as_it_was),
        cmocka_unit_test(limit_of_descriptors_is_named_and_not_the_storage),
        cmocka_unit_test(missing_permission_or_call_is_refused_with_the_call_and_a_remedy),
        cmocka_unit_test(file_system_without_hard_links_is_accepted),
    };

    return cmocka_run_group_tests_name("base/fs_probe", tests, make_root, remove_root);
}
