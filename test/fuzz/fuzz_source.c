/* fuzz_source.c - any bytes as a data file of a format other than plain TFRecord, which the first
 * byte selects. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/check.h"
#include "base/err.h"
#include "data/data.h"
#include "fuzz/driver.h"

#define CSV "\0a,b,x\n1,2,3\n\"4\",5,\"6\"\n,,\n7,8e0,-9\r\n"
#define CSV_BARE "\0011;2;3\n4;5;6"
#define NPY                                                                                        \
    "\2\x93NUMPY\x01\x00\x3e\x00{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }  \n"      \
    "0123456789abcdef"
#define NPY_DOUBLE                                                                                 \
    "\2\x93NUMPY\x01\x00\x3e\x00{'descr': '<f8', 'fortran_order': False, 'shape': (1, 2), }  \n"      \
    "\0\0\0\0\0\0\xf0\x3f\0\0\0\0\0\0\x4f\x40"
#define NPY_HALF                                                                                   \
    "\2\x93NUMPY\x01\x00\x3e\x00{'descr': '<f2', 'fortran_order': False, 'shape': (2, 2), }  \n"      \
    "01234567"
#define TOKENS "\3\1\0\2\0\3\0\4\0\5\0"
/* "hello" in two gzip members */
#define GZIP                                                                                       \
    "\4\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xcb\x48\xcd\x01\x00\x05\x39\x35\x81\x03\x00\x00\x00"     \
    "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xcb\xc9\x07\x00\x3c\x2b\x3a\x2f\x02\x00\x00\x00"
/* "hello" as a zlib stream */
#define ZLIB "\4\x78\x9c\xcb\x48\xcd\xc9\xc9\x07\x00\x06\x2c\x02\x15"

const struct fuzz_seed fuzz_seeds[] = { FUZZ_SEED(CSV), FUZZ_SEED(CSV_BARE), FUZZ_SEED(NPY), FUZZ_SEED(NPY_DOUBLE),
                                        FUZZ_SEED(NPY_HALF),
                                        FUZZ_SEED(TOKENS), FUZZ_SEED(GZIP), FUZZ_SEED(ZLIB) };
const size_t n_fuzz_seeds = COUNT_OF(fuzz_seeds);

static const struct data_feature numbers[] = {
    { .name = "x", .stored = TENSOR_F32, .fed = TENSOR_F32, .pad = true, .column = "x" },
    { .name = "b", .stored = TENSOR_I64, .fed = TENSOR_I64, .pad = true, .column = "b" },
};
static const struct data_feature columns[] = {
    { .name = "x", .stored = TENSOR_U8, .shape = { 1, { 2 } }, .fed = TENSOR_F32, .column = "1" },
};
static const struct data_feature arrays[] = {
    { .name = "7", .stored = TENSOR_F32, .shape = { 1, { 2 } }, .fed = TENSOR_F32, .scale = 1 },
};
static const struct data_feature tokens[] = {
    { .name = "tokens", .stored = TENSOR_U16, .shape = { 1, { 2 } }, .fed = TENSOR_I64 },
    { .name = "labels", .stored = TENSOR_U16, .shape = { 1, { 2 } }, .fed = TENSOR_I64 },
};
static const struct data_opts ways[] = {
    { .origin.format = DATA_CSV, .origin.csv_header = true, .features = numbers, .n_features = 2 },
    { .origin.format = DATA_CSV,
      .origin.csv_delimiter = ';',
      .features = columns,
      .n_features = 1 },
    { .origin.format = DATA_NPY, .features = arrays, .n_features = 1 },
    { .origin.format = DATA_TOKENS, .features = tokens, .n_features = 2 },
    { .origin.format = DATA_TFRECORD,
      .features = numbers,
      .n_features = 2,
      .origin.cache = DATA_CACHE_MEMORY,
      .origin.skip_bad = true },
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct data_opts opts = ways[size > 0 ? data[0] % COUNT_OF(ways) : 0];
    int fd = memfd_create("fuzz", MFD_CLOEXEC), at = -1;
    struct data_feature named;
    struct data_set *s;
    char path[64], name[16];
    struct err err;

    CHECK(fd >= 0 && (size < 2 || write(fd, data + 1, size - 1) == (ssize_t)(size - 1)));
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (opts.origin.format == DATA_NPY) { /* the feature is named like the file */
        named = arrays[0];
        snprintf(name, sizeof(name), "%d", fd);
        named.name = name;
        opts.features = &named;
        snprintf(path, sizeof(path), "/proc/self/fd/{feature}");
    }
    opts.glob = path;
    opts.threads = 1;
    at = data_open(&opts, &s, &err);
    CHECK(at == 0 || err.text[0] != '\0');
    if (at == 0) {
        for (uint64_t i = 0; i < data_records(s) && i < 8; i++) {
            int64_t a[2], b[2];

            (void)data_sample(s, i, (void *[]){ a, b }, &err); /* any result is allowed */
        }
        data_free(s);
    }
    close(fd);
    return 0;
}
