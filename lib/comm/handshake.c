/* handshake.c - one poll() loop that dials, accepts and authenticates until every connection of
 * this member exists and the memory of the host is shared. The loop never waits for a particular
 * peer, so neither a silent foreign connection nor a slow member delays the others.
 *
 * Of two ends, the one with the higher number dials the other. A dialler tries again until the
 * deadline, except if the other side proves that it knows the key and reports that this generation
 * has ended, or if the path is dead: no kernel answers, or every attempt is rejected, for
 * COMM_PATH_MS. A connection for a later generation is parked at the listener. The connected life
 * lines are read, so the end of a peer ends the loop. */
#include "comm/conn_limit.h"
#include "comm/handshake_state.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/errno_text.h"
#include "base/fault.h"
#include "tls/tls.h"

enum {
    ACCEPT_PAUSE_MS = 20,       /* pause of accepting without free descriptors */
    AUTH_MS = 2000,   /* limit for the authentication of an accepted connection */
    HALF_OPEN_SPARE = 64, /* accepted connections, beyond the expected number */
    RETRY_MS_MIN = 1,
    RETRY_MS_MAX = 50,
    RETRY_HOST_MS_MAX = 4, /* a try costs a few microseconds, and is refused until the leader
                              listens */
    GRACE_MS = 50,
    NAMED_MAX = 8, /* limit of missing peers in a message */
};

/* ---- required connections ---- */

static int layout_digest(const struct comm_opts *o, uint32_t world, uint8_t out[32],
                         struct err *err)
{
    struct buf b = { 0 };
    bool failed, has_servers = false; /* servers do not know the shares of the ranks */

    buf_printf(&b, "%d %d %u", o->shared_memory, o->encrypts, o->view.n_members);
    for (uint32_t m = 0; m < o->view.n_members; m++) {
        const struct group_member *p = &o->view.members[m];

        buf_printf(&b, " %zu:%s %zu:%s %zu:%s %u", strlen(p->name), p->name, strlen(p->host_key),
                   p->host_key, strlen(p->data_address), p->data_address, p->n_devices);
        if (p->n_servers != 0)
            buf_printf(&b, " +%u", p->n_servers);
        has_servers = has_servers || p->n_servers != 0;
    }
    for (uint32_t r = 0; o->shares != NULL && !has_servers && r < world; r++)
        buf_printf(&b, " /%u", o->shares[r]);
    for (uint32_t i = 0; i < o->view.n_pieces; i++)
        buf_printf(&b, " %u:%u", o->view.pieces[i].rank, o->view.pieces[i].n);
    if (o->spares)
        buf_str(&b, " spare");
    if (o->groups > 0 && !has_servers)
        buf_printf(&b, " *%u", o->groups);
    failed = b.failed;
    if (!failed)
        digest_sha256(b.data, b.len, out);
    buf_fini(&b);
    return failed ? err_set(err, ERR_NOMEM, "describe the members: out of memory") : 0;
}

/* Makes the abstract socket name of a member, which only members with the key can predict, new in every
 * generation. Returns the bytes of the address. */
static socklen_t local_address(const struct handshake_state *s, uint32_t member,
                               struct sockaddr_un *out)
{
    uint8_t text[32 + 8 + 4], mac[DIGEST_BYTES];
    char hex[DIGEST_HEX_BYTES];
    int n;

    memcpy(text, s->here.layout, 32);
    bytes_set_u64(text + 32, s->c->generation);
    bytes_set_u32(text + 40, member);
    digest_hmac(s->opts->key, COMM_KEY_BYTES, text, sizeof(text), mac);
    digest_hex(mac, hex);
    *out = (struct sockaddr_un){ .sun_family = AF_UNIX }; /* sun_path[0] is NUL: an abstract name */
    n = snprintf(out->sun_path + 1, sizeof(out->sun_path) - 1, "trainerd-%.48s", hex);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static void want(struct handshake_state *s, enum handshake_kind kind, uint32_t own, uint32_t peer,
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

static void want_life(struct handshake_state *s, struct comm_life *life)
{
    bool is_line = life->kind != LIFE_STAR;

    want(s, is_line ? HANDSHAKE_LIFE : HANDSHAKE_HOST, s->c->self, life->member, life->member,
         &life->fd);
    s->wants[s->n_wants - 1].is_local = !is_line;
    life->has_code = is_line;
    if (life->has_code)
        s->wants[s->n_wants - 1].key = life->key;
}

static void want_link(struct handshake_state *s, struct comm_link *link, uint32_t own,
                      uint32_t member)
{
    want(s, HANDSHAKE_LINK, own, link->peer, member, &link->fd);
    s->wants[s->n_wants - 1].is_local = link->is_local;
    if (s->opts->encrypts && !link->is_local)
        s->wants[s->n_wants - 1].tls = &link->tls;
}

/* Connects two ranks of this process that are in different nodes. */
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

static int list_wants(struct handshake_state *s)
{
    struct comm *c = s->c;
    size_t n = c->watch.n_lives;

    for (uint32_t i = 0; i < c->n_ranks + c->n_ends; i++) {
        uint32_t n_links;

        (void)comm_links(c, i, &n_links); /* only their number */
        n += n_links;
    }
    s->max_conns = n + HALF_OPEN_SPARE + COMM_PARKED_MAX;
    s->wants = calloc(n + 1, sizeof(*s->wants));
    s->conns = calloc(s->max_conns, sizeof(*s->conns));
    s->polls = calloc(s->max_conns + n + (size_t)2 * c->topo.n_members + 3, sizeof(*s->polls));
    if (s->wants == NULL || s->conns == NULL || s->polls == NULL)
        return err_set(s->err, ERR_NOMEM, "connect to the peers: out of memory");
    for (uint32_t i = 0; i < c->watch.n_lives; i++)
        want_life(s, &c->watch.lives[i]);
    for (uint32_t i = 0; i < c->n_ranks; i++) {
        struct comm_rank *r = &c->ranks[i];

        for (uint32_t k = 0; k < r->n_links; k++) {
            uint32_t peer = r->links[k].peer, member = c->topo.member_of[peer];
            int rc = 0;

            if (member == c->self)
                rc = link_own(c, &r->links[k], r->rank, s->err);
            else
                want_link(s, &r->links[k], r->rank, member);
            if (rc < 0)
                return rc;
        }
    }
    for (uint32_t i = 0; i < c->n_ends; i++)
        for (uint32_t k = 0; k < c->ends[i].n_links; k++) {
            struct comm_link *link = &c->ends[i].links[k];

            want_link(s, link, c->first_point + i, c->topo.member_of[link->peer]);
        }
    s->n_missing = s->n_wants;
    return 0;
}

static int listen_on_host(struct handshake_state *s)
{
    struct sockaddr_un address;
    socklen_t bytes = local_address(s, s->c->self, &address);
    bool called = false;

    for (size_t i = 0; i < s->n_wants; i++)
        called |= s->wants[i].is_local && !s->wants[i].dials;
    if (!called)
        return 0;
    s->unix_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (s->unix_fd < 0 || bind(s->unix_fd, (struct sockaddr *)&address, bytes) < 0 ||
        listen(s->unix_fd, 1024) < 0)
        return err_sys(s->err, errno, "listen for the other members of this host");
    return 0;
}

/* ---- all connections ---- */

static void retry_later(struct want *w)
{
    uint32_t most = w->is_local ? RETRY_HOST_MS_MAX : RETRY_MS_MAX;

    w->busy = false;
    w->retry_ns = clock_ns() + w->retry_ms * (uint64_t)1000000;
    w->retry_ms = w->retry_ms * 2 < most ? w->retry_ms * 2 : most;
}

/* Removes the connection from the list; the last one moves to its place. */
static void remove_conn(struct handshake_state *s, size_t i, enum outcome why)
{
    struct conn *n = &s->conns[i];

    if (why == DROP) {
        tls_stream_free(n->tls);
        close(n->fd);
        if (n->want != NULL && n->want->dials)
            retry_later(n->want);
    }
    *n = s->conns[--s->n_conns];
}

static void dial(struct handshake_state *s, struct want *w)
{
    struct conn n = { .want = w, .state = DIAL_CONNECT, .expires_ns = UINT64_MAX };
    uint64_t now = clock_ns();
    struct sockaddr_un local;
    struct sockaddr_storage a;
    struct sockaddr *to = (struct sockaddr *)&local;
    socklen_t bytes;
    int rc;

    if (w->is_local) {
        bytes = local_address(s, w->member, &local);
    } else {
        rc = listener_parse(s->opts->view.members[w->member].data_address, &a, &bytes, s->err);
        if (rc < 0) { /* the member named it itself: this task and its job are valid */
            handshake_mark_dead(s, w->member);
            s->culprit = w->member;
            s->rc = err_wrap(s->err, ERR_PATH, "data address of %s", s->c->names[w->member]);
            return;
        }
        to = (struct sockaddr *)&a;
    }
    n.fd = socket(to->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (n.fd >= 0 && !w->is_local) {
        tcp_tune(n.fd, false);
        n.expires_ns = now + COMM_PATH_MS * (uint64_t)1000000;
    }
    if (n.fd >= 0 && fault_hit("comm.connect"))
        errno = ECONNREFUSED;
    else if (n.fd >= 0 && (connect(n.fd, to, bytes) == 0 || errno == EINPROGRESS)) {
        w->busy = true;
        s->conns[s->n_conns++] = n;
        return;
    }
    if (n.fd >= 0 && path_is_rejected(errno))
        (void)handshake_rejected(s, &n, "%s", errno_text(errno));
    else
        (void)handshake_note_error(&n, "%s", errno_text(errno));
    if (n.fd >= 0)
        close(n.fd);
    retry_later(w);
}

static const char *conn_source(const void *arg, size_t i, uint64_t *since)
{
    const struct conn *n = &((const struct handshake_state *)arg)->conns[i];

    *since = n->expires_ns;
    return n->state >= ACCEPT_HELLO && n->state < ACCEPT_READY ? n->from : NULL;
}

/* Makes room for one more connection, by closing an accepted one that is not authenticated. Returns
 * false if there is none. */
static bool make_room(struct handshake_state *s)
{
    size_t victim;

    if (s->n_conns < s->max_conns)
        return true;
    victim = conn_limit_victim(s->n_conns, conn_source, s);
    if (victim == SIZE_MAX)
        return false;
    remove_conn(s, victim, DROP);
    return true;
}

static void dial_due(struct handshake_state *s)
{
    uint64_t now = clock_ns();

    s->due_ns = UINT64_MAX;
    for (size_t i = 0; i < s->n_wants && s->n_missing > 0 && s->rc == 0; i++) {
        struct want *w = &s->wants[i];

        if (!w->dials || w->busy || w->is_connected)
            continue;
        if (now >= w->retry_ns && make_room(s))
            dial(s, w);
        if (!w->busy && w->retry_ns < s->due_ns)
            s->due_ns = w->retry_ns;
    }
}

static void accept_from(struct handshake_state *s, int listener)
{
    for (int i = 0; i < HALF_OPEN_SPARE; i++) { /* limited, so that other connections are handled */
        struct conn n = { .state = ACCEPT_HELLO,
                          .expires_ns = clock_ns() + AUTH_MS * (uint64_t)1000000 };

        n.fd = listener_accept(listener, n.from, sizeof(n.from));
        if (n.fd < 0) {
            if (errno != EAGAIN) /* for example no free descriptor: accepts again later */
                s->accept_again_ns = clock_ns() + ACCEPT_PAUSE_MS * (uint64_t)1000000;
            return;
        }
        if (make_room(s))
            s->conns[s->n_conns++] = n;
        else
            close(n.fd);
    }
}

/* Resumes the connections that were parked because they requested a later generation. */
static void resume_parked(struct handshake_state *s)
{
    struct parked p;
    size_t first = s->n_conns;

    while (s->opts->listener != NULL && listener_unpark(s->opts->listener, &p)) {
        struct conn n = { .fd = p.fd,
                          .state = ACCEPT_HELLO,
                          .done = p.done,
                          .expires_ns = clock_ns() + AUTH_MS * (uint64_t)1000000 };

        memcpy(n.hello, p.hello, sizeof(n.hello));
        snprintf(n.from, sizeof(n.from), "%s", p.from);
        s->conns[s->n_conns++] = n;
    }
    for (size_t i = s->n_conns; i-- > first && s->rc == 0;) {
        enum outcome o = handshake_advance(s, &s->conns[i]);

        if (o != CONTINUE)
            remove_conn(s, i, o);
    }
}

/* Returns the time until something is due, or on_wait must be called again. */
static int poll_wait_ms(const struct handshake_state *s, uint64_t deadline_ns)
{
    uint64_t now = clock_ns(), due = deadline_ns < s->due_ns ? deadline_ns : s->due_ns;

    if (s->accept_again_ns > now && s->accept_again_ns < due)
        due = s->accept_again_ns;
    for (size_t i = 0; i < s->n_conns; i++)
        if (s->conns[i].expires_ns < due)
            due = s->conns[i].expires_ns;
    return due <= now                               ? 0
           : due - now > COMM_SLICE_MS * 1000000ull ? COMM_SLICE_MS
                                                    : (int)((due - now) / 1000000 + 1);
}

/* Polls the connected links: a peer may die after its link and before its life line is connected.
 * The data of a link is not read here. */
static void poll_links(const struct handshake_state *s, struct pollfd *out)
{
    for (size_t i = 0; i < s->n_wants; i++) {
        const struct want *w = &s->wants[i];
        bool watched =
            w->kind == HANDSHAKE_LINK && w->is_connected && !comm_has_left(s->c, w->member);

        out[i] = (struct pollfd){ .fd = watched ? *w->fd : -1, .events = POLLRDHUP };
    }
}

static void check_links(struct handshake_state *s, const struct pollfd *polls)
{
    for (size_t i = 0; i < s->n_wants; i++)
        if (polls[i].revents != 0 && !comm_has_left(s->c, s->wants[i].member))
            (void)comm_fail(s->c, ERR_PEER, s->wants[i].member,
                            "%s died while connecting (its connection closed)",
                            s->c->names[s->wants[i].member]);
}

/* Polls the lives, the links, two listeners, and the new connections. */
static void wait_and_advance(struct handshake_state *s, uint64_t deadline_ns)
{
    size_t n = s->n_conns;
    uint32_t n_lives = life_polls(s->c, s->polls);
    struct pollfd *links = s->polls + n_lives, *listeners = links + s->n_wants,
                  *conn = listeners + 2;
    bool accepts = clock_ns() >= s->accept_again_ns;
    uint64_t now;

    poll_links(s, links);
    listeners[0] = (struct pollfd){ .fd = accepts && s->opts->listener != NULL
                                         ? listener_fd(s->opts->listener)
                                         : -1,
                               .events = POLLIN };
    listeners[1] = (struct pollfd){ .fd = accepts ? s->unix_fd : -1, .events = POLLIN };
    for (size_t i = 0; i < n; i++)
        conn[i] = (struct pollfd){ .fd = s->conns[i].fd, .events = handshake_events(&s->conns[i]) };
    if (poll(s->polls, n_lives + s->n_wants + 2 + n, poll_wait_ms(s, deadline_ns)) < 0)
        return;                            /* EINTR */
    life_advance(s->c, s->polls, n_lives); /* lives first: they report the cause */
    check_links(s, links);
    now = clock_ns();
    /* backwards, because forget() moves the last connection here */
    for (size_t i = n; i-- > 0 && s->rc == 0;) {
        enum outcome o = conn[i].revents != 0 ? handshake_advance(s, &s->conns[i]) : CONTINUE;

        if (o == CONTINUE && now >= s->conns[i].expires_ns && s->conns[i].state == DIAL_CONNECT)
            o = handshake_path_dead(s, &s->conns[i]);
        else if (o == CONTINUE && now >= s->conns[i].expires_ns) {
            (void)handshake_note_foreign(s, &s->conns[i], "sent nothing for too long");
            o = DROP;
        }
        if (o != CONTINUE)
            remove_conn(s, i, o);
    }
    for (int i = 0; i < 2; i++)
        if (listeners[i].fd >= 0 && listeners[i].revents != 0)
            accept_from(s, listeners[i].fd);
}

/* Reports the missing peers, and the last error of each. The path to a peer whose listener did not prove
 * in the last attempt that it is the peer counts as dead. */
static int report_missing(struct handshake_state *s, uint32_t *culprit)
{
    const struct comm *c = s->c;
    struct buf b = { 0 };
    uint32_t named = 0, last = COMM_NO_MEMBER;
    bool unproven = false;
    int rc;

    for (size_t i = 0; i < s->n_wants; i++) {
        const struct want *w = &s->wants[i];
        const char *silence =
            w->dials ? w->busy ? "does not answer" : "not tried yet" : "has not connected";

        if (w->is_connected && (w->kind != HANDSHAKE_HOST || c->shm.memory[w->member].bytes != 0))
            continue;
        if (w->is_connected)
            silence = "has not shared its memory";
        unproven |= w->unproven;
        if (w->dials && !w->is_connected && w->is_rejected)
            handshake_mark_dead(s, w->member);
        if (w->member == last || named++ >= NAMED_MAX)
            continue;
        if (last == COMM_NO_MEMBER)
            *culprit = w->member;
        last = w->member;
        buf_printf(&b, "%s%s (%s: %s)", b.len > 0 ? ", " : "", c->names[w->member],
                   w->is_local ? "on this host" : s->opts->view.members[w->member].data_address,
                   w->last[0] != '\0' ? w->last : silence);
    }
    if (named > NAMED_MAX)
        buf_printf(&b, " and %u more connections", named - NAMED_MAX);
    if (s->n_early > 0)
        buf_printf(&b, "; %u wait for a later generation, last: %s", s->n_early, s->early);
    if (s->n_foreign > 0)
        buf_printf(&b, "; rejected %u connections, last: %s", s->n_foreign, s->foreign);
    rc = err_set(s->err, unproven ? ERR_AUTH : ERR_TIMEOUT, "missing after %.3g s: %s",
                 (double)s->opts->deadline_ms / 1e3, b.failed ? "(out of memory)" : b.data);
    buf_fini(&b);
    return rc;
}

int handshake(struct comm *c, uint64_t deadline_ns, uint32_t *culprit, struct err *err)
{
    struct handshake_state s = { .c = c, .opts = &c->opts, .unix_fd = -1, .err = err, .due_ns = UINT64_MAX,
                       .culprit = COMM_NO_MEMBER };
    uint64_t due_ns = deadline_ns;

    if (c->opts.listener != NULL)
        listener_claim(c->opts.listener, true);
    s.here.generation = c->generation;
    s.rc = layout_digest(s.opts, c->topo.world, s.here.layout, err);
    if (s.rc == 0)
        s.rc = list_wants(&s);
    if (s.rc == 0)
        s.rc = listen_on_host(&s);
    if (s.rc == 0)
        resume_parked(&s);
    while (s.rc == 0 && !comm_has_failed(c)) {
        s.rc = host_advance(c, deadline_ns, err);
        if (s.rc < 0 || (s.n_missing == 0 && c->shm.is_shared))
            break;
        /* Only the leader knows the missing members; its deadline is about the same. */
        if (s.n_missing == 0 && c->shm.has_joined)
            due_ns = deadline_ns + GRACE_MS * (uint64_t)1000000;
        if (clock_ns() >= due_ns)
            s.rc = report_missing(&s, culprit);
        else
            dial_due(&s);
        comm_waits(c, true);
        if (s.rc == 0)
            wait_and_advance(&s, due_ns);
    }
    comm_waits(c, false);
    if (s.rc < 0 && s.culprit != COMM_NO_MEMBER)
        *culprit = s.culprit;
    for (size_t i = 0; i < s.n_conns; i++) {
        tls_stream_free(s.conns[i].tls);
        close(s.conns[i].fd);
    }
    if (s.unix_fd >= 0)
        close(s.unix_fd);
    if (c->opts.listener != NULL)
        listener_claim(c->opts.listener, false);
    free(s.wants);
    free(s.conns);
    free(s.polls);
    return comm_has_failed(c) ? -1 : s.rc;
}
