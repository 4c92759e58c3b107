/* copy.h - copies of memory that is not read again soon. */
#ifndef BASE_COPY_H
#define BASE_COPY_H

#include <stddef.h>

/* As memcpy(), but the stores bypass the caches, where the processor can. A store through the caches first reads
 * the old content of its line, and displaces another line. Slower than memcpy() if the caches can hold
 * the destination until it is read. The bytes are visible to other threads as those of memcpy() are. */
void copy_uncached(void *to, const void *from, size_t n);

#endif
