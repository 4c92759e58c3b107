/* client.c - this task's own membership: events become steps of member_worker, its actions become
 * calls to the coordinator and callbacks to the daemon.
 *
 * Every attempt to join makes a connection of its own: the name is resolved anew, and no backoff of
 * an earlier failure is inherited, so that a coordinator that comes up is found within
 * milliseconds. */
#include "rdzv/rdzv_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/rng.h"
#include "base/text.h"
#include "loop/loop.h"

enum {
    CODE_INPUT = 2,
    CODE_RETRY = 138,
    CODE_STOPPED = 143,

    PAUSE_MS_MIN = 20, /* between two attempts: a tenth of the time spent so far, +- half */
    PAUSE_MS_MAX = 500,
    ANSWER_MS = 5000, /* a Join that is not even refused for so long is given up */
    TELL_MS = 1900, /* between two sentences on what we wait for; the coordinator sends every 2 s */
    GOODBYE_MS = 2000, /* for a Leave that is answered at once */
    NAMED_MAX = 4,     /* tasks in one sentence */
};

struct rdzv_client {
    struct rdzv *r;
    struct member_worker worker;
    grpc_channel *channel; /* of the present attempt; NULL: none */
    struct rdzv_out *join, *beat, *leave;
    struct loop_timer *retry, *tick, *deadline; /* NULL until needed, and after */
    const Trainerd__V1__View *view; /* while DO_TRAIN is performed */
    uint64_t generation;
    uint64_t started_ms, asked_ms, heard_ms, told_ms, ticked_ms;
    uint64_t random;
    char last_error[1024];           /* why we are not admitted */
    char missing[2048];              /* who is, when last heard: "1 of 2 tasks: worker 1 ..." */
    bool everywhere;                 /* of the stop that was asked for */
    enum member_leave kind;
    bool is_parked; /* our Leave is answered when the group's last state is safe, and not before */
    bool has_ended;
    int code;                        /* what the process will end with */
    char text[ERR_TEXT_BYTES];
};

static void step(struct rdzv_client *c, enum member_event ev, int code, const char *text);

/* ---- names ---- */

static const char *coordinator(const struct rdzv_client *c, char out[400])
{
    return rdzv_full_name(c->r, c->r->opts.coordinator, out);
}

/* The coordinator reaches itself where it listens: its public name may not lead to it yet. */
static void coordinator_address(const struct rdzv *r, char *out, size_t n)
{
    if (r->opts.self != r->opts.coordinator)
        snprintf(out, n, "%s", r->cluster.tasks[r->opts.coordinator].address);
    else if (text_starts(r->opts.listen, "0.0.0.0:"))
        snprintf(out, n, "127.0.0.1:%u", rdzv_server_port(r->server));
    else if (text_starts(r->opts.listen, "[::]:"))
        snprintf(out, n, "[::1]:%u", rdzv_server_port(r->server));
    else
        snprintf(out, n, "%s", r->opts.listen);
}

static struct rdzv_out *call(struct rdzv_client *c, const char *method,
                             const ProtobufCMessage *request, uint64_t deadline_ms,
                             void (*on_message)(void *, const void *, size_t),
                             void (*on_end)(void *, int, const char *))
{
    return rdzv_out_start(&(struct rdzv_out_opts){ .hub = c->r->hub,
                                                   .channel = c->channel,
                                                   .method = method,
                                                   .token = c->r->opts.token,
                                                   .request = request,
                                                   .deadline_ms = deadline_ms,
                                                   .is_stream = deadline_ms == UINT64_MAX,
                                                   .arg = c,
                                                   .on_message = on_message,
                                                   .on_end = on_end });
}

static ProtobufCBinaryData incarnation(struct rdzv_client *c)
{
    return (ProtobufCBinaryData){ .len = MEMBER_INCARNATION_BYTES, .data = c->r->incarnation };
}

/* ---- waiting ---- */

static void note_missing(struct rdzv_client *c, const Trainerd__V1__Waiting *w)
{
    uint32_t n_missing = w->world - w->present, named = 0;
    struct buf b = { 0 };

    buf_printf(&b, "%u of %u tasks: ", n_missing, w->world);
    for (; named < w->n_missing && named < NAMED_MAX; named++) {
        const Trainerd__V1__Missing *m = w->missing[named];
        char name[400];

        buf_printf(&b, "%s%s", named > 0 ? "; " : "",
                   rdzv_full_name(c->r, wire_rank(&c->r->cluster, m->task), name));
        if (m->last_error[0] != '\0')
            buf_printf(&b, ": %.300s", m->last_error);
    }
    if (n_missing > named)
        buf_printf(&b, "; and %u more", n_missing - named);
    CHECK(!b.failed);
    wire_text(c->missing, sizeof(c->missing), b.data, b.len);
    buf_fini(&b);
}

static void tell(struct rdzv_client *c, const char *text)
{
    uint64_t now_ms = clock_ms();

    if (now_ms - c->told_ms < TELL_MS)
        return;
    c->told_ms = now_ms;
    c->r->opts.on_waiting(c->r->opts.arg, text);
}

static void on_waiting(struct rdzv_client *c, const Trainerd__V1__Waiting *w)
{
    uint64_t waited_ms = 0;
    char text[sizeof(c->missing) + 64];

    note_missing(c, w);
    for (size_t i = 0; i < w->n_missing; i++)
        if (w->missing[i]->waited_ms > waited_ms)
            waited_ms = w->missing[i]->waited_ms;
    snprintf(text, sizeof(text), "waiting %.0f s for %s", (double)waited_ms * 1e-3, c->missing);
    if (c->worker.state == MEMBER_WAITING && w->present < w->world)
        tell(c, text);
}

static void tell_unreachable(struct rdzv_client *c)
{
    char name[400], text[1600];

    if (c->last_error[0] == '\0')
        return; /* the first attempt is still under way */
    snprintf(text, sizeof(text), "cannot reach the coordinator %s, %.0f s: %s",
             coordinator(c, name), (double)(clock_ms() - c->worker.since_ms) * 1e-3, c->last_error);
    tell(c, text);
}

/* ---- joining ---- */

static void close_channel(struct rdzv_client *c)
{
    rdzv_out_forget(c->join);
    rdzv_out_forget(c->beat);
    rdzv_out_forget(c->leave);
    c->join = c->beat = c->leave = NULL;
    if (c->channel != NULL)
        grpc_channel_destroy(c->channel);
    c->channel = NULL;
}

/* The coordinator is lost as far as this attempt is concerned. */
static void lost(struct rdzv_client *c, const char *why)
{
    char name[400], text[1600];

    snprintf(c->last_error, sizeof(c->last_error), "%s", why);
    if (c->worker.state == MEMBER_LEAVING && c->kind == MEMBER_LEAVE_COMPLETE)
        snprintf(text, sizeof(text),
                 "complete here, but the coordinator %s was lost before it said that the "
                 "last checkpoint is safe: %s",
                 coordinator(c, name), why);
    else
        snprintf(text, sizeof(text), "lost the coordinator %s: %s", coordinator(c, name), why);
    step(c, MEMBER_EV_COORD_LOST, CODE_RETRY, text);
}

static void on_view(struct rdzv_client *c, const Trainerd__V1__View *v)
{
    c->view = v;
    c->generation = v->generation;
    step(c, MEMBER_EV_GROUP_READY, 0, "");
    c->view = NULL;
}

static void on_join_event(void *arg, const void *data, size_t n)
{
    struct rdzv_client *c = arg;
    struct rdzv *r = c->r;
    struct wire w = { 0 };
    Trainerd__V1__JoinEvent *e = wire_unpack(&w, &trainerd__v1__join_event__descriptor, data, n);
    struct err err;

    c->heard_ms = clock_ms();
    if (e == NULL) {
        lost(c, "it sent something that is no JoinEvent");
    } else if (wire_check_event(&r->cluster, r->opts.self, r->incarnation, e, &err) < 0) {
        lost(c, err.text);
    } else {
        if (c->worker.state == MEMBER_JOINING)
            step(c, MEMBER_EV_ADMITTED, 0, "");
        switch (e->event_case) {
        case TRAINERD__V1__JOIN_EVENT__EVENT_WAITING:
            on_waiting(c, e->waiting);
            break;
        case TRAINERD__V1__JOIN_EVENT__EVENT_VIEW:
            on_view(c, e->view);
            break;
        case TRAINERD__V1__JOIN_EVENT__EVENT_OVER:
            step(c, MEMBER_EV_GROUP_OVER, CODE_RETRY, e->over->reason);
            break;
        default: /* a request: the check lets no other pass */
            if (e->request->checkpoint)
                r->opts.on_checkpoint(r->opts.arg);
            if (e->request->stop)
                rdzv_stop(r, true);
            break;
        }
    }
    wire_fini(&w);
}

static void on_join_end(void *arg, int code, const char *text)
{
    struct rdzv_client *c = arg;
    char name[400], story[1600];

    c->join = NULL;
    switch (code) {
    case GRPC_STATUS_FAILED_PRECONDITION:
    case GRPC_STATUS_UNAUTHENTICATED:
    case GRPC_STATUS_INVALID_ARGUMENT:
        snprintf(story, sizeof(story), "refused by the coordinator %s: %s", coordinator(c, name),
                 text);
        step(c, MEMBER_EV_REFUSED, CODE_INPUT, story);
        return;
    case GRPC_STATUS_ALREADY_EXISTS:
        snprintf(story, sizeof(story), "%s: %s; this one leaves",
                 rdzv_full_name(c->r, c->r->opts.self, name), text);
        step(c, MEMBER_EV_REFUSED, CODE_INPUT, story);
        return;
    default:
        if (c->worker.state == MEMBER_LEAVING && c->leave != NULL)
            return; /* the answer to Leave may be behind it; a lost connection ends that call too */
        lost(c, code == GRPC_STATUS_OK ? "it has left" : text);
    }
}

static void join_now(void *arg)
{
    struct rdzv_client *c = arg;
    const struct rdzv_opts *o = &c->r->opts;
    Trainerd__V1__JoinRequest q = TRAINERD__V1__JOIN_REQUEST__INIT;
    Trainerd__V1__Task task;
    char address[400];

    CHECK(c->worker.state == MEMBER_JOINING && c->channel == NULL);
    coordinator_address(c->r, address, sizeof(address));
    c->channel = rdzv_channel(address);
    rdzv_fill_task(c->r, o->self, &task);
    q.task = &task;
    q.incarnation = incarnation(c);
    q.version = (char *)o->ident.version;
    q.job_digest = (char *)o->ident.job_digest;
    q.cluster_hash = (char *)o->ident.cluster_hash;
    q.cluster = (char *)o->ident.cluster;
    q.devices = (char *)o->ident.devices;
    q.n_devices = o->n_devices;
    q.kernels = (char *)o->ident.kernels;
    q.nccl = (char *)o->ident.nccl;
    q.data_address = (char *)o->data_address;
    q.host_key = (char *)o->host_key;
    c->asked_ms = clock_ms();
    c->join =
        call(c, "/trainerd.v1.Rendezvous/Join", &q.base, UINT64_MAX, on_join_event, on_join_end);
}

/* Grows with the time spent, so that the wait is at most a sixth longer than it had to be. */
static uint64_t pause_ms(struct rdzv_client *c)
{
    uint64_t ms = (clock_ms() - c->worker.since_ms) / 10;

    ms = ms < PAUSE_MS_MIN ? PAUSE_MS_MIN : ms > PAUSE_MS_MAX ? PAUSE_MS_MAX : ms;
    c->random = c->random * 6364136223846793005u + 1442695040888963407u; /* any spread will do */
    return ms / 2 + (c->random >> 33) % (ms + 1);
}

/* ---- heartbeats ---- */

static void on_beat(void *arg, const void *data, size_t n)
{
    struct rdzv_client *c = arg;
    struct wire w = { 0 };
    Trainerd__V1__HeartbeatReply *m =
        wire_unpack(&w, &trainerd__v1__heartbeat_reply__descriptor, data, n);
    bool is_known = m != NULL && m->known;

    wire_fini(&w);
    if (is_known)
        c->heard_ms = clock_ms();
    else if (c->worker.state != MEMBER_LEAVING) /* then it may have forgotten us already */
        lost(c, "it does not know this process any more");
}

static void on_beat_end(void *arg, int code, const char *text)
{
    struct rdzv_client *c = arg;

    (void)code;
    (void)text; /* the Join stream tells of a lost connection, and silence is measured */
    c->beat = NULL;
}

static void send_beat(struct rdzv_client *c)
{
    const struct rdzv_progress *p = c->r->opts.progress;
    Trainerd__V1__HeartbeatRequest q = TRAINERD__V1__HEARTBEAT_REQUEST__INIT;
    Trainerd__V1__Task task;

    rdzv_fill_task(c->r, c->r->opts.self, &task);
    q.task = &task;
    q.incarnation = incarnation(c);
    q.generation = c->generation;
    q.step = p->step;
    CHECK(strlen(p->phase) < WIRE_PHASE_BYTES);
    q.phase = (char *)p->phase;
    q.phase_ms = clock_ms() - p->phase_since_ms;
    q.samples_per_second = p->samples_per_second;
    q.loss = p->loss;
    q.epoch = p->epoch;
    c->beat = call(c, "/trainerd.v1.Rendezvous/Heartbeat", &q.base, c->r->opts.silent_ms, on_beat,
                   on_beat_end);
}

static void on_tick(void *arg)
{
    struct rdzv_client *c = arg;
    uint64_t now_ms = clock_ms(), silent_ms = c->r->opts.silent_ms;
    char text[64];

    if (now_ms - c->ticked_ms > silent_ms / 2)
        c->heard_ms = now_ms; /* it was us who slept */
    c->ticked_ms = now_ms;
    if (c->worker.state == MEMBER_JOINING) {
        if (c->join != NULL && now_ms - c->asked_ms > ANSWER_MS)
            rdzv_out_cancel(c->join, "no answer for 5 s");
        tell_unreachable(c);
    } else if (now_ms - c->heard_ms > silent_ms) {
        snprintf(text, sizeof(text), "silent for %.1f s", (double)(now_ms - c->heard_ms) * 1e-3);
        lost(c, text);
    } else if (c->beat == NULL && c->channel != NULL) {
        send_beat(c);
    }
}

static void on_deadline(void *arg)
{
    struct rdzv_client *c = arg;
    double seconds = (double)(clock_ms() - c->started_ms) * 1e-3;
    char name[400], text[ERR_TEXT_BYTES];

    if (c->worker.state == MEMBER_WAITING)
        snprintf(text, sizeof(text), "gave up after %.1f s of waiting for %.1900s", seconds,
                 c->missing);
    else
        snprintf(text, sizeof(text),
                 "gave up after %.1f s: cannot reach the coordinator %s: %.1000s%s%.400s", seconds,
                 coordinator(c, name), c->last_error[0] != '\0' ? c->last_error : "no answer",
                 c->missing[0] != '\0' ? "; before that it waited for " : "", c->missing);
    step(c, MEMBER_EV_DEADLINE, CODE_RETRY, text);
}

/* ---- leaving ---- */

static void on_leave_end(void *arg, int code, const char *text)
{
    struct rdzv_client *c = arg;

    c->leave = NULL;
    if (code == GRPC_STATUS_OK || !c->is_parked || code == GRPC_STATUS_DEADLINE_EXCEEDED)
        step(c, MEMBER_EV_LEFT, c->code, c->text); /* what was said holds, heard or not */
    else if (code == GRPC_STATUS_ABORTED)
        step(c, MEMBER_EV_GROUP_OVER, CODE_RETRY, text);
    else
        lost(c, text);
}

static void leave(struct rdzv_client *c)
{
    static const Trainerd__V1__LeaveRequest__Kind kinds[] = {
        [MEMBER_LEAVE_COMPLETE] = TRAINERD__V1__LEAVE_REQUEST__KIND__COMPLETE,
        [MEMBER_LEAVE_STOPPED] = TRAINERD__V1__LEAVE_REQUEST__KIND__STOPPED,
        [MEMBER_LEAVE_FAILED] = TRAINERD__V1__LEAVE_REQUEST__KIND__FAILED,
    };
    uint64_t deadline_ms = GOODBYE_MS;
    char reason[MEMBER_TEXT_BYTES];
    Trainerd__V1__LeaveRequest q = TRAINERD__V1__LEAVE_REQUEST__INIT;
    Trainerd__V1__Task task;

    c->is_parked = c->generation > 0 && c->kind != MEMBER_LEAVE_FAILED;
    if (c->is_parked) /* the coordinator waits for the others, they for the coordinator (and its
                         heartbeats) */
        deadline_ms =
            c->r->opts.self == c->r->opts.coordinator ? c->r->opts.deadline_ms : UINT64_MAX;
    rdzv_fill_task(c->r, c->r->opts.self, &task);
    q.task = &task;
    q.incarnation = incarnation(c);
    q.generation = c->generation;
    q.step = c->r->opts.progress->step;
    q.kind = kinds[c->kind];
    wire_text(reason, sizeof(reason), c->text,
              strlen(c->text)); /* it may quote a path of any bytes */
    q.reason = reason;
    c->leave = call(c, "/trainerd.v1.Rendezvous/Leave", &q.base, deadline_ms, NULL, on_leave_end);
}

/* ---- actions ---- */

static void end(struct rdzv_client *c)
{
    CHECK(!c->has_ended);
    c->has_ended = true;
    loop_timer_free(c->retry);
    loop_timer_free(c->tick);
    loop_timer_free(c->deadline);
    c->retry = c->tick = c->deadline = NULL;
    close_channel(c);
    c->r->opts.on_end(c->r->opts.arg, c->code, c->text);
}

static void train(struct rdzv_client *c)
{
    const Trainerd__V1__View *v = c->view;
    struct rdzv_member *members = calloc(v->n_members, sizeof(*members));
    struct rdzv_view view = { .generation = v->generation,
                              .members = members,
                              .n_members = (uint32_t)v->n_members,
                              .self = c->r->opts.self,
                              .newest_step = v->newest_step,
                              .newest_member = v->newest_member };

    CHECK(members != NULL);
    loop_timer_free(c->deadline);
    c->deadline = NULL;
    memcpy(view.key, v->key.data, sizeof(view.key));
    for (uint32_t i = 0; i < view.n_members; i++) {
        const Trainerd__V1__Member *m = v->members[i];

        members[i] = (struct rdzv_member){ .rank = i,
                                           .n_devices = m->n_devices,
                                           .name = c->r->cluster.tasks[i].name,
                                           .address = c->r->cluster.tasks[i].address,
                                           .data_address = m->data_address,
                                           .host_key = m->host_key,
                                           .step_held = m->step_held };
    }
    c->r->opts.on_view(c->r->opts.arg, &view);
    free(members);
}

static void perform(struct rdzv_client *c, enum member_action act, enum member_event ev)
{
    switch (act) {
    case MEMBER_DO_NOTHING:
        break;
    case MEMBER_DO_JOIN:
        close_channel(c);
        if (ev == MEMBER_EV_START)
            join_now(c);
        else if (c->retry == NULL)
            c->retry = loop_timer_new(c->r->opts.loop, pause_ms(c), 0, join_now, c);
        else
            loop_timer_again(c->retry, pause_ms(c));
        break;
    case MEMBER_DO_TRAIN:
        train(c);
        break;
    case MEMBER_DO_DRAIN:
        c->r->opts.on_drain(c->r->opts.arg, c->everywhere);
        break;
    case MEMBER_DO_LEAVE:
        leave(c);
        break;
    case MEMBER_DO_ABORT:
        c->r->opts.on_abort(c->r->opts.arg, c->text);
        end(c);
        break;
    case MEMBER_DO_END:
        end(c);
        break;
    }
}

/* `code` and `text` are what the process ends with if this event leads to the end. */
static void step(struct rdzv_client *c, enum member_event ev, int code, const char *text)
{
    uint64_t now_ms = clock_ms(), in_state_ms = now_ms - c->worker.since_ms;
    bool keeps_own = c->worker.state == MEMBER_LEAVING && !c->is_parked; /* whatever comes of it */
    const struct member_move *move;
    enum member_action act;

    if (!member_ignored(c->worker.state, ev) && !keeps_own) {
        c->code = code;
        if (text != c->text)
            snprintf(c->text, sizeof(c->text), "%s", text);
    }
    act = member_worker_step(&c->worker, ev, now_ms, &move);
    if (move == NULL)
        return;
    if (act == MEMBER_DO_LEAVE)
        c->kind = ev == MEMBER_EV_COMPLETE                          ? MEMBER_LEAVE_COMPLETE
                  : ev == MEMBER_EV_STOP || ev == MEMBER_EV_STOPPED ? MEMBER_LEAVE_STOPPED
                                                                    : MEMBER_LEAVE_FAILED;
    c->r->opts.on_move(c->r->opts.arg, move, in_state_ms);
    perform(c, act, ev);
}

/* ---- what the daemon tells ---- */

void rdzv_stop(struct rdzv *r, bool everywhere)
{
    r->client->everywhere = everywhere;
    step(r->client, MEMBER_EV_STOP, CODE_STOPPED,
         "stopped before training began: there was nothing to save");
}

void rdzv_stopped(struct rdzv *r, bool asked_here, const char *why)
{
    char text[1024];

    snprintf(text, sizeof(text), "stopped with the group: %s", why);
    step(r->client, MEMBER_EV_STOPPED, asked_here ? CODE_STOPPED : CODE_RETRY,
         asked_here ? "stopped at an agreed step" : text);
}

void rdzv_complete(struct rdzv *r)
{
    step(r->client, MEMBER_EV_COMPLETE, 0, "the job is complete");
}

void rdzv_failed(struct rdzv *r, int code, const char *text)
{
    step(r->client, MEMBER_EV_FAILED, code, text);
}

/* ---- life ---- */

struct rdzv_client *rdzv_client_new(struct rdzv *r)
{
    struct rdzv_client *c = calloc(1, sizeof(*c));

    CHECK(c != NULL);
    c->r = r;
    c->code = CODE_RETRY;
    c->started_ms = c->told_ms = c->ticked_ms = clock_ms();
    memcpy(&c->random, r->incarnation, sizeof(c->random));
    member_worker_init(&c->worker, c->started_ms);
    return c;
}

void rdzv_client_start(struct rdzv_client *c)
{
    const struct rdzv_opts *o = &c->r->opts;

    c->tick = loop_timer_new(o->loop, o->heartbeat_ms, o->heartbeat_ms, on_tick, c);
    c->deadline = loop_timer_new(o->loop, o->deadline_ms, 0, on_deadline, c);
    step(c, MEMBER_EV_START, CODE_RETRY, "");
}

enum member_state rdzv_client_state(const struct rdzv_client *c)
{
    return c->worker.state;
}

uint64_t rdzv_client_generation(const struct rdzv_client *c)
{
    return c->generation;
}

void rdzv_client_free(struct rdzv_client *c)
{
    if (c == NULL)
        return;
    if (!c->has_ended) {
        loop_timer_free(c->retry);
        loop_timer_free(c->tick);
        loop_timer_free(c->deadline);
        close_channel(c);
    }
    free(c);
}
