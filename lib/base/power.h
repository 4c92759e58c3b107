/* power.h - powers with the same bits everywhere, which pow() of different C libraries and processors
 * does not promise. Threads: pure functions. */
#ifndef BASE_POWER_H
#define BASE_POWER_H

#include <stdint.h>

/* x^n by squaring. */
double power_int(double x, uint64_t n);
/* x^y, x >= 0, y >= 0; exact as power_int() where y is an integer. */
double power_real(double x, double y);

#endif
