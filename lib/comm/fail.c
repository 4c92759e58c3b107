/* fail.c - how a generation fails: the first reason is kept, and spreads to this process and to the
 * peers. The functions work on the file descriptors and on the page of the host, and call only
 * message.c, path.c and page.c. Therefore every part may call comm_fail(). */
#include "comm/comm_priv.h"

#include <linux/futex.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/err.h"
#include "base/ports.h"
#include "code/code.h"

struct comm_text comm_rank_text(const struct comm *c, uint32_t point)
{
    bool is_rank = point < c->topo.world;
    struct comm_text w;

    snprintf(w.text, sizeof(w.text), "%s %u (%s)", is_rank ? "rank" : "server",
             is_rank ? point : point - c->topo.world, c->names[c->topo.member_of[point]]);
    return w;
}

struct comm_text comm_call_text(const struct comm_call *call)
{
    static const char *const names[] = { "all-reduce", "reduce-scatter", "all-gather", "broadcast",
                                         "barrier", "coded all-reduce", "all-reduce of pieces",
                                         "all-reduce with spare lanes" };
    static const char *const ops[] = { " (sum)", " (max)", " (or)" };
    const char *name = call->what < COUNT_OF(names) ? names[call->what] : "unknown call";
    struct comm_text w;

    if (call->what == COMM_BARRIER)
        snprintf(w.text, sizeof(w.text), "call %u, %s", call->number, name);
    else if (call->what == COMM_BROADCAST)
        snprintf(w.text, sizeof(w.text), "call %u, %s of %llu bytes from rank %u", call->number,
                 name, (unsigned long long)call->count, call->root);
    else if (call->what == COMM_ALL_REDUCE_CODED)
        snprintf(w.text, sizeof(w.text), "call %u, %s of %llu %s (%s)", call->number, name,
                 (unsigned long long)call->count, tensor_dtype_name((enum tensor_dtype)call->dtype),
                 call->op > CODE_NONE && call->op < CODE_KINDS ? code_name((enum code_kind)call->op)
                                                               : "unknown code");
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

    if (c->watch.wake_fd >= 0)
        (void)!write(c->watch.wake_fd, &one, sizeof(one)); /* full: the thread is awake */
}

void comm_send_lives(struct comm *c, uint32_t what, uint32_t culprit, const char *why)
{
    struct life_message m = { .what = what, .member = culprit };
    uint8_t bytes[MESSAGE_LIFE_BYTES + MESSAGE_CODE_BYTES];

    snprintf(m.why, sizeof(m.why), "%s", why);
    message_life_write(&m, bytes);
    /* the first message on these connections: it fits into the buffer, unless the peer has ended */
    if (c->shm.tether_fd >= 0)
        (void)!send(c->shm.tether_fd, bytes, MESSAGE_LIFE_BYTES, MSG_NOSIGNAL | MSG_DONTWAIT);
    for (uint32_t i = 0; i < c->watch.n_lives; i++)
        if (c->watch.lives[i].kind != LIFE_TETHER && c->watch.lives[i].fd >= 0) {
            size_t n = MESSAGE_LIFE_BYTES;

            if (c->watch.lives[i].has_code) {
                message_life_code(bytes, c->self, c->watch.lives[i].key, bytes + n);
                n += MESSAGE_CODE_BYTES;
            }
            (void)!send(c->watch.lives[i].fd, bytes, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        }
}

/* The links end: every thread that waits for one returns. */
static void shut_links_down(struct comm *c)
{
    for (uint32_t i = 0; i < c->n_ranks + c->n_ends; i++) {
        uint32_t n;
        const struct comm_link *links = comm_links(c, i, &n);

        for (uint32_t k = 0; k < n; k++)
            if (links[k].fd >= 0) /* no effect if the connection has ended */
                (void)shutdown(links[k].fd, SHUT_RDWR);
    }
}

static void spread(struct comm *c)
{
    char why[COMM_WHY_BYTES];
    uint32_t culprit;

    pthread_mutex_lock(&c->failure.lock);
    culprit = c->failure.culprit;
    memcpy(why, c->failure.why, sizeof(why));
    pthread_mutex_unlock(&c->failure.lock);
    if (c->shm.page != NULL)
        page_break(c->shm.page, c->shm.n_slots, culprit, why);
    comm_send_lives(c, LIFE_OVER, culprit, why); /* before the links end, which looks like a death */
    shut_links_down(c);
}

/* Where the failure was detected. */
enum origin { OURS, SEEN };

static int fail(struct comm *c, enum origin origin, int code, uint32_t culprit, const char *why)
{
    struct comm_loss loss = { 0 };
    bool first, at_once;

    if (origin == SEEN && !comm_has_failed(c)) /* before the links are shut down */
        path_survey(c, &loss);
    pthread_mutex_lock(&c->failure.lock);
    first = c->failure.code == 0;
    at_once = first && !c->failure.is_connecting;
    if (first) {
        c->failure.code = code;
        c->failure.culprit = culprit;
        for (uint32_t i = 0; i < loss.n_dead_paths; i++)
            path_add(&c->failure.loss, loss.dead_paths[i]);
        if (code == ERR_PATH && culprit != COMM_NO_MEMBER && culprit != c->self)
            path_add(&c->failure.loss, culprit);
        c->failure.loss.member = culprit == COMM_NO_MEMBER ? c->self : culprit;
        c->failure.report_due = origin == SEEN && c->failure.is_connected;
        snprintf(c->failure.why, sizeof(c->failure.why), "%s", why);
        atomic_store(&c->failure.failed, 1);
    }
    pthread_mutex_unlock(&c->failure.lock);
    if (!first)
        return -1;
    syscall(SYS_futex, &c->failure.failed, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
    if (at_once)
        spread(c);
    comm_wake(c);
    return -1;
}

bool comm_begin(struct comm *c)
{
    bool failed;

    pthread_mutex_lock(&c->failure.lock);
    c->failure.is_connecting = false;
    failed = c->failure.code != 0;
    c->failure.is_connected = !failed;
    pthread_mutex_unlock(&c->failure.lock);
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

int comm_path_lost(struct comm *c, uint32_t member)
{
    return comm_fail(c, ERR_PATH, member, "%s acknowledges nothing on the data path for %.3g s",
                     c->names[member], (double)COMM_PATH_MS / 1e3);
}

/* Writes "ip:port" of this end of a connection, or of the other one. */
static void print_end(int fd, bool is_other, char *out, size_t n)
{
    struct sockaddr_storage a = { 0 };
    socklen_t bytes = sizeof(a);
    char host[48] = "?", port[8] = "?";

    if ((is_other ? getpeername(fd, (struct sockaddr *)&a, &bytes)
                  : getsockname(fd, (struct sockaddr *)&a, &bytes)) == 0) {
        address_unmap(&a, &bytes);
        (void)getnameinfo((struct sockaddr *)&a, bytes, host, sizeof(host), port, sizeof(port),
                          NI_NUMERICHOST | NI_NUMERICSERV);
    }
    snprintf(out, n, a.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

int comm_message_changed(struct comm *c, int fd, uint32_t from, uint32_t to, const char *what)
{
    char there[64], here[64];

    print_end(fd, true, there, sizeof(there));
    print_end(fd, false, here, sizeof(here));
    pthread_mutex_lock(&c->failure.lock);
    if (c->failure.code == 0)
        c->failure.loss.has_changed_message = true;
    pthread_mutex_unlock(&c->failure.lock);
    return comm_fail(
        c, ERR_PEER, COMM_NO_MEMBER,
        "a message from %s at %s to %s at %s was changed on its way (%s): its CRC-32C differs",
        comm_rank_text(c, from).text, there, comm_rank_text(c, to).text, here, what);
}

bool comm_has_left(const struct comm *c, uint32_t member)
{
    bool left = false;

    for (uint32_t i = 0; i < c->watch.n_lives; i++)
        left |= c->watch.lives[i].member == member && atomic_load(&c->watch.lives[i].left);
    return left;
}

int comm_link_lost(struct comm *c, uint32_t point, const char *why)
{
    uint32_t member = c->topo.member_of[point];
    struct timespec slice = { .tv_nsec = 1000000 };

    for (int i = 0; i < COMM_LIFE_WAIT_MS && !comm_has_failed(c); i++)
        syscall(SYS_futex, &c->failure.failed, FUTEX_WAIT, 0, &slice, NULL, 0);
    if (comm_has_left(c, member))
        return comm_fail(c, ERR_PEER, member, "%s has left, but is still needed",
                         comm_rank_text(c, point).text);
    return comm_fail(c, ERR_PEER, member, "lost %s: %s", comm_rank_text(c, point).text, why);
}

int comm_failure(struct comm *c, struct err *err)
{
    int code;

    pthread_mutex_lock(&c->failure.lock);
    CHECK(c->failure.code != 0);
    code = err_set(err, c->failure.code, "%s", c->failure.why);
    pthread_mutex_unlock(&c->failure.lock);
    return code;
}
