/* sim_time.c - random numbers, the queue of events, and the log. */
#include "sim/sim_priv.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *sim_alloc(size_t n)
{
    void *p = calloc(1, n);

    if (p == NULL)
        abort();
    return p;
}

/* ---- the log ---- */

void sim_print(struct sim *s, uint32_t rank, const char *fmt, ...)
{
    va_list ap;

    if (!s->opts.tell || s->log.len > LOG_BYTES)
        return;
    buf_printf(&s->log, "[%" PRIu64 "] %-9s > ", s->now_ms,
               rank < s->opts.world ? s->names[rank] : "world");
    va_start(ap, fmt);
    buf_vprintf(&s->log, fmt, ap);
    va_end(ap);
    buf_str(&s->log, "\n");
}

void sim_fail_run(struct sim *s, const char *fmt, ...)
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
        fprintf(stderr, "%s\nFOUND: %s\n", sim_log(s), s->finding.data);
        abort();
    }
}

const char *sim_finding(const struct sim *s)
{
    return s->is_broken ? s->finding.data : NULL;
}

const char *sim_log(const struct sim *s)
{
    return s->log.data != NULL ? s->log.data : "";
}

void sim_reset_log(struct sim *s)
{
    buf_reset(&s->log);
    if (s->log.data != NULL)
        s->log.data[0] = '\0';
}

/* ---- random numbers and time ---- */

uint64_t sim_random(struct sim *s, uint64_t n)
{
    s->random ^= s->random << 13;
    s->random ^= s->random >> 7;
    s->random ^= s->random << 17;
    return n > 0 ? (s->random >> 11) % n : 0;
}

uint64_t sim_delay(struct sim *s)
{
    return 1 + (s->opts.delay_ms > 1 ? sim_random(s, s->opts.delay_ms) : 0);
}

static bool is_before(const struct sim_event *a, const struct sim_event *b)
{
    return a->at_ms != b->at_ms ? a->at_ms < b->at_ms : a->number < b->number;
}

void sim_push_again(struct sim *s, struct sim_event e)
{
    size_t i;

    if (!VEC_PUSH(s->heap, e))
        abort();
    for (i = s->heap.n - 1; i > 0 && is_before(&e, &s->heap.at[(i - 1) / 2]); i = (i - 1) / 2)
        s->heap.at[i] = s->heap.at[(i - 1) / 2];
    s->heap.at[i] = e;
}

uint64_t sim_push(struct sim *s, struct sim_event e)
{
    e.number = ++s->number;
    sim_push_again(s, e);
    return e.number;
}

struct sim_event sim_pop(struct sim *s)
{
    struct sim_event top = s->heap.at[0], last = s->heap.at[--s->heap.n];
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

/* ---- clocks: each task has a clock with its own speed; none goes backwards ---- */

uint64_t sim_clock(const struct sim *s, uint32_t rank)
{
    const struct sim_task *t = &s->tasks[rank];

    return t->clock_ms + (s->now_ms - t->clock_at_ms) * t->clock_speed / 1000;
}

uint64_t sim_real_ms(const struct sim *s, uint32_t rank, uint64_t own_ms)
{
    uint64_t ms = own_ms * 1000 / s->tasks[rank].clock_speed;

    return ms > 0 ? ms : 1;
}

void sim_clock_jumps(struct sim *s, uint32_t rank, uint64_t ms)
{
    struct sim_task *t = &s->tasks[rank];

    t->clock_ms = sim_clock(s, rank) + ms;
    t->clock_at_ms = s->now_ms;
    sim_print(s, rank, "its clock jumps by %" PRIu64 " ms", ms);
}
