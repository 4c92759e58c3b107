/* cgroup.h - finds the control group of this process in which the kernel limits its memory or its processor time.
 *
 * /proc/self/cgroup names the group inside its hierarchy, /proc/self/mountinfo the folder where the
 * hierarchy is mounted, and which group that folder shows. Two hierarchies may do that: that of
 * version 2, and that of version 1 with the controller "memory" or "cpu". Threads: any. */
#ifndef BASE_CGROUP_H
#define BASE_CGROUP_H

#include <stdbool.h>
#include <stddef.h>

struct buf;
struct err;

enum { CGROUP_PATH_BYTES = 4096 };

struct cgroup {
    char mount[CGROUP_PATH_BYTES]; /* folder of the outermost group that this process can see */
    char own[CGROUP_PATH_BYTES];   /* folder of the group of this process: `mount`, or below it */
};

/* Finds the group of version 1 or 2 of a controller, "memory" or "cpu". `root` precedes the absolute names of all files; "" on a host,
 * a folder with copies of the files in a test. The names in *out include it. On failure *out is
 * unchanged. Errors: ERR_NOENT (no such hierarchy), ERR_INPUT (a file is malformed), ERR_IO,
 * ERR_NOMEM. */
int cgroup_find(const char *root, int version, const char *controller, struct cgroup *out,
                struct err *err);

/* Changes `folder`, at first cgroup.own, to the group that contains it. false: it is cgroup.mount. */
bool cgroup_parent(const struct cgroup *g, char folder[CGROUP_PATH_BYTES]);

/* Appends a file of /proc or of a control group to *out, at most 16 MiB. Does not pass the
 * fault points of fs_read(): a task reads these files each second, and a test counts its own reads.
 * Errors: ERR_NOENT, ERR_IO, ERR_NOMEM, ERR_INPUT (larger, or with a NUL). */
int cgroup_read_file(const char *path, struct buf *out, struct err *err);

#endif
