/* fs.h - files, with the errors a person needs. Threads: any. */
#ifndef BASE_FS_H
#define BASE_FS_H

#include <stddef.h>
#include <stdint.h>

struct err;
struct buf;

/* Appends the whole file to *out; more than `limit` bytes is ERR_INPUT, and so is a FIFO to which nobody writes for 10 s. */
int fs_read(const char *path, size_t limit, struct buf *out, struct err *err);
/* All of it, retrying short writes and EINTR. `path` is for the message. */
int fs_write_all(int fd, const void *data, size_t n, const char *path, struct err *err);
/* Writes a temporary beside `path`, syncs it, renames, syncs the directory. */
int fs_replace(const char *path, const void *data, size_t n, struct err *err);
int fs_mkdirs(const char *path, struct err *err); /* like mkdir -p; fine when it is there */
int fs_sync_dir(const char *path, struct err *err);
int fs_remove_tree(const char *path, struct err *err); /* fine when it is not there */
/* Opens the file `location` below the folder `dir` for reading and returns its descriptor.
 * `location` comes from a file and is not trusted: it must be relative, ".." is refused, and no
 * component of it may be a symbolic link, so that nothing outside the folder can be reached. `what`
 * names it in messages ("external data"). The file may be of any type. Errors: ERR_INPUT,
 * ERR_NOENT, ERR_IO, ERR_NOMEM. */
int fs_open_below(const char *dir, const char *location, const char *what, struct err *err);

/* `name` if absolute, else dir/name; NULL: out of memory. The caller frees. */
char *fs_join(const char *dir, const char *name);
char *fs_dirname(const char *path); /* "." if there is no slash; the caller frees */

#endif
