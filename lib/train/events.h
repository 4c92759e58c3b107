/* events.h - events to the caller of train.h. Threads: any; the callback decides. */
#ifndef TRAIN_EVENTS_H
#define TRAIN_EVENTS_H

#include <stdbool.h>
#include <stdint.h>

struct train_event;

struct events {
    void (*on_event)(void *arg, const struct train_event *event);
    void *arg;
    uint64_t copy_ns;        /* of the checkpoint that was copied since the last TRAIN_STEP; 0: none */
    uint64_t last_step_ns;   /* clock of the last TRAIN_STEP, or of the generation's beginning */
    _Atomic uint64_t unlogged_step; /* of the last train_set_unlogged(); 0: none */
    bool has_resumed;        /* TRAIN_RESUMED was sent */
    char resumed_path[4096]; /* of the checkpoint that was loaded; "": none */
};

void events_send(const struct events *e, const struct train_event *event);
void events_phase(const struct events *e, const char *phase, uint64_t step); /* TRAIN_PHASE */
void events_note(const struct events *e, const char *text);                  /* TRAIN_NOTE */
void events_warn(const struct events *e, uint64_t step, const char *text);   /* TRAIN_WARN */

#endif
