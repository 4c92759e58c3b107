/* wire_write.c - converts messages of the node to wire messages. */
#include "rdzv/wire.h"

#include <string.h>

#include "base/check.h"

struct writer {
    struct arena *a;
    const struct wire_cluster *c;
    const struct wire_sender *sender;  /* for a message of a member */
    const struct wire_leader *leader;  /* for a message of a leader; NULL: no further fields */
};

/* ---- pieces ---- */

/* Allocates a message of this type with `bytes` bytes; all fields have their default. */
static void *new_message(struct arena *a, const ProtobufCMessageDescriptor *type)
{
    ProtobufCMessage *m = arena_alloc(a, type->sizeof_message);

    CHECK(m != NULL);
    protobuf_c_message_init(type, m);
    return m;
}
#define NEW(w_, name_) new_message((w_)->a, &trainerd__v1__##name_##__descriptor)

/* Copies a text of any content so that it passes the validation of the receiver. */
static char *sentence(const struct writer *w, const char *text)
{
    size_t n = strlen(text) + 1;
    char *out = arena_alloc(w->a, n);

    CHECK(out != NULL);
    wire_text(out, n, text, n - 1);
    return out;
}

static Trainerd__V1__Task *task(struct arena *a, const struct wire_cluster *c, uint32_t rank)
{
    Trainerd__V1__Task *t;

    if (rank == MEMBER_NO_RANK)
        return NULL;
    t = new_message(a, &trainerd__v1__task__descriptor);
    wire_fill_task(c, rank, t);
    return t;
}

static size_t tasks(const struct writer *w, const struct member_msg *m, Trainerd__V1__Task ***out)
{
    if (m->n_ranks == 0)
        return 0;
    *out = arena_array(w->a, m->n_ranks, sizeof(**out));
    CHECK(*out != NULL);
    for (uint32_t i = 0; i < m->n_ranks; i++)
        (*out)[i] = task(w->a, w->c, m->ranks[i]);
    return m->n_ranks;
}

/* ---- of a member ---- */

static void *write_join(const struct writer *w, const struct member_msg *m)
{
    Trainerd__V1__Join *j = NEW(w, join);

    j->task = task(w->a, w->c, w->sender->self);
    j->to = task(w->a, w->c, w->sender->to);
    j->incarnation = m->incarnation;
    j->version = (char *)m->ident->version;
    j->job_digest = (char *)m->ident->job_digest;
    j->cluster_hash = (char *)m->ident->cluster_hash;
    j->cluster = (char *)m->ident->cluster;
    j->devices = (char *)m->ident->devices;
    j->n_devices = m->n_devices;
    j->n_servers = m->n_servers;
    j->kernels = (char *)m->ident->kernels;
    j->nccl = (char *)m->ident->nccl;
    j->protocol = (char *)(m->ident->protocol != NULL ? m->ident->protocol : "");
    j->code = (char *)(m->ident->code != NULL ? m->ident->code : "");
    j->job = (char *)(m->ident->job != NULL ? m->ident->job : "");
    j->step_held = m->held;
    j->data_address = (char *)w->sender->data_address;
    j->host_key = (char *)w->sender->host_key;
    j->location = (char *)w->sender->location;
    j->generation = m->generation;
    j->attaching = m->is_attaching;
    j->call = w->sender->call;
    j->n_dead_paths = tasks(w, m, &j->dead_paths);
    return j;
}

static void *write_ready(const struct writer *w, const struct member_msg *m)
{
    Trainerd__V1__Ready *r = NEW(w, ready);

    r->step_held = m->held;
    r->generation = m->generation;
    r->storage_failures = m->storage_failures;
    return r;
}

static void fill_figures(const struct writer *w, Trainerd__V1__Beat *b)
{
    b->samples_per_second = w->sender->samples_per_second;
    b->step_time = (Trainerd__V1__StepTime *)w->sender->step_time;
    if (w->sender->trouble != NULL) {
        b->trouble = arena_alloc(w->a, WIRE_TROUBLE_BYTES);
        CHECK(b->trouble != NULL);
        wire_text(b->trouble, WIRE_TROUBLE_BYTES, w->sender->trouble, strlen(w->sender->trouble));
    }
    if (w->sender->window != NULL)
        b->window = wire_write_window(w->a, w->c, w->sender->window);
}

static void *write_beat(const struct writer *w, const struct member_msg *m)
{
    Trainerd__V1__Beat *b = NEW(w, beat);

    b->generation = m->generation;
    b->step = m->progress.held;
    b->place = m->progress.place;
    b->phase = (char *)(m->progress.phase != NULL ? m->progress.phase : "");
    b->phase_ms = m->progress.phase_ms;
    b->limit_ms = m->progress.limit_ms;
    if (w->sender != NULL)
        fill_figures(w, b);
    if (w->leader != NULL && w->leader->n_advice > 0) {
        b->n_advice = w->leader->n_advice;
        b->advice = wire_write_advice(w->a, w->leader->advice, w->leader->n_advice);
    }
    if (w->leader != NULL && w->leader->page != NULL)
        b->page = (char *)w->leader->page;
    return b;
}

static void *write_trouble(const struct writer *w, const struct member_msg *m)
{
    Trainerd__V1__Trouble *t = NEW(w, trouble);

    t->generation = m->generation;
    t->peer = task(w->a, w->c, m->rank);
    t->reason = sentence(w, m->text);
    t->n_dead_paths = tasks(w, m, &t->dead_paths);
    t->leader_is_silent = m->is_leader_silent;
    return t;
}

static void *write_reached(const struct writer *w, const struct member_msg *m)
{
    Trainerd__V1__Reached *r = NEW(w, reached);

    r->round = m->round;
    r->n_dead_paths = tasks(w, m, &r->dead_paths);
    return r;
}

static void *write_complete(const struct writer *w, const struct member_msg *m)
{
    Trainerd__V1__Complete *c = NEW(w, complete);

    c->generation = m->generation;
    c->step_held = m->held;
    return c;
}

static void *write_leave(const struct writer *w, const struct member_msg *m)
{
    Trainerd__V1__Leave *l = NEW(w, leave);

    l->code = (uint32_t)m->code;
    l->everywhere = m->is_all;
    l->reason = sentence(w, m->text);
    return l;
}

/* ---- of a leader ---- */

static void *write_wait(const struct writer *w, const struct member_msg *m)
{
    Trainerd__V1__Wait *t = NEW(w, wait);

    t->reason = sentence(w, m->text);
    return t;
}

static Trainerd__V1__Member *write_member(const struct writer *w, const struct group_member *f)
{
    Trainerd__V1__Member *m = NEW(w, member);

    m->task = task(w->a, w->c, f->rank);
    m->incarnation = f->incarnation;
    m->n_devices = f->n_devices;
    m->n_servers = f->n_servers;
    m->data_address = (char *)f->data_address;
    m->host_key = (char *)f->host_key;
    m->location = (char *)f->location;
    m->step_held = f->held;
    m->storage_failures = f->storage_failures;
    return m;
}

static void *write_view(const struct writer *w, const struct member_msg *m)
{
    const struct group_view *f = m->view;
    Trainerd__V1__View *v = NEW(w, view);

    v->generation = f->generation;
    v->members = arena_array(w->a, f->n_members, sizeof(struct Trainerd__V1__Member *));
    CHECK(v->members != NULL);
    v->n_members = f->n_members;
    for (uint32_t i = 0; i < f->n_members; i++)
        v->members[i] = write_member(w, &f->members[i]);
    v->key.data = (uint8_t *)f->key;
    v->key.len = sizeof(f->key);
    v->n_pieces = f->n_pieces;
    v->pieces = arena_array(w->a, f->n_pieces + 1, sizeof(*v->pieces));
    CHECK(v->pieces != NULL);
    for (uint32_t i = 0; i < f->n_pieces; i++) {
        v->pieces[i] = NEW(w, piece);
        v->pieces[i]->rank = f->pieces[i].rank;
        v->pieces[i]->first = f->pieces[i].first;
        v->pieces[i]->lanes = f->pieces[i].n;
    }
    v->newest_step = f->newest_step;
    v->newest_member = f->newest_member;
    v->reason = sentence(w, m->text);
    return v;
}

static void *write_over(const struct writer *w, const struct member_msg *m)
{
    Trainerd__V1__Over *o = NEW(w, over);

    o->generation = m->generation;
    o->culprit = task(w->a, w->c, m->rank);
    o->ends = m->code != MEMBER_CONTINUE;
    o->code = o->ends ? (uint32_t)m->code : 0;
    o->reason = sentence(w, m->text);
    o->n_dead_paths = tasks(w, m, &o->dead_paths);
    return o;
}

static void *write_reach(const struct writer *w, const struct member_msg *m)
{
    Trainerd__V1__Reach *r = NEW(w, reach);

    r->round = m->round;
    r->n_peers = m->n_ranks;
    r->peers = arena_array(w->a, m->n_ranks + 1, sizeof(*r->peers));
    CHECK(r->peers != NULL);
    for (uint32_t i = 0; i < m->n_ranks; i++) {
        r->peers[i] = NEW(w, peer);
        r->peers[i]->task = task(w->a, w->c, m->ranks[i]);
        r->peers[i]->data_address = (char *)w->leader->data_addresses[i];
    }
    return r;
}

static void *write_pause(const struct writer *w, const struct member_msg *m)
{
    Trainerd__V1__Pause *p = NEW(w, pause);

    p->generation = m->generation;
    return p;
}

static void *write_redirect(const struct writer *w, const struct member_msg *m)
{
    Trainerd__V1__Redirect *r = NEW(w, redirect);

    r->task = task(w->a, w->c, m->rank);
    r->staying = m->is_staying;
    r->expired_ms = m->expired_ms;
    return r;
}

static void *write_refuse(const struct writer *w, const struct member_msg *m)
{
    Trainerd__V1__Refuse *r = NEW(w, refuse);

    r->ends = m->code != MEMBER_CONTINUE;
    r->code = r->ends ? (uint32_t)m->code : 0;
    r->reason = sentence(w, m->text);
    return r;
}

/* ---- messages ---- */

struct row { /* indexed by the kind; 0: not sent by this side */
    int which;
    void *(*write)(const struct writer *w, const struct member_msg *m);
};

#define ROW(side_, NAME_, write_)                                                                  \
    [MEMBER_MSG_##NAME_] = { TRAINERD__V1__##side_##_MESSAGE__MESSAGE_##NAME_, write_ }
static const struct row of_member[MEMBER_MSGS] = {
    ROW(MEMBER, JOIN, write_join),         ROW(MEMBER, READY, write_ready),
    ROW(MEMBER, BEAT, write_beat),         ROW(MEMBER, TROUBLE, write_trouble),
    ROW(MEMBER, COMPLETE, write_complete), ROW(MEMBER, LEAVE, write_leave),
    ROW(MEMBER, REACHED, write_reached),
};
static const struct row of_leader[MEMBER_MSGS] = {
    ROW(LEADER, WAIT, write_wait),         ROW(LEADER, VIEW, write_view),
    ROW(LEADER, OVER, write_over),         ROW(LEADER, PAUSE, write_pause),
    ROW(LEADER, REDIRECT, write_redirect), ROW(LEADER, REFUSE, write_refuse),
    ROW(LEADER, BEAT, write_beat),         ROW(LEADER, REACH, write_reach),
};

/* The members of the unions are all pointers to messages. */
const ProtobufCMessage *wire_write_member(struct wire *w, const struct wire_cluster *c,
                                          const struct member_msg *m, const struct wire_sender *s)
{
    const struct row *row = &of_member[m->kind];
    struct writer to = { .a = &w->arena, .c = c, .sender = s };
    Trainerd__V1__MemberMessage *out = NEW(&to, member_message);

    CHECK(row->write != NULL);
    out->message_case = row->which;
    out->join = row->write(&to, m);
    return &out->base;
}

const ProtobufCMessage *wire_write_leader(struct wire *w, const struct wire_cluster *c,
                                          const struct member_msg *m, const struct wire_leader *s)
{
    const struct row *row = &of_leader[m->kind];
    struct writer to = { .a = &w->arena, .c = c, .leader = s };
    Trainerd__V1__LeaderMessage *out = NEW(&to, leader_message);

    CHECK(row->write != NULL);
    out->message_case = row->which;
    out->wait = row->write(&to, m);
    return &out->base;
}

void wire_write_status(struct wire *w, const struct wire_cluster *c, uint32_t self,
                       const struct member_status *where, Trainerd__V1__Where *out)
{
    trainerd__v1__where__init(out);
    out->task = task(&w->arena, c, self);
    out->incarnation = where->incarnation;
    out->generation = where->generation;
    out->leader = task(&w->arena, c, where->leader);
    out->has_view = where->has_view;
}
