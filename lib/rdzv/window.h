/* window.h - what heartbeats carry about the time of steps: a window of steps, from a member to its
 * leader, and the advice that the leader derives from the windows of all members, from the leader to
 * its members. Plain data. */
#ifndef RDZV_WINDOW_H
#define RDZV_WINDOW_H

#include <stdint.h>

enum {
    RDZV_WAITS_MAX = 5,
    RDZV_ADVICE_MAX = 16,
    RDZV_KIND_BYTES = 32,
    RDZV_CULPRIT_BYTES = 128,
    RDZV_SENTENCE_BYTES = 512,
};

/* Waits of a task for another one, as in struct comm_wait (comm/comm.h). */
struct rdzv_wait {
    uint32_t rank;     /* of the task that was waited for */
    double late, slow; /* seconds, mean of a step */
    double rate;       /* bytes/s in slow waits; 0: none */
    double losses;     /* segments to that task that were sent again, mean of a step */
};

/* What a task measured in a number of successive steps, on its first replica. */
struct rdzv_window {
    uint64_t number;       /* of the windows of this process, from 1; 0: there is no window */
    uint64_t generation;
    uint64_t steps;
    double seconds;        /* of a step, without the time between steps */
    double data, reduce;   /* parts of it that waited for samples and for the all-reduce, 0 to 1 */
    double checkpoint;     /* and that copied the state for the checkpoint writer */
    uint32_t lanes;        /* of the task, in a step */
    double lane_seconds;   /* of computing a lane, with the lane's part of the other work of a step */
    double steal;          /* part of the processor time of the host that the hypervisor took, 0 to 1 */
    double others;         /* and that other processes used */
    double storage;        /* and that waited for storage, with nothing else to do */
    double idle;           /* part of a step in which the GPUs of the task had no work; -1: unknown */
    double copy_ms;        /* of a lane's samples to the GPU: the 99th percentile; -1: unknown */
    double late, slow;     /* all waits for other tasks, seconds, mean of a step */
    double delay;          /* seconds, mean of a step: the thread was ready and waited for a processor; 0: none, or
                              the kernel does not count it */
    uint32_t n_waits;
    struct rdzv_wait waits[RDZV_WAITS_MAX]; /* the longest ones, the longest first */
};

struct rdzv_advice {
    uint64_t time_us;      /* when the leader issued the sentence, us since 1970: a new value is a new issue */
    char kind[RDZV_KIND_BYTES];
    double value, limit;
    char culprit[RDZV_CULPRIT_BYTES];
    char text[RDZV_SENTENCE_BYTES], remedy[RDZV_SENTENCE_BYTES];
};

#endif
