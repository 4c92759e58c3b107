/* content.c - checksums of the content of all files, which tasks and checkpoints compare.
 *
 * A file is divided into DATA_REGIONS regions of equal size. The checksum of a region covers
 *   - the bytes that the index reads: all of a CSV file; of a TFRecord file the lengths of all records and
 *     the stored CRCs of their data, which each read of a record verifies;
 *   - the sampled bytes: all, if the set has at most DATA_WHOLE_BYTES; else blocks of 4 KiB, spread
 *     over the file: the first block, the last block, and in each part between them a block that the
 *     seed of the job selects.
 * data_content() adds these regions to DATA_CONTENT_PARTS parts. */
#include <inttypes.h>
#include <stdio.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/err.h"
#include "base/rng.h"
#include "data/data_priv.h"

enum {
    BLOCK_BYTES = 4096,
    READ_BYTES = 32 << 10,
    BLOCKS_ALL = 1024, /* of all files, unless each has BLOCKS_MIN */
    BLOCKS_MIN = 8,
};

/* ---- regions of a file ---- */

static uint64_t region_start(uint64_t bytes, uint32_t region)
{
    return bytes / DATA_REGIONS * region + bytes % DATA_REGIONS * region / DATA_REGIONS;
}

/* Returns the region of the byte `at`, which is in the file. */
static uint32_t region_of(uint64_t bytes, uint64_t at)
{
    uint32_t low = 0, high = DATA_REGIONS; /* start of low <= at < start of high */

    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;

        if (region_start(bytes, middle) <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

void data_content_add(uint32_t *content, uint64_t file_bytes, uint64_t at, const uint8_t *bytes,
                      uint64_t n)
{
    while (n > 0) {
        uint32_t region = region_of(file_bytes, at);
        uint64_t left = region_start(file_bytes, region + 1) - at, part = n < left ? n : left;

        content[region] = crc32c(content[region], bytes, part);
        at += part;
        bytes += part;
        n -= part;
    }
}

/* ---- sampled bytes ---- */

struct sampled {
    int fd;
    const char *path;
    uint64_t bytes; /* of the file */
    uint32_t *sums; /* [DATA_REGIONS] */
};

static int add_range(const struct sampled *f, uint64_t from, uint64_t to, struct err *err)
{
    uint8_t bytes[READ_BYTES];
    int rc = 0;

    for (uint64_t n; rc == 0 && from < to; from += n) {
        n = to - from < READ_BYTES ? to - from : READ_BYTES;
        rc = data_file_read_at("data.sample", f->fd, f->path, bytes, n, from, err);
        if (rc == 0)
            data_content_add(f->sums, f->bytes, from, bytes, n);
    }
    return rc;
}

/* Returns the number of blocks of each file. */
static uint32_t blocks_per_file(const struct data_set *s)
{
    uint32_t n = BLOCKS_ALL / (s->n_files > 0 ? s->n_files : 1);

    return n < BLOCKS_MIN ? BLOCKS_MIN : n < DATA_REGIONS ? n : DATA_REGIONS;
}

int data_file_checksum(const struct data_set *s, int fd, const char *path, uint64_t bytes,
                       uint32_t sums[DATA_REGIONS], struct err *err)
{
    struct sampled f = { .fd = fd, .path = path, .bytes = bytes, .sums = sums };
    uint32_t n = blocks_per_file(s);
    uint64_t part = bytes / n; /* of the file: a block of each part is read */
    int rc = 0;

    for (uint32_t i = 0; i < DATA_REGIONS; i++)
        sums[i] = 0;
    if (s->bytes <= DATA_WHOLE_BYTES || part <= BLOCK_BYTES)
        return add_range(&f, 0, bytes, err);
    for (uint32_t i = 0; rc == 0 && i < n; i++) {
        uint64_t at = i == 0 ? 0
                      : i == n - 1
                          ? bytes - BLOCK_BYTES
                          : i * part + rng_permute(s->check_seed, 0, part - BLOCK_BYTES, i);

        rc = add_range(&f, at, at + BLOCK_BYTES, err);
    }
    return rc;
}

void data_content_mix(uint32_t *content, const uint32_t sums[DATA_REGIONS])
{
    /* Not a CRC: both may be the CRC of the same bytes, and a CRC of bytes and their CRC is constant. This is the
     * finalizer of SplitMix64. */
    for (uint32_t i = 0; i < DATA_REGIONS; i++) {
        uint64_t x = (uint64_t)content[i] << 32 | sums[i];

        x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
        content[i] = (uint32_t)(x ^ x >> 31);
    }
}

/* ---- parts of the set ---- */

/* Sets [*first, *end) to the regions in a part; those of all files are numbered in the order of the files. A part has
 * some or all regions of one file, or several files if there are more files than parts. */
static void part_range(const struct data_set *s, uint32_t part, uint64_t *first, uint64_t *end)
{
    uint64_t all = (uint64_t)s->n_files * DATA_REGIONS;
    uint32_t per_file = s->n_files < DATA_CONTENT_PARTS ? DATA_CONTENT_PARTS / s->n_files : 1;
    uint64_t group = (s->n_files - 1) / DATA_CONTENT_PARTS + 1; /* files per part */

    if (per_file > DATA_REGIONS)
        per_file = DATA_REGIONS;
    if (group > 1) {
        *first = part * group * DATA_REGIONS;
        *end = *first + group * DATA_REGIONS;
    } else {
        uint64_t file = (uint64_t)(part / per_file) * DATA_REGIONS;
        uint32_t i = part % per_file;

        *first = file + (uint64_t)DATA_REGIONS * i / per_file;
        *end = file + (uint64_t)DATA_REGIONS * (i + 1) / per_file;
    }
    *first = *first < all ? *first : all;
    *end = *end < all ? *end : all;
}

void data_content(const struct data_set *s, uint32_t out[DATA_CONTENT_PARTS])
{
    for (uint32_t part = 0; part < DATA_CONTENT_PARTS; part++) {
        uint64_t u, end;

        out[part] = 0;
        for (part_range(s, part, &u, &end); u < end; u++) {
            uint8_t word[4];

            bytes_set_u32(word, s->files[u / DATA_REGIONS].content[u % DATA_REGIONS]);
            out[part] = crc32c(out[part], word, sizeof(word));
        }
    }
}

void data_content_place(const struct data_set *s, uint32_t part, char *out, size_t room)
{
    uint64_t first, end;
    const struct data_file *a, *b;

    part_range(s, part, &first, &end);
    if (first == end) { /* the other set has more files */
        snprintf(out, room, "the number of files");
        return;
    }
    a = &s->files[first / DATA_REGIONS];
    b = &s->files[(end - 1) / DATA_REGIONS];
    if (a != b)
        snprintf(out, room, "one of the files '%s' to '%s'", a->origin, b->origin);
    else if (end - first == DATA_REGIONS)
        snprintf(out, room, "'%s'", a->origin);
    else
        snprintf(out, room, "'%s' between offsets %" PRIu64 " and %" PRIu64, a->origin,
                 region_start(a->bytes, (uint32_t)(first % DATA_REGIONS)),
                 region_start(a->bytes, (uint32_t)((end - 1) % DATA_REGIONS) + 1));
}
