/* trace.c - log lines: one line for each link and message, so that a reader of the log can follow a change
 * of the group; and a fault point for each kind of message, before it is sent and before it is
 * handled. */
#include "rdzv/rdzv_priv.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/fault.h"

enum { TEXT_SHOWN = 300, MEMBERS_SHOWN = 8 };

#define MSG(kind_, word_) [MEMBER_MSG_##kind_] = { #kind_, "rdzv." word_ ".out", "rdzv." word_ ".in" }
static const struct {
    const char *name, *out, *in; /* name in the log; fault points */
} kinds[MEMBER_MSGS] = {
    MSG(JOIN, "join"),         MSG(READY, "ready"), MSG(BEAT, "beat"), MSG(TROUBLE, "trouble"),
    MSG(COMPLETE, "complete"), MSG(LEAVE, "leave"), MSG(WAIT, "wait"), MSG(VIEW, "view"),
    MSG(PAUSE, "pause"),       MSG(OVER, "over"),   MSG(REDIRECT, "redirect"), MSG(REFUSE, "refuse"),
    MSG(REACH, "reach"),       MSG(REACHED, "reached"),
};

void rdzv_trace(const struct rdzv *r, const char *fmt, ...)
{
    char text[1024];
    va_list ap;

    if (r->opts.on_trace == NULL)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    r->opts.on_trace(r->opts.arg, text);
}

static const char *name(const struct rdzv *r, uint32_t rank)
{
    return rank < r->cluster.world ? r->cluster.tasks[rank].name : "no task";
}

static void add_view(const struct rdzv *r, const struct group_view *v, struct buf *b)
{
    buf_printf(b, " %" PRIu64 " of %u:", v->generation, v->n_members);
    for (uint32_t i = 0; i < v->n_members && i < MEMBERS_SHOWN; i++)
        buf_printf(b, "%s %s holds %" PRIu64, i > 0 ? "," : "", name(r, v->members[i].rank),
                   v->members[i].held);
    if (v->n_members > MEMBERS_SHOWN)
        buf_printf(b, ", and %u more", v->n_members - MEMBERS_SHOWN);
}

static void trace_msg(const struct rdzv *r, const char *way, uint32_t rank,
                      const struct member_msg *m)
{
    struct buf b = { 0 };

    if (r->opts.on_trace == NULL || m->kind == MEMBER_MSG_BEAT)
        return;
    buf_printf(&b, "%s %s: %s", way, name(r, rank), kinds[m->kind].name);
    if (m->view != NULL)
        add_view(r, m->view, &b);
    else if (m->generation > 0)
        buf_printf(&b, " generation %" PRIu64, m->generation);
    if (m->is_attaching)
        buf_str(&b, " attaching");
    if (m->kind == MEMBER_MSG_READY || m->held > 0)
        buf_printf(&b, " holds %" PRIu64, m->held);
    if (m->kind == MEMBER_MSG_TROUBLE || m->kind == MEMBER_MSG_OVER ||
        m->kind == MEMBER_MSG_REDIRECT)
        buf_printf(&b, " %s", name(r, m->rank));
    for (uint32_t i = 0; i < m->n_ranks; i++)
        buf_printf(&b, "%s %s",
                   i > 0                         ? ","
                   : m->kind == MEMBER_MSG_REACH ? " to"
                                                 : " dead paths to",
                   name(r, m->ranks[i]));
    if (m->kind == MEMBER_MSG_LEAVE || m->kind == MEMBER_MSG_OVER || m->kind == MEMBER_MSG_REFUSE)
        buf_printf(&b, m->code == MEMBER_CONTINUE ? " continue" : " code %d", m->code);
    if (m->is_all)
        buf_str(&b, " everywhere");
    if (m->text[0] != '\0')
        buf_printf(&b, ": %.*s", TEXT_SHOWN, m->text);
    if (!b.failed)
        r->opts.on_trace(r->opts.arg, b.data);
    buf_fini(&b);
}

void rdzv_msg_out(const struct rdzv *r, uint32_t rank, const struct member_msg *m)
{
    trace_msg(r, "to", rank, m);
    (void)fault_hit(kinds[m->kind].out); /* `fail` has no effect: a link loses no messages */
}

void rdzv_msg_in(const struct rdzv *r, uint32_t rank, const struct member_msg *m)
{
    trace_msg(r, "from", rank, m);
    (void)fault_hit(kinds[m->kind].in);
}

void rdzv_log(struct rdzv *r, const char *text, bool is_trouble)
{
    struct member_action say = { .kind = MEMBER_LOG, .text = text, .is_trouble = is_trouble };

    r->opts.on_action(r->opts.arg, &(struct rdzv_action){ .action = &say });
}

const char *rdzv_full_name(const struct rdzv *r, uint32_t rank, char out[400])
{
    snprintf(out, 400, "%.63s (%.320s)", r->cluster.tasks[rank].name,
             r->cluster.tasks[rank].address);
    return out;
}
