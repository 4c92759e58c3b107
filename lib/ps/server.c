/* server.c - see server.h. */
#include "ps/server.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/fault.h"
#include "optim/optim.h"
#include "ps/message.h"
#include "ps/store.h"
#include "tensor/fill.h"

enum { COPY_FLOATS = 64 << 10 /* of one COPY message, at most, or one row */ };

struct bytes { /* a message that is kept */
    uint8_t *data;
    size_t n, room;
};

struct rank {
    bool has_pushed, has_committed, has_ended;
    bool waits; /* `later` arrived before the COMMIT of other ranks */
    struct bytes push, later;
};

struct cursor { /* the place of the next COPY message of a shard */
    uint32_t table, part;
    uint64_t first;
    bool has_begun, is_initial; /* is_initial: the messages have part 0 alone */
};

struct ps_server {
    struct ps_server_opts opts;
    struct ps_store *store; /* owned; NULL before the first SETUP */
    struct bytes setup;     /* the message that describes the store */
    uint32_t n_tables, *widths; /* owned [n_tables] */
    uint64_t *rows;             /* owned [n_tables] */
    struct table_fill *fills;   /* owned [n_tables] */
    bool generates;             /* a table has generated rows */
    uint64_t version;
    /* of the pending gradient, which is in the store */
    struct ps_verdict *verdict; /* owned */

    /* the generation */
    uint32_t n_ranks, n_servers, self, leader;
    struct rank *ranks; /* owned [n_ranks] */
    uint32_t n_pushed, n_committed, n_ended;
    bool is_skipped, is_complete;
    struct optim_hyper hyper; /* of the COMMITs */
    bool is_holding;          /* READY was sent */
    uint64_t own[PS_SET_WORDS];    /* shards of this server; others are kept for SEND until the first sum */
    uint64_t copied[PS_SET_WORDS]; /* shards that are not filled yet */
    uint32_t n_copied;
    struct cursor *cursors; /* owned [PS_SHARDS] */

    struct ps_section *sections; /* owned [PS_TABLES_MAX] */
    struct ps_part *parts;       /* owned; see sum() */
    size_t room_parts;
    struct ps_message *pushes; /* owned [n_ranks] */
    struct ps_section *push_sections;
    struct ps_writer out;      /* owned */
    uint64_t rows_read, rows_updated;
};

static int no_memory(struct err *err)
{
    return err_set(err, ERR_NOMEM, "server: out of memory");
}

/* ---- opening ---- */

int ps_server_open(const struct ps_server_opts *opts, struct ps_server **out, struct err *err)
{
    struct ps_server *s = calloc(1, sizeof(*s));

    if (s == NULL)
        return no_memory(err);
    s->opts = *opts;
    s->verdict = calloc(1, sizeof(*s->verdict));
    s->cursors = calloc(PS_SHARDS, sizeof(*s->cursors));
    s->sections = calloc(PS_TABLES_MAX, sizeof(*s->sections));
    if (s->verdict == NULL || s->cursors == NULL || s->sections == NULL) {
        ps_server_close(s);
        return no_memory(err);
    }
    *out = s;
    return 0;
}

static void free_ranks(struct ps_server *s)
{
    for (uint32_t i = 0; i < s->n_ranks; i++) {
        free(s->ranks[i].push.data);
        free(s->ranks[i].later.data);
    }
    free(s->ranks);
    free(s->pushes);
    free(s->push_sections);
    s->ranks = NULL;
    s->pushes = NULL;
    s->push_sections = NULL;
    s->n_ranks = 0;
}

void ps_server_close(struct ps_server *s)
{
    if (s == NULL)
        return;
    free_ranks(s);
    ps_store_close(s->store);
    free(s->setup.data);
    free(s->widths);
    free(s->rows);
    free(s->fills);
    free(s->verdict);
    free(s->cursors);
    free(s->sections);
    free(s->parts);
    ps_writer_fini(&s->out);
    free(s);
}

int ps_server_begin(struct ps_server *s, uint32_t n_ranks, uint32_t n_servers, uint32_t self,
                    uint32_t leader, struct err *err)
{
    free_ranks(s);
    s->ranks = calloc(n_ranks, sizeof(*s->ranks));
    s->pushes = calloc(n_ranks, sizeof(*s->pushes));
    s->push_sections = calloc((size_t)n_ranks * PS_TABLES_MAX, sizeof(*s->push_sections));
    if (s->ranks == NULL || s->pushes == NULL || s->push_sections == NULL) {
        free(s->ranks);
        s->ranks = NULL;
        return no_memory(err);
    }
    s->n_ranks = n_ranks;
    s->n_servers = n_servers;
    s->self = self;
    s->leader = leader;
    s->n_pushed = s->n_committed = s->n_ended = 0;
    s->is_complete = s->is_holding = false;
    s->n_copied = 0;
    memset(s->copied, 0, sizeof(s->copied));
    return 0;
}

void ps_server_end(struct ps_server *s)
{
    for (uint32_t i = 0; i < PS_SHARDS && s->n_copied > 0; i++)
        if (ps_set_has(s->copied, i)) { /* its rows are incomplete */
            ps_store_drop_shard(s->store, i);
            s->n_copied--;
        }
    memset(s->copied, 0, sizeof(s->copied));
    s->is_holding = false;
    s->n_pushed = s->n_committed = 0;
    for (uint32_t i = 0; i < s->n_ranks; i++)
        s->ranks[i].has_pushed = s->ranks[i].has_committed = s->ranks[i].waits = false;
}

/* ---- messages ---- */

static int keep(struct bytes *b, const uint8_t *data, size_t n, struct err *err)
{
    if (n > b->room) {
        uint8_t *grown = realloc(b->data, n);

        if (grown == NULL)
            return no_memory(err);
        b->data = grown;
        b->room = n;
    }
    memcpy(b->data, data, n);
    b->n = n;
    return 0;
}

/* Keeps the message that is handled. One that was kept as `later` changes its place. */
static int keep_handled(struct ps_server *s, struct rank *r, struct bytes *to, const uint8_t *data,
                        size_t n, struct err *err)
{
    struct bytes before = *to;

    if (data == r->later.data && to != &r->later) {
        *to = r->later;
        r->later = before;
        return 0;
    }
    if (s->opts.exchange == NULL)
        return keep(to, data, n, err);
    s->opts.exchange(s->opts.arg, &to->data, &to->room);
    to->n = n;
    return 0;
}

static int send_out(struct ps_server *s, uint32_t to, struct err *err)
{
    struct iovec part = { .iov_base = s->out.data, .iov_len = s->out.n };

    return s->out.failed ? no_memory(err) : s->opts.send(s->opts.arg, to, &part, 1, err);
}

static int unexpected(const struct ps_server *s, uint32_t from, const char *what, uint64_t step,
                      struct err *err)
{
    return err_set(err, ERR_PEER,
                   "%s of step %" PRIu64 " from point %u is not expected: the rows are of step "
                   "%" PRIu64 ", %u of %u gradients have arrived",
                   what, step, from, s->version, s->n_pushed, s->n_ranks);
}

static bool is_pending(const struct ps_server *s)
{
    return s->store != NULL && ps_store_is_pending(s->store);
}

/* ---- SETUP ---- */

/* A ps_fill_fn. Rows that come from a file are zero until they are copied. */
static int generate(void *arg, uint32_t table, uint64_t first_row, uint64_t n, float *out,
                    struct err *err)
{
    const struct ps_server *s = arg;

    (void)err;
    if (s->fills[table].kind != TABLE_FROM_FILE)
        table_fill_rows(&s->fills[table], s->widths[table], first_row, n, out);
    return 0;
}

static int open_store(struct ps_server *s, const struct ps_message *m, struct err *err)
{
    struct ps_table *tables = calloc(m->n_tables, sizeof(*tables));
    const char *name = m->names;
    struct ps_store_opts o = { .tables = tables,
                               .n_tables = m->n_tables,
                               .optimizer = optim_get(m->optimizer),
                               .hyper = &m->hyper,
                               .average = m->average,
                               .thread = s->opts.thread,
                               .n_threads = s->opts.n_threads,
                               .fill = generate,
                               .arg = s };
    int rc = 0;

    free(s->widths);
    free(s->rows);
    free(s->fills);
    s->generates = false;
    s->fills = calloc(m->n_tables, sizeof(*s->fills));
    s->widths = calloc(m->n_tables, sizeof(*s->widths));
    s->rows = calloc(m->n_tables, sizeof(*s->rows));
    if (tables == NULL || s->widths == NULL || s->rows == NULL || s->fills == NULL)
        rc = no_memory(err);
    for (uint32_t i = 0; rc == 0 && i < m->n_tables; i++) {
        const struct ps_setup_table *t = &m->tables[i];

        s->widths[i] = t->width;
        s->rows[i] = t->rows;
        s->fills[i] = (struct table_fill){
            .kind = t->fill, .stream = t->stream, .seed = t->seed, .scale = t->scale
        };
        s->generates = s->generates || t->fill != TABLE_FROM_FILE;
        tables[i] = (struct ps_table){ .name = name,
                                       .rows = t->rows,
                                       .width = t->width,
                                       .first_shard = ps_first_shard(i),
                                       .rate_factor = t->rate_factor,
                                       .weight_decay = t->weight_decay,
                                       .lazy = t->lazy == 1 };
        name += strlen(name) + 1;
    }
    s->n_tables = rc == 0 ? m->n_tables : 0;
    if (rc == 0)
        rc = ps_store_open(&o, &s->store, err);
    free(tables);
    return rc;
}

/* Between ps_server_begin() and BEGIN. */
static bool is_idle(const struct ps_server *s)
{
    return !s->is_holding && s->n_copied == 0;
}

static int on_setup(struct ps_server *s, uint32_t from, const struct ps_message *m,
                    const uint8_t *data, size_t n, struct err *err)
{
    int rc;

    if (!is_idle(s) || from != s->leader)
        return unexpected(s, from, "SETUP", m->step, err);
    if (s->store != NULL && s->setup.n == n && memcmp(s->setup.data, data, n) == 0)
        return 0;
    ps_store_close(s->store); /* of another job */
    s->store = NULL;
    s->version = 0;
    rc = keep(&s->setup, data, n, err);
    return rc < 0 ? rc : open_store(s, m, err);
}

/* ---- QUERY, BEGIN, COPY, SEND ---- */

static int on_query(struct ps_server *s, uint32_t from, struct err *err)
{
    uint64_t shards[PS_SET_WORDS] = { 0 };
    struct ps_message m = { .kind = PS_HELD, .step = s->version, .flag = is_pending(s) };

    if (!is_idle(s) || from != s->leader)
        return unexpected(s, from, "QUERY", s->version, err);
    for (uint32_t i = 0; s->store != NULL && i < PS_SHARDS; i++)
        if (ps_store_has(s->store, i))
            ps_set_add(shards, i);
    ps_write_begin(&s->out, &m, 0);
    ps_write_set(&s->out, shards);
    return send_out(s, from, err);
}

/* Answers BEGIN, and reports that all copies have arrived. */
static int send_ready(struct ps_server *s, struct err *err)
{
    struct ps_message m = { .kind = PS_READY, .step = s->version, .flag = s->n_copied == 0 };

    s->is_holding = s->n_copied == 0;
    ps_write_begin(&s->out, &m, 0);
    return send_out(s, s->leader, err);
}

static void settle_pending(struct ps_server *s, const struct ps_message *m)
{
    if (!is_pending(s))
        return;
    if (m->flag == PS_APPLY && m->step == s->version + 1)
        ps_store_commit(s->store, &m->hyper);
    else
        ps_store_discard(s->store);
    s->version += m->flag != PS_DROP && m->step == s->version + 1;
}

/* At step 0 every server generates these rows itself, and no COPY contains them. */
static bool is_generated(const struct ps_server *s, uint32_t table)
{
    return s->version == 0 && s->fills[table].kind != TABLE_FROM_FILE;
}

/* Sets *at to the next place with rows that are sent, from *at on. Returns false after the last one. */
static bool find_place(const struct ps_server *s, uint32_t shard, struct cursor *at)
{
    uint32_t n_parts = at->is_initial ? 1 : ps_store_n_parts(s->store);

    for (;;) {
        if (at->table == s->n_tables)
            return false;
        if (at->part < n_parts && !is_generated(s, at->table) &&
            at->first < ps_local_rows(s->rows[at->table], ps_first_shard(at->table), shard))
            return true;
        at->first = 0;
        if (++at->part >= n_parts) {
            at->part = 0;
            at->table++;
        }
    }
}

/* Drops the shards that will be copied, and, if the rows are of another step, all that are not this
 * server's. Everything invalid is dropped before the version changes: memory may run out later. */
static int drop_invalid(struct ps_server *s, const struct ps_message *m, struct err *err)
{
    bool is_valid = s->version == m->step;

    for (uint32_t i = 0; i < PS_SHARDS; i++)
        if (!is_valid && ps_store_has(s->store, i) && ps_set_has(m->shards, i) &&
            !ps_set_has(m->copied, i))
            return unexpected(s, s->leader, "BEGIN", m->step, err);
    for (uint32_t i = 0; i < PS_SHARDS; i++)
        if (ps_set_has(m->copied, i) || (!is_valid && !ps_set_has(m->shards, i)))
            ps_store_drop_shard(s->store, i);
    s->version = m->step;
    memcpy(s->own, m->shards, sizeof(s->own));
    return 0;
}

static int hold_shards(struct ps_server *s, struct err *err)
{
    for (uint32_t i = 0; i < PS_SHARDS; i++) {
        int rc;

        if (!ps_set_has(s->own, i) || ps_store_has(s->store, i))
            continue;
        if (i % s->opts.n_threads != s->opts.thread)
            return err_set(err, ERR_PEER, "BEGIN: shard %u belongs to another thread", i);
        rc = ps_store_add_shard(s->store, i, s->version == 0 && s->generates, err);
        if (rc < 0)
            return rc;
        s->cursors[i] = (struct cursor){ 0 };
        if (!find_place(s, i, &s->cursors[i]))
            continue; /* no table has rows there that are sent */
        ps_set_add(s->copied, i);
        s->n_copied++;
    }
    return 0;
}

static int on_begin(struct ps_server *s, uint32_t from, const struct ps_message *m, struct err *err)
{
    int rc;

    if (s->store == NULL || !is_idle(s) || from != s->leader || m->flag > PS_SKIP)
        return unexpected(s, from, "BEGIN", m->step, err);
    rc = fault_error("ps.begin", err);
    if (rc < 0)
        return rc;
    settle_pending(s, m);
    rc = drop_invalid(s, m, err);
    if (rc == 0)
        rc = hold_shards(s, err);
    return rc < 0 ? rc : send_ready(s, err);
}

/* The first message of a shard decides whether its rows are initial. */
static bool is_next_copy(const struct cursor *at, const struct ps_message *m)
{
    const struct ps_section *x = m->sections;

    return m->n_sections == 1 && x->table == at->table && x->part == at->part &&
           m->first == at->first && x->n > 0 && m->flag <= 1 &&
           (!at->has_begun || (m->flag == 1) == at->is_initial);
}

static int import(struct ps_server *s, const struct ps_message *m, struct err *err)
{
    const struct ps_section *x = m->sections;

    if (m->flag == 1)
        return ps_store_import_initial(s->store, m->number, x->table, m->first, x->n, x->values,
                                       err);
    return ps_store_import(s->store, m->number, x->table, x->part, m->first, x->n, x->values, err);
}

static int on_copy(struct ps_server *s, uint32_t from, const struct ps_message *m, struct err *err)
{
    uint32_t shard = m->number;
    struct cursor *at = &s->cursors[shard < PS_SHARDS ? shard : 0];
    int rc;

    if (from < s->n_ranks && from != s->leader)
        return unexpected(s, from, "COPY", s->version, err);
    if (shard >= PS_SHARDS || !ps_set_has(s->copied, shard) || !is_next_copy(at, m))
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
    at->is_initial = m->flag == 1;
    at->first += m->sections[0].n;
    if (find_place(s, shard, at))
        return 0;
    s->copied[shard / 64] &= ~((uint64_t)1 << shard % 64);
    return --s->n_copied > 0 ? 0 : send_ready(s, err);
}

static int send_shard(struct ps_server *s, uint32_t to, uint32_t shard, struct err *err)
{
    struct cursor at = { 0 };

    while (find_place(s, shard, &at)) {
        uint32_t width = s->widths[at.table];
        uint64_t n = width < COPY_FLOATS ? COPY_FLOATS / width : 1;
        uint64_t left =
            ps_local_rows(s->rows[at.table], ps_first_shard(at.table), shard) - at.first;
        float *values;
        int rc;

        if (n > left)
            n = left;
        if (ps_write_copy(&s->out, shard, false, at.table, at.part, at.first, n, width, &values) <
            0)
            return no_memory(err);
        rc = ps_store_export(s->store, shard, at.table, at.part, at.first, n, values, err);
        if (rc == 0)
            rc = fault_error("ps.send", err);
        if (rc == 0)
            rc = send_out(s, to, err);
        if (rc < 0)
            return rc;
        at.first += n;
    }
    return 0;
}

static int on_send(struct ps_server *s, uint32_t from, const struct ps_message *m, struct err *err)
{
    int rc = 0;

    if (s->store == NULL || from != s->leader || m->number < s->n_ranks ||
        m->number >= s->n_ranks + s->n_servers || m->number == s->self)
        return unexpected(s, from, "SEND", m->step, err);
    for (uint32_t i = 0; rc == 0 && i < PS_SHARDS; i++) {
        if (!ps_set_has(m->shards, i))
            continue;
        rc = ps_store_has(s->store, i) && !ps_set_has(s->copied, i)
                 ? send_shard(s, m->number, i, err)
                 : err_set(err, ERR_PEER, "SEND: shard %u is not held", i);
    }
    return rc;
}

/* ---- PULL ---- */

static int read_rows(struct ps_server *s, const struct ps_section *x, float *to, struct err *err)
{
    if (x->part == 0)
        return ps_store_read(s->store, x->table, x->rows, x->n, to, err);
    for (uint64_t i = 0; i < x->n; i++) {
        uint32_t shard = ps_shard_of(ps_first_shard(x->table), x->rows[i]);
        int rc = ps_store_export(s->store, shard, x->table, x->part, ps_local_of(x->rows[i]), 1,
                                 to + i * s->widths[x->table], err);

        if (rc < 0)
            return rc;
    }
    return 0;
}

static int send_rows(struct ps_server *s, uint32_t to, const struct ps_message *m, struct err *err)
{
    struct ps_message reply = { .kind = PS_ROWS, .step = s->version };
    int rc = fault_error("ps.rows", err);

    if (rc < 0)
        return rc;
    ps_write_begin(&s->out, &reply, m->n_sections);
    for (uint32_t i = 0; i < m->n_sections; i++) {
        const struct ps_section *x = &m->sections[i];
        uint64_t floats = x->n * s->widths[x->table];
        float *values = ps_write_room(&s->out, ps_padded(floats));

        if (values == NULL)
            return no_memory(err);
        if (floats % 2 != 0)
            values[floats] = 0;
        rc = read_rows(s, x, values, err);
        if (rc < 0)
            return rc;
        ps_write_section(&s->out, i, x->table, x->part, x->n);
        s->rows_read += x->n;
    }
    return send_out(s, to, err);
}

static int on_pull(struct ps_server *s, uint32_t from, const struct ps_message *m,
                   const uint8_t *data, size_t n, struct err *err)
{
    struct rank *r = &s->ranks[from];

    if (s->is_holding && m->step == s->version)
        return send_rows(s, from, m, err);
    if (!s->is_holding || r->waits || !r->has_committed || m->step != s->version + 1)
        return unexpected(s, from, "PULL", m->step, err);
    r->waits = true;
    return keep_handled(s, r, &r->later, data, n, err);
}

/* ---- PUSH and COMMIT ---- */

/* Reads the messages again, which are valid, and lists their sections by table, then by rank. */
static int list_parts(struct ps_server *s, uint32_t *n_parts, float *clip, struct err *err)
{
    size_t n = 0, all = 0;

    for (uint32_t r = 0; r < s->n_ranks; r++) {
        int rc = ps_message_read(s->ranks[r].push.data, s->ranks[r].push.n, s->widths, s->n_tables,
                                 s->push_sections + (size_t)r * PS_TABLES_MAX, &s->pushes[r], err);

        if (rc < 0)
            return rc;
        all += s->pushes[r].n_sections;
    }
    if (all > s->room_parts) {
        struct ps_part *grown = realloc(s->parts, all * sizeof(*grown));

        if (grown == NULL)
            return no_memory(err);
        s->parts = grown;
        s->room_parts = all;
    }
    *clip = s->pushes[0].clip;
    for (uint32_t t = 0; t < s->n_tables; t++)
        for (uint32_t r = 0; r < s->n_ranks; r++) {
            struct ps_message *p = &s->pushes[r];
            struct ps_section *x = p->sections;

            if (p->n_sections == 0 || x->table != t)
                continue;
            s->parts[n++] = (struct ps_part){ .rank = r,
                                              .first_leaf = p->number,
                                              .n_leaves = (uint32_t)p->first,
                                              .table = t,
                                              .n = x->n,
                                              .rows = x->rows,
                                              .values = x->values };
            p->sections++; /* sections ascend by table */
            p->n_sections--;
        }
    if (n != all)
        return err_set(err, ERR_PEER, "PUSH: the sections are not in the order of the tables");
    *n_parts = (uint32_t)n;
    return 0;
}

static int vote(struct ps_server *s, struct err *err)
{
    struct ps_message m = { .kind = PS_VOTE, .step = s->version + 1 };
    void *at;

    ps_store_verdict(s->store, s->verdict);
    m.flag = s->verdict->is_finite;
    ps_write_begin(&s->out, &m, 0);
    at = ps_write_room(&s->out, sizeof(s->verdict->checksums));
    if (at != NULL)
        memcpy(at, s->verdict->checksums, sizeof(s->verdict->checksums));
    at = ps_write_room(&s->out, sizeof(s->verdict->squares));
    if (at != NULL)
        memcpy(at, s->verdict->squares, sizeof(s->verdict->squares));
    return send_out(s, s->leader, err);
}

/* The ranks push only to the holders of a shard, so other copies would miss the gradient. The
 * settlement has ended: no copy is requested any more. */
static void drop_moved(struct ps_server *s)
{
    for (uint32_t i = 0; i < PS_SHARDS; i++)
        if (!ps_set_has(s->own, i))
            ps_store_drop_shard(s->store, i);
}

static int sum(struct ps_server *s, struct err *err)
{
    uint32_t n = 0;
    float clip = 0;
    int rc = list_parts(s, &n, &clip, err);

    drop_moved(s);
    if (rc == 0)
        rc = ps_store_reduce(s->store, s->parts, n, err);
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < n; i++)
        s->rows_updated += s->parts[i].n;
    if (clip > 0)
        ps_store_clip(s->store, clip);
    rc = fault_error("ps.vote", err);
    return rc < 0 ? rc : vote(s, err);
}

static int on_push(struct ps_server *s, uint32_t from, const struct ps_message *m,
                   const uint8_t *data, size_t n, struct err *err)
{
    struct rank *r = &s->ranks[from];
    int rc;

    if (s->is_holding && r->has_committed && !r->waits && m->step == s->version + 2) {
        r->waits = true; /* it read no row of the step between */
        return keep_handled(s, r, &r->later, data, n, err);
    }
    if (!s->is_holding || r->has_pushed || m->step != s->version + 1 || is_pending(s) ||
        m->first > PS_MAX_LEAVES)
        return unexpected(s, from, "PUSH", m->step, err);
    rc = fault_error("ps.push", err);
    if (rc == 0)
        rc = keep_handled(s, r, &r->push, data, n, err);
    if (rc < 0)
        return rc;
    r->has_pushed = true;
    return ++s->n_pushed < s->n_ranks ? 0 : sum(s, err);
}

static int handle(struct ps_server *s, uint32_t from, const struct ps_message *m,
                  const uint8_t *data, size_t n, struct err *err);

/* Handles the messages that arrived before the version that they need. */
static int handle_later(struct ps_server *s, struct err *err)
{
    for (uint32_t i = 0; i < s->n_ranks; i++) {
        struct rank *r = &s->ranks[i];
        struct ps_message m;
        int rc;

        if (!r->waits)
            continue;
        r->waits = false;
        rc = ps_message_read(r->later.data, r->later.n, s->widths, s->n_tables, s->sections, &m,
                             err);
        if (rc == 0)
            rc = handle(s, i, &m, r->later.data, r->later.n, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Compares the numbers that ranks compute in each step; NaN equals NaN. */
static bool is_same_update(const struct optim_hyper *a, const struct optim_hyper *b)
{
    return a->step == b->step &&
           memcmp(&a->grad_scale, &b->grad_scale, sizeof(a->grad_scale)) == 0 &&
           memcmp(&a->learning_rate, &b->learning_rate, sizeof(a->learning_rate)) == 0;
}

static int on_commit(struct ps_server *s, uint32_t from, const struct ps_message *m,
                     struct err *err)
{
    struct rank *r = &s->ranks[from];
    int rc;

    if (!s->is_holding || r->has_committed || m->step != s->version + 1 || !is_pending(s) ||
        m->flag > 1 || (s->n_committed > 0 && (m->flag == 1) != s->is_skipped))
        return unexpected(s, from, "COMMIT", m->step, err);
    if (s->n_committed > 0 && m->flag == 0 && !is_same_update(&m->hyper, &s->hyper))
        return err_set(err, ERR_PEER,
                       "COMMIT of step %" PRIu64 " from rank %u: factor of the gradient %g, learning rate %g; the "
                       "other ranks have %g, %g: a processor or memory of one of them computed or stored a wrong value",
                       m->step, from, (double)m->hyper.grad_scale, m->hyper.learning_rate,
                       (double)s->hyper.grad_scale, s->hyper.learning_rate);
    r->has_committed = true;
    s->is_skipped = m->flag == 1;
    s->hyper = m->hyper;
    if (++s->n_committed < s->n_ranks)
        return 0;
    rc = fault_error("ps.commit", err);
    if (rc < 0)
        return rc;
    if (s->is_skipped)
        ps_store_discard(s->store);
    else
        ps_store_commit(s->store, &s->hyper);
    s->version++;
    s->n_pushed = s->n_committed = 0;
    for (uint32_t i = 0; i < s->n_ranks; i++)
        s->ranks[i].has_pushed = s->ranks[i].has_committed = false;
    rc = fault_error("ps.committed", err);
    return rc < 0 ? rc : handle_later(s, err);
}

static int on_end(struct ps_server *s, uint32_t from, const struct ps_message *m, struct err *err)
{
    int rc;

    if (s->ranks[from].has_ended || m->flag > 1)
        return unexpected(s, from, "END", m->step, err);
    rc = fault_error("ps.end", err);
    if (rc < 0)
        return rc;
    s->ranks[from].has_ended = true;
    s->is_complete = s->is_complete || m->flag == 1;
    s->n_ended++;
    return 0;
}

/* ---- dispatch ---- */

static int handle(struct ps_server *s, uint32_t from, const struct ps_message *m,
                  const uint8_t *data, size_t n, struct err *err)
{
    switch (m->kind) {
    case PS_SETUP:
        return on_setup(s, from, m, data, n, err);
    case PS_QUERY:
        return on_query(s, from, err);
    case PS_BEGIN:
        return on_begin(s, from, m, err);
    case PS_SEND:
        return on_send(s, from, m, err);
    case PS_COPY:
        return on_copy(s, from, m, err);
    case PS_PULL:
        return on_pull(s, from, m, data, n, err);
    case PS_PUSH:
        return on_push(s, from, m, data, n, err);
    case PS_COMMIT:
        return on_commit(s, from, m, err);
    case PS_END:
        return on_end(s, from, m, err);
    default:
        return err_set(err, ERR_PEER, "a server does not expect a message of kind %d", m->kind);
    }
}

int ps_server_handle(struct ps_server *s, uint32_t from, const uint8_t *data, size_t bytes,
                     struct err *err)
{
    struct ps_message m;
    int rc = ps_message_read(data, bytes, s->widths, s->n_tables, s->sections, &m, err);

    if (rc == 0 && from >= s->n_ranks && m.kind != PS_COPY)
        rc = err_set(err, ERR_PEER, "a server sends only copies, found kind %d", m.kind);
    return rc < 0 ? rc : handle(s, from, &m, data, bytes, err);
}

enum ps_server_end ps_server_ended(const struct ps_server *s)
{
    if (s->n_ended < s->n_ranks)
        return PS_RUNNING;
    return s->is_complete ? PS_COMPLETE : PS_PAUSED;
}

void ps_server_stats(const struct ps_server *s, struct ps_server_stats *out)
{
    *out = (struct ps_server_stats){ .version = s->version,
                                     .bytes = s->store != NULL ? ps_store_bytes(s->store) : 0,
                                     .rows_read = s->rows_read,
                                     .rows_updated = s->rows_updated };
    for (uint32_t i = 0; s->store != NULL && i < PS_SHARDS; i++)
        out->n_shards += ps_store_has(s->store, i);
}

uint64_t ps_server_version(const struct ps_server *s)
{
    return s->version;
}

/* ---- reading rows ---- */

/* Returns the index; UINT32_MAX: there is no such table. */
static uint32_t find_table(const struct ps_server *s, const char *name)
{
    for (uint32_t i = 0; i < s->n_tables; i++)
        if (strcmp(ps_store_table_name(s->store, i), name) == 0)
            return i;
    return UINT32_MAX;
}

static uint32_t find_part(const struct ps_server *s, const char *name)
{
    uint32_t n = ps_store_n_parts(s->store);

    for (uint32_t i = 0; i < n; i++)
        if (strcmp(ps_store_part_name(s->store, i), name) == 0)
            return i;
    return name[0] == '\0' ? 0 : UINT32_MAX;
}

int ps_server_find(const struct ps_server *s, const char *table, const char *part,
                   struct ps_place *out, struct err *err)
{
    if (s->store == NULL || !s->is_holding)
        return err_set(err, ERR_PEER, "the rows are not complete: no generation is trained");
    out->table = find_table(s, table);
    if (out->table == UINT32_MAX)
        return err_set(err, ERR_NOENT,
                       "table '%.200s' is not on the parameter servers; the first of %u is '%s'",
                       table, s->n_tables, ps_store_table_name(s->store, 0));
    out->part = find_part(s, part);
    if (out->part == UINT32_MAX)
        return err_set(
            err, ERR_NOENT,
            "part '%.200s': expected \"weights\", a slot of the optimizer, or \"average\"", part);
    out->rows = s->rows[out->table];
    out->width = s->widths[out->table];
    out->step = s->version;
    return 0;
}

bool ps_server_has_row(const struct ps_server *s, const struct ps_place *at, uint64_t row)
{
    return ps_store_has(s->store, ps_shard_of(ps_first_shard(at->table), row));
}

int ps_server_read_row(struct ps_server *s, const struct ps_place *at, uint64_t row, float *out,
                       struct err *err)
{
    const struct ps_section x = { .table = at->table, .part = at->part, .n = 1, .rows = &row };

    return read_rows(s, &x, out, err);
}
