/* node_time.c - chance, the queue of events, the tale. */
#include "sim/node_sim_priv.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *simn_alloc(size_t n)
{
    void *p = calloc(1, n);

    if (p == NULL)
        abort();
    return p;
}

/* ---- the tale ---- */

void simn_say(struct simn *s, uint32_t rank, const char *fmt, ...)
{
    va_list ap;

    if (!s->opts.tell || s->story.len > STORY_BYTES)
        return;
    buf_printf(&s->story, "[%" PRIu64 "] %-9s > ", s->now_ms,
               rank < s->opts.world ? s->names[rank] : "world");
    va_start(ap, fmt);
    buf_vprintf(&s->story, fmt, ap);
    va_end(ap);
    buf_str(&s->story, "\n");
}

void simn_broken(struct simn *s, const char *fmt, ...)
{
    va_list ap;

    if (s->is_broken)
        return;
    s->is_broken = true;
    buf_printf(&s->finding, "seed %" PRIu64 ", world %u, at %" PRIu64 " ms: ", s->opts.seed,
               s->opts.world, s->now_ms);
    va_start(ap, fmt);
    buf_vprintf(&s->finding, fmt, ap);
    va_end(ap);
    if (s->opts.tell) {
        fprintf(stderr, "%s\nFOUND: %s\n", simn_story(s), s->finding.data);
        abort();
    }
}

const char *simn_finding(const struct simn *s)
{
    return s->is_broken ? s->finding.data : NULL;
}

const char *simn_story(const struct simn *s)
{
    return s->story.data != NULL ? s->story.data : "";
}

void simn_forget(struct simn *s)
{
    buf_reset(&s->story);
    if (s->story.data != NULL)
        s->story.data[0] = '\0';
}

/* ---- chance and time ---- */

uint64_t simn_random(struct simn *s, uint64_t n)
{
    s->random ^= s->random << 13;
    s->random ^= s->random >> 7;
    s->random ^= s->random << 17;
    return n > 0 ? (s->random >> 11) % n : 0;
}

uint64_t simn_delay(struct simn *s)
{
    return 1 + (s->opts.delay_ms > 1 ? simn_random(s, s->opts.delay_ms) : 0);
}

static bool is_before(const struct simn_event *a, const struct simn_event *b)
{
    return a->at_ms != b->at_ms ? a->at_ms < b->at_ms : a->number < b->number;
}

void simn_push_again(struct simn *s, struct simn_event e)
{
    size_t i;

    if (!VEC_PUSH(s->heap, e))
        abort();
    for (i = s->heap.n - 1; i > 0 && is_before(&e, &s->heap.at[(i - 1) / 2]); i = (i - 1) / 2)
        s->heap.at[i] = s->heap.at[(i - 1) / 2];
    s->heap.at[i] = e;
}

uint64_t simn_push(struct simn *s, struct simn_event e)
{
    e.number = ++s->number;
    simn_push_again(s, e);
    return e.number;
}

struct simn_event simn_pop(struct simn *s)
{
    struct simn_event top = s->heap.at[0], last = s->heap.at[--s->heap.n];
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

/* ---- clocks: each task has its own, of its own speed; none goes back ---- */

uint64_t simn_clock(const struct simn *s, uint32_t rank)
{
    const struct simn_task *t = &s->tasks[rank];

    return t->clock_ms + (s->now_ms - t->clock_at_ms) * t->clock_speed / 1000;
}

uint64_t simn_real_ms(const struct simn *s, uint32_t rank, uint64_t own_ms)
{
    uint64_t ms = own_ms * 1000 / s->tasks[rank].clock_speed;

    return ms > 0 ? ms : 1;
}

void simn_clock_jumps(struct simn *s, uint32_t rank, uint64_t ms)
{
    struct simn_task *t = &s->tasks[rank];

    t->clock_ms = simn_clock(s, rank) + ms;
    t->clock_at_ms = s->now_ms;
    simn_say(s, rank, "its clock jumps by %" PRIu64 " ms", ms);
}
