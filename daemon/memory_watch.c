#include "daemon/memory_watch.h"

#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/log.h"
#include "base/text.h"
#include "ps/budget.h"

enum {
    PERIOD_MS = 1000,
    SIZE_BYTES = 32,
    /* Tables use all but this part of the limit, which is for messages and for arrays that are copied. */
    GROWTH_MARGIN = 32,
    /* A checkpoint is asked for when less than the first part of the limit is left for growth, and not when less
     * than the last one is left: pages of files that are being written need memory, too. */
    SAVE_FIRST = 8,
    SAVE_LAST = 64,
    GROWTH_READINGS = 64, /* the use is read again after this part of what was left */
};

struct memory_watch {
    const char *root;
    bool is_ps;
    uint64_t read_ms; /* time of the last reading */
    bool has_read;

    pthread_mutex_t lock; /* guards the fields below */
    bool is_known;        /* `limit` is valid */
    struct memory_limit limit;
    /* Of memory_watch_plan(), at the start of the generation; a reading of the loop may find another limit. */
    bool has_plan_limit;
    struct memory_limit plan_limit;
    uint64_t others;                /* bytes in use besides the tables */
    bool is_low;          /* more than MEMORY_WARN_PERCENT, and since then not below MEMORY_CLEAR_PERCENT */
    char low[MEMORY_WARNING_BYTES];   /* the warning of is_low; else empty */
    char tight[MEMORY_WARNING_BYTES]; /* the warning about the tables of this generation; else empty */
    uint64_t planned;                 /* bytes of the tables of the last such warning */
    /* The growth of dynamic tables in this generation, as in struct ps_memory: accepted; at the last reading of the use;
     * the bytes that were left then. */
    bool has_growth;
    uint64_t grown, grown_read, left;
    uint64_t saved_left; /* bytes that were left when a checkpoint was asked for last; 0: none was */
    bool is_new;                      /* `latest` was not returned yet */
    char latest[MEMORY_WARNING_BYTES], returned[MEMORY_WARNING_BYTES];
    char ignored[MEMORY_LIMIT_IGNORED_BYTES]; /* logged last */
};

struct memory_watch *memory_watch_new(const char *root, bool is_ps)
{
    struct memory_watch *w = calloc(1, sizeof(*w));

    CHECK(w != NULL);
    w->root = root;
    w->is_ps = is_ps;
    pthread_mutex_init(&w->lock, NULL);
    return w;
}

void memory_watch_free(struct memory_watch *w)
{
    if (w == NULL)
        return;
    pthread_mutex_destroy(&w->lock);
    free(w);
}

static uint64_t percent(uint64_t bytes, const struct memory_limit *m)
{
    return m->bytes > 0 ? (uint64_t)((double)bytes / (double)m->bytes * 100) : 100;
}

static bool exceeds(uint64_t bytes, const struct memory_limit *m, uint32_t percentage)
{
    return (double)bytes * 100 > (double)m->bytes * percentage;
}

static bool is_below(uint64_t bytes, const struct memory_limit *m, uint32_t percentage)
{
    return (double)bytes * 100 < (double)m->bytes * percentage;
}

static const char *remedy(const struct memory_watch *w)
{
    return w->is_ps ? "start more ps tasks, or raise the limit"
                    : "raise the limit, start more tasks, or reduce train.global_batch_size";
}

static const char *consequence(const struct memory_limit *m)
{
    return m->kind == MEMORY_LIMIT_CGROUP || m->kind == MEMORY_LIMIT_HOST
               ? "at the limit the kernel kills the process"
               : "at the limit the process gets no more memory";
}

/* ---- the use ---- */

static void describe_use(const struct memory_watch *w, const struct memory_limit *m,
                         char text[MEMORY_WARNING_BYTES])
{
    char used[SIZE_BYTES], limit[SIZE_BYTES], own[SIZE_BYTES];

    text_bytes(used, sizeof(used), m->used);
    text_bytes(limit, sizeof(limit), m->bytes);
    text_bytes(own, sizeof(own), m->resident);
    snprintf(text, MEMORY_WARNING_BYTES,
             "memory: %s of %s are in use (%llu %%), %s resident in this task; limit: %s; %s: %s",
             used, limit, (unsigned long long)percent(m->used, m), own, m->source, consequence(m),
             remedy(w));
}

static void set_latest(struct memory_watch *w, const char *text)
{
    memcpy(w->latest, text, sizeof(w->latest));
    w->is_new = true;
    log_warn("memory", "%s", text);
}

static void judge_use(struct memory_watch *w, const struct memory_limit *m)
{
    bool was_low = w->is_low;
    char used[SIZE_BYTES], limit[SIZE_BYTES];

    w->is_low = was_low ? !is_below(m->used, m, MEMORY_CLEAR_PERCENT)
                        : exceeds(m->used, m, MEMORY_WARN_PERCENT);
    if (w->is_low)
        describe_use(w, m, w->low);
    else
        w->low[0] = '\0';
    if (w->is_low && !was_low)
        set_latest(w, w->low);
    if (w->is_low || !was_low)
        return;
    text_bytes(used, sizeof(used), m->used);
    text_bytes(limit, sizeof(limit), m->bytes);
    log_info("memory", "memory: %s of %s are in use (%llu %%)", used, limit,
             (unsigned long long)percent(m->used, m));
}

/* Logs a reason once, until there is another. */
static void log_ignored(struct memory_watch *w, const char *text)
{
    if (strcmp(w->ignored, text) == 0)
        return;
    snprintf(w->ignored, sizeof(w->ignored), "%s", text);
    if (text[0] != '\0')
        log_warn("memory", "memory: %s: %s",
                 w->is_known ? "a limit is not considered" : "the use is not watched", text);
}

/* Called with the lock. */
static void read_limit(struct memory_watch *w)
{
    struct err err;

    w->is_known = memory_limit_read(w->root, &w->limit, &err) == 0;
    log_ignored(w, w->is_known ? w->limit.ignored : err.text);
    if (w->is_known)
        judge_use(w, &w->limit);
}

const char *memory_watch_tick(struct memory_watch *w, uint64_t now_ms, bool at_once)
{
    const char *text = NULL;

    pthread_mutex_lock(&w->lock);
    if (at_once || !w->has_read || now_ms - w->read_ms >= PERIOD_MS) {
        w->has_read = true;
        w->read_ms = now_ms;
        read_limit(w);
    }
    if (w->is_new) {
        memcpy(w->returned, w->latest, sizeof(w->returned));
        text = w->returned;
    }
    w->is_new = false;
    pthread_mutex_unlock(&w->lock);
    return text;
}

bool memory_watch_status(struct memory_watch *w, struct memory_status *out)
{
    bool is_known;

    pthread_mutex_lock(&w->lock);
    is_known = w->is_known;
    if (is_known) {
        out->limit = w->limit;
        memcpy(out->warning, w->low[0] != '\0' ? w->low : w->tight, sizeof(out->warning));
    }
    pthread_mutex_unlock(&w->lock);
    return is_known;
}

/* ---- the tables of a ps ---- */

/* Called with the lock, when all servers have reported. */
static void judge_plan(struct memory_watch *w, const struct ps_memory *p)
{
    const struct memory_limit *m = &w->plan_limit;
    char tables[SIZE_BYTES], most[SIZE_BYTES], others[SIZE_BYTES], limit[SIZE_BYTES];
    uint64_t sum = p->planned_memory + w->others;
    bool has_more = p->planned_memory > p->planned;

    if (!exceeds(sum, m, MEMORY_WARN_PERCENT)) {
        w->tight[0] = '\0';
        w->planned = 0;
        return;
    }
    text_bytes(tables, sizeof(tables), p->planned);
    text_bytes(most, sizeof(most), p->planned_memory);
    text_bytes(others, sizeof(others), w->others);
    text_bytes(limit, sizeof(limit), m->bytes);
    snprintf(w->tight, sizeof(w->tight),
             "memory: the tables of this task need %s (rows, state of the optimizer, averages)%s%s; with %s that "
             "are in use for other things, %llu %% of the limit of %s: %s; %s: %s",
             tables, has_more ? ", with huge pages up to " : "", has_more ? most : "",
             others, (unsigned long long)percent(sum, m), limit, m->source, consequence(m), remedy(w));
    /* a table that grows is reported once, not at each step */
    if (w->planned == 0 || (w->planned != p->planned && p->growing == NULL))
        set_latest(w, w->tight);
    w->planned = p->planned;
}

static int refuse(const struct memory_watch *w, const struct ps_memory *p, struct err *err)
{
    const struct memory_limit *m = &w->plan_limit;
    char tables[SIZE_BYTES], limit[SIZE_BYTES], swap[SIZE_BYTES];
    bool has_swap = m->swap > 0;

    text_bytes(tables, sizeof(tables), p->planned);
    text_bytes(limit, sizeof(limit), m->bytes);
    text_bytes(swap, sizeof(swap), m->swap);
    return err_set(err, ERR_NOMEM,
                   "memory: the tables of this task need at least %s (rows, state of the optimizer, averages), "
                   "which exceeds the limit of %s%s%s%s: %s; %s",
                   tables, limit, has_swap ? " and " : "", has_swap ? swap : "",
                   has_swap ? " of swap space" : "", m->source, remedy(w));
}

/* A dynamic table would exceed the limit with the rows that it is about to add. */
static int refuse_growth(const struct memory_watch *w, const struct ps_memory *p, struct err *err)
{
    const struct memory_limit *m = &w->limit;
    char tables[SIZE_BYTES], grown[SIZE_BYTES], limit[SIZE_BYTES], used[SIZE_BYTES];

    text_bytes(used, sizeof(used), m->used);
    text_bytes(tables, sizeof(tables), p->planned);
    text_bytes(grown, sizeof(grown), p->grown);
    text_bytes(limit, sizeof(limit), m->bytes);
    return err_set(err, ERR_NOMEM,
                   "memory: with its new rows table '%s' needs more than this task may use: the tables need %s, of "
                   "which %s since the generation began; %s of %s are in use: %s; set /model/tables/%s/max_rows or "
                   "expire_steps, start more ps tasks, or raise the limit",
                   p->growing, tables, grown, used, limit, m->source, p->growing);
}

static uint64_t usable(const struct memory_limit *m)
{
    return m->bytes - m->bytes / GROWTH_MARGIN + m->swap;
}

/* Reads how many bytes the tables may still grow by. */
static void read_left(struct memory_watch *w)
{
    uint64_t room;

    read_limit(w);
    room = usable(&w->limit);
    w->left = w->is_known && room > w->limit.used ? room - w->limit.used : 0;
    w->grown_read = w->grown;
    w->has_growth = true;
}

/* A table that grows up to the limit ends the task: a checkpoint is asked for when little is left, and again
 * whenever half of that is left. */
static bool asks_for_save(struct memory_watch *w, uint64_t left)
{
    bool asks;

    if (w->saved_left != 0 && left > 2 * w->saved_left)
        w->saved_left = left; /* memory was returned */
    asks = left < w->limit.bytes / SAVE_FIRST && left >= w->limit.bytes / SAVE_LAST &&
           (w->saved_left == 0 || left <= w->saved_left / 2);

    if (asks)
        w->saved_left = left;
    return asks;
}

/* Arrays that grow leave holes in the heap, which count as used until they are returned to the kernel. The tables are
 * not all of the memory, so their growth is compared with the use that is measured, from time to
 * time, and more often as less is left. */
static int judge_growth(struct memory_watch *w, const struct ps_memory *p, struct err *err)
{
    if (!w->has_growth || p->grown - w->grown_read > w->left / GROWTH_READINGS)
        read_left(w);
    if (w->is_known && p->grown - w->grown_read > w->left) {
        (void)malloc_trim(0); /* whether it has returned memory does not matter: the use is read again */
        read_left(w);
    }
    if (w->is_known && p->grown - w->grown_read > w->left)
        return refuse_growth(w, p, err);
    w->grown = p->grown;
    return w->is_known && asks_for_save(w, w->left - (p->grown - w->grown_read)) ? 1 : 0;
}

uint64_t memory_watch_room(struct memory_watch *w, uint64_t held)
{
    uint64_t all, others, room = UINT64_MAX;

    pthread_mutex_lock(&w->lock);
    read_limit(w);
    if (w->is_known && w->limit.kind != MEMORY_LIMIT_ADDRESSES) {
        all = usable(&w->limit);
        others = w->limit.used > held ? w->limit.used - held : 0;
        room = all > others ? all - others : 0;
    }
    pthread_mutex_unlock(&w->lock);
    return room;
}

/* The store reserves the addresses of all shards before BEGIN (ps/store.h), so RLIMIT_AS has allowed
 * the tables when this function is called. */
int memory_watch_plan(struct memory_watch *w, const struct ps_memory *p, struct err *err)
{
    struct memory_limit *m = &w->plan_limit;
    int rc = 0;

    pthread_mutex_lock(&w->lock);
    if (p->n_reported == 1 && p->growing == NULL) { /* no server has allocated a shard yet */
        read_limit(w);
        w->has_plan_limit = w->is_known;
        *m = w->limit;
        w->others = m->used > p->held ? m->used - p->held : 0;
        w->has_growth = false;
        w->grown = w->saved_left = 0;
    }
    if (w->has_plan_limit && m->kind != MEMORY_LIMIT_ADDRESSES) {
        if (p->growing != NULL)
            rc = judge_growth(w, p, err);
        else if (p->planned > m->bytes && p->planned - m->bytes > m->swap)
            rc = refuse(w, p, err);
        if (rc >= 0 && p->n_reported == p->n_servers)
            judge_plan(w, p);
    }
    pthread_mutex_unlock(&w->lock);
    return rc;
}
