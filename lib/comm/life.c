/* life.c - who is alive, and how everybody learns that somebody is not.
 *
 * Between two members that share links or a host there is a life line, a connection on which
 * nothing is said until the end: a message of 256 bytes, BYE or OVER. Its end without a message is
 * a death. A thread of ours sleeps on all life lines; the kernel wakes it the moment a peer's
 * process is gone, whatever the replica threads are doing. OVER names the member that is to blame
 * and why, so that a failure arrives everywhere with its root and not as the name of whoever passed
 * it on. */
#include "comm/comm_priv.h"

#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/err.h"

enum { LIFE_BYE = 1, LIFE_OVER = 2, PATIENCE_MS = 20 };

struct message {
    uint32_t what;
    uint32_t culprit; /* member, COMM_NO_MEMBER */
    char why[248];    /* ends with a NUL */
};
_Static_assert(sizeof(struct message) == sizeof(((struct comm_life *)0)->in),
               "one buffer, one message");
_Static_assert(sizeof(((struct message *)0)->why) >= COMM_WHY_BYTES, "a reason fits");

struct comm_who comm_who(const struct comm *c, uint32_t rank)
{
    struct comm_who w;

    snprintf(w.text, sizeof(w.text), "rank %u (%s)", rank, c->names[c->topo.member_of[rank]]);
    return w;
}

struct comm_who comm_call_text(const struct comm_call *call)
{
    static const char *const names[] = { "all-reduce", "reduce-scatter", "all-gather", "broadcast",
                                         "barrier" };
    static const char *const ops[] = { " (sum)", " (max)", " (or)" };
    const char *name = call->what < COUNT_OF(names) ? names[call->what] : "unknown call";
    struct comm_who w;

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

static void wake_watcher(struct comm *c)
{
    uint64_t one = 1;

    if (c->wake_fd >= 0)
        (void)!write(c->wake_fd, &one, sizeof(one)); /* full: it is awake anyway */
}

static void tell_lives(struct comm *c, uint32_t what, uint32_t culprit, const char *why)
{
    struct message m = { .what = what, .culprit = culprit };

    snprintf(m.why, sizeof(m.why), "%s", why);
    for (uint32_t i = 0; i < c->n_lives; i++)
        if (c->lives[i].fd >= 0) /* the first thing ever sent there: it fits, or the peer is gone */
            (void)!send(c->lives[i].fd, &m, sizeof(m), MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* How the failure came to us. */
enum origin { OURS, SEEN };

static int fail(struct comm *c, enum origin origin, int code, uint32_t culprit, const char *why)
{
    bool first;

    pthread_mutex_lock(&c->lock);
    first = c->code == 0;
    if (first) {
        c->code = code;
        c->culprit = culprit;
        c->tell = origin == SEEN;
        snprintf(c->why, sizeof(c->why), "%s", why);
    }
    pthread_mutex_unlock(&c->lock);
    if (!first)
        return -1;
    atomic_store(&c->failed, 1);
    syscall(SYS_futex, &c->failed, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
    host_break(c, culprit, why);
    tell_lives(c, LIFE_OVER, culprit, why); /* before the links end, as if we had died */
    tcp_shutdown(c);
    wake_watcher(c);
    return -1;
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

int comm_link_lost(struct comm *c, uint32_t rank, const char *why)
{
    uint32_t member = c->topo.member_of[rank];
    struct timespec slice = { .tv_nsec = 1000000 };
    bool left = false;

    for (int i = 0; i < PATIENCE_MS && !comm_has_failed(c); i++)
        syscall(SYS_futex, &c->failed, FUTEX_WAIT, 0, &slice, NULL, 0);
    for (uint32_t i = 0; i < c->n_lives; i++)
        left |= c->lives[i].member == member && atomic_load(&c->lives[i].left);
    if (left)
        return comm_fail(c, ERR_PEER, member, "%s has left, but is still needed",
                         comm_who(c, rank).text);
    return comm_fail(c, ERR_PEER, member, "lost %s: %s", comm_who(c, rank).text, why);
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

/* ---- the watcher ---- */

static void life_message(struct comm *c, struct comm_life *l)
{
    struct message m;

    memcpy(&m, l->in, sizeof(m));
    m.why[sizeof(m.why) - 1] = '\0';
    if (m.what == LIFE_BYE)
        atomic_store(&l->left, true);
    else if (m.what == LIFE_OVER)
        comm_fail(c, ERR_PEER, m.culprit < c->topo.n_members ? m.culprit : l->member, "%s", m.why);
    else
        comm_fail(c, ERR_PEER, l->member, "%s sent nonsense on its life line", c->names[l->member]);
}

/* Reads what there is. false: nothing more will come. */
static bool life_read(struct comm *c, struct comm_life *l)
{
    ssize_t n = recv(l->fd, l->in + l->n_in, sizeof(l->in) - l->n_in, MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    if (n <= 0) {
        char reason[128];

        comm_fail(c, ERR_PEER, l->member, "%s died (%s)", c->names[l->member],
                  n == 0 ? "its connection closed without a goodbye"
                         : strerror_r(errno, reason, sizeof(reason)));
        return false;
    }
    l->n_in += (size_t)n;
    if (l->n_in < sizeof(l->in))
        return true;
    life_message(c, l);
    return false;
}

static void tell_user(struct comm *c)
{
    char why[COMM_WHY_BYTES];
    uint32_t culprit;
    bool due;

    pthread_mutex_lock(&c->lock);
    due = c->tell;
    c->tell = false;
    culprit = c->culprit;
    memcpy(why, c->why, sizeof(why));
    pthread_mutex_unlock(&c->lock);
    if (due && c->on_broken != NULL)
        c->on_broken(c->arg, culprit == COMM_NO_MEMBER ? c->self : culprit, why);
}

/* polls[0] is the wake-up, then one per life line. */
static void watch(struct comm *c, struct pollfd *polls)
{
    bool shares = false;

    for (uint32_t i = 0; i < c->n_lives; i++)
        shares |= c->lives[i].is_host;
    while (!atomic_load(&c->stop)) {
        /* The page has no way to wake us; whoever breaks it also says so over the life lines, but
         * the leader, who would pass that on, may be stopped. */
        int n = poll(polls, c->n_lives + 1, shares && !comm_has_failed(c) ? COMM_SLICE_MS : -1);
        uint64_t count;

        if (n < 0) /* EINTR: look again */
            continue;
        if (polls[0].revents != 0)
            (void)!read(c->wake_fd, &count, sizeof(count));
        for (uint32_t i = 0; i < c->n_lives; i++)
            if (polls[i + 1].revents != 0 && !life_read(c, &c->lives[i]))
                polls[i + 1].fd = -1;
        if (!comm_has_failed(c))
            (void)host_check(c);
        tell_user(c);
    }
}

static void *watcher(void *arg)
{
    struct comm *c = arg;

    c->polls[0] = (struct pollfd){ .fd = c->wake_fd, .events = POLLIN };
    for (uint32_t i = 0; i < c->n_lives; i++)
        c->polls[i + 1] = (struct pollfd){ .fd = c->lives[i].fd, .events = POLLIN | POLLRDHUP };
    watch(c, c->polls);
    return NULL;
}

int comm_watch(struct comm *c, struct err *err)
{
    sigset_t all, before;
    int rc;

    if (c->n_lives == 0)
        return 0;
    c->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (c->wake_fd < 0)
        return err_sys(err, errno, "watch the peers");
    sigfillset(&all); /* signals are for the threads of the program */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&c->watcher, NULL, watcher, c);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0)
        return err_sys(err, rc, "start the thread that watches the peers");
    c->has_watcher = true;
    return 0;
}

void comm_unwatch(struct comm *c, bool goodbye)
{
    if (goodbye && !comm_has_failed(c))
        tell_lives(c, LIFE_BYE, c->self, "");
    atomic_store(&c->stop, true);
    wake_watcher(c);
    if (c->has_watcher)
        pthread_join(c->watcher, NULL);
    c->has_watcher = false;
    if (c->wake_fd >= 0)
        close(c->wake_fd);
    c->wake_fd = -1;
}
