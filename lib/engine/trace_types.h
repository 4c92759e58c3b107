/* trace_types.h - the spans, rows and sums of a trace (trace.h), without functions. */
#ifndef ENGINE_TRACE_TYPES_H
#define ENGINE_TRACE_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct plan;
struct trace;

enum { TRACE_MAX_SPANS = 1 << 20 }; /* of a process: 32 MiB, and about 200 MB of JSON */

enum trace_kind {
    TRACE_STEP,      /* the others but the last lie inside one */
    TRACE_DATA,      /* waiting for the lane's samples and taking them over */
    TRACE_FORWARD,   /* holds calls */
    TRACE_BACKWARD,  /* holds calls, and lane sums where they are made meanwhile */
    TRACE_CALL,      /* `which`: plan_call_info() */
    TRACE_SUMS,      /* adding lanes */
    TRACE_REDUCTION, /* waiting for the reduction; in a reducing thread's row: a piece of it */
    TRACE_CHECK,     /* looking at the gradient, and waiting until all replicas of the task have */
    TRACE_UPDATE,
    TRACE_CHECKPOINT, /* handing a copy to the writer */
    TRACE_EVALUATION,
};

enum trace_rows {                /* of a replica */
                  TRACE_REPLICA, /* its thread */
                  TRACE_REDUCER, /* the one that reduces for it */
                  TRACE_WORK,    /* the streams of its GPU */
                  TRACE_FEED,
                  TRACE_REDUCE,
                  TRACE_ROWS,
};

struct trace_span {
    uint64_t begin_ns, end_ns;
    uint32_t step;  /* after the first that is traced */
    uint32_t which; /* call, lane or piece */
    uint32_t what;  /* enum trace_kind */
};

struct trace_row {
    struct trace *trace;
    struct plan *plan;        /* borrowed; NULL in a row without calls */
    uint32_t calls;           /* of it; 0 likewise */
    struct trace_span *spans; /* [cap] */
    size_t n, cap;
    uint64_t *end_ns;   /* [plan_calls_count()] of the present lane */
    uint32_t n_forward; /* calls */
    uint32_t step;      /* the present one, after the first */
    char name[48];
};

/* where the time of the traced steps went; the parts add up to step_seconds */
struct trace_profile {
    const char *path; /* of the trace */
    uint64_t first_step, steps;
    uint32_t replicas; /* of this task; the figures are means over steps and replicas */
    double step_seconds;
    const struct trace_profile_part {
        /* An op; "sum of gradients"; or "data", "lane sums", "reduction" (the wait for it),
         * "check", "update", "checkpoint", and "other". A step on a GPU is timed by the GPU, with
         * "idle" instead of "other": none of these was in progress. */
        const char *what;
        const char *direction; /* of an op: "forward", "backward"; else "" */
        double seconds;        /* of a step */
    } *parts; /* largest first */
    uint32_t n_parts;
};

struct trace_opts {
    const char *path; /* borrowed; a file, made or overwritten */
    uint32_t steps;
    struct plan **plans; /* [n_replicas] */
    uint32_t n_replicas;
    uint32_t lanes;  /* of a replica */
    uint32_t pieces; /* of the reduction of a step, at most */
    bool on_gpus;
    /* From the trace's own thread: the sums, unless no step was traced (NULL); what went wrong. */
    void (*on_done)(void *arg, const struct trace_profile *p, const char *trouble);
    void *arg;
};

#endif
