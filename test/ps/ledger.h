/* ledger.h - the parts of HELD and BEGIN of a job without asynchronous phases. */
#ifndef TEST_PS_LEDGER_H
#define TEST_PS_LEDGER_H

#include "ps/message.h"
#include "ps/units.h"

static inline void write_step(struct ps_writer *w, uint64_t step)
{
    const uint64_t history[2] = { 0, 1 };
    const struct ps_units units = { .complete = step };

    ps_write_units(w, history, &units);
}

/* The memory of all shards, in HELD. */
static inline void write_bytes(struct ps_writer *w, uint64_t of_each)
{
    uint64_t *bytes = ps_write_room(w, PS_SHARDS * sizeof(*bytes));

    for (uint32_t i = 0; i < PS_SHARDS; i++)
        bytes[i] = of_each;
}

#endif
