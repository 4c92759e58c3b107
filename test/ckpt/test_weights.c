/* Weight files of other programs are found, checked and read. Also the export of weights. */
#include "ckpt/kit.h"

#include <fcntl.h>

#include "base/fault.h"
#include "base/mapping.h"
#include "ckpt/export.h"
#include "ckpt/weights.h"

#define ONE "{\"%s\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}"

static void write_bytes(const char *folder, const char *name, const void *bytes, size_t n)
{
    char *path = fs_join(folder, name);

    assert_int_equal(fs_replace(path, bytes, n, NULL), 0);
    free(path);
}

/* Writes a file with one float32 tensor of two elements. */
static void write_one(const char *folder, const char *file, const char *tensor, float a, float b)
{
    const float values[2] = { a, b };
    struct buf out = { 0 };
    char json[256];
    uint64_t n = (uint64_t)snprintf(json, sizeof(json), ONE, tensor);

    buf_add(&out, &n, 8);
    buf_add(&out, json, n);
    buf_add(&out, values, sizeof(values));
    write_bytes(folder, file, out.data, out.len);
    buf_fini(&out);
}

static void write_text(const char *folder, const char *name, const char *text)
{
    write_bytes(folder, name, text, strlen(text));
}

static struct ckpt_weights *opened(const char *folder, const char *name)
{
    char *path = fs_join(folder, name);
    struct ckpt_weights *w = NULL;
    struct err err;

    if (ckpt_weights_open(path, &w, &err) < 0)
        fail_msg("%s", err.text);
    free(path);
    return w;
}

static void refused(const char *folder, const char *name, int code, const char *part)
{
    char *path = fs_join(folder, name);
    struct ckpt_weights *w = NULL;
    struct err err = { 0 };

    assert_int_equal(ckpt_weights_open(path, &w, &err), code);
    assert_null(w);
    assert_text(err.text, part);
    free(path);
}

/* Returns element 0 of a tensor, which need not be aligned. */
static float first(const struct ckpt_weights *w, const char *name)
{
    const struct mapping *m;
    struct tensor t;
    float x;

    assert_true(ckpt_weights_find(w, name, &t, &m));
    memcpy(&x, t.data, sizeof(x));
    assert_int_equal(mapping_check(m, NULL), 0);
    return x;
}

static void weights_single_file_is_found_by_name_and_directory(void **state)
{
    static const char *const names[] = { "model.safetensors", "" };
    char *folder = kit_folder();

    (void)state;
    write_one(folder, "model.safetensors", "a.weight", 1.5f, 2);
    write_one(folder, "optimizer.safetensors", "a.weight/momentum", 9, 9);
    for (int i = 0; i < 2; i++) {
        struct ckpt_weights *w = opened(folder, names[i]);
        const struct mapping *m;
        struct tensor t;
        uint32_t n;

        assert_true(first(w, "a.weight") == 1.5f);
        assert_false(ckpt_weights_find(w, "a.bias", &t, &m));
        assert_string_equal(ckpt_weights_names(w, &n)[0], "a.weight");
        assert_int_equal(n, 1);
        assert_text(ckpt_weights_path(w), "/model.safetensors");
        ckpt_weights_close(w);
    }
    kit_remove(folder);
}

static void weights_directory_with_no_or_several_files_is_refused(void **state)
{
    char *folder = kit_folder();

    (void)state;
    write_text(folder, "pytorch_model.bin", "x");
    refused(folder, "", ERR_INPUT, "safetensors.torch.save_file");
    write_one(folder, "x.safetensors", "a", 1, 2);
    ckpt_weights_close(opened(folder, ""));
    write_one(folder, "y.safetensors", "a", 1, 2);
    refused(folder, "", ERR_INPUT, "has 2 such files");
    refused(folder, "none.safetensors", ERR_NOENT, "none.safetensors");
    kit_remove(folder);
}

static void weights_index_combines_its_files(void **state)
{
    char *folder = kit_folder(), *sub = fs_join(folder, "more");
    struct ckpt_weights *w;
    uint32_t n;

    (void)state;
    assert_int_equal(fs_mkdirs(sub, NULL), 0);
    write_one(folder, "m-1.safetensors", "a", 1, 2);
    write_one(sub, "m-2.safetensors", "b", 3, 4);
    write_one(folder, "other.safetensors", "c", 5, 6);
    write_text(folder, "model.safetensors.index.json",
             "{\"metadata\": {\"total_size\": 16}, \"weight_map\": "
             "{\"a\": \"m-1.safetensors\", \"b\": \"more/m-2.safetensors\"}}");
    w = opened(folder, "");
    assert_true(first(w, "a") == 1 && first(w, "b") == 3);
    (void)ckpt_weights_names(w, &n);
    assert_int_equal(n, 2);
    ckpt_weights_close(w);
    free(sub);
    kit_remove(folder);
}

static void weights_index_outside_its_directory_or_inconsistent_is_refused(void **state)
{
    static const struct {
        const char *map, *part;
        int code;
    } rows[] = {
        { "{\"a\": \"../a.safetensors\"}", "leaves the folder", ERR_INPUT },
        { "{\"a\": \"x/../../a.safetensors\"}", "", ERR_INPUT },
        { "{\"a\": \"/etc/passwd\"}", "expected a path relative to the folder", ERR_INPUT },
        { "{\"a\": \"link.safetensors\"}", "symbolic link", ERR_INPUT },
        { "{\"a\": \"up/a.safetensors\"}", "symbolic link", ERR_INPUT },
        { "{\"a\": \"fifo\"}", "not a regular file", ERR_INPUT },
        { "{\"a\": \"none.safetensors\"}", "none.safetensors", ERR_NOENT },
        { "{\"a\": \"\"}", "/weight_map/a", ERR_INPUT },
        { "{\"a\": 1}", "/weight_map/a", ERR_INPUT },
        { "{\"a\": \"a.safetensors\", \"a\": \"a.safetensors\"}", "a", ERR_INPUT },
        { "{\"a\": \"a.safetensors\", \"z\": \"a.safetensors\"}", "2 tensors", ERR_INPUT },
        { "{\"b\": \"a.safetensors\"}", "'a' is in 'a.safetensors', but not in the index", ERR_INPUT },
        { "{\"a\": \"a.safetensors\", \"b\": \"twin.safetensors\"}", "in another file", ERR_INPUT },
        { "{\"a\": \"b.safetensors\", \"b\": \"a.safetensors\"}", "but the index names", ERR_INPUT },
        { "{}", "weight_map", ERR_INPUT },
        { "[]", "weight_map", ERR_INPUT },
    };
    char *top = kit_folder(), *folder = fs_join(top, "set"), *path, text[512];

    (void)state;
    assert_int_equal(fs_mkdirs(folder, NULL), 0);
    write_one(top, "a.safetensors", "a", 1, 2);
    write_one(folder, "a.safetensors", "a", 1, 2);
    write_one(folder, "b.safetensors", "b", 1, 2);
    write_one(folder, "twin.safetensors", "a", 1, 2);
    path = fs_join(folder, "link.safetensors");
    assert_int_equal(symlink("../a.safetensors", path), 0);
    free(path);
    path = fs_join(folder, "up");
    assert_int_equal(symlink("..", path), 0);
    free(path);
    path = fs_join(folder, "fifo");
    assert_int_equal(mkfifo(path, 0600), 0);
    free(path);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        snprintf(text, sizeof(text), "{\"weight_map\": %s}", rows[i].map);
        write_text(folder, "m.json", text);
        if (strncmp(rows[i].map, "{\"a\": \"x/", 9) == 0)
            refused(folder, "m.json", ERR_NOENT, "x");
        else
            refused(folder, "m.json", rows[i].code, rows[i].part);
    }
    write_text(folder, "m.json", "{}");
    refused(folder, "m.json", ERR_INPUT, "\"weight_map\" is missing");
    free(folder);
    kit_remove(top);
}

static void weights_damaged_header_is_refused_with_the_file(void **state)
{
    static const struct {
        const char *json, *part;
    } rows[] = {
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,9]}}", "data_offsets" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
          "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
          "overlaps another tensor" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", "a gap" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,8]}}",
          "a" },
        { "not json", "expected '{'" },
    };
    char *folder = kit_folder();

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct buf out = { 0 };
        uint64_t n = strlen(rows[i].json);

        buf_add(&out, &n, 8);
        buf_add(&out, rows[i].json, n);
        buf_add(&out, "01234567", 8);
        write_bytes(folder, "m.safetensors", out.data, out.len);
        buf_fini(&out);
        refused(folder, "m.safetensors", ERR_INPUT, rows[i].part);
    }
    write_bytes(folder, "m.safetensors", "\xff\xff\xff\xff\xff\xff\xff\xff{}", 10);
    refused(folder, "m.safetensors", ERR_INPUT, "truncated");
    write_bytes(folder, "m.safetensors", "", 0);
    refused(folder, "m.safetensors", ERR_INPUT, "m.safetensors");
    kit_remove(folder);
}

static void weights_digest_depends_on_the_content_only(void **state)
{
    char *folder = kit_folder(), a[CKPT_WEIGHTS_DIGEST_BYTES], b[CKPT_WEIGHTS_DIGEST_BYTES],
         c[CKPT_WEIGHTS_DIGEST_BYTES];
    struct ckpt_weights *w;

    (void)state;
    write_one(folder, "1.safetensors", "a", 1, 2);
    write_one(folder, "2.safetensors", "a", 1, 2);
    write_one(folder, "3.safetensors", "a", 1, 3);
    w = opened(folder, "1.safetensors");
    assert_int_equal(ckpt_weights_digest(w, a, NULL), 0);
    ckpt_weights_close(w);
    w = opened(folder, "2.safetensors");
    assert_int_equal(ckpt_weights_digest(w, b, NULL), 0);
    ckpt_weights_close(w);
    w = opened(folder, "3.safetensors");
    assert_int_equal(ckpt_weights_digest(w, c, NULL), 0);
    ckpt_weights_close(w);
    assert_int_equal(strlen(a), 32);
    assert_string_equal(a, b);
    assert_string_not_equal(a, c);
    kit_remove(folder);
}

/* Without a cmocka fixture: cmocka installs its own SIGBUS handler around each fixture. */
static void weights_file_truncated_after_open_is_an_error(void **state)
{
    char *folder = kit_folder(), *path = fs_join(folder, "m.safetensors"), text[64];
    static uint8_t big[16 + 64 + 65536];
    struct ckpt_weights *w;
    struct err err;
    uint64_t n = 64;

    (void)state;
    memcpy(big, &n, 8);
    memset(big + 8, ' ', 64);
    snprintf(text, sizeof(text),
             "{\"a\":{\"dtype\":\"U8\",\"shape\":[65544],\"data_offsets\":[0,65544]}}");
    assert_true(strlen(text) <= 64);
    memcpy(big + 8, text, strlen(text));
    write_bytes(folder, "m.safetensors", big, sizeof(big));
    w = opened(folder, "m.safetensors");
    assert_int_equal(truncate(path, 4096), 0);
    assert_int_equal(ckpt_weights_digest(w, text, &err), ERR_IO);
    assert_text(err.text, "truncated");
    ckpt_weights_close(w);
    free(path);
    kit_remove(folder);
}

/* ---- export ---- */

static const float numbers[] = { 1.5f, -2.25f, 3.0000001f, 1e-3f, 65504 };
static const int64_t count = 7;

static void export_is_read_by_weights_open(void **state)
{
    static const enum tensor_dtype types[] = { TENSOR_F32, TENSOR_BF16, TENSOR_F16 };
    const struct ckpt_export_tensor tensors[] = {
        { .name = "norm.weight", .tensor = { TENSOR_F32, TENSOR_PLAIN, { 2, { 1, 5 } }, (void *)(uintptr_t)numbers } },
        { .name = "norm.num_batches_tracked", .tensor = { TENSOR_I64, TENSOR_PLAIN, { 0, { 0 } }, (void *)(uintptr_t)&count } },
    };
    char *folder = kit_folder(), *path = fs_join(folder, "out.safetensors");

    (void)state;
    for (int i = 0; i < 3; i++) {
        const struct mapping *m;
        struct ckpt_weights *w;
        struct tensor t;
        struct err err;

        if (ckpt_export(path, tensors, 2, types[i], &err) < 0)
            fail_msg("%s", err.text);
        w = opened(folder, "out.safetensors");
        assert_true(ckpt_weights_find(w, "norm.weight", &t, &m));
        assert_int_equal(t.dtype, types[i]);
        assert_true(shape_equal(&t.shape, &tensors[0].tensor.shape));
        if (i == 0)
            assert_memory_equal(t.data, numbers, sizeof(numbers));
        else
            assert_int_equal(((const uint8_t *)t.data)[1], i == 1 ? 0x3f : 0x3e); /* 1.5 */
        assert_memory_equal(mapping_data(m) + 8, "{\"__metadata__\":{\"format\":\"pt\"}", 31);
        assert_true(ckpt_weights_find(w, "norm.num_batches_tracked", &t, &m));
        assert_memory_equal(t.data, &count, sizeof(count));
        ckpt_weights_close(w);
    }
    assert_int_equal(kit_count(folder, "out"), 1);
    free(path);
    kit_remove(folder);
}

enum { READ_ROWS = 100000, READ_WIDTH = 40 };

struct row_log {
    uint64_t next, most; /* rows */
    bool fails;
};

static int read_numbered(void *arg, uint64_t first, uint64_t n, void *to, struct err *err)
{
    float *out = to;
    struct row_log *log = arg;

    assert_int_equal(first, log->next);
    log->next += n;
    log->most = n > log->most ? n : log->most;
    for (uint64_t i = 0; i < n * READ_WIDTH; i++)
        out[i] = (float)((first * READ_WIDTH + i) % 2048);
    return log->fails && first > 0 ? err_set(err, ERR_PEER, "ps 1 died") : 0;
}

static void export_of_a_tensor_without_data_reads_its_rows_in_parts(void **state)
{
    static const enum tensor_dtype types[] = { TENSOR_F32, TENSOR_F16 };
    char *folder = kit_folder(), *path = fs_join(folder, "out.safetensors");
    struct row_log log;
    const struct ckpt_export_tensor tensors[] = {
        { .name = "table", .tensor = { TENSOR_F32, TENSOR_PLAIN, { 2, { READ_ROWS, READ_WIDTH } }, NULL },
          .read = read_numbered, .arg = &log },
        { .name = "w", .tensor = { TENSOR_F32, TENSOR_PLAIN, { 1, { 5 } }, (void *)(uintptr_t)numbers } },
    };
    struct err err;

    (void)state;
    for (int i = 0; i < 2; i++) {
        const struct mapping *m;
        struct ckpt_weights *w;
        struct tensor t;

        log = (struct row_log){ .next = 0 };
        if (ckpt_export(path, tensors, 2, types[i], &err) < 0)
            fail_msg("%s", err.text);
        assert_int_equal(log.next, READ_ROWS);
        assert_true(log.most * READ_WIDTH * sizeof(float) <= 4 << 20);
        w = opened(folder, "out.safetensors");
        assert_true(ckpt_weights_find(w, "table", &t, &m));
        assert_int_equal(t.dtype, types[i]);
        for (size_t k = 0; i == 0 && k < (size_t)READ_ROWS * READ_WIDTH; k++) {
            float x;

            memcpy(&x, (const char *)t.data + k * sizeof(x), sizeof(x));
            assert_true(x == (float)(k % 2048));
        }
        ckpt_weights_close(w);
    }
    log = (struct row_log){ .fails = true };
    assert_int_equal(ckpt_export(path, tensors, 2, TENSOR_F32, &err), ERR_PEER);
    assert_text(err.text, "tensor 'table': ps 1 died");
    assert_int_equal(kit_count(folder, "out"), 1); /* the earlier file */
    free(path);
    kit_remove(folder);
}

static void export_failure_keeps_the_earlier_file(void **state)
{
    static const char *const faults[] = { "export.sync", "export.rename" };
    const struct ckpt_export_tensor one = {
        .name = "a", .tensor = { TENSOR_F32, TENSOR_PLAIN, { 1, { 5 } }, (void *)(uintptr_t)numbers }
    }, twice[] = { one, one };
    char *folder = kit_folder(), *path = fs_join(folder, "out.safetensors");
    struct ckpt_weights *w;
    struct err err;

    (void)state;
    write_one(folder, "out.safetensors", "old", 1, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(fault_arm(faults[i], NULL), 0);
        assert_int_equal(ckpt_export(path, &one, 1, TENSOR_F32, &err), ERR_IO);
        assert_int_equal(fault_arm(NULL, NULL), 0);
    }
    assert_int_equal(ckpt_export(path, twice, 2, TENSOR_F32, &err), ERR_INPUT);
    assert_text(err.text, "two tensors have the name 'a'");
    w = opened(folder, "out.safetensors");
    assert_true(first(w, "old") == 1);
    ckpt_weights_close(w);
    assert_int_equal(kit_count(folder, "out"), 1);
    free(path);
    kit_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_single_file_is_found_by_name_and_directory),
        cmocka_unit_test(weights_directory_with_no_or_several_files_is_refused),
        cmocka_unit_test(weights_index_combines_its_files),
        cmocka_unit_test(weights_index_outside_its_directory_or_inconsistent_is_refused),
        cmocka_unit_test(weights_damaged_header_is_refused_with_the_file),
        cmocka_unit_test(weights_digest_depends_on_the_content_only),
        cmocka_unit_test(weights_file_truncated_after_open_is_an_error),
        cmocka_unit_test(export_is_read_by_weights_open),
        cmocka_unit_test(export_of_a_tensor_without_data_reads_its_rows_in_parts),
        cmocka_unit_test(export_failure_keeps_the_earlier_file),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
