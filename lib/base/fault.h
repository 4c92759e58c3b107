/* fault.h - named places where a test can make things go wrong.
 *
 * A fault point costs one relaxed load when nothing is armed. Armed through the environment
 * (TRAINERD_FAULT="name[=action][@n[+]],...", actions: fail (default), exit, kill, stop, delay:MS,
 * hang; fires at the n-th passage (default 1), with + at every one from there) or by fault_arm()
 * in a unit test. A process with an unreadable TRAINERD_FAULT ends with code 2 at its first fault
 * point; `exit` ends with 138, without flushing anything. Threads: any. */
#ifndef BASE_FAULT_H
#define BASE_FAULT_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>

struct err;

/* true: the caller behaves as if the operation had failed. The other actions happen inside. */
bool fault_hit(const char *name);
/* The same as an error: ERR_DEVICE "fault point NAME" instead of true, 0 instead of false. */
int fault_error(const char *name, struct err *err);
/* In front of a system call: the call fails with EIO without being made. */
#define FAULT_TRY(point_, call_) (fault_hit(point_) ? (errno = EIO, -1) : (call_))

/* For tests. `spec` as in the environment; NULL disarms everything and resets the counts.
 * ERR_INPUT if it cannot be read. */
int fault_arm(const char *spec, struct err *err);
/* Passages of all points since the last fault_arm(), counted while anything is armed: a test fails
 * the 1st, 2nd, ... until it is not reached any more ("*@n" arms the n-th passage of any point). */
uint64_t fault_passed(void);
bool fault_fired(void);

#endif
