/* order.h - which record stands where: the rules of data.h as pure functions. */
#ifndef DATA_ORDER_H
#define DATA_ORDER_H

#include <stdbool.h>
#include <stdint.h>

struct data_order {
    uint64_t n;            /* records, >= 1 */
    uint64_t seed;
    uint32_t global_batch; /* >= 1 */
    uint32_t lanes;        /* divides global_batch */
    bool shuffle;
    bool pad;              /* the last batch of an epoch is filled up; else it is dropped */
};

/* Steps of an epoch; 0: fewer records than a batch, and they are dropped. */
uint64_t data_order_steps(const struct data_order *o);
/* The record of sample i of a lane's part of step `step` (from 1). *real is false for a sample that
 * only fills up the batch. There must be steps in an epoch. */
uint64_t data_order_record(const struct data_order *o, uint64_t step, uint32_t lane, uint32_t i,
                           bool *real);

#endif
