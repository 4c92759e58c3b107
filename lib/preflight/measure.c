/* measure.c - measures the directions from this task to the others, in the order of the schedule. */
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "preflight/preflight_priv.h"
#include "preflight/probe_storage.h"
#include "preflight/schedule.h"

enum {
    PINGS = 24,
    BULK_MS_MAX = 80, /* duration of a transfer */
    BULK_MS_MIN = 20,
    BULK_BYTES = 256 << 10,
    LARGE_BYTES = 8 << 10, /* as many acknowledged bytes show that packets of full size arrive */
};

static uint64_t limit(const struct preflight *p, uint64_t ms)
{
    uint64_t until_ms = clock_ms() + ms;

    return until_ms < p->until_ms ? until_ms : p->until_ms;
}

/* ---- round trip and clock ---- */

static int ping(struct preflight *p, struct peer *peer, struct preflight_entry *e)
{
    struct buf request = { 0 }, body = { 0 };
    uint64_t best_ns = UINT64_MAX, theirs;
    int rc = 0;

    message_write(MESSAGE_PING, NULL, 0, &request);
    for (int i = 0; i < PINGS && rc == 0; i++) {
        uint64_t begin_ns = clock_ns(), wall_us = clock_wall_us(), took_ns;

        rc = conn_ask(&peer->out, &request, MESSAGE_PONG, &body, limit(p, STALL_MS));
        took_ns = clock_ns() - begin_ns;
        if (rc == 0 && !message_read_u64((uint8_t *)body.data, body.len, &theirs))
            rc = -EPROTO;
        if (rc < 0 || took_ns >= best_ns)
            continue;
        best_ns = took_ns;
        e->rtt_us = (uint32_t)(took_ns / 1000 + 1);
        /* both clocks in us since 1970: the difference of the two unsigned numbers is exact */
        e->skew_us = (int64_t)(theirs - wall_us - took_ns / 2000);
    }
    buf_fini(&request);
    buf_fini(&body);
    if (e->skew_us > (int64_t)1 << 52 || e->skew_us < -((int64_t)1 << 52))
        rc = -EPROTO;
    return rc;
}

/* ---- the data port ---- */

static uint32_t mtu_of(const struct conn *c, int family)
{
    int mtu = 0;
    socklen_t n = sizeof(mtu);
    int rc = family == AF_INET6 ? getsockopt(c->fd, IPPROTO_IPV6, IPV6_MTU, &mtu, &n)
                                : getsockopt(c->fd, IPPROTO_IP, IP_MTU, &mtu, &n);

    return rc == 0 && mtu > 0 && mtu < 1 << 20 ? (uint32_t)mtu : 0;
}

/* Sends for `ms`, then waits for the number of bytes that arrived. */
static void send_bulk(struct preflight *p, struct conn *c, uint32_t ms, struct preflight_entry *e)
{
    char *zeros = calloc(1, BULK_BYTES);
    uint64_t begin_ns = clock_ns(), end_ms = clock_ms() + ms, until_ms = limit(p, ms + STALL_MS),
             sent = 0, n;
    uint8_t total[8];
    int rc = zeros != NULL ? 0 : -ENOMEM;

    while (rc == 0 && clock_ms() < end_ms) {
        ssize_t k = send(c->fd, zeros, BULK_BYTES, MSG_NOSIGNAL);

        sent += k > 0 ? (uint64_t)k : 0;
        if (k < 0 && errno != EAGAIN && errno != EINTR)
            rc = -errno;
        else if (k < 0)
            rc = conn_wait(c, POLLOUT, end_ms) == -ECANCELED ? -ECANCELED : 0;
    }
    free(zeros);
    if (rc == 0 && shutdown(c->fd, SHUT_WR) == 0)
        rc = conn_recv(c, total, sizeof(total), until_ms);
    n = rc == 0 ? bytes_get_u64(total) : conn_acknowledged(c, sent);
    if (n >= LARGE_BYTES) {
        e->large = PREFLIGHT_GOOD;
        e->rate = (uint64_t)((double)n * 1e9 / (double)(clock_ns() - begin_ns + 1));
        e->rate = e->rate < (uint64_t)1 << 50 ? e->rate : (uint64_t)1 << 50;
    } else if (rc == -ETIMEDOUT) {
        e->large = PREFLIGHT_BAD;
    } else {
        e->data = PREFLIGHT_LOST;
    }
}

static void measure_data(struct preflight *p, uint32_t rank,
                         const uint8_t ticket[MESSAGE_TICKET_BYTES], uint32_t ms,
                         struct preflight_entry *e)
{
    struct peer *peer = &p->peers[rank];
    struct sockaddr_storage to = peer->address;
    struct linger reset = { .l_onoff = 1 };
    uint8_t head[MESSAGE_DATA_HEAD], ok;
    struct conn c;
    int rc;

    if (to.ss_family == AF_INET6)
        ((struct sockaddr_in6 *)&to)->sin6_port = htons((uint16_t)peer->facts.data_port);
    else
        ((struct sockaddr_in *)&to)->sin_port = htons((uint16_t)peer->facts.data_port);
    e->data = (uint8_t)conn_dial(&to, peer->address_bytes, false, limit(p, STALL_MS), &p->stop, &c);
    if (e->data != PREFLIGHT_REACHED)
        return;
    e->mtu = mtu_of(&c, to.ss_family);
    message_write_data_head(p->o->self, ticket, head);
    rc = conn_send(&c, head, sizeof(head), limit(p, STALL_MS));
    if (rc == 0)
        rc = conn_recv(&c, &ok, 1, limit(p, STALL_MS));
    if (rc == 0)
        send_bulk(p, &c, ms, e);
    else
        e->data = rc == -ETIMEDOUT ? PREFLIGHT_SILENT : PREFLIGHT_FOREIGN;
    if (e->large != PREFLIGHT_GOOD) /* nothing of it is to be sent any more */
        (void)setsockopt(c.fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    conn_close(&c);
}

/* ---- one direction ---- */

static void look_at_storage(struct preflight *p, uint32_t rank, struct preflight_entry *e)
{
    const struct preflight_facts *f = &p->peers[rank].facts;

    if (p->o->storage == NULL || p->facts.storage_fault[0] != '\0' || f->storage_fault[0] != '\0' ||
        f->sync_us == 0)
        return;
    storage_look(p->o->storage, (struct storage_id){ p->o->self, p->facts.nonce }, (struct storage_id){ rank, f->nonce },
                 STALL_MS, &e->storage, &e->lock);
}

/* Requests a ticket, which the peer sends when it has reached the round. */
static int begin_round(struct preflight *p, struct peer *peer, uint32_t round,
                       uint8_t ticket[MESSAGE_TICKET_BYTES])
{
    struct buf request = { 0 }, body = { 0 };
    enum message_kind kind;
    int rc;

    message_write_u32(MESSAGE_BEGIN, round, &request);
    rc = request.failed ? -ENOMEM : conn_send(&peer->out, request.data, request.len, p->until_ms);
    if (rc == 0)
        do
            rc = conn_wait(&peer->out, POLLIN, limit(p, CONN_SLICE_MS));
        while (rc == -ETIMEDOUT && clock_ms() < p->until_ms && !preflight_is_stopped(p));
    if (rc == 0)
        rc = conn_recv_message(&peer->out, &kind, &body, limit(p, STALL_MS));
    if (rc == 0 && (kind != MESSAGE_READY || body.len != MESSAGE_TICKET_BYTES))
        rc = -EPROTO;
    if (rc == 0)
        memcpy(ticket, body.data, MESSAGE_TICKET_BYTES);
    buf_fini(&request);
    buf_fini(&body);
    return rc;
}

static int end_round(struct preflight *p, struct peer *peer, uint32_t round)
{
    struct buf request = { 0 }, body = { 0 };
    int rc;

    message_write_u32(MESSAGE_END, round, &request);
    rc = conn_ask(&peer->out, &request, MESSAGE_END, &body, limit(p, STALL_MS));
    buf_fini(&request);
    buf_fini(&body);
    return rc;
}

/* Adds the numbers of a later pass: load of the hosts makes a number worse, never better. */
static void merge(struct preflight_entry *e, const struct preflight_entry *later)
{
    if (later->rtt_us < e->rtt_us) {
        e->rtt_us = later->rtt_us;
        e->skew_us = later->skew_us;
    }
    if (later->rate > e->rate)
        e->rate = later->rate;
}

/* Measures a direction; *e is zeroed except for `control` and `reverse`, or the result of earlier passes. */
static int measure(struct preflight *p, uint32_t rank, uint32_t round, uint32_t ms,
                   struct preflight_entry *e)
{
    struct peer *peer = &p->peers[rank];
    bool is_first = e->rtt_us == 0;
    struct preflight_entry later = { .control = e->control }, *now = is_first ? e : &later;
    uint8_t ticket[MESSAGE_TICKET_BYTES];
    int rc = begin_round(p, peer, round, ticket);

    if (rc == 0)
        rc = ping(p, peer, now);
    if (rc < 0)
        return rc;
    if (is_first || e->rate > 0) /* a fault is not measured again */
        measure_data(p, rank, ticket, ms, now);
    if (is_first)
        look_at_storage(p, rank, now);
    else
        merge(e, now);
    return end_round(p, peer, round);
}

/* Waits until the peer has ended the round too, or cannot any more. */
static void await_peer(struct preflight *p, uint32_t rank, uint32_t round)
{
    struct peer *peer = &p->peers[rank];

    pthread_mutex_lock(&p->lock);
    while (peer->n_in > 0 && peer->ended < (int32_t)round && clock_ms() < p->until_ms &&
           !atomic_load(&p->stop)) {
        preflight_wait(p);
        pthread_mutex_unlock(&p->lock);
        (void)preflight_is_stopped(p);
        pthread_mutex_lock(&p->lock);
    }
    pthread_mutex_unlock(&p->lock);
}

static void measure_round(struct preflight *p, uint32_t round, uint32_t ms,
                          struct preflight_entry *entries)
{
    uint32_t rank = schedule_partner(p->o->world, round % schedule_rounds(p->o->world), p->o->self);
    struct preflight_entry *e;

    if (rank == PREFLIGHT_NO_TASK)
        return;
    e = &entries[rank];
    if (rank < p->o->self) /* the lower rank measures first */
        await_peer(p, rank, round);
    if (e->control == PREFLIGHT_REACHED && measure(p, rank, round, ms, e) < 0) {
        if (clock_ms() < p->until_ms) /* else: not measured in time */
            e->control = PREFLIGHT_LOST;
        conn_close(&p->peers[rank].out);
    }
    if (rank > p->o->self)
        await_peer(p, rank, round);
}

static uint32_t bulk_ms(const struct preflight *p, uint32_t rounds)
{
    uint64_t now_ms = clock_ms(), left_ms = now_ms < p->until_ms ? p->until_ms - now_ms : 0;
    uint64_t ms = left_ms / (8ull * rounds); /* two directions are a quarter of the time of a round */

    return ms > BULK_MS_MAX ? BULK_MS_MAX : ms < BULK_MS_MIN ? BULK_MS_MIN : (uint32_t)ms;
}

void measure_all(struct preflight *p)
{
    struct preflight_row *own = &p->rows[p->o->self];
    uint32_t rounds = PASSES * schedule_rounds(p->o->world), ms = bulk_ms(p, rounds);

    for (uint32_t i = 0; i < p->o->world; i++)
        if (i != p->o->self) {
            own->entries[i].control = (uint8_t)p->peers[i].reach;
            own->entries[i].reverse = p->peers[i].reverse;
        }
    for (uint32_t round = 0; round < rounds && !preflight_is_stopped(p); round++) {
        pthread_mutex_lock(&p->lock);
        p->round = (int32_t)round;
        pthread_cond_broadcast(&p->changed);
        pthread_mutex_unlock(&p->lock);
        measure_round(p, round, ms, own->entries);
    }
    pthread_mutex_lock(&p->lock);
    p->round = INT32_MAX;
    for (uint32_t i = 0; i < p->o->world; i++)
        own->entries[i].in = i != p->o->self && p->peers[i].was_in;
    own->facts = p->facts;
    own->present = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}
