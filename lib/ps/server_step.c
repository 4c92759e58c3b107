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

/* `age`: steps before that of the rank whose updates the rows lack. */
static int send_rows(struct ps_server *s, uint32_t to, const struct ps_message *m, uint64_t version,
                     uint64_t age, struct err *err)
{
    struct ps_message reply = { .kind = PS_ROWS, .step = m->step };
    int rc = fault_error("ps.rows", err);

    if (rc < 0)
        return rc;
    ps_write_begin(&s->out, &reply, m->n_sections);
    for (uint32_t i = 0; i < m->n_sections; i++) {
        const struct ps_section *x = &m->sections[i];

        rc = server_can_borrow(s, x, version) ? server_borrow_rows(s, x, err)
                                              : copy_rows(s, x, version, err);
        if (rc < 0)
            return rc;
        ps_write_section(&s->out, i, x->table, x->part, x->n);
        s->rows_read += x->n;
        s->rows_stale[age] += m->flag != PS_PULL_HELD ? x->n : 0;
    }
    return server_send(s, to, err);
}

/* The rule of versions. A rank that has committed step t reads the rows after step t, apart from the lanes of
 * step t + 1, which read those after step t - staleness. The server is at t, or at t - 1 if other ranks have not
 * committed t. */
static int pull_version(struct ps_server *s, uint32_t from, const struct ps_message *m,
                        const uint8_t *data, size_t n, struct err *err)
{
    struct rank *r = &s->ranks[from];
    uint64_t newest = s->version + server_expects_version(s, r);
    uint64_t age = m->flag == PS_PULL_HELD ? 0 : newest < s->staleness ? newest : s->staleness;

    if (m->step != newest - age)
        return server_unexpected(s, from, "PULL", m->step, err);
    if (m->step <= s->version)
        return send_rows(s, from, m, m->step, age, err);
    r->waits = true;
    return server_keep(s, r, &r->later, data, n, err);
}

/* A unit reads the newest rows, of a version that allows it. */
static int pull_newest(struct ps_server *s, uint32_t from, const struct ps_message *m,
                       const uint8_t *data, size_t n, struct err *err)
{
    struct rank *r = &s->ranks[from];

    if (s->units.n_lanes == 0 || m->first > s->version + s->has_unit)
        return server_unexpected(s, from, "PULL", m->first, err);
    if (m->first > s->version) {
        r->waits = true;
        return server_keep(s, r, &r->later, data, n, err);
    }
    if (!ps_units_may_begin(&s->units, m->step))
        return server_unexpected(s, from, "PULL", m->step, err);
    return send_rows(s, from, m, s->version, m->step - 1 - s->units.complete, err);
}

int server_pull(struct ps_server *s, uint32_t from, const struct ps_message *m, const uint8_t *data,
                size_t n, struct err *err)
{
    if (!s->is_holding || s->ranks[from].waits || m->flag > PS_PULL_UNIT)
        return server_unexpected(s, from, "PULL", m->step, err);
    return m->flag == PS_PULL_UNIT ? pull_newest(s, from, m, data, n, err)
                                   : pull_version(s, from, m, data, n, err);
}

/* ---- PUSH and COMMIT ---- */

int server_push(struct ps_server *s, uint32_t from, const struct ps_message *m, const uint8_t *data,
                size_t n, struct err *err)
{
    struct rank *r = &s->ranks[from];
    int rc;

    if (m->flag == 1)
        return server_unit_push(s, from, m, data, n, err);
    if (s->is_holding && server_expects_version(s, r) && !r->waits && m->step == s->version + 2) {
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
    return ++s->n_pushed < s->n_ranks ? 0 : server_sum(s, 0, s->n_ranks, s->leader, err);
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

static int commit_unit(struct ps_server *s, uint32_t from, const struct ps_message *m,
                       struct err *err)
{
    if (!s->is_holding || !s->has_unit || s->unit_rank != from || s->commit_waits ||
        s->work != NULL || m->step != s->version + 1 || m->flag > (PS_COMMIT_SKIP | PS_COMMIT_UNIT))
        return server_unexpected(s, from, "COMMIT", m->step, err);
    s->is_skipped = (m->flag & PS_COMMIT_SKIP) != 0;
    s->hyper = m->hyper;
    s->unit_facts.is_skipped = s->is_skipped;
    s->unit_facts.norm = m->clip;
    memcpy(&s->unit_facts.loss, &m->first, sizeof(m->first));
    s->commit_waits = s->is_asked;
    return s->commit_waits ? 0 : server_apply(s, err);
}

int server_commit(struct ps_server *s, uint32_t from, const struct ps_message *m, struct err *err)
{
    struct rank *r = &s->ranks[from];

    if (m->flag & PS_COMMIT_UNIT)
        return commit_unit(s, from, m, err);
    if (!s->is_holding || r->has_committed || s->has_unit || m->step != s->version + 1 ||
        !server_is_pending(s) || m->flag > 1 ||
        (s->work != NULL && s->n_committed + 1 == s->n_ranks) ||
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

static void step_applied(struct ps_server *s)
{
    ps_units_begin(&s->units, s->units.complete + 1);
    s->n_pushed = s->n_committed = 0;
    for (uint32_t i = 0; i < s->n_ranks; i++)
        s->ranks[i].has_pushed = s->ranks[i].has_committed = false;
}

int server_apply(struct ps_server *s, struct err *err)
{
    int rc = fault_error("ps.commit", err);

    s->commit_waits = false;
    if (rc == 0 && s->is_skipped)
        ps_store_skip(s->store);
    else if (rc == 0)
        rc = ps_store_commit(s->store, &s->hyper, s->pending_step, err);
    if (rc < 0)
        return rc;
    s->version++;
    s->history = s->generation;
    if (!s->is_skipped && ps_store_sweeps(s->store, s->pending_step))
        server_copies_restart(s);
    if (s->has_unit)
        server_unit_applied(s);
    else
        step_applied(s);
    if (fault_hit("ps.flip"))
        ps_store_flip(s->store);
    rc = fault_error("ps.committed", err);
    if (rc == 0)
        rc = server_copies_commit(s, err);
    if (rc == 0)
        rc = handle_later(s, err);
    return rc < 0 ? rc : server_unit_continue(s, err);
}
