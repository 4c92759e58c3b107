/* http_clients.c - limits the connections of each address and the time of a request. A new connection is always
 * admitted: above a limit, the connection whose request has taken longest is closed for it. Slow or silent connections
 * therefore cannot exclude other clients, because a normal request takes milliseconds. */
#include <arpa/inet.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "metrics/http_priv.h"

struct http_client {
    struct http_client *next;
    int fd; /* borrowed; open while the entry exists */
    uint8_t address[16];
    uint64_t since_ms; /* clock_ms() at which the time of the request began */
    bool is_shut;      /* the HTTP server closes it */
};

struct http_clients {
    pthread_mutex_t lock; /* guards the list */
    struct http_client *first;
};

struct http_clients *http_clients_new(void)
{
    struct http_clients *c = calloc(1, sizeof(*c));

    if (c != NULL)
        pthread_mutex_init(&c->lock, NULL);
    return c;
}

static void copy_address(uint8_t out[16], const struct sockaddr *from)
{
    static const uint8_t mapped[12] = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff };

    memset(out, 0, 16);
    if (from->sa_family == AF_INET) {
        memcpy(out, mapped, sizeof(mapped));
        memcpy(out + 12, &((const struct sockaddr_in *)from)->sin_addr, 4);
    } else if (from->sa_family == AF_INET6) {
        memcpy(out, &((const struct sockaddr_in6 *)from)->sin6_addr, 16);
        if (memcmp(out, mapped, sizeof(mapped)) != 0)
            memset(out + 8, 0, 8); /* a host may have all addresses with this prefix */
    }
}

static void shut(struct http_client *x)
{
    x->is_shut = true;
    (void)shutdown(x->fd, SHUT_RDWR); /* it may have ended meanwhile */
}

/* Shuts down the oldest connection, of `address` or of any (NULL), if more than `most` are open. */
static void make_room(struct http_clients *c, const uint8_t *address, unsigned most)
{
    struct http_client *oldest = NULL;
    unsigned n = 0;

    for (struct http_client *x = c->first; x != NULL; x = x->next) {
        if (x->is_shut || (address != NULL && memcmp(x->address, address, 16) != 0))
            continue;
        n++;
        if (oldest == NULL || x->since_ms <= oldest->since_ms) /* the list begins with the newest */
            oldest = x;
    }
    if (n > most)
        shut(oldest);
}

struct http_client *http_clients_begin(struct http_clients *c, int fd, const struct sockaddr *from)
{
    struct http_client *x = calloc(1, sizeof(*x));

    if (x == NULL)
        return NULL;
    x->fd = fd;
    copy_address(x->address, from);
    pthread_mutex_lock(&c->lock);
    x->since_ms = clock_ms();
    x->next = c->first;
    c->first = x;
    make_room(c, x->address, HTTP_CLIENTS_OF_ADDRESS);
    make_room(c, NULL, HTTP_CLIENTS);
    pthread_mutex_unlock(&c->lock);
    return x;
}

void http_clients_renew(struct http_clients *c, struct http_client *x)
{
    if (x == NULL)
        return;
    pthread_mutex_lock(&c->lock);
    x->since_ms = clock_ms();
    pthread_mutex_unlock(&c->lock);
}

void http_clients_end(struct http_clients *c, struct http_client *x)
{
    if (x == NULL)
        return;
    pthread_mutex_lock(&c->lock);
    for (struct http_client **at = &c->first; *at != NULL; at = &(*at)->next)
        if (*at == x) {
            *at = x->next;
            break;
        }
    pthread_mutex_unlock(&c->lock);
    free(x);
}

void http_clients_expire(struct http_clients *c)
{
    uint64_t now_ms;

    pthread_mutex_lock(&c->lock);
    now_ms = clock_ms();
    for (struct http_client *x = c->first; x != NULL; x = x->next)
        if (!x->is_shut && now_ms > x->since_ms + HTTP_REQUEST_MS)
            shut(x);
    pthread_mutex_unlock(&c->lock);
}

void http_clients_free(struct http_clients *c)
{
    if (c == NULL)
        return;
    pthread_mutex_destroy(&c->lock);
    free(c);
}
