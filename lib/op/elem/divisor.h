/* divisor.h - what integer Div and Mod share: a divisor of 0 is refused before anything is
 * computed, as the processor would stop the program. */
#ifndef OP_ELEM_DIVISOR_H
#define OP_ELEM_DIVISOR_H

struct err;
struct op_call;

/* ERR_INPUT with the element if input 1 is an integer tensor with a 0. */
int elem_check_divisor(const struct op_call *c, const char *op, struct err *err);

#endif
