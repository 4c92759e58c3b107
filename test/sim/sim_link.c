/* sim_link.c - links, probes, and blocked paths.
 *
 * A link keeps the order of its messages in each direction. A message that cannot arrive, because
 * the path is blocked or the process is suspended, waits and arrives later in the same order, like
 * the bytes of a TCP connection. A message to a process that has ended is answered with a reset. */
#include "sim/sim_priv.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { CALL_AGAIN_MS = 100, CALL_LIMIT_MS = 2000, PROBE_LIMIT_MS = 300 };

bool sim_link_passes(const struct sim *s, uint32_t from, uint32_t to, enum sim_plane plane)
{
    if (s->tasks[from].is_off || s->tasks[to].is_off)
        return from == to;
    return s->n_cuts == 0 || (s->cuts[(size_t)from * s->opts.world + to] & plane) == 0;
}

static bool both_ways(const struct sim *s, uint32_t a, uint32_t b)
{
    return sim_link_passes(s, a, b, SIM_CONTROL) && sim_link_passes(s, b, a, SIM_CONTROL);
}

static bool is_there(const struct sim *s, uint32_t rank, uint32_t serial)
{
    return s->tasks[rank].node != NULL && s->tasks[rank].serial == serial;
}

/* ---- sending ---- */

void sim_link_call(struct sim *s, uint32_t from, uint32_t to)
{
    struct sim_task *t = &s->tasks[from];
    struct sim_link l = { .from = from,
                          .to = to,
                          .from_serial = t->serial,
                          .give_up_ms = s->now_ms + CALL_LIMIT_MS,
                          .open = { true, true } };

    t->out = (uint32_t)s->links.n;
    l.last_ms[0] = s->now_ms + sim_delay(s);
    if (!VEC_PUSH(s->links, l))
        abort();
    sim_push(s,
             (struct sim_event){
                 .at_ms = l.last_ms[0], .kind = EV_CALL, .from = from, .to = to, .link = t->out });
}

static void send(struct sim *s, uint32_t at, bool to_caller, enum sim_kind kind, struct sim_msg *m)
{
    struct sim_link *l = &s->links.at[at];
    uint64_t ms = s->now_ms + sim_delay(s);

    l->last_ms[to_caller] = ms > l->last_ms[to_caller] ? ms : l->last_ms[to_caller];
    sim_push(s, (struct sim_event){ .at_ms = l->last_ms[to_caller],
                                    .kind = kind,
                                    .from = to_caller ? l->to : l->from,
                                    .to = to_caller ? l->from : l->to,
                                    .link = at,
                                    .msg = m });
}

void sim_link_send(struct sim *s, uint32_t at, bool to_caller, struct sim_msg *m)
{
    send(s, at, to_caller, to_caller ? EV_OUT : EV_IN, m);
}

void sim_link_end(struct sim *s, uint32_t at, bool by_caller)
{
    s->links.at[at].open[by_caller] = false;
    send(s, at, !by_caller, by_caller ? EV_IN_END : EV_OUT_END, NULL);
}

/* Closes the links of a process that ended. The last messages of a process that was killed may be
 * lost. */
void sim_link_process_gone(struct sim *s, uint32_t rank, bool was_killed, bool is_silent)
{
    uint32_t serial = s->tasks[rank].serial;

    for (uint32_t i = 1; i < s->links.n; i++) {
        struct sim_link *l = &s->links.at[i];
        bool by_caller = l->from == rank && l->from_serial == serial;
        bool is_ours =
            by_caller || (l->state == LINK_UP && l->to == rank && l->to_serial == serial);

        if (!is_ours || !l->open[by_caller])
            continue;
        l->open[by_caller] = false;
        if (was_killed && sim_random(s, 4) == 0)
            l->lost_before = s->number + 1;
        if (!is_silent)
            send(s, i, !by_caller, by_caller ? EV_IN_END : EV_OUT_END, NULL);
    }
}

void sim_reset(struct sim *s, uint32_t from, uint32_t to)
{
    uint32_t at = s->tasks[from].out;

    if (s->tasks[from].node == NULL || at == 0 || s->links.at[at].to != to ||
        s->links.at[at].state != LINK_UP)
        return;
    sim_print(s, from, "its link to %s breaks", s->names[to]);
    s->links.at[at].lost_before = s->number + 1;
    send(s, at, false, EV_IN_END, NULL);
    send(s, at, true, EV_OUT_END, NULL);
}

void sim_link_probe(struct sim *s, uint32_t from, uint32_t to)
{
    struct sim_task *t = &s->tasks[from];
    uint32_t trouble = s->opts.probe_trouble;
    struct sim_event e = {
        .kind = EV_PROBE, .from = from, .to = to, .a = ++t->next_probe, .serial = t->serial
    };

    t->probes[to] = t->next_probe;
    member_node_status(t->node, &e.where);
    sim_push(s, (struct sim_event){ .at_ms = s->now_ms + PROBE_LIMIT_MS,
                                    .kind = EV_NO_ANSWER,
                                    .from = to,
                                    .to = from,
                                    .serial = t->serial,
                                    .a = t->next_probe,
                                    .b = MEMBER_CLOSED });
    for (int copies = trouble != 0 && sim_random(s, trouble) == 0 ? (int)sim_random(s, 3) : 1;
         copies > 0; copies--) {
        e.at_ms = s->now_ms + sim_delay(s);
        if (trouble != 0 && sim_random(s, trouble) == 0)
            e.at_ms += sim_random(s, 2000);
        sim_push(s, e);
    }
}

/* ---- arriving ---- */

enum sim_arrival sim_link_arrival(const struct sim *s, const struct sim_event *e)
{
    const struct sim_link *l = &s->links.at[e->link];
    const struct sim_task *t = &s->tasks[e->to];
    bool to_caller = e->kind == EV_OUT || e->kind == EV_OUT_END;

    switch (e->kind) {
    case EV_IN:
    case EV_OUT:
    case EV_IN_END:
    case EV_OUT_END:
        if (e->number < l->lost_before || l->state == LINK_FAILED)
            return VANISHES;
        if (l->state == LINK_CALLING || !sim_link_passes(s, e->from, e->to, SIM_CONTROL))
            return WAITS;
        if (!is_there(s, e->to, to_caller ? l->from_serial : l->to_serial))
            return e->kind == EV_IN || e->kind == EV_OUT ? BOUNCES : VANISHES;
        if (!l->open[to_caller])
            return VANISHES;
        return t->is_stopped ? WAITS : ARRIVES;
    case EV_PROBE:
        if (!sim_link_passes(s, e->from, e->to, SIM_CONTROL))
            return VANISHES;
        return t->node != NULL && t->is_stopped ? WAITS : ARRIVES;
    case EV_ANSWER:
        if (!sim_link_passes(s, e->from, e->to, SIM_CONTROL))
            return VANISHES;
        /* fall through */
    case EV_CALL_FAILED:
    case EV_CALL_MOVES:
    case EV_NO_ANSWER:
        if (!is_there(s, e->to, e->serial))
            return VANISHES;
        return t->is_stopped ? WAITS : ARRIVES;
    default:
        return ARRIVES;
    }
}

/* A message for a process that has ended: its host answers with a reset. */
void sim_link_bounce(struct sim *s, const struct sim_event *e)
{
    struct sim_link *l = &s->links.at[e->link];
    bool to_caller = e->kind == EV_OUT;

    if (l->open[!to_caller])
        send(s, e->link, !to_caller, to_caller ? EV_IN_END : EV_OUT_END, NULL);
}

/* The host accepts the call also while the process is suspended; the process continues the handshake. Returns
 * true if the handshake is not complete: the call arrives again. */
static bool shakes(struct sim *s, const struct sim_event *e)
{
    enum { PARTS = 2 };
    struct sim_link *l = &s->links.at[e->link];
    struct sim_event again = *e;

    if (s->opts.handshake_ms == 0 || l->n_parts > PARTS)
        return false;
    again.at_ms = s->now_ms + CALL_AGAIN_MS;
    if (l->n_parts == 0 || !s->tasks[e->to].is_stopped) {
        l->n_parts++;
        again.at_ms = s->now_ms + 1 + sim_random(s, s->opts.handshake_ms);
        sim_push(s, (struct sim_event){ .at_ms = s->now_ms + sim_delay(s),
                                        .kind = EV_CALL_MOVES,
                                        .from = e->to,
                                        .to = e->from,
                                        .serial = l->from_serial,
                                        .link = e->link });
    }
    sim_push(s, again);
    return true;
}

static void called(struct sim *s, const struct sim_event *e)
{
    struct sim_link *l = &s->links.at[e->link];
    struct sim_task *t = &s->tasks[e->to];

    if (!is_there(s, e->from, l->from_serial) || !l->open[1]) {
        l->state = LINK_FAILED; /* the caller has ended */
        sim_release_held(s);
        return;
    }
    if (!both_ways(s, e->from, e->to)) {
        struct sim_event again = *e;

        again.at_ms = s->now_ms + CALL_AGAIN_MS;
        again.kind = again.at_ms < l->give_up_ms ? EV_CALL : EV_CALL_FAILED;
        if (again.kind == EV_CALL_FAILED) {
            l->state = LINK_FAILED;
            again = (struct sim_event){ .at_ms = again.at_ms,
                                        .kind = EV_CALL_FAILED,
                                        .from = e->to,
                                        .to = e->from,
                                        .serial = l->from_serial,
                                        .link = e->link,
                                        .b = MEMBER_CLOSED };
        }
        sim_push(s, again);
        sim_release_held(s);
        return;
    }
    if (t->node != NULL && shakes(s, e))
        return;
    l->state = t->node != NULL ? LINK_UP : LINK_FAILED;
    l->to_serial = t->serial;
    if (t->node == NULL)
        sim_push(s, (struct sim_event){ .at_ms = s->now_ms + sim_delay(s),
                                        .kind = EV_CALL_FAILED,
                                        .from = e->to,
                                        .to = e->from,
                                        .serial = l->from_serial,
                                        .link = e->link,
                                        .b = MEMBER_REFUSED });
    sim_release_held(s);
}

static void heard_in(struct sim *s, const struct sim_event *e)
{
    struct sim_task *t = &s->tasks[e->to];
    uint32_t old = t->in[e->from], serial = t->serial;

    if (old != e->link) {
        if (e->msg->m.kind != MEMBER_MSG_JOIN)
            sim_fail_run(s, "%s: the first message on its link to %s is not a JOIN",
                         s->names[e->from], s->names[e->to]);
        if (old != 0) {
            struct member_msg refusal;

            if (!member_node_admits(t->node, e->from, &e->msg->m, &refusal, sim_clock(s, e->to))) {
                sim_link_send(s, e->link, true, sim_msg_copy(s, e->from, &refusal));
                sim_link_end(s, e->link, false);
                sim_drain(s, e->to);
                return;
            }
            sim_drain(s, e->to);
            t->in[e->from] = 0;
            sim_link_end(s, old, false);
            sim_handle(s, e->to, (struct member_event){ .kind = MEMBER_EV_IN_CLOSED, .rank = e->from, .text = "replaced by a newer link" });
            sim_drain(s, e->to);
            if (!is_there(s, e->to, serial))
                return;
        }
        t->in[e->from] = e->link;
    }
    sim_handle(s, e->to, (struct member_event){ .kind = MEMBER_EV_RECEIVED_IN, .rank = e->from, .msg = &e->msg->m });
}

static void asked(struct sim *s, const struct sim_event *e)
{
    struct sim_task *t = &s->tasks[e->to];
    struct sim_event answer = { .at_ms = s->now_ms + sim_delay(s),
                                .kind = EV_ANSWER,
                                .from = e->to,
                                .to = e->from,
                                .serial = e->serial,
                                .a = e->a };

    if (t->node == NULL) {
        answer.kind = EV_NO_ANSWER;
        answer.b = MEMBER_REFUSED;
    } else
        member_node_probed(t->node, e->from, &e->where, &answer.where, sim_clock(s, e->to));
    sim_push(s, answer);
}

void sim_link_event(struct sim *s, struct sim_event *e)
{
    struct sim_task *t = &s->tasks[e->to];
    struct sim_link *l = &s->links.at[e->link];

    switch (e->kind) {
    case EV_CALL:
        called(s, e);
        return;
    case EV_CALL_FAILED:
        if (!l->open[1] || t->out != e->link)
            return;
        l->open[1] = false;
        t->out = 0;
        sim_print(s, e->to, "cannot reach %s: %s", s->names[e->from],
                  e->b == MEMBER_REFUSED ? "refused" : "timed out");
        sim_handle(s, e->to, (struct member_event){ .kind = MEMBER_EV_OUT_CLOSED, .closed = (enum member_closed)e->b, .text = e->b == MEMBER_REFUSED ? "connection refused" : "connect: timed out" });
        return;
    case EV_CALL_MOVES:
        if (l->open[1] && t->out == e->link)
            sim_handle(s, e->to, (struct member_event){ .kind = MEMBER_EV_OUT_PROGRESS });
        return;
    case EV_IN:
        heard_in(s, e);
        return;
    case EV_OUT:
        sim_handle(s, e->to, (struct member_event){ .kind = MEMBER_EV_RECEIVED_OUT, .msg = &e->msg->m });
        return;
    case EV_IN_END:
        l->open[0] = false;
        if (t->in[e->from] == e->link) {
            t->in[e->from] = 0;
            sim_print(s, e->to, "the link from %s ends", s->names[e->from]);
            sim_handle(s, e->to, (struct member_event){ .kind = MEMBER_EV_IN_CLOSED, .rank = e->from, .text = "its connection closed" });
        }
        return;
    case EV_OUT_END:
        l->open[1] = false;
        t->out = 0;
        sim_print(s, e->to, "the link to %s ends", s->names[e->from]);
        sim_handle(s, e->to, (struct member_event){ .kind = MEMBER_EV_OUT_CLOSED, .closed = MEMBER_CLOSED, .text = "connection closed" });
        return;
    case EV_PROBE:
        asked(s, e);
        return;
    case EV_ANSWER:
        if (t->probes[e->from] != e->a)
            return; /* the probe timed out */
        t->probes[e->from] = 0;
        sim_handle(s, e->to,
                   (struct member_event){
                       .kind = MEMBER_EV_PROBE_ANSWERED, .rank = e->from, .status = &e->where });
        return;
    default: /* EV_NO_ANSWER */
        if (t->probes[e->from] != e->a)
            return;
        t->probes[e->from] = 0;
        sim_handle(s, e->to, (struct member_event){ .kind = MEMBER_EV_PROBE_FAILED, .rank = e->from, .closed = (enum member_closed)e->b, .text = e->b == MEMBER_REFUSED ? "connection refused" : "no answer" });
        return;
    }
}

/* ---- blocked paths ---- */

static void cut(struct sim *s, uint32_t from, uint32_t to, uint8_t planes, bool is_cut)
{
    uint32_t world = s->opts.world;

    if (s->cuts == NULL)
        s->cuts = sim_alloc((size_t)world * world);
    for (uint32_t a = from == SIM_ALL ? 0 : from; a < (from == SIM_ALL ? world : from + 1); a++)
        for (uint32_t b = to == SIM_ALL ? 0 : to; b < (to == SIM_ALL ? world : to + 1); b++) {
            uint8_t *c = &s->cuts[(size_t)a * world + b], before = *c;

            if (a == b)
                continue;
            *c = is_cut ? *c | planes : *c & (uint8_t)~planes;
            s->n_cuts += (*c != 0) - (before != 0);
        }
}

void sim_cut(struct sim *s, uint32_t from, uint32_t to, enum sim_plane plane)
{
    sim_print(s, from, "%sall traffic to %s is blocked",
              plane == SIM_DATA      ? "data: "
              : plane == SIM_LARGE   ? "large packets: "
              : plane == SIM_CONTROL ? "control: "
                                     : "",
              to == SIM_ALL ? "all" : s->names[to]);
    cut(s, from, to, (uint8_t)plane, true);
}

void sim_mend(struct sim *s, uint32_t from, uint32_t to)
{
    sim_print(s, from, "reaches %s again", to == SIM_ALL ? "all" : s->names[to]);
    cut(s, from, to, SIM_EVERY, false);
    sim_release_held(s);
}

void sim_partition(struct sim *s, uint64_t side)
{
    sim_print(s, SIM_ALL, "partition: ranks of mask %" PRIx64 " from the others", side);
    for (uint32_t a = 0; a < s->opts.world; a++)
        for (uint32_t b = 0; b < s->opts.world; b++)
            if ((side >> (a & 63) & 1) != (side >> (b & 63) & 1))
                cut(s, a, b, SIM_BOTH, true);
}

void sim_heal(struct sim *s)
{
    sim_print(s, SIM_ALL, "the network is whole again");
    if (s->cuts != NULL)
        cut(s, SIM_ALL, SIM_ALL, SIM_EVERY, false);
    sim_release_held(s);
}
