/* mapping.c - the SIGBUS handler and the two kinds of mappings that rely on it.
 *
 * Mappings that are read through plain pointers are in a list that only grows, so the handler can
 * walk it at any time without a lock. A closed mapping leaves an unused node in the list, which the
 * next mapping reuses. */
#include "base/mapping.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"

enum { FD_MAX = 512 }; /* a mapping keeps only descriptors below this number */

struct region { /* a node of the list; never freed */
    _Atomic uintptr_t start; /* 0: unused */
    _Atomic uintptr_t end;
    atomic_bool is_broken; /* a page was missing and was replaced by zeros */
    struct region *next;   /* constant after the node is linked */
};

struct mapping {
    struct region *region; /* NULL: the file is empty */
    const uint8_t *data;
    uint64_t bytes;
    int fd;     /* owned; for mapping_check() to read the size; -1: too many mappings are open */
    char *path; /* owned */
};

static const uint8_t empty_data[1]; /* mapping_data() of an empty file */
static _Atomic(struct region *) regions;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* for changes of the list or handler */
static uintptr_t page_bytes;
static _Thread_local sigjmp_buf copy_jump;
static _Thread_local volatile sig_atomic_t is_copying;
static struct sigaction earlier_action;

/* ---- the handler ---- */

/* Replaces the page at this address by zeros, if it belongs to a struct mapping; else returns
 * false. */
static bool patch_page(uintptr_t at)
{
    struct region *r;
    uintptr_t page = at & ~(page_bytes - 1);

    for (r = atomic_load(&regions); r != NULL; r = r->next) {
        if (at < atomic_load(&r->start) || at >= atomic_load(&r->end))
            continue;
        atomic_store(&r->is_broken, true);
        return mmap((void *)page, page_bytes, PROT_READ, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS,
                    -1, 0) != MAP_FAILED;
    }
    return false;
}

static void on_bus_error(int signal, siginfo_t *info, void *context)
{
    int saved = errno;

    (void)context;
    if (is_copying) {
        is_copying = 0;
        siglongjmp(copy_jump, 1);
    }
    if (!patch_page((uintptr_t)info->si_addr))
        sigaction(signal, &earlier_action, NULL); /* the read repeats with the earlier handler */
    errno = saved;
}

/* Installs the handler if it is not the current one. With SA_NODEFER no signal is blocked in the
 * handler, so siglongjmp may leave it. */
static void install(void)
{
    struct sigaction now, action = { .sa_sigaction = on_bus_error,
                                     .sa_flags = SA_NODEFER | SA_SIGINFO };

    sigemptyset(&action.sa_mask);
    pthread_mutex_lock(&lock);
    page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    if (sigaction(SIGBUS, NULL, &now) == 0 && now.sa_sigaction != on_bus_error) {
        earlier_action = now;
        sigaction(SIGBUS, &action, NULL);
    }
    pthread_mutex_unlock(&lock);
}

void mapping_enable_thread(void)
{
    static _Thread_local bool is_unblocked;
    sigset_t bus;

    if (is_unblocked)
        return;
    sigemptyset(&bus);
    sigaddset(&bus, SIGBUS);
    pthread_sigmask(SIG_UNBLOCK, &bus, NULL);
    is_unblocked = true;
}

/* ---- plain pointers ---- */

/* Registers a range in an unused node; NULL: out of memory. `end` is stored last and cleared first,
 * so that the handler never sees the start of one range with the end of another. */
static struct region *region_add(uintptr_t start, uint64_t bytes)
{
    struct region *r;

    pthread_mutex_lock(&lock);
    for (r = atomic_load(&regions); r != NULL && atomic_load(&r->start) != 0; r = r->next)
        ;
    if (r == NULL) {
        r = calloc(1, sizeof(*r));
        if (r != NULL) {
            r->next = atomic_load(&regions);
            atomic_store(&regions, r);
        }
    }
    if (r != NULL) {
        atomic_store(&r->is_broken, false);
        atomic_store(&r->start, start);
        atomic_store(&r->end, start + bytes);
    }
    pthread_mutex_unlock(&lock);
    return r;
}

static void region_remove(struct region *r)
{
    pthread_mutex_lock(&lock);
    atomic_store(&r->end, 0);
    atomic_store(&r->start, 0);
    pthread_mutex_unlock(&lock);
}

static int map(struct mapping *m, int fd, struct err *err)
{
    void *at = mmap(NULL, m->bytes, PROT_READ, MAP_SHARED, fd, 0);

    if (at == MAP_FAILED)
        return err_sys(err, errno, "map '%s'", m->path);
    m->data = at;
    install();
    mapping_enable_thread();
    m->region = region_add((uintptr_t)at, m->bytes);
    return m->region != NULL ? 0 : err_set(err, ERR_NOMEM, "map '%s': out of memory", m->path);
}

int mapping_open(int fd, uint64_t bytes, const char *path, struct mapping **out, struct err *err)
{
    struct mapping *m = calloc(1, sizeof(*m));
    int rc = 0;

    if (m == NULL)
        return err_set(err, ERR_NOMEM, "map '%s': out of memory", path);
    m->data = empty_data;
    m->bytes = bytes;
    m->path = strdup(path);
    m->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (m->fd >= FD_MAX) { /* a model with a file per tensor must not exhaust the descriptors */
        close(m->fd);
        m->fd = -1;
    }
    if (m->path == NULL)
        rc = err_set(err, ERR_NOMEM, "map '%s': out of memory", path);
    else if (bytes > 0)
        rc = map(m, fd, err);
    if (rc < 0) {
        mapping_close(m);
        return rc;
    }
    *out = m;
    return 0;
}

const uint8_t *mapping_data(const struct mapping *m)
{
    return m->data;
}

uint64_t mapping_bytes(const struct mapping *m)
{
    return m->bytes;
}

const char *mapping_path(const struct mapping *m)
{
    return m->path;
}

int mapping_check(const struct mapping *m, struct err *err)
{
    struct stat st = { .st_size = INT64_MAX };

    if (m->fd >= 0 && fstat(m->fd, &st) < 0)
        return err_sys(err, errno, "read '%s'", m->path);
    if ((uint64_t)st.st_size < m->bytes)
        return err_set(err, ERR_IO,
                       "'%s' was truncated while it was read: it had %" PRIu64
                       " bytes and has %" PRIu64 "; write model files under another name and "
                       "rename them",
                       m->path, m->bytes, (uint64_t)st.st_size);
    if (m->region != NULL && atomic_load(&m->region->is_broken))
        return err_set(err, ERR_IO,
                       "'%s': some pages could not be read (the file was temporarily "
                       "truncated, or its disk failed)",
                       m->path);
    return 0;
}

void mapping_drop(const struct mapping *m, const void *from, size_t n)
{
    uintptr_t start = (uintptr_t)from, end = start + n;

    if (m->region == NULL || atomic_load(&m->region->is_broken))
        return; /* a page that was replaced by zeros must not change back to the file's page */
    start = (start + page_bytes - 1) & ~(page_bytes - 1);
    end &= ~(page_bytes - 1);
    if (start < end)
        (void)madvise((void *)start, end - start, MADV_DONTNEED); /* a hint */
}

void mapping_close(struct mapping *m)
{
    if (m == NULL)
        return;
    if (m->region != NULL)
        region_remove(m->region);
    if (m->data != NULL && m->data != empty_data)
        munmap((void *)(uintptr_t)m->data, m->bytes);
    if (m->fd >= 0)
        close(m->fd);
    free(m->path);
    free(m);
}

/* ---- guarded copies ---- */

const uint8_t *mapping_new(int fd, uint64_t bytes)
{
    void *at = bytes > 0 ? mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;

    if (at == MAP_FAILED)
        return NULL;
    install();
    return at;
}

bool mapping_copy(void *to, const uint8_t *from, size_t n)
{
    mapping_enable_thread();
    if (sigsetjmp(copy_jump, 0) != 0)
        return false;
    is_copying = 1;
    atomic_signal_fence(memory_order_seq_cst); /* the copy must stay between the fences */
    memcpy(to, from, n);
    atomic_signal_fence(memory_order_seq_cst);
    is_copying = 0;
    return true;
}

void mapping_free(const uint8_t *mapping, uint64_t bytes)
{
    if (mapping != NULL)
        munmap((void *)(uintptr_t)mapping, bytes);
}
