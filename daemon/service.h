/* service.h - notifies systemd (sd_notify). Without NOTIFY_SOCKET the functions have no effect.
 *
 * The unit has Type=notify. Messages: READY when training begins; STATUS when the status text
 * changes; WATCHDOG while the loop and training make progress; EXTEND_TIMEOUT_USEC while a long
 * start or stop makes progress; WATCHDOG_USEC if the unit's limit is shorter than the limits of this
 * task; RELOADING and READY before and after a reload (also as
 * Type=notify-reload requires); STOPPING. All functions are called on the loop's thread, or on the
 * main thread before the loop runs. */
#ifndef DAEMON_SERVICE_H
#define DAEMON_SERVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rdzv_progress;

void service_ready(void); /* only the first call has an effect */
void service_reloading(void);
void service_reloaded(void);
void service_stopping(void);
/* Sends the status text if it has changed, at most once a second. */
void service_status(const char *text);
/* Sends the final status text immediately, and STOPPING. */
void service_end(int exit_code, const char *text);
/* Sends WATCHDOG and EXTEND_TIMEOUT_USEC when they are due. Called several times a second by a
 * timer of the loop, so that the messages cease if the loop is stuck. training_ok false: training
 * is stuck; nothing is sent, and the service manager ends the process when its timeout expires. */
void service_watchdog(bool training_ok);

/* States the longest time after which this task ends by itself. The watchdog of the service manager must not
 * expire before: it would end a task that is about to save or to report the reason. A shorter limit of the unit
 * is raised. Called once, before the loop runs. */
void service_set_limit(uint64_t own_ms);

/* Writes the status text to `out` [n]; pure:
 * "train: step 120 of 440 (27 %), loss 0.31, generation 2, 3 of 4 tasks present; last trouble: ..."
 * generation 0: the task is not in a group. world 1: no cluster; the text does not mention
 * tasks. */
void service_status_text(const struct rdzv_progress *p, uint64_t generation, uint32_t present,
                         uint32_t world, uint64_t now_ms, char *out, size_t n);

#endif
