/* Formats other than plain TFRecord: gzip, CSV, NumPy, tokens. Also lists of any length, mixtures,
 * skipped bad records, temporarily failing disks, local copies. */
#include "data/kit.h"

#include <math.h>
#include <sys/stat.h>
#include <zlib.h>

#include "base/check.h"
#include "base/fault.h"
#include "data/order.h"

static struct data_set *open_opts(struct data_opts *opts, const char *folder, const char *pattern)
{
    char *glob = fs_join(folder, pattern);
    struct data_set *s = NULL;
    struct err err;

    opts->glob = glob;
    if (data_open(opts, &s, &err) < 0)
        fail_msg("%s", err.text);
    free(glob);
    return s;
}

static void refused(struct data_opts *opts, const char *folder, const char *pattern, int code,
                    const char *text)
{
    char *glob = fs_join(folder, pattern);
    struct data_set *s;
    struct err err = { .code = 0 };

    opts->glob = glob;
    if (data_open(opts, &s, &err) != code || strstr(err.text, text) == NULL)
        fail_msg("'%s' is not '%s'", err.text, text);
    free(glob);
}

static void write_text(const char *folder, const char *name, const char *text)
{
    kit_write(folder, name, text, strlen(text));
}

/* ---- gzip ---- */

/* window_bits: 31 for gzip, 15 for zlib. */
static void deflate_to(struct buf *out, const void *data, size_t n, int window_bits)
{
    uint8_t room[1 << 16];
    z_stream z = { .zalloc = Z_NULL };

    assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, window_bits, 8, 0), Z_OK);
    z.next_in = (Bytef *)(uintptr_t)data;
    z.avail_in = (uInt)n;
    z.next_out = room;
    z.avail_out = sizeof(room);
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    buf_add(out, room, sizeof(room) - z.avail_out);
    deflateEnd(&z);
}

/* Writes n records as two gzip members, split after a record. */
static void gzip_file(const char *folder, const char *name, uint64_t n, struct buf *packed)
{
    struct buf half = { 0 };

    for (uint64_t i = 0; i < n; i++) {
        kit_record(&half, i);
        if (i != n / 2 && i + 1 != n)
            continue;
        deflate_to(packed, half.data, half.len, 31);
        buf_reset(&half);
    }
    kit_write(folder, name, packed->data, packed->len);
    buf_fini(&half);
}

static void check_ids(struct data_set *s, uint64_t n)
{
    assert_int_equal(data_records(s), n);
    for (uint64_t i = 0; i < n; i++) {
        float image[KIT_PIXELS];
        int64_t id = -1;
        struct err err;

        if (data_sample(s, i, (void *[]){ image, &id }, &err) < 0)
            fail_msg("%s", err.text);
        assert_int_equal(id, i);
        assert_true(image[1] == (float)kit_pixel(i, 1) * 0.5f - 1);
    }
}

static void gzip_file_is_unpacked_to_memory_or_cache_directory(void **state)
{
    char *folder = kit_folder(), *cache = fs_join(folder, "cache");
    struct buf packed = { 0 };
    struct data_opts opts = { .features = kit_features, .n_features = KIT_FEATURES };
    char digest[65];
    struct data_set *s;

    (void)state;
    gzip_file(folder, "a.tfrecord.gz", 100, &packed);
    refused(&opts, folder, "*.gz", ERR_INPUT, "is compressed with gzip");
    opts.origin.cache = DATA_CACHE_MEMORY;
    s = open_opts(&opts, folder, "*.gz");
    strcpy(digest, data_digest(s));
    check_ids(s, 100);
    check_ids(s, 100); /* reads from the cache */
    data_free(s);
    opts.origin.cache = DATA_CACHE_DISK;
    opts.origin.cache_directory = opts.origin.index_directory = cache;
    for (int again = 0; again < 2; again++) {
        s = open_opts(&opts, folder, "*.gz");
        assert_string_equal(data_digest(s), digest); /* the digest of the original, not the copy */
        check_ids(s, 100);
        data_free(s);
        /* a second copy would fail */
        assert_int_equal(fault_arm(again == 0 ? "fs.write@1+" : NULL, NULL), 0);
    }
    buf_fini(&packed);
    free(cache);
    kit_remove(folder);
}

static void zlib_file_is_unpacked_and_a_damaged_one_is_refused(void **state)
{
    char *folder = kit_folder();
    struct buf plain = { 0 }, packed = { 0 };
    struct data_opts opts = { .features = kit_features, .n_features = KIT_FEATURES };
    struct data_set *s;

    (void)state;
    for (uint64_t i = 0; i < 100; i++)
        kit_record(&plain, i);
    deflate_to(&packed, plain.data, plain.len, 15);
    kit_write(folder, "a", packed.data, packed.len);
    refused(&opts, folder, "a", ERR_INPUT, "is compressed with zlib");
    opts.origin.cache = DATA_CACHE_MEMORY;
    s = open_opts(&opts, folder, "a");
    check_ids(s, 100);
    data_free(s);
    kit_write(folder, "a", packed.data, packed.len / 2);
    refused(&opts, folder, "a", ERR_CORRUPT, "zlib: the file is truncated");
    packed.data[packed.len / 2] ^= 0x55;
    kit_write(folder, "a", packed.data, packed.len);
    refused(&opts, folder, "a", ERR_CORRUPT, "/a'");
    buf_fini(&plain);
    buf_fini(&packed);
    kit_remove(folder);
}

/* The first bytes of a TFRecord file are those of a compressed file where its first record has such a length. */
static void plain_file_that_begins_like_a_compressed_one_is_read(void **state)
{
    static const size_t lengths[] = { 0x9c78, 0x8b1f };
    char *folder = kit_folder();
    struct data_opts opts = { .features = kit_features, .n_features = KIT_FEATURES };

    (void)state;
    for (size_t k = 0; k < COUNT_OF(lengths); k++) {
        struct buf features = { 0 }, example = { 0 }, file = { 0 };
        uint8_t image[KIT_PIXELS];
        char *filler = calloc(1, lengths[k]);
        struct data_set *s;

        for (size_t i = 0; i < KIT_PIXELS; i++)
            image[i] = kit_pixel(0, i);
        assert_non_null(filler);
        for (size_t n = lengths[k] - 200; example.len != lengths[k];
             n += lengths[k] - example.len) {
            buf_reset(&features);
            buf_reset(&example);
            kit_bytes(&features, "image", image, sizeof(image));
            kit_ints(&features, "id", &(int64_t){ 0 }, 1);
            kit_bytes(&features, "filler", filler, n);
            kit_member(&example, 1, features.data, features.len);
        }
        tfrecord_append(&file, example.data, example.len);
        kit_write(folder, "a", file.data, file.len);
        s = open_opts(&opts, folder, "a");
        check_ids(s, 1);
        data_free(s);
        free(filler);
        buf_fini(&features);
        buf_fini(&example);
        buf_fini(&file);
    }
    kit_remove(folder);
}

/* "x^" is the begin of a zlib stream too. */
static void csv_file_that_begins_like_a_zlib_stream_is_read(void **state)
{
    struct data_feature f = { .name = "x^2", .stored = TENSOR_F32, .fed = TENSOR_F32, .scale = 1 };
    struct data_opts opts = { .origin = { .format = DATA_CSV, .csv_header = true }, .features = &f, .n_features = 1 };
    char *folder = kit_folder();
    struct data_set *s;
    float x = 0;

    (void)state;
    write_text(folder, "a.csv", "x^2,y\n4,1\n");
    s = open_opts(&opts, folder, "a.csv");
    assert_int_equal(data_sample(s, 0, (void *[]){ &x }, NULL), 0);
    assert_true(x == 4);
    data_free(s);
    kit_remove(folder);
}

static void gzip_damaged_file_is_refused_and_leaves_no_copy(void **state)
{
    char *folder = kit_folder(), *cache = fs_join(folder, "cache"), *copies = fs_join(cache, "*");
    struct data_opts opts = { .features = kit_features, .n_features = KIT_FEATURES };
    struct buf packed = { 0 };

    (void)state;
    gzip_file(folder, "a", 50, &packed);
    for (size_t at = 2; at < packed.len; at += 97) {
        struct data_set *s = NULL;
        char *glob = fs_join(folder, "b");
        struct err err;

        opts.glob = glob;
        opts.origin.cache = at % 2 == 0 ? DATA_CACHE_DISK : DATA_CACHE_MEMORY;
        opts.origin.cache_directory = at % 2 == 0 ? cache : NULL;
        kit_write(folder, "b", packed.data, at); /* truncated */
        assert_int_equal(data_open(&opts, &s, &err), ERR_CORRUPT);
        assert_text(err, "gzip: the file is truncated");
        packed.data[at] ^= 0x55;
        kit_write(folder, "b", packed.data, packed.len);
        /* some bytes of a header are ignored */
        if (data_open(&opts, &s, &err) == 0) {
            check_ids(s, 50);
            data_free(s);
        } else {
            assert_text(err, "/b'");
        }
        packed.data[at] ^= 0x55;
        free(glob);
    }
    buf_fini(&packed);
    free(copies);
    free(cache);
    kit_remove(folder);
}

/* ---- CSV ---- */

static const struct data_feature csv_features[] = {
    { .name = "x", .stored = TENSOR_F32, .shape = { 1, { 2 } }, .fed = TENSOR_F32, .scale = 1 },
    { .name = "label", .stored = TENSOR_I64, .fed = TENSOR_I64 },
};

static void csv_lines_are_records(void **state)
{
    static const struct {
        const char *text;
        char delimiter;
    } files[] = {
        { "label,skip,x,x2\n3,a,1.5,-2e3\n-4,\"b,\n\"\"c\",0.1,7\n", 0 },
        { "\xef\xbb\xbflabel,skip,x,x2\r\n3,a,1.5,-2e3\r\n\r\n\"-4\",, 0.1 ,7", 0 },
        { "\n\nskip;label;x;x2\n;3;1.5;-2e3\n;-4;0.1;7\n\n", ';' },
    };
    char *folder = kit_folder();

    (void)state;
    for (size_t k = 0; k < 3; k++) {
        struct data_opts opts = { .origin.format = DATA_CSV,
                                  .origin.csv_header = true,
                                  .features = csv_features,
                                  .origin.csv_delimiter = files[k].delimiter,
                                  .n_features = 2 };
        static const float expected[2][2] = { { 1.5f, -2e3f }, { 0.1f, 7 } };
        static const int64_t labels[] = { 3, -4 };
        struct data_set *s;

        write_text(folder, "a.csv", files[k].text);
        s = open_opts(&opts, folder, "a.csv");
        assert_int_equal(data_records(s), 2);
        for (uint64_t i = 0; i < 2; i++) {
            float x[2];
            int64_t label;
            struct err err;

            if (data_sample(s, i, (void *[]){ x, &label }, &err) < 0)
                fail_msg("%s", err.text);
            assert_memory_equal(x, expected[i], sizeof(x));
            assert_int_equal(label, labels[i]);
        }
        data_free(s);
    }
    kit_remove(folder);
}

static void csv_without_header_has_numbered_columns(void **state)
{
    static const struct data_feature features[] = {
        { .name = "x", .stored = TENSOR_U8, .shape = { 1, { 3 } }, .fed = TENSOR_F32, .scale = 1,
          .column = "1" },
        { .name = "y", .stored = TENSOR_I32, .fed = TENSOR_I64, .column = "0" },
    };
    struct data_opts opts = { .origin.format = DATA_CSV, .features = features, .n_features = 2 };
    char *folder = kit_folder();
    struct data_set *s;
    float x[3];
    int64_t y;

    (void)state;
    write_text(folder, "a.csv", "7,0,255,3\n8,1,2,3\n");
    write_text(folder, "b.csv", "9,4,5,6\n");
    s = open_opts(&opts, folder, "*.csv");
    assert_int_equal(data_records(s), 3);
    assert_int_equal(data_sample(s, 2, (void *[]){ x, &y }, NULL), 0);
    assert_true(x[0] == 4 && x[1] == 5 && x[2] == 6 && y == 9);
    assert_int_equal(data_sample(s, 0, (void *[]){ x, &y }, NULL), 0);
    assert_true(x[1] == 255 && y == 7);
    data_free(s);
    kit_remove(folder);
}

static void csv_invalid_file_is_refused_with_the_reason(void **state)
{
    static const struct {
        const char *text, *message;
        bool at_opening;
    } rows[] = {
        { "labl,x,y\n1,2,3\n", "has no column 'label' (did you mean 'labl'?)", true },
        { "x,label\n1,2\n", "feature 'x' needs 2 columns", false },
        { "label,x\n1,2\n", "feature 'x' needs 2 columns from 'x' on, found 1", true },
        { "label,x,y\n", "contain no record", true },
        { "label,x,y\n1,\"2,3\n", "unterminated quote", true },
        { "label,x,y\n1,2\n", "a line of 2 fields, expected 3", false },
        { "label,x,y\n1,2,3,4\n", "a line of 4 fields, expected 3", false },
        { "label,x,y\n1,2,z\n", "feature 'x': value 1 is 'z', expected a number", false },
        { "label,x,y\n1,2,z\n", "a.csv': line 2: record 0: feature 'x'", false },
        { "label,x,y\n1.5,2,3\n", "feature 'label': value 0 is '1.5', expected an integer", false },
        { "label,x,y\n,2,3\n", "feature 'label': value 0 is '', expected a number", false },
        { "label,x,y\n99999999999999999999,2,3\n", "expected an integer", false },
    };
    struct data_opts opts = { .origin.format = DATA_CSV,
                              .origin.csv_header = true,
                              .features = csv_features,
                              .n_features = 2 };
    char *folder = kit_folder(), *glob = fs_join(folder, "a.csv");

    (void)state;
    opts.glob = glob;
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        struct data_set *s = NULL;
        float x[2];
        int64_t label;
        struct err err = { .code = 0 };
        int rc;

        write_text(folder, "a.csv", rows[i].text);
        rc = data_open(&opts, &s, &err);
        if (rc == 0)
            rc = data_sample(s, 0, (void *[]){ x, &label }, &err);
        if (i == 1) { /* x is column 0; label is the second of its two columns */
            assert_int_equal(rc, 0);
            assert_true(x[0] == 1 && x[1] == 2 && label == 2);
        } else if (rc >= 0 || strstr(err.text, rows[i].message) == NULL ||
                   (s == NULL) != rows[i].at_opening || strstr(err.text, "a.csv'") == NULL) {
            fail_msg("row %zu: '%s'", i, rc < 0 ? err.text : "no error");
        }
        data_free(s);
    }
    free(glob);
    kit_remove(folder);
}

static void csv_nul_byte_in_a_number_is_refused(void **state)
{
    static const char text[] = "label,x,y\n1,2\0009,3\n";
    struct data_opts opts = { .origin.format = DATA_CSV,
                              .origin.csv_header = true,
                              .features = csv_features,
                              .n_features = 2 };
    char *folder = kit_folder();
    struct data_set *s;
    float x[2];
    int64_t label;
    struct err err;

    (void)state;
    kit_write(folder, "a.csv", text, sizeof(text) - 1);
    s = open_opts(&opts, folder, "a.csv");
    assert_int_equal(data_sample(s, 0, (void *[]){ x, &label }, &err), ERR_INPUT);
    assert_text(err, "feature 'x': value 0 contains a NUL byte");
    data_free(s);
    kit_remove(folder);
}

static void csv_feature_with_two_columns_of_its_name_is_refused(void **state)
{
    struct data_opts opts = { .origin.format = DATA_CSV,
                              .origin.csv_header = true,
                              .features = csv_features,
                              .n_features = 2 };
    char *folder = kit_folder();

    (void)state;
    write_text(folder, "a.csv", "label,x,y,x,z\n1,2,3,4,5\n");
    refused(&opts, folder, "a.csv", ERR_INPUT, "a.csv': columns 1 and 3 are both called 'x'");
    write_text(folder, "b.csv", "label,x,y,z,z\n1,2,3,4,5\n"); /* no feature reads z */
    data_free(open_opts(&opts, folder, "b.csv"));
    kit_remove(folder);
}

static void csv_header_of_a_file_without_records_is_checked(void **state)
{
    struct data_opts opts = { .origin.format = DATA_CSV,
                              .origin.csv_header = true,
                              .features = csv_features,
                              .n_features = 2 };
    char *folder = kit_folder();

    (void)state;
    write_text(folder, "a.csv", "label,x,y\n1,2,3\n");
    write_text(folder, "b.csv", "label,x,y\n");
    write_text(folder, "c.csv", "\n");
    data_free(open_opts(&opts, folder, "*.csv"));
    write_text(folder, "b.csv", "label,y,x\n");
    refused(&opts, folder, "*.csv", ERR_INPUT, "b.csv': feature 'x' needs 2 columns");
    write_text(folder, "b.csv", "x,y,label\n");
    refused(&opts, folder, "*.csv", ERR_INPUT, "b.csv' has other columns than");
    kit_remove(folder);
}

static void csv_files_with_other_names_inside_a_feature_are_refused(void **state)
{
    struct data_opts opts = { .origin.format = DATA_CSV,
                              .origin.csv_header = true,
                              .features = csv_features,
                              .n_features = 2 };
    char *folder = kit_folder();

    (void)state;
    write_text(folder, "a.csv", "label,x,y,z\n1,2,3,4\n");
    write_text(folder, "b.csv", "label,x,z,y\n1,2,3,4\n"); /* the feature x is the columns x and y */
    refused(&opts, folder, "*.csv", ERR_INPUT, "b.csv' has other columns than");
    refused(&opts, folder, "*.csv", ERR_INPUT, "column 2 is 'z', expected 'y'");
    write_text(folder, "b.csv", "label,x,other,z\n1,2,3,4\n");
    refused(&opts, folder, "*.csv", ERR_INPUT, "column 2 is 'other', expected 'y'");
    write_text(folder, "b.csv", "label,x,\"y\",other\n1,2,3,4\n"); /* no feature reads the last column */
    data_free(open_opts(&opts, folder, "*.csv"));
    kit_remove(folder);
}

static void file_that_is_no_csv_is_named(void **state)
{
    static const struct {
        const char *bytes, *text;
    } files[] = {
        { "\xff\xfe" "a", "a.csv' is text in UTF-16, expected a CSV file in UTF-8: save it as UTF-8" },
        { "PK\3\4 sheet", "a.csv' is a zip archive, as .npz, .pt and .xlsx are, expected a CSV file in UTF-8: export it as CSV" },
        { "PAR1", "a.csv' is a Parquet file" },
        { "\xfd" "7zXZ\0", "a.csv' is an xz stream" },
        { "\n <!DOCTYPE html><p>404", "a.csv' is a page in HTML or XML" },
        { "version https://git-lfs.github.com/spec/v1\n", "fetch the file with git lfs pull" },
    };
    struct data_opts opts = { .origin.format = DATA_CSV, .origin.csv_header = true, .features = csv_features, .n_features = 2 };
    char *folder = kit_folder();

    (void)state;
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        write_text(folder, "a.csv", files[i].bytes);
        refused(&opts, folder, "a.csv", ERR_INPUT, files[i].text);
    }
    kit_remove(folder);
}

/* ---- .npy ---- */

static void npy_types_without_numbers_are_refused_with_a_remedy(void **state)
{
    static const struct {
        const char *descr, *text;
    } files[] = {
        { "'>f4'", "its elements are '>f4'; supported are little-endian" },
        { "'|O'", "its elements are Python objects" },
        { "[('a', '<f4'), ('b', '<f4')]", "its elements are structures; save a file for each field" },
        { "'<U7'", "its elements are '<U7'; supported" },
    };
    struct data_feature f = { .name = "x", .stored = TENSOR_F32, .fed = TENSOR_F32, .scale = 1 };
    struct data_opts opts = { .origin.format = DATA_NPY, .features = &f, .n_features = 1 };
    char *folder = kit_folder();

    (void)state;
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        struct buf b = { 0 };
        char text[128];
        int len =
            snprintf(text, sizeof(text), "{'descr': %s, 'fortran_order': False, 'shape': (1,), }\n",
                     files[i].descr);

        buf_add(&b, "\x93NUMPY\x01\x00", 8);
        buf_add(&b, (uint8_t[]){ (uint8_t)len, 0 }, 2);
        buf_add(&b, text, (size_t)len);
        kit_write(folder, "x.npy", b.data, b.len);
        refused(&opts, folder, "{feature}.npy", ERR_UNSUPPORTED, files[i].text);
        buf_fini(&b);
    }
    kit_remove(folder);
}

static void npy_file(const char *folder, const char *name, const char *descr, const char *shape,
                     const void *data, size_t n)
{
    struct buf b = { 0 };
    char text[128];
    int len = snprintf(text, sizeof(text),
                       "{'descr': '%s', 'fortran_order': False, 'shape': %s, }\n", descr, shape);

    buf_add(&b, "\x93NUMPY\x01\x00", 8);
    buf_add(&b, (uint8_t[]){ (uint8_t)len, 0 }, 2);
    buf_add(&b, text, (size_t)len);
    buf_add(&b, data, n);
    kit_write(folder, name, b.data, b.len);
    buf_fini(&b);
}

static void feature_name_with_special_characters_names_its_file(void **state)
{
    static const float x[] = { 1, 2, 3 };
    struct data_feature feature = { .name = "x[1]?", .stored = TENSOR_F32, .fed = TENSOR_F32, .scale = 1 };
    struct data_opts opts = { .features = &feature, .n_features = 1, .origin.format = DATA_NPY };
    char *folder = kit_folder();
    struct data_set *s;

    (void)state;
    npy_file(folder, "x[1]?-0.npy", "<f4", "(1,)", x, 4);
    npy_file(folder, "x1a-0.npy", "<f4", "(2,)", x, 8); /* which the name as a pattern would match */
    s = open_opts(&opts, folder, "{feature}-*.npy");
    assert_int_equal(data_records(s), 1);
    data_free(s);
    kit_remove(folder);
}

static void pattern_that_is_the_name_of_a_file_is_this_file(void **state)
{
    struct data_opts opts = { .features = kit_features, .n_features = KIT_FEATURES };
    struct buf records = { 0 };
    char *folder = kit_folder();
    struct data_set *s;

    (void)state;
    kit_record(&records, 0);
    kit_write(folder, "part[1].tfrecord", records.data, records.len);
    kit_record(&records, 1);
    kit_write(folder, "part1.tfrecord", records.data, records.len);
    s = open_opts(&opts, folder, "part[1].tfrecord");
    assert_int_equal(data_records(s), 1);
    data_free(s);
    s = open_opts(&opts, folder, "part\\[1\\].tfrecord");
    assert_int_equal(data_records(s), 1);
    data_free(s);
    s = open_opts(&opts, folder, "part[0-9].tfrecord");
    assert_int_equal(data_records(s), 2);
    data_free(s);
    buf_fini(&records);
    kit_remove(folder);
}

/* Writes a file of one record for each of the names, which have a space in between; returns how many they are. */
static uint64_t write_shards(const char *folder, const char *files)
{
    char *names = strdup(files), *rest = names, *name;
    uint64_t n = 0;

    while ((name = strsep(&rest, " ")) != NULL) {
        char *slash = strchr(name, '/'), *in;
        struct err err;

        if (slash != NULL) {
            *slash = '\0';
            in = fs_join(folder, name);
            assert_int_equal(fs_mkdirs(in, &err), 0);
            free(in);
            *slash = '/';
        }
        kit_file(folder, name, n++, 1);
    }
    free(names);
    return n;
}

static void absent_file_of_a_set_whose_names_state_its_size_is_named(void **state)
{
    static const struct {
        const char *files, *pattern, *absent; /* absent NULL: complete */
    } cases[] = {
        { "a-00000-of-00003 a-00001-of-00003 a-00002-of-00003", "a-*", NULL },
        { "a-00001-of-00003 a-00002-of-00003", "a-*", "a-00000-of-00003' is absent: 2 of the 3 files" },
        { "a-00000-of-00003 a-00002-of-00003", "*", "a-00001-of-00003' is absent: 2 of the 3 files" },
        { "a-00000-of-00003 a-00001-of-00003", "a-*-of-*", "a-00002-of-00003' is absent: 2 of the 3 files" },
        { "a-00000-of-00900", "a-*", "a-00001-of-00900' is absent: 1 of the 900 files" },
        { "a-00000-of-00003 a-00001-of-00003", "a-0000[01]-of-*", NULL }, /* the pattern leaves it out */
        { "a-00000-of-00003 a-00001-of-00003", "a-0000?-of-00003", "a-00002-of-00003'" },
        { "a-00000-of-00003", "a-00000-of-00003", NULL },
        { "a-1-of-2.tfrecord a-2-of-2.tfrecord", "*.tfrecord", NULL }, /* numbered from 1 */
        { "a-1-of-3 a-3-of-3", "a-*", "a-2-of-3'" },
        { "a-00000-of-00002.gz a-00001-of-00002.gz b-00000-of-00002.gz", "*.gz", "b-00001-of-00002.gz'" },
        { "a-00000-of-00002 a-00000-of-00003 a-00001-of-00002 a-00001-of-00003", "a-*-of-00003", "a-00002-of-00003'" },
        { "p/a-00000-of-00002 q/a-00001-of-00002", "[pq]/a-*", NULL }, /* one set in two folders */
        { "p/a-00000-of-00003 q/a-00002-of-00003", "[pq]/a-*", "a-00001-of-00003'" },
        { "p/a-00000-of-00001 q/a-00000-of-00001", "*/a-*", NULL },
        { "p-of-3/a-0-of-1", "p-of-*/a-*", NULL },
        { "best-of-5 one-of-many-1 2-of-3 a-9-of-3 a-0-of-0 a-00000001-of-00000002", "*", NULL }, /* no numbers of files */
        { "a-2-of-4-00000-of-00001", "a-*", NULL },
    };
    struct data_opts opts = { .features = kit_features, .n_features = KIT_FEATURES };

    (void)state;
    for (size_t k = 0; k < COUNT_OF(cases); k++) {
        char *folder = kit_folder();
        uint64_t n = write_shards(folder, cases[k].files);

        if (cases[k].absent != NULL) {
            refused(&opts, folder, cases[k].pattern, ERR_NOENT, cases[k].absent);
        } else {
            struct data_set *s = open_opts(&opts, folder, cases[k].pattern);

            assert_int_equal(data_records(s), n);
            data_free(s);
        }
        kit_remove(folder);
    }
}

static void two_shard_sets_of_one_name_in_a_folder_are_refused_with_both_names(void **state)
{
    static const struct {
        const char *files, *pattern, *text; /* text NULL: accepted */
    } cases[] = {
        { "a-00000-of-00001 a-00000-of-00002 a-00001-of-00002", "a-*",
          "a-00000-of-00001' and '%s/a-00000-of-00002' are of two sets, of 1 and of 2 files" },
        { "a-00000-of-00001 a-00000-of-00002 a-00001-of-00002", "a-*", "a pattern for one of them, such as '%s/a-*-of-00002'" },
        { "a-00001-of-00002 a-00000-of-00001", "a-*", "of 1 and of 2 files" }, /* neither need be complete */
        { "a-00000-of-00001.csv a-00000-of-2.csv a-00001-of-2.csv", "*", "such as '%s/a-*-of-2.csv'" },
        { "a-00000-of-00001 a-00000-of-00002 a-00001-of-00002", "a-*-of-00002", NULL },
        { "a-00000-of-00001 b-00000-of-00002 b-00001-of-00002", "*", NULL },
        { "a-00000-of-00001.x a-00000-of-00002.y a-00001-of-00002.y", "*", NULL },
        { "p/a-00000-of-00001 q/a-00000-of-00002 q/a-00001-of-00002", "*/a-*", NULL }, /* of two years, say */
        { "p/a-00000-of-00001 q/a-00000-of-00001 q/a-00000-of-00002 q/a-00001-of-00002", "*/a-*", "of 1 and of 2 files" },
    };
    struct data_opts opts = { .features = kit_features, .n_features = KIT_FEATURES };

    (void)state;
    for (size_t k = 0; k < COUNT_OF(cases); k++) {
        char *folder = kit_folder(), text[4096];
        uint64_t n = write_shards(folder, cases[k].files);

        if (cases[k].text != NULL) {
            snprintf(text, sizeof(text), cases[k].text, folder);
            refused(&opts, folder, cases[k].pattern, ERR_INPUT, text);
        } else {
            data_free(open_opts(&opts, folder, cases[k].pattern));
        }
        assert_true(n > 0);
        kit_remove(folder);
    }
}

static void npy_items_are_records(void **state)
{
    static const float x[5][2] = { { 1, 2 }, { 3, 4 }, { 5, 6 }, { 7, 8 }, { 9, 10 } };
    static const int64_t y[5] = { 10, 11, 12, 13, 14 };
    struct data_opts opts = { .origin.format = DATA_NPY,
                              .features = csv_features,
                              .n_features = 2 };
    char *folder = kit_folder();
    struct data_set *s;

    (void)state;
    npy_file(folder, "x-0.npy", "<f4", "(3, 2)", x, 24);
    npy_file(folder, "x-1.npy", "<f4", "(2, 2)", x[3], 16);
    npy_file(folder, "label-0.npy", "<i8", "(3,)", y, 24);
    npy_file(folder, "label-1.npy", "<i8", "(2,)", y + 3, 16);
    s = open_opts(&opts, folder, "{feature}-*.npy");
    assert_int_equal(data_records(s), 5);
    assert_int_equal(data_files(s), 2);
    for (uint64_t i = 0; i < 5; i++) {
        float got[2];
        int64_t label;
        struct err err;

        if (data_sample(s, i, (void *[]){ got, &label }, &err) < 0)
            fail_msg("%s", err.text);
        assert_memory_equal(got, x[i], sizeof(got));
        assert_int_equal(label, y[i]);
    }
    data_free(s);
    refused(&opts, folder, "x-*.npy", ERR_INPUT, "write {feature} in place of its name");
    npy_file(folder, "label-1.npy", "<i8", "(1,)", y, 8);
    refused(&opts, folder, "{feature}-*.npy", ERR_INPUT, "has 2 items and");
    npy_file(folder, "label-1.npy", "<i8", "(2,)", y, 8);
    refused(&opts, folder, "{feature}-*.npy", ERR_CORRUPT, "has 8 bytes after its header");
    npy_file(folder, "label-1.npy", "<i4", "(2, 1)", y, 8);
    refused(&opts, folder, "{feature}-*.npy", ERR_INPUT,
            "is an array int32 [2, 1]; feature 'label' expects items int64 []");
    write_text(folder, "label-1.npy", "\x93NUMPY");
    refused(&opts, folder, "{feature}-*.npy", ERR_INPUT, "label-1.npy'");
    npy_file(folder, "label-2.npy", "<i8", "(1,)", y, 8);
    refused(&opts, folder, "{feature}-*.npy", ERR_INPUT,
            "matches 2 files for feature 'x' and 3 for 'label'");
    kit_remove(folder);
}

/* Numbers of each type of .npy files, and what features of each type get from them. */
static void npy_numbers_of_other_types_are_converted_exactly_or_refused(void **state)
{
    const struct {
        const char *descr;
        const void *bytes; /* two numbers */
        size_t width;
        enum tensor_dtype stored;
        double expected[2];
        const char *refusal; /* NULL: both numbers are read */
    } cases[] = {
        { "|i1", (int8_t[]){ -128, 127 }, 1, TENSOR_I64, { -128, 127 }, NULL },
        { "|i1", (int8_t[]){ -128, 127 }, 1, TENSOR_F32, { -128, 127 }, NULL },
        { "|i1", (int8_t[]){ 127, -1 }, 1, TENSOR_U8, { 0 }, "value 1 is -1 (int8), which uint8 cannot represent" },
        { "|b1", (uint8_t[]){ 1, 0 }, 1, TENSOR_I32, { 1, 0 }, NULL },
        { "|b1", (uint8_t[]){ 1, 0 }, 1, TENSOR_U8, { 1, 0 }, NULL },
        { "|u1", (uint8_t[]){ 255, 7 }, 1, TENSOR_F32, { 255, 7 }, NULL },
        { "<i2", (int16_t[]){ -32768, 255 }, 2, TENSOR_I32, { -32768, 255 }, NULL },
        { "<i2", (int16_t[]){ 255, 256 }, 2, TENSOR_U8, { 0 }, "value 1 is 256 (int16)" },
        { "<u2", (uint16_t[]){ 65535, 0 }, 2, TENSOR_F32, { 65535, 0 }, NULL },
        { "<i4", (int32_t[]){ INT32_MIN, 16777216 }, 4, TENSOR_F32, { INT32_MIN, 16777216 }, NULL },
        { "<i4", (int32_t[]){ 1, 16777217 }, 4, TENSOR_F32, { 0 }, "value 1 is 16777217 (int32), which float32 cannot represent" },
        { "<i4", (int32_t[]){ INT32_MIN, 5 }, 4, TENSOR_I64, { INT32_MIN, 5 }, NULL },
        { "<u4", (uint32_t[]){ 1, UINT32_MAX }, 4, TENSOR_I32, { 0 }, "value 1 is 4294967295 (uint32)" },
        { "<i8", (int64_t[]){ 0, INT64_MAX }, 8, TENSOR_F32, { 0 }, "value 1 is 9223372036854775807 (int64)" },
        { "<i8", (int64_t[]){ INT64_MIN, -9 }, 8, TENSOR_F32, { -0x1p63, -9 }, NULL },
        { "<u8", (uint64_t[]){ 1ull << 63, 0 }, 8, TENSOR_F32, { 0x1p63, 0 }, NULL },
        { "<u8", (uint64_t[]){ 3, 1ull << 63 }, 8, TENSOR_I64, { 0 }, "value 1 is 9223372036854775808 (uint64)" },
        { "<u8", (uint64_t[]){ UINT64_MAX, 0 }, 8, TENSOR_F32, { 0 }, "value 0 is 18446744073709551615 (uint64)" },
        { "<f2", (uint16_t[]){ 0x7bff, 0x8001 }, 2, TENSOR_F32, { 65504, -0x1p-24 }, NULL },
        { "<f2", (uint16_t[]){ 0xc000, 0x3c00 }, 2, TENSOR_I64, { -2, 1 }, NULL },
        { "<f2", (uint16_t[]){ 0xc000, 0x3800 }, 2, TENSOR_I64, { 0 }, "value 1 is 0.5 (float16), which int64 cannot represent" },
        { "<f4", (float[]){ 2, -3 }, 4, TENSOR_I32, { 2, -3 }, NULL },
        { "<f4", (float[]){ 0, 0x1p31f }, 4, TENSOR_I32, { 0 }, "value 1 is 2.14748365e+09 (float32)" },
        { "<f8", (double[]){ 0.1, (double)INFINITY }, 8, TENSOR_F32, { (double)0.1f, (double)INFINITY }, NULL },
        { "<f8", (double[]){ 0, 1e300 }, 8, TENSOR_F32, { 0 }, "value 1 is 1.0000000000000001e+300 (float64)" },
        { "<f8", (double[]){ -0x1p63, 255 }, 8, TENSOR_I64, { -0x1p63, 255 }, NULL },
        { "<f8", (double[]){ 255, (double)NAN }, 8, TENSOR_U8, { 0 }, "value 1 is nan (float64)" },
    };
    char *folder = kit_folder();

    (void)state;
    for (size_t k = 0; k < COUNT_OF(cases); k++) {
        struct data_feature x = { .name = "x", .stored = cases[k].stored, .shape = { 1, { 2 } }, .fed = cases[k].stored };
        struct data_opts opts = { .origin.format = DATA_NPY, .features = &x, .n_features = 1 };
        struct data_set *s;
        struct err err;
        double got[2];
        int64_t out[2];

        x.scale = x.fed == TENSOR_F32;
        npy_file(folder, "x.npy", cases[k].descr, "(1, 2)", cases[k].bytes, 2 * cases[k].width);
        s = open_opts(&opts, folder, "{feature}.npy");
        if (data_sample(s, 0, (void *[]){ out }, &err) < 0) {
            if (cases[k].refusal == NULL)
                fail_msg("%zu: %s", k, err.text);
            assert_int_equal(err.code, ERR_INPUT);
            assert_text(err, cases[k].refusal);
            assert_text(err, "x.npy': record 0 at offset");
        } else {
            assert_null(cases[k].refusal);
            for (size_t i = 0; i < 2; i++) {
                got[i] = x.fed == TENSOR_F32   ? (double)((float *)(void *)out)[i]
                         : x.fed == TENSOR_I64 ? (double)out[i]
                         : x.fed == TENSOR_I32 ? (double)((int32_t *)(void *)out)[i]
                                               : (double)((uint8_t *)(void *)out)[i];
                if (got[i] != cases[k].expected[i])
                    fail_msg("%zu: value %zu is %.17g, expected %.17g", k, i, got[i],
                             cases[k].expected[i]);
            }
        }
        data_free(s);
    }
    kit_remove(folder);
}

static void npy_number_of_one_of_two_arrays_names_its_own_file(void **state)
{
    struct data_feature features[] = {
        { .name = "a", .stored = TENSOR_F32, .shape = { 1, { 2 } }, .fed = TENSOR_F32, .scale = 1 },
        { .name = "b", .stored = TENSOR_I64, .fed = TENSOR_I64 },
    };
    struct data_opts opts = { .origin.format = DATA_NPY, .features = features, .n_features = 2 };
    char *folder = kit_folder();
    float a[2];
    int64_t b;
    struct data_set *s;
    struct err err;

    (void)state;
    npy_file(folder, "a.npy", "<f8", "(1, 2)", (double[]){ 0, 1e300 }, 16);
    npy_file(folder, "b.npy", "<i8", "(1,)", (int64_t[]){ 3 }, 8);
    s = open_opts(&opts, folder, "{feature}.npy");
    assert_int_equal(data_sample(s, 0, (void *[]){ a, &b }, &err), ERR_INPUT);
    assert_text(err, "a.npy': record 0 at offset");
    assert_text(err, "feature 'a': value 1 is");
    assert_null(strstr(err.text, "b.npy"));
    data_free(s);
    npy_file(folder, "a.npy", "<f8", "(1, 2)", (double[]){ 0, 1 }, 16);
    s = open_opts(&opts, folder, "{feature}.npy");
    data_set_range(s, 1, &(struct data_range){ .least = 0, .greatest = 2, .what = "labels" });
    assert_int_equal(data_sample(s, 0, (void *[]){ a, &b }, &err), ERR_INPUT);
    assert_text(err, "b.npy': record 0 at offset");
    assert_text(err, "feature 'b': value 0 is 3, expected 0 to 2");
    assert_null(strstr(err.text, "a.npy"));
    data_free(s);
    npy_file(folder, "b.npy", "<f8", "(1,)", (double[]){ 2.5 }, 8);
    s = open_opts(&opts, folder, "{feature}.npy");
    assert_int_equal(data_sample(s, 0, (void *[]){ a, &b }, &err), ERR_INPUT);
    assert_text(err, "b.npy': record 0 at offset");
    assert_null(strstr(err.text, "a.npy"));
    data_free(s);
    kit_remove(folder);
}

static void npy_bool_is_refused_for_a_float_feature(void **state)
{
    struct data_feature f = { .name = "x", .stored = TENSOR_F32, .fed = TENSOR_F32, .scale = 1 };
    struct data_opts opts = { .origin.format = DATA_NPY, .features = &f, .n_features = 1 };
    char *folder = kit_folder();

    (void)state;
    npy_file(folder, "x.npy", "|b1", "(2,)", "\1\0", 2);
    refused(&opts, folder, "{feature}.npy", ERR_INPUT, "set it to uint8");
    f.stored = TENSOR_U8;
    data_free(open_opts(&opts, folder, "{feature}.npy"));
    kit_remove(folder);
}

/* Files of a feature may have different types; the cache has converted numbers. */
static void npy_files_of_different_types_are_one_set(void **state)
{
    static const float x[] = { 1, 2 };
    static const double more[] = { 3, 4 };
    struct data_feature f = { .name = "x", .stored = TENSOR_F32, .fed = TENSOR_F32, .scale = 1 };
    struct data_opts opts = { .origin.format = DATA_NPY, .origin.cache = DATA_CACHE_MEMORY, .features = &f, .n_features = 1 };
    char *folder = kit_folder();
    struct data_set *s;

    (void)state;
    npy_file(folder, "x-0.npy", "<f4", "(2,)", x, sizeof(x));
    npy_file(folder, "x-1.npy", "<f8", "(2,)", more, sizeof(more));
    s = open_opts(&opts, folder, "{feature}-*.npy");
    for (uint64_t i = 0; i < 8; i++) {
        struct err err;
        float got;

        if (data_sample(s, i % 4, (void *[]){ &got }, &err) < 0)
            fail_msg("%s", err.text);
        assert_true(got == (float)(i % 4 + 1));
    }
    data_free(s);
    kit_remove(folder);
}

/* ---- tokens ---- */

static void token_file_windows_are_records(void **state)
{
    enum { T = 4, N = 14 };
    static const struct data_feature features[] = {
        { .name = "labels", .stored = TENSOR_U16, .shape = { 1, { T } }, .fed = TENSOR_I64 },
        { .name = "tokens", .stored = TENSOR_U16, .shape = { 1, { T } }, .fed = TENSOR_I32 },
    };
    struct data_opts opts = { .origin.format = DATA_TOKENS, .features = features, .n_features = 2 };
    char *folder = kit_folder();
    uint16_t text[N];
    struct data_set *s;

    (void)state;
    for (uint16_t i = 0; i < N; i++)
        text[i] = (uint16_t)(65000 + i);
    kit_write(folder, "a.bin", text, sizeof(text));
    kit_write(folder, "b.bin", text, 2 * (T + 1));
    kit_write(folder, "c.bin", text, 2 * T); /* the last label is absent: no record */
    s = open_opts(&opts, folder, "*.bin");
    assert_int_equal(data_records(s), 3 + 1);
    for (uint64_t i = 0; i < 4; i++) {
        int64_t labels[T];
        int32_t tokens[T];

        assert_int_equal(data_sample(s, i, (void *[]){ labels, tokens }, NULL), 0);
        for (int k = 0; k < T; k++) {
            assert_int_equal(tokens[k], 65000 + (int)(i % 3) * T + k);
            assert_int_equal(labels[k], tokens[k] + 1);
        }
    }
    data_free(s);
    kit_write(folder, "c.bin", text, 3);
    refused(&opts, folder, "*.bin", ERR_INPUT, "has 3 bytes, expected a multiple of 2");
    kit_remove(folder);
}

static void token_file_that_begins_with_the_header_of_another_format_is_refused(void **state)
{
    static const struct data_feature feature = { .name = "tokens", .stored = TENSOR_U16, .shape = { 1, { 4 } },
                                                 .fed = TENSOR_I64 };
    static const struct {
        char bytes[16];
        const char *text; /* NULL: accepted */
    } cases[] = {
        { "\x93NUMPY\1\0v\0{'des", "a.bin' is a .npy file, expected tokens of uint16" },
        { "\x88\xd8\x34\x01\1\0\0\0\x0a", "begins with the header of llm.c, 1024 bytes" },
        { "\x88\xd8\x34\x01\2\0\0\0\x0a", NULL }, /* the token 55432 */
        { "\xa1\xd9\x34\x01\7\0\0\0\x0a", "tail -c +1025" },
        { "PK\3\4\x14", "zip" },
        { "PAR1", "Parquet" },
        { "PAR2", NULL },
    };
    struct data_opts opts = { .origin.format = DATA_TOKENS, .features = &feature, .n_features = 1 };
    char *folder = kit_folder();

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        kit_write(folder, "a.bin", cases[i].bytes, sizeof(cases[i].bytes));
        if (cases[i].text != NULL)
            refused(&opts, folder, "a.bin", ERR_INPUT, cases[i].text);
        else
            data_free(open_opts(&opts, folder, "a.bin"));
    }
    kit_remove(folder);
}

/* ---- lists of any length ---- */

static void lists_shorter_are_padded_and_longer_are_truncated(void **state)
{
    static const struct data_feature features[] = {
        { .name = "i", .stored = TENSOR_I64, .shape = { 1, { 4 } }, .fed = TENSOR_I64, .pad = true,
          .truncate = true, .pad_value = -1 },
        { .name = "f", .stored = TENSOR_F32, .shape = { 1, { 4 } }, .fed = TENSOR_F32, .scale = 1,
          .pad = true, .truncate = true, .pad_value = 0.5 },
        { .name = "n", .stored = TENSOR_I64, .fed = TENSOR_I64, .derived = DATA_LENGTH, .of = "i" },
    };
    struct data_opts opts = { .features = features, .n_features = 3 };
    char *folder = kit_folder();
    struct buf file = { 0 };
    struct data_set *s;

    (void)state;
    for (size_t n = 0; n < 7; n++) { /* n values each; with n = 0 the feature is absent */
        struct buf list = { 0 }, example = { 0 };
        int64_t i[7] = { 10, 11, 12, 13, 14, 15, 16 };
        float f[7] = { 0, 1, 2, 3, 4, 5, 6 };

        if (n > 0) {
            kit_ints(&list, "i", i, n);
            kit_floats(&list, "f", f, n);
        }
        kit_member(&example, 1, list.data, list.len);
        tfrecord_append(&file, example.data, example.len);
        buf_fini(&list);
        buf_fini(&example);
    }
    kit_write(folder, "a", file.data, file.len);
    for (int cached = 0; cached < 2; cached++) {
        opts.origin.cache = cached ? DATA_CACHE_MEMORY : DATA_CACHE_NONE;
        s = open_opts(&opts, folder, "a");
        for (uint64_t r = 0; r < 14; r++) {
            uint64_t n = r % 7;
            int64_t i[4], length;
            float f[4];
            struct err err;

            if (data_sample(s, n, (void *[]){ i, f, &length }, &err) < 0)
                fail_msg("%s", err.text);
            assert_int_equal(length, n < 4 ? n : 4);
            for (uint64_t k = 0; k < 4; k++) {
                assert_int_equal(i[k], k < n ? (int64_t)(10 + k) : -1);
                assert_true(f[k] == (k < n ? (float)k : 0.5f));
            }
        }
        data_free(s);
    }
    buf_fini(&file);
    kit_remove(folder);
}

/* Appends a record with a list of n items of two floats, and its row lengths or splits. */
static void ragged_record(struct buf *file, size_t n, const int64_t *rows, size_t n_rows)
{
    struct buf list = { 0 }, example = { 0 };
    float x[64];

    for (size_t i = 0; i < 2 * n; i++)
        x[i] = (float)(i + 1);
    kit_floats(&list, "x", x, 2 * n);
    kit_ints(&list, "rows", rows, n_rows);
    kit_member(&example, 1, list.data, list.len);
    tfrecord_append(file, example.data, example.len);
    buf_fini(&list);
    buf_fini(&example);
}

static void ragged_rows_are_padded_separately(void **state)
{
    enum { R = 4, C = 3 };
    static const int64_t lengths[][R] = { { 2, 0, 3, 1 }, { 3, 3, 3, 3 }, { 1, 2 }, { 0 } };
    static const size_t n_rows[] = { 4, 4, 2, 0 };
    char *folder = kit_folder();

    (void)state;
    for (int splits = 0; splits < 2; splits++) {
        struct data_feature features[] = {
            { .name = "x", .stored = TENSOR_F32, .shape = { 3, { R, C, 2 } }, .fed = TENSOR_F32,
              .scale = 1, .pad_value = -1, .rows_by = "rows",
              .rows = splits ? DATA_ROW_SPLITS : DATA_ROW_LENGTHS },
            { .name = "rows", .stored = TENSOR_I64, .shape = { 1, { R + splits } },
              .fed = TENSOR_I64, .pad = true },
        };
        struct data_opts opts = { .features = features, .n_features = 2 };
        struct buf file = { 0 };
        struct data_set *s;

        for (size_t k = 0; k < COUNT_OF(lengths); k++) {
            int64_t ends[R + 1] = { 0 };
            size_t n = 0;

            for (size_t r = 0; r < n_rows[k]; r++) {
                n += (size_t)lengths[k][r];
                ends[r + 1] = (int64_t)n;
            }
            ragged_record(&file, n, splits ? ends : lengths[k], n_rows[k] + (size_t)splits);
        }
        kit_write(folder, "a", file.data, file.len);
        buf_fini(&file);
        for (int cached = 0; cached < 2; cached++) {
            opts.origin.cache = cached ? DATA_CACHE_MEMORY : DATA_CACHE_NONE;
            s = open_opts(&opts, folder, "a");
            for (uint64_t k = 0; k < 2 * COUNT_OF(lengths); k++) {
                float x[R][C][2], next = 1;
                int64_t rows[R + 1];
                struct err err;

                if (data_sample(s, k % 4, (void *[]){ x, rows }, &err) < 0)
                    fail_msg("%s", err.text);
                for (size_t r = 0; r < R; r++)
                    for (size_t i = 0; i < C * 2; i++) {
                        bool is_there = r < n_rows[k % 4] && i < 2 * (size_t)lengths[k % 4][r];

                        assert_true(x[r][i / 2][i % 2] == (is_there ? next : -1));
                        next += is_there;
                    }
            }
            data_free(s);
        }
    }
    kit_remove(folder);
}

static void ragged_rows_with_invalid_lengths_are_refused(void **state)
{
    static const struct {
        enum data_rows kind;
        size_t n;
        int64_t rows[4];
        const char *text;
    } bad[] = {
        { DATA_ROW_LENGTHS, 5, { 2, 4 }, "row 1 has 4 items according to 'rows', expected 0 to 3" },
        { DATA_ROW_LENGTHS, 5, { -1, 3 }, "row 0 has -1 items" },
        { DATA_ROW_LENGTHS, 5, { 2, 2 }, "has 5 items, but its rows according to 'rows' have 4" },
        { DATA_ROW_SPLITS, 5, { 1, 3, 5 }, "the splits of 'rows' begin with 1, expected 0" },
        { DATA_ROW_SPLITS, 5, { 0, 3, 2 }, "row 1 has -1 items" },
        { DATA_ROW_SPLITS, 5, { 0, INT64_MIN, INT64_MAX }, "row 0 has" },
        { DATA_ROW_SPLITS, 5, { 0, 3, 6 }, "has 5 items, but its rows according to 'rows' have 6" },
    };
    struct data_feature features[] = {
        { .name = "x", .stored = TENSOR_F32, .shape = { 3, { 2, 3, 2 } }, .fed = TENSOR_F32,
          .scale = 1, .rows_by = "rows" },
        { .name = "rows", .stored = TENSOR_I64, .fed = TENSOR_I64 },
    };
    struct data_opts opts = { .features = features, .n_features = 2 };
    char *folder = kit_folder();

    (void)state;
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        uint32_t n_rows = bad[i].kind == DATA_ROW_SPLITS ? 3 : 2;
        struct buf file = { 0 };
        struct data_set *s;
        float x[12];
        int64_t rows[3];
        struct err err = { .code = 0 };

        features[0].rows = bad[i].kind;
        features[1].shape = (struct shape){ 1, { n_rows } };
        ragged_record(&file, bad[i].n, bad[i].rows, n_rows);
        kit_write(folder, "a", file.data, file.len);
        buf_fini(&file);
        s = open_opts(&opts, folder, "a");
        assert_int_equal(data_sample(s, 0, (void *[]){ x, rows }, &err), ERR_INPUT);
        assert_text(err, bad[i].text);
        assert_text(err, "record 0 at offset 0");
        data_free(s);
    }
    features[1].shape.dim[0] = 2;
    refused(&opts, folder, "a", ERR_INPUT, "or of row splits [rows + 1]");
    features[1].shape.dim[0] = 3;
    features[0].truncate = true;
    refused(&opts, folder, "a", ERR_INPUT, "neither truncated nor packed nor an image");
    kit_remove(folder);
}

/* ---- mixtures ---- */

static void mixture_keeps_weights_in_every_block_and_epochs_per_part(void **state)
{
    enum { BATCH = 12 };
    static const struct data_order_part parts[] = { { 0, 10, 3 }, { 10, 25, 1 }, { 35, 7, 2 } };
    uint64_t drawn[3] = { 0 }, seen[42] = { 0 };

    (void)state;
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        struct data_order o = { .n = 42, .seed = 5, .global_batch = BATCH, .lanes = 3,
                                .shuffle = shuffle, .parts = parts, .n_parts = 3 };
        uint64_t at = 0;

        memset(drawn, 0, sizeof(drawn));
        memset(seen, 0, sizeof(seen));
        for (uint64_t step = 1; step <= 30; step++)
            for (uint32_t lane = 0; lane < 3; lane++)
                for (uint32_t i = 0; i < BATCH / 3; i++, at++) {
                    struct data_pick pick = data_order_pick(&o, step, lane, i);
                    uint32_t p = pick.sample < 10 ? 0 : pick.sample < 35 ? 1 : 2;

                    assert_true(pick.real && pick.sample < 42);
                    if (at < 36) { /* the first epoch: the complete batches of 42 positions */
                        drawn[p]++;
                        seen[pick.sample]++;
                        /* a part's epoch ends after all its records */
                        assert_int_equal(pick.epoch, (drawn[p] - 1) / parts[p].n);
                    }
                    if (at < 36 && (at + 1) % 6 == 0) { /* a block */
                        assert_int_equal(drawn[0], (at + 1) / 2);
                        assert_int_equal(drawn[1], (at + 1) / 6);
                        assert_int_equal(drawn[2], (at + 1) / 3);
                    }
                }
        for (uint64_t r = 0; r < 10; r++) /* 18 of 10 records: each once or twice */
            assert_in_range(seen[r], 1, 2);
    }
}

static void mixture_reads_all_its_parts(void **state)
{
    char *folder = kit_folder(), *a = fs_join(folder, "a*"), *b = fs_join(folder, "b*");
    struct data_part parts[] = { { a, 1 }, { b, 3 } };
    struct data_opts opts = { .features = kit_features,
                              .n_features = KIT_FEATURES,
                              .origin.parts = parts,
                              .origin.n_parts = 2 };
    struct data_reader_opts o = { .seed = 1, .shuffle = true, .global_batch = 8, .lanes = 1,
                                  .n_lanes = 1, .first_step = 1, .last_step = 20, .prefetch = 2,
                                  .threads = 1 };
    const struct data_batch *batch;
    struct data_reader *r;
    struct data_set *s;
    uint32_t from_a = 0;

    (void)state;
    kit_file(folder, "a1", 0, 20);
    kit_file(folder, "b1", 20, 5);
    kit_file(folder, "b2", 25, 5);
    assert_int_equal(data_open(&opts, &s, NULL), 0);
    assert_int_equal(data_records(s), 30);
    assert_int_equal(data_reader_open(s, &o, &r, NULL), 0);
    while (data_next(r, &batch, NULL) == 0 && batch != NULL) {
        const int64_t *id = batch->features[1];

        for (int i = 0; i < 8; i++) {
            assert_int_equal(id[i], batch->samples[i]);
            from_a += id[i] < 20;
        }
        data_release(r);
    }
    /* 20 steps are 6 epochs of 3 batches and 2 batches; each epoch drops 6 of 30 positions. */
    assert_in_range(from_a, 30, 50);
    data_reader_close(r);
    data_free(s);
    free(a);
    free(b);
    kit_remove(folder);
}

/* ---- bad records ---- */

static struct {
    uint32_t n;
    char text[2048];
} reported;

static void on_trouble(void *arg, const char *text)
{
    (void)arg;
    reported.n++;
    snprintf(reported.text, sizeof(reported.text), "%s", text);
}

static void bad_record_with_skip_is_replaced_by_the_next_and_counted(void **state)
{
    char *folder = kit_folder(), *path = fs_join(folder, "a");
    struct data_opts opts = { .features = kit_features,
                              .n_features = KIT_FEATURES,
                              .origin.skip_bad = true,
                              .on_warning = on_trouble };
    size_t bytes = kit_file(folder, "a", 0, 10), each = bytes / 10;
    float image[KIT_PIXELS];
    struct data_set *s;
    struct buf file = { 0 };
    int64_t id;

    (void)state;
    assert_int_equal(fs_read(path, 1 << 20, &file, NULL), 0);
    file.data[4 * each + 30] ^= 1; /* the data of records 4 and 5 */
    file.data[5 * each + 30] ^= 1;
    file.data[9 * each + 1] ^= 1; /* the header of record 9 */
    kit_write(folder, "a", file.data, file.len);
    memset(&reported, 0, sizeof(reported));
    s = open_opts(&opts, folder, "a");
    assert_int_equal(reported.n, 1);
    assert_non_null(strstr(reported.text, "following bytes are skipped"));
    assert_int_equal(data_records(s), 9);
    for (uint64_t i = 0; i < 9; i++) {
        assert_int_equal(data_sample(s, i, (void *[]){ image, &id }, NULL), 0);
        assert_int_equal(id, i == 4 || i == 5 ? 6 : i);
    }
    assert_int_equal(data_skipped(s), 1 + 2 + 1); /* the rest from 9 on; 4 and 5; 5 again */
    assert_non_null(strstr(reported.text, "record 5 at offset"));
    data_free(s);
    opts.origin.skip_bad = false;
    refused(&opts, folder, "a", ERR_CORRUPT, "not a TFRecord header");
    buf_fini(&file);
    free(path);
    kit_remove(folder);
}

static void bad_records_only_with_skip_is_an_error(void **state)
{
    char *folder = kit_folder();
    struct data_opts opts = { .features = csv_features, .n_features = 2, .origin.skip_bad = true };
    struct data_set *s;
    float x[2];
    int64_t label;
    struct err err;

    (void)state;
    kit_file(folder, "a", 0, 5);
    s = open_opts(&opts, folder, "a");
    assert_int_equal(data_sample(s, 0, (void *[]){ x, &label }, &err), ERR_INPUT);
    assert_text(err, "feature 'x' is not in the record");
    data_free(s);
    kit_remove(folder);
}

/* ---- disks ---- */

static void read_that_fails_temporarily_is_retried_and_reported(void **state)
{
    char *folder = kit_folder();
    struct data_opts opts = { .features = kit_features, .n_features = KIT_FEATURES,
                              .deadline_ms = 5000, .on_warning = on_trouble };
    struct data_set *s;

    (void)state;
    kit_file(folder, "a", 0, 5);
    memset(&reported, 0, sizeof(reported));
    assert_int_equal(fault_arm("data.open@1,data.open@2,data.read@1", NULL), 0);
    s = open_opts(&opts, folder, "a");
    assert_int_equal(reported.n, 2); /* one for opening, one for reading, not one per attempt */
    assert_non_null(strstr(reported.text, "/a' at offset 0"));
    assert_non_null(strstr(reported.text, "retrying for 5"));
    assert_int_equal(fault_arm("data.open@1,data.read@1", NULL), 0);
    check_ids(s, 5);
    assert_int_equal(fault_arm(NULL, NULL), 0);
    data_free(s);
    kit_remove(folder);
}

static void read_that_keeps_failing_is_retried_until_the_deadline(void **state)
{
    char *folder = kit_folder();
    struct data_opts opts = { .features = kit_features, .n_features = KIT_FEATURES,
                              .deadline_ms = 80 };

    (void)state;
    kit_file(folder, "a", 0, 5);
    assert_int_equal(fault_arm("data.open@1+", NULL), 0);
    refused(&opts, folder, "a", ERR_IO, "attempts in 80 ms: open '");
    assert_int_equal(fault_arm(NULL, NULL), 0);
    kit_remove(folder);
}

/* Expects ERR_IO for the first batch of a file of five records with this fault in all reads after
 * the open. Returns the number of reports before the reader is closed. */
static struct data_reader *stuck_reader;

static uint32_t expect_no_batch(struct data_opts *opts, const char *folder, const char *fault,
                                uint64_t deadline_ms, struct err *err)
{
    struct data_reader_opts o = { .global_batch = 5,
                                  .lanes = 1,
                                  .n_lanes = 1,
                                  .first_step = 1,
                                  .last_step = 3,
                                  .prefetch = 1,
                                  .threads = 1,
                                  .deadline_ms = deadline_ms };
    const struct data_batch *batch;
    struct data_reader *r;
    struct data_set *s;
    uint32_t n;

    kit_file(folder, "a", 0, 5);
    s = open_opts(opts, folder, "a");
    assert_int_equal(fault_arm(fault, NULL), 0);
    assert_int_equal(data_reader_open(s, &o, &r, NULL), 0);
    stuck_reader = r;
    assert_int_equal(data_next(r, &batch, err), ERR_IO);
    n = (uint32_t)reported.n;
    data_reader_close(r);
    assert_int_equal(fault_arm(NULL, NULL), 0);
    data_free(s);
    return n;
}

/* The pauses between attempts grow, but end before the deadline. Otherwise data_next() would time
 * out first, without the cause. */
static void read_that_fails_until_the_deadline_reports_its_cause(void **state)
{
    char *folder = kit_folder();
    struct data_opts opts = { .features = kit_features,
                              .n_features = KIT_FEATURES,
                              .deadline_ms = 700 };
    struct err err;

    (void)state;
    expect_no_batch(&opts, folder, "data.read@1+", 700, &err);
    assert_text(err, "attempts in 700 ms: read '");
    kit_remove(folder);
}

static void cancel_stuck_reader(void *arg, const char *text)
{
    on_trouble(arg, text);
    data_reader_cancel(stuck_reader);
}

static void callback_of_a_stuck_read_may_cancel_the_reader(void **state)
{
    char *folder = kit_folder();
    struct data_opts opts = { .features = kit_features, .n_features = KIT_FEATURES,
                              .on_warning = cancel_stuck_reader };
    struct err err;

    (void)state;
    reported.n = 0;
    assert_int_equal(expect_no_batch(&opts, folder, "data.read=delay:400", 50, &err), 1);
    kit_remove(folder);
}

static void read_that_does_not_return_is_named(void **state)
{
    char *folder = kit_folder();
    struct data_opts opts = { .features = kit_features, .n_features = KIT_FEATURES,
                              .on_warning = on_trouble };
    struct err err;

    (void)state;
    reported.n = 0;
    assert_int_equal(expect_no_batch(&opts, folder, "data.read=delay:400", 50, &err),
                     1); /* while the reader cannot be closed */
    assert_text(err, "no batch after 62 ms: a read of '");
    assert_text(err, "/a' does not return");
    assert_non_null(strstr(reported.text, "/a' does not return"));
    kit_remove(folder);
}

static void cache_directory_makes_the_original_unnecessary(void **state)
{
    char *folder = kit_folder(), *cache = fs_join(folder, "cache"), *path = fs_join(folder, "a");
    struct data_opts opts = { .features = kit_features,
                              .n_features = KIT_FEATURES,
                              .origin.cache = DATA_CACHE_DISK,
                              .origin.cache_directory = cache };
    struct data_set *s;

    (void)state;
    kit_file(folder, "a", 0, 30);
    s = open_opts(&opts, folder, "a");
    assert_int_equal(unlink(path), 0);
    check_ids(s, 30);
    data_free(s);
    free(path);
    free(cache);
    kit_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gzip_file_is_unpacked_to_memory_or_cache_directory),
        cmocka_unit_test(zlib_file_is_unpacked_and_a_damaged_one_is_refused),
        cmocka_unit_test(plain_file_that_begins_like_a_compressed_one_is_read),
        cmocka_unit_test(csv_file_that_begins_like_a_zlib_stream_is_read),
        cmocka_unit_test(gzip_damaged_file_is_refused_and_leaves_no_copy),
        cmocka_unit_test(csv_lines_are_records),
        cmocka_unit_test(csv_without_header_has_numbered_columns),
        cmocka_unit_test(csv_invalid_file_is_refused_with_the_reason),
        cmocka_unit_test(csv_nul_byte_in_a_number_is_refused),
        cmocka_unit_test(csv_feature_with_two_columns_of_its_name_is_refused),
        cmocka_unit_test(csv_header_of_a_file_without_records_is_checked),
        cmocka_unit_test(csv_files_with_other_names_inside_a_feature_are_refused),
        cmocka_unit_test(absent_file_of_a_set_whose_names_state_its_size_is_named),
        cmocka_unit_test(file_that_is_no_csv_is_named),
        cmocka_unit_test(npy_number_of_one_of_two_arrays_names_its_own_file),
        cmocka_unit_test(npy_bool_is_refused_for_a_float_feature),
        cmocka_unit_test(npy_types_without_numbers_are_refused_with_a_remedy),
        cmocka_unit_test(two_shard_sets_of_one_name_in_a_folder_are_refused_with_both_names),
        cmocka_unit_test(npy_items_are_records),
        cmocka_unit_test(npy_numbers_of_other_types_are_converted_exactly_or_refused),
        cmocka_unit_test(npy_files_of_different_types_are_one_set),
        cmocka_unit_test(feature_name_with_special_characters_names_its_file),
        cmocka_unit_test(pattern_that_is_the_name_of_a_file_is_this_file),
        cmocka_unit_test(token_file_windows_are_records),
        cmocka_unit_test(token_file_that_begins_with_the_header_of_another_format_is_refused),
        cmocka_unit_test(lists_shorter_are_padded_and_longer_are_truncated),
        cmocka_unit_test(ragged_rows_are_padded_separately),
        cmocka_unit_test(ragged_rows_with_invalid_lengths_are_refused),
        cmocka_unit_test(
            mixture_keeps_weights_in_every_block_and_epochs_per_part),
        cmocka_unit_test(mixture_reads_all_its_parts),
        cmocka_unit_test(bad_record_with_skip_is_replaced_by_the_next_and_counted),
        cmocka_unit_test(bad_records_only_with_skip_is_an_error),
        cmocka_unit_test(read_that_fails_temporarily_is_retried_and_reported),
        cmocka_unit_test(read_that_keeps_failing_is_retried_until_the_deadline),
        cmocka_unit_test(read_that_fails_until_the_deadline_reports_its_cause),
        cmocka_unit_test(read_that_does_not_return_is_named),
        cmocka_unit_test(callback_of_a_stuck_read_may_cancel_the_reader),
        cmocka_unit_test(cache_directory_makes_the_original_unnecessary),
    };

    return cmocka_run_group_tests_name("data/formats", tests, NULL, NULL);
}
