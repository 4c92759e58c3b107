/* life.c - liveness of the members, and how a member learns about a failure of another (fail.c).
 *
 * Two members that share links, channels or a host have a life line: a connection that carries a life
 * message (message.h) at its end, BYE or OVER, and before it only offers of spare lanes (spared.c). If the connection ends without a message, the peer
 * has died. A watcher thread sleeps on all life lines. The kernel wakes it as soon as the process
 * of a peer has ended, even if all replica threads are busy. OVER names the culprit and the reason,
 * so every member reports the root cause, and not the member that forwarded it.
 *
 * Inside a host, the life line of a member is its tether (share.c): one connection whose other end
 * all other members hold. They peek at its one message without removing it, so that all of them
 * receive it. While the members connect, the connecting thread does the work of the watcher. */
#include "comm/comm_priv.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/errno_text.h"
#include "base/thread.h"
#include "comm/maps.h"

/* ---- lives ---- */

void life_add(struct comm *c, int fd, uint32_t member, enum life_kind kind)
{
    CHECK(c->watch.n_lives < 2 * c->topo.n_members);
    c->watch.lives[c->watch.n_lives].fd = fd;
    c->watch.lives[c->watch.n_lives].member = member;
    c->watch.lives[c->watch.n_lives].kind = kind;
    c->watch.lives[c->watch.n_lives].passed[0] = c->watch.lives[c->watch.n_lives].passed[1] = -1;
    c->watch.n_lives++;
}

static void drop_passed(struct comm_life *l)
{
    for (int i = 0; i < 2; i++) {
        if (l->passed[i] >= 0)
            close(l->passed[i]);
        l->passed[i] = -1;
    }
}

void life_close(struct comm_life *l)
{
    if (l->fd >= 0)
        close(l->fd);
    l->fd = -1;
    drop_passed(l);
}

static size_t life_bytes(const struct comm_life *l)
{
    return MESSAGE_LIFE_BYTES + (l->has_code ? MESSAGE_CODE_BYTES : 0);
}

static bool has_valid_code(const struct comm_life *l)
{
    uint8_t code[MESSAGE_CODE_BYTES];

    message_life_code(l->in, l->member, l->key, code);
    return digest_equal(code, l->in + MESSAGE_LIFE_BYTES);
}

/* Handles the complete message in l->in. */
static void handle_message(struct comm *c, struct comm_life *l)
{
    const char *name = c->names[l->member];
    struct life_message m;
    struct err err;
    bool shares;

    l->n_in = 0;
    if (l->has_code && !has_valid_code(l)) {
        l->is_over = true;
        comm_fail(
            c, ERR_PEER, l->member,
            "%s sent a life message with an invalid code: it is not authentic, or was changed on its way",
            name);
        return;
    }
    if (message_life_read(l->in, l->member, c->topo.n_members, &m, &err) < 0) {
        l->is_over = true;
        comm_fail(c, ERR_PEER, l->member, "%s sent an invalid life message: %s", name, err.text);
        return;
    }
    shares = m.what == LIFE_JOIN || m.what == LIFE_PART;
    if (shares && l->kind == LIFE_STAR) {
        int rc = c->watch.receive_share(c, l, &m, &err);

        if (rc < 0)
            comm_fail(c, rc, rc == ERR_PEER ? l->member : c->self, "share memory with %s: %s", name,
                      err.text);
        drop_passed(l);
        return;
    }
    if (m.what == LIFE_OFFER && l->kind == LIFE_LINE) {
        l->is_over = spared_receive_offer(c, l->member, m.bytes) < 0;
        return;
    }
    l->is_over = true;
    if (m.what == LIFE_OFFER)
        comm_fail(c, ERR_PEER, l->member, "%s offered lanes on a connection of another kind", name);
    else if (shares)
        comm_fail(c, ERR_PEER, l->member, "%s passed memory on a connection of another kind", name);
    else if (m.what == LIFE_BYE)
        atomic_store(&l->left, true);
    else
        comm_fail(c, ERR_PEER, m.member != COMM_NO_MEMBER ? m.member : l->member, "%s", m.why);
}

/* Like recv(); keeps the descriptors that arrive with the bytes. */
static ssize_t life_recv(struct comm_life *l)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(l->passed))];
    } control;
    struct iovec iov = { l->in + l->n_in, life_bytes(l) - l->n_in };
    struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };
    ssize_t n;

    if (l->kind != LIFE_STAR) /* other members must also receive the message of a tether */
        return recv(l->fd, iov.iov_base, iov.iov_len,
                    MSG_DONTWAIT | (l->kind == LIFE_TETHER ? MSG_PEEK : 0));
    m.msg_control = control.bytes;
    m.msg_controllen = sizeof(control.bytes);
    n = recvmsg(l->fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    for (struct cmsghdr *h = n > 0 ? CMSG_FIRSTHDR(&m) : NULL; h != NULL; h = CMSG_NXTHDR(&m, h))
        if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS) {
            drop_passed(l);
            memcpy(l->passed, CMSG_DATA(h), h->cmsg_len - CMSG_LEN(0));
        }
    return n;
}

void life_read(struct comm *c, struct comm_life *l)
{
    while (!l->is_over && l->fd >= 0) {
        ssize_t n = life_recv(l);

        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0) {

            l->is_over = true;
            if (n < 0 && comm_is_path_dead(errno))
                (void)comm_path_lost(c, l->member);
            else
                comm_fail(c, ERR_PEER, l->member, "%s died (%s)", c->names[l->member],
                          n == 0 ? "its connection closed without a BYE message"
                                 : errno_text(errno));
            return;
        }
        l->n_in += (size_t)n;
        if (l->n_in == life_bytes(l))
            handle_message(c, l);
    }
}

uint32_t life_polls(const struct comm *c, struct pollfd *out)
{
    out[0] = (struct pollfd){ .fd = c->watch.wake_fd, .events = POLLIN };
    for (uint32_t i = 0; i < c->watch.n_lives; i++)
        out[i + 1] = (struct pollfd){ .fd = c->watch.lives[i].is_over ? -1 : c->watch.lives[i].fd,
                                      .events = POLLIN | POLLRDHUP };
    return c->watch.n_lives + 1;
}

void life_advance(struct comm *c, const struct pollfd *polls, uint32_t n)
{
    uint64_t count;

    if (polls[0].revents != 0)
        (void)!read(c->watch.wake_fd, &count, sizeof(count));
    for (uint32_t i = 1; i < n; i++)
        if (polls[i].revents != 0)
            life_read(c, &c->watch.lives[i - 1]);
}

void comm_close_tethers(struct comm *c)
{
    for (uint32_t i = 0; i < c->watch.n_lives; i++)
        if (c->watch.lives[i].kind == LIFE_TETHER)
            life_close(&c->watch.lives[i]);
}

/* ---- the watcher ---- */

static void report_broken(struct comm *c)
{
    char why[COMM_WHY_BYTES];
    struct comm_loss loss;
    bool due;

    pthread_mutex_lock(&c->failure.lock);
    due = c->failure.report_due;
    c->failure.report_due = false;
    loss = c->failure.loss;
    memcpy(why, c->failure.why, sizeof(why));
    pthread_mutex_unlock(&c->failure.lock);
    if (due && c->owner.on_broken != NULL)
        c->owner.on_broken(c->owner.arg, &loss, why);
}

/* `inside` is set before a call reads `failed`, and `failed` is set before this read: at least one
 * of the two threads sees the other. */
static bool is_inside(struct comm *c)
{
    bool inside = false;

    for (uint32_t i = 0; i < c->n_ranks; i++)
        inside |= atomic_load(&c->ranks[i].inside);
    return inside;
}

static void *watcher(void *arg)
{
    struct comm *c = arg;

    /* unmaps the arenas of members that have left; no call waits for this thread */
    maps_prune(listener_maps(c->opts.listener), 0);
    while (!atomic_load(&c->watch.stop)) {
        uint32_t n = life_polls(c, c->watch.polls);

        if (poll(c->watch.polls, n, -1) < 0) /* EINTR: retry */
            continue;
        life_advance(c, c->watch.polls, n);
        if (comm_has_failed(c) && !is_inside(c))
            comm_close_tethers(c);
        report_broken(c);
    }
    report_broken(c); /* a failure right before the end */
    return NULL;
}

int comm_watch(struct comm *c, struct err *err)
{
    int rc;

    if (c->watch.n_lives == 0)
        return 0;
    rc = thread_start(&c->watch.thread, "watches the peers", watcher, c, err);
    c->watch.has_thread = rc == 0;
    return rc;
}

void comm_unwatch(struct comm *c, bool goodbye)
{
    if (goodbye && !comm_has_failed(c))
        comm_send_lives(c, LIFE_BYE, c->self, "");
    atomic_store(&c->watch.stop, true);
    comm_wake(c);
    if (c->watch.has_thread)
        pthread_join(c->watch.thread, NULL);
    c->watch.has_thread = false;
}
