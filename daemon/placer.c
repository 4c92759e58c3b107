/* placer.c - see placer.h.
 *
 * Inferred locations are "inferred-1/worker-0": a rack and a host. They travel in the view, so every task has the same
 * order of ranks, and they are those of exactly these processes: another group has the labels again, or none. */
#include "daemon/placer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/group_order.h"
#include "base/location.h"
#include "base/text.h"
#include "comm/traffic.h"
#include "daemon/advice_priv.h"
#include "daemon/placement.h"
#include "daemon/settle.h"
#include "rdzv/rdzv.h"

#define PREFIX "inferred-"

static const struct placement_limits limits = { .gain = 0.2, .seconds = 60 };

struct placer {
    const struct settled *s;
    struct placement state;
    /* The present window: the tasks by rank. */
    const struct group_view *view; /* in the order of base/group_order.h */
    uint32_t n, ids[PLACEMENT_MAX_TASKS];
    struct placement_link links[PLACEMENT_MAX_TASKS * PLACEMENT_MAX_TASKS];
    char locations[PLACEMENT_MAX_TASKS][LOCATION_BYTES]; /* [n] inferred */
    struct placement_move move;
};

struct placer *placer_new(const struct settled *s)
{
    struct placer *p = calloc(1, sizeof(*p));

    CHECK(p != NULL);
    p->s = s;
    return p;
}

void placer_free(struct placer *p)
{
    free(p);
}

static bool uses_local_sgd(const struct conf *c)
{
    for (uint32_t i = 0; i < c->run.n_phases; i++)
        if (c->run.phases[i].mode == TRAIN_LOCAL_SGD)
            return true;
    return false;
}

/* Waits by task are counted between CPUs; compressed gradients are exchanged in one level. */
static bool is_useful(const struct settled *s)
{
    const struct conf *c = s->conf;

    return c->communication.topology == CONF_TOPOLOGY_AUTO && !s->cluster->is_local &&
           s->devices[0].kind == DEVICE_CPU && !c->has_ps &&
           c->communication.code.kind == CODE_NONE && !uses_local_sgd(c);
}

/* ---- the window ---- */

static int by_rank(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

static uint32_t index_of(const struct placer *p, uint32_t rank)
{
    uint32_t i = 0;

    while (i < p->n && p->ids[i] != rank)
        i++;
    return i;
}

/* Sets *out to a window of all tasks. Returns false if one has none, or there are too many. */
static bool join_windows(struct placer *p, const struct advice_group *windows,
                         const struct group_view *v, struct placement_window *out)
{
    p->n = 0;
    p->view = v;
    memset(p->links, 0, sizeof(p->links));
    if (v->n_members > PLACEMENT_MAX_TASKS || v->n_pieces > 0)
        return false;
    *out = (struct placement_window){ .generation = v->generation, .steps = UINT64_MAX };
    for (uint32_t m = 0; m < v->n_members; m++) {
        const char *location = v->members[m].location;

        if (v->members[m].rank >= PLACEMENT_MAX_TASKS)
            return false;
        p->ids[p->n++] = v->members[m].rank;
        out->is_placed =
            out->is_placed || (location != NULL && strncmp(location, PREFIX, strlen(PREFIX)) == 0);
    }
    qsort(p->ids, p->n, sizeof(*p->ids), by_rank);
    for (uint32_t i = 0; i < p->n; i++) {
        const struct rdzv_window *w = windows->tasks[p->ids[i]].window;

        if (w == NULL)
            return false;
        out->steps = w->steps < out->steps ? w->steps : out->steps;
        out->step_seconds = w->seconds > out->step_seconds ? w->seconds : out->step_seconds;
        for (uint32_t k = 0; k < w->n_waits; k++) {
            uint32_t other = index_of(p, w->waits[k].rank);

            if (other < p->n)
                p->links[i * p->n + other] = (struct placement_link){
                    .is_used = true,
                    .late = w->waits[k].late,
                    .slow = w->waits[k].slow,
                    .rate = w->waits[k].rate,
                };
        }
    }
    out->n = p->n;
    out->ids = p->ids;
    out->links = p->links;
    return true;
}

/* ---- the prediction ---- */

static void name_locations(struct placer *p, const uint32_t *racks)
{
    for (uint32_t i = 0; i < p->n; i++) {
        char host[LOCATION_PART_BYTES + 1];

        for (uint32_t m = 0; m < p->view->n_members; m++)
            if (p->view->members[m].rank == p->ids[i])
                location_name(p->view->members[m].name, host);
        snprintf(p->locations[i], sizeof(p->locations[i]), PREFIX "%u/%s", racks[i] + 1, host);
    }
}

/* Vectors that a rack sends in a view in the order of base/group_order.h. */
static bool traffic(const struct placer *p, const struct group_view *v, const uint32_t *racks,
                    double *out)
{
    uint32_t of_member[PLACEMENT_MAX_TASKS];
    struct err err;

    for (uint32_t m = 0; m < v->n_members; m++)
        of_member[m] = racks[index_of(p, v->members[m].rank)];
    return comm_traffic(v, &p->s->lanes.tree, p->s->lanes.n,
                        p->s->conf->communication.shared_memory, of_member, out, &err) == 0;
}

static bool predict(void *arg, const uint32_t *racks, double *present, double *placed)
{
    struct placer *p = arg;
    struct arena memory = { 0 };
    struct group_member members[PLACEMENT_MAX_TASKS];
    struct group_view by_ranks = *p->view, ordered;
    bool ok;

    name_locations(p, racks);
    for (uint32_t m = 0; m < p->n; m++) { /* member 0 of the cluster's order stays the first */
        uint32_t i = index_of(p, p->view->members[m].rank);

        members[i] = p->view->members[m];
        members[i].location = p->locations[i];
    }
    by_ranks.members = members;
    ok = group_order_copy(&by_ranks, &memory, &ordered) && traffic(p, p->view, racks, present) &&
         traffic(p, &ordered, racks, placed);
    arena_fini(&memory);
    return ok;
}

/* ---- the sentence ---- */

static void describe_racks(const struct placer *p, const struct advice_group *windows,
                           struct buf *out)
{
    for (uint32_t rack = 0; rack < p->move.n_racks; rack++) {
        const char *before = "";

        buf_str(out, rack == 0 ? "" : " | ");
        for (uint32_t i = 0; i < p->n; i++)
            if (p->move.racks[i] == rack) {
                buf_printf(out, "%s%s", before, windows->tasks[p->ids[i]].name);
                before = ", ";
            }
    }
}

static void describe(const struct placer *p, const struct advice_group *windows, struct buf *out)
{
    const struct placement_move *m = &p->move;
    char before[32], after[32];

    text_duration(before, sizeof(before), (uint64_t)(1e9 * m->before));
    text_duration(after, sizeof(after), (uint64_t)(1e9 * m->after));
    if (m->returns) {
        buf_printf(
            out,
            "tasks are placed as before the measurement, since a step took %s then and takes %s now",
            before, after);
        return;
    }
    buf_printf(out, "tasks are placed by measured links: that between %s and %s carries %.3g MB/s",
               windows->tasks[m->a].name, windows->tasks[m->b].name, m->slow / 1e6);
    if (m->fast > 0)
        buf_printf(out, ", links inside inferred racks at least %.3g MB/s", m->fast / 1e6);
    else
        buf_str(out, ", no task waits for links inside inferred racks");
    buf_printf(out, "; %u racks: ", m->n_racks);
    describe_racks(p, windows, out);
    buf_printf(out,
               "; a rack sends %.3g gradients per step and will send %.3g; a step takes %s and is predicted to "
               "take %s (%.0f %% less)",
               m->sent_before, m->sent_after, before, after, 100 * (m->before - m->after) / m->before);
}

bool placer_judge(struct placer *p, const struct advice_group *windows, const struct group_view *v,
                  struct rdzv *z)
{
    const char *locations[PLACEMENT_MAX_TASKS];
    struct placement_window w;
    struct buf text = { 0 };

    if (!is_useful(p->s) || !join_windows(p, windows, v, &w))
        return false;
    w.predict = predict;
    w.arg = p;
    if (!placement_judge(&p->state, &limits, &w, clock_ms(), &p->move))
        return false;
    name_locations(p, p->move.racks);
    for (uint32_t i = 0; i < p->n; i++)
        locations[i] = p->move.returns ? NULL : p->locations[i];
    describe(p, windows, &text);
    CHECK(!text.failed);
    rdzv_place(z, locations, text.data);
    buf_fini(&text);
    return true;
}
