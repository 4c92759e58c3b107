/* mapping.h - files mapped for reading, safe against files that are truncated meanwhile.
 *
 * Where a mapped file has no bytes any more, the kernel sends SIGBUS to the thread that reads. The
 * handler of mapping.c keeps the process alive in two ways:
 *
 *   mapping_copy()     leaves the copy and returns false; the next copy may succeed
 *   struct mapping     plain pointers: the missing page reads as zeros from then on, and
 *                      mapping_check() reports the damage. A reader checks after it has read.
 *
 * A SIGBUS from any other address goes to the handler that was installed before.
 * Threads: any. A thread that reads through a struct mapping has called mapping_open() or
 * mapping_enter() once, because a blocked SIGBUS would end the process. */
#ifndef BASE_MAPPING_H
#define BASE_MAPPING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct mapping; /* a whole file, read by plain pointers */

/* Maps the first `bytes` bytes of the file. The descriptor is duplicated; the caller closes its own.
 * `path` is for messages and is copied. On success the caller owns *out. An empty file has data too
 * (of 0 bytes). Errors: ERR_IO, ERR_NOMEM. */
int mapping_open(int fd, uint64_t bytes, const char *path, struct mapping **out, struct err *err);
const uint8_t *mapping_data(const struct mapping *m);
uint64_t mapping_bytes(const struct mapping *m);
const char *mapping_path(const struct mapping *m);
/* ERR_IO: a page was missing when it was read, or the file is shorter now than it was when it was
 * mapped. What was read is then invalid. */
int mapping_check(const struct mapping *m, struct err *err);
/* A hint: the pages inside [from, from + n) are not needed soon; they no longer count as memory of
 * this process and are read again from the file if they are. */
void mapping_drop(const struct mapping *m, const void *from, size_t n);
void mapping_close(struct mapping *m); /* NULL is fine */
/* Makes this thread able to read mappings that another thread opened. */
void mapping_enter(void);

/* ---- guarded copies ---- */

/* The whole file, to be read by mapping_copy() alone. NULL: it cannot be mapped, which is no error. */
const uint8_t *mapping_new(int fd, uint64_t bytes);
/* false: some of these bytes are missing, because the file was truncated or its disk failed; the
 * content of `to` is then undefined. */
bool mapping_copy(void *to, const uint8_t *from, size_t n);
void mapping_free(const uint8_t *mapping, uint64_t bytes); /* NULL is fine */

#endif
