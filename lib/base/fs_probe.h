/* fs_probe.h - tries whether this process can write to a place, before much work depends on it. access(2) does not tell:
 * a server may map the user to another one (root_squash), and a file system may lack a call. So the calls are made, on a
 * hidden folder ".trainerd-probe-<random>", which is removed again.
 *
 * Threads: any. The functions may block as long as the storage does. Fault point: fs.probe. */
#ifndef BASE_FS_PROBE_H
#define BASE_FS_PROBE_H

struct err;

/* Makes the calls of a checkpoint and of its lease in the folder `path`: creates a folder and a file that must not exist,
 * writes and syncs it, makes a hard link (where there are none, the lease works without), lists and syncs the folder
 * `path`, renames the folder, reads the file, and removes all. If `path` does not exist, its nearest parent that
 * exists is tried, and nothing is created.
 * Errors: ERR_INPUT (a permission is missing, or the file system lacks a call: a retry fails in the same way; the text
 * names the call, the errno and a remedy); ERR_IO, ERR_FULL, ERR_NOENT, ERR_NOMEM, which may pass: no
 * space or inode is left, or no descriptor of this process. */
int fs_probe_folder(const char *path, struct err *err);
/* Tries the calls of fs_replace() in the folder of a file that will be replaced. Errors: those of fs_probe_folder(), and
 * ERR_INPUT (`path` is a folder). */
int fs_probe_file(const char *path, struct err *err);

#endif
