/* op_record.h - reports which ops the cases of a test program checked, to the program that started it
 * (test/ops/cases.c). Without the environment variables below, nothing is reported and every case runs.
 *
 * TRAINERD_OPS_RECORD: a file, to which each report appends a line "ROW KIND": the index of the op in
 * op_all(), and a letter of enum op_record_kind. TRAINERD_OPS_ONLY: the name of an op; gradcheck_run()
 * and the functions of op_oracle.h skip the cases of other ops. */
#ifndef HARNESS_OP_RECORD_H
#define HARNESS_OP_RECORD_H

#include <stdbool.h>

#include "op/op.h"

enum op_record_kind {
    OP_RECORD_FORWARD = 'f',  /* ran forward between guards, over poisoned buffers */
    OP_RECORD_ORACLE = 'o',   /* output compared by op_oracle.h */
    OP_RECORD_GRADIENT = 'g', /* gradients compared with finite differences, or with exact values */
};

/* Reports a case of `def` that passed. Does nothing for an op that op_all() does not have. A failed
 * write fails the running test. */
void op_record(const struct op_def *def, enum op_record_kind kind);
/* Returns true unless TRAINERD_OPS_ONLY names another op. An op that op_all() lacks, which a test of the
 * checks uses, is always wanted. */
bool op_record_wants(const struct op_def *def);

#endif
