#include "sim/sim_priv.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const uint8_t *bytes(uint32_t incarnation)
{
    static uint8_t out[MEMBER_INCARNATION_BYTES];

    memcpy(out, &incarnation, sizeof(incarnation));
    return out;
}

static const struct member_ident ident = { "1", "job", "hash", "cluster", "cpu", "kernels", "" };

void sim_coordinator_up(struct sim *s)
{
    const char **names = calloc(s->opts.world, sizeof(*names));
    const char **addresses = calloc(s->opts.world, sizeof(*addresses));

    if (names == NULL || addresses == NULL)
        abort();
    for (uint32_t i = 0; i < s->opts.world; i++) {
        names[i] = s->names[i];
        addresses[i] = s->addresses[i];
        s->seats[i] = s->parked[i] = s->in_view[i] = 0;
        s->guilty[i] = s->tasks[i].is_cut;
    }
    s->coord = member_coord_new(&(struct member_coord_opts){ .world = s->opts.world,
                                                             .names = names,
                                                             .addresses = addresses,
                                                             .silent_ms = SIM_SILENT_MS,
                                                             .ident = &ident,
                                                             .n_devices = 1 },
                                s->now_ms);
    sim_later(s, 0, AT_COORD_TICK, COORD_TICK_MS);
    free(names);
    free(addresses);
}

void sim_coordinator_down(struct sim *s)
{
    for (uint32_t i = 1; i < s->links.n; i++)
        if (s->links.at[i].coordinator == s->tasks[0].incarnation && !s->links.at[i].is_broken)
            sim_break_link(s, i);
    member_coord_free(s->coord);
    s->coord = NULL;
}

static void publish_view(struct sim *s, const struct member_order *o)
{
    s->is_trained = false;
    sim_say(s, "coord", "generation %" PRIu64 ": %u tasks", o->generation, s->opts.world);
    for (uint32_t i = 0; i < s->opts.world; i++) {
        HOLDS(s, member_coord_task(s->coord, i)->state == MEMBER_TASK_ACTIVE);
        HOLDS(s, s->seats[i] != 0);
        s->in_view[i] = s->links.at[s->seats[i]].incarnation;
        sim_send(s, s->seats[i], DOWN_VIEW, 0, NULL);
    }
}

static void announce_over(struct sim *s, const struct member_order *o)
{
    sim_say(s, "coord", "over: %s", o->text);
    HOLDS(s,
          o->culprit < s->opts.world && s->guilty[o->culprit]); /* nobody is blamed for nothing */
    for (uint32_t i = 0; i < s->opts.world; i++)
        if (member_coord_task(s->coord, i)->state == MEMBER_TASK_ACTIVE || i == o->culprit)
            sim_send(s, s->seats[i], DOWN_OVER, 0, o->text);
}

static void perform_orders(struct sim *s)
{
    struct member_order o;

    while (member_coord_next(s->coord, &o)) {
        switch (o.kind) {
        case MEMBER_ORDER_ADMIT:
            HOLDS(s, s->seats[o.rank] == 0 && s->joining != 0);
            s->seats[o.rank] = s->joining;
            sim_send(s, s->joining, DOWN_WAITING, 0, NULL);
            s->joining = 0;
            break;
        case MEMBER_ORDER_REFUSE:
            HOLDS(s, false); /* all agree here */
            break;
        case MEMBER_ORDER_RETRY:
            sim_send(s, s->joining, DOWN_ENDED, 0, o.text);
            s->joining = 0;
            break;
        case MEMBER_ORDER_VIEW:
            publish_view(s, &o);
            break;
        case MEMBER_ORDER_OVER:
            announce_over(s, &o);
            break;
        case MEMBER_ORDER_DROP:
        case MEMBER_ORDER_REPLACE: /* of a process that is dead already */
            sim_send(s, s->seats[o.rank], DOWN_ENDED, 0, o.text);
            s->seats[o.rank] = 0;
            break;
        case MEMBER_ORDER_RELEASE:
            HOLDS(s, s->parked[o.rank] != 0); /* it did ask */
            sim_send(s, s->parked[o.rank], DOWN_ANSWER, o.complete, o.text);
            s->parked[o.rank] = 0;
            break;
        }
    }
}

void sim_at_coordinator(struct sim *s, const struct event *e)
{
    const struct link *l = &s->links.at[e->link];
    const uint8_t *inc = bytes(l->incarnation);

    if (s->coord == NULL || e->incarnation != s->tasks[0].incarnation)
        return; /* it has died meanwhile */
    if (e->kind == AT_COORD_TICK) {
        member_coord_tick(s->coord, s->now_ms);
        sim_later(s, 0, AT_COORD_TICK, COORD_TICK_MS);
    } else if (e->kind == UP_JOIN) {
        struct member_join j = { .rank = l->rank, .ident = ident, .n_devices = 1 };

        memcpy(j.incarnation, inc, sizeof(j.incarnation));
        s->joining = e->link;
        member_coord_join(s->coord, &j, s->now_ms);
    } else if (e->kind == UP_BEAT) {
        struct member_beat b = { .rank = l->rank, .phase = "train" };
        bool known;

        memcpy(b.incarnation, inc, sizeof(b.incarnation));
        known = member_coord_beat(s->coord, &b, s->now_ms);
        sim_send(s, e->link, DOWN_BEAT, known, NULL);
    } else if (e->kind == UP_LEAVE) {
        const struct member_task *t = member_coord_task(s->coord, l->rank);

        if (t->state == MEMBER_TASK_MISSING ||
            memcmp(t->incarnation, inc, sizeof(t->incarnation)) != 0) {
            sim_send(s, e->link, DOWN_ANSWER, true, NULL);
            return;
        }
        s->parked[l->rank] = e->link;
        if (l->rank == 0 && t->state == MEMBER_TASK_ACTIVE && e->value != MEMBER_LEAVE_FAILED &&
            member_coord_running(s->coord))
            s->is_complete |= e->value == MEMBER_LEAVE_COMPLETE;
        member_coord_leave(s->coord, l->rank, inc, e->generation, e->value, 0, e->text, s->now_ms);
    } else if (s->seats[l->rank] == e->link) { /* UP_CLOSED of the present stream */
        s->seats[l->rank] = 0;
        s->parked[l->rank] = s->parked[l->rank] == e->link ? 0 : s->parked[l->rank];
        member_coord_closed(s->coord, l->rank, inc, "", s->now_ms);
    }
    perform_orders(s);
    HOLDS(s, s->joining == 0); /* every Join is decided at once */
}
