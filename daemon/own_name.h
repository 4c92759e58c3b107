/* own_name.h - waits at the start until the name of this task can be used. */
#ifndef DAEMON_OWN_NAME_H
#define DAEMON_OWN_NAME_H

struct err;
struct settled;

/* Waits, for at most train.deadline_seconds, until the host of this task in the cluster text resolves to
 * an address of this host, as a service of names may learn it some seconds after the start; logs that it
 * waits. Does nothing for a task that listens on every address or opens no port. Called on the main thread
 * while the stop signals are blocked. Errors: ERR_CANCELED (a stop signal, which is then no longer
 * pending), ERR_INPUT (the addresses are those of another host, or of the loopback interface although
 * other tasks are on other hosts), ERR_IO (no address). */
int own_name_wait(const struct settled *s, struct err *err);

#endif
