/* clock.h - monotonic and wall-clock time; a test can freeze the monotonic clock. Threads: any. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

uint64_t clock_ns(void);      /* monotonic; the fake clock if one is set */
uint64_t clock_ms(void);      /* clock_ns() / 1e6 */
uint64_t clock_wall_us(void); /* microseconds since 1970, UTC */
/* Returns the time on CLOCK_MONOTONIC in `ms` milliseconds, at most eleven days: for waits with a limit,
 * which a change of the wall clock must not prolong. Not affected by clock_fake(). */
struct timespec clock_after_ms(uint64_t ms);
/* For tests: freezes clock_ns() at `ns`; UINT64_MAX restores the real clock. */
void clock_fake(uint64_t ns);

#endif
