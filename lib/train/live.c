/* live.c - see live.h. */
#include "train/live.h"

#include <stdatomic.h>

#include "base/clock.h"

#define LOAD(field_) atomic_load_explicit(&l->field_, memory_order_relaxed)
#define STORE(field_, value_) atomic_store_explicit(&l->field_, value_, memory_order_relaxed)

void live_set_checkpoint(struct live *l, uint64_t every_steps, double every_seconds,
                         uint32_t max_to_keep)
{
    STORE(save_every_steps, every_steps);
    STORE(save_every_ns, (uint64_t)(every_seconds * 1e9));
    STORE(max_to_keep, max_to_keep);
}

void live_set_norm(struct live *l, uint64_t every_steps)
{
    STORE(norm_every_steps, every_steps);
}

bool live_norm_is_due(const struct live *l, uint64_t step)
{
    uint64_t every = l->norm_every[step & 1];

    return every > 0 && step % every == 0;
}

void live_end_step(struct live *l, uint64_t step)
{
    l->norm_every[(step + 1) & 1] = LOAD(norm_every_steps);
}

bool live_save_is_due(const struct live *l, uint64_t before, uint64_t step)
{
    uint64_t every = LOAD(save_every_steps);

    return every > 0 && step / every > before / every;
}

bool live_save_is_overdue(const struct live *l, uint64_t last_save_ns)
{
    uint64_t every = LOAD(save_every_ns);

    return every > 0 && clock_ns() - last_save_ns >= every;
}

uint32_t live_keep(const struct live *l)
{
    return LOAD(max_to_keep);
}
