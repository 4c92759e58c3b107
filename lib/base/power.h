/* power.h - powers with bit-identical results with every C library. Tasks compare the kernel library
 * and the instruction set when they join, but not the C library, whose pow() may differ in the last
 * bit; a learning rate must be equal on all tasks. Threads: any; pure functions. */
#ifndef BASE_POWER_H
#define BASE_POWER_H

#include <stdint.h>

/* x^n by squaring. */
double power_int(double x, uint64_t n);
/* x^y for x >= 0, y >= 0; equal to power_int() if y is an integer. */
double power_real(double x, double y);

#endif
