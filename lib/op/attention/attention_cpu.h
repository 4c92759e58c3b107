/* attention_cpu.h - the kernels of the row in attention.c. */
#ifndef OP_ATTENTION_ATTENTION_CPU_H
#define OP_ATTENTION_ATTENTION_CPU_H

struct err;
struct op_call;
struct op_plan;

int attention_cpu_plan(struct op_plan *p, struct err *err);
int attention_cpu_fwd(const struct op_call *c, struct err *err);
int attention_cpu_bwd(const struct op_call *c, struct err *err);
void attention_cpu_free(void *state);

#endif
