/* unpack.c - copies files to the cache directory, unpacked if they are compressed with gzip or zlib, or unpacks compressed
 * files to memory if the set is cached in memory. Copies can be read at random positions and fast.
 *
 * The name of a copy contains a hash of path, size and time of the original, so a changed original
 * has another copy. The copy is renamed to its name after it is complete and synced. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "base/cancel.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/text.h"
#include "data/data_priv.h"

enum { OUT_BYTES = 256 << 10 };

/* The compressions that files may have: those of TensorFlow's TFRecordOptions. */
static const struct packing {
    const char *name;
    int window_bits; /* for inflateInit2() */
    const char *remedy;
} gzip = { "gzip", 16 + MAX_WBITS, "gunzip it" }, zlib = { "zlib", MAX_WBITS, "write it without compression" };

struct copy {
    const struct data_opts *opts;
    const struct data_retry *retry;
    struct data_file *f;
    int from, to;
    const struct packing *packing; /* NULL: the file is not compressed */
    uint8_t *in;             /* borrowed; [DATA_BLOCK_BYTES] */
    uint64_t at;             /* bytes read */
    uint64_t written, limit; /* bytes */
    const char *name;        /* borrowed; of the copy, for messages */
};

static int write_out(struct copy *c, const void *bytes, size_t n, struct err *err)
{
    char limit[32];
    int rc;

    if (n > c->limit - c->written) {
        text_bytes(limit, sizeof(limit), c->limit);
        return err_set(err, ERR_NOMEM,
                       "'%s' unpacks to more than the %s that are allowed in memory: set a cache "
                       "directory on a disk",
                       c->f->origin, limit);
    }
    rc = fs_write_all(c->to, bytes, n, c->name, err);
    c->written += n;
    return rc;
}

/* Reads the next block of the original to c->in; *n 0: the end. */
static int read_block(struct copy *c, size_t *n, struct err *err)
{
    uint64_t left = c->f->bytes - c->at;
    int rc = 0;

    if (cancel_requested(c->opts->cancel))
        return err_set(err, ERR_CANCELED, "copy '%s': canceled", c->f->origin);
    *n = left < DATA_BLOCK_BYTES ? left : DATA_BLOCK_BYTES;
    if (*n > 0)
        rc = data_file_read_again(c->retry, c->from, c->f->path, c->in, *n, c->at, err);
    c->at += *n;
    return rc;
}

static int packing_error(const struct copy *c, const z_stream *z, const char *what, struct err *err)
{
    return err_set(err, ERR_CORRUPT, "'%s': offset %" PRIu64 ": %s: %s", c->f->origin,
                   c->at - z->avail_in, c->packing->name, what != NULL ? what : "damaged");
}

/* Unpacks all members of a gzip file, or zlib streams, up to the end of the file; `gzip -c a b` writes several. */
static int inflate_all(struct copy *c, z_stream *z, uint8_t *out, struct err *err)
{
    bool inside = false; /* a member has begun and not ended */
    size_t n = 0;
    int rc = 0, status = Z_OK;

    for (;;) {
        if (z->avail_in == 0) {
            rc = read_block(c, &n, err);
            if (rc < 0)
                return rc;
            z->next_in = c->in;
            z->avail_in = (uInt)n;
            if (n == 0)
                return inside ? packing_error(c, z, "the file is truncated", err) : 0;
        }
        if (!inside && status == Z_STREAM_END && inflateReset(z) != Z_OK)
            return packing_error(c, z, z->msg, err);
        inside = true;
        do {
            z->next_out = out;
            z->avail_out = OUT_BYTES;
            status = inflate(z, Z_NO_FLUSH);
            if (status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR)
                return packing_error(c, z, z->msg, err);
            rc = write_out(c, out, OUT_BYTES - z->avail_out, err);
            if (rc < 0)
                return rc;
        } while (status == Z_OK && (z->avail_in > 0 || z->avail_out == 0));
        if (status == Z_STREAM_END)
            inside = false;
    }
}

static int unpack(struct copy *c, struct err *err)
{
    z_stream z = { .zalloc = Z_NULL };
    uint8_t *out = malloc(OUT_BYTES);
    int rc;

    if (out == NULL || inflateInit2(&z, c->packing->window_bits) != Z_OK) {
        free(out);
        return err_set(err, ERR_NOMEM, "unpack '%s': out of memory", c->f->origin);
    }
    rc = inflate_all(c, &z, out, err);
    inflateEnd(&z);
    free(out);
    return rc;
}

static int copy_plain(struct copy *c, struct err *err)
{
    size_t n;
    int rc;

    do {
        rc = read_block(c, &n, err);
        if (rc == 0)
            rc = write_out(c, c->in, n, err);
    } while (rc == 0 && n > 0);
    return rc;
}

static int run(struct copy *c, struct err *err)
{
    return c->packing != NULL ? unpack(c, err) : copy_plain(c, err);
}

/* Updates size and time of `f` for the copy `fd`, which is read from now on. Returns fd. */
static int use_copy(struct data_file *f, int fd, struct err *err)
{
    struct stat st;

    if (fstat(fd, &st) < 0) {
        int rc = err_sys(err, errno, "stat the copy of '%s'", f->origin);

        close(fd);
        return rc;
    }
    f->bytes = (uint64_t)st.st_size;
    f->mtime_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
    return fd;
}

static int unpack_to_memory(struct copy *c, struct err *err)
{
    int rc, fd = memfd_create("trainerd-data", MFD_CLOEXEC);

    if (fd < 0)
        return err_sys(err, errno, "memory for '%s'", c->f->origin);
    c->to = fd;
    c->name = c->f->origin;
    c->limit = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) / 2;
    rc = run(c, err);
    if (rc < 0) {
        close(fd);
        return rc;
    }
    c->f->pinned = true;
    return use_copy(c->f, fd, err);
}

/* Returns <directory>/<name>.<hash of path, size and time>; NULL: out of memory. */
static char *copy_name(const struct copy *c)
{
    char *path = realpath(c->f->path, NULL), *full = NULL;
    const char *base = strrchr(c->f->path, '/');
    uint8_t digest[DIGEST_BYTES];
    char hex[DIGEST_HEX_BYTES], name[NAME_MAX + 1], *key = NULL;

    if (path != NULL &&
        asprintf(&key, "%s\n%" PRIu64 "\n%" PRId64, path, c->f->bytes, c->f->mtime_ns) > 0) {
        digest_sha256(key, strlen(key), digest);
        digest_hex(digest, hex);
        snprintf(name, sizeof(name), "%.200s.%.16s", base != NULL ? base + 1 : c->f->path, hex);
        full = fs_join(c->opts->origin.cache_directory, name);
    }
    free(key);
    free(path);
    return full;
}

static int write_copy(struct copy *c, const char *name, struct err *err)
{
    char *temporary = NULL;
    int rc;

    /* Two tasks of a host may write the same copy: each has its own temporary file, and the last
     * rename wins. */
    if (asprintf(&temporary, "%s.%ld.tmp", name, (long)getpid()) < 0)
        return err_set(err, ERR_NOMEM, "copy '%s': out of memory", c->f->origin);
    c->name = temporary;
    c->limit = UINT64_MAX;
    c->to = open(temporary, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
    if (c->to < 0) {
        rc = err_sys(err, errno, "create '%s'", temporary);
        free(temporary);
        return rc;
    }
    rc = run(c, err);
    if (rc == 0 && fdatasync(c->to) < 0)
        rc = err_sys(err, errno, "sync '%s'", temporary);
    close(c->to);
    if (rc == 0 && rename(temporary, name) < 0)
        rc = err_sys(err, errno, "rename '%s'", temporary);
    if (rc < 0)
        unlink(temporary);
    free(temporary);
    return rc < 0 ? err_wrap(err, rc, "copy '%s' to the cache directory", c->f->origin) : 0;
}

static int copy_to_cache(struct copy *c, struct err *err)
{
    char *name = copy_name(c);
    int fd, rc = 0;

    if (name == NULL)
        return err_set(err, ERR_NOMEM, "copy '%s': out of memory", c->f->origin);
    fd = open(name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        rc = write_copy(c, name, err);
    if (rc == 0 && fd < 0)
        fd = open(name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (rc == 0 && fd < 0)
        rc = err_sys(err, errno, "open '%s'", name);
    if (rc < 0) {
        free(name);
        return rc;
    }
    free(c->f->path);
    c->f->path = name;
    return use_copy(c->f, fd, err);
}

/* Returns the compression of a file that begins with these bytes, or NULL. An uncompressed TFRecord file may begin with the
 * same bytes as a compressed one, because they are the low bytes of a length. */
static const struct packing *packing_of(const struct data_source *source, const uint8_t *head,
                                        size_t n)
{
    if (n < 2 || source->is_plain(head, n))
        return NULL;
    if (head[0] == 0x1f && head[1] == 0x8b)
        return &gzip;
    /* RFC 1950: deflate with a window of at most 32 KiB, and a check of the two bytes */
    return (head[0] & 0x0f) == 8 && head[0] >> 4 <= 7 && (head[0] << 8 | head[1]) % 31 == 0 ? &zlib
                                                                                            : NULL;
}

int data_unpack(const struct data_opts *opts, const struct data_source *source,
                const struct data_retry *retry, struct data_file *f, int fd, uint8_t *block,
                struct err *err)
{
    struct copy c = { .opts = opts, .retry = retry, .f = f, .from = fd, .in = block };
    uint8_t head[16];
    size_t n = f->bytes < sizeof(head) ? (size_t)f->bytes : sizeof(head);

    if (source->is_plain != NULL) {
        int rc = data_file_read_again(retry, fd, f->path, head, n, 0, err);

        if (rc < 0)
            return rc;
        c.packing = packing_of(source, head, n);
    }
    if (opts->origin.cache == DATA_CACHE_DISK)
        return copy_to_cache(&c, err);
    if (c.packing == NULL)
        return fd;
    if (opts->origin.cache == DATA_CACHE_MEMORY)
        return unpack_to_memory(&c, err);
    return err_set(err, ERR_INPUT,
                   "'%s' is compressed with %s, and records are read at random: cache them in "
                   "memory or on a disk, or %s",
                   f->origin, c.packing->name, c.packing->remedy);
}
