#include "data/kit.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/cancel.h"
#include "base/check.h"
#include "base/fault.h"

static int open_again(const char *folder, const char *glob_part, const char *index,
                      struct data_set **out, struct err *err)
{
    char *glob = fs_join(folder, glob_part);
    struct data_opts opts = { .glob = glob,
                              .features = kit_features,
                              .n_features = KIT_FEATURES,
                              .origin.index_directory = index,
                              .threads = 3 };
    int rc = data_open(&opts, out, err);

    free(glob);
    return rc;
}

/* Asserts that record i has the label i. */
static void check_ids(struct data_set *s, uint64_t n)
{
    assert_int_equal(data_records(s), n);
    for (uint64_t i = 0; i < n; i++) {
        float image[KIT_PIXELS];
        int64_t id;
        struct err err;

        if (data_sample(s, i, (void *[]){ image, &id }, &err) < 0)
            fail_msg("%s", err.text);
        assert_int_equal(id, i);
        for (size_t k = 0; k < KIT_PIXELS; k++)
            assert_true(image[k] == (float)kit_pixel(i, k) * 0.5f - 1.0f);
    }
}

static void refused(const char *folder, int code, const char *a, const char *b)
{
    struct data_set *s;
    struct err err;

    assert_int_equal(open_again(folder, "*.tfrecord", NULL, &s, &err), code);
    assert_text(err, a);
    assert_text(err, b);
}

static void flip(const char *folder, const char *name, long at)
{
    char *path = fs_join(folder, name);
    int fd = open(path, O_RDWR), n;
    struct stat st;
    uint8_t byte;

    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    n = (int)pread(fd, &byte, 1, at);
    byte ^= 0x10;
    n += (int)pwrite(fd, &byte, 1, at);
    assert_int_equal(n, 2);
    futimens(fd, (struct timespec[]){ st.st_atim, st.st_mtim }); /* like a fault of the disk */
    close(fd);
    free(path);
}

static void records_are_numbered_in_the_order_of_the_file_names(void **state)
{
    char *folder = kit_folder();
    struct data_set *s;

    (void)state;
    kit_file(folder, "b-2.tfrecord", 60, 40);
    kit_file(folder, "a.tfrecord", 0, 20);
    kit_write(folder, "a2.tfrecord", "", 0); /* a file without records is allowed */
    kit_file(folder, "b-1.tfrecord", 20, 40);
    s = kit_open(folder, NULL, false);
    assert_int_equal(data_files(s), 4);
    check_ids(s, 100);
    data_free(s);
    kit_remove(folder);
}

static int count_files(const char *folder)
{
    DIR *d = opendir(folder);
    int n = 0;

    assert_non_null(d);
    while (readdir(d) != NULL)
        n++;
    closedir(d);
    return n - 2;
}

/* Counts the passages of "data.open" and "data.read", which occur only if a file is indexed or a
 * record is read. */
static uint64_t reads_to_open(const char *folder, const char *index, uint64_t n)
{
    struct data_set *s;
    struct err err;
    uint64_t reads;

    assert_int_equal(fault_arm("data.read@1000000", NULL), 0);
    if (open_again(folder, "*.tfrecord", index, &s, &err) < 0)
        fail_msg("%s", err.text);
    reads = fault_n_passages();
    assert_int_equal(fault_arm(NULL, NULL), 0);
    check_ids(s, n);
    data_free(s);
    return reads;
}

static void index_kept_is_used_until_its_file_changes(void **state)
{
    char *folder = kit_folder(), *index = fs_join(folder, "deep/index");
    uint64_t first, again;

    (void)state;
    kit_file(folder, "a.tfrecord", 0, 30);
    kit_file(folder, "b.tfrecord", 30, 30);
    first = reads_to_open(folder, index, 60);
    assert_int_equal(count_files(index), 2);
    again = reads_to_open(folder, index, 60);
    assert_true(again < first);
    kit_file(folder, "b.tfrecord", 30, 31);
    assert_true(reads_to_open(folder, index, 61) > again);
    assert_int_equal(reads_to_open(folder, index, 61), again);
    assert_int_equal(count_files(index), 2);
    free(index);
    kit_remove(folder);
}

static void index_damaged_is_rebuilt(void **state)
{
    char *folder = kit_folder(), *index = fs_join(folder, "index"), name[512] = "";
    struct dirent *entry;
    struct stat st;
    uint64_t reads;
    char *path;
    DIR *d;

    (void)state;
    kit_file(folder, "a.tfrecord", 0, 30);
    (void)reads_to_open(folder, index, 30);
    reads = reads_to_open(folder, index, 30);
    d = opendir(index);
    while ((entry = readdir(d)) != NULL)
        if (entry->d_name[0] != '.')
            snprintf(name, sizeof(name), "%s", entry->d_name);
    closedir(d);
    path = fs_join(index, name);
    assert_int_equal(stat(path, &st), 0);
    for (long at = 0; at < st.st_size; at += 7) {
        flip(index, name, at);
        assert_true(reads_to_open(folder, index, 30) > reads);
        assert_int_equal(reads_to_open(folder, index, 30), reads);
    }
    assert_int_equal(truncate(path, st.st_size - 8), 0);
    assert_true(reads_to_open(folder, index, 30) > reads);
    free(path);
    free(index);
    kit_remove(folder);
}

static void index_that_cannot_be_written_is_an_error(void **state)
{
    char *folder = kit_folder(), *index = fs_join(folder, "index");
    struct data_set *s;
    struct err err;

    (void)state;
    kit_file(folder, "a.tfrecord", 0, 3);
    kit_write(folder, "index", "a file", 6);
    assert_int_equal(open_again(folder, "*.tfrecord", index, &s, &err), ERR_EXISTS);
    assert_text(err, "index");
    free(index);
    kit_remove(folder);
}

static void index_of_an_invalid_tfrecord_file_is_refused_with_file_and_offset(void **state)
{
    char *folder = kit_folder();
    size_t n, first;

    (void)state;
    refused(folder, ERR_NOENT, "no file matches", "*.tfrecord");
    kit_write(folder, "a.tfrecord", "", 0);
    refused(folder, ERR_INPUT, "contain no record", "1 files");
    kit_write(folder, "a.tfrecord", "\x1f\x8b\x08 compressed data", 19);
    refused(folder, ERR_INPUT, "gzip", "gunzip");
    kit_write(folder, "a.tfrecord", "1.0,2.0,3.0\n4.0,5.0,6.0\n", 24);
    refused(folder, ERR_CORRUPT, "a.tfrecord': offset 0", "checksum");
    n = kit_file(folder, "a.tfrecord", 0, 5);
    first = n / 5;
    flip(folder, "a.tfrecord", (long)first * 2 + 3);
    refused(folder, ERR_CORRUPT, "a.tfrecord': offset ", "checksum of the length");
    kit_file(folder, "a.tfrecord", 0, 5);
    for (size_t cut = 1; cut < first; cut++) { /* at each position inside the last record */
        char *path = fs_join(folder, "a.tfrecord");

        assert_int_equal(truncate(path, (off_t)(n - cut)), 0);
        refused(folder, ERR_CORRUPT, "a.tfrecord': offset ", "truncated");
        free(path);
    }
    kit_remove(folder);
}

static void tfrecord_file_of_another_format_is_named_with_the_remedy(void **state)
{
    static const struct {
        size_t at;
        const char *bytes;
        size_t n;
        const char *what, *remedy;
    } files[] = {
        { 0, "BZh91AY&SY\x12\x34\x56\x78", 14, "is a bzip2 stream, expected a TFRecord file", "bunzip2" },
        { 0, "\xfd" "7zXZ\0\0\4", 8, "an xz stream", "unxz" },
        { 0, "\x28\xb5\x2f\xfd\4\0", 6, "a zstd stream", "unzstd" },
        { 0, "\x04\x22\x4d\x18", 4, "an lz4 stream", "unlz4" },
        { 0, "<!DOCTYPE html>\n<html>", 22, "a page in HTML", "download the file again" },
        { 0, "\xef\xbb\xbf<?xml version", 16, "a page in HTML or XML", "download the file again" },
        { 257, "ustar", 5, "a tar archive", "tar -xf" },
        { 0, "PK\3\4", 4, "a zip archive", "data.format" },
        { 0, "PAR1", 4, "a Parquet file", "trainerctl convert" },
        { 0, "\x93NUMPY\1\0", 8, "a .npy file", "data.format" },
        { 0, "version https://git-lfs.github.com/spec/v1", 42, "a pointer of Git LFS", "git lfs pull" },
    };
    char *folder = kit_folder(), bytes[512];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(files); i++)
        for (size_t longer = 0; longer < 2; longer++) {
            memset(bytes, 'a', sizeof(bytes));
            memcpy(bytes + files[i].at, files[i].bytes, files[i].n);
            kit_write(folder, "a.tfrecord", bytes,
                      longer ? sizeof(bytes) : files[i].at + files[i].n);
            refused(folder, ERR_INPUT, files[i].what, files[i].remedy);
        }
    kit_remove(folder);
}

static void record_larger_than_a_gibibyte_is_refused(void **state)
{
    char *folder = kit_folder(), *path = fs_join(folder, "a.tfrecord");
    /* The length 2^30 + 1, followed by its masked checksum as computed by tfrecord.py. */
    uint8_t head[12] = { 1, 0, 0, 0x40 };

    (void)state;
    memcpy(head + 8, "\x63\xcf\x8a\xec", 4);
    kit_write(folder, "a.tfrecord", head, sizeof(head));
    assert_int_equal(truncate(path, (off_t)(1L << 30) + 17), 0); /* sparse */
    refused(folder, ERR_CORRUPT, "a.tfrecord': offset 0", "1073741825");
    free(path);
    kit_remove(folder);
}

static void data_open_with_a_directory_or_invalid_features_is_refused(void **state)
{
    static const struct {
        struct data_feature f;
        const char *text;
    } cases[] = {
        { { .name = "", .stored = TENSOR_U8, .fed = TENSOR_F32 }, "without a name" },
        { { .name = "x", .stored = TENSOR_F32, .fed = TENSOR_I64 }, "unsupported conversion" },
        { { .name = "x", .stored = TENSOR_F64, .fed = TENSOR_F32 }, "unsupported conversion" },
        { { .name = "x", .stored = TENSOR_U8, .fed = TENSOR_F32, .shape = { 1, { 0 } } },
          "between 1" },
        { { .name = "x", .stored = TENSOR_U8, .fed = TENSOR_F32,
            .shape = { 3, { 1 << 20, 1 << 20, 1 << 30 } } }, "between 1" },
        { { .name = "x", .stored = TENSOR_U8, .fed = TENSOR_F32, .scale = 1e300 }, "finite" },
        { { .name = "x", .stored = TENSOR_I64, .fed = TENSOR_I64, .scale = 0.5 }, "float32 input" },
    };
    char *folder = kit_folder(), *inner = fs_join(folder, "x.tfrecord");
    struct data_opts opts = { .glob = inner, .n_features = 1 };
    struct data_set *s;
    struct err err;

    (void)state;
    assert_int_equal(fs_mkdirs(inner, NULL), 0);
    refused(folder, ERR_INPUT, "x.tfrecord' is a directory", "regular file");
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        opts.features = &cases[i].f;
        assert_int_equal(data_open(&opts, &s, &err), ERR_INPUT);
        assert_text(err, cases[i].text);
    }
    free(inner);
    kit_remove(folder);
}

static void digest_depends_on_names_sizes_and_counts(void **state)
{
    char *a = kit_folder(), *b = kit_folder(), first[65];
    struct data_set *s;

    (void)state;
    kit_file(a, "x.tfrecord", 0, 4);
    kit_file(b, "x.tfrecord", 100, 4); /* content and directory do not affect the digest */
    s = kit_open(a, NULL, false);
    strcpy(first, data_digest(s));
    assert_int_equal(strlen(first), 64);
    data_free(s);
    s = kit_open(b, NULL, false);
    assert_string_equal(data_digest(s), first);
    data_free(s);
    kit_file(b, "x.tfrecord", 100, 5);
    s = kit_open(b, NULL, false);
    assert_string_not_equal(data_digest(s), first);
    data_free(s);
    kit_file(a, "y.tfrecord", 0, 4);
    s = kit_open(a, NULL, false);
    assert_string_not_equal(data_digest(s), first);
    data_free(s);
    kit_remove(a);
    kit_remove(b);
}

struct progress {
    pthread_mutex_t lock;
    uint64_t calls, done, all, records;
};

static void on_progress(void *arg, uint64_t done, uint64_t all, uint64_t records)
{
    struct progress *p = arg;

    pthread_mutex_lock(&p->lock);
    p->calls++;
    assert_true(done >= p->done && done <= all);
    p->done = done;
    p->all = all;
    p->records = records;
    pthread_mutex_unlock(&p->lock);
}

static void index_progress_reaches_the_total_and_cancel_stops_it(void **state)
{
    char *folder = kit_folder(), *glob = fs_join(folder, "*");
    struct progress p = { .lock = PTHREAD_MUTEX_INITIALIZER };
    struct cancel cancel = { 0 };
    struct data_opts opts = { .glob = glob, .features = kit_features, .n_features = KIT_FEATURES,
                              .on_progress = on_progress, .arg = &p, .cancel = &cancel };
    struct data_set *s;
    struct err err;
    uint64_t bytes;

    (void)state;
    bytes = kit_file(folder, "a", 0, 3000);
    bytes += kit_file(folder, "b", 3000, 9000);
    assert_int_equal(data_open(&opts, &s, NULL), 0);
    assert_true(p.calls > 0);
    assert_int_equal(p.done, bytes);
    assert_int_equal(p.all, bytes);
    assert_int_equal(p.records, 12000);
    data_free(s);
    cancel_set(&cancel, true);
    assert_int_equal(data_open(&opts, &s, &err), ERR_CANCELED);
    free(glob);
    kit_remove(folder);
}

static void files_beyond_the_descriptor_limit_are_read(void **state)
{
    char *folder = kit_folder();
    struct rlimit before, few;
    struct data_set *s;

    (void)state;
    for (uint64_t i = 0; i < 40; i++) {
        char name[32];

        snprintf(name, sizeof(name), "%02d.tfrecord", (int)i);
        kit_file(folder, name, i * 2, 2);
    }
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = 24;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    s = kit_open(folder, NULL, false);
    check_ids(s, 80);
    check_ids(s, 80);
    data_free(s);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    kit_remove(folder);
}

/* Injects a failure at the n-th read or open, for each n up to their number. Each is an error
 * without a leak. */
static void read_failure_at_any_point_is_an_error_that_names_the_file(void **state)
{
    char *folder = kit_folder(), *index = fs_join(folder, "index"), spec[32];
    struct data_set *s;
    struct err err;
    uint64_t n = 1;
    int rc;

    (void)state;
    kit_file(folder, "a.tfrecord", 0, 5);
    kit_file(folder, "b.tfrecord", 5, 5);
    for (;; n++) {
        snprintf(spec, sizeof(spec), "*@%d", (int)n);
        assert_int_equal(fault_arm(spec, NULL), 0);
        rc = open_again(folder, "*.tfrecord", index, &s, &err);
        if (!fault_fired())
            break;
        if (rc == 0) /* a kept index that cannot be read is rebuilt */
            data_free(s);
        else
            assert_true(rc == ERR_IO || rc == ERR_NOMEM);
        assert_int_equal(fault_arm(NULL, NULL), 0);
        assert_int_equal(fs_remove_tree(index, NULL), 0);
    }
    assert_true(n > 8);
    assert_int_equal(rc, 0);
    assert_int_equal(fault_arm(NULL, NULL), 0);
    check_ids(s, 10);
    data_free(s);
    free(index);
    kit_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_are_numbered_in_the_order_of_the_file_names),
        cmocka_unit_test(index_kept_is_used_until_its_file_changes),
        cmocka_unit_test(index_damaged_is_rebuilt),
        cmocka_unit_test(index_that_cannot_be_written_is_an_error),
        cmocka_unit_test(index_of_an_invalid_tfrecord_file_is_refused_with_file_and_offset),
        cmocka_unit_test(tfrecord_file_of_another_format_is_named_with_the_remedy),
        cmocka_unit_test(record_larger_than_a_gibibyte_is_refused),
        cmocka_unit_test(data_open_with_a_directory_or_invalid_features_is_refused),
        cmocka_unit_test(digest_depends_on_names_sizes_and_counts),
        cmocka_unit_test(index_progress_reaches_the_total_and_cancel_stops_it),
        cmocka_unit_test(files_beyond_the_descriptor_limit_are_read),
        cmocka_unit_test(read_failure_at_any_point_is_an_error_that_names_the_file),
    };

    return cmocka_run_group_tests_name("data/index", tests, NULL, NULL);
}
