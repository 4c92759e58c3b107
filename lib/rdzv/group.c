/* group.c - the node and its world: one event goes in, all of its actions come out.
 *
 * Actions never lead back into the node: what a link or a timer has to say comes from the loop
 * later, and what the daemon says from inside a callback waits in a queue until the actions are
 * done. */
#include "rdzv/rdzv_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "loop/loop.h"

enum { TEXT_BYTES = 2048 };

/* What the daemon said while actions were performed, or before the node was started. */
struct said {
    struct said *next;
    void (*deliver)(struct rdzv_group *g, const struct said *s, uint64_t now_ms);
    uint64_t generation, held;
    enum member_failure kind;
    struct member_loss loss; /* of failed; dead paths of reached */
    bool flag;
    char text[TEXT_BYTES];
    struct member_lease lease; /* members and text: behind, and `text` */
    uint32_t members[];
};

struct rdzv_group {
    struct rdzv *r;
    struct member_node *node;
    struct loop_timer *tick;
    bool is_busy, has_started, has_ended, is_shut;
    struct said *first, **last;
};

/* ---- actions ---- */

static void say_lost_view(struct rdzv_group *g, const struct member_view *v)
{
    rdzv_failed(g->r, v->generation, MEMBER_FAIL_PEER, NULL, 0,
                "the view to train in is not the one that came");
}

static void do_call(struct rdzv_group *g, const struct member_do_this *a)
{
    rdzv_client_call(g->r->client, a->rank);
}

static void do_hang_up(struct rdzv_group *g, const struct member_do_this *a)
{
    (void)a;
    rdzv_client_hang_up(g->r->client);
}

static void do_tell(struct rdzv_group *g, const struct member_do_this *a)
{
    rdzv_client_tell(g->r->client, a->msg);
}

static void do_send(struct rdzv_group *g, const struct member_do_this *a)
{
    rdzv_links_send(g->r->links, a->rank, a->msg);
}

static void do_close(struct rdzv_group *g, const struct member_do_this *a)
{
    rdzv_links_close(g->r->links, a->rank);
}

static void do_probe(struct rdzv_group *g, const struct member_do_this *a)
{
    struct member_where ours;

    member_node_where(g->node, &ours);
    rdzv_who_ask(g->r->who, a->rank, &ours);
}

static void do_reach(struct rdzv_group *g, const struct member_do_this *a)
{
    rdzv_reach_test(g->r, a);
}

static void do_train(struct rdzv_group *g, const struct member_do_this *a)
{
    const struct rdzv_view *v = rdzv_views_get(g->r->views, a->view);

    if (v != NULL)
        g->r->opts.on_train(g->r->opts.arg, v, a->text);
    else
        say_lost_view(g, a->view);
}

static void do_pause(struct rdzv_group *g, const struct member_do_this *a)
{
    (void)a;
    g->r->opts.on_pause(g->r->opts.arg);
}

static void do_abort(struct rdzv_group *g, const struct member_do_this *a)
{
    g->r->opts.on_abort(g->r->opts.arg, a->text);
}

static void do_save(struct rdzv_group *g, const struct member_do_this *a)
{
    (void)a;
    g->r->opts.on_save(g->r->opts.arg);
}

static void do_lease(struct rdzv_group *g, const struct member_do_this *a)
{
    g->r->opts.on_lease(g->r->opts.arg, a->token, a->wish, a->token == UINT64_MAX ? NULL : a->view);
}

static void do_release(struct rdzv_group *g, const struct member_do_this *a)
{
    (void)a;
    g->r->opts.on_release(g->r->opts.arg);
}

static void do_say(struct rdzv_group *g, const struct member_do_this *a)
{
    g->r->opts.on_say(g->r->opts.arg, a->text, a->is_trouble);
}

static void do_end(struct rdzv_group *g, const struct member_do_this *a)
{
    CHECK(!g->has_ended);
    g->has_ended = true;
    loop_timer_free(g->tick);
    g->tick = NULL;
    rdzv_who_shut(g->r->who);
    rdzv_client_hang_up(g->r->client);
    rdzv_links_close_all(g->r->links);
    rdzv_trace(g->r, "the membership is over, code %d: %.600s", a->code, a->text);
    g->r->opts.on_end(g->r->opts.arg, a->code, a->text);
}

static void (*const performs[])(struct rdzv_group *g, const struct member_do_this *a) = {
    [MEMBER_CALL] = do_call,   [MEMBER_HANG_UP] = do_hang_up, [MEMBER_TELL] = do_tell,
    [MEMBER_SEND] = do_send,   [MEMBER_CLOSE] = do_close,     [MEMBER_PROBE] = do_probe,
    [MEMBER_TRAIN] = do_train, [MEMBER_PAUSE] = do_pause,     [MEMBER_ABORT] = do_abort,
    [MEMBER_SAVE] = do_save,   [MEMBER_LEASE] = do_lease,     [MEMBER_RELEASE] = do_release,
    [MEMBER_SAY] = do_say,     [MEMBER_END] = do_end,         [MEMBER_REACH] = do_reach,
};

/* ---- events ---- */

/* false: nothing goes in any more. Else perform() must follow. */
static bool enter(struct rdzv_group *g)
{
    if (rdzv_group_has_ended(g))
        return false;
    CHECK(!g->is_busy); /* only the daemon speaks from inside an action, and it is made to wait */
    g->is_busy = true;
    return true;
}

/* The actions of the event that went in; then what the daemon said meanwhile, in its order. */
static void perform(struct rdzv_group *g)
{
    struct member_do_this a;

    for (;;) {
        struct said *s;

        while (!g->has_ended && member_node_next(g->node, &a)) {
            CHECK((size_t)a.what < COUNT_OF(performs));
            performs[a.what](g, &a);
        }
        if (g->has_ended)
            break;
        if (g->r->opts.on_state != NULL)
            g->r->opts.on_state(g->r->opts.arg);
        s = g->first;
        if (s == NULL)
            break;
        g->first = s->next;
        if (g->first == NULL)
            g->last = &g->first;
        s->deliver(g, s, clock_ms());
        free(s);
    }
    g->is_busy = false;
}

void rdzv_group_hear_in(struct rdzv_group *g, uint32_t rank, const struct member_msg *m)
{
    if (!enter(g))
        return;
    member_node_hear_in(g->node, rank, m, clock_ms());
    perform(g);
}

bool rdzv_group_admits(struct rdzv_group *g, uint32_t rank, const struct member_msg *join, struct member_msg *refusal,
                       char text[RDZV_REFUSAL_BYTES])
{
    bool admits;

    if (!enter(g))
        return true;
    admits = member_node_admits(g->node, rank, join, refusal, clock_ms());
    if (!admits) { /* the next event, which perform() may deliver, frees the node's text */
        snprintf(text, RDZV_REFUSAL_BYTES, "%s", refusal->text);
        refusal->text = text;
    }
    perform(g);
    return admits;
}

void rdzv_group_in_closed(struct rdzv_group *g, uint32_t rank, const char *why)
{
    if (!enter(g))
        return;
    member_node_in_closed(g->node, rank, why, clock_ms());
    perform(g);
}

void rdzv_group_hear_out(struct rdzv_group *g, const struct member_msg *m)
{
    if (!enter(g))
        return;
    member_node_hear_out(g->node, m, clock_ms());
    perform(g);
}

void rdzv_group_out_closed(struct rdzv_group *g, enum member_closed how, const char *why)
{
    if (!enter(g))
        return;
    member_node_out_closed(g->node, how, why, clock_ms());
    perform(g);
}

void rdzv_group_here(struct rdzv_group *g, uint32_t rank, const struct member_where *w)
{
    if (!enter(g))
        return;
    member_node_here(g->node, rank, w, clock_ms());
    perform(g);
}

void rdzv_group_not_here(struct rdzv_group *g, uint32_t rank, enum member_closed how,
                         const char *why)
{
    if (!enter(g))
        return;
    member_node_not_here(g->node, rank, how, why, clock_ms());
    perform(g);
}

void rdzv_group_asked(struct rdzv_group *g, uint32_t rank, const struct member_where *theirs,
                      struct member_where *ours)
{
    bool is_in = enter(g);

    CHECK(is_in); /* who calls has looked */
    member_node_asked(g->node, rank, theirs, ours, clock_ms());
    perform(g);
}

/* ---- time ---- */

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

    if (!enter(g))
        return;
    CHECK(p->phase != NULL && p->doing != NULL && strlen(p->doing) < WIRE_PHASE_BYTES);
    if (g->has_started) {
        member_node_progress(g->node, &progress);
        member_node_tick(g->node, now_ms);
    } else {
        g->has_started = true;
        member_node_start(g->node, now_ms);
    }
    perform(g);
    rdzv_server_tick(g->r->server, now_ms);
}

/* ---- what the daemon says ---- */

static struct said *new_said(void (*deliver)(struct rdzv_group *, const struct said *, uint64_t),
                             const char *text, uint32_t n_members)
{
    struct said *s = calloc(1, sizeof(*s) + n_members * sizeof(s->members[0]));

    CHECK(s != NULL);
    s->deliver = deliver;
    wire_text(s->text, sizeof(s->text), text, strlen(text));
    return s;
}

/* Takes it over. */
static void say(struct rdzv *r, struct said *s)
{
    struct rdzv_group *g = r->group;

    if (!g->is_busy && g->has_started && enter(g)) {
        s->deliver(g, s, clock_ms());
        perform(g);
        free(s);
    } else if (!rdzv_group_has_ended(g)) {
        *g->last = s;
        g->last = &s->next;
    } else {
        free(s);
    }
}

static void opened(struct rdzv_group *g, const struct said *s, uint64_t now_ms)
{
    (void)s;
    member_node_opened(g->node, now_ms);
}

static void connected(struct rdzv_group *g, const struct said *s, uint64_t now_ms)
{
    member_node_connected(g->node, s->generation, now_ms);
}

static void paused(struct rdzv_group *g, const struct said *s, uint64_t now_ms)
{
    member_node_paused(g->node, s->generation, s->held, now_ms);
}

static void aborted(struct rdzv_group *g, const struct said *s, uint64_t now_ms)
{
    member_node_aborted(g->node, s->generation, s->held, now_ms);
}

static void complete(struct rdzv_group *g, const struct said *s, uint64_t now_ms)
{
    member_node_complete(g->node, s->generation, s->held, now_ms);
}

static void failed(struct rdzv_group *g, const struct said *s, uint64_t now_ms)
{
    member_node_failed(g->node, s->generation, s->kind, &s->loss, s->held, s->text, now_ms);
}

static void saved(struct rdzv_group *g, const struct said *s, uint64_t now_ms)
{
    member_node_saved(g->node, s->flag, s->text, now_ms);
}

static void stop(struct rdzv_group *g, const struct said *s, uint64_t now_ms)
{
    member_node_stop(g->node, s->flag, now_ms);
}

static void lease(struct rdzv_group *g, const struct said *s, uint64_t now_ms)
{
    member_node_lease(g->node, &s->lease, now_ms);
}

static void storage(struct rdzv_group *g, const struct said *s, uint64_t now_ms)
{
    member_node_storage(g->node, s->flag ? NULL : s->text, now_ms);
}

void rdzv_storage(struct rdzv *r, const char *trouble)
{
    struct said *s = new_said(storage, trouble != NULL ? trouble : "", 0);

    s->flag = trouble == NULL;
    say(r, s);
}

void rdzv_opened(struct rdzv *r)
{
    say(r, new_said(opened, "", 0));
}

static void say_at(struct rdzv *r,
                   void (*deliver)(struct rdzv_group *, const struct said *, uint64_t),
                   uint64_t generation, uint64_t held)
{
    struct said *s = new_said(deliver, "", 0);

    s->generation = generation;
    s->held = held;
    say(r, s);
}

void rdzv_connected(struct rdzv *r, uint64_t generation)
{
    say_at(r, connected, generation, 0);
}

void rdzv_paused(struct rdzv *r, uint64_t generation, uint64_t held)
{
    say_at(r, paused, generation, held);
}

void rdzv_aborted(struct rdzv *r, uint64_t generation, uint64_t held)
{
    say_at(r, aborted, generation, held);
}

void rdzv_complete(struct rdzv *r, uint64_t generation, uint64_t held)
{
    say_at(r, complete, generation, held);
}

void rdzv_failed(struct rdzv *r, uint64_t generation, enum member_failure kind, const struct member_loss *loss,
                 uint64_t held, const char *text)
{
    struct said *s = new_said(failed, text, 0);

    s->generation = generation;
    s->kind = kind;
    s->loss = loss != NULL ? *loss : (struct member_loss){ .peer = MEMBER_NOBODY };
    s->held = held;
    say(r, s);
}

static void reached(struct rdzv_group *g, const struct said *s, uint64_t now_ms)
{
    member_node_reached(g->node, s->generation, s->loss.dead_paths, s->loss.n_dead_paths, now_ms);
}

void rdzv_reached(struct rdzv *r, uint64_t round, const uint32_t *dead, uint32_t n)
{
    struct said *s = new_said(reached, "", 0);

    CHECK(n <= MEMBER_REACH_MAX);
    s->generation = round;
    memcpy(s->loss.dead_paths, dead, n * sizeof(dead[0]));
    s->loss.n_dead_paths = n;
    say(r, s);
}

void rdzv_saved(struct rdzv *r, bool ok, const char *text)
{
    struct said *s = new_said(saved, text, 0);

    s->flag = ok;
    say(r, s);
}

void rdzv_stop(struct rdzv *r, bool everywhere)
{
    struct said *s = new_said(stop, "", 0);

    s->flag = everywhere;
    say(r, s);
}

void rdzv_lease(struct rdzv *r, const struct member_lease *l)
{
    struct said *s = new_said(lease, l->text, l->n_members);

    s->lease = *l;
    s->lease.text = s->text;
    s->lease.members = s->members;
    if (l->n_members > 0)
        memcpy(s->members, l->members, l->n_members * sizeof(s->members[0]));
    say(r, s);
}

/* ---- life ---- */

const struct member_node *rdzv_node(const struct rdzv *r)
{
    return r->group->node;
}

bool rdzv_group_has_ended(const struct rdzv_group *g)
{
    return g->has_ended || g->is_shut;
}

struct rdzv_group *rdzv_group_new(struct rdzv *r)
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
    g->last = &g->first;
    g->node = member_node_new(&(struct member_node_opts){ .world = o->world,
                                                          .self = o->self,
                                                          .incarnation = o->incarnation,
                                                          .names = names,
                                                          .addresses = addresses,
                                                          .ident = &o->ident,
                                                          .n_devices = o->n_devices,
                                                          .min_world = o->min_world,
                                                          .rejoin_ms = o->rejoin_ms,
                                                          .deadline_ms = o->deadline_ms,
                                                          .grace_ms = o->grace_ms,
                                                          .silent_ms = o->silent_ms,
                                                          .has_lease = o->has_lease },
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
        struct said *s = g->first;

        g->first = s->next;
        free(s);
    }
    member_node_free(g->node);
    free(g);
}
