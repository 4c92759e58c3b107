/* mapping.h - maps files for reading, and survives their truncation while they are mapped.
 *
 * A read of a page that the truncated file no longer contains raises SIGBUS in the reading thread.
 * The handler of mapping.c keeps the process alive in two ways:
 *
 *   mapping_copy()     aborts the copy and returns false; the next copy may succeed
 *   struct mapping     plain pointers: the missing page reads as zeros from then on, and
 *                      mapping_check() reports the damage. A reader checks after it has read.
 *
 * A SIGBUS from any other address is passed to the previously installed handler.
 * Threads: any. A thread that reads through a struct mapping must first have called mapping_open()
 * or mapping_enable_thread(), because a blocked SIGBUS would terminate the process. */
#ifndef BASE_MAPPING_H
#define BASE_MAPPING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct mapping; /* a whole file, read through plain pointers */

/* Maps the first `bytes` bytes of the file. The descriptor is duplicated; the caller closes its
 * own. `path` is for messages and is copied. On success the caller owns *out. For an empty file,
 * mapping_data() is not NULL. Errors: ERR_IO, ERR_NOMEM. */
int mapping_open(int fd, uint64_t bytes, const char *path, struct mapping **out, struct err *err);
const uint8_t *mapping_data(const struct mapping *m);
uint64_t mapping_bytes(const struct mapping *m);
const char *mapping_path(const struct mapping *m);
/* Reports whether the data that was read is valid. Errors: ERR_IO (a page was missing when it was
 * read, or the file is now shorter than when it was mapped). */
int mapping_check(const struct mapping *m, struct err *err);
/* A hint that the pages inside [from, from + n) are not needed soon: they are removed from the
 * memory of this process and read again from the file on the next access. */
void mapping_drop(const struct mapping *m, const void *from, size_t n);
void mapping_close(struct mapping *m); /* NULL is allowed */
/* Enables this thread to read mappings that another thread opened: unblocks SIGBUS. */
void mapping_enable_thread(void);

/* ---- guarded copies ---- */

/* Maps the whole file, for mapping_copy() only. NULL: the file is empty or cannot be mapped; the
 * caller reads it by other means. The caller frees the result with mapping_free(). */
const uint8_t *mapping_new(int fd, uint64_t bytes);
/* Copies n bytes. false: some bytes are missing, because the file was truncated or its disk failed;
 * the content of `to` is then undefined. */
bool mapping_copy(void *to, const uint8_t *from, size_t n);
void mapping_free(const uint8_t *mapping, uint64_t bytes); /* NULL is allowed */

#endif
