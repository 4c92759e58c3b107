/* node_text.c - texts for the log and the status, and queries of the node. */
#include "member/node_priv.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/check.h"

enum { NAMED_MAX = 4 };

const char *node_print(struct member_node *n, const char *fmt, ...)
{
    char text[NODE_TEXT];
    va_list ap;
    char *copy;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    copy = arena_strdup(&n->actions.memory, text);
    CHECK(copy != NULL);
    return copy;
}

const char *node_name(struct member_node *n, uint32_t rank)
{
    if (rank >= n->opts.world)
        return "no task";
    return node_print(n, "%s (%s)", n->opts.names[rank], n->opts.addresses[rank]);
}

const char *node_progress_text(struct member_node *n, uint32_t rank, uint64_t now_ms)
{
    const struct peer *p = &n->peers[rank];
    struct member_progress g = rank == n->opts.self ? n->own.progress : p->progress.last;

    if (n->view.generation == 0 || group_view_find(&n->view, rank) == NULL)
        return node_name(n, rank);
    if (g.phase == NULL || g.phase[0] == '\0') { /* no report has arrived yet */
        g.held = n->view.newest_step;
        g.phase = "the beginning of a generation";
        g.phase_ms = now_ms - n->adopted_ms;
    } else if (rank != n->opts.self && now_ms > p->progress.at_ms) {
        g.phase_ms += now_ms - p->progress.at_ms;
    }
    if (node_is_ps(n, rank)) /* it has no step of its own */
        return node_print(n, "%s, in %s for %.1f s,", node_name(n, rank), g.phase,
                          (double)g.phase_ms / 1e3);
    return node_print(n, "%s, step %" PRIu64 ", in %s for %.1f s,", node_name(n, rank), g.held + 1,
                      g.phase, (double)g.phase_ms / 1e3);
}

const char *node_credible_text(struct member_node *n, uint64_t generation)
{
    return node_print(n, "it names generation %" PRIu64 "; expected at most %" PRIu64
                      ": end the process that sends such numbers, and start it again",
                      generation, n->highest_generation + MEMBER_GENERATIONS_AHEAD);
}

/* Returns the present phase of each member of a view that does not connect. */
static const char *unconnected_text(struct member_node *n)
{
    struct buf b = { 0 };
    const char *text;

    for (uint32_t i = 0; i < n->view.n_members && i < NAMED_MAX; i++)
        buf_printf(&b, "%s %s", i == 0 ? "" : " and",
                   node_progress_text(n, n->view.members[i].rank, n->clock.ticked_ms));
    if (n->view.n_members > NAMED_MAX)
        buf_printf(&b, " and %u more", n->view.n_members - NAMED_MAX);
    CHECK(!b.failed);
    text = node_print(n, "generation %" PRIu64 " does not connect:%s %s not connected",
                      n->view.generation, b.data, n->view.n_members == 1 ? "is" : "are");
    buf_fini(&b);
    return text;
}

/* Names the parameter servers as the reason why there is no view, if enough training tasks are present. */
static void add_missing_ps(const struct member_node *n, struct buf *out)
{
    uint32_t n_trainers = node_n_present_trainers(n), n_ps = node_n_present(n) - n_trainers;

    if (n_ps >= n->opts.min_ps || n_trainers < n->opts.min_world)
        return;
    if (n_ps == 0)
        buf_str(out, "; no parameter server is present");
    else
        buf_printf(out, "; %u parameter server%s present", n_ps, n_ps == 1 ? " is" : "s are");
    if (n->opts.min_ps > 1)
        buf_printf(out, ", and min_ps is %u", n->opts.min_ps);
}

const char *node_missing_text(struct member_node *n)
{
    uint32_t missing = 0, named = 0;
    struct buf b = { 0 };
    const char *text;

    if (n->state != MEMBER_LEADING && n->out.rank == MEMBER_NO_RANK && node_is_ps(n, n->opts.self))
        return node_print(n, "no training task leads: %s%s%s", node_name(n, 0),
                          n->peers[0].absence.last_error[0] != '\0' ? ": " : "",
                          n->peers[0].absence.last_error);
    if (n->state != MEMBER_LEADING)
        return n->out.rank != MEMBER_NO_RANK && n->out.is_accepted
                   ? node_print(n, "%s leads and has no group yet", node_name(n, n->out.rank))
                   : node_print(n, "no task answers%s%s%s%s",
                                n->out.rank != MEMBER_NO_RANK ? "; calling " : "",
                                n->out.rank != MEMBER_NO_RANK ? node_name(n, n->out.rank) : "",
                                n->opts.self > 0 && n->peers[0].absence.last_error[0] != '\0'
                                    ? "; rank 0: "
                                    : "",
                                n->opts.self > 0 ? n->peers[0].absence.last_error : "");
    if (n->lead.phase != NODE_GATHERING && !n->own.is_connected)
        return unconnected_text(n);
    for (uint32_t i = 0; i < n->opts.world; i++)
        missing += i != n->opts.self && !node_is_present(n, i);
    if (missing == 0)
        buf_printf(&b, "all tasks are present");
    else
        buf_printf(&b, "%u of %u tasks %s missing", missing, n->opts.world,
                   missing == 1 ? "is" : "are");
    for (uint32_t i = 0; i < n->opts.world && named < NAMED_MAX; i++) {
        const struct peer *p = &n->peers[i];

        if (i == n->opts.self || node_is_present(n, i))
            continue;
        buf_printf(&b, "%s %s", named++ == 0 ? ":" : ";", node_name(n, i));
        if (p->is_joined && p->quarantine.until == 0) /* else the last error is the quarantine */
            buf_str(&b, node_is_stopping(n, i) ? ": its training is stopping"
                                               : ": it is opening model and data");
        else if (p->absence.last_error[0] != '\0')
            buf_printf(&b, ": %s", p->absence.last_error);
    }
    if (missing > named && named > 0)
        buf_printf(&b, "; and %u more", missing - named);
    add_missing_ps(n, &b);
    if (n->lead.blocked != NULL)
        buf_printf(&b, "; %s", n->lead.blocked);
    if (n->opts.has_lease && n->storage.lease_error[0] != '\0')
        buf_printf(&b, " (%s)", n->storage.lease_error);
    if (n->cause[0] != '\0')
        buf_printf(&b, "; first cause: %s", n->cause);
    CHECK(!b.failed);
    text = node_print(n, "%s", b.data);
    buf_fini(&b);
    return text;
}

/* ---- queries ---- */

enum member_node_state member_node_state(const struct member_node *n)
{
    return n->state;
}

const char *member_node_state_name(enum member_node_state s)
{
    static const char *const names[MEMBER_NODE_STATES] = { "seeking", "following", "leading", "ended" };

    return s < MEMBER_NODE_STATES ? names[s] : "?";
}

uint32_t member_node_leader(const struct member_node *n)
{
    if (n->state == MEMBER_LEADING)
        return n->opts.self;
    return n->state == MEMBER_FOLLOWING ? n->out.rank : MEMBER_NO_RANK;
}

const struct group_view *member_node_view(const struct member_node *n)
{
    static const struct group_view none = { .generation = 0 };

    return n->is_alive ? &n->view : &none;
}

bool member_node_needs_lease(const struct member_node *n)
{
    return n->opts.has_lease && n->is_alive &&
           n->view.members[n->view.coordinator].rank == n->opts.self &&
           !node_has_all_trainers(n, &n->view);
}

const char *member_node_cause(const struct member_node *n)
{
    return n->cause;
}

void member_node_peer(const struct member_node *n, uint32_t rank, struct member_peer *out)
{
    const struct peer *p = &n->peers[rank];
    const struct group_member *member = n->is_alive ? group_view_find(&n->view, rank) : NULL;

    CHECK(rank < n->opts.world);
    *out = (struct member_peer){ .is_present = p->is_joined,
                                 .is_in_view = member != NULL,
                                 .incarnation = p->incarnation,
                                 .held = p->held,
                                 .heard_ms = p->heard_ms,
                                 .quarantine_until_ms = p->is_joined ? p->quarantine.until : 0,
                                 .progress = p->progress.last,
                                 .last_error = p->absence.last_error };
    if (rank == n->opts.self) {
        out->is_present = true;
        out->incarnation = n->opts.incarnation;
        out->held = n->own.held;
        out->progress = n->own.progress;
        out->heard_ms = n->clock.ticked_ms;
    } else if (n->state != MEMBER_LEADING) { /* the reports that arrived while this task led are
                                                old */
        out->is_present = rank == member_node_leader(n);
        out->held = out->heard_ms = 0;
        out->progress = (struct member_progress){ .phase = "" };
        out->last_error = "";
    }
    if (out->held < out->progress.held) /* a heartbeat is newer than READY */
        out->held = out->progress.held;
    if (member == NULL) { /* its phase has ended */
        bool is_opening = rank != n->opts.self && n->state == MEMBER_LEADING && p->is_joined &&
                          !node_is_present(n, rank) && !node_is_stopping(n, rank) &&
                          p->quarantine.until == 0;

        out->progress = (struct member_progress){ .held = out->held, .phase = is_opening ? "opening" : "" };
        return;
    }
    if (out->held < member->held)
        out->held = member->held;
    if (rank == n->opts.self || n->state == MEMBER_LEADING)
        out->progress.held = out->held;
    out->incarnation = member->incarnation;
}
