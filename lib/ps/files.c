/* files.c - see files.h. */
#include "ps/files.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>

#include "base/clock.h"
#include "base/err.h"
#include "ckpt/ckpt.h"
#include "comm/channel.h"
#include "ps/port.h"
#include "ps/route.h"

enum {
    POLL_MS_MIN = 1, /* doubled after each poll, so that short work is not delayed */
    POLL_MS_MAX = 100,
    TELL_MS = 500, /* between two messages to the ranks that wait */
};

struct server {
    bool works; /* has been asked, and has neither completed nor failed */
    uint64_t progress;
};

struct work {
    const struct ps_port *port;
    const struct ps_route *route;
    uint64_t step, stall_ms;
    ps_server_name_fn *name;
    void *arg;
    struct ckpt_row_files *files; /* of a save; NULL: a load */
    uint32_t n_ready;             /* READY messages during a load */

    struct server *servers;      /* owned [n_servers] */
    struct ps_section *sections; /* owned [PS_TABLES_MAX]; for messages that are refused */
    struct ps_writer out;        /* owned */
    uint32_t n_working;
    uint64_t moved_ns, told_ns;
};

static int open_work(struct work *w, struct err *err)
{
    w->moved_ns = w->told_ns = clock_ns();
    w->servers = calloc(w->route->n_servers, sizeof(*w->servers));
    w->sections = calloc(PS_TABLES_MAX, sizeof(*w->sections));
    return w->servers != NULL && w->sections != NULL
               ? 0
               : err_set(err, ERR_NOMEM, "parameter servers: out of memory");
}

static void close_work(struct work *w)
{
    free(w->servers);
    free(w->sections);
    ps_writer_fini(&w->out);
}

/* ---- messages ---- */

/* The connection fails: the generation ends, which is no failure of the storage of a save. */
static int lost(const struct work *w, int rc, struct err *err)
{
    return rc < 0 && w->files != NULL ? err_wrap(err, ERR_CANCELED, "parameter servers") : rc;
}

static int send_out(struct work *w, uint32_t server, struct err *err)
{
    struct iovec part = { .iov_base = w->out.data, .iov_len = w->out.n };

    if (w->out.failed)
        return err_set(err, ERR_NOMEM, "parameter servers: out of memory");
    return lost(w, w->port->send(w->port, w->route->n_ranks + server, &part, 1, err), err);
}

/* Every host has its own path of the directory of checkpoints. */
static const char *name_of(const char *folder)
{
    const char *slash = strrchr(folder, '/');

    return slash != NULL ? slash + 1 : folder;
}

static int request(struct work *w, uint32_t server, enum ps_kind kind, const uint64_t *shards,
                   const uint64_t *places, const char *folder, struct err *err)
{
    const struct ps_message m = { .kind = kind,
                                  .step = w->step,
                                  .number = kind == PS_SAVE ? w->files->n_sizes : 0 };
    int rc;

    ps_write_begin(&w->out, &m, 0);
    ps_write_set(&w->out, shards);
    ps_write_save(&w->out, places, name_of(folder));
    if (kind == PS_SAVE)
        ps_write_sizes(&w->out, w->files->sizes, w->files->n_sizes);
    rc = send_out(w, server, err);
    w->servers[server].works = rc == 0;
    w->n_working += rc == 0;
    return rc;
}

/* tells: the servers inform the ranks that wait for rows. */
static int send_polls(struct work *w, bool stops, struct err *err)
{
    uint64_t now = clock_ns();
    bool tells = now - w->told_ns >= TELL_MS * UINT64_C(1000000);
    const struct ps_message m = {
        .kind = PS_POLL, .step = w->step, .flag = stops, .number = tells
    };
    int rc = 0;

    if (tells)
        w->told_ns = now;
    for (uint32_t i = 0; rc == 0 && i < w->route->n_servers; i++) {
        if (!w->servers[i].works)
            continue;
        ps_write_begin(&w->out, &m, 0);
        rc = send_out(w, i, err);
    }
    return rc;
}

/* Receives DONE. During a load the servers whose other shards are copied send READY too. */
static int receive_done(struct work *w, uint32_t *server, struct ps_message *m, struct err *err)
{
    struct comm_message in;
    int rc;

    for (;;) {
        rc = w->port->receive(w->port, &in, err);
        if (rc == 0)
            rc = ps_message_read(in.data, in.bytes, NULL, 0, w->sections, m, err);
        if (rc < 0)
            return lost(w, rc, err);
        if (m->kind != PS_READY || w->files != NULL || m->step != w->step || m->flag != 1)
            break;
        w->n_ready++;
    }
    *server = in.from - w->route->n_ranks;
    if (*server >= w->route->n_servers || m->kind != PS_DONE || !w->servers[*server].works ||
        m->step != w->step)
        return lost(w,
                    err_set(err, ERR_PEER, "server %u: message kind %d of step %" PRIu64
                                           " in place of its progress of step %" PRIu64,
                            *server, m->kind, m->step, w->step),
                    err);
    return 0;
}

/* ---- progress ---- */

static int code_of(uint32_t number)
{
    int code = number <= (uint32_t)-ERR_PATH ? -(int)number : ERR_NONE;

    return code == ERR_FULL || code == ERR_NOMEM || code == ERR_NOENT || code == ERR_CANCELED
               ? code
               : ERR_IO;
}

static int note_progress(struct work *w, uint32_t server, const struct ps_message *m,
                         struct err *err)
{
    struct server *from = &w->servers[server];

    for (uint32_t i = 0; w->files != NULL && m->flag == PS_DONE_ALL && i < PS_PLACES; i++)
        w->files->sums[i / CKPT_SHARD_FILES][i % CKPT_SHARD_FILES] += m->places[i];
    if (m->flag != PS_DONE_SOME) {
        from->works = false;
        w->n_working--;
    }
    if (m->first != from->progress || m->flag == PS_DONE_ALL)
        w->moved_ns = clock_ns();
    from->progress = m->first;
    if (m->flag == PS_DONE_SOME || m->flag == PS_DONE_ALL)
        return 0;
    /* a server that cannot read leaves the group, so that the others may go on */
    return err_set(err, w->files != NULL ? code_of(m->number) : ERR_PEER, "%s: %s",
                   w->name(w->arg, server), m->text);
}

/* Names a server that still works. */
static int stalled(const struct work *w, struct err *err)
{
    uint32_t i = 0;

    while (!w->servers[i].works)
        i++;
    return err_set(err, ERR_TIMEOUT, "%s: the storage has not responded for %" PRIu64 " ms",
                   w->name(w->arg, i), w->stall_ms);
}

/* Asks every server that works, and receives all answers. The error of a server is reported after all of
 * them. */
static int poll_once(struct work *w, struct err *err)
{
    uint32_t n = w->n_working;
    int rc = send_polls(w, false, err), failed = 0;

    for (uint32_t i = 0; rc == 0 && i < n; i++) {
        struct err why;
        struct ps_message m;
        uint32_t server = 0;

        rc = receive_done(w, &server, &m, err);
        if (rc == 0 && note_progress(w, server, &m, failed == 0 ? &why : NULL) < 0 && failed == 0) {
            failed = why.code;
            *err = why;
        }
    }
    if (rc < 0 || failed < 0)
        return rc < 0 ? rc : failed;
    if (w->n_working > 0 && clock_ns() - w->moved_ns >= w->stall_ms * UINT64_C(1000000))
        return stalled(w, err);
    return 0;
}

/* Polls until all servers are done. check: called after each poll. */
static int wait_done(struct work *w, int (*check)(void *arg, struct err *err), void *arg,
                     struct err *err)
{
    uint64_t poll_ms = POLL_MS_MIN;
    int rc = 0;

    while (rc == 0 && w->n_working > 0) {
        struct timespec nap = { .tv_nsec = (long)(poll_ms * 1000000) };

        nanosleep(&nap, NULL); /* of the interval between two polls */
        poll_ms = 2 * poll_ms < POLL_MS_MAX ? 2 * poll_ms : POLL_MS_MAX;
        rc = poll_once(w, err);
        if (rc == 0 && check != NULL)
            rc = check(arg, err);
    }
    return rc;
}

static void stop_all(struct work *w)
{
    if (w->n_working > 0)
        (void)send_polls(w, true, NULL); /* if it fails too, the generation ends, and with it the work */
}

/* ---- counting ---- */

/* Copies the sizes of the shards that were asked of the server. */
static int store_counts(const struct work *w, const uint32_t *servers, const struct ps_message *m,
                        uint32_t server, uint32_t n_tables, struct ckpt_sizes *out, struct err *err)
{
    if (server >= w->route->n_servers || m->kind != PS_COUNTS || !w->servers[server].works ||
        m->step != w->step || m->number != n_tables)
        return err_set(err, ERR_PEER,
                       "server %u: message kind %d of step %" PRIu64 ", %u tables, in place of the rows "
                       "of step %" PRIu64,
                       server, m->kind, m->step, m->number, w->step);
    w->servers[server].works = false;
    for (uint32_t t = 0; t < n_tables; t++)
        for (int g = 0; g < CKPT_GROUPS; g++)
            for (uint32_t i = 0; i < PS_SHARDS; i++)
                if (servers[i] == server)
                    out[t].rows[g][i] = m->sizes[t].rows[g][i];
    return 0;
}

static int request_counts(struct work *w, const uint32_t *servers, struct err *err)
{
    const struct ps_message m = { .kind = PS_COUNT, .step = w->step };
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < w->route->n_servers; i++) {
        uint64_t shards[PS_SET_WORDS] = { 0 };

        for (uint32_t s = 0; s < PS_SHARDS; s++)
            if (servers[s] == i)
                ps_set_add(shards, s);
        ps_write_begin(&w->out, &m, 0);
        ps_write_set(&w->out, shards);
        rc = send_out(w, i, err);
        w->servers[i].works = rc == 0;
    }
    return rc;
}

int ps_count(const struct ps_port *port, const struct ps_route *route, uint64_t step,
             const uint32_t *servers, uint32_t n_tables, struct ckpt_sizes *out, struct err *err)
{
    struct work w = { .port = port, .route = route, .step = step };
    int rc = open_work(&w, err);

    memset(out, 0, n_tables * sizeof(*out));
    if (rc == 0)
        rc = request_counts(&w, servers, err);
    for (uint32_t i = 0; rc == 0 && i < route->n_servers; i++) {
        struct comm_message in;
        struct ps_message m;

        rc = port->receive(port, &in, err);
        if (rc == 0)
            rc = ps_message_read(in.data, in.bytes, NULL, 0, w.sections, &m, err);
        if (rc == 0)
            rc = store_counts(&w, servers, &m, in.from - route->n_ranks, n_tables, out, err);
    }
    close_work(&w);
    return rc;
}

/* ---- saving ---- */

static int request_saves(struct work *w, const uint32_t *servers, struct err *err)
{
    uint64_t(*shards)[PS_SET_WORDS] = calloc(w->route->n_servers, sizeof(*shards));
    int rc = 0;

    if (shards == NULL)
        return err_set(err, ERR_NOMEM, "parameter servers: out of memory");
    for (uint32_t s = 0; s < PS_SHARDS; s++)
        ps_set_add(shards[servers[s]], s);
    for (uint32_t i = 0; rc == 0 && i < w->route->n_servers; i++)
        rc = request(w, i, PS_SAVE, shards[i], &w->files->data_at[0][0], w->files->folder, err);
    free(shards);
    return rc;
}

static int check_files(void *arg, struct err *err)
{
    return ckpt_row_files_check(arg, err);
}

int ps_save(const struct ps_port *port, const struct ps_route *route, const struct ps_save_opts *o,
            struct err *err)
{
    struct work w = { .port = port,
                      .route = route,
                      .step = o->step,
                      .stall_ms = o->stall_ms,
                      .name = o->name,
                      .arg = o->arg,
                      .files = o->files };
    int rc = open_work(&w, err);

    if (rc == 0)
        rc = request_saves(&w, o->servers, err);
    if (rc == 0)
        rc = wait_done(&w, check_files, o->files, err);
    if (rc < 0)
        stop_all(&w);
    close_work(&w);
    return rc;
}

/* ---- loading ---- */

static bool is_empty(const uint64_t *set)
{
    for (uint32_t i = 0; i < PS_SET_WORDS; i++)
        if (set[i] != 0)
            return false;
    return true;
}

int ps_load(const struct ps_port *port, const struct ps_route *route, const struct ps_load_opts *o,
            uint32_t *n_ready, struct err *err)
{
    static const uint64_t no_places[PS_PLACES];
    struct work w = { .port = port,
                      .route = route,
                      .step = o->step,
                      .stall_ms = o->stall_ms,
                      .name = o->name,
                      .arg = o->arg };
    int rc = open_work(&w, err);

    for (uint32_t i = 0; rc == 0 && i < route->n_servers; i++)
        if (!is_empty(o->shards[i]))
            rc = request(&w, i, PS_LOAD, o->shards[i], no_places, o->folder, err);
    if (rc == 0)
        rc = wait_done(&w, o->on_progress, o->arg, err);
    if (rc < 0)
        stop_all(&w);
    *n_ready = w.n_ready;
    close_work(&w);
    return rc;
}
