/* fuzz_tfrecord.c - any bytes as a TFRecord file, which is indexed and read. Every input is tried
 * unchanged, and again with correct checksums, to reach the code after their checks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/err.h"
#include "data/data.h"
#include "data/tfrecord.h"
#include "fuzz/driver.h"

/* Three records; the second is empty. */
#define RECORDS \
    "\x46\x00\x00\x00\x00\x00\x00\x00\x72\x35\xb9\xa5\x0a\x44" \
    "\x0a\x11\x0a\x05\x69\x6d\x61\x67\x65\x12\x08\x0a\x06\x0a" \
    "\x04\x01\x02\x03\x04\x0a\x17\x0a\x05\x6c\x61\x62\x65\x6c" \
    "\x12\x0e\x1a\x0c\x0a\x0a\xff\xff\xff\xff\xff\xff\xff\xff" \
    "\xff\x01\x0a\x16\x0a\x06\x77\x65\x69\x67\x68\x74\x12\x0c" \
    "\x12\x0a\x0a\x08\x00\x00\xc0\x3f\x00\x00\x00\xc0\xf1\x7e" \
    "\x02\xcb\x00\x00\x00\x00\x00\x00\x00\x00\x29\x03\x98\x07" \
    "\xd8\xea\x82\xa2\x45\x00\x00\x00\x00\x00\x00\x00\xeb\xe6" \
    "\x68\xb0\x0a\x43\x0a\x11\x0a\x05\x69\x6d\x61\x67\x65\x12" \
    "\x08\x0a\x06\x0a\x04\x01\x02\x03\x04\x0a\x16\x0a\x05\x6c" \
    "\x61\x62\x65\x6c\x12\x0d\x1a\x0b\x08\xff\xff\xff\xff\xff" \
    "\xff\xff\xff\xff\x01\x0a\x16\x0a\x06\x77\x65\x69\x67\x68" \
    "\x74\x12\x0c\x12\x0a\x0d\x00\x00\xc0\x3f\x0d\x00\x00\x00" \
    "\xc0\x45\xde\x0e\x44"

const struct fuzz_seed fuzz_seeds[] = { FUZZ_SEED(RECORDS) };
const size_t n_fuzz_seeds = COUNT_OF(fuzz_seeds);

static void correct_checksums(uint8_t *data, size_t n)
{
    for (size_t at = 0; n - at >= TFRECORD_HEAD_BYTES;) {
        uint32_t crc = crc32c_mask(crc32c(0, data + at, 8));
        uint64_t length;

        memcpy(data + at + 8, &crc, 4);
        memcpy(&length, data + at, 8);
        if (length > n - at - TFRECORD_HEAD_BYTES ||
            n - at - TFRECORD_HEAD_BYTES - length < TFRECORD_TAIL_BYTES)
            return;
        crc = crc32c_mask(crc32c(0, data + at + TFRECORD_HEAD_BYTES, length));
        at += TFRECORD_HEAD_BYTES + length;
        memcpy(data + at, &crc, 4);
        at += TFRECORD_TAIL_BYTES;
    }
}

enum { FEATURES = 3, SAMPLE_BYTES = 64 };

/* The features as plain lists, as rows, and packed. */
static const struct {
    struct data_feature features[FEATURES];
    const char *pack;
} variants[] = {
    { { { .name = "image", .stored = TENSOR_U8, .shape = { 1, { 4 } }, .fed = TENSOR_F32 },
        { .name = "label", .stored = TENSOR_I64, .fed = TENSOR_I64 },
        { .name = "n", .stored = TENSOR_I64, .fed = TENSOR_I64, .derived = DATA_LENGTH,
          .of = "image" } }, NULL },
    { { { .name = "weight", .stored = TENSOR_F32, .shape = { 2, { 2, 3 } }, .fed = TENSOR_F32,
          .rows = DATA_ROW_LENGTHS, .rows_by = "label" },
        { .name = "label", .stored = TENSOR_I64, .shape = { 1, { 2 } }, .fed = TENSOR_I64,
          .pad = true },
        { .name = "image", .stored = TENSOR_U8, .shape = { 2, { 1, 4 } }, .fed = TENSOR_F32,
          .rows = DATA_ROW_SPLITS, .rows_by = "label" } }, NULL },
    { { { .name = "weight", .stored = TENSOR_F32, .shape = { 1, { 5 } }, .fed = TENSOR_F32,
          .truncate = true },
        { .name = "segment", .stored = TENSOR_I64, .shape = { 1, { 5 } }, .fed = TENSOR_I64,
          .derived = DATA_SEGMENT, .of = "weight" },
        { .name = "image", .stored = TENSOR_U8, .shape = { 2, { 5, 2 } }, .fed = TENSOR_F32 } },
      "weight" },
};

static void try_variant(size_t variant, const char *path, bool skip_bad)
{
    struct data_opts opts = { .features = variants[variant].features,
                              .n_features = FEATURES,
                              .origin.pack = variants[variant].pack,
                              .glob = path,
                              .origin.skip_bad = skip_bad,
                              .threads = 1 };
    uint8_t out[FEATURES][SAMPLE_BYTES];
    struct data_set *s;
    struct err err;

    if (data_open(&opts, &s, &err) < 0)
        return;
    for (uint64_t i = 0; i < data_samples(s) && i < 8; i++)
        /* any result is allowed */
        (void)data_sample(s, i, (void *[]){ out[0], out[1], out[2] }, &err);
    data_free(s);
}

static void try_file(const uint8_t *data, size_t n)
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    char path[64];

    CHECK(fd >= 0 && write(fd, data, n) == (ssize_t)n);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    for (size_t variant = 0; variant < COUNT_OF(variants); variant++)
        try_variant(variant, path, variant % 2 == 0);
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *copy = calloc(1, size + 1);

    CHECK(copy != NULL);
    if (size > 0)
        memcpy(copy, data, size);
    try_file(copy, size);
    correct_checksums(copy, size);
    try_file(copy, size);
    free(copy);
    return 0;
}
