/* coord.c - the group as the coordinator sees it.
 *
 *               all present: view           somebody lost, or failed
 *     GATHERING -----------------> RUNNING -------------------------> OVER
 *                                     |
 *                                     | its own leave: the last state is safe
 *                                     +-------------------------------> CLOSING
 *
 * A task that leaves complete or stopped is parked until CLOSING; then all are released, the
 * coordinator's own task last, when no other is left to wait for. */
#include "member/member.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/check.h"
#include "base/text.h"
#include "base/vec.h"
#include "member/member_priv.h"

enum phase { GATHERING, RUNNING, CLOSING, OVER };

struct slot {
    struct member_task t;
    bool parked;     /* LEFT, and its Leave is not answered */
    bool has_reason; /* last_error is what it said when it left: more than what a probe sees */
};

struct member_coord {
    struct arena memory; /* names, addresses, ident */
    uint32_t world, self, n_devices;
    uint64_t silent_ms;
    struct member_ident ident;

    enum phase phase;
    uint64_t generation;
    uint64_t ticked_ms;
    uint32_t n_joined, n_active;
    uint32_t culprit;              /* of the end, in OVER */
    char end[MEMBER_TEXT_BYTES];   /* why, in OVER */
    struct slot *tasks;

    VEC(struct member_order) orders;
    size_t next;
    struct arena texts; /* of the orders */
};

/* ---- construction ---- */

struct member_coord *member_coord_new(const struct member_coord_opts *opts, uint64_t now_ms)
{
    struct member_coord *c = calloc(1, sizeof(*c));

    CHECK(c != NULL && opts->world > 0 && opts->self < opts->world && opts->silent_ms > 0);
    c->world = opts->world;
    c->self = opts->self;
    c->n_devices = opts->n_devices;
    c->silent_ms = opts->silent_ms;
    c->ident = member_ident_copy(opts->ident, &c->memory);
    c->ticked_ms = now_ms;
    c->culprit = UINT32_MAX;
    c->tasks = calloc(opts->world, sizeof(*c->tasks));
    CHECK(c->tasks != NULL);
    for (uint32_t i = 0; i < opts->world; i++) {
        struct member_task *t = &c->tasks[i].t;

        t->name = arena_strdup(&c->memory, opts->names[i]);
        t->address = arena_strdup(&c->memory, opts->addresses[i]);
        CHECK(t->name != NULL && t->address != NULL);
        t->heard_ms = now_ms;
    }
    return c;
}

void member_coord_free(struct member_coord *c)
{
    if (c == NULL)
        return;
    VEC_FINI(c->orders);
    arena_fini(&c->texts);
    arena_fini(&c->memory);
    free(c->tasks);
    free(c);
}

/* Cut between two characters, also where `text` itself was cut before. */
static void copy_text(char *out, size_t n, const char *text)
{
    size_t len = strlen(text);

    len = text_utf8_cut(text, len < n ? len : n - 1);
    memcpy(out, text, len);
    out[len] = '\0';
}

/* ---- orders ---- */

/* Every event begins here: the texts of orders that were fetched are dropped. */
static struct slot *begin(struct member_coord *c, uint32_t rank)
{
    CHECK(rank < c->world);
    if (c->next == c->orders.n) {
        c->orders.n = c->next = 0;
        arena_fini(&c->texts);
    }
    return &c->tasks[rank];
}

static struct member_order *order(struct member_coord *c, int kind, uint32_t rank,
                                  const char *text)
{
    struct member_order o = { .rank = rank, .generation = c->generation, .culprit = UINT32_MAX };

    o.kind = kind;
    o.text = "";
    if (text[0] != '\0') {
        o.text = arena_strndup(&c->texts, text, text_utf8_cut(text, strlen(text)));
        CHECK(o.text != NULL);
    }
    CHECK(VEC_PUSH(c->orders, o));
    return &c->orders.at[c->orders.n - 1];
}

bool member_coord_next(struct member_coord *c, struct member_order *out)
{
    if (c->next == c->orders.n)
        return false;
    *out = c->orders.at[c->next++];
    return true;
}

static void release(struct member_coord *c, uint32_t rank, bool complete)
{
    struct member_order *o = order(c, MEMBER_ORDER_RELEASE, rank, complete ? "" : c->end);

    o->complete = complete;
    o->culprit = complete ? UINT32_MAX : c->culprit;
    c->tasks[rank].parked = false;
}

/* ---- what becomes of a task ---- */


static bool is_same(const struct slot *s, const uint8_t incarnation[MEMBER_INCARNATION_BYTES])
{
    return s->t.state != MEMBER_TASK_MISSING &&
           memcmp(s->t.incarnation, incarnation, MEMBER_INCARNATION_BYTES) == 0;
}

/* JOINED to MISSING, while gathering. */
static void forget(struct member_coord *c, struct slot *s, const char *why, bool is_reason,
                   uint64_t now_ms)
{
    s->t.state = MEMBER_TASK_MISSING;
    s->t.heard_ms = now_ms;
    s->has_reason = is_reason;
    copy_text(s->t.last_error, sizeof(s->t.last_error), why);
    c->n_joined--;
}

/* The coordinator's own task goes last: its process serves the others' way out. */
static void release_self_if_last(struct member_coord *c)
{
    if (c->phase == CLOSING && c->n_active == 0 && c->tasks[c->self].parked)
        release(c, c->self, true);
}

/* ACTIVE to LEFT. */
static void deactivate(struct member_coord *c, struct slot *s)
{
    CHECK(s->t.state == MEMBER_TASK_ACTIVE);
    s->t.state = MEMBER_TASK_LEFT;
    c->n_active--;
}

/* The generation has ended, by `culprit`, which is told by other means. */
static void end_generation(struct member_coord *c, uint32_t culprit, const char *text)
{
    struct member_order *o;

    CHECK(c->phase == RUNNING);
    c->phase = OVER;
    c->culprit = culprit;
    copy_text(c->end, sizeof(c->end), text);
    o = order(c, MEMBER_ORDER_OVER, culprit, c->end);
    o->culprit = culprit;
    for (uint32_t i = 0; i < c->world; i++)
        if (c->tasks[i].parked)
            release(c, i, false);
}

/* "last heard 0.2 s ago in phase train, step 123 since 0.1 s" */
static void last_words(const struct member_task *t, uint64_t now_ms, char *out, size_t n)
{
    double heard_s = (double)(now_ms - t->heard_ms) * 1e-3;

    if (t->phase[0] == '\0')
        snprintf(out, n, "last heard %.1f s ago", heard_s);
    else
        snprintf(out, n, "last heard %.1f s ago in phase %s, step %" PRIu64 " since %.1f s",
                 heard_s, t->phase, t->step, (double)(now_ms - t->phase_since_ms) * 1e-3);
}

/* An ACTIVE task is gone; `how` completes "worker 1 (10.0.0.2:2222) ...". */
static void lose(struct member_coord *c, uint32_t rank, const char *how, uint64_t now_ms)
{
    struct slot *s = &c->tasks[rank];
    char words[160], text[MEMBER_TEXT_BYTES];

    deactivate(c, s);
    if (c->phase == CLOSING) { /* the last state is safe: nobody needs it any more */
        release_self_if_last(c);
        return;
    }
    last_words(&s->t, now_ms, words, sizeof(words));
    snprintf(text, sizeof(text), "%s (%s) %s; %s", s->t.name, s->t.address, how, words);
    end_generation(c, rank, text);
}

/* ---- events ---- */

static void admit(struct member_coord *c, const struct member_join *j, uint64_t now_ms)
{
    struct slot *s = &c->tasks[j->rank];

    if (s->t.state != MEMBER_TASK_JOINED)
        c->n_joined++;
    else if (is_same(s, j->incarnation)) /* faster than the news that its connection broke */
        order(c, MEMBER_ORDER_DROP, j->rank, "it joined again");
    else
        order(c, MEMBER_ORDER_REPLACE, j->rank, "another process joined as this task");
    s->t.state = MEMBER_TASK_JOINED;
    memcpy(s->t.incarnation, j->incarnation, MEMBER_INCARNATION_BYTES);
    s->t.n_devices = j->n_devices;
    s->t.step_held = j->step_held;
    s->t.heard_ms = now_ms;
    s->t.step = 0;
    s->t.phase[0] = '\0';
    s->t.phase_since_ms = now_ms;
    s->t.last_error[0] = '\0';
    s->has_reason = false;
    order(c, MEMBER_ORDER_ADMIT, j->rank, "");

    if (c->n_joined < c->world)
        return;
    c->phase = RUNNING;
    c->generation++;
    for (uint32_t i = 0; i < c->world; i++)
        c->tasks[i].t.state = MEMBER_TASK_ACTIVE;
    c->n_active = c->world;
    c->n_joined = 0;
    order(c, MEMBER_ORDER_VIEW, j->rank, "");
}

void member_coord_join(struct member_coord *c, const struct member_join *j, uint64_t now_ms)
{
    struct slot *s = begin(c, j->rank);
    char why[MEMBER_TEXT_BYTES - 400], text[MEMBER_TEXT_BYTES];

    if (!member_ident_agrees(&j->ident, j->n_devices, &c->ident, c->n_devices, why, sizeof(why))) {
        snprintf(text, sizeof(text), "%.150s (%.150s) cannot join: %s", s->t.name, s->t.address,
                 why);
        order(c, MEMBER_ORDER_REFUSE, j->rank, text);
        return;
    }
    if (c->phase == GATHERING) {
        admit(c, j, now_ms);
        return;
    }
    if (c->phase != OVER && s->t.state == MEMBER_TASK_ACTIVE) {
        bool again = is_same(s, j->incarnation);

        snprintf(text, sizeof(text),
                 again ? "lost its connection: it joined again while generation "
                         "%" PRIu64 " was running"
                       : "restarted: a new incarnation joined while generation "
                         "%" PRIu64 " was running",
                 c->generation);
        lose(c, j->rank, text, now_ms);
    }
    if (c->phase == OVER)
        snprintf(text, sizeof(text), "generation %" PRIu64 " is over: %.900s", c->generation,
                 c->end);
    else
        snprintf(text, sizeof(text), "generation %" PRIu64 " is finishing without %s",
                 c->generation, s->t.name);
    order(c, MEMBER_ORDER_RETRY, j->rank, text);
}

bool member_coord_beat(struct member_coord *c, const struct member_beat *b, uint64_t now_ms)
{
    struct slot *s = begin(c, b->rank);

    if (!is_same(s, b->incarnation))
        return false;
    s->t.heard_ms = now_ms;
    s->t.step = b->step;
    copy_text(s->t.phase, sizeof(s->t.phase), b->phase);
    s->t.phase_since_ms = b->phase_ms < now_ms ? now_ms - b->phase_ms : 0;
    return true;
}

void member_coord_closed(struct member_coord *c, uint32_t rank,
                         const uint8_t incarnation[MEMBER_INCARNATION_BYTES], const char *why,
                         uint64_t now_ms)
{
    struct slot *s = begin(c, rank);
    char text[512];

    if (!is_same(s, incarnation))
        return;
    snprintf(text, sizeof(text),
             why[0] != '\0' ? "its connection closed (%s)" : "its connection closed%s", why);
    if (s->t.state == MEMBER_TASK_JOINED) {
        forget(c, s, text, false, now_ms);
    } else if (s->t.state == MEMBER_TASK_LEFT) {
        s->parked = false; /* it said that it was done: nobody's fault */
    } else if (c->phase == OVER) {
        deactivate(c, s);
    } else {
        char how[540];

        snprintf(how, sizeof(how), "is lost: %s", text);
        lose(c, rank, how, now_ms);
    }
}

/* An ACTIVE task says that it is done. */
static void leave_done(struct member_coord *c, uint32_t rank)
{
    struct slot *s = &c->tasks[rank];

    deactivate(c, s);
    s->parked = true;
    if (rank == c->self) {
        c->phase = CLOSING;
        for (uint32_t i = 0; i < c->world; i++)
            if (c->tasks[i].parked && i != rank)
                release(c, i, true);
    } else if (c->phase == CLOSING) {
        release(c, rank, true);
    }
    release_self_if_last(c);
}

/* An ACTIVE task that the others would wait for in vain. */
static void leave_early(struct member_coord *c, uint32_t rank, uint64_t generation, uint64_t step,
                        const char *reason)
{
    struct slot *s = &c->tasks[rank];
    char text[MEMBER_TEXT_BYTES];

    deactivate(c, s);
    release(c, rank, true);
    if (c->phase == CLOSING) {
        release_self_if_last(c);
        return;
    }
    if (generation == c->generation)
        snprintf(text, sizeof(text), "%s (%s) failed in step %" PRIu64 ": %s", s->t.name,
                 s->t.address, step + 1, reason);
    else
        snprintf(text, sizeof(text), "%s (%s) left just before generation %" PRIu64 " began: %s",
                 s->t.name, s->t.address, c->generation, reason);
    end_generation(c, rank, text);
}

void member_coord_leave(struct member_coord *c, uint32_t rank,
                        const uint8_t incarnation[MEMBER_INCARNATION_BYTES], uint64_t generation,
                        enum member_leave kind, uint64_t step, const char *reason, uint64_t now_ms)
{
    struct slot *s = begin(c, rank);
    char text[MEMBER_TEXT_BYTES];

    if (!is_same(s, incarnation))
        return;
    s->t.heard_ms = now_ms;
    s->t.step = step;
    if (s->t.state == MEMBER_TASK_JOINED) {
        snprintf(text, sizeof(text), "it left: %s", reason);
        forget(c, s, text, true, now_ms);
        release(c, rank, true);
    } else if (s->t.state == MEMBER_TASK_LEFT) {
        if (!s->parked) /* said twice: the answer got lost */
            release(c, rank, c->phase != OVER || kind == MEMBER_LEAVE_FAILED);
    } else if (c->phase == OVER) {
        deactivate(c, s);
        release(c, rank, kind == MEMBER_LEAVE_FAILED);
    } else if (kind != MEMBER_LEAVE_FAILED && generation == c->generation) {
        leave_done(c, rank);
    } else {
        leave_early(c, rank, generation, step, reason);
    }
}

void member_coord_unreachable(struct member_coord *c, uint32_t rank, const char *error)
{
    struct slot *s = begin(c, rank);

    if (s->t.state == MEMBER_TASK_MISSING && !s->has_reason)
        copy_text(s->t.last_error, sizeof(s->t.last_error), error);
}

static void silent(struct member_coord *c, uint32_t rank, uint64_t now_ms)
{
    struct slot *s = &c->tasks[rank];
    double silent_s = (double)(now_ms - s->t.heard_ms) * 1e-3;
    char text[64];

    if (s->t.state == MEMBER_TASK_JOINED) {
        snprintf(text, sizeof(text), "it was silent for %.1f s", silent_s);
        order(c, MEMBER_ORDER_DROP, rank, text);
        forget(c, s, text, false, now_ms);
    } else {
        snprintf(text, sizeof(text), "is lost: silent for %.1f s", silent_s);
        lose(c, rank, text, now_ms);
    }
}

void member_coord_tick(struct member_coord *c, uint64_t now_ms)
{
    bool slept = now_ms - c->ticked_ms > c->silent_ms / 2;

    (void)begin(c, 0); /* of no task in particular */
    c->ticked_ms = now_ms;
    if (c->phase == OVER)
        return;
    for (uint32_t i = 0; i < c->world; i++) {
        struct member_task *t = &c->tasks[i].t;

        if (t->state != MEMBER_TASK_JOINED && t->state != MEMBER_TASK_ACTIVE)
            continue;
        if (slept)
            t->heard_ms = now_ms;
        else if (now_ms - t->heard_ms > c->silent_ms && c->phase != OVER)
            silent(c, i, now_ms);
    }
}

/* ---- questions ---- */

uint64_t member_coord_generation(const struct member_coord *c)
{
    return c->generation;
}

bool member_coord_running(const struct member_coord *c)
{
    return c->phase == RUNNING || c->phase == CLOSING;
}

uint32_t member_coord_present(const struct member_coord *c)
{
    return c->n_joined + c->n_active;
}

const struct member_task *member_coord_task(const struct member_coord *c, uint32_t rank)
{
    CHECK(rank < c->world);
    return &c->tasks[rank].t;
}
