/* ckpt_peek(): the newest checkpoint by its manifest only. */
#include "ckpt/kit.h"

static void damage_file(const char *folder, uint64_t step, const char *file)
{
    char *path = kit_path(folder, step, file);

    assert_int_equal(truncate(path, 5), 0);
    free(path);
}

static void peek_finds_the_newest_with_valid_manifest_and_sizes(void **state)
{
    char *folder = kit_folder(), *path = kit_path(folder, 20, NULL);
    struct ckpt_info info, verified;
    struct err err;

    (void)state;
    kit_save(folder, 10, 1);
    kit_save(folder, 20, 2);
    kit_save(folder, 30, 3);
    kit_save(folder, 100, 4);
    assert_int_equal(ckpt_peek(folder, NULL, &info, &err), 0);
    assert_int_equal(info.meta.step, 100);
    damage_file(folder, 100, "manifest.json");
    damage_file(folder, 30, "optimizer.safetensors");
    assert_int_equal(ckpt_peek(folder, NULL, &info, &err), 0);
    assert_string_equal(info.path, path);
    assert_int_equal(ckpt_verify(path, NULL, NULL, &verified, &err), 0);
    assert_memory_equal(&info.meta, &verified.meta, sizeof(info.meta));
    assert_int_equal(info.bytes, verified.bytes);
    assert_int_equal(ckpt_peek(folder, info.meta.model_digest, &info, &err), 0);
    assert_int_equal(ckpt_peek(folder, "another", &info, &err), ERR_NOENT);
    damage_file(folder, 20, "model.safetensors");
    damage_file(folder, 10, "model.safetensors");
    assert_int_equal(ckpt_peek(folder, NULL, &info, &err), ERR_NOENT);
    assert_text(err.text, "contains no usable checkpoint");
    free(path);
    kit_remove(folder);
}

static void peek_without_a_checkpoint_reports_noent(void **state)
{
    char *folder = kit_folder();
    struct ckpt_info info;
    struct err err;

    (void)state;
    assert_int_equal(ckpt_peek(folder, NULL, &info, &err), ERR_NOENT);
    assert_int_equal(ckpt_peek("/nonexistent/checkpoints", NULL, &info, &err), ERR_NOENT);
    kit_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(peek_finds_the_newest_with_valid_manifest_and_sizes),
        cmocka_unit_test(peek_without_a_checkpoint_reports_noent),
    };

    return cmocka_run_group_tests_name("ckpt/peek", tests, NULL, NULL);
}
