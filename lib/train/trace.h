/* trace.h - some steps of this process on a time line, and where their time went.
 *
 * Off, there is no trace: every row is NULL and the functions below do nothing. On, all memory is
 * taken when the trace is opened; a replica notes spans in its own row (a thread that reduces for
 * it has one too), and when the last replica is through the last step that is traced, a thread of
 * the trace writes the file and tells the sums. Nobody waits for that thread but trace_end().
 *
 * A GPU has rows of its own, one for each of its streams (gpu_trace.c): calls are in that of its work, by its
 * own clock, and the row of the replica is what its thread does meanwhile.
 *
 * The file is JSON in the Chrome trace format: a process for the task, a thread for each row; times
 * are those of clock_ns(), so the files of tasks on one machine lie on one time line.
 *
 * Threads: a row belongs to its thread; open, end, close to one at a time. */
#ifndef TRAIN_TRACE_H
#define TRAIN_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"

struct err;
struct plan;
struct trace;
struct train_profile;

enum { TRACE_MAX_SPANS = 1 << 20 }; /* of a process: 32 MiB, and about 200 MB of JSON */

enum trace_what {
    TRACE_STEP,     /* the others but the last lie inside one */
    TRACE_DATA,     /* waiting for the lane's samples and taking them over */
    TRACE_FORWARD,  /* holds calls */
    TRACE_BACKWARD, /* holds calls, and lane sums where they are made meanwhile */
    TRACE_CALL,     /* `which`: plan_call_info() */
    TRACE_SUMS,     /* adding lanes */
    TRACE_REDUCTION, /* waiting for the reduction; in a reducing thread's row: a piece of it */
    TRACE_CHECK,      /* looking at the gradient, and waiting until all replicas of the task have */
    TRACE_UPDATE,
    TRACE_CHECKPOINT, /* handing a copy to the writer */
    TRACE_EVALUATION,
};

enum trace_rows { /* of a replica */
    TRACE_REPLICA, /* its thread */
    TRACE_REDUCER, /* the one that reduces for it */
    TRACE_WORK,    /* the streams of its GPU */
    TRACE_FEED,
    TRACE_SUM,
    TRACE_ROWS,
};

struct trace_span {
    uint64_t begin_ns, end_ns;
    uint32_t step;  /* after the first that is traced */
    uint32_t which; /* call, lane or piece */
    uint32_t what;  /* enum trace_what */
};

struct trace_row {
    struct trace *trace;
    struct plan *plan;        /* borrowed; NULL in a row without calls */
    uint32_t calls;           /* of it; 0 likewise */
    struct trace_span *spans; /* [cap] */
    size_t n, cap;
    uint64_t *end_ns;         /* [plan_calls_count()] of the present lane */
    uint32_t n_forward;       /* calls */
    uint32_t step;            /* the present one, after the first */
    char name[48];
};

struct trace_opts {
    const char *path;         /* borrowed; a file, made or overwritten */
    uint32_t steps;
    struct plan *const *plans; /* [n_replicas] */
    uint32_t n_replicas;
    uint32_t lanes;           /* of a replica */
    uint32_t pieces;          /* of the reduction of a step, at most */
    bool on_gpus;
    /* From the trace's own thread: the sums, unless no step was traced (NULL); what went wrong. */
    void (*on_done)(void *arg, const struct train_profile *p, const char *trouble);
    void *arg;
};

/* Errors: ERR_INPUT (a place that cannot be written, more spans than a trace holds), ERR_NOMEM. */
int trace_open(const struct trace_opts *opts, struct trace **out, struct err *err);
/* The steps [first, first + steps) will be traced, of process `pid` called `name`.
 * Errors: ERR_NOMEM, ERR_IO. */
int trace_start(struct trace *t, uint64_t first, uint32_t pid, const char *name, struct err *err);
/* No row is used any more. Waits up to wait_ms for the file. NULL is fine. */
void trace_end(struct trace *t, uint64_t wait_ms);
void trace_close(struct trace *t); /* after trace_end(); waits for the thread. NULL is fine */

/* The row of a replica if `step` is traced, else NULL. From now on its plan notes calls, on a CPU. */
struct trace_row *trace_begin(struct trace *t, uint32_t replica, uint64_t step);
/* Another row of the same replica, for the same step; NULL of NULL. */
struct trace_row *trace_beside(struct trace_row *row, enum trace_rows which);
/* Behind everything that belongs to the step. True: it was the row's last one, do not use it
 * again. */
bool trace_step_done(struct trace_row *row, uint64_t begin_ns);

static inline uint64_t trace_clock(const struct trace_row *row)
{
    return row != NULL ? clock_ns() : 0;
}
void trace_add(struct trace_row *row, enum trace_what what, uint32_t which, uint64_t begin_ns,
               uint64_t end_ns);
/* [begin_ns, now) was this. */
void trace_until_now(struct trace_row *row, enum trace_what what, uint32_t which,
                     uint64_t begin_ns);
/* The plan's forward or backward ran since begin_ns: it and its calls. A call begins where the one
 * before ended, or the lane sums that were made between them. */
void trace_calls(struct trace_row *row, bool backward, uint32_t lane, uint64_t begin_ns);

#endif
