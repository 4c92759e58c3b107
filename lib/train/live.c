/* live.c - options that may change while a generation runs. They decide when something is saved or
 * measured, never what is computed. */
#include "train/train_priv.h"

#include "base/clock.h"

#define LOAD(field_) __atomic_load_n(&t->live.field_, __ATOMIC_RELAXED)
#define STORE(field_, value_) __atomic_store_n(&t->live.field_, value_, __ATOMIC_RELAXED)

void train_set_checkpoint(struct train *t, uint64_t every_steps, double every_seconds, uint32_t max_to_keep)
{
    STORE(save_every_steps, every_steps);
    STORE(save_every_ns, (uint64_t)(every_seconds * 1e9));
    STORE(max_to_keep, max_to_keep);
}

void train_set_norm(struct train *t, uint64_t every_steps)
{
    STORE(norm_every_steps, every_steps);
}

void live_open(struct train *t)
{
    const struct train_opts *o = t->opts;

    train_set_checkpoint(t, o->checkpoint_every_steps, o->checkpoint_every_seconds, o->max_to_keep);
    train_set_norm(t, o->norm_every_steps);
    t->live.norm_every[0] = t->live.norm_every[1] = o->norm_every_steps;
}

bool live_norm_is_due(const struct train *t, uint64_t step)
{
    uint64_t every = t->live.norm_every[step & 1];

    return every > 0 && step % every == 0;
}

void live_end_step(struct train *t, uint64_t step)
{
    t->live.norm_every[(step + 1) & 1] = LOAD(norm_every_steps);
}

bool live_save_is_due(const struct train *t, uint64_t step)
{
    uint64_t every = LOAD(save_every_steps);

    return every > 0 && step % every == 0;
}

bool live_save_is_late(const struct train *t)
{
    uint64_t every = LOAD(save_every_ns);

    return every > 0 && clock_ns() - t->last_save_ns >= every;
}

void live_set_keep(const struct train *t)
{
    ckpt_set_keep(t->writer, LOAD(max_to_keep));
}
