/* test_content.c - checksums of the content: equal files have equal ones in each folder, and a changed byte is found,
 * with its place. */
#include "data/kit.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "data/npy.h"

enum { LARGE = 40 << 20, LABEL_AT = 1 };

static const struct data_feature numbers[] = {
    { .name = "x", .stored = TENSOR_F32, .shape = { 1, { 2 } }, .fed = TENSOR_F32, .column = "x0" },
};
static const struct data_feature tokens[] = {
    { .name = "tokens", .stored = TENSOR_U16, .shape = { 1, { 8 } }, .fed = TENSOR_I64 },
};

/* The formats: how a file of `bytes` bytes or more is written, whose last byte of content is `last`. */
struct format {
    const char *name, *glob;
    struct data_opts opts;
    void (*write)(const char *folder, size_t bytes, char last);
    bool is_indexed; /* the index reads the whole content */
};

static void write_tfrecord(const char *folder, size_t bytes, char last)
{
    struct buf b = { 0 }, features = { 0 }, example = { 0 };
    char *padding = calloc(1, bytes + 1);

    assert_non_null(padding);
    kit_bytes(&features, "padding", padding, bytes);
    kit_member(&example, 1, features.data, features.len);
    tfrecord_append(&b, example.data, example.len);
    for (uint64_t i = 0; i < 20; i++)
        kit_record(&b, i);
    kit_record(&b, (uint8_t)last); /* of the same length */
    for (uint64_t i = 0; i < 100; i++)
        kit_record(&b, i);
    kit_write(folder, "t.tfrecord", b.data, b.len);
    buf_fini(&b);
    buf_fini(&features);
    buf_fini(&example);
    free(padding);
}

static void write_csv(const char *folder, size_t bytes, char last)
{
    struct buf b = { 0 };
    char *lines = malloc(bytes + 1);

    assert_non_null(lines);
    memset(lines, '\n', bytes); /* empty lines are ignored */
    buf_str(&b, "x0,x1\n9,9\n");
    buf_add(&b, lines, bytes);
    buf_printf(&b, "%c,2\n3,4\n", last);
    buf_add(&b, lines, bytes / 2);
    buf_str(&b, "5,6\n");
    kit_write(folder, "t.csv", b.data, b.len);
    buf_fini(&b);
    free(lines);
}

static void write_npy(const char *folder, size_t bytes, char last)
{
    size_t n = bytes / 8 + 20;
    struct tensor t = { .dtype = TENSOR_F32, .shape = { 2, { (int64_t)n, 2 } } };
    char *path = fs_join(folder, "x.npy");
    float *x = calloc(2 * n, sizeof(*x));
    struct err err;

    assert_non_null(x);
    t.data = x;
    x[2 * n - 1] = (float)last;
    if (npy_write(path, &t, &err) < 0)
        fail_msg("%s", err.text);
    free(x);
    free(path);
}

static void write_tokens(const char *folder, size_t bytes, char last)
{
    char *text = calloc(1, bytes + 1024);

    assert_non_null(text);
    text[bytes + 1023] = last;
    kit_write(folder, "t.bin", text, bytes + 1024);
    free(text);
}

static const struct format formats[] = {
    { "tfrecord", "t.tfrecord", { .features = kit_features + LABEL_AT, .n_features = 1 }, write_tfrecord, true },
    { "csv", "t.csv", { .features = numbers, .n_features = 1, .origin = { .format = DATA_CSV, .csv_header = true } }, write_csv, true },
    { "npy", "{feature}.npy", { .features = numbers, .n_features = 1, .origin.format = DATA_NPY }, write_npy, false },
    { "tokens", "t.bin", { .features = tokens, .n_features = 1, .origin.format = DATA_TOKENS }, write_tokens, false },
};
enum { N_FORMATS = sizeof(formats) / sizeof(*formats) };

static void content_of(const struct format *f, const char *folder, const char *index, uint64_t seed,
                       uint32_t out[DATA_CONTENT_PARTS])
{
    char *glob = fs_join(folder, f->glob);
    struct data_opts opts = f->opts;
    struct data_set *s;
    struct err err;

    opts.glob = glob;
    opts.check_seed = seed;
    opts.origin.index_directory = index;
    if (data_open(&opts, &s, &err) < 0)
        fail_msg("%s: %s", f->name, err.text);
    data_content(s, out);
    data_free(s);
    free(glob);
}

static bool differ(const uint32_t *a, const uint32_t *b)
{
    return memcmp(a, b, DATA_CONTENT_PARTS * sizeof(*a)) != 0;
}

/* Compares two folders whose files differ in one byte, and one of them with itself, with a kept index too. */
static void compare_folders(const struct format *f, size_t bytes)
{
    char *a = kit_folder(), *b = kit_folder(), *index = fs_join(a, "index");
    uint32_t first[DATA_CONTENT_PARTS], second[DATA_CONTENT_PARTS];

    f->write(a, bytes, '1');
    f->write(b, bytes, '1');
    content_of(f, a, NULL, 7, first);
    content_of(f, b, NULL, 7, second);
    if (differ(first, second))
        fail_msg("%s of %zu bytes: equal files differ", f->name, bytes);
    for (int kept = 0; kept < 2; kept++) {
        content_of(f, a, index, 7, second);
        if (differ(first, second))
            fail_msg("%s of %zu bytes: with an index directory (%d) the content differs", f->name,
                     bytes, kept);
    }
    f->write(b, bytes, '7');
    content_of(f, b, NULL, 7, second);
    if (!differ(first, second))
        fail_msg("%s of %zu bytes: another value is not found", f->name, bytes);
    free(index);
    kit_remove(a);
    kit_remove(b);
}

static void one_other_value_of_a_small_set_is_found_in_every_format(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_FORMATS; i++)
        compare_folders(&formats[i], 100);
}

static void
one_other_value_of_a_large_set_is_found_if_the_index_reads_it_or_it_is_in_the_last_block(
    void **state)
{
    (void)state;
    for (size_t i = 0; i < N_FORMATS; i++)
        compare_folders(&formats[i], LARGE);
}

/* Overwrites the file with `fill` from offset 0 on in a folder of a large set of tokens. */
static void fill_tokens(const char *folder, size_t from, size_t n, char fill)
{
    char *path = fs_join(folder, "t.bin"), *bytes = malloc(n);
    int fd = open(path, O_WRONLY | O_CREAT, 0600);

    assert_true(fd >= 0 && bytes != NULL);
    memset(bytes, fill, n);
    assert_int_equal(pwrite(fd, bytes, n, (off_t)from), n);
    assert_int_equal(ftruncate(fd, 8L * LARGE), 0); /* sparse */
    close(fd);
    free(bytes);
    free(path);
}

static void other_values_in_an_eighth_of_a_large_file_are_found_with_every_seed(void **state)
{
    char *a = kit_folder(), *b = kit_folder();

    (void)state;
    fill_tokens(a, 3L * LARGE, LARGE, 'a');
    fill_tokens(b, 3L * LARGE, LARGE, 'b');
    for (uint64_t seed = 0; seed < 20; seed++) {
        uint32_t first[DATA_CONTENT_PARTS], second[DATA_CONTENT_PARTS];

        content_of(&formats[3], a, NULL, seed, first);
        content_of(&formats[3], b, NULL, seed, second);
        assert_true(differ(first, second));
    }
    kit_remove(a);
    kit_remove(b);
}

static void place_of_a_difference_is_its_file_and_range(void **state)
{
    char *a = kit_folder(), *b = kit_folder(), *glob[2] = { fs_join(a, "*.bin"), fs_join(b, "*.bin") };
    struct data_opts opts = formats[3].opts;
    char text[1600];

    (void)state;
    memset(text, 'x', sizeof(text));
    /* 2 files: 2 parts have the bytes of a region; 100: a part has a file; 300: several files */
    for (uint32_t n = 2, made = 0; n <= 300; n = n == 2 ? 100 : n + 200) {
        uint32_t content[2][DATA_CONTENT_PARTS], part = 0;
        struct data_set *s[2];
        char name[32], expected[64], place[1200];
        struct err err;

        for (; made < n; made++) {
            snprintf(name, sizeof(name), "%03u.bin", made);
            kit_write(a, name, text, sizeof(text));
            kit_write(b, name, text, sizeof(text));
        }
        snprintf(name, sizeof(name), "%03u.bin", n - 1);
        text[525] = 'y';
        kit_write(b, name, text, sizeof(text));
        text[525] = 'x';
        for (int k = 0; k < 2; k++) {
            opts.glob = glob[k];
            if (data_open(&opts, &s[k], &err) < 0)
                fail_msg("%s", err.text);
            data_content(s[k], content[k]);
        }
        while (part < DATA_CONTENT_PARTS && content[0][part] == content[1][part])
            part++;
        assert_true(part < DATA_CONTENT_PARTS);
        data_content_place(s[1], part, place, sizeof(place));
        snprintf(expected, sizeof(expected), "/%s'%s", name,
                 n == 2 ? " between offsets 500 and 550" : "");
        assert_non_null(strstr(place, expected));
        assert_true((strstr(place, "one of the files '") != NULL) == (n > 100));
        data_free(s[0]);
        data_free(s[1]);
        kit_write(b, name, text, sizeof(text));
    }
    free(glob[0]);
    free(glob[1]);
    kit_remove(a);
    kit_remove(b);
}

/* Reads all steps of an epoch in batches of one lane; adds up the checks, and counts them. */
static uint64_t checks_of(const char *folder, uint32_t lane, uint64_t every, uint32_t *n)
{
    char *glob = fs_join(folder, "t.bin");
    struct data_opts opts = formats[3].opts;
    struct data_reader_opts reads = { .shuffle = true, .global_batch = 8, .lanes = 4, .first_lane = lane, .n_lanes = 2,
                                      .first_step = 1, .last_step = 16, .prefetch = 2, .threads = lane,
                                      .check_every = every };
    const struct data_batch *b;
    struct data_reader *r;
    struct data_set *s;
    uint64_t sum = 0;
    struct err err;

    opts.glob = glob;
    if (data_open(&opts, &s, &err) < 0 || data_reader_open(s, &reads, &r, &err) < 0)
        fail_msg("%s", err.text);
    for (*n = 0;; data_release(r)) {
        assert_int_equal(data_next(r, &b, &err), 0);
        if (b == NULL)
            break;
        assert_true(b->check == 0 || (b->lane == lane && b->step % every == 0));
        sum += b->check * b->step;
        *n += b->check != 0;
    }
    data_reader_close(r);
    data_free(s);
    free(glob);
    return sum;
}

static void checks_of_all_readers_are_equal_until_the_content_differs(void **state)
{
    char *folder = kit_folder(), other[2048];
    uint64_t first;
    uint32_t n;

    (void)state;
    write_tokens(folder, 1024, '1'); /* 128 records, 16 steps */
    first = checks_of(folder, 0, 3, &n);
    assert_int_equal(n, 5);
    assert_int_equal(checks_of(folder, 2, 3, &n), first);
    first = checks_of(folder, 0, 1, &n);
    assert_int_equal(n, 16);
    memset(other, 'x', sizeof(other));
    kit_write(folder, "t.bin", other, sizeof(other));
    assert_true(checks_of(folder, 0, 1, &n) != first);
    kit_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_other_value_of_a_small_set_is_found_in_every_format),
        cmocka_unit_test(one_other_value_of_a_large_set_is_found_if_the_index_reads_it_or_it_is_in_the_last_block),
        cmocka_unit_test(other_values_in_an_eighth_of_a_large_file_are_found_with_every_seed),
        cmocka_unit_test(place_of_a_difference_is_its_file_and_range),
        cmocka_unit_test(checks_of_all_readers_are_equal_until_the_content_differs),
    };

    return cmocka_run_group_tests_name("data/content", tests, NULL, NULL);
}
