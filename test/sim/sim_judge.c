/* sim_judge.c - checks the invariants after every event.
 *
 * Two groups. The coordinator of a group permits a step by its last contribution (struct
 * sim_group.first_permit, last_permit). If two groups have no common task, all steps of one must be
 * permitted before all steps of the other: the groups never both train. Groups with a common task
 * cannot both train, because a step needs all members and a task is in one view at a time. */
#include "sim/sim_priv.h"

#include <inttypes.h>
#include <string.h>

static bool share_a_task(const struct sim_group *a, const struct sim_group *b)
{
    for (int i = 0; i < WORDS; i++)
        if (a->ranks[i] & b->ranks[i])
            return true;
    return false;
}

/* Checks a view when its leader publishes it. */
void sim_judge_view(struct sim *s, uint32_t rank, const struct group_view *v)
{
    const char *name = s->names[rank];
    uint64_t newest = 0, g = v->generation;
    uint32_t n_trainers = group_view_n_trainers(v), all = s->opts.world - s->opts.n_ps;

    if (g == 0 || v->n_members == 0 || v->n_members > s->opts.world) {
        sim_fail_run(s, "%s publishes generation %" PRIu64 " of %u tasks", name, g, v->n_members);
        return;
    }
    if (g >= UINT32_MAX)
        sim_fail_run(s, "%s publishes generation %" PRIu64 ", which no task has reached", name, g);
    if (n_trainers < s->opts.min_world)
        sim_fail_run(s, "%s publishes a view of %u training tasks, below min_world %u", name,
                     n_trainers, s->opts.min_world);
    if (s->opts.no_lease && 2 * n_trainers <= all)
        sim_fail_run(
            s, "%s publishes a view of %u of %u training tasks: no majority, and no shared storage",
            name, n_trainers, all);
    if (v->n_members - n_trainers < s->opts.min_ps)
        sim_fail_run(s, "%s publishes a view of %u parameter servers, below min_ps %u", name,
                     v->n_members - n_trainers, s->opts.min_ps);
    if (sim_is_ps(s, rank) || sim_is_ps(s, v->members[v->coordinator].rank))
        sim_fail_run(s, "%s publishes generation %" PRIu64 ", coordinated by %s", name, g,
                     s->names[v->members[v->coordinator].rank]);
    for (uint32_t i = 0; i < v->n_members; i++) {
        const struct group_member *member = &v->members[i];

        if (member->rank >= s->opts.world || (i > 0 && member->rank <= v->members[i - 1].rank)) {
            sim_fail_run(s,
                         "%s publishes generation %" PRIu64 " with members that are out of order",
                         name, g);
            return;
        }
        newest = member->held > newest ? member->held : newest;
        if ((member->n_servers > 0) != sim_is_ps(s, member->rank) ||
            (member->n_servers > 0 && member->held > 0))
            sim_fail_run(s, "generation %" PRIu64 " gives %s the role of another task", g,
                         s->names[member->rank]);
        if (v->newest_member == i && v->newest_step > 0 && member->held != v->newest_step)
            sim_fail_run(s,
                         "generation %" PRIu64 " names %s as holder of step %" PRIu64
                         ", which holds %" PRIu64,
                         g, s->names[member->rank], v->newest_step, member->held);
    }
    if (v->newest_step != newest || v->newest_member >= v->n_members)
        sim_fail_run(s, "generation %" PRIu64 ": newest step %" PRIu64 ", but %" PRIu64 " is held",
                     g, v->newest_step, newest);
    for (size_t i = 1; i + 1 < s->groups.n; i++)
        if (s->groups.at[i]->view.generation == g &&
            s->groups.at[i]->author_serial == s->tasks[rank].serial)
            sim_fail_run(s, "%s publishes two views as generation %" PRIu64, name, g);
}

static void judge_train(struct sim *s, uint32_t rank, const struct group_view *v)
{
    const struct sim_task *t = &s->tasks[rank];
    bool is_in = false;

    for (uint32_t i = 0; i < v->n_members; i++) {
        if (v->members[i].rank != rank || v->members[i].incarnation != t->incarnation)
            continue;
        is_in = true;
        if (v->members[i].held != t->held)
            sim_fail_run(s,
                         "generation %" PRIu64 " says that %s holds step %" PRIu64
                         ", which holds %" PRIu64,
                         v->generation, s->names[rank], v->members[i].held, t->held);
    }
    if (!is_in)
        sim_fail_run(s, "%s trains in generation %" PRIu64 ", in which it is not", s->names[rank],
                     v->generation);
    if (t->train.group != 0 && s->groups.at[t->train.group]->view.generation >= v->generation)
        sim_fail_run(s, "%s goes from generation %" PRIu64 " to %" PRIu64, s->names[rank],
                     s->groups.at[t->train.group]->view.generation, v->generation);
}

void sim_judge_action(struct sim *s, uint32_t rank, const struct member_action *d)
{
    const struct sim_task *t = &s->tasks[rank];
    const char *name = s->names[rank];

    switch (d->kind) {
    case MEMBER_OPEN_OUT:
        if (t->out != 0 || d->rank >= s->opts.world || d->rank == rank)
            sim_fail_run(s, "%s calls rank %u%s", name, d->rank,
                         t->out != 0 ? " and has a link out" : "");
        return;
    case MEMBER_SEND_LEADER:
        if (d->msg->kind == MEMBER_MSG_READY && t->train.phase != REST)
            sim_fail_run(s, "%s sends READY while it trains", name);
        if (d->msg->kind == MEMBER_MSG_READY && d->msg->held != t->held)
            sim_fail_run(s, "%s reports that it holds step %" PRIu64 ", and holds %" PRIu64, name,
                         d->msg->held, t->held);
        return;
    case MEMBER_TRAIN:
        judge_train(s, rank, d->view);
        return;
    case MEMBER_SAVE:
        if (t->train.phase != REST)
            sim_fail_run(s, "%s saves while it trains", name);
        return;
    case MEMBER_LEASE:
        if (s->opts.no_lease)
            sim_fail_run(s, "%s requests a lease, but there is no shared storage", name);
        return;
    case MEMBER_LOG:
        if (d->text == NULL || d->text[0] == '\0')
            sim_fail_run(s, "%s logs an empty line", name);
        return;
    default:
        return;
    }
}

/* Called when the coordinator gives its last contribution to a step. */
void sim_judge_permit(struct sim *s, uint32_t rank, struct sim_group *g)
{
    uint64_t now = ++s->number, first = g->first_permit;

    if (group_view_n_trainers(&g->view) < s->opts.world - s->opts.n_ps && !s->opts.no_lease &&
        !member_node_needs_lease(s->tasks[rank].node))
        sim_fail_run(s, "%s permits a step in a view of %u of %u tasks without the lease",
                     s->names[rank], g->view.n_members, s->opts.world);
    if (first == 0)
        g->first_permit = now;
    g->last_permit = now;
    for (size_t i = 1; first != 0 && i < s->groups.n; i++) {
        const struct sim_group *other = s->groups.at[i];

        if (other->last_permit > first && !share_a_task(other, g))
            sim_fail_run(s,
                         "two groups train: %s permits a step in generation %" PRIu64
                         " of %u tasks, and %s did in generation %" PRIu64 " of %u tasks meanwhile",
                         s->names[rank], g->view.generation, g->view.n_members,
                         s->names[other->view.members[other->view.coordinator].rank],
                         other->view.generation, other->view.n_members);
    }
}

void sim_judge_apply(struct sim *s, uint32_t rank, uint64_t step)
{
    if (step != s->tasks[rank].held + 1)
        sim_fail_run(s, "%s applies step %" PRIu64 " to the state of step %" PRIu64, s->names[rank],
                     step, s->tasks[rank].held);
}

void sim_judge_save(struct sim *s, uint32_t rank, uint64_t step, uint64_t token)
{
    for (size_t i = 0; i < s->saved.n; i++) {
        const struct sim_saved *o = &s->saved.at[i];

        if (!s->opts.no_lease && o->token > token)
            sim_fail_run(s,
                         "%s publishes a checkpoint with lease %" PRIu64 " after one with %" PRIu64,
                         s->names[rank], token, o->token);
        if (o->step == step && o->rank != rank && !s->opts.no_lease)
            sim_fail_run(s, "%s and %s both publish step %" PRIu64, s->names[rank],
                         s->names[o->rank], step);
    }
}

void sim_judge_end(struct sim *s, uint32_t rank, int code, const char *text)
{
    const struct sim_task *t = &s->tasks[rank];
    const char *name = s->names[rank];

    if (code != 0 && code != 2 && code != 138 && code != 143)
        sim_fail_run(s, "%s ends with %d", name, code);
    if (code == 0 && s->complete_step == 0)
        sim_fail_run(s, "%s ends with 0, and the job is not complete", name);
    if (code == 143 && !t->was_told_to_stop && !s->everybody_stops)
        sim_fail_run(s, "%s ends with 143, but was not asked to stop", name);
    if (code == 2 && !t->may_end_2 && s->opts.n_refused < s->opts.world - s->opts.n_ps)
        sim_fail_run(s, "%s ends with 2 (%s), but the input is valid", name, text);
    if (code != 0 && code != 143 && strstr(text, "worker ") == NULL && strstr(text, "ps ") == NULL)
        sim_fail_run(s, "%s ends with %d, and no task is named: %s", name, code, text);
}

void sim_judge_event(struct sim *s, uint32_t rank)
{
    const struct sim_task *t = &s->tasks[rank];
    uint64_t generation;

    if (t->node == NULL || t->is_stopped || s->is_broken)
        return;
    if (member_node_state(t->node) == MEMBER_ENDED)
        sim_fail_run(s, "%s has ended without an END action", s->names[rank]);
    if (member_node_state(t->node) == MEMBER_LEADING && sim_is_ps(s, rank))
        sim_fail_run(s, "%s leads", s->names[rank]);
    generation = member_node_view(t->node)->generation;
    if (generation != 0 && t->train.phase != REST &&
        generation != s->groups.at[t->train.group]->view.generation)
        sim_fail_run(s, "%s is in generation %" PRIu64 " and trains in %" PRIu64, s->names[rank],
                     generation, s->groups.at[t->train.group]->view.generation);
}
