/* advice_window.h - sums up the steps of this task to windows, which heartbeats carry to the leader.
 *
 * The first step of a generation belongs to no window: its waits include those for the connection. A
 * window that a generation does not complete is dropped.
 *
 * Threads: advice_window_begin() and advice_window_take() on the loop; advice_window_step() on the
 * thread that reports the steps of a generation. */
#ifndef DAEMON_ADVICE_WINDOW_H
#define DAEMON_ADVICE_WINDOW_H

#include <stdbool.h>

#include "rdzv/window.h"

struct advice_limits;
struct advice_window;
struct group_view;
struct train_step_report;

/* n_devices: of this task. Never returns NULL (CHECK). */
struct advice_window *advice_window_new(const struct advice_limits *limits, uint32_t n_devices);
void advice_window_free(struct advice_window *w); /* NULL is allowed */
/* A generation begins with these members; a window that is open is dropped. */
void advice_window_begin(struct advice_window *w, const struct group_view *view);
void advice_window_step(struct advice_window *w, const struct train_step_report *s);
/* Copies a window that was completed since the last call, without `others`, `steal` and `storage`. Returns false
 * if no window was completed. */
bool advice_window_take(struct advice_window *w, struct rdzv_window *out);

#endif
