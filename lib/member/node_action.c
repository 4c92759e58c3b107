/* node_action.c - begins an event; appends the actions of the event, and copies what they point to. */
#include "member/node_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

bool node_begin_event(struct member_node *n)
{
    CHECK(n->actions.next == n->actions.n);
    n->actions.next = n->actions.n = 0;
    n->clock.events++;
    if (n->actions.memory.used > 0)
        arena_fini(&n->actions.memory);
    return n->state != MEMBER_ENDED;
}

struct member_action *node_add_action(struct member_node *n, enum member_action_kind kind)
{
    struct member_action *d;

    if (n->actions.n == n->actions.room) {
        n->actions.room = n->actions.room == 0 ? 16 : 2 * n->actions.room;
        n->actions.list = realloc(n->actions.list, n->actions.room * sizeof(*n->actions.list));
        CHECK(n->actions.list != NULL);
    }
    d = &n->actions.list[n->actions.n++];
    *d = (struct member_action){ .kind = kind, .rank = MEMBER_NO_RANK, .text = "" };
    return d;
}

bool member_node_next(struct member_node *n, struct member_action *out)
{
    if (n->actions.next == n->actions.n)
        return false;
    *out = n->actions.list[n->actions.next++];
    return true;
}

const char *node_copy_text(struct member_node *n, const char *text)
{
    char *copy = arena_strdup(&n->actions.memory, text != NULL ? text : "");

    CHECK(copy != NULL);
    return copy;
}

const struct group_view *node_copy_view(struct member_node *n, const struct group_view *v)
{
    struct group_view *copy = arena_alloc(&n->actions.memory, sizeof(*copy));
    struct group_member *members = arena_array(&n->actions.memory, v->n_members, sizeof(*members));

    CHECK(copy != NULL && members != NULL);
    memcpy(members, v->members, v->n_members * sizeof(*members));
    *copy = *v;
    copy->members = members;
    return copy;
}

const uint32_t *node_copy_ranks(struct member_node *n, const uint32_t *ranks, uint32_t n_ranks)
{
    uint32_t *copy;

    if (n_ranks == 0)
        return NULL;
    copy = arena_array(&n->actions.memory, n_ranks, sizeof(*copy));
    CHECK(copy != NULL);
    memcpy(copy, ranks, n_ranks * sizeof(*copy));
    return copy;
}

static const struct member_msg *copy_msg(struct member_node *n, const struct member_msg *m)
{
    struct member_msg *copy = arena_alloc(&n->actions.memory, sizeof(*copy));

    CHECK(copy != NULL);
    *copy = *m;
    copy->text = node_copy_text(n, m->text);
    copy->progress.phase = node_copy_text(n, m->progress.phase);
    copy->ranks = node_copy_ranks(n, m->ranks, m->n_ranks);
    if (m->view != NULL)
        copy->view = node_copy_view(n, m->view);
    return copy;
}

void node_log(struct member_node *n, bool is_trouble, const char *text)
{
    struct member_action *d;

    text = node_copy_text(n, text);
    d = node_add_action(n, MEMBER_LOG);
    d->text = text;
    d->is_trouble = is_trouble;
}

void node_send_leader(struct member_node *n, const struct member_msg *m)
{
    CHECK(n->out.rank != MEMBER_NO_RANK);
    node_add_action(n, MEMBER_SEND_LEADER)->msg = copy_msg(n, m);
}

void node_send_member(struct member_node *n, uint32_t rank, const struct member_msg *m)
{
    struct member_action *d;

    CHECK(n->peers[rank].is_joined && rank != n->opts.self);
    d = node_add_action(n, MEMBER_SEND_MEMBER);
    d->rank = rank;
    d->msg = copy_msg(n, m);
}

void node_set_cause(struct member_node *n, const char *text)
{
    snprintf(n->cause, sizeof(n->cause), "%s", text);
}
