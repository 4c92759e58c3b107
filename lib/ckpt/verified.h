/* verified.h - a file of a checkpoint whose content is verified before parts of it are read in any order.
 *
 * The manifest has one checksum for a whole file, which a reader of some parts cannot compare. ckpt_verified_open()
 * reads the whole file once, compares its checksum with that of the manifest, and keeps a checksum of each block of
 * CKPT_VERIFIED_BYTES. Each later read compares the blocks that it needs, so every byte that a reader uses is one
 * that the manifest describes, also if the storage returns other bytes the second time.
 * Threads: reading: any; the rest one at a time. */
#ifndef CKPT_VERIFIED_H
#define CKPT_VERIFIED_H

#include <stddef.h>
#include <stdint.h>

struct ckpt_file;
struct err;

enum { CKPT_VERIFIED_BYTES = 64 << 10 };

struct ckpt_verified {
    uint64_t *sums; /* owned; XXH3-64 of each block; NULL: the file is not verified */
    uint64_t bytes; /* of the file */
};

/* Called after each part of a file that is verified; an error ends the call with it. */
typedef int ckpt_verified_fn(void *arg, struct err *err);

/* Reads the file `fd` from its start. On failure *out is unchanged. Errors: ERR_CORRUPT (other content than the
 * manifest states; the text names the file and both checksums), ERR_IO, ERR_NOMEM, those of on_progress. */
int ckpt_verified_open(int fd, const char *path, const struct ckpt_file *file,
                       ckpt_verified_fn *on_progress, void *arg, struct ckpt_verified *out,
                       struct err *err);
void ckpt_verified_close(struct ckpt_verified *v); /* a zeroed one is allowed */
/* Reads n bytes from byte `at`. A file that is not verified is read without a comparison.
 * Errors: ERR_CORRUPT (a block differs from the verified one), ERR_IO, ERR_NOMEM; `out` is then undefined. */
int ckpt_verified_read(const struct ckpt_verified *v, int fd, const char *path, void *out, size_t n,
                       uint64_t at, struct err *err);

#endif
