/* arena.c - blocks from the heap, each twice as large as the previous block, up to BLOCK_MAX. An
 * allocation is a range of the newest block. */
#include "base/arena.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"

enum { ALIGNMENT = 16, BLOCK_MIN = 4096, BLOCK_MAX = 1 << 20 };

struct arena_block {
    struct arena_block *next;
    size_t cap; /* bytes of data */
    size_t used;
    _Alignas(ALIGNMENT) unsigned char data[];
};

/* Adds a zeroed block of at least `bytes`; NULL: out of memory. */
static struct arena_block *add_block(struct arena *a, size_t bytes)
{
    struct arena_block *block;
    size_t cap = BLOCK_MIN;

    if (a->blocks != NULL)
        cap = a->blocks->cap < BLOCK_MAX / 2 ? a->blocks->cap * 2 : BLOCK_MAX;
    if (cap < bytes)
        cap = bytes;
    if (cap > SIZE_MAX - sizeof(*block) || fault_hit("mem"))
        return NULL;
    block = calloc(1, sizeof(*block) + cap);
    if (block == NULL)
        return NULL;
    block->cap = cap;
    block->next = a->blocks;
    a->blocks = block;
    return block;
}

void *arena_alloc(struct arena *a, size_t bytes)
{
    struct arena_block *block = a->blocks;
    void *data;

    if (bytes > SIZE_MAX - (ALIGNMENT - 1))
        return NULL;
    bytes = (bytes + (ALIGNMENT - 1)) & ~(size_t)(ALIGNMENT - 1);
    if (bytes == 0)
        bytes = ALIGNMENT; /* so that no two allocations share an address */
    if (block == NULL || block->cap - block->used < bytes)
        block = add_block(a, bytes);
    if (block == NULL)
        return NULL;
    data = block->data + block->used;
    block->used += bytes;
    a->used += bytes;
    return data;
}

void *arena_array(struct arena *a, size_t n, size_t size)
{
    size_t bytes;

    return __builtin_mul_overflow(n, size, &bytes) ? NULL : arena_alloc(a, bytes);
}

char *arena_strdup(struct arena *a, const char *s)
{
    return arena_strndup(a, s, strlen(s));
}

char *arena_strndup(struct arena *a, const char *s, size_t n)
{
    char *copy;

    n = strnlen(s, n);
    copy = arena_alloc(a, n + 1);
    if (copy != NULL)
        memcpy(copy, s, n); /* the memory is zeroed, so the NUL is present */
    return copy;
}

char *arena_printf(struct arena *a, const char *fmt, ...)
{
    char *text = NULL;
    va_list ap, again;
    int n;

    va_start(ap, fmt);
    va_copy(again, ap);
    n = vsnprintf(NULL, 0, fmt, ap);
    if (n >= 0)
        text = arena_alloc(a, (size_t)n + 1);
    if (text != NULL)
        vsnprintf(text, (size_t)n + 1, fmt, again);
    va_end(again);
    va_end(ap);
    return text;
}

void arena_fini(struct arena *a)
{
    while (a->blocks != NULL) {
        struct arena_block *block = a->blocks;

        a->blocks = block->next;
        free(block);
    }
    a->used = 0;
}
