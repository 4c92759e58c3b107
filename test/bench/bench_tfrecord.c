/* bench_tfrecord.c - compares reading records with the minimum: reading the file in large blocks
 * and computing a CRC. For records of the size of images and for small records, in file order and
 * shuffled. The file is in the page cache, so the time of the processor is measured. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/err.h"
#include "base/fs.h"
#include "data/data_priv.h"
#include "data/tfrecord.h"

enum { FILE_BYTES = 128 << 20, BLOCK = 1 << 20, ROUNDS = 3, LANE_BATCH = 64, AHEAD = 4 };

static void die(const struct err *err)
{
    fprintf(stderr, "bench_tfrecord: %s\n", err->text);
    exit(1);
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void varint(struct buf *b, uint64_t v)
{
    for (; v >= 0x80; v >>= 7)
        buf_add(b, &(uint8_t){ (uint8_t)(v | 0x80) }, 1);
    buf_add(b, &(uint8_t){ (uint8_t)v }, 1);
}

static void member(struct buf *out, uint32_t number, const struct buf *content)
{
    varint(out, number << 3 | 2);
    varint(out, content->len);
    buf_add(out, content->data, content->len);
}

/* Makes an Example with one bytes feature "x" of n bytes. */
static void make_example(struct buf *out, size_t n)
{
    struct buf level[6] = { 0 };
    uint8_t *x = malloc(n);

    for (size_t i = 0; i < n; i++)
        x[i] = (uint8_t)(i * 131);
    buf_add(&level[0], x, n);
    member(&level[1], 1, &level[0]); /* BytesList */
    member(&level[2], 1, &level[1]); /* Feature */
    buf_add(&level[3], "\x0a\x01x", 3);
    member(&level[3], 2, &level[2]); /* entry */
    member(&level[4], 1, &level[3]); /* Features */
    member(out, 1, &level[4]);
    for (int i = 0; i < 6; i++)
        buf_fini(&level[i]);
    free(x);
}

static uint64_t write_file(const char *path, size_t n)
{
    struct buf example = { 0 }, record = { 0 };
    FILE *f = fopen(path, "wb");
    uint64_t total = 0;

    make_example(&example, n);
    tfrecord_append(&record, example.data, example.len);
    for (; f != NULL && total < FILE_BYTES; total += record.len)
        if (fwrite(record.data, 1, record.len, f) != record.len)
            break;
    if (f == NULL || fclose(f) != 0 || total < FILE_BYTES) {
        perror(path);
        exit(1);
    }
    buf_fini(&example);
    buf_fini(&record);
    return total;
}

static uint64_t bare(const char *path)
{
    uint8_t *block = malloc(BLOCK);
    uint64_t start = clock_ns();
    int fd = open(path, O_RDONLY);
    uint32_t crc = 0;
    ssize_t n;

    while ((n = read(fd, block, BLOCK)) > 0)
        crc = crc32c(crc, block, (size_t)n);
    close(fd);
    free(block);
    *(volatile uint32_t *)&crc = crc; /* prevents removal of the computation */
    return clock_ns() - start;
}

/* Reads every record once, with its CRC checked. */
static uint64_t records(struct data_set *s, bool shuffled)
{
    struct data_window w = { 0 };
    uint64_t start = clock_ns(), n = data_records(s);
    const uint8_t *data;
    struct err err;
    size_t bytes;

    for (uint64_t i = 0; i < n; i++) {
        uint64_t r = shuffled ? i * 7919 % n : i; /* a permutation: the prime does not divide n */

        uint64_t last = shuffled ? r : r + LANE_BATCH - 1;

        if (shuffled) /* as data_reader does */
            data_record_prefetch(s, (i + AHEAD) * 7919 % n);
        if (data_window_record(s, &w, 0, r, last < n ? last : n - 1, NULL, &data, &bytes, &err) < 0)
            die(&err);
        bytes -= TFRECORD_HEAD_BYTES + TFRECORD_TAIL_BYTES;
        data += TFRECORD_HEAD_BYTES;
        if (tfrecord_check(data, bytes, data + bytes, &err) < 0)
            die(&err);
    }
    data_window_fini(&w);
    return clock_ns() - start;
}

/* Decodes all records to float batches on the calling thread. */
static uint64_t batches(struct data_set *s)
{
    struct data_reader_opts o = { .global_batch = LANE_BATCH, .lanes = 1, .n_lanes = 1,
                                  .first_step = 1, .prefetch = 1 };
    const struct data_batch *b;
    struct data_reader *r;
    uint64_t start;
    struct err err;

    o.last_step = data_steps_per_epoch(s, LANE_BATCH, false);
    if (data_reader_open(s, &o, &r, &err) < 0)
        die(&err);
    start = clock_ns();
    for (;;) {
        if (data_next(r, &b, &err) < 0)
            die(&err);
        if (b == NULL)
            break;
        data_release(r);
    }
    start = clock_ns() - start;
    data_reader_close(r);
    return start;
}

static void measure(const char *path, size_t n)
{
    struct data_feature f = { .name = "x", .stored = TENSOR_U8, .shape = { 1, { (int64_t)n } },
                              .fed = TENSOR_F32, .scale = 1.0 / 255 };
    struct data_opts opts = { .glob = path, .features = &f, .n_features = 1 };
    uint64_t bytes = write_file(path, n), ns[5];
    struct data_set *s;
    struct err err;

    memset(ns, 0xff, sizeof(ns));
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t start = clock_ns();

        if (data_open(&opts, &s, &err) < 0)
            die(&err);
        ns[1] = least(ns[1], clock_ns() - start);
        ns[0] = least(ns[0], bare(path));
        ns[2] = least(ns[2], records(s, false));
        ns[3] = least(ns[3], records(s, true));
        ns[4] = least(ns[4], batches(s));
        data_free(s);
    }
    printf("records of %6zu bytes: bare read and CRC %.2f GB/s; index %.2f, in order %.2f "
           "(%.0f %%), shuffled %.2f (%.0f %%), to float batches %.2f\n",
           n, (double)bytes / (double)ns[0], (double)bytes / (double)ns[1],
           (double)bytes / (double)ns[2], 100 * (double)ns[0] / (double)ns[2],
           (double)bytes / (double)ns[3], 100 * (double)ns[0] / (double)ns[3],
           (double)bytes / (double)ns[4]);
}

int main(void)
{
    static const size_t sizes[] = { 150528, 3072, 784 };
    const char *tmp = getenv("TMPDIR");
    char *path;

    if (asprintf(&path, "%s/bench-%d.tfrecord", tmp != NULL ? tmp : "/tmp", (int)getpid()) < 0)
        return 1;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
        measure(path, sizes[i]);
    unlink(path);
    free(path);
    return 0;
}
