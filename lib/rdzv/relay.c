/* relay.c - see relay.h. */
#include "rdzv/relay.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/err.h"
#include "tls/tls.h"

enum {
    BUFFER_BYTES = 16384,
    CHUNK_BYTES = 512, /* read at once from a client without allowance of its own */
    PREFACE_MS = 5000,
    FLUSH_MS = 5000,      /* limit for the bytes that remain after one side has closed */
    UNSENT_MAX = 1 << 20, /* bytes that gRPC wrote before it closed its end, and that are still
                             sent */
};

/* Units per second, and the largest saved allowance, of a connection. A client that completes the handshake of TLS
 * has proved that it belongs to the cluster: its handshake and its connection cost nothing, because many tasks of a
 * host may connect at once. */
static const double own_rate = 50, own_max = 500;
static const double connection_cost = 10; /* of a new transport of gRPC, in clear text */
static const double handshake_cost = 15;  /* of TLS that fails: 1.7 ms of a core; 66 a second from a source */
enum { TLS_HANDSHAKE = 22 };              /* first byte of a connection under TLS */

void relay_init(struct relay *r, struct source *source, struct tls *certificates, int client,
                uint64_t now_ms)
{
    *r = (struct relay){ .source = source,
                         .certificates = certificates,
                         .client = client,
                         .server = -1,
                         .own = { .at_ms = now_ms },
                         .active_ms = now_ms,
                         .until_ms = now_ms + PREFACE_MS };
}

void relay_fini(struct relay *r)
{
    free(r->up.bytes);
    free(r->down.bytes);
    r->up.bytes = r->down.bytes = NULL;
    tls_stream_free(r->tls);
    r->tls = NULL;
}

void relay_begin(struct relay *r, int server)
{
    r->server = server;
    r->server_events = 0;
    r->until_ms = 0;
    r->own.saved -= r->tls == NULL ? connection_cost : 0;
}

/* A debt of the relay is paid from its own allowance, then from that of its source. */
bool relay_has_allowance(struct relay *r, uint64_t now_ms)
{
    if (r->source == NULL)
        return true;
    allowance_refill(&r->own, now_ms, own_rate, own_max);
    source_pay(r->source, &r->own, now_ms);
    return r->own.saved >= 0;
}

/* ---- one direction ---- */

static bool is_transient(int error)
{
    return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

/* Writes the bytes of the flow to a socket, or to its stream. Returns false if the other side has
 * closed. */
static bool flush(struct relay_flow *f, int to, struct tls_stream *tls)
{
    while (f->bytes != NULL) {
        const uint8_t *bytes = f->bytes + f->from;
        size_t rest = f->to - f->from;
        ssize_t n = tls != NULL ? tls_stream_send(tls, bytes, rest)
                                : send(to, bytes, rest, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n < 0)
            return is_transient(errno);
        f->from += (size_t)n;
        if (f->from == f->to) {
            free(f->bytes);
            f->bytes = NULL;
        }
    }
    return true;
}

/* Reads at most `most` bytes into the empty buffer of the flow. Returns -1 for an error, 0 if there
 * are no bytes now or at the end. */
static ssize_t fill(struct relay_flow *f, int from, struct tls_stream *tls, size_t most)
{
    uint8_t bytes[BUFFER_BYTES];
    ssize_t n =
        tls != NULL ? tls_stream_recv(tls, bytes, most) : recv(from, bytes, most, MSG_DONTWAIT);

    if (n < 0)
        return is_transient(errno) ? 0 : -1;
    if (n == 0) {
        f->is_over = true;
        return 0;
    }
    f->bytes = malloc((size_t)n);
    if (f->bytes == NULL)
        return -1;
    memcpy(f->bytes, bytes, (size_t)n);
    f->from = 0;
    f->to = (size_t)n;
    return n;
}

/* ---- from the client ---- */

/* Returns the number of bytes that are read from the client at once: all of a payload, and as many
 * frames as the allowance covers. */
static size_t chunk_of(const struct relay *r)
{
    size_t n = CHUNK_BYTES + r->frames.rest +
               (size_t)(r->own.saved > 0 ? r->own.saved : 0) * FRAMES_HEAD_BYTES;

    return n < BUFFER_BYTES ? n : BUFFER_BYTES;
}

/* Inserts the part of the preface that was read before in front of the bytes. */
static bool restore_preface(struct relay_flow *f, size_t n)
{
    uint8_t *whole = malloc(n + f->to);

    if (whole == NULL)
        return false;
    memcpy(whole, frames_preface, n);
    memcpy(whole + n, f->bytes, f->to);
    free(f->bytes);
    f->bytes = whole;
    f->to += n;
    return true;
}

/* Answers a client under TLS in clear text: an empty SETTINGS frame, with which a server of HTTP/2
 * begins (RFC 9113, section 3.4). The client thus reports that this task does not use TLS. The bytes of
 * the client are read first, because otherwise the reset of the connection could discard the answer. */
static enum relay_result reject_tls(struct relay *r, struct err *err)
{
    static const uint8_t settings[FRAMES_HEAD_BYTES] = { [3] = 4 };
    uint8_t ignored[BUFFER_BYTES];

    (void)recv(r->client, ignored, sizeof(ignored), MSG_DONTWAIT);
    (void)send(r->client, settings, sizeof(settings), MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)err_set(err, ERR_AUTH,
                  "TLS: the other side has a token or certificates, but this task has none: set the same "
                  "TRAINERD_TOKEN or TRAINERD_TLS on every task");
    return RELAY_INSECURE;
}

/* Decides by the first byte whether the connection is under TLS. */
static enum relay_result begin(struct relay *r, bool may_secure, struct err *err)
{
    uint8_t first;
    ssize_t n = recv(r->client, &first, 1, MSG_DONTWAIT | MSG_PEEK);

    if (n <= 0)
        return n < 0 && is_transient(errno) ? RELAY_CONTINUES : RELAY_BROKEN;
    if (first == TLS_HANDSHAKE && r->certificates != NULL && !may_secure)
        return RELAY_NO_PLACE;
    r->has_begun = true;
    if (first != TLS_HANDSHAKE)
        return RELAY_CONTINUES;
    if (r->certificates == NULL)
        return reject_tls(r, err);
    if (tls_stream_new(r->certificates, TLS_SERVER, r->client, NULL, &r->tls, NULL) < 0)
        return RELAY_BROKEN;
    r->own.saved -= handshake_cost;
    r->is_securing = true;
    return RELAY_CONTINUES;
}

static enum relay_result secure(struct relay *r, struct err *err)
{
    int rc = tls_stream_handshake(r->tls, err);

    r->is_securing = rc == 0;
    if (rc == 1)
        source_refund(r->source, handshake_cost);
    return rc < 0 ? RELAY_INSECURE : RELAY_CONTINUES;
}

/* Counts the frames in the n bytes of r->up. */
static enum relay_result admit(struct relay *r, size_t n)
{
    uint8_t n_before = r->frames.n_preface;
    double cost = 0;

    if (!frames_read(&r->frames, r->up.bytes, n, &cost))
        return RELAY_BROKEN;
    r->own.saved -= cost;
    if (r->server >= 0)
        return RELAY_CONTINUES;
    if (frames_has_preface(&r->frames))
        return restore_preface(&r->up, n_before) ? RELAY_BEGINS : RELAY_BROKEN;
    free(r->up.bytes); /* a part of the preface: its content is known */
    r->up.bytes = NULL;
    return RELAY_CONTINUES;
}

enum relay_result relay_read_client(struct relay *r, uint64_t now_ms, bool may_secure,
                                    struct err *err)
{
    enum relay_result result = RELAY_CONTINUES;
    ssize_t n;

    if (r->up.bytes != NULL || r->up.is_over)
        return RELAY_CONTINUES;
    if (!relay_has_allowance(r, now_ms))
        return RELAY_NO_ALLOWANCE;
    if (!r->has_begun)
        result = begin(r, may_secure, err);
    if (result == RELAY_CONTINUES && r->is_securing)
        result = secure(r, err);
    if (result != RELAY_CONTINUES || !r->has_begun || r->is_securing)
        return result;
    n = fill(&r->up, r->client, r->tls, r->source != NULL ? chunk_of(r) : BUFFER_BYTES);
    if (n < 0)
        return RELAY_BROKEN;
    if (n == 0)
        return !r->up.is_over || r->server >= 0 ? RELAY_CONTINUES : RELAY_BROKEN;
    r->active_ms = now_ms;
    return r->source != NULL ? admit(r, (size_t)n) : RELAY_CONTINUES;
}

bool relay_has_bytes(const struct relay *r)
{
    return r->tls != NULL && !r->is_securing && !r->is_paused && r->up.bytes == NULL &&
           !r->up.is_over && tls_stream_has_bytes(r->tls);
}

/* ---- from gRPC ---- */

bool relay_read_server(struct relay *r)
{
    return r->down.bytes != NULL || fill(&r->down, r->server, NULL, BUFFER_BYTES) >= 0;
}

void relay_finish_server(struct relay *r)
{
    uint8_t *all = r->down.bytes;
    size_t n = all != NULL ? r->down.to : 0;
    ssize_t got = 0;

    for (size_t size = n + BUFFER_BYTES; size <= UNSENT_MAX; size = n + BUFFER_BYTES) {
        uint8_t *grown = realloc(all, size);

        if (grown == NULL)
            break;
        all = grown;
        got = recv(r->server, all + n, size - n, MSG_DONTWAIT);
        if (got <= 0)
            break;
        n += (size_t)got;
    }
    if (r->down.bytes == NULL)
        r->down.from = 0;
    r->down.bytes = all;
    r->down.to = n;
    if (r->down.from == n) {
        free(all);
        r->down.bytes = NULL;
    }
    r->down.is_over = r->is_server_done = true;
}

bool relay_flush(struct relay *r, uint64_t now_ms)
{
    bool is_alive = flush(&r->up, r->server, NULL) && flush(&r->down, r->client, r->tls);

    if (!is_alive || (r->up.is_over && r->up.bytes == NULL) ||
        (r->down.is_over && r->down.bytes == NULL))
        return false;
    if ((r->up.is_over || r->down.is_over) && r->until_ms == 0)
        r->until_ms = now_ms + FLUSH_MS;
    return true;
}
