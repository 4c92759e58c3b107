/* unchanged.c - is a file that is in use still the one that was indexed?
 *
 * Its size must be the same. Another time stamp alone (touch, a restored backup, a file system that rounds times) is
 * no change: then a sample of the content decides, the first and the last block and some between them. Which ones
 * follows from the seed of the job, so that runs with other seeds look at other blocks. */
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/err.h"
#include "base/rng.h"
#include "data/data_priv.h"

enum { BLOCK_BYTES = 4096, BLOCKS_BETWEEN = 6 };

int data_file_sample(const struct data_set *s, int fd, const char *path, uint64_t bytes, uint32_t *out,
                     struct err *err)
{
    uint64_t n_blocks = bytes / BLOCK_BYTES; /* whole ones */
    uint64_t n = n_blocks < BLOCKS_BETWEEN ? n_blocks : BLOCKS_BETWEEN;
    uint8_t block[BLOCK_BYTES];
    uint32_t crc = 0;
    int rc = 0;

    for (uint64_t i = 0; rc == 0 && i < n + 2 && bytes > 0; i++) {
        uint64_t last = bytes > BLOCK_BYTES ? bytes - BLOCK_BYTES : 0;
        uint64_t at = i == n ? 0 : i > n ? last : rng_permute(s->check_seed, 0, n_blocks, i) * BLOCK_BYTES;
        size_t size = bytes - at < BLOCK_BYTES ? (size_t)(bytes - at) : BLOCK_BYTES;

        rc = data_file_read_at("data.sample", fd, path, block, size, at, err);
        if (rc == 0)
            crc = crc32c(crc, block, size);
    }
    if (rc == 0)
        *out = crc;
    return rc;
}

static int changed(const struct data_file *f, uint64_t bytes, struct err *err)
{
    return err_set(err, ERR_CHANGED,
                   "'%s' changed after it was indexed; expected %" PRIu64 " bytes with the same content, found %" PRIu64
                   " bytes%s: start again to index it anew, and leave it alone during a run",
                   f->path, f->bytes, bytes, bytes == f->bytes ? " with other content" : "");
}

static void tell_new_time(const struct data_set *s, const struct data_file *f)
{
    char text[ERR_TEXT_BYTES];

    snprintf(text, sizeof(text), "'%s' has another time stamp than when it was indexed, and the same size and "
                                 "content: reading goes on", f->path);
    if (s->patience.on_trouble != NULL)
        s->patience.on_trouble(s->patience.arg, text);
}

int data_file_unchanged(const struct data_set *s, struct data_file *f, int fd, uint64_t bytes, int64_t mtime_ns,
                        struct err *err)
{
    int64_t known = atomic_load(&f->known_mtime_ns);
    uint32_t sample;
    int rc;

    if (bytes != f->bytes)
        return changed(f, bytes, err);
    if (mtime_ns != known) {
        rc = data_file_sample(s, fd, f->path, bytes, &sample, err);
        if (rc < 0)
            return rc;
        if (sample != f->sample)
            return changed(f, bytes, err);
        if (atomic_compare_exchange_strong(&f->known_mtime_ns, &known, mtime_ns)) /* one thread tells it */
            tell_new_time(s, f);
    }
    atomic_store_explicit(&f->checked_ns, clock_ns(), memory_order_relaxed);
    return 0;
}
