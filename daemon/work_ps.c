/* work_ps.c - the work of a parameter server: forwards to lib/ps. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/err.h"
#include "comm/comm.h"
#include "daemon/memory_watch.h"
#include "daemon/report.h"
#include "daemon/run_priv.h"
#include "daemon/work.h"
#include "ps/ps.h"

struct ps_work {
    struct run *run;
    struct ps *ps; /* owned */
    train_end_fn *on_end;
    pthread_mutex_t lock; /* guards is_asked */
    pthread_cond_t asked;
    bool is_asked; /* the membership has asked for the end of the generation */
    _Atomic bool is_serving;    /* a generation runs */
    _Atomic uint64_t since_ns;  /* clock_ns() when is_serving changed */
};

static void set_serving(struct ps_work *w, bool is_serving)
{
    atomic_store_explicit(&w->is_serving, is_serving, memory_order_relaxed);
    atomic_store_explicit(&w->since_ns, clock_ns(), memory_order_relaxed);
}

static void set_asked(struct ps_work *w, bool is_asked)
{
    pthread_mutex_lock(&w->lock);
    w->is_asked = is_asked;
    pthread_cond_broadcast(&w->asked);
    pthread_mutex_unlock(&w->lock);
}

/* After the last step the leader sends OVER and closes its connections. A message of this task that
 * the leader has not read then makes the kernel reset the connection, which discards an OVER that
 * this task has not read: it would wait for a leader until its deadline. So the end of the last
 * generation is not reported before the leader has asked, or has had the time to. */
static void wait_for_over(struct ps_work *w)
{
    enum { WAIT_MS = 2000 };
    struct timespec until = clock_after_ms(WAIT_MS);

    pthread_mutex_lock(&w->lock);
    while (!w->is_asked &&
           pthread_cond_clockwait(&w->asked, &w->lock, CLOCK_MONOTONIC, &until) == 0)
        ;
    pthread_mutex_unlock(&w->lock);
}

static int on_memory(void *arg, const struct ps_memory *m, struct err *err)
{
    const struct ps_work *w = arg;

    return memory_watch_plan(w->run->memory, m, err);
}

static uint64_t room(void *arg, uint64_t held)
{
    const struct ps_work *w = arg;

    return memory_watch_room(w->run->memory, held);
}

static int open_ps(struct run *r, void **out, struct err *err)
{
    struct ps_work *w = calloc(1, sizeof(*w));
    int rc;

    *out = NULL;
    if (w == NULL)
        return err_set(err, ERR_NOMEM, "parameter server: out of memory");
    w->run = r;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->asked, NULL);
    set_serving(w, false);
    rc = ps_open(&(struct ps_opts){ .n_servers = r->s->n_servers,
                                    .on_memory = on_memory,
                                    .room = room,
                                    .checkpoints = r->s->train.checkpoint.directory,
                                    .arg = w },
                 &w->ps, err);
    if (rc < 0) {
        free(w);
        return rc;
    }
    *out = w;
    return 0;
}

static void ps_opened(struct run *r)
{
    (void)r;
}

/* ---- callbacks: from threads of the ps ---- */

static void on_connected(void *arg, uint64_t step)
{
    struct ps_work *w = arg;

    report_phase(w->run->report, "serve");
    w->run->train_opts.on_event(
        w->run, &(struct train_event){ .kind = TRAIN_CONNECTED, .step = step });
}

static void on_copied(void *arg, uint32_t n, uint64_t ms)
{
    struct ps_work *w = arg;
    char text[128];

    snprintf(text, sizeof(text), "the rows of %u shards were received in %llu ms: all are complete",
             n, (unsigned long long)ms);
    w->run->train_opts.on_event(w->run, &(struct train_event){ .kind = TRAIN_NOTE, .text = text });
}

static void on_end(void *arg, bool is_complete, bool is_aborted, int code, const char *text)
{
    struct ps_work *w = arg;
    enum train_end end = TRAIN_PAUSED; /* the membership learns from the training tasks that the job is complete */

    if (is_complete)
        wait_for_over(w);
    if (is_aborted)
        end = TRAIN_ABORTED;
    else if (code < 0)
        end = TRAIN_FAILED;
    set_serving(w, false);
    w->on_end(w->run, end, 0, code, text);
}

/* ---- a generation ---- */

static int start_ps(void *work, const struct train_generation *g, train_end_fn *end,
                    struct err *err)
{
    struct ps_work *w = work;
    struct ps_group group = { .view = g->view,
                              .listener = g->listener,
                              .shared_memory = g->shared_memory,
                              .encrypts = g->encrypts,
                              /* as a training task: a peer that fails at the deadline states the cause */
                              .deadline_ms = g->deadline_ms + g->deadline_ms / 4,
                              .on_broken = g->on_broken,
                              .broken_arg = w->run,
                              .on_connected = on_connected,
                              .on_copied = on_copied,
                              .on_end = on_end };
    int rc;

    _Static_assert(sizeof(group.key) == sizeof(g->key), "one key");
    memcpy(group.key, g->key, sizeof(group.key));
    w->on_end = end;
    set_asked(w, false);
    set_serving(w, true); /* the end may come before ps_start() returns */
    rc = ps_start(w->ps, &group, err);
    if (rc < 0)
        set_serving(w, false);
    return rc;
}

static void request_ps(void *work, unsigned kinds)
{
    (void)kinds; /* the training tasks end the generation */
    set_asked(work, true);
}

static void abort_ps(void *work, const char *why)
{
    set_asked(work, true);
    ps_abort(((struct ps_work *)work)->ps, why);
}

static uint64_t held_by_ps(const void *work)
{
    (void)work;
    return 0;
}

static void progress_of_ps(const void *work, struct train_progress *out)
{
    const struct ps_work *w = work;
    struct ps_facts f;

    ps_facts(w->ps, &f);
    *out = (struct train_progress){
        .step = f.step,
        .phase = atomic_load_explicit(&w->is_serving, memory_order_relaxed) ? "serve" : "rest",
        .since_ns = atomic_load_explicit(&w->since_ns, memory_order_relaxed)
    };
}

void work_ps_facts(const void *work, struct ps_facts *out)
{
    ps_facts(((const struct ps_work *)work)->ps, out);
}

uint32_t work_ps_tables(const void *work, struct ps_table_facts *out, uint32_t most)
{
    return ps_tables(((const struct ps_work *)work)->ps, out, most);
}

static int read_rows_of_ps(void *work, const struct rdzv_rows_request *q, struct rdzv_rows *out,
                           struct err *err)
{
    struct ps_work *w = work;
    struct ps_rows rows;
    int rc;

    if (w == NULL)
        return err_set(err, ERR_PEER, "the rows are not complete: the task starts");
    rc = ps_read_rows(w->ps, q->table, q->part, q->rows, q->n_rows, &rows, err);
    if (rc == 0)
        *out = (struct rdzv_rows){ .step = rows.step,
                                   .width = rows.width,
                                   .n_held = rows.n,
                                   .held = rows.rows,
                                   .values = rows.values,
                                   .is_initial = rows.is_initial,
                                   .is_dynamic = rows.is_dynamic };
    return rc;
}

static void close_ps(void *work)
{
    struct ps_work *w = work;

    if (w == NULL)
        return;
    set_asked(w, true);
    ps_close(w->ps);
    free(w);
}

const struct work_ops work_ps = {
    .what = "the tables",
    .open = open_ps,
    .opened = ps_opened,
    .start = start_ps,
    .request = request_ps,
    .abort = abort_ps,
    .held = held_by_ps,
    .progress = progress_of_ps,
    .read_rows = read_rows_of_ps,
    .close = close_ps,
};
