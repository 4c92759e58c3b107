/* job.c - reads a job file into a struct conf with its digest. */
#include "conf/job.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/json.h"
#include "conf/job_check.h"
#include "conf/job_print.h"
#include "conf/job_read.h"

/* Sets path and directory. The directory is absolute because the daemon may change its own. */
static int set_paths(struct conf *c, const char *path, struct err *err)
{
    char *current = getcwd(NULL, 0), *dir = fs_dirname(path);
    int rc = 0;

    if (current == NULL)
        rc = err_sys(err, errno, "job file '%s': find the current folder", path);
    else if (dir == NULL)
        rc = err_set(err, ERR_NOMEM, "job file '%s': out of memory", path);
    if (rc == 0) {
        c->path = arena_strdup(&c->mem, path);
        c->directory = conf_resolve_path(&c->mem, current, dir);
        if (c->path == NULL || c->directory == NULL)
            rc = err_set(err, ERR_NOMEM, "job file '%s': out of memory", path);
    }
    free(current);
    free(dir);
    return rc;
}

static int set_digest(struct conf *c, struct err *err)
{
    uint8_t digest[DIGEST_BYTES];
    struct buf text = { 0 };
    int rc = 0;

    conf_print_canonical(c, &text);
    if (text.failed) {
        rc = err_set(err, ERR_NOMEM, "job file '%s': out of memory", c->path);
    } else {
        digest_sha256(text.data, text.len, digest);
        digest_hex(digest, c->digest);
    }
    buf_fini(&text);
    return rc;
}

int conf_parse(const char *path, const char *text, size_t n, struct conf **out, struct err *err)
{
    struct conf *c = calloc(1, sizeof(*c));
    struct json *doc = NULL;
    int rc;

    if (c == NULL)
        return err_set(err, ERR_NOMEM, "job file '%s': out of memory", path);
    rc = set_paths(c, path, err);
    if (rc == 0)
        rc = json_parse(path, text, n, 0, &doc, err);
    if (rc == 0)
        rc = conf_read_document(doc, c, err);
    if (rc == 0)
        rc = conf_check(doc, c, err);
    if (rc == 0)
        rc = set_digest(c, err);
    json_free(doc);
    if (rc < 0) {
        conf_free(c);
        return rc;
    }
    *out = c;
    return 0;
}

int conf_read(const char *path, struct conf **out, struct err *err)
{
    struct buf text = { 0 };
    int rc = fs_check_path(path, err);

    if (rc == 0)
        rc = fs_read(path, JSON_MAX_BYTES, &text, err);

    if (rc < 0)
        rc = err_wrap(err, rc, "job file");
    else
        rc = conf_parse(path, text.data == NULL ? "" : text.data, text.len, out, err);
    buf_fini(&text);
    return rc;
}

void conf_free(struct conf *c)
{
    if (c == NULL)
        return;
    arena_fini(&c->mem);
    free(c);
}
