/* gpu_clock.h - measures how a GPU spends its time, with its own clock. Threads: the replica's. */
#ifndef ENGINE_GPU_CLOCK_H
#define ENGINE_GPU_CLOCK_H

#include "engine/engine.h"
#include "engine/trace_types.h"

struct gpu;

int gpu_clock_open(struct engine_replica *r, struct err *err);
void gpu_clock_close(struct gpu *g);

/* ---- busy time of the work stream ---- */
/* Marks the beginning and the end of a step's work on the work stream. The two calls must
 * alternate. */
int gpu_clock_work_begin(struct engine_replica *r, struct err *err);
int gpu_clock_work_end(struct engine_replica *r, struct err *err);
/* Reads the marks. Called after gpu_clock_work_end(), when the work stream is idle. */
void gpu_clock_read(struct engine_replica *r);
/* Discards the marks of the last step. Called before work that belongs to no step. */
void gpu_clock_reset(struct engine_replica *r);

/* ---- spans of a traced step; no effect in other steps ---- */
/* Begins the trace of a step, if it is traced. */
void gpu_clock_step_begin(struct engine_replica *r);
/* An engine_ops.end_step: waits until the GPU has completed a traced step, and writes its spans to
 * the trace. */
int gpu_clock_step_end(struct engine_replica *r, struct err *err);
/* Begins a span on the stream of a row. */
int gpu_span_begin(struct engine_replica *r, enum trace_rows row, struct err *err);
/* Ends the span that began at the last gpu_span_begin() or gpu_span_end() of the row; the next span
 * begins here. */
int gpu_span_end(struct engine_replica *r, enum trace_rows row, enum trace_kind what,
                 uint32_t which, struct err *err);
/* gpu_clock_work_begin() and gpu_span_begin(), after the host has waited during a step. */
int gpu_begin_work(struct engine_replica *r, struct err *err);
/* Returns the position of the next span on the work stream, for gpu_span_enclose(), which adds a
 * span from there to the last mark. */
uint32_t gpu_span_position(const struct engine_replica *r);
void gpu_span_enclose(struct engine_replica *r, enum trace_kind what, uint32_t which,
                      uint32_t from);
/* A plan_watch_fn; arg: the replica. */
int gpu_span_call(void *arg, uint32_t call, struct err *err);

#endif
