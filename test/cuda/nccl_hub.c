/* nccl_hub.c - the hub of an emulated communicator: receives the numbers of all ranks, and sends the
 * sum to all, or to each rank the numbers that the others send to it.
 *
 * Ranks are read in order. While the hub waits for a slow rank another one may leave, so it polls
 * all connections. It lives until one of its ranks leaves, or until the process ends. */
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "cuda/nccl_priv.h"

struct hub {
    int listener;
    uint64_t magic;
    uint32_t ranks; /* as sent by the first rank; 0: no rank has joined */
    uint32_t version;
    uint32_t n; /* present */
    int *fds;   /* [ranks]; -1: not connected */
    uint64_t *gpus; /* [ranks]; host and GPU */
    float *sum, *part;
    size_t room;
    struct { /* [ranks] of an exchange */
        uint64_t to[NCCL_EXCHANGE_RANKS]; /* number of floats to each rank */
        float *numbers;                   /* owned; in the order of the ranks that receive them */
    } *sent;
};

int nccl_version(void)
{
    const char *said = getenv("EMULATED_NCCL_VERSION");

    return said != NULL && said[0] != '\0' ? atoi(said) : NCCL_VERSION_CODE;
}

bool nccl_send(int fd, const void *bytes, size_t n)
{
    const char *at = bytes;

    while (n > 0) {
        ssize_t sent = send(fd, at, n, MSG_NOSIGNAL);

        if (sent <= 0)
            return false;
        at += sent;
        n -= (size_t)sent;
    }
    return true;
}

bool nccl_receive(int fd, void *bytes, size_t n)
{
    char *at = bytes;

    while (n > 0) {
        ssize_t got = recv(fd, at, n, 0);

        if (got <= 0)
            return false;
        at += got;
        n -= (size_t)got;
    }
    return true;
}

static struct sockaddr_in address(uint32_t ip, uint16_t port)
{
    return (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = { ip } };
}

/* "=name" as set by trainerd: the first IPv4 address of the interface. */
static uint32_t own_ip(void)
{
    const char *name = getenv("NCCL_SOCKET_IFNAME");
    uint32_t ip = htonl(INADDR_LOOPBACK);
    struct ifaddrs *all = NULL;

    if (name == NULL || name[0] != '=' || getifaddrs(&all) != 0)
        return ip;
    for (const struct ifaddrs *i = all; i != NULL; i = i->ifa_next)
        if (strcmp(i->ifa_name, name + 1) == 0 && i->ifa_addr != NULL &&
            i->ifa_addr->sa_family == AF_INET) {
            ip = ((const struct sockaddr_in *)(const void *)i->ifa_addr)->sin_addr.s_addr;
            break;
        }
    freeifaddrs(all);
    return ip;
}

/* Disables Nagle's algorithm: the floats would wait for the acknowledgement of the header. */
static void disable_nagle(int fd)
{
    int on = 1;

    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

int nccl_dial(const struct nccl_address *hub)
{
    struct sockaddr_in to = address(hub->ip, hub->port);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof(to)) != 0) {
        close(fd);
        fd = -1;
    }
    if (fd >= 0)
        disable_nagle(fd);
    return fd;
}

/* ---- joining ---- */

/* Accepts one connection; false: the rank does not match, and the communicator fails. */
static bool accept_rank(struct hub *h, int fd)
{
    struct nccl_hello hello;

    if (!nccl_receive(fd, &hello, sizeof(hello)) || hello.magic != h->magic) {
        close(fd); /* not a rank */
        return true;
    }
    if (h->ranks == 0) {
        h->ranks = hello.ranks;
        h->version = hello.version;
        h->fds = emulated_alloc(h->ranks * sizeof(*h->fds));
        memset(h->fds, -1, h->ranks * sizeof(*h->fds));
        h->gpus = emulated_alloc(h->ranks * sizeof(*h->gpus));
    }
    if (hello.ranks != h->ranks || hello.version != h->version || h->fds[hello.rank] >= 0) {
        struct nccl_welcome answer = { .what = NCCL_MISFIT };

        (void)nccl_send(fd, &answer, sizeof(answer));
        close(fd);
        return false;
    }
    disable_nagle(fd);
    h->fds[hello.rank] = fd;
    h->gpus[hello.rank] = (uint64_t)hello.host << 32 | hello.gpu;
    h->n++;
    return true;
}

/* Returns the answer for all ranks; also when a rank leaves before all have joined. */
static uint32_t accept_all(struct hub *h)
{
    while (h->n == 0 || h->n < h->ranks) {
        struct pollfd *ends = emulated_alloc((1 + h->ranks) * sizeof(*ends));
        nfds_t n = 1;
        bool is_whole = true, has_caller;

        ends[0] = (struct pollfd){ .fd = h->listener, .events = POLLIN };
        for (uint32_t i = 0; i < h->ranks; i++)
            /* -1: ignored by poll() */
            ends[n++] = (struct pollfd){ .fd = h->fds[i], .events = POLLIN };
        (void)poll(ends, n, -1);
        for (nfds_t i = 1; i < n; i++)
            is_whole = is_whole && ends[i].revents == 0;
        has_caller = (ends[0].revents & POLLIN) != 0;
        free(ends);
        if (!is_whole)
            return NCCL_GONE;
        if (has_caller) {
            int fd = accept4(h->listener, NULL, NULL, SOCK_CLOEXEC);

            if (fd >= 0 && !accept_rank(h, fd))
                return NCCL_MISFIT;
        }
    }
    return NCCL_GO;
}

/* Sends the answer to all ranks. If two ranks are on one GPU, they receive NCCL_TWICE with the
 * number of the other rank, and all other ranks NCCL_GONE. */
static void send_answers(const struct hub *h, uint32_t what)
{
    bool is_twice = false;

    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < h->ranks; i++) {
            struct nccl_welcome answer = { .what = pass == 1 && is_twice ? NCCL_GONE : what };

            for (uint32_t k = 0; k < h->ranks && what == NCCL_GO; k++)
                if (k != i && h->gpus[k] == h->gpus[i])
                    answer = (struct nccl_welcome){ .what = NCCL_TWICE, .other = k };
            is_twice = is_twice || answer.what == NCCL_TWICE;
            if (pass == 1 && h->fds[i] >= 0)
                (void)nccl_send(h->fds[i], &answer, sizeof(answer));
        }
}

/* ---- operations ---- */

/* Waits until each rank has sent a request; false: a rank has left. */
static bool wait_for_requests(struct hub *h)
{
    struct pollfd *ends = emulated_alloc(h->ranks * sizeof(*ends));
    uint32_t asking = 0;
    bool is_whole = true;

    while (is_whole && asking < h->ranks) {
        asking = 0;
        /* for ranks that have sent a request, only the end of the connection matters */
        for (uint32_t i = 0; i < h->ranks; i++) {
            bool asks = (ends[i].revents & POLLIN) != 0;

            ends[i] = (struct pollfd){ .fd = h->fds[i], .events = asks ? POLLRDHUP : POLLIN | POLLRDHUP,
                                       .revents = asks ? POLLIN : 0 };
            asking += asks;
        }
        if (asking == h->ranks)
            break;
        {
            struct pollfd *now = emulated_alloc(h->ranks * sizeof(*now));

            memcpy(now, ends, h->ranks * sizeof(*now));
            (void)poll(now, h->ranks, -1);
            for (uint32_t i = 0; i < h->ranks; i++) {
                is_whole = is_whole && (now[i].revents & (POLLRDHUP | POLLHUP | POLLERR)) == 0;
                ends[i].revents |= now[i].revents & POLLIN;
            }
            free(now);
        }
    }
    free(ends);
    return is_whole;
}

static void reserve(struct hub *h, size_t n)
{
    if (n <= h->room)
        return;
    free(h->sum);
    free(h->part);
    h->sum = emulated_alloc(n * sizeof(float));
    h->part = emulated_alloc(n * sizeof(float));
    h->room = n;
}

static void check_alike(const struct nccl_request *first, const struct nccl_request *ask,
                        uint32_t rank)
{
    if (ask->kind != first->kind || (ask->kind != NCCL_EXCHANGE && ask->n != first->n))
        emulated_die(
            "NCCL: rank 0 sums %llu numbers, rank %u %llu (or one of them ends or exchanges)",
            (unsigned long long)first->n, rank, (unsigned long long)ask->n);
    if (ask->captured != first->captured)
        emulated_die(
            "NCCL: rank 0 is at its captured operation %u, rank %u at %u (0: it is not captured)",
            first->captured, rank, ask->captured);
}

static bool receive_summand(struct hub *h, uint32_t rank, size_t n)
{
    reserve(h, n);
    if (!nccl_receive(h->fds[rank], rank == 0 ? h->sum : h->part, n * sizeof(float)))
        return false;
    for (size_t k = 0; rank > 0 && k < n; k++)
        h->sum[k] += h->part[k];
    return true;
}

static bool receive_sent(struct hub *h, uint32_t rank, size_t n)
{
    if (h->sent == NULL)
        h->sent = emulated_alloc(h->ranks * sizeof(*h->sent));
    free(h->sent[rank].numbers);
    h->sent[rank].numbers = emulated_alloc(n * sizeof(float) + 1);
    return nccl_receive(h->fds[rank], h->sent[rank].to, h->ranks * sizeof(uint64_t)) &&
           nccl_receive(h->fds[rank], h->sent[rank].numbers, n * sizeof(float));
}

/* Sends a rank the numbers that all ranks have sent to it. */
static bool send_exchanged(struct hub *h, uint32_t rank)
{
    struct nccl_request answer = { .kind = NCCL_EXCHANGE };
    uint64_t from[NCCL_EXCHANGE_RANKS];
    bool sent;

    for (uint32_t i = 0; i < h->ranks; i++)
        answer.n += from[i] = h->sent[i].to[rank];
    sent = nccl_send(h->fds[rank], &answer, sizeof(answer)) &&
           nccl_send(h->fds[rank], from, h->ranks * sizeof(from[0]));
    for (uint32_t i = 0; sent && i < h->ranks; i++) {
        size_t before = 0;

        for (uint32_t k = 0; k < rank; k++)
            before += h->sent[i].to[k];
        sent = nccl_send(h->fds[rank], h->sent[i].numbers + before, from[i] * sizeof(float));
    }
    return sent;
}

/* Runs one operation of all ranks; 0: a rank has left. */
static uint32_t serve(struct hub *h)
{
    struct nccl_request first = { 0 };

    if (!wait_for_requests(h))
        return 0;
    for (uint32_t i = 0; i < h->ranks; i++) {
        struct nccl_request ask;

        if (!nccl_receive(h->fds[i], &ask, sizeof(ask)))
            return 0;
        if (i == 0)
            first = ask;
        check_alike(&first, &ask, i);
        if (!(ask.kind == NCCL_EXCHANGE ? receive_sent : receive_summand)(h, i, ask.n))
            return 0;
    }
    for (uint32_t i = 0; i < h->ranks; i++)
        if (first.kind == NCCL_EXCHANGE
                ? !send_exchanged(h, i)
                : !nccl_send(h->fds[i], &first, sizeof(first)) ||
                      !nccl_send(h->fds[i], h->sum, first.n * sizeof(float)))
            return 0;
    return first.kind;
}

static void *hub_main(void *arg)
{
    struct hub *h = arg;
    uint32_t answer = accept_all(h), kind = NCCL_SUM;

    close(h->listener);
    send_answers(h, answer);
    while (answer == NCCL_GO && (kind == NCCL_SUM || kind == NCCL_EXCHANGE))
        kind = serve(h);
    for (uint32_t i = 0; i < h->ranks; i++)
        if (h->fds[i] >= 0)
            close(h->fds[i]);
    for (uint32_t i = 0; h->sent != NULL && i < h->ranks; i++)
        free(h->sent[i].numbers);
    free(h->sent);
    free(h->fds);
    free(h->gpus);
    free(h->sum);
    free(h->part);
    free(h);
    return NULL;
}

bool nccl_hub_start(struct nccl_address *out)
{
    struct hub *h = emulated_alloc(sizeof(*h));
    uint32_t ip = own_ip();
    struct sockaddr_in at = address(ip, 0);
    socklen_t len = sizeof(at);
    pthread_t thread;

    h->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (h->listener < 0 || bind(h->listener, (struct sockaddr *)&at, sizeof(at)) != 0 ||
        listen(h->listener, 128) != 0 ||
        getsockname(h->listener, (struct sockaddr *)&at, &len) != 0 ||
        getrandom(&h->magic, sizeof(h->magic), 0) != sizeof(h->magic) ||
        pthread_create(&thread, NULL, hub_main, h) != 0) {
        if (h->listener >= 0)
            close(h->listener);
        free(h);
        return false;
    }
    pthread_detach(thread);
    *out = (struct nccl_address){ .magic = h->magic, .ip = ip, .port = ntohs(at.sin_port) };
    return true;
}
