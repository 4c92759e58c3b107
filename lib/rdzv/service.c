/* service.c - Rendezvous: calls become events of member_coord, its orders become messages.
 *
 * One seat per task holds the Join stream of its present incarnation. A Leave is parked until the
 * coordinator releases it. */
#include "rdzv/rdzv_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/rng.h"
#include "loop/loop.h"

enum {
    TICKS_PER_SILENCE = 10,
    WAITING_MS = 2000,     /* between two Waiting events */
    FIRST_PROBE_MS = 1000, /* a fast start needs no probe; before the first Waiting that is read */
};

struct seat {
    struct rdzv_in *join; /* NULL: no stream */
    char *data_address, *host_key; /* owned */
    double samples_per_second;
};

struct parked {
    struct rdzv_in *call;
    uint32_t rank;
    struct parked *next;
};

struct rdzv_service {
    struct rdzv *r;
    struct member_coord *coord;
    struct seat *seats;
    struct parked *parked;
    struct rdzv_in *joining; /* the Join that is being decided */
    const Trainerd__V1__JoinRequest *request;
    struct rdzv_probe *probe;
    struct loop_timer *tick, *waiting, *probing;
    bool is_shut;
};

static void perform(struct rdzv_service *s);

/* ---- events to the tasks ---- */

static void send_event(struct rdzv_service *s, uint32_t rank, int event, ProtobufCMessage *body)
{
    Trainerd__V1__JoinEvent e = TRAINERD__V1__JOIN_EVENT__INIT;

    if (s->seats[rank].join == NULL)
        return;
    e.event_case = event;
    e.waiting = (Trainerd__V1__Waiting *)body; /* all members of the union are pointers */
    rdzv_in_send(s->seats[rank].join, &e.base);
}

/* Packed once, sent to every task in this state. */
static void broadcast(struct rdzv_service *s, enum member_task_state state, int event,
                      ProtobufCMessage *body)
{
    Trainerd__V1__JoinEvent e = TRAINERD__V1__JOIN_EVENT__INIT;
    grpc_slice packed;

    e.event_case = event;
    e.waiting = (Trainerd__V1__Waiting *)body;
    packed = rdzv_pack(&e.base);
    for (uint32_t i = 0; i < s->r->cluster.world; i++)
        if (s->seats[i].join != NULL && member_coord_task(s->coord, i)->state == state)
            rdzv_in_send_slice(s->seats[i].join, packed);
    grpc_slice_unref(packed);
}

/* `one`: only to this rank; UINT32_MAX: to all that wait. */
static void tell_waiting(struct rdzv_service *s, uint32_t one)
{
    Trainerd__V1__Waiting w = TRAINERD__V1__WAITING__INIT;
    Trainerd__V1__Missing missing[WIRE_MISSING_MAX], *at[WIRE_MISSING_MAX];
    Trainerd__V1__Task tasks[WIRE_MISSING_MAX];
    uint64_t now_ms = clock_ms();

    w.world = s->r->cluster.world;
    w.present = member_coord_present(s->coord);
    w.missing = at;
    for (uint32_t i = 0; i < w.world && w.n_missing < WIRE_MISSING_MAX; i++) {
        const struct member_task *t = member_coord_task(s->coord, i);
        Trainerd__V1__Missing *m = &missing[w.n_missing];

        if (t->state != MEMBER_TASK_MISSING)
            continue;
        trainerd__v1__missing__init(m);
        m->task = &tasks[w.n_missing];
        rdzv_fill_task(s->r, i, m->task);
        m->last_error = (char *)t->last_error;
        m->waited_ms = now_ms - t->heard_ms;
        at[w.n_missing++] = m;
    }
    if (one != UINT32_MAX)
        send_event(s, one, TRAINERD__V1__JOIN_EVENT__EVENT_WAITING, &w.base);
    else
        broadcast(s, MEMBER_TASK_JOINED, TRAINERD__V1__JOIN_EVENT__EVENT_WAITING, &w.base);
}

static void tell_view(struct rdzv_service *s, uint64_t generation)
{
    uint32_t world = s->r->cluster.world;
    Trainerd__V1__View v = TRAINERD__V1__VIEW__INIT;
    Trainerd__V1__Member *members = calloc(world, sizeof(*members)),
                         **at = calloc(world, sizeof(*at));
    Trainerd__V1__Task *tasks = calloc(world, sizeof(*tasks));
    uint8_t key[WIRE_KEY_BYTES];

    CHECK(members != NULL && at != NULL && tasks != NULL);
    CHECK(rng_os(key, sizeof(key)) == 0); /* the kernel always has some once it has booted */
    for (uint32_t i = 0; i < world; i++) {
        const struct member_task *t = member_coord_task(s->coord, i);
        Trainerd__V1__Member *m = at[i] = &members[i];

        trainerd__v1__member__init(m);
        m->task = &tasks[i];
        rdzv_fill_task(s->r, i, m->task);
        m->incarnation.data = (uint8_t *)t->incarnation;
        m->incarnation.len = MEMBER_INCARNATION_BYTES;
        m->n_devices = t->n_devices;
        m->data_address = s->seats[i].data_address;
        m->host_key = s->seats[i].host_key;
        m->step_held = t->step_held;
        if (t->step_held > v.newest_step) {
            v.newest_step = t->step_held;
            v.newest_member = i;
        }
    }
    v.generation = generation;
    v.members = at;
    v.n_members = world;
    v.key.data = key;
    v.key.len = sizeof(key);
    broadcast(s, MEMBER_TASK_ACTIVE, TRAINERD__V1__JOIN_EVENT__EVENT_VIEW, &v.base);
    free(tasks);
    free(at);
    free(members);
}

static void tell_over(struct rdzv_service *s, const struct member_order *o)
{
    Trainerd__V1__Over over = TRAINERD__V1__OVER__INIT;
    Trainerd__V1__Task culprit;

    over.generation = o->generation;
    over.reason = (char *)o->text;
    over.complete = o->complete;
    if (o->culprit != UINT32_MAX) {
        rdzv_fill_task(s->r, o->culprit, &culprit);
        over.culprit = &culprit;
    }
    broadcast(s, MEMBER_TASK_ACTIVE, TRAINERD__V1__JOIN_EVENT__EVENT_OVER, &over.base);
    if (o->culprit != UINT32_MAX) /* it may only have been slow, and will want to know */
        send_event(s, o->culprit, TRAINERD__V1__JOIN_EVENT__EVENT_OVER, &over.base);
}

/* ---- orders ---- */

static void seat_closed(void *arg, struct rdzv_in *call)
{
    struct rdzv_service *s = arg;

    for (uint32_t i = 0; i < s->r->cluster.world; i++) {
        if (s->seats[i].join != call)
            continue;
        s->seats[i].join = NULL;
        member_coord_closed(s->coord, i, member_coord_task(s->coord, i)->incarnation, "",
                            clock_ms());
        perform(s);
        return;
    }
    CHECK(false); /* a stream without a seat has no callback */
}

static void replace(char **at, const char *s)
{
    free(*at);
    *at = strdup(s);
    CHECK(*at != NULL);
}

static void admit(struct rdzv_service *s, uint32_t rank)
{
    struct seat *seat = &s->seats[rank];

    CHECK(seat->join == NULL && s->joining != NULL);
    seat->join = s->joining;
    s->joining = NULL;
    replace(&seat->data_address, s->request->data_address);
    replace(&seat->host_key, s->request->host_key);
    rdzv_in_on_closed(seat->join, seat_closed, s);
    tell_waiting(s, rank);
}

/* Ends the stream of a seat, if there is one. */
static void vacate(struct rdzv_service *s, uint32_t rank, grpc_status_code code, const char *text)
{
    struct rdzv_in *join = s->seats[rank].join;

    s->seats[rank].join = NULL;
    if (join != NULL)
        rdzv_in_finish(join, code, "%s", text);
}

static void answer_leaves(struct rdzv_service *s, const struct member_order *o)
{
    for (struct parked **at = &s->parked; *at != NULL;) {
        struct parked *p = *at;

        if (p->rank != o->rank) {
            at = &p->next;
            continue;
        }
        *at = p->next;
        if (o->complete) {
            Trainerd__V1__LeaveReply reply = TRAINERD__V1__LEAVE_REPLY__INIT;

            rdzv_in_reply(p->call, &reply.base);
        } else {
            rdzv_in_finish(p->call, GRPC_STATUS_ABORTED, "%s", o->text);
        }
        free(p);
    }
}

static void perform(struct rdzv_service *s)
{
    struct member_order o;

    while (member_coord_next(s->coord, &o)) {
        switch (o.kind) {
        case MEMBER_ORDER_ADMIT:
            admit(s, o.rank);
            break;
        case MEMBER_ORDER_REFUSE:
        case MEMBER_ORDER_RETRY:
            if (o.kind == MEMBER_ORDER_REFUSE)
                s->r->opts.on_refused(s->r->opts.arg, o.text);
            rdzv_in_finish(s->joining,
                           o.kind == MEMBER_ORDER_REFUSE ? GRPC_STATUS_FAILED_PRECONDITION
                                                         : GRPC_STATUS_UNAVAILABLE, "%s", o.text);
            s->joining = NULL;
            break;
        case MEMBER_ORDER_VIEW:
            tell_view(s, o.generation);
            break;
        case MEMBER_ORDER_OVER:
            tell_over(s, &o);
            break;
        case MEMBER_ORDER_DROP:
            vacate(s, o.rank, GRPC_STATUS_UNAVAILABLE, o.text);
            break;
        case MEMBER_ORDER_REPLACE:
            vacate(s, o.rank, GRPC_STATUS_ALREADY_EXISTS, o.text);
            break;
        case MEMBER_ORDER_RELEASE:
            answer_leaves(s, &o);
            break;
        }
    }
}

/* ---- calls ---- */

/* false: this task is not the coordinator, and the caller was told. */
static bool is_coordinator(struct rdzv *r, struct rdzv_in *call)
{
    char self[400], coordinator[400];

    if (r->service != NULL)
        return true;
    rdzv_in_finish(
        call, GRPC_STATUS_FAILED_PRECONDITION, "this is %s; the coordinator is %s: call it there",
        rdzv_full_name(r, r->opts.self, self), rdzv_full_name(r, r->opts.coordinator, coordinator));
    return false;
}

void rdzv_join(struct rdzv *r, struct rdzv_in *call, void *request)
{
    struct rdzv_service *s = r->service;
    Trainerd__V1__JoinRequest *m = request;
    struct member_join j;
    struct err err;

    if (!is_coordinator(r, call))
        return;
    if (wire_check_join(&r->cluster, m, &j, &err) < 0) {
        rdzv_in_finish(call, GRPC_STATUS_INVALID_ARGUMENT, "%s", err.text);
    } else if (s->is_shut) {
        rdzv_in_finish(call, GRPC_STATUS_UNAVAILABLE, "the coordinator is leaving");
    } else if (j.rank == UINT32_MAX) {
        rdzv_in_finish(
            call, GRPC_STATUS_FAILED_PRECONDITION,
            "%s %u (%s) cannot join: it is no training task of the coordinator's cluster: its "
            "cluster is '%.600s', the coordinator's is '%.600s'; give every task the same "
            "cluster specification",
            m->task->type, m->task->index, m->task->address, m->cluster, r->opts.ident.cluster);
    } else {
        s->joining = call;
        s->request = m;
        member_coord_join(s->coord, &j, clock_ms());
        perform(s);
        CHECK(s->joining == NULL); /* admitted, refused or told to come again */
    }
}

void rdzv_heartbeat(struct rdzv *r, struct rdzv_in *call, void *request)
{
    struct rdzv_service *s = r->service;
    Trainerd__V1__HeartbeatRequest *m = request;
    Trainerd__V1__HeartbeatReply reply = TRAINERD__V1__HEARTBEAT_REPLY__INIT;
    struct member_beat b;
    struct err err;

    if (!is_coordinator(r, call))
        return;
    if (wire_check_beat(&r->cluster, m, &b, &err) < 0) {
        rdzv_in_finish(call, GRPC_STATUS_INVALID_ARGUMENT, "%s", err.text);
        return;
    }
    reply.known = member_coord_beat(s->coord, &b, clock_ms());
    if (reply.known)
        s->seats[b.rank].samples_per_second = m->samples_per_second;
    reply.generation = member_coord_generation(s->coord);
    rdzv_in_reply(call, &reply.base);
}

static void leave_closed(void *arg, struct rdzv_in *call)
{
    struct rdzv_service *s = arg;

    for (struct parked **at = &s->parked; *at != NULL; at = &(*at)->next) {
        struct parked *p = *at;

        if (p->call != call)
            continue;
        *at = p->next;
        free(p);
        return;
    }
}

void rdzv_leave(struct rdzv *r, struct rdzv_in *call, void *request)
{
    struct rdzv_service *s = r->service;
    const struct member_task *t;
    struct wire_leave l;
    struct parked *p;
    struct err err;

    if (!is_coordinator(r, call))
        return;
    if (wire_check_leave(&r->cluster, request, &l, &err) < 0) {
        rdzv_in_finish(call, GRPC_STATUS_INVALID_ARGUMENT, "%s", err.text);
        return;
    }
    if (s->is_shut) {
        rdzv_in_finish(call, GRPC_STATUS_UNAVAILABLE, "the coordinator is leaving");
        return;
    }
    t = member_coord_task(s->coord, l.rank);
    if (t->state == MEMBER_TASK_MISSING ||
        memcmp(t->incarnation, l.incarnation, MEMBER_INCARNATION_BYTES) != 0) {
        Trainerd__V1__LeaveReply reply = TRAINERD__V1__LEAVE_REPLY__INIT;

        rdzv_in_reply(call, &reply.base); /* it was not in: so it is out */
        return;
    }
    p = calloc(1, sizeof(*p));
    CHECK(p != NULL);
    *p = (struct parked){ .call = call, .rank = l.rank, .next = s->parked };
    s->parked = p;
    rdzv_in_on_closed(call, leave_closed, s);
    member_coord_leave(s->coord, l.rank, l.incarnation, l.generation, l.kind, l.step, l.reason,
                       clock_ms());
    perform(s);
}

/* ---- time ---- */

static void on_tick(void *arg)
{
    struct rdzv_service *s = arg;

    member_coord_tick(s->coord, clock_ms());
    perform(s);
}

static void on_waiting(void *arg)
{
    struct rdzv_service *s = arg;

    if (member_coord_generation(s->coord) == 0)
        tell_waiting(s, UINT32_MAX);
}

static void on_probing(void *arg)
{
    struct rdzv_service *s = arg;

    if (member_coord_generation(s->coord) == 0)
        rdzv_probe_round(s->probe);
}

/* ---- life ---- */

struct rdzv_service *rdzv_service_new(struct rdzv *r)
{
    struct rdzv_service *s = calloc(1, sizeof(*s));
    uint32_t world = r->cluster.world;
    const char **names = calloc(world, sizeof(*names)),
               **addresses = calloc(world, sizeof(*addresses));
    uint64_t tick_ms = r->opts.silent_ms / TICKS_PER_SILENCE;

    CHECK(s != NULL && names != NULL && addresses != NULL);
    for (uint32_t i = 0; i < world; i++) {
        names[i] = r->cluster.tasks[i].name;
        addresses[i] = r->cluster.tasks[i].address;
    }
    s->r = r;
    s->seats = calloc(world, sizeof(*s->seats));
    CHECK(s->seats != NULL);
    s->coord = member_coord_new(&(struct member_coord_opts){ .world = world,
                                                             .names = names,
                                                             .addresses = addresses,
                                                             .self = r->opts.self,
                                                             .silent_ms = r->opts.silent_ms,
                                                             .ident = &r->opts.ident,
                                                             .n_devices = r->opts.n_devices },
                                clock_ms());
    s->probe = rdzv_probe_new(r);
    tick_ms = tick_ms > 0 ? tick_ms : 1;
    s->tick = loop_timer_new(r->opts.loop, tick_ms, tick_ms, on_tick, s);
    s->waiting = loop_timer_new(r->opts.loop, WAITING_MS, WAITING_MS, on_waiting, s);
    s->probing = loop_timer_new(r->opts.loop, FIRST_PROBE_MS, WAITING_MS, on_probing, s);
    free(names);
    free(addresses);
    return s;
}

struct member_coord *rdzv_service_coord(struct rdzv_service *s)
{
    return s->coord;
}

double rdzv_service_speed(struct rdzv_service *s, uint32_t rank)
{
    return s->seats[rank].samples_per_second;
}

void rdzv_service_ask_stop(struct rdzv_service *s)
{
    Trainerd__V1__Request q = TRAINERD__V1__REQUEST__INIT;

    q.stop = true;
    broadcast(s, MEMBER_TASK_JOINED, TRAINERD__V1__JOIN_EVENT__EVENT_REQUEST, &q.base);
}

void rdzv_service_shut(struct rdzv_service *s)
{
    s->is_shut = true;
    loop_timer_free(s->tick);
    loop_timer_free(s->waiting);
    loop_timer_free(s->probing);
    rdzv_probe_free(s->probe);
    for (uint32_t i = 0; i < s->r->cluster.world; i++)
        vacate(s, i, GRPC_STATUS_OK,
               ""); /* any other status overtakes an Over that is not read yet */
    while (s->parked != NULL) {
        struct parked *p = s->parked;

        s->parked = p->next;
        rdzv_in_finish(p->call, GRPC_STATUS_UNAVAILABLE, "the coordinator has left");
        free(p);
    }
}

void rdzv_service_free(struct rdzv_service *s)
{
    if (s == NULL)
        return;
    for (uint32_t i = 0; i < s->r->cluster.world; i++) {
        free(s->seats[i].data_address);
        free(s->seats[i].host_key);
    }
    member_coord_free(s->coord);
    free(s->seats);
    free(s);
}
