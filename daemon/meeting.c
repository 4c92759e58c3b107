/* meeting.c - see meeting.h. */
#include "daemon/meeting.h"

#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/log.h"
#include "base/ports.h"
#include "base/rng.h"
#include "base/text.h"
#include "base/thread.h"
#include "conf/cluster_master.h"

enum {
    BACKLOG = 1024,
    IO_SECONDS = 2, /* of one read, write or connect */
    PAUSE_MS = 100, /* between two requests of a task; doubles up to PAUSE_MS_MAX */
    PAUSE_MS_MAX = 1000,
    CLOSE_MS = 3000, /* rank 0 ends: time in which the others take the list */
    HOST_BYTES = 64,
    ADDRESS_BYTES = 80, /* host, brackets and port */
    REQUEST_BYTES = 512,
    TEXT_BYTES = 256,
    ANSWER_BYTES_MAX = CLUSTER_MASTER_TASKS * ADDRESS_BYTES + REQUEST_BYTES,
};

struct meeting { /* of rank 0 */
    struct cluster_master master;
    const char *token; /* owned */
    int fd;
    pthread_t thread;
    bool has_thread;
    atomic_bool has_ended;
    pthread_mutex_t lock; /* for the rest */
    pthread_cond_t came;
    char (*addresses)[ADDRESS_BYTES]; /* [size] as stated; "": not known yet */
    uint32_t n_known;
    bool *has_list;  /* [size] the list was sent to the task */
    uint32_t n_sent; /* number of these tasks */
    char own_host[HOST_BYTES]; /* at which other tasks reach rank 0; "": none came yet */
    char *hosts;               /* owned; the list; NULL: not complete */
};

/* ---- messages ---- */

/* Appends the code of the text so far; `nonce` "" for a request. */
static void add_mac(struct buf *b, const char *token, const char *nonce)
{
    struct buf all = { 0 };
    uint8_t mac[DIGEST_BYTES];
    char hex[DIGEST_HEX_BYTES];

    buf_str(&all, nonce);
    buf_add(&all, b->data, b->len);
    digest_hmac(token, strlen(token), all.failed ? "" : all.data, all.failed ? 0 : all.len, mac);
    digest_hex(mac, hex);
    buf_str(b, hex);
    b->failed |= all.failed;
    buf_fini(&all);
}

/* Compares two codes in constant time. */
static bool is_same(const char *a, const char *b)
{
    unsigned char difference = 0;

    for (size_t i = 0; i + 1 < DIGEST_HEX_BYTES; i++)
        difference |= (unsigned char)(a[i] ^ b[i]);
    return difference == 0;
}

/* Removes the code from the end of a line. Returns false if it is not that of the text and the token. */
static bool take_mac(char *line, const char *token, const char *nonce)
{
    char *last = strrchr(line, ' ');
    char stated[DIGEST_HEX_BYTES];
    struct buf b = { 0 };
    bool is_equal;

    if (last == NULL || strlen(last + 1) != DIGEST_HEX_BYTES - 1)
        return false;
    memcpy(stated, last + 1, sizeof(stated));
    last[1] = '\0';
    buf_str(&b, line);
    add_mac(&b, token, nonce);
    is_equal = !b.failed && is_same(stated, b.data + strlen(line));
    last[0] = '\0';
    buf_fini(&b);
    return is_equal;
}

/* Reads a line, without its end. Returns false if none comes. */
static bool read_line(int fd, struct buf *out, size_t max)
{
    char bytes[4096];

    for (;;) {
        ssize_t n = recv(fd, bytes, sizeof(bytes), 0);
        char *end;

        if (n <= 0 || out->len + (size_t)n > max)
            return false;
        end = memchr(bytes, '\n', (size_t)n);
        buf_add(out, bytes, end != NULL ? (size_t)(end - bytes) : (size_t)n);
        if (out->failed || out->data == NULL || memchr(out->data, '\0', out->len) != NULL)
            return false;
        if (end != NULL)
            return true;
    }
}

static bool write_line(int fd, struct buf *b)
{
    size_t done = 0;

    buf_str(b, "\n");
    while (!b->failed && done < b->len) {
        ssize_t n = send(fd, b->data + done, b->len - done, MSG_NOSIGNAL);

        if (n <= 0)
            return false;
        done += (size_t)n;
    }
    return !b->failed;
}

static void set_limits(int fd)
{
    struct timeval limit = { .tv_sec = IO_SECONDS };

    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)); /* cannot fail for a socket */
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

/* Writes the numeric address of this end of a connection. */
static bool own_host_of(int fd, char out[HOST_BYTES])
{
    struct sockaddr_storage a = { 0 };
    socklen_t bytes = sizeof(a);

    if (getsockname(fd, (struct sockaddr *)&a, &bytes) < 0)
        return false;
    address_unmap(&a, &bytes);
    return getnameinfo((struct sockaddr *)&a, bytes, out, HOST_BYTES, NULL, 0, NI_NUMERICHOST) == 0;
}

static void print_address(const char *host, unsigned port, char out[ADDRESS_BYTES])
{
    snprintf(out, ADDRESS_BYTES, strchr(host, ':') != NULL ? "[%s]:%u" : "%s:%u", host, port);
}

static bool is_loopback(const char *address)
{
    return text_starts(address, "127.") || text_starts(address, "[::1]") ||
           strcmp(address, "::1") == 0;
}

/* ---- rank 0 ---- */

/* All tasks are known: makes the list. A task that came through the loopback interface is on the host of
 * rank 0. */
static void make_list(struct meeting *m)
{
    struct buf b = { 0 };

    for (uint32_t i = 0; i < m->master.size; i++) {
        char address[ADDRESS_BYTES];
        const char *port = strrchr(m->addresses[i], ':');

        if (i == 0)
            print_address(m->own_host, m->master.control_port, address);
        else if (is_loopback(m->addresses[i]))
            print_address(m->own_host, (unsigned)strtoul(port + 1, NULL, 10), address);
        else
            snprintf(address, sizeof(address), "%s", m->addresses[i]);
        buf_printf(&b, "%s%s", i > 0 ? "," : "", address);
    }
    m->hosts = buf_detach(&b);
}

/* Handles the values of a request; the lock is held. Writes the word and the text of the answer. */
static void handle(struct meeting *m, uint64_t rank, uint64_t size, const char *address, int fd,
                   struct buf *out)
{
    char host[HOST_BYTES];

    if (size != m->master.size) {
        buf_printf(
            out, "refused WORLD_SIZE is %" PRIu64 " at rank %" PRIu64 " and %" PRIu32 " at rank 0 ",
            size, rank, m->master.size);
        return;
    }
    if (m->hosts != NULL && strcmp(m->addresses[rank], address) != 0) {
        buf_printf(out,
                   "taken rank %" PRIu64
                   " has joined from %s; end all tasks, so that they meet again ",
                   rank, m->addresses[rank]);
        return;
    }
    if (m->hosts == NULL) {
        if (own_host_of(fd, host) && (m->own_host[0] == '\0' || is_loopback(m->own_host)))
            snprintf(m->own_host, sizeof(m->own_host), "%s", host);
        m->n_known += m->addresses[rank][0] == '\0';
        snprintf(m->addresses[rank], ADDRESS_BYTES, "%s", address);
        if (m->n_known == m->master.size)
            make_list(m);
        pthread_cond_broadcast(&m->came);
    }
    if (m->hosts == NULL) {
        buf_str(out, "wait - ");
        return;
    }
    buf_printf(out, "hosts %s ", m->hosts);
    m->n_sent += !m->has_list[rank];
    m->has_list[rank] = true;
    pthread_cond_broadcast(&m->came);
}

static void serve(struct meeting *m, int fd)
{
    struct buf line = { 0 }, answer = { 0 };
    char rank_text[16], size_text[16], address[ADDRESS_BYTES], nonce[64];
    uint64_t rank, size;
    int used = 0;

    set_limits(fd);
    if (read_line(fd, &line, REQUEST_BYTES) && take_mac(line.data, m->token, "") &&
        sscanf(line.data, "trainerd 1 %15s %15s %79s %63s%n", rank_text, size_text, address, nonce,
               &used) == 4 &&
        line.data[used] == '\0' && text_u64(rank_text, m->master.size - 1, &rank) && rank > 0 &&
        text_u64(size_text, UINT32_MAX, &size) && strchr(address, ',') == NULL &&
        strrchr(address, ':') != NULL) {
        pthread_mutex_lock(&m->lock);
        handle(m, rank, size, address, fd, &answer);
        pthread_mutex_unlock(&m->lock);
    } else { /* no reader of this answer accepts its code, unless the tokens are equal */
        nonce[0] = '\0';
        buf_str(&answer, "refused the request is not that of a task of this cluster ");
    }
    add_mac(&answer, m->token, nonce);
    (void)write_line(fd, &answer); /* a task that did not get the answer asks again */
    buf_fini(&line);
    buf_fini(&answer);
}

static void *answer_requests(void *arg)
{
    struct meeting *m = arg;

    while (!atomic_load(&m->has_ended)) {
        struct pollfd p = { .fd = m->fd, .events = POLLIN };
        int fd;

        if (poll(&p, 1, -1) < 0)
            continue;
        fd = accept4(m->fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0)
            continue;
        serve(m, fd);
        close(fd);
    }
    return NULL;
}

static int report_missing(const struct meeting *m, double seconds, struct err *err)
{
    char text[TEXT_BYTES] = "";
    uint32_t n = 0;

    for (uint32_t i = 1; i < m->master.size; i++)
        if (m->addresses[i][0] == '\0' && n++ < 8)
            snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%" PRIu32,
                     n > 1 ? ", " : "", i);
    return err_set(err, ERR_IO,
                   "MASTER_PORT: rank 0 waited at port %u for %.10g s (train.deadline_seconds): %" PRIu32 " of %" PRIu32
                   " tasks did not come: rank %s%s; start them, and let them connect to MASTER_ADDR",
                   m->master.port, seconds, n, m->master.size, text, n > 8 ? ", ..." : "");
}

static int wait_for_all(struct meeting *m, double seconds, char **hosts, struct err *err)
{
    struct timespec until = clock_after_ms((uint64_t)(seconds * 1e3));
    int rc = 0;

    pthread_mutex_lock(&m->lock);
    while (m->n_known < m->master.size && rc == 0)
        rc = pthread_cond_timedwait(&m->came, &m->lock, &until);
    if (m->n_known < m->master.size) {
        rc = report_missing(m, seconds, err);
    } else {
        *hosts = m->hosts != NULL ? strdup(m->hosts) : NULL;
        rc = *hosts != NULL ? 0 : err_set(err, ERR_NOMEM, "MASTER_ADDR: out of memory");
    }
    pthread_mutex_unlock(&m->lock);
    return rc;
}

static int collect(const struct meeting_opts *o, struct meeting **out, char **hosts,
                   struct err *err)
{
    struct meeting *m = calloc(1, sizeof(*m));
    pthread_condattr_t monotonic;
    int rc;

    if (m == NULL)
        return err_set(err, ERR_NOMEM, "MASTER_ADDR: out of memory");
    m->master = *o->master;
    m->n_known = 1;                           /* itself */
    (void)pthread_mutex_init(&m->lock, NULL); /* cannot fail with these attributes */
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&m->came, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    m->addresses = calloc(m->master.size, sizeof(*m->addresses));
    m->has_list = calloc(m->master.size, sizeof(*m->has_list));
    m->token = strdup(o->token);
    m->fd = listen_any(m->master.port, BACKLOG);
    if (m->addresses == NULL || m->has_list == NULL || m->token == NULL)
        rc = err_set(err, ERR_NOMEM, "MASTER_ADDR: out of memory");
    else if (m->fd < 0)
        rc = err_sys(err, -m->fd, "MASTER_PORT: listen at port %u, where rank 0 collects the addresses of the tasks; "
                                  "`ss -ltnp 'sport = :%u'` shows the process", m->master.port, m->master.port);
    else
        rc = thread_start(&m->thread, "collects the addresses of the tasks", answer_requests, m,
                          err);
    m->has_thread = rc == 0;
    if (rc == 0)
        rc = wait_for_all(m, o->seconds, hosts, err);
    if (rc < 0)
        meeting_close(m);
    else
        *out = m;
    return rc;
}

/* The other tasks ask within PAUSE_MS_MAX. Without the list they would wait for a task that ends at once,
 * because the job is complete or invalid. */
static void wait_until_sent(struct meeting *m)
{
    struct timespec until = clock_after_ms(CLOSE_MS);
    int rc = 0;

    pthread_mutex_lock(&m->lock);
    while (m->hosts != NULL && m->n_sent + 1 < m->master.size && rc == 0)
        rc = pthread_cond_timedwait(&m->came, &m->lock, &until);
    pthread_mutex_unlock(&m->lock);
}

void meeting_close(struct meeting *m)
{
    if (m == NULL)
        return;
    if (m->has_thread)
        wait_until_sent(m);
    atomic_store(&m->has_ended, true);
    if (m->has_thread) {
        (void)shutdown(m->fd, SHUT_RDWR); /* ends poll() */
        pthread_join(m->thread, NULL);
    }
    if (m->fd >= 0)
        close(m->fd);
    pthread_cond_destroy(&m->came);
    pthread_mutex_destroy(&m->lock);
    free(m->addresses);
    free(m->has_list);
    free((void *)(uintptr_t)m->token);
    free(m->hosts);
    free(m);
}

/* ---- the other ranks ---- */

/* Returns a connected socket, or -1 with the reason in `why`. */
static int connect_to(const struct cluster_master *c, char why[TEXT_BYTES])
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *list = NULL;
    char port[8];
    int fd = -1, rc;

    snprintf(port, sizeof(port), "%u", c->port);
    rc = getaddrinfo(c->host, port, &hints, &list);
    if (rc != 0) {
        snprintf(why, TEXT_BYTES, "resolve: %s", gai_strerror(rc));
        return -1;
    }
    for (struct addrinfo *a = list; a != NULL && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd >= 0)
            set_limits(fd);
        if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) == 0)
            break;
        snprintf(why, TEXT_BYTES, "connect: %s",
                 strerror(errno == EINPROGRESS ? ETIMEDOUT : errno));
        if (fd >= 0)
            close(fd);
        fd = -1;
    }
    freeaddrinfo(list);
    return fd;
}

static bool send_request(const struct meeting_opts *o, int fd, const char *nonce)
{
    const struct cluster_master *c = o->master;
    char host[HOST_BYTES], address[ADDRESS_BYTES];
    struct buf b = { 0 };
    bool is_sent;

    if (!own_host_of(fd, host))
        return false;
    print_address(host, c->control_port, address);
    buf_printf(&b, "trainerd 1 %" PRIu32 " %" PRIu32 " %s %s ", c->rank, c->size, address, nonce);
    add_mac(&b, o->token, "");
    is_sent = write_line(fd, &b);
    buf_fini(&b);
    return is_sent;
}

/* Asks once. Returns 1 with the list, 0 to ask again, or an error. */
static int ask(const struct meeting_opts *o, char **hosts, char why[TEXT_BYTES], struct err *err)
{
    struct buf answer = { 0 };
    uint64_t random;
    char nonce[24];
    int fd, rc = 0;

    if (rng_os(&random, sizeof(random)) < 0)
        return err_set(err, ERR_IO, "the system gives no random numbers");
    snprintf(nonce, sizeof(nonce), "%016" PRIx64, random);
    fd = connect_to(o->master, why);
    if (fd < 0)
        return 0;
    if (!send_request(o, fd, nonce) || !read_line(fd, &answer, ANSWER_BYTES_MAX)) {
        snprintf(why, TEXT_BYTES, "the process there does not answer as rank 0 does");
    } else if (!take_mac(answer.data, o->token, nonce)) {
        snprintf(why, TEXT_BYTES,
                 "the process there is not rank 0, or has another token: compare TRAINERD_TOKEN");
    } else if (text_starts(answer.data, "hosts ")) {
        *hosts = strdup(answer.data + strlen("hosts "));
        rc = *hosts != NULL ? 1 : err_set(err, ERR_NOMEM, "MASTER_ADDR: out of memory");
    } else if (text_starts(answer.data, "refused ")) {
        rc =
            err_set(err, ERR_INPUT,
                    "MASTER_ADDR: rank 0 refuses this task: %.200s; give all tasks the same number",
                    answer.data + strlen("refused "));
    } else {
        snprintf(why, TEXT_BYTES, "%.200s",
                 text_starts(answer.data, "taken ") ? answer.data + strlen("taken ")
                                                    : "rank 0 waits for other tasks");
    }
    buf_fini(&answer);
    close(fd);
    return rc;
}

static int request(const struct meeting_opts *o, char **hosts, struct err *err)
{
    uint64_t until_ms = clock_ms() + (uint64_t)(o->seconds * 1e3);
    char why[TEXT_BYTES] = "";
    int pause_ms = PAUSE_MS;

    for (;;) {
        int rc = ask(o, hosts, why, err);

        if (rc != 0)
            return rc < 0 ? rc : 0;
        if (clock_ms() >= until_ms)
            return err_set(err, ERR_IO,
                           "MASTER_ADDR: rank 0 gave no list of addresses at %.200s port %u for %.10g s "
                           "(train.deadline_seconds): %s", o->master->host, o->master->port, o->seconds, why);
        (void)poll(NULL, 0, pause_ms); /* a signal ends the pause early */
        pause_ms = 2 * pause_ms < PAUSE_MS_MAX ? 2 * pause_ms : PAUSE_MS_MAX;
    }
}

int meeting_join(const struct meeting_opts *o, struct meeting **out, char **hosts, struct err *err)
{
    const struct cluster_master *c = o->master;

    *out = NULL;
    log_info("cluster",
             "rank %" PRIu32 " of %" PRIu32
             ": rank 0 collects the addresses at %s port %u (MASTER_ADDR)",
             c->rank, c->size, c->host, c->port);
    return c->rank == 0 ? collect(o, out, hosts, err) : request(o, hosts, err);
}
