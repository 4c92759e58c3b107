/* share.c - the members of a host share their memory.
 *
 * The leader (the first member of the host) makes the page. Over a Unix socket every other member
 * sends it a JOIN with the memfd of its arena. After all have arrived, the leader answers with a
 * PART for the page and one for every other arena, each with its memfd. Each member maps all of
 * them. The sockets are already authenticated; sizes are checked nevertheless, because an access
 * beyond the end of a file kills the process.
 *
 *   tether   Each member passes one end of a socket pair along with its arena, and keeps the other
 *            end. The kernel closes the descriptors of a process only after its threads have left
 *            its memory. So
 *              - when this member's end is closed, the others see it on their end: this member has
 *                died (life.c)
 *              - when all of the others have closed their end, this member sees it: no process can
 *                write into its arena any more (comm_close_quiet())
 *            A member closes its copies of the others' ends when it closes the communicator, or
 *            when that has failed and none of its threads is in a call. The mappings are kept: the
 *            next generation mostly has the same members. */
#include "comm/comm_priv.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/errno_text.h"
#include "base/fault.h"
#include "comm/maps.h"
#include "device/device.h"

static bool is_leader(const struct comm *c)
{
    return c->topo.leader_of[c->host] == c->self;
}

/* ---- sending ---- */

/* `for_room`: waits until fd accepts more bytes; else waits for a moment. */
static int wait_to_send(struct comm *c, int fd, bool for_room, uint64_t deadline_ns,
                        struct err *err)
{
    uint64_t now = clock_ns();
    struct pollfd p[2] = { { .fd = c->watch.wake_fd, .events = POLLIN },
                           { .fd = fd, .events = POLLOUT } };

    if (now >= deadline_ns)
        return err_set(err, ERR_TIMEOUT,
                       "it did not receive the shared memory before the deadline");
    (void)poll(p, for_room ? 2 : 1, for_room ? (int)((deadline_ns - now) / 1000000 + 1) : 1);
    return comm_has_failed(c) ? -1 : 0;
}

/* The peer has ended; it may have sent the reason. */
static int cannot_send(struct comm *c, struct comm_life *life, int why)
{
    life_read(c, life);
    return comm_fail(c, ERR_PEER, life->member, "%s died (cannot pass it memory: %s)",
                     c->names[life->member], errno_text(why));
}

/* Sends a message with one or two (passed[1] >= 0) descriptors. */
static int send_share(struct comm *c, struct comm_life *life, const struct life_message *m,
                      const int passed[2], uint64_t deadline_ns, struct err *err)
{
    size_t n_passed = passed[1] >= 0 ? 2 : 1;
    uint8_t bytes[MESSAGE_LIFE_BYTES];

    message_life_write(m, bytes);
    (void)fault_hit("comm.share"); /* a test kills the process here */
    for (size_t done = 0; done < sizeof(bytes);) {
        union {
            struct cmsghdr align;
            char bytes[CMSG_SPACE(2 * sizeof(int))];
        } control = { .bytes = { 0 } };
        struct iovec iov = { bytes + done, sizeof(bytes) - done };
        struct msghdr h = { .msg_iov = &iov, .msg_iovlen = 1 };
        ssize_t n;

        if (done == 0) { /* the descriptors are sent with the first byte */
            h.msg_control = control.bytes;
            h.msg_controllen = CMSG_SPACE(n_passed * sizeof(int));
            CMSG_FIRSTHDR(&h)->cmsg_level = SOL_SOCKET;
            CMSG_FIRSTHDR(&h)->cmsg_type = SCM_RIGHTS;
            CMSG_FIRSTHDR(&h)->cmsg_len = CMSG_LEN(n_passed * sizeof(int));
            memcpy(CMSG_DATA(CMSG_FIRSTHDR(&h)), passed, n_passed * sizeof(int));
        }
        n = sendmsg(life->fd, &h, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0)
            done += (size_t)n;
        else if (n < 0 && errno != EAGAIN && errno != EINTR && errno != ETOOMANYREFS)
            return cannot_send(c, life, errno);
        /* ETOOMANYREFS: the limit of descriptors in transit per user; some will arrive */
        else if (wait_to_send(c, life->fd, errno != ETOOMANYREFS, deadline_ns, err) < 0)
            return comm_has_failed(c)
                       ? -1
                       : err_wrap(err, ERR_TIMEOUT, "share memory with %s", c->names[life->member]);
    }
    return 0;
}

/* ---- receiving ---- */

/* The affinity of the whole process, because the calling thread may be pinned. */
static void own_cores(uint8_t out[COMM_CORES_BYTES])
{
    cpu_set_t set;

    memset(out, 0, COMM_CORES_BYTES);
    if (sched_getaffinity(getpid(), sizeof(set), &set) == 0)
        memcpy(out, &set, sizeof(set) < COMM_CORES_BYTES ? sizeof(set) : COMM_CORES_BYTES);
}

static void decide_spin(struct comm_host *h)
{
    uint32_t n = 0;

    for (int i = 0; i < COMM_CORES_BYTES; i++)
        n += (uint32_t)__builtin_popcount(h->cores[i]);
    h->page->spin = h->n_ranks <= n;
}

/* shared: other processes will map the page. */
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
    page_init(c->shm.page, c->shm.n_slots);
    return 0;
}

static int map_member(struct comm *c, struct comm_life *l, uint32_t member,
                      const struct life_message *m, struct err *err)
{
    void *base;
    int rc;

    if (member >= c->topo.n_members || c->topo.host_of[member] != c->host ||
        c->shm.memory[member].bytes != 0 || l->passed[0] < 0 || l->passed[1] < 0)
        return err_set(err, ERR_PEER, "it passed the memory of member %u, which was not expected",
                       member);
    rc = maps_acquire(listener_maps(c->opts.listener), l->passed[0], (size_t)m->bytes, &base, err);
    if (rc < 0)
        return rc;
    c->shm.memory[member] =
        (struct comm_memory){ .base = base, .bytes = (size_t)m->bytes, .is_mapped = true };
    c->shm.n_mapped++;
    life_add(c, l->passed[1], member, LIFE_TETHER);
    l->passed[1] = -1;
    if (c->shm.memory_fds != NULL) {
        c->shm.memory_fds[member] = l->passed[0];
        l->passed[0] = -1;
    }
    return 0;
}

static int map_page(struct comm *c, struct comm_life *l, const struct life_message *m,
                    struct err *err)
{
    void *p;
    int rc;

    if (c->shm.page != NULL || l->passed[0] < 0 || m->bytes < page_bytes(c->shm.n_slots))
        return err_set(err, ERR_PEER,
                       "it passed a page of %llu bytes, expected one page of at least %zu",
                       (unsigned long long)m->bytes, page_bytes(c->shm.n_slots));
    rc = maps_acquire(listener_maps(c->opts.listener), l->passed[0], (size_t)m->bytes, &p, err);
    if (rc < 0)
        return rc;
    rc = page_check(p, c->shm.n_slots, err);
    if (rc < 0) { /* this process does not write to it */
        maps_release(listener_maps(c->opts.listener), p);
        return rc;
    }
    c->shm.page = p;
    c->shm.page_bytes = (size_t)m->bytes;
    c->shm.page_is_mapped = true;
    return 0;
}

/* Handles a JOIN or PART that was received, with the descriptors l->passed. */
static int receive_share(struct comm *c, struct comm_life *l, const struct life_message *m,
                         struct err *err)
{
    int rc;

    if ((m->what == LIFE_JOIN) != is_leader(c))
        return err_set(err, ERR_PEER, "it expects another leader of this host");
    if (m->what == LIFE_JOIN) {
        for (size_t i = 0; i < sizeof(m->cores); i++)
            c->shm.cores[i] |= m->cores[i];
        return map_member(c, l, l->member, m, err);
    }
    rc = m->member == LIFE_PAGE ? map_page(c, l, m, err) : map_member(c, l, m->member, m, err);
    if (rc == 0 && c->shm.page != NULL && c->shm.n_mapped == c->shm.n_others) {
        c->shm.is_shared = true;
        close(l->fd); /* the tethers show the liveness from now on */
        l->fd = -1;
    }
    return rc;
}

/* ---- sending what is due ---- */

static struct comm_life *find_life(struct comm *c, enum life_kind kind, uint32_t member)
{
    for (uint32_t i = 0; i < c->watch.n_lives; i++)
        if (c->watch.lives[i].kind == kind && c->watch.lives[i].member == member)
            return &c->watch.lives[i];
    CHECK(!"a life of every member of this host");
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static int send_parts(struct comm *c, struct comm_life *life, uint64_t deadline_ns, struct err *err)
{
    struct life_message m = { .what = LIFE_PART,
                              .member = LIFE_PAGE,
                              .bytes = c->shm.page_bytes };
    int fds[2] = { c->shm.page_fd, -1 };
    int rc = send_share(c, life, &m, fds, deadline_ns, err);

    for (uint32_t k = 0; k < c->topo.n_members && rc == 0; k++) {
        if (c->topo.host_of[k] != c->host || k == life->member)
            continue;
        m.member = k;
        m.bytes = c->shm.memory[k].bytes;
        fds[0] = k == c->self ? c->opts.arena->fd : c->shm.memory_fds[k];
        fds[1] = k == c->self ? c->shm.passed_fd : find_life(c, LIFE_TETHER, k)->fd;
        rc = send_share(c, life, &m, fds, deadline_ns, err);
    }
    return rc;
}

static int lead(struct comm *c, uint64_t deadline_ns, struct err *err)
{
    uint32_t n = c->watch.n_lives;
    int rc = 0;

    if (c->shm.n_mapped < c->shm.n_others)
        return 0;
    decide_spin(&c->shm);
    for (uint32_t i = 0; i < n && rc == 0; i++)
        if (c->watch.lives[i].kind == LIFE_STAR) {
            rc = send_parts(c, &c->watch.lives[i], deadline_ns, err);
            if (rc == 0) /* the tether shows the liveness from now on */
                close_fd(&c->watch.lives[i].fd);
        }
    if (rc < 0)
        return rc;
    for (uint32_t m = 0; m < c->topo.n_members; m++)
        close_fd(&c->shm.memory_fds[m]);
    close_fd(&c->shm.passed_fd);
    c->shm.is_shared = true;
    return 0;
}

static int follow(struct comm *c, uint64_t deadline_ns, struct err *err)
{
    struct comm_life *life = find_life(c, LIFE_STAR, c->topo.leader_of[c->host]);
    struct life_message m = { .what = LIFE_JOIN, .member = c->self, .bytes = c->opts.arena->bytes };
    int fds[2] = { c->opts.arena->fd, c->shm.passed_fd }, rc;

    if (c->shm.has_joined || life->fd < 0)
        return 0;
    memcpy(m.cores, c->shm.cores, sizeof(m.cores));
    rc = send_share(c, life, &m, fds, deadline_ns, err);
    if (rc < 0)
        return rc;
    close_fd(&c->shm.passed_fd);
    c->shm.has_joined = true;
    return 0;
}

int host_advance(struct comm *c, uint64_t deadline_ns, struct err *err)
{
    if (c->shm.is_shared)
        return 0;
    return is_leader(c) ? lead(c, deadline_ns, err) : follow(c, deadline_ns, err);
}

/* ---- opening and closing ---- */

static int make_tether(struct comm *c, struct err *err)
{
    int ends[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) < 0)
        return err_sys(err, errno, "make a tether for the other members of this host");
    c->shm.tether_fd = ends[0];
    c->shm.passed_fd = ends[1];
    return 0;
}

int host_open(struct comm *c, struct err *err)
{
    const struct device_mem *arena = c->opts.arena;
    struct comm_host *h = &c->shm;
    int rc;

    c->watch.receive_share = receive_share;
    for (uint32_t m = 0; m < c->topo.n_members; m++)
        h->n_others += m != c->self && c->topo.host_of[m] == c->host;
    own_cores(h->cores);
    if (h->n_others == 0) { /* threads of one process: all use the same addresses */
        h->memory[c->self] = (struct comm_memory){ .base = NULL, .bytes = SIZE_MAX };
        rc = make_page(c, false, err);
        if (rc < 0)
            return rc;
        decide_spin(h);
        h->is_shared = true;
        return 0;
    }
    CHECK(arena != NULL && arena->base != NULL && arena->fd >= 0);
    h->memory[c->self] = (struct comm_memory){ .base = arena->base, .bytes = arena->bytes };
    rc = make_tether(c, err);
    if (rc < 0 || !is_leader(c))
        return rc;
    h->memory_fds = malloc(c->topo.n_members * sizeof(*h->memory_fds));
    if (h->memory_fds == NULL)
        return err_set(err, ERR_NOMEM, "share memory: out of memory");
    for (uint32_t m = 0; m < c->topo.n_members; m++)
        h->memory_fds[m] = -1;
    return make_page(c, true, err);
}

void host_close(struct comm *c)
{
    struct comm_host *h = &c->shm;

    for (uint32_t m = 0; h->memory != NULL && m < c->topo.n_members; m++)
        if (h->memory[m].is_mapped)
            maps_release(listener_maps(c->opts.listener), h->memory[m].base);
    for (uint32_t m = 0; h->memory_fds != NULL && m < c->topo.n_members; m++)
        close_fd(&h->memory_fds[m]);
    if (h->page != NULL && h->page_is_mapped)
        maps_release(listener_maps(c->opts.listener), h->page);
    else if (h->page != NULL)
        munmap(h->page, h->page_bytes);
    close_fd(&h->page_fd);
    close_fd(&h->passed_fd);
    free(h->memory_fds);
    free(h->memory);
    free(h->slot_of);
    *h = (struct comm_host){ .page_fd = -1, .passed_fd = -1, .tether_fd = h->tether_fd };
}
