/* row_files.c - the shard files whose rows the owner of a writer writes, in parallel on several hosts.
 *
 *     create     every file with its header and its final size, so that rows can be written at their places
 *     write      the owner's write_rows(): each row once, by any process; sums of the rows in memory
 *     read       from the disk: the checksum for the manifest, and the sums of the rows, which must be equal
 *
 * No process has all rows of a file, so no checksum of the file exists before it is read. The sums close this
 * gap: they are computed from the memory of the processes that write, and do not depend on who writes what. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/fs.h"
#include "ckpt/ckpt_priv.h"

int ckpt_row_files_check(const struct ckpt_row_files *files, struct err *err)
{
    return ckpt_check_canceled(files->watch, err);
}

/* ---- writing ---- */

static int fill_file(int fd, const char *path, const struct ckpt_layout *l, struct err *err)
{
    int rc = fs_write_all(fd, l->header, l->header_bytes, path, err);

    if (rc == 0 && FAULT_TRY("ckpt.write", ftruncate(fd, (off_t)l->bytes)) < 0)
        rc = err_sys(err, errno, "write '%s'", path);
    if (rc == 0 && FAULT_TRY("ckpt.sync", fsync(fd)) < 0)
        rc = err_sys(err, errno, "sync '%s'", path);
    return rc;
}

static int create_file(const char *folder, const struct ckpt_layout *l, struct err *err)
{
    char *path = fs_join(folder, l->name);
    int fd, rc;

    if (path == NULL)
        return err_set(err, ERR_NOMEM, "save '%s': out of memory", l->name);
    fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
    if (fd < 0) {
        rc = err_sys(err, errno, "create '%s'", path);
    } else {
        rc = fill_file(fd, path, l, err);
        if (close(fd) < 0 && rc == 0) /* network file systems report write errors here */
            rc = err_sys(err, errno, "close '%s'", path);
    }
    free(path);
    return rc;
}

static bool find_place(const char *name, uint32_t *kind, uint32_t *file)
{
    char shard[CKPT_FILE_NAME_BYTES];

    for (*kind = 0; *kind < CKPT_SHARD_KINDS; ++*kind)
        for (*file = 0; *file < CKPT_SHARD_FILES; ++*file) {
            ckpt_shard_file_name(*kind, *file, shard);
            if (strcmp(name, shard) == 0)
                return true;
        }
    return false;
}

int ckpt_row_files_write(const char *folder, const struct ckpt_layouts *layouts,
                         const struct ckpt_source *source, struct ckpt_watch *watch,
                         struct ckpt_row_files *out, struct err *err)
{
    int rc = 0;

    *out = (struct ckpt_row_files){ .folder = folder,
                                    .sizes = source->sizes,
                                    .n_sizes = source->n_sizes,
                                    .watch = watch };
    for (uint32_t i = 0; rc == 0 && i < layouts->n; i++) {
        const struct ckpt_layout *l = &layouts->at[i];
        uint32_t kind, file;

        if (!l->is_elsewhere)
            continue;
        CHECK(find_place(l->name, &kind, &file));
        out->data_at[kind][file] = l->header_bytes;
        rc = ckpt_check_canceled(watch, err);
        if (rc == 0)
            rc = create_file(folder, l, err);
    }
    if (rc == 0) /* other hosts open the files */
        rc = fs_sync_dir(folder, err);
    return rc == 0 ? source->write_rows(source->arg, out, err) : rc;
}

/* ---- reading ---- */

struct reader {
    int fd;
    const char *path;
    struct ckpt_watch *watch;
    XXH3_state_t *hash;
    char *chunk; /* [CKPT_CHUNK_BYTES] */
    uint64_t at, sum;
};

static int read_rows(struct reader *r, const struct safetensors_entry *e, struct err *err)
{
    uint64_t rows = (uint64_t)e->shape.dim[0], n;
    size_t row_bytes = rows > 0 ? (size_t)((e->end - e->begin) / rows) : 1, most;
    int rc = 0;

    most = row_bytes < CKPT_CHUNK_BYTES ? CKPT_CHUNK_BYTES / row_bytes : 1;
    if (row_bytes > CKPT_CHUNK_BYTES)
        return err_set(err, ERR_UNSUPPORTED, "tensor '%s': rows of %zu bytes, expected at most %d",
                       e->name, row_bytes, CKPT_CHUNK_BYTES);
    for (; rc == 0 && rows > 0; rows -= n) {
        n = rows < most ? rows : most;
        rc = ckpt_check_canceled(r->watch, err);
        if (rc == 0)
            rc = ckpt_read_all(r->fd, r->path, r->chunk, n * row_bytes, err);
        if (rc < 0)
            return rc;
        XXH3_128bits_update(r->hash, r->chunk, n * row_bytes);
        r->sum += ckpt_shard_sum(r->chunk, n, row_bytes, r->at);
        /* the memory is better used for the weights and data of the run; a hint */
        (void)posix_fadvise(r->fd, (off_t)r->at, (off_t)(n * row_bytes), POSIX_FADV_DONTNEED);
        r->at += n * row_bytes;
    }
    return rc;
}

static int read_file(struct reader *r, const struct ckpt_layout *l, uint64_t sum,
                     struct ckpt_file *out, struct err *err)
{
    struct safetensors s = { .n = 0 };
    char *header = NULL;
    int rc;

    (void)posix_fadvise(r->fd, 0, 0, POSIX_FADV_DONTNEED); /* reads from the disk; a hint */
    rc = ckpt_read_header(r->fd, r->path, l->bytes, &s, &header, err);
    if (rc == 0 && (s.data_at != l->header_bytes || memcmp(header, l->header, s.data_at) != 0))
        rc = err_set(err, ERR_CORRUPT, "'%s': its header is not the one that was written", r->path);
    if (rc == 0) {
        XXH3_128bits_reset(r->hash);
        XXH3_128bits_update(r->hash, header, s.data_at);
        r->at = s.data_at;
    }
    for (size_t i = 0; rc == 0 && i < s.n; i++)
        rc = read_rows(r, &s.entries[i], err);
    if (rc == 0 && (fault_hit("ckpt.verify") || r->sum != sum))
        rc = err_set(err, ERR_CORRUPT,
                     "'%s': the sum of its rows is %016" PRIx64 ", the tasks that wrote them computed "
                     "%016" PRIx64,
                     r->path, r->sum, sum);
    if (rc == 0) {
        snprintf(out->name, sizeof(out->name), "%s", l->name);
        out->bytes = l->bytes;
        ckpt_hash_print(XXH3_128bits_digest(r->hash), out->hash);
    }
    free(header);
    safetensors_fini(&s);
    return rc;
}

int ckpt_row_file_read(const struct ckpt_row_files *files, const struct ckpt_layout *l,
                       struct ckpt_file *out, struct err *err)
{
    struct reader r = { .fd = -1,
                        .watch = files->watch,
                        .hash = XXH3_createState(),
                        .chunk = malloc(CKPT_CHUNK_BYTES) };
    char *path = fs_join(files->folder, l->name);
    uint32_t kind, file;
    uint64_t bytes = 0;
    int rc = 0;

    CHECK(find_place(l->name, &kind, &file));
    if (r.hash == NULL || r.chunk == NULL || path == NULL) {
        rc = err_set(err, ERR_NOMEM, "'%s': out of memory", l->name);
    } else {
        r.path = path;
        r.fd = ckpt_open_regular(path, &bytes, err);
        rc = r.fd < 0 ? r.fd : 0;
    }
    if (rc == 0 && bytes != l->bytes)
        rc = err_set(err, ERR_CORRUPT, "'%s' has %" PRIu64 " bytes, expected %" PRIu64, path, bytes,
                     l->bytes);
    if (rc == 0)
        rc = read_file(&r, l, files->sums[kind][file], out, err);
    if (r.fd >= 0)
        close(r.fd);
    XXH3_freeState(r.hash);
    free(r.chunk);
    free(path);
    return rc;
}
