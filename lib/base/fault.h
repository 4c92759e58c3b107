/* fault.h - named fault points, at which a test injects faults.
 *
 * While no fault is armed, a fault point costs one relaxed load. Faults are armed through the
 * environment or, in a unit test, by fault_arm():
 *
 *     TRAINERD_FAULT="name[=action][@n[+|-m]],..."
 *
 * Actions: fail (default), exit, kill, stop, delay:MS, touch:FILE (creates the file), wait:FILE (until the file
 * exists: with touch, a test orders several processes or threads), hang (for ever), hold (until fault_arm() is
 * called again: a unit test orders two threads). The fault fires at the n-th passage of
 * its point (default 1); with + also at every later passage, with -m also at those up to the m-th. A process with an invalid
 * TRAINERD_FAULT exits with code 2 at its first fault point; `exit` exits with code 138 without
 * flushing. Threads: any. */
#ifndef BASE_FAULT_H
#define BASE_FAULT_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>

struct err;

/* Returns true if the caller must behave as if its operation had failed (action `fail`). Performs
 * the other actions before it returns. */
bool fault_hit(const char *name);
/* As fault_hit(), for callers that report errors. Returns ERR_DEVICE "fault point NAME" where fault_hit()
 * would return true, and 0 otherwise. */
int fault_error(const char *name, struct err *err);
/* Wraps a system call: if the fault fires, the call is not made and fails with EIO. */
#define FAULT_TRY(point_, call_) (fault_hit(point_) ? (errno = EIO, -1) : (call_))

/* For tests. Arms the faults of `spec`, in the syntax of the environment variable, and resets the
 * counts; NULL disarms all faults. Errors: ERR_INPUT (invalid syntax). */
int fault_arm(const char *spec, struct err *err);
/* Returns the number of passages of all points since the last fault_arm(), counted while a fault is
 * armed. "*@n" arms the n-th passage of any point, so a test can inject a fault at the 1st, 2nd,
 * ... passage until there are no more. */
uint64_t fault_n_passages(void);
bool fault_fired(void); /* true if a fault has fired since the last fault_arm() */

#endif
