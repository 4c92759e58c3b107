#include "data/order.h"

#include "base/check.h"
#include "base/rng.h"

uint64_t data_order_steps(const struct data_order *o)
{
    return o->n / o->global_batch + (o->pad && o->n % o->global_batch != 0);
}

static uint64_t shuffled(const struct data_order *o, uint64_t epoch, uint64_t n, uint64_t position)
{
    return o->shuffle ? rng_permute(o->seed, epoch, n, position) : position;
}

/* XORed to the seed, so that the permutation of a block differs from the one of an epoch. */
#define BLOCK_SEED UINT64_C(0x6d697874757265)

/* Returns the sample at position `at`, numbered through all epochs. */
static struct data_pick pick_mixed(const struct data_order *o, uint64_t at)
{
    uint64_t block, slot, whole = 0;
    const struct data_order_part *p = o->parts;
    struct data_pick pick = { .real = true };

    for (uint32_t i = 0; i < o->n_parts; i++)
        whole += o->parts[i].weight;
    block = at / whole;
    slot = at % whole;
    if (o->shuffle)
        slot = rng_permute(o->seed ^ BLOCK_SEED, block, whole, slot);
    while (slot >= p->weight)
        slot -= (p++)->weight;
    at = block * p->weight + slot;
    pick.epoch = at / p->n;
    pick.sample = p->first + shuffled(o, pick.epoch, p->n, at % p->n);
    return pick;
}

struct data_pick data_order_pick(const struct data_order *o, uint64_t step, uint32_t lane,
                                 uint32_t i)
{
    uint64_t steps = data_order_steps(o), epoch, position;
    uint32_t lane_batch = o->global_batch / o->lanes;
    struct data_pick pick;
    bool real;

    CHECK(steps > 0 && step > 0 && lane < o->lanes && i < lane_batch);
    epoch = (step - 1) / steps;
    position = (step - 1) % steps * o->global_batch + (uint64_t)lane * lane_batch + i;
    real = position < o->n;
    position %= o->n; /* padding repeats the order of the same epoch from its start */
    if (o->n_parts > 1)
        pick = pick_mixed(o, epoch * o->n + position);
    else
        pick = (struct data_pick){ .sample = shuffled(o, epoch, o->n, position), .epoch = epoch };
    pick.real = real;
    return pick;
}
