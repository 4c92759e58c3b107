/* divisor.h - shared by integer Div and Mod: a divisor of 0 is refused before the loop, because the
 * processor would raise a signal. */
#ifndef OP_ELEM_DIVISOR_H
#define OP_ELEM_DIVISOR_H

#include <stddef.h>

struct err;
struct op_call;

/* Reports that element `at` of the divisor is 0: ERR_INPUT. */
int elem_refuse_divisor(const char *op, size_t at, struct err *err);
/* Reports the first 0 in input 1 if that is an integer tensor: ERR_INPUT. */
int elem_check_divisor(const struct op_call *c, const char *op, struct err *err);

#endif
