#include "comm/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/copy.h"
#include "base/err.h"
#include "base/fault.h"

_Static_assert(offsetof(struct ring_page, reader_wants) == 8, "layout in ring.h");
_Static_assert(offsetof(struct ring_page, read) == 64, "layout in ring.h");
_Static_assert(offsetof(struct ring_page, writer_wants) == 72, "layout in ring.h");
_Static_assert(offsetof(struct ring_page, bytes) == 4096, "layout in ring.h");
_Static_assert(RING_BYTES % 4096 == 0, "the page has no rest");

/* The kernel ends a process that reads beyond the end of a file: no process may make it smaller. */
enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

static int map_page(struct ring *out, int fd, bool is_writer, struct err *err)
{
    void *page = fault_hit("comm.map")
                     ? (errno = ENOMEM, MAP_FAILED)
                     : mmap(NULL, sizeof(*out->page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (page == MAP_FAILED)
        return err_sys(err, errno, "map %zu bytes of a channel", sizeof(*out->page));
    *out = (struct ring){ .page = page, .is_writer = is_writer };
    return 0;
}

int ring_make(struct ring *out, int *fd, struct err *err)
{
    int made = memfd_create("trainerd-channel", MFD_CLOEXEC | MFD_ALLOW_SEALING), rc;

    if (made < 0)
        return err_sys(err, errno, "make the shared memory of a channel");
    if (ftruncate(made, sizeof(*out->page)) < 0 || fcntl(made, F_ADD_SEALS, SEALS) < 0)
        rc = err_sys(err, errno, "make the shared memory of a channel");
    else
        rc = map_page(out, made, true, err);
    if (rc < 0)
        close(made);
    else
        *fd = made;
    return rc;
}

int ring_map(int fd, struct ring *out, struct err *err)
{
    int seals = fcntl(fd, F_GET_SEALS);
    struct stat st;

    if (fstat(fd, &st) < 0)
        return err_sys(err, errno, "read the size of passed memory");
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || st.st_size != (off_t)sizeof(*out->page))
        return err_set(
            err, ERR_PEER,
            "it passed memory of %lld bytes that is not a ring of %zu bytes and a constant size",
            (long long)st.st_size, sizeof(*out->page));
    return map_page(out, fd, false, err);
}

void ring_close(struct ring *r)
{
    if (r->page != NULL)
        munmap(r->page, sizeof(*r->page));
    *r = (struct ring){ 0 };
}

/* Reads the counter of the other end. Returns the bytes that can be copied; -1: the counter is invalid. */
static ssize_t look(struct ring *r)
{
    uint64_t seen = atomic_load(r->is_writer ? &r->page->read : &r->page->written);
    uint64_t full = r->is_writer ? r->own - seen : seen - r->own; /* bytes in the ring */

    if (seen < r->other || full > RING_BYTES)
        return -1;
    r->other = seen;
    return (ssize_t)(r->is_writer ? RING_BYTES - full : full);
}

/* Returns how many of n bytes can be copied from *at of the ring on, *first of them before its end; as look(). */
static ssize_t begin(struct ring *r, size_t n, size_t *at, size_t *first)
{
    uint64_t full = r->is_writer ? r->own - r->other : r->other - r->own;
    ssize_t room = (ssize_t)(r->is_writer ? RING_BYTES - full : full);

    if ((size_t)room < n)
        room = look(r);
    if (room > 0 && n < (size_t)room)
        room = (ssize_t)n;
    *at = (size_t)(r->own % RING_BYTES);
    *first = room > 0 && (size_t)room > RING_BYTES - *at ? RING_BYTES - *at : (size_t)room;
    return room;
}

ssize_t ring_write(struct ring *r, const void *from, size_t n)
{
    size_t at, first;
    ssize_t room = begin(r, n, &at, &first);

    if (room <= 0)
        return room;
    memcpy(r->page->bytes + at, from, first);
    memcpy(r->page->bytes, (const uint8_t *)from + first, (size_t)room - first);
    r->own += (uint64_t)room;
    return room;
}

static void copy(void *to, const void *from, size_t n, bool is_large)
{
    if (is_large)
        copy_uncached(to, from, n);
    else
        memcpy(to, from, n);
}

ssize_t ring_read(struct ring *r, void *to, size_t n, bool is_large)
{
    size_t at, first;
    ssize_t room = begin(r, n, &at, &first);

    if (room <= 0)
        return room;
    copy(to, r->page->bytes + at, first, is_large);
    copy((uint8_t *)to + first, r->page->bytes, (size_t)room - first, is_large);
    r->own += (uint64_t)room;
    return room;
}

/* Sequentially consistent, as ring_wait(): either this end sees the wish of the other end, or the other end sees
 * the counter. */
bool ring_publish(struct ring *r)
{
    _Atomic uint64_t *wants = r->is_writer ? &r->page->reader_wants : &r->page->writer_wants;
    uint64_t target;

    atomic_store(r->is_writer ? &r->page->written : &r->page->read, r->own);
    target = atomic_load(wants);
    return target != 0 && r->own >= target && atomic_exchange(wants, 0) != 0;
}

bool ring_wait(struct ring *r, size_t n)
{
    _Atomic uint64_t *wants = r->is_writer ? &r->page->writer_wants : &r->page->reader_wants;
    ssize_t room = look(r);

    if (room >= 0 && (size_t)room < n) {
        atomic_store(wants, r->own + n - (r->is_writer ? RING_BYTES : 0));
        room = look(r);
    }
    return room < 0 || (size_t)room >= n;
}
