/* read.c - reads the files of a checkpoint: opens a file, reads bytes and the header of a safetensors file. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/fs.h"
#include "ckpt/ckpt_priv.h"

int ckpt_open_regular(const char *path, uint64_t *bytes, struct err *err)
{
    struct stat st;
    int fd, rc = 0;

    do
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* does not wait at a FIFO */
    while (fd < 0 && errno == EINTR);
    if (fd < 0)
        return err_sys(err, errno, "open '%s'", path);
    if (fstat(fd, &st) < 0)
        rc = err_sys(err, errno, "open '%s'", path);
    else if (!S_ISREG(st.st_mode))
        rc = err_set(err, ERR_CORRUPT, "'%s' is not a regular file", path);
    if (rc < 0) {
        close(fd);
        return rc;
    }
    *bytes = (uint64_t)st.st_size;
    return fd;
}

int ckpt_open_file(const char *folder, const struct ckpt_file *file, char **path, struct err *err)
{
    char *name = fs_join(folder, file->name);
    uint64_t bytes;
    int fd;

    if (name == NULL)
        return err_set(err, ERR_NOMEM, "'%s': out of memory", folder);
    fd = ckpt_open_regular(name, &bytes, err);
    if (fd >= 0 && bytes == file->bytes) {
        *path = name;
        return fd;
    }
    if (fd >= 0) {
        close(fd);
        fd = err_set(err, ERR_CORRUPT, "'%s' has %" PRIu64 " bytes, its manifest expects %" PRIu64,
                     name, bytes, file->bytes);
    }
    free(name);
    /* An absent file that the manifest lists is damage. */
    return fd == ERR_NOENT ? ckpt_corrupt(err) : fd;
}

int ckpt_read_all(int fd, const char *path, void *out, size_t n, struct err *err)
{
    char *to = out;

    while (n > 0) {
        ssize_t got = FAULT_TRY("ckpt.read", read(fd, to, n));

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_sys(err, errno, "read '%s'", path);
        if (got == 0)
            return err_set(err, ERR_CORRUPT, "'%s' was truncated while it was read", path);
        to += got;
        n -= (size_t)got;
    }
    return 0;
}

int ckpt_pread_all(int fd, const char *path, void *out, size_t n, uint64_t at, struct err *err)
{
    char *to = out;

    while (n > 0) {
        ssize_t got = FAULT_TRY("ckpt.read", pread(fd, to, n, (off_t)at));

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_sys(err, errno, "read '%s'", path);
        if (got == 0)
            return err_set(err, ERR_CORRUPT, "'%s' was truncated while it was read", path);
        to += got;
        at += (uint64_t)got;
        n -= (size_t)got;
    }
    return 0;
}

int ckpt_read_header(int fd, const char *path, uint64_t file_bytes, struct safetensors *out,
                     char **raw, struct err *err)
{
    uint8_t head[SAFETENSORS_HEAD_BYTES] = { 0 };
    char *bytes = NULL;
    uint64_t n = 0;
    int rc = 0;

    if (file_bytes >= sizeof(head)) /* a shorter file is rejected below */
        rc = ckpt_read_all(fd, path, head, sizeof(head), err);
    if (rc == 0)
        rc = safetensors_json_bytes(head, file_bytes, &n, err);
    if (rc == 0) {
        bytes = malloc(sizeof(head) + n);
        if (bytes == NULL)
            rc = err_set(err, ERR_NOMEM, "'%s': out of memory", path);
    }
    if (rc == 0) {
        memcpy(bytes, head, sizeof(head));
        rc = ckpt_read_all(fd, path, bytes + sizeof(head), n, err);
    }
    if (rc == 0)
        rc = safetensors_parse(bytes + sizeof(head), n, file_bytes, out, err);
    if (rc == 0 && raw != NULL)
        *raw = bytes;
    else
        free(bytes);
    return rc < 0 ? err_wrap(err, rc, "'%s'", path) : 0;
}

void ckpt_hash_print(XXH128_hash_t hash, char out[CKPT_HASH_BYTES])
{
    XXH128_canonical_t bytes;

    XXH128_canonicalFromHash(&bytes, hash);
    for (size_t i = 0; i < sizeof(bytes.digest); i++)
        snprintf(out + 2 * i, 3, "%02x", bytes.digest[i]);
}

int ckpt_check_hash(const char *path, const struct ckpt_file *file, const char *hash,
                    struct err *err)
{
    if (!fault_hit("ckpt.verify") && strcmp(hash, file->hash) == 0)
        return 0;
    return err_set(err, ERR_CORRUPT, "'%s': checksum (XXH3-128) is %s, its manifest expects %s",
                   path, hash, file->hash);
}
