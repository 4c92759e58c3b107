/* advice.h - the limits of warnings about the time of steps. Plain data.
 *
 * The words of the kinds are the keys of health.advice in the job. A new kind is a value here, a row in
 * lib/conf/job_keys_train.c, and a row in daemon/advice.c. */
#ifndef OPTS_ADVICE_H
#define OPTS_ADVICE_H

#include <stdint.h>

enum advice_kind {
    ADVICE_REDUCE_SHARE, /* part of a step that waits for the all-reduce, 0 to 1 */
    ADVICE_DATA_SHARE,   /* part of a step that waits for samples, 0 to 1 */
    ADVICE_H2D_MS,       /* copy of a lane's samples to the GPU */
    ADVICE_DEVICE_USE,   /* part of a step in which the GPUs have work: the warning is below the limit */
    ADVICE_LANE_SPREAD,  /* seconds per lane: the slowest task / the median task */
    ADVICE_KINDS,
};

struct advice_limits {
    double at[ADVICE_KINDS];  /* 0: no warning */
    uint64_t window_steps;    /* a window has at least so many steps */
    double window_seconds;    /* and lasts at least so long */
    double repeat_seconds;    /* between two log lines of one kind */
};

#endif
