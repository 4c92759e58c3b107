/* power.h - powers with the same bits in every C library. Tasks compare the kernel library and the
 * instruction set when they join, but not the C library, whose pow() may differ in the last bit; a
 * learning rate must be the same on all of them. Threads: pure functions. */
#ifndef BASE_POWER_H
#define BASE_POWER_H

#include <stdint.h>

/* x^n by squaring. */
double power_int(double x, uint64_t n);
/* x^y, x >= 0, y >= 0; exact as power_int() where y is an integer. */
double power_real(double x, double y);

#endif
