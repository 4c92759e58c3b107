/* advisor.h - collects the windows of the group, judges them if this task leads, and logs the advice.
 *
 * Every task measures windows (advice_window.h) and sends them with its heartbeats. The leader judges
 * one window of each training task of the view (advice.h), and its heartbeats carry the sentences back,
 * so every task shows the same ones. The leader logs each issue once, the others at level debug. A task without a group judges its own
 * windows. All functions run on the loop, except where a line names another thread. */
#ifndef DAEMON_ADVISOR_H
#define DAEMON_ADVISOR_H

#include <stdbool.h>
#include <stdint.h>

struct advice_group;
struct advisor;
struct group_view;
struct metrics;
struct rdzv;
struct rdzv_progress;
struct settled;
struct train_step_report;

/* `s` and `m` are borrowed. Never returns NULL (CHECK). */
struct advisor *advisor_new(const struct settled *s, struct metrics *m);
void advisor_free(struct advisor *a); /* NULL is allowed */

/* A generation begins. */
void advisor_begin(struct advisor *a, const struct group_view *view);
/* A step was made. Called on the thread that reports the steps of a generation. */
void advisor_step(struct advisor *a, const struct train_step_report *s);
/* Takes what is new, judges and logs. z NULL: this task has no group. */
void advisor_tick(struct advisor *a, const struct rdzv *z);
/* Returns true once after this task judged windows as the leader, and sets *out to them: valid until the next
 * tick. The window of a task that has none is NULL. */
bool advisor_judged(struct advisor *a, struct advice_group *out);
/* Sets window, advice and n_advice of *p; the data is that of the last tick at any time. */
void advisor_progress(const struct advisor *a, struct rdzv_progress *p);

#endif
