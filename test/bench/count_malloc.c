/* count_malloc.c - a preloaded library that counts the allocations of each thread of a process.
 *
 * The file $COUNT_MALLOC.<process id> is an array of SLOTS slots { u32 thread id, u32 0, u64 calls
 * by oneDNN, u64 other calls } that another process may read at any time. The first slot is for
 * threads that found no free slot. oneDNN allocates and frees in every execution of a primitive,
 * independent of its caller. In a thread that runs primitives, only oneDNN calls libstdc++, which
 * is therefore counted as oneDNN. Memory requested directly from the system (mmap) is not counted;
 * it is visible as page faults.
 *
 *     cc -shared -fPIC -O2 -o count_malloc.so count_malloc.c
 *     LD_PRELOAD=$PWD/count_malloc.so COUNT_MALLOC=/tmp/counts program */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdbool.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SLOTS = 256, RANGES = 2 };

struct slot {
    uint32_t tid, zero;
    _Atomic uint64_t calls[2]; /* by oneDNN, others */
};

/* glibc's internal names of the replaced functions: they need no lookup, so they work before
 * main(). */
extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
extern void *__libc_memalign(size_t align, size_t n);

/* The address ranges of oneDNN and libstdc++. */
static struct range {
    const char *name;
    uintptr_t begin, end;
} ranges[RANGES] = { { .name = "libdnnl.so" }, { .name = "libstdc++.so" } };

static struct slot *table; /* NULL: counting has not begun */
static atomic_uint used = 1;
static __thread struct slot *mine __attribute__((tls_model("initial-exec")));

static int find_ranges(struct dl_phdr_info *info, size_t bytes, void *arg)
{
    const char *slash = strrchr(info->dlpi_name, '/'),
               *name = slash != NULL ? slash + 1 : info->dlpi_name;

    (void)bytes;
    (void)arg;
    for (struct range *r = ranges; r < ranges + RANGES; r++) {
        if (strncmp(name, r->name, strlen(r->name)) != 0)
            continue;
        r->begin = info->dlpi_addr;
        for (int i = 0; i < info->dlpi_phnum; i++)
            if (info->dlpi_phdr[i].p_type == PT_LOAD)
                r->end = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz;
    }
    return 0;
}

__attribute__((constructor)) static void start(void)
{
    const char *prefix = getenv("COUNT_MALLOC");
    void *map = MAP_FAILED;
    char path[4096];
    int fd = -1;

    if (prefix != NULL &&
        snprintf(path, sizeof(path), "%s.%d", prefix, (int)getpid()) < (int)sizeof(path))
        fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0 && ftruncate(fd, SLOTS * sizeof(struct slot)) == 0)
        map = mmap(NULL, SLOTS * sizeof(struct slot), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        perror("count_malloc: COUNT_MALLOC");
        _exit(1);
    }
    close(fd);
    dl_iterate_phdr(find_ranges, NULL);
    table = map;
}

static bool is_onednn(const void *caller)
{
    for (const struct range *r = ranges; r < ranges + RANGES; r++)
        if ((uintptr_t)caller >= r->begin && (uintptr_t)caller < r->end)
            return true;
    return false;
}

static void count(const void *caller)
{
    if (table == NULL)
        return;
    if (mine == NULL) {
        unsigned i = atomic_fetch_add(&used, 1);

        mine = &table[i < SLOTS ? i : 0];
        if (i < SLOTS)
            mine->tid = (uint32_t)gettid();
    }
    atomic_fetch_add_explicit(&mine->calls[is_onednn(caller) ? 0 : 1], 1, memory_order_relaxed);
}

void *malloc(size_t n)
{
    count(__builtin_return_address(0));
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    count(__builtin_return_address(0));
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    count(__builtin_return_address(0));
    return __libc_realloc(p, n);
}

void *reallocarray(void *p, size_t n, size_t size)
{
    size_t bytes;

    count(__builtin_return_address(0));
    if (__builtin_mul_overflow(n, size, &bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    return __libc_realloc(p, bytes);
}

void *memalign(size_t align, size_t n)
{
    count(__builtin_return_address(0));
    return __libc_memalign(align, n);
}

void *aligned_alloc(size_t align, size_t n)
{
    count(__builtin_return_address(0));
    return __libc_memalign(align, n);
}

int posix_memalign(void **out, size_t align, size_t n)
{
    void *p;

    count(__builtin_return_address(0));
    if (align < sizeof(void *) || (align & (align - 1)) != 0)
        return EINVAL;
    p = __libc_memalign(align, n);
    if (p == NULL)
        return ENOMEM;
    *out = p;
    return 0;
}
