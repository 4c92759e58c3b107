/* The writer: saving, keeping, replacing and reporting. */
#include "ckpt/kit.h"

#include <signal.h>
#include <sys/resource.h>

#include <cjson/cJSON.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/fault.h"
#include "ckpt/ckpt_priv.h"

static void writer_saved_checkpoint_is_loaded_unchanged(void **state)
{
    char *folder = kit_folder(), *deep = fs_join(folder, "run/checkpoints");
    struct kit_events story = { .text = "" };
    struct ckpt_writer_opts opts = kit_opts(deep);
    struct ckpt_meta meta = kit_meta(100);
    struct ckpt_info info;
    struct ckpt_writer *w;

    (void)state;
    opts.on_event = kit_on_event;
    opts.arg = &story;
    w = kit_open(&opts);
    meta.complete = true;
    kit_write(w, &meta, 5);
    kit_flush(w);
    assert_string_equal(story.text, "written 100");
    ckpt_writer_close(w);
    assert_int_equal(kit_newest(deep, &info), 100);
    kit_same_meta(&info.meta, &meta);
    kit_load(info.path, 5);
    assert_int_equal(kit_count(deep, ""), 1);
    free(deep);
    kit_remove(folder);
}

/* Compares the manifest with the files and its own checksum, using cJSON and xxhash directly. */
static void manifest_matches_the_files_and_its_checksum(void **state)
{
    static const char *const files[] = { "model.safetensors", "optimizer.safetensors" };
    char *folder = kit_folder(), *path = kit_path(folder, 12, "manifest.json"), hex[40], *at;
    struct buf text;
    cJSON *root;
    XXH128_hash_t hash;

    (void)state;
    kit_save(folder, 12, 1);
    text = kit_read(path);
    free(path);
    root = cJSON_Parse(text.data);
    assert_non_null(root);
    assert_int_equal(cJSON_GetObjectItem(root, "format")->valueint, 1);
    assert_int_equal(cJSON_GetObjectItem(root, "step")->valueint, 12);
    assert_int_equal(cJSON_GetObjectItem(root, "epoch")->valueint, 1);
    assert_int_equal(cJSON_GetObjectItem(root, "position")->valueint, 128);
    assert_non_null(strstr(text.data, "\"seed\": 18446744073709551614,"));
    assert_int_equal(cJSON_GetObjectItem(root, "lanes")->valueint, 4);
    assert_int_equal(cJSON_GetObjectItem(root, "global_batch_size")->valueint, 64);
    assert_string_equal(cJSON_GetObjectItem(root, "model_digest")->valuestring, "m0del");
    assert_string_equal(cJSON_GetObjectItem(root, "name")->valuestring, "a \"name\"\n");
    assert_true(cJSON_IsFalse(cJSON_GetObjectItem(root, "complete")));
    assert_int_equal(strlen(cJSON_GetObjectItem(root, "written_at")->valuestring), 20);
    for (int i = 0; i < 2; i++) {
        cJSON *file = cJSON_GetObjectItem(cJSON_GetObjectItem(root, "files"), files[i]);
        struct buf data;

        path = kit_path(folder, 12, files[i]);
        data = kit_read(path);
        hash = XXH3_128bits(data.data, data.len);
        snprintf(hex, sizeof(hex), "%016llx%016llx", (unsigned long long)hash.high64,
                 (unsigned long long)hash.low64);
        assert_int_equal(cJSON_GetObjectItem(file, "bytes")->valueint, data.len);
        assert_string_equal(cJSON_GetObjectItem(file, "xxh3_128")->valuestring, hex);
        buf_fini(&data);
        free(path);
    }
    at = strstr(text.data, "  \"checksum\": ");
    hash = XXH3_128bits(text.data, (size_t)(at - text.data));
    snprintf(hex, sizeof(hex), "%016llx%016llx", (unsigned long long)hash.high64,
             (unsigned long long)hash.low64);
    assert_string_equal(cJSON_GetObjectItem(root, "checksum")->valuestring, hex);
    cJSON_Delete(root);
    buf_fini(&text);
    kit_remove(folder);
}

static void writer_aligns_tensors_to_their_element_size(void **state)
{
    char *folder = kit_folder(), *path = kit_path(folder, 1, "model.safetensors");
    struct buf data;

    (void)state;
    kit_save(folder, 1, 3);
    data = kit_read(path);
    /* int64 first, then float32, then uint8 */
    assert_non_null(strstr(data.data + 8, "{\"norm.count\":{\"dtype\":\"I64\",\"shape\":[],"
                                          "\"data_offsets\":[0,8]},\"conv.weight\""));
    assert_int_equal((uint8_t)data.data[0] % 8, 0);
    free(path);
    buf_fini(&data);
    kit_remove(folder);
}

static void writer_with_a_limit_keeps_the_newest(void **state)
{
    char *folder = kit_folder();
    struct kit_events story = { .text = "" };
    struct ckpt_writer_opts opts = kit_opts(folder);
    struct ckpt_writer *w;
    struct ckpt_info info;

    (void)state;
    opts.max_to_keep = 2;
    opts.on_event = kit_on_event;
    opts.arg = &story;
    w = kit_open(&opts);
    for (uint64_t step = 1; step <= 4; step++) {
        struct ckpt_meta meta = kit_meta(step * 10);

        kit_write(w, &meta, step);
        kit_flush(w);
    }
    ckpt_writer_close(w);
    assert_string_equal(story.text, "written 10, written 20, written 30, removed 10, written 40, "
                                    "removed 20");
    assert_int_equal(kit_count(folder, ""), 2);
    assert_int_equal(kit_newest(folder, &info), 40);
    kit_load(info.path, 4);
    kit_remove(folder);
}

static void writer_without_limit_keeps_all_and_always_the_new_one(void **state)
{
    char *folder = kit_folder();
    struct ckpt_writer_opts opts = kit_opts(folder);
    struct ckpt_meta meta = kit_meta(5);
    struct ckpt_info info;
    struct ckpt_writer *w;
    char *path;

    (void)state;
    kit_save(folder, 10, 1);
    kit_save(folder, 20, 2);
    kit_save(folder, 30, 3);
    assert_int_equal(kit_count(folder, "step-"), 3);
    opts.max_to_keep = 1; /* a run that restarted from an earlier step saves step 5 */
    w = kit_open(&opts);
    kit_write(w, &meta, 4);
    kit_flush(w);
    ckpt_writer_close(w);
    assert_int_equal(kit_count(folder, "step-"), 1);
    assert_int_equal(kit_newest(folder, &info), 5);
    path = kit_path(folder, 5, NULL);
    kit_load(path, 4);
    free(path);
    kit_remove(folder);
}

static ino_t inode_of(const char *folder, uint64_t step)
{
    char *path = kit_path(folder, step, "model.safetensors");
    struct stat st;

    assert_int_equal(stat(path, &st), 0);
    free(path);
    return st.st_ino;
}

static void writer_does_not_write_the_same_checkpoint_twice(void **state)
{
    char *folder = kit_folder();
    ino_t before;

    (void)state;
    kit_save(folder, 7, 1);
    before = inode_of(folder, 7);
    kit_save(folder, 7, 1);
    assert_int_equal(inode_of(folder, 7), before);
    kit_remove(folder);
}

/* A damaged checkpoint, one of another run, an empty directory, a file: each is replaced, also on a
 * file system that cannot exchange two names. */
static void writer_replaces_anything_else_of_that_name(void **state)
{
    (void)state;
    for (int kind = 0; kind < 8; kind++) {
        char *folder = kit_folder(), *path = kit_path(folder, 7, NULL);
        struct ckpt_writer_opts opts = kit_opts(folder);
        struct ckpt_meta meta = kit_meta(7);
        struct ckpt_info info;
        struct ckpt_writer *w;

        if (kind % 4 == 0) {
            kit_save(folder, 7, 1);
            kit_write_file(path = (free(path), kit_path(folder, 7, "model.safetensors")), "x", 1);
        } else if (kind % 4 == 1) {
            kit_save(folder, 7, 1);
            strcpy(meta.job_digest, "another");
        } else if (kind % 4 == 2) {
            assert_int_equal(mkdir(path, 0777), 0);
        } else {
            kit_write_file(path, "a file", 6);
        }
        if (kind >= 4)
            assert_int_equal(fault_arm("ckpt.exchange@1+", NULL), 0);
        w = kit_open(&opts);
        kit_write(w, &meta, 2);
        kit_flush(w);
        ckpt_writer_close(w);
        assert_int_equal(fault_arm(NULL, NULL), 0);
        assert_int_equal(kit_newest(folder, &info), 7);
        assert_string_equal(info.meta.job_digest, meta.job_digest);
        kit_load(info.path, 2);
        assert_int_equal(kit_count(folder, ""), 1);
        free(path);
        kit_remove(folder);
    }
}

static void leftovers_of_dead_writers_are_removed_or_moved_back(void **state)
{
    char *folder = kit_folder(), *seven = kit_path(folder, 7, NULL), *aside = NULL, *other;
    struct ckpt_info info;

    (void)state;
    kit_save(folder, 6, 6);
    kit_save(folder, 7, 7);
    assert_true(asprintf(&aside, "%s/.step-00000007.old-0123456789abcdef", folder) > 0);
    assert_int_equal(rename(seven, aside), 0);
    other = fs_join(folder, ".step-00000006.old-0123456789abcdef"); /* step 6 exists */
    assert_int_equal(mkdir(other, 0777), 0);
    free(other);
    other = fs_join(folder, ".step-00000008.tmp-0123456789abcdef/more");
    assert_int_equal(fs_mkdirs(other, NULL), 0);
    free(other);
    other = fs_join(folder, ".not-ours");
    kit_write_file(other, "x", 1);
    free(other);
    kit_clean(folder);
    assert_int_equal(kit_count(folder, ".step-"), 0);
    assert_int_equal(kit_count(folder, "step-"), 2);
    assert_int_equal(kit_count(folder, ".not-ours"), 1);
    assert_int_equal(kit_newest(folder, &info), 7);
    kit_load(info.path, 7);
    free(seven);
    free(aside);
    kit_remove(folder);
}

/* The owner of a leftover may be alive and about to publish it, so it must never be partly removed
 * under its name. */
static void leftover_is_renamed_before_its_content_is_removed(void **state)
{
    char *folder = kit_folder(), *theirs = fs_join(folder, ".step-00000008.tmp-0123456789abcdef");
    char *file;

    (void)state;
    assert_int_equal(mkdir(theirs, 0777), 0);
    for (int i = 0; i < 3; i++) {
        static const char *const names[] = { "manifest.json", "model.safetensors", "more" };

        file = fs_join(theirs, names[i]);
        kit_write_file(file, "x", 1);
        free(file);
    }
    assert_int_equal(fault_arm("fs.remove@2", NULL), 0);
    assert_int_equal(ckpt_folder_clean(folder, NULL), ERR_IO);
    assert_true(access(theirs, F_OK) < 0);
    assert_int_equal(kit_count(folder, ".step-00000008.tmp-"), 1); /* renamed, partly removed */
    assert_int_equal(fault_arm(NULL, NULL), 0);
    assert_int_equal(ckpt_folder_clean(folder, NULL), 0);
    assert_int_equal(kit_count(folder, ""), 0);
    free(theirs);
    kit_remove(folder);
}

static void writer_busy_reports_err_exists_or_is_flushed(void **state)
{
    char *folder = kit_folder();
    struct kit_events story = { .text = "" };
    struct ckpt_writer_opts opts = kit_opts(folder);
    struct ckpt_meta one = kit_meta(1), two = kit_meta(2);
    uint8_t buffer[KIT_STATE_BYTES];
    struct ckpt_writer *w;
    struct ckpt_info info;
    struct err err;

    (void)state;
    opts.on_event = kit_on_event;
    opts.arg = &story;
    assert_int_equal(fault_arm("ckpt.mkdir=delay:1000", NULL), 0);
    w = kit_open(&opts);
    kit_write(w, &one, 1);
    kit_fill(buffer, 2);
    assert_int_equal(ckpt_write(w, &two, buffer, &err), ERR_EXISTS);
    assert_text(err.text, "step 1");
    assert_int_equal(flush_for(w, 1, &err), ERR_TIMEOUT);
    assert_text(err.text, "step 1");
    kit_write(w, &two, 2);
    kit_flush(w);
    assert_int_equal(ckpt_write(w, &one, buffer, &err), 0);
    kit_flush(w);
    ckpt_writer_close(w);
    assert_string_equal(story.text, "written 1, written 2, written 1");
    assert_int_equal(fault_arm(NULL, NULL), 0);
    assert_int_equal(kit_newest(folder, &info), 2);
    kit_load(info.path, 2);
    kit_remove(folder);
}

static void state_filled_in_parts_is_saved_unchanged(void **state)
{
    char *folder = kit_folder();
    struct ckpt_writer_opts opts = kit_opts(folder);
    struct ckpt_meta meta = kit_meta(3);
    struct ckpt_writer *w = kit_open(&opts);
    struct ckpt_info info;
    void *staging;

    (void)state;
    assert_int_equal(ckpt_begin(w, &staging, NULL), 0);
    kit_fill(staging, 9);
    ckpt_hand_over(w, &meta);
    kit_flush(w);
    assert_int_equal(ckpt_begin(w, &staging, NULL), 0);
    ckpt_writer_close(w); /* in state FILLING */
    assert_int_equal(kit_newest(folder, &info), 3);
    kit_load(info.path, 9);
    kit_remove(folder);
}

struct on_its_way {
    struct kit_events story; /* first member, for kit_on_event() */
    uint8_t *staging;
    int asked;
};

/* wait_snapshot(): fails at the first call, then writes the state. */
static int arrive_after_delay(void *arg, struct err *err)
{
    struct on_its_way *x = arg;

    if (x->asked++ == 0)
        return err_set(err, ERR_DEVICE, "the copy: lost on its way");
    wait_disturb(10000000);
    kit_fill(x->staging, 9);
    return 0;
}

static void writer_thread_waits_for_a_state_in_transfer(void **state)
{
    char *folder = kit_folder();
    struct ckpt_writer_opts opts = kit_opts(folder);
    struct ckpt_meta meta = kit_meta(3);
    uint8_t mine[KIT_STATE_BYTES];
    struct on_its_way x = { .staging = mine };
    struct ckpt_writer *w;
    struct ckpt_info info;
    void *staging;

    (void)state;
    opts.staging = mine;
    opts.wait_snapshot = arrive_after_delay;
    opts.on_event = kit_on_event;
    opts.arg = &x;
    w = kit_open(&opts);
    assert_int_equal(ckpt_begin(w, &staging, NULL), 0);
    assert_ptr_equal(staging, mine);
    assert_int_equal(x.asked, 0);
    ckpt_hand_over(w, &meta);
    assert_true(ckpt_is_busy(w));
    kit_flush(w);
    assert_true(ckpt_writer_close(w)); /* the writer does not use the staging area any more */
    assert_int_equal(x.asked, 2);
    assert_string_equal(x.story.text, "failed 3, written 3");
    assert_int_equal(kit_newest(folder, &info), 3);
    kit_load(info.path, 9);
    kit_remove(folder);
}

static void failed_save_is_retried_and_replaced_by_a_newer_state(void **state)
{
    char *folder = kit_folder();
    struct kit_events story = { .text = "" };
    struct ckpt_writer_opts opts = kit_opts(folder);
    struct ckpt_meta one = kit_meta(1), two = kit_meta(2);
    struct ckpt_writer *w;
    struct err err;

    (void)state;
    opts.on_event = kit_on_event;
    opts.arg = &story;
    assert_int_equal(fault_arm("ckpt.write@1,ckpt.sync@1,ckpt.verify@1,ckpt.rename@1", NULL), 0);
    w = kit_open(&opts);
    kit_write(w, &one, 1);
    kit_flush(w); /* the fifth attempt */
    assert_string_equal(story.text, "failed 1, failed 1 again, failed 1, failed 1, written 1");
    story.text[0] = '\0';
    ckpt_writer_close(w);

    opts.retry_ms = 100000; /* longer than this test */
    assert_int_equal(fault_arm("ckpt.sync@1+", NULL), 0);
    w = kit_open(&opts);
    one.step = 3;
    kit_write(w, &one, 1);
    while (flush_for(w, 5, &err) != ERR_IO) /* the error of the save, not ERR_TIMEOUT */
        assert_int_equal(err.code, ERR_TIMEOUT);
    assert_text(err.text, "save step 3");
    assert_text(err.text, "sync");
    assert_int_equal(fault_arm(NULL, NULL), 0);
    kit_write(w, &two, 2); /* replaces the waiting state */
    kit_flush(w);
    ckpt_writer_close(w);
    assert_non_null(strstr(story.text, "failed 3"));
    assert_non_null(strstr(story.text, "written 2"));
    assert_null(strstr(story.text, "written 3"));
    assert_int_equal(kit_count(folder, ""), 2);
    kit_remove(folder);
}

static void close_cancels_a_pending_retry_and_reports_it(void **state)
{
    char *folder = kit_folder();
    struct kit_events story = { .text = "" };
    struct ckpt_writer_opts opts = kit_opts(folder);
    struct ckpt_meta one = kit_meta(1);
    struct ckpt_writer *w;
    struct err err;

    (void)state;
    opts.on_event = kit_on_event;
    opts.arg = &story;
    opts.retry_ms = 100000;
    assert_int_equal(fault_arm("ckpt.write@1+", NULL), 0);
    w = kit_open(&opts);
    kit_write(w, &one, 1);
    while (flush_for(w, 10, &err) == ERR_TIMEOUT)
        continue;
    ckpt_writer_close(w);
    assert_non_null(strstr(story.text, "failed 1, "));
    assert_string_equal(story.text + strlen(story.text) - 17, "failed 1 for good");
    assert_text(story.last_error, "write '");
    assert_int_equal(fault_arm(NULL, NULL), 0);
    assert_int_equal(kit_count(folder, ""), 0);
    ckpt_writer_close(NULL);
    kit_remove(folder);
}

static void full_disk_is_reported_with_the_needed_space(void **state)
{
    char *folder = kit_folder();
    struct ckpt_writer_opts opts = kit_opts(folder);
    struct ckpt_meta one = kit_meta(1);
    struct rlimit before, small;
    struct ckpt_writer *w;
    struct err err;

    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 256;
    opts.retry_ms = 100000;
    w = kit_open(&opts);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    kit_write(w, &one, 1);
    assert_int_equal(flush_for(w, 300, &err), ERR_FULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_text(err.text, "a checkpoint needs");
    assert_text(err.text,
                " free now: look for a quota, or for a limit of the size of a file (ulimit -f)");
    assert_int_equal(kit_count(folder, ""), 0); /* nothing remains on the full disk */
    kit_flush(w);                               /* succeeds when there is room again */
    assert_int_equal(kit_count(folder, "step-"), 1);
    ckpt_writer_close(w);
    kit_remove(folder);
}

static void writer_open_with_invalid_names_is_refused(void **state)
{
    static const struct ckpt_tensor twice[] = { { "a", TENSOR_F32, { 0, { 0 } }, 0, 0, 0 },
                                                { "a", TENSOR_F32, { 0, { 0 } }, 4, 0, 0 } };
    static const struct ckpt_tensor bad[] = { { "\xff", TENSOR_F32, { 0, { 0 } }, 0, 0, 0 } };
    static const struct ckpt_tensor taken[] = { { "__metadata__", TENSOR_F32, { 0, { 0 } }, 0, 0, 0 } };
    const struct ckpt_tensor *const cases[] = { twice, bad, taken };
    char *folder = kit_folder();
    struct ckpt_writer_opts opts = kit_opts(folder);
    struct ckpt_writer *w;
    struct err err;

    (void)state;
    for (int i = 0; i < 3; i++) {
        opts.model = cases[i];
        opts.n_model = i == 0 ? 2 : 1;
        assert_int_equal(ckpt_writer_open(&opts, &w, &err), ERR_INPUT);
        assert_text(err.text, "name");
        assert_text(err.text, folder);
    }
    kit_remove(folder);
}

static void failures_of_one_cause_are_marked_as_repeated(void **state)
{
    char *folder = kit_folder();
    struct kit_events story = { .text = "" };
    struct ckpt_writer_opts opts = kit_opts(folder);
    struct ckpt_meta one = kit_meta(1), two = kit_meta(2);
    struct ckpt_writer *w;

    (void)state;
    opts.on_event = kit_on_event;
    opts.arg = &story;
    w = kit_open(&opts);
    assert_int_equal(
        fault_arm("ckpt.write@1,ckpt.sync@1,ckpt.verify@1,ckpt.verify@2,ckpt.rename@1", NULL), 0);
    kit_write(w, &one, 1);
    kit_flush(w);
    assert_int_equal(fault_arm("ckpt.write@1", NULL), 0);
    kit_write(w, &two, 1);
    kit_flush(w);
    ckpt_writer_close(w);
    assert_string_equal(story.text, "failed 1, failed 1 again, failed 1, failed 1 again, failed 1, "
                                    "written 1, failed 2, written 2");
    kit_remove(folder);
}

static void close_on_hanging_storage_returns_in_time(void **state)
{
    static const char *const faults[] = { "ckpt.sync=hang", "ckpt.sync=hang", "ckpt.rename=hold",
                                          "ckpt.sync=hold" };

    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        char *folder = kit_folder();
        struct kit_events story = { .text = "" };
        struct ckpt_writer_opts opts = kit_opts(folder);
        struct ckpt_meta one = kit_meta(1);
        struct ckpt_writer *w;

        opts.on_event = kit_on_event;
        opts.arg = &story;
        opts.close_ms = 60;
        w = kit_open(&opts);
        assert_int_equal(fault_arm(faults[kind], NULL), 0);
        kit_write(w, &one, 1);
        WAIT_UNTIL(fault_fired());
        if (kind == 1)
            ckpt_abandon(w);
        assert_false(ckpt_writer_close(w)); /* its thread is detached */
        assert_string_equal(story.text, kind == 1 ? "" : "failed 1 for good");
        assert_int_equal(fault_arm(NULL, NULL), 0);
        if (kind >= 2) { /* the thread returns, before the rename or earlier */
            WAIT_UNTIL(kit_count(folder, ".") == 0);
            assert_int_equal(kit_count(folder, "step-"), kind == 2);
            assert_int_equal(kit_count(folder, "."), 0);
            assert_string_equal(story.text, "failed 1 for good");
        }
        fs_remove_tree(folder, NULL);
        free(folder);
    }
}

/* A may_publish() that returns when it is released. */
struct latch {
    bool is_held, is_free; /* atomic */
};

static int wait_for_release(void *arg, struct err *err)
{
    struct latch *l = arg;

    (void)err;
    __atomic_store_n(&l->is_held, true, __ATOMIC_SEQ_CST);
    WAIT_UNTIL(__atomic_load_n(&l->is_free, __ATOMIC_SEQ_CST));
    return 0;
}

/* The thread is busy when the state is handed over, so the storage has no operation to complete
 * yet. */
static void trouble_before_the_thread_starts_reports_no_stall(void **state)
{
    char *folder = kit_folder();
    struct latch latch = { .is_held = false };
    struct ckpt_writer_opts opts = kit_opts(folder);
    struct ckpt_meta one = kit_meta(1);
    struct ckpt_failure trouble;
    struct ckpt_writer *w;

    (void)state;
    opts.may_publish = wait_for_release;
    opts.arg = &latch;
    w = kit_open(&opts);
    WAIT_UNTIL(__atomic_load_n(&latch.is_held, __ATOMIC_SEQ_CST));
    clock_fake(clock_ns() + 100000000);
    kit_write(w, &one, 1);
    ckpt_failure(w, &trouble);
    assert_int_equal(trouble.stalled_ms, 0);
    clock_fake(UINT64_MAX);
    __atomic_store_n(&latch.is_free, true, __ATOMIC_SEQ_CST);
    kit_flush(w);
    ckpt_writer_close(w);
    kit_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writer_saved_checkpoint_is_loaded_unchanged),
        cmocka_unit_test(manifest_matches_the_files_and_its_checksum),
        cmocka_unit_test(writer_aligns_tensors_to_their_element_size),
        cmocka_unit_test(writer_with_a_limit_keeps_the_newest),
        cmocka_unit_test(writer_without_limit_keeps_all_and_always_the_new_one),
        cmocka_unit_test(writer_does_not_write_the_same_checkpoint_twice),
        cmocka_unit_test(writer_replaces_anything_else_of_that_name),
        cmocka_unit_test(leftovers_of_dead_writers_are_removed_or_moved_back),
        cmocka_unit_test(leftover_is_renamed_before_its_content_is_removed),
        cmocka_unit_test(writer_busy_reports_err_exists_or_is_flushed),
        cmocka_unit_test(state_filled_in_parts_is_saved_unchanged),
        cmocka_unit_test(writer_thread_waits_for_a_state_in_transfer),
        cmocka_unit_test(failed_save_is_retried_and_replaced_by_a_newer_state),
        cmocka_unit_test(close_cancels_a_pending_retry_and_reports_it),
        cmocka_unit_test(full_disk_is_reported_with_the_needed_space),
        cmocka_unit_test(writer_open_with_invalid_names_is_refused),
        cmocka_unit_test(failures_of_one_cause_are_marked_as_repeated),
        cmocka_unit_test(close_on_hanging_storage_returns_in_time),
        cmocka_unit_test(trouble_before_the_thread_starts_reports_no_stall),
    };

    return cmocka_run_group_tests_name("ckpt/writer", tests, NULL, NULL);
}
