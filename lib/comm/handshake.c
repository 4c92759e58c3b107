/* handshake.c - one loop around poll() that dials, accepts and checks until every connection that
 * this member needs is there. Nothing in it waits for a particular peer, so neither a silent
 * stranger nor a late member holds up the others.
 *
 * Of two ends the one with the higher number dials the other. A dialler tries again until the
 * deadline whatever happens, except when the other side proves that it knows the key and says that
 * this generation is over. */
#include "comm/shake.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/fault.h"

enum {
    LOOK_MS = 20,         /* between two looks at `cancel` */
    STRANGER_MS = 2000,   /* an accepted connection proves itself within */
    HALF_OPEN_SPARE = 64, /* accepted at a time, beyond those that are expected */
    RETRY_MS_MIN = 2,
    RETRY_MS_MAX = 50,
    NAMED_MAX = 8, /* missing peers in a message */
};

/* ---- what is wanted ---- */

static int layout_digest(const struct comm_opts *o, uint8_t out[32], struct err *err)
{
    struct buf b = { 0 };
    bool failed;

    buf_printf(&b, "%d %u", o->shared_memory, o->n_members);
    for (uint32_t m = 0; m < o->n_members; m++) {
        const struct comm_member *p = &o->members[m];

        buf_printf(&b, " %zu:%s %zu:%s %zu:%s %u", strlen(p->name), p->name, strlen(p->host),
                   p->host, strlen(p->address), p->address, p->n_ranks);
    }
    failed = b.failed;
    if (!failed)
        digest_sha256(b.data, b.len, out);
    buf_fini(&b);
    return failed ? err_set(err, ERR_NOMEM, "describe the members: out of memory") : 0;
}

/* A name that only those who know the key can foresee, new in every generation. */
static void host_address(struct shake *s)
{
    struct comm *c = s->c;
    uint8_t text[32 + 8 + 4], mac[DIGEST_BYTES];
    char hex[DIGEST_HEX_BYTES];
    uint32_t leader = c->topo.leader_of[c->host];
    int n;

    memcpy(text, s->here.layout, 32);
    memcpy(text + 32, &c->generation, 8);
    memcpy(text + 40, &leader, 4);
    digest_hmac(s->opts->key, COMM_KEY_BYTES, text, sizeof(text), mac);
    digest_hex(mac, hex);
    s->host_address.sun_family = AF_UNIX; /* sun_path[0] stays NUL: abstract */
    n = snprintf(s->host_address.sun_path + 1, sizeof(s->host_address.sun_path) - 1,
                 "trainerd-%.48s", hex);
    s->host_address_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static void want(struct shake *s, enum hello_kind kind, uint32_t own, uint32_t peer,
                 uint32_t member, int *fd)
{
    s->wants[s->n_wants++] = (struct want){ .kind = kind,
                                            .own = own,
                                            .peer = peer,
                                            .member = member,
                                            .fd = fd,
                                            .dials = own > peer,
                                            .retry_ms = RETRY_MS_MIN };
}

/* Two ranks of this process that are in different nodes. */
static int link_own(struct comm *c, struct comm_link *link, uint32_t rank, struct err *err)
{
    struct comm_rank *peer = &c->ranks[link->peer - c->first_rank];
    int fds[2];

    if (link->fd >= 0)
        return 0;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) < 0)
        return err_sys(err, errno, "connect two replicas");
    link->fd = fds[0];
    for (uint32_t k = 0; k < peer->n_links; k++)
        if (peer->links[k].peer == rank)
            peer->links[k].fd = fds[1];
    return 0;
}

static int list_wants(struct shake *s)
{
    struct comm *c = s->c;
    size_t n = c->n_lives;

    for (uint32_t i = 0; i < c->n_ranks; i++)
        n += c->ranks[i].n_links;
    s->max_conns = n + HALF_OPEN_SPARE;
    s->wants = calloc(n + 1, sizeof(*s->wants));
    s->conns = calloc(s->max_conns, sizeof(*s->conns));
    s->polls = calloc(s->max_conns + 2, sizeof(*s->polls));
    if (s->wants == NULL || s->conns == NULL || s->polls == NULL)
        return err_set(s->err, ERR_NOMEM, "connect to the peers: out of memory");
    for (uint32_t i = 0; i < c->n_lives; i++)
        want(s, c->lives[i].is_host ? HELLO_HOST : HELLO_LIFE, c->self, c->lives[i].member,
             c->lives[i].member, &c->lives[i].fd);
    for (uint32_t i = 0; i < c->n_ranks; i++) {
        struct comm_rank *r = &c->ranks[i];

        for (uint32_t k = 0; k < r->n_links; k++) {
            uint32_t peer = r->links[k].peer, member = c->topo.member_of[peer];
            int rc = 0;

            if (member == c->self)
                rc = link_own(c, &r->links[k], r->rank, s->err);
            else
                want(s, HELLO_LINK, r->rank, peer, member, &r->links[k].fd);
            if (rc < 0)
                return rc;
        }
    }
    s->n_missing = s->n_wants;
    return 0;
}

static int listen_on_host(struct shake *s)
{
    bool called = false;

    host_address(s);
    for (size_t i = 0; i < s->n_wants; i++)
        called |= s->wants[i].kind == HELLO_HOST && !s->wants[i].dials;
    if (!called)
        return 0;
    s->unix_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (s->unix_fd < 0 ||
        bind(s->unix_fd, (struct sockaddr *)&s->host_address, s->host_address_bytes) < 0 ||
        listen(s->unix_fd, 1024) < 0)
        return err_sys(s->err, errno, "listen for the other members of this host");
    return 0;
}

/* ---- all of them ---- */

static void retry_later(struct want *w)
{
    w->busy = false;
    w->retry_ns = clock_ns() + w->retry_ms * (uint64_t)1000000;
    w->retry_ms = w->retry_ms * 2 < RETRY_MS_MAX ? w->retry_ms * 2 : RETRY_MS_MAX;
}

/* Takes the connection off the list; the last one moves to its place. */
static void forget(struct shake *s, size_t i, enum outcome why)
{
    struct conn *n = &s->conns[i];

    if (why == DROP) {
        close(n->fd);
        if (n->want != NULL && n->want->dials)
            retry_later(n->want);
    }
    *n = s->conns[--s->n_conns];
}

static void dial(struct shake *s, struct want *w)
{
    struct conn n = { .want = w, .state = DIAL_CONNECT, .expires_ns = UINT64_MAX };
    struct sockaddr_storage a;
    struct sockaddr *to = (struct sockaddr *)&s->host_address;
    socklen_t bytes = s->host_address_bytes;
    char reason[128];
    int rc;

    if (w->kind != HELLO_HOST) {
        rc = listener_parse(s->opts->members[w->member].address, &a, &bytes, s->err);
        if (rc < 0) {
            s->rc = err_wrap(s->err, rc, "%s", s->c->names[w->member]);
            return;
        }
        to = (struct sockaddr *)&a;
    }
    n.fd = socket(to->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (n.fd >= 0 && fault_hit("comm.connect"))
        errno = ECONNREFUSED;
    else if (n.fd >= 0 && (connect(n.fd, to, bytes) == 0 || errno == EINPROGRESS)) {
        w->busy = true;
        s->conns[s->n_conns++] = n;
        return;
    }
    (void)greet_trouble(&n, "%s", strerror_r(errno, reason, sizeof(reason)));
    if (n.fd >= 0)
        close(n.fd);
    retry_later(w);
}

static void dial_due(struct shake *s)
{
    uint64_t now = clock_ns();

    s->due_ns = UINT64_MAX;
    for (size_t i = 0; i < s->n_wants && s->rc == 0; i++) {
        struct want *w = &s->wants[i];

        if (!w->dials || w->busy || *w->fd >= 0)
            continue;
        if (now >= w->retry_ns && s->n_conns < s->max_conns)
            dial(s, w);
        if (!w->busy && w->retry_ns < s->due_ns)
            s->due_ns = w->retry_ns;
    }
}

/* Room for one more: at the expense of the accepted connection that has had the longest time. */
static bool make_room(struct shake *s)
{
    size_t oldest = SIZE_MAX;

    if (s->n_conns < s->max_conns)
        return true;
    for (size_t i = 0; i < s->n_conns; i++)
        if (s->conns[i].state >= ACCEPT_HELLO &&
            (oldest == SIZE_MAX || s->conns[i].expires_ns < s->conns[oldest].expires_ns))
            oldest = i;
    if (oldest == SIZE_MAX)
        return false;
    forget(s, oldest, DROP);
    return true;
}

static void accept_from(struct shake *s, int listener)
{
    for (int i = 0; i < HALF_OPEN_SPARE; i++) { /* bounded: the others get their turn */
        struct sockaddr_storage a = { 0 };
        socklen_t bytes = sizeof(a);
        char host[48] = "this host", port[8] = "0";
        struct conn n = { .state = ACCEPT_HELLO,
                          .expires_ns = clock_ns() + STRANGER_MS * (uint64_t)1000000 };

        n.fd = accept4(listener, (struct sockaddr *)&a, &bytes, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (n.fd < 0) {
            if (errno != EAGAIN) /* out of descriptors, say: not at once again */
                s->accept_again_ns = clock_ns() + LOOK_MS * (uint64_t)1000000;
            return;
        }
        if (a.ss_family != AF_UNIX)
            (void)getnameinfo((struct sockaddr *)&a, bytes, host, sizeof(host), port, sizeof(port),
                              NI_NUMERICHOST | NI_NUMERICSERV);
        snprintf(n.from, sizeof(n.from), "%s:%s", host, port);
        if (make_room(s))
            s->conns[s->n_conns++] = n;
        else
            close(n.fd);
    }
}

static void wait_and_advance(struct shake *s)
{
    size_t n = s->n_conns;
    uint64_t now = clock_ns(), ms = s->due_ns > now ? (s->due_ns - now) / 1000000 + 1 : 1;
    bool accepts = now >= s->accept_again_ns;

    s->polls[0] =
        (struct pollfd){ .fd = accepts ? listener_fd(s->opts->listener) : -1, .events = POLLIN };
    s->polls[1] = (struct pollfd){ .fd = accepts ? s->unix_fd : -1, .events = POLLIN };
    for (size_t i = 0; i < n; i++)
        s->polls[i + 2] =
            (struct pollfd){ .fd = s->conns[i].fd, .events = greet_events(&s->conns[i]) };
    if (poll(s->polls, n + 2, ms < LOOK_MS ? (int)ms : LOOK_MS) < 0)
        return; /* EINTR */
    now = clock_ns();
    for (size_t i = n; i-- > 0 && s->rc == 0;) { /* backwards: forget() moves the last one here */
        enum outcome o = s->polls[i + 2].revents != 0 ? greet(s, &s->conns[i]) : GO_ON;

        if (o == GO_ON && now >= s->conns[i].expires_ns) {
            (void)greet_stranger(s, &s->conns[i], "said nothing for too long");
            o = DROP;
        }
        if (o != GO_ON)
            forget(s, i, o);
    }
    for (int i = 0; i < 2; i++)
        if (s->polls[i].fd >= 0 && s->polls[i].revents != 0)
            accept_from(s, s->polls[i].fd);
}

/* Who is missing, and the last thing known about each. */
static int too_late(struct shake *s)
{
    struct buf b = { 0 };
    uint32_t named = 0, last = COMM_NO_MEMBER;
    bool unproven = false;
    int rc;

    for (size_t i = 0; i < s->n_wants; i++) {
        const struct want *w = &s->wants[i];
        const char *silence =
            w->dials ? w->busy ? "does not answer" : "not tried yet" : "has not called us";

        if (*w->fd >= 0)
            continue;
        unproven |= w->unproven;
        if (w->member == last || named++ >= NAMED_MAX)
            continue;
        last = w->member;
        buf_printf(&b, "%s%s (%s: %s)", b.len > 0 ? ", " : "", s->c->names[w->member],
                   w->kind == HELLO_HOST ? "on this host" : s->opts->members[w->member].address,
                   w->last[0] != '\0' ? w->last : silence);
    }
    if (named > NAMED_MAX)
        buf_printf(&b, " and %u more connections", named - NAMED_MAX);
    if (s->n_strangers > 0)
        buf_printf(&b, "; turned away %u, last: %s", s->n_strangers, s->stranger);
    rc = err_set(s->err, unproven ? ERR_AUTH : ERR_TIMEOUT, "missing after %.3g s: %s",
                 (double)s->opts->deadline_ms / 1e3, b.failed ? "(out of memory)" : b.data);
    buf_fini(&b);
    return rc;
}

int handshake(struct comm *c, const struct comm_opts *opts, uint64_t deadline_ns,
              const volatile int *cancel, struct err *err)
{
    struct err local = { 0 };
    struct shake s = { .c = c, .opts = opts, .unix_fd = -1, .err = err != NULL ? err : &local };

    s.here.generation = opts->generation;
    s.rc = layout_digest(opts, s.here.layout, s.err);
    if (s.rc == 0)
        s.rc = list_wants(&s);
    if (s.rc == 0)
        s.rc = listen_on_host(&s);
    while (s.rc == 0 && s.n_missing > 0) {
        if (cancel != NULL && __atomic_load_n(cancel, __ATOMIC_RELAXED) != 0)
            s.rc = err_set(s.err, ERR_CANCELED, "canceled");
        else if (clock_ns() >= deadline_ns)
            s.rc = too_late(&s);
        else
            dial_due(&s);
        if (s.rc == 0)
            wait_and_advance(&s);
    }
    for (size_t i = 0; i < s.n_conns; i++)
        close(s.conns[i].fd);
    if (s.unix_fd >= 0)
        close(s.unix_fd);
    free(s.wants);
    free(s.conns);
    free(s.polls);
    return s.rc;
}
