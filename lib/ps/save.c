/* save.c - see save.h. */
#include "ps/save.h"

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
#include "ps/message.h"
#include "ps/port.h"
#include "ps/route.h"

enum {
    POLL_MS_MIN = 1, /* doubled after each poll, so that a short save is not delayed */
    POLL_MS_MAX = 100,
    TELL_MS = 500, /* between two messages to the ranks that wait */
};

struct server {
    uint64_t shards[PS_SET_WORDS];
    bool writes; /* has been asked, and has neither completed nor failed */
    uint64_t progress;
};

struct save {
    const struct ps_port *port;
    const struct ps_route *route;
    const struct ps_save_opts *o;
    struct server *servers; /* owned [n_servers] */
    struct ps_writer out;   /* owned */
    struct ps_section *sections; /* owned [PS_TABLES_MAX]; for messages that are refused */
    uint32_t n_writing;
    uint64_t moved_ns, told_ns;
};

uint32_t ps_save_server_of(const struct ps_route *route, uint32_t shard)
{
    return ps_route_holders(route, shard)[0];
}

/* ---- messages ---- */

/* The connection fails: the generation ends, which is no failure of the storage. */
static int lost(int rc, struct err *err)
{
    return rc < 0 ? err_wrap(err, ERR_CANCELED, "parameter servers") : 0;
}

static int send_out(struct save *s, uint32_t server, struct err *err)
{
    struct iovec part = { .iov_base = s->out.data, .iov_len = s->out.n };

    if (s->out.failed)
        return err_set(err, ERR_NOMEM, "parameter servers: out of memory");
    return lost(s->port->send(s->port, s->route->n_ranks + server, &part, 1, err), err);
}

/* Every host has its own path of the directory of checkpoints. */
static const char *name_of(const char *folder)
{
    const char *slash = strrchr(folder, '/');

    return slash != NULL ? slash + 1 : folder;
}

static int send_saves(struct save *s, struct err *err)
{
    const struct ps_message m = { .kind = PS_SAVE, .step = s->o->step };
    int rc = 0;

    for (uint32_t shard = 0; shard < PS_SHARDS; shard++)
        ps_set_add(s->servers[ps_save_server_of(s->route, shard)].shards, shard);
    for (uint32_t i = 0; rc == 0 && i < s->route->n_servers; i++) {
        ps_write_begin(&s->out, &m, 0);
        ps_write_set(&s->out, s->servers[i].shards);
        ps_write_save(&s->out, &s->o->files->data_at[0][0], name_of(s->o->files->folder));
        rc = send_out(s, i, err);
        s->servers[i].writes = rc == 0;
        s->n_writing += rc == 0;
    }
    return rc;
}

/* tells: the servers inform the ranks that wait for rows. */
static int send_polls(struct save *s, bool stops, struct err *err)
{
    uint64_t now = clock_ns();
    bool tells = now - s->told_ns >= TELL_MS * UINT64_C(1000000);
    const struct ps_message m = {
        .kind = PS_SAVING, .step = s->o->step, .flag = stops, .number = tells
    };
    int rc = 0;

    if (tells)
        s->told_ns = now;
    for (uint32_t i = 0; rc == 0 && i < s->route->n_servers; i++) {
        if (!s->servers[i].writes)
            continue;
        ps_write_begin(&s->out, &m, 0);
        rc = send_out(s, i, err);
    }
    return rc;
}

static int receive_saved(struct save *s, uint32_t *server, struct ps_message *m, struct err *err)
{
    struct comm_message in;
    int rc = s->port->receive(s->port, &in, err);

    if (rc == 0)
        rc = ps_message_read(in.data, in.bytes, NULL, 0, s->sections, m, err);
    if (rc < 0)
        return lost(rc, err);
    *server = in.from - s->route->n_ranks;
    if (*server >= s->route->n_servers || m->kind != PS_SAVED || !s->servers[*server].writes ||
        m->step != s->o->step)
        return lost(err_set(err, ERR_PEER, "server %u: message kind %d of step %" PRIu64
                                           " in place of its progress of step %" PRIu64,
                            *server, m->kind, m->step, s->o->step),
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

static int note_progress(struct save *s, uint32_t server, const struct ps_message *m,
                         struct err *err)
{
    struct ckpt_row_files *files = s->o->files;
    struct server *from = &s->servers[server];

    if (m->flag == PS_SAVED_ALL)
        for (uint32_t i = 0; i < CKPT_SHARD_KINDS * CKPT_SHARD_FILES; i++)
            files->sums[i / CKPT_SHARD_FILES][i % CKPT_SHARD_FILES] += m->places[i];
    if (m->flag != PS_SAVED_SOME) {
        from->writes = false;
        s->n_writing--;
    }
    if (m->first != from->progress || m->flag == PS_SAVED_ALL)
        s->moved_ns = clock_ns();
    from->progress = m->first;
    if (m->flag == PS_SAVED_NONE)
        return err_set(err, code_of(m->number), "%s: %s", s->o->name(s->o->arg, server), m->text);
    return 0;
}

/* Names a server that still writes. */
static int stalled(const struct save *s, struct err *err)
{
    uint32_t i = 0;

    while (!s->servers[i].writes)
        i++;
    return err_set(err, ERR_TIMEOUT, "%s: the storage has not responded for %" PRIu64 " ms",
                   s->o->name(s->o->arg, i), s->o->stall_ms);
}

/* Asks every server that writes, and receives all answers. The error of a server is reported after all of
 * them. */
static int poll_once(struct save *s, struct err *err)
{
    uint32_t n = s->n_writing;
    int rc = send_polls(s, false, err), failed = 0;

    for (uint32_t i = 0; rc == 0 && i < n; i++) {
        struct err why;
        struct ps_message m;
        uint32_t server = 0;

        rc = receive_saved(s, &server, &m, err);
        if (rc == 0 && note_progress(s, server, &m, failed == 0 ? &why : NULL) < 0 && failed == 0) {
            failed = why.code;
            *err = why;
        }
    }
    if (rc < 0 || failed < 0)
        return rc < 0 ? rc : failed;
    if (s->n_writing > 0 && clock_ns() - s->moved_ns >= s->o->stall_ms * UINT64_C(1000000))
        return stalled(s, err);
    return ckpt_row_files_check(s->o->files, err);
}

static int run(struct save *s, struct err *err)
{
    uint64_t poll_ms = POLL_MS_MIN;
    int rc = send_saves(s, err);

    while (rc == 0 && s->n_writing > 0) {
        struct timespec nap = { .tv_nsec = (long)(poll_ms * 1000000) };

        nanosleep(&nap, NULL); /* of the interval between two polls */
        poll_ms = 2 * poll_ms < POLL_MS_MAX ? 2 * poll_ms : POLL_MS_MAX;
        rc = poll_once(s, err);
    }
    if (rc < 0 && s->n_writing > 0)
        (void)send_polls(s, true, NULL); /* if it fails too, the generation ends, and with it the save */
    return rc;
}

int ps_save(const struct ps_port *port, const struct ps_route *route, const struct ps_save_opts *o,
            struct err *err)
{
    struct save s = { .port = port, .route = route, .o = o, .moved_ns = clock_ns() };
    int rc;

    s.told_ns = s.moved_ns;
    s.servers = calloc(route->n_servers, sizeof(*s.servers));
    s.sections = calloc(PS_TABLES_MAX, sizeof(*s.sections));
    if (s.servers != NULL && s.sections != NULL)
        rc = run(&s, err);
    else
        rc = err_set(err, ERR_NOMEM, "parameter servers: out of memory");
    free(s.servers);
    free(s.sections);
    ps_writer_fini(&s.out);
    return rc;
}
