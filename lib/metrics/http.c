/* http.c - serves the registry and the pages of the daemon over HTTP. One thread of libmicrohttpd parses the
 * protocol. The number of connections, also of each address, their memory, and the time of a request are bounded, and a
 * request must name this server (http_clients.c, http_hosts.c). */
#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"
#include "base/ports.h"
#include "base/text.h"
#include "metrics/http_priv.h"
#include "metrics/metrics.h"

enum {
    CONNECTIONS = 2 * HTTP_CLIENTS, /* also those that were shut down and are not closed yet */
    CONNECTION_BYTES = 16384,       /* limit of request line and headers */
    CONNECTION_SECONDS = 10,        /* a connection that is idle for longer is closed */
    MISDIRECTED = 421, /* RFC 9110, section 15.5.20 */
};

struct metrics_http {
    struct metrics *metrics;          /* borrowed */
    const struct metrics_page *pages; /* [n_pages] borrowed */
    size_t n_pages;
    void *arg; /* of the pages */
    uint16_t port;
    struct MHD_Daemon *daemon; /* owned; NULL before it is started */
    struct http_hosts *hosts;     /* owned */
    struct http_clients *clients; /* owned */
};

/* ---- responses ---- */

/* A page may load only what this server has, so that no text that is shown can load or send
 * anything, and no other site can show the page inside its own. */
static const struct {
    const char *name, *value;
} headers[] = {
    { "Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
                                 "base-uri 'none'; form-action 'none'; frame-ancestors 'none'" },
    { "X-Content-Type-Options", "nosniff" },
    { "Referrer-Policy", "no-referrer" },
    { MHD_HTTP_HEADER_CACHE_CONTROL, "no-store" },
};

/* Queues a response. Takes ownership of the memory of `body`; if `body` failed, the response is an
 * empty 500. */
static enum MHD_Result send_response(struct MHD_Connection *c, unsigned code, const char *type,
                                     struct buf *body)
{
    struct MHD_Response *r;
    enum MHD_Result result;

    if (body->failed) {
        buf_fini(body);
        code = MHD_HTTP_INTERNAL_SERVER_ERROR;
    }
    r = MHD_create_response_from_buffer(body->len, body->data, MHD_RESPMEM_MUST_FREE);
    if (r == NULL) {
        buf_fini(body);
        return MHD_NO; /* closes the connection */
    }
    /* If memory is exhausted, the response is sent without the header. */
    (void)MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    for (size_t i = 0; i < COUNT_OF(headers); i++)
        (void)MHD_add_response_header(r, headers[i].name, headers[i].value);
    if (code == MHD_HTTP_METHOD_NOT_ALLOWED)
        (void)MHD_add_response_header(r, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    result = MHD_queue_response(c, code, r);
    MHD_destroy_response(r);
    return result;
}

static enum MHD_Result send_refusal(struct MHD_Connection *c, unsigned code, const char *text)
{
    struct buf body = { 0 };

    buf_str(&body, text);
    return send_response(c, code, "text/plain; charset=utf-8", &body);
}

static enum MHD_Result send_page(const struct metrics_http *h, struct MHD_Connection *c,
                                 const struct metrics_page *page)
{
    struct buf body = { 0 };

    if (page->print(h->arg, &body))
        return send_response(c, MHD_HTTP_OK, page->type, &body);
    buf_fini(&body);
    return send_refusal(c, MHD_HTTP_SERVICE_UNAVAILABLE,
                        "the task does not answer now; try again\n");
}

static enum MHD_Result refuse_host(struct MHD_Connection *c, const char *host)
{
    struct buf body = { 0 };

    buf_printf(&body, "'%.255s' is not a name of this server; use its address, or add the name with --metrics-hosts "
                      "(TRAINERD_METRICS_HOSTS)\n", host);
    return send_response(c, MISDIRECTED, "text/plain; charset=utf-8", &body);
}

static void renew(const struct metrics_http *h, struct MHD_Connection *c)
{
    http_clients_renew(
        h->clients, MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context);
}

/* libmicrohttpd calls it on the HTTP thread once after the headers, once for each part of a request
 * body, and once at the end. */
static enum MHD_Result on_request(void *arg, struct MHD_Connection *c, const char *url,
                                  const char *method, const char *version, const char *upload,
                                  size_t *upload_bytes, void **seen)
{
    static int marker;
    const struct metrics_http *h = arg;
    const char *host = MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_HOST);

    (void)version;
    (void)upload;
    if (!http_hosts_have(h->hosts, host))
        return refuse_host(c, host);
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
        return send_refusal(c, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD are served here\n");
    if (*seen == NULL) {
        *seen = &marker;
        renew(h, c);
        return MHD_YES;
    }
    if (*upload_bytes > 0)
        return MHD_NO; /* a GET with a body is rejected */
    if (strcmp(url, "/metrics") == 0) {
        struct buf body = { 0 };

        metrics_print(h->metrics, &body);
        return send_response(c, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8", &body);
    }
    for (size_t i = 0; i < h->n_pages; i++)
        if (strcmp(url, h->pages[i].path) == 0)
            return send_page(h, c, &h->pages[i]);
    return send_refusal(
        c, MHD_HTTP_NOT_FOUND,
        h->n_pages > 0
            ? "this page does not exist; / is the status page, /metrics is for Prometheus\n"
            : "only /metrics is served here\n");
}

/* ---- connections: on the HTTP thread ---- */

static void on_connection(void *arg, struct MHD_Connection *c, void **context,
                          enum MHD_ConnectionNotificationCode code)
{
    const struct metrics_http *h = arg;

    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        /* Each value is copied at once: since libmicrohttpd 1.0, the next call overwrites the union. */
        int fd = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
        const struct sockaddr *from =
            MHD_get_connection_info(c, MHD_CONNECTION_INFO_CLIENT_ADDRESS)->client_addr;

        *context = http_clients_begin(h->clients, fd, from);
    } else {
        http_clients_end(h->clients, *context);
        *context = NULL;
    }
}

static void on_served(void *arg, struct MHD_Connection *c, void **seen,
                      enum MHD_RequestTerminationCode code)
{
    (void)seen;
    (void)code;
    renew(arg, c);
}

/* ---- listening ---- */

/* Splits "port", "host:port" or "[v6]:port". A port alone is one of the loopback interface. */
static int split_address(const char *listen, char host[HTTP_HOST_MAX + 1], char port[8],
                         struct err *err)
{
    static const char expected[] =
        "expected a port, such as 9090, or host:port, such as 10.0.0.1:9090";
    const char *colon = strrchr(listen, ':');
    size_t n;
    uint64_t number;

    if (strstr(listen, "://") != NULL)
        return err_set(err, ERR_INPUT, "found a URL; %s", expected);
    if (text_u64(listen, UINT16_MAX, &number)) {
        snprintf(host, HTTP_HOST_MAX + 1, "127.0.0.1");
        snprintf(port, 8, "%u", (unsigned)number);
        return 0;
    }
    if (colon == NULL)
        return err_set(err, ERR_INPUT, "the port is missing; %s", expected);
    if (!text_u64(colon + 1, UINT16_MAX, &number))
        return err_set(err, ERR_INPUT, "invalid port '%.40s' (0 to 65535); %s", colon + 1,
                       expected);
    n = (size_t)(colon - listen);
    if (n == 0)
        return err_set(err, ERR_INPUT,
                       "the host is missing; write %s for this machine alone, "
                       "0.0.0.0%s for every interface",
                       colon + 1, colon);
    if (listen[0] == '[' && n >= 3 && listen[n - 1] == ']') {
        listen++;
        n -= 2;
    } else if (memchr(listen, ':', n) != NULL) {
        return err_set(err, ERR_INPUT, "write an IPv6 address in brackets, such as [::1]:9090");
    }
    if (n > HTTP_HOST_MAX)
        return err_set(err, ERR_INPUT, "the host name is longer than %d bytes", HTTP_HOST_MAX);
    memcpy(host, listen, n);
    host[n] = '\0';
    snprintf(port, 8, "%u", (unsigned)number);
    return 0;
}

static int bind_error(int errnum, struct err *err)
{
    static const struct {
        int errnum, code;
        const char *remedy;
    } known[] = {
        { EADDRINUSE, ERR_IO,
          "the port is in use; choose another port, or 0 for a free one" },
        { EADDRNOTAVAIL, ERR_INPUT,
          "this machine has no such address; 0.0.0.0 means all its addresses" },
        { EACCES, ERR_INPUT, "ports below 1024 require privileges; choose a higher port" },
    };

    for (size_t i = 0; i < COUNT_OF(known); i++)
        if (errnum == known[i].errnum)
            return err_set(err, known[i].code, "%s", known[i].remedy);
    return err_sys(err, errnum, "cannot listen");
}

static int listen_at(const struct addrinfo *a, int *out, struct err *err)
{
    const int on = 1;
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int rc;

    if (fd < 0)
        return err_sys(err, errno, "socket");
    /* Old connections of an earlier process do not block the port; an active listener does. */
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, CONNECTIONS) == 0) {
        *out = fd;
        return 0;
    }
    rc = bind_error(errno, err);
    close(fd);
    return rc;
}

static int open_socket(const char *host, const char *port, int *out, struct err *err)
{
    const struct addrinfo hints = { .ai_flags = AI_PASSIVE | AI_NUMERICSERV,
                                    .ai_socktype = SOCK_STREAM };
    struct addrinfo *list;
    int rc = 0, failure;

    if (strcmp(host, "0.0.0.0") == 0) {
        *out = listen_any((uint16_t)atoi(port), CONNECTIONS);
        return *out < 0 ? bind_error(-*out, err) : 0;
    }
    failure = getaddrinfo(host, port, &hints, &list);
    if (failure != 0)
        return err_set(err, failure == EAI_AGAIN || failure == EAI_SYSTEM ? ERR_IO : ERR_INPUT,
                       "host '%s': %s; use an address of this machine, or 0.0.0.0", host,
                       gai_strerror(failure));
    for (const struct addrinfo *a = list; a != NULL; a = a->ai_next) {
        rc = listen_at(a, out, err);
        if (rc == 0)
            break;
    }
    freeaddrinfo(list);
    return rc;
}

static uint16_t port_of(int fd)
{
    struct sockaddr_storage a;
    socklen_t n = sizeof(a);

    CHECK(getsockname(fd, (struct sockaddr *)&a, &n) == 0);
    return ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port
                                         : ((struct sockaddr_in *)&a)->sin_port);
}

int metrics_http_open(struct metrics *m, const struct metrics_http_opts *opts,
                      struct metrics_http **out, struct err *err)
{
    struct metrics_http *h = calloc(1, sizeof(*h));
    char host[HTTP_HOST_MAX + 1], port[8];
    int fd = -1, rc;

    if (h == NULL)
        return err_set(err, ERR_NOMEM, "metrics server: out of memory");
    *h = (struct metrics_http){ .metrics = m, .pages = opts->pages, .n_pages = opts->n_pages, .arg = opts->arg,
                                .clients = http_clients_new() };
    rc = h->clients != NULL ? split_address(opts->listen, host, port, err)
                            : err_set(err, ERR_NOMEM, "out of memory");
    if (rc == 0)
        rc = http_hosts_new(host, opts->hosts, opts->n_hosts, &h->hosts, err);
    if (rc == 0)
        rc = open_socket(host, port, &fd, err);
    if (rc < 0)
        goto fail;
    h->port = port_of(fd);
    /* clang-format off */
    h->daemon = MHD_start_daemon(MHD_USE_AUTO_INTERNAL_THREAD | MHD_USE_ITC, 0, NULL, NULL,
                                 on_request, h,
                                 MHD_OPTION_LISTEN_SOCKET, fd,
                                 MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS,
                                 MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)CONNECTION_SECONDS,
                                 MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES,
                                 MHD_OPTION_STRICT_FOR_CLIENT, 1,
                                 MHD_OPTION_NOTIFY_CONNECTION, on_connection, h,
                                 MHD_OPTION_NOTIFY_COMPLETED, on_served, h,
                                 MHD_OPTION_END);
    /* clang-format on */
    if (h->daemon == NULL) { /* libmicrohttpd may have closed fd, so it is not closed here */
        rc = err_set(err, ERR_NOMEM, "cannot start the server thread");
        goto fail;
    }
    *out = h;
    return 0;

fail:
    metrics_http_close(h);
    return err_wrap(err, rc, "metrics at '%.300s'", opts->listen);
}

void metrics_http_expire(struct metrics_http *h)
{
    if (h != NULL)
        http_clients_expire(h->clients);
}

uint16_t metrics_http_port(const struct metrics_http *h)
{
    return h->port;
}

void metrics_http_close(struct metrics_http *h)
{
    if (h == NULL)
        return;
    if (h->daemon != NULL)
        MHD_stop_daemon(h->daemon);
    http_clients_free(h->clients);
    http_hosts_free(h->hosts);
    free(h);
}
