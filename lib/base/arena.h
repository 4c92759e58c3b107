/* arena.h - many small allocations with one lifetime, freed together.
 *
 * An allocation returns NULL when memory is exhausted. Threads: one at a time. */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include <stddef.h>

struct arena {
    struct arena_block *blocks; /* newest first */
    size_t used;                /* bytes allocated, with alignment; 0 after arena_fini() */
};

/* Returns zeroed memory, aligned to 16 bytes. The arena owns it. */
void *arena_alloc(struct arena *a, size_t bytes);
void *arena_array(struct arena *a, size_t n, size_t size); /* NULL also if n * size overflows */
char *arena_strdup(struct arena *a, const char *s);
char *arena_strndup(struct arena *a, const char *s, size_t n);
char *arena_printf(struct arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void arena_fini(struct arena *a); /* frees everything; the struct is empty and usable again */

#endif
