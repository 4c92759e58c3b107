/* dial.c - connects to every other task; a thread for each. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/thread.h"
#include "preflight/preflight_priv.h"

struct dial {
    struct preflight *p;
    uint32_t rank;
};

/* Exchanges HELLO on a connection. */
static enum preflight_reach greet(struct preflight *p, uint32_t rank, struct conn *c,
                                  struct preflight_facts *facts)
{
    const struct message_hello own = { .rank = p->o->self, .world = p->o->world, .facts = p->facts };
    struct message_hello hello;
    struct buf out = { 0 }, body = { 0 };
    enum preflight_reach reach = PREFLIGHT_FOREIGN;
    enum message_kind kind;
    uint32_t why;
    uint64_t until_ms = clock_ms() + DIAL_MS;
    int rc;

    message_write_hello(&own, &out);
    rc = out.failed ? -ENOMEM : conn_send(c, out.data, out.len, until_ms);
    if (rc == 0)
        rc = conn_recv_message(c, &kind, &body, until_ms);
    if (rc == -ETIMEDOUT)
        reach = PREFLIGHT_SILENT;
    else if (rc == 0 && kind == MESSAGE_REFUSE &&
             message_read_u32((uint8_t *)body.data, body.len, &why))
        reach = why == PREFLIGHT_DENIED ? PREFLIGHT_DENIED : PREFLIGHT_MISTAKEN;
    else if (rc == 0 && kind == MESSAGE_HELLO &&
             message_read_hello((uint8_t *)body.data, body.len, &hello)) {
        reach = hello.rank == rank && hello.world == p->o->world ? PREFLIGHT_REACHED
                                                                 : PREFLIGHT_MISTAKEN;
        *facts = hello.facts;
    }
    buf_fini(&out);
    buf_fini(&body);
    return reach;
}

static enum preflight_reach attempt(struct preflight *p, uint32_t rank,
                                    const struct resolved *found, uint32_t i, struct conn *c,
                                    struct preflight_facts *facts)
{
    uint64_t until_ms = clock_ms() + DIAL_MS;
    enum preflight_reach reach =
        conn_dial(&found->at[i], found->bytes[i], true, until_ms, &p->stop, c);

    if (reach == PREFLIGHT_REACHED && p->o->tls != NULL)
        reach = conn_secure(c, p->o->tls, p->o->tasks[rank].host, until_ms);
    if (reach == PREFLIGHT_REACHED)
        reach = greet(p, rank, c, facts);
    if (reach != PREFLIGHT_REACHED)
        conn_close(c);
    return reach;
}

/* A task whose token is not accepted can end before the last attempt: the cause is known nevertheless. */
static bool says_less(enum preflight_reach reach, enum preflight_reach before)
{
    return before == PREFLIGHT_DENIED &&
           (reach == PREFLIGHT_REFUSED || reach == PREFLIGHT_SILENT || reach == PREFLIGHT_FOREIGN);
}

/* Stores the result of an attempt. Only PREFLIGHT_REACHED is final. */
static void store(struct preflight *p, uint32_t rank, enum preflight_reach reach,
                  const struct resolved *found, uint32_t i, const struct conn *c,
                  const struct preflight_facts *facts)
{
    struct peer *peer = &p->peers[rank];

    pthread_mutex_lock(&p->lock);
    peer->reach = says_less(reach, peer->reach) ? peer->reach : reach;
    if (peer->reach == PREFLIGHT_FOREIGN)
        p->has_foreign = true;
    if (reach == PREFLIGHT_REACHED) {
        peer->out = *c;
        peer->address = found->at[i];
        peer->address_bytes = found->bytes[i];
        peer->facts = *facts;
    }
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

static void check_reverse(struct preflight *p, uint32_t rank)
{
    struct peer *peer = &p->peers[rank];
    const char *host = p->o->tasks[rank].host;

    if (!resolve_is_literal(host))
        peer->reverse = resolve_is_name_of(&peer->address, peer->address_bytes, host, NAME_MS)
                            ? PREFLIGHT_GOOD
                            : PREFLIGHT_BAD;
}

static bool has_time(struct preflight *p)
{
    return !atomic_load(&p->stop) && !atomic_load(&p->ends_dialling) &&
           clock_ms() < p->dial_until_ms;
}

static void *dial(void *arg)
{
    struct dial d = *(struct dial *)arg;
    const struct preflight_task *task = &d.p->o->tasks[d.rank];
    struct preflight_facts facts;
    struct resolved found = { .n = 0 };
    struct conn c = { .fd = -1 };
    enum preflight_reach reach = PREFLIGHT_UNTESTED;

    free(arg);
    while (reach != PREFLIGHT_REACHED && has_time(d.p)) {
        if (reach != PREFLIGHT_UNTESTED)
            usleep(RETRY_MS * 1000);
        resolve_host(task->host, task->port, NAME_MS, &found);
        reach = PREFLIGHT_UNRESOLVED;
        for (uint32_t i = 0; i < found.n && reach != PREFLIGHT_REACHED; i++) {
            reach = attempt(d.p, d.rank, &found, i, &c, &facts);
            store(d.p, d.rank, reach, &found, i, &c, &facts);
        }
        if (found.n == 0)
            store(d.p, d.rank, reach, &found, 0, &c, &facts);
    }
    if (reach == PREFLIGHT_REACHED)
        check_reverse(d.p, d.rank);
    return NULL;
}

/* Returns whether every other task is connected in both directions. The caller holds the lock. */
static bool is_complete(const struct preflight *p)
{
    for (uint32_t i = 0; i < p->o->world; i++)
        if (i != p->o->self && (p->peers[i].reach != PREFLIGHT_REACHED || !p->peers[i].was_in))
            return false;
    return true;
}

void dial_all(struct preflight *p)
{
    bool is_done = false;

    for (uint32_t i = 0; i < p->o->world; i++) {
        struct dial *d = i != p->o->self ? malloc(sizeof(*d)) : NULL;

        if (d == NULL)
            continue;
        *d = (struct dial){ p, i };
        p->peers[i].has_dialler =
            thread_start(&p->peers[i].dialler, "connects to a task", dial, d, NULL) == 0;
        if (!p->peers[i].has_dialler)
            free(d);
    }
    while (!is_done && has_time(p) && !preflight_is_stopped(p)) {
        pthread_mutex_lock(&p->lock);
        is_done = is_complete(p) || (p->o->yields && p->has_foreign);
        if (!is_done)
            preflight_wait(p);
        pthread_mutex_unlock(&p->lock);
    }
    atomic_store(&p->ends_dialling, true);
    for (uint32_t i = 0; i < p->o->world; i++)
        if (p->peers[i].has_dialler)
            pthread_join(p->peers[i].dialler, NULL);
}
