/* op_oracle.h - verifies element-wise ops with plain double arithmetic, index by index. Only the
 * shape functions are shared with the kernels. */
#ifndef HARNESS_OP_ORACLE_H
#define HARNESS_OP_ORACLE_H

#include <stddef.h>
#include <stdint.h>

#include "harness/gradcheck.h"

/* Returns element i of a tensor in plain order, of any type that the tests use. */
double oracle_at(const struct tensor *t, size_t i);
/* Returns the plain index in s of the element that is broadcast to element i of `out`. */
size_t oracle_under(const struct shape *s, const struct shape *out, size_t i);
/* Runs the case forward; output 0 must be f of the operands under each element, whose values are x
 * [n_in]: |got - want| <= tol * (1 + |want|). */
void oracle_elementwise(const struct gradcheck_case *gc, double (*f)(const double *x, uint32_t n),
                        double tol);
/* The case must be rejected with this code and a message that contains `part`. */
void oracle_refused(const struct gradcheck_case *gc, int code, const char *part);
/* Output 0 must have this shape and these values, to the bit. */
void oracle_ints(const struct gradcheck_case *gc, const struct shape *shape, const int64_t *want);
void oracle_floats(const struct gradcheck_case *gc, const struct shape *shape, const float *want);

#endif
