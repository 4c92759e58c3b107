/* advice.c - advice in four steps: environment, needs, strategy, improve; see print.h. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/text.h"
#include "preflight/judge_priv.h"
#include "preflight/print.h"

/* A ring or a halving/doubling all-reduce sends 2 (n - 1) / n times the gradients from each host; its
 * slowest path decides. Paths inside a host are faster than measured, so the estimate is an upper
 * limit for the transport, without the computation of the step. */
bool print_estimate(const struct preflight_table *t, struct print_estimate *out)
{
    uint64_t rate = judge_slowest(t), state = 0, gradients = 0, open_ms = 0;

    for (uint32_t i = 0; i < t->world; i++)
        if (t->rows[i].present) {
            const struct preflight_facts *f = &t->rows[i].facts;

            state = f->state_bytes > state ? f->state_bytes : state;
            gradients = f->gradient_bytes > gradients ? f->gradient_bytes : gradients;
            open_ms = f->open_ms > open_ms ? f->open_ms : open_ms;
        }
    if (rate == 0 || state == 0)
        return false;
    out->open = (double)open_ms / 1e3;
    out->transfer = (double)state / (double)rate;
    out->reduce = 2.0 * (t->world - 1) / t->world * (double)gradients / (double)rate;
    return true;
}

static void environment(const struct preflight_table *t, struct buf *out)
{
    uint32_t present = 0, worst_us = 0, sync_us = 0;
    uint64_t slowest = judge_slowest(t);
    char rate[32], trip[32], sync[32];

    for (uint32_t i = 0; i < t->world; i++) {
        present += t->rows[i].present;
        if (t->rows[i].present && t->rows[i].facts.sync_us > sync_us)
            sync_us = t->rows[i].facts.sync_us;
        for (uint32_t k = 0; k < t->world; k++) {
            const struct preflight_entry *e = judge_entry(t, i, k);

            worst_us = e != NULL && e->rtt_us > worst_us ? e->rtt_us : worst_us;
        }
    }
    text_bytes(rate, sizeof(rate), slowest);
    text_duration(trip, sizeof(trip), 1000ull * worst_us);
    text_duration(sync, sizeof(sync), 1000ull * sync_us);
    buf_printf(out, "1. environment: %u of %u tasks answered", present, t->world);
    if (slowest > 0)
        buf_printf(out, "; slowest path %s/s, longest round trip %s", rate, trip);
    if (sync_us > 0)
        buf_printf(out, "; a write, fsync and rename in the storage takes up to %s", sync);
    buf_str(out, ".\n");
}

static void needs(const struct preflight_table *t, struct buf *out)
{
    const struct preflight_facts *f = NULL;
    struct print_estimate e;
    char state[32], gradients[32];

    for (uint32_t i = 0; i < t->world; i++)
        if (t->rows[i].present && (f == NULL || t->rows[i].facts.state_bytes > f->state_bytes))
            f = &t->rows[i].facts;
    if (f == NULL || f->state_bytes == 0) {
        buf_str(out, "2. needs: the model was not opened, so the size of its state is unknown.\n");
        return;
    }
    text_bytes(state, sizeof(state), f->state_bytes);
    text_bytes(gradients, sizeof(gradients), f->gradient_bytes);
    buf_printf(out, "2. needs: the state has %s, an all-reduce %s", state, gradients);
    if (print_estimate(t, &e))
        buf_printf(out, "; estimated time to the first step: %.1f s (open model and data %.1f s, send a checkpoint's state "
                        "to a task %.1f s, all-reduce %.3f s), and the computation of the step",
                   e.open + e.transfer + e.reduce, e.open, e.transfer, e.reduce);
    buf_str(out, ".\n");
}

static void strategy(const struct preflight_table *t, struct buf *out)
{
    struct print_estimate e;

    if (!print_estimate(t, &e))
        buf_str(
            out,
            "3. strategy: repair the faults first; no path was measured, or the model was not opened.\n");
    else
        buf_printf(out, "3. strategy: let each replica compute longer than the all-reduce of %.3f s in a step "
                        "(train.global_batch_size, train.lanes).\n", e.reduce);
}

void print_advice(const struct preflight_table *t, const struct preflight_findings *f,
                  struct buf *out)
{
    uint32_t n = 0;

    environment(t, out);
    needs(t, out);
    strategy(t, out);
    buf_str(out, "4. improve:");
    for (uint32_t i = 0; i < f->n; i++) {
        const struct preflight_finding *x = &f->at[i];

        if (x->severity != PREFLIGHT_FAULT)
            continue;
        buf_printf(out, "\n   %u) %s%s%s", ++n,
                   x->task != PREFLIGHT_NO_TASK ? t->tasks[x->task].name : "all tasks",
                   x->other != PREFLIGHT_NO_TASK ? " and " : "",
                   x->other != PREFLIGHT_NO_TASK ? t->tasks[x->other].name : "");
        buf_printf(out, " (%s): %s", x->what, x->remedy);
    }
    buf_str(out, n > 0 ? "\n   then repeat the preflight.\n"
                       : " nothing; repeat the preflight after a change of hosts or network.\n");
}
