/* folder.c - the entries of a checkpoint directory:
 *
 *     step-00000100                 a checkpoint, complete and verified
 *     .step-00000100.tmp-<random>   a checkpoint that is being written or removed
 *     .step-00000100.old-<random>   the previous checkpoint of this step, while it is being replaced
 *                                   on a file system that cannot exchange two names atomically */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fs.h"
#include "base/rng.h"
#include "base/text.h"
#include "base/vec.h"
#include "ckpt/ckpt_priv.h"

#define NAME_PREFIX "step-"

void ckpt_folder_name(uint64_t step, char out[CKPT_NAME_BYTES])
{
    snprintf(out, CKPT_NAME_BYTES, NAME_PREFIX "%08" PRIu64, step);
}

bool ckpt_folder_step(const char *name, uint64_t *step)
{
    char again[CKPT_NAME_BYTES];
    const char *digits = name + strlen(NAME_PREFIX);

    if (!text_starts(name, NAME_PREFIX))
        return false;
    while (digits[0] == '0' && digits[1] != '\0') /* text_u64() rejects leading zeros */
        digits++;
    if (!text_u64(digits, UINT64_MAX, step))
        return false;
    ckpt_folder_name(*step, again); /* accepts only the one valid name of a step */
    return strcmp(name, again) == 0;
}

int ckpt_hidden_name(uint64_t step, const char *kind, char out[CKPT_NAME_BYTES], struct err *err)
{
    char name[CKPT_NAME_BYTES];
    uint64_t random;

    if (rng_os(&random, sizeof(random)) < 0)
        return err_set(err, ERR_IO, "getrandom failed");
    ckpt_folder_name(step, name);
    snprintf(out, CKPT_NAME_BYTES, ".%.32s.%s-%016" PRIx64, name, kind, random);
    return 0;
}

static int by_step(const void *a, const void *b)
{
    uint64_t x, y;

    memcpy(&x, a, sizeof(x));
    memcpy(&y, b, sizeof(y));
    return (x > y) - (x < y);
}

int ckpt_folder_list(const char *directory, uint64_t **out, size_t *n, struct err *err)
{
    VEC(uint64_t) steps = { 0 };
    struct dirent *entry;
    uint64_t step;
    DIR *d;
    int rc = 0;

    d = opendir(directory);
    if (d == NULL)
        return err_sys(err, errno, "open directory '%s'", directory);
    while (rc == 0 && (errno = 0, entry = readdir(d)) != NULL)
        if (ckpt_folder_step(entry->d_name, &step) && !VEC_PUSH(steps, step))
            rc = err_set(err, ERR_NOMEM, "list '%s': out of memory", directory);
    if (rc == 0 && errno != 0)
        rc = err_sys(err, errno, "list '%s'", directory);
    closedir(d);
    if (rc < 0) {
        VEC_FINI(steps);
        return rc;
    }
    if (steps.n > 1)
        qsort(steps.at, steps.n, sizeof(*steps.at), by_step);
    *out = steps.at;
    *n = steps.n;
    return 0;
}

/* Renames a directory, so that a writer that still uses it fails and cannot publish a partly
 * removed checkpoint; then removes it. */
static int rename_and_remove(const char *directory, const char *path, uint64_t step,
                             struct err *err)
{
    char name[CKPT_NAME_BYTES], *renamed;
    int rc = ckpt_hidden_name(step, "tmp", name, err);

    if (rc < 0)
        return rc;
    renamed = fs_join(directory, name);
    if (renamed == NULL)
        return err_set(err, ERR_NOMEM, "clean '%s': out of memory", directory);
    if (rename(path, renamed) == 0)
        rc = fs_remove_tree(renamed, err);
    else if (errno != ENOENT) /* ENOENT: its owner removed or published it */
        rc = err_sys(err, errno, "remove '%s'", path);
    free(renamed);
    return rc;
}

/* Cleans the hidden directory `name`: moves a checkpoint that was moved aside back if its name is
 * free; removes all others. */
static int clean_one(const char *directory, const char *name, struct err *err)
{
    char *path = fs_join(directory, name), visible[CKPT_NAME_BYTES], *back = NULL;
    const char *kind = strchr(name + 1, '.');
    uint64_t step = 0;
    bool is_step;
    int rc = 0;

    snprintf(visible, sizeof(visible), "%.*s", (int)(kind - name - 1), name + 1);
    is_step = ckpt_folder_step(visible, &step);
    if (path != NULL && text_starts(kind, ".old-") && is_step)
        back = fs_join(directory, visible);
    if (path == NULL)
        rc = err_set(err, ERR_NOMEM, "clean '%s': out of memory", directory);
    else if (back == NULL || access(back, F_OK) == 0 || rename(path, back) < 0)
        rc = rename_and_remove(directory, path, step, err);
    free(back);
    free(path);
    return rc;
}

static bool is_leftover(const char *name)
{
    const char *kind = name[0] == '.' ? strchr(name + 1, '.') : NULL;

    return text_starts(name, "." NAME_PREFIX) && kind != NULL &&
           (text_starts(kind, ".tmp-") || text_starts(kind, ".old-"));
}

int ckpt_folder_clean(const char *directory, struct err *err)
{
    struct dirent *entry;
    DIR *d;
    int rc = 0;

    d = opendir(directory);
    if (d == NULL)
        return err_sys(err, errno, "open directory '%s'", directory);
    while (rc == 0 && (errno = 0, entry = readdir(d)) != NULL)
        if (is_leftover(entry->d_name))
            rc = clean_one(directory, entry->d_name, err);
    if (rc == 0 && errno != 0)
        rc = err_sys(err, errno, "list '%s'", directory);
    closedir(d);
    return rc;
}
