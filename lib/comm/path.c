/* path.c - whether the data path to another task works: a look at the connections of a communicator, and a test.
 *
 * A look (path_is_silent) reads what the kernel knows. Every connection has keepalive probes once a second, so on a path
 * that works an acknowledgement is never older than about a second, whatever the processes do.
 *
 * A test connects to the task's data port and sends COMM_TEST_BYTES, so in packets of full size: a path on which only
 * large packets are lost fails the test. The path works if the kernel of the other host has acknowledged all of it. A
 * refused connection is a dead path: the listener of a task is open as long as its process runs, so another host, or a
 * firewall, has answered. No thread of the other task takes part: the connection waits in the queue of its listener
 * until the next handshake or comm_listener_sweep(), which recognise it by its HELLO and close it; that can end the test
 * with a reset. */
#include "comm/comm_priv.h"

#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"

enum {
    SILENT_MS = 1600, /* more than a keepalive interval and less than COMM_PATH_MS, after which a path is given up */
    LOOK_MS = 5,      /* between two looks at what is acknowledged: no event says so */
};

bool path_is_silent(int fd)
{
    struct tcp_info info;
    socklen_t n = sizeof(info);

    return fd >= 0 && getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &n) == 0 &&
           info.tcpi_state == TCP_ESTABLISHED && info.tcpi_last_ack_recv >= SILENT_MS &&
           (info.tcpi_unacked > 0 || info.tcpi_probes > 0);
}

void path_add(struct comm_loss *loss, uint32_t member)
{
    for (uint32_t i = 0; i < loss->n_dead_paths; i++)
        if (loss->dead_paths[i] == member)
            return;
    if (loss->n_dead_paths < COMM_DEAD_PATHS_MAX)
        loss->dead_paths[loss->n_dead_paths++] = member;
}

void path_survey(const struct comm *c, struct comm_loss *loss)
{
    for (uint32_t i = 0; i < c->watch.n_lives; i++)
        if (c->watch.lives[i].kind == LIFE_LINE && path_is_silent(c->watch.lives[i].fd))
            path_add(loss, c->watch.lives[i].member);
    for (uint32_t i = 0; i < c->n_ranks + c->n_ends; i++) {
        uint32_t n;
        const struct comm_link *links = comm_links(c, i, &n);

        for (uint32_t k = 0; k < n; k++)
            if (path_is_silent(links[k].fd))
                path_add(loss, c->topo.member_of[links[k].peer]);
    }
}

/* ---- a test ---- */

struct test {
    int fd; /* owned; -1: decided */
    bool is_connected;
    size_t sent;
};

static void decide(struct test *t, bool *is_dead, bool dead)
{
    struct linger reset = { .l_onoff = 1 };

    if (t->fd >= 0) { /* nothing of it is to be delivered any more */
        (void)setsockopt(t->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
        close(t->fd);
    }
    t->fd = -1;
    *is_dead = dead;
}

bool path_is_rejected(int errnum)
{
    return comm_is_path_dead(errnum) || errnum == EHOSTDOWN || errnum == ECONNREFUSED ||
           errnum == ECONNRESET || errnum == EACCES || errnum == EPERM;
}

static void start(struct test *t, const char *address, bool *is_dead)
{
    struct sockaddr_storage to;
    uint32_t bytes;
    struct err err;

    t->fd = -1;
    if (listener_parse(address, &to, &bytes, &err) < 0) {
        decide(t, is_dead, true); /* an address that no communicator could use either */
        return;
    }
    t->fd = socket(to.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (t->fd < 0) { /* out of descriptors: says nothing about the path */
        decide(t, is_dead, false);
        return;
    }
    if (connect(t->fd, (struct sockaddr *)&to, bytes) < 0 && errno != EINPROGRESS)
        decide(t, is_dead, path_is_rejected(errno));
}

static void advance(struct test *t, const uint8_t *message, bool *is_dead)
{
    int why = 0, unacked = 1;
    socklen_t n = sizeof(why);
    ssize_t k;

    if (!t->is_connected) {
        struct pollfd p = { .fd = t->fd, .events = POLLOUT };

        if (poll(&p, 1, 0) <= 0)
            return;
        if (getsockopt(t->fd, SOL_SOCKET, SO_ERROR, &why, &n) < 0)
            why = errno;
        if (why != 0) {
            decide(t, is_dead, path_is_rejected(why));
            return;
        }
        t->is_connected = true;
    }
    while (t->sent < COMM_TEST_BYTES) {
        k = send(t->fd, message + t->sent, COMM_TEST_BYTES - t->sent, MSG_NOSIGNAL);
        if (k < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (k < 0) { /* the other side has closed it: it was reached */
            decide(t, is_dead, comm_is_path_dead(errno));
            return;
        }
        t->sent += (size_t)k;
    }
    if (ioctl(t->fd, SIOCOUTQ, &unacked) < 0 || unacked == 0)
        decide(t, is_dead, false);
}

int comm_test_paths(const char *const *addresses, uint32_t n, uint32_t limit_ms, bool *is_dead,
                    struct err *err)
{
    struct handshake_hello h = { .kind = HANDSHAKE_TEST };
    uint64_t until_ms = clock_ms() + limit_ms;
    struct test *tests = calloc(n + 1, sizeof(*tests));
    uint8_t *message = calloc(1, COMM_TEST_BYTES);
    uint32_t n_open;

    if (tests == NULL || message == NULL) {
        free(tests);
        free(message);
        return err_set(err, ERR_NOMEM, "test data paths: out of memory");
    }
    handshake_hello_write(&h, message);
    for (uint32_t i = 0; i < n; i++)
        start(&tests[i], addresses[i], &is_dead[i]);
    do {
        n_open = 0;
        for (uint32_t i = 0; i < n; i++) {
            if (tests[i].fd >= 0)
                advance(&tests[i], message, &is_dead[i]);
            n_open += tests[i].fd >= 0;
        }
    } while (n_open > 0 && clock_ms() < until_ms && poll(NULL, 0, LOOK_MS) <= 0);
    for (uint32_t i = 0; i < n; i++)
        if (tests[i].fd >= 0)
            decide(&tests[i], &is_dead[i], true);
    free(tests);
    free(message);
    return 0;
}

bool comm_is_path_dead(int errnum)
{
    return errnum == ETIMEDOUT || errnum == EHOSTUNREACH || errnum == ENETUNREACH;
}
