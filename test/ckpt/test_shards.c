#include "ckpt/shards_kit.h"

#include "ckpt/join.h"
#include "ckpt/rows.h"
#include "ckpt/weights.h"

/* ---- the rule ---- */

static void rows_of_every_file_are_those_of_its_shards_in_ascending_order(void **state)
{
    static const uint64_t sizes[] = { 1, 63, 64, 65, 4096, 65535, 65536, 65537, 70000, 200001 };

    (void)state;
    for (uint32_t table = 0; table < 5; table++)
        for (size_t k = 0; k < sizeof(sizes) / sizeof(*sizes); k++) {
            uint32_t first = shard_first(table * 700);
            uint64_t found = 0, n_in[CKPT_SHARD_FILES] = { 0 }, n;

            for (uint64_t r = 0; r < sizes[k]; r++) {
                uint32_t file = (uint32_t)((r / 64 + first) % 1024 / 64);

                assert_int_equal(ckpt_shard_file_of(first, r), file);
                assert_int_equal(ckpt_shard_rows_before(first, file, r), n_in[file]);
                n_in[file]++;
            }
            for (uint32_t f = 0; f < CKPT_SHARD_FILES; f++) {
                uint64_t before = 0;

                assert_int_equal(ckpt_shard_rows_before(first, f, sizes[k]), n_in[f]);
                for (uint64_t r = 0; ckpt_shard_next(sizes[k], first, f, &r, &n); r += n) {
                    assert_true(n > 0 && r + n <= sizes[k]);
                    assert_int_equal(ckpt_shard_rows_before(first, f, r), before);
                    for (uint64_t i = r; i < r + n; i++)
                        assert_int_equal(ckpt_shard_file_of(first, i), f);
                    before += n;
                }
                assert_int_equal(before, n_in[f]);
                found += before;
            }
            assert_int_equal(found, sizes[k]);
        }
}

static void sum_of_rows_depends_on_values_and_places_alone(void **state)
{
    const float rows[4][3] = { { 1, 2, 3 }, { 4, 5, 6 }, { 1, 2, 3 }, { 7, 8, 9 } };
    uint64_t whole = ckpt_shard_sum(rows, 4, 12, 100);

    (void)state;
    assert_true(whole == ckpt_shard_sum(rows[2], 2, 12, 124) + ckpt_shard_sum(rows, 2, 12, 100));
    assert_true(whole != ckpt_shard_sum(rows, 4, 12, 112));
    assert_true(ckpt_shard_sum(rows[0], 1, 12, 100) + ckpt_shard_sum(rows[1], 1, 12, 112) !=
                ckpt_shard_sum(rows[1], 1, 12, 100) + ckpt_shard_sum(rows[0], 1, 12, 112));
}

/* ---- saving ---- */

static void check_state(const float *state, uint64_t seed)
{
    float *expected = shards_state(seed);

    assert_memory_equal(state, expected, 5 * 4);
    assert_memory_equal(state + SLOTS_AT, expected + SLOTS_AT, 5 * 4);
    assert_memory_equal(state + A_AT, expected + A_AT, (SLOTS_AT - A_AT) * 4);
    assert_memory_equal(state + SLOTS_AT + A_AT, expected + SLOTS_AT + A_AT, (SLOTS_AT - A_AT) * 4);
    free(expected);
}

static void load_all(const char *path, uint64_t seed)
{
    struct ckpt_tensor model[3], slots[3];
    float *state = calloc(SHARDS_FLOATS, sizeof(*state));
    struct err err;

    shards_tensors(false, false, model, slots);
    if (ckpt_load(path, model, 3, slots, 3, state, &err) < 0)
        fail_msg("%s", err.text);
    check_state(state, seed);
    free(state);
}

static void checkpoint_with_shard_files_is_verified_and_loaded(void **state)
{
    char *folder = kit_folder(), *path = kit_path(folder, 5, NULL);
    struct ckpt_info info;
    struct ckpt_weights *weights;
    struct err err;
    uint32_t n;

    (void)state;
    shards_save(folder, 5, 5, false);
    if (ckpt_verify(path, NULL, NULL, &info, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(kit_newest(folder, &info), 5);
    load_all(path, 5);
    if (ckpt_weights_open(path, &weights, &err) < 0) /* a reader of the format of Hugging Face */
        fail_msg("%s", err.text);
    (void)ckpt_weights_names(weights, &n);
    assert_int_equal(n, 1 + 2 * CKPT_SHARD_FILES);
    ckpt_weights_close(weights);
    free(path);
    kit_remove(folder);
}

static void rows_are_written_elsewhere_the_files_have_the_same_bytes(void **state)
{
    char *a = kit_folder(), *b = kit_folder();
    size_t n;
    char **names = shards_files(&n);

    (void)state;
    shards_save(a, 5, 5, false);
    shards_save(b, 5, 5, true);
    assert_int_equal(n, 35);
    for (size_t i = 0; i < n; i++) {
        char *x = kit_path(a, 5, names[i]), *y = kit_path(b, 5, names[i]);
        struct buf p = { 0 }, q = { 0 };

        assert_int_equal(fs_read(x, 1 << 24, &p, NULL), 0);
        assert_int_equal(fs_read(y, 1 << 24, &q, NULL), 0);
        assert_int_equal(p.len, q.len);
        assert_memory_equal(p.data, q.data, p.len);
        buf_fini(&p);
        buf_fini(&q);
        free(x);
        free(y);
        free(names[i]);
    }
    free(names);
    kit_remove(a);
    kit_remove(b);
}

/* A write_rows() whose last row of the sums is not the one in the file, as after a damage on the way to the disk. */
static int write_wrong_row(void *arg, struct ckpt_row_files *files, struct err *err)
{
    char *path = fs_join(files->folder, "model-00003-of-00016.safetensors");
    int rc = shards_write_rows(arg, files, err), fd = open(path, O_WRONLY);

    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, "x", 1, (off_t)files->data_at[0][3] + 77), 1);
    close(fd);
    free(path);
    return rc;
}

static int write_fails(void *arg, struct ckpt_row_files *files, struct err *err)
{
    (void)arg;
    (void)files;
    return err_set(err, ERR_FULL, "ps 1: write 'x': No space left on device");
}

static void save_whose_rows_are_wrong_or_missing_fails_once_and_publishes_nothing(void **state)
{
    static const struct {
        ckpt_write_rows_fn *write;
        int code;
        const char *text;
    } cases[] = { { write_wrong_row, ERR_CORRUPT, "model-00003-of-00016.safetensors': the sum of its rows" },
                  { write_fails, ERR_FULL, "ps 1: write 'x': No space left" } };
    struct ckpt_tensor model[3], slots[3];

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        char *folder = kit_folder();
        struct ckpt_writer_opts opts = shards_opts(folder, true, model, slots);
        struct err err;

        opts.write_rows = cases[i].write;
        assert_int_equal(shards_save_with(&opts, 5, 5, NULL, &err), cases[i].code);
        assert_text(err.text, cases[i].text);
        assert_int_equal(kit_count(folder, ""), 0);
        kit_remove(folder);
    }
}

static void fault_during_a_save_of_shards_leaves_the_older_checkpoint(void **state)
{
    static const char *const faults[] = {
        "ckpt.mkdir",    "ckpt.write@1",  "ckpt.write@32", "ckpt.write@33",   "ckpt.sync@1",
        "ckpt.sync@32",  "ckpt.sync@35",  "ckpt.sync@36",  "ckpt.read@1",     "ckpt.read@60",
        "ckpt.read@120", "ckpt.verify@1", "ckpt.verify@7", "ckpt.rename@1",
    };
    struct ckpt_tensor model[3], slots[3];

    (void)state;
    for (size_t i = 0; i < sizeof(faults) / sizeof(*faults); i++) {
        char *folder = kit_folder(), *path = kit_path(folder, 4, NULL);
        struct ckpt_writer_opts opts = shards_opts(folder, true, model, slots);
        struct ckpt_info info;
        struct err err;

        shards_save(folder, 4, 4, true);
        if (shards_save_with(&opts, 5, 5, faults[i], &err) == 0 || !fault_fired())
            fail_msg("%s: the save has succeeded", faults[i]);
        (void)fault_arm(NULL, NULL);
        assert_int_equal(kit_newest(folder, &info), 4);
        assert_int_equal(ckpt_verify(path, NULL, NULL, &info, &err), 0);
        load_all(info.path, info.meta.step);
        free(path);
        kit_remove(folder);
    }
}

/* ---- reading ---- */

static void ranges_of_rows_are_read_from_shard_files_and_from_whole_tensors(void **state)
{
    static const uint64_t ranges[][2] = { { 0, 1 },      { 0, A_ROWS }, { 63, 2 }, { 4000, 9000 },
                                          { 65530, 20 }, { 69999, 1 },  { 5, 0 } };
    struct ckpt_tensor model[3], slots[3];
    float *expected = shards_state(7), *got = malloc(SHARDS_FLOATS * sizeof(*got));

    (void)state;
    for (int k = 0; k < 4; k++) {
        bool shards = k % 2, verifies = k / 2;
        char *folder = kit_folder(), *path = kit_path(folder, 7, NULL);
        struct ckpt_writer_opts opts = shards_opts(folder, false, model, slots);
        struct ckpt_rows_tensor t;
        struct ckpt_rows *r;
        struct err err;
        uint32_t i;

        shards_tensors(shards, false, model, slots);
        assert_int_equal(shards_save_with(&opts, 7, 7, NULL, &err), 0);
        if (ckpt_rows_open(path, &r, &err) < 0 ||
            (verifies && ckpt_rows_verify(r, NULL, NULL, &err) < 0))
            fail_msg("%s", err.text);
        for (int kind = 0; kind < 2; kind++) {
            const float *a = expected + (kind == 0 ? 0 : SLOTS_AT) + A_AT;

            assert_int_equal(ckpt_rows_count(r, kind), 3);
            assert_int_equal(ckpt_rows_find(r, kind, kind == 0 ? "emb.a" : "emb.a/sum", &i, &err),
                             0);
            ckpt_rows_describe(r, kind, i, &t);
            assert_int_equal(t.rows, A_ROWS);
            assert_int_equal(t.row_bytes, A_WIDTH * 4);
            for (size_t k = 0; k < sizeof(ranges) / sizeof(*ranges); k++) {
                assert_int_equal(ckpt_rows_read(r, kind, i, ranges[k][0], ranges[k][1], got, &err),
                                 0);
                assert_memory_equal(got, a + ranges[k][0] * A_WIDTH, ranges[k][1] * A_WIDTH * 4);
            }
        }
        assert_int_equal(ckpt_rows_find(r, 0, "emb.c", &i, &err), ERR_NOENT);
        ckpt_rows_close(r);
        free(path);
        kit_remove(folder);
    }
    free(expected);
    free(got);
}

static int refuse_third(void *arg, struct err *err)
{
    uint32_t *n = arg;

    return ++*n == 3 ? err_set(err, ERR_CANCELED, "the third part") : 0;
}

static void flip_at(const char *path, long at, int from)
{
    FILE *f = fopen(path, "r+b");
    int byte;

    assert_non_null(f);
    assert_int_equal(fseek(f, at, from), 0);
    byte = fgetc(f);
    assert_int_equal(fseek(f, at, from), 0);
    assert_int_equal(fputc(byte ^ 16, f), byte ^ 16);
    assert_int_equal(fclose(f), 0);
}

static void rows_whose_files_differ_from_the_manifest_are_refused(void **state)
{
    struct ckpt_tensor model[3], slots[3];
    float *got = malloc(SHARDS_FLOATS * sizeof(*got));

    (void)state;
    for (int shards = 0; shards < 2; shards++) {
        static const char *const names[][4] = {
            { "model.safetensors", "optimizer.safetensors", NULL },
            { "model-dense.safetensors", "model-00000-of-00016.safetensors",
              "model-00015-of-00016.safetensors", "optimizer-00007-of-00016.safetensors" }
        };
        char *folder = kit_folder(), *path = kit_path(folder, 7, NULL);
        struct ckpt_writer_opts opts = shards_opts(folder, false, model, slots);
        struct ckpt_rows *r;
        uint32_t n = 0, i;
        struct err err;

        shards_tensors(shards == 1, false, model, slots);
        assert_int_equal(shards_save_with(&opts, 7, 7, NULL, &err), 0);
        assert_int_equal(ckpt_rows_open(path, &r, &err), 0);
        for (int k = 0; k < 4 && names[shards][k] != NULL; k++) {
            char *file = kit_path(folder, 7, names[shards][k]);

            for (int end = 0; end < 2; end++) {
                flip_at(file, end ? -1 : 9, end ? SEEK_END : SEEK_SET);
                assert_int_equal(ckpt_rows_verify(r, NULL, NULL, &err), ERR_CORRUPT);
                assert_non_null(strstr(err.text, names[shards][k]));
                flip_at(file, end ? -1 : 9, end ? SEEK_END : SEEK_SET);
                ckpt_rows_close(r);
                assert_int_equal(ckpt_rows_open(path, &r, &err), 0);
            }
            free(file);
        }
        if (shards == 1)
            assert_int_equal(ckpt_rows_verify(r, refuse_third, &n, &err), ERR_CANCELED);
        ckpt_rows_close(r);
        /* the storage returns other bytes after the comparison */
        assert_int_equal(ckpt_rows_open(path, &r, &err), 0);
        assert_int_equal(ckpt_rows_verify(r, NULL, NULL, &err), 0);
        assert_int_equal(ckpt_rows_find(r, 0, "emb.a", &i, &err), 0);
        assert_int_equal(ckpt_rows_read(r, 0, i, 100, 5000, got, &err), 0);
        assert_int_equal(fault_arm("ckpt.flip", NULL), 0);
        assert_int_equal(ckpt_rows_read(r, 0, i, 100, 5000, got, &err), ERR_CORRUPT);
        assert_non_null(strstr(err.text, "differ from those whose checksum was compared"));
        assert_int_equal(fault_arm(NULL, NULL), 0);
        ckpt_rows_close(r);
        free(path);
        kit_remove(folder);
    }
    free(got);
}

static void load_without_the_tables_reads_the_other_tensors(void **state)
{
    struct ckpt_tensor model[3], slots[3];
    float *got = calloc(SHARDS_FLOATS, sizeof(*got)), *expected = shards_state(7);
    char *folder = kit_folder(), *path = kit_path(folder, 7, NULL);
    struct err err;

    (void)state;
    shards_save(folder, 7, 7, true);
    shards_tensors(false, true, model, slots);
    model[0].table = model[2].table = slots[0].table = slots[2].table = 0;
    if (ckpt_load(path, model, 3, slots, 3, got, &err) < 0)
        fail_msg("%s", err.text);
    assert_memory_equal(got, expected, 5 * 4);
    assert_memory_equal(got + SLOTS_AT, expected + SLOTS_AT, 5 * 4);
    for (size_t i = A_AT; i < SLOTS_AT; i++)
        assert_true(got[i] == 0);
    model[2].shape.dim[0]--;
    assert_int_equal(ckpt_load(path, model, 3, slots, 3, got, &err), ERR_INPUT);
    assert_text(err.text, "tensor 'emb.b' is float32 [1000, 2], expected float32 [999, 2]");
    model[2] = model[1];
    assert_int_equal(ckpt_load(path, model, 2, slots, 3, got, &err), ERR_INPUT);
    assert_text(err.text, "tensor 'emb.b' is in the file, but not in this model");
    free(got);
    free(expected);
    free(path);
    kit_remove(folder);
}

/* ---- joining ---- */

static void joined_checkpoint_has_whole_tensors_and_no_shard_files(void **state)
{
    char *folder = kit_folder(), *path = kit_path(folder, 7, NULL), *to = kit_path(folder, 8, NULL);
    struct ckpt_manifest m;
    struct ckpt_info info;
    struct err err = { .text = "" };

    (void)state;
    shards_save(folder, 7, 7, true);
    if (ckpt_join(path, to, &info, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(info.meta.step, 7);
    assert_int_equal(ckpt_manifest_read(to, &m, &err), 0);
    assert_int_equal(m.n_files, 2);
    assert_false(m.has_shards);
    kit_same_meta(&m.meta, &info.meta);
    load_all(to, 7);
    assert_int_equal(ckpt_join(path, to, &info, &err), ERR_EXISTS);
    load_all(to, 7);
    free(to);
    to = kit_path(folder, 9, NULL);
    assert_int_equal(fault_arm("export.sync@2", NULL), 0);
    assert_true(ckpt_join(path, to, &info, &err) < 0);
    assert_int_equal(fault_arm(NULL, NULL), 0);
    assert_int_equal(access(to, F_OK), -1);
    free(path);
    free(to);
    kit_remove(folder);
}

/* ---- damage ---- */

static void expect_bad(const char *path, const char *text)
{
    struct ckpt_info info;
    struct err err = { .text = "no error" };

    if (ckpt_verify(path, NULL, NULL, &info, &err) != ERR_CORRUPT || strstr(err.text, text) == NULL)
        fail_msg("expected '%s', found '%s'", text, err.text);
}

static void flip(const char *file)
{
    struct stat st;
    int fd = open(file, O_RDWR);
    char byte;

    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    assert_int_equal(pread(fd, &byte, 1, st.st_size / 2), 1);
    byte ^= 8;
    assert_int_equal(pwrite(fd, &byte, 1, st.st_size / 2), 1);
    close(fd);
}

static void verify_names_a_damaged_truncated_missing_or_additional_file(void **state)
{
    char *folder = kit_folder(), *path = kit_path(folder, 3, NULL);
    struct ckpt_info info;
    size_t n;
    char **names = shards_files(&n);

    (void)state;
    shards_save(folder, 3, 3, false);
    for (size_t i = 0; i < n; i++) {
        char *file = kit_path(folder, 3, names[i]), *aside = kit_path(folder, 3, "aside");
        struct stat st;

        flip(file);
        expect_bad(path, names[i]);
        flip(file);
        assert_int_equal(stat(file, &st), 0);
        assert_int_equal(truncate(file, st.st_size + 1), 0);
        expect_bad(path, names[i]);
        assert_int_equal(truncate(file, st.st_size), 0);
        assert_int_equal(rename(file, aside), 0);
        expect_bad(path, names[i]);
        assert_int_equal(rename(aside, file), 0);
        free(file);
        free(aside);
        free(names[i]);
    }
    free(names);
    assert_int_equal(ckpt_verify(path, NULL, NULL, &info, NULL), 0);
    {
        char *more = kit_path(folder, 3, "model-00016-of-00017.safetensors");

        kit_write_file(more, "x", 1);
        expect_bad(path, "model-00016-of-00017.safetensors' is not in the manifest");
        free(more);
    }
    free(path);
    kit_remove(folder);
}

/* Replaces a file, and its entry in the manifest, so that sizes and checksums are right. */
static void replace(const char *folder, const char *name, const void *data, size_t n)
{
    char *path = kit_path(folder, 3, name), *step = kit_path(folder, 3, NULL),
         *manifest = kit_path(folder, 3, CKPT_MANIFEST_FILE);
    struct ckpt_manifest m;
    struct buf text = { 0 };

    kit_write_file(path, data, n);
    assert_int_equal(ckpt_manifest_read(step, &m, NULL), 0);
    for (uint32_t i = 0; i < m.n_files; i++)
        if (strcmp(m.files[i].name, name) == 0) {
            m.files[i].bytes = n;
            ckpt_hash_print(XXH3_128bits(data, n), m.files[i].hash);
        }
    ckpt_manifest_print(&m, 0, &text);
    kit_write_file(manifest, text.data, text.len);
    buf_fini(&text);
    free(path);
    free(step);
    free(manifest);
}

static void verify_refuses_files_that_contradict_each_other(void **state)
{
    char *folder = kit_folder(), *path = kit_path(folder, 3, NULL);
    char *file = kit_path(folder, 3, "model-00002-of-00016.safetensors"),
         *index = kit_path(folder, 3, CKPT_INDEX_FILE);
    struct buf good = { 0 }, text = { 0 };
    struct ckpt_info info;
    char *at;

    (void)state;
    shards_save(folder, 3, 3, false);
    assert_int_equal(fs_read(file, 1 << 24, &good, NULL), 0);
    /* the shard file of other shards */
    free(file);
    file = kit_path(folder, 3, "model-00004-of-00016.safetensors");
    assert_int_equal(fs_read(file, 1 << 24, &text, NULL), 0);
    replace(folder, "model-00002-of-00016.safetensors", text.data, text.len);
    expect_bad(path, "model-00002-of-00016.safetensors");
    expect_bad(path, "expected a name that ends with '/rows-00002-of-00016'");
    /* a table with a row less */
    buf_reset(&text);
    buf_add(&text, good.data, good.len);
    at = memmem(text.data, text.len, "\"shape\":[4096,3]", 16);
    assert_non_null(at);
    memcpy(at, "\"shape\":[3,4096]", 16);
    replace(folder, "model-00002-of-00016.safetensors", text.data, text.len);
    expect_bad(path, "its rows have another shape than those of file 0");
    replace(folder, "model-00002-of-00016.safetensors", good.data, good.len);
    assert_int_equal(ckpt_verify(path, NULL, NULL, &info, NULL), 0);
    /* an index of other files */
    buf_reset(&text);
    assert_int_equal(fs_read(index, 1 << 20, &text, NULL), 0);
    at = strstr(text.data, "\"model-00002-of-00016.safetensors\"");
    assert_non_null(at);
    at[11] = '3'; /* model-00003 */
    replace(folder, CKPT_INDEX_FILE, text.data, text.len);
    expect_bad(path, "emb.a/rows-00002-of-00016");
    buf_fini(&good);
    buf_fini(&text);
    free(file);
    free(index);
    free(path);
    kit_remove(folder);
}

static void manifest_that_lacks_a_shard_file_or_states_another_rule_is_refused(void **state)
{
    char *folder = kit_folder(), *path = kit_path(folder, 3, NULL);
    struct ckpt_manifest m, good;
    struct buf text = { 0 };
    struct err err;

    (void)state;
    shards_save(folder, 3, 3, false);
    assert_int_equal(ckpt_manifest_read(path, &good, NULL), 0);
    for (uint32_t k = 0; k < good.n_files; k++) {
        m = good;
        memmove(&m.files[k], &m.files[k + 1], (m.n_files - k - 1) * sizeof(*m.files));
        m.n_files--;
        buf_reset(&text);
        ckpt_manifest_print(&m, 0, &text);
        assert_int_equal(ckpt_manifest_parse(text.data, text.len, &m, &err), ERR_CORRUPT);
        assert_text(err.text, good.files[k].name);
        assert_text(err.text, "is missing");
    }
    for (int k = 0; k < 3; k++) {
        static const char *const from[] = { "\"files\": 16", "389 t", "\"format\": 2" },
                                 *const to[] = { "\"files\": 17", "388 t", "\"format\": 4" };
        char *at, hash[CKPT_HASH_BYTES];

        buf_reset(&text);
        ckpt_manifest_print(&good, 0, &text);
        at = strstr(text.data, from[k]);
        assert_non_null(at);
        memcpy(at, to[k], strlen(to[k]));
        at = strstr(text.data, "  \"checksum\"");
        ckpt_hash_print(XXH3_128bits(text.data, (size_t)(at - text.data)), hash);
        memcpy(at + strlen("  \"checksum\": \""), hash, CKPT_HASH_BYTES - 1);
        assert_int_equal(ckpt_manifest_parse(text.data, text.len, &m, &err),
                         k == 2 ? ERR_UNSUPPORTED : ERR_CORRUPT);
    }
    buf_fini(&text);
    free(path);
    kit_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_every_file_are_those_of_its_shards_in_ascending_order),
        cmocka_unit_test(sum_of_rows_depends_on_values_and_places_alone),
        cmocka_unit_test(checkpoint_with_shard_files_is_verified_and_loaded),
        cmocka_unit_test(rows_are_written_elsewhere_the_files_have_the_same_bytes),
        cmocka_unit_test(save_whose_rows_are_wrong_or_missing_fails_once_and_publishes_nothing),
        cmocka_unit_test(fault_during_a_save_of_shards_leaves_the_older_checkpoint),
        cmocka_unit_test(ranges_of_rows_are_read_from_shard_files_and_from_whole_tensors),
        cmocka_unit_test(rows_whose_files_differ_from_the_manifest_are_refused),
        cmocka_unit_test(load_without_the_tables_reads_the_other_tensors),
        cmocka_unit_test(joined_checkpoint_has_whole_tensors_and_no_shard_files),
        cmocka_unit_test(verify_names_a_damaged_truncated_missing_or_additional_file),
        cmocka_unit_test(verify_refuses_files_that_contradict_each_other),
        cmocka_unit_test(manifest_that_lacks_a_shard_file_or_states_another_rule_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
