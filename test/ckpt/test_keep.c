/* test_keep.c - one checkpoint is kept outside of the directory of a writer. */
#include "ckpt/kit.h"

#include "base/fault.h"
#include "ckpt/keep.h"

static char *from, *to; /* the directory of the writer; the directory of the reader */

static int begin(void **state)
{
    (void)state;
    from = kit_folder();
    to = kit_folder();
    return 0;
}

static int finish(void **state)
{
    (void)state;
    fault_arm(NULL, NULL);
    kit_remove(from);
    kit_remove(to);
    return 0;
}

static void assert_ok(int rc, const struct err *err)
{
    if (rc < 0)
        fail_msg("%s", err->text);
}

static void pin(uint64_t step, struct ckpt_info *out)
{
    struct err err;

    assert_ok(ckpt_pin(from, step, to, out, &err), &err);
}

/* Removes the checkpoint as retention does. */
static void retire(uint64_t step)
{
    char path[4200];

    snprintf(path, sizeof(path), "%s/step-%08u", from, (unsigned)step);
    assert_int_equal(fs_remove_tree(path, NULL), 0);
}

static void assert_kept(uint64_t step, uint64_t seed)
{
    uint8_t loaded[KIT_STATE_BYTES] = { 0 };
    struct ckpt_info info;
    struct err err;

    assert_ok(ckpt_newest(to, NULL, NULL, NULL, NULL, &info, &err), &err);
    assert_int_equal(info.meta.step, step);
    assert_ok(ckpt_load(info.path, kit_model, KIT_MODEL, kit_slots, KIT_SLOTS, loaded, &err), &err);
    kit_check(loaded, seed);
}

static int count(const char *folder)
{
    DIR *d = opendir(folder);
    struct dirent *e;
    int n = 0;

    assert_non_null(d);
    while ((e = readdir(d)) != NULL)
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(d);
    return n;
}

static nlink_t links(const char *folder)
{
    char path[4200];
    struct stat st;

    snprintf(path, sizeof(path), "%s/model.safetensors", folder);
    assert_int_equal(stat(path, &st), 0);
    return st.st_nlink;
}

static void pinned_checkpoint_survives_retention(void **state)
{
    static struct ckpt_info info;
    struct err err;

    (void)state;
    kit_save(from, 10, 1);
    pin(10, &info);
    assert_int_equal(links(info.path), 2); /* no bytes were copied */
    retire(10);
    assert_ok(ckpt_keep(to, &info, &err), &err);
    assert_kept(10, 1);
    assert_int_equal(count(to), 1);
}

static void checkpoint_is_copied_where_links_are_impossible(void **state)
{
    static struct ckpt_info info;
    struct err err;

    (void)state;
    kit_save(from, 10, 1);
    fault_arm("ckpt.link=fail@1+", NULL);
    pin(10, &info);
    assert_true(fault_fired());
    assert_int_equal(links(info.path), 1);
    assert_ok(ckpt_keep(to, &info, &err), &err);
    assert_kept(10, 1);
}

static void kept_checkpoint_replaces_the_one_before(void **state)
{
    static struct ckpt_info info;
    struct err err;

    (void)state;
    for (uint64_t step = 10; step <= 30; step += 10) {
        kit_save(from, step, step);
        pin(step, &info);
        assert_ok(ckpt_keep(to, &info, &err), &err);
        assert_kept(step, step);
        assert_int_equal(count(to), 1);
    }
    pin(10, &info); /* an older one may be better */
    assert_ok(ckpt_keep(to, &info, &err), &err);
    assert_kept(10, 10);
    pin(10, &info); /* the same again, after a process that was killed */
    assert_ok(ckpt_keep(to, &info, &err), &err);
    assert_kept(10, 10);
    assert_int_equal(count(to), 1);
}

static void unpinned_checkpoint_leaves_nothing(void **state)
{
    static struct ckpt_info info;
    struct err err;

    (void)state;
    kit_save(from, 10, 1);
    pin(10, &info);
    assert_ok(ckpt_unpin(&info, &err), &err);
    assert_int_equal(count(to), 0);
    assert_int_equal(count(from), 1);
}

static void damaged_checkpoint_is_told_from_a_removed_one(void **state)
{
    static const char *const files[] = { "manifest.json", "optimizer.safetensors" };
    static struct ckpt_info info;
    char path[4200];
    struct err err;

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        kit_save(from, 10, 1);
        snprintf(path, sizeof(path), "%s/step-00000010/%s", from, files[i]);
        assert_int_equal(unlink(path), 0);
        assert_int_equal(ckpt_pin(from, 10, to, &info, &err), ERR_CORRUPT);
        assert_non_null(strstr(err.text, files[i]));
        retire(10);
    }
    assert_int_equal(ckpt_pin(from, 10, to, &info, &err), ERR_NOENT);
    kit_save(from, 10, 1);
    snprintf(path, sizeof(path), "%s/step-00000010/model.safetensors", from);
    assert_int_equal(truncate(path, 100), 0);
    assert_int_equal(ckpt_pin(from, 10, to, &info, &err), ERR_CORRUPT);
    assert_int_equal(count(to), 0);
}

static void leftover_of_a_killed_process_is_removed(void **state)
{
    static struct ckpt_info info;
    struct err err;

    (void)state;
    kit_save(from, 10, 1);
    pin(10, &info);
    assert_ok(ckpt_keep(to, &info, &err), &err);
    pin(10, &info); /* the process is killed here */
    assert_ok(ckpt_keep_prepare(to, &err), &err);
    assert_kept(10, 1);
    assert_int_equal(count(to), 1);
}

static void every_fault_leaves_the_kept_checkpoint(void **state)
{
    static struct ckpt_info info;
    char spec[32];
    int failures = 0;

    (void)state;
    kit_save(from, 10, 1);
    kit_save(from, 20, 2);
    pin(10, &info);
    assert_int_equal(ckpt_keep(to, &info, NULL), 0);
    for (int n = 1; n < 100; n++) {
        static struct ckpt_info newest;
        bool fired;
        int rc;

        snprintf(spec, sizeof(spec), "*=fail@%d", n);
        fault_arm(spec, NULL);
        rc = ckpt_pin(from, 20, to, &info, NULL);
        if (rc == 0)
            rc = ckpt_keep(to, &info, NULL);
        fired = fault_fired();
        fault_arm(NULL, NULL);
        failures += rc < 0;
        assert_int_equal(ckpt_newest(to, NULL, NULL, NULL, NULL, &newest, NULL), 0);
        assert_true(newest.meta.step == 20 || (rc < 0 && newest.meta.step == 10));
        assert_kept(newest.meta.step, newest.meta.step / 10);
        assert_int_equal(ckpt_keep_prepare(to, NULL), 0);
        if (!fired)
            break;
        kit_save(from, 10, 1);
        pin(10, &info);
        assert_int_equal(ckpt_keep(to, &info, NULL), 0);
        assert_int_equal(count(to), 1);
    }
    assert_true(failures >= 3);
}

static void entry_of_a_replaced_checkpoint_differs(void **state)
{
    struct ckpt_entry *was, *now;
    size_t n;
    struct err err;

    (void)state;
    kit_save(from, 10, 1);
    kit_save(from, 20, 1);
    assert_ok(ckpt_entries(from, &was, &n, &err), &err);
    assert_int_equal(n, 2);
    assert_int_equal(was[0].step, 10);
    assert_int_equal(was[1].step, 20);
    retire(20);
    kit_save(from, 20, 2);
    assert_ok(ckpt_entries(from, &now, &n, &err), &err);
    assert_int_equal(n, 2);
    assert_memory_equal(&was[0], &now[0], sizeof(now[0]));
    assert_true(was[1].inode != now[1].inode || was[1].changed_ns != now[1].changed_ns);
    free(was);
    free(now);
    assert_int_equal(ckpt_entries("/absent", &now, &n, &err), ERR_NOENT);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, finish)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(pinned_checkpoint_survives_retention),
        TEST(checkpoint_is_copied_where_links_are_impossible),
        TEST(kept_checkpoint_replaces_the_one_before),
        TEST(unpinned_checkpoint_leaves_nothing),
        TEST(damaged_checkpoint_is_told_from_a_removed_one),
        TEST(leftover_of_a_killed_process_is_removed),
        TEST(every_fault_leaves_the_kept_checkpoint),
        TEST(entry_of_a_replaced_checkpoint_differs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
