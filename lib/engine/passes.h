/* passes.h - passes over data beside the steps: an evaluation, and a step that is computed again.
 * One batch at a time, through plans->pass. The contracts are those of engine_ops. */
#ifndef ENGINE_PASSES_H
#define ENGINE_PASSES_H

#include "engine/engine.h"

int passes_evaluate(struct engine_replica *r, struct err *err);
int passes_describe_nonfinite(struct engine_replica *r, const char *separator, char *text, size_t n,
                              struct err *err);
int passes_locate_nonfinite(struct engine_replica *r, uint64_t step, struct engine_nonfinite *out,
                            struct err *err);

#endif
