/* life.c - liveness of the members, and how all members learn about a failure.
 *
 * Two members that share links or a host have a life line: a connection that carries only one life
 * message (message.h) at its end, BYE or OVER. If the connection ends without a message, the peer
 * has died. A watcher thread sleeps on all life lines. The kernel wakes it as soon as the process
 * of a peer has ended, even if all replica threads are busy. OVER names the culprit and the reason,
 * so every member reports the root cause, and not the member that forwarded it.
 *
 * Inside a host, the life line of a member is its tether (share.c): one connection whose other end
 * all other members hold. They peek at its one message without removing it, so that all of them
 * receive it. While the members connect, the connecting thread does the work of the watcher. */
#include "comm/comm_priv.h"

#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/err.h"
#include "base/reason.h"
#include "base/thread.h"
#include "comm/maps.h"

/* How long a broken link waits for the life line, which knows the reason: on a busy machine the thread that reads it may
 * be that late. Only a link that breaks by itself waits for so long. */
enum { LIFE_WAIT_MS = 300 };

struct comm_text comm_rank_text(const struct comm *c, uint32_t rank)
{
    struct comm_text w;

    snprintf(w.text, sizeof(w.text), "rank %u (%s)", rank, c->names[c->topo.member_of[rank]]);
    return w;
}

struct comm_text comm_call_text(const struct comm_call *call)
{
    static const char *const names[] = { "all-reduce", "reduce-scatter", "all-gather", "broadcast",
                                         "barrier" };
    static const char *const ops[] = { " (sum)", " (max)", " (or)" };
    const char *name = call->what < COUNT_OF(names) ? names[call->what] : "unknown call";
    struct comm_text w;

    if (call->what == COMM_BARRIER)
        snprintf(w.text, sizeof(w.text), "call %u, %s", call->number, name);
    else if (call->what == COMM_BROADCAST)
        snprintf(w.text, sizeof(w.text), "call %u, %s of %llu bytes from rank %u", call->number,
                 name, (unsigned long long)call->count, call->root);
    else
        snprintf(w.text, sizeof(w.text), "call %u, %s of %llu %s%s", call->number, name,
                 (unsigned long long)call->count, tensor_dtype_name((enum tensor_dtype)call->dtype),
                 call->what == COMM_ALL_GATHER || call->op >= COUNT_OF(ops) ? "" : ops[call->op]);
    return w;
}

bool comm_call_same(const struct comm_call *a, const struct comm_call *b)
{
    return a->number == b->number && a->what == b->what && a->count == b->count &&
           a->dtype == b->dtype && a->op == b->op && a->root == b->root;
}

void comm_wake(struct comm *c)
{
    uint64_t one = 1;

    if (c->wake_fd >= 0)
        (void)!write(c->wake_fd, &one, sizeof(one)); /* full: the thread is awake */
}

static void send_lives(struct comm *c, uint32_t what, uint32_t culprit, const char *why)
{
    struct life_message m = { .what = what, .member = culprit };
    uint8_t bytes[MESSAGE_LIFE_BYTES];

    snprintf(m.why, sizeof(m.why), "%s", why);
    message_life_write(&m, bytes);
    /* the first message on these connections: it fits into the buffer, unless the peer has ended */
    if (c->shm.tether_fd >= 0)
        (void)!send(c->shm.tether_fd, bytes, sizeof(bytes), MSG_NOSIGNAL | MSG_DONTWAIT);
    for (uint32_t i = 0; i < c->n_lives; i++)
        if (c->lives[i].kind != LIFE_TETHER && c->lives[i].fd >= 0)
            (void)!send(c->lives[i].fd, bytes, sizeof(bytes), MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void spread(struct comm *c)
{
    char why[COMM_WHY_BYTES];
    uint32_t culprit;

    pthread_mutex_lock(&c->lock);
    culprit = c->culprit;
    memcpy(why, c->why, sizeof(why));
    pthread_mutex_unlock(&c->lock);
    host_break(c, culprit, why);
    send_lives(c, LIFE_OVER, culprit, why); /* before the links end, which looks like a death */
    tcp_shutdown(c);
}

/* Where the failure was detected. */
enum origin { OURS, SEEN };

static int fail(struct comm *c, enum origin origin, int code, uint32_t culprit, const char *why)
{
    struct comm_loss loss = { 0 };
    bool first, at_once;

    if (origin == SEEN && !comm_has_failed(c)) /* before the links are shut down */
        path_survey(c, &loss);
    pthread_mutex_lock(&c->lock);
    first = c->code == 0;
    at_once = first && !c->is_connecting;
    if (first) {
        c->code = code;
        c->culprit = culprit;
        for (uint32_t i = 0; i < loss.n_dead_paths; i++)
            path_add(&c->loss, loss.dead_paths[i]);
        if (code == ERR_PATH && culprit != COMM_NO_MEMBER && culprit != c->self)
            path_add(&c->loss, culprit);
        c->loss.member = culprit == COMM_NO_MEMBER ? c->self : culprit;
        c->report_due = origin == SEEN && c->is_connected;
        snprintf(c->why, sizeof(c->why), "%s", why);
        atomic_store(&c->failed, 1);
    }
    pthread_mutex_unlock(&c->lock);
    if (!first)
        return -1;
    syscall(SYS_futex, &c->failed, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
    if (at_once)
        spread(c);
    comm_wake(c);
    return -1;
}

bool comm_begin(struct comm *c)
{
    bool failed;

    pthread_mutex_lock(&c->lock);
    c->is_connecting = false;
    failed = c->code != 0;
    c->is_connected = !failed;
    pthread_mutex_unlock(&c->lock);
    if (failed)
        spread(c);
    return !failed;
}

int comm_fail(struct comm *c, int code, uint32_t culprit, const char *fmt, ...)
{
    char why[COMM_WHY_BYTES];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(why, sizeof(why), fmt, ap);
    va_end(ap);
    return fail(c, SEEN, code, culprit, why);
}

void comm_abort(struct comm *c, const char *why)
{
    char text[COMM_WHY_BYTES];

    snprintf(text, sizeof(text), "%s: %s", c->names[c->self], why != NULL ? why : "aborted");
    (void)fail(c, OURS, ERR_CANCELED, c->self, text);
}

bool comm_is_path_dead(int errnum)
{
    return errnum == ETIMEDOUT || errnum == EHOSTUNREACH || errnum == ENETUNREACH;
}

int comm_path_lost(struct comm *c, uint32_t member)
{
    return comm_fail(c, ERR_PATH, member, "%s acknowledges nothing on the data path for %.3g s", c->names[member],
                     (double)COMM_PATH_MS / 1e3);
}

int comm_link_lost(struct comm *c, uint32_t rank, const char *why)
{
    uint32_t member = c->topo.member_of[rank];
    struct timespec slice = { .tv_nsec = 1000000 };
    bool left = false;

    for (int i = 0; i < LIFE_WAIT_MS && !comm_has_failed(c); i++)
        syscall(SYS_futex, &c->failed, FUTEX_WAIT, 0, &slice, NULL, 0);
    for (uint32_t i = 0; i < c->n_lives; i++)
        left |= c->lives[i].member == member && atomic_load(&c->lives[i].left);
    if (left)
        return comm_fail(c, ERR_PEER, member, "%s has left, but is still needed",
                         comm_rank_text(c, rank).text);
    return comm_fail(c, ERR_PEER, member, "lost %s: %s", comm_rank_text(c, rank).text, why);
}

int comm_failure(struct comm *c, struct err *err)
{
    int code;

    pthread_mutex_lock(&c->lock);
    CHECK(c->code != 0);
    code = err_set(err, c->code, "%s", c->why);
    pthread_mutex_unlock(&c->lock);
    return code;
}

/* ---- lives ---- */

void life_add(struct comm *c, int fd, uint32_t member, enum life_kind kind)
{
    CHECK(c->n_lives < 2 * c->topo.n_members);
    c->lives[c->n_lives].fd = fd;
    c->lives[c->n_lives].member = member;
    c->lives[c->n_lives].kind = kind;
    c->lives[c->n_lives].passed[0] = c->lives[c->n_lives].passed[1] = -1;
    c->n_lives++;
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

/* Handles the complete message in l->in. */
static void handle_message(struct comm *c, struct comm_life *l)
{
    const char *name = c->names[l->member];
    struct life_message m;
    struct err err;
    bool shares;

    l->n_in = 0;
    if (message_life_read(l->in, l->member, c->topo.n_members, &m, &err) < 0) {
        l->is_over = true;
        comm_fail(c, ERR_PEER, l->member, "%s sent an invalid life message: %s", name, err.text);
        return;
    }
    shares = m.what == LIFE_JOIN || m.what == LIFE_PART;
    if (shares && l->kind == LIFE_STAR) {
        int rc = host_receive(c, l, &m, &err);

        if (rc < 0)
            comm_fail(c, rc, rc == ERR_PEER ? l->member : c->self, "share memory with %s: %s", name,
                      err.text);
        drop_passed(l);
        return;
    }
    l->is_over = true;
    if (shares)
        comm_fail(c, ERR_PEER, l->member, "%s passed memory on a connection of another kind",
                  name);
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
    struct iovec iov = { l->in + l->n_in, sizeof(l->in) - l->n_in };
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
                                 : reason_text(errno));
            return;
        }
        l->n_in += (size_t)n;
        if (l->n_in == sizeof(l->in))
            handle_message(c, l);
    }
}

uint32_t life_polls(const struct comm *c, struct pollfd *out)
{
    out[0] = (struct pollfd){ .fd = c->wake_fd, .events = POLLIN };
    for (uint32_t i = 0; i < c->n_lives; i++)
        out[i + 1] = (struct pollfd){ .fd = c->lives[i].is_over ? -1 : c->lives[i].fd,
                                      .events = POLLIN | POLLRDHUP };
    return c->n_lives + 1;
}

void life_advance(struct comm *c, const struct pollfd *polls, uint32_t n)
{
    uint64_t count;

    if (polls[0].revents != 0)
        (void)!read(c->wake_fd, &count, sizeof(count));
    for (uint32_t i = 1; i < n; i++)
        if (polls[i].revents != 0)
            life_read(c, &c->lives[i - 1]);
}

void comm_close_tethers(struct comm *c)
{
    for (uint32_t i = 0; i < c->n_lives; i++)
        if (c->lives[i].kind == LIFE_TETHER)
            life_close(&c->lives[i]);
}

/* ---- the watcher ---- */

static void report_broken(struct comm *c)
{
    char why[COMM_WHY_BYTES];
    struct comm_loss loss;
    bool due;

    pthread_mutex_lock(&c->lock);
    due = c->report_due;
    c->report_due = false;
    loss = c->loss;
    memcpy(why, c->why, sizeof(why));
    pthread_mutex_unlock(&c->lock);
    if (due && c->on_broken != NULL)
        c->on_broken(c->arg, &loss, why);
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
    while (!atomic_load(&c->stop)) {
        uint32_t n = life_polls(c, c->polls);

        if (poll(c->polls, n, -1) < 0) /* EINTR: retry */
            continue;
        life_advance(c, c->polls, n);
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

    if (c->n_lives == 0)
        return 0;
    rc = thread_start(&c->watcher, "watches the peers", watcher, c, err);
    c->has_watcher = rc == 0;
    return rc;
}

void comm_unwatch(struct comm *c, bool goodbye)
{
    if (goodbye && !comm_has_failed(c))
        send_lives(c, LIFE_BYE, c->self, "");
    atomic_store(&c->stop, true);
    comm_wake(c);
    if (c->has_watcher)
        pthread_join(c->watcher, NULL);
    c->has_watcher = false;
}
