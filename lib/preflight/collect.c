/* collect.c - exchanges the rows. */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "preflight/preflight_priv.h"

/* Returns whether a task whose row is known has reached the task, or was reached by it. The caller
 * holds the lock. */
static bool is_expected(const struct preflight *p, uint32_t rank)
{
    for (uint32_t i = 0; i < p->o->world; i++) {
        const struct preflight_entry *e = &p->rows[i].entries[rank];

        if (p->rows[i].present && i != rank && (e->control == PREFLIGHT_REACHED || e->in != 0))
            return true;
    }
    return false;
}

/* Returns the next missing row from `rank` on, or `world`. */
static uint32_t next_missing(struct preflight *p, uint32_t rank)
{
    pthread_mutex_lock(&p->lock);
    while (rank < p->o->world && (p->rows[rank].present || !is_expected(p, rank)))
        rank++;
    pthread_mutex_unlock(&p->lock);
    return rank;
}

static bool has_row(struct preflight *p, uint32_t rank)
{
    bool has;

    pthread_mutex_lock(&p->lock);
    has = p->rows[rank].present;
    pthread_mutex_unlock(&p->lock);
    return has;
}

static void disconnect(struct preflight *p, uint32_t rank)
{
    conn_close(&p->peers[rank].out);
}

static void push(struct preflight *p)
{
    struct buf row = { 0 }, body = { 0 };

    pthread_mutex_lock(&p->lock);
    message_write_row(p->o->self, p->o->world, &p->rows[p->o->self], &row);
    pthread_mutex_unlock(&p->lock);
    for (uint32_t i = 0; i < p->o->world; i++)
        if (p->peers[i].out.fd >= 0 &&
            conn_ask(&p->peers[i].out, &row, MESSAGE_END, &body, clock_ms() + STALL_MS) < 0)
            disconnect(p, i);
    buf_fini(&row);
    buf_fini(&body);
}

/* Requests the row `rank` from the task `from`. */
static void request(struct preflight *p, uint32_t from, uint32_t rank)
{
    struct preflight_row row = { .entries = calloc(p->o->world, sizeof(*row.entries)) };
    struct buf ask = { 0 }, body = { 0 };
    uint32_t got = rank;

    message_write_u32(MESSAGE_ROW, rank, &ask);
    if (conn_ask(&p->peers[from].out, &ask, MESSAGE_ROW_IS, &body, clock_ms() + STALL_MS) < 0)
        disconnect(p, from);
    else if (body.len > 0 && row.entries != NULL &&
             message_read_row((uint8_t *)body.data, body.len, p->o->world, &got, &row) &&
             got == rank) {
        pthread_mutex_lock(&p->lock);
        if (!p->rows[rank].present) {
            memcpy(p->rows[rank].entries, row.entries, p->o->world * sizeof(*row.entries));
            p->rows[rank].facts = row.facts;
            p->rows[rank].present = true;
        }
        pthread_mutex_unlock(&p->lock);
    }
    free(row.entries);
    buf_fini(&ask);
    buf_fini(&body);
}

void collect_rows(struct preflight *p)
{
    push(p);
    while (next_missing(p, 0) < p->o->world && clock_ms() < p->until_ms &&
           !preflight_is_stopped(p)) {
        for (uint32_t r = next_missing(p, 0); r < p->o->world; r = next_missing(p, r + 1))
            for (uint32_t i = 0; i < p->o->world; i++)
                if (p->peers[i].out.fd >= 0 && !has_row(p, r))
                    request(p, i, r);
        pthread_mutex_lock(&p->lock);
        preflight_wait(p);
        pthread_mutex_unlock(&p->lock);
    }
}
