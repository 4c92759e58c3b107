/* trace.h - some steps of this process on a time line, and where their time went.
 *
 * Without a trace every row is NULL, and the functions below do nothing. trace_open() allocates all
 * memory. Each replica adds spans to its own row; a thread that reduces for the replica has another
 * row. When the last replica has completed the last traced step, a thread of the trace writes the
 * file and reports the sums. Only trace_end() waits for that thread.
 *
 * A GPU has a row for each of its streams (gpu_clock.c). Calls are in the row of the work stream,
 * with times of the GPU's clock; the row of the replica contains the spans of its thread.
 *
 * The file is JSON in the Chrome trace format: a process for the task, a thread for each row; times
 * are those of clock_ns(), so the files of tasks on one machine lie on one time line.
 *
 * Threads: a row belongs to its thread; open, end, close to one at a time. */
#ifndef ENGINE_TRACE_H
#define ENGINE_TRACE_H

#include "base/clock.h"
#include "engine/trace_types.h"

struct err;

/* Errors: ERR_INPUT (a place that cannot be written, more spans than a trace holds), ERR_NOMEM. */
int trace_open(const struct trace_opts *opts, struct trace **out, struct err *err);
/* The steps [first, first + steps) will be traced, of process `pid` called `name`.
 * Errors: ERR_NOMEM, ERR_IO. */
int trace_start(struct trace *t, uint64_t first, uint32_t pid, const char *name, struct err *err);
/* Called when no thread uses a row. Waits at most wait_ms for the file. NULL is accepted. */
void trace_end(struct trace *t, uint64_t wait_ms);
void trace_close(struct trace *t); /* after trace_end(); waits for the thread. NULL is accepted */

/* Returns the row of a replica if `step` is traced, else NULL. On a CPU its plan then records
 * calls. */
struct trace_row *trace_begin(struct trace *t, uint32_t replica, uint64_t step);
/* Returns another row of the same replica, for the same step; NULL for NULL. */
struct trace_row *trace_sibling(struct trace_row *row, enum trace_rows which);
/* Called after all spans of the step. Returns true after the last traced step: the row must not be
 * used any more. */
bool trace_end_step(struct trace_row *row, uint64_t begin_ns);

static inline uint64_t trace_clock(const struct trace_row *row)
{
    return row != NULL ? clock_ns() : 0;
}
void trace_add(struct trace_row *row, enum trace_kind what, uint32_t which, uint64_t begin_ns,
               uint64_t end_ns);
/* As trace_add(), for the time [begin_ns, now). */
void trace_add_until_now(struct trace_row *row, enum trace_kind what, uint32_t which,
                         uint64_t begin_ns);
/* Adds the span of the plan's forward or backward since begin_ns, and the spans of its calls. A
 * call begins at the end of the previous call, or of lane sums between the two. */
void trace_calls(struct trace_row *row, bool backward, uint32_t lane, uint64_t begin_ns);

#endif
