/* save.c - saves one checkpoint atomically.
 *
 *     write     under a hidden name, with checksums; syncs each file, writes the manifest last
 *     verify    drops the files from the page cache and reads them back from the disk
 *     publish   one rename; syncs the directory
 *
 * If the process ends at any point, a hidden directory remains, which the next writer removes. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/fs.h"
#include "base/text.h"
#include "ckpt/ckpt_priv.h"

/* ---- one file ---- */

struct out {
    int fd;
    const char *path;
    uint64_t at;
    XXH3_state_t *hash;
    struct ckpt_watch *watch;
};

static int write_chunk(struct out *o, const char *data, size_t n, struct err *err)
{
    const uint64_t start = o->at;
    int rc = ckpt_check_canceled(o->watch, err);

    if (rc < 0)
        return rc;
    while (n > 0) {
        ssize_t written = FAULT_TRY("ckpt.write", write(o->fd, data, n));

        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return err_sys(err, errno, "write '%s'", o->path);
        XXH3_128bits_update(o->hash, data, (size_t)written); /* still in the processor's cache */
        data += written;
        n -= (size_t)written;
        o->at += (uint64_t)written;
    }
    /* Starts the write-back of this chunk during the next chunk; fsync() reports the result. */
    (void)sync_file_range(o->fd, (off_t)start, (off_t)(o->at - start),
                          SYNC_FILE_RANGE_WRITE); /* a hint */
    return 0;
}

static int write_bytes(struct out *o, const void *data, size_t n, struct err *err)
{
    const char *at = data;
    int rc = 0;

    for (; rc == 0 && n > CKPT_CHUNK_BYTES; at += CKPT_CHUNK_BYTES, n -= CKPT_CHUNK_BYTES)
        rc = write_chunk(o, at, CKPT_CHUNK_BYTES, err);
    return rc == 0 ? write_chunk(o, at, n, err) : rc;
}

static int write_content(struct out *o, const struct ckpt_layout *l, const void *state,
                         struct err *err)
{
    int rc = write_bytes(o, l->header, l->header_bytes, err);

    for (size_t i = 0; rc == 0 && i < l->n_pieces; i++)
        rc = write_bytes(o, (const char *)state + l->pieces[i].offset, l->pieces[i].bytes, err);
    return rc;
}

int ckpt_write_file(const char *folder, const struct ckpt_layout *l, const void *state,
                    struct ckpt_watch *watch, struct ckpt_file *out, struct err *err)
{
    struct out o = { .hash = XXH3_createState(), .watch = watch };
    char *path = fs_join(folder, l->name);
    int rc;

    if (path == NULL || o.hash == NULL) {
        rc = err_set(err, ERR_NOMEM, "save '%s': out of memory", l->name);
        goto done;
    }
    o.path = path;
    XXH3_128bits_reset(o.hash);
    o.fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
    if (o.fd < 0) {
        rc = err_sys(err, errno, "create '%s'", path);
        goto done;
    }
    rc = write_content(&o, l, state, err);
    if (rc == 0 && FAULT_TRY("ckpt.sync", fsync(o.fd)) < 0)
        rc = err_sys(err, errno, "sync '%s'", path);
    if (close(o.fd) < 0 && rc == 0) /* network file systems report write errors here */
        rc = err_sys(err, errno, "close '%s'", path);
    if (rc == 0) {
        snprintf(out->name, sizeof(out->name), "%s", l->name);
        out->bytes = o.at;
        ckpt_hash_print(XXH3_128bits_digest(o.hash), out->hash);
    }
done:
    XXH3_freeState(o.hash);
    free(path);
    return rc;
}

/* ---- one folder ---- */

int ckpt_write_manifest(const char *folder, const struct ckpt_manifest *m, struct err *err)
{
    struct ckpt_layout l = { .name = CKPT_MANIFEST_FILE };
    struct ckpt_file unused; /* a manifest does not list itself */
    struct buf text = { 0 };
    int rc;

    ckpt_manifest_print(m, clock_wall_us(), &text);
    l.header = text.data;
    l.header_bytes = text.len;
    rc = text.failed ? err_set(err, ERR_NOMEM, CKPT_MANIFEST_FILE ": out of memory")
                     : ckpt_write_file(folder, &l, NULL, NULL, &unused, err);
    buf_fini(&text);
    return rc;
}

/* The rows that are elsewhere are written first: their owner waits for it. */
static int write_all(const char *path, const struct ckpt_layouts *layouts, struct ckpt_watch *watch,
                     const struct ckpt_source *source, struct ckpt_manifest *m, struct err *err)
{
    struct ckpt_row_files rows;
    int rc = 0;

    if (FAULT_TRY("ckpt.mkdir", mkdir(path, 0777)) < 0)
        return err_sys(err, errno, "create directory '%s'", path);
    m->n_files = layouts->n;
    m->has_shards = layouts->has_shards;
    m->has_ids = layouts->has_ids;
    if (source->write_rows != NULL)
        rc = ckpt_row_files_write(path, layouts, source, watch, &rows, err);
    for (uint32_t i = 0; rc == 0 && i < layouts->n; i++)
        if (!layouts->at[i].is_elsewhere)
            rc = ckpt_write_file(path, &layouts->at[i], source->state, watch, &m->files[i], err);
    for (uint32_t i = 0; rc == 0 && i < layouts->n; i++)
        if (layouts->at[i].is_elsewhere)
            rc = ckpt_row_file_read(&rows, &layouts->at[i], &m->files[i], err);
    if (rc == 0)
        rc = ckpt_write_manifest(path, m, err);
    return rc == 0 ? fs_sync_dir(path, err) : rc;
}

int ckpt_write_folder(const char *path, const struct ckpt_layouts *layouts,
                      struct ckpt_watch *watch, const struct ckpt_meta *meta,
                      const struct ckpt_source *source, uint64_t *bytes, struct err *err)
{
    struct ckpt_manifest m = { .meta = *meta };
    int rc = write_all(path, layouts, watch, source, &m, err);

    *bytes = 0;
    for (uint32_t i = 0; rc == 0 && i < m.n_files; i++)
        *bytes += m.files[i].bytes;
    return rc;
}

/* ---- publishing ---- */

static bool same_run(const struct ckpt_meta *a, const struct ckpt_meta *b)
{
    return a->step == b->step && a->epoch == b->epoch && a->position == b->position &&
           a->seed == b->seed && a->lanes == b->lanes &&
           a->global_batch_size == b->global_batch_size && a->complete == b->complete &&
           strcmp(a->job_digest, b->job_digest) == 0 &&
           strcmp(a->model_digest, b->model_digest) == 0 &&
           strcmp(a->data_digest, b->data_digest) == 0 &&
           strcmp(a->data_content, b->data_content) == 0 && strcmp(a->name, b->name) == 0;
}

/* Returns true if the same checkpoint exists and verifies. The state is a function of job and step,
 * so it need not be written again. */
static bool same_exists(const char *visible, const struct ckpt_meta *meta, struct ckpt_watch *watch,
                        uint64_t *bytes)
{
    struct ckpt_progress progress = { .watch = watch };
    struct ckpt_manifest m;

    if (ckpt_manifest_read(visible, &m, NULL) < 0 || !same_run(&m.meta, meta) ||
        ckpt_verify_folder(visible, &m, true, &progress, NULL) < 0)
        return false;
    *bytes = progress.all;
    return true;
}

/* Replaces a checkpoint on a file system that cannot exchange two names: moves the old checkpoint
 * aside to a hidden name first. If the process ends in between, the next writer moves it back
 * (ckpt_folder_clean()). */
static int replace_in_two_renames(const char *directory, const char *hidden, const char *visible,
                                  uint64_t step, struct err *err)
{
    char name[CKPT_NAME_BYTES], *aside;
    int rc = ckpt_hidden_name(step, "old", name, err);

    if (rc < 0)
        return rc;
    aside = fs_join(directory, name);
    if (aside == NULL)
        return err_set(err, ERR_NOMEM, "'%s': out of memory", directory);
    if (FAULT_TRY("ckpt.rename", rename(visible, aside)) < 0) {
        rc = err_sys(err, errno, "rename '%s'", visible);
    } else if (FAULT_TRY("ckpt.rename", rename(hidden, visible)) < 0) {
        rc = err_sys(err, errno, "rename '%s' to '%s'", hidden, visible);
        (void)rename(aside, visible); /* else the next writer moves it back */
    } else {
        (void)fs_remove_tree(aside, NULL); /* else the next writer removes it */
    }
    free(aside);
    return rc;
}

int ckpt_check_right(struct ckpt_right *right, struct err *err)
{
    int rc = ckpt_check_canceled(right->watch, err);

    if (rc == 0 && right->may_publish != NULL)
        rc = right->may_publish(right->arg, err);
    if (rc == 0) /* the save may have been abandoned during may_publish() */
        rc = ckpt_check_canceled(right->watch, err);
    right->is_lost = right->is_lost || rc == ERR_REFUSED || rc == ERR_CANCELED;
    return rc;
}

int ckpt_publish(const char *directory, const char *hidden, const char *visible,
                 struct ckpt_right *right, const struct ckpt_meta *meta, struct err *err)
{
    uint64_t bytes;
    int rc = ckpt_check_right(right, err);

    if (rc < 0)
        return rc;
    if (FAULT_TRY("ckpt.rename", rename(hidden, visible)) == 0)
        return 0;
    if (errno != ENOTEMPTY && errno != EEXIST && errno != ENOTDIR)
        return err_sys(err, errno, "rename '%s' to '%s'", hidden, visible);
    if (same_exists(visible, meta, right->watch, &bytes)) { /* another writer published the same */
        (void)fs_remove_tree(hidden, NULL);                 /* else the next writer removes it */
        return 0;
    }
    /* checked again, because same_exists() may have taken long */
    rc = ckpt_check_right(right, err);
    if (rc < 0)
        return rc;
    if (FAULT_TRY("ckpt.exchange",
                  renameat2(AT_FDCWD, hidden, AT_FDCWD, visible, RENAME_EXCHANGE)) < 0)
        return replace_in_two_renames(directory, hidden, visible, meta->step, err);
    (void)fs_remove_tree(hidden, NULL); /* the replaced one; else the next writer removes it */
    return 0;
}

/* Renames the checkpoint to a hidden name first, so that readers never see a partly removed one. */
int ckpt_remove(const char *directory, uint64_t step, struct err *err)
{
    char visible_name[CKPT_NAME_BYTES], hidden_name[CKPT_NAME_BYTES];
    char *visible, *hidden;
    int rc = ckpt_hidden_name(step, "tmp", hidden_name, err);

    if (rc < 0)
        return rc;
    ckpt_folder_name(step, visible_name);
    visible = fs_join(directory, visible_name);
    hidden = fs_join(directory, hidden_name);
    if (visible == NULL || hidden == NULL)
        rc = err_set(err, ERR_NOMEM, "remove '%s': out of memory", visible_name);
    else if (FAULT_TRY("ckpt.remove", rename(visible, hidden)) < 0)
        rc = err_sys(err, errno, "remove '%s'", visible);
    else
        rc = fs_remove_tree(hidden, err);
    free(visible);
    free(hidden);
    return rc;
}

/* ---- the whole save ---- */

/* skips_shards: their entries in the manifest were computed from the disk. */
static int verify_written(const char *path, const struct ckpt_meta *meta, struct ckpt_watch *watch,
                          bool skips_shards, struct err *err)
{
    struct ckpt_progress progress = { .watch = watch, .skips_shards = skips_shards };
    struct ckpt_manifest m;
    int rc = ckpt_manifest_read(path, &m, err);

    if (rc == 0 && !same_run(&m.meta, meta))
        rc = err_set(err, ERR_CORRUPT, "the manifest differs from the one that was written");
    if (rc == 0)
        rc = ckpt_verify_folder(path, &m, true, &progress, err);
    return rc < 0 ? err_wrap(err, rc, "the written checkpoint does not verify") : 0;
}

static int add_free_space(const char *directory, const struct ckpt_layouts *layouts, int rc,
                          struct err *err)
{
    char need[32], have[32];
    struct statvfs fs;
    uint64_t bytes = 0, n_free;

    for (uint32_t i = 0; i < layouts->n; i++)
        bytes += layouts->at[i].bytes;
    if (rc != ERR_FULL || statvfs(directory, &fs) < 0)
        return rc;
    n_free = (uint64_t)fs.f_bavail * fs.f_frsize;
    text_bytes(need, sizeof(need), bytes);
    text_bytes(have, sizeof(have), n_free);
    if (fs_lacks_inodes(directory))
        return err_wrap(err, rc, "the file system of '%s' has no inode left: remove files",
                        directory);
    if (n_free > bytes)
        return err_wrap(err, rc,
                        "a checkpoint needs %s, and '%s' has %s free now: look for a quota, or for a "
                        "limit of the size of a file (ulimit -f)",
                        need, directory, have);
    return err_wrap(err, rc, "a checkpoint needs %s, but '%s' has %s free", need, directory, have);
}

static int save_new(const char *directory, const char *hidden, const char *visible,
                    const struct ckpt_layouts *layouts, struct ckpt_right *right,
                    const struct ckpt_meta *meta, const struct ckpt_source *source, uint64_t *bytes,
                    struct err *err)
{
    int rc = ckpt_check_right(right, err);

    if (rc < 0)
        return rc;
    rc = ckpt_write_folder(hidden, layouts, right->watch, meta, source, bytes, err);
    if (rc == 0)
        rc = verify_written(hidden, meta, right->watch, source->write_rows != NULL, err);
    if (rc == 0)
        rc = ckpt_publish(directory, hidden, visible, right, meta, err);
    if (rc == 0)
        return 0;
    rc = add_free_space(directory, layouts, rc, err); /* before the space is freed */
    (void)fs_remove_tree(hidden, NULL);               /* else the next writer removes it */
    return rc;
}

int ckpt_save(const char *directory, const struct ckpt_layouts *layouts, struct ckpt_right *right,
              const struct ckpt_meta *meta, const struct ckpt_source *source, uint64_t *bytes,
              bool *existed, struct err *err)
{
    char visible_name[CKPT_NAME_BYTES], hidden_name[CKPT_NAME_BYTES];
    char *visible = NULL, *hidden = NULL;
    int rc = ckpt_hidden_name(meta->step, "tmp", hidden_name, err);

    *existed = false;
    if (rc < 0)
        return rc;
    ckpt_folder_name(meta->step, visible_name);
    visible = fs_join(directory, visible_name);
    hidden = fs_join(directory, hidden_name);
    if (visible == NULL || hidden == NULL)
        rc = err_set(err, ERR_NOMEM, "out of memory");
    else if (same_exists(visible, meta, right->watch, bytes))
        *existed = true;
    else
        rc = save_new(directory, hidden, visible, layouts, right, meta, source, bytes, err);
    right->is_lost = right->is_lost || rc == ERR_CANCELED;
    if (rc == 0)
        rc = fs_sync_dir(directory, err);
    free(visible);
    free(hidden);
    return rc < 0 ? err_wrap(err, rc, "save step %" PRIu64, meta->step) : 0;
}
