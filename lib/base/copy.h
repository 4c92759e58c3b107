/* copy.h - copies to memory that is not read soon. */
#ifndef BASE_COPY_H
#define BASE_COPY_H

#include <stddef.h>

/* As memcpy(), but the stores bypass the caches on processors that support it. An ordinary store first reads the old
 * content of its cache line, and evicts another line. Slower than memcpy() if the destination is read while it would
 * still be in the cache. Other threads see the bytes as those of memcpy(). */
void copy_uncached(void *to, const void *from, size_t n);

#endif
