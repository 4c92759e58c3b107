/* serve.c - listens, and answers the requests of the other tasks (message.h). */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/rng.h"
#include "base/thread.h"
#include "preflight/preflight_priv.h"
#include "tls/tls.h"

enum { HELLO_MS = 3000, SPARE_CONNECTIONS = 64 };

struct served {
    struct preflight *p;
    struct conn c;
    bool is_data;
    uint32_t rank; /* of the peer, after its HELLO */
};

/* ---- the control port ---- */

static int reply(struct served *s, const struct buf *message)
{
    return message->failed ? -ENOMEM
                           : conn_send(&s->c, message->data, message->len, clock_ms() + STALL_MS);
}

/* `why`: PREFLIGHT_MISTAKEN or PREFLIGHT_DENIED. */
static int refuse(struct served *s, enum preflight_reach why)
{
    struct buf out = { 0 };

    message_write_u32(MESSAGE_REFUSE, why, &out);
    (void)reply(s, &out);
    buf_fini(&out);
    return -EPROTO;
}

/* Certificates from files name the hosts; those derived from a token are equal for all. */
static bool is_host_certified(const struct served *s, uint32_t rank)
{
    struct tls_peer *peer;
    bool ok;

    if (s->p->o->tls == NULL || tls_common_host(s->p->o->tls) != NULL)
        return true;
    peer = tls_stream_peer(s->c.tls);
    ok = peer != NULL && tls_peer_has(peer, s->p->o->tasks[rank].host);
    tls_peer_free(peer);
    return ok;
}

static int greet(struct served *s, struct buf *body)
{
    struct preflight *p = s->p;
    struct message_hello hello, own = { .rank = p->o->self, .world = p->o->world, .facts = p->facts };
    struct buf out = { 0 };
    enum message_kind kind;
    int rc = conn_recv_message(&s->c, &kind, body, clock_ms() + HELLO_MS);

    if (rc < 0)
        return rc;
    if (kind != MESSAGE_HELLO || !message_read_hello((uint8_t *)body->data, body->len, &hello))
        return -EPROTO;
    if (hello.world != p->o->world || hello.rank == p->o->self)
        return refuse(s, PREFLIGHT_MISTAKEN);
    if (!is_host_certified(s, hello.rank))
        return refuse(s, PREFLIGHT_DENIED);
    s->rank = hello.rank;
    pthread_mutex_lock(&p->lock);
    p->peers[s->rank].n_in++;
    p->peers[s->rank].was_in = true;
    p->peers[s->rank].has_left = false;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    message_write_hello(&own, &out);
    rc = reply(s, &out);
    buf_fini(&out);
    return rc;
}

/* Waits until main has reached the round, then allows one data connection. */
static int answer_begin(struct served *s, uint32_t round, struct buf *out)
{
    struct preflight *p = s->p;
    uint8_t ticket[MESSAGE_TICKET_BYTES];

    if (rng_os(ticket, sizeof(ticket)) < 0)
        return -EIO;
    pthread_mutex_lock(&p->lock);
    while (p->round < (int32_t)round && !atomic_load(&p->stop))
        preflight_wait(p);
    memcpy(p->peers[s->rank].ticket, ticket, sizeof(ticket));
    p->peers[s->rank].has_ticket = true;
    pthread_mutex_unlock(&p->lock);
    message_write(MESSAGE_READY, ticket, sizeof(ticket), out);
    return 0;
}

static void answer_row(struct served *s, uint32_t rank, struct buf *out)
{
    struct preflight *p = s->p;

    pthread_mutex_lock(&p->lock);
    if (p->rows[rank].present)
        message_write_row(rank, p->o->world, &p->rows[rank], out);
    else
        message_write(MESSAGE_ROW_IS, NULL, 0, out);
    pthread_mutex_unlock(&p->lock);
}

static int accept_row(struct served *s, const struct buf *body, struct buf *out)
{
    struct preflight *p = s->p;
    struct preflight_row row = { .entries = calloc(p->o->world, sizeof(*row.entries)) };
    uint32_t rank;

    /* a task sends its own row only */
    if (row.entries == NULL ||
        !message_read_row((uint8_t *)body->data, body->len, p->o->world, &rank, &row) ||
        rank != s->rank) {
        free(row.entries);
        return -EPROTO;
    }
    pthread_mutex_lock(&p->lock);
    if (!p->rows[rank].present) {
        memcpy(p->rows[rank].entries, row.entries, p->o->world * sizeof(*row.entries));
        p->rows[rank].facts = row.facts;
        p->rows[rank].present = true;
        pthread_cond_broadcast(&p->changed);
    }
    pthread_mutex_unlock(&p->lock);
    free(row.entries);
    message_write(MESSAGE_END, NULL, 0, out);
    return 0;
}

static void note_end(struct served *s, uint32_t round)
{
    struct preflight *p = s->p;

    pthread_mutex_lock(&p->lock);
    p->peers[s->rank].has_ticket = false;
    p->peers[s->rank].ended = (int32_t)round;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

/* Returns 1 after BYE. */
static int answer(struct served *s, enum message_kind kind, const struct buf *body, struct buf *out)
{
    const uint8_t *at = (const uint8_t *)body->data;
    uint8_t now[8];
    uint32_t v = 0;
    uint64_t us = clock_wall_us();

    if ((kind == MESSAGE_BEGIN || kind == MESSAGE_END || kind == MESSAGE_ROW) &&
        (!message_read_u32(at, body->len, &v) || v >= PASSES * PREFLIGHT_WORLD_MAX))
        return -EPROTO;
    switch (kind) {
    case MESSAGE_PING:
        for (int i = 0; i < 8; i++)
            now[i] = (uint8_t)(us >> (8 * i));
        message_write(MESSAGE_PONG, now, sizeof(now), out);
        return 0;
    case MESSAGE_BEGIN:
        return answer_begin(s, v, out);
    case MESSAGE_END:
        note_end(s, v);
        message_write(MESSAGE_END, NULL, 0, out);
        return 0;
    case MESSAGE_ROW:
        if (v >= s->p->o->world)
            return -EPROTO;
        answer_row(s, v, out);
        return 0;
    case MESSAGE_ROW_IS:
        return accept_row(s, body, out);
    case MESSAGE_BYE:
        return 1;
    default:
        return -EPROTO;
    }
}

static void serve_control(struct served *s)
{
    struct preflight *p = s->p;
    struct buf body = { 0 }, out = { 0 };
    enum message_kind kind;
    int rc = 0;

    if (p->o->tls != NULL &&
        conn_secure(&s->c, p->o->tls, NULL, clock_ms() + HELLO_MS) != PREFLIGHT_REACHED)
        return;
    rc = greet(s, &body);
    while (rc == 0) {
        rc = conn_recv_message(&s->c, &kind, &body, UINT64_MAX);
        buf_reset(&out);
        if (rc == 0)
            rc = answer(s, kind, &body, &out);
        if (rc == 0)
            rc = reply(s, &out);
    }
    if (s->rank != PREFLIGHT_NO_TASK) {
        pthread_mutex_lock(&p->lock);
        p->peers[s->rank].n_in--;
        p->peers[s->rank].has_left = p->peers[s->rank].has_left || rc == 1;
        p->peers[s->rank].was_in = p->peers[s->rank].n_in > 0 || rc == 1;
        pthread_cond_broadcast(&p->changed);
        pthread_mutex_unlock(&p->lock);
    }
    buf_fini(&body);
    buf_fini(&out);
}

/* ---- the data port ---- */

static bool use_ticket(struct preflight *p, uint32_t rank,
                       const uint8_t ticket[MESSAGE_TICKET_BYTES])
{
    bool ok;

    if (rank >= p->o->world)
        return false;
    pthread_mutex_lock(&p->lock);
    ok = p->peers[rank].has_ticket &&
         memcmp(p->peers[rank].ticket, ticket, MESSAGE_TICKET_BYTES) == 0;
    if (ok)
        p->peers[rank].has_ticket = false;
    pthread_mutex_unlock(&p->lock);
    return ok;
}

/* Acknowledges the ticket with a byte, receives until the end of the stream, and replies with the
 * number of bytes. */
static void serve_data(struct served *s)
{
    uint8_t head[MESSAGE_DATA_HEAD], ticket[MESSAGE_TICKET_BYTES], total[8];
    uint32_t rank;
    uint64_t n = 0;
    char *room = malloc(256 << 10);

    if (room == NULL || conn_recv(&s->c, head, sizeof(head), clock_ms() + HELLO_MS) < 0 ||
        !message_read_data_head(head, &rank, ticket) || !use_ticket(s->p, rank, ticket) ||
        conn_send(&s->c, "k", 1, clock_ms() + HELLO_MS) < 0) {
        free(room);
        return;
    }
    for (;;) {
        ssize_t k = recv(s->c.fd, room, 256 << 10, 0);

        if (k == 0 || (k < 0 && errno != EAGAIN && errno != EINTR))
            break;
        if (k > 0)
            n += (uint64_t)k;
        else if (conn_wait(&s->c, POLLIN, clock_ms() + 2 * STALL_MS) < 0)
            break;
    }
    for (int i = 0; i < 8; i++)
        total[i] = (uint8_t)(n >> (8 * i));
    (void)conn_send(&s->c, total, sizeof(total), clock_ms() + STALL_MS);
    free(room);
}

/* ---- accepting ---- */

static void *serve(void *arg)
{
    struct served *s = arg;
    struct preflight *p = s->p;

    if (s->is_data)
        serve_data(s);
    else
        serve_control(s);
    conn_close(&s->c);
    free(s);
    pthread_mutex_lock(&p->lock);
    p->n_serving--;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* Starts a thread for the connection, or closes it if there are too many: only strangers open more than
 * a few for each task. */
static void admit(struct preflight *p, int fd, bool is_data)
{
    struct served *s = calloc(1, sizeof(*s));
    pthread_t thread;
    bool is_full;

    if (s == NULL) {
        close(fd);
        return;
    }
    *s = (struct served){ .p = p, .c = { .fd = fd, .stop = &p->stop }, .is_data = is_data, .rank = PREFLIGHT_NO_TASK };
    pthread_mutex_lock(&p->lock);
    is_full = p->n_serving >= 3 * p->o->world + SPARE_CONNECTIONS;
    p->n_serving += !is_full;
    pthread_mutex_unlock(&p->lock);
    if (!is_full && thread_start(&thread, "answers a task", serve, s, NULL) == 0) {
        pthread_detach(thread);
        return;
    }
    conn_close(&s->c);
    free(s);
    pthread_mutex_lock(&p->lock);
    p->n_serving -= !is_full;
    pthread_mutex_unlock(&p->lock);
}

static void *accept_all(void *arg)
{
    struct preflight *p = arg;
    struct pollfd polls[LISTENERS];

    while (!atomic_load(&p->stop)) {
        for (uint32_t i = 0; i < p->n_listeners; i++)
            polls[i] = (struct pollfd){ .fd = p->listeners[i], .events = POLLIN };
        if (poll(polls, p->n_listeners, CONN_SLICE_MS) <= 0)
            continue;
        for (uint32_t i = 0; i < p->n_listeners; i++) {
            int fd = polls[i].revents != 0
                         ? accept4(p->listeners[i], NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)
                         : -1;

            if (fd >= 0)
                admit(p, fd, p->is_data[i]);
        }
    }
    return NULL;
}

/* ---- opening and closing ---- */

int serve_open(struct preflight *p, struct err *err)
{
    int rc = listen_open(p, err);

    if (rc < 0 || p->n_listeners == 0)
        return rc;
    rc = thread_start(&p->acceptor, "accepts connections", accept_all, p, err);
    p->has_acceptor = rc == 0;
    return rc;
}

void serve_close(struct preflight *p)
{
    if (p->has_acceptor)
        pthread_join(p->acceptor, NULL);
    p->has_acceptor = false;
    pthread_mutex_lock(&p->lock);
    while (p->n_serving > 0)
        preflight_wait(p);
    pthread_mutex_unlock(&p->lock);
    for (uint32_t i = 0; i < p->n_listeners; i++)
        close(p->listeners[i]);
    p->n_listeners = 0;
}
