/* progress.h - where the threads of a task are, for a watchdog. Threads: any. */
#ifndef TRAIN_PROGRESS_H
#define TRAIN_PROGRESS_H

#include <stdint.h>

struct engine;
struct train_progress;

/* The place of the thread that is furthest behind, of all replicas and their helpers. */
void progress_of(const struct engine *e, uint64_t deadline_ms, double stuck_factor,
                 struct train_progress *out);

#endif
