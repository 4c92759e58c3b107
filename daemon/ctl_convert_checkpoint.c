/* ctl_convert_checkpoint.c - `trainerctl convert` of a checkpoint whose tables are in shard files. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/err.h"
#include "base/fs.h"
#include "base/text.h"
#include "ckpt/ckpt.h"
#include "ckpt/join.h"
#include "daemon/ctl_convert.h"

bool convert_is_checkpoint(const char *path)
{
    char *manifest = fs_join(path, "manifest.json");
    struct stat st;
    bool is = manifest != NULL && stat(manifest, &st) == 0 && S_ISREG(st.st_mode);

    free(manifest);
    return is;
}

int convert_checkpoint(const struct convert *c, struct err *err)
{
    const char *from = c->inputs.at[0].path;
    struct ckpt_info info;
    char size[32];
    int rc;

    if (c->inputs.n > 1)
        return err_set(err, ERR_INPUT, "%zu checkpoints: expected one", c->inputs.n);
    if (c->shards_text != NULL || c->label != NULL || c->delimiter != NULL ||
        c->seed_text != NULL || c->classes != NULL || c->no_header)
        return err_set(err, ERR_INPUT, "'%.200s' is a checkpoint: --out is its only option", from);
    rc = ckpt_join(from, c->out, &info, err);
    if (rc < 0)
        return rc;
    text_bytes(size, sizeof(size), info.bytes);
    printf("%s: step %llu, %s; copied to %s with whole tables\n", from,
           (unsigned long long)info.meta.step, size, c->out);
    return 0;
}
