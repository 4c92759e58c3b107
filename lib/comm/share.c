/* share.c - the members of a host give each other their memory.
 *
 * The leader (the host's first member) makes the page. Over the Unix socket that is also the life
 * line, every other member sends it a JOIN with the memfd of its arena; the leader answers with
 * a PART for the page and one for every other arena, each with its memfd. Everybody maps them all.
 * The sockets are authenticated before; sizes are checked nevertheless, because a mapping beyond
 * the end of a file kills whoever touches it. */
#include "comm/comm_priv.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "device/device.h"

enum { LOOK_MS = 20, THE_PAGE = UINT32_MAX };

/* JOIN and PART. */
struct share {
    uint32_t member; /* whose memory; THE_PAGE */
    uint32_t zero;
    uint64_t bytes;
    uint8_t cores[128]; /* JOIN: the cores that the member may use, a bit each */
};

struct waiting {
    uint64_t deadline_ns;
    const volatile int *cancel;
};

static int wait_fd(int fd, short events, const struct waiting *w, struct err *err)
{
    for (;;) {
        struct pollfd p = { .fd = fd, .events = events };

        if (w->cancel != NULL && __atomic_load_n(w->cancel, __ATOMIC_RELAXED) != 0)
            return err_set(err, ERR_CANCELED, "canceled");
        if (clock_ns() >= w->deadline_ns)
            return err_set(err, ERR_TIMEOUT, "no answer before the deadline");
        if (poll(&p, 1, LOOK_MS) > 0)
            return 0;
    }
}

union control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int))];
};

static int send_share(int fd, const struct share *s, int passed, const struct waiting *w,
                      struct err *err)
{
    for (size_t done = 0; done < sizeof(*s);) {
        struct iovec iov = { (uint8_t *)s + done, sizeof(*s) - done };
        union control control = { .bytes = { 0 } };
        struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };
        ssize_t n;

        if (done == 0) { /* the fd goes with the first byte */
            m.msg_control = control.bytes;
            m.msg_controllen = sizeof(control.bytes);
            CMSG_FIRSTHDR(&m)->cmsg_level = SOL_SOCKET;
            CMSG_FIRSTHDR(&m)->cmsg_type = SCM_RIGHTS;
            CMSG_FIRSTHDR(&m)->cmsg_len = CMSG_LEN(sizeof(int));
            memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m)), &passed, sizeof(int));
        }
        n = sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0)
            done += (size_t)n;
        else if (n < 0 && errno != EAGAIN && errno != EINTR)
            return err_set(err, ERR_PEER, "cannot pass memory: %s", strerror(errno));
        else if (wait_fd(fd, POLLOUT, w, err) < 0)
            return err != NULL ? err->code : ERR_TIMEOUT;
    }
    return 0;
}

/* The passed descriptor of a message that has one, else -1. */
static int passed_fd(struct msghdr *m)
{
    int fd = -1;

    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c != NULL; c = CMSG_NXTHDR(m, c))
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
            c->cmsg_len == CMSG_LEN(sizeof(int)))
            memcpy(&fd, CMSG_DATA(c), sizeof(int));
    return fd;
}

/* On success *passed is the caller's. */
static int recv_share(int fd, struct share *s, int *passed, const struct waiting *w,
                      struct err *err)
{
    int got = -1, rc = 0;

    for (size_t done = 0; done < sizeof(*s) && rc == 0;) {
        struct iovec iov = { (uint8_t *)s + done, sizeof(*s) - done };
        union control control = { .bytes = { 0 } };
        struct msghdr m = { .msg_iov = &iov,
                            .msg_iovlen = 1,
                            .msg_control = control.bytes,
                            .msg_controllen = sizeof(control.bytes) };
        ssize_t n = recvmsg(fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

        if (n > 0) {
            if (got < 0)
                got = passed_fd(&m);
            done += (size_t)n;
        } else if (n == 0) {
            rc = err_set(err, ERR_PEER, "it closed the connection");
        } else if (errno != EAGAIN && errno != EINTR) {
            rc = err_set(err, ERR_PEER, "%s", strerror(errno));
        } else {
            rc = wait_fd(fd, POLLIN, w, err);
        }
    }
    if (rc == 0 && (got < 0 || s->zero != 0))
        rc = err_set(err, ERR_PEER, "it gave up");
    if (rc == 0)
        *passed = got;
    else if (got >= 0)
        close(got);
    return rc;
}

static int map(int fd, size_t bytes, void **out, struct err *err)
{
    struct stat st;
    void *p;

    if (fstat(fd, &st) < 0)
        return err_sys(err, errno, "look at passed memory");
    if (bytes == 0 || bytes > PTRDIFF_MAX || (uint64_t)st.st_size < bytes)
        return err_set(err, ERR_PEER, "passed memory has %lld bytes, expected %zu",
                       (long long)st.st_size, bytes);
    p = fault_hit("comm.map") ? (errno = ENOMEM, MAP_FAILED)
                              : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return err_sys(err, errno, "map %zu bytes of shared memory", bytes);
    (void)madvise(p, bytes, MADV_HUGEPAGE); /* faster where the kernel can */
    *out = p;
    return 0;
}

static int map_member(struct comm *c, const struct share *s, int fd, struct err *err)
{
    struct comm_memory *m;
    void *base;
    int rc;

    if (s->member >= c->topo.n_members || c->topo.host_of[s->member] != c->host ||
        c->shm.memory[s->member].bytes != 0)
        return err_set(err, ERR_PEER,
                       "passed the memory of member %u, which is not one of its host", s->member);
    m = &c->shm.memory[s->member];
    rc = map(fd, (size_t)s->bytes, &base, err);
    if (rc < 0)
        return rc;
    *m = (struct comm_memory){ .base = base, .bytes = (size_t)s->bytes, .is_mapped = true };
    return 0;
}

static size_t page_bytes(uint32_t n_slots)
{
    return sizeof(struct host_page) +
           n_slots * (sizeof(struct host_slot) + (size_t)2 * COMM_SMALL_BYTES);
}

/* The affinity of the whole process, not of a pinned thread that may be calling. */
static void own_cores(uint8_t out[128])
{
    cpu_set_t set;

    memset(out, 0, 128);
    if (sched_getaffinity(getpid(), sizeof(set), &set) == 0)
        memcpy(out, &set, sizeof(set) < 128 ? sizeof(set) : 128);
}

static void decide_spin(struct host_page *page, const uint8_t cores[128])
{
    uint32_t n = 0;

    for (int i = 0; i < 128; i++)
        n += (uint32_t)__builtin_popcount(cores[i]);
    page->spin = page->n_slots <= n;
}

/* Shared if other processes are to map it. */
static int make_page(struct comm *c, bool shared, struct err *err)
{
    struct device_mem mem;
    int rc;

    if (fault_hit("comm.map"))
        return err_set(err, ERR_NOMEM, "map the host's page: out of memory");
    rc = device_mem_open(&mem, page_bytes(c->shm.n_slots), shared, err);
    if (rc < 0)
        return rc;
    c->shm.page = mem.base;
    c->shm.page_bytes = mem.bytes;
    c->shm.page_fd = mem.fd;
    c->shm.page->magic = PAGE_MAGIC;
    c->shm.page->n_slots = c->shm.n_slots;
    return 0;
}

static int take_page(struct comm *c, const struct share *s, int fd, struct err *err)
{
    void *p;
    int rc;

    if (s->member != THE_PAGE || s->bytes < page_bytes(c->shm.n_slots))
        return err_set(err, ERR_PEER,
                       "the leader of this host passed something that is not its page");
    rc = map(fd, (size_t)s->bytes, &p, err);
    if (rc < 0)
        return rc;
    c->shm.page = p;
    c->shm.page_bytes = (size_t)s->bytes;
    if (c->shm.page->magic != PAGE_MAGIC || c->shm.page->n_slots != c->shm.n_slots)
        return err_set(err, ERR_PEER,
                       "the leader of this host passed a page for %u ranks, expected %u",
                       c->shm.page->n_slots, c->shm.n_slots);
    return 0;
}

/* Runs `take` on what the life line brings next. */
static int receive(struct comm *c, const struct comm_life *life,
                   int (*take)(struct comm *, const struct share *, int, struct err *),
                   struct share *s, int *keep, const struct waiting *w, struct err *err)
{
    int fd = -1, rc = recv_share(life->fd, s, &fd, w, err);

    if (rc == 0) {
        rc = take(c, s, fd, err);
        if (rc == 0 && keep != NULL)
            *keep = fd;
        else
            close(fd);
    }
    return rc < 0 ? err_wrap(err, rc, "share memory with %s", c->names[life->member]) : 0;
}

static int lead(struct comm *c, const struct device_mem *arena, const struct waiting *w,
                struct err *err)
{
    uint8_t cores[128];
    int *fds = malloc(c->topo.n_members * sizeof(*fds)), rc;

    if (fds == NULL)
        return err_set(err, ERR_NOMEM, "share memory: out of memory");
    for (uint32_t m = 0; m < c->topo.n_members; m++)
        fds[m] = -1;
    own_cores(cores);
    rc = make_page(c, true, err);
    for (uint32_t i = 0; i < c->n_lives && rc == 0; i++) {
        struct share s;

        if (!c->lives[i].is_host)
            continue;
        rc = receive(c, &c->lives[i], map_member, &s, &fds[c->lives[i].member], w, err);
        for (size_t k = 0; k < sizeof(cores) && rc == 0; k++)
            cores[k] |= s.cores[k];
    }
    if (rc == 0)
        decide_spin(c->shm.page, cores);
    for (uint32_t i = 0; i < c->n_lives && rc == 0; i++) {
        const struct comm_life *life = &c->lives[i];
        struct share s = { .member = THE_PAGE, .bytes = c->shm.page_bytes };

        if (!life->is_host)
            continue;
        rc = send_share(life->fd, &s, c->shm.page_fd, w, err);
        for (uint32_t m = 0; m < c->topo.n_members && rc == 0; m++) {
            if (c->topo.host_of[m] != c->host || m == life->member)
                continue;
            s = (struct share){ .member = m, .bytes = c->shm.memory[m].bytes };
            rc = send_share(life->fd, &s, m == c->self ? arena->fd : fds[m], w, err);
        }
        if (rc < 0)
            err_wrap(err, rc, "share memory with %s", c->names[life->member]);
    }
    for (uint32_t m = 0; m < c->topo.n_members; m++)
        if (fds[m] >= 0)
            close(fds[m]);
    free(fds);
    return rc;
}

static int follow(struct comm *c, const struct device_mem *arena, const struct waiting *w,
                  struct err *err)
{
    struct share s = { .member = c->self, .bytes = arena->bytes };
    const struct comm_life *life = c->lives;
    int rc;

    while (!life->is_host) /* there is exactly one: to the leader */
        life++;
    own_cores(s.cores);
    rc = send_share(life->fd, &s, arena->fd, w, err);
    if (rc < 0)
        return err_wrap(err, rc, "share memory with %s", c->names[life->member]);
    rc = receive(c, life, take_page, &s, NULL, w, err);
    for (uint32_t m = 0; m < c->topo.n_members && rc == 0; m++)
        if (c->topo.host_of[m] == c->host && m != c->self)
            rc = receive(c, life, map_member, &s, NULL, w, err);
    return rc;
}

int host_open(struct comm *c, const struct device_mem *arena, uint64_t deadline_ns,
              const volatile int *cancel, struct err *err)
{
    struct waiting w = { deadline_ns, cancel };
    uint32_t others = 0;
    uint8_t cores[128];
    int rc;

    for (uint32_t m = 0; m < c->topo.n_members; m++)
        others += m != c->self && c->topo.host_of[m] == c->host;
    if (others == 0) { /* threads of one process: addresses mean the same to all */
        c->shm.memory[c->self] = (struct comm_memory){ .base = NULL, .bytes = SIZE_MAX };
        rc = make_page(c, false, err);
        if (rc < 0)
            return rc;
        own_cores(cores);
        decide_spin(c->shm.page, cores);
        return 0;
    }
    CHECK(arena != NULL && arena->base != NULL && arena->fd >= 0);
    c->shm.memory[c->self] = (struct comm_memory){ .base = arena->base, .bytes = arena->bytes };
    return c->topo.leader_of[c->host] == c->self ? lead(c, arena, &w, err)
                                                 : follow(c, arena, &w, err);
}

void host_close(struct comm *c)
{
    for (uint32_t m = 0; c->shm.memory != NULL && m < c->topo.n_members; m++)
        if (c->shm.memory[m].is_mapped)
            munmap(c->shm.memory[m].base, c->shm.memory[m].bytes);
    if (c->shm.page != NULL)
        munmap(c->shm.page, c->shm.page_bytes);
    if (c->shm.page_fd >= 0)
        close(c->shm.page_fd);
    free(c->shm.memory);
    free(c->shm.slot_of);
    c->shm = (struct comm_host){ .page_fd = -1 };
}
