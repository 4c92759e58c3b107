/* channel_open.c - the ends of a member and their channels, from the first allocation to the end. The handshake
 * connects the links in between. */
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/err.h"
#include "comm/channel_priv.h"
#include "tls/tls.h"

static int make_end(struct comm *c, struct comm_end *e)
{
    const struct topology *t = &c->topo;
    uint32_t n = 0;

    e->links = calloc((size_t)t->world + t->n_servers, sizeof(*e->links));
    if (e->links == NULL)
        return ERR_NOMEM;
    for (uint32_t p = c->n_ranks > 0 ? t->world : 0; p < t->world + t->n_servers; p++)
        if (t->member_of[p] != c->self)
            e->links[n++] = (struct comm_link){
                .fd = -1,
                .peer = p,
                .is_local = t->shares_with[t->member_of[p]] == t->shares_with[c->self],
            };
    e->n_links = n;
    e->channels = calloc((size_t)n + 1, sizeof(*e->channels));
    for (uint32_t k = 0; e->channels != NULL && k < n; k++)
        e->channels[k].passed[0] = e->channels[k].passed[1] = -1;
    if (n > 0) {
        e->collected = malloc(CHANNEL_COLLECT_BYTES);
        if (e->collected == NULL)
            return ERR_NOMEM;
    }
    return e->channels != NULL ? 0 : ERR_NOMEM;
}

int channels_make(struct comm *c)
{
    const struct topology *t = &c->topo;
    uint32_t n =
        c->n_ranks > 0 ? c->n_ranks : t->first_server[c->self + 1] - t->first_server[c->self];
    int rc = 0;

    c->first_point = c->n_ranks > 0 ? c->first_rank : t->world + t->first_server[c->self];
    c->ends = calloc(n, sizeof(*c->ends));
    if (c->ends == NULL)
        return ERR_NOMEM;
    c->n_ends = n;
    for (uint32_t i = 0; i < n; i++)
        c->ends[i].ready_fd = c->ends[i].wake_fd = -1;
    for (uint32_t i = 0; i < n && t->n_servers > 0 && rc == 0; i++)
        rc = make_end(c, &c->ends[i]);
    return rc;
}

static int add_ready(const struct comm_end *e, int fd, uint32_t k, struct err *err)
{
    struct epoll_event event = { .events = EPOLLIN, .data.u32 = k };

    if (epoll_ctl(e->ready_fd, EPOLL_CTL_ADD, fd, &event) < 0)
        return err_sys(err, errno, "add a connection to an epoll instance");
    return 0;
}

static int open_end(struct comm_end *e, struct err *err)
{
    bool has_local = false;
    int rc = 0;

    e->ready_fd = epoll_create1(EPOLL_CLOEXEC);
    if (e->ready_fd < 0)
        return err_sys(err, errno, "make an epoll instance");
    for (uint32_t k = 0; rc == 0 && k < e->n_links; k++) {
        rc = add_ready(e, e->links[k].fd, k, err);
        /* the handshake of TLS may have read more than its own bytes */
        channel_set_more(e, &e->channels[k], e->links[k].tls != NULL);
        has_local = has_local || e->links[k].is_local;
    }
    if (rc < 0 || !has_local)
        return rc;
    e->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return e->wake_fd < 0 ? err_sys(err, errno, "make an eventfd")
                          : add_ready(e, e->wake_fd, e->n_links, err);
}

int channels_open(struct comm *c, struct err *err)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < c->n_ends; i++)
        if (c->ends[i].n_links > 0)
            rc = open_end(&c->ends[i], err);
    return rc;
}

static void free_end(struct comm_end *e)
{
    for (uint32_t k = 0; k < e->n_links; k++) {
        if (e->links[k].fd >= 0) {
            tls_stream_free(e->links[k].tls);
            close(e->links[k].fd);
        }
        if (e->channels == NULL)
            continue;
        channel_buffer_free(e->channels[k].first);
        channel_buffer_free(e->channels[k].current);
        channel_buffer_free(e->channels[k].idle);
        channel_close_ring(&e->channels[k]);
    }
    if (e->delivered != NULL)
        e->delivered->next = NULL;
    channel_buffer_free(e->delivered);
    if (e->ready_fd >= 0)
        close(e->ready_fd);
    if (e->wake_fd >= 0)
        close(e->wake_fd);
    free(e->links);
    free(e->channels);
    free(e->collected);
}

void channels_free(struct comm *c)
{
    for (uint32_t i = 0; i < c->n_ends; i++)
        free_end(&c->ends[i]);
    free(c->ends);
}
