/* maps.h - the mapped memory of other processes, kept from one generation to the next. Mapping an
 * arena is quick, but the first touch of every page costs again, and so does unmapping: 40 and 5 ms
 * for 100 MB in small pages, where a regroup should take a few ms.
 *
 * Memory that is recognized by its file is not mapped again. Threads: any. */
#ifndef COMM_MAPS_H
#define COMM_MAPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct maps;

struct maps *maps_new(void);    /* NULL: out of memory */
void maps_free(struct maps *m); /* no memory may be in use; NULL is allowed */

/* Maps the first `bytes` bytes of the memory of fd, or returns the existing mapping if it is not in
 * use. The caller keeps fd, and ends the use with maps_release(). Errors: ERR_PEER (the memory is
 * smaller), ERR_NOMEM, ERR_IO. */
int maps_acquire(struct maps *m, int fd, size_t bytes, void **out, struct err *err);
void maps_release(struct maps *m, void *base);
/* Unmaps the memory that has been unused in more than `keep` consecutive calls of this function. */
void maps_prune(struct maps *m, uint32_t keep);

#endif
