/* order.h - the order of the samples, as defined in data.h, in pure functions.
 *
 * A mixture of parts with weights w1, w2, ...: positions are numbered through all epochs (number
 * G = epoch * samples + position) and divided into blocks of W = w1 + w2 + ... positions. A block
 * contains w1 samples of part 1, w2 samples of part 2 and so on; with shuffling, in a random order
 * per block. G therefore determines the part and the index k of the sample in that part, from 0; it
 * is position k mod n of the part's own epoch k / n, n the number of samples of the part. */
#ifndef DATA_ORDER_H
#define DATA_ORDER_H

#include <stdbool.h>
#include <stdint.h>

struct data_order_part {
    uint64_t first, n;     /* samples [first, first + n), n >= 1 */
    uint32_t weight;       /* >= 1 */
};

struct data_order {
    uint64_t n;            /* samples, >= 1 */
    uint64_t seed;
    uint32_t global_batch; /* >= 1 */
    uint32_t lanes;        /* micro-batches of a step; divides global_batch */
    bool shuffle;
    bool pad; /* the last, incomplete batch of an epoch is padded; else it is dropped */
    const struct data_order_part *parts; /* [n_parts] borrowed */
    uint32_t n_parts;      /* below 2: no mixture */
};

struct data_pick {
    uint64_t sample;
    uint64_t epoch; /* epoch of the sample's part */
    bool real;      /* false: padding of the batch */
};

/* Returns the number of steps of an epoch; 0: fewer samples than a batch, without padding. */
uint64_t data_order_steps(const struct data_order *o);
/* Returns sample i of lane `lane` of step `step` (from 1). An epoch must have at least one step. */
struct data_pick data_order_pick(const struct data_order *o, uint64_t step, uint32_t lane,
                                 uint32_t i);

#endif
