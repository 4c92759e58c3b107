/* events.c - see events.h. */
#include "train/events.h"

#include "train/train_types.h"

void events_send(const struct events *e, const struct train_event *event)
{
    e->on_event(e->arg, event);
}

void events_phase(const struct events *e, const char *phase, uint64_t step)
{
    const struct train_event event = { .kind = TRAIN_PHASE, .step = step, .text = phase };

    events_send(e, &event);
}

void events_note(const struct events *e, const char *text)
{
    const struct train_event event = { .kind = TRAIN_NOTE, .text = text };

    events_send(e, &event);
}

void events_warn(const struct events *e, uint64_t step, const char *text)
{
    const struct train_event event = { .kind = TRAIN_WARN, .step = step, .text = text };

    events_send(e, &event);
}
