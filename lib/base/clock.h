/* clock.h - monotonic and wall-clock time; a test can freeze the monotonic clock. Threads: any. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

uint64_t clock_ns(void);      /* monotonic; the fake clock if one is set */
uint64_t clock_ms(void);      /* clock_ns() / 1e6 */
uint64_t clock_wall_us(void); /* microseconds since 1970, UTC */
/* For tests: freezes clock_ns() at `ns`; UINT64_MAX restores the real clock. */
void clock_fake(uint64_t ns);

#endif
