/* cpu_types.h - the part of a replica on a CPU: its work memory, and the thread that reduces for
 * it. */
#ifndef ENGINE_CPU_TYPES_H
#define ENGINE_CPU_TYPES_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "comm/comm.h"
#include "device/device.h"
#include "engine/engine.h"

struct residual_work;

struct reducer {  /* cpu_reduce.c */
    size_t added; /* the replica's: floats of the last lane that are added to the others */
    /* the replica's: floats of the packed arena, where the last bucket ends */
    size_t end;
    pthread_t thread;
    bool started;         /* false: the replica reduces by itself */
    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t changed;
    uint32_t ready, done; /* buckets of this step */
    bool stop;
    int rc; /* 0, or the first failure, which is `err` */
    struct err err;
    struct trace_row *trace; /* of this step */
    uint64_t step;           /* likewise */
    struct comm_coded_bytes coded; /* before this step; the replica's */
};

/* The codes of the groups of a replica, if it has several and sends them (codes.c). */
struct kept_codes {
    uint8_t *memory;       /* owned [n][bytes] */
    const uint8_t *at[CODE_RAW_BYTES / CODE_LEAST_BYTES]; /* [n] of each group: its coded blocks */
    uint32_t n;            /* groups; 0: nothing is kept */
    size_t bytes;
};

struct spare { /* cpu_spare.c; of a generation */
    bool is_passive; /* the replica neither helps nor gives its block */
    bool is_broken;  /* it could not compute a copy, and helps no more */
    const char *helped, *helper; /* names of the tasks; the view's */
    uint64_t n_steps, lane_ns;   /* steps so far; a lane takes, without data */
    /* a step */
    uint64_t step, begin_ns;
    uint64_t block_ns; /* begin of the block; the waits for samples before it are subtracted */
    bool is_given; /* the block was left out */
    uint32_t owed; /* lanes of which the samples were not taken */
};

struct cpu {
    struct kept_codes codes;
    struct residual_work *residual; /* owned; of a generation whose code keeps residuals; else NULL */
    struct device_mem work, eval_work; /* owned; activations of the two plans */
    struct reducer reducer;
    struct spare spare;
};

static inline struct cpu *cpu_of(const struct engine_replica *r)
{
    return r->device;
}

#endif
