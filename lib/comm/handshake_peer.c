/* handshake_peer.c - one new connection: a fixed sequence of messages (handshake_message.h) for the
 * side that dials and for the side that accepts. A state is a message to send or to receive, and
 * the function that handles it. */
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/errno_text.h"
#include "base/fault.h"
#include "base/rng.h"
#include "comm/handshake_state.h"
#include "tls/tls.h"

enum { REJECTED_MIN = 10 /* attempts */ };

enum outcome handshake_note_error(struct conn *n, const char *fmt, ...)
{
    va_list ap;

    if (n->want != NULL) {
        va_start(ap, fmt);
        vsnprintf(n->want->last, sizeof(n->want->last), fmt, ap);
        va_end(ap);
    }
    return DROP;
}

enum outcome handshake_note_foreign(struct handshake_state *s, struct conn *n, const char *fmt, ...)
{
    char what[80];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(what, sizeof(what), fmt, ap);
    va_end(ap);
    s->n_foreign++;
    snprintf(s->foreign, sizeof(s->foreign), "a connection from %s %s", n->from, what);
    return DROP;
}

void handshake_mark_dead(struct handshake_state *s, uint32_t member)
{
    pthread_mutex_lock(&s->c->failure.lock);
    path_add(&s->c->failure.loss, member);
    pthread_mutex_unlock(&s->c->failure.lock);
}

enum outcome handshake_path_dead(struct handshake_state *s, struct conn *n)
{
    /* also marks other peers whose attempt expires soon */
    uint64_t recent_ns = clock_ns() + COMM_PATH_MS / 4 * (uint64_t)1000000;

    handshake_mark_dead(s, n->want->member);
    for (size_t i = 0; i < s->n_conns; i++)
        if (s->conns[i].state == DIAL_CONNECT && s->conns[i].expires_ns <= recent_ns)
            handshake_mark_dead(s, s->conns[i].want->member);
    s->culprit = n->want->member;
    s->rc = err_set(
        s->err, ERR_PATH, "%s (%s) answers no connection attempt on the data path for %.3g s",
        s->c->names[n->want->member], s->opts->view.members[n->want->member].data_address,
        (double)COMM_PATH_MS / 1e3);
    return DROP;
}

enum outcome handshake_rejected(struct handshake_state *s, struct conn *n, const char *fmt, ...)
{
    struct want *w = n->want;
    uint64_t now = clock_ns();
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(w->last, sizeof(w->last), fmt, ap);
    va_end(ap);
    if (w->is_local) /* the other process of this host may listen a moment later */
        return DROP;
    w->is_rejected = true;
    if (w->n_rejected++ == 0)
        w->rejected_ns = now;
    /* several attempts: this process may have been suspended between two of them */
    if (w->n_rejected < REJECTED_MIN || now - w->rejected_ns < COMM_PATH_MS * (uint64_t)1000000)
        return DROP;
    handshake_mark_dead(s, w->member);
    s->culprit = w->member;
    s->rc = err_set(s->err, ERR_PATH,
                    "%s (%s) rejects every connection on the data path for %.3g s: %s",
                    s->c->names[w->member], s->opts->view.members[w->member].data_address,
                    (double)COMM_PATH_MS / 1e3, w->last);
    return DROP;
}

static enum outcome connected(struct handshake_state *s, struct conn *n)
{
    if (n->want->is_connected) /* another connection of the same kind was faster */
        return DROP;
    if (n->want->tls != NULL)
        *n->want->tls = n->tls;
    if (n->want->key != NULL)
        handshake_key(n->hello, n->challenge, s->opts->key, n->want->key);
    (void)fault_hit("comm.settle"); /* a test kills the process here */
    tcp_tune(n->fd, true);
    *n->want->fd = n->fd;
    n->want->is_connected = true;
    n->want->busy = false;
    s->n_missing--;
    return DONE;
}

static enum outcome make_nonce(struct handshake_state *s, uint8_t out[HANDSHAKE_NONCE_BYTES])
{
    if (rng_os(out, HANDSHAKE_NONCE_BYTES) == 0)
        return CONTINUE;
    s->rc = err_set(s->err, ERR_IO, "the kernel provides no random numbers");
    return DROP;
}

static enum outcome go_on(struct handshake_state *s, struct conn *n)
{
    (void)s;
    (void)n;
    return CONTINUE;
}

static enum outcome dial_connected(struct handshake_state *s, struct conn *n)
{
    struct handshake_hello h = s->here;
    int why = 0;
    socklen_t bytes = sizeof(why);

    if (getsockopt(n->fd, SOL_SOCKET, SO_ERROR, &why, &bytes) < 0)
        why = errno;
    if (comm_is_path_dead(why))
        return handshake_path_dead(s, n);
    if (path_is_rejected(why))
        return handshake_rejected(s, n, "%s", errno_text(why));
    if (why != 0)
        return handshake_note_error(n, "%s", errno_text(why));
    n->expires_ns = UINT64_MAX;
    h.kind = n->want->kind;
    h.from = n->want->own;
    h.to = n->want->peer;
    if (make_nonce(s, h.nonce) != CONTINUE)
        return DROP;
    handshake_hello_write(&h, n->hello);
    n->want->last[0] = '\0';                   /* from here on the peer is silent */
    n->want->is_rejected = !n->want->is_local; /* until it proves that it is the peer */
    return CONTINUE;
}

static enum outcome dial_challenge(struct handshake_state *s, struct conn *n)
{
    const char *name = s->c->names[n->want->member];
    struct handshake_challenge ch;
    bool proven;

    if (!handshake_challenge_read(n->challenge, n->hello, s->opts->key, &ch, &proven))
        return handshake_rejected(s, n, "its listener uses another protocol");
    n->want->unproven = !proven;
    if (!proven && ch.generation == s->here.generation)
        return handshake_rejected(s, n, "its listener does not know the key");
    if (!proven)
        return handshake_note_error(n,
                                    "its listener does not know the key and is at generation %llu",
                                    (unsigned long long)ch.generation);
    n->want->is_rejected = false;
    n->want->n_rejected = 0;
    switch (ch.verdict) {
    case HANDSHAKE_OK:
        handshake_proof_write(n->hello, n->challenge, s->opts->key, n->proof);
        return CONTINUE;
    case HANDSHAKE_STALE:
        s->rc = err_set(s->err, ERR_PEER, "generation %llu has ended: %s is at generation %llu",
                        (unsigned long long)s->here.generation, name,
                        (unsigned long long)ch.generation);
        return DROP;
    case HANDSHAKE_LAYOUT:
        s->rc = err_set(s->err, ERR_PEER, "%s has another list of members for generation %llu, or other values of "
                        "communication.shared_memory, communication.encrypt and elastic.spare",
                        name, (unsigned long long)s->here.generation);
        return DROP;
    default:
        return handshake_note_error(n, "it does not expect this connection");
    }
}

/* Both sides are authenticated: the connection is complete, or continues under TLS. */
static enum outcome proven(struct handshake_state *s, struct conn *n, enum tls_side side)
{
    uint8_t key[HANDSHAKE_PROOF_BYTES];
    struct err err;
    int rc;

    if (n->want->tls == NULL)
        return connected(s, n);
    handshake_key(n->hello, n->challenge, s->opts->key, key);
    rc = tls_stream_new_psk(key, side, n->fd, &n->tls, &err);
    return rc < 0 ? handshake_note_error(n, "%s", err.text) : CONTINUE;
}

static enum outcome dial_ready(struct handshake_state *s, struct conn *n)
{
    if (!handshake_ready_check(n->ready))
        return handshake_note_error(n, "it sent an invalid READY message");
    return proven(s, n, TLS_CLIENT);
}

static enum outcome accept_ready(struct handshake_state *s, struct conn *n)
{
    return proven(s, n, TLS_SERVER);
}

static enum outcome secure(struct handshake_state *s, struct conn *n)
{
    struct err err;
    int rc = tls_stream_handshake(n->tls, &err);

    return rc < 0 ? handshake_note_error(n, "%s", err.text) : rc == 0 ? AGAIN : connected(s, n);
}

static struct want *find_want(struct handshake_state *s, const struct handshake_hello *h)
{
    for (size_t i = 0; i < s->n_wants; i++) {
        struct want *w = &s->wants[i];

        if (w->kind == h->kind && w->own == h->to && w->peer == h->from && !w->dials &&
            !w->is_connected)
            return w;
    }
    return NULL;
}

/* Parks the connection: its dialler waits for an answer until this member opens the requested
 * generation. */
static enum outcome park(struct handshake_state *s, struct conn *n, const struct handshake_hello *h)
{
    struct parked p = { .fd = n->fd, .done = HANDSHAKE_HELLO_BYTES };

    memcpy(p.hello, n->hello, sizeof(p.hello));
    memcpy(p.from, n->from, sizeof(p.from));
    listener_park(s->opts->listener, &p);
    s->n_early++;
    snprintf(s->early, sizeof(s->early),
             "a connection from %s requested generation %llu, but this member is at %llu", n->from,
             (unsigned long long)h->generation, (unsigned long long)s->here.generation);
    return DONE;
}

static enum outcome accept_hello(struct handshake_state *s, struct conn *n)
{
    struct handshake_challenge ch = { .generation = s->here.generation };
    const char *why;
    struct handshake_hello h;

    if (!handshake_hello_read(n->hello, &h, &why))
        return handshake_note_foreign(s, n, "%s", why);
    if (h.kind == HANDSHAKE_TEST)
        return DROP;
    ch.verdict = handshake_hello_compare(&h, &s->here);
    if (ch.verdict == HANDSHAKE_EARLY)
        return park(s, n, &h);
    if (ch.verdict == HANDSHAKE_OK) {
        n->want = find_want(s, &h);
        if (n->want == NULL)
            ch.verdict = HANDSHAKE_UNWANTED;
    }
    if (n->want == NULL)
        (void)handshake_note_foreign(s, n, "requested generation %llu, but this member is at %llu",
                                     (unsigned long long)h.generation,
                                     (unsigned long long)s->here.generation);
    if (make_nonce(s, ch.nonce) != CONTINUE)
        return DROP;
    handshake_challenge_write(&ch, n->hello, s->opts->key, n->challenge);
    return CONTINUE;
}

static enum outcome accept_challenged(struct handshake_state *s, struct conn *n)
{
    (void)s;
    return n->want != NULL ? CONTINUE : DROP;
}

static enum outcome accept_proof(struct handshake_state *s, struct conn *n)
{
    if (!handshake_proof_check(n->proof, n->hello, n->challenge, s->opts->key)) {
        n->want->unproven = true;
        (void)handshake_note_foreign(s, n, "did not know the key");
        return handshake_note_error(
            n, "a connection from %s claimed to be this peer, but did not know the key", n->from);
    }
    handshake_ready_write(n->ready);
    return CONTINUE;
}

#define MESSAGE(field_) offsetof(struct conn, field_), sizeof(((struct conn *)0)->field_)
static const struct {
    short events;
    size_t at, bytes; /* of the message in struct conn */
    enum outcome (*then)(struct handshake_state *, struct conn *);
} states[] = {
    [DIAL_CONNECT] = { POLLOUT, 0, 0, dial_connected },
    [DIAL_HELLO] = { POLLOUT, MESSAGE(hello), go_on },
    [DIAL_CHALLENGE] = { POLLIN, MESSAGE(challenge), dial_challenge },
    [DIAL_PROOF] = { POLLOUT, MESSAGE(proof), go_on },
    [DIAL_READY] = { POLLIN, MESSAGE(ready), dial_ready },
    [DIAL_TLS] = { POLLIN, 0, 0, secure },
    [ACCEPT_HELLO] = { POLLIN, MESSAGE(hello), accept_hello },
    [ACCEPT_CHALLENGE] = { POLLOUT, MESSAGE(challenge), accept_challenged },
    [ACCEPT_PROOF] = { POLLIN, MESSAGE(proof), accept_proof },
    [ACCEPT_READY] = { POLLOUT, MESSAGE(ready), accept_ready },
    [ACCEPT_TLS] = { POLLIN, 0, 0, secure },
};

short handshake_events(const struct conn *n)
{
    return n->tls != NULL ? tls_stream_events(n->tls) : states[n->state].events;
}

enum outcome handshake_advance(struct handshake_state *s, struct conn *n)
{
    for (;;) {
        uint8_t *at = (uint8_t *)n + states[n->state].at + n->done;
        size_t rest = states[n->state].bytes - n->done;
        enum outcome next;

        if (rest > 0) {
            ssize_t k = states[n->state].events == POLLIN ? recv(n->fd, at, rest, 0)
                                                          : send(n->fd, at, rest, MSG_NOSIGNAL);

            if (k < 0 && (errno == EAGAIN || errno == EINTR))
                return CONTINUE;
            if (k <= 0)
                return handshake_note_error(n, "the handshake was interrupted: %s",
                                            k == 0 ? "connection closed" : errno_text(errno));
            n->done += (size_t)k;
            if ((size_t)k < rest)
                continue;
        }
        next = states[n->state].then(s, n);
        if (next != CONTINUE)
            return next == AGAIN ? CONTINUE : next;
        n->state++;
        n->done = 0;
    }
}
