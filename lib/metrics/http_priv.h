/* http_priv.h - what the files of the HTTP server share: which names a request may use for the server, and which
 * connections stay open. Private to lib/metrics. */
#ifndef METRICS_HTTP_PRIV_H
#define METRICS_HTTP_PRIV_H

#include <stdbool.h>
#include <stddef.h>

struct err;
struct sockaddr;

/* ---- http_hosts.c: the Host header. Constant after http_hosts_new(); any thread ---- */

struct http_hosts;
enum { HTTP_HOST_MAX = 255 }; /* bytes of a name */

/* Makes the list: each address, localhost, the name of this machine, `listen` (without port) and `names` [n], which are
 * copied; "*.example.com" is every name below it, "*" every name. On success the caller owns *out. Errors: ERR_INPUT
 * (not a host name), ERR_NOMEM. */
int http_hosts_new(const char *listen, const char *const *names, size_t n, struct http_hosts **out,
                   struct err *err);
/* Whether a request with this Host header, with or without port, means this server. NULL (HTTP/1.0): true. */
bool http_hosts_have(const struct http_hosts *h, const char *header);
void http_hosts_free(struct http_hosts *h); /* NULL is allowed */

/* ---- http_clients.c: the open connections. Any thread ---- */

struct http_clients;
struct http_client;
enum {
    HTTP_CLIENTS = 64,             /* open connections */
    HTTP_CLIENTS_OF_ADDRESS = 24,  /* of an IPv4 address, or of the first 64 bits of an IPv6 address */
    HTTP_REQUEST_MS = 10000, /* for the head of a request, and again for its response */
};

struct http_clients *http_clients_new(void); /* NULL: out of memory */
/* Adds a connection. Above a limit the connection whose request has taken longest is shut down: the HTTP server then
 * closes it, and calls http_clients_end(). Returns the entry, which http_clients_end() frees; NULL: out of memory. */
struct http_client *http_clients_begin(struct http_clients *c, int fd, const struct sockaddr *from);
/* The head of a request has arrived, or its response was sent: the time begins again. NULL is allowed. */
void http_clients_renew(struct http_clients *c, struct http_client *x);
void http_clients_end(struct http_clients *c, struct http_client *x); /* before the socket is closed; NULL is allowed */
/* Shuts down the connections whose request has taken longer than HTTP_REQUEST_MS. */
void http_clients_expire(struct http_clients *c);
void http_clients_free(struct http_clients *c); /* all connections have ended; NULL is allowed */

#endif
