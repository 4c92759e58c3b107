/* worker.c - the life of one task.
 *
 *               admitted            view            stop
 *     JOINING ------------> WAITING ----> ACTIVE ----------> DRAINING
 *        ^  <---------------   |             |  \                |   \
 *        |   coordinator lost  | stop,       |   \ lost, over    |    \ lost, over
 *        |   or over           | deadline,   |    +-----> GONE   |     +-----> GONE
 *     start                    | error       | complete, error   | stopped, complete, error
 *                              +----------> LEAVING <------------+
 *                                              | answered, lost, over
 *                                              +-----> GONE                                   */
#include "member/member.h"

#include <stddef.h>

#include "base/check.h"

#define MOVE(s_, ev_, to_, do_) { MEMBER_##s_, MEMBER_EV_##ev_, MEMBER_##to_, MEMBER_DO_##do_ }
static const struct member_move moves[] = {
    /*   in state   when          go to      and tell the skin to    */
    MOVE(JOINING,   START,        JOINING,   JOIN),
    MOVE(JOINING,   ADMITTED,     WAITING,   NOTHING),
    MOVE(JOINING,   GROUP_READY,  ACTIVE,    TRAIN),   /* we were the last */
    MOVE(JOINING,   COORD_LOST,   JOINING,   JOIN),    /* after a pause */
    MOVE(JOINING,   REFUSED,      GONE,      END),
    MOVE(JOINING,   DEADLINE,     GONE,      END),
    MOVE(JOINING,   STOP,         GONE,      END),
    MOVE(JOINING,   STOPPED,      GONE,      END),
    MOVE(JOINING,   COMPLETE,     GONE,      END),
    MOVE(JOINING,   FAILED,       GONE,      END),

    MOVE(WAITING,   GROUP_READY,  ACTIVE,    TRAIN),
    MOVE(WAITING,   GROUP_OVER,   JOINING,   JOIN),    /* nothing was trained: nothing is lost */
    MOVE(WAITING,   COORD_LOST,   JOINING,   JOIN),    /* it restarts while we wait */
    MOVE(WAITING,   REFUSED,      GONE,      END),     /* another process took our place */
    MOVE(WAITING,   DEADLINE,     LEAVING,   LEAVE),
    MOVE(WAITING,   STOP,         LEAVING,   LEAVE),
    MOVE(WAITING,   STOPPED,      LEAVING,   LEAVE),
    MOVE(WAITING,   COMPLETE,     LEAVING,   LEAVE),
    MOVE(WAITING,   FAILED,       LEAVING,   LEAVE),

    MOVE(ACTIVE,    GROUP_OVER,   GONE,      ABORT),
    MOVE(ACTIVE,    COORD_LOST,   GONE,      ABORT),
    MOVE(ACTIVE,    REFUSED,      GONE,      ABORT),
    MOVE(ACTIVE,    STOP,         DRAINING,  DRAIN),
    MOVE(ACTIVE,    STOPPED,      LEAVING,   LEAVE),   /* a peer had asked for the stop */
    MOVE(ACTIVE,    COMPLETE,     LEAVING,   LEAVE),
    MOVE(ACTIVE,    FAILED,       LEAVING,   LEAVE),

    MOVE(DRAINING,  GROUP_OVER,   GONE,      ABORT),
    MOVE(DRAINING,  COORD_LOST,   GONE,      ABORT),
    MOVE(DRAINING,  REFUSED,      GONE,      ABORT),
    MOVE(DRAINING,  STOP,         DRAINING,  DRAIN),   /* first here, then everywhere */
    MOVE(DRAINING,  STOPPED,      LEAVING,   LEAVE),
    MOVE(DRAINING,  COMPLETE,     LEAVING,   LEAVE),   /* the last step came before the stop */
    MOVE(DRAINING,  FAILED,       LEAVING,   LEAVE),

    MOVE(LEAVING,   LEFT,         GONE,      END),
    MOVE(LEAVING,   GROUP_OVER,   GONE,      END),     /* the last state is not safe */
    MOVE(LEAVING,   COORD_LOST,   GONE,      END),     /* nobody says that it is */
    MOVE(LEAVING,   REFUSED,      GONE,      END),
};
#undef MOVE

/* Late news that changes nothing. */
#define EV(e_) (1u << MEMBER_EV_##e_)
static const uint32_t ignored[MEMBER_STATES] = {
    [MEMBER_JOINING] = EV(GROUP_OVER) | EV(LEFT),
    [MEMBER_WAITING] = EV(START) | EV(ADMITTED) | EV(LEFT),
    [MEMBER_ACTIVE] = EV(START) | EV(ADMITTED) | EV(GROUP_READY) | EV(DEADLINE) | EV(LEFT),
    [MEMBER_DRAINING] = EV(START) | EV(ADMITTED) | EV(GROUP_READY) | EV(DEADLINE) | EV(LEFT),
    [MEMBER_LEAVING] = EV(START) | EV(ADMITTED) | EV(GROUP_READY) | EV(DEADLINE) | EV(STOP) |
                       EV(STOPPED) | EV(COMPLETE) | EV(FAILED),
    [MEMBER_GONE] = (1u << MEMBER_EVENTS) - 1,
};
#undef EV

void member_worker_init(struct member_worker *w, uint64_t now_ms)
{
    w->state = MEMBER_JOINING;
    w->since_ms = now_ms;
}

bool member_ignored(enum member_state s, enum member_event e)
{
    CHECK(s < MEMBER_STATES && e < MEMBER_EVENTS);
    return (ignored[s] >> e & 1) != 0;
}

enum member_action member_worker_step(struct member_worker *w, enum member_event ev,
                                      uint64_t now_ms, const struct member_move **out)
{
    for (size_t i = 0; i < COUNT_OF(moves); i++) {
        const struct member_move *m = &moves[i];

        if (m->from != w->state || m->on != ev)
            continue;
        if (m->to != m->from)
            w->since_ms = now_ms;
        w->state = m->to;
        *out = m;
        return m->act;
    }
    CHECK(member_ignored(w->state, ev)); /* a pair that nobody thought of */
    *out = NULL;
    return MEMBER_DO_NOTHING;
}

const struct member_move *member_moves(uint32_t *n)
{
    *n = COUNT_OF(moves);
    return moves;
}

const char *member_state_name(enum member_state s)
{
    static const char *const names[MEMBER_STATES] = {
        [MEMBER_JOINING] = "joining",   [MEMBER_WAITING] = "waiting", [MEMBER_ACTIVE] = "active",
        [MEMBER_DRAINING] = "draining", [MEMBER_LEAVING] = "leaving", [MEMBER_GONE] = "gone",
    };

    CHECK(s < MEMBER_STATES);
    return names[s];
}

const char *member_event_name(enum member_event e)
{
    static const char *const names[MEMBER_EVENTS] = {
        [MEMBER_EV_START] = "start",
        [MEMBER_EV_ADMITTED] = "admitted",
        [MEMBER_EV_GROUP_READY] = "group_ready",
        [MEMBER_EV_GROUP_OVER] = "group_over",
        [MEMBER_EV_COORD_LOST] = "coord_lost",
        [MEMBER_EV_REFUSED] = "refused",
        [MEMBER_EV_DEADLINE] = "deadline",
        [MEMBER_EV_STOP] = "stop",
        [MEMBER_EV_STOPPED] = "stopped",
        [MEMBER_EV_COMPLETE] = "complete",
        [MEMBER_EV_FAILED] = "failed",
        [MEMBER_EV_LEFT] = "left",
    };

    CHECK(e < MEMBER_EVENTS);
    return names[e];
}

const char *member_action_name(enum member_action a)
{
    static const char *const names[] = {
        [MEMBER_DO_NOTHING] = "nothing", [MEMBER_DO_JOIN] = "join",   [MEMBER_DO_TRAIN] = "train",
        [MEMBER_DO_DRAIN] = "drain",     [MEMBER_DO_LEAVE] = "leave", [MEMBER_DO_ABORT] = "abort",
        [MEMBER_DO_END] = "end",
    };

    CHECK(a < COUNT_OF(names));
    return names[a];
}
