/* unchanged.c - detects whether a file changed after it was indexed.
 *
 * The size must be equal. A different modification time alone is not a change (touch, a restored
 * backup, a file system that rounds times): the sampled content (content.c) is then compared. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "data/data_priv.h"

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
    uint32_t sums[DATA_REGIONS];
    int rc;

    if (bytes != f->bytes)
        return changed(f, bytes, err);
    if (mtime_ns != known) {
        rc = data_file_checksum(s, fd, f->path, bytes, sums, err);
        if (rc < 0)
            return rc;
        if (memcmp(sums, f->sampled, sizeof(sums)) != 0)
            return changed(f, bytes, err);
        /* only one of several threads reports the new time */
        if (atomic_compare_exchange_strong(&f->known_mtime_ns, &known, mtime_ns))
            report_new_time(s, f);
    }
    atomic_store_explicit(&f->checked_ns, clock_ns(), memory_order_relaxed);
    return 0;
}
