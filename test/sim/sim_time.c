#include "sim/sim_priv.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the tale ---- */

void sim_say(struct sim *s, const char *who, const char *fmt, ...)
{
    va_list ap;

    if (s->story.len > STORY_BYTES)
        return;
    buf_printf(&s->story, "[%" PRIu64 "] %-8s > ", s->now_ms, who);
    va_start(ap, fmt);
    buf_vprintf(&s->story, fmt, ap);
    va_end(ap);
    buf_str(&s->story, "\n");
}

void sim_broken(struct sim *s, const char *what, const char *file, int line)
{
    fprintf(stderr, "%s\n%s:%d: seed %" PRIu64 ", world %u: does not hold: %s\n", sim_story(s),
            file, line, s->opts.seed, s->opts.world, what);
    abort();
}

/* ---- chance and time ---- */

uint64_t sim_below(struct sim *s, uint64_t n)
{
    s->random ^= s->random << 13;
    s->random ^= s->random >> 7;
    s->random ^= s->random << 17;
    return n > 0 ? (s->random >> 11) % n : 0;
}

static bool is_before(const struct event *a, const struct event *b)
{
    return a->at_ms != b->at_ms ? a->at_ms < b->at_ms : a->number < b->number;
}

static void push(struct sim *s, struct event e)
{
    size_t i;

    e.number = ++s->number;
    if (!VEC_PUSH(s->heap, e))
        abort();
    for (i = s->heap.n - 1; i > 0 && is_before(&e, &s->heap.at[(i - 1) / 2]); i = (i - 1) / 2)
        s->heap.at[i] = s->heap.at[(i - 1) / 2];
    s->heap.at[i] = e;
}

struct event sim_pop(struct sim *s)
{
    struct event top = s->heap.at[0], last = s->heap.at[--s->heap.n];
    size_t i = 0, child;

    while ((child = 2 * i + 1) < s->heap.n) {
        if (child + 1 < s->heap.n && is_before(&s->heap.at[child + 1], &s->heap.at[child]))
            child++;
        if (!is_before(&s->heap.at[child], &last))
            break;
        s->heap.at[i] = s->heap.at[child];
        i = child;
    }
    if (s->heap.n > 0)
        s->heap.at[i] = last;
    return top;
}

void sim_later(struct sim *s, uint32_t rank, enum kind kind, uint64_t ms)
{
    push(s, (struct event){ .at_ms = s->now_ms + ms, .kind = kind, .rank = rank,
                            .incarnation = s->tasks[rank].incarnation });
}

/* ---- links ---- */

static uint64_t coordinator_generation(const struct sim *s)
{
    return s->coord != NULL ? member_coord_generation(s->coord) : 0;
}

void sim_send(struct sim *s, uint32_t at, enum kind kind, int value, const char *text)
{
    struct link *l = &s->links.at[at];
    bool up = kind >= UP_JOIN;
    uint64_t *last = up ? &l->up_ms : &l->down_ms;
    uint64_t delay_ms = 1 + sim_below(s, s->opts.delay_ms);

    if (at == 0 || l->is_broken || s->tasks[l->rank].is_cut)
        return;
    /* What a worker says carries the generation that it knows; a view, that of the coordinator. */
    *last = s->now_ms + delay_ms > *last ? s->now_ms + delay_ms : *last;
    push(s, (struct event){ .at_ms = *last,
                            .kind = kind,
                            .rank = up ? 0 : l->rank,
                            .incarnation = up ? l->coordinator : l->incarnation,
                            .link = at,
                            .generation =
                                up ? s->tasks[l->rank].generation : coordinator_generation(s),
                            .value = value,
                            .text = text != NULL ? strdup(text) : NULL });
    if (s->opts.break_one_in > 0 && sim_below(s, s->opts.break_one_in) == 0)
        sim_disconnect(s, l->rank);
}

void sim_break_link(struct sim *s, uint32_t at)
{
    if (at == 0 || s->links.at[at].is_broken)
        return;
    sim_send(s, at, UP_CLOSED, 0, NULL);
    sim_send(s, at, DOWN_CLOSED, 0, NULL);
    s->links.at[at].is_broken = true;
}

void sim_disconnect(struct sim *s, uint32_t rank)
{
    uint32_t at = s->tasks[rank].link, chance = s->opts.break_one_in;

    s->guilty[rank] = true;
    s->opts.break_one_in = 0; /* the news of it arrives */
    sim_break_link(s, at);
    s->opts.break_one_in = chance;
}
