/* server_step.c - the steps of a server: rows to read, gradients to sum, updates; see server.h. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/fault.h"
#include "ps/server_priv.h"

/* ---- PULL ---- */

/* Adds the rows of a section to the message that is being written. */
static int copy_rows(struct ps_server *s, const struct ps_section *x, uint64_t version,
                     struct err *err)
{
    uint64_t floats = x->n * s->widths[x->table];
    float *values = ps_write_room(&s->out, ps_padded(floats));

    if (values == NULL)
        return server_no_memory(err);
    if (floats % 2 != 0)
        values[floats] = 0;
    return server_read_rows(s, x, version, values, err);
}

/* `age`: committed steps of the rank that the rows do not contain. */
static int send_rows(struct ps_server *s, uint32_t to, const struct ps_message *m, uint64_t age,
                     struct err *err)
{
    struct ps_message reply = { .kind = PS_ROWS, .step = m->step };
    int rc = fault_error("ps.rows", err);

    if (rc < 0)
        return rc;
    ps_write_begin(&s->out, &reply, m->n_sections);
    for (uint32_t i = 0; i < m->n_sections; i++) {
        const struct ps_section *x = &m->sections[i];

        rc = server_can_borrow(s, x, m->step) ? server_borrow_rows(s, x, err)
                                              : copy_rows(s, x, m->step, err);
        if (rc < 0)
            return rc;
        ps_write_section(&s->out, i, x->table, x->part, x->n);
        s->rows_read += x->n;
        s->rows_stale[age] += m->flag == 1 ? x->n : 0;
    }
    return server_send(s, to, err);
}

/* The rule of versions. A rank that has committed step t reads the rows after step t, apart from the lanes of
 * step t + 1, which read those after step t - staleness. The server is at t, or at t - 1 if other ranks have not
 * committed t. */
int server_pull(struct ps_server *s, uint32_t from, const struct ps_message *m, const uint8_t *data,
                size_t n, struct err *err)
{
    struct rank *r = &s->ranks[from];
    uint64_t newest = s->version + r->has_committed;
    uint64_t age = m->flag == 0 ? 0 : newest < s->staleness ? newest : s->staleness;

    if (!s->is_holding || r->waits || m->flag > 1 || m->step != newest - age)
        return server_unexpected(s, from, "PULL", m->step, err);
    if (m->step <= s->version)
        return send_rows(s, from, m, age, err);
    r->waits = true;
    return server_keep(s, r, &r->later, data, n, err);
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
            return server_no_memory(err);
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
    return server_send(s, s->leader, err);
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

int server_push(struct ps_server *s, uint32_t from, const struct ps_message *m, const uint8_t *data,
                size_t n, struct err *err)
{
    struct rank *r = &s->ranks[from];
    int rc;

    if (s->is_holding && r->has_committed && !r->waits && m->step == s->version + 2) {
        r->waits = true; /* it read no row of the step between */
        return server_keep(s, r, &r->later, data, n, err);
    }
    if (!s->is_holding || r->has_pushed || m->step != s->version + 1 || server_is_pending(s) ||
        m->first > PS_MAX_LEAVES)
        return server_unexpected(s, from, "PUSH", m->step, err);
    rc = fault_error("ps.push", err);
    if (rc == 0)
        rc = server_keep(s, r, &r->push, data, n, err);
    if (rc < 0)
        return rc;
    r->has_pushed = true;
    return ++s->n_pushed < s->n_ranks ? 0 : sum(s, err);
}

static int handle_kept(struct ps_server *s, uint32_t from, const struct ps_message *m,
                       struct err *err)
{
    const struct bytes *b = &s->ranks[from].later;

    switch (m->kind) {
    case PS_PULL:
        return server_pull(s, from, m, b->data, b->n, err);
    case PS_PUSH:
        return server_push(s, from, m, b->data, b->n, err);
    case PS_COUNT:
        return server_count(s, from, m, b->data, b->n, err);
    case PS_LIST:
        return server_list(s, from, m, b->data, b->n, err);
    default:
        return server_save(s, from, m, b->data, b->n, err);
    }
}

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
            rc = handle_kept(s, i, &m, err);
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

int server_commit(struct ps_server *s, uint32_t from, const struct ps_message *m, struct err *err)
{
    struct rank *r = &s->ranks[from];

    if (!s->is_holding || r->has_committed || m->step != s->version + 1 || !server_is_pending(s) ||
        m->flag > 1 || (s->work != NULL && s->n_committed + 1 == s->n_ranks) ||
        (s->n_committed > 0 && (m->flag == 1) != s->is_skipped))
        return server_unexpected(s, from, "COMMIT", m->step, err);
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
    s->commit_waits = s->is_asked;
    return s->commit_waits ? 0 : server_apply(s, err);
}

int server_apply(struct ps_server *s, struct err *err)
{
    int rc = fault_error("ps.commit", err);

    s->commit_waits = false;
    if (rc == 0 && s->is_skipped)
        ps_store_skip(s->store);
    else if (rc == 0)
        rc = ps_store_commit(s->store, &s->hyper, err);
    if (rc < 0)
        return rc;
    s->version++;
    if (!s->is_skipped && ps_store_sweeps(s->store, s->version))
        server_copies_restart(s);
    s->n_pushed = s->n_committed = 0;
    for (uint32_t i = 0; i < s->n_ranks; i++)
        s->ranks[i].has_pushed = s->ranks[i].has_committed = false;
    rc = fault_error("ps.committed", err);
    if (rc == 0)
        rc = server_copies_commit(s, err);
    return rc < 0 ? rc : handle_later(s, err);
}
