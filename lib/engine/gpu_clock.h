/* gpu_clock.h - measures how a GPU spends its time, with its own clock. Threads: the replica's. */
#ifndef ENGINE_GPU_CLOCK_H
#define ENGINE_GPU_CLOCK_H

#include "engine/engine.h"
#include "engine/trace_types.h"

struct gpu;

int gpu_clock_open(struct engine_replica *r, struct err *err);
void gpu_clock_close(struct gpu *g);
/* Marks the beginning and the end of a step's work on the work stream. The two calls must
 * alternate. */
int gpu_busy(struct engine_replica *r, struct err *err);
int gpu_rest(struct engine_replica *r, struct err *err);
void gpu_clock_read(struct engine_replica *r); /* the work stream is at rest, after gpu_rest() */
/* other work follows: the next step has no predecessor */
void gpu_clock_forget(struct engine_replica *r);
/* Only in a traced step (else no effect). gpu_mark_begin(): a span begins on this stream.
 * gpu_mark(): the span since then, or since the last mark, was this. */
int gpu_mark_begin(struct engine_replica *r, enum trace_rows row, struct err *err);
int gpu_mark(struct engine_replica *r, enum trace_rows row, enum trace_what what, uint32_t which,
             struct err *err);
/* gpu_busy() and gpu_mark_begin(): the host has waited, and now puts more work of the step on the
 * work stream. */
int gpu_begin_work(struct engine_replica *r, struct err *err);
/* A span on the work stream that holds others: from here to the last mark. */
uint32_t gpu_mark_here(const struct engine_replica *r);
void gpu_mark_whole(struct engine_replica *r, enum trace_what what, uint32_t which, uint32_t from);
int gpu_mark_call(void *arg, uint32_t call, struct err *err); /* plan_watch_fn of a replica */
void gpu_clock_begin(struct engine_replica *r);               /* a step, which is traced or not */
/* An engine_ops.end_step: waits until the GPU has done a traced step, and writes its spans into the
 * trace. */
int gpu_clock_write(struct engine_replica *r, struct err *err);

#endif
