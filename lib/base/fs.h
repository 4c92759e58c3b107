/* fs.h - file operations whose errors name the operation and the path. Threads: any. */
#ifndef BASE_FS_H
#define BASE_FS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct buf;

/* Appends the whole file to *out. On failure *out is unchanged. Errors: ERR_INPUT (the file has
 * more than `limit` bytes, or is a FIFO that receives no data for 10 s), ERR_NOENT, ERR_IO,
 * ERR_NOMEM. */
int fs_read(const char *path, size_t limit, struct buf *out, struct err *err);
/* Writes all n bytes; retries short writes and EINTR. `path` is for the message. */
int fs_write_all(int fd, const void *data, size_t n, const char *path, struct err *err);
/* Replaces the file atomically and durably: writes and syncs a temporary file in the same
 * directory, renames it to `path`, syncs the directory. */
int fs_replace(const char *path, const void *data, size_t n, struct err *err);
/* Creates a file that must not exist, with this content; durable when the function returns 0. ERR_EXISTS: it exists. */
int fs_create(const char *path, const void *data, size_t n, struct err *err);
/* Returns true if link(2) failed with this errno because no hard link is possible there. */
bool fs_lacks_links(int errnum);
/* Returns true if the file system of `path` counts inodes and has none left, which is then the reason of ENOSPC. */
bool fs_lacks_inodes(const char *path);
int fs_mkdirs(const char *path, struct err *err); /* like mkdir -p; 0 if the directory exists */
int fs_sync_dir(const char *path, struct err *err);
int fs_remove_tree(const char *path, struct err *err); /* 0 if `path` does not exist */
/* Opens the file `location` below the directory `dir` for reading and returns its descriptor, which
 * the caller closes. `location` comes from a file and is not trusted: it must be relative, must not
 * contain "..", and no component may be a symbolic link, so that no file outside the directory can
 * be opened. `what` describes the file in messages ("external data"). The file may be of any type.
 * Errors: ERR_INPUT, ERR_NOENT, ERR_IO, ERR_NOMEM. */
int fs_open_below(const char *dir, const char *location, const char *what, struct err *err);

/* Refuses a path that a shell or another program would read in another way: a URL ("s3://bucket", "file:///a"), a path of
 * Windows ("C:\\run"), and a home folder, a variable or a specifier of systemd or Slurm ("~/a", "$USER", "%h"), which are
 * not expanded here. Otherwise a folder "s3:" or "~" would be created. "./s3:/a" and "./~" name such folders. Errors:
 * ERR_INPUT. */
int fs_check_path(const char *path, struct err *err);
/* Returns a copy of `name` if it is absolute, else dir/name; NULL: out of memory. The caller frees
 * the result. */
char *fs_join(const char *dir, const char *name);
/* Returns the directory part of `path`, "." if it contains no slash; NULL: out of memory. The
 * caller frees the result. */
char *fs_dirname(const char *path);

#endif
