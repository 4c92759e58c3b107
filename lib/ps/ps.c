/* ps.c - see ps.h. */
#include "ps/ps.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/arena.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/gate.h"
#include "base/thread.h"
#include "comm/channel.h"
#include "comm/comm.h"
#include "ps/map.h"
#include "ps/server.h"
#include "ps/store.h"

struct service { /* a service thread */
    struct ps *ps;
    uint32_t local;
    struct ps_server *server; /* owned */
    pthread_t thread;
    bool started;
    pthread_mutex_t turn; /* held while the server handles a message, or a reader reads */
    pthread_mutex_t lock; /* guards the fields below */
    struct ps_server_stats stats;
    struct ps_table_facts *tables; /* owned [room_tables] */
    uint32_t n_tables, room_tables;
};

struct ps {
    struct ps_opts opts;
    struct service *services; /* owned [n_servers] */
    struct ps_group group;
    struct arena memory; /* of the view */
    struct gate gate;    /* broken when the generation ends early */
    _Atomic uint32_t running;
    struct ps_budget budget;
    pthread_mutex_t lock; /* guards the fields below */
    struct comm *comm;    /* owned; NULL: not connected */
    bool is_over;         /* aborted, or failed: err */
    bool is_aborted;
    struct err err;
    bool is_complete;
};

/* ---- opening ---- */

static int send(void *arg, uint32_t to, const struct iovec *parts, uint32_t n, struct err *err)
{
    struct service *s = arg;

    return comm_send(s->ps->comm, s->local, to, parts, n, err);
}

static void exchange(void *arg, uint8_t **data, size_t *room)
{
    struct service *s = arg;

    comm_exchange(s->ps->comm, s->local, data, room);
}

static int reserve(void *arg, uint64_t bytes, uint64_t memory, struct err *err)
{
    struct service *s = arg;

    return ps_budget_report(&s->ps->budget, bytes, memory, err);
}

static int grow(void *arg, const char *table, uint64_t bytes, struct err *err)
{
    struct service *s = arg;

    return ps_budget_grow(&s->ps->budget, table, bytes, err);
}

static bool wants_save(void *arg)
{
    struct service *s = arg;

    return ps_budget_takes_save(&s->ps->budget);
}

/* The service threads hold equal parts of the shards. */
static uint64_t room(void *arg)
{
    struct service *s = arg;
    struct ps *p = s->ps;
    uint64_t bytes =
        p->opts.room != NULL ? p->opts.room(p->opts.arg, ps_budget_held(&p->budget)) : UINT64_MAX;

    return bytes == UINT64_MAX ? bytes : bytes / p->opts.n_servers;
}

int ps_open(const struct ps_opts *opts, struct ps **out, struct err *err)
{
    struct ps *p = calloc(1, sizeof(*p));
    int rc = 0;

    if (p == NULL)
        return err_set(err, ERR_NOMEM, "parameter server: out of memory");
    CHECK(opts->n_servers > 0);
    p->opts = *opts;
    pthread_mutex_init(&p->lock, NULL);
    ps_budget_init(&p->budget, opts->on_memory, opts->arg);
    p->services = calloc(opts->n_servers, sizeof(*p->services));
    if (p->services == NULL)
        rc = err_set(err, ERR_NOMEM, "parameter server: out of memory");
    for (uint32_t i = 0; rc == 0 && i < opts->n_servers; i++) {
        struct service *s = &p->services[i];

        s->ps = p;
        s->local = i;
        pthread_mutex_init(&s->lock, NULL);
        pthread_mutex_init(&s->turn, NULL);
        rc = ps_server_open(&(struct ps_server_opts){ .thread = i,
                                                      .n_threads = opts->n_servers,
                                                      .send = send,
                                                      .exchange = exchange,
                                                      .reserve = reserve,
                                                      .room = room,
                                                      .grow = grow,
                                                      .wants_save = wants_save,
                                                      .arg = s,
                                                      .directory = opts->checkpoints },
                            &s->server, err);
    }
    if (rc < 0) {
        ps_close(p);
        return rc;
    }
    *out = p;
    return 0;
}

static void join(struct ps *p)
{
    for (uint32_t i = 0; p->services != NULL && i < p->opts.n_servers; i++)
        if (p->services[i].started) {
            pthread_join(p->services[i].thread, NULL);
            p->services[i].started = false;
        }
}

void ps_close(struct ps *p)
{
    if (p == NULL)
        return;
    join(p);
    for (uint32_t i = 0; p->services != NULL && i < p->opts.n_servers; i++)
        ps_server_close(p->services[i].server);
    for (uint32_t i = 0; p->services != NULL && i < p->opts.n_servers; i++)
        free(p->services[i].tables);
    free(p->services);
    ps_budget_fini(&p->budget);
    arena_fini(&p->memory);
    free(p);
}

/* ---- the end of a generation ---- */

static void fail(struct ps *p, const struct err *why, bool is_abort)
{
    pthread_mutex_lock(&p->lock);
    if (!p->is_over) {
        p->is_over = true;
        p->is_aborted = is_abort;
        p->err = *why;
    }
    if (p->comm != NULL)
        comm_abort(p->comm, why->text);
    pthread_mutex_unlock(&p->lock);
    gate_break(&p->gate);
}

void ps_abort(struct ps *p, const char *why)
{
    struct err err;

    if (atomic_load_explicit(&p->running, memory_order_acquire) == 0)
        return;
    (void)err_set(&err, ERR_CANCELED, "%s", why);
    fail(p, &err, true);
}

/* Called in the last thread. */
static void end_generation(struct ps *p)
{
    struct comm *comm;
    bool is_over;

    pthread_mutex_lock(&p->lock);
    comm = p->comm;
    p->comm = NULL;
    is_over = p->is_over;
    pthread_mutex_unlock(&p->lock);
    comm_close(comm);
    if (is_over)
        p->group.on_end(p->opts.arg, false, p->is_aborted, p->err.code, p->err.text);
    else
        p->group.on_end(p->opts.arg, p->is_complete, false, 0, "");
}

/* ---- serving ---- */

static int connect_group(struct ps *p, struct err *err)
{
    const struct ps_group *g = &p->group;
    struct comm_opts o = { .view = g->view,
                           .listener = g->listener,
                           .shared_memory = g->shared_memory,
                           .encrypts = g->encrypts,
                           .deadline_ms = g->deadline_ms,
                           .on_broken = g->on_broken,
                           .arg = g->broken_arg };
    struct comm *comm;
    int rc;

    _Static_assert(sizeof(o.key) == sizeof(g->key), "one key");
    memcpy(o.key, g->key, sizeof(o.key));
    rc = comm_open(&o, &comm, err);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&p->lock);
    p->comm = comm;
    if (p->is_over)
        comm_abort(comm, p->err.text);
    pthread_mutex_unlock(&p->lock);
    rc = comm_connect(comm, err);
    if (rc < 0) {
        struct comm_loss lost;

        if (g->on_broken != NULL && comm_connect_loss(comm, &lost))
            g->on_broken(g->broken_arg, &lost, err->text);
    }
    return rc;
}

static uint32_t first_rank_of(const struct group_view *v, uint32_t member)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < member; i++)
        n += v->members[i].n_devices;
    return n;
}

/* Without memory the tables that have no place are not reported. */
static void store_tables(struct service *s)
{
    uint32_t n = ps_server_tables(s->server, s->tables, s->room_tables);

    if (n > s->room_tables) {
        struct ps_table_facts *grown = realloc(s->tables, n * sizeof(*grown));

        if (grown != NULL) {
            s->tables = grown;
            s->room_tables = n;
            (void)ps_server_tables(s->server, s->tables, n);
        }
    }
    s->n_tables = n < s->room_tables ? n : s->room_tables;
}

static void store_stats(struct service *s)
{
    pthread_mutex_lock(&s->lock);
    ps_server_stats(s->server, &s->stats);
    store_tables(s);
    pthread_mutex_unlock(&s->lock);
}

/* Shards whose rows are being copied. */
struct copies {
    uint32_t n, most;
    uint64_t since_ns;
};

static void watch_copies(struct service *s, struct copies *c)
{
    uint32_t before = c->n;

    c->n = ps_server_copying(s->server);
    if (c->n == before)
        return;
    if (before == 0) {
        c->most = c->n;
        c->since_ns = clock_ns();
    }
    store_stats(s);
    if (c->n == 0 && s->ps->group.on_copied != NULL)
        s->ps->group.on_copied(s->ps->opts.arg, c->most, (clock_ns() - c->since_ns) / 1000000);
}

static int serve(struct service *s, struct err *err)
{
    struct ps *p = s->ps;
    struct copies copies = { 0 };
    uint64_t seen = UINT64_MAX;
    int rc;

    pthread_mutex_lock(&s->turn);
    rc = ps_server_begin(s->server, comm_world(p->comm), comm_servers(p->comm),
                         comm_first_point(p->comm) + s->local,
                         first_rank_of(&p->group.view, p->group.view.coordinator), err);
    pthread_mutex_unlock(&s->turn);
    while (rc == 0 && ps_server_ended(s->server) == PS_RUNNING) {
        struct comm_message m;

        rc = comm_receive(p->comm, s->local, &m, UINT64_MAX, err);
        if (rc == 0) {
            pthread_mutex_lock(&s->turn);
            rc = ps_server_handle(s->server, m.from, m.data, m.bytes, err);
            pthread_mutex_unlock(&s->turn);
            watch_copies(s, &copies);
        }
        if (rc == 0 && ps_server_version(s->server) != seen) {
            seen = ps_server_version(s->server);
            store_stats(s);
        }
    }
    return rc;
}

static int run(struct service *s, struct err *err)
{
    struct ps *p = s->ps;
    int rc = s->local == 0 ? connect_group(p, err) : 0;

    if (rc < 0)
        return rc;
    if (!gate_wait(&p->gate))
        return err_set(err, ERR_CANCELED, "the generation ended");
    if (s->local == 0 && p->group.on_connected != NULL)
        p->group.on_connected(p->opts.arg, ps_server_version(s->server));
    rc = serve(s, err);
    if (rc == 0 && ps_server_ended(s->server) == PS_COMPLETE) {
        pthread_mutex_lock(&p->lock);
        p->is_complete = true;
        pthread_mutex_unlock(&p->lock);
    }
    return rc;
}

static void *service_main(void *arg)
{
    struct service *s = arg;
    struct err err;

    if (run(s, &err) < 0)
        fail(s->ps, &err, false);
    pthread_mutex_lock(&s->turn);
    ps_server_end(s->server);
    pthread_mutex_unlock(&s->turn);
    store_stats(s);
    if (atomic_fetch_sub_explicit(&s->ps->running, 1, memory_order_acq_rel) == 1)
        end_generation(s->ps);
    return NULL;
}

int ps_start(struct ps *p, const struct ps_group *g, struct err *err)
{
    struct ps_facts facts;

    join(p); /* of the previous generation */
    ps_facts(p, &facts);
    ps_budget_begin(&p->budget, facts.memory, p->opts.n_servers);
    arena_fini(&p->memory);
    p->group = *g;
    if (!group_view_copy(&g->view, &p->memory, &p->group.view))
        return err_set(err, ERR_NOMEM, "parameter server: out of memory");
    p->is_over = p->is_aborted = p->is_complete = false;
    gate_init(&p->gate, p->opts.n_servers, false);
    atomic_store_explicit(&p->running, p->opts.n_servers, memory_order_release);
    for (uint32_t i = 0; i < p->opts.n_servers; i++) {
        struct service *s = &p->services[i];
        int rc = thread_start(&s->thread, "serves tables", service_main, s, err);

        s->started = rc == 0;
        if (rc == 0)
            continue;
        fail(p, err, false); /* the threads that have started end */
        /* one of them may be the last: the counter never reaches 0, so on_end is not called */
        join(p);
        pthread_mutex_lock(&p->lock);
        comm_close(p->comm);
        p->comm = NULL;
        pthread_mutex_unlock(&p->lock);
        atomic_store_explicit(&p->running, 0, memory_order_release);
        return rc;
    }
    return 0;
}

void ps_facts(struct ps *p, struct ps_facts *out)
{
    *out = (struct ps_facts){ .step = UINT64_MAX };
    for (uint32_t i = 0; i < p->opts.n_servers; i++) {
        struct service *s = &p->services[i];

        pthread_mutex_lock(&s->lock);
        out->step = s->stats.step < out->step ? s->stats.step : out->step;
        out->n_shards += s->stats.n_shards;
        out->n_copied += s->stats.n_copied;
        out->bytes += s->stats.bytes;
        out->memory += s->stats.memory;
        out->rows_read += s->stats.rows_read;
        out->rows_updated += s->stats.rows_updated;
        for (uint32_t age = 0; age < PS_AGES; age++)
            out->rows_stale[age] += s->stats.rows_stale[age];
        pthread_mutex_unlock(&s->lock);
    }
}

uint32_t ps_tables(struct ps *p, struct ps_table_facts *out, uint32_t most)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < p->opts.n_servers; i++) {
        struct service *s = &p->services[i];

        pthread_mutex_lock(&s->lock);
        for (uint32_t t = 0; t < s->n_tables && t < most; t++) {
            if (t >= n)
                out[t] = (struct ps_table_facts){ 0 };
            memcpy(out[t].name, s->tables[t].name, sizeof(out[t].name));
            out[t].rows += s->tables[t].rows;
            out[t].admitted += s->tables[t].admitted;
            out[t].expired += s->tables[t].expired;
            n = t >= n ? t + 1 : n;
        }
        n = s->n_tables > n ? s->n_tables : n;
        pthread_mutex_unlock(&s->lock);
    }
    return n;
}

/* ---- reading rows ---- */

enum { TURN_MS = 1000 };

/* A thread that sends to a peer that does not read holds its turn until the generation fails. */
static int wait_for_turn(struct service *s, struct err *err)
{
    struct timespec until = clock_after_ms(TURN_MS);

    return pthread_mutex_clocklock(&s->turn, CLOCK_MONOTONIC, &until) == 0
               ? 0
               : err_set(err, ERR_PEER, "a service thread is busy; try again");
}

/* Reads the rows that a server has. Its version must be that of the servers before it. */
static int read_from(struct service *s, const char *table, const char *part, const uint64_t *rows,
                     size_t n, struct ps_rows *out, struct err *err)
{
    struct ps_place at;
    int rc = ps_server_find(s->server, table, part, &at, err);

    if (rc < 0)
        return rc;
    if (out->values == NULL)
        out->values = malloc(n * at.width * sizeof(float) + 1);
    if (out->is_initial == NULL)
        out->is_initial = calloc(n + 1, sizeof(*out->is_initial));
    if (out->values == NULL || out->is_initial == NULL)
        return err_set(err, ERR_NOMEM, "rows: out of memory");
    out->is_dynamic = at.rows == 0;
    if (out->n > 0 && out->step != at.step)
        return err_set(err, ERR_PEER, "the rows changed while they were read; try again");
    out->step = at.step;
    out->width = at.width;
    for (size_t i = 0; rc == 0 && i < n; i++) {
        uint64_t row = at.rows == 0 ? ps_row_of_id((int64_t)rows[i]) : rows[i];
        bool is_initial;

        if (at.rows > 0 && row >= at.rows)
            return err_set(err, ERR_INPUT, "row %" PRIu64 ": table '%s' has rows 0 to %" PRIu64,
                           rows[i], table, at.rows - 1);
        if (!ps_server_has_row(s->server, &at, row))
            continue;
        out->rows[out->n] = rows[i];
        rc = ps_server_read_row(s->server, &at, row, out->values + out->n * at.width, &is_initial,
                                err);
        out->is_initial[out->n++] = is_initial;
    }
    return rc;
}

int ps_read_rows(struct ps *p, const char *table, const char *part, const uint64_t *rows, size_t n,
                 struct ps_rows *out, struct err *err)
{
    int rc = 0;

    *out = (struct ps_rows){ .rows = malloc((n + 1) * sizeof(*out->rows)) };
    if (out->rows == NULL)
        return err_set(err, ERR_NOMEM, "rows: out of memory");
    for (uint32_t i = 0; rc == 0 && i < p->opts.n_servers; i++) {
        struct service *s = &p->services[i];

        rc = wait_for_turn(s, err);
        if (rc < 0)
            break;
        rc = read_from(s, table, part, rows, n, out, err);
        pthread_mutex_unlock(&s->turn);
    }
    if (rc < 0) {
        free(out->rows);
        free(out->values);
        free(out->is_initial);
        *out = (struct ps_rows){ 0 };
    }
    return rc;
}
