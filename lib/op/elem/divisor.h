/* divisor.h - what integer Div and Mod share: a divisor of 0 is refused before anything is
 * computed, as the processor would stop the program. */
#ifndef OP_ELEM_DIVISOR_H
#define OP_ELEM_DIVISOR_H

#include <stddef.h>

struct err;
struct op_call;

/* ERR_INPUT: element `at` of it is 0. */
int elem_refuse_divisor(const char *op, size_t at, struct err *err);
/* ERR_INPUT with the element if input 1 is an integer tensor with a 0. */
int elem_check_divisor(const struct op_call *c, const char *op, struct err *err);

#endif
