/* stop_signals.h - the signals that end a task after it has saved: SIGTERM, SIGINT, SIGXCPU (the limit of
 * processor time is reached), and SIGUSR1 and SIGUSR2, with which batch systems announce that the time of a job
 * ends (Slurm's --signal, -notify of Grid Engine).
 *
 * Threads: that of main(). */
#ifndef DAEMON_STOP_SIGNALS_H
#define DAEMON_STOP_SIGNALS_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

struct err;

/* --usr-signals: "stop" (also NULL), or "ignore": SIGUSR1 and SIGUSR2 are ignored from now on and are not in the
 * list. Errors: ERR_INPUT. */
int stop_signals_select(const char *word, struct err *err);
/* Returns the list, and its length in *n. */
const int *stop_signals(size_t *n);
/* Sets the handler of each of them. */
void stop_signals_handle(void (*handler)(int signum));
void stop_signals_add(sigset_t *set);
/* Returns true if one of them was sent while it was blocked. */
bool stop_signals_are_pending(void);
/* Returns "SIGTERM" of a signal in the list. */
const char *stop_signal_name(int signum);
/* Returns true for an announcement, which never counts as a second request to end: SIGUSR1, SIGUSR2, and SIGXCPU,
 * which the kernel sends again every second. */
bool stop_signal_announces(int signum);

#endif
