#include <dirent.h>
#include <stdatomic.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/fs.h"
#include "ckpt/ckpt_priv.h"
#include "ckpt/ids.h"
#include "ckpt/rows.h"
#include "ckpt/weights.h"

enum {
    LIST_BYTES = 1500,     /* limit of the list of reasons in an error text */
    LIST_REST_BYTES = 300, /* room that must be left before a reason is added */
    REASON_BYTES = 220,    /* limit of one reason */
};

/* ---- one file ---- */

int ckpt_check_canceled(struct ckpt_watch *watch, struct err *err)
{
    if (watch == NULL)
        return 0;
    atomic_store_explicit(&watch->progress_ns, clock_ns(), memory_order_relaxed);
    if (!atomic_load_explicit(&watch->is_canceled, memory_order_acquire))
        return 0;
    return err_set(err, ERR_CANCELED, "the save was abandoned");
}

/* Updates the hash with the file from its start. */
static int hash_file(int fd, const char *path, uint64_t bytes, bool from_disk,
                     struct ckpt_progress *progress, XXH3_state_t *hash, void *chunk,
                     struct err *err)
{
    for (uint64_t at = 0; at < bytes;) {
        size_t n = bytes - at < CKPT_CHUNK_BYTES ? (size_t)(bytes - at) : CKPT_CHUNK_BYTES;
        int rc = ckpt_check_canceled(progress->watch, err);

        if (rc == 0)
            rc = ckpt_read_all(fd, path, chunk, n, err);
        if (rc < 0)
            return rc;
        XXH3_128bits_update(hash, chunk, n);
        if (from_disk) /* the memory is better used for the weights and data of the run */
            (void)posix_fadvise(fd, (off_t)at, (off_t)n, POSIX_FADV_DONTNEED); /* a hint */
        at += n;
        progress->done += n;
        if (progress->report != NULL)
            progress->report(progress->arg, progress->done, progress->all);
    }
    return 0;
}

static int check_sum(int fd, const char *path, const struct ckpt_file *file, bool from_disk,
                     struct ckpt_progress *progress, struct err *err)
{
    XXH3_state_t *hash = XXH3_createState();
    size_t room = file->bytes < CKPT_CHUNK_BYTES ? (size_t)file->bytes + 1 : CKPT_CHUNK_BYTES;
    void *chunk = malloc(room);
    char text[CKPT_HASH_BYTES];
    int rc;

    if (hash == NULL || chunk == NULL) {
        rc = err_set(err, ERR_NOMEM, "'%s': out of memory", path);
    } else {
        XXH3_128bits_reset(hash);
        rc = hash_file(fd, path, file->bytes, from_disk, progress, hash, chunk, err);
    }
    if (rc == 0) {
        ckpt_hash_print(XXH3_128bits_digest(hash), text);
        rc = ckpt_check_hash(path, file, text, err);
    }
    free(chunk);
    XXH3_freeState(hash);
    return rc;
}

/* Verifies the size, the checksum and, for a safetensors file, the header. */
static int verify_file(const char *folder, const struct ckpt_file *file, bool from_disk,
                       struct ckpt_progress *progress, struct err *err)
{
    const char *end = strrchr(file->name, '.');
    struct safetensors s;
    char *path;
    int fd, rc = 0;

    fd = ckpt_open_file(folder, file, &path, err);
    if (fd < 0)
        return fd;
    if (from_disk) /* the pages are synced, so they can be dropped and are read from the disk */
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED); /* a hint */
    rc = check_sum(fd, path, file, from_disk, progress, err);
    if (rc == 0 && end != NULL && strcmp(end, ".safetensors") == 0) {
        if (lseek(fd, 0, SEEK_SET) < 0)
            rc = err_sys(err, errno, "read '%s'", path);
        else
            rc = ckpt_read_header(fd, path, file->bytes, &s, NULL, err);
        if (rc == 0)
            safetensors_fini(&s);
    }
    close(fd);
    free(path);
    return rc;
}

/* ---- one folder ---- */

/* Checks that the tables of the shard files agree, and that the index names the file of each tensor. has_written: the
 * rows are those that were written. */
static int check_shards(const char *path, const struct ckpt_manifest *m, bool has_written,
                        struct err *err)
{
    struct ckpt_weights *weights;
    struct ckpt_rows *rows;
    char *index = fs_join(path, CKPT_INDEX_FILE);
    int rc = index != NULL ? ckpt_rows_open(path, &rows, err)
                           : err_set(err, ERR_NOMEM, "'%s': out of memory", path);

    if (rc == 0) {
        if (!has_written)
            rc = ckpt_ids_check(rows, m->meta.step, err);
        ckpt_rows_close(rows);
    }
    if (rc == 0) {
        rc = ckpt_weights_open(index, &weights, err);
        if (rc == 0)
            ckpt_weights_close(weights);
        else if (rc == ERR_INPUT || rc == ERR_NOENT)
            rc = ckpt_corrupt(err);
    }
    free(index);
    return rc;
}

int ckpt_verify_folder(const char *path, const struct ckpt_manifest *m, bool from_disk,
                       struct ckpt_progress *progress, struct err *err)
{
    int rc = 0;

    progress->done = progress->all = 0;
    for (uint32_t i = 0; i < m->n_files; i++)
        if (__builtin_add_overflow(progress->all, m->files[i].bytes, &progress->all))
            progress->all = UINT64_MAX; /* the size check of the files fails below */
    for (uint32_t i = 0; rc == 0 && i < m->n_files; i++)
        if (!progress->skips_shards || !ckpt_is_shard_file(m->files[i].name))
            rc = verify_file(path, &m->files[i], from_disk, progress, err);
    return rc == 0 && m->has_shards ? check_shards(path, m, progress->skips_shards, err) : rc;
}

/* Readers of the format of Hugging Face find files by their names, so one that is not of the checkpoint would be
 * read with it. */
static int check_no_others(const char *path, const struct ckpt_manifest *m, struct err *err)
{
    struct dirent *entry;
    DIR *d = m->has_shards ? opendir(path) : NULL;
    int rc = 0;

    if (d == NULL)
        return m->has_shards ? err_sys(err, errno, "open directory '%s'", path) : 0;
    while (rc == 0 && (errno = 0, entry = readdir(d)) != NULL)
        if (strstr(entry->d_name, ".safetensors") != NULL &&
            ckpt_manifest_file(m, entry->d_name) == NULL)
            rc = err_set(err, ERR_CORRUPT, "'%s/%s' is not in the manifest of the checkpoint", path,
                         entry->d_name);
    if (rc == 0 && errno != 0)
        rc = err_sys(err, errno, "list '%s'", path);
    closedir(d);
    return rc;
}

/* Checks that the name of the directory, if it is of the form step-*, and the manifest have the
 * same step. */
static int check_step(const char *path, const struct ckpt_manifest *m, struct err *err)
{
    const char *slash = strrchr(path, '/');
    uint64_t step;

    if (!ckpt_folder_step(slash != NULL ? slash + 1 : path, &step) || step == m->meta.step)
        return 0;
    return err_set(err, ERR_CORRUPT, "'%s' contains step %" PRIu64 " according to its manifest",
                   path, m->meta.step);
}

static int read_checked(const char *path, struct ckpt_manifest *m, struct err *err)
{
    int rc = ckpt_manifest_read(path, m, err);

    return rc == 0 ? check_step(path, m, err) : rc;
}

static int check_path(const char *path, struct err *err)
{
    size_t room = sizeof(((struct ckpt_info *)0)->path);

    return strlen(path) < room ? 0
                               : err_set(err, ERR_INPUT, "'%.64s...': a path of %zu bytes, expected less "
                                         "than %zu", path, strlen(path), room);
}

static int verify_read(const char *path, const struct ckpt_manifest *m,
                       struct ckpt_progress *progress, struct ckpt_info *out, struct err *err)
{
    int rc = check_path(path, err);

    if (rc == 0)
        rc = ckpt_verify_folder(path, m, false, progress, err);
    if (rc < 0)
        return rc;
    strcpy(out->path, path);
    out->meta = m->meta;
    out->bytes = progress->all;
    return 0;
}

int ckpt_verify(const char *path, void (*on_progress)(void *arg, uint64_t done, uint64_t all),
                void *arg, struct ckpt_info *out, struct err *err)
{
    struct ckpt_progress progress = { .report = on_progress, .arg = arg };
    struct ckpt_manifest m;
    int rc = read_checked(path, &m, err);

    if (rc == 0)
        rc = verify_read(path, &m, &progress, out, err);
    return rc == 0 ? check_no_others(path, &m, err) : rc;
}

/* ---- a directory of checkpoints ---- */

static char *folder_path(const char *directory, uint64_t step)
{
    char name[CKPT_NAME_BYTES];

    ckpt_folder_name(step, name);
    return fs_join(directory, name);
}

/* Checks the model digest. A manifest without it is accepted, because ckpt_load() compares the
 * names and shapes of all tensors. */
static int check_model(const struct ckpt_manifest *m, const char *match_model, struct err *err)
{
    if (match_model == NULL || m->meta.model_digest[0] == '\0' ||
        strcmp(m->meta.model_digest, match_model) == 0)
        return 0;
    return err_set(err, ERR_INPUT, "the checkpoint is of another model (job '%s'); expected model digest "
                   "%.16s, found %.16s", m->meta.name, match_model, m->meta.model_digest);
}

/* Reports ERR_INPUT if the manifest of any checkpoint has another model digest. Manifests that
 * cannot be read are reported later by the search for the newest checkpoint. */
static int check_models(const char *directory, const uint64_t *steps, size_t n,
                        const char *match_model, struct err *err)
{
    struct ckpt_manifest m;
    int rc = 0;

    for (size_t i = match_model != NULL ? n : 0; rc == 0 && i-- > 0;) {
        char *path = folder_path(directory, steps[i]);

        if (path == NULL)
            return err_set(err, ERR_NOMEM, "'%s': out of memory", directory);
        if (read_checked(path, &m, NULL) == 0)
            rc = check_model(&m, match_model, err);
        if (rc < 0)
            err_wrap(err, rc, "%s", path);
        free(path);
    }
    return rc;
}

/* Appends the reason for one checkpoint to the list for the error text, if there is room. */
static void add_reason(char *list, size_t n, uint64_t step, const char *why)
{
    size_t used = strlen(list);
    char name[CKPT_NAME_BYTES];

    ckpt_folder_name(step, name);
    if (n - used > LIST_REST_BYTES)
        snprintf(list + used, n - used, "; %s: %.*s", name, REASON_BYTES, why);
}

int ckpt_newest(const char *directory, const char *match_model,
                void (*on_skip)(void *arg, const char *path, const char *why),
                void (*on_progress)(void *arg, uint64_t done, uint64_t all), void *arg,
                struct ckpt_info *out, struct err *err)
{
    struct ckpt_progress progress = { .report = on_progress, .arg = arg };
    struct ckpt_manifest m;
    struct err read_error = { .code = 0 };
    char list[LIST_BYTES] = "";
    uint64_t *steps;
    size_t n, i;
    int rc;

    rc = ckpt_folder_list(directory, &steps, &n, err);
    if (rc < 0)
        return rc;
    rc = check_models(directory, steps, n, match_model, err);
    if (rc < 0) {
        free(steps);
        return rc;
    }
    rc = ERR_NOENT;
    for (i = n; rc != 0 && rc != ERR_NOMEM && i-- > 0;) {
        char *path = folder_path(directory, steps[i]);
        struct err why;

        if (path == NULL) {
            rc = err_set(err, ERR_NOMEM, "'%s': out of memory", directory);
            break;
        }
        rc = read_checked(path, &m, &why);
        if (rc == 0)
            rc = verify_read(path, &m, &progress, out, &why);
        if (rc == ERR_NOMEM && err != NULL) /* not a property of the checkpoint */
            *err = why;
        else if (rc < 0 && on_skip != NULL)
            on_skip(arg, path, why.text);
        if (rc < 0)
            add_reason(list, sizeof(list), steps[i], why.text);
        if (rc == ERR_IO && read_error.code == 0)
            read_error = why;
        free(path);
    }
    free(steps);
    if (rc == 0 || rc == ERR_NOMEM)
        return rc;
    if (read_error.code != 0) { /* that checkpoint may be valid, so a new run must not begin */
        if (err != NULL)
            *err = read_error;
        return err_wrap(err, ERR_IO,
                        "'%s' contains %zu checkpoints: none of them is usable, and at least one "
                        "could not be read",
                        directory, n);
    }
    if (n == 0)
        return err_set(err, ERR_NOENT, "'%s' contains 0 checkpoints", directory);
    return err_set(err, ERR_CORRUPT, "'%.300s' contains %zu checkpoints, none of them is usable%s",
                   directory, n, list);
}

int ckpt_peek_folder(const char *path, const char *match_model, struct ckpt_info *out,
                     struct err *err)
{
    struct ckpt_manifest m;
    uint64_t bytes = 0;
    int rc = read_checked(path, &m, err);

    if (rc == 0)
        rc = check_model(&m, match_model, err);
    if (rc == 0)
        rc = check_path(path, err);
    for (uint32_t i = 0; rc == 0 && i < m.n_files; i++) {
        char *file;
        int fd = ckpt_open_file(path, &m.files[i], &file, err);

        if (fd < 0)
            return fd;
        close(fd);
        free(file);
        bytes += m.files[i].bytes; /* no overflow: these are sizes of existing files */
    }
    if (rc < 0)
        return rc;
    strcpy(out->path, path);
    out->meta = m.meta;
    out->bytes = bytes;
    return 0;
}

int ckpt_peek(const char *directory, const char *match_model, struct ckpt_info *out,
              struct err *err)
{
    uint64_t *steps;
    size_t n;
    int rc = ckpt_folder_list(directory, &steps, &n, err);

    if (rc < 0)
        return rc;
    rc = ERR_NOENT;
    for (size_t i = n; rc != 0 && rc != ERR_NOMEM && i-- > 0;) {
        char *path = folder_path(directory, steps[i]);

        rc = path != NULL ? ckpt_peek_folder(path, match_model, out, err)
                          : err_set(err, ERR_NOMEM, "'%s': out of memory", directory);
        free(path);
    }
    free(steps);
    if (rc == 0 || rc == ERR_NOMEM)
        return rc;
    return err_set(err, ERR_NOENT, "'%s' contains no usable checkpoint", directory);
}

int ckpt_each(const char *directory,
              void (*each)(void *arg, const struct ckpt_info *info, int rc, const char *why),
              void *arg, struct err *err)
{
    uint64_t *steps;
    size_t n;
    int rc;

    rc = ckpt_folder_list(directory, &steps, &n, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < n; i++) {
        char *path = folder_path(directory, steps[i]);
        struct ckpt_info info = { .meta.step = steps[i] };
        struct err why = { .text = "" };

        if (path == NULL) {
            rc = err_set(err, ERR_NOMEM, "'%s': out of memory", directory);
            break;
        }
        snprintf(info.path, sizeof(info.path), "%s", path); /* also set if it is damaged */
        each(arg, &info, ckpt_verify(path, NULL, NULL, &info, &why), why.text);
        free(path);
    }
    free(steps);
    return rc;
}
