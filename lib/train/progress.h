/* progress.h - the places of the threads of a task, for a watchdog. Threads: any. */
#ifndef TRAIN_PROGRESS_H
#define TRAIN_PROGRESS_H

#include <stdint.h>

struct engine;
struct train_progress;

/* Returns the lowest place of all replicas and their helper threads, that of the thread which
 * blocks the others. */
void progress_of(const struct engine *e, uint64_t deadline_ms, double stuck_factor,
                 struct train_progress *out);

#endif
