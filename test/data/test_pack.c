/* Packs of short records. Record r has length_of(r) tokens, whose values identify record and
 * index. */
#include "data/kit.h"

#include <dirent.h>

#include "base/fault.h"

enum { T = 16, N = 300, TOKEN = 1000 };

static const struct data_feature features[] = {
    { .name = "tokens", .stored = TENSOR_I64, .shape = { 1, { T } }, .fed = TENSOR_I64,
      .pad_value = -1 },
    { .name = "pairs", .stored = TENSOR_F32, .shape = { 2, { T, 2 } }, .fed = TENSOR_F32,
      .scale = 1, .pad_value = 0.5 },
    { .name = "segment", .stored = TENSOR_I64, .shape = { 1, { T } }, .fed = TENSOR_I64,
      .derived = DATA_SEGMENT, .of = "tokens" },
    { .name = "position", .stored = TENSOR_I64, .shape = { 1, { T } }, .fed = TENSOR_I32,
      .derived = DATA_POSITION, .of = "tokens" },
    { .name = "n", .stored = TENSOR_I64, .fed = TENSOR_I64, .derived = DATA_LENGTH,
      .of = "tokens" },
};
enum { N_FEATURES = 5 };

struct sample {
    int64_t tokens[T];
    float pairs[T][2];
    int64_t segment[T];
    int32_t position[T];
    int64_t n;
};

static size_t length_of(uint64_t r)
{
    return r % 7 == 3 ? 0 : (r * 2654435761u >> 7) % T + 1;
}

static void add_record(struct buf *file, uint64_t r, size_t n, size_t n_pairs)
{
    struct buf list = { 0 }, example = { 0 };
    int64_t tokens[64];
    float pairs[128];

    for (size_t i = 0; i < n; i++)
        tokens[i] = (int64_t)(r * TOKEN + i);
    for (size_t i = 0; i < 2 * n_pairs; i++)
        pairs[i] = (float)(r * 100 + i);
    if (n > 0)
        kit_ints(&list, "tokens", tokens, n);
    if (n_pairs > 0)
        kit_floats(&list, "pairs", pairs, 2 * n_pairs);
    kit_member(&example, 1, list.data, list.len);
    tfrecord_append(file, example.data, example.len);
    buf_fini(&list);
    buf_fini(&example);
}

/* Writes the records [first, first + n). */
static void write_records(const char *folder, const char *name, uint64_t first, uint64_t n)
{
    struct buf file = { 0 };

    for (uint64_t r = first; r < first + n; r++)
        add_record(&file, r, length_of(r), length_of(r));
    kit_write(folder, name, file.data, file.len);
    buf_fini(&file);
}

static char *two_files(void)
{
    char *folder = kit_folder();

    write_records(folder, "a.tfrecord", 0, N / 3);
    write_records(folder, "b.tfrecord", N / 3, N - N / 3);
    return folder;
}

static int try_open(struct data_opts opts, const char *folder, struct data_set **s, struct err *err)
{
    char *glob = fs_join(folder, "*.tfrecord");
    int rc;

    opts.glob = glob;
    if (opts.features == NULL) {
        opts.features = features;
        opts.n_features = N_FEATURES;
    }
    if (opts.origin.pack == NULL)
        opts.origin.pack = "tokens";
    opts.threads = 2;
    rc = data_open(&opts, s, err);
    free(glob);
    return rc;
}

static struct data_set *open_packed(struct data_opts opts, const char *folder)
{
    struct data_set *s = NULL;
    struct err err;

    if (try_open(opts, folder, &s, &err) < 0)
        fail_msg("%s", err.text);
    return s;
}

static void refused(struct data_opts opts, const char *folder, int code, const char *text)
{
    struct data_set *s = NULL;
    struct err err = { .code = 0 };

    if (try_open(opts, folder, &s, &err) != code || strstr(err.text, text) == NULL)
        fail_msg("'%s' is not '%s'", err.text, text);
}

static void read_sample(struct data_set *s, uint64_t i, struct sample *out)
{
    struct err err;

    memset(out, 0x55, sizeof(*out));
    if (data_sample(s, i,
                    (void *[]){ out->tokens, out->pairs, out->segment, out->position, &out->n },
                    &err) < 0)
        fail_msg("%s", err.text);
}

/* Checks all features of a sample by its segments. Counts each record in `seen`. */
static void check_sample(const struct sample *x, unsigned *seen)
{
    int64_t segment = 0, record = -1;
    int i = 0;

    for (; i < T && x->segment[i] != 0; i++) {
        if (x->segment[i] != segment) {
            /* the previous record is complete; empty records leave gaps in the segment numbers */
            assert_true(x->segment[i] > segment);
            if (record >= 0)
                assert_int_equal(x->position[i - 1] + 1, length_of((uint64_t)record));
            segment = x->segment[i];
            record = x->tokens[i] / TOKEN;
            assert_true(record < N);
            seen[record]++;
            assert_int_equal(x->position[i], 0);
        } else {
            assert_int_equal(x->position[i], x->position[i - 1] + 1);
        }
        assert_int_equal(x->tokens[i], record * TOKEN + x->position[i]);
        assert_true(x->pairs[i][0] == (float)(record * 100 + 2 * x->position[i]));
        assert_true(x->pairs[i][1] == (float)(record * 100 + 2 * x->position[i] + 1));
    }
    if (record >= 0)
        assert_int_equal(x->position[i - 1] + 1, length_of((uint64_t)record));
    assert_int_equal(x->n, i);
    for (; i < T; i++) {
        assert_int_equal(x->tokens[i], -1);
        assert_true(x->pairs[i][0] == 0.5f && x->pairs[i][1] == 0.5f);
        assert_int_equal(x->segment[i], 0);
        assert_int_equal(x->position[i], 0);
    }
}

static void pack_contains_each_record_once(void **state)
{
    char *folder = two_files();

    (void)state;
    for (int cached = 0; cached < 2; cached++) {
        struct data_set *s = open_packed(
            (struct data_opts){ .origin.cache = cached ? DATA_CACHE_MEMORY : DATA_CACHE_NONE },
            folder);
        unsigned seen[N] = { 0 };
        uint64_t n = data_samples(s), items = 0;
        struct sample x;

        assert_int_equal(data_records(s), N);
        for (int again = 0; again < 1 + cached; again++) {
            memset(seen, 0, sizeof(seen));
            items = 0;
            for (uint64_t i = 0; i < n; i++) {
                read_sample(s, i, &x);
                check_sample(&x, seen);
                items += (uint64_t)x.n;
            }
        }
        for (uint64_t r = 0; r < N; r++)
            assert_int_equal(seen[r], length_of(r) > 0);
        assert_true(data_pack_fill(s) == (double)items / (double)(n * T));
        assert_true(data_pack_fill(s) > 0.95);
        data_free(s);
    }
    kit_remove(folder);
}

/* Compares with a simple implementation of the rule in pack.c, in which all packs stay open; 30
 * records need fewer packs than the limit. */
static void pack_plan_uses_the_first_pack_with_room(void **state)
{
    char *folder = kit_folder();
    struct data_set *s;
    uint64_t used[30] = { 0 }, pack_of[30], n = 0;

    (void)state;
    write_records(folder, "a.tfrecord", 0, 30);
    for (uint64_t r = 0; r < 30; r++) {
        uint64_t i = 0;

        while (i < n && (used[i] + length_of(r) > T || used[i] == T))
            i++;
        n += i == n;
        used[i] += length_of(r);
        pack_of[r] = i;
    }
    s = open_packed((struct data_opts){ .origin.skip_bad = false }, folder);
    assert_int_equal(data_samples(s), n);
    for (uint64_t p = 0; p < n; p++) {
        struct sample x;

        read_sample(s, p, &x);
        for (int i = 0; i < x.n; i++)
            assert_int_equal(pack_of[x.tokens[i] / TOKEN], p);
    }
    data_free(s);
    kit_remove(folder);
}

/* Starts at any step, with any number of threads. */
static void pack_epoch_contains_each_record_once_for_any_reader(void **state)
{
    char *folder = two_files();
    struct data_set *s = open_packed((struct data_opts){ .origin.skip_bad = false }, folder);
    uint64_t steps = data_steps_per_epoch(s, 4, true);
    struct sample *all = calloc(2 * steps * 4, sizeof(*all));

    (void)state;
    for (uint32_t threads = 0; threads < 3; threads++)
        for (uint64_t first = 1; first <= 2 * steps; first += threads == 0 ? 2 * steps : 7) {
            struct data_reader_opts o = { .seed = 3, .shuffle = true, .pad = true,
                                          .global_batch = 4, .lanes = 2, .n_lanes = 2,
                                          .first_step = first, .last_step = 2 * steps,
                                          .threads = threads, .prefetch = 2 };
            unsigned seen[N] = { 0 };
            const struct data_batch *b;
            struct data_reader *r;
            struct err err;

            assert_int_equal(data_reader_open(s, &o, &r, &err), 0);
            while (data_next(r, &b, &err) == 0 && b != NULL) {
                for (uint32_t i = 0; i < 2; i++) {
                    struct sample x, *expected = &all[(b->step - 1) * 4 + b->lane * 2 + i];

                    memset(&x, 0, sizeof(x));
                    memcpy(x.tokens, (const int64_t *)b->features[0] + i * T, sizeof(x.tokens));
                    memcpy(x.pairs, (const float *)b->features[1] + i * T * 2, sizeof(x.pairs));
                    memcpy(x.segment, (const int64_t *)b->features[2] + i * T, sizeof(x.segment));
                    memcpy(x.position, (const int32_t *)b->features[3] + i * T, sizeof(x.position));
                    x.n = ((const int64_t *)b->features[4])[i];
                    if (threads > 0)
                        assert_memory_equal(&x, expected, sizeof(x));
                    *expected = x;
                    if (threads == 0 && b->weights[i] != 0)
                        check_sample(&x, seen);
                }
                data_release(r);
            }
            for (uint64_t k = 0; threads == 0 && k < N; k++)
                assert_int_equal(seen[k], length_of(k) > 0 ? 2 : 0);
            data_reader_close(r);
        }
    free(all);
    data_free(s);
    kit_remove(folder);
}

/* Calls `each` for every file with kept lengths and returns the number of these files. */
static uint64_t kept_files(const char *folder, void (*each)(const char *path))
{
    DIR *d = opendir(folder);
    struct dirent *e;
    uint64_t n = 0;

    while ((e = readdir(d)) != NULL) {
        char *path = fs_join(folder, e->d_name);

        if (strstr(e->d_name, ".lengths") != NULL) {
            n++;
            if (each != NULL)
                each(path);
        }
        free(path);
    }
    closedir(d);
    return n;
}

/* Changes a length in the file. */
static void corrupt_length(const char *path)
{
    FILE *f = fopen(path, "r+b");

    assert_non_null(f);
    assert_int_equal(fseek(f, 8 + 32 + 4 * 10, SEEK_SET), 0);
    assert_int_equal(fputc(0x7e, f), 0x7e);
    assert_int_equal(fclose(f), 0);
}

static void pack_lengths_are_kept_until_a_file_changes(void **state)
{
    char *folder = two_files(), *index = kit_folder(), digest[65];
    struct data_opts opts = { .origin.index_directory = index };
    struct data_set *s = open_packed(opts, folder);
    uint64_t n = data_samples(s);

    (void)state;
    strcpy(digest, data_digest(s));
    data_free(s);
    assert_int_equal(kept_files(index, NULL), 1);
    assert_int_equal(fault_arm("data.read@3+", NULL), 0); /* allows the two checks for gzip only */
    s = open_packed(opts, folder);
    assert_int_equal(fault_arm(NULL, NULL), 0);
    assert_int_equal(data_samples(s), n);
    assert_string_equal(data_digest(s), digest);
    data_free(s);
    assert_int_equal(kept_files(index, corrupt_length), 1); /* the lengths are computed again */
    s = open_packed(opts, folder);
    assert_string_equal(data_digest(s), digest);
    data_free(s);
    write_records(folder, "b.tfrecord", N / 3 + 1, N - N / 3);
    s = open_packed(opts, folder);
    assert_string_not_equal(data_digest(s), digest);
    data_free(s);
    assert_int_equal(kept_files(index, NULL), 2);
    kit_remove(folder);
    kit_remove(index);
}

static void pack_with_skip_bad_excludes_bad_records(void **state)
{
    char *folder = kit_folder(), *index = kit_folder();
    struct buf file = { 0 };
    struct data_set *s;
    unsigned seen[N] = { 0 };

    (void)state;
    for (uint64_t r = 0; r < 20; r++) {
        if (r == 5) /* damages record 4; records 10 and 11 are bad, too */
            file.data[file.len - 10] ^= 1;
        add_record(&file, r, r == 10 ? T + 1 : length_of(r),
                   r == 11   ? 2
                   : r == 10 ? T
                             : length_of(r));
    }
    kit_write(folder, "a.tfrecord", file.data, file.len);
    buf_fini(&file);
    refused((struct data_opts){ .origin.skip_bad = false }, folder, ERR_CORRUPT,
            "a.tfrecord': record 4 at offset");
    for (int kept = 0; kept < 2; kept++) {
        s = open_packed(
            (struct data_opts){ .origin.skip_bad = true, .origin.index_directory = index }, folder);
        assert_int_equal(data_skipped(s), 3);
        if (kept == 0)
            data_free(s);
    }
    for (uint64_t i = 0; i < data_samples(s); i++) {
        struct sample x;

        read_sample(s, i, &x);
        check_sample(&x, seen);
    }
    for (uint64_t r = 0; r < 20; r++)
        assert_int_equal(seen[r], length_of(r) > 0 && r != 4 && r != 10 && r != 11);
    data_free(s);
    kit_remove(index);
    kit_remove(folder);
}

static void pack_of_unsuitable_features_is_refused(void **state)
{
    static const struct {
        size_t n, n_pairs;
        const char *text;
    } records[] = {
        { T + 1, T, "record 1 at offset" },
        { T + 1, T, "feature 'tokens': found a list of 17 int64 values, expected at most 16" },
        { 5, 4, "feature 'pairs' has 8 values, expected 10 for the 5 items of feature 'tokens'" },
    };
    static const struct {
        struct data_feature f;
        const char *text;
    } bad[] = {
        { { .name = "x",
            .stored = TENSOR_I64,
            .shape = { 1, { T } },
            .fed = TENSOR_I64,
            .derived = DATA_SEGMENT,
            .of = "y" },
          "its source is not a stored list" },
        { { .name = "x",
            .stored = TENSOR_I64,
            .shape = { 1, { T - 1 } },
            .fed = TENSOR_I64,
            .derived = DATA_POSITION,
            .of = "tokens" },
          "segments and positions have one dimension" },
        { { .name = "x", .stored = TENSOR_I64, .fed = TENSOR_I64 },
          "each stored feature is a list with the first dimension" },
        { { .name = "x",
            .stored = TENSOR_F32,
            .shape = { 1, { T } },
            .fed = TENSOR_F32,
            .scale = 1,
            .derived = DATA_SEGMENT,
            .of = "tokens" },
          "must be int64" },
        { { .name = "x",
            .stored = TENSOR_U8,
            .shape = { 3, { T, 4, 3 } },
            .fed = TENSOR_F32,
            .scale = 1,
            .encoded = true,
            .channels_last = true },
          "images cannot be packed" },
    };
    char *folder = kit_folder();

    (void)state;
    for (size_t i = 0; i < sizeof(records) / sizeof(*records); i++) {
        struct buf file = { 0 };

        add_record(&file, 0, 3, 3);
        add_record(&file, 1, records[i].n, records[i].n_pairs);
        kit_write(folder, "a.tfrecord", file.data, file.len);
        buf_fini(&file);
        refused((struct data_opts){ .origin.skip_bad = false }, folder, ERR_INPUT, records[i].text);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        struct data_feature two[] = { features[0], bad[i].f };

        refused((struct data_opts){ .features = two, .n_features = 2 }, folder, ERR_INPUT,
                bad[i].text);
    }
    refused((struct data_opts){ .origin.pack = "n" }, folder, ERR_INPUT, "pack by feature 'n'");
    kit_remove(folder);
}

/* Truncated records fit; the removed items are lost. */
static void pack_with_truncate_shortens_long_records(void **state)
{
    struct data_feature cut[] = { features[0], features[2] };
    char *folder = kit_folder();
    struct buf file = { 0 };
    struct data_set *s;
    int64_t tokens[T], segment[T];

    (void)state;
    cut[0].truncate = true;
    add_record(&file, 0, 3, 0);
    add_record(&file, 1, 40, 0);
    add_record(&file, 2, 13, 0);
    kit_write(folder, "a.tfrecord", file.data, file.len);
    buf_fini(&file);
    s = open_packed((struct data_opts){ .features = cut, .n_features = 2 }, folder);
    assert_int_equal(data_samples(s), 2);
    assert_true(data_pack_fill(s) == 1);
    assert_int_equal(data_sample(s, 0, (void *[]){ tokens, segment }, NULL), 0);
    for (int i = 0; i < T; i++) {
        assert_int_equal(tokens[i], i < 3 ? i : 2 * TOKEN + i - 3);
        assert_int_equal(segment[i], i < 3 ? 1 : 2);
    }
    assert_int_equal(data_sample(s, 1, (void *[]){ tokens, segment }, NULL), 0);
    assert_int_equal(tokens[T - 1], TOKEN + T - 1);
    data_free(s);
    kit_remove(folder);
}

/* Without packing: the mask and the positions of a padded list. */
static void list_padded_without_packing_has_a_mask(void **state)
{
    struct data_feature list[] = { features[0], features[2], features[3] };
    char *folder = kit_folder(), *glob = fs_join(folder, "*.tfrecord");
    struct data_opts opts = { .features = list, .n_features = 3, .glob = glob };
    struct data_set *s;

    (void)state;
    list[0].pad = true;
    write_records(folder, "a.tfrecord", 0, 10);
    assert_int_equal(data_open(&opts, &s, NULL), 0);
    assert_int_equal(data_samples(s), 10);
    for (uint64_t r = 0; r < 10; r++) {
        int64_t tokens[T], mask[T];
        int32_t position[T];

        assert_int_equal(data_sample(s, r, (void *[]){ tokens, mask, position }, NULL), 0);
        for (size_t i = 0; i < T; i++) {
            assert_int_equal(tokens[i], i < length_of(r) ? (int64_t)(r * TOKEN + i) : -1);
            assert_int_equal(mask[i], i < length_of(r));
            assert_int_equal(position[i], i < length_of(r) ? (int32_t)i : 0);
        }
    }
    data_free(s);
    free(glob);
    kit_remove(folder);
}

static void pack_never_contains_records_of_two_mixture_parts(void **state)
{
    char *folder = two_files(), *a = fs_join(folder, "a.tfrecord"),
         *b = fs_join(folder, "b.tfrecord");
    struct data_part parts[] = { { a, 1 }, { b, 2 } };
    struct data_set *s =
        open_packed((struct data_opts){ .origin.parts = parts, .origin.n_parts = 2 }, folder);
    unsigned seen[N] = { 0 };

    (void)state;
    for (uint64_t i = 0; i < data_samples(s); i++) {
        struct sample x;

        read_sample(s, i, &x);
        check_sample(&x, seen);
        for (int k = 0; k < x.n; k++)
            assert_int_equal(x.tokens[k] / TOKEN < N / 3, x.tokens[0] / TOKEN < N / 3);
    }
    for (uint64_t r = 0; r < N; r++)
        assert_int_equal(seen[r], length_of(r) > 0);
    data_free(s);
    free(a);
    free(b);
    kit_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pack_contains_each_record_once),
        cmocka_unit_test(pack_plan_uses_the_first_pack_with_room),
        cmocka_unit_test(pack_epoch_contains_each_record_once_for_any_reader),
        cmocka_unit_test(pack_lengths_are_kept_until_a_file_changes),
        cmocka_unit_test(pack_with_skip_bad_excludes_bad_records),
        cmocka_unit_test(pack_of_unsuitable_features_is_refused),
        cmocka_unit_test(pack_with_truncate_shortens_long_records),
        cmocka_unit_test(list_padded_without_packing_has_a_mask),
        cmocka_unit_test(pack_never_contains_records_of_two_mixture_parts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
