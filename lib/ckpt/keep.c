/* keep.c - see keep.h. */
#include "ckpt/keep.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/fs.h"
#include "ckpt/ckpt_priv.h"

static char *step_path(const char *directory, uint64_t step)
{
    char name[CKPT_NAME_BYTES];

    ckpt_folder_name(step, name);
    return fs_join(directory, name);
}

int ckpt_entries(const char *directory, struct ckpt_entry **out, size_t *n, struct err *err)
{
    struct ckpt_entry *entries;
    uint64_t *steps;
    size_t n_steps, kept = 0;
    int rc = ckpt_folder_list(directory, &steps, &n_steps, err);

    if (rc < 0)
        return rc;
    entries = calloc(n_steps + 1, sizeof(*entries));
    if (entries == NULL)
        rc = err_set(err, ERR_NOMEM, "list '%s': out of memory", directory);
    for (size_t i = 0; rc == 0 && i < n_steps; i++) {
        char *path = step_path(directory, steps[i]);
        struct stat st;

        if (path == NULL)
            rc = err_set(err, ERR_NOMEM, "list '%s': out of memory", directory);
        else if (stat(path, &st) == 0)
            entries[kept++] = (struct ckpt_entry){
                steps[i], (uint64_t)st.st_ino,
                (uint64_t)st.st_ctim.tv_sec * 1000000000 + (uint64_t)st.st_ctim.tv_nsec
            };
        else if (errno != ENOENT) /* ENOENT: it was removed after the directory was read */
            rc = err_sys(err, errno, "examine '%s'", path);
        free(path);
    }
    free(steps);
    if (rc < 0) {
        free(entries);
        return rc;
    }
    *out = entries;
    *n = kept;
    return 0;
}

int ckpt_keep_prepare(const char *to, struct err *err)
{
    int rc = ckpt_create_directory(to, err);

    return rc == 0 ? ckpt_folder_clean(to, err) : rc;
}

/* ---- pinning ---- */

static int copy_bytes(int from, int to, const char *source, const char *path, uint64_t bytes,
                      struct err *err)
{
    char *chunk = malloc(CKPT_CHUNK_BYTES);
    int rc = chunk != NULL ? 0 : err_set(err, ERR_NOMEM, "copy '%s': out of memory", source);

    while (rc == 0 && bytes > 0) {
        size_t n = bytes < CKPT_CHUNK_BYTES ? (size_t)bytes : CKPT_CHUNK_BYTES;

        rc = ckpt_read_all(from, source, chunk, n, err);
        if (rc == 0)
            rc = fs_write_all(to, chunk, n, path, err);
        bytes -= n;
    }
    free(chunk);
    return rc;
}

/* Copies a file; durable when it returns 0. */
static int copy_file(const char *source, const char *path, struct err *err)
{
    uint64_t bytes;
    int to, rc, from = ckpt_open_regular(source, &bytes, err);

    if (from < 0)
        return from;
    to = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
    if (to < 0) {
        rc = err_sys(err, errno, "create '%s'", path);
        close(from);
        return rc;
    }
    rc = copy_bytes(from, to, source, path, bytes, err);
    if (rc == 0 && fsync(to) < 0)
        rc = err_sys(err, errno, "sync '%s'", path);
    if (close(to) < 0 && rc == 0) /* network file systems report write errors here */
        rc = err_sys(err, errno, "close '%s'", path);
    close(from);
    return rc;
}

static int pin_file(const char *from, const char *to, const char *name, struct err *err)
{
    char *source = fs_join(from, name), *path = fs_join(to, name);
    int rc = 0;

    if (source == NULL || path == NULL)
        rc = err_set(err, ERR_NOMEM, "pin '%s': out of memory", from);
    else if (FAULT_TRY("ckpt.link", link(source, path)) < 0)
        rc = errno == ENOENT ? err_sys(err, errno, "link '%s'", source)
                             : copy_file(source, path, err);
    free(source);
    free(path);
    return rc;
}

static int pin_files(const char *from, const struct ckpt_manifest *m, const char *to,
                     struct err *err)
{
    int rc = 0;

    if (mkdir(to, 0777) < 0)
        return err_sys(err, errno, "create directory '%s'", to);
    for (uint32_t i = 0; rc == 0 && i < m->n_files; i++)
        rc = pin_file(from, to, m->files[i].name, err);
    if (rc == 0)
        rc = pin_file(from, to, CKPT_MANIFEST_FILE, err);
    return rc == 0 ? fs_sync_dir(to, err) : rc;
}

/* ERR_NOENT means that the checkpoint was removed; a checkpoint that exists and lacks a file is
 * damaged. */
static int removed_or_damaged(const char *source, int rc, struct err *err)
{
    struct stat st;

    if (rc != ERR_NOENT || stat(source, &st) < 0)
        return rc;
    return ckpt_corrupt(err);
}

int ckpt_pin(const char *from, uint64_t step, const char *to, struct ckpt_info *out,
             struct err *err)
{
    char name[CKPT_NAME_BYTES], *source = step_path(from, step), *path = NULL;
    struct ckpt_manifest m;
    int rc = ckpt_hidden_name(step, "tmp", name, err);

    if (rc == 0) {
        path = fs_join(to, name);
        if (source == NULL || path == NULL)
            rc = err_set(err, ERR_NOMEM, "pin step %" PRIu64 ": out of memory", step);
    }
    if (rc == 0)
        rc = ckpt_manifest_read(source, &m, err);
    if (rc == 0 && m.meta.step != step)
        rc = err_set(err, ERR_CORRUPT, "'%s' contains step %" PRIu64 " according to its manifest",
                     source, m.meta.step);
    if (rc == 0) {
        rc = pin_files(source, &m, path, err);
        if (rc == 0) /* the manifest is read again: the folder may have been replaced meanwhile */
            rc = ckpt_peek_folder(path, NULL, out, err);
        if (rc < 0)
            (void)fs_remove_tree(path, NULL); /* else ckpt_keep_prepare() removes it */
    }
    if (rc < 0 && source != NULL)
        rc = removed_or_damaged(source, rc, err);
    free(source);
    free(path);
    return rc;
}

int ckpt_unpin(const struct ckpt_info *pinned, struct err *err)
{
    return fs_remove_tree(pinned->path, err);
}

/* ---- keeping ---- */

static int remove_others(const char *to, uint64_t step, struct err *err)
{
    uint64_t *steps;
    size_t n;
    int rc = ckpt_folder_list(to, &steps, &n, err);

    if (rc < 0)
        return rc;
    for (size_t i = 0; rc == 0 && i < n; i++)
        if (steps[i] != step)
            rc = ckpt_remove(to, steps[i], err);
    free(steps);
    return rc;
}

int ckpt_keep(const char *to, const struct ckpt_info *pinned, struct err *err)
{
    struct ckpt_right unlimited = { .may_publish = NULL };
    char *visible = step_path(to, pinned->meta.step);
    int rc;

    if (visible == NULL)
        return err_set(err, ERR_NOMEM, "keep '%s': out of memory", pinned->path);
    rc = ckpt_publish(to, pinned->path, visible, &unlimited, &pinned->meta, err);
    if (rc == 0)
        rc = fs_sync_dir(to, err);
    if (rc == 0)
        rc = remove_others(to, pinned->meta.step, err);
    free(visible);
    return rc < 0 ? err_wrap(err, rc, "keep step %" PRIu64, pinned->meta.step) : 0;
}
