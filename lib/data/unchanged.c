/* unchanged.c - detects whether a file changed after it was indexed.
 *
 * The size must be equal. A different modification time alone is not a change (touch, a restored
 * backup, a file system that rounds times): the content is then compared by sampling the first
 * block, the last block and some blocks between them. The seed of the job selects these blocks, so
 * that runs with different seeds compare different blocks. */
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/err.h"
#include "base/rng.h"
#include "data/data_priv.h"

enum { BLOCK_BYTES = 4096, BLOCKS_BETWEEN = 6 };

int data_file_checksum(const struct data_set *s, int fd, const char *path, uint64_t bytes,
                       uint32_t *out, struct err *err)
{
    uint64_t n_blocks = bytes / BLOCK_BYTES; /* complete blocks */
    uint64_t n = n_blocks < BLOCKS_BETWEEN ? n_blocks : BLOCKS_BETWEEN;
    uint8_t block[BLOCK_BYTES];
    uint32_t crc = 0;
    int rc = 0;

    for (uint64_t i = 0; rc == 0 && i < n + 2 && bytes > 0; i++) {
        uint64_t last = bytes > BLOCK_BYTES ? bytes - BLOCK_BYTES : 0;
        uint64_t at = i == n  ? 0
                      : i > n ? last
                              : rng_permute(s->check_seed, 0, n_blocks, i) * BLOCK_BYTES;
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
                   "'%s' changed after it was indexed; expected %" PRIu64
                   " bytes with the same content, found %" PRIu64
                   " bytes%s: restart to index it again, and do not change it during a run",
                   f->path, f->bytes, bytes, bytes == f->bytes ? " with other content" : "");
}

static void report_new_time(const struct data_set *s, const struct data_file *f)
{
    char text[ERR_TEXT_BYTES];

    snprintf(text, sizeof(text),
             "'%s' has another modification time than when it was indexed, but the same size and "
             "content: reading continues",
             f->path);
    if (s->retry.on_warning != NULL)
        s->retry.on_warning(s->retry.arg, text);
}

int data_file_unchanged(const struct data_set *s, struct data_file *f, int fd, uint64_t bytes,
                        int64_t mtime_ns, struct err *err)
{
    int64_t known = atomic_load(&f->known_mtime_ns);
    uint32_t sample;
    int rc;

    if (bytes != f->bytes)
        return changed(f, bytes, err);
    if (mtime_ns != known) {
        rc = data_file_checksum(s, fd, f->path, bytes, &sample, err);
        if (rc < 0)
            return rc;
        if (sample != f->checksum)
            return changed(f, bytes, err);
        /* only one of several threads reports the new time */
        if (atomic_compare_exchange_strong(&f->known_mtime_ns, &known, mtime_ns))
            report_new_time(s, f);
    }
    atomic_store_explicit(&f->checked_ns, clock_ns(), memory_order_relaxed);
    return 0;
}
