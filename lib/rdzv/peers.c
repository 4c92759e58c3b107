/* peers.c - see peers.h. */
#include "rdzv/peers.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <grpc/support/alloc.h>

#include "base/text.h"
#include "tls/tls.h"

struct peers {
    pthread_mutex_t lock;
    struct tls_peer **by_fd; /* [n] owned; NULL: clear text */
    size_t n;
};

struct peers *peers_new(void)
{
    struct peers *p = calloc(1, sizeof(*p));

    if (p != NULL)
        (void)pthread_mutex_init(&p->lock, NULL); /* cannot fail for a default mutex */
    return p;
}

/* Makes room for the descriptor; the lock is held. */
static bool reserve(struct peers *p, size_t fd)
{
    size_t n = fd + 64;
    struct tls_peer **grown;

    if (fd < p->n)
        return true;
    grown = realloc(p->by_fd, n * sizeof(struct tls_peer *));
    if (grown == NULL)
        return false;
    memset(grown + p->n, 0, (n - p->n) * sizeof(struct tls_peer *));
    p->by_fd = grown;
    p->n = n;
    return true;
}

bool peers_set(struct peers *p, int fd, struct tls_peer *peer)
{
    struct tls_peer *old = peer;
    bool is_done;

    pthread_mutex_lock(&p->lock);
    is_done = reserve(p, (size_t)fd);
    if (is_done) {
        old = p->by_fd[fd];
        p->by_fd[fd] = peer;
    }
    pthread_mutex_unlock(&p->lock);
    tls_peer_free(old);
    return is_done;
}

const struct tls_peer *peers_of(struct peers *p, grpc_call *call)
{
    static const char scheme[] = "fd:";
    char *name = grpc_call_get_peer(call);
    const struct tls_peer *peer = NULL;
    uint64_t fd;

    if (name != NULL && text_starts(name, scheme) &&
        text_u64(name + sizeof(scheme) - 1, INT32_MAX, &fd)) {
        pthread_mutex_lock(&p->lock);
        peer = fd < p->n ? p->by_fd[fd] : NULL;
        pthread_mutex_unlock(&p->lock);
    }
    gpr_free(name);
    return peer;
}

void peers_free(struct peers *p)
{
    if (p == NULL)
        return;
    for (size_t i = 0; i < p->n; i++)
        tls_peer_free(p->by_fd[i]);
    (void)pthread_mutex_destroy(&p->lock);
    free(p->by_fd);
    free(p);
}
