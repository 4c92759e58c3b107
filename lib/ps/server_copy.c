/* server_copy.c - fills the shards that a server lacks, from the coordinator or from another server; see
 * server.h.
 *
 * Copies between servers are made while the group trains. A server has one FETCH on the way at a time; the
 * answer has about batch_floats. Pushes of the next steps arrive meanwhile, so the rows must be
 * used at the version of which they are:
 *
 *     the source is at        receiver at w sends FETCH(w); then
 *     w                       sends the rows of w; the receiver does not leave w before they have arrived
 *     w + 1                   sends the rows of w + 1; the receiver keeps them until it is at w + 1
 *     w - 1                   keeps the FETCH until it is at w
 *
 * No other difference is possible: each rank sends COMMIT of a step after all servers have its gradient, and
 * they have it only after all of them have applied the step before. The source of the lowest version always
 * answers at once, so servers that copy from each other never wait in a circle.
 *
 * All parts of a row (store.h) are in one answer, since an update reads and writes all of them.
 *
 * The rows of a dynamic table are copied in ascending order. The steps between two answers change only the
 * rows below the next one (ps_store_import_ids()), so a row that a step adds above it arrives with the copy.
 * Rows are removed at few steps (store_dynamic.c), and by a rule that needs all rows of the shard: at such a
 * step the copy of the shard begins again.
 *
 * A server ends a generation in order only when all its answers were received, and no other server fetches
 * from it: each FOLLOW ends with a FETCH without shards. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/fault.h"
#include "optim/optim.h"
#include "ps/server_priv.h"

_Static_assert((int)PS_PARTS_MAX == OPTIM_MAX_SLOTS + 2, "weights, slots, average");

/* ---- a generation ---- */

int server_copies_begin(struct ps_server *s, uint32_t n_servers, struct err *err)
{
    server_copies_close(s);
    s->n_servers = n_servers;
    s->fetches = calloc(n_servers, sizeof(*s->fetches));
    return s->fetches != NULL ? 0 : server_no_memory(err);
}

void server_copies_end(struct ps_server *s)
{
    for (uint32_t i = 0; i < PS_SET_WORDS; i++)
        s->followed[i] |= s->copied[i];
    memset(s->copied, 0, sizeof(s->copied));
    s->n_followed += s->n_copied;
    s->n_copied = s->n_follows = s->at_follow = s->n_kept = 0;
    s->n_followers = s->n_followers_done = 0;
    s->is_asked = s->abandons = s->commit_waits = false;
}

void server_copies_close(struct ps_server *s)
{
    for (uint32_t i = 0; i < s->room_kept; i++)
        free(s->kept[i].data);
    for (uint32_t i = 0; s->fetches != NULL && i < s->n_servers; i++)
        free(s->fetches[i].data);
    free(s->kept);
    free(s->fetches);
    free(s->follows);
    s->kept = s->fetches = NULL;
    s->follows = NULL;
    s->room_kept = s->n_kept = s->n_follows = s->at_follow = 0;
}

bool server_copies_ended(const struct ps_server *s)
{
    return !s->is_asked && !s->commit_waits && s->at_follow == s->n_follows &&
           s->n_followers_done == s->n_followers;
}

/* ---- the receiver ---- */

/* Sends the next FETCH. A FOLLOW without shards ends. */
static int ask(struct ps_server *s, struct err *err)
{
    int rc = 0;

    while (rc == 0 && s->at_follow < s->n_follows && !s->is_asked) {
        struct follow *f = &s->follows[s->at_follow];
        uint32_t shard = ps_set_next(f->shards, 0);
        struct ps_message m = { .kind = PS_FETCH, .step = s->version };
        const struct cursor *at = NULL;

        if (s->abandons || shard == PS_SHARDS) {
            memset(f->shards, 0, sizeof(f->shards));
            s->at_follow++;
        } else {
            at = &s->cursors[shard];
            m.number = shard;
            m.first = at->first;
            s->is_asked = true;
        }
        ps_write_begin(&s->out, &m, 1);
        ps_write_section(&s->out, 0, at != NULL ? at->table : 0, at != NULL ? at->part : 0, 0);
        ps_write_set(&s->out, f->shards);
        rc = server_send(s, f->source, err);
    }
    return rc;
}

int server_follow(struct ps_server *s, uint32_t from, const struct ps_message *m, struct err *err)
{
    struct follow *grown, *f;

    if (s->store == NULL || server_is_idle(s) || from != s->leader || m->number < s->n_ranks ||
        m->number >= s->n_ranks + s->n_servers || m->number == s->self)
        return server_unexpected(s, from, "FOLLOW", m->step, err);
    grown = realloc(s->follows, (s->n_follows + 1) * sizeof(*grown));
    if (grown == NULL)
        return server_no_memory(err);
    s->follows = grown;
    f = &s->follows[s->n_follows++];
    f->source = m->number;
    /* shards without rows to copy are complete */
    for (uint32_t i = 0; i < PS_SET_WORDS; i++)
        f->shards[i] = m->shards[i] & (s->copied[i] | s->followed[i]);
    return ask(s, err);
}

int server_copies_abandon(struct ps_server *s, struct err *err)
{
    s->abandons = true;
    return ask(s, err);
}

static bool is_next_ids(const struct ps_server *s, const struct cursor *at,
                        const struct ps_message *m)
{
    const struct ps_section *x = m->sections;

    return at->table < s->n_tables && s->rows[at->table] == 0 && x->table == at->table &&
           m->first == at->first && (m->flag & ~(PS_COPY_LAST | PS_COPY_TABLE_END)) == 0 &&
           x->part == ps_store_n_parts(s->store) && !at->is_initial;
}

/* The first message of a shard decides whether its rows are initial. */
static bool is_next_copy(const struct ps_server *s, const struct cursor *at,
                         const struct ps_message *m)
{
    const struct ps_section *x = m->sections;
    bool is_initial = (m->flag & PS_COPY_INITIAL) != 0;

    if (m->kind == PS_COPY_IDS)
        return is_next_ids(s, at, m);
    return at->table < s->n_tables && s->rows[at->table] > 0 && m->n_sections == 1 &&
           m->flag <= (PS_COPY_INITIAL | PS_COPY_LAST) && x->table == at->table &&
           x->part == at->part && m->first == at->first && x->n > 0 &&
           (x->part == 0 || x->n == at->n) && (!at->has_begun || is_initial == at->is_initial);
}

static int import(struct ps_server *s, const struct ps_message *m, struct err *err)
{
    const struct ps_section *x = m->sections;
    const struct ps_ids ids = { x->n, x->rows, m->last_steps, m->counts, x->values };

    if (m->kind == PS_COPY_IDS)
        return ps_store_import_ids(s->store, m->number, x->table, m->first, &ids,
                                   (m->flag & PS_COPY_TABLE_END) != 0, err);
    if (m->flag & PS_COPY_INITIAL)
        return ps_store_import_initial(s->store, m->number, x->table, m->first, x->n, x->values,
                                       err);
    return ps_store_import(s->store, m->number, x->table, x->part, m->first, x->n, x->values, err);
}

/* The shard has all its rows. */
static int complete(struct ps_server *s, uint32_t shard, struct err *err)
{
    if (s->at_follow < s->n_follows)
        ps_set_remove(s->follows[s->at_follow].shards, shard);
    if (ps_set_has(s->followed, shard)) {
        ps_set_remove(s->followed, shard);
        s->n_followed--;
        return 0;
    }
    ps_set_remove(s->copied, shard);
    return --s->n_copied > 0 ? 0 : server_send_ready(s, err);
}

static int use(struct ps_server *s, uint32_t from, const struct ps_message *m, struct err *err)
{
    uint32_t shard = m->number;
    struct cursor *at = &s->cursors[shard < PS_SHARDS ? shard : 0];
    int rc;

    if (shard >= PS_SHARDS || (!ps_set_has(s->copied, shard) && !ps_set_has(s->followed, shard)) ||
        !is_next_copy(s, at, m))
        return err_set(err, ERR_PEER,
                       "COPY of shard %u from point %u is not the next one (table %u, part %u, "
                       "row %" PRIu64 ")",
                       shard, from, at->table, at->part, at->first);
    rc = fault_error("ps.copy", err);
    if (rc == 0)
        rc = import(s, m, err);
    if (rc < 0)
        return rc;
    at->has_begun = true;
    at->is_initial = (m->flag & PS_COPY_INITIAL) != 0;
    if (m->kind == PS_COPY_IDS) {
        const struct ps_section *x = m->sections;

        server_pass_ids(at, x->n > 0 ? x->rows[x->n - 1] : 0, (m->flag & PS_COPY_TABLE_END) != 0);
    } else {
        at->n = m->sections[0].n;
        at->part++;
    }
    return server_find_place(s, shard, at) ? 0 : complete(s, shard, err);
}

static int keep(struct ps_server *s, uint32_t from, const uint8_t *data, size_t n, struct err *err)
{
    s->kept_from = from;
    if (s->n_kept == s->room_kept) {
        struct bytes *grown = realloc(s->kept, (s->room_kept + 1) * sizeof(*grown));

        if (grown == NULL)
            return server_no_memory(err);
        s->kept = grown;
        s->kept[s->room_kept++] = (struct bytes){ 0 };
    }
    return server_copy_message(&s->kept[s->n_kept++], data, n, err);
}

int server_copy(struct ps_server *s, uint32_t from, const struct ps_message *m, const uint8_t *data,
                size_t n, struct err *err)
{
    bool is_answer = s->is_asked && from == s->follows[s->at_follow].source;
    bool is_next = is_answer && s->is_holding && m->step == s->version + 1;
    int rc;

    if ((!is_answer && from != s->leader) || (m->step != s->version && !is_next) ||
        (!is_answer && (m->flag & PS_COPY_LAST)))
        return server_unexpected(s, from, "COPY", m->step, err);
    rc = is_next ? keep(s, from, data, n, err) : use(s, from, m, err);
    if (rc < 0 || !(m->flag & PS_COPY_LAST))
        return rc;
    s->is_asked = false;
    if (s->commit_waits || s->n_kept > 0) /* server_copies_commit() asks: the place is not known yet */
        return 0;
    return ask(s, err);
}

/* ---- the source ---- */

static int check_source(const struct ps_server *s, uint32_t shard, struct err *err)
{
    return server_has_shard(s, shard)
               ? 0
               : err_set(err, ERR_PEER, "FETCH: shard %u is not held", shard);
}

/* Sets the place of the next rows to send, from the given one on. Returns false after the last one. */
static bool find_rows(const struct ps_server *s, const uint64_t *shards, uint32_t *shard,
                      struct cursor *at)
{
    while (*shard < PS_SHARDS && !server_find_place(s, *shard, at)) {
        *shard = ps_set_next(shards, *shard + 1);
        *at = (struct cursor){ 0 };
    }
    return *shard < PS_SHARDS;
}

/* Returns how many of `left` rows are in one COPY message. */
static uint64_t rows_of_copy(const struct ps_server *s, uint32_t width, uint64_t left)
{
    uint64_t n = ps_copy_rows(width, left), most = s->opts.batch_floats / width;

    return most == 0 ? 1 : n < most ? n : most;
}

/* Writes the message at a place, and moves the place after its rows. *floats: their share of an answer. */
static int write_rows(struct ps_server *s, uint32_t shard, struct cursor *at, uint64_t *floats,
                      struct err *err)
{
    uint32_t width = s->widths[at->table];
    uint64_t all = ps_local_rows(s->rows[at->table], ps_first_shard(at->table), shard);
    uint64_t n = at->part > 0 ? at->n : rows_of_copy(s, width, all - at->first);
    float *values;
    int rc;

    if (ps_write_copy(&s->out, s->version, shard, 0, at->table, at->part, at->first, n, width,
                      &values) < 0)
        return server_no_memory(err);
    rc = ps_store_export(s->store, shard, at->table, at->part, at->first, n, values, err);
    *floats = n * width;
    at->n = n;
    at->part++;
    return rc;
}

/* The same for a dynamic table. */
static int write_ids(struct ps_server *s, uint32_t shard, struct cursor *at, uint64_t *floats,
                     struct err *err)
{
    enum { HEAD_FLOATS = 16 }; /* a message without rows takes time too */
    uint32_t n_parts = ps_store_n_parts(s->store), stride = s->widths[at->table] * n_parts;
    int64_t all = ps_store_count_ids(s->store, shard, at->table, at->first, err);
    uint64_t n = all > 0 ? rows_of_copy(s, stride, (uint64_t)all) : 0;
    struct ps_message m = { .kind = PS_COPY_IDS, .step = s->version, .number = shard,
                            .flag = n == (uint64_t)all ? PS_COPY_TABLE_END : 0, .first = at->first };
    struct ps_ids_room room;
    bool is_last;
    int64_t rc;

    if (all < 0)
        return (int)all;
    if (ps_write_copy_ids(&s->out, &m, at->table, n_parts, n, s->widths[at->table], &room) < 0)
        return server_no_memory(err);
    rc = ps_store_export_ids(s->store, shard, at->table, at->first, &room, &is_last, err);
    if (rc < 0)
        return (int)rc;
    *floats = n * stride + HEAD_FLOATS;
    server_pass_ids(at, n > 0 ? room.rows[n - 1] : 0, n == (uint64_t)all);
    return 0;
}

static int answer(struct ps_server *s, uint32_t to, const struct ps_message *m, struct err *err)
{
    struct cursor at = { .table = m->sections[0].table, .first = m->first };
    uint32_t shard = m->number;
    uint64_t sent = 0;
    bool is_last = false;
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < PS_SHARDS; i++)
        rc = ps_set_has(m->shards, i) ? check_source(s, i, err) : 0;
    if (rc == 0 && (shard >= PS_SHARDS || !ps_set_has(m->shards, shard) ||
                    !find_rows(s, m->shards, &shard, &at)))
        rc = server_unexpected(s, to, "FETCH", m->step, err);
    while (rc == 0 && !is_last) {
        uint64_t floats = 0;

        rc = s->rows[at.table] == 0 ? write_ids(s, shard, &at, &floats, err)
                                    : write_rows(s, shard, &at, &floats, err);
        sent += floats;
        is_last = rc < 0 || !find_rows(s, m->shards, &shard, &at) ||
                  (at.part == 0 && sent >= s->opts.batch_floats);
        if (rc == 0 && is_last)
            ps_write_flag(&s->out, PS_COPY_LAST);
        if (rc == 0)
            rc = fault_error("ps.send", err);
        if (rc == 0)
            rc = server_send(s, to, err);
    }
    return rc;
}

int server_fetch(struct ps_server *s, uint32_t from, const struct ps_message *m,
                 const uint8_t *data, size_t n, struct err *err)
{
    bool has_shards = ps_set_next(m->shards, 0) < PS_SHARDS;

    if (from < s->n_ranks || from == s->self || s->store == NULL || server_is_idle(s) ||
        m->n_sections != 1 || m->sections[0].n != 0 || m->sections[0].part != 0 ||
        s->fetches[from - s->n_ranks].n > 0 ||
        (!has_shards && s->n_followers_done == s->n_followers))
        return server_unexpected(s, from, "FETCH", m->step, err);
    if (!has_shards) {
        s->n_followers_done++;
        return 0;
    }
    if (m->step == s->version || (s->is_holding && m->step + 1 == s->version))
        return answer(s, from, m, err);
    if (!s->is_holding || m->step != s->version + 1)
        return server_unexpected(s, from, "FETCH", m->step, err);
    return server_copy_message(&s->fetches[from - s->n_ranks], data, n, err);
}

/* ---- the next version ---- */

void server_copies_restart(struct ps_server *s)
{
    for (uint32_t i = ps_set_next(s->followed, 0); i < PS_SHARDS;
         i = ps_set_next(s->followed, i + 1)) {
        if (!s->cursors[i].has_begun)
            continue;
        ps_store_restart(s->store, i);
        s->cursors[i] = (struct cursor){ 0 };
        (void)server_find_place(s, i, &s->cursors[i]); /* it found one when the shard was added */
        s->n_kept = 0; /* these rows continue the copy, or are of shards after it */
    }
}

int server_copies_commit(struct ps_server *s, struct err *err)
{
    struct ps_message m;
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < s->n_kept; i++) {
        rc = ps_message_read(s->kept[i].data, s->kept[i].n, s->widths, s->n_tables, s->sections, &m,
                             err);
        if (rc == 0)
            rc = use(s, s->kept_from, &m, err);
    }
    s->n_kept = 0;
    for (uint32_t i = 0; rc == 0 && i < s->n_servers; i++) {
        struct bytes *b = &s->fetches[i];
        size_t n = b->n;

        if (n == 0)
            continue;
        b->n = 0;
        rc = ps_message_read(b->data, n, s->widths, s->n_tables, s->sections, &m, err);
        if (rc == 0)
            rc = answer(s, s->n_ranks + i, &m, err);
    }
    return rc == 0 ? ask(s, err) : rc;
}
