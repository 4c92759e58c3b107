/* view.h - ops whose output has the bytes of input 0 under another shape. The planner aliases their
 * memory and does not call them; if it cannot, these kernels copy. */
#ifndef OP_SHAPE_VIEW_H
#define OP_SHAPE_VIEW_H

struct err;
struct op_call;

int view_fwd(const struct op_call *c, struct err *err); /* any type */
int view_bwd(const struct op_call *c, struct err *err); /* float32 or bfloat16 */

#endif
