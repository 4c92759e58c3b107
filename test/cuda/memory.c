/* memory.c - device memory: each device has its own address space, which is inaccessible unless
 * device work runs.
 *
 *   space  [guard][ pages of an allocation ][guard][ pages of the next ]...
 *   pages  [slack 0xfb][ the caller's bytes 0xff ][slack 0xfb, < 256]
 *
 * The bytes begin at a multiple of 256 and end as near to the guard as that permits. Addresses are
 * not reused before the space is exhausted, so a use after free accesses unmapped memory. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda/emulator_priv.h"

enum {
    ALIGN = 256,
    PAGE = 4096,
    SLACK = 0xfb,
    GARBAGE = 0xff,
    ALWAYS_CLOSED = 256, /* times that device memory without a key is closed after each use, */
    SOMETIMES_CLOSED = 64 /* then after every such use */
};
#define SPACE_MIN ((size_t)64 << 30)

struct allocation {
    char *pages; /* ascending within a device */
    size_t pages_bytes;
    char *base;
    size_t bytes;
};

static struct device_memory {
    char *space; /* NULL: no allocation so far */
    size_t space_bytes;
    struct allocation *list; /* owned */
    size_t n, capacity;
    size_t next; /* offset in space at which the search for a hole begins */
    size_t used;
    int key;           /* protection key of all its pages; <= 0: not supported, or no key left */
    unsigned int open;
    bool is_closed;    /* without a key: no thread can access the pages */
    uint64_t n_closed; /* without a key: times that `open` became 0 */
} memories[EMULATED_DEVICES_MAX];

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* ---- access faults ---- */

static struct sigaction before;

static void print_text(const char *text)
{
    (void)!write(STDERR_FILENO, text, strlen(text)); /* a failure is ignored */
}

/* The last allocation that begins at or before p. */
static const struct allocation *below(const struct device_memory *m, const char *p)
{
    const struct allocation *found = NULL;
    size_t i;

    for (i = 0; i < m->n && m->list[i].pages <= p; i++)
        found = &m->list[i];
    return found;
}

static void on_fault(int signal, siginfo_t *info, void *context)
{
    const char *p = info->si_addr;
    int device = memory_device(p);

    (void)signal, (void)context;
    if (device >= 0) {
        const struct device_memory *m = &memories[device];
        const struct allocation *a = below(m, p);
        char text[512];

        snprintf(text, sizeof(text), "emulated GPU: %s%s touched address %p of device %d",
                 emulated_running != NULL ? "" : "code of the host",
                 emulated_running != NULL ? emulated_running : "", (const void *)p, device);
        print_text(text);
        if (a != NULL && p >= a->base && p < a->base + a->bytes)
            snprintf(text, sizeof(text), ": only kernels and copies of that device may\n");
        else if (a != NULL && p < a->pages + a->pages_bytes + PAGE)
            snprintf(text, sizeof(text), ": %td bytes beyond an allocation of %zu bytes\n",
                     p - (a->base + a->bytes), a->bytes);
        else
            snprintf(text, sizeof(text), ": not allocated, or freed\n");
        print_text(text);
    }
    sigaction(SIGSEGV, &before, NULL); /* repeats the access without this handler */
}

static void watch_faults(void)
{
    struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER };

    if (before.sa_flags == 0 && before.sa_handler == SIG_DFL)
        sigaction(SIGSEGV, &action, &before);
}

/* ---- allocations ---- */

static struct device_memory *space_of(int device)
{
    struct device_memory *m = &memories[device];

    if (m->space == NULL) {
        size_t bytes = round_up(emulated_settings()->memory * 4, PAGE);

        m->space_bytes = bytes > SPACE_MIN ? bytes : SPACE_MIN;
        m->space = mmap(NULL, m->space_bytes, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (m->space == MAP_FAILED)
            emulated_die("no address space of %zu bytes for device %d", m->space_bytes, device);
        /* opening and closing is then faster */
        (void)madvise(m->space, m->space_bytes, MADV_HUGEPAGE);
        m->key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
        m->is_closed = true;
        watch_faults();
    }
    return m;
}

/* Returns the list index for an allocation at *offset or later, with a guard page on both sides;
 * *offset becomes its offset. m->n + 1: there is no such hole. */
static size_t find_hole(const struct device_memory *m, size_t bytes, size_t *offset)
{
    size_t i, at = *offset;

    for (i = 0; i <= m->n; i++) {
        size_t end = i < m->n ? (size_t)(m->list[i].pages - m->space) : m->space_bytes;
        size_t after = i < m->n ? end + m->list[i].pages_bytes : 0;

        if (end >= at && end - at >= bytes + 2 * PAGE) {
            *offset = at + PAGE;
            return i;
        }
        if (after > at)
            at = after;
    }
    return m->n + 1;
}

cudaError_t memory_new(int device, size_t bytes, void **out)
{
    struct device_memory *m = space_of(device);
    size_t rounded, pages_bytes, offset, i;
    struct allocation *a;

    if (bytes > emulated_settings()->memory ||
        (rounded = round_up(bytes, ALIGN)) > emulated_settings()->memory - m->used)
        return cudaErrorMemoryAllocation;
    pages_bytes = round_up(rounded, PAGE);
    offset = m->next;
    i = find_hole(m, pages_bytes, &offset);
    if (i > m->n) {
        offset = 0;
        i = find_hole(m, pages_bytes, &offset);
    }
    if (i > m->n || mprotect(m->space + offset, pages_bytes, PROT_READ | PROT_WRITE) < 0 ||
        (m->key > 0 &&
         pkey_mprotect(m->space + offset, pages_bytes, PROT_READ | PROT_WRITE, m->key) < 0))
        return cudaErrorMemoryAllocation;
    if (m->n == m->capacity) {
        m->capacity = m->capacity == 0 ? 64 : m->capacity * 2;
        m->list = realloc(m->list, m->capacity * sizeof(m->list[0]));
        if (m->list == NULL)
            emulated_die("out of memory");
    }
    memmove(&m->list[i + 1], &m->list[i], (m->n - i) * sizeof(m->list[0]));
    a = &m->list[i];
    *a = (struct allocation){ .pages = m->space + offset, .pages_bytes = pages_bytes,
                              .base = m->space + offset + pages_bytes - rounded, .bytes = bytes };
    m->n++;
    m->used += rounded;
    m->next = offset + pages_bytes;
    if (m->key > 0)
        memory_open(device);
    memset(a->pages, SLACK, pages_bytes);
    memset(a->base, GARBAGE, bytes);
    if (m->key > 0)
        memory_close(device);
    else if (m->is_closed)
        mprotect(a->pages, pages_bytes, PROT_NONE);
    *out = a->base;
    return cudaSuccess;
}

static void check_slack(const struct allocation *a, const char *from, const char *to)
{
    for (; from < to; from++)
        if ((unsigned char)*from != SLACK)
            emulated_die("a kernel has written at %td of an allocation of %zu bytes (found when "
                         "it was freed)",
                         from - a->base, a->bytes);
}

bool memory_free(int device, void *p)
{
    struct device_memory *m = &memories[device];
    struct allocation a;
    size_t i;

    for (i = 0; i < m->n && m->list[i].base != p; i++)
        ;
    if (i == m->n)
        return false;
    a = m->list[i];
    if (m->key > 0)
        memory_open(device);
    else
        mprotect(a.pages, a.pages_bytes, PROT_READ);
    check_slack(&a, a.pages, a.base);
    check_slack(&a, a.base + a.bytes, a.pages + a.pages_bytes);
    if (m->key > 0)
        memory_close(device);
    if (mmap(a.pages, a.pages_bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
        emulated_die("cannot unmap device memory: %s", strerror(errno));
    memmove(&m->list[i], &m->list[i + 1], (m->n - i - 1) * sizeof(m->list[0]));
    m->n--;
    m->used -= round_up(a.bytes, ALIGN);
    return true;
}

static void protect(const struct device_memory *m, int how)
{
    size_t i;

    for (i = 0; i < m->n; i++)
        if (mprotect(m->list[i].pages, m->list[i].pages_bytes, how) < 0)
            emulated_die("cannot open or close device memory: %s", strerror(errno));
}

/* With protection keys (Intel's PKU, newer AMD's), a thread opens the memory for itself without a
 * system call. Without keys it is opened for all threads, allocation by allocation, which takes most
 * of the time of a test: after the first uses the memory is closed only sometimes. */
static __thread unsigned opened[EMULATED_DEVICES_MAX];

void memory_open(int device)
{
    struct device_memory *m = &memories[device];

    if (m->key > 0 && opened[device]++ == 0)
        pkey_set(m->key, 0);
    else if (m->key <= 0 && m->open++ == 0 && m->is_closed) {
        protect(m, PROT_READ | PROT_WRITE);
        m->is_closed = false;
    }
}

void memory_close(int device)
{
    struct device_memory *m = &memories[device];

    if (m->key > 0 && --opened[device] == 0)
        pkey_set(m->key, PKEY_DISABLE_ACCESS);
    else if (m->key <= 0 && --m->open == 0 &&
             (++m->n_closed <= ALWAYS_CLOSED || m->n_closed % SOMETIMES_CLOSED == 0)) {
        protect(m, PROT_NONE);
        m->is_closed = true;
    }
}

int memory_device(const void *p)
{
    int i;

    for (i = 0; i < EMULATED_DEVICES_MAX; i++)
        if (memories[i].space != NULL && (const char *)p >= memories[i].space &&
            (const char *)p < memories[i].space + memories[i].space_bytes)
            return i;
    return -1;
}

int memory_owner(const void *p, size_t bytes)
{
    int device = memory_device(p);
    const struct allocation *a = device < 0 ? NULL : below(&memories[device], p);
    size_t offset;

    if (a == NULL || (const char *)p < a->base)
        return -1;
    offset = (size_t)((const char *)p - a->base);
    bytes = bytes == 0 ? 1 : bytes;
    return offset < a->bytes && bytes <= a->bytes - offset ? device : -1;
}

size_t memory_used(int device)
{
    return memories[device].used;
}
