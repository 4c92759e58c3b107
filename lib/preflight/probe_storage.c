#include "preflight/probe_storage.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/text.h"
#include "preflight/limited.h"

enum { PATH_BYTES = 4096, TEXT_BYTES = 64 };

struct probe {
    char directory[PATH_BYTES];
    struct storage_id self, other;
    uint64_t us;
    char fault[PREFLIGHT_TEXT_BYTES];
    uint8_t file, lock;
};

static const char *path_of(const struct probe *p, struct storage_id id, const char *ending,
                           char out[PATH_BYTES + 64])
{
    snprintf(out, PATH_BYTES + 64, "%s/.preflight-%u-%016" PRIx64 "%s", p->directory, id.rank,
             id.nonce, ending);
    return out;
}

static void content_of(struct storage_id id, char out[TEXT_BYTES])
{
    snprintf(out, TEXT_BYTES, "preflight %u %016" PRIx64 "\n", id.rank, id.nonce);
}

/* Removes the files of an earlier run of this task that was killed. */
static void remove_stale(const struct probe *p)
{
    char prefix[48], path[PATH_BYTES + 300];
    DIR *dir = opendir(p->directory);
    const struct dirent *d;

    snprintf(prefix, sizeof(prefix), ".preflight-%u-", p->self.rank);
    while (dir != NULL && (d = readdir(dir)) != NULL)
        if (text_starts(d->d_name, prefix)) {
            snprintf(path, sizeof(path), "%s/%s", p->directory, d->d_name);
            (void)unlink(path);
        }
    if (dir != NULL)
        closedir(dir);
}

/* Creates the lock `path` as the lease creates a record. Sets errno. */
static bool create_lock(const char *own, const char *path)
{
    int fd;

    if (link(own, path) == 0)
        return true;
    if (!fs_lacks_links(errno))
        return false;
    fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

static void begin(void *arg)
{
    struct probe *p = arg;
    uint64_t start_ns;
    char file[PATH_BYTES + 64], lock[PATH_BYTES + 64], text[TEXT_BYTES];
    struct err err;
    int rc = fs_mkdirs(p->directory, &err);

    remove_stale(p);
    content_of(p->self, text);
    path_of(p, p->self, "", file);
    start_ns = clock_ns();
    if (rc == 0)
        rc = fs_replace(file, text, strlen(text), &err);
    p->us = (clock_ns() - start_ns) / 1000 + 1;
    if (rc == 0 && !create_lock(file, path_of(p, p->self, ".lock", lock)))
        rc = err_sys(&err, errno, "create '%s' with link() or O_EXCL, one of which the lease needs",
                     lock);
    snprintf(p->fault, sizeof(p->fault), "%s", rc < 0 ? err.text : "");
}

static bool has_content(const char *path, const char *text)
{
    struct buf found = { 0 };
    bool same = fs_read(path, TEXT_BYTES, &found, NULL) == 0 && found.data != NULL &&
                strcmp(found.data, text) == 0;

    buf_fini(&found);
    return same;
}

static void look(void *arg)
{
    struct probe *p = arg;
    char own[PATH_BYTES + 64], path[PATH_BYTES + 64], text[TEXT_BYTES];

    content_of(p->other, text);
    p->file = has_content(path_of(p, p->other, "", path), text) ? PREFLIGHT_GOOD : PREFLIGHT_BAD;
    if (p->file == PREFLIGHT_BAD) /* another folder says nothing about locks */
        return;
    path_of(p, p->self, "", own);
    p->lock = !create_lock(own, path_of(p, p->other, ".lock", path)) && errno == EEXIST
                  ? PREFLIGHT_GOOD
                  : PREFLIGHT_BAD;
    if (p->lock == PREFLIGHT_BAD)
        (void)unlink(path); /* created by create_lock(); absent if that failed */
}

static void end(void *arg)
{
    static const char *const endings[] = { ".lock", "" };
    struct probe *p = arg;
    char path[PATH_BYTES + 64];

    for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); i++)
        (void)unlink(path_of(p, p->self, endings[i], path));
}

static struct probe *new_probe(const char *directory, struct storage_id self)
{
    struct probe *p = calloc(1, sizeof(*p));

    if (p == NULL)
        return NULL;
    snprintf(p->directory, sizeof(p->directory), "%s", directory);
    p->self = self;
    return p;
}

void storage_begin(const char *directory, struct storage_id self, uint32_t ms, uint32_t *sync_us,
                   char *fault)
{
    struct probe *p = new_probe(directory, self);

    *sync_us = 0;
    snprintf(fault, PREFLIGHT_TEXT_BYTES, "'%.200s' does not answer within %u ms", directory, ms);
    if (p == NULL || !limited_run(begin, p, ms))
        return;
    *sync_us = p->us < UINT32_MAX ? (uint32_t)p->us : UINT32_MAX;
    memcpy(fault, p->fault, sizeof(p->fault));
    free(p);
}

void storage_look(const char *directory, struct storage_id self, struct storage_id other,
                  uint32_t ms, uint8_t *file, uint8_t *lock)
{
    struct probe *p = new_probe(directory, self);

    *file = PREFLIGHT_BAD;
    *lock = PREFLIGHT_UNCHECKED;
    if (p == NULL)
        return;
    p->other = other;
    if (!limited_run(look, p, ms))
        return;
    *file = p->file;
    *lock = p->lock;
    free(p);
}

void storage_end(const char *directory, struct storage_id self, uint32_t ms)
{
    struct probe *p = new_probe(directory, self);

    if (p != NULL && limited_run(end, p, ms))
        free(p);
}
