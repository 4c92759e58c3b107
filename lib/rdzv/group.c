/* group.c - the node and its surroundings: one event goes in, all of its actions are performed.
 *
 * Actions never call back into the node: links and timers report later, from the loop, and an event
 * that the daemon reports from inside on_action() waits in a queue until the actions are done. */
#include "rdzv/rdzv_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "loop/loop.h"

enum { TEXT_BYTES = 2048 };

/* A copy of an event that the daemon reported while actions were performed, or before the node was
 * started. */
struct queued {
    struct queued *next;
    struct member_event e; /* its pointers refer to this copy */
    struct member_loss loss;
    struct member_lease lease;
    char text[TEXT_BYTES];
    uint32_t lease_members[];
};

struct rdzv_group {
    struct rdzv *r;
    rdzv_perform_fn *perform;
    struct member_node *node;
    struct loop_timer *tick;
    bool is_busy, has_started, has_ended, is_shut;
    struct queued *first, **last;
};

/* ---- events ---- */

/* Begins an event. Returns false if the node has ended; else perform() must follow. */
static bool enter(struct rdzv_group *g)
{
    if (rdzv_group_has_ended(g))
        return false;
    CHECK(!g->is_busy); /* only the daemon reports from inside an action, and its event is queued */
    g->is_busy = true;
    return true;
}

static void set_ended(struct rdzv_group *g)
{
    CHECK(!g->has_ended);
    g->has_ended = true;
    loop_timer_free(g->tick);
    g->tick = NULL;
}

/* Performs the actions of the event, then handles the queued events in order. */
static void perform(struct rdzv_group *g)
{
    struct member_action a;

    for (;;) {
        struct queued *q;

        while (!g->has_ended && member_node_next(g->node, &a)) {
            if (a.kind == MEMBER_END)
                set_ended(g);
            g->perform(g->r, &a);
        }
        if (g->has_ended)
            break;
        if (g->r->opts.on_state != NULL)
            g->r->opts.on_state(g->r->opts.arg);
        q = g->first;
        if (q == NULL)
            break;
        g->first = q->next;
        if (g->first == NULL)
            g->last = &g->first;
        member_node_handle(g->node, &q->e, clock_ms());
        free(q);
    }
    g->is_busy = false;
}

void rdzv_group_event(struct rdzv_group *g, const struct member_event *e)
{
    if (!enter(g))
        return;
    member_node_handle(g->node, e, clock_ms());
    perform(g);
}

bool rdzv_group_admits(struct rdzv_group *g, uint32_t rank, const struct member_msg *join,
                       struct member_msg *refusal, char text[RDZV_REFUSAL_BYTES])
{
    bool admits;

    if (!enter(g))
        return true;
    admits = member_node_admits(g->node, rank, join, refusal, clock_ms());
    if (!admits) { /* the next event, which perform() may handle, frees the text of the node */
        snprintf(text, RDZV_REFUSAL_BYTES, "%s", refusal->text);
        refusal->text = text;
    }
    perform(g);
    return admits;
}

void rdzv_group_probed(struct rdzv_group *g, uint32_t rank, const struct member_status *theirs,
                       struct member_status *ours)
{
    bool is_in = enter(g);

    CHECK(is_in); /* the caller has checked it */
    member_node_probed(g->node, rank, theirs, ours, clock_ms());
    perform(g);
}

static void on_tick(void *arg)
{
    struct rdzv_group *g = arg;
    const struct rdzv_progress *p = g->r->opts.progress;
    uint64_t now_ms = clock_ms();
    struct member_progress progress = { .held = p->step,
                                        .place = p->place,
                                        .phase = p->doing,
                                        .phase_ms = p->doing[0] != '\0' ? now_ms - p->doing_since_ms : 0,
                                        .limit_ms = p->limit_ms };
    struct member_event e = { .kind = g->has_started ? MEMBER_EV_TICK : MEMBER_EV_START, .progress = &progress };

    if (rdzv_group_has_ended(g))
        return;
    CHECK(p->phase != NULL && p->doing != NULL && strlen(p->doing) < WIRE_PHASE_BYTES);
    g->has_started = true;
    rdzv_group_event(g, &e);
    rdzv_server_tick(g->r->server, now_ms);
}

/* ---- what the daemon reports ---- */

static struct queued *copy(const struct member_event *e)
{
    uint32_t n = e->lease != NULL ? e->lease->n_members : 0;
    const char *text = e->lease != NULL ? e->lease->text : e->text;
    struct queued *q = calloc(1, sizeof(*q) + n * sizeof(q->lease_members[0]));

    CHECK(q != NULL && e->msg == NULL && e->status == NULL && e->progress == NULL);
    q->e = *e;
    if (text != NULL)
        wire_text(q->text, sizeof(q->text), text, strlen(text));
    q->e.text = e->text != NULL ? q->text : NULL;
    if (e->loss != NULL) {
        q->loss = *e->loss;
        q->e.loss = &q->loss;
    }
    if (e->lease != NULL) {
        q->lease = *e->lease;
        q->lease.text = q->text;
        q->lease.members = q->lease_members;
        if (n > 0)
            memcpy(q->lease_members, e->lease->members, n * sizeof(q->lease_members[0]));
        q->e.lease = &q->lease;
    }
    return q;
}

void rdzv_report(struct rdzv *r, const struct member_event *e)
{
    struct rdzv_group *g = r->group;
    struct queued *q;

    if (rdzv_group_has_ended(g))
        return;
    q = copy(e); /* wire_text() makes the text valid UTF-8 */
    if (!g->is_busy && g->has_started) {
        rdzv_group_event(g, &q->e);
        free(q);
        return;
    }
    *g->last = q;
    g->last = &q->next;
}

/* ---- open and close ---- */

const struct member_node *rdzv_node(const struct rdzv *r)
{
    return r->group->node;
}

bool rdzv_group_has_ended(const struct rdzv_group *g)
{
    return g->has_ended || g->is_shut;
}

struct rdzv_group *rdzv_group_new(struct rdzv *r, rdzv_perform_fn *perform)
{
    const struct rdzv_opts *o = &r->opts;
    const char **names = calloc(o->world, sizeof(*names)),
               **addresses = calloc(o->world, sizeof(*addresses));
    struct rdzv_group *g = calloc(1, sizeof(*g));

    CHECK(g != NULL && names != NULL && addresses != NULL);
    for (uint32_t i = 0; i < o->world; i++) {
        names[i] = o->tasks[i].name;
        addresses[i] = o->tasks[i].address;
    }
    g->r = r;
    g->perform = perform;
    g->last = &g->first;
    g->node = member_node_new(&(struct member_node_opts){ .world = o->world,
                                                          .self = o->self,
                                                          .incarnation = o->incarnation,
                                                          .names = names,
                                                          .addresses = addresses,
                                                          .ident = &o->ident,
                                                          .n_devices = o->n_devices,
                                                          .n_ps = o->n_ps,
                                                          .n_servers = o->n_servers,
                                                          .min_world = o->min_world,
                                                          .min_ps = o->min_ps,
                                                          .replicas = o->replicas,
                                                          .rejoin_ms = o->rejoin_ms,
                                                          .deadline_ms = o->deadline_ms,
                                                          .grace_ms = o->grace_ms,
                                                          .silent_ms = o->silent_ms,
                                                          .has_lease = o->has_lease,
                                                          .saves = o->saves },
                              clock_ms());
    CHECK(g->node != NULL);
    free(names);
    free(addresses);
    return g;
}

void rdzv_group_start(struct rdzv_group *g)
{
    g->tick = loop_timer_new(g->r->opts.loop, 0, MEMBER_TICK_MS, on_tick, g);
}

void rdzv_group_shut(struct rdzv_group *g)
{
    g->is_shut = true;
    loop_timer_free(g->tick);
    g->tick = NULL;
}

void rdzv_group_free(struct rdzv_group *g)
{
    if (g == NULL)
        return;
    CHECK(!g->is_busy);
    while (g->first != NULL) {
        struct queued *q = g->first;

        g->first = q->next;
        free(q);
    }
    member_node_free(g->node);
    free(g);
}
