/* server_turns.c - the sequencer of an asynchronous phase: which unit a rank may begin, whose unit is applied
 * next, and where all ranks stop; see server.h and units.h.
 *
 *     message              action
 *     LIMIT(t)             ranks stop after step t; flag 1: after the newest step that a rank has begun
 *     NEXT(t) of a rank    GO: a unit of its lanes, as soon as the bound permits; all its lanes are applied;
 *                          or, after the limit, when all steps up to the limit are complete: stop
 *     PUSH of a rank       the rank waits for its turn
 *     first rank           TICKET: the rank makes the next version (server_unit.c)
 *
 * After the stop of all ranks, NEXT waits for the next LIMIT. */
#include <stdlib.h>

#include "base/err.h"
#include "base/fault.h"
#include "ps/server_priv.h"

int server_turns_begin(struct ps_server *s, struct err *err)
{
    s->turns = (struct turns){ .ranks = calloc(s->n_ranks, sizeof(*s->turns.ranks)) };
    return s->turns.ranks != NULL ? 0 : server_no_memory(err);
}

void server_turns_close(struct ps_server *s)
{
    free(s->turns.ranks);
    s->turns = (struct turns){ 0 };
}

/* ---- GO ---- */

static int send_go(struct ps_server *s, uint32_t to, enum ps_go what, const struct ps_unit *unit,
                   struct err *err)
{
    struct rank *r = &s->ranks[to];
    struct ps_message m = {
        .kind = PS_GO, .step = r->wants.step, .flag = what, .number = unit->first, .first = s->version
    };
    struct ps_step_facts facts[PS_FACTS_MAX];
    uint32_t n = ps_units_facts(&s->units, r->after, facts);
    int rc = fault_error("ps.go", err);

    if (rc < 0)
        return rc;
    r->asks = false;
    ps_write_begin(&s->out, &m, 0);
    ps_write_go(&s->out, unit->n, facts, n);
    return server_send(s, to, err);
}

static void forget_limit(struct ps_server *s)
{
    for (uint32_t i = 0; i < s->n_ranks; i++)
        if (!s->ranks[i].has_stopped)
            return;
    for (uint32_t i = 0; i < s->n_ranks; i++)
        s->ranks[i].has_stopped = false;
    s->turns.has_limit = false;
}

/* Answers NEXT of a rank, or leaves it for later. */
static int answer(struct ps_server *s, uint32_t rank, struct err *err)
{
    struct rank *r = &s->ranks[rank];
    struct ps_unit unit = r->wants;
    int rc = 0;

    if (!s->turns.has_limit || r->has_stopped || r->has_pushed)
        return 0;
    if (unit.step > s->turns.limit) {
        if (s->units.complete < s->turns.limit)
            return 0;
        rc = send_go(s, rank, PS_GO_STOP, &(struct ps_unit){ 0 }, err);
        r->has_stopped = true;
        forget_limit(s);
        return rc;
    }
    if (unit.step > s->units.complete && !ps_units_may_begin(&s->units, unit.step))
        return 0;
    unit = ps_units_next(&s->units, unit.step, unit.first, unit.n);
    if (unit.n > 0 && unit.step > s->turns.begun)
        s->turns.begun = unit.step;
    return send_go(s, rank, unit.n > 0 ? PS_GO_UNIT : PS_GO_NONE, &unit, err);
}

static int answer_all(struct ps_server *s, struct err *err)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < s->n_ranks; i++)
        if (s->ranks[i].asks)
            rc = answer(s, i, err);
    return rc;
}

int server_next(struct ps_server *s, uint32_t from, const struct ps_message *m, struct err *err)
{
    struct rank *r = &s->ranks[from];

    if (!s->is_holding || !server_is_sequencer(s) || r->asks || m->step == 0 || m->flag == 0 ||
        m->number >= s->units.n_lanes || m->flag > s->units.n_lanes - m->number)
        return server_unexpected(s, from, "NEXT", m->step, err);
    r->asks = true;
    r->wants = (struct ps_unit){ m->step, m->number, m->flag };
    r->after = m->first;
    return answer(s, from, err);
}

int server_limit(struct ps_server *s, uint32_t from, const struct ps_message *m, struct err *err)
{
    struct turns *t = &s->turns;
    uint64_t applied = ps_units_newest(&s->units), newest = t->begun > applied ? t->begun : applied;

    if (!s->is_holding || !server_is_sequencer(s) || from != s->leader || m->flag > 1 ||
        (m->flag == 0 && m->step <= s->units.complete))
        return server_unexpected(s, from, "LIMIT", m->step, err);
    if (m->flag == 0)
        t->limit = m->step;
    else if (!t->has_limit || t->limit > newest)
        t->limit = newest;
    t->has_limit = true;
    return answer_all(s, err);
}

/* ---- TICKET ---- */

static int give_ticket(struct ps_server *s, struct err *err)
{
    struct ps_message m = { .kind = PS_TICKET, .step = s->version + 1 };

    if (s->turns.n == 0 || s->turns.has_ticket)
        return 0;
    s->turns.has_ticket = true;
    ps_write_begin(&s->out, &m, 0);
    return server_send(s, s->turns.ranks[s->turns.first], err);
}

int server_turns_add(struct ps_server *s, uint32_t rank, struct err *err)
{
    s->turns.ranks[(s->turns.first + s->turns.n++) % s->n_ranks] = rank;
    return give_ticket(s, err);
}

int server_turns_applied(struct ps_server *s, struct err *err)
{
    int rc;

    if (!s->turns.has_ticket)
        return 0;
    s->turns.first = (s->turns.first + 1) % s->n_ranks;
    s->turns.n--;
    s->turns.has_ticket = false;
    rc = answer_all(s, err);
    return rc < 0 ? rc : give_ticket(s, err);
}
