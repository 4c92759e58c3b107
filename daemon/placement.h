/* placement.h - decides which tasks are in a rack of their own, from the links that were slow in the steps. Pure: time is a
 * parameter.
 *
 * The leader passes one window of each task at a time. Rates of links are kept from window to window, since a task exchanges
 * with few others in one generation. Links are *slow* if one gap of at least PLACEMENT_GAP divides the rates; tasks that fast links
 * connect are an inferred rack. The time that a task waits for slow links between these racks is in proportion to the bytes that
 * a rack sends; so the saving of a new order of ranks follows from the bytes before and after. Tasks are placed anew if the
 * racks are the same and the saving is at least `gain` of a step in TRIAL_WINDOWS successive windows.
 *
 * Each placement is a trial (trial.h). If it is taken back, the former locations return, and the same racks are not tried
 * again. So a wrong inference costs two regroupings, and no more. */
#ifndef DAEMON_PLACEMENT_H
#define DAEMON_PLACEMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/trial.h"

enum {
    PLACEMENT_MAX_TASKS = 64, /* larger groups keep their labels */
    PLACEMENT_GAP = 3,
};

struct placement_limits {
    double gain;    /* least predicted saving, part of a step */
    double seconds; /* least time between two placements */
};

/* What a task waited for another one. */
struct placement_link {
    bool is_used;            /* the task waited for the other one, if only because it was late */
    double late, slow, rate; /* seconds of a step; bytes/s, 0: none */
};

struct placement_window { /* of a group; borrowed during the call */
    uint64_t generation, steps;
    double step_seconds; /* of a step of the slowest task */
    uint32_t n;          /* tasks, <= PLACEMENT_MAX_TASKS */
    const uint32_t *ids; /* [n] of the tasks, ascending, < PLACEMENT_MAX_TASKS: their ranks in the cluster */
    const struct placement_link *links; /* [n * n] at i * n + k: what task i waited for task k */
    bool is_placed;                     /* the view has inferred locations */
    /* Sets the vectors that a rack sends in an all-reduce at present, and if the tasks are placed by these racks, [n].
     * Returns false if that is not known. */
    bool (*predict)(void *arg, const uint32_t *racks, double *present, double *placed);
    void *arg;
};

struct placement_move {
    bool returns;         /* to the former locations: labels, or none */
    double before, after; /* seconds of a step: measured, predicted; if it returns: before the last move, and now */
    double sent_before, sent_after; /* vectors that a rack sends */
    uint32_t n_racks, racks[PLACEMENT_MAX_TASKS]; /* [n] of the window */
    uint32_t a, b;        /* ids of the tasks at the ends of the slowest link */
    double slow, fast;    /* its bytes/s, and the lowest rate of a fast link; 0: no fast link made a task wait */
};

struct placement { /* initially zeroed */
    struct trial trial;
    double rates[PLACEMENT_MAX_TASKS][PLACEMENT_MAX_TASKS]; /* by ids; 0: not known; INFINITY: no wait */
    uint32_t n_agree; /* successive windows with the racks of `last` and enough saving */
    struct placement_move last;
    bool has_refused; /* the racks `refused` brought nothing */
    uint32_t n_refused, refused[PLACEMENT_MAX_TASKS];
};

/* Groups tasks by the rates of their links: [n * n], symmetric; 0: not known; INFINITY: it made no task wait. Writes the number
 * of the rack of each task, from 0 in the order of tasks, and returns the number of racks; 1: no structure is visible. Sets the
 * highest rate of a slow link and the lowest of a fast one. */
uint32_t placement_find_racks(const double *rates, uint32_t n, uint32_t *racks, double *slow,
                              double *fast);

/* Judges a window. Returns true if the tasks shall be placed anew; the caller then regroups. */
bool placement_judge(struct placement *p, const struct placement_limits *limits,
                     const struct placement_window *w, uint64_t now_ms, struct placement_move *out);

#endif
