#include "ckpt/kit.h"

#include <fcntl.h>

#include <xxhash.h>

#include "base/fault.h"

static void flip_bit(const char *path, size_t bit)
{
    int fd = open(path, O_RDWR);
    uint8_t byte;

    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, (off_t)(bit / 8)), 1);
    byte ^= (uint8_t)(1 << bit % 8);
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)(bit / 8)), 1);
    close(fd);
}

static size_t size_of(const char *path)
{
    struct stat st;

    assert_int_equal(stat(path, &st), 0);
    return (size_t)st.st_size;
}

static void verify_detects_every_flipped_bit(void **state)
{
    static const char *const files[] = { "model.safetensors", "optimizer.safetensors",
                                         "manifest.json" };
    char *folder = kit_folder(), *path = kit_path(folder, 3, NULL);
    uint8_t buffer[KIT_STATE_BYTES];

    (void)state;
    kit_save(folder, 3, 3);
    for (int f = 0; f < 3; f++) {
        char *file = kit_path(folder, 3, files[f]);
        size_t bits = size_of(file) * 8;

        for (size_t bit = 0; bit < bits; bit += f == 2 ? 1 : 3) { /* covers each bit of a byte */
            struct ckpt_info info;
            struct err err;

            flip_bit(file, bit);
            if (ckpt_verify(path, NULL, NULL, &info, &err) == 0)
                fail_msg("bit %zu of %s", bit, files[f]);
            assert_text(err.text, f == 2 ? "manifest.json" : files[f]);
            if (bit % 41 == 0)
                assert_true(
                    ckpt_load(path, kit_model, KIT_MODEL, kit_slots, KIT_SLOTS, buffer, &err) < 0);
            flip_bit(file, bit);
        }
        free(file);
    }
    kit_load(path, 3);
    free(path);
    kit_remove(folder);
}

static void verify_of_a_missing_truncated_or_extended_file_fails(void **state)
{
    static const char *const files[] = { "model.safetensors", "optimizer.safetensors" };
    char *folder = kit_folder(), *path = kit_path(folder, 3, NULL);
    uint8_t buffer[KIT_STATE_BYTES];
    struct ckpt_info info;
    struct err err;

    (void)state;
    for (int f = 0; f < 2; f++)
        for (int kind = 0; kind < 3; kind++) {
            char *file;

            kit_save(folder, 3, 3);
            file = kit_path(folder, 3, files[f]);
            if (kind == 0)
                assert_int_equal(unlink(file), 0);
            else
                assert_int_equal(truncate(file, (off_t)size_of(file) + (kind == 1 ? -1 : 1)), 0);
            assert_int_equal(ckpt_verify(path, NULL, NULL, &info, &err), ERR_CORRUPT);
            assert_text(err.text, files[f]);
            assert_int_equal(
                ckpt_load(path, kit_model, KIT_MODEL, kit_slots, KIT_SLOTS, buffer, &err),
                ERR_CORRUPT);
            free(file);
        }
    assert_int_equal(fs_remove_tree(path, NULL), 0);
    assert_int_equal(ckpt_verify(path, NULL, NULL, &info, &err), ERR_NOENT);
    assert_int_equal(mkdir(path, 0777), 0);
    assert_int_equal(ckpt_verify(path, NULL, NULL, &info, &err), ERR_NOENT);
    assert_text(err.text, "manifest.json");
    free(path);
    kit_remove(folder);
}

static void verify_detects_a_wrong_step_in_the_name_and_accepts_other_names(void **state)
{
    char *folder = kit_folder(), *best = fs_join(folder, "best");
    char *three = kit_path(folder, 3, NULL), *four = kit_path(folder, 4, NULL);
    struct ckpt_info info;
    struct err err;

    (void)state;
    kit_save(folder, 3, 3);
    assert_int_equal(rename(three, four), 0);
    assert_int_equal(ckpt_verify(four, NULL, NULL, &info, &err), ERR_CORRUPT);
    assert_text(err.text, "contains step 3");
    assert_int_equal(rename(four, best), 0);
    assert_int_equal(ckpt_verify(best, NULL, NULL, &info, &err), 0);
    assert_int_equal(info.meta.step, 3);
    free(three);
    free(four);
    free(best);
    kit_remove(folder);
}

/* Edits the manifest and corrects its checksum. */
static void edit_manifest(const char *folder, uint64_t step, const char *from, const char *to)
{
    char *path = kit_path(folder, step, "manifest.json"), *at, *sum;
    struct buf old = kit_read(path), text = { 0 };
    XXH128_hash_t hash;

    at = strstr(old.data, from);
    sum = strstr(old.data, "  \"checksum\"");
    assert_true(at != NULL && sum != NULL);
    buf_add(&text, old.data, (size_t)(at - old.data));
    buf_str(&text, to);
    buf_add(&text, at + strlen(from), (size_t)(sum - at) - strlen(from));
    hash = XXH3_128bits(text.data, text.len);
    buf_printf(&text, "  \"checksum\": \"%016llx%016llx\"\n}\n", (unsigned long long)hash.high64,
               (unsigned long long)hash.low64);
    kit_write_file(path, text.data, text.len);
    buf_fini(&text);
    buf_fini(&old);
    free(path);
}

static void manifest_invalid_is_refused_with_the_position(void **state)
{
    static const struct {
        const char *from, *to;
        int code;
        const char *text;
    } cases[] = {
        { "\"format\": 1", "\"format\": 4", ERR_UNSUPPORTED, "format 4, this version reads 1 to 3" },
        { "\"format\": 1", "\"format\": \"1\"", ERR_CORRUPT, "/format" },
        { "\"format\": 1", "\"fmt\": 1", ERR_CORRUPT, "\"format\" is missing" },
        { "\"step\": 3", "\"step\": -3", ERR_CORRUPT, "/step: expected an integer" },
        { "\"step\": 3", "\"step\": 3.5", ERR_CORRUPT, "3.5" },
        { "\"lanes\": 4", "\"lanes\": 4294967296", ERR_CORRUPT, "/lanes" },
        { "\"lanes\": 4,", "", ERR_CORRUPT, "\"lanes\" is missing" },
        { "\"j0b\"", "5", ERR_CORRUPT, "/job_digest" },
        { "\"j0b\"", "\"jjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjj\"",
          ERR_CORRUPT, "/job_digest" },
        { "\"complete\": false", "\"complete\": 0", ERR_CORRUPT, "true or false" },
        { "\"model.safetensors\"", "\"../model.safetensors\"", ERR_CORRUPT, "plain file name" },
        { "\"model.safetensors\"", "\".hidden\"", ERR_CORRUPT, "plain file name" },
        { "\"model.safetensors\"", "\"other\"", ERR_CORRUPT, "\"model.safetensors\" is missing" },
        { "\"xxh3_128\": \"", "\"xxh3_128\": \"0", ERR_CORRUPT, "32 hexadecimal" },
        { "\"files\": {", "\"files\": [], \"x\": {", ERR_CORRUPT, "/files" },
        { "\"files\": {", "\"fils\": {", ERR_CORRUPT, "\"files\" is missing" },
        { "\"lanes\": 4,", "\"lanes\": 4,,", ERR_CORRUPT, "manifest.json:7:" },
    };
    char *folder = kit_folder(), *path = kit_path(folder, 3, NULL);

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct ckpt_info info;
        struct err err;

        kit_save(folder, 3, 3);
        edit_manifest(folder, 3, cases[i].from, cases[i].to);
        if (ckpt_verify(path, NULL, NULL, &info, &err) != cases[i].code ||
            err.code != cases[i].code)
            fail_msg("case %zu: %s", i, err.text);
        assert_text(err.text, cases[i].text);
        assert_text(err.text, path);
        assert_int_equal(fs_remove_tree(path, NULL), 0);
    }
    free(path);
    kit_remove(folder);
}

static void manifest_with_unknown_members_and_files_is_accepted(void **state)
{
    char *folder = kit_folder(), *path = kit_path(folder, 3, NULL);
    char *more = kit_path(folder, 3, "more.txt");
    struct ckpt_info info;
    struct err err;

    (void)state;
    kit_save(folder, 3, 3);
    kit_write_file(more, "hello", 5);
    /* XXH3-128 of "hello" */
    edit_manifest(folder, 3, "\"files\": {",
                  "\"colour\": [1, {\"a\": null}], \"files\": {\"more.txt\": {\"bytes\": 5, "
                  "\"xxh3_128\": \"b5e9c1ad071b3e7fc779cfaa5e523818\", \"kind\": \"text\"},");
    if (ckpt_verify(path, NULL, NULL, &info, &err) < 0)
        fail_msg("%s", err.text);
    kit_load(path, 3);
    kit_write_file(more, "hellO", 5); /* a listed file is verified */
    assert_int_equal(ckpt_verify(path, NULL, NULL, &info, &err), ERR_CORRUPT);
    assert_text(err.text, "more.txt");
    free(more);
    free(path);
    kit_remove(folder);
}

struct skipped {
    char text[8192];
    uint64_t done, all;
};

static void on_skip(void *arg, const char *path, const char *why)
{
    struct skipped *s = arg;
    size_t n = strlen(s->text);

    snprintf(s->text + n, sizeof(s->text) - n, "[%s: %s]", strrchr(path, '/') + 1, why);
}

static void on_progress(void *arg, uint64_t done, uint64_t all)
{
    struct skipped *s = arg;

    assert_true(done <= all);
    s->done = done;
    s->all = all;
}

static void newest_that_verifies_is_found_and_the_others_are_reported(void **state)
{
    char *folder = kit_folder(), *file;
    struct skipped s = { .text = "" };
    struct ckpt_info info;
    struct err err;

    (void)state;
    for (uint64_t step = 1; step <= 5; step++)
        kit_save(folder, step, step);
    flip_bit(file = kit_path(folder, 5, "model.safetensors"), 3000);
    free(file);
    assert_int_equal(unlink(file = kit_path(folder, 4, "manifest.json")), 0);
    free(file);
    assert_int_equal(ckpt_newest(folder, "m0del", on_skip, on_progress, &s, &info, &err), 0);
    assert_int_equal(info.meta.step, 3);
    assert_true(info.bytes > 300);
    assert_int_equal(s.done, s.all);
    assert_int_equal(s.all, info.bytes);
    assert_text(s.text, "[step-00000005: ");
    assert_text(s.text, "model.safetensors': checksum");
    assert_text(s.text, "[step-00000004: ");
    kit_load(info.path, 3);
    for (uint64_t step = 1; step <= 3; step++) {
        flip_bit(file = kit_path(folder, step, "model.safetensors"), 3000);
        free(file);
    }
    assert_int_equal(ckpt_newest(folder, NULL, NULL, NULL, NULL, &info, &err), ERR_CORRUPT);
    assert_text(err.text, "contains 5 checkpoints, none of them is usable; step-00000005: ");
    assert_text(err.text, "; step-00000004: ");
    kit_remove(folder);
}

static void newest_with_a_checkpoint_of_another_model_anywhere_is_refused(void **state)
{
    char *folder = kit_folder();
    struct ckpt_info info;
    struct err err;

    (void)state;
    for (uint64_t step = 1; step <= 3; step++)
        kit_save(folder, step, step);
    edit_manifest(folder, 1, "m0del", "m1del");
    assert_int_equal(ckpt_newest(folder, "m0del", NULL, NULL, NULL, &info, &err), ERR_INPUT);
    assert_text(err.text, "step-00000001: the checkpoint is of another model");
    assert_text(err.text, "expected model digest m0del, found m1del");
    assert_int_equal(ckpt_newest(folder, NULL, NULL, NULL, NULL, &info, &err), 0);
    edit_manifest(folder, 1, "  \"model_digest\": \"m1del\",\n", ""); /* an older manifest */
    assert_int_equal(ckpt_newest(folder, "m0del", NULL, NULL, NULL, &info, &err), 0);
    assert_int_equal(info.meta.step, 3);
    kit_remove(folder);
}

static void newest_without_a_checkpoint_reports_noent(void **state)
{
    char *folder = kit_folder(), *other;
    struct ckpt_info info;
    struct err err;

    (void)state;
    assert_int_equal(ckpt_newest(folder, NULL, NULL, NULL, NULL, &info, &err), ERR_NOENT);
    assert_text(err.text, "0 checkpoints");
    /* Similar names are not checkpoints. */
    assert_int_equal(mkdir(other = fs_join(folder, "step-1"), 0777), 0);
    free(other);
    assert_int_equal(mkdir(other = fs_join(folder, "step-000000001"), 0777), 0);
    free(other);
    assert_int_equal(mkdir(other = fs_join(folder, ".step-00000001.tmp-1"), 0777), 0);
    free(other);
    assert_int_equal(ckpt_newest(folder, NULL, NULL, NULL, NULL, &info, &err), ERR_NOENT);
    assert_text(err.text, "0 checkpoints");
    kit_remove(folder);
    assert_int_equal(ckpt_newest("/nowhere", NULL, NULL, NULL, NULL, &info, &err), ERR_NOENT);
    assert_int_equal(ckpt_newest("/nowhere", NULL, NULL, NULL, NULL, &info, NULL), ERR_NOENT);
}

/* Opening a FIFO may wait for its writer, and a directory has a size. */
static void verify_of_a_fifo_or_directory_fails_without_waiting(void **state)
{
    static const char *const files[] = { "manifest.json", "model.safetensors" };

    (void)state;
    for (int i = 0; i < 4; i++) {
        char *folder = kit_folder(), *path = kit_path(folder, 3, NULL), *file;
        struct ckpt_info info;
        struct err err;

        kit_save(folder, 3, 3);
        file = fs_join(path, files[i % 2]);
        assert_int_equal(unlink(file), 0);
        assert_int_equal(i < 2 ? mkfifo(file, 0666) : mkdir(file, 0777), 0);
        alarm(WAIT_GUARD_S);
        assert_int_equal(ckpt_verify(path, NULL, NULL, &info, &err), ERR_CORRUPT);
        assert_int_equal(ckpt_peek(folder, NULL, &info, NULL), ERR_NOENT);
        alarm(0);
        assert_text(err.text, files[i % 2]);
        assert_text(err.text, "is not a regular file");
        free(file);
        free(path);
        kit_remove(folder);
    }
}

/* An older checkpoint is used, if there is one. Otherwise an unreadable checkpoint must not be
 * reported as absent. */
static void newest_on_failing_storage_reports_io_not_noent(void **state)
{
    char *folder = kit_folder();
    struct ckpt_info info;
    struct err err;

    (void)state;
    kit_save(folder, 1, 1);
    kit_save(folder, 2, 2);
    assert_int_equal(fault_arm("ckpt.read@1", NULL), 0);
    assert_int_equal(kit_newest(folder, &info), 1);
    assert_int_equal(fault_arm("ckpt.read@1+", NULL), 0);
    assert_int_equal(ckpt_newest(folder, NULL, NULL, NULL, NULL, &info, &err), ERR_IO);
    assert_text(err.text, "contains 2 checkpoints: none of them is usable");
    assert_text(err.text, "step-00000002/manifest.json': Input/output error");
    assert_int_equal(fault_arm(NULL, NULL), 0);
    assert_int_equal(kit_newest(folder, &info), 2);
    kit_remove(folder);
}

static void steps_with_more_than_eight_digits_are_sorted(void **state)
{
    char *folder = kit_folder();
    struct ckpt_info info;

    (void)state;
    kit_save(folder, 99999999, 1);
    kit_save(folder, 100000000, 2);
    kit_save(folder, 2, 3);
    assert_int_equal(kit_newest(folder, &info), 100000000);
    assert_non_null(strstr(info.path, "/step-100000000"));
    kit_load(info.path, 2);
    kit_remove(folder);
}

static void append_each(void *arg, const struct ckpt_info *info, int rc, const char *why)
{
    char *text = arg;
    size_t n = strlen(text);

    snprintf(text + n, 1000 - n, "%s %s%s;", strrchr(info->path, '/') + 1,
             rc == 0 ? "good" : err_name(rc), rc < 0 && why[0] == '\0' ? " without a reason" : "");
}

static void each_visits_checkpoints_from_oldest_to_newest(void **state)
{
    char *folder = kit_folder(), *file, text[1000] = "";
    struct err err;

    (void)state;
    kit_save(folder, 30, 1);
    kit_save(folder, 10, 1);
    kit_save(folder, 20, 1);
    flip_bit(file = kit_path(folder, 20, "optimizer.safetensors"), 1000);
    free(file);
    assert_int_equal(mkdir(file = kit_path(folder, 40, NULL), 0777), 0);
    free(file);
    assert_int_equal(ckpt_each(folder, append_each, text, &err), 0);
    assert_string_equal(text, "step-00000010 good;step-00000020 ERR_CORRUPT;step-00000030 good;"
                              "step-00000040 ERR_NOENT;");
    assert_int_equal(ckpt_each("/nowhere", append_each, text, &err), ERR_NOENT);
    kit_remove(folder);
}

static void load_of_a_different_model_is_refused_with_the_tensor(void **state)
{
    static const struct ckpt_tensor renamed[] = {
        { "conv.weihgt", TENSOR_F32, { 2, { 3, 5 } }, 128, 0, 0 },
        { "conv.bias", TENSOR_F32, { 1, { 3 } }, 64, 0, 0 },
        { "norm.count", TENSOR_I64, { 0, { 0 } }, 0, 0, 0 },
        { "mask \"\xc3\xa9\"", TENSOR_U8, { 1, { 7 } }, 8, 0, 0 },
        { "nothing", TENSOR_F32, { 2, { 0, 4 } }, 0, 0, 0 },
    };
    struct ckpt_tensor changed[KIT_MODEL + 1];
    char *folder = kit_folder(), *path = kit_path(folder, 3, NULL);
    uint8_t buffer[KIT_STATE_BYTES];
    struct err err;

    (void)state;
    kit_save(folder, 3, 3);
    assert_int_equal(ckpt_load(path, renamed, 5, kit_slots, 2, buffer, &err), ERR_INPUT);
    assert_text(err.text, "tensor 'conv.weight' is in the file, but not in this model");
    assert_text(err.text, "(which has 'conv.weihgt')");
    assert_text(err.text, "model.safetensors");
    memcpy(changed, kit_model, sizeof(kit_model));
    changed[0].shape.dim[1] = 6;
    assert_int_equal(ckpt_load(path, changed, 5, kit_slots, 2, buffer, &err), ERR_INPUT);
    assert_text(err.text, "'conv.weight' is float32 [3, 5], expected float32 [3, 6]");
    changed[0] = kit_model[0];
    changed[2].dtype = TENSOR_U64;
    assert_int_equal(ckpt_load(path, changed, 5, kit_slots, 2, buffer, &err), ERR_INPUT);
    assert_text(err.text, "'norm.count' is int64 [], expected uint64 []");
    changed[2] = kit_model[2];
    changed[5] = (struct ckpt_tensor){ "new", TENSOR_F32, { 1, { 2 } }, 64, 0, 0 };
    assert_int_equal(ckpt_load(path, changed, 6, kit_slots, 2, buffer, &err), ERR_INPUT);
    assert_text(err.text, "tensor 'new' [2] is not in the file, which contains 5 of 6");
    assert_int_equal(ckpt_load(path, kit_model, 5, kit_slots, 1, buffer, &err), ERR_INPUT);
    assert_text(err.text, "'conv.bias/momentum'");
    assert_text(err.text, "optimizer.safetensors");
    free(path);
    kit_remove(folder);
}

/* A file of another program may have its data in another order. */
static void load_of_tensors_in_another_order_succeeds(void **state)
{
    static const char json[] = "{\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]},"
                               "\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}  ";
    static const struct ckpt_tensor tensors[] = { { "b", TENSOR_F32, { 1, { 2 } }, 0, 0, 0 },
                                                  { "a", TENSOR_F32, { 0, { 0 } }, 8, 0, 0 } };
    static const float data[] = { 1, 2, 3 };
    char *folder = kit_folder(), *path = kit_path(folder, 3, "model.safetensors"), edit[200];
    struct buf file = { 0 }, text;
    XXH128_hash_t hash;
    float out[KIT_STATE_BYTES / 4];
    struct err err;
    char *at;

    (void)state;
    kit_save(folder, 3, 3);
    buf_add(&file, &(uint8_t){ sizeof(json) - 1 }, 1);
    buf_add(&file, "\0\0\0\0\0\0\0", 7);
    buf_str(&file, json);
    buf_add(&file, data, sizeof(data));
    kit_write_file(path, file.data, file.len);
    hash = XXH3_128bits(file.data, file.len);
    free(path);
    path = kit_path(folder, 3, "manifest.json");
    text = kit_read(path);
    at = strstr(text.data, "\"model.safetensors\": {");
    at[strcspn(at, "}") + 1] = '\0';
    snprintf(edit, sizeof(edit),
             "\"model.safetensors\": {\"bytes\": %zu, \"xxh3_128\": \"%016llx%016llx\"}", file.len,
             (unsigned long long)hash.high64, (unsigned long long)hash.low64);
    edit_manifest(folder, 3, at, edit);
    free(path);
    path = kit_path(folder, 3, NULL);
    if (ckpt_load(path, tensors, 2, kit_slots, 2, out, &err) < 0)
        fail_msg("%s", err.text);
    assert_true(out[0] == 2 && out[1] == 3 && out[2] == 1);
    buf_fini(&text);
    buf_fini(&file);
    free(path);
    kit_remove(folder);
}

static void peek_reads_no_tensors(void **state)
{
    char *folder = kit_folder(), *path;
    struct ckpt_writer_opts opts = kit_opts(folder);
    struct ckpt_meta last = kit_meta(9);
    struct ckpt_writer *w;
    struct ckpt_info info;
    struct buf data;

    (void)state;
    assert_int_equal(ckpt_peek(folder, NULL, &info, NULL), ERR_NOENT);
    kit_save(folder, 7, 7);
    last.complete = true;
    w = kit_open(&opts);
    kit_write(w, &last, 9);
    kit_flush(w);
    ckpt_writer_close(w);
    assert_int_equal(ckpt_peek(folder, "m0del", &info, NULL), 0);
    kit_same_meta(&info.meta, &last);
    assert_text(info.path, "step-00000009");
    assert_true(info.bytes > KIT_STATE_BYTES / 2);
    assert_int_equal(ckpt_peek(folder, "another", &info, NULL), ERR_NOENT);

    path = kit_path(folder, 9, "model.safetensors"); /* damage to a tensor is not detected ... */
    data = kit_read(path);
    data.data[data.len - 1] ^= 1;
    kit_write_file(path, data.data, data.len);
    assert_int_equal(ckpt_peek(folder, "m0del", &info, NULL), 0);
    assert_int_equal(info.meta.step, 9);
    kit_write_file(path, data.data, data.len - 1); /* ... but a wrong size is */
    assert_int_equal(ckpt_peek(folder, "m0del", &info, NULL), 0);
    assert_int_equal(info.meta.step, 7);
    assert_false(info.meta.complete);
    free(path);
    buf_fini(&data);
    path = kit_path(folder, 7, "manifest.json");
    kit_write_file(path, "{}", 2);
    assert_int_equal(ckpt_peek(folder, NULL, &info, NULL), ERR_NOENT);
    free(path);
    kit_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(verify_detects_every_flipped_bit),
        cmocka_unit_test(verify_of_a_missing_truncated_or_extended_file_fails),
        cmocka_unit_test(
            verify_detects_a_wrong_step_in_the_name_and_accepts_other_names),
        cmocka_unit_test(manifest_invalid_is_refused_with_the_position),
        cmocka_unit_test(manifest_with_unknown_members_and_files_is_accepted),
        cmocka_unit_test(newest_that_verifies_is_found_and_the_others_are_reported),
        cmocka_unit_test(newest_with_a_checkpoint_of_another_model_anywhere_is_refused),
        cmocka_unit_test(newest_without_a_checkpoint_reports_noent),
        cmocka_unit_test(verify_of_a_fifo_or_directory_fails_without_waiting),
        cmocka_unit_test(newest_on_failing_storage_reports_io_not_noent),
        cmocka_unit_test(steps_with_more_than_eight_digits_are_sorted),
        cmocka_unit_test(each_visits_checkpoints_from_oldest_to_newest),
        cmocka_unit_test(load_of_a_different_model_is_refused_with_the_tensor),
        cmocka_unit_test(load_of_tensors_in_another_order_succeeds),
        cmocka_unit_test(peek_reads_no_tensors),
    };

    return cmocka_run_group_tests_name("ckpt/read", tests, NULL, NULL);
}
