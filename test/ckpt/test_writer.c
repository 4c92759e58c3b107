#include "ckpt/kit.h"

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#include <cjson/cJSON.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/fault.h"
#include "ckpt/ckpt_priv.h"
#include "ckpt/lease.h"

/* What a writer reported. */
struct story {
    char text[4096];
    char last_error[2048];
    const char *folder;
};

static void on_event(void *arg, const struct ckpt_event *e)
{
    static const char *const kinds[] = { "written", "failed", "removed", "discarded" };
    struct story *s = arg;
    size_t n = strlen(s->text);

    snprintf(s->text + n, sizeof(s->text) - n, "%s%s %d%s%s", n > 0 ? ", " : "", kinds[e->kind],
             (int)e->step, e->final ? " for good" : "", e->again ? " again" : "");
    if (e->kind == CKPT_FAILED)
        snprintf(s->last_error, sizeof(s->last_error), "%s", e->text);
}

static void a_saved_checkpoint_comes_back_as_it_was(void **state)
{
    char *folder = kit_folder(), *deep = fs_join(folder, "run/checkpoints");
    struct story story = { .text = "" };
    struct ckpt_writer_opts opts = kit_opts(deep);
    struct ckpt_meta meta = kit_meta(100);
    struct ckpt_info info;
    struct ckpt_writer *w;

    (void)state;
    opts.on_event = on_event;
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

/* By cJSON and xxhash directly: what the manifest says about the files, and itself. */
static void the_manifest_tells_the_truth(void **state)
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

static void tensors_lie_at_multiples_of_their_element(void **state)
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

static void the_newest_are_kept(void **state)
{
    char *folder = kit_folder();
    struct story story = { .text = "" };
    struct ckpt_writer_opts opts = kit_opts(folder);
    struct ckpt_writer *w;
    struct ckpt_info info;

    (void)state;
    opts.max_to_keep = 2;
    opts.on_event = on_event;
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

static void all_are_kept_if_no_limit_is_set_and_the_new_one_in_any_case(void **state)
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
    opts.max_to_keep = 1; /* now a run that went back to step 5 */
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

static void the_same_checkpoint_is_not_written_twice(void **state)
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

/* Damaged, of another run, a folder without anything, a file: each is replaced, also where the file
 * system cannot exchange two names. */
static void anything_else_of_that_name_is_replaced(void **state)
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
            kit_put(path = (free(path), kit_path(folder, 7, "model.safetensors")), "x", 1);
        } else if (kind % 4 == 1) {
            kit_save(folder, 7, 1);
            strcpy(meta.job_digest, "another");
        } else if (kind % 4 == 2) {
            assert_int_equal(mkdir(path, 0777), 0);
        } else {
            kit_put(path, "a file", 6);
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

static void what_dead_writers_left_is_removed_and_what_they_moved_aside_comes_back(void **state)
{
    char *folder = kit_folder(), *seven = kit_path(folder, 7, NULL), *aside = NULL, *other;
    struct ckpt_writer_opts opts = kit_opts(folder);
    struct ckpt_info info;

    (void)state;
    kit_save(folder, 6, 6);
    kit_save(folder, 7, 7);
    assert_true(asprintf(&aside, "%s/.step-00000007.old-0123456789abcdef", folder) > 0);
    assert_int_equal(rename(seven, aside), 0);
    other = fs_join(folder, ".step-00000006.old-0123456789abcdef"); /* 6 itself is there */
    assert_int_equal(mkdir(other, 0777), 0);
    free(other);
    other = fs_join(folder, ".step-00000008.tmp-0123456789abcdef/more");
    assert_int_equal(fs_mkdirs(other, NULL), 0);
    free(other);
    other = fs_join(folder, ".not-ours");
    kit_put(other, "x", 1);
    free(other);
    ckpt_writer_close(kit_open(&opts));
    assert_int_equal(kit_count(folder, ".step-"), 0);
    assert_int_equal(kit_count(folder, "step-"), 2);
    assert_int_equal(kit_count(folder, ".not-ours"), 1);
    assert_int_equal(kit_newest(folder, &info), 7);
    kit_load(info.path, 7);
    free(seven);
    free(aside);
    kit_remove(folder);
}

/* Its owner may be alive and about to publish it: then it must not be half there. */
static void what_is_cleaned_is_gone_under_its_name_before_anything_in_it_is_removed(void **state)
{
    char *folder = kit_folder(), *theirs = fs_join(folder, ".step-00000008.tmp-0123456789abcdef");
    char *file;

    (void)state;
    assert_int_equal(mkdir(theirs, 0777), 0);
    for (int i = 0; i < 3; i++) {
        static const char *const names[] = { "manifest.json", "model.safetensors", "more" };

        file = fs_join(theirs, names[i]);
        kit_put(file, "x", 1);
        free(file);
    }
    assert_int_equal(fault_arm("fs.remove@2", NULL), 0);
    assert_int_equal(ckpt_folder_clean(folder, NULL), ERR_IO);
    assert_true(access(theirs, F_OK) < 0);
    assert_int_equal(kit_count(folder, ".step-00000008.tmp-"), 1); /* half removed, and ours */
    assert_int_equal(fault_arm(NULL, NULL), 0);
    assert_int_equal(ckpt_folder_clean(folder, NULL), 0);
    assert_int_equal(kit_count(folder, ""), 0);
    free(theirs);
    kit_remove(folder);
}

static void a_busy_writer_says_so_or_is_waited_for(void **state)
{
    char *folder = kit_folder();
    struct story story = { .text = "" };
    struct ckpt_writer_opts opts = kit_opts(folder);
    struct ckpt_meta one = kit_meta(1), two = kit_meta(2);
    uint8_t buffer[KIT_STATE_BYTES];
    struct ckpt_writer *w;
    struct ckpt_info info;
    struct err err;

    (void)state;
    opts.on_event = on_event;
    opts.arg = &story;
    assert_int_equal(fault_arm("ckpt.mkdir=delay:50", NULL), 0);
    w = kit_open(&opts);
    kit_write(w, &one, 1);
    kit_fill(buffer, 2);
    assert_int_equal(ckpt_write(w, &two, buffer, &err), ERR_EXISTS);
    assert_text(err.text, "step 1");
    assert_int_equal(ckpt_flush(w, 1, &err), ERR_TIMEOUT);
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

static void a_state_filled_in_parts_is_the_same(void **state)
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
    ckpt_writer_close(w); /* while it is being filled */
    assert_int_equal(kit_newest(folder, &info), 3);
    kit_load(info.path, 9);
    kit_remove(folder);
}

static void a_failure_is_tried_again_and_a_newer_state_goes_first(void **state)
{
    char *folder = kit_folder();
    struct story story = { .text = "" };
    struct ckpt_writer_opts opts = kit_opts(folder);
    struct ckpt_meta one = kit_meta(1), two = kit_meta(2);
    struct ckpt_writer *w;
    struct err err;

    (void)state;
    opts.on_event = on_event;
    opts.arg = &story;
    assert_int_equal(fault_arm("ckpt.write@1,ckpt.sync@1,ckpt.verify@1,ckpt.rename@1", NULL), 0);
    w = kit_open(&opts);
    kit_write(w, &one, 1);
    kit_flush(w); /* the fifth time */
    assert_string_equal(story.text, "failed 1, failed 1 again, failed 1, failed 1, written 1");
    story.text[0] = '\0';
    ckpt_writer_close(w);

    opts.retry_ms = 100000; /* longer than this test */
    assert_int_equal(fault_arm("ckpt.sync@1+", NULL), 0);
    w = kit_open(&opts);
    one.step = 3;
    kit_write(w, &one, 1);
    while (ckpt_flush(w, 5, &err) != ERR_IO) /* its result; not ERR_TIMEOUT, for there is one */
        assert_int_equal(err.code, ERR_TIMEOUT);
    assert_text(err.text, "save step 3");
    assert_text(err.text, "sync");
    assert_int_equal(fault_arm(NULL, NULL), 0);
    kit_write(w, &two, 2); /* replaces what waits */
    kit_flush(w);
    ckpt_writer_close(w);
    assert_non_null(strstr(story.text, "failed 3"));
    assert_non_null(strstr(story.text, "written 2"));
    assert_null(strstr(story.text, "written 3"));
    assert_int_equal(kit_count(folder, ""), 2);
    kit_remove(folder);
}

static void closing_gives_up_for_good_and_says_so(void **state)
{
    char *folder = kit_folder();
    struct story story = { .text = "" };
    struct ckpt_writer_opts opts = kit_opts(folder);
    struct ckpt_meta one = kit_meta(1);
    struct ckpt_writer *w;
    struct err err;

    (void)state;
    opts.on_event = on_event;
    opts.arg = &story;
    opts.retry_ms = 100000;
    assert_int_equal(fault_arm("ckpt.write@1+", NULL), 0);
    w = kit_open(&opts);
    kit_write(w, &one, 1);
    while (ckpt_flush(w, 10, &err) == ERR_TIMEOUT)
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

static void a_full_disk_is_told_with_what_was_needed(void **state)
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
    assert_int_equal(ckpt_flush(w, 300, &err), ERR_FULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_text(err.text, "a checkpoint takes");
    assert_text(err.text, "are free");
    assert_int_equal(kit_count(folder, ""), 0); /* nothing is left lying on a full disk */
    kit_flush(w);                               /* and when there is room again: at once */
    assert_int_equal(kit_count(folder, "step-"), 1);
    ckpt_writer_close(w);
    kit_remove(folder);
}

static void names_that_cannot_be_saved_are_refused_at_once(void **state)
{
    static const struct ckpt_tensor twice[] = { { "a", TENSOR_F32, { 0, { 0 } }, 0 },
                                                { "a", TENSOR_F32, { 0, { 0 } }, 4 } };
    static const struct ckpt_tensor bad[] = { { "\xff", TENSOR_F32, { 0, { 0 } }, 0 } };
    static const struct ckpt_tensor taken[] = { { "__metadata__", TENSOR_F32, { 0, { 0 } }, 0 } };
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

/* ---- faults ---- */

static void count_good(void *arg, const struct ckpt_info *info, int rc, const char *why)
{
    int *n = arg;

    if (rc < 0)
        fail_msg("%s: %s", info->path, why);
    kit_load(info->path, info->meta.step); /* in these tests the content follows from the step */
    ++*n;
}

/* Every visible checkpoint is complete, and there is one. */
static void check_folder(const char *folder)
{
    struct err err;
    int n = 0;

    if (ckpt_each(folder, count_good, &n, &err) < 0)
        fail_msg("%s", err.text);
    assert_true(n > 0);
}

static void on_event_check(void *arg, const struct ckpt_event *e)
{
    struct story *s = arg;

    on_event(arg, e);
    if (fault_fired()) /* else it could hit what the check itself does */
        check_folder(s->folder);
}

/* The n-th passage of any fault point fails, for every n, while step 2 is saved over step 1. */
static void whatever_fails_the_folder_holds_complete_checkpoints(void **state)
{
    uint64_t n = 1;
    bool fired = true;

    (void)state;
    for (; fired; n++) {
        char *folder = kit_folder(), spec[32];
        struct story story = { .text = "", .folder = folder };
        struct ckpt_writer_opts opts = kit_opts(folder);
        struct ckpt_meta two = kit_meta(2);
        struct ckpt_info info;
        struct ckpt_writer *w;

        kit_save(folder, 1, 1);
        opts.max_to_keep = 1;
        opts.on_event = on_event_check;
        opts.arg = &story;
        w = kit_open(&opts);
        snprintf(spec, sizeof(spec), "*@%d", (int)n);
        assert_int_equal(fault_arm(spec, NULL), 0);
        kit_write(w, &two, 2);
        kit_flush(w); /* tried again if it failed */
        fired = fault_fired();
        assert_int_equal(fault_arm(NULL, NULL), 0);
        ckpt_writer_close(w);
        if (!fired)
            assert_string_equal(story.text, "written 2, removed 1");
        assert_int_equal(kit_newest(folder, &info), 2);
        check_folder(folder);
        ckpt_writer_close(kit_open(&opts));
        assert_int_equal(kit_count(folder, "."), 0);
        kit_remove(folder);
    }
    assert_true(n > 20); /* it was a whole save with all its points */
}

/* In a process of its own: killed at the n-th passage. true: it was. */
static bool killed_at(const char *folder, uint64_t n, const struct ckpt_meta *meta, uint64_t seed,
                      bool exchange)
{
    struct ckpt_writer_opts opts = kit_opts(folder);
    struct ckpt_writer *w;
    char spec[64];
    int status;
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        uint8_t buffer[KIT_STATE_BYTES];

        alarm(20);
        opts.max_to_keep = 1;
        snprintf(spec, sizeof(spec), "*=kill@%d%s", (int)n,
                 exchange ? "" : ",ckpt.exchange@1+");
        kit_fill(buffer, seed);
        if (fault_arm(spec, NULL) < 0 || ckpt_writer_open(&opts, &w, NULL) < 0 ||
            ckpt_write(w, meta, buffer, NULL) < 0 || ckpt_flush(w, 20000, NULL) < 0)
            _exit(1);
        ckpt_writer_close(w);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true((WIFEXITED(status) && WEXITSTATUS(status) == 0) ||
                (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
    return WIFSIGNALED(status);
}

static void killed_anywhere_a_complete_checkpoint_is_left(void **state)
{
    uint64_t n = 1;
    bool killed = true;

    (void)state;
    for (; killed; n++) {
        char *folder = kit_folder();
        struct ckpt_writer_opts opts = kit_opts(folder);
        struct ckpt_meta two = kit_meta(2);
        struct ckpt_info info;

        kit_save(folder, 1, 1);
        killed = killed_at(folder, n, &two, 2, true);
        check_folder(folder);
        ckpt_writer_close(kit_open(&opts)); /* the next one cleans up */
        assert_int_equal(kit_count(folder, "."), 0);
        check_folder(folder);
        assert_in_range(kit_newest(folder, &info), 1, 2);
        kit_remove(folder);
    }
    assert_true(n > 20);
}

/* The same while a checkpoint of another run is replaced: old or new, never none. On a file system
 * that cannot exchange names the old one may lie aside until the next writer comes. */
static void killed_while_replacing_the_old_or_the_new_one_is_left(void **state)
{
    uint64_t n;
    bool killed;

    (void)state;
    for (int exchange = 0; exchange < 2; exchange++) {
        killed = true;
        for (n = 1; killed; n++) {
            char *folder = kit_folder();
            struct ckpt_writer_opts opts = kit_opts(folder);
            struct ckpt_meta other = kit_meta(1);
            struct ckpt_info info;

            kit_save(folder, 1, 1);
            strcpy(other.job_digest, "another");
            killed = killed_at(folder, n, &other, 2, exchange);
            if (exchange)
                assert_int_equal(kit_newest(folder, &info), 1);
            ckpt_writer_close(kit_open(&opts));
            assert_int_equal(kit_count(folder, "."), 0);
            assert_int_equal(kit_newest(folder, &info), 1);
            kit_load(info.path, strcmp(info.meta.job_digest, "another") == 0 ? 2 : 1);
            if (!killed)
                assert_string_equal(info.meta.job_digest, "another");
            kit_remove(folder);
        }
        assert_true(n > 20);
    }
}

/* ---- when the right to publish moves ---- */

/* What may_publish() answers, from the n-th time it is asked (counted from 1). */
struct judge {
    struct story story; /* the events, in the same place as for on_event() */
    int asked, no_from, code;
    int hold_at;     /* this question is answered when `is_free` is set */
    bool is_held, is_free;
};

static void nap(long ms)
{
    nanosleep(&(struct timespec){ .tv_nsec = ms * 1000000 }, NULL);
}

static int judge(void *arg, struct err *err)
{
    struct judge *j = arg;

    int asked = __atomic_add_fetch(&j->asked, 1, __ATOMIC_SEQ_CST);

    __atomic_store_n(&j->is_held, asked == j->hold_at, __ATOMIC_SEQ_CST);
    while (asked == j->hold_at && !__atomic_load_n(&j->is_free, __ATOMIC_SEQ_CST))
        nap(1);
    return j->no_from > 0 && asked >= j->no_from ? err_set(err, j->code, "lease 2: not ours") : 0;
}

static struct ckpt_writer_opts judged(const char *folder, struct judge *j)
{
    struct ckpt_writer_opts opts = kit_opts(folder);

    opts.on_event = on_event;
    opts.may_publish = judge;
    opts.arg = j;
    return opts;
}

/* Asked: by the thread at its start, before it writes, before the rename. */
static void who_is_refused_discards_its_copy_and_leaves_nothing(void **state)
{
    (void)state;
    for (int from = 1; from <= 3; from++) {
        char *folder = kit_folder();
        struct judge j = { .no_from = from, .code = ERR_REFUSED };
        struct ckpt_writer_opts opts = judged(folder, &j);
        struct ckpt_meta one = kit_meta(1), two = kit_meta(2), three = kit_meta(3);
        struct ckpt_writer *w = kit_open(&opts);
        struct err err;

        kit_write(w, &one, 1);
        assert_int_equal(ckpt_flush(w, 20000, &err), ERR_REFUSED);
        assert_text(err.text, "lease 2: not ours");
        kit_write(w, &two, 2);
        assert_int_equal(ckpt_flush(w, 20000, &err), ERR_REFUSED);
        assert_string_equal(j.story.text, "discarded 1, discarded 2 again");
        assert_int_equal(kit_count(folder, ""), 0);
        j.no_from = 0; /* the right comes back */
        kit_write(w, &three, 3);
        kit_flush(w);
        ckpt_writer_close(w);
        assert_int_equal(kit_count(folder, ""), 1);
        kit_remove(folder);
    }
}

static void who_cannot_know_tries_again(void **state)
{
    char *folder = kit_folder();
    struct judge j = { .no_from = 3, .code = ERR_IO };
    struct ckpt_writer_opts opts = judged(folder, &j);
    struct ckpt_meta one = kit_meta(1);
    struct ckpt_writer *w;
    struct err err;

    (void)state;
    opts.retry_ms = 100000;
    w = kit_open(&opts);
    kit_write(w, &one, 1);
    while (ckpt_flush(w, 10, &err) != ERR_IO)
        assert_int_equal(err.code, ERR_TIMEOUT);
    j.no_from = 0;
    kit_flush(w);
    ckpt_writer_close(w);
    assert_non_null(strstr(j.story.text, "failed 1"));
    assert_non_null(strstr(j.story.text, "written 1"));
    kit_remove(folder);
}

static void a_step_that_is_there_already_is_a_success_without_any_right(void **state)
{
    char *folder = kit_folder();
    struct judge j = { .no_from = 1, .code = ERR_REFUSED };
    struct ckpt_writer_opts opts = judged(folder, &j);
    struct ckpt_meta seven = kit_meta(7);
    struct ckpt_writer *w;

    (void)state;
    kit_save(folder, 6, 6);
    kit_save(folder, 7, 7);
    opts.max_to_keep = 1;
    w = kit_open(&opts);
    kit_write(w, &seven, 7);
    kit_flush(w);
    ckpt_writer_close(w);
    assert_string_equal(j.story.text, "written 7");
    assert_int_equal(kit_count(folder, "step-"), 2); /* and nothing is removed without a right */
    kit_remove(folder);
}

static void nothing_is_removed_after_the_right_is_lost(void **state)
{
    char *folder = kit_folder();
    struct judge j = { .no_from = 5, .code = ERR_REFUSED }; /* start, write, rename, first removal */
    struct ckpt_writer_opts opts = judged(folder, &j);
    struct ckpt_meta four = kit_meta(4);
    struct ckpt_writer *w;

    (void)state;
    for (uint64_t step = 1; step <= 3; step++)
        kit_save(folder, step, step);
    opts.max_to_keep = 1;
    w = kit_open(&opts);
    while (__atomic_load_n(&j.asked, __ATOMIC_SEQ_CST) == 0)
        nap(1);
    kit_write(w, &four, 4);
    kit_flush(w);
    ckpt_writer_close(w);
    assert_string_equal(j.story.text, "written 4, removed 1");
    kit_remove(folder);
}

static void what_goes_wrong_is_told_once_for_each_cause(void **state)
{
    char *folder = kit_folder();
    struct story story = { .text = "" };
    struct ckpt_writer_opts opts = kit_opts(folder);
    struct ckpt_meta one = kit_meta(1), two = kit_meta(2);
    struct ckpt_writer *w;

    (void)state;
    opts.on_event = on_event;
    opts.arg = &story;
    w = kit_open(&opts);
    assert_int_equal(fault_arm("ckpt.write@1,ckpt.sync@1,ckpt.verify@1,ckpt.verify@2,ckpt.rename@1",
                               NULL), 0);
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

/* Before it is written, and before the rename. */
static void what_is_abandoned_is_not_published_and_the_writer_goes_on(void **state)
{
    (void)state;
    for (int at = 2; at <= 3; at++) {
        char *folder = kit_folder();
        struct judge j = { .hold_at = at };
        struct ckpt_writer_opts opts = judged(folder, &j);
        struct ckpt_meta one = kit_meta(1), two = kit_meta(2);
        struct ckpt_writer *w = kit_open(&opts);
        struct err err;
        void *staging;

        kit_write(w, &one, 1);
        while (!__atomic_load_n(&j.is_held, __ATOMIC_SEQ_CST))
            nap(1);
        ckpt_abandon(w);
        assert_int_equal(ckpt_begin(w, &staging, NULL), ERR_EXISTS); /* it has not noticed yet */
        __atomic_store_n(&j.is_free, true, __ATOMIC_SEQ_CST);
        assert_int_equal(ckpt_flush(w, 20000, &err), ERR_CANCELED);
        assert_int_equal(kit_count(folder, ""), 0);
        kit_write(w, &two, 2);
        kit_flush(w);
        ckpt_abandon(w); /* of nothing */
        ckpt_writer_close(w);
        assert_string_equal(j.story.text, "discarded 1, written 2");
        kit_remove(folder);
    }
}

static void what_waits_or_is_being_filled_can_be_abandoned_too(void **state)
{
    (void)state;
    for (int replaced = 0; replaced < 2; replaced++) {
        char *folder = kit_folder();
        struct story story = { .text = "" };
        struct ckpt_writer_opts opts = kit_opts(folder);
        struct ckpt_meta one = kit_meta(1), two = kit_meta(2);
        struct ckpt_writer *w;
        struct err err;
        void *staging;

        opts.on_event = on_event;
        opts.arg = &story;
        opts.retry_ms = 100000;
        w = kit_open(&opts);
        assert_int_equal(ckpt_begin(w, &staging, NULL), 0);
        ckpt_abandon(w);
        assert_int_equal(fault_arm("ckpt.write@1+", NULL), 0);
        kit_write(w, &one, 1);
        while (ckpt_flush(w, 5, &err) != ERR_IO) /* until it waits */
            assert_int_equal(err.code, ERR_TIMEOUT);
        assert_int_equal(fault_arm(NULL, NULL), 0);
        story.text[0] = '\0';
        ckpt_abandon(w);
        if (!replaced) {
            assert_int_equal(ckpt_flush(w, 20000, &err), ERR_CANCELED);
            assert_string_equal(story.text, "discarded 1");
        }
        kit_write(w, &two, 2); /* is not taken for the one that was abandoned */
        kit_flush(w);
        ckpt_writer_close(w);
        assert_non_null(strstr(story.text, "written 2"));
        assert_int_equal(kit_count(folder, ""), 1);
        kit_remove(folder);
    }
}

static void closing_does_not_wait_for_storage_that_hangs(void **state)
{
    static const char *const faults[] = { "ckpt.sync=hang", "ckpt.sync=hang", "ckpt.rename=delay:600",
                                          "ckpt.sync=delay:600" };

    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        char *folder = kit_folder();
        struct story story = { .text = "" };
        struct ckpt_writer_opts opts = kit_opts(folder);
        struct ckpt_meta one = kit_meta(1);
        struct ckpt_writer *w;
        uint64_t begin;

        opts.on_event = on_event;
        opts.arg = &story;
        opts.close_ms = 60;
        w = kit_open(&opts);
        assert_int_equal(fault_arm(faults[kind], NULL), 0);
        kit_write(w, &one, 1);
        while (!fault_fired())
            nap(1);
        if (kind == 1)
            ckpt_abandon(w);
        begin = clock_ns();
        ckpt_writer_close(w);
        assert_true(clock_ns() - begin < 5000u * 1000000u);
        assert_string_equal(story.text, kind == 1 ? "" : "failed 1 for good");
        if (kind >= 2) { /* it comes back: in front of the rename, and before that */
            for (int i = 0; i < 2000 && kit_count(folder, ".") > 0; i++)
                nap(10);
            assert_int_equal(kit_count(folder, "step-"), kind == 2);
            assert_int_equal(kit_count(folder, "."), 0);
            assert_string_equal(story.text, "failed 1 for good");
        }
        assert_int_equal(fault_arm(NULL, NULL), 0);
        fs_remove_tree(folder, NULL);
        free(folder);
    }
}

/* A writer in another process is stopped at its n-th passage, for every n; meanwhile another task
 * becomes the one that writes: the same step, or the next. Then the first goes on. Whatever it
 * believes, every folder that can be seen is complete. */
static void a_former_writer_that_goes_on_harms_nothing(void **state)
{
    bool stopped = true;
    uint64_t n;

    (void)state;
    for (n = 1; stopped; n++) {
        char *folder = kit_folder(), spec[32];
        uint64_t step = 2 + n % 2;
        struct ckpt_writer_opts opts = kit_opts(folder);
        struct ckpt_meta two = kit_meta(2);
        struct ckpt_info info;
        int status;
        pid_t pid;

        kit_save(folder, 1, 1);
        pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            struct ckpt_writer *w;

            alarm(20);
            snprintf(spec, sizeof(spec), "*=stop@%d", (int)n);
            if (fault_arm(spec, NULL) < 0 || ckpt_writer_open(&opts, &w, NULL) < 0)
                _exit(1);
            kit_write(w, &two, 2);
            kit_flush(w); /* what was taken away from it is written anew */
            ckpt_writer_close(w);
            _exit(0);
        }
        assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
        stopped = WIFSTOPPED(status);
        kit_save(folder, step, step);
        check_folder(folder);
        if (stopped) {
            assert_int_equal(kill(pid, SIGCONT), 0);
            assert_int_equal(waitpid(pid, &status, 0), pid);
        }
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        check_folder(folder);
        assert_int_equal(kit_newest(folder, &info), step);
        ckpt_writer_close(kit_open(&opts));
        assert_int_equal(kit_count(folder, "."), 0);
        kit_remove(folder);
    }
    assert_true(n > 20);
}

/* ---- with a lease ---- */

static void on_lease(void *arg, const struct lease_state *s)
{
    __atomic_store_n((uint64_t *)arg, s->is_mine ? s->token : 0, __ATOMIC_SEQ_CST);
}

static int may_by_lease(void *arg, struct err *err)
{
    return lease_check(arg, err);
}

static void of_two_tasks_the_one_with_the_lease_writes(void **state)
{
    char *folder = kit_folder(), *leases = fs_join(folder, "leases");
    struct ckpt_writer_opts opts = kit_opts(folder);
    struct ckpt_writer *w[2];
    struct lease *l[2];
    uint64_t mine[2] = { 0, 0 };
    struct ckpt_info info;
    struct err err;

    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        struct lease_opts o = { .directory = leases, .rank = i, .name = "a task",
                                .incarnation = 100 + i, .hold_ms = 20000, .watch_ms = 40000,
                                .on_change = on_lease, .arg = &mine[i] };

        assert_int_equal(lease_open(&o, &l[i], &err), 0);
        opts.may_publish = may_by_lease;
        opts.arg = l[i];
        w[i] = kit_open(&opts);
    }
    for (uint64_t step = 1; step <= 6; step++) { /* the lease goes to and fro */
        struct ckpt_meta meta = kit_meta(step);
        uint32_t holder = (uint32_t)step % 2;

        lease_take(l[holder], step - 1, &holder, 1);
        while (__atomic_load_n(&mine[holder], __ATOMIC_SEQ_CST) != step)
            nap(1);
        kit_write(w[1 - holder], &meta, step);
        assert_int_equal(ckpt_flush(w[1 - holder], 20000, &err), ERR_REFUSED);
        kit_write(w[holder], &meta, step);
        kit_flush(w[holder]);
        assert_int_equal(kit_newest(folder, &info), step);
    }
    for (int i = 0; i < 2; i++) {
        ckpt_writer_close(w[i]);
        lease_close(l[i]);
    }
    check_folder(folder);
    free(leases);
    kit_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_saved_checkpoint_comes_back_as_it_was),
        cmocka_unit_test(the_manifest_tells_the_truth),
        cmocka_unit_test(tensors_lie_at_multiples_of_their_element),
        cmocka_unit_test(the_newest_are_kept),
        cmocka_unit_test(all_are_kept_if_no_limit_is_set_and_the_new_one_in_any_case),
        cmocka_unit_test(the_same_checkpoint_is_not_written_twice),
        cmocka_unit_test(anything_else_of_that_name_is_replaced),
        cmocka_unit_test(what_dead_writers_left_is_removed_and_what_they_moved_aside_comes_back),
        cmocka_unit_test(what_is_cleaned_is_gone_under_its_name_before_anything_in_it_is_removed),
        cmocka_unit_test(a_busy_writer_says_so_or_is_waited_for),
        cmocka_unit_test(a_state_filled_in_parts_is_the_same),
        cmocka_unit_test(a_failure_is_tried_again_and_a_newer_state_goes_first),
        cmocka_unit_test(closing_gives_up_for_good_and_says_so),
        cmocka_unit_test(a_full_disk_is_told_with_what_was_needed),
        cmocka_unit_test(names_that_cannot_be_saved_are_refused_at_once),
        cmocka_unit_test(whatever_fails_the_folder_holds_complete_checkpoints),
        cmocka_unit_test(killed_anywhere_a_complete_checkpoint_is_left),
        cmocka_unit_test(killed_while_replacing_the_old_or_the_new_one_is_left),
        cmocka_unit_test(who_is_refused_discards_its_copy_and_leaves_nothing),
        cmocka_unit_test(who_cannot_know_tries_again),
        cmocka_unit_test(a_step_that_is_there_already_is_a_success_without_any_right),
        cmocka_unit_test(nothing_is_removed_after_the_right_is_lost),
        cmocka_unit_test(what_goes_wrong_is_told_once_for_each_cause),
        cmocka_unit_test(what_is_abandoned_is_not_published_and_the_writer_goes_on),
        cmocka_unit_test(what_waits_or_is_being_filled_can_be_abandoned_too),
        cmocka_unit_test(closing_does_not_wait_for_storage_that_hangs),
        cmocka_unit_test(a_former_writer_that_goes_on_harms_nothing),
        cmocka_unit_test(of_two_tasks_the_one_with_the_lease_writes),
    };

    return cmocka_run_group_tests_name("ckpt/writer", tests, NULL, NULL);
}
