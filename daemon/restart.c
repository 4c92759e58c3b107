#include "daemon/restart.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/fs.h"
#include "ckpt/ckpt.h"
#include "conf/job.h"
#include "daemon/complete.h"

enum { NAMES_MAX = 10000 };

/* Returns true if the run that wrote `newest` is complete, whether its job file has the same keys
 * or other ones. */
static bool is_over(const struct conf *c, const struct ckpt_info *newest)
{
    char said[8400];

    if (newest->meta.complete && strcmp(newest->meta.job_digest, c->digest) != 0)
        return true;
    return complete_already(c, NULL, said, sizeof(said));
}

/* Renames DIR to the first free name of DIR.1, DIR.2, ... RENAME_NOREPLACE ensures that two
 * processes never use the same name. */
static int move(const char *directory, char *to, size_t n, struct err *err)
{
    for (int i = 1; i <= NAMES_MAX; i++) {
        if ((size_t)snprintf(to, n, "%s.%d", directory, i) >= n)
            return err_set(err, ERR_INPUT, "'%s': the name is too long", directory);
        if (renameat2(AT_FDCWD, directory, AT_FDCWD, to, RENAME_NOREPLACE) == 0)
            return 0;
        if (errno != EEXIST)
            return err_sys(err, errno, "rename '%s' to '%s'", directory, to);
    }
    return err_set(err, ERR_INPUT,
                   "'%s': all %d names for old checkpoint directories are in use; remove some",
                   directory, NAMES_MAX);
}

static int sync_parent(const char *directory, struct err *err)
{
    char *parent = fs_dirname(directory);
    int rc = parent != NULL ? fs_sync_dir(parent, err) : err_set(err, ERR_NOMEM, "out of memory");

    free(parent);
    return rc;
}

int restart_set_aside(const struct conf *c, char *text, size_t n, struct err *err)
{
    const char *directory = c->checkpoint.directory;
    struct ckpt_info *info;
    char to[4096 + 16];
    int rc;

    if (directory == NULL)
        return err_set(err, ERR_INPUT, "restart: the job writes no checkpoints (/checkpoint/directory), so every "
                                       "start begins at step 1");
    info = malloc(sizeof(*info));
    if (info == NULL)
        return err_set(err, ERR_NOMEM, "restart: out of memory");
    rc = ckpt_peek(directory, NULL, info, err);
    if (rc == ERR_NOENT) {
        snprintf(text, n, "restart: '%s' has no checkpoint: the job begins at step 1", directory);
        rc = 0;
    } else if (rc == 0 && !is_over(c, info)) {
        snprintf(text, n, "restart: %s is of step %llu of a run that is not complete: the job continues from it "
                          "(to begin at step 1, remove '%s')", info->path, (unsigned long long)info->meta.step,
                 directory);
    } else if (rc == 0) {
        rc = move(directory, to, sizeof(to), err);
        if (rc == 0)
            rc = sync_parent(directory, err);
        if (rc == 0)
            snprintf(text, n, "restart: the checkpoints of the complete run are in '%s' now (nothing was "
                              "removed): the job begins at step 1", to);
    }
    free(info);
    return rc < 0 ? err_wrap(err, rc, "restart") : 0;
}
