/* verified.c - see verified.h. */
#include "ckpt/verified.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/fault.h"
#include "ckpt/ckpt_priv.h"

_Static_assert(CKPT_CHUNK_BYTES % CKPT_VERIFIED_BYTES == 0, "a chunk has whole blocks");

static uint64_t n_blocks(uint64_t bytes)
{
    return bytes / CKPT_VERIFIED_BYTES + (bytes % CKPT_VERIFIED_BYTES > 0);
}

static int no_memory(const char *path, struct err *err)
{
    return err_set(err, ERR_NOMEM, "'%s': out of memory", path);
}

/* Returns the bytes of the block that begins at byte `at`. */
static size_t block_bytes(uint64_t bytes, uint64_t at)
{
    return bytes - at < CKPT_VERIFIED_BYTES ? (size_t)(bytes - at) : CKPT_VERIFIED_BYTES;
}

static int sum_file(int fd, const char *path, uint64_t bytes, ckpt_verified_fn *on_progress,
                    void *arg, XXH3_state_t *hash, char *chunk, uint64_t *sums, struct err *err)
{
    int rc = 0;

    for (uint64_t at = 0; rc == 0 && at < bytes;) {
        size_t n = bytes - at < CKPT_CHUNK_BYTES ? (size_t)(bytes - at) : CKPT_CHUNK_BYTES;

        rc = ckpt_pread_all(fd, path, chunk, n, at, err);
        if (rc < 0)
            break;
        XXH3_128bits_update(hash, chunk, n);
        for (uint64_t i = at, end = at + n; i < end; i += CKPT_VERIFIED_BYTES)
            *sums++ = XXH3_64bits(chunk + (i - at), block_bytes(bytes, i));
        at += n;
        if (on_progress != NULL)
            rc = on_progress(arg, err);
    }
    return rc;
}

int ckpt_verified_open(int fd, const char *path, const struct ckpt_file *file,
                       ckpt_verified_fn *on_progress, void *arg, struct ckpt_verified *out,
                       struct err *err)
{
    XXH3_state_t *hash = XXH3_createState();
    char *chunk = malloc(CKPT_CHUNK_BYTES);
    uint64_t *sums = calloc(n_blocks(file->bytes) + 1, sizeof(*sums));
    char text[CKPT_HASH_BYTES];
    int rc;

    if (hash == NULL || chunk == NULL || sums == NULL) {
        rc = no_memory(path, err);
    } else {
        XXH3_128bits_reset(hash);
        rc = sum_file(fd, path, file->bytes, on_progress, arg, hash, chunk, sums, err);
    }
    if (rc == 0) {
        ckpt_hash_print(XXH3_128bits_digest(hash), text);
        rc = ckpt_check_hash(path, file, text, err);
    }
    XXH3_freeState(hash);
    free(chunk);
    if (rc == 0)
        *out = (struct ckpt_verified){ sums, file->bytes };
    else
        free(sums);
    return rc;
}

void ckpt_verified_close(struct ckpt_verified *v)
{
    free(v->sums);
    *v = (struct ckpt_verified){ NULL, 0 };
}

static int check_block(const struct ckpt_verified *v, const char *path, const char *data,
                       uint64_t at, struct err *err)
{
    if (XXH3_64bits(data, block_bytes(v->bytes, at)) == v->sums[at / CKPT_VERIFIED_BYTES])
        return 0;
    return err_set(err, ERR_CORRUPT,
                   "'%s': the %zu bytes from byte %" PRIu64 " differ from those whose checksum was "
                   "compared with the manifest: the storage returns different bytes for one file",
                   path, block_bytes(v->bytes, at), at);
}

/* Reads whole blocks, of which the first begins at byte `at`. */
static int read_blocks(const struct ckpt_verified *v, int fd, const char *path, char *out, size_t n,
                       uint64_t at, struct err *err)
{
    int rc = ckpt_pread_all(fd, path, out, n, at, err);

    if (rc == 0 && fault_hit("ckpt.flip"))
        out[0] ^= 1;
    for (size_t i = 0; rc == 0 && i < n; i += CKPT_VERIFIED_BYTES)
        rc = check_block(v, path, out + i, at + i, err);
    return rc;
}

int ckpt_verified_read(const struct ckpt_verified *v, int fd, const char *path, void *out, size_t n,
                       uint64_t at, struct err *err)
{
    char *to = out, *block;
    int rc = 0;

    if (v->sums == NULL)
        return ckpt_pread_all(fd, path, out, n, at, err);
    if (at > v->bytes || n > v->bytes - at)
        return err_set(err, ERR_CORRUPT, "'%s': bytes beyond its end", path);
    block = malloc(CKPT_VERIFIED_BYTES);
    if (block == NULL)
        return no_memory(path, err);
    while (rc == 0 && n > 0) {
        size_t skip = at % CKPT_VERIFIED_BYTES, size = block_bytes(v->bytes, at - skip), some;

        if (skip == 0 && n >= size) { /* to their place */
            some = n - n % CKPT_VERIFIED_BYTES;
            some = some > 0 ? some : size;
            rc = read_blocks(v, fd, path, to, some, at, err);
        } else { /* a part of a block */
            some = size - skip < n ? size - skip : n;
            rc = read_blocks(v, fd, path, block, size, at - skip, err);
            memcpy(to, block + skip, some);
        }
        to += some;
        at += some;
        n -= some;
    }
    free(block);
    return rc;
}
