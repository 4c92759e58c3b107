#include "data/order.h"

#include "base/check.h"
#include "base/rng.h"

uint64_t data_order_steps(const struct data_order *o)
{
    return o->n / o->global_batch + (o->pad && o->n % o->global_batch != 0);
}

uint64_t data_order_record(const struct data_order *o, uint64_t step, uint32_t lane, uint32_t i,
                           bool *real)
{
    uint64_t steps = data_order_steps(o), epoch, position;
    uint32_t lane_batch = o->global_batch / o->lanes;

    CHECK(steps > 0 && step > 0 && lane < o->lanes && i < lane_batch);
    epoch = (step - 1) / steps;
    position = (step - 1) % steps * o->global_batch + (uint64_t)lane * lane_batch + i;
    *real = position < o->n;
    position %= o->n; /* filling starts over with the same epoch's order, as often as needed */
    return o->shuffle ? rng_permute(o->seed, epoch, o->n, position) : position;
}
