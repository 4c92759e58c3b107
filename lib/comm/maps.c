#include "comm/maps.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/check.h"
#include "base/err.h"
#include "base/fault.h"

struct one {
    void *base;
    size_t bytes;
    dev_t device; /* these three fields identify the memory, even if the kernel reuses an inode
                     number */
    ino_t inode;
    struct timespec changed;
    bool in_use;
    uint32_t idle; /* number of prunings since the last use */
};

struct maps {
    pthread_mutex_t lock; /* guards the fields below */
    struct one *all;      /* owned [n] */
    uint32_t n;
};

struct maps *maps_new(void)
{
    struct maps *m = calloc(1, sizeof(*m));

    if (m != NULL)
        pthread_mutex_init(&m->lock, NULL);
    return m;
}

void maps_free(struct maps *m)
{
    if (m == NULL)
        return;
    maps_prune(m, 0);
    CHECK(m->n == 0);
    free(m->all);
    pthread_mutex_destroy(&m->lock);
    free(m);
}

static int map_new(int fd, struct one *one, struct err *err)
{
    one->base = fault_hit("comm.map")
                    ? (errno = ENOMEM, MAP_FAILED)
                    : mmap(NULL, one->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (one->base == MAP_FAILED)
        return err_sys(err, errno, "map %zu bytes of shared memory", one->bytes);
    (void)madvise(one->base, one->bytes, MADV_HUGEPAGE); /* faster, if the kernel supports it */
    return 0;
}

static struct one *find(struct maps *m, const struct one *like)
{
    for (uint32_t i = 0; i < m->n; i++) {
        struct one *o = &m->all[i];

        if (!o->in_use && o->bytes == like->bytes && o->device == like->device &&
            o->inode == like->inode && o->changed.tv_sec == like->changed.tv_sec &&
            o->changed.tv_nsec == like->changed.tv_nsec)
            return o;
    }
    return NULL;
}

static int take(struct maps *m, int fd, struct one *one, struct err *err)
{
    struct one *known = find(m, one), *all;
    int rc;

    if (known != NULL) {
        known->in_use = true;
        known->idle = 0;
        one->base = known->base;
        return 0;
    }
    all = realloc(m->all, (m->n + 1) * sizeof(*all));
    if (all == NULL)
        return err_set(err, ERR_NOMEM, "map shared memory: out of memory");
    m->all = all;
    rc = map_new(fd, one, err);
    if (rc == 0)
        m->all[m->n++] = *one;
    return rc;
}

int maps_acquire(struct maps *m, int fd, size_t bytes, void **out, struct err *err)
{
    struct one one = { .bytes = bytes, .in_use = true };
    struct stat st;
    int rc;

    if (fstat(fd, &st) < 0)
        return err_sys(err, errno, "read the size of passed memory");
    if (bytes == 0 || bytes > PTRDIFF_MAX || (uint64_t)st.st_size < bytes)
        return err_set(err, ERR_PEER, "passed memory has %lld bytes, expected %zu",
                       (long long)st.st_size, bytes);
    one.device = st.st_dev;
    one.inode = st.st_ino;
    one.changed = st.st_ctim;
    pthread_mutex_lock(&m->lock);
    rc = take(m, fd, &one, err);
    pthread_mutex_unlock(&m->lock);
    if (rc == 0)
        *out = one.base;
    return rc;
}

void maps_release(struct maps *m, void *base)
{
    pthread_mutex_lock(&m->lock);
    for (uint32_t i = 0; i < m->n; i++)
        if (m->all[i].base == base)
            m->all[i].in_use = false;
    pthread_mutex_unlock(&m->lock);
}

void maps_prune(struct maps *m, uint32_t keep)
{
    uint32_t n = 0;

    pthread_mutex_lock(&m->lock);
    for (uint32_t i = 0; i < m->n; i++)
        if (m->all[i].in_use || m->all[i].idle++ < keep)
            m->all[n++] = m->all[i];
        else
            munmap(m->all[i].base, m->all[i].bytes);
    m->n = n;
    pthread_mutex_unlock(&m->lock);
}
