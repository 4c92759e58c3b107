/* allocations.h - counts allocations by the code of this program. Allocations by libraries are not
 * counted (oneDNN allocates a small table in each execution), nor those of a sanitized build, which
 * has its own malloc.
 *
 * The header defines malloc() and related functions: exactly one file of a program includes it.
 * Threads: any. */
#ifndef TEST_HARNESS_ALLOCATIONS_H
#define TEST_HARNESS_ALLOCATIONS_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>

#include "harness/sanitized.h"

enum { ALLOCATIONS_COUNT = !SANITIZED_ADDRESS && !SANITIZED_THREAD };

static uint64_t allocations_made; /* atomic */

static inline uint64_t allocations(void)
{
    return __atomic_load_n(&allocations_made, __ATOMIC_RELAXED);
}

#if !SANITIZED_ADDRESS && !SANITIZED_THREAD
/* defined by the linker: the code of the program */
extern const char __executable_start[], etext[];
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);

static void allocations_add(const void *caller)
{
    if ((const char *)caller >= __executable_start && (const char *)caller < etext)
        __atomic_add_fetch(&allocations_made, 1, __ATOMIC_RELAXED);
}

void *malloc(size_t n)
{
    allocations_add(__builtin_return_address(0));
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    allocations_add(__builtin_return_address(0));
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    allocations_add(__builtin_return_address(0));
    return __libc_realloc(p, n);
}

void *aligned_alloc(size_t align, size_t n)
{
    allocations_add(__builtin_return_address(0));
    return __libc_memalign(align, n);
}

int posix_memalign(void **out, size_t align, size_t n)
{
    allocations_add(__builtin_return_address(0));
    *out = __libc_memalign(align, n);
    return *out != NULL ? 0 : ENOMEM;
}
#endif

#endif
