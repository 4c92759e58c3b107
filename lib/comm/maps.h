/* maps.h - the memory of other processes that is mapped here, kept from one generation to the next.
 * Mapping an arena is quick, but every page of it costs again on first touch, and to undo it costs
 * as well: 40 and 5 ms for 100 MB in small pages, where a regroup should take a few.
 *
 * What is known again by its file is not mapped again. Threads: any. */
#ifndef COMM_MAPS_H
#define COMM_MAPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct maps;

struct maps *maps_new(void);       /* NULL: out of memory */
void maps_free(struct maps *m);    /* nothing may be in use; NULL is fine */

/* Maps the first `bytes` of the memory that fd names, unless it is there and not in use. The caller
 * keeps fd, and ends the use with maps_give(). Errors: ERR_PEER (the memory is smaller), ERR_NOMEM,
 * ERR_IO. */
int maps_take(struct maps *m, int fd, size_t bytes, void **out, struct err *err);
void maps_give(struct maps *m, void *base);
/* Unmaps what is not in use, but what is so for the first `keep` times that this is called. */
void maps_prune(struct maps *m, uint32_t keep);

#endif
