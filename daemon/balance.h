/* balance.h - decides when lanes (micro-batches) move from slow to fast tasks. Pure: time is a
 * parameter.
 *
 * The leader passes one window of each task at a time. Lanes move if a division planned from the medians
 * of three successive windows (comm/pieces.h) saves at least `gain` of a step in each of the three, so a
 * task that is slow for one window moves nothing. Each move is a trial (trial.h), whose gain is also what the move saves at
 * the present speeds. Where messages and not lanes decide the time of a step, the former division returns. */
#ifndef DAEMON_BALANCE_H
#define DAEMON_BALANCE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/group_view.h"
#include "comm/pieces.h"
#include "daemon/trial.h"

struct balance_limits {
    double gain;    /* least predicted saving, part of a step */
    double seconds; /* least time between two moves */
};

struct balance_window { /* of a group; borrowed during the call */
    uint64_t generation, steps;
    double step_seconds;               /* of a step of the slowest task; with spare lanes it may be shorter than
                                          its lanes */
    const double *seconds;             /* [world] of a lane on each rank, > 0 */
    uint32_t world, lanes, most;       /* most: lanes of the largest piece */
    const struct group_piece *pieces;  /* [n_pieces] present division; n_pieces 0: equal shares */
    uint32_t n_pieces;
    const uint32_t *shares;            /* [world] lanes of each rank without pieces; NULL: comm_share() */
};

struct balance_division {
    uint32_t n; /* 0: equal shares */
    struct group_piece pieces[GROUP_MAX_PIECES];
};

struct balance { /* initially zeroed */
    struct trial trial;
    double seconds[TRIAL_WINDOWS][PIECES_MAX_RANKS]; /* of the kept windows */
    struct balance_division former, present;         /* before and after the last move */
};

struct balance_move {
    bool returns;         /* to the former division */
    double before, after; /* seconds of a step: measured, predicted; if it returns: before the last move,
                             and now */
    struct balance_division to;
};

/* Judges a window. Returns true if the lanes shall move; the caller then regroups. */
bool balance_judge(struct balance *b, const struct balance_limits *limits,
                   const struct balance_window *w, uint64_t now_ms, struct balance_move *out);

#endif
