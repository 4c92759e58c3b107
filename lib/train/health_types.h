/* health_types.h - what health.c remembers. Written by local replica 0, read by all replicas after
 * a gate. */
#ifndef TRAIN_HEALTH_TYPES_H
#define TRAIN_HEALTH_TYPES_H

#include <stdbool.h>
#include <stdint.h>

enum { HEALTH_MAX_SKIPS = 10 /* in a row; the next one ends the job */ };

struct health {
    /* One generation. */
    bool compares;                      /* there are other tasks */
    uint64_t gradient_step, state_step; /* whose checksums are still to be compared; 0: none */
    uint32_t gradient, state;           /* the checksums */
    uint64_t data_step; /* whose record is still to be compared; 0: none */
    uint32_t data;      /* data_batch.check of that step */
    uint64_t equal_step;                /* the last step whose gradient was equal on all tasks */
    uint64_t equal_state_step;          /* likewise state */
    bool rolls_back;                    /* it ends for policy `restore` */
    bool differs;                       /* it ends because tasks or replicas differ */
    uint32_t peer;                      /* the member that differs; UINT32_MAX: unknown */

    /* Of the process. */
    bool state_invalid; /* the state buffers hold no usable state */
    /* the step at which all tasks went back to a checkpoint; 0: none */
    uint64_t restored_at;
    uint64_t skips, overflows;
};

#endif
