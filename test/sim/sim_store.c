/* sim_store.c - the shared storage: the lease, as numbered records that are created exclusively,
 * and the checkpoints. Every task has a lease thread with one operation at a time. An operation
 * takes effect at one moment; its caller receives the result later, or never. */
#include "sim/sim_priv.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    WATCH_MS = MEMBER_HOLD_MS / 6,
    AGAIN_MS = 20,
    SAVE_AGAIN_MS = 50,
    FAILED_MS = 2000, /* a failure of an operation that lasts this long is a failure of the
                         storage */
    TELL_MS = 1000,
};

static void event(struct sim *s, uint32_t rank, uint64_t ms, enum sim_kind kind)
{
    sim_push(s, (struct sim_event){ .at_ms = s->now_ms + ms,
                                    .kind = kind,
                                    .from = rank,
                                    .to = rank,
                                    .serial = s->tasks[rank].serial });
}

static uint64_t op_ms(struct sim *s)
{
    return 1 + sim_random(s, s->opts.store_ms);
}

/* ---- the lease ---- */

static void begin(struct sim *s, uint32_t rank)
{
    struct sim_lease *l = &s->tasks[rank].lease;

    if (l->op != OP_NONE || !l->is_on)
        return;
    l->op_wish = 0;
    if (l->wants_release) {
        l->op = OP_RELEASE;
        l->wants_release = false;
    } else if (l->wants_take != 0) {
        l->op = OP_TAKE;
        l->op_wish = l->wants_take;
        l->op_token = l->take_after + 1;
        l->wants_take = 0;
        free(l->op_members);
        l->op_members = l->members;
        l->n_op_members = l->n_members;
        l->members = NULL;
    } else {
        l->op = l->mine != 0 ? OP_RENEW : OP_LOOK;
        l->op_wish = l->wants_look;
        l->wants_look = 0;
    }
    l->op_clock = sim_clock(s, rank);
    l->has_failed = l->has_taken = false;
    event(s, rank, op_ms(s), EV_LEASE_EFFECT);
}

void sim_store_request(struct sim *s, uint32_t rank, const struct member_action *d)
{
    struct sim_lease *l = &s->tasks[rank].lease;

    if (d->token == UINT64_MAX) {
        l->wants_look = d->request;
    } else {
        free(l->members);
        l->members = sim_alloc(d->view->n_members * sizeof(*l->members) + 1);
        l->n_members = group_view_n_trainers(d->view);
        for (uint32_t i = 0; i < l->n_members; i++)
            l->members[i] = d->view->members[i].rank;
        l->wants_take = d->request;
        l->take_after = d->token;
    }
    l->is_on = true;
    begin(s, rank);
}

void sim_store_release(struct sim *s, uint32_t rank)
{
    struct sim_lease *l = &s->tasks[rank].lease;

    l->wants_take = 0;
    if (l->mine == 0)
        return;
    sim_print(s, rank, "releases lease %" PRIu64 "", l->mine);
    l->lost = l->mine;
    l->mine = l->hold_until = 0;
    l->wants_release = true;
    begin(s, rank);
}

static void take(struct sim *s, uint32_t rank)
{
    struct sim_lease *l = &s->tasks[rank].lease;
    struct sim_record r = { .holder = rank,
                            .incarnation = s->tasks[rank].incarnation,
                            .n = l->n_op_members };

    if (s->records.n + 1 != l->op_token)
        return;
    r.members = sim_alloc(r.n * sizeof(*r.members) + 1);
    memcpy(r.members, l->op_members, r.n * sizeof(*r.members));
    if (!VEC_PUSH(s->records, r))
        abort();
    l->has_taken = true;
}

static void effect(struct sim *s, uint32_t rank)
{
    struct sim_task *t = &s->tasks[rank];
    struct sim_lease *l = &t->lease;

    if (t->storage == SIM_STORAGE_HANGS) {
        event(s, rank, AGAIN_MS, EV_LEASE_EFFECT);
        return;
    }
    l->has_failed = t->storage == SIM_STORAGE_FAILS;
    if (l->has_failed) {
        event(s, rank, op_ms(s), EV_LEASE_DONE);
        return;
    }
    if (l->op == OP_TAKE)
        take(s, rank);
    else if (l->op == OP_RENEW && l->mine == s->records.n)
        s->records.at[l->mine - 1].beats++;
    else if (l->op == OP_RELEASE)
        s->records.at[l->lost - 1].is_released = true;
    event(s, rank, op_ms(s), EV_LEASE_DONE);
}

static uint64_t at_most(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Reads the newest record. The time without a change is the sum over consecutive reads, so a clock
 * that jumps counts little: a read in between would have seen the holder's renewals. */
static void see(struct sim *s, uint32_t rank)
{
    struct sim_lease *l = &s->tasks[rank].lease;
    uint64_t token = s->records.n, now = sim_clock(s, rank);
    const struct sim_record *r = token > 0 ? &s->records.at[token - 1] : NULL;

    if (token != l->token || (r != NULL && r->beats != l->beats) || !l->is_known) {
        l->token = token;
        l->beats = r != NULL ? r->beats : 0;
        l->unchanged_ms = 0;
        l->is_over = false;
    } else if (l->op_clock > l->seen_clock) {
        l->unchanged_ms += at_most(l->op_clock - l->seen_clock, 3 * WATCH_MS / 2);
        l->is_over |= l->unchanged_ms >= MEMBER_EXPIRY_MS && token > 0;
    }
    l->seen_clock = now;
    if (r != NULL && (r->is_released || (token == l->lost && l->mine == 0)))
        l->is_over = true;
    l->is_known = true;
    if (l->mine != 0 && (l->mine != token || now >= l->hold_until)) {
        sim_print(s, rank, "has lost lease %" PRIu64, l->mine);
        l->is_over |= l->mine == token;
        l->lost = l->mine;
        l->mine = l->hold_until = 0;
    }
}

static void tell(struct sim *s, uint32_t rank)
{
    struct sim_task *t = &s->tasks[rank];
    struct sim_lease *l = &t->lease;
    const struct sim_record *r = l->token > 0 ? &s->records.at[l->token - 1] : NULL;
    uint64_t digest = l->token << 20 ^ l->answered << 8 ^ (uint64_t)(l->mine != 0) << 3 ^
                      (uint64_t)l->is_over << 2 ^ (uint64_t)l->is_known << 1 ^ (l->text[0] != '\0');
    struct member_lease out = {
        .token = l->token,
        .answered = l->answered,
        .is_mine = l->mine != 0 && l->mine == l->token,
        .is_over = l->is_over && l->mine == 0,
        .is_known = l->is_known,
        /* a task of the simulator never changes its host */
        .is_same_place = r != NULL && r->holder == rank,
        .holder = r != NULL ? r->holder : MEMBER_NO_RANK,
        .incarnation = r != NULL ? r->incarnation : 0,
        .members = r != NULL ? r->members : NULL,
        .n_members = r != NULL ? r->n : 0,
        .text = l->text,
    };

    if (digest == l->told)
        return;
    l->told = digest;
    sim_print(s, rank, "lease %" PRIu64 " of %s%s%s%s", out.token,
              r != NULL ? s->names[r->holder] : "no task", out.is_mine ? ", mine" : "",
              out.is_over ? ", over" : "", l->text);
    sim_handle(s, rank, (struct member_event){ .kind = MEMBER_EV_LEASE, .lease = &out });
}

static void done(struct sim *s, uint32_t rank)
{
    struct sim_task *t = &s->tasks[rank];
    struct sim_lease *l = &t->lease;
    bool renews = l->op == OP_RENEW && !l->has_failed && l->mine == s->records.n;

    if (t->storage == SIM_STORAGE_HANGS) {
        event(s, rank, AGAIN_MS, EV_LEASE_DONE);
        return;
    }
    if (l->has_taken) {
        l->mine = l->op_token;
        l->hold_until = l->op_clock + MEMBER_HOLD_MS;
    }
    if (!l->has_failed)
        see(s, rank);
    if (renews && l->mine != 0)
        l->hold_until = l->op_clock + MEMBER_HOLD_MS;
    l->text = l->has_failed ? ": input/output error" : "";
    if (l->op_wish > l->answered)
        l->answered = l->op_wish;
    l->op = OP_NONE;
    l->due = s->number + 1;
    event(s, rank, sim_real_ms(s, rank, WATCH_MS), EV_LEASE_DUE);
    if (l->wants_release || l->wants_take != 0 || l->wants_look != 0)
        begin(s, rank);
    tell(s, rank);
}

bool sim_store_is_held(const struct sim *s, uint32_t rank)
{
    return sim_clock(s, rank) < s->tasks[rank].lease.hold_until;
}

/* ---- checkpoints ---- */

uint64_t sim_store_newest(const struct sim *s, uint32_t rank)
{
    uint64_t newest = 0;

    for (size_t i = 0; i < s->saved.n; i++)
        if ((!s->opts.no_lease || s->saved.at[i].rank == rank) && s->saved.at[i].step > newest)
            newest = s->saved.at[i].step;
    return newest;
}

static void save_in(struct sim *s, uint32_t rank, uint64_t ms)
{
    s->tasks[rank].save.number = s->number + 1;
    event(s, rank, ms, EV_SAVE);
}

void sim_store_save(struct sim *s, uint32_t rank, uint64_t step, bool is_asked, bool is_last)
{
    struct sim_task *t = &s->tasks[rank];

    t->save.step = step;
    t->save.run = t->train.run;
    t->save.is_asked = is_asked;
    t->save.began_ms = s->now_ms;
    t->save.is_last = is_last;
    save_in(s, rank, 2 * op_ms(s));
}

static const char *publish(struct sim *s, uint32_t rank)
{
    struct sim_task *t = &s->tasks[rank];
    uint64_t step = t->save.step, token = t->lease.mine;

    if (t->storage == SIM_STORAGE_FAILS)
        return "input/output error";
    if (step == 0 || sim_store_newest(s, rank) >= step)
        return NULL;
    if (!s->opts.no_lease && (!sim_store_is_held(s, rank) || token != s->records.n))
        return "the lease is not held";
    sim_handle(s, rank, (struct member_event){ .kind = MEMBER_EV_STORAGE });
    sim_judge_save(s, rank, step, token);
    if (!VEC_PUSH(s->saved, (struct sim_saved){ .step = step, .token = token, .rank = rank }))
        abort();
    sim_print(s, rank, "publishes the checkpoint of step %" PRIu64, step);
    return NULL;
}

static bool is_saving_last(const struct sim *s, uint32_t rank)
{
    const struct sim_task *t = &s->tasks[rank];

    return t->save.run == t->train.run && t->train.phase == SAVING_LAST;
}

/* Returns true if this task gives up the last checkpoint: another task writes it if one can; if
 * none can, the job ends at its deadline. */
static bool gives_up(struct sim *s, uint32_t rank, const char *trouble)
{
    struct sim_task *t = &s->tasks[rank];
    uint64_t limit_ms =
        group_view_n_trainers(member_node_view(t->node)) > 1 ? FAILED_MS : s->opts.deadline_ms;

    if (s->now_ms - t->save.began_ms < limit_ms)
        return false;
    t->save.number = 0;
    sim_train_fail(s, rank, MEMBER_FAIL_STORAGE, trouble);
    return true;
}

/* Reports a failure of the storage at every tick, as daemon/storage.h does. */
void sim_store_watch(struct sim *s, uint32_t rank)
{
    struct sim_task *t = &s->tasks[rank];
    bool needs_lease = t->train.phase == REST || member_node_needs_lease(t->node);
    bool is_tried = t->save.number != 0 || t->save.has_failed ||
                    (needs_lease && (t->lease.op != OP_NONE || t->lease.has_failed));
    uint64_t now = sim_clock(s, rank);

    if (t->storage == SIM_STORAGE_FINE || !is_tried)
        t->storage_ms = 0;
    else if (t->storage_ms == 0)
        t->storage_ms = now;
    if (t->storage_ms == 0 || now - t->storage_ms < FAILED_MS ||
        now - t->storage_told_ms < TELL_MS || member_node_state(t->node) != MEMBER_LEADING)
        return;
    t->storage_told_ms = now;
    sim_handle(s, rank, (struct member_event){ .kind = MEMBER_EV_STORAGE, .text = "input/output error" });
    sim_drain(s, rank);
}

static void save(struct sim *s, struct sim_event *e)
{
    struct sim_task *t = &s->tasks[e->to];
    const char *trouble;
    bool is_asked = t->save.is_asked, is_last = t->save.is_last;

    if (e->number != t->save.number)
        return;
    if (t->storage == SIM_STORAGE_HANGS && is_asked &&
        s->now_ms - t->save.began_ms > s->opts.grace_ms) {
        t->save.number = 0;
        sim_print(s, e->to, "saved: not in time");
        sim_handle(s, e->to, (struct member_event){ .kind = MEMBER_EV_SAVED, .text = "the storage does not answer" });
        return;
    }
    if (t->storage == SIM_STORAGE_HANGS) {
        if (!is_last || !is_saving_last(s, e->to) ||
            !gives_up(s, e->to, "the storage does not answer"))
            save_in(s, e->to, AGAIN_MS);
        return;
    }
    if (is_last && !is_saving_last(s, e->to))
        return;
    trouble = publish(s, e->to);
    t->save.has_failed = trouble != NULL;
    if (trouble != NULL && is_last && gives_up(s, e->to, trouble))
        return;
    if (trouble != NULL && is_last) {
        save_in(s, e->to, SAVE_AGAIN_MS);
        return;
    }
    t->save.number = 0;
    if (is_last)
        sim_train_last_saved(s, e->to);
    else if (is_asked) {
        sim_print(s, e->to, "saved: %s", trouble != NULL ? trouble : "yes");
        sim_handle(s, e->to, (struct member_event){ .kind = MEMBER_EV_SAVED, .ok = trouble == NULL, .text = trouble != NULL ? trouble : "" });
    }
}

void sim_store_event(struct sim *s, struct sim_event *e)
{
    if (e->kind == EV_SAVE)
        save(s, e);
    else if (e->kind == EV_LEASE_EFFECT)
        effect(s, e->to);
    else if (e->kind == EV_LEASE_DONE)
        done(s, e->to);
    else if (e->number == s->tasks[e->to].lease.due)
        begin(s, e->to);
}

/* A record whose creation was in progress may appear later. */
void sim_store_process_gone(struct sim *s, uint32_t rank)
{
    struct sim_lease *l = &s->tasks[rank].lease;

    if (l->op == OP_TAKE && !l->has_taken && s->tasks[rank].storage == SIM_STORAGE_FINE &&
        sim_random(s, 2) == 0)
        take(s, rank);
    free(l->members);
    free(l->op_members);
    *l = (struct sim_lease){ .text = "" };
    s->tasks[rank].save.number = 0;
    s->tasks[rank].save.has_failed = false;
    s->tasks[rank].storage_ms = s->tasks[rank].storage_told_ms = 0;
}

void sim_store_fini(struct sim *s)
{
    for (size_t i = 0; i < s->records.n; i++)
        free(s->records.at[i].members);
    VEC_FINI(s->records);
    VEC_FINI(s->saved);
}

void sim_storage(struct sim *s, uint32_t rank, enum sim_storage how)
{
    static const char *const names[] = { "fine", "hanging", "failing" };

    sim_print(s, rank, "the storage is %s", names[how]);
    for (uint32_t i = 0; i < s->opts.world; i++)
        if (rank == SIM_ALL || rank == i)
            s->tasks[i].storage = how;
}

void sim_storage_ms(struct sim *s, uint64_t ms)
{
    sim_print(s, SIM_ALL, "an operation on the storage takes up to %" PRIu64 " ms", 2 * ms);
    s->opts.store_ms = ms;
}

uint32_t sim_checkpoints(const struct sim *s)
{
    return (uint32_t)s->saved.n;
}

uint64_t sim_checkpoint(const struct sim *s)
{
    uint64_t newest = 0;

    for (size_t i = 0; i < s->saved.n; i++)
        newest = s->saved.at[i].step > newest ? s->saved.at[i].step : newest;
    return newest;
}
