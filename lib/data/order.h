/* order.h - which sample stands where: the rules of data.h as pure functions.
 *
 * A mixture of parts with weights w1, w2, ...: positions are counted on through all epochs, G = epoch *
 * samples + position, and cut into blocks of W = w1 + w2 + ... . A block holds w1 samples of part 1, w2 of
 * part 2 and so on, in an order drawn per block when shuffling. So the k-th sample of a part, from 0, is
 * known from G at once; it is position k mod n of the part's own epoch k / n, n its samples. */
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
    uint32_t lanes;        /* divides global_batch */
    bool shuffle;
    bool pad;              /* the last batch of an epoch is filled up; else it is dropped */
    const struct data_order_part *parts;
    uint32_t n_parts;      /* below 2: no mixture */
};

struct data_pick {
    uint64_t sample;
    uint64_t epoch;        /* of the sample's part */
    bool real;             /* false: it only fills up the batch */
};

/* Steps of an epoch; 0: fewer samples than a batch, and they are dropped. */
uint64_t data_order_steps(const struct data_order *o);
/* Sample i of a lane's part of step `step` (from 1). There must be steps in an epoch. */
struct data_pick data_order_pick(const struct data_order *o, uint64_t step, uint32_t lane,
                                 uint32_t i);

#endif
